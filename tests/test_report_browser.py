"""The report in a browser, opened from disk: what its script draws, and what readers can do with it."""

from __future__ import annotations

import itertools
import json

import fake_store
import pytest
from page_kit import ABSENT, CHROMIUM, DARK, visit

from raybench.analysis import frames
from raybench.report import html
from raybench.store import CELLS, Store, to_table

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(CHROMIUM is None, reason=ABSENT)]
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)><b>%{x}"
PLOT = "grad_norm_sq_vs_bits_up-0"
CHOOSE = """const choose = (name, value) => {
  const select = document.getElementById(name);
  select.value = value;
  select.dispatchEvent(new Event("change", {bubbles: true}));
};
const rows = () => [...document.querySelectorAll("#cell-table tbody tr")].filter((r) => r.offsetHeight)
  .map((r) => [...r.cells].map((c) => c.textContent));
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Results of two problems in which cells failed, were skipped, diverged, and bear names that are markup."""
    store = Store(tmp_path_factory.mktemp("results") / "run")
    methods = (*fake_store.METHODS[:4], fake_store.Method(EVIL, "top_k", (1, 5)))
    more = {"datasets": ("mushrooms", "a9a"), "multiples": (1.0, 8.0, 64.0)}
    fake_store.fill(store, rounds=200, methods=methods, **more)
    config = fake_store._config(fake_store.METHODS[0], "mushrooms", None, 7, {"kind": "theory"})
    row = {"cell": ["evil"], "group": fake_store._ids(config)[1], "config": json.dumps(config)}
    row |= {"clients": 20, "status": "failed", "error": EVIL, "algorithm": "gd", "label": EVIL}
    row |= {"problem": "logistic", "dataset": "mushrooms", "step_multiple": 1.0, "seed": 0}
    store.commit("evil", None, to_table(row, CELLS))
    return store.folder


@pytest.fixture(scope="module")
def page(folder):
    return html(folder)


def test_the_figure_that_is_chosen_is_drawn(page):
    """Only that one, with a panel for each problem, its axes named and their ticks with units."""
    script = """
    const seen = () => [...document.querySelectorAll("[data-curve] .plot")].filter((p) => p.offsetHeight).map((p) => p.id);
    const said = (id) => ["x", "y"].map((axis) => document.getElementById(id).querySelector(`.${axis}title`).textContent);
    const ticks = [...document.getElementById("PLOT").querySelectorAll(".xtick text")].map((t) => t.textContent);
    const first = [seen(), said("PLOT"), ticks];
    choose("figure", "loss_vs_round");
    return [first, [seen(), said("loss_vs_round-0")]];
    """
    first, second = visit(page, CHOOSE + script.replace("PLOT", PLOT))
    assert first[0] == ["grad_norm_sq_vs_bits_up-0", "grad_norm_sq_vs_bits_up-1"]
    assert first[1][0] == "Uplink per client"
    assert first[2]
    assert all(text.endswith("bit") for text in first[2])
    assert second[0] == ["loss_vs_round-0", "loss_vs_round-1"]
    assert second[1][0] == "Communication round"
    assert second[1][1].replace("\u200b", "") == "f(xt)"


def test_cells_are_filtered(page, folder):
    script = """
    const every = rows().length;
    choose("filter-Status", "skipped");
    const skipped = [rows().map((r) => r[5]), document.getElementById("cell-count").textContent];
    choose("filter-Status", "");
    document.querySelector(".badges a[data-ending=failed]").click();
    const failed = rows().map((r) => r[5]);
    choose("filter-Status", "");
    choose("filter-K", "5");
    choose("filter-Problem", "a9a");
    const some = rows();
    const text = document.getElementById("filter-text");
    text.value = "MARINA 64×";
    text.dispatchEvent(new Event("input"));
    return [every, skipped, failed, some, rows()];
    """
    every, skipped, failed, some, few = visit(page, CHOOSE + script)
    assert every == len(frames(folder).cells)
    assert (set(skipped[0]), skipped[1][:5]) == ({"skipped"}, "2 of ")
    assert set(failed) == {"failed"}
    assert {(row[0], row[2]) for row in some} == {("a9a", "5")}
    assert {(row[1], row[3]) for row in few} == {("MARINA Rand-K", "64×")}


def test_cells_are_sorted_by_numbers_and_what_is_unknown_comes_last(page):
    script = """
    const heads = [...document.querySelectorAll("#cell-table th")], told = {};
    for (const name of ["f", "Bits up"]) for (const order of ["ascending", "descending"]) {
      const at = heads.findIndex((h) => h.textContent === name);
      heads[at].querySelector("button").click();
      const values = [...document.querySelectorAll("#cell-table tbody tr")].map((r) => r.cells[at].dataset.v ?? null);
      told[`${name} ${order}`] = [heads[at].getAttribute("aria-sort"), values];
    }
    return told;
    """
    for name, (order, result) in visit(page, script).items():
        assert name.endswith(order)
        known = [float(v) for v in result if v is not None]
        assert result[len(known) :] == [None] * (len(result) - len(known))
        assert known == sorted(known, reverse=order == "descending")
        assert len(set(known)) > 5


def test_a_phone_shows_the_page_without_scrolling_sideways(page):
    script = """
    const cut = [...document.querySelectorAll(".cards td")].filter((c) => c.offsetHeight && c.getBoundingClientRect().right > innerWidth);
    const ticks = [...document.getElementById("PLOT").querySelectorAll(".xtick text")].map((t) => t.getBoundingClientRect());
    return [innerWidth, document.documentElement.scrollWidth, cut.length, ticks.map((r) => [r.left, r.right])];
    """
    inner, wide, cut, ticks = visit(page, script.replace("PLOT", PLOT), width=390)
    assert inner < 640
    assert wide <= inner
    assert cut == 0
    assert len(ticks) >= 2
    assert all(a[1] < b[0] for a, b in itertools.pairwise(sorted(ticks)))  # none over another


def test_names_and_errors_of_users_are_texts(page):
    """An algorithm, a label and an error that are markup: nothing of them runs or becomes an element."""
    script = """
    const made = [...document.querySelectorAll("body img, td:not([data-l=Status]) b")].map((e) => e.outerHTML);
    return [made, [...document.querySelectorAll("td")].some((c) => c.textContent.includes("ONERROR")),
      document.getElementById("PLOT").querySelector(".legend").textContent];
    """
    made, told, legend = visit(page, script.replace("PLOT", PLOT))
    assert made == []
    assert told
    assert "<IMG" in legend


def test_dark_colours_follow_the_system(page):
    script = """
    const ink = getComputedStyle(document.getElementById("PLOT").querySelector(".xtick text")).fill;
    return [ink, getComputedStyle(document.body).backgroundColor];
    """.replace("PLOT", PLOT)
    light, dark = visit(page, script), visit(page, script, DARK)
    assert light[0] != dark[0]
    assert light[1] != dark[1]
