"""The report in a browser, opened from disk: what its script draws, and what readers can do with it."""

from __future__ import annotations

import itertools
import json

import fake_store
import numpy as np
import pytest
from browser_kit import ABSENT, CHROMIUM, Browser
from fake_runs import make

from raybench.analysis import bands, frames
from raybench.analysis.frames import framed
from raybench.report import html
from raybench.store import CELLS, Store, to_table

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=ABSENT)
DRAWN = "document.documentElement.classList.contains('drawn')"
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)><b>%{x}"
LINES = "document.getElementById('curves-0').data.filter(t => t.name && t.visible === true)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Results of two problems in which cells failed, were skipped, diverged, and bear names that are markup."""
    store = Store(tmp_path_factory.mktemp("results") / "run")
    methods = (*fake_store.METHODS[:4], fake_store.Method(EVIL, "top_k", (1, 5)))
    fake_store.fill(
        store,
        rounds=200,
        methods=methods,
        datasets=("mushrooms", "a9a"),
        multiples=(1.0, 8.0, 64.0),
    )
    config = fake_store._config(fake_store.METHODS[0], "mushrooms", None, 7, {"kind": "theory"})
    row = {
        "cell": ["evil"],
        "group": fake_store._ids(config)[1],
        "config": json.dumps(config),
        "clients": 20,
        "status": "failed",
        "error": EVIL,
        "algorithm": "gd",
        "label": EVIL,
    }
    row |= {"problem": "logistic", "dataset": "mushrooms", "step_multiple": 1.0, "seed": 0}
    store.commit("evil", None, to_table(row, CELLS))
    return store.folder


@pytest.fixture
def page(browser, folder):
    """The report in a window of a desktop, just opened; afterwards its console has said nothing."""
    path = html(folder)
    browser.problems.clear()
    browser.requests.clear()
    browser.size(1280, 900)
    browser.dark(False)
    browser.open(path)
    browser.until(DRAWN)
    yield browser
    assert browser.problems == []
    own = [r for r in browser.requests if not r.startswith(("data:", "blob:"))]
    assert own == [path.resolve().as_uri()]


def choose(page, name, value):
    """Choose a value of a select, as a reader does."""
    page.run(
        f"(() => {{ const e = document.getElementById('{name}'); e.value = {value!r};"
        " e.dispatchEvent(new Event('change', {bubbles: true})); return e.value; })()"
    )


def shown_rows(page):
    """Return the texts of the rows of cells that are to be seen, from the top."""
    script = "[...document.querySelectorAll('#cell-table tbody tr')].filter(r => r.offsetHeight)"
    return page.run(f"{script}.map(r => [...r.cells].map(c => c.textContent))")


def place(page, selector):
    """Return the middle of an element, scrolled into view, in the window."""
    return tuple(
        page.run(
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            " const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2, r.width, r.height]; })()"
        )
    )


def test_curves_are_drawn_with_the_medians_and_bands_of_the_analysis(page, folder):
    found = frames(folder)
    best = found.tuned("series")
    best = best[best["eligible"] & (best["facet"] == "a9a")].set_index("series")
    for x, y in (("bits_up", "grad_norm_sq"), ("seconds", "loss"), ("epoch", "grad_norm_sq")):
        choose(page, "x", x)
        choose(page, "y", y)
        choose(page, "k", "all")
        page.run(
            "for (const id of ['log-x', 'log-y']) if (document.getElementById(id).checked) document.getElementById(id).click()"
        )
        data = page.run(
            "document.getElementById('curves-0').data.map(t => ({name: t.name || '', x: t.x, y: t.y}))"
        )
        at = next(i for i, t in enumerate(data) if t["name"].startswith("MARINA Rand-5,"))
        own = found.curves[
            (found.curves["facet"] == "a9a")
            & (found.curves["series"] == "MARINA Rand-5")
            & (found.curves["step"] == best.loc["MARINA Rand-5", "step"])
        ]
        want = bands(own, x, y, ["series"], points=10**6)
        np.testing.assert_allclose(data[at]["x"], want[x], rtol=1e-5, atol=1e-12)
        for trace, column in ((data[at], y), (data[at - 2], "low"), (data[at - 1], "high")):
            np.testing.assert_allclose(trace["y"], want[column], rtol=1e-5)


