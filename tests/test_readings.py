"""What a reader may take from tables, ranks and figures: units, seeds that are lost, what has not run, how sure it is."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from fake_runs import make, reaching

from raybench.analysis import closing_table, default_target, rank, tuned
from raybench.analysis.by_bandwidth import by_bandwidth
from raybench.analysis.clocked import CLOCK
from raybench.analysis.frames import choosing_on, framed, problems_of
from raybench.analysis.rankings import ENOUGH
from raybench.analysis.statistics import holm, paired
from raybench.analysis.to_target import seen_late
from raybench.clock.links import parse_network
from raybench.report.formats import latex
from raybench.report.rankings import after_trials, comparison, headline, ranking
from raybench.report.tables import closing
from raybench.store import log, reader
from raybench.store.files import open_folder


def results_of(runs, target=0.1):
    return replace(framed(*make(runs)), asked=target)


def notes(sheet):
    return "\n".join(sheet.notes)


def test_a_table_paid_in_rounds_says_rounds():
    results = results_of([*reaching(1.0, 20, 30, 40), *reaching(1.0, 5, algorithm="gd", k=None)])
    sheet = closing(replace(results, cost_column="round"))
    assert "Round to target" in sheet.head
    assert "30 [20, 40]" in sheet.fields[sheet.head.index("Round to target")].texts
    assert {"round_to_target", "round_low", "round_high"} <= set(sheet.data)
    assert "Cost: communication round, median over seeds" in notes(sheet)
    assert "econds" not in notes(sheet) + latex(sheet)
    seconds = closing(replace(results, cost_column="seconds"))
    assert "Seconds to target" in seconds.head
    assert "clock time (s)" in notes(seconds)
    assert "simulated clock" not in notes(seconds)
    assert sorted(results.tuned("method")["cost"]) == [50.0, 300.0], "in bits, as before"


def with_failures(count):
    runs = reaching(1.0, 10, 20, 30, 40, 50)
    return [{**run, "status": "failed"} if i < count else run for i, run in enumerate(runs)]


def test_a_failed_seed_has_not_come_down_to_the_target():
    """Tables, ranks and trials say the same of it."""
    results = results_of(with_failures(2))
    (row,) = closing_table(results).to_dict("records")
    assert (row["bits_to_target"], row["seeds"], row["arrived"]) == (500.0, 5, 3)
    assert (row["bits_low"], row["bits_high"]) == (300.0, math.inf)
    assert closing(results).fields[-2].texts == ["3/5 reach"]
    assert headline(results)[0].endswith("2 of its 5 seeds miss it.")
    assert rank(results)["reached"].tolist() == [3]
    assert after_trials(results, 1).data["cost"].tolist() == [500.0]
    most = results_of(with_failures(3))
    assert closing_table(most)["bits_to_target"].tolist() == [math.inf]
    assert headline(most) == ["no method reaches its target."]


def test_no_bandwidth_makes_a_step_that_loses_a_seed_the_best():
    results = framed(*make([*reaching(1.0, 10, 11, 12), *reaching(2.0, 4, 5, 60)]))
    curves = results.curves
    curves = curves.assign(bytes_up=curves["bits_up"], bytes_down=0.0, clients=2)
    curves = curves.assign(messages_up=curves["round"])
    rows = by_bandwidth(curves, results.cells, parse_network("1Gbit"), {"": 0.1}, at=[1e6, 1e12])
    assert rows["step"].tolist() == ["x1", "x1"]
    assert np.isfinite(rows["high"]).all()


def test_half_of_the_methods_reach_the_target_of_two_seeds():
    """The mean of two seeds is not reached by both."""
    ends = (1e-6, 3.9e-3)
    seeds = [{"g": [1, end], "seed": seed} for seed, end in enumerate(ends)]
    curves, cells = make([{**run, "k": k} for k in (1, 2) for run in seeds])
    assert default_target(curves, cells) == 0.005
    assert tuned(curves, cells, by="series")["reached"].all()


def test_cells_that_have_not_ended_are_told_of(tmp_path):
    files = open_folder(tmp_path)
    files.prepare()
    files.write(log.BATCHES, json.dumps({"one": ["a", "b"], "two": ["c"]}).encode())
    assert reader.missing(tmp_path, ["a"]) == {"b", "c"}
    files.write(log.PLANNED, json.dumps(["a", "b"]).encode())
    assert reader.missing(tmp_path, ["a"]) == {"b"}, "another sweep had cell c"
    results = replace(results_of(reaching(1.0, 20, 30)), missing=2)
    said = "2 of 4 cells of this sweep have not ended"
    for lines in (closing(results).notes, ranking(results).notes, headline(results)):
        assert said in "\n".join(lines)


def test_ranks_say_which_methods_did_not_run_everywhere():
    runs = [
        *reaching(1.0, 20, 30, dataset="a"),
        *reaching(1.0, 20, 30, dataset="b"),
        *reaching(1.0, 10, dataset="a", algorithm="gd", compressor=None, k=None),
    ]
    said = notes(ranking(results_of(runs)))
    assert "Not run on every problem, and there behind all: GD" in said
    assert "Run with fewer seeds, its median standing for the others: GD" in said
    assert "Seeds of a problem count as instances of their own" in said
    assert "GD" not in notes(ranking(results_of(runs[:4])))


def test_a_table_says_where_rows_are_so_far_apart_that_costs_may_be_less():
    curves, cells = make([*reaching(1.0, 20, 30, 41), *reaching(1.0, 20, 30, 41, k=2)])
    rare = curves["k"].eq(2) & (curves["round"] % 10 > 0) & (curves["round"] < 59)
    results = replace(framed(curves[~rare], cells), asked=0.1)
    late = seen_late(results, "series")
    assert late.to_dict() == {"EF21 Top-1": 0.0, "EF21 Top-2": pytest.approx(9 / 30)}
    said = "may be less, by up to: EF21 Top-2 30 %"
    assert said in notes(closing(results, by="series"))
    assert "may be less" not in notes(closing(replace(results, asked=1e-9)))
    assert "may be less" not in notes(closing(results_of(reaching(1.0, 3, 4))))


def test_facets_of_two_clocks_keep_targets_of_their_own():
    curves, cells = make([*reaching(1.0, 20), *reaching(1.0, 10, k=2)])
    configs = [{**json.loads(text), "clock": {"per": p}} for text, p in zip(cells["config"], "ab")]
    timed = framed(curves, cells.assign(config=[json.dumps(c) for c in configs])).cells
    assert timed["facet"].nunique() == 2
    assert len(set(problems_of(timed).values())) == 2
    assert set(problems_of(framed(curves, cells).cells)) == {""}


def on_a_clock(runs):
    """Return the tables of runs on a clock, by which a round takes a second."""
    curves, cells = make(runs)
    configs = [{**json.loads(text), "clock": {"per": "call"}} for text in cells["config"]]
    cells = cells.assign(config=[json.dumps(config) for config in configs], on_clock=True)
    return curves.assign(**{CLOCK: curves["round"]}), cells


def test_the_time_to_a_target_is_that_of_the_seeds_that_are_reported():
    results = replace(framed(*on_a_clock(reaching(1.0, 10, 20, 60))), asked=0.1)
    assert closing_table(results)["clock_to_target"].tolist() == [20.0]
    row = closing_table(choosing_on(results, [0])).iloc[0]
    assert math.isinf(row["bits_to_target"])
    assert math.isinf(row["clock_to_target"])


@pytest.mark.parametrize(("rows", "needed"), [(1, 6), (2, 7), (4, 8)])
def test_a_comparison_says_how_many_seeds_its_rows_take(rows, needed):
    runs = [r for k in range(1, rows + 1) for r in reaching(1.0, 20, 30, k=k)]
    results = results_of(runs)
    said = f"2 pairs cannot show a difference at 5 % in {rows} row"
    (note,) = [n for n in comparison(results, results).notes if n.startswith(said)]
    assert note.endswith(f"it takes {needed} seeds at least")
    least = [paired([1.0] * n, range(2, n + 2)).p_value for n in (needed - 1, needed)]
    assert [bool(holm([p] * rows)[0] < ENOUGH) for p in least] == [False, True]


def test_a_link_beside_a_clock_is_said_to_be_another_time():
    results = framed(*on_a_clock(reaching(1.0, 20)), link=parse_network("1Gbit"))
    assert any("1 of 1 cells ran on a clock" in note for note in results.notes)
