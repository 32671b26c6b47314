"""Figures and metrics of one's own, one look per method; what the page of a report holds: cells, growth, K, its size."""

from __future__ import annotations

import json

import fake_store
import numpy as np
import pandas as pd
import pytest
from cli_kit import cli, ran
from fake_runs import make, reaching
from page_kit import drawn, table_rows

import raybench
from raybench import plot
from raybench.analysis import describe, frames, frames_of, profile, tuned
from raybench.analysis.frames import framed
from raybench.analysis.methods import k_words
from raybench.core.errors import InputError
from raybench.report import figures, html, plots, render, words
from raybench.report.content import build
from raybench.report.custom import figure
from raybench.report.heatmap import draw, heatmaps
from raybench.report.interactive import panels as drawn_panels
from raybench.report.tables import growth_notes
from raybench.store import Store
from raybench.store.reader import configs


def test_a_line_for_each_k_or_step(swept):
    result = frames(swept)
    cells = result.cells[(result.cells["algorithm"] == "ef21") & (result.cells["status"] == "ok")]
    by_k = figure(result, methods=["ef21"], by="k")
    assert set(by_k.data["series"]) == set(cells["series"])
    by_step = figure(result, methods=["ef21"], by="step")
    pairs = cells.drop_duplicates(["series", "step"])
    assert len(by_step.looks) == len(pairs) == by_step.data["series"].nunique()
    assert len({(look.colour, look.dash) for look in by_step.looks.values()}) == len(pairs)


@pytest.mark.parametrize("cost", [None, "round"])
def test_the_cost_of_the_target_by_k(swept, cost):
    result = frames(swept)
    made = figure(result, kind="k", cost=cost)
    assert made.y == (cost or "bits_up")
    best = result.tuned("series", cost=cost or "")
    best = best[best["k"].notna() & np.isfinite(best["cost"]) & best["eligible"]]
    got = made.data.dropna(subset=["y"]).set_index(["series", "x"])["y"].sort_index()
    want = best.set_index(["method", "k"])["cost"].sort_index()
    np.testing.assert_allclose(got.to_numpy(), want.to_numpy())


def test_performance_profiles(swept):
    result = frames(swept)
    made = figure(result, kind="profile", methods=["gd", "EF21 Top-K"])
    want = profile(result, where={"method": ["GD", "EF21 Top-K"]})
    got = made.data[made.data["x"] <= want["tau"].max()]
    shares = got.set_index(["series", "x"])["y"].sort_index()
    np.testing.assert_allclose(
        shares.to_numpy(), want.set_index(["method", "tau"])["share"].sort_index().to_numpy()
    )
    assert [look.label for look in made.looks.values()] == ["GD", "EF21 Top-K"]
    (line, *_) = plot(result, kind="profile", methods=["gd", "EF21 Top-K"]).axes[0].lines
    assert line.get_drawstyle() == "steps-post"


def test_names_of_ones_own_and_their_order(swept):
    made = figure(swept, methods=["marina", "gd", "ef21"], labels={"ef21": "EF21 (ours)"})
    shown = [look.label for look in made.looks.values()]
    steps = [label.rpartition(", ") for label in shown]
    assert [name for name, _, _ in steps][-2:] == ["EF21 (ours) Rand-K", "EF21 (ours) Top-K"]
    assert all(step.endswith("× theory") for _, _, step in steps)
    assert shown[0].startswith("MARINA")


def test_curves_are_those_of_the_tuned_cells_whatever_the_source(swept):
    """Of one seed, and of two that are alike, a curve is its rows, as they are in the folder."""
    curves, ends = raybench.load(swept), raybench.store.cells(swept)
    best = frames(swept).tuned("method").set_index("method").loc["GD"]
    rows = curves[curves["algorithm"] == "gd"]
    rows = rows[rows["step_multiple"] == best["step_multiple"]]
    want = rows.groupby("round")["loss"].median()
    for source in (swept, curves, (curves, ends)):
        made = figure(source, x="round", y="loss", methods=["gd"])
        assert (made.name, made.x, made.y) == ("loss_vs_round", "round", "loss")
        assert made.data["x"].tolist() == want.index.tolist()
        np.testing.assert_allclose(made.data["y"], want)


