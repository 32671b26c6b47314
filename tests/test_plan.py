"""The plan: what K, steps and ``auto`` amount to, what is merged or skipped, and the batches."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raybench import spec
from raybench.compressors import Role
from raybench.core.errors import InputError
from raybench.execution import costs as estimates
from raybench.execution import run as engine
from raybench.execution.batch import MOST_CELLS_PER_BATCH
from raybench.execution.checks import SkipCode, counted, grouped
from raybench.execution.execute import hosted
from raybench.execution.plan import make_plan
from raybench.execution.resolve import problem_of
from raybench.execution.run import Run
from raybench.runtime.ray_backend import options_of
from raybench.wire.transport import Transport

P1 = {"name": "quadratic", "dim": 50, "clients": 4}
VALUE = {"step_size": {"value": 0.1}}
CANCER = {"name": "least_squares", "dataset": "breast_cancer", "rows": 60, "scale": "columns"}
TOP, RAND = {"name": "top_k", "k": 5}, {"name": "rand_k", "k": 5}


def plan(done=None, retry_failed=False, **keys: Any):
    return make_plan(sweep(**keys), done, retry_failed)


def sweep(**keys: Any):
    given = {"problem": P1, "algorithm": "ef21", "compressor": TOP, "rounds": 10, **keys}
    return spec.load({k: v for k, v in given.items() if v is not None})


# Counts and merges ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "cells"),
    [
        ({"compressor": [TOP, {"name": "top_k", "k": "10%"}, {"name": "top_k", "k": 6}]}, 2),
        ({"algorithm": [{"name": "marina", "p": p} for p in ("auto", 0.1)], "compressor": RAND}, 1),
        ({"algorithm": ["gd", "ef21"], "compressor": [TOP, RAND, "natural"]}, 4),
    ],
    ids=["10% of 50 is 5", "auto and its value", "gd has no compressor"],
)
def test_cells_that_resolve_to_the_same_run_are_merged(keys, cells):
    made = plan(**keys)
    assert len(made.cells) == made.missing == cells
    assert any("merged" in note for note in made.notes)


def test_a_merged_cell_that_is_done_is_kept():
    asked = sweep(compressor=[TOP, {"name": "top_k", "k": "10%"}])
    first, second = asked.cells
    result = make_plan(asked, {second.id: "ok"})
    assert [c.id for c in result.cells] == [second.id]
    assert result.missing == 0
    assert result.done == {second.id: "ok"}
    assert [c.id for c in make_plan(asked).cells] == [first.id]


# Steps ---------------------------------------------------------------------------------------


def test_rules_and_other_methods_steps():
    (nonconvex,) = plan().cells
    (pl,) = plan(step_size={"theory": 1, "rule": "pl"}).cells
    c = problem_of(pl.cell.problem).constants
    theta = 1 - math.sqrt(0.9)
    root = math.sqrt(2 * 0.9 / theta / theta)
    assert pl.step_size == pytest.approx(min(1 / (c.L + c.L_tilde * root), theta / (2 * c.mu)))
    assert pl.step_size <= nonconvex.step_size
    (borrowed,) = plan(algorithm="ef14", step_size={"theory": 2, "of": "ef21"}).cells
    assert borrowed.step_size == pytest.approx(2 * nonconvex.step_size)
    (given_one,) = plan(step_size={"value": 0.5}).cells
    assert given_one.step_size == 0.5
    assert given_one.theory_step == nonconvex.theory_step


# Skips ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "reason", "code"),
    [
        ({"algorithm": "marina"}, "unbiased", "operator"),
        ({"compressor": "zero"}, "contractive", "operator"),
        ({"algorithm": "dcgd"}, "theoretical", "no_step"),
        ({"algorithm": "gd", "step_size": {"theory": 1, "rule": "paper"}}, "theoretical", "no_step"),
        ({"algorithm": "ef14"}, "every f_i is bounded below", "no_step"),
        (
            {"algorithm": "dcgd", "compressor": RAND, "step_size": {"theory": 1, "rule": "pl"}},
            "every f_i is convex",
            "no_step",
        ),
        ({"algorithm": {"name": "diana", "alpha": 0.5}, "compressor": RAND}, "alpha", "no_step"),
        ({"algorithm": "vertical_marina", "compressor": RAND}, "features", "vertical_method"),
        (
            {"problem": {**CANCER, "name": "vertical_least_squares", "clients": 3}},
            "features", "vertical_problem",
        ),
        (
            {"problem": {**CANCER, "clients": 3, "regularizer": "l1"}, "algorithm": "ef14"},
            "proximal", "nonsmooth",
        ),
        (
            {"problem": {**CANCER, "clients": 3, "regularizer": "nonconvex", "lambda": 0.1}, "stop": {"suboptimality": 1e-3}},
            "f_star", "no_f_star",
        ),
        ({"participation": 0.5}, "participation", "no_participation"),
        ({"algorithm": "ef21_plus", "downlink": "aggregate"}, "relay", "no_relay"),
        ({"algorithm": "codistillation", "compressor": None}, "predictions", "no_predictions"),
        (
            {"problem": {**CANCER, "name": "nonconvex_classification", "clients": 3}, "algorithm": "ec_gd_star"},
            "minimiser", "no_minimizer",
        ),
        (
            {"algorithm": {"name": "three_pc_v2", "first": "top_k:k=2"}, **VALUE},
            "algorithm.first", "own_operator",
        ),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_skipped_with_a_reason(keys, reason, code):
    result = plan(**keys)
    assert not result.cells
    (skipped,) = result.skipped
    assert reason in skipped.why.text
    assert skipped.why.fix
    assert skipped.why.code == code
    assert skipped.cell.algorithm.name in skipped.label


def test_reasons_are_grouped_by_their_code_with_the_commonest_first():
    result = plan(algorithm=["marina", "diana"], compressor=[TOP, "scaled_sign"], seed="0..1")
    result = replace(result, skipped=(*result.skipped, *plan(algorithm="dcgd").skipped))
    one, two = grouped(counted(result.skipped))
    assert (one.code, one.cells, len(one.texts)) == (SkipCode.OPERATOR, 8, 4)
    assert {n for _, n in one.texts} == {2}
    assert one.fix == "an unbiased compressor, such as rand_k, or allow_unproven: true"
    assert (two.code, two.cells) == (SkipCode.NO_STEP, 1)


def test_unproven_pairs_run_where_they_are_wanted():
    assert not plan(algorithm="marina", **VALUE).cells
    result = plan(algorithm="marina", **VALUE, allow_unproven=True)
    assert result.cells[0].roles[0] == Role.ANY
    assert not result.skipped
    assert plan(algorithm="dcgd", **VALUE, allow_unproven=True).cells
    assert plan(compressor="zero", **VALUE, allow_unproven=True).cells


# Batches -------------------------------------------------------------------------------------

GRID = {
    "algorithm": ["ef21", {"name": "marina", "p": "auto"}, {"name": "marina", "p": 0.5}, "gd"],
    "compressor": [RAND, {"name": "rand_k", "k": 7}, "natural"],
    "step_size": {"theory": [1, 2, 4, 8, 16]},
    "seed": "0..7",
}


@given(st.integers(0, 10**6))
@settings(max_examples=4, deadline=None)
def test_batches_are_a_pure_function_of_the_cells(seed):
    asked = sweep(**GRID)
    cells = list(asked.cells)
    random.Random(seed).shuffle(cells)
    shuffled = make_plan(replace(asked, cells=tuple(cells)))
    assert shuffled.text() == make_plan(asked).text()


def test_batches_hold_each_cell_once_and_only_what_fits_together():
    result = plan(**GRID)
    ids = [c.id for batch in result.batches for c in batch.cells]
    assert sorted(ids) == sorted(c.id for c in result.cells)
    assert len(set(ids)) == len(ids) == result.missing
    for batch in result.batches:
        assert len(batch.cells) <= MOST_CELLS_PER_BATCH
        assert [c.id for c in batch.cells] == sorted(c.id for c in batch.cells)
        assert len({c.shape() for c in batch.cells}) == 1
        assert len({(c.cell.algorithm.name, c.k) for c in batch.cells}) == 1
    marina = [b for b in result.batches if b.cells[0].cell.algorithm.name == "marina"]
    mixed = [{c.params["p"] for c in b.cells} for b in marina if b.cells[0].k == 5]
    assert max(len(p) for p in mixed) == 2  # p is a number per cell
    names = [b.name for b in result.batches]
    assert len(set(names)) == len(names)


def test_what_is_done_is_left_alone():
    before = plan(**{**GRID, "seed": "0..3"})
    after = plan({c.id: "ok" for c in before.cells}, **GRID)
    new = {c.id for batch in after.batches for c in batch.cells}
    assert new == {c.id for c in after.cells} - {c.id for c in before.cells}
    (cell,) = sweep().cells
    for status, missing in {"ok": 0, "diverged": 0, "failed": 0, "skipped": 1}.items():
        assert plan({cell.id: status}).missing == missing
    assert plan({cell.id: "failed"}, retry_failed=True).missing == 1


def test_exclusive_timing_runs_one_cell_at_a_time():
    result = plan(seed="0..5", resources={"timing": "exclusive"})
    assert [len(b.cells) for b in result.batches] == [1] * 6


@pytest.mark.parametrize(("content", "says"), [(np.zeros(7), "holds 7 numbers"), (None, "cannot")])
def test_a_start_of_another_length_is_refused(tmp_path, content, says):
    file = tmp_path / "x0.npy"
    if content is None:
        file.write_bytes(b"no numbers at all")
    else:
        np.save(file, content)
    config = {"problem": {"name": "quadratic", "dim": 6}, "algorithm": "gd", "x0": str(file)}
    with pytest.raises(InputError, match=says):
        make_plan(spec.load(config))


@pytest.fixture
def clock(monkeypatch):
    """The seconds that have passed for the estimate and for the rows of a run: a list of one number."""
    seconds = [0.0]
    for module in (estimates, engine):
        monkeypatch.setattr(module, "perf_counter", lambda: seconds[0])
    return seconds


def test_a_round_that_lasts_long_is_run_twice_to_estimate_it(monkeypatch, clock):
    """The round of a large network takes minutes; the first one of a small one may, for it loads kernels.

    So the first round is the estimate only where a second one confirms it.
    """
    made = plan(problem=P1, algorithm="gd", rounds=50)
    ran, slow = [], [0.4]
    advance = Run.advance

    def timed(run, n):
        ran.append(n)
        clock[0] += slow.pop() if n and slow else 0.001 * n
        return advance(run, n)

    monkeypatch.setattr(Run, "advance", timed)
    options = options_of(made.sweep)
    monkeypatch.setattr(estimates, "LONG_ROUND", 0.2)
    (result,) = estimates.estimate(made.batches, options).values()
    assert ran == [0, 1, 1]
    assert result.seconds == pytest.approx(50 * 0.001)
    assert result.spread == (0.5, 2.0), "one round says little"
    assert result.bits_up == 50 * 64 * P1["dim"]
    ran.clear()
    slow[:] = [0.4, 0.4]
    (result,) = estimates.estimate(made.batches, options).values()
    assert ran == [0, 1, 1]
    assert result.seconds == pytest.approx(50 * 0.4)


@pytest.mark.parametrize("loads", [(0,), (0, 7)], ids=["at_first", "later_too"])
def test_rounds_that_differ_count_as_their_mean(monkeypatch, clock, loads):
    """Every fifth round takes long, as where a server waits for all; kernels are loaded once, and are no part of it."""
    made, ran = plan(problem=P1, algorithm="gd", rounds=1000), [0]
    advance = Run.advance

    def timed(run, n):
        clock[0] += n * (3.0 if ran[0] in loads else 0.02 if ran[0] % 5 == 4 else 0.001)
        ran[0] += n
        return advance(run, n)

    monkeypatch.setattr(Run, "advance", timed)
    monkeypatch.setattr(estimates, "MOST_SECONDS_EACH", 3.5)
    monkeypatch.setattr(estimates, "SECONDS_IN_ALL", 3.5)
    (result,) = estimates.estimate(made.batches, options_of(made.sweep)).values()
    assert 3.5 < result.seconds < 6.0


def test_what_rows_measure_is_counted_once_for_each_row(monkeypatch, clock):
    """The first rounds are recorded one by one, later ones seldom: what a row measures is no part of a round."""
    made = plan(algorithm="gd", rounds=10_000, record={"points": 20})
    row, advance, look = engine.measured, Run.advance, 0.05

    def measured(*args, **more):
        clock[0] += look
        return row(*args, **more)

    def timed(run, n):
        clock[0] += 0.001 * n
        return advance(run, n)

    monkeypatch.setattr(engine, "measured", measured)
    monkeypatch.setattr(Run, "advance", timed)
    (result,) = estimates.estimate(made.batches, options_of(made.sweep)).values()
    assert 10 * look < result.seconds < 10_000 * look / 4
    assert result.evaluation == 0, "no pass over the data that the method does not make"


# What a user should hear before it runs -------------------------------------------------------------


def test_a_stop_at_so_many_bits_ends_the_estimate():
    """As the run itself: it stops in the round whose bits reach the number."""
    options = options_of(sweep())
    made = plan(rounds=5000, stop={"bits_up": 20_000})
    (result,) = estimates.estimate(made.batches, options).values()
    batch = made.batches[0]
    run = Run(batch, hosted(batch, Transport(), "cpu"), options)
    run.advance(5000)
    assert run.t < 5000
    assert result.bits_up == pytest.approx(float(run.bits("up").mean()), rel=0.02)
    (whole,) = estimates.estimate(plan(rounds=5000).batches, options).values()
    assert whole.bits_up == pytest.approx(result.bits_up * 5000 / run.t, rel=0.02)


def test_bits_of_a_coin_are_what_is_to_be_expected():
    """One draw of MARINA's coin in the few rounds that are tried says nothing: the mean over it is a formula."""
    made = plan(algorithm={"name": "marina", "p": 0.01}, compressor=RAND, rounds=1000)
    (result,) = estimates.estimate(made.batches, options_of(made.sweep)).values()
    d, k = P1["dim"], RAND["k"]
    assert result.bits_up == pytest.approx(64 * (d + 1000 * (0.01 * d + 0.99 * k)), rel=1e-12)


def test_f_star_above_the_start_is_told():
    options = options_of(sweep())

    def warning(**keys: Any) -> str:
        (result,) = estimates.estimate(plan(**keys).batches, options).values()
        return result.warning

    assert "f_star: 1000 lies above f(x0) = " in warning(f_star=1000.0)
    assert warning(f_star=-1000.0) == warning() == ""


def test_a_batch_larger_than_a_clients_data_is_told():
    def notes(batch: int) -> tuple[str, ...]:
        keys = {"problem": {**CANCER, "clients": 4}, "step_size": {"value": 0.1}}  # 15 rows each
        return plan(algorithm={"name": "sgd", "batch": batch}, compressor=None, **keys).notes

    what = "16 samples a round, and a client has 15: it draws some more than once"
    assert any(what in note for note in notes(16)), notes(16)
    assert not any("samples" in note for note in notes(15))


def test_more_workers_than_cores_are_told(monkeypatch):
    from raybench.runtime import resources

    monkeypatch.setattr(resources.os, "cpu_count", lambda: 2)
    (said,) = resources.crowded(sweep(resources={"workers": 100}).resources)
    assert "100 workers take 100 CPUs, and this machine has 2" in said
    assert resources.crowded(sweep(resources={"workers": 2}).resources) == []
