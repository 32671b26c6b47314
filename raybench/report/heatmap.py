"""Heat maps: what the target costs over K and one more number of a method, each pair at its best step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle

from raybench.analysis import Frames, candidates, configs, first_reached
from raybench.core.errors import InputError
from raybench.report import words

FEWEST_VALUES = 3  # with fewer values of K or of the number, lines show as much as a map
PANELS_PER_LINE = 3
METRICS = {
    "grad_norm_sq": r"$\Vert\nabla f\Vert^2 \leq$",
    "loss": r"$f \leq$",
    "test_loss": r"test loss $\leq$",
}


@dataclass(frozen=True)
class HeatMap:
    """One figure: a panel per problem, K downwards, the number across.

    data: columns facet, k, value, cost (bits up per client to the target; inf: not reached; NaN: no
    step ended ok), step_multiple, step_size, target, best (whether tables choose it); one row per panel and pair.
    """

    name: str
    title: str
    number: str
    metric: str
    data: pd.DataFrame


def heatmaps(results: Frames) -> list[HeatMap]:
    """Return a map per method whose cells vary K and exactly one more number.

    The target is that at which the sweep stopped its cells if it did, else the tables' own.
    """
    goal = (results.sweep.get("stop") or {}).get(results.metric)
    target = float(goal) if isinstance(goal, int | float) else None
    cells = results.cells[results.cells["k"].notna()]
    maps = []
    for (algorithm, compressor), part in cells.groupby(["algorithm", "compressor"]):
        number = _number(part)
        best = results.tuned("series", target, "bits_up")
        if number is None or best.empty:
            continue
        values = _numbers(part)[number]
        pairs = part.assign(value=values)[["facet", "series", "k", "value"]].drop_duplicates()
        data = pairs.merge(best.drop(columns="k"), on=["facet", "series"])
        name, key = f"bits_to_target_{algorithm}_{compressor}", number.partition(".")[2]
        title = str(part["method"].iloc[0]).partition(" (")[0]
        maps.append(HeatMap(name, title, key, results.metric, _rows(data)))
    return maps


def by_step(results: Frames, cells: pd.DataFrame) -> HeatMap:
    """Return a map of K and step, a panel for each method and problem. cells: those that ran, of these methods.

    Raises InputError where no method has a K.
    """
    cells = cells[cells["k"].notna()]
    if cells.empty:
        raise InputError.of("plot", "no method has a K", "methods with one, or another kind")
    rows, goals = results.curves_source.columns([results.cost, results.metric]), results.goals
    pieces = []
    for facet, part in cells.groupby("facet", sort=False):
        goal = goals if isinstance(goals, float) else goals[str(facet)]
        table = candidates(rows, part, goal, "method", results.metric, results.cost)
        pieces.append(table.assign(target=goal))
    data = pd.concat(pieces, ignore_index=True)
    multiples = bool(data["step_multiple"].notna().any())
    data["value"] = data["step_multiple" if multiples else "step_size"]
    data["method"] += data["facet"].map(lambda facet: f", {facet}" if facet else "")
    number = r"\gamma\,/\,\gamma_{\rm theory}" if multiples else r"\gamma"
    data = _rows(data.assign(facet=data["method"]))
    return HeatMap("target_vs_k_and_step", "", number, results.metric, data)


def _rows(data: pd.DataFrame) -> pd.DataFrame:
    best, cost = first_reached(data, ["facet"]), data["cost"].where(data["eligible"])
    names = ["facet", "k", "value", "cost", "step_multiple", "step_size", "target", "best"]
    data = data.assign(best=best, cost=cost)[names]
    return data.sort_values(["facet", "k", "value"], ignore_index=True)


def _numbers(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers among the parameters of method and compressor, ``algorithm.z``; same rows."""
    flat = configs(cells)
    names = [n for n in flat if n.startswith(("algorithm.", "compressor.")) and n != "compressor.k"]
    return flat[names].map(lambda v: float(v) if type(v) in (int, float) else np.nan)


def _number(cells: pd.DataFrame) -> str | None:
    """Return the one parameter that takes several numbers at several K; None if there is none or two."""
    results = []
    for name, values in _numbers(cells).items():
        spread = values.groupby(cells["k"]).nunique()
        if values.notna().all() and (spread >= FEWEST_VALUES).sum() >= FEWEST_VALUES:
            results.append(str(name))
    return results[0] if len(results) == 1 else None


def draw(figure: HeatMap) -> Canvas:
    """Return the matplotlib figure; a frame marks the pair of a panel that tables choose, a dash one that failed.

    Colours are logarithmic, each panel from its cheapest pair to its dearest.
    """
    panels = {str(facet): rows for facet, rows in figure.data.groupby("facet")}
    good = figure.data["cost"][np.isfinite(figure.data["cost"])]
    unit, name = words.unit_of(float(good.min()) if len(good) else 1.0)
    columns = min(PANELS_PER_LINE, len(panels))
    rows = math.ceil(len(panels) / columns)
    wide, high = (max(p[c].nunique() for p in panels.values()) for c in ("value", "k"))
    size = (columns * (0.36 * wide + 0.5), rows * (0.2 * high + 0.75) + 0.25)
    canvas = Canvas(figsize=size, layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots(rows, columns, squeeze=False).flatten()
    for axis, (facet, panel) in zip(axes, panels.items(), strict=False):
        _panel(axis, panel, unit)
        axis.set_title(facet, pad=4)
        axis.set_xlabel(f"${figure.number}$")
        axis.set_ylabel("$K$")
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    goal = " or ".join(f"{v:.3g}" for v in sorted(figure.data["target"].unique()))
    what = METRICS.get(figure.metric, figure.metric)
    title = f"{figure.title}: " if figure.title else ""
    canvas.suptitle(f"{title}{name} up per client to {what} {goal}", fontsize=9)
    return canvas


def _panel(axis: Axes, cells: pd.DataFrame, unit: float) -> None:
    ks, values = (sorted(cells[c].unique()) for c in ("k", "value"))
    cost = cells.set_index(["k", "value"])["cost"] / unit
    grid = np.array([[cost.get((k, v), np.nan) for v in values] for k in ks], float)
    reached = np.isfinite(grid)
    axis.grid(False)
    axis.set_xticks(range(len(values)), words.ticks(values, "$2^{{{}}}$"), rotation=60)
    axis.set_yticks(range(len(ks)), [f"{k:g}" for k in ks])
    axis.set_xlim(-0.5, len(values) - 0.5)
    axis.set_ylim(len(ks) - 0.5, -0.5)
    middle: dict[str, Any] = {"ha": "center", "va": "center"}
    for row, column in np.argwhere(~reached):
        axis.text(column, row, "–", color="#777777", **middle)
    if not reached.any():
        return
    low, high = float(grid[reached].min()), float(grid[reached].max())
    norm = LogNorm(low, max(high, 1.01 * low))
    axis.imshow(np.where(reached, grid, np.nan), norm=norm, cmap="viridis", aspect="auto")
    for row, column in np.argwhere(reached):
        value = grid[row, column]
        ink = "white" if norm(value) < 0.6 else "black"
        number = f"{value:.3g}" if value < 999.5 else f"{value:.0f}"
        axis.text(column, row, number, size=6, color=ink, **middle)
    for k, value in cells.loc[cells["best"], ["k", "value"]].itertuples(index=False):
        corner = (values.index(value) - 0.5, ks.index(k) - 0.5)
        axis.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#D55E00", linewidth=1.6))
