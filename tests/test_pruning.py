"""Successive halving: when cuts are, who ends at them, in which batches, and that nothing else changes."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from cli_kit import cli, tree
from hypothesis import given, settings
from hypothesis import strategies as st

import raybench
from raybench import spec
from raybench.analysis import closing_table
from raybench.analysis.tuned import METRICS
from raybench.core.errors import InputError
from raybench.execution.execute import hosted
from raybench.execution.plan import make_plan
from raybench.execution.recorder import Recorder
from raybench.execution.run import Options, Run
from raybench.execution.search import JUDGED_BY, Halving, cuts_of, together
from raybench.spec.model import Prune, Record
from raybench.store import Store, log
from raybench.wire.transport import Transport

pytestmark = pytest.mark.thorough

HALVE = Prune("halving", least=1)
CONFIG = {
    "name": "pruning",
    "problem": {"name": "logistic", "dataset": "breast_cancer", "clients": 4, "scale": "columns"},
    "algorithm": ["gd", "ef21"],
    "compressor": {"name": "top_k", "k": [1, 3]},
    "step_size": {"theory": "2^-3..2^8"},
    "seed": "0..2",
    "x0": {"normal": 1.0},
    "rounds": 160,
}


# When cuts are -----------------------------------------------------------------------------------


def test_cuts_by_hand():
    assert cuts_of(HALVE, 8, 1000) == [(125, 4), (250, 2), (500, 1)]
    assert cuts_of(HALVE, 11, 1000) == [(125, 6), (250, 3), (500, 2)]
    assert cuts_of(HALVE, 3, 1000) == [(250, 2), (500, 1)]  # the latest that leave one
    assert cuts_of(HALVE, 1, 1000) == []
    two = Prune("halving")  # at least two go on, and cuts are the latest that leave two
    assert cuts_of(two, 8, 1000) == [(250, 4), (500, 2)]
    assert cuts_of(two, 3, 1000) == [(500, 2)]
    assert cuts_of(two, 2, 1000) == []
    assert cuts_of(Prune("halving", least=5), 8, 1000) == [(500, 5)]
    assert cuts_of(Prune("halving", 3, 1 / 27, 1), 27, 1000) == [(38, 9), (112, 3), (334, 1)]
    assert cuts_of(Prune("none"), 8, 1000) == []


def test_forms_of_the_key():
    forms = ("halving", "none", {"rule": "halving", "eta": 3}, {"eta": 4}, None)
    want = [Prune("halving"), Prune(), Prune("halving", 3), Prune("none", 4), Prune()]
    assert [spec.load({**CONFIG, "prune": form}).prune for form in forms] == want


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("halfing", "prune.rule: unknown value 'halfing'\n    did you mean halving?"),
        ({"rul": "halving"}, "prune.rul: unknown key\n    did you mean rule?"),
        ({"eta": 1}, "prune.eta: 1 is out of range"),
        ({"first": 0.6}, "prune: first: 0.6 is after the last cut, at 1/2 of the rounds"),
        (["halving"], "prune: expected a mapping"),
    ],
)
def test_what_is_wrong_with_the_key(given, said):
    with pytest.raises(InputError) as caught:
        spec.load({**CONFIG, "prune": given})
    assert said in str(caught.value)


def test_no_id_hangs_on_how_a_sweep_searches_and_prunes():
    plain = [c.id for c in spec.load(CONFIG).cells]
    more = {"prune": {"rule": "halving", "eta": 3}, "search": {"step_size": "refine", "start": 3}}
    assert [c.id for c in spec.load({**CONFIG, **more}).cells] == plain
    one = spec.load({**CONFIG, "prune": "halving"}, sets=["prune.eta=3", "search.start=5"])
    assert (one.prune, one.search.start) == (Prune("halving", 3), 5)


# Who ends ----------------------------------------------------------------------------------------


def fake(*cells):
    """Return a batch of (group, step size, seed)."""
    members = []
    for group, step, seed in cells:
        cell = SimpleNamespace(group=group, seed=seed)
        members.append(SimpleNamespace(id=f"{group}{step}{seed}", step_size=step, cell=cell))
    return SimpleNamespace(cells=tuple(members))


def ended(batch, values, prune=HALVE, status="ok", column="grad_norm_sq", rounds=100):
    """Return the cells that end, by the round at which they do; values: {round: one number per cell}."""
    cells, out = len(batch.cells), {}
    recorder, halving = Recorder(cells, 10), Halving(batch, prune, rounds)
    state = np.full(cells, "ok", object) if isinstance(status, str) else np.array(status, object)
    live = np.ones(cells, bool)
    for t, row in values.items():
        recorder.add(t, np.arange(cells)[live], live[live], {column: np.array(row, float)[live]})
        due = halving.due(recorder.rounds)
        if due:
            who = halving.ends(due, recorder, state)
            out[t] = sorted(set(who) & set(np.flatnonzero(live).tolist()))
            live[who] = False
    return out


FOUR = [("g", s, 0) for s in (1.0, 2.0, 4.0, 8.0)]
SEEDS = [("g", s, n) for s in (1.0, 2.0) for n in range(3)]
GROUPS = [("a", 1.0, 0), ("a", 2.0, 0), ("b", 1.0, 0), ("b", 2.0, 0), ("c", 1.0, 0)]
BY_HAND = {
    "the worse half ends, and the best of all rounds counts": (
        FOUR, {0: [9, 9, 9, 9], 10: [5, 1, 3, 4], 25: [5, 8, 3, 4], 50: [1, 8, 2, 3]},
        {25: [0, 3], 50: [2]},
    ),
    "a cut waits for a recorded round": (
        FOUR, {0: [9] * 4, 30: [1, 2, 3, 4], 60: [1, 2, 3, 4]}, {30: [2, 3], 60: [1]},
    ),
    "several cuts may be due at once": (FOUR, {0: [9] * 4, 90: [1, 2, 3, 4]}, {90: [1, 2, 3]}),
    "a step counts by its median seed": (SEEDS, {50: [1, 8, 9, 7, 7, 7]}, {50: [0, 1, 2]}),
    "of equal steps the smaller stays": (SEEDS, {50: [7, 6, 9, 7, 7, 8]}, {50: [3, 4, 5]}),
    "groups are compared each for itself": (GROUPS, {50: [1, 2, 30, 20, 99]}, {50: [1, 2]}),
    "where nothing is known nobody ends": (FOUR[:2], {50: [math.nan] * 2}, {50: []}),
}  # fmt: skip


@pytest.mark.parametrize(("cells", "values", "want"), BY_HAND.values(), ids=BY_HAND)
def test_who_ends_by_hand(cells, values, want):
    assert ended(fake(*cells), values) == want


def test_a_seed_that_diverged_spoils_its_step():
    batch = fake(*[("g", s, n) for s in (1.0, 2.0) for n in range(2)])
    status = ["ok", "diverged", "ok", "ok"]
    assert ended(batch, {50: [1, 0.1, 5, 5]}, status=status) == {50: [0, 1]}


def test_losses_judge_where_there_are_no_gradients():
    assert ended(fake(*FOUR[:2]), {50: [3, 2]}, column="loss") == {50: [0]}
    assert JUDGED_BY == METRICS


# In which batches --------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 5)), min_size=1, max_size=5),
    st.integers(1, 40),
    st.randoms(),
)
@settings(deadline=None)
def test_steps_that_are_compared_share_a_batch(shape, most, random):
    cells = [
        SimpleNamespace(id=f"{g}-{i}-{n}", step_size=2.0**i, cell=SimpleNamespace(group=f"g{g}"))
        for g, (steps, seeds) in enumerate(shape)
        for i in range(steps)
        for n in range(seeds)
    ]
    parts = together(cells, most)
    assert sorted(c.id for part in parts for c in part) == sorted(c.id for c in cells)
    assert all(0 < len(part) <= most for part in parts)
    shuffled = random.sample(cells, len(cells))
    names = [[c.id for c in part] for part in parts]
    assert [[c.id for c in part] for part in together(shuffled, most)] == names
    for g, (steps, seeds) in enumerate(shape):
        own = [[c for c in part if c.cell.group == f"g{g}"] for part in parts]
        own = [part for part in own if part]
        if steps * seeds <= most:
            assert len(own) == 1
        elif seeds <= most:  # all seeds of a step are together
            assert all(len(part) % seeds == 0 for part in own)
            assert all(len({c.step_size for c in part}) == len(part) // seeds for part in own)
        else:  # nothing to compare
            assert all(len({c.step_size for c in part}) == 1 for part in own)


# Runs --------------------------------------------------------------------------------------------


def batch_of(**more):
    given = {**CONFIG, "algorithm": "ef21", "compressor": {"name": "top_k", "k": 3}, **more}
    (batch,) = make_plan(spec.load({**given, "prune": "halving"})).batches
    return batch


OPTIONS = Options(record=Record(every=5), prune=HALVE)


def run_of(batch, transport=None, options=OPTIONS):
    transport = transport or Transport()
    return Run(batch, hosted(batch, transport, "cpu"), options, transport)


def test_a_pruned_cell_has_its_curve_up_to_there():
    batch = batch_of()
    plain, run = run_of(batch, options=Options(record=Record(every=5))), run_of(batch)
    for job in (plain, run):
        assert job.advance(job.rounds)
    curves, cells = (t.to_pandas() for t in run.tables({}))
    whole, ends = (t.to_pandas().set_index("cell") for t in plain.tables({}))
    pruned = cells[cells["status"] == "pruned"]
    assert cells["status"].value_counts()["ok"] == 3 * 2  # of 12 steps 6, 3 and 2 go on
    assert set(pruned["rounds"]) <= {20, 40, 80}
    assert cells.set_index("cell").loc[pruned["cell"], "reason"].str.contains("of 160").all()
    assert cells.loc[cells["status"] == "ok", "reason"].isna().all()
    last = curves.groupby("cell")["round"].max()
    assert (last[pruned["cell"]].to_numpy() == pruned["rounds"].to_numpy()).all()
    for cell, own in curves.groupby("cell"):  # to rounding: other cells stand beside it
        same = whole.loc[[cell]].iloc[: len(own)]
        np.testing.assert_allclose(own["loss"], same["loss"], rtol=1e-9)
        assert (own["bits_up"].to_numpy() == same["bits_up"].to_numpy()).all()
    best = ends[ends["status"] == "ok"].groupby("step_size")["grad_norm_sq"].median().idxmin()
    assert best in set(cells.loc[cells["status"] == "ok", "step_size"])


@pytest.mark.parametrize("before", [19, 20, 80])
def test_a_saved_run_goes_on_to_the_same_decisions(before):
    batch = batch_of()
    once, first, second = run_of(batch), run_of(batch), run_of(batch)
    once.advance(160)
    first.advance(before)
    second.load(first.state())
    second.advance(160)
    assert list(second.status) == list(once.status)
    assert second.tables({})[0].drop(["seconds"]).num_rows == once.tables({})[0].num_rows
    assert second.recorder.rounds == once.recorder.rounds


# Sweeps ------------------------------------------------------------------------------------------


def test_pruned_cells_are_done_until_nobody_prunes(tmp_path):
    whole = tmp_path / "whole"
    raybench.sweep(CONFIG, whole, inline=True)
    out = tmp_path / "out"
    outcome = raybench.sweep({**CONFIG, "prune": "halving"}, out, inline=True)
    assert outcome.exit_code == 0
    assert outcome.counts["pruned"] > 0.6 * len(outcome.plan.cells)
    heads = ["method", "k", "step_multiple", "edge", "target", "bits_to_target"]
    want = closing_table(whole).sort_values("method", ignore_index=True)[heads]
    result = closing_table(out).sort_values("method", ignore_index=True)
    pd.testing.assert_frame_equal(result[heads], want)
    before = tree(out / "cells")
    again = raybench.sweep({**CONFIG, "prune": "halving"}, out, inline=True)
    assert (again.plan.missing, again.counts) == (0, outcome.counts)
    assert tree(out / "cells") == before
    (tmp_path / "s.yaml").write_text(spec.load({**CONFIG, "prune": "halving"}).text)
    assert "Halving: pruned" in cli("table", out).out
    said = cli("plan", tmp_path / "s.yaml", "--no-measure", "--out", tmp_path / "new").out
    # of 12 steps 6, 3 and 2 go on after 1/8, 1/4 and 1/2: 12/8 + 6/8 + 3/4 + 2/2 = 4 of 12
    assert "halving, at most 33% of 17,280 cell-rounds" in said

    # without the key they run to their end; every reader finds one row of each
    rest = raybench.sweep(CONFIG, out, inline=True)
    assert rest.plan.missing == outcome.counts["pruned"]
    cells, curves = (pd.read_parquet(out / part) for part in ("cells", "curves"))
    assert cells["cell"].is_unique
    assert not curves.duplicated(["cell", "round"]).any()
    assert not (cells["status"] == "pruned").any()
    assert not log.verified(Store(out).files).harm
    want, result = (closing_table(f).sort_values("method", ignore_index=True) for f in (whole, out))
    pd.testing.assert_frame_equal(result[heads], want[heads])
