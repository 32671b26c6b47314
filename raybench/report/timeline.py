"""The timeline of simulated clients: who computes, sends, waits, and computes what is thrown away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
import pandas as pd

from raybench.report import words
from raybench.report.plots import SIZES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {
    0: ("computes", "#0072b2", ""),
    2: ("computes what is thrown away", "#bbbbbb", "////"),
    1: ("sends", "#d55e00", ""),
}
PANEL = 0.16  # inches of a client


def timeline(spans: pd.DataFrame, width: float = SIZES["text"]) -> Figure:
    """Return a panel per method: a line per client, the fastest below; what is white waits.

    spans: with columns panel, client, kind (of ``raybench.clock.clients``), start and end in seconds.
    """
    import matplotlib.pyplot as plt

    panels = list(dict.fromkeys(spans["panel"]))
    clients = int(spans["client"].max()) + 1
    end = float(spans["end"].max())
    unit, name = words.time_unit_of(end)
    busy = spans[spans["kind"] == 0]
    order = (busy["end"] - busy["start"]).groupby(busy["client"]).median().sort_values().index
    place = {client: j for j, client in enumerate(order)}
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    height = rows * (0.55 + PANEL * min(clients, 16)) + 0.6
    figure, axes = plt.subplots(
        rows, columns, figsize=(width, height), sharex=True, sharey=True, squeeze=False
    )
    for axis, panel in zip(axes.flat, panels, strict=False):
        mine = spans[spans["panel"] == panel]
        for kind, (_, colour, hatch) in KINDS.items():
            for client, part in mine[mine["kind"] == kind].groupby("client"):
                bars = list(
                    zip(part["start"] / unit, (part["end"] - part["start"]) / unit, strict=True)
                )
                axis.broken_barh(
                    bars, (place.get(client, client) - 0.4, 0.8), facecolor=colour, hatch=hatch,
                    edgecolor="white", linewidth=0.4,
                )  # fmt: skip
        axis.set_title(panel, loc="left", fontsize="medium")
        axis.set_xlim(0, end / unit)
        axis.set_yticks([])
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel(f"Simulated time ({name})")
    for axis in axes[:, 0]:
        axis.set_ylabel("Clients, fastest below")
    handles = [
        mpl.patches.Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=label)
        for label, colour, hatch in KINDS.values()
    ]
    handles.append(mpl.patches.Patch(facecolor="white", edgecolor="#888888", label="waits"))
    figure.legend(handles=handles, loc="lower center", ncols=4, frameon=False)
    figure.tight_layout(rect=(0, 0.35 / height, 1, 1))
    return figure
