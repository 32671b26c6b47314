"""Streaming DiLoCo: fragments in turns, against torch's AdamW by hand; one fragment is DiLoCo."""

import pytest
import torch

from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.testing.trial import Method, finished, recorded, started

pytestmark = pytest.mark.thorough

NET = {"model": "mlp:hidden=[6]", "dataset": "digits", "clients": 3, "rows": 90}
PROBLEM = {"name": "network", **NET, "batch": "full", "dtype": "float64"}
SIZES = [6 * 64, 6, 60, 10]
WORK = {"inner_step": 0.01, "weight_decay": 0.1}


def method(params, rounds=7, problem=PROBLEM, name="streaming_diloco", **more):
    compressor = {"name": "identity"} if name == "streaming_diloco" else None
    return Method(name, {**WORK, **params}, compressor, problem, step=0.7, rounds=rounds, **more)


def test_fragments_are_groups_of_tensors():
    layout = Layout(tuple((f"t{j}", (size,)) for j, size in enumerate((10, 30, 5, 5, 30, 20))))
    result = layout.fragments(2)
    assert [(p.start, p.stop) for p, _ in result] == [(0, 50), (50, 100)]
    assert [own.dim for _, own in result] == [50, 50]
    assert [(p.start, p.stop) for p, _ in layout.fragments(1)] == [(0, 100)]
    many = layout.fragments(50)  # at most one for every tensor, and none is empty
    assert [p.stop - p.start for p, _ in many] == [10, 30, 5, 5, 30, 20]
    huge = Layout((("a", (1,)), ("b", (98,)), ("c", (1,))))
    assert [p.stop for p, _ in huge.fragments(2)] == [1, 100]


@pytest.mark.parametrize("batch", ["full", 5])
def test_one_fragment_applied_at_once_is_diloco(batch):
    problem = {**PROBLEM, "batch": batch}
    runs = [
        finished(method(params, problem=problem, name=name).batch((1.0, 0.5), (0, 1)))
        for name, params in (
            ("diloco", {"steps": 4}),
            ("streaming_diloco", {"steps": 4, "fragments": 1}),
        )
    ]
    torch.testing.assert_close(runs[1].s.x, runs[0].s.x, rtol=1e-11, atol=1e-14)
    assert (runs[0].bits("up") == runs[1].bits("up")).all()


def by_hand(problem, x, rounds, steps, late, mix, momentum=0.9, gamma=0.7):
    """Return x after so many rounds with two fragments, by torch's AdamW."""
    x, v, n = x.clone(), torch.zeros_like(x), problem.n
    ys = [torch.nn.Parameter(x.clone()) for _ in range(n)]
    own = {"lr": 0.01, "betas": (0.9, 0.999), "weight_decay": 0.1}
    inner = [torch.optim.AdamW([y], **own) for y in ys]
    parts = [slice(0, 384), slice(384, 460)]
    waiting = None

    def work(count):
        for _ in range(count):
            for i, y in enumerate(ys):
                y.grad = problem.oracle(y.detach()[None])[0][0, i]
                inner[i].step()

    def apply(part, g):
        v[part] = momentum * v[part] + g
        x[part] -= gamma * (g + momentum * v[part])
        for y in ys:
            y.data[part] = mix * y.data[part] + (1 - mix) * x[part]

    for t in range(rounds):
        if waiting is not None and late:
            work(late)
            apply(*waiting)
            work(steps - late)
        else:
            work(steps)
        part = parts[t % 2]
        waiting = part, torch.stack([(x - y.detach())[part] for y in ys]).mean(0)
        if not late:
            apply(*waiting)
    return x


@pytest.mark.parametrize(("late", "mix"), [(0, 0.0), (0, 0.5), (2, 0.0), (1, 0.5)])
def test_iterates_are_those_of_torchs_adamw(late, mix):
    run = started(method({"steps": 3, "late": late, "mix": mix}).batch())
    x = run.s.x[0].clone()
    run.advance(7)
    want = by_hand(run.problem, x, 7, 3, late, mix)
    assert not torch.allclose(want, x)
    torch.testing.assert_close(run.s.x[0], want, rtol=1e-9, atol=1e-11)


def test_a_round_costs_its_fragment():
    result = recorded(finished(method({"steps": 2}, rounds=4).batch()))
    assert result["values_up"][0].tolist() == [0, 384, 460, 844, 920]
    assert result["values_down"][0].tolist() == [0, 384, 460, 844, 920]


def test_what_is_late_arrives_within_the_round():
    with pytest.raises(InputError, match=r"algorithm\.late[\s\S]*steps"):
        started(method({"steps": 3, "late": 3}).batch())
