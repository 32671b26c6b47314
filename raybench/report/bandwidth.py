"""The chart of which method is fastest at which bandwidth, beside the figures of every report."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from raybench.analysis import Frames, Network, by_bandwidth
from raybench.report import words
from raybench.report.content import MOST_SERIES, Figure, Look, all_methods, build, looks


def every(found: Frames) -> list[Figure]:
    """Return the figures of a report: those of ``build``, and with a link the chart of bandwidths."""
    figures = build(found)
    chart = None if found.link is None else best_by_bandwidth(found, found.link)
    return figures + ([chart] if chart is not None else [])


def best_by_bandwidth(found: Frames, network: Network) -> Figure | None:
    """Return the chart of simulated seconds to the target of every method, None where none reaches it.

    Each method has, at each bandwidth, the K and step that are best there; thick where no method is faster.
    """
    best = found.tuned("method")
    if best.empty:
        return None
    targets = dict(best.drop_duplicates("facet")[["facet", "target"]].itertuples(index=False))
    table = by_bandwidth(
        found.curves,
        found.cells,
        network,
        targets,
        found.metric,
        tuning_seeds=found.tuning_seeds or None,
    )
    table = table[np.isfinite(table["seconds"].astype(float))]
    if table.empty:
        return None
    least = table.groupby("method")["seconds"].min().sort_values(kind="stable")
    plain = table.drop_duplicates("method").set_index("method")["dense"].astype(bool)
    drawn = [m for i, m in enumerate(least.index) if i < MOST_SERIES or plain[m]]
    left = sorted(set(least.index) - set(drawn))
    table = table[table["method"].isin(drawn)]
    heads = best[best["method"].isin(drawn)].drop_duplicates("method")
    style = looks(heads.assign(series=heads["method"], k=np.nan), all_methods(found))
    data = table.rename(columns={"facet": "panel", "bandwidth": "x", "seconds": "y"})
    data = data.drop(columns="series").assign(best=table["series"], series=table["method"])
    name = words.COLUMNS[found.metric]
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
        looks={m: _look(style[m], m, bool(plain[m])) for m in drawn},
        panels=sorted(found.cells["facet"].unique()),
        band=_caption(network, goal, table, plain),
        x_unit=1e9,
        log_x=True,
        x_from=float(table["bandwidth"].min()),
        log_y=True,
        marked="fastest",
        notes=[f"not in the chart of bandwidths: {', '.join(left)}"] if left else [],
    )


def _look(look: Look, method: str, plain: bool) -> Look:
    return replace(look, label=f"{method} (dense messages)" if plain else method)


def _caption(network: Network, goal: str, table: pd.DataFrame, plain: pd.Series) -> str:
    """Return what the chart shows and assumes."""
    latency = words.seconds(network.link.latency)
    said = f"simulated: {network.form}, latency {latency}, to {goal}; gradients and operators as measured, "
    said += "each client on a machine of its own; K and step are the best at each bandwidth; "
    said += "thick: no method is faster"
    if not plain.any():
        said += "; no method with dense messages reaches the target"
    spread = words.band(int(n) for n in table["seeds"])
    return f"{said}; {spread}" if spread else said