def test_a_metric_of_ones_own_is_an_axis_and_its_name_no_markup(browser, tmp_path):
    curves, cells = make([{"g": [1, 0.5, 0.1]}, {"g": [1, 0.9, 0.8], "algorithm": "diana"}])
    found = framed(curves.assign(**{f"extra.{EVIL}": curves["round"] + 2.0}), cells)
    browser.problems.clear()
    browser.open(html(found, tmp_path / "page.html"))
    browser.until(DRAWN)
    choose(browser, "y", f"extra.{EVIL}")
    assert browser.run(f"{LINES}.map(t => t.y)") == [[2, 3, 4], [2, 3, 4]]
    title = browser.run("document.querySelector('#curves-0 .ytitle').textContent")
    assert title.lower() == EVIL.lower()
    assert browser.run("document.querySelectorAll('#curves-0 .ytitle img').length") == 0
    option = "document.getElementById('y').selectedOptions[0].textContent"
    assert browser.run(option).lower() == EVIL.lower()
    assert browser.problems == []


def test_the_axis_of_x_is_switched_and_has_units(page):
    ticks = "[...document.querySelectorAll('#curves-0 .xtick text')].map(t => t.textContent)"
    title = "document.querySelector('#curves-0 .xtitle').textContent"
    assert page.run(title) == "Upstream per client (bit)"
    first = page.run(ticks)
    assert len(first) >= 2
    assert all(t.rstrip("kMG").isdigit() and len(t) <= 4 for t in first)
    choose(page, "x", "round")
    assert page.run(title) == "Communication round"
    assert page.run("document.getElementById('curves-0').layout.xaxis.type") == "linear"
    assert "100" in page.run(ticks)
    choose(page, "x", "seconds")
    assert page.run(title) == "Wall-clock time (s)"
    assert all(float(t) >= 0 for t in page.run(ticks))
    choose(page, "y", "loss")
    title = page.run("document.querySelector('#curves-0 .ytitle').textContent")
    assert title.replace("\u200b", "") == "f(xt)"


def test_logarithmic_axes_begin_beyond_zero(page):
    """gd and methods that start with a free message have 0 bits at round 0."""
    choose(page, "k", "all")
    page.run(
        "if (!document.getElementById('log-x').checked) document.getElementById('log-x').click()"
    )
    assert min(page.run(f"{LINES}.flatMap(t => t.x)")) > 0
    assert page.run("document.getElementById('curves-0').layout.xaxis.type") == "log"
    page.run("document.getElementById('log-x').click()")
    assert min(page.run(f"{LINES}.flatMap(t => t.x)")) == 0


def toggled(page, plot, name):
    """Click a method's name in the legend of a plot, as a reader does."""
    script = f"[...document.querySelectorAll('#{plot} .legend .traces')]"
    at = page.run(f"{script}.findIndex(t => t.textContent.startsWith({name!r}))")
    before = page.run(f"{LINES}.length")
    page.run(f"{script}[{at}].scrollIntoView({{block: 'center'}})")
    x, y = page.run(
        f"(() => {{ const r = {script}[{at}].querySelector('.legendtoggle').getBoundingClientRect();"
        " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
    )
    held = {"button": "left", "buttons": 1, "clickCount": 1}
    page.mouse("mouseMoved", x, y)
    page.mouse("mousePressed", x, y, **held)
    page.mouse("mouseReleased", x, y, **held)
    page.until(f"{LINES}.length !== {before}")


