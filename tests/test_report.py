"""Reports: tables, figures and the HTML page, for ordinary and for odd results folders."""

from __future__ import annotations

import io
import itertools
import re

import fake_store
import numpy as np
import pandas as pd
import pytest
from fake_runs import make as made_runs
from page_kit import Page, drawn, table_rows
from scipy.optimize import LinearConstraint, minimize
from tiers import first_of_each

from raybench import plot
from raybench.analysis import closing_table, frames
from raybench.analysis.frames import framed
from raybench.core.errors import InputError
from raybench.report import figures, html, plots, render, words
from raybench.report.content import LOWEST_SHOWN, build, with_targets
from raybench.report.custom import figure as figure_of
from raybench.report.plots import draw, spread
from raybench.report.rankings import unsure
from raybench.store import CELLS, Store, to_table

pytestmark = pytest.mark.usefixtures("few_readings")

GD, EF21 = fake_store.METHODS[:2]
DIANA = fake_store.METHODS[3]
FEW = fake_store.METHODS[:3]  # gd, and two methods with three K each
ODD = {
    "all diverged": {"methods": (fake_store.Method("gd", limit=1e-3),), "failed": 0, "skipped": 0},
    "no seconds": {"seconds": False, "seeds": 1},
    "steps by value": {"methods": fake_store.STOCHASTIC, "multiples": None, "every": 10},
    "two problems": {"datasets": ("mushrooms", "a9a"), "seeds": 1},
}


def filled(folder, **kw):
    """Return a folder of made-up results."""
    plain = {"methods": FEW, "rounds": 60, "multiples": (1.0, 8.0, 64.0), "seeds": 2}
    fake_store.fill(Store(folder), **{**plain, **kw})
    return folder


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """Return a function that makes up results, once for the same arguments: they are read only."""
    folders = {}

    def folder_of(**kw):
        key = repr(kw)
        if key not in folders:
            folders[key] = filled(tmp_path_factory.mktemp("results"), **kw)
        return folders[key]

    return folder_of


@pytest.mark.parametrize(
    ("series", "said"),
    [
        ("EF21 per tensor (of=top_k:k=1%)", "EF21 Top-1% per tensor"),
        ("EF21 per tensor (of=qsgd)", "EF21 QSGD per tensor"),
        ("EF21 per tensor (of=top_k:k=1%, bucket=4)", "EF21 Top-1% per tensor, bucket 4"),
        ("EF21 per tensor (of=tucker:ranks=[[5%]])", "EF21 tucker 5% per tensor"),
        ("DGC per tensor (of=dgc:k=0.5%)", "DGC 0.5% per tensor"),
        ("DCGD identity", "DCGD uncompressed"),
        ("Rennala SGD (collect=20)", "Rennala SGD, collect 20"),
        ("DGC Top-1 (masking=False, clip=1)", "DGC Top-1, not masking, clip 1"),
        ("EF21 (ours)", "EF21 (ours)"),
        ("EF21-Muon per tensor", "EF21-Muon per tensor"),
    ],
)
def test_legends_do_not_speak_the_language_of_sweep_files(series, said):
    assert words.spoken(series) == said


