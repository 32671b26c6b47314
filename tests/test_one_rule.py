"""One rule picks K and step: whatever shows a tuned method shows it at the same ones."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from cli_kit import cli
from fake_runs import make, reaching
from tiers import first_of_each

from raybench.analysis import (
    by_bandwidth,
    candidates,
    closing_table,
    compare,
    describe,
    frames,
    instances,
    rank,
    trials,
    tuned,
)
from raybench.analysis.frames import choosing_on, framed
from raybench.report import heatmap
from raybench.report.custom import figure
from raybench.report.page import content

LINK = "1Gbit,ring"
# like the quickstart, smaller: steps at which some seeds never arrive, and a method that never does
SWEEP = """
name: rule
problem:
  {name: logistic, dataset: breast_cancer, scale: columns, clients: 10, split: sorted_by_label,
   regularizer: nonconvex, lambda: 0.1}
algorithm:
  - {name: gd, step_size: {theory: [0.5, 1, 2]}}
  - {name: [ef21, ef14], compressor: {name: top_k, k: [1, 3, 10]}}
  - {name: diana, compressor: {name: rand_k, k: [1, 3, 10]}}
step_size: {theory: 2^1..2^6}
seed: 0..2
x0: {normal: 1.0}
rounds: 200
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("rule")
    (place / "s.yaml").write_text(SWEEP)
    said = cli("sweep", place / "s.yaml", "--out", place / "out", "--inline")
    assert said.code == 0, said.err
    return place / "out"


def chosen(table: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Return K and step of each method."""
    rows = table[["method", "k", "step_multiple"]].itertuples(index=False)
    return {m: (-1.0 if np.isnan(k) else k, step) for m, k, step in rows}


@pytest.mark.parametrize("target", first_of_each([1e-6, 1e-25]))
def test_a_step_is_the_same_with_its_method_and_alone(folder, target):
    for link in (None, LINK):
        result = frames(folder, link=link, target=target)
        alone = result.tuned("series").set_index("series")["step"].to_dict()
        for row in result.tuned("method").to_dict("records"):
            assert alone[row["series"]] == row["step"]


@pytest.mark.parametrize(("link", "target"), [(None, 1e-6), (LINK, 1e-10)])
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
        assert (told.loc[method, "step"], told.loc[method, "series"]) == (
            f"x{step:g}",
            series[method],
        )
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
        assert (row["k"] if row["k"] == row["k"] else -1.0, row["step_a"]) == (
            want[method][0],
            f"x{want[method][1]:g}",
        )
    whole = trials(result).query("trials == grid").set_index("method")["cost"]
    for method in want:
        assert np.median(table[method]) == costs[method] == whole[method], (method, cost)


@pytest.mark.parametrize("target", [1e-6])
def test_the_chart_of_bandwidths_has_at_the_links_own_what_the_table_has(folder, target):
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


def test_a_seed_that_never_arrives_counts_against_a_step_everywhere():
    """The faster step loses a seed: it is chosen nowhere, also where the cheaper K is."""

    one = [*reaching(1.0, 10, 11, 12, rounds=40), *reaching(2.0, 4, 5, 40, rounds=40)]
    curves, cells = make([*one, *reaching(1.0, 2, 40, 3, rounds=40, k=5)])
    curves = curves.assign(bytes_up=curves["bits_up"] / 8, messages_up=curves["round"] * 1.0, d=20)
    result = framed(curves, cells)
    (row,) = tuned(curves, cells, 0.1, "method").to_dict("records")
    assert (row["k"], row["step_multiple"], row["arrived"], row["tier"]) == (1, 1.0, 3, 0)
    marked = heatmap.by_step(result, result.cells).data
    assert marked[marked["best"]][["k", "value"]].to_numpy().tolist() == [[1, 1.0]]
    table = candidates(curves, describe(cells), 0.1, "method")
    assert table["tier"].tolist() == [0, 1, 1]


def test_figures_of_ones_own_choose_no_step_at_which_a_seed_diverged():
    runs = [{"g": [1, 0.5, 0.05], "seed": s, "multiple": 1.0} for s in range(3)]
    fast = [{"g": [1, 0.05, 0.04], "seed": s, "multiple": 2.0} for s in range(3)]
    fast[2] |= {"g": [1, 1e9], "status": "diverged"}
    pair = make([*runs, *fast])
    for kind in ("curves", "k"):
        assert set(figure(pair, kind=kind, target=0.1).data["step"]) == {"x1"}
    assert closing_table(pair, target=0.1)["step_multiple"].tolist() == [1.0]
    cost = figure(pair, kind="heatmap", target=0.1).data.set_index("value")["cost"]
    assert np.isnan(cost[2.0])
    assert np.isfinite(cost[1.0])


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
