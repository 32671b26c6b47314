"""The search over steps: what it tries, that it finds what the whole grid finds, that it goes on after a kill."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from cli_kit import cli, tree
from fake_runs import make
from hypothesis import given, settings
from hypothesis import strategies as st

import raybench
from raybench import spec
from raybench.analysis import BestSteps, best_steps, closing_table, frames
from raybench.execution.plan import make_plan
from raybench.execution.search import foreseen, ladders, stage_of
from raybench.runtime.driver import drive

pytestmark = pytest.mark.thorough

REFINE = {"search": {"step_size": "refine"}}
LOGISTIC = {
    "name": "search",
    "problem": {"name": "logistic", "dataset": "breast_cancer", "clients": 4, "scale": "columns"},
    "algorithm": ["gd", "ef21", {"name": "marina", "compressor": {"name": "rand_k", "k": 3}}],
    "compressor": {"name": "top_k", "k": [1, 3]},
    "step_size": {"theory": "2^-3..2^9"},
    "rounds": 60,
}
QUADRATIC = {
    **LOGISTIC,
    "problem": {"name": "quadratic", "dim": 12, "clients": 3},
    "seed": "0..1",
    "step_size": [{"theory": "2^-5..2^8"}, {"value": "10^-4..10^1"}],
}


# The pure part -----------------------------------------------------------------------------------


@st.composite
def grids(draw):
    """Return (cells, score of each by id): groups with curves over their steps, of one to three seeds."""
    cells, score = [], {}
    for g in range(draw(st.integers(1, 3))):
        steps = draw(st.integers(1, 24))
        values = draw(st.lists(st.floats(0, 10), min_size=steps, max_size=steps))
        seeds = draw(st.integers(1, 3))
        for i, value in enumerate(values):
            for seed in range(seeds):
                cell = SimpleNamespace(
                    id=f"{g}-{i}-{seed}", step_size=2.0**i, cell=SimpleNamespace(group=f"g{g}")
                )
                cells.append(cell)
                score[cell.id] = value
    return cells, score


def judge(cells, score):
    """Return what judges steps by the scores of the cells that it is asked about, and by no others."""
    sizes = {c.id: (c.cell.group, c.step_size) for c in cells}

    def best(asked):
        out = {}
        for cell in sorted(asked, key=lambda c: (score[c], sizes[c][1])):
            out.setdefault(sizes[cell][0], (sizes[cell][1],))
        return out

    return best


def searched(cells, score, ended=(), start=4):
    """Return the cells that a search has tried in the end, and its stages, with these run before it."""
    steps, done, stages = ladders(cells), dict.fromkeys(ended, "ok"), 0
    while True:
        stage = stage_of(steps, done, start, judge(cells, score))
        if not stage.new:
            return stage.tried, stages
        assert stage.new <= stage.tried
        assert not stage.new <= done.keys()
        done |= dict.fromkeys(stage.new, "ok")
        stages += 1


@given(grids(), st.integers(2, 6), st.data())
@settings(max_examples=150, deadline=None)
def test_what_is_tried_does_not_hang_on_what_had_run_before(grid, start, data):
    """Any prefix of a search, with any other cells of the grid, leads to the same cells."""
    cells, score = grid
    tried, _ = searched(cells, score, start=start)
    some = data.draw(st.sets(st.sampled_from([c.id for c in cells])))
    assert searched(cells, score, some, start)[0] == tried
    assert searched(cells, score, tried, start) == (tried, 0)
    prefix = data.draw(st.sets(st.sampled_from(sorted(tried))))
    assert searched(cells, score, prefix, start)[0] == tried


@given(grids(), st.integers(2, 6))
@settings(max_examples=150, deadline=None)
def test_both_neighbours_of_the_best_step_were_tried(grid, start):
    """Whatever the curve: on the grid's own spacing no neighbour of the step that is found is better."""
    cells, score = grid
    tried, _ = searched(cells, score, start=start)
    for ladder in ladders(cells).values():
        own = [i for i, ids in enumerate(ladder.cells) if set(ids) <= tried]
        assert all(set(ids) <= tried or not set(ids) & tried for ids in ladder.cells), "all seeds"
        assert {0, len(ladder.cells) - 1} <= set(own)
        best = min(own, key=lambda i: (score[ladder.cells[i][0]], i))
        assert {max(0, best - 1), min(len(ladder.cells) - 1, best + 1)} <= set(own)