def test_render_forms_agree(folder_of):
    folder = folder_of()
    want = closing_table(folder)
    raw = pd.read_csv(io.StringIO(render(folder, "csv")))
    pd.testing.assert_series_equal(raw["bits_to_target"], want["bits_to_target"])
    plain, marked = render(folder), render(folder, "markdown")
    for row in want.to_dict("records"):
        shown = words.interval(row["bits_to_target"], row["bits_low"], row["bits_high"])
        assert re.search(re.escape(row["method"]) + r"\s.*" + re.escape(shown), plain)
        assert f"| {row['method']} |" in marked
    lines = [line for line in marked.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(want)
    assert len({line.count("|") for line in lines}) == 1
    assert "count_init=true" in plain
    assert "count_init=false" in render(folder, accounting="paper:ef21")
    with pytest.raises(InputError, match="did you mean markdown"):
        render(folder, "markdwn")


def test_the_table_says_what_stands_in_brackets(folder_of):
    def said(form="plain", **kw):
        return " ".join(render(folder_of(**{"methods": (GD, EF21), **kw}), form).split())

    held = "in brackets an interval that holds the true median with probability"
    for form in ("plain", "markdown"):
        assert f"{held} 75 % (range of 3 seeds)" in said(form, seeds=3)
    assert f"{held} 96.1 % (2nd smallest to 2nd largest of 9 seeds)" in said(seeds=9)
    alone = said(seeds=1)
    assert "Bits: uplink per client" in alone
    assert "median" not in alone
    assert "mean over seeds" not in alone


def test_bits_have_units_and_say_what_is_not_known():
    unknown, inf = float("nan"), float("inf")
    spelled = {0.0: "0 bit", 999: "999 bit", 11499: "11.5 kbit", 2.3e6: "2.3 Mbit"}
    for value, said in {**spelled, unknown: "–", inf: "not reached"}.items():
        assert words.bits(value) == said
    for ends, said in {
        (1e4, 9e3, inf): "10 [9, ∞] kbit",
        (inf, inf, inf): "not reached",
        (inf, 9e3, inf): "not reached [9 kbit, ∞]",
        (1e4, unknown, unknown): "10 kbit",
        (unknown, unknown, unknown): "–",
    }.items():
        assert words.interval(*ends) == said


@pytest.mark.parametrize(
    "methods", [(GD,), pytest.param(fake_store.METHODS, marks=pytest.mark.thorough)]
)
def test_figures_say_what_their_bands_are(folder_of, methods):
    """With a legend of several series, and below the panel of a lone one."""
    folder = folder_of(seeds=3, methods=methods)
    result = build(frames(folder))
    assert {f.band for f in result} == {"median and range of 3 seeds, pointwise coverage 75 %"}
    for figure in result:
        (legend,) = draw(figure).legends
        said = legend.get_title().get_text().replace("\u00a0", " ")
        assert said == "Median and range of 3 seeds, pointwise coverage 75 %"
        assert set(figure.data.loc[figure.data["y"].notna(), "coverage"]) == {0.75}
    page = html(folder).read_text("utf-8")
    assert page.count("Median and range of 3 seeds, pointwise coverage 75 %") == len(drawn(page))


def test_on_a_logarithmic_axis_a_curve_begins_at_its_first_point_beyond_zero(folder_of):
    """Round 0 costs EF21 bits and DIANA none: drawn from the axis' end, it would be flat up to its first row."""
    results = frames(folder_of(every=10, methods=(EF21, DIANA)))
    assert (results.curves["bits_up"] == 0).any()
    figure = next(f for f in build(results) if f.name == "grad_norm_sq_vs_bits_up")
    assert figure.log_x
    first = figure.data.groupby("series")["x"].min()
    own = results.curves.query("bits_up > 0").groupby("series")["bits_up"].min()
    assert first.to_dict() == own[first.index].to_dict()
    for axis in draw(figure).axes:
        assert all(min(line.get_xdata()) > 0 for line in axis.lines)


def test_networks_are_judged_by_the_test_loss_where_f_is_not_measured():
    runs = [{"g": [2, 1, 0.5], "algorithm": "dcgd"}, {"g": [2, 1.5, 1.25], "algorithm": "dgc"}]
    curves, cells = made_runs(runs)
    curves["test_loss"] = curves["loss"].where(curves["round"] != 1)  # measured now and then
    for table_ in (curves, cells):
        table_[["grad_norm_sq", "loss"]] = np.nan
    result = closing_table((curves, cells))
    assert result["target"].tolist() == [1.25, 1.25]
    assert result["bits_to_target"].tolist() == [20.0, 20.0]
    assert result["test_loss"].tolist() == [0.5, 1.25]
    store = framed(curves, cells)
    text = render(store)
    assert "Target: test loss ≤ 1.25" in text
    assert {f.y for f in build(store)} == {"test_loss"}


@pytest.mark.parametrize("case", first_of_each(ODD))
def test_odd_folders_are_drawn(folder_of, case, monkeypatch):
    monkeypatch.setitem(plots.STYLE, "savefig.dpi", 30)  # what takes the time
    folder = folder_of(**ODD[case])
    names = {p.stem for p in figures(folder, kinds=["png"])}
    assert "grad_norm_sq_vs_bits_up" in names
    assert ("grad_norm_sq_vs_seconds" in names) == (case not in ("no seconds", "all diverged"))
    assert "grad_norm_sq_vs_step" in names
    page = html(folder)
    assert page == folder / "report.html"
    ids = Page(page.read_text("utf-8")).ids
    shown = drawn(page.read_text("utf-8"))
    assert set(shown) <= set(ids)
    panels = [key for key in shown if key.startswith("grad_norm_sq_vs_bits_up-")]
    assert len(panels) == (2 if case == "two problems" else 1)
    assert render(folder)


def test_steps_at_which_cells_diverged_are_marked(folder_of):
    folder = folder_of(methods=(GD,), multiples=(1.0, 2.0, 4.0, 8.0))
    figure = next(f for f in build(frames(folder)) if f.steps)
    gone = figure.data[figure.data["diverged"] > 0]
    assert gone["x"].tolist() == [4.0, 8.0]
    assert gone["y"].isna().all()
    marks = drawn(html(folder).read_text("utf-8"))["grad_norm_sq_vs_step-0"]["data"][-1]
    assert marks["x"] == [4.0, 8.0]
    assert marks["yaxis"] == "y2"


def test_zero_and_rounding_stop_at_the_floor(folder_of):
    folder = folder_of(methods=(fake_store.Method("ef21", "top_k", (11,)),), rounds=900)
    figure = next(f for f in build(frames(folder)) if f.name == "grad_norm_sq_vs_round")
    lines = [line for axis in draw(figure).axes for line in axis.lines]
    assert min(min(line.get_ydata()) for line in lines) == LOWEST_SHOWN


def test_series_are_told_apart_without_colour(folder_of):
    for figure in build(frames(folder_of(methods=fake_store.METHODS, rounds=20, seeds=1))):
        dashes = [s.dash for s in figure.looks.values() if s.colour != "#6E6E6E"]
        assert len(set(dashes)) == len(dashes)


def test_page_is_self_contained_and_complete(folder_of, tmp_path):
    folder = folder_of()
    text = html(folder, tmp_path / "deep/er/page.html").read_text("utf-8")
    page = Page(text)
    assert all(link.startswith("#") for link in page.loads)
    assert "default-src 'none'" in text  # the browser itself refuses whatever a page would load
    assert "@import" not in text[: text.index("<body")]
    assert text.count("<script>") == 1
    shown = set(page.cells)
    for row in closing_table(folder, by="series").to_dict("records"):
        assert row["method"] in shown
    assert "RuntimeError: out of memory" in shown
    assert "marina needs an unbiased compressor, top_k is biased" in shown
    assert "value_bits=dtype, index_bits=auto, count_init=true" in text
    assert "raybench.load(" in text
    assert "<b>1</b> failed" in text
    assert "2.6" in shown  # L


def test_page_escapes_what_users_wrote(tmp_path):
    """Of three cells that failed alike the error stands in the page once, whole."""
    folder = filled(tmp_path / "results", methods=(GD,), failed=0, skipped=0)
    bad = "x[bold]</script><script>alert(1)</script>"
    row = {"status": "failed", "error": f"Traceback:\n  the second line\n{bad}", "algorithm": bad}
    row |= {"label": bad, "problem": "logistic", "dataset": "mushrooms", "step_multiple": 1.0}
    for i in range(3):
        cell = {**row, "cell": [f"x{i}"], "seed": i}
        Store(folder).commit(f"x{i}", None, to_table(cell, CELLS))
    assert "X[BOLD]" in render(folder)
    text = html(folder).read_text("utf-8")
    assert "<script>alert" not in text.lower()
    assert text.count("<script>") == 1
    assert "&lt;/script&gt;" in text
    assert text.count("the second line") == 1
    (reason,) = table_rows(text, "reasons")
    assert reason["Cells"] == "3"


def test_a_folder_of_failures_only(tmp_path):
    store = Store(tmp_path)
    fake_store.fill(store, methods=(), failed=2, skipped=1)
    assert "2 failed" in render(tmp_path)
    figures(tmp_path)
    assert "RuntimeError: out of memory" in Page(html(tmp_path).read_text("utf-8")).cells


def axis_of(*per_round):
    """Return (figure, texts of the ticks in sight, label) of the axis of bits, of runs of 100 rounds."""
    g = [10 ** (-i / 20) for i in range(101)]
    runs = [{"g": g, "per_round": p, "k": i + 1} for i, p in enumerate(per_round)]
    figure = next(f for f in build(framed(*made_runs(runs))) if f.name == "grad_norm_sq_vs_bits_up")
    canvas = draw(figure)
    canvas.canvas.draw()
    axis = canvas.axes[0]
    low, high = axis.get_xlim()
    ticks = [t for t in axis.xaxis.get_major_ticks() if low <= t.get_loc() <= high]
    return figure, [t.label1.get_text() for t in ticks], axis.get_xlabel()


def test_a_logarithmic_axis_names_the_unit_at_each_tick():
    """It read 10000 kbit where one method needs 11 kbit and another 10 Mbit."""
    figure, ticks, label = axis_of(110.0, 1e5, 3e7)
    assert figure.log_x
    assert label == "Uplink per client"
    assert len(ticks) >= 2
    assert {t.split()[1] for t in ticks} >= {"kbit", "Mbit"}
    assert all(float(t.split()[0]) in (1, 10, 100) for t in ticks)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("end", "unit"), [(9e2, "bit"), (4e5, "kbit"), (4e6, "Mbit"), (3e9, "Gbit")]
)
def test_a_linear_axis_has_the_unit_of_its_end(end, unit):
    figure, ticks, label = axis_of(end / 100, end / 400)
    assert not figure.log_x
    assert label == f"Uplink per client ({unit})"
    assert 0 < max(float(t) for t in ticks) < 1000