@pytest.mark.thorough
def test_plot_returns_a_figure_of_matplotlib(swept, tmp_path):
    (tmp_path / "own.mplstyle").write_text("axes.labelsize: 17\n")
    canvas = plot(swept, size=(3.0, 2.0), style=tmp_path / "own.mplstyle")
    assert canvas.get_size_inches().tolist() == [3.0, 2.0]
    assert canvas.axes[0].xaxis.label.get_size() == 17
    assert plot(swept, size="column").get_size_inches()[0] == 3.3
    assert plot(swept).axes[0].xaxis.label.get_size() == 9


WRONG = [
    ({"methods": ["ef12"]}, "ef21"),
    ({"x": "bit_up"}, "bits_up"),
    ({"y": "extra.none"}, "extra."),
    ({"kind": "curve"}, "curves"),
    ({"by": "steps"}, "step"),
    ({"best": "tuned"}, "step_size"),
    ({"kind": "heatmap", "x": "round"}, "a figure of kind heatmap has its own x"),
    ({"kind": "k", "y": "loss"}, "a figure of kind k has its own y"),
    ({"kind": "k", "x": "round"}, "a figure of kind k has its own x"),
    ({"kind": "k", "cost": "rounds"}, "did you mean round?"),
    ({"labels": {"ef12": "x"}}, "ef21"),
    ({"size": "3.3"}, "3.3x2.5"),
    ({"size": "0x2"}, "100 inches"),
    ({"style": "nowhere.mplstyle"}, "no file or style"),
    ({"target": "low"}, "auto"),
    ({"kind": "heatmap", "methods": ["gd"]}, "no method has a K"),
    ({"kind": "profile", "target": 1e-300}, "another --target"),
]


def test_what_is_wrong_is_told(swept):
    result = frames(swept)
    for given, said in WRONG:
        with pytest.raises(InputError) as told:
            plot(swept if "target" in given else result, **given)
        assert said in "\n".join(told.value.shown()), given


@pytest.mark.thorough
def test_on_the_command_line(swept, tmp_path):
    out = tmp_path / "figures"
    ran(
        "plot", swept, "--out", out, "--methods", "ef21,gd", "--by", "k", "--x", "epoch", "--y", "loss",
        "--label", "ef21=EF21 (ours)", "--size", "column", "--format", "pdf,csv",
    )  # fmt: skip
    assert sorted(p.name for p in out.iterdir()) == ["loss_vs_epoch.csv", "loss_vs_epoch.pdf"]
    table = pd.read_csv(out / "loss_vs_epoch.csv")
    told = {"facet", "method", "series", "k", "step", "epoch", "loss", "low", "high", "cells"}
    assert told <= set(table)
    for wrong in (["--format", "jpg"], ["--label", "ef21"], ["--methods", "nought"]):
        assert cli("plot", swept, "--out", tmp_path / "none", *wrong).code == 2
        assert not (tmp_path / "none").exists()


@pytest.mark.thorough
def test_panels_have_names_of_their_own(tmp_path):
    """That of a panel may hold the sign that stands before the new one."""
    (tmp_path / "two.yaml").write_text(
        "name: two\nproblem: {name: quadratic, dim: 8, clients: 3, mu: [0.1, 0.5]}\nrounds: 30\n"
        "step_size: {theory: 1}\nalgorithm: gd\n"
    )
    raybench.sweep(tmp_path / "two.yaml", tmp_path / "two", inline=True)
    out = tmp_path / "figures"
    named = ["--label", "mu=0.1=far from round", "--label", "gd=descent", "--format", "csv"]
    ran("plot", tmp_path / "two", "--x", "round", "--y", "loss", "--out", out, *named)
    table = pd.read_csv(out / "loss_vs_round.csv")
    assert set(table["facet"]) == {"far from round", "mu=0.5"}