def test_methods_and_k_are_chosen(page):
    names = f"{LINES}.map(t => t.name.split(',')[0])"
    assert {"GD", "EF21 Top-1"} < set(page.run(names))
    toggled(page, "curves-1", "EF21")  # of all problems
    assert not any(n.startswith("EF21") for n in page.run(names))
    choose(page, "y", "loss")  # what is hidden stays so
    assert not any(n.startswith("EF21") for n in page.run(names))
    toggled(page, "curves-0", "EF21")
    choose(page, "k", "5")
    assert {n for n in page.run(names) if n.startswith(("EF21", "MARINA"))} == {
        *("EF21 Top-5", "MARINA Rand-5")
    }
    choose(page, "k", "all")
    assert sum(n.startswith("EF21") for n in page.run(names)) == 3
    said = "document.getElementById('said').textContent"
    assert "5 of 5 methods drawn" in page.run(said)
    page.run("for (const m of data.methods) if (m.on) { last = {}; clicked(m.name); }")
    assert page.run(names) == []
    assert "Nothing to draw" in page.run(said)
    page.run("for (const _ of [0, 1]) clicked('GD')")  # a double click on what is hidden
    assert set(page.run(names)) > {"GD"}


def test_a_problem_is_chosen(page):
    seen = "[...document.querySelectorAll('figure')].filter(f => f.querySelector('[id^=curves]') && f.offsetHeight).length"
    assert page.run(seen) == 2
    choose(page, "panel", "1")
    assert page.run(seen) == 1


def test_dragging_zooms_and_a_button_goes_back(page):
    span = "document.getElementById('curves-0').layout.xaxis.range.slice()"
    before = page.run(span)
    x, y, width, height = place(page, "#curves-0 .nsewdrag")
    page.drag((x - width / 8, y - height / 8), (x + width / 8, y + height / 8))
    page.until(f"{span}[0] !== {before[0]}")
    after = page.run(span)
    assert before[0] < after[0] < after[1] < before[1]
    assert after[1] - after[0] == pytest.approx((before[1] - before[0]) / 4, rel=0.1)
    ticks = (
        "(() => { const t = [...document.querySelectorAll('#curves-0 .xtick text')].map(t => t.textContent);"
        " return t.length >= 2 && t; })()"
    )
    page.until(ticks)
    page.run("document.querySelector('#curves-0 [data-title=\"Reset axes\"]').click()")
    page.until(f"Math.abs({span}[0] - ({before[0]})) < 1e-6")


def test_a_point_tells_its_values(page):
    x, y, width, _ = place(page, "#curves-0 .nsewdrag")
    for share in np.linspace(-0.4, 0.4, 17):
        for up in (-60, -30, 0, 30, 60):
            page.mouse("mouseMoved", x + share * width, y + up)
            said = page.run(
                "new Promise(r => setTimeout(() => r([...document.querySelectorAll('#curves-0 .hovertext text')]"
                ".map(t => t.textContent).join(' ')), 60))"
            )
            if said:
                assert " bit: " in said
                return
    raise AssertionError("no point tells anything")


def test_cells_are_filtered(page, folder):
    whole = len(frames(folder).cells)
    assert len(shown_rows(page)) == whole
    choose(page, "filter-Status", "skipped")
    assert {row[5] for row in shown_rows(page)} == {"skipped"}
    assert page.run("document.getElementById('cell-count').textContent").startswith("2 of ")
    choose(page, "filter-Status", "")
    page.run("document.querySelector('.badges a[data-ending=failed]').click()")
    assert {row[5] for row in shown_rows(page)} == {"failed"}
    choose(page, "filter-Status", "")
    choose(page, "filter-K", "5")
    choose(page, "filter-Problem", "a9a")
    rows = shown_rows(page)
    assert rows
    assert {(row[0], row[2]) for row in rows} == {("a9a", "5")}
    page.run(
        "(() => { const e = document.getElementById('filter-text'); e.value = 'MARINA 64×';"
        " e.dispatchEvent(new Event('input')); })()"
    )
    assert {(row[1], row[3]) for row in shown_rows(page)} == {("MARINA Rand-K", "64×")}


