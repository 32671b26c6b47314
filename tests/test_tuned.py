"""The best step of each method, its candidates and target; one rule picks it, whatever shows a tuned method."""

from __future__ import annotations

import json
import math
import re
import shutil

import fake_store
import numpy as np
import pandas as pd
import pytest
from cli_kit import SWEEP, cli
from fake_runs import make, reaching
from tiers import first_of_each

from raybench.analysis import (
    by_bandwidth,
    candidates,
    closing_table,
    compare,
    default_target,
    first_crossing,
    frames,
    instances,
    rank,
    trials,
    tuned,
)
from raybench.analysis.frames import choosing_on, framed
from raybench.core import registry
from raybench.report import heatmap
from raybench.report.custom import figure
from raybench.report.page import content
from raybench.report.tables import closing
from raybench.store import Store
from raybench.store.log import TARGETS

pytestmark = pytest.mark.usefixtures("few_readings")


def test_a_step_is_chosen_by_what_its_median_seed_needs():
    """Not by the mean: one unlucky seed does not decide. Means are 11 and 20, medians 11 and 5."""
    steady, lucky = reaching(1.0, 10, 11, 12), reaching(2.0, 4, 5, 50)
    best = tuned(*make([*steady, *lucky]), target=0.1).iloc[0]
    assert (best["step_multiple"], best["cost"]) == (2.0, 50.0)
    assert (best["cost_low"], best["cost_high"], best["coverage"]) == (40.0, 500.0, 0.75)


def test_a_step_that_fails_a_seed_is_chosen_only_where_each_does():
    steady, missed = reaching(1.0, 10, 11, 12), reaching(4.0, 2, 3, 60)
    other = reaching(8.0, 60, 60, 1)
    best = tuned(*make([*other, *missed, *steady]), target=0.1).iloc[0]
    assert (best["step_multiple"], best["cost"], best["arrived"]) == (1.0, 110.0, 3)
    best = tuned(*make([*other, *missed]), target=0.1).iloc[0]
    assert (best["step_multiple"], best["cost"], best["arrived"]) == (4.0, 30.0, 2)
    assert (best["cost_low"], best["cost_high"]) == (20.0, math.inf)
    runs_of = make([*other, *missed])
    table = closing_table(runs_of, target=0.1).iloc[0]
    assert (table["step_multiple"], table["bits_to_target"]) == (4.0, 30.0)
    assert (table["bits_low"], table["bits_high"], table["coverage"]) == (20.0, math.inf, 0.75)
    assert table["arrived"] == 2
    assert table["grad_norm_sq"] == 0.01, "the median, as of the costs"
    sheet = closing(framed(*runs_of), target=0.1)
    (seeds,) = (field.texts for field in sheet.fields if field.name == "seeds")
    assert seeds == ["2/3 reach"]
    assert any(note.endswith("at the end: median over seeds") for note in sheet.notes)


def test_a_seed_that_arrives_alone_does_not_choose_a_step():
    """Where no step brings the median seed to the target, the final values decide, not a lucky seed."""
    lucky = [{"g": [1, 0.05 if s else 0.001], "multiple": 1.0, "seed": s} for s in range(3)]
    low = [{"g": [1, 0.02], "multiple": 2.0, "seed": s} for s in range(3)]
    best = tuned(*make([*lucky, *low]), target=0.01).iloc[0]
    assert (best["step_multiple"], best["arrived"]) == (2.0, 0)


def test_a_step_with_a_diverged_seed_never_wins():
    good = {"g": [1, 0.5], "multiple": 1.0}
    runs = [{**good, "seed": 0}, {**good, "seed": 1}, {"g": [1, 1e-9], "multiple": 2.0, "seed": 0}]
    runs += [{"g": [1, 1e-12], "multiple": 2.0, "seed": 1, "status": "diverged"}]
    runs += [{"g": [1, 1e-20], "multiple": 4.0, "seed": 0, "status": "pruned"}]
    curves, cells = make(runs)
    best = tuned(curves, cells, target=0.1).iloc[0]
    assert best["step_multiple"] == 1.0
    assert best["edge"] == "low"
    assert best["seeds"] == 2