@pytest.mark.thorough
def test_of_many_methods_the_best_and_the_baseline_are_drawn_and_the_others_named(tmp_path):
    """None reaches a target that low: those that end lowest are drawn, and gd, whatever it comes to."""
    (tmp_path / "many.yaml").write_text(
        "name: many\nproblem: {name: quadratic, dim: 8, clients: 3}\nrounds: 30\nstep_size: {theory: 1}\n"
        "algorithm: [gd, ef21, ef14, dcgd, ef21_plus, ef21_w, clag, sgd, ef21_hb, diana, marina]\n"
        "compressor: [{name: top_k, k: 1}, {name: rand_k, k: 1}]\nallow_unproven: true\n"
    )
    assert cli("sweep", tmp_path / "many.yaml", "--out", tmp_path / "out", "--inline").code == 0
    said = cli("plot", tmp_path / "out", "--target", "1e-30", "--format", "csv")
    assert "not drawn: " in said.err
    assert "--methods A,B" in said.err
    table = pd.read_csv(tmp_path / "out" / "figures" / "grad_norm_sq_vs_bits_up.csv")
    assert table["series"].nunique() == 8
    assert "GD" in set(table["series"])
    result = frames(tmp_path / "out", target=1e-30)
    best = tuned(result.curves, result.cells, 1e-30, by="method")
    assert best.loc[best["grad_norm_sq"].idxmin(), "method"] in set(table["method"])


def test_a_point_without_neighbours_has_a_marker():
    """K = 2 never gets there: of the line only the points at K = 1 and 3 are left, with nothing between them."""
    runs = [*reaching(1.0, 10, 11), *reaching(1.0, 60, 60, k=2), *reaching(1.0, 9, 9, k=3)]
    source = framed(*make([*runs, *reaching(1.0, 7, 7, algorithm="marina")]))
    lines = plot(source, kind="k", target=0.1).axes[0].lines
    seen = {tuple(line.get_xdata()): list(line.get_markevery()) for line in lines}
    assert seen == {(1.0, 2.0, 3.0): [True, False, True], (1.0,): [True]}
    panel = drawn_panels(figure(source, kind="k", target=0.1))[0]
    sizes = [trace["marker"]["size"] for trace in panel["data"] if "marker" in trace]
    assert sizes == [[6, 0, 6], [6]]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.5, 2, 8, 128], ["0.5×", "2×", "8×", "128×"]),
        ([2**-10, 1, 4], ["2^-10", "2^0", "2^2"]),
        ([1e-5, 0.25, 3e7], ["1e-5×", "0.25×", "3e7×"]),
        ([1.0001, 1.0002], ["1.0001×", "1.0002×"]),
        ([0, 4096], ["0×", "4,096×"]),
        ([], []),
    ],
)
def test_ticks_of_steps(values, said):
    assert words.ticks(values, "2^{}", "×") == said