@given(st.integers(1, 70), st.data(), st.integers(2, 6))
@settings(max_examples=200, deadline=None)
def test_of_one_minimum_the_search_finds_it_and_tries_as_many_as_foreseen(steps, data, start):
    """Also where all steps beyond some have diverged, and are as bad as one another."""
    minimum = data.draw(st.integers(0, steps - 1))
    diverged = data.draw(st.integers(minimum + 1, steps))
    slope = data.draw(st.floats(0.01, 100))
    score, cells = {}, []
    for i in range(steps):
        group = SimpleNamespace(group="g")
        cells.append(SimpleNamespace(id=f"{i}", step_size=3.0**i, cell=group))
        score[f"{i}"] = max(minimum - i, (i - minimum) * slope) if i < diverged else math.inf
    tried, stages = searched(cells, score, start=start)
    assert str(minimum) in tried
    about, upto = foreseen(ladders(cells), start)
    assert len(tried) <= upto <= steps
    assert about <= upto
    if steps > 20:
        assert upto < steps
        assert stages <= 8


# What judges steps -------------------------------------------------------------------------------


def test_steps_are_judged_as_the_closing_table_judges_them():
    """The cheapest step to the target, and the one that ends lowest, from which the target follows."""
    slow, fast = [1, 0.5, 0.2, 0.09, 0.0001], [1, 0.05, 0.04, 0.03, 0.03]
    runs = [
        {"g": slow, "multiple": 1.0},
        {"g": fast, "multiple": 2.0},
        {"g": [1, 1e-9, 1e-9, 1e-9, 1e-9], "multiple": 8.0, "status": "diverged"},
        {"g": [1, 1, 1, 1, 0.05], "algorithm": "gd", "compressor": None, "k": None},
        {"g": [1, 9], "algorithm": "diana", "status": "diverged"},
    ]
    curves, cells = make(runs)
    result = best_steps(curves, cells)
    group = cells["group"].tolist()
    assert closing_table((curves, cells))["target"].iloc[0] == 0.05
    assert result == {group[0]: (0.2, 0.1), group[3]: (0.1,)}
    assert best_steps(curves[:0], cells[:0]) == {}


# Sweeps ------------------------------------------------------------------------------------------

CHOSEN = ["method", "k", "step_multiple", "step_size", "edge", "target", "bits_to_target", "seeds"]


def chosen(folder):
    return closing_table(folder).sort_values("method", ignore_index=True)[CHOSEN]


@pytest.mark.parametrize("config", [LOGISTIC, QUADRATIC], ids=["logistic", "quadratic"])
def test_a_search_chooses_what_the_whole_grid_chooses(config, tmp_path):
    whole = raybench.sweep(config, tmp_path / "grid", inline=True)
    result = raybench.sweep({**config, **REFINE}, tmp_path / "refine", inline=True)
    assert result.exit_code == whole.exit_code == 0
    pd.testing.assert_frame_equal(chosen(tmp_path / "refine"), chosen(tmp_path / "grid"))
    tried, every = (pd.read_parquet(tmp_path / f / "cells") for f in ("refine", "grid"))
    assert len(tried) < 0.8 * len(every)
    assert set(tried["cell"]) < set(every["cell"])
    assert sum(result.counts.values()) == len(tried)
    assert result.plan.missing == len(tried)
    # all is there: nothing runs again, and the whole grid runs what is left
    before = tree(tmp_path / "refine" / "cells")
    again = raybench.sweep({**config, **REFINE}, tmp_path / "refine", inline=True)
    assert again.counts == result.counts
    assert again.plan.missing == 0
    assert tree(tmp_path / "refine" / "cells") == before
    rest = raybench.sweep(config, tmp_path / "refine", inline=True)
    assert rest.plan.missing == len(every) - len(tried)
    pd.testing.assert_frame_equal(chosen(tmp_path / "refine"), chosen(tmp_path / "grid"))
    assert not frames(tmp_path / "refine").tuning
    # and where the whole grid has run, the search has nothing to do
    over = raybench.sweep({**config, **REFINE}, tmp_path / "grid", inline=True)
    assert (over.plan.missing, len(over.plan.cells)) == (0, len(tried))


