"""Figures for a paper: PNG, PDF and the CSV behind each, drawn with matplotlib."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from scipy.optimize import isotonic_regression

from raybench.analysis import Frames
from raybench.core.errors import InputError, nearest
from raybench.core.safe_files import replacement
from raybench.report import heatmap, words
from raybench.report.charts import every
from raybench.report.content import Figure, alone, open_frames, place_of, shown
from raybench.report.formats import separated

STYLE: dict[Any, Any] = {
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "savefig.dpi": 300,
}
DASH: dict[str, str | tuple[int, tuple[float, ...]]] = {
    "solid": "-",
    "dash": (0, (5, 1.8)),
    "dot": (0, (1.2, 1.4)),
    "dashdot": (0, (5, 1.5, 1.2, 1.5)),
    "longdash": (0, (9, 2)),
    "longdashdot": (0, (9, 1.5, 1.2, 1.5)),
}
LEGEND: dict[str, Any] = {
    **{"loc": "outside lower center", "frameon": False, "title_fontsize": 7.5},
    **{"handlelength": 2.6, "columnspacing": 1.4},
}
DATED = {"png": "Software", "pdf": "CreationDate"}  # others: Date
"""What of the metadata of each format differs from run to run: it is left out."""
PANELS_PER_LINE = 3
WHOLE = ("trials", "round")  # columns without anything between two whole numbers
BESIDE = 0.03  # of the width of a panel, from its right edge to the names
APART = 1.15  # heights of a line of text from one name to the next
SMALLER = 0.9  # than the font of the legend
LEADER = {"arrowstyle": "-", "lw": 0.6, "ls": ":", "shrinkA": 0, "shrinkB": 2}
LETTERS_PER_INCH = 18  # of the line below a figure that says what lines and bands are

SIZES = {"column": 3.3, "text": 6.8, "slide": 9.0}
"""Widths in inches: a column or the text of a two-column paper, a slide."""


def figures(
    source: str | os.PathLike[str] | Frames,
    out: str | os.PathLike[str] | None = None,
    kinds: Sequence[str] = ("png", "pdf", "csv"),
    size: str | tuple[float, float] | None = None,
    style: str | os.PathLike[str] | None = None,
    label_lines: bool = False,
    **asked: Any,
) -> list[Path]:
    """Draw a results folder's figures into ``out`` (default ``<folder>/figures``); return the paths.

    Per figure a PNG (300 dpi), a PDF with embedded fonts and a CSV with the rows behind it, in
    bits, rounds and seconds. Where a method varies K and one more number, a heat map of what the
    target costs. kinds: of files, ``svg`` too. size, style: as for ``raybench.plot``. label_lines: names at the ends of
    lines instead of a legend. asked: of a folder, as for ``analysis.frames``; with a link curves against simulated
    seconds take the place of those against wall time, and a chart shows which method is fastest at which bandwidth.
    Raises InputError as that does, and for an unknown size or style.
    """
    results = open_frames(source, **asked)
    goal, figures = place_of(results.folder, "figures", out), every(results)
    paths: list[Path] = []
    with styled(style):
        for figure in figures:
            drawn = draw(figure, size_of(size), label_lines)
            paths += save(goal / figure.name, drawn, rows_behind(figure), kinds)
        for grid in heatmap.heatmaps(results):
            paths += save(goal / grid.name, heatmap.draw(grid), grid.data, kinds)
    return paths


@contextmanager
def styled(style: str | os.PathLike[str] | None) -> Iterator[None]:
    """Draw in raybench's style, with a style sheet of matplotlib's over it: a name, or the path of a file.

    Raises InputError where there is no such style.
    """
    settings: Mapping[Any, Any] = {}
    if style is not None:
        by_name = os.fspath(style) in matplotlib.style.available
        if not by_name and not Path(style).is_file():
            fix = nearest(os.fspath(style), matplotlib.style.available)
            raise InputError.of("style", f"no file or style {os.fspath(style)!r}", fix)
        try:
            settings = (
                matplotlib.style.library[os.fspath(style)]
                if by_name
                else mpl.rc_params_from_file(style, use_default_template=False)
            )
        except (ValueError, KeyError, UnicodeDecodeError) as error:
            raise InputError.of("style", f"{style}: {error}", "a file of rcParams") from error
    with mpl.rc_context(STYLE | dict(settings)):
        yield


def size_of(size: str | tuple[float, float] | None) -> tuple[float, float | None] | None:
    """Return width and height in inches, the height None where it follows from what is drawn."""
    if size is None or isinstance(size, tuple):
        return size
    if size in SIZES:
        return SIZES[size], None
    try:
        width, height = (float(part) for part in size.lower().split("x"))
    except ValueError:
        fix = f"{', '.join(SIZES)}, or inches as 3.3x2.5"
        raise InputError.of("size", f"unknown {size!r}", fix) from None
    if not (0.5 <= width <= 100 and 0.5 <= height <= 100):
        raise InputError.of("size", f"{size} is out of range", "0.5 to 100 inches")
    return width, height


def rows_behind(figure: Figure) -> pd.DataFrame:
    """Return the rows that a figure is drawn from, under the names of their columns."""
    return figure.data.rename(columns={"x": figure.x, "y": figure.y, "panel": "facet"})


def save(path: Path, canvas: Canvas, data: pd.DataFrame, kinds: Sequence[str]) -> list[Path]:
    """Write a figure as path.png, path.pdf, path.svg and the rows behind it as path.csv; return the paths."""
    paths = [Path(f"{path}.{kind}") for kind in kinds]
    path.parent.mkdir(parents=True, exist_ok=True)
    for kind, goal in zip(kinds, paths, strict=True):
        with replacement(goal) as fresh:
            if kind == "csv":
                fresh.write_text(separated(data), encoding="utf-8")
            else:
                canvas.savefig(fresh, metadata={DATED.get(kind, "Date"): None})
    return paths


def draw(
    figure: Figure, size: tuple[float, float | None] | None = None, labelled: bool = False
) -> Canvas:
    """Return the matplotlib figure: small multiples over one legend below them, or with names at the ends of lines.

    size: width and height in inches; the height may follow from the width. labelled: names instead of the legend.
    """
    panels = figure.panels or [""]
    columns = min(PANELS_PER_LINE if size is None else max(1, int(size[0] / 2)), len(panels))
    rows = math.ceil(len(panels) / columns)
    names = [n for n in figure.looks if n in set(figure.data["series"])]
    width = size[0] if size is not None else 4.4 if columns == 1 else 2.9 * columns
    # a look that several series share has one entry
    first = {figure.looks[n].label: n for n in reversed(names)}
    entries = [n for n in names if n in first.values()] if len(names) > 1 else []
    widest = max((len(figure.looks[n].label) for n in entries), default=0)
    labelled = labelled and bool(entries)
    if labelled:
        entries = []
        width += columns * widest / LETTERS_PER_INCH if size is None else 0.0
    per_line = max(1, int(width / max(1.75, widest / LETTERS_PER_INCH + 0.6)))
    text = fill(words.sentence(figure.band).replace(" %", "\u00a0%"), int(width * LETTERS_PER_INCH))
    below = 0.17 * (math.ceil(len(entries) / per_line) + len(text.splitlines()))
    below += 0.08 if below else 0.0
    each = min(0.75 * width / columns, 2.9 if columns == 1 else 2.2)
    height = each * rows + 0.2 * rows * any(panels) + below
    if size is not None and size[1] is not None:
        height = size[1]
    canvas = Canvas(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    for j, (axis, panel) in enumerate(zip(axes, panels, strict=False)):
        _panel(axis, figure, panel)
        axis.set_title(panel, pad=4)
        if j + columns >= len(panels):
            axis.set_xlabel(figure.x_label)
        if j % columns == 0:
            axis.set_ylabel(figure.y_label)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    if figure.steps and figure.data["diverged"].sum():
        _diverged(axes[: len(panels)], figure, names)
    if entries or text:
        lone = figure.data.groupby(["series", "panel"]).size().groupby("series").max() == 1
        lines = [
            Line2D([], [], color=look.colour, marker="o", ls="", ms=3.2)
            if lone[n] and not figure.steps
            else Line2D([], [], color=look.colour, ls=DASH[look.dash])
            for n in entries
            for look in [figure.looks[n]]
        ]
        texts, columns = [figure.looks[n].label for n in entries], min(per_line, len(entries))
        canvas.legend(lines, texts, ncols=max(1, columns), title=text or None, **LEGEND)
    if labelled:
        at_ends(canvas, list(axes), figure)
    if len(names) == 1 and panels == [""]:
        axes[0].set_title(figure.looks[names[0]].label, pad=4)
    return canvas


def _panel(axis: Axes, figure: Figure, name: str) -> None:
    rows = figure.data[figure.data["panel"] == name]
    parts = {str(series): part for series, part in rows.groupby("series", sort=False)}
    for series in sorted(parts, key=list(figure.looks).index):
        part, look = parts[series], figure.looks[series]
        x = part["x"].to_numpy(float) / figure.x_unit
        part = part.assign(high=figure.up_to_the_end(part["high"]))
        y, low, high = (shown(part[c] / figure.y_unit, figure.log_y) for c in ("y", "low", "high"))
        axis.plot(
            x,
            y,
            color=look.colour,
            ls=DASH[look.dash],
            marker="o",
            ms=3.2,
            markevery=None if figure.steps else alone(y),
            drawstyle="steps-post" if figure.stairs else "default",
        )
        if figure.marked:
            axis.plot(x, np.where(part[figure.marked], y, np.nan), "o", ms=2.6, color=look.colour)
        if np.nanmax(np.abs(high - low), initial=0.0) > 0:
            step: Any = "post" if figure.stairs else None
            axis.fill_between(x, low, high, color=look.colour, alpha=0.16, lw=0, step=step)
    _axes(axis, figure, rows)
    goal = figure.goals.get(name)
    if goal is not None and axis.get_ylim()[0] <= goal / figure.y_unit <= axis.get_ylim()[1]:
        axis.axhline(goal / figure.y_unit, color="#555555", lw=0.7, zorder=1.5)
        place: dict[str, Any] = {"transform": axis.get_yaxis_transform(), "va": "bottom"}
        place["bbox"] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.6}
        axis.text(0.012, goal / figure.y_unit, "target", fontsize=7, color="#555555", **place)
    if not np.isfinite(rows["y"]).any():
        message = "every cell diverged" if figure.steps else "no cell ended ok"
        axis.text(0.5, 0.5, message, transform=axis.transAxes, ha="center", color="#777777")


def _axes(axis: Axes, figure: Figure, rows: pd.DataFrame) -> None:
    if not np.isfinite(figure.data["y"]).any():
        axis.set_yticks([])
    elif figure.stairs:
        axis.set_ylim(0, 1.02)
    elif figure.log_y:
        axis.set_yscale("log")
        if figure.data[["y", "low"]].min().min() < figure.lowest:
            axis.set_ylim(bottom=figure.lowest / 2 / figure.y_unit)
        if figure.y_to:
            axis.set_ylim(top=figure.y_to / figure.y_unit)
        values = figure.data[["y", "low", "high"]].to_numpy(float)
        values = np.maximum(values[np.isfinite(values)], figure.lowest)
        _log_ticks(axis.yaxis, values / figure.y_unit)
    if figure.steps:
        axis.set_xscale("log", base=2)
        ticks = np.unique(figure.data["x"])
        ticks = ticks[:: max(1, math.ceil(len(ticks) / 6))]
        sign = "×" if figure.x == "step_multiple" else ""
        axis.set_xticks(ticks, words.ticks(ticks, "$2^{{{}}}$", sign))
        axis.xaxis.set_minor_locator(NullLocator())
    elif figure.log_x:
        axis.set_xscale("log")
        axis.set_xlim(left=figure.x_from / figure.x_unit)
        if figure.marked:
            axis.set_xlim(right=figure.data["x"].max() / figure.x_unit)
        at = np.unique(figure.data["x"]) / figure.x_unit
        if figure.x_kind:  # texts with a unit are wide
            spell = words.SPELLED[figure.x_kind]
            axis.xaxis.set_major_locator(LogLocator(numticks=4))
            axis.xaxis.set_major_formatter(FuncFormatter(lambda v, _: spell(v)))
        elif figure.x == "k":
            axis.set_xticks(at, [f"{k:g}" for k in at])
            axis.xaxis.set_minor_locator(NullLocator())
        else:
            _log_ticks(axis.xaxis, np.array([axis.get_xlim()[0], at.max()]))
    elif len(rows):
        axis.set_xlim(left=0)
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=figure.x in WHOLE))
    else:
        axis.set_xticks([])


def _log_ticks(side: Axis, values: np.ndarray) -> None:
    """Put ticks at powers of ten; below two of these at 1, 2 and 5 times a power, and within one at round numbers."""
    span = values.max() / values.min()
    side.set_minor_locator(NullLocator())
    side.set_major_locator(LogLocator(numticks=7))
    if span < 100:
        few = MaxNLocator(5) if span < 8 else LogLocator(subs=(1.0, 2.0, 5.0), numticks=12)
        side.set_major_locator(few)
        side.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))


def _diverged(axes: np.ndarray, figure: Figure, names: list[str]) -> None:
    """Mark the steps at which cells diverged in a strip above the data, a row per series."""
    ends = figure.data[figure.data["diverged"] > 0]
    hit = [name for name in names if name in set(ends["series"])]
    strip = 0.05 * len(hit) + 0.03  # share of the panel's height
    first = axes[0]
    if len(first.get_yticks()):
        ticks = [t for t in first.get_yticks() if first.get_ylim()[0] <= t <= first.get_ylim()[1]]
        to, back = first.transScale.transform, first.transScale.inverted().transform
        low, high = (to((1, end))[1] for end in first.get_ylim())
        first.set_ylim(top=back((0, low + (high - low) / (1 - strip)))[1])
        first.set_yticks(ticks)
    for axis, panel in zip(axes, figure.panels or [""], strict=True):
        shade = Rectangle((0, 1 - strip), 1, strip, transform=axis.transAxes, color="#F3F3F3", lw=0)
        axis.add_patch(shade).set_zorder(0)
        place = {"transform": axis.get_xaxis_transform(), "clip_on": False}
        for j, name in enumerate(hit):
            rows = ends[(ends["series"] == name) & (ends["panel"] == panel)]
            height = np.full(len(rows), 1 - 0.04 - 0.05 * j)
            colour = figure.looks[name].colour
            axis.plot(rows["x"], height, "x", ms=3.6, mew=1.1, color=colour, **place)
        if axis is axes[-1]:
            style = {"transform": axis.transAxes, "va": "center", "fontsize": 7, "color": "#555555"}
            axis.text(1.015, 1 - strip / 2, "diverged", **style)


# -- names at the ends of lines, in place of a legend --------------------------------------------


def at_ends(canvas: Canvas, axes: Sequence[Axes], figure: Figure) -> None:
    """Write to the right of each panel the names of its lines, at the heights at which these end.

    axes: one for each panel, drawn and with their limits. A thin dotted line leads from the end of a line to its name.
    """
    font = mpl.font_manager.FontProperties(size=mpl.rcParams["legend.fontsize"])
    size = SMALLER * font.get_size_in_points()
    canvas.draw_without_rendering()  # the layout settles, and heights are known
    for axis, panel in zip(axes, figure.panels or [""], strict=False):
        rows = figure.data[(figure.data["panel"] == panel) & np.isfinite(figure.data["y"])]
        ends = rows.groupby("series", sort=False).tail(1)
        ends = ends.assign(x=ends["x"] / figure.x_unit, y=ends["y"] / figure.y_unit)
        if ends.empty:
            continue
        low, high = axis.get_ylim()
        scale = axis.transScale.transform
        bottom, top = scale((1, low))[1], scale((1, high))[1]
        heights = np.array(
            [(scale((1, y))[1] - bottom) / (top - bottom) for y in ends["y"].clip(low, high)]
        )
        gap = APART * size / 72 * canvas.dpi / axis.get_window_extent().height
        for row, at, height in zip(ends.itertuples(), spread(heights, gap), heights, strict=True):
            look = figure.looks[row.series]
            dark = tuple(0.8 * part for part in mpl.colors.to_rgb(look.colour))
            end = (row.x, height)
            axis.annotate(
                "",
                xy=end,
                xycoords=axis.get_xaxis_transform(),
                xytext=(1 + 0.8 * BESIDE, at),
                textcoords="axes fraction",
                annotation_clip=False,
                arrowprops={**LEADER, "color": look.colour},
            )
            place: dict[str, Any] = {"transform": axis.transAxes, "va": "center", "clip_on": False}
            axis.text(1 + BESIDE, at, look.label, color=dark, fontsize=size, **place)


def spread(wanted: np.ndarray, gap: float) -> np.ndarray:
    """Return heights that are ``gap`` apart at least, in the order of those wanted, as near to them as can be (least squares).

    They stay between 0 and 1 where there is room for all, else they go beyond both by the same.
    """
    order = np.argsort(wanted, kind="stable")
    steps = gap * np.arange(len(wanted))
    # heights less their steps need only not fall: what isotonic regression solves
    free = isotonic_regression(wanted[order] - steps).x
    room = 1 - gap * (len(wanted) - 1)
    free = np.clip(free, *((0, room) if room > 0 else (room / 2, room / 2)))
    results = np.empty(len(wanted))
    results[order] = free + steps
    return results
