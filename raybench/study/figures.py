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

from raybench.report.formats import separated
from raybench.report.plots import STYLE
from raybench.study.formulas import KNOWN, TOP_1
from raybench.study.summary import top_1_savings, top_k_energy

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
    "natural dithering, entropy coded": (COLOURS[4], "--", "D"),
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
        savings = top_1_savings()
        both = pd.concat((energy, savings), ignore_index=True)
        drawings["top_k_against_rand_k"] = (lambda e: residual(e, savings), energy, both)
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
        path.write_text(separated(shown), encoding="utf-8")
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
    looks, least = _looks(list(rows["curve"].unique())), float(rows["error_best"].min())
    bits = rows["wire_per_coordinate"]
    narrow = bits.max() < 100 * bits.min()  # too few decades for ticks of whole ones alone
    for j, (axis, family) in enumerate(zip(axes, families, strict=False)):
        part = rows[rows["family"] == family]
        for curve, (colour, dash, marker) in looks.items():
            if curve not in set(part["curve"]):
                continue
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
        axis.set_ylim(max(3e-6, min(least / 2, 0.1)), 1.4)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        if narrow:
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
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


def _looks(curves: list[str]) -> dict[str, tuple[str, str, str]]:
    """Return colour, line and marker of each curve: its own, or for operators asked for by name, points."""
    known = {name: look for name, look in LINES.items() if name in curves}
    others = [name for name in curves if name not in LINES]
    marks = [(colour, "", marker) for marker in "osD^vPX*h" for colour in COLOURS]
    return known | dict(zip(others, (m for m in marks if m not in known.values()), strict=False))


def residual(energy: pd.DataFrame, savings: pd.DataFrame | None = None) -> Figure:
    """Return the figure of Top-k beside Rand-k: what it leaves of x by k/d, what Top-1 saves by d.

    Points are measured, lines are the formulas of order statistics (dashes join points without one).
    """
    wide = savings is not None
    canvas = Figure(figsize=(7.2 if wide else 4.2, 2.9), layout="constrained")
    FigureCanvasAgg(canvas)
    panels = canvas.subplots(1, 2 if wide else 1, squeeze=False).flatten()
    families = list(dict.fromkeys(energy["family"]))
    colours = dict(zip(families, COLOURS, strict=False))
    axis = panels[0]
    shares = np.geomspace(energy["share"].min(), 1, 200)
    (line,) = axis.plot(shares, 1 - shares, color="#888888", ls=":")
    handles = {"Rand-k, any vector": line}
    for family, part in energy.groupby("family", sort=False):
        curve = None
        if family in KNOWN:
            curve = [KNOWN[str(family)](10**6, max(1, round(10**6 * s))) for s in shares]
        at = (part["share"], part["error"])
        handles[str(family)] = _points(axis, at, colours[str(family)], shares, curve)
    axis.set_xlabel("share of coordinates kept, k/d")
    axis.set_ylabel(r"Top-k: $\|C(x)-x\|^2\,/\,\|x\|^2$")
    axis.set_ylim(0, 1.03)
    if savings is not None:
        axis = panels[1]
        dims = np.unique(np.geomspace(savings["d"].min(), savings["d"].max(), 40).round())
        for family, part in savings.groupby("family", sort=False):
            curve = None
            if family in TOP_1:
                curve = [TOP_1[str(family)](int(d)) for d in dims]
            at = (part["d"], part["saving"])
            _points(axis, at, colours[str(family)], dims, curve)
        axis.axhline(1, color="#888888", ls=":")
        axis.set_yscale("log")
        axis.set_xlabel("d")
        axis.set_ylabel("Top-1 keeps, times Rand-1")
    for axis in panels:
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    canvas.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=5 if wide else 3,
        frameon=False,
        columnspacing=1.3,
    )
    return canvas


def _points(axis: Any, at: tuple[Any, Any], colour: str, grid: Any, curve: Any) -> Any:
    (points,) = axis.plot(*at, "o", ms=3.6, color=colour)
    if curve is None:
        axis.plot(*at, color=colour, lw=0.7, ls=(0, (2, 2)))
    else:
        axis.plot(grid, curve, color=colour, lw=1)
    return points
