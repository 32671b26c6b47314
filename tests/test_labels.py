"""Names at the ends of lines: all of them, none over another, each at its line as far as there is room."""

from __future__ import annotations

import itertools

import fake_store
import numpy as np
import pytest
from cli_kit import cli
from scipy.optimize import LinearConstraint, minimize
from tiers import first_of_each

from raybench import plot
from raybench.analysis import frames
from raybench.report.custom import figure
from raybench.report.plots import spread
from raybench.store import Store


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("results") / "run")
    fake_store.fill(store, rounds=100, datasets=("mushrooms", "a9a"), multiples=(1.0, 8.0))
    return store.folder


@pytest.mark.parametrize("seed", range(5))
def test_no_heights_that_are_apart_are_nearer_to_those_wanted(seed):
    """Of heights between 0 and 1; where there is no room for them, they go beyond both ends by the same."""
    wanted, gap = np.random.default_rng(seed).uniform(size=6), 0.15
    order = np.argsort(wanted)
    apart = LinearConstraint(np.diff(np.eye(6)[order], axis=0), gap, np.inf)
    start = np.empty(6)
    start[order] = np.linspace(0, 1, 6)
    best = minimize(
        lambda h: ((h - wanted) ** 2).sum(), start, bounds=[(0, 1)] * 6, constraints=[apart]
    )
    np.testing.assert_allclose(spread(wanted, gap), best.x, atol=2e-3)
    np.testing.assert_allclose(spread(wanted, 0.3)[order], 0.3 * np.arange(6) - 0.25)


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
    made = figure(result, kind=kind)
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


@pytest.mark.thorough
def test_the_option(folder, tmp_path):
    out = ["--format", "png", "--out", tmp_path, "--label-lines"]
    assert cli("plot", folder, *out).code == 0
    assert cli("plot", folder, *out, "--kind", "profile").code == 0
    wrong = cli("plot", folder, *out, "--kind", "heatmap")
    assert (wrong.code, wrong.complaints) == (2, 1)
    assert "no lines" in wrong.err