def test_a_step_that_only_passes_by_the_target_has_not_reached_it():
    curves, cells = make(
        [{"g": [1, 0.5, 0.09, 0.05], "multiple": 1.0}, {"g": [1, 0.01, 50, 3], "multiple": 2.0}]
    )
    assert first_crossing(curves, 0.1).tolist() == [20.0, 10.0]
    assert first_crossing(curves, 0.1, settled=True).tolist() == [20.0, math.inf]
    assert tuned(curves, cells, target=0.1)["step_multiple"].tolist() == [1.0]


@pytest.mark.parametrize("multiples", [True, False], ids=["multiples", "sizes"])
@pytest.mark.parametrize(
    ("values", "edge"),
    [((0.5, 0.4, 0.3), "high"), ((0.1, 0.4, 0.3), "low"), ((0.5, 0.1, 0.3), ""), ((0.5,), "only")],
)
def test_edges_of_grids_of_multiples_and_of_step_sizes(values, edge, multiples):
    curves, cells = make([{"g": [1, v], "multiple": 2.0**i} for i, v in enumerate(values)])
    if not multiples:
        curves["step_multiple"] = cells["step_multiple"] = np.nan
    assert tuned(curves, cells, target=1e-9).iloc[0]["edge"] == edge


def test_k_is_chosen_at_equal_bits():
    """K = 10 ends lower but spends ten times the bits; at the bits K = 1 spends it is behind."""
    few = {"g": [1, 0.5, 0.3, 0.2], "k": 1, "per_round": 10.0}
    many = {"g": [1, 0.4, 0.2, 0.1], "k": 10, "per_round": 100.0}
    curves, cells = make([few, many])
    best = tuned(curves, cells, target=1e-9, by="method")
    assert len(best) == 1
    assert best["k"].iloc[0] == 1
    assert tuned(curves, cells, target=0.15, by="method")["k"].iloc[0] == 10
    assert tuned(curves, cells, target=1e-9)["k"].tolist() == [1, 10]
    spent = candidates(curves, cells, 1e-9, "series")  # each alone: its row at the whole budget
    assert spent["at_budget"].tolist() == [0.2, 0.1]


def test_all_diverged_and_empty():
    curves, cells = make([{"g": [1, 1e9], "status": "diverged"}])
    best = tuned(curves, cells).iloc[0]
    assert not best["eligible"]
    assert math.isnan(best["step_multiple"])
    table = closing_table((curves, cells))
    assert table["diverged"].tolist() == [1]
    assert table["bits_to_target"].isna().all()
    assert closing_table((curves[:0], cells[:0])).empty


def test_default_target_is_what_half_of_the_methods_reach():
    ends = {"a": 1e-9, "b": 3e-6, "c": 2e-4, "d": 0.5}
    runs = [{"g": [1, end], "algorithm": name} for name, end in ends.items()]
    assert default_target(*make(runs)) == 2e-4
    assert default_target(*make(runs[:3])) == 5e-6
    assert default_target(*make([*runs[:3], {"g": [1, 0.02], "algorithm": "gd"}])) == 0.02
    assert default_target(*make([*runs[:3], {"g": [1, 0.3], "algorithm": "gd"}])) == 0.5
    assert default_target(*make([*runs[:3], {"g": [1, 1], "algorithm": "gd"}])) == 2e-4
    assert math.isnan(default_target(*make([{"g": [1, 2]}])))
    assert default_target(*make([{"g": [1, 0]}])) == 1e-24


def test_a_method_counts_by_its_best_step():
    """The best over steps of the mean over seeds, of values 0.5, 0.03 and 0.2: half reach 0.2."""
    runs = [
        *({"g": [1, v], "algorithm": "a", "seed": s} for s, v in enumerate((0.9, 0.1))),
        *({"g": [1, 0.9], "algorithm": "a", "multiple": 2.0, "seed": s} for s in range(2)),
        {"g": [1, 0.7], "algorithm": "b"},
        {"g": [1, 0.03], "algorithm": "b", "multiple": 2.0},
        {"g": [1, 0.8], "algorithm": "c"},
        {"g": [1, 0.2], "algorithm": "c", "multiple": 2.0},
    ]
    assert default_target(*make(runs)) == 0.2