def test_cells_are_sorted_by_numbers_and_what_is_unknown_comes_last(page):
    heads = page.run("[...document.querySelectorAll('#cell-table th')].map(h => h.textContent)")
    for name, index in (("f", heads.index("f")), ("Bits up", heads.index("Bits up"))):
        head = f"document.querySelectorAll('#cell-table th')[{index}]"
        values = f"[...document.querySelectorAll('#cell-table tbody tr')].map(r => r.cells[{index}].dataset.v ?? null)"
        for order in ("ascending", "descending"):
            page.run(f"{head}.querySelector('button').click()")
            assert page.run(f"{head}.getAttribute('aria-sort')") == order, name
            found = page.run(values)
            known = [float(v) for v in found if v is not None]
            assert found[len(known) :] == [None] * (len(found) - len(known))
            assert known == sorted(known, reverse=order == "descending")
            assert len(set(known)) > 5
    page.run("document.querySelectorAll('#cell-table th')[1].querySelector('button').click()")
    methods = [row[1] for row in shown_rows(page)]
    assert methods[0] < methods[-1]


@pytest.mark.parametrize("script", [True, False], ids=["with script", "without script"])
def test_a_phone_shows_the_page_without_scrolling_sideways(browser, folder, script):
    path = html(folder)
    browser.problems.clear()
    browser.size(390, 844)
    browser.open(path, script)
    if script:
        browser.until(DRAWN)
        assert browser.run("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
        cut = (
            "[...document.querySelectorAll('.cards')].flatMap(t => [...t.querySelectorAll('td')])"
            ".filter(c => c.offsetHeight && c.getBoundingClientRect().right > innerWidth).length"
        )
        assert browser.run(cut) == 0
        ticks = "[...document.querySelectorAll('#curves-0 .xtick text')].map(t => t.getBoundingClientRect())"
        spans = browser.run(f"{ticks}.map(r => [r.left, r.right]).sort((a, b) => a[0] - b[0])")
        assert len(spans) >= 2
        assert all(
            a[1] < b[0] for a, b in itertools.pairwise(spans)
        )  # texts side by side, none over another
    else:
        size = browser.send("Page.getLayoutMetrics")["cssContentSize"]
        assert size["width"] == 390
        assert size["height"] > 5000  # the tables are there
    assert browser.problems == []


def test_without_script_all_tables_are_there_and_nothing_that_does_not_work(browser, folder):
    browser.size(1280, 900)
    browser.open(html(folder), script=False)
    root = browser.send("DOM.getDocument")["root"]["nodeId"]

    def boxes(selector):
        """Return how many elements of a selector take room."""
        ids = browser.send("DOM.querySelectorAll", nodeId=root, selector=selector)["nodeIds"]
        found = 0
        for node in ids:
            try:
                browser.send("DOM.getBoxModel", nodeId=node)
                found += 1
            except RuntimeError:  # it is not laid out
                continue
        return found

    assert boxes("#cell-table tbody tr") == len(frames(folder).cells)
    assert boxes("noscript p") == 1
    assert boxes("select, input, .plot") == 0


def test_names_and_errors_of_users_are_texts(page):
    """An algorithm, a label and an error that are markup: nothing of them runs or becomes an element."""
    choose(page, "k", "all")
    assert (
        page.run(
            "[...document.querySelectorAll('body img, td:not([data-l=Status]) b, .hovertext b')].map(e => e.outerHTML)"
        )
        == []
    )
    assert page.run(
        "[...document.querySelectorAll('td')].some(c => c.textContent.includes('ONERROR'))"
    )
    names = page.run(f"{LINES}.map(t => t.name)")
    assert any("&lt;/SCRIPT" in n for n in names)
    assert not any("<" in n for n in names)
    legend = page.run("document.querySelector('#curves-0 .legend').textContent")
    assert "<IMG" in legend


def test_dark_colours_follow_the_system(page):
    ink = "getComputedStyle(document.querySelector('#curves-0 .xtick text')).fill"
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.run(f"[{ink}, {paper}]")
    page.dark(True)
    page.until(f"{paper} !== {light[1]!r} && {ink} !== {light[0]!r}")
