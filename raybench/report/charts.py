"""Figures of rankings: performance profiles, costs after some trials, the fastest by bandwidth, an audit's ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from raybench.analysis import Frames, LinkNetwork, by_bandwidth, profile, trials
from raybench.analysis.frames import frames_where
from raybench.analysis.rankings import DRAWS
from raybench.analysis.readings import FACTORS, Audit
from raybench.core.errors import InputError, count
from raybench.report import words
from raybench.report.content import (
    MOST_SERIES,
    Figure,
    all_methods,
    build,
    looks_of_methods,
    with_targets,
)
from raybench.report.rankings import filled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

MARGIN = 1.3  # by how much the axis of profiles goes on beyond the largest ratio
ROOM = 2.0  # how far above the largest finite cost the figure of trials ends
MOST_EVEN = 40  # more trials read best on a logarithmic axis
MISSED = "not reached"
BEHIND = (
    *("panel", "method", "series", "x", "y", "low", "high", "grid", "seeds", "reach"),
    *("cost_low", "cost_high", "coverage", "expected", "target"),
)
"""The rows behind the figure of trials."""


def profiles(results: Frames, methods: Sequence[str], every: Sequence[str]) -> Figure:
    """Return the figure of ``analysis.profile`` of some methods. every: ``all_methods`` of the results.

    Raises InputError where no method reaches the target on any problem.
    """
    table = profile(results, where={"method": list(methods)})
    if table.empty or not (table["share"] > 0).any():
        raise InputError.of("plot", "no method reaches the target", "another --target")
    # of few instances the intervals cover all: they are in the rows behind the figure, and not drawn
    names = {"tau": "x", "share": "y", "low": "interval_low", "high": "interval_high"}
    data = table.rename(columns=names).assign(series=table["method"], panel="")
    data = data.assign(low=data["y"], high=data["y"])
    end = MARGIN * float(data["x"].max())  # so that the last step is seen
    last = data.groupby("series", sort=False).tail(1).assign(x=end)
    data = pd.concat([data, last]).sort_values(["series", "x"], kind="stable", ignore_index=True)
    instances = int(table["instances"].iloc[0])
    goals = sorted({float(t) for t in results.tuned("method")["target"].dropna()})
    goal = f"≤ {goals[0]:g}" if len(goals) == 1 else "≤ the target of its problem"
    text = f"{words.COLUMNS[results.metric]} {goal}; {count(instances, 'pair')} of problem and seed"
    return Figure(
        name="profile",
        x="tau",
        y="share",
        title="Performance profiles",
        x_label="Cost ÷ that of the cheapest method",
        y_label="Share of problems and seeds",
        data=data,
        looks=looks_of_methods(results.cells, methods, every),
        panels=[""],
        band="; ".join([text, *filled(frames_where(results, {"method": list(methods)}), "method")]),
        log_x=end > 4,
        x_from=1.0,
        log_y=False,
        stairs=True,
    )


def against_trials(results: Frames, cells: pd.DataFrame, every: Sequence[str], x: str) -> Figure:
    """Return the figure of ``analysis.trials``: what the target costs against the number of trials, of some cells' methods.

    every: ``all_methods`` of the results. Raises InputError where no method reaches the target in half of all draws.
    """
    table = trials(results, where={"method": sorted(cells["method"].unique())}, x=x)
    finite = table["cost"].replace(np.inf, np.nan)
    if not finite.notna().any():
        raise InputError.of("plot", "no method reaches the target", "another --target")
    grids = table.groupby("method")["grid"].max()
    plain = looks_of_methods(results.cells, set(table["method"]), every)
    style = {
        name: replace(look, label=f"{name}, {count(int(grids[name]), 'cell')}")
        for name, look in plain.items()
    }
    data = table.rename(columns={"facet": "panel", "trials": "x", "cost": "y"})
    data = data.assign(series=data["method"], low=data["draws_low"], high=data["draws_high"])
    never = sorted(set(style) - set(table.loc[finite.notna(), "method"]))
    top = ROOM * float(table[["cost", "draws_high"]].replace(np.inf, np.nan).max().max())
    unit = words.spelling(x)[2]
    size, name = unit(float(finite.min())) if unit is not None else (1.0, "")
    data = data[~data["series"].isin(never)]
    goals = table["target"].dropna().unique()
    goal = f"≤ {goals[0]:g}" if len(goals) == 1 else "≤ its target"
    tail = words.percent((1 - DRAWS) / 2)
    lines = [
        f"median over draws and seeds; bands: {words.percent(DRAWS)} of them, open above where more than {tail} miss the target",
        f"missed in half of the draws or more: {', '.join(never)}" if never else "",
    ]
    return Figure(
        name="trials",
        x="trials",
        y=x,
        title="What the target costs after some random trials of the grid",
        x_label="Random trials of the method's own grid",
        y_label=f"{words.axis(x, name)}\nto {words.COLUMNS[results.metric]} {goal}",
        data=data[[*BEHIND]],
        looks=style,
        panels=sorted(table["facet"].unique()),
        band="; ".join(filter(None, lines)),
        y_unit=size,
        log_x=bool(grids.max() > MOST_EVEN),
        y_to=top,
    )


def every(results: Frames, extras: bool = False) -> list[Figure]:
    """Return the figures of ``build``, and with a link the chart of bandwidths."""
    figures = [with_targets(f, results) for f in build(results, extras)]
    chart = None if results.link is None else best_by_bandwidth(results, results.link)
    return figures + ([chart] if chart is not None else [])


def best_by_bandwidth(results: Frames, network: LinkNetwork) -> Figure | None:
    """Return the chart of simulated seconds to the target of every method, None where none reaches it.

    Each method has, at each bandwidth, the K and step that are best there; dots where no method is faster.
    """
    best = results.tuned("method")
    if best.empty:
        return None
    targets = dict(best.drop_duplicates("facet")[["facet", "target"]].itertuples(index=False))
    table = by_bandwidth(
        results.curves,
        results.cells,
        network,
        targets,
        results.metric,
        tuning_seeds=results.tuning_seeds or None,
    )
    table = table[np.isfinite(table["seconds"].astype(float))]
    if table.empty:
        return None
    least = table.groupby("method")["seconds"].min().sort_values(kind="stable")
    plain = table.drop_duplicates("method").set_index("method")["dense"].astype(bool)
    drawn = [m for i, m in enumerate(least.index) if i < MOST_SERIES or plain[m]]
    left = sorted(set(least.index) - set(drawn))
    table = table[table["method"].isin(drawn)]
    style = looks_of_methods(best, drawn, all_methods(results))
    data = table.rename(columns={"facet": "panel", "bandwidth": "x", "seconds": "y"})
    data = data.drop(columns="series").assign(best=table["series"], series=table["method"])
    ends = table[["seconds", "high"]].to_numpy(float)
    name = words.COLUMNS[results.metric]
    goals = sorted(set(table["target"]))
    goal = f"{name} ≤ {goals[0]:g}" if len(goals) == 1 else f"the target of {name} of its problem"
    return Figure(
        name="seconds_to_target_vs_bandwidth",
        x="bandwidth",
        y="seconds_simulated",
        title="Simulated seconds to the target against bandwidth",
        x_label="Bandwidth of a link (Gbit/s)",
        y_label="Simulated time to target (s)",
        data=data.reset_index(drop=True),
        looks={
            m: replace(style[m], label=f"{m} (dense messages)") if plain[m] else style[m]
            for m in drawn
        },
        panels=sorted(results.cells["facet"].unique()),
        band=_caption(network, goal, table, plain),
        x_unit=1e9,
        log_x=True,
        x_from=float(table["bandwidth"].min()),
        log_y=True,
        y_to=1.2 * ends[np.isfinite(ends)].max() if np.isinf(ends).any() else 0.0,
        marked="fastest",
        notes=[f"not in the chart of bandwidths: {', '.join(left)}"] if left else [],
    )


def _caption(network: LinkNetwork, goal: str, table: pd.DataFrame, plain: pd.Series) -> str:
    """Return what the chart shows and assumes."""
    latency = words.seconds(network.link.latency)
    text = f"simulated: {network.form}, latency {latency}, to {goal}; gradients and compressors as measured, "
    text += "each client on a machine of its own; K and step are the best at each bandwidth; "
    text += "dots: no method is faster"
    if not plain.any():
        text += "; no method with dense messages reaches the target"
    spread = words.band(int(n) for n in table["seeds"])
    text = f"{text}; {spread}" if spread else text
    return text + "; bands that end at the top go on to infinity" * bool(
        np.isinf(table["high"]).any()
    )


def shares(readings: pd.DataFrame) -> pd.DataFrame:
    """Return per facet and method (rows) the share of the readings in which it has each rank (columns).

    The last column is the share in which it misses the target. Rows are ordered by mean rank.
    """
    rank = readings["rank"].map(lambda r: MISSED if math.isnan(r) else int(r))
    by_method = readings.assign(rank=rank).groupby(["facet", "method"])["rank"]
    table = by_method.value_counts(normalize=True).unstack(fill_value=0.0)
    ranks = sorted(c for c in table if c != MISSED)
    place = readings["rank"].fillna(len(ranks) + 1)
    mean = readings.assign(rank=place).groupby(["facet", "method"])["rank"].mean()
    table = table.reindex(columns=[*ranks, MISSED], fill_value=0.0).assign(mean=mean)
    return table.sort_values(["facet", "mean"], kind="stable").drop(columns="mean")


def audit_figure(results: Audit) -> Canvas:
    """Return the figure: a panel per problem, a row per method, the share of readings in each rank.

    The rank in the folder's own reading is framed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    table = shares(results.readings)
    facets = list(dict.fromkeys(table.index.get_level_values("facet")))
    rows = [len(table.loc[facet]) for facet in facets]
    widest = max(len(name) for name in table.index.get_level_values("method"))
    width = 0.09 * widest + 0.55 * len(table.columns) + 0.4
    height = 0.27 * sum(rows) + 0.75 * len(facets) + 0.35
    canvas = Canvas(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots(len(facets), 1, squeeze=False, gridspec_kw={"height_ratios": rows})
    ranks = results.readings[results.readings["own"]].set_index(["facet", "method"])["rank"]
    for axis, facet in zip(axes.flatten(), facets, strict=True):
        _matrix(axis, table.loc[facet], ranks.get(facet, pd.Series(dtype=float)))
        axis.set_title(facet, pad=4)
    total = len(results.readings.drop_duplicates([*FACTORS]))
    text = f"Rank by bits to the target: % of {total} readings; framed: as the folder is read"
    canvas.supxlabel(text, fontsize=7.5)
    return canvas


def _matrix(axis: Axes, table: pd.DataFrame, shares: pd.Series) -> None:
    from matplotlib.patches import Rectangle

    values = 100 * table.to_numpy(float)
    axis.imshow(values, cmap="Blues", vmin=0, vmax=100, aspect="auto")
    axis.grid(False)
    for (i, j), value in np.ndenumerate(values):
        if value:
            colour = "white" if value > 55 else "black"
            axis.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=7.5, color=colour)
    for i, method in enumerate(table.index):
        rank = shares.get(method, math.nan)
        at = len(table.columns) - 1 if math.isnan(rank) else list(table.columns).index(int(rank))
        if method in shares.index:
            axis.add_patch(Rectangle((at - 0.5, i - 0.5), 1, 1, fill=False, ec="#D55E00", lw=1.4))
    axis.set_yticks(range(len(table)), table.index)
    axis.set_xticks(range(len(table.columns)), [str(c).replace(" ", "\n") for c in table.columns])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
