"""The figures of the study: error against bits a coordinate, and what Top-k leaves behind."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from raybench.report.plots import STYLE
from raybench.study.formulas import KNOWN
from raybench.study.summary import top_k_energy

COLOURS = ("#0B559F", "#D95F02", "#1B9E77", "#7A4EA8", "#B8860B", "#C2185B", "#4D4D4D", "#2CA9C4")
LINES: dict[str, tuple[str, str, str]] = {  # curve: colour, line, marker
    "Top-k": (COLOURS[0], "-", "o"),
    "Top-k + dithering": (COLOURS[7], "--", "o"),
    "Top-k + natural": (COLOURS[2], "-", "s"),
    "Top-k + natural dithering": (COLOURS[2], "--", "s"),
    "Rand-k": (COLOURS[6], ":", "v"),
    "dithering": (COLOURS[3], "-", "^"),
    "QSGD, buckets": (COLOURS[3], "--", "^"),
    "natural dithering": (COLOURS[4], "-", "D"),
    "SVD": (COLOURS[6], "-.", "x"),
    "scaled sign": (COLOURS[5], "", "*"),
    "1-bit, two means": (COLOURS[5], "", "P"),
    "TernGrad": (COLOURS[3], "", "X"),
    "natural": (COLOURS[4], "", "h"),
    "NF4": (COLOURS[1], "", "o"),
    "MXFP4": (COLOURS[1], "", "s"),
    "MXFP8": (COLOURS[1], "", "D"),
    "int8": (COLOURS[1], "", "^"),
}
COLUMNS = 4


def figures(rows: pd.DataFrame, out: str | Path) -> list[Path]:
    """Draw the study's rows into ``out``; return the paths: per figure a PNG, a PDF and its CSV."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    energy = top_k_energy(rows)
    keep = ["family", "curve", "operator", "wire_per_coordinate", "error_best", "error_best_se"]
    drawings: dict[str, tuple[Any, pd.DataFrame, pd.DataFrame]] = {
        "error_against_bits": (against_bits, rows, rows[keep])
    }
    if len(energy):
        drawings["top_k_residual"] = (residual, energy, energy)
    paths = []
    for name, (draw, data, shown) in drawings.items():
        with mpl.rc_context(STYLE):
            canvas = draw(data)
            for kind in ("png", "pdf"):
                path = folder / f"{name}.{kind}"
                plain = {"Software": None} if kind == "png" else {"CreationDate": None}
                canvas.savefig(path, metadata=plain)
                paths.append(path)
        path = folder / f"{name}.csv"
        shown.to_csv(path, index=False)
        paths.append(path)
    return paths


def against_bits(rows: pd.DataFrame) -> Figure:
    """Return the figure of error (best factor) against bits a coordinate, one panel per family."""
    families = list(rows["family"].unique())
    columns = min(COLUMNS, len(families))
    lines = math.ceil(len(families) / columns)
    canvas = Figure(figsize=(2.35 * columns + 0.4, 2.15 * lines + 0.9), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).flatten()
    handles: dict[str, Any] = {}
    for j, (axis, family) in enumerate(zip(axes, families, strict=False)):
        part = rows[rows["family"] == family]
        for curve in [c for c in LINES if c in set(part["curve"])]:
            colour, dash, marker = LINES[curve]
            line = part[part["curve"] == curve].sort_values("wire_per_coordinate")
            (handles[curve],) = axis.plot(
                line["wire_per_coordinate"],
                line["error_best"].clip(lower=1e-7),
                color=colour,
                ls=dash or "none",
                marker=marker,
                ms=3.4 if dash else 5,
                lw=1.1,
                mew=0.4 if marker not in "x" else 1,
                mec="white" if marker != "x" else colour,
                zorder=2 if dash else 3,
            )
        axis.set_title(family, pad=4)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_ylim(3e-6, 1.4)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        axis.yaxis.set_major_locator(LogLocator(numticks=8))
        for side in (axis.xaxis, axis.yaxis):
            side.set_minor_locator(NullLocator())
        if j + columns >= len(families):
            axis.set_xlabel("bits a coordinate, as packed")
        if j % columns == 0:
            axis.set_ylabel(r"$\min_c\,\|cC(x)-x\|^2\,/\,\|x\|^2$")
    for axis in axes[len(families) :]:
        axis.set_visible(False)
    canvas.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=min(6, len(handles)),
        frameon=False,
        handlelength=2.4,
        columnspacing=1.3,
    )
    return canvas


def residual(energy: pd.DataFrame) -> Figure:
    """Return the figure of what Top-k leaves of x: measured points on the formulas' curves."""
    canvas = Figure(figsize=(4.4, 3.1), layout="constrained")
    FigureCanvasAgg(canvas)
    axis = canvas.subplots()
    shares = np.geomspace(energy["share"].min(), 1, 200)
    axis.plot(shares, 1 - shares, color="#888888", ls=":", label="Rand-k, any vector: 1 − k/d")
    for colour, (family, part) in zip(
        COLOURS * 2, energy.groupby("family", sort=False), strict=False
    ):
        axis.plot(part["share"], part["error"], "o", ms=3.6, color=colour, label=family)
        if family in KNOWN:
            d = 10**6
            curve = [KNOWN[str(family)](d, max(1, round(d * s))) for s in shares]
            axis.plot(shares, curve, color=colour, lw=1)
        else:
            axis.plot(part["share"], part["error"], color=colour, lw=0.7, ls=(0, (2, 2)))
    axis.set_xscale("log")
    axis.set_ylim(0, 1.03)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.3g}"))
    axis.set_xlabel("share of coordinates kept, k/d")
    axis.set_ylabel(r"$\|C(x)-x\|^2\,/\,\|x\|^2$ of Top-k")
    axis.legend(frameon=False, fontsize=7, loc="lower left")
    return canvas
