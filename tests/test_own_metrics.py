"""Metrics of one's own, kept in the map ``extra``: as axes of figures and of the page, read as far as they are asked for."""

from __future__ import annotations

import numpy as np
import pytest
from cli_kit import cli
from fake_runs import make

import raybench
from raybench.analysis import frames, opened
from raybench.analysis.frames import framed
from raybench.report.content import build
from raybench.report.custom import figure

SWEEP = """
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
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("swept") / "results"
    raybench.sweep(SWEEP, out, inline=True)
    return out


def test_rows_of_a_folder_have_the_metric_that_is_asked_for(folder):
    result, rows = frames(folder), raybench.load(folder)
    cells = list(result.cells["cell"])
    assert result.held.extras(cells) == ["extra.iterate_norm", "extra.sparsity"]
    own = result.rows(cells, ["extra.iterate_norm", "loss", "extra.none"])
    assert own["extra.none"].isna().all()
    for name in ("extra.iterate_norm", "loss"):
        np.testing.assert_array_equal(own[name], rows[name])
    part = opened(folder, {"algorithm": "ef21"})
    some = list(part.cells["cell"])
    assert part.held.extras(some) == ["extra.iterate_norm", "extra.sparsity"]
    assert set(part.rows(some, ["extra.sparsity"])["cell"]) == set(some) < set(cells)


def test_the_page_draws_them(folder):
    result = frames(folder)
    names = {figure.name for figure in build(result, extras=True)} - {f.name for f in build(result)}
    assert {"extra.iterate_norm_vs_bits_up", "extra.sparsity_vs_round"} <= names


def test_counts_that_are_kept_beside_them_are_no_axes():
    """What the store keeps in ``extra`` for the accounting is no metric."""
    curves, cells = make([{"g": [1, 0.5, 0.1]}])
    curves = curves.assign(**{"extra.own": 1.0, "extra.index_entropy_up": 3.0})
    assert framed(curves, cells).held.extras(["cell0"]) == ["extra.own"]


def test_a_figure_of_one(folder, tmp_path):
    made = figure(frames(folder), y="extra.sparsity", methods=["ef21"])
    rows = raybench.load(folder)
    want = rows[rows["algorithm"] == "ef21"].groupby("round")["extra.sparsity"].median()
    np.testing.assert_allclose(made.data["y"], want)
    wrong = cli("plot", folder, "--y", "extra.sparsty", "--out", tmp_path / "none")
    assert (wrong.code, wrong.complaints) == (2, 1)
    assert "did you mean extra.sparsity" in wrong.err