LOSSES = {0.51234: 0.513, 123_456.0: 124_000.0, 0.0040001: 0.00401, 0.25: 0.25, -1.2345: -1.2345}


@pytest.mark.parametrize(("loss", "target"), [*LOSSES.items(), (0.0, 0.0)])
def test_a_target_of_losses_is_rounded_up_to_three_digits(loss, target):
    """Not below zero, where more digits may be needed: losses have an offset."""
    rounded = default_target(*make([{"g": [1e6, loss]}]), y="loss")
    assert rounded == pytest.approx(target, rel=1e-12)


def test_candidates_by_hand():
    """Two steps with two seeds each: medians of what the target costs, means of where they end."""
    runs = [
        {"g": [1, 0.5, 0.09, 0.01], "multiple": 2.0, "seed": 0},
        {"g": [1, 0.09, 0.08, 0.03], "multiple": 2.0, "seed": 1},
        {"g": [1, 0.5, 0.2, 0.2], "multiple": 1.0, "seed": 0},
        {"g": [1, 0.5, 0.4], "multiple": 1.0, "seed": 1},
        {"g": [1, 0.5, 0.001], "multiple": 8.0, "seed": 0},
        {"g": [1, 9e9], "multiple": 8.0, "seed": 1, "status": "diverged"},
        {"g": [1, 0.001], "multiple": 16.0, "status": "failed"},
        {"g": [1, 0.001], "multiple": 32.0, "status": "skipped"},
    ]
    table = candidates(*make(runs), target=0.1)
    assert table["step_multiple"].tolist() == [2.0, 1.0, 8.0, 16.0]
    assert table["step_size"].tolist() == pytest.approx([0.2, 0.1, 0.8, 1.6])
    assert table["reached"].tolist() == [True, False, True, False]
    assert table["eligible"].tolist() == [True, True, False, False]
    assert table["cost"].tolist()[:3] == [15.0, math.inf, 20.0]
    assert (table["cost_low"][0], table["cost_high"][0], table["coverage"][0]) == (10.0, 20.0, 0.5)
    assert table["seeds"].tolist() == [2, 2, 1, 1]
    counts = {"ok": [2, 2, 1, 0], "diverged": [0, 0, 1, 0], "failed": [0, 0, 0, 1]}
    assert table[[*counts]].to_dict("list") == counts
    assert table["grad_norm_sq"].tolist()[:3] == pytest.approx([0.02, 0.3, 0.001])
    assert table["bits_up"].tolist()[:3] == [30.0, 25.0, 20.0]
    assert table["rounds"].tolist()[:3] == [3.0, 2.5, 2.0]
    # all that may be chosen have spent 25 in the median: at 20 bits, their last rows before it
    assert table["at_budget"].tolist()[:2] == pytest.approx([0.085, 0.3])


def test_closing_table_of_a_folder_follows_the_accounting(tmp_path):
    fake_store.fill(Store(tmp_path), fake_store.METHODS[:2], rounds=40, seeds=1)
    plain, paper = closing_table(tmp_path), closing_table(tmp_path, "paper:ef21")
    assert set(plain["method"]) == set(paper["method"])
    gd = [t.set_index("method").loc["GD", "bits_to_target"] for t in (plain, paper)]
    assert gd[1] == (gd[0] - 64 * 112) / 2  # half as wide, without the first gradient
    result = frames(tmp_path, "paper:ef21")
    pd.testing.assert_frame_equal(closing_table(result), paper)
    pd.testing.assert_frame_equal(closing_table((result.curves, result.cells)), paper)
    pd.testing.assert_frame_equal(closing_table(frames(tmp_path), "paper:ef21"), paper)
    assert result.accounting == "value_bits=32, index_bits=none, count_init=false"


