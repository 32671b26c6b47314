"""What the page of a report holds: cells with how they ended, growth of f, K as it was asked for, its size."""

import json

import fake_store
import numpy as np
import pandas as pd
import pytest
from fake_runs import make
from page_kit import drawn, table_rows

from raybench.analysis import describe, frames
from raybench.analysis.frames import framed
from raybench.analysis.methods import k_words
from raybench.report import html, render
from raybench.report.content import build
from raybench.report.page import MOST_ROWS
from raybench.report.tables import growth_notes
from raybench.store import CELLS, CURVES, Store, to_table

pytestmark = pytest.mark.thorough


def page_of(tmp_path, **kw):
    store = Store(tmp_path / "results")
    fake_store.fill(store, **{"rounds": 60, "multiples": (1.0, 8.0, 64.0), "seeds": 2, **kw})
    return html(store.folder).read_text("utf-8")


# -- cells -----------------------------------------------------------------------------------


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


def test_a_huge_sweep_shows_as_many_cells_as_a_page_has_room_for(tmp_path, monkeypatch):
    monkeypatch.setattr("raybench.report.page.MOST_ROWS", 5)
    assert MOST_ROWS > 500
    text = page_of(tmp_path)
    rows = table_rows(text, "cell-table")
    assert len(rows) == 5
    assert rows[0]["ending"] == "failed"
    assert f"first 5 of {len(frames(tmp_path / 'results').cells)} cells" in text


def test_the_whole_error_is_in_the_page_once(tmp_path):
    store = Store(tmp_path / "results")
    fake_store.fill(store, rounds=5, methods=fake_store.METHODS[:1], failed=0, skipped=0)
    error = "Traceback (most recent call last):\n  the second line\nRuntimeError: <b>boom</b>"
    for i in range(3):
        row = {"status": "failed", "error": error, "algorithm": "gd", "label": "gd", "seed": i}
        row |= {"problem": "logistic", "dataset": "mushrooms", "step_multiple": 1.0}
        store.commit(f"x{i}", None, to_table({**row, "cell": [f"x{i}"]}, CELLS))
    text = html(store.folder).read_text("utf-8")
    assert text.count("the second line") == 1
    assert "<b>boom" not in text
    (row,) = table_rows(text, "reasons")
    assert row["Cells"] == "3"


# -- growth of f -----------------------------------------------------------------------------


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


def test_growth_is_that_of_cells_that_ended_ok_and_of_their_own_start():
    """Seeds that start elsewhere, and cells of one seed that do, as a nonsmooth part's weight can make them."""
    runs = [{"g": [1, 9], "status": s} for s in ("ok", "diverged", "pruned")]
    assert framed(*make(runs)).growth.tolist() == ["f grew 9×", "", ""]
    runs = [{"g": [1, 5], "seed": 0}, {"g": [100, 5], "seed": 1}, {"g": [4, 5], "seed": 0, "k": 2}]
    assert framed(*make(runs)).growth.tolist() == ["f grew 5×", "", ""]


def test_growth_is_marked_in_tables_and_in_the_page(tmp_path):
    curves, cells = make([{"g": [0.7, 454016]}, {"g": [0.7, 0.1], "algorithm": "gd"}])
    store = Store(tmp_path / "results")
    store.claim({"name": "grows", "problem": {"name": "logistic"}})
    tables = [
        to_table(t.drop(columns="extra", errors="ignore").to_dict("list"), s)
        for t, s in ((curves, CURVES), (cells, CELLS))
    ]
    store.commit("one", *tables)
    for form in ("plain", "markdown"):
        said = " ".join(render(store.folder, form).split())
        assert "EF21 Top-K: f grew 650,000× in 1 cell that ended ok (steps 1×)" in said
        assert "▲ f ended at twice its value" in said
        assert said.count("▲") == 2  # the note, and one row
    text = html(store.folder).read_text("utf-8")
    first = table_rows(text, "cell-table")[0]
    assert (first["Status"], first["What happened"]) == ("ok", "f grew 650,000×")
    assert "<b>1</b> ok, but f grew" in text


# -- K as it was asked for -------------------------------------------------------------------


def shares():
    """Runs at K = 10 % of two data sets that differ in d, and at K = 1."""
    curves, cells = make(
        [
            {"g": [1, 0.1], "dataset": d, "k": k}
            for d, k in (("a", 12), ("b", 30), ("a", 1), ("b", 1))
        ]
    )

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


@pytest.mark.parametrize(
    ("asked", "k", "said"),
    [
        ("5 %", 6, "5%"),
        (0.05, 6, "5%"),
        (6, 6, "6"),
        (6, None, "6"),
        ("auto", 3, "3"),
        (None, None, ""),
    ],
)
def test_k_is_spelled_as_it_was_asked_for(asked, k, said):
    config = json.dumps({"compressor": {"name": "top_k", "params": {"k": asked}}})
    cells = pd.DataFrame({"config": [config, None], "k": [k, k]})
    assert k_words(cells).tolist() == [said, "" if k is None else str(k)]


# -- what is drawn -----------------------------------------------------------------------------


def test_the_page_draws_what_the_figures_hold(tmp_path):
    """The lines and bands of ``plot``, which are those of the analysis, to the digits that a page keeps."""
    text = page_of(tmp_path)
    shown = drawn(text)
    for figure in build(frames(tmp_path / "results")):
        if figure.steps:
            continue
        part = shown[f"{figure.name}-0"]
        data = figure.data[figure.data["panel"] == figure.panels[0]]
        for series, rows in data.groupby("series", sort=False):
            low, high, line = (t for t in part["data"] if t["legendgroup"] == series)
            for trace, column in ((line, "y"), (low, "low"), (high, "high")):
                np.testing.assert_allclose(trace["x"], rows["x"] / figure.x_unit, rtol=1e-4)
                np.testing.assert_allclose(trace["y"], rows[column], rtol=1e-4)


def test_a_page_of_500_cells_is_below_3_megabytes(tmp_path):
    """All of them drawn: one step, 32 seeds of 4 methods at several K, 1,000 rows each, with seconds."""
    methods = tuple(
        fake_store.Method(m.algorithm, m.compressor, (1, 3, 5, 11)) for m in fake_store.METHODS[1:]
    )
    text = page_of(
        tmp_path, methods=methods, seeds=32, rounds=1000, multiples=(1.0,), failed=3, skipped=3
    )
    assert text.count("<tr class=") >= 512
    assert len(text.encode()) < 3e6
