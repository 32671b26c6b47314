"""Heat maps: what the target costs over K and one more number of a method, each pair at its best step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle

from raybench.analysis import Frames
from raybench.report import words
from raybench.store.reader import configs

FEWEST = 3  # values of K and of the number, below which lines show as much
COLUMNS = 3


@dataclass(frozen=True)
class HeatMap:
    """One figure: a panel per problem, K downwards, the number across.

    data: columns facet, k, value, cost (bits up per client to the target; inf: not reached; NaN: no
    step ended ok), step_multiple, step_size, target; one row per panel and pair.
    """

    name: str
    title: str
    number: str
    data: pd.DataFrame


def heatmaps(found: Frames) -> list[HeatMap]:
    """Return a map per method whose cells vary K and exactly one more number.

    The target is the sweep's ``stop.grad_norm_sq`` if it has one, else the tables' own.
    """
    goal = (found.sweep.get("stop") or {}).get("grad_norm_sq")
    target = float(goal) if isinstance(goal, int | float) else None
    cells = found.cells[found.cells["k"].notna()]
    maps = []
    for (algorithm, compressor), part in cells.groupby(["algorithm", "compressor"]):
        number = _number(part)
        if number is None:
            continue
        values = configs(part)[number].astype(float)
        pairs = part.assign(value=values)[["facet", "series", "k", "value"]].drop_duplicates()
        best = found.tuned("series", target).drop(columns=["k"])
        data = pairs.merge(best, on=["facet", "series"])
        data["cost"] = data["cost"].where(data["eligible"])
        names = ["facet", "k", "value", "cost", "step_multiple", "step_size", "target"]
        data = data[names].sort_values(["facet", "k", "value"], ignore_index=True)
        key = number.partition(".")[2]
        heads = part["method"].str.partition(" (")[0]
        maps.append(HeatMap(f"bits_to_target_{algorithm}_{compressor}", heads.iloc[0], key, data))
    return maps


def _number(cells: pd.DataFrame) -> str | None:
    """Return the one parameter that takes several numbers at several K; None if there is none or two."""
    if cells["k"].nunique() < FEWEST:
        return None
    config = configs(cells)
    found = []
    for name in config:
        own = name.startswith(("algorithm.", "compressor.")) and name != "compressor.k"
        if not own or not all(type(v) in (int, float) for v in config[name]):
            continue
        spread = config[name].groupby(cells["k"]).nunique()
        if (spread >= FEWEST).sum() >= FEWEST:
            found.append(name)
    return found[0] if len(found) == 1 else None


def draw(figure: HeatMap) -> Canvas:
    """Return the matplotlib figure; a frame marks the cheapest pair of each panel, a dash no success."""
    data = figure.data
    facets, ks, values = (sorted(data[c].unique()) for c in ("facet", "k", "value"))
    columns = min(COLUMNS, len(facets))
    rows = math.ceil(len(facets) / columns)
    width, height = 0.36 * len(values) + 0.9, 0.25 * len(ks) + 0.75
    canvas = Canvas(figsize=(columns * width + 0.6, rows * height), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots(rows, columns, squeeze=False).flatten()
    for axis, facet in zip(axes, facets, strict=False):
        own = data[data["facet"] == facet]
        image = _panel(axis, own, ks, values)
        axis.set_title(facet or figure.title, pad=4)
        axis.set_xlabel(f"${figure.number}$")
        axis.set_ylabel("$K$")
        if image is not None:
            label = f"bits up per client to {words.number(own['target'].iloc[0])}"
            canvas.colorbar(image[0], ax=axis, shrink=0.9).set_label(f"{label} ({image[1]})")
    for axis in axes[len(facets) :]:
        axis.set_visible(False)
    if facets != [""]:
        canvas.suptitle(figure.title, fontsize=9)
    return canvas


def _panel(axis: Any, own: pd.DataFrame, ks: list[Any], values: list[Any]) -> Any:
    """Draw one panel; return the image and its unit, None where no pair reached the target."""
    cost = own.set_index(["k", "value"])["cost"]
    grid = np.array([[cost.get((k, v), np.nan) for v in values] for k in ks], float)
    axis.grid(False)
    axis.set_xticks(range(len(values)), [f"{v:g}" for v in values], rotation=60)
    axis.set_yticks(range(len(ks)), [f"{k:g}" for k in ks])
    for row, column in np.argwhere(~np.isfinite(grid)):
        axis.text(column, row, "–", ha="center", va="center", color="#777777")
    good = grid[np.isfinite(grid)]
    if not len(good):
        axis.set_xlim(-0.5, len(values) - 0.5)
        axis.set_ylim(len(ks) - 0.5, -0.5)
        return None
    size, unit = words.unit_of(float(good.min()))
    shown = np.where(np.isfinite(grid), grid, np.nan) / size
    top = max(float(good.max()), 1.01 * float(good.min())) / size
    norm = LogNorm(float(good.min()) / size, top)
    image = axis.imshow(shown, norm=norm, cmap="viridis", aspect="auto")
    for row, column in np.argwhere(np.isfinite(grid)):
        dark = norm(shown[row, column]) < 0.6
        said = f"{shown[row, column]:.3g}" if shown[row, column] < 1000 else ""
        axis.text(
            column, row, said, ha="center", va="center", size=6, color="white" if dark else "black"
        )
    row, column = np.unravel_index(int(np.nanargmin(shown)), shown.shape)
    corner = (float(column) - 0.5, float(row) - 0.5)
    axis.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#D55E00", linewidth=1.6))
    return image, unit
