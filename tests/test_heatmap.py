"""Heat maps of what a target costs, over K and one more number."""

from __future__ import annotations

import fake_store
import numpy as np
import pandas as pd
import pytest

import raybench
from raybench.analysis import frames
from raybench.report import figures, plots
from raybench.report.heatmap import draw, heatmaps
from raybench.store import Store
from raybench.store.reader import configs

pytestmark = pytest.mark.thorough

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


def test_each_pair_costs_what_its_best_step_needs(folder):
    found = frames(folder)
    (grid,) = heatmaps(found)
    assert (grid.name, grid.title, grid.number) == ("bits_to_target_clag_top_k", "CLAG Top-K", "z")
    assert len(grid.data) == 2 * len(KS) * len(ZS)
    assert (grid.data["target"] == TARGET).all()
    cells = found.cells.assign(z=configs(found.cells)["algorithm.z"].astype(float))
    for row in grid.data.itertuples():
        own = cells[
            (cells["facet"] == row.facet) & (cells["k"] == row.k) & (cells["z"] == row.value)
        ]
        assert len(own) == 2
        costs = []
        for cell, status in zip(own["cell"], own["status"], strict=True):
            curve = found.curves[found.curves["cell"] == cell].sort_values("round")
            hit = curve[curve["grad_norm_sq"] <= TARGET]
            costs.append(hit["bits_up"].iloc[0] if len(hit) and status == "ok" else np.inf)
        assert row.cost == pytest.approx(min(costs)) or (
            np.isinf(min(costs)) and not np.isfinite(row.cost)
        )
    assert np.isfinite(grid.data["cost"]).any()
    assert not np.isfinite(grid.data["cost"]).all()  # some pair misses the target: a dash


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


def test_no_map_without_such_a_grid(tmp_path):
    store = Store(tmp_path)
    fake_store.fill(store, rounds=20, seeds=1)
    assert heatmaps(frames(tmp_path)) == []  # MARINA's p has one value per K
