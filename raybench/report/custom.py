"""Figures of one's own: which columns, methods, K and steps, in which words, size and style."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import matplotlib as mpl
import numpy as np
import pandas as pd

from raybench.analysis import Frames, How, tuned
from raybench.analysis.clocked import CLOCK
from raybench.analysis.curves import NUMBERS
from raybench.analysis.frames import framed
from raybench.core.errors import InputError, nearest
from raybench.report import heatmap, words
from raybench.report.charts import against_trials, profiles
from raybench.report.content import (
    Figure,
    Look,
    all_methods,
    curve,
    final_by_step,
    looks,
    looks_of_methods,
    of_methods,
    open_frames,
    step_word,
    with_targets,
)
from raybench.report.heatmap import HeatMap
from raybench.report.plots import draw, rows_behind, size_of, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

KINDS = ("curves", "steps", "k", "heatmap", "profile", "trials")
HEARD = {"steps": "y", "k": "", "trials": "", "heatmap": "", "profile": ""}
"""Which of x and y a kind of figure takes, but for curves, which take both."""
BY = ("method", "k", "step")
BEST = ("step_size", "theory")
Source: TypeAlias = (
    str | os.PathLike[str] | Frames | pd.DataFrame | tuple[pd.DataFrame, pd.DataFrame]
)


def plot(
    source: Source,
    *,
    kind: str = "curves",
    x: str | None = None,
    y: str | None = None,
    methods: Sequence[str] = (),
    by: str = "method",
    best: str = "step_size",
    labels: Mapping[str, str] | None = None,
    size: str | tuple[float, float] | None = None,
    style: str | os.PathLike[str] | None = None,
    label_lines: bool = False,
    target: float | str | None = None,
    accounting: How = None,
    link: str | None = None,
    tuning_seeds: Sequence[int] = (),
    cost: str | None = None,
) -> Canvas:
    """Return one figure of results, as a matplotlib figure.

    Raises InputError for unknown names and values, and where nothing is left to draw.

    Args:
        source: a results folder, its ``analysis.frames``, the curves of ``raybench.load``, or (curves, cells).
        kind: ``curves`` of y against x; ``steps``, the final y against the step; ``k``, what the target costs against
            K; ``heatmap``, the same by K and step; ``profile``, performance profiles over problems and seeds;
            ``trials``, what the target costs after some random trials of a method's own grid.
        x: a column of curves, by default the uplink bits.
        y: a column of curves, or of ``steps``; by default the one that methods are judged by.
        methods: names of algorithms (``ef21``) or methods as tables write them (``EF21 Top-K``), in the order of the
            legend; all by default.
        by: a line per ``method`` (at its best K), per ``k``, or per ``step``.
        best: the tuned ``step_size``, or ``theory``, one times the theoretical step.
        labels: what to call a method, or a panel.
        size: ``column``, ``text`` or ``slide``, or (width, height) in inches.
        style: a matplotlib style sheet, applied over raybench's own.
        label_lines: names at the ends of lines instead of a legend.
        target: as for ``analysis.frames``, and so are ``accounting`` and ``link``.
        tuning_seeds: on which K and steps are chosen, to be drawn of the other seeds.
        cost: the column that the target is paid in, by which K and steps are chosen.
    """
    with styled(style):
        picture = figure(
            source, kind=kind, x=x, y=y, methods=methods, by=by, best=best, labels=labels,
            target=target, accounting=accounting, link=link, tuning_seeds=tuning_seeds, cost=cost,
        )  # fmt: skip
        return drawn(picture, size_of(size), label_lines)


def drawn(
    picture: Figure | HeatMap,
    size: tuple[float, float | None] | None = None,
    label_lines: bool = False,
) -> Canvas:
    """Return the matplotlib figure of what ``figure`` has made. size, label_lines: as for ``plots.draw``."""
    if isinstance(picture, Figure):
        return draw(picture, size, label_lines)
    if label_lines:
        raise InputError.of("label_lines", "a heat map has no lines", "another kind")
    canvas = heatmap.draw(picture)
    if size is not None:
        width, height = canvas.get_size_inches()
        canvas.set_size_inches(size[0], size[1] or height * size[0] / width)
    return canvas


def behind(picture: Figure | HeatMap) -> pd.DataFrame:
    """Return the rows that ``figure`` has made, under the names of their columns."""
    return rows_behind(picture) if isinstance(picture, Figure) else picture.data


def figure(
    source: Source,
    *,
    kind: str = "curves",
    x: str | None = None,
    y: str | None = None,
    methods: Sequence[str] = (),
    by: str = "method",
    best: str = "step_size",
    labels: Mapping[str, str] | None = None,
    **asked: Any,
) -> Figure | HeatMap:
    """Return what ``plot`` draws: its data, with labels and looks; arguments as there."""
    for name, value, allowed in (("kind", kind, KINDS), ("by", by, BY), ("best", best, BEST)):
        if value not in allowed:
            raise InputError.of(name, f"unknown {value!r}", nearest(value, allowed))
    results = _open(source, asked)
    if results.tuning_seeds and (kind in ("steps", "heatmap") or (kind, by) == ("curves", "step")):
        raise InputError.of("--tuning-seeds", "this figure shows every step, and none is chosen")
    for name, given in (("x", x), ("y", y)):
        if given is not None and name not in HEARD.get(kind, "xy"):
            raise InputError.of(name, f"a figure of kind {kind} has its own {name}", "leave it out")
    y = results.metric if y is None else y
    every = all_methods(results)
    ran = of_methods(results.cells[results.cells["status"] != "skipped"], methods, "methods")
    if best == "theory":
        ran = ran[ran["step_multiple"] == 1]
    cells = ran[ran["status"] == "ok"]
    if cells.empty:
        at = " at one times the theoretical step" if best == "theory" else ""
        raise InputError.of("plot", f"no cell ended ok{at}", "other methods, or best: step_size")
    if kind == "steps":
        picture = _steps(cells, y, results, every)
    elif kind == "heatmap":
        if results.link is not None:
            raise InputError.of("kind", "a heat map is one of bits", "no link, or another kind")
        return heatmap.by_step(results, ran)
    elif kind == "profile":
        picture = profiles(results, sorted(cells["method"].unique()), every)
    elif kind == "trials":
        picture = against_trials(results, ran, every, results.cost)
    elif kind == "k":
        picture = _by_k(results, _lines(results, ran, "k"), every)
    else:
        x = CLOCK if x == "clock" else x or "bits_up"
        if x == CLOCK:  # steps are chosen by it
            results = replace(results, cost_column=CLOCK)
        for name in {x, y} - {results.cost}:
            if not name.startswith("extra.") and name not in NUMBERS:
                raise InputError.of("plot", f"no column {name!r}", nearest(name, NUMBERS))
        lines = _lines(results, cells if by == "step" else ran, by)
        picture = _curves(results, lines, x, y, by, every)
    if picture.data.empty:
        raise InputError.of("plot", f"nothing is known of {y} against {x}", "another x or y")
    return _renamed(with_targets(picture, results), cells, labels or {}, methods)


def _open(source: Source, asked: Mapping[str, Any]) -> Frames:
    if isinstance(source, pd.DataFrame):
        last = source.sort_values("round").drop_duplicates("cell", keep="last")
        source = source, last if "config" in last else last.assign(config=None)
    return open_frames(framed(*source) if isinstance(source, tuple) else source, **asked)


def _lines(results: Frames, cells: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return what is drawn as lines: facet, series, step, of the best steps or of all."""
    if by == "step":
        heads = ["facet", "series", "step"]
        every = cells.sort_values(["method", "k", "step_size"]).drop_duplicates(heads)
        return every.assign(eligible=True, cost=np.nan)
    rows = results.curves_source.columns([results.cost, results.metric])
    kind = "method" if by == "method" else "series"
    best = tuned(
        rows, cells, results.goals, kind, results.metric, results.cost, results.tuning_seeds or None
    )
    if not best["eligible"].any():
        what = "there is no step of which every seed ended ok"
        raise InputError.of("plot", what, "by: step, or other methods")
    return best[best["eligible"]]