KS, ZS, TARGET = [1, 3, 8], [0, 1, 40], 1e-3
GRID = {
    "name": "grid",
    "problem": {"name": "quadratic", "dim": 8, "clients": 3, "mu": 0.1, "seed": [1, 2]},
    "algorithm": [{"name": "clag", "z": ZS}, "gd"],
    "compressor": {"name": "top_k", "k": KS},
    "step_size": {"theory": [1, 4], "of": "gd"},
    "x0": {"normal": 1.0},
    "rounds": 60,
    "stop": {"grad_norm_sq": TARGET},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("heat") / "grid"
    raybench.sweep(GRID, out, inline=True)
    return out


@pytest.mark.thorough
def test_each_pair_costs_what_its_best_step_needs(folder):
    result = frames(folder)
    (grid,) = heatmaps(result)
    assert (grid.name, grid.title, grid.number) == ("bits_to_target_clag_top_k", "CLAG Top-K", "z")
    assert len(grid.data) == 2 * len(KS) * len(ZS)
    assert (grid.data["target"] == TARGET).all()
    cells = result.cells.assign(z=configs(result.cells)["algorithm.z"].astype(float))
    for row in grid.data.itertuples():
        own = cells[(cells[["facet", "k", "z"]] == [row.facet, row.k, row.value]).all(axis=1)]
        assert len(own) == 2
        costs = []
        for cell, status in zip(own["cell"], own["status"], strict=True):
            curve = result.curves[result.curves["cell"] == cell].sort_values("round")
            hit = curve[curve["grad_norm_sq"] <= TARGET]
            costs.append(hit["bits_up"].iloc[0] if len(hit) and status == "ok" else np.inf)
        assert row.cost == pytest.approx(min(costs)) or (
            np.isinf(min(costs)) and not np.isfinite(row.cost)
        )
    assert np.isfinite(grid.data["cost"]).any()
    assert not np.isfinite(grid.data["cost"]).all()  # some pair misses the target: a dash


@pytest.mark.thorough
def test_it_is_drawn_by_plot(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "every", lambda found: [])  # the other figures take a while
    names = {path.name for path in figures(folder, tmp_path)}
    assert names == {f"bits_to_target_clag_top_k.{kind}" for kind in ("png", "pdf", "csv")}
    written = pd.read_csv(tmp_path / "bits_to_target_clag_top_k.csv")
    assert written["k"].tolist() == 2 * [k for k in KS for _ in ZS]
    canvas = draw(heatmaps(frames(folder))[0])
    panels = [axis for axis in canvas.axes if axis.get_xlabel() == "$z$"]
    assert len(panels) == 2
    for axis in panels:
        assert [t.get_text() for t in axis.get_xticklabels()] == ["0", "1", "40"]
        assert len(axis.texts) == len(KS) * len(ZS)
        (frame,) = axis.patches
        assert frame.get_width() == 1


def page_of(tmp_path, **kw):
    store = Store(tmp_path / "results")
    fake_store.fill(store, **{"rounds": 60, "multiples": (1.0, 8.0, 64.0), "seeds": 2, **kw})
    return html(store.folder).read_text("utf-8")


@pytest.mark.thorough
def test_every_cell_has_a_row_and_those_that_did_not_end_well_come_first(tmp_path):
    text = page_of(tmp_path)
    rows = table_rows(text, "cell-table")
    cells = frames(tmp_path / "results").cells
    assert len(rows) == len(cells)
    order = [row["ending"] for row in rows]
    assert order[0] == "failed"
    assert rows[0]["What happened"] == "RuntimeError: out of memory"
    assert [e for i, e in enumerate(order) if e not in order[:i]] == [
        *("failed", "diverged", "skipped", "ok")
    ]
    statuses = pd.Series([row["Status"] for row in rows]).value_counts().to_dict()
    assert statuses == cells["status"].value_counts().to_dict()
    assert "marina needs an unbiased compressor, top_k is biased" in {
        row["What happened"] for row in rows if row["ending"] == "skipped"
    }


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.693, 10, 454016], "f grew 660,000×"),
        ([1, 0.5, 1.99], ""),
        ([1, 0.5, 2.0], "f grew 2×"),
        ([0, 5, 454016], "f grew from 0 to 450,000"),
        ([-4, -8, -0.5], ""),
        ([-4, -8, 12], "f grew from -4 to 12"),
        ([1e-3, 1e-9, 1e9], "f grew 1e+12×"),
        ([1, np.nan, np.nan], ""),
    ],
)
def test_growth_of_f_is_told(values, said):
    result = framed(*make([{"g": values}]))
    assert result.growth.tolist() == [said]
    assert bool(growth_notes(result)) == bool(said)


def shares():
    """Runs at K = 10 % of two data sets that differ in d, and at K = 1."""
    ks = (("a", 12), ("b", 30), ("a", 1), ("b", 1))
    curves, cells = make([{"g": [1, 0.1], "dataset": dataset, "k": k} for dataset, k in ks])

    def asked(row):
        config = json.loads(row["config"])
        config["compressor"]["params"]["k"] = 1 if row["k"] == 1 else "10%"
        return json.dumps(config)

    return curves, cells.assign(config=cells.apply(asked, axis=1))


