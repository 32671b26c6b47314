"""Step schedules, averaged iterates, compressed and aggregated downlinks, graphs."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from toys import FAR, P1, TOP, each_round, path

from raybench.core.errors import InputError
from raybench.execution.build import GRAPHS, mixing
from raybench.execution.resolve import Skip
from raybench.execution.run import Average, factor
from raybench.testing.trial import Method, finished, started
from raybench.wire import RaggedMessage, SparseMessage

pytestmark = pytest.mark.thorough


def gd(step, **more) -> Method:
    return Method("gd", {}, None, P1, rounds=12, more={**FAR, "step_size": step, **more})


def run_of(method):
    from raybench import spec
    from raybench.execution.resolve import Resolver
    from raybench.testing.trial import batch_of

    config = {**method.config({}, 0), **method.more}
    (cell,) = spec.load(config).cells
    return started(batch_of([Resolver(allow_unproven=True).resolve(cell)]))


@pytest.mark.parametrize(
    ("schedule", "at"),
    [
        ("constant", {1: 1, 100: 1}),
        ("sqrt", {1: 1, 4: 0.5, 100: 0.1}),
        ("inverse", {1: 1, 4: 0.25}),
        ("cosine", {1: 1, 51: 0.5}),
        ("linear", {1: 1, 51: 0.5, 100: 0.01}),
    ],
)
def test_factors(schedule, at):
    for t, want in at.items():
        assert factor(schedule, 0, t, 100) == pytest.approx(want)
        assert factor(schedule, 10, t, 100) == pytest.approx(want * min(1, t / 10))


@pytest.mark.parametrize(("schedule", "warmup"), [("sqrt", 0), ("cosine", 4), ("constant", 3)])
def test_gd_takes_the_scheduled_steps(schedule, warmup):
    run = run_of(gd({"value": 0.1, "schedule": schedule, "warmup": warmup}))
    seen = each_round(run, lambda r: (r.s.x.clone(), r.problem.oracle(r.s.x)[0].mean(1)))
    for t, ((x, grad), (after, _)) in enumerate(pairwise(seen), start=1):
        gamma = 0.1 * factor(schedule, warmup, t, 12)
        torch.testing.assert_close(after, x - gamma * grad, rtol=0, atol=1e-13)


def test_schedules_are_other_groups_and_batches():
    from raybench import spec

    config = gd([{"value": 0.1}, {"value": 0.1, "schedule": "sqrt"}]).config({}, 0)
    config["step_size"] = [{"value": 0.1}, {"value": 0.1, "schedule": "sqrt"}]
    one, two = spec.load(config).cells
    assert one.id != two.id
    assert one.group != two.group


def test_average_iterates():
    last = run_of(gd({"value": 0.2}))
    points = torch.stack(each_round(last, lambda r: r.s.x.clone()))
    mean = run_of(gd({"value": 0.2}, iterate="average"))
    mean.advance(12)
    want = points.mean(0)
    torch.testing.assert_close(mean.average.value, want, rtol=1e-12, atol=1e-12)
    losses = mean.problem.oracle(want)[1].mean(1)
    assert float(losses) == pytest.approx(mean.recorder.column("loss")[0, -1], rel=1e-12)
    weighted = run_of(gd({"value": 0.2}, iterate="weighted"))
    weighted.advance(12)
    w = (1 - 0.2 * weighted.problem.constants.mu / 2) ** -np.arange(1, 14.0)
    want = (torch.tensor(w)[:, None, None] * points).sum(0) / w.sum()
    torch.testing.assert_close(weighted.average.value, want, rtol=1e-12, atol=1e-12)
    assert torch.equal(mean.s.x, last.s.x)


def test_average_of_some_cells():
    full, part = Average(torch.tensor([0.0, 0.5, 0.1])), None
    for t in range(6):
        x = torch.arange(6.0).view(3, 2) * (t + 1) ** 2
        full.add(x)
        part = full.select(torch.tensor([2])) if t == 2 else part
        if t > 2:
            part.add(x[2:])
    torch.testing.assert_close(part.value, full.value[2:])


# Downlinks ------------------------------------------------------------------------------------


def test_a_compressed_downlink_converges_and_costs_less():
    method = Method("ef21", {}, TOP, P1, step=0.2, rounds=3000, more=FAR, downlink=TOP)
    run = finished(method.batch())
    assert run.recorder.last("grad_norm_sq")[0] < 1e-12
    dense = finished(Method("ef21", {}, TOP, P1, step=0.2, rounds=3000, more=FAR).batch())
    assert run.bits("down")[0] < 0.5 * dense.bits("down")[0]
    assert torch.allclose(run.s.x, run.s.y, atol=1e-6)


def test_a_compressed_downlink_has_no_borrowed_theory():
    with pytest.raises(Skip, match="no theoretical step"):
        Method("ef21", {}, TOP, P1, downlink=TOP)._resolved({"theory": 1.0}, 0)


def test_aggregate_downlink_is_charged_by_the_union():
    method = Method("ef21", {"init": "zero"}, TOP, P1, step=0.02, more=FAR, downlink="aggregate")
    run = started(method.batch())
    plain = started(Method("ef21", {"init": "zero"}, TOP, P1, step=0.02, more=FAR).batch())
    assert np.array_equal(path(run), path(plain))
    rounds, width, index = 40, 64, 4
    down, up = run.bits("down")[0], run.bits("up")[0]
    assert up == rounds * 3 * (width + index)
    assert rounds * 3 * width < down <= rounds * 12 * (width + index)
    assert down < plain.bits("down")[0]
    probe = SparseMessage(5, torch.float64, torch.tensor([[[0, 2], [2, 4]]]), torch.ones(1, 2, 2))
    cost = probe.union()
    assert (cost.values.tolist(), cost.index_explicit.tolist()) == ([3], [9])
    assert cost.bytes.tolist() == [3 * 8 + 1]
    cost = probe.masked(torch.tensor([[True, False]])).union()
    assert cost.values.tolist() == [2]
    counts, zero = torch.tensor([[1, 2]]), torch.tensor([[[1, 0], [1, 3]]])
    ragged = RaggedMessage(5, torch.float64, counts, zero, torch.ones(1, 2, 2).double())
    assert ragged.union().values.tolist() == [2]
    seeded = Method(
        "diana", {}, {"name": "rand_k", "k": 3}, P1, step=0.02, more=FAR, downlink="aggregate"
    )
    run = finished(seeded.batch())
    assert run.bits("down")[0] % width == 0
    assert run.bits("down")[0] < rounds * 12 * width
    marina = Method(
        "marina",
        {"p": 0.5},
        {"name": "rand_k", "k": 1},
        P1,
        step=0.02,
        more=FAR,
        downlink="aggregate",
    )
    batch = marina.batch((1.0,), range(6))
    down = finished(batch).bits("down")
    assert (down < 41 * 12 * width).all()
    assert len(set(down.tolist())) > 1
    quantised = Method("diana", {}, "natural", P1, step=0.02, more=FAR, downlink="aggregate")
    assert finished(quantised.batch()).bits("down")[0] == rounds * 12 * width


# Graphs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("weights", ["metropolis", "laplacian"])
@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_mixing_matrices(name, weights, n):
    W, degrees = mixing(name, n, {"weights": weights})
    assert torch.equal(W, W.T)
    torch.testing.assert_close(W.sum(1), torch.ones(n, dtype=torch.float64))
    assert float(W.min()) >= 0
    assert float(torch.linalg.eigvalsh(W).min()) > -1
    assert torch.equal((W - torch.diag(W.diag()) > 0).sum(1).double(), degrees)
    if n > 1:
        assert mixing(name, n, {"weights": weights}).gap > 0  # connected


def test_graphs_by_hand():
    assert mixing("grid", 6).degrees.tolist() == [2, 3, 2, 2, 3, 2]
    assert mixing("torus", 9).degrees.tolist() == [4] * 9
    assert mixing("exponential", 8).degrees.tolist() == [5] * 8  # 1, 2, 4 (its own inverse)
    assert mixing("star", 4).degrees.tolist() == [3, 1, 1, 1]
    one, two = (mixing("erdos_renyi", 9, {"p": 0.4, "seed": s}).W for s in (0, 1))
    assert not torch.equal(one, two)
    assert torch.equal(one, mixing("erdos_renyi", 9, {"p": 0.4, "seed": 0}).W)
    with pytest.raises(InputError, match="unconnected"):
        mixing("erdos_renyi", 40, {"p": 0.001})
    gaps = [mixing(name, 16).gap for name in ("path", "ring", "torus", "exponential", "complete")]
    assert gaps == sorted(gaps)