def test_a_report_begins_with_its_result_and_its_figures_mark_the_target(folder_of):
    folder = folder_of(methods=(GD, EF21), seeds=3)
    results = frames(folder)
    best = closing_table(results).iloc[0]
    text = html(folder).read_text("utf-8")
    (said,) = re.findall(r'<p class="headline">([^<]*)', text)
    goal = f"‖∇f‖² ≤ {best['target']:g}"
    assert said.startswith(f"{best['method']} reaches {goal} with the fewest bits")
    assert words.bits(best["bits_to_target"]) in said

    figure = with_targets(build(results)[0], results)
    assert figure.goals == {"": best["target"]}
    (axis,) = draw(figure).axes
    assert best["target"] in [line.get_ydata()[0] for line in axis.lines]
    (line,) = next(p for p in drawn(text).values())["layout"]["shapes"]
    assert line["y0"] == pytest.approx(best["target"])


FIRST = (3, 3, 1.0, 0.9, 1.5)
ALONE = (1, 1, 1.0, np.nan, np.nan)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (FIRST, (3, 3, 2.0, 1.4, 2.2), "its interval over 3 seeds overlaps with that of B"),
        (FIRST, (3, 3, 2.0, 1.6, 2.2), ""),
        (FIRST, (1, 1, 2.0, np.nan, np.nan), ""),
        (FIRST, (1, 1, 1.4, np.nan, np.nan), "its interval over 3 seeds overlaps with that of B"),
        ((6, 4, 1.0, 0.9, 1.5), (3, 3, 2.0, 1.6, 2.2), "2 of its 6 seeds miss it"),
        (ALONE, (1, 1, 2.0, np.nan, np.nan), "that is of one seed"),
        (ALONE, (3, 3, 2.0, 0.8, 2.2), "that is of one seed and it lies in the interval of B"),
    ],
)
def test_a_first_place_that_the_seeds_do_not_show_is_said(first, second, said):
    rows = [("A", *first), ("B", *second), ("C", 3, 3, 9.0, 8.0, 10.0)]
    heads = ["method", "seeds", "arrived", "bits_to_target", "bits_low", "bits_high"]
    assert unsure(pd.DataFrame(rows, columns=heads), "bits") == said