def test_the_baseline_is_what_ran_without_compression():
    def costs(algorithm, compressor, per_round):
        how = {"algorithm": algorithm, "compressor": compressor, "k": None if not compressor else 1}
        return {"g": [1, 0.5, 0.05], "per_round": per_round, **how}

    own, sgd = costs("ef21", "top_k", 10.0), costs("sgd", None, 50.0)
    plain, identity = costs("gd", None, 100.0), costs("dcgd", "identity", 80.0)
    thin = costs("dcgd", "rand_k", 5.0)
    for others, base, head in (
        ([sgd, thin], 50.0, "÷ SGD"),
        ([sgd, identity, plain], 100.0, "÷ GD"),
        ([identity, thin], 80.0, "÷ DCGD"),
    ):
        runs = make([own, *others])
        table = closing_table(runs, target=0.1).set_index("method")
        assert table.loc["EF21 Top-K", "ratio_to_gd"] == 10.0 / base
        assert head in closing(framed(*runs), target=0.1).head
    table = closing_table(make([own, thin]), target=0.1)
    assert table["ratio_to_gd"].isna().all()


# -- the target of a problem is fixed when a sweep first ends, and kept ----------------------------


@pytest.fixture
def ended(swept, tmp_path):
    """Return the file and the folder of a sweep that has run."""
    file, out = tmp_path / "small.yaml", tmp_path / "out"
    file.write_text(SWEEP)
    shutil.copytree(swept, out)
    return file, out


def target_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip().startswith("Target")]


def test_a_target_stays_when_a_sweep_is_extended(ended):
    file, out = ended
    (kept,) = json.loads((out / TARGETS).read_text())["targets"]
    said = target_of(cli("table", out).out)
    assert said == [f"Target: ‖∇f‖² ≤ {kept['value']:g}, fixed on {kept['since'][:10]}"]
    before = closing_table(out).set_index("method")
    assert cli("sweep", file, "--out", out, "--inline", "--set", "rounds=60").code == 0
    now = frames(out).own_targets[""]
    assert now != kept["value"], "the sweep was meant to move it"
    assert set(closing_table(out)["target"]) == {kept["value"]}
    first, second = target_of(cli("table", out).out)
    assert first == said[0]
    assert second == f"Target from what the folder holds now: {now:g} (--target auto)"
    (now,) = json.loads((out / TARGETS).read_text())["targets"]
    assert now["value"] == kept["value"]
    after = closing_table(out).set_index("method")
    assert before.loc["GD", "bits_to_target"] == after.loc["GD", "bits_to_target"]


@pytest.mark.thorough
def test_another_target_is_asked_for_with_every_verb(swept, tmp_path):
    (kept,) = json.loads((swept / TARGETS).read_text())["targets"]
    for verb, wrong in (
        *(("table", w) for w in ("-1", "0", "inf", "nan")),
        ("report", "nought"),
        ("plot", "nought"),
    ):
        said = cli(verb, swept, "--target", wrong)
        assert said.code == 2
        assert "a number > 0, or auto" in said.err
    words = f"≤ 0.5, as asked for; the target that was fixed is {kept['value']:g}"
    assert target_of(cli("table", swept, "--target", "0.5").out) == [f"Target: ‖∇f‖² {words}"]
    (said,) = target_of(cli("table", swept, "--target", "auto").out)
    assert said.endswith(f"≤ {kept['value']:g}, from what the folder holds now")
    asked = ("--target", "0.5", "--methods", "gd", "--out", tmp_path / "figures")
    assert cli("plot", swept, *asked, "--format", "csv").code == 0
    page = tmp_path / "report.html"
    assert cli("report", swept, "--target", "0.5", "--out", page).code == 0
    assert words in page.read_text("utf-8")


@pytest.mark.thorough
def test_each_problem_has_its_own_whatever_it_is_called(ended):
    """With a second problem tables call the first by another name; its target stays."""
    file, out = ended
    (kept,) = json.loads((out / TARGETS).read_text())["targets"]
    more = ("--set", "problem.clients=[4, 6]", "--set", "algorithm=[gd, ef21]", "--set", "seed=0")
    assert cli("sweep", file, "--out", out, "--inline", *more).code == 0
    told = json.loads((out / TARGETS).read_text())["targets"]
    assert len(told) == 2
    assert kept in told
    result = frames(out)
    assert set(result.cells["facet"]) == set(result.kept) == {"4 clients", "6 clients"}
    assert result.kept["4 clients"].value == kept["value"]


