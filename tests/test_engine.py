"""The engine: booking, recording, stopping, divergence, failures, batches."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import RAND, TOP, each_round, registered

from raybench.algorithms.base import Algorithm, Dense, PerCell
from raybench.core import counts
from raybench.execution import oracle as oracles
from raybench.execution import run as engine_run
from raybench.execution.execute import execute
from raybench.execution.recorder import RecordedRounds
from raybench.execution.run import Options
from raybench.testing.trial import DATA, TrialMethod, finished, started

D, N = 12, 5
P1 = {"name": "quadratic", "dim": D, "clients": N, "mu": 0.2}
SAMPLES = {"name": "least_squares", **DATA}
FAR = {"x0": {"normal": 1.0}}


def on_p1(name, compressor=None, rounds=20, more=FAR, **params) -> TrialMethod:
    return TrialMethod(name, params, compressor, P1, rounds=rounds, more=more)


# Recording -----------------------------------------------------------------------------------


def listed(rounds, every, points, stochastic=False):
    """Return the rounds that make a row as an array, and check that their number is as told."""
    asked = RecordedRounds.of(rounds, every, points, stochastic)
    result = np.array([t for t in range(rounds + 1) if t in asked])
    assert asked.count == len(result)
    return result


@settings(max_examples=50)
@given(st.integers(1, 3000), st.integers(1, 500))
def test_rounds_recorded(rounds, number):
    every = np.append(np.arange(0, rounds, number), rounds)
    assert np.array_equal(listed(rounds, number, None), with_first(every))
    points = np.linspace(0, rounds, min(number, rounds) + 1).round()
    assert np.array_equal(listed(rounds, None, number), with_first(points))
    assert np.array_equal(listed(rounds, None, None), np.arange(rounds + 1))
    stochastic = np.linspace(0, rounds, min(400, rounds) + 1).round()
    assert np.array_equal(listed(rounds, None, None, True), with_first(stochastic))


def with_first(asked):
    """Return the rounds asked for, and before the second of them 1, 2, 4, .."""
    first = [2**j for j in range(20) if 2**j < asked[1]]
    return np.union1d(asked, first)


def test_rounds_recorded_of_a_run_without_end_need_no_list():
    asked = RecordedRounds.of(10**18, None, None, False)
    assert asked.count == 10**18 + 1
    assert 10**17 + 3 in asked
    assert RecordedRounds.of(10**18, 10**17, None, False).count == 11 + 57
    spread = RecordedRounds.of(10**9, None, 10**8, False)
    assert spread.count == 10**8 + 1 + 4
    assert [t for t in range(35) if t in spread] == [0, 1, 2, 4, 8, 10, 20, 30]


def test_the_record_is_f_and_its_gradient_at_the_iterate():
    run = started(on_p1("marina", RAND, p=0.3).batch((1.0, 0.5), (0, 1)))
    iterates = each_round(run, lambda r: r.s.x.clone())
    for t, x in enumerate(iterates):
        grads, losses = run.problem.oracle(x)
        np.testing.assert_allclose(run.recorder.column("loss")[:, t], losses.mean(1))
        norms = grads.mean(1).square().sum(-1)
        np.testing.assert_allclose(run.recorder.column("grad_norm_sq")[:, t], norms)
    gaps = run.recorder.column("loss") - run.problem.constants.f_star
    np.testing.assert_allclose(run.recorder.column("suboptimality"), gaps)


def test_the_recorded_gradient_is_the_mapping_where_there_is_a_penalty():
    """L (x - prox(x - grad f(x)/L)), the prox a soft threshold, and f + lambda ||x||_1."""
    lasso = {**SAMPLES, "regularizer": "l1", "lambda": 0.05}
    run = finished(TrialMethod("gd", {}, None, lasso, rounds=4, more=FAR).batch((1.0, 0.5)))
    x, L = run.s.x.numpy(), run.problem.constants.L
    grads, losses = run.problem.oracle(run.s.x)
    v = x - grads.mean(1).numpy() / L
    mapping = L * (x - np.sign(v) * np.maximum(np.abs(v) - 0.05 / L, 0))
    norms = np.square(mapping).sum(1)
    np.testing.assert_allclose(run.recorder.column("grad_norm_sq")[:, -1], norms, rtol=1e-9)
    whole = losses.mean(1).numpy() + 0.05 * np.abs(x).sum(1)
    np.testing.assert_allclose(run.recorder.column("loss")[:, -1], whole, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "compressor"), [("gd", None), ("ef21", TOP), ("marina", RAND), ("diana", RAND)]
)
def test_gradients_evaluated_for_the_record_are_not_free(monkeypatch, name, compressor):
    """A method whose gradients the record needed too is charged what they took, once."""
    run = started(on_p1(name, compressor, 5).batch())
    oracle, clock, calls = run.problem.oracle, [0.0], []

    def slow(*args, **kwargs):
        calls.append(1)
        clock[0] += 1.0  # nothing else takes any time
        return oracle(*args, **kwargs)

    monkeypatch.setattr(run.problem, "oracle", slow)
    for module in (engine_run, oracles, counts):
        monkeypatch.setattr(module, "perf_counter", lambda: clock[0])
    run.advance(5)
    evaluated = run.net.oracle.evals[0]  # one sample per client: evaluations are gradients
    assert len(calls) in (evaluated, evaluated + 1)  # the last record may be beyond the method
    assert run.clock[1, 0] == evaluated
    assert run.clock[0, 0] == evaluated


# Stopping and divergence ---------------------------------------------------------------------


def stopped(stop, name="gd", compressor=None, multiples=(1.0,)):
    more = {**FAR, "stop": stop}
    return finished(on_p1(name, compressor, 300, more).batch(multiples, (0,)))


def test_a_cell_stops_at_the_first_row_that_is_below():
    run = stopped({"grad_norm_sq": 1e-3}, multiples=(1.0, 0.1, 0.3))
    norms, live = run.recorder.column("grad_norm_sq"), run.recorder.live
    ends = live.sum(1) - 1
    assert len(set(ends)) == 3
    for b, end in enumerate(ends):
        assert norms[b, end] <= 1e-3 < norms[b, :end].min()
        assert not live[b, end + 1 :].any()
    assert list(run.status) == ["ok"] * 3
    assert list(run.tables({})[1].to_pandas()["rounds"]) == list(ends)
    level = float(run.problem.constants.f_star) + 0.1
    for column, most in (("suboptimality", 1e-2), ("loss", level)):
        values = stopped({column: most}).recorder.column(column)[0]
        assert values[-1] <= most < values[-2]


@pytest.mark.parametrize(
    ("stop", "rounds"),
    [
        ({"bits_up": 204 * 11}, 10),  # the first message, and ten more
        ({"bits_down": 64 * D * 5 + 1}, 6),
        ({"seconds": 1e-9}, 0),
    ],
)
def test_a_cell_stops_by_what_it_has_spent(stop, rounds):
    run = stopped(stop, "ef21", TOP)
    assert (run.t, run.status[0]) == (rounds, "ok")


@pytest.mark.parametrize("every", [1, 10_000])
def test_divergence_is_found_and_leaves_the_others_alone(every):
    method = on_p1("ef21", TOP, 400)
    run = finished(method.batch((1.0, 1e6, 0.5, 1e6, 1e6), (0, 1, 2, 3, 4)), every=every)
    assert list(run.status) == ["ok", "diverged", "ok", "diverged", "diverged"]
    alone = finished(method.batch((0.5,), (2,)), every=every)
    final = run.recorder.last("grad_norm_sq")[2], alone.recorder.last("grad_norm_sq")[0]
    assert final[0] == pytest.approx(final[1], rel=1e-9)
    cells = run.tables({})[1].to_pandas()
    assert list(cells["status"]) == list(run.status)
    assert np.isfinite(cells["grad_norm_sq"][[0, 2]]).all()
    assert list(cells["rounds"][[0, 2]]) == [400, 400]
    if every == 1:
        assert (cells["rounds"][[1, 3, 4]] < 40).all()  # early
        assert len(run.index) == 2  # gathered


# Failures ------------------------------------------------------------------------------------


class Moody(Algorithm):
    """Gradient descent that raises for a cell with the forbidden step, in round 3."""

    def start(a, net, s, c):
        s.t = torch.zeros(len(s.x))

    def round(a, net, s, c):
        s.t = s.t + 1
        s.x = net.down(Dense(s.x - a.gamma * net.up(Dense(net.grad(s.x))).mean()))
        if ((a.gamma.values == 0.125) & (s.t == 3)).any():
            raise ArithmeticError("this step is forbidden")


def run_all(batches, **rest):
    """Return ({shard: curves}, cells as a frame) of executed batches, and the last progress."""
    shards: dict[str, Any] = {}
    commit = lambda name, curves, rows, _: shards.update({name: (curves, rows)})  # noqa: E731
    *_, last = execute(batches, Options(), commit, **rest)
    cells = pd.concat([rows.to_pandas() for _, rows in shards.values()], ignore_index=True)
    return {name: curves for name, (curves, _) in shards.items()}, cells, last


def test_a_raising_cell_fails_alone():
    with registered("algorithm", moody=Moody):
        method = TrialMethod("moody", {}, None, P1, step=0.125, rounds=10, more=FAR)
        multiples = (0.5, 0.25, 1.0, 0.75, 0.3, 0.2, 0.1)
        batch = method.batch(multiples, range(7))
        curves, cells, progress = run_all([batch])
    assert len(cells) == 7
    assert set(cells["cell"]) == {c.id for c in batch.cells}
    failed = cells[cells["status"] == "failed"]
    assert list(failed["step_size"]) == [0.125]
    assert "this step is forbidden" in failed["error"].iloc[0]
    assert "ArithmeticError" in failed["error"].iloc[0]
    assert (cells["status"] == "ok").sum() == 6
    assert curves[failed["cell"].iloc[0]] is None
    assert (progress.ok, progress.failed, progress.diverged) == (6, 1, 0)
    recorded = {cell for c in curves.values() if c is not None for cell in c["cell"].to_pylist()}
    assert recorded == set(cells["cell"]) - set(failed["cell"])


# Numbers per cell ----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 2)])
def test_per_cell_numbers_broadcast_over_any_axes(shape):
    numbers = torch.tensor([1.5, -2.0, 0.25], dtype=torch.float64)
    x = torch.arange(1.0, 1 + 3 * math.prod(shape), dtype=torch.float64).view(3, *shape)
    per, wide = PerCell(numbers), numbers.view(-1, *[1] * len(shape))
    for op in (operator.mul, operator.sub, operator.truediv, operator.add):
        assert torch.equal(op(x, per), op(x, wide))
        assert torch.equal(op(per, x), op(wide, x))
    assert torch.equal((2 * per) * x, 2 * wide * x)
    assert torch.equal((1 - per) * x, (1 - wide) * x)
    assert torch.equal(-per * x, -wide * x)
    assert torch.equal((per * per + per) * x, (wide * wide + wide) * x)