def _curves(
    results: Frames, lines: pd.DataFrame, x: str, y: str, by: str, every: Sequence[str]
) -> Figure:
    keys = pd.MultiIndex.from_frame(lines[["facet", "series", "step"]])
    kind = "method" if by == "method" else "series"
    shown = results.reporting(kind) if by != "step" else True  # then no step is chosen
    cells = results.cells[(results.cells["status"] == "ok") & shown]
    cells = cells[pd.MultiIndex.from_frame(cells[["facet", "series", "step"]]).isin(keys)]
    extras = [name for name in (x, y) if name.startswith("extra.")]
    columns = results.curves_source.extras(list(cells["cell"])) if extras else []
    for name in extras:
        if name not in columns:
            raise InputError.of("plot", f"no column {name!r}", nearest(name, columns))
    rows = results.rows(list(cells["cell"]), [x, y])
    facets = sorted(lines["facet"].unique())
    picture = curve(rows, looks(lines, every), facets, x, y, [], results.link)
    if by != "step":
        return picture
    data = picture.data.assign(series=picture.data["series"] + ", step " + picture.data["step"])
    return replace(picture, data=data, looks=_by_step(lines))


def _by_step(lines: pd.DataFrame) -> dict[str, Look]:
    """Return a look for each step of each series: the colour says the step, the dash the series."""
    colours = mpl.colormaps["viridis"]
    series = list(dict.fromkeys(lines["series"]))
    results = {}
    for name, part in lines.drop_duplicates(["series", "step"]).groupby("series", sort=False):
        part = part.sort_values("step_size")
        for j, row in enumerate(part.itertuples()):
            shade = colours(0.9 * j / max(1, len(part) - 1))
            label = f"{words.spoken(name)}, {step_word(row.step_multiple, row.step_size, row.step)}"
            dash = ("solid", "dash", "dot", "dashdot")[series.index(name) % 4]
            results[f"{name}, step {row.step}"] = Look(mpl.colors.to_hex(shade), dash, label)
    return results