def test_a_share_is_one_k_on_all_problems():
    curves, cells = shares()
    assert k_words(cells).tolist() == ["10%", "10%", "1", "1"]
    assert sorted(set(describe(cells)["series"])) == ["EF21 Top-1", "EF21 Top-10%"]
    result = framed(curves, cells)
    said = render(result, by="series")
    assert "10% (12)" in said
    assert "10% (30)" in said


@pytest.mark.thorough
def test_the_page_draws_what_the_figures_hold(tmp_path):
    """The lines and bands of ``plot``, which are those of the analysis, to the digits that a page keeps."""
    text = page_of(tmp_path)
    shown = drawn(text)
    for one in build(frames(tmp_path / "results")):
        if one.steps:
            continue
        part = shown[f"{one.name}-0"]
        data = one.data[one.data["panel"] == one.panels[0]]
        for series, rows in data.groupby("series", sort=False):
            low, high, line = (t for t in part["data"] if t["legendgroup"] == series)
            for trace, column in ((line, "y"), (low, "low"), (high, "high")):
                np.testing.assert_allclose(trace["x"], rows["x"] / one.x_unit, rtol=1e-4)
                np.testing.assert_allclose(trace["y"], rows[column], rtol=1e-4)


# Metrics of one's own, kept in the map ``extra`` ------------------------------------------------------

MEASURED = """
name: own
problem: {name: quadratic, dim: 12, clients: 4}
algorithm: [gd, ef21]
compressor: {name: top_k, k: 3}
seed: 0..1
x0: {normal: 1.0}
rounds: 20
evaluate: {metrics: [iterate_norm, sparsity]}
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("swept") / "results"
    raybench.sweep(MEASURED, out, inline=True)
    return out


def test_rows_of_a_folder_have_the_metric_that_is_asked_for(measured):
    result, rows = frames(measured), raybench.load(measured)
    cells = list(result.cells["cell"])
    assert result.curves_source.extras(cells) == ["extra.iterate_norm", "extra.sparsity"]
    own = result.rows(cells, ["extra.iterate_norm", "loss", "extra.none"])
    assert own["extra.none"].isna().all()
    for name in ("extra.iterate_norm", "loss"):
        np.testing.assert_array_equal(own[name], rows[name])
    part = frames_of(measured, {"algorithm": "ef21"})
    some = list(part.cells["cell"])
    assert part.curves_source.extras(some) == ["extra.iterate_norm", "extra.sparsity"]
    assert set(part.rows(some, ["extra.sparsity"])["cell"]) == set(some) < set(cells)


def test_the_page_draws_them(measured):
    result = frames(measured)
    names = {figure.name for figure in build(result, extras=True)} - {f.name for f in build(result)}
    assert {"extra.iterate_norm_vs_bits_up", "extra.sparsity_vs_round"} <= names


def test_counts_that_are_kept_beside_them_are_no_axes():
    """What the store keeps in ``extra`` for the accounting is no metric."""
    curves, cells = make([{"g": [1, 0.5, 0.1]}])
    curves = curves.assign(**{"extra.own": 1.0, "extra.index_entropy_up": 3.0})
    assert framed(curves, cells).curves_source.extras(["cell0"]) == ["extra.own"]


def test_a_figure_of_one(measured, tmp_path):
    made = figure(frames(measured), y="extra.sparsity", methods=["ef21"])
    rows = raybench.load(measured)
    want = rows[rows["algorithm"] == "ef21"].groupby("round")["extra.sparsity"].median()
    np.testing.assert_allclose(made.data["y"], want)
    wrong = cli("plot", measured, "--y", "extra.sparsty", "--out", tmp_path / "none")
    assert (wrong.code, wrong.complaints) == (2, 1)
    assert "did you mean extra.sparsity" in wrong.err