def test_steps_that_all_diverge_or_fail_end_the_search(tmp_path):
    big = {**LOGISTIC, "algorithm": "gd", "step_size": {"value": "10^4..10^12"}}
    outcome = raybench.sweep({**big, "problem": "quadratic", **REFINE}, tmp_path, inline=True)
    assert outcome.counts == {"diverged": 5, "skipped": 0}
    assert outcome.exit_code == 0


def test_a_price_counts_the_stages_to_come():
    asked = spec.load({**LOGISTIC, **REFINE})
    assert make_plan(asked).ahead == 44 / 20  # up to 44 cells, 20 at first
    over = make_plan(asked, {c.id: "ok" for c in asked.cells}, best=lambda cells: {})
    assert over.ahead == make_plan(spec.load(LOGISTIC)).ahead == 1


def test_what_plan_and_table_say(tmp_path):
    sweep, out = tmp_path / "s.yaml", tmp_path / "out"
    sweep.write_text(spec.load({**LOGISTIC, **REFINE}).text)
    said = cli("plan", sweep, "--out", out, "--no-measure")
    assert "52 cells: 20 to run in the next stage" in said.out
    words = " ".join(said.out.split())
    assert "refined: 20 of 52 cells by the end of stage 1; in all about 30, up to 44" in words
    assert "10 of 26" in words
    assert cli("sweep", sweep, "--out", out, "--inline").code == 0
    tried = len(pd.read_parquet(out / "cells"))
    said = cli("plan", sweep, "--out", out)
    assert f"refined: {tried} of 52 cells were enough" in said.out
    table = " ".join(cli("table", out).out.split())
    assert f"Steps: refined around the best, tried {tried} of 52 cells (EF21 Top-K" in table


def test_a_stop_between_two_stages_is_no_end(tmp_path):
    """All cells of the stages so far have ended, and yet the sweep has not."""
    config = spec.load({**LOGISTIC, **REFINE, "algorithm": "gd"})
    best = BestSteps(tmp_path)

    def interrupted(cells):
        raise KeyboardInterrupt

    outcome = drive(config, tmp_path, inline=True, best=interrupted)
    assert (outcome.interrupted, outcome.exit_code) == (True, 130)
    again = drive(config, tmp_path, inline=True, best=best)
    assert again.plan.missing > 0
    assert len(again.plan.cells) == outcome.plan.missing + again.plan.missing
    assert drive(config, tmp_path, inline=True, best=best).plan.missing == 0


def alike(out: Path, other: Path, columns: list[str]) -> None:
    """Assert that two folders hold the same in these columns of their cells."""
    tables = (pd.read_parquet(folder / "cells")[columns] for folder in (out, other))
    pd.testing.assert_frame_equal(*(t.sort_values("cell", ignore_index=True) for t in tables))


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_through_ray_a_search_gives_what_it_gives_in_one_process(tmp_path, one_ray):
    config = spec.load({**LOGISTIC, **REFINE, "prune": "halving"})
    for name, how in (("ray", {"address": one_ray}), ("here", {"inline": True})):
        out = tmp_path / name
        assert drive(config, out, best=BestSteps(out), **how).exit_code == 0
    alike(tmp_path / "ray", tmp_path / "here", ["cell", "status", "rounds", "batch", "reason"])