def _steps(cells: pd.DataFrame, y: str, results: Frames, every: Sequence[str]) -> Figure:
    """Return the final y against the step: how much a method depends on it."""
    if y not in cells:
        finals = ["grad_norm_sq", "loss", "accuracy"]
        raise InputError.of("plot", f"no final {y!r}", nearest(y, finals))
    heads, facets = cells.drop_duplicates("series"), sorted(cells["facet"].unique())
    picture = final_by_step(results, cells, looks(heads, every), facets, y)
    if picture is None:
        raise InputError.of("plot", "no method was run at two steps", "another kind")
    return picture


BEHIND = ("panel", "series", "x", "y", "low", "high", "coverage", "seeds", "step", "target")


def _by_k(results: Frames, lines: pd.DataFrame, every: Sequence[str]) -> Figure:
    """Return what the target costs against K, a line per method."""
    data = lines[lines["k"].notna()].assign(series=lines["method"], panel=lines["facet"])
    data = data.rename(columns={"k": "x", "cost": "y", "cost_low": "low", "cost_high": "high"})
    data = data.sort_values(["panel", "series", "x"])
    data[["y", "low", "high"]] = data[["y", "low", "high"]].replace(np.inf, np.nan)
    goals = sorted(set(lines["target"]))
    goal = f"≤ {goals[0]:g}" if len(goals) == 1 else "≤ its target"
    unit = words.spelling(results.cost)[2]
    least = float(data["y"].min())
    size, name = unit(least) if unit is not None and words.known(least) else (1.0, "")
    never = sorted(set(data["series"]) - set(data.loc[data["y"].notna(), "series"]))
    data = data[~data["series"].isin(never)]
    details = [
        words.band(int(n) for n in data["seeds"]),
        f"not reached by {', '.join(never)}" if never else "",
    ]
    return Figure(
        name="target_vs_k",
        x="k",
        y=results.cost,
        title="What the target costs, by K",
        x_label="$K$",
        y_label=f"{words.axis(results.cost, name)}\nto {words.COLUMNS[results.metric]} {goal}",
        data=data[[*BEHIND]],
        looks=looks_of_methods(lines, set(lines["method"]), every),
        panels=sorted(lines["facet"].unique()),
        band="; ".join(filter(None, details)),
        y_unit=size,
        log_x=True,
        x_from=float(data["x"].min()) / 1.2 if len(data) else 1.0,
    )


def _renamed(
    picture: Figure, cells: pd.DataFrame, labels: Mapping[str, str], order: Sequence[str]
) -> Figure:
    """Return the figure with the user's names of methods and panels, its series in the order that was asked for."""
    panels = {name: labels.get(name, name) for name in picture.panels}
    picture = replace(
        picture,
        panels=[*panels.values()],
        data=picture.data.assign(panel=picture.data["panel"].replace(panels)),
        goals={panels.get(name, name): goal for name, goal in picture.goals.items()},
    )
    of_methods(cells, [name for name in labels if name not in panels], "labels")
    heads: dict[str, Any] = {row.method: row._replace(k=np.nan) for row in cells.itertuples()}
    heads |= {row.series: row for row in cells.drop_duplicates("series").itertuples()}
    of = {name: heads[name.partition(", step ")[0]] for name in picture.looks}
    several = Counter(algorithm for _, algorithm in {(r.method, r.algorithm) for r in of.values()})
    lines = Counter((row.method, row.algorithm) for row in of.values())
    style = {}
    for name, look in picture.looks.items():
        row = of[name]
        keys = [key for key in (row.series, row.method, row.algorithm) if key in labels]
        if keys:
            parts = [labels[keys[0]]]
            if keys[0] == row.algorithm and several[row.algorithm] > 1:
                parts[0] += row.method.removeprefix(row.title)
            if keys[0] != row.series and row.k == row.k and lines[row.method, row.algorithm] > 1:
                parts.append(f"$K = {row.k:.0f}$")
            plain = words.spoken(name.partition(", step ")[0])
            rest = look.label.removeprefix(plain)  # such as the step
            look = replace(look, label=", ".join(parts) + rest)
        style[name] = look

    def place(name: str) -> int:
        names = (of[name].series, of[name].method, of[name].algorithm)
        return min((order.index(k) for k in names if k in order), default=0)

    return replace(picture, looks={name: style[name] for name in sorted(style, key=place)})