def test_a_sweep_that_is_not_whole_fixes_none(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    (tmp_path / "own.py").write_text(
        "from raybench.plugins import algorithm, Estimator\n"
        '@algorithm(\'breaks\')\nclass Breaks(Estimator):\n    """Breaks."""\n\n'
        "    def setup(a, wire, s, c):\n        raise RuntimeError('as it does')\n\n"
        "    def estimate(a, wire, s, c, grad):\n        return s.x\n"
    )
    (tmp_path / "a.yaml").write_text(
        "name: a\nproblem: {name: quadratic, dim: 4, clients: 2}\nalgorithm: [gd, breaks]\nrounds: 20\n"
        f"compressor: {{name: rand_k, k: 1}}\nstep_size: 0.1\nplugins: {tmp_path}/own.py\n"
    )
    said = cli("sweep", tmp_path / "a.yaml", "--out", tmp_path / "out", "--inline", "--fail-fast")
    assert said.code == 1
    assert not (tmp_path / "out" / TARGETS).exists()
    assert cli("sweep", tmp_path / "a.yaml", "--out", tmp_path / "out", "--inline").code == 1
    assert (tmp_path / "out" / TARGETS).exists(), "failed cells have ended, too"


# One rule picks K and step: whatever shows a tuned method shows it at the same ones ---------------


LINK = "1Gbit,ring"
TARGETS_OF = {None: 0.02, LINK: 0.007}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Made-up results in which some steps lose a seed at the targets above, and some reach none."""
    store = Store(tmp_path_factory.mktemp("rule") / "out")
    more = {"seeds": 3, "failed": 0, "skipped": 0, "multiples": (1.0, 8.0, 16.0)}
    methods = [m for m in fake_store.METHODS if m.algorithm in ("gd", "ef21", "diana")]
    fake_store.fill(store, methods, rounds=60, **more)
    for link, target in TARGETS_OF.items():
        results = frames(store.folder, link=link, target=target)
        table = candidates(results.curves, results.cells, target, "method")
        assert set(table.loc[table["eligible"], "tier"]) == {0, 1, 2}, "not all kinds of settings"
    return store.folder


def chosen(table: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Return K and step of each method."""
    rows = table[["method", "k", "step_multiple"]].itertuples(index=False)
    return {m: (-1.0 if np.isnan(k) else k, step) for m, k, step in rows}


@pytest.mark.parametrize("target", [0.02, 1e-25])
def test_a_step_is_the_same_with_its_method_and_alone(folder, target):
    for link in (None, LINK):
        result = frames(folder, link=link, target=target)
        alone = result.tuned("series").set_index("series")["step"].to_dict()
        for row in result.tuned("method").to_dict("records"):
            assert alone[row["series"]] == row["step"]


@pytest.mark.parametrize(("link", "target"), first_of_each(TARGETS_OF.items()))
def test_all_outputs_name_the_same_k_and_step(folder, link, target):
    result = frames(folder, link=link, target=target)
    want = chosen(closing_table(result))
    rows = result.tuned("series").set_index(["method", "k"], drop=False)
    cost = result.cost
    # the report: final values, and the curves that are at first in sight
    page = content(result)
    final = {row[0]: float(row[1].partition("×")[0]) for row in page["final"].rows}
    series = {m: result.tuned("method").set_index("method").loc[m, "series"] for m in want}
    lines = {trace.get("name") for part in page["drawn"].values() for trace in part["data"]}
    for method, (_, step) in want.items():
        assert final[series[method]] == step
        assert f"{series[method]}, {step:g}× theory" in lines
    # figures of one's own
    drawn = figure(result, kind="curves").data
    told = drawn.drop_duplicates("method").set_index("method")
    for method, (k, step) in want.items():
        assert told.loc[method, ["step", "series"]].tolist() == [f"x{step:g}", series[method]]
        assert np.isnan(told.loc[method, "k"]) or told.loc[method, "k"] == k
    by_k = figure(result, kind="k").data
    assert len(by_k)
    for row in by_k.to_dict("records"):
        assert row["step"] == rows.loc[(row["series"], row["x"]), "step"]
    if link is None:
        marked = heatmap.by_step(result, result.cells).data.query("best")
        assert len(marked)
        for row in marked.to_dict("records"):
            assert want[row["facet"]] == (row["k"], row["step_multiple"])
    # what is compared and ranked: the costs are those of the table's K and step
    costs = result.tuned("method").set_index("method")["cost"]
    table = instances(result)
    assert set(rank(result)["method"]) == set(want)
    for method, row in compare(result, result, by="method").set_index("method").iterrows():
        k, step = want[method]
        assert (row["k"] if row["k"] == row["k"] else -1.0, row["step_a"]) == (k, f"x{step:g}")
    whole = trials(result).query("trials == grid").set_index("method")["cost"]
    for method in want:
        assert np.median(table[method]) == costs[method] == whole[method], (method, cost)


def test_the_chart_of_bandwidths_has_at_the_links_own_what_the_table_has(folder):
    target = TARGETS_OF[LINK]
    result = frames(folder, link=LINK, target=target)
    best = result.tuned("method").set_index("method")
    at = np.array([8.0 * result.link.link.bandwidth])
    for seeds in (None, [0]):
        table = choosing_on(result, seeds or ()).tuned("method").set_index("method")
        chart = by_bandwidth(
            result.curves, result.cells, result.link, {"": target}, result.metric, at, seeds
        ).set_index("method")
        for method in best.index[np.isfinite(table["cost"].astype(float))]:
            one, other = chart.loc[method], table.loc[method]
            assert (one["series"], one["step"]) == (other["series"], other["step"])
            np.testing.assert_allclose(one["seconds"], other["cost"], rtol=1e-9)
            np.testing.assert_allclose(one["high"], other["cost_high"], rtol=1e-9)


def test_where_nothing_arrives_the_best_step_of_a_k_does_not_depend_on_the_others():
    """At the few bits that K = 1 spends another step of K = 5 is ahead: K is compared there, the step is not."""
    runs = [{"g": [1, 0.95, 0.9, 0.9, 0.9], "k": 1, "per_round": 10.0}]
    runs += [{"g": [1, 0.8, 0.7, 0.4, 0.2], "k": 5, "per_round": 40.0, "multiple": 1.0}]
    runs += [{"g": [1, 0.5, 0.5, 0.5, 0.5], "k": 5, "per_round": 40.0, "multiple": 2.0}]
    curves, cells = make(runs)
    alone = tuned(curves, cells, 1e-3, "series").set_index("series")
    assert alone.loc["EF21 Top-5", "step"] == "x1"
    (row,) = tuned(curves, cells, 1e-3, "method").to_dict("records")
    assert (row["series"], row["step"]) == ("EF21 Top-5", "x1")


def test_a_heat_map_has_no_cost_of_a_step_at_which_a_seed_diverged():
    runs = [{"g": [1, 0.5, 0.05], "seed": s, "multiple": 1.0} for s in range(3)]
    fast = [{"g": [1, 0.05, 0.04], "seed": s, "multiple": 2.0} for s in range(3)]
    fast[2] |= {"g": [1, 1e9], "status": "diverged"}
    cost = figure(make([*runs, *fast]), kind="heatmap", target=0.1).data.set_index("value")["cost"]
    assert np.isfinite(cost).to_dict() == {1.0: True, 2.0: False}


def test_a_renamed_series_keeps_its_step():
    runs = make([{"g": [1, 0.5, 0.05], "multiple": m, "k": k} for m in (1.0, 2.0) for k in (1, 5)])
    for key in ("ef21", "EF21 Top-K", "EF21 Top-1"):
        made = figure(runs, by="k", target=0.1, labels={key: "ours"})
        plain = figure(runs, by="k", target=0.1)
        steps = {name: look.label.rpartition(", ")[2] for name, look in plain.looks.items()}
        assert all(re.fullmatch(r"\d+× theory", step) for step in steps.values())
        for name, look in made.looks.items():
            assert look.label.endswith(f", {steps[name]}")
            assert ("ours" in look.label) == (key != "EF21 Top-1" or name == "EF21 Top-1")
