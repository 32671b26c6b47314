"""Settings of training: weight decay, clipping, accumulation, bfloat16 layers, weights that are kept."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import raybench
from raybench import spec
from raybench.core.errors import InputError
from raybench.core.parts import Train
from raybench.core.streams import Sample, stream
from raybench.problems import build
from raybench.testing.trial import Method, started
from raybench.testing.vectors import gaussian

DIGITS = {"model": "mlp:hidden=[8]", "dataset": "digits", "clients": 3, "rows": 90}
DIGITS |= {"dtype": "float64", "batch": 6}
NORMED = {**DIGITS, "model": "resnet20:depth=8", "clients": 2, "rows": 24}
DROPPED = {**DIGITS, "model": "mnist_cnn:dropout=0.4"}  # evaluated row by row
BOTH = pytest.mark.parametrize("params", [DIGITS, DROPPED], ids=["stacked", "row by row"])


def point(problem) -> Tensor:
    return problem.start() + 0.01 * gaussian(2, problem.dim, seed=3)


def sample(problem, b: int = 6) -> Sample:
    source = stream([0, 1]).fold("batch").each(range(problem.n))
    return Sample(source.integers(b, torch.tensor(problem.samples)), source.fold("sample"))


@BOTH
def test_weight_decay_is_a_part_of_f(params):
    plain = build("network", params)
    decayed = plain.trained(Train(weight_decay=0.3))
    x, J = point(plain), sample(plain)
    full, losses = plain.oracle(x)
    grads, more = decayed.oracle(x)
    penalty = 0.15 * x.square().sum(-1, keepdim=True)
    torch.testing.assert_close(grads, full + 0.3 * x[:, None], rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(more, losses + penalty, rtol=1e-12, atol=0)
    torch.testing.assert_close(decayed.losses(x), plain.losses(x) + penalty, rtol=1e-12, atol=0)
    want = plain.grad(x, J) + 0.3 * x[:, None]
    torch.testing.assert_close(decayed.grad(x, J), want, rtol=1e-12, atol=1e-15)
    assert torch.equal(decayed.evaluate(x)["accuracy"], plain.evaluate(x)["accuracy"])
    assert torch.equal(plain.grad(x, J), build("network", params).grad(x, J)), (
        "plain stays as it is"
    )


@BOTH
def test_autocast_computes_in_bfloat16(params):
    plain = build("network", {**params, "dtype": "float32"})
    lower = plain.trained(Train(autocast="bfloat16"))
    x, J = point(plain).float(), sample(plain, b=16)
    near, want = lower.grad(x, J), plain.grad(x, J)
    apart = (near - want).norm() / want.norm()
    assert near.dtype == torch.float32
    assert 1e-5 < apart < 0.1
    inputs = lower.examples(lower.train, torch.arange(4))[0]
    result = lower.passes.outputs(x[0], inputs)
    assert torch.equal(result.bfloat16().float(), result)
    assert not torch.equal(plain.passes.outputs(x[0], inputs), result), "plain stays as it is"
    task, types = lower.passes.task, set()

    def losses(outputs, targets):
        types.add(outputs.dtype)
        return task.losses(outputs, targets)

    lower.passes.task = lower._task = replace(task, losses=losses)
    lower.oracle(x)
    lower.losses(x)
    assert types == {torch.float32}, "losses are of float32"
    with pytest.raises(InputError, match=r"train\.autocast[\s\S]*float32"):
        build("network", params).trained(Train(autocast="bfloat16"))


def net_of(params, **train):
    problem = {"name": "network", **params}
    method = Method("gd", {}, None, problem, step=0.1, rounds=3, more={"train": train})
    return started(method.batch())


@pytest.mark.parametrize("decay", [0.0, 3.0])
def test_methods_get_gradients_clipped_and_the_record_gets_them_whole(decay):
    """As torch does: the gradient is clipped, and the optimizer adds the decay of weights to what is left."""
    free = net_of(DIGITS)
    full = free.net.grad(free.s.x)
    shrinking = decay * free.s.x[:, None]
    norms = full.norm(dim=-1, keepdim=True)
    bound = float(norms.mean())  # some are above it, some below
    assert (norms > bound).any()
    assert (norms < bound).any()
    clipped = net_of(DIGITS, clip=bound, weight_decay=decay)
    want = torch.where(norms > bound, full * bound / norms, full) + shrinking
    near = {"rtol": 1e-12, "atol": 1e-14}
    torch.testing.assert_close(clipped.net.grad(clipped.s.x), want, **near)
    of_points = clipped.net.oracle.grad_and_loss(clipped.s.x[:, None].expand_as(full))[0]
    torch.testing.assert_close(of_points, want, **near)
    measured = clipped.net.oracle.measure(clipped.s.x, frozenset({"grad_norm_sq"}))
    torch.testing.assert_close(measured.grads, full + shrinking, **near)


def test_accumulated_minibatches_make_one_gradient():
    """Three of six samples are one of eighteen, in passes of six; the method draws and pays for eighteen."""
    params = {**DIGITS, "batch": 6}
    three = build("network", params).trained(Train(accumulate=3))
    eighteen = build("network", {**params, "batch": 18})
    assert (three.batch, three.most, three.chunk) == (18, 6, eighteen.chunk)
    x, J = point(eighteen), sample(eighteen, b=18)
    torch.testing.assert_close(three.grad(x, J), eighteen.grad(x, J), rtol=1e-12, atol=1e-15)
    runs = [net_of(params, accumulate=3), net_of({**params, "batch": 18})]
    for run in runs:
        run.advance(3)
    assert runs[0].net.oracle.evals.tolist() == runs[1].net.oracle.evals.tolist() == [54.0]
    torch.testing.assert_close(runs[0].s.x, runs[1].s.x, rtol=1e-12, atol=1e-15)
    with pytest.raises(InputError, match=r"train\.accumulate"):
        build("network", {**params, "batch": "full"}).trained(Train(accumulate=2))


@pytest.mark.parametrize("params", [DIGITS, NORMED], ids=["mlp", "with BatchNorm"])
def test_weights_that_are_kept_are_those_of_the_last_point(params, tmp_path):
    sweep = {
        "name": "kept",
        "problem": {"name": "network", **params},
        "algorithm": "gd",
        "train": {"save": "weights", "weight_decay": 0.01},
        "step_size": {"value": [0.05, 0.1]},
        "rounds": 3,
    }
    raybench.sweep(sweep, tmp_path, inline=True)
    cells = raybench.load(tmp_path).query("round == 3").set_index("cell")
    assert len(cells) == 2
    for cell, row in cells.iterrows():
        again = {**params, "init_from": str(tmp_path / "weights" / f"{cell}.pt")}
        problem = build("network", again)
        x = problem.start()[None]
        held = problem.evaluate(x)
        assert held["accuracy"].item() == row["accuracy"], "BatchNorm's statistics are kept too"
        loss = problem.trained(Train(weight_decay=0.01)).losses(x).mean().item()
        assert loss == pytest.approx(row["loss"], rel=1e-9)
    raybench.sweep({**sweep, "rounds": 4}, tmp_path, inline=True, fresh=True)
    names = {path.stem for path in (tmp_path / "weights").iterdir()}
    assert names == set(raybench.load(tmp_path)["cell"])
    assert not names & set(cells.index)


def test_settings_of_training_are_for_networks_and_part_of_ids():
    base = {"algorithm": "gd", "step_size": {"value": 0.1}, "rounds": 3}
    net = {**base, "problem": {"name": "network", **DIGITS}}
    (plain,) = spec.load(net).cells
    (same,) = spec.load({**net, "train": {"weight_decay": 0, "clip": None}}).cells
    other = spec.load({**net, "train": {"clip": [1, 2]}}).cells
    assert plain.id == same.id
    assert len({plain.id, *(cell.id for cell in other)}) == 3
    (own,) = spec.load({**net, "algorithm": {"name": "gd", "train": {"clip": 1}}}).cells
    assert own.id == other[0].id
    convex = {**base, "problem": {"name": "logistic", "dataset": "breast_cancer", "clients": 2}}
    (cell,) = spec.load({**convex, "train": {"clip": 1}}).cells
    assert cell.train is None
    with pytest.raises(InputError, match=r"train\.save[\s\S]*weights"):
        spec.load({**net, "train": {"save": "wieghts"}})


def test_a_note_tells_only_where_no_problem_is_trained():
    sweep = """
problem: {name: network, model: mlp, dataset: digits, clients: 2}
algorithm: gd
step_size: 0.1
train: {weight_decay: 1e-4}
"""
    assert not spec.load(sweep).notes
    (note,) = spec.load(sweep.replace("name: network, model: mlp", "name: softmax")).notes
    assert note == "gd trains no network on such a problem: train ignored"