def test_an_axis_ends_soon_below_the_target(folder_of):
    results = frames(folder_of(seeds=1, rounds=400), target=1e-2)
    every = build(results)
    assert all(with_targets(f, results).goals == {} for f in every if f.y == "loss"), (
        "of another metric"
    )
    figure = with_targets(every[0], results)
    assert figure.data["y"].min() < 1e-9
    (axis,) = draw(figure).axes
    assert 1e-7 < axis.get_ylim()[0] < 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("results") / "run")
    more = {"rounds": 60, "datasets": ("mushrooms", "a9a"), "multiples": (1.0, 8.0), "seeds": 2}
    fake_store.fill(store, FEW, **more)
    return store.folder


@pytest.mark.parametrize("seed", first_of_each(range(5)))
def test_no_heights_that_are_apart_are_nearer_to_those_wanted(seed):
    """Of heights between 0 and 1; where there is no room for them, they go beyond both ends by the same."""
    wanted, gap = np.random.default_rng(seed).uniform(size=6), 0.15
    order = np.argsort(wanted)
    apart = LinearConstraint(np.diff(np.eye(6)[order], axis=0), gap, np.inf)
    start = np.empty(6)
    start[order] = np.linspace(0, 1, 6)

    def far(heights):
        return ((heights - wanted) ** 2).sum()

    best = minimize(far, start, bounds=[(0, 1)] * 6, constraints=[apart])
    np.testing.assert_allclose(spread(wanted, gap), best.x, atol=2e-3)
    np.testing.assert_allclose(spread(wanted, 0.3)[order], 0.3 * np.arange(6) - 0.25)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "size"),
    first_of_each(
        itertools.product(["curves", "steps", "k", "trials"], ["column", None, (7.0, 2.0)]),
        lambda case: case[0],
    ),
)
def test_every_line_has_its_name_and_no_name_lies_on_another(folder, kind, size):
    result = frames(folder)
    canvas = plot(result, kind=kind, size=size, label_lines=True)
    made = figure_of(result, kind=kind)
    canvas.draw_without_rendering()
    for axis, panel in zip(canvas.axes, made.panels, strict=True):
        rows = made.data[(made.data["panel"] == panel) & np.isfinite(made.data["y"])]
        names = {made.looks[s].label for s in rows["series"]}
        texts = [t for t in axis.texts if t.get_text() in names]
        assert {t.get_text() for t in texts} == names
        boxes = [t.get_window_extent() for t in texts]
        assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
        assert all(box.x0 >= axis.get_window_extent().x1 for box in boxes)
        whole = canvas.bbox
        assert all(box.x1 <= whole.x1 + 1 for box in boxes)
    assert not [t for legend in canvas.legends for t in legend.get_texts()]
