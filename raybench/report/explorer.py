"""What the page draws: curves whose axes are chosen in it, and figures that stand as they are; all plain values for JSON.

The page makes medians and bands itself, as ``analysis.bands`` defines them (report.js): for each pair of axes they
are others, and all of them would take more room than the curves of the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from raybench.analysis import SECONDS, Frames, ranks
from raybench.analysis.methods import k_order, k_words
from raybench.report import words
from raybench.report.content import (
    BASELINE_COLOUR,
    DASHES,
    LOWEST_SHOWN,
    MOST_SERIES,
    PALETTE,
    Figure,
    cells_of,
    falls,
    shown,
    spans,
    step_word,
)

MOST_NUMBERS = 90_000
"""Numbers that all curves of a page may have: about 0.6 MB."""
MOST_POINTS, FEWEST_POINTS = 400, 24  # of a curve
MOST_LINES = 400
DIGITS = 6
XS = {"bits_up": "bit", "bits": "bit", "round": "", "epoch": "", "grad_evals": "", "seconds": "s"}
XS |= {SECONDS: "s"}
"""Columns of x, and their units."""
YS = (
    *("grad_norm_sq", "loss", "suboptimality", "test_loss", "accuracy"),
    *("mean_client_grad_norm_sq", "consensus_error", "estimator_error_sq"),
)
LINE = ["facet", "series", "step"]
SECOND_AXIS = {
    **{"domain": [0.82, 1], "range": [0, 1], "fixedrange": True, "zeroline": False},
    **{"showgrid": False, "showticklabels": False, "ticks": "", "showline": False},
    "title": {"text": "diverged", "font": {"size": 11}},
}
"""The strip above the figure of steps that marks those at which cells diverged."""

# Curves with axes to choose ---------------------------------------------------------------------


def explorer(found: Frames) -> dict[str, Any]:
    """Return what the page draws curves from.

    panels: problems. xs, ys: the axes there are, with labels as Plotly takes markup. methods: {name, colour,
    dash, on}. ks: the K there are, in order. lines: {panel, method, k, label, best, cells}, of each cell the places
    of its columns in arrays. ranks: by the number of seeds which of them bound the band, from 1, and its coverage.
    left_out: lines that are not in the page. Empty where no cell ended ok.
    """
    best, left_out = _lines(found)
    if best.empty:
        return {}
    ids = cells_of(found, best)
    names = [x for x in XS if x not in ("bits", SECONDS)] + ["bits_down", *YS]
    names += found.held.extras(ids) + [SECONDS] * (found.link is not None)
    rows = found.rows(ids, names)
    rows = rows.assign(bits=rows["bits_up"] + rows["bits_down"])
    xs = [x for x in XS if x in rows and rows[x].notna().any()]
    ys = [y for y in (*YS, *found.held.extras(ids)) if rows[y].notna().any()]
    if rows.empty or not ys:
        return {}
    arrays, cells = _arrays(rows, [*xs, *ys], ys)
    panels = sorted(best["facet"].unique())
    methods = _methods(found, best)
    names = [method["name"] for method in methods]
    lines = [
        {
            "panel": panels.index(row["facet"]),
            "method": names.index(row["method"]),
            "k": row["word"],
            "label": f"{row['series']}, {step_word(row['step_multiple'], row['step_size'], row['step'])}",
            "best": bool(row["best"]),
            "cells": cells.get((row["facet"], row["series"], row["step"]), []),
        }
        for row in best.to_dict("records")
    ]
    return {
        "panels": panels,
        "xs": [{"key": x, "label": _label(x), "unit": XS[x]} for x in xs],
        "ys": [
            {"key": y, "label": _label(y), "log": falls(y) or (y != "accuracy" and spans(rows[y]))}
            for y in ys
        ],
        "main": found.metric,
        "methods": methods,
        "ks": sorted({line["k"] for line in lines if line["k"]}, key=k_order),
        "lines": [line for line in lines if line["cells"]],
        "arrays": arrays,
        "ranks": {n: ranks(n) for n in range(1, max(len(line["cells"]) for line in lines) + 1)},
        "lowest": LOWEST_SHOWN,
        "left_out": left_out,
        "link": str(found.link) if found.link is not None else "",
    }


def _label(column: str) -> str:
    unit = "" if column == "seconds" else XS.get(column, "")  # its name has it
    return words.markup(words.sentence(words.axis(column, unit)))


def _lines(found: Frames) -> tuple[pd.DataFrame, int]:
    """Return the tuned series that are eligible, with columns word (K) and best (of its method); how many are not here."""
    table = found.tuned("series")
    table = table[table["eligible"].astype(bool)] if len(table) else table
    if table.empty:
        return table, 0
    cells = found.cells.assign(word=k_words(found.cells)).drop_duplicates(["facet", "series"])
    table = table.merge(cells[["facet", "series", "word"]], how="left")
    tuned = found.tuned("method")
    first = pd.MultiIndex.from_frame(tuned.loc[tuned["eligible"], ["facet", "series"]])
    table["best"] = pd.MultiIndex.from_frame(table[["facet", "series"]]).isin(first)
    table["place"] = [k_order(word) for word in table["word"]]
    order = table.assign(cost=table["cost"].fillna(np.inf), other=~table["best"])
    lines = table.loc[order.sort_values(["other", "cost"], kind="stable").index[:MOST_LINES]]
    return lines.sort_values(["facet", "method", "place"]), len(table) - len(lines)


def _methods(found: Frames, best: pd.DataFrame) -> list[dict[str, Any]]:
    """Return every method with its look; on: gd and those that pay least, at most eight at first."""
    heads = best.assign(cost=best["cost"].fillna(np.inf)).sort_values("cost", kind="stable")
    heads = heads.drop_duplicates("method").set_index("method")
    plain = heads["algorithm"] == "gd"
    on = [*heads.index[plain], *heads.index[~plain]][:MOST_SERIES]
    # 48 methods in a row differ from one another in colour or dash, neighbours in both
    turn = math.lcm(len(PALETTE), len(DASHES))
    looks = dict.fromkeys(heads.index[plain], (BASELINE_COLOUR, DASHES[0]))
    for i, name in enumerate(sorted(heads.index[~plain])):
        looks[name] = PALETTE[i % len(PALETTE)], DASHES[(i + i // turn) % len(DASHES)]
    return [
        {"name": name, "colour": colour, "dash": dash, "on": name in on}
        for name, (colour, dash) in looks.items()
    ]


def _arrays(
    rows: pd.DataFrame, names: Sequence[str], ys: list[str]
) -> tuple[list[tuple[float | None, ...]], dict[tuple[str, ...], list[dict[str, int]]]]:
    """Return distinct columns of numbers, and of each line's cells, by seed, which of them are its columns.

    Seeds and methods share columns such as rounds, which are held once. All cells of a line keep the same rounds,
    as a band is made round by round.
    """
    parts = rows.groupby("cell", sort=False)
    distinct = {part[n].to_numpy(float).tobytes() for _, part in parts for n in names}
    points = int(np.clip(MOST_NUMBERS // len(distinct), FEWEST_POINTS, MOST_POINTS))
    place: dict[tuple[float | None, ...], int] = {}
    lines: dict[Any, list[dict[str, int]]] = {}
    for key, line in rows.groupby(LINE, sort=False):
        kept = _kept(np.unique(line["round"].to_numpy(float)), points)
        cells = lines[key] = []
        for _, part in line.groupby(["seed", "cell"]):
            last = part["round"] == part["round"].max()
            if len(part) > len(kept):
                # what is measured now and then may stand in a round that goes
                part = part.assign(**{y: part[y].ffill() for y in ys})
            few = part[part["round"].isin(kept) | last]
            columns = {n: _plain(few[n], n in ys) for n in names if few[n].notna().any()}
            cells.append({n: place.setdefault(v, len(place)) for n, v in columns.items()})
    return list(place), lines


def _kept(rounds: np.ndarray, points: int) -> np.ndarray:
    """Return the rounds that are kept: half of them evenly spaced, half closer to the start as logarithms are."""
    if len(rounds) <= points:
        return rounds
    even = np.linspace(0, len(rounds) - 1, points // 2)
    early = np.geomspace(1, len(rounds), points - points // 2) - 1
    return rounds[np.unique(np.concatenate([even, early]).round().astype(int))]


def _plain(values: Any, short: bool = True) -> tuple[float | None, ...]:
    """Return numbers for JSON: null where there is none, six digits unless they are whole and not ``short``."""
    numbers = [
        float(f"{v:.{DIGITS}g}") if short or v % 1 or abs(v) >= 1e15 else v
        for v in np.asarray(values, float)
    ]
    return tuple(
        None if not math.isfinite(v) else int(v) if v.is_integer() and abs(v) < 1e15 else v
        for v in map(float, numbers)
    )


# Figures as they stand ----------------------------------------------------------------------------


def panels(figure: Figure) -> list[dict[str, Any]]:
    """Return per panel of a figure what ``Plotly.newPlot`` takes: {title, data, layout}."""
    return [
        {"title": name, "data": _traces(figure, name), "layout": _layout(figure)}
        for name in figure.panels or [""]
    ]


def _traces(figure: Figure, panel: str) -> list[dict[str, Any]]:
    rows = figure.data[figure.data["panel"] == panel]
    parts = {str(name): part for name, part in rows.groupby("series", sort=False)}
    hit = [name for name, part in parts.items() if figure.steps and part["diverged"].sum()]
    below: list[dict[str, Any]] = []
    traces: list[dict[str, Any]] = []
    above: list[dict[str, Any]] = []
    for name in sorted(parts, key=list(figure.looks).index):
        part, look = parts[name], figure.looks[name]
        y, low, high = (shown(part[c], figure.log_y) for c in ("y", "low", "high"))
        known = bool(np.isfinite(y).any())
        common = {"type": "scatter", "legendgroup": name, "x": _plain(part["x"] / figure.x_unit)}
        silent = {**common, "mode": "lines", "showlegend": False, "hoverinfo": "skip"}
        spoken = {**common, "name": words.markup(look.label)}
        if figure.marked and part[figure.marked].any():
            thick = {"y": _plain(np.where(part[figure.marked], y, math.nan)), "opacity": 0.35}
            below.append({**silent, **thick, "line": {"color": look.colour, "width": 9}})
        if known and np.nanmax(np.abs(high - low), initial=0.0) > 0:
            edge = {**silent, "line": {"width": 0}}
            fill = {"fill": "tonexty", "fillcolor": f"{look.colour}2e"}
            traces += [{**edge, "y": _plain(low)}, {**edge, "y": _plain(high), **fill}]
        if known:
            mode = "lines+markers" if figure.steps or len(part) == 1 else "lines"
            line = {"color": look.colour, "dash": look.dash, "width": 2}
            hover = "%{x:.4g}, %{y:.3g}<extra>%{fullData.name}</extra>"
            traces.append(
                {**spoken, "y": _plain(y), "mode": mode, "line": line, "hovertemplate": hover}
            )
        if name in hit:
            gone = part[part["diverged"] > 0]
            line = {"color": look.colour, "width": 2}
            text = [f"{d} of {c} diverged" for d, c in zip(gone["diverged"], gone["cells"])]
            above.append(
                spoken
                | {"x": _plain(gone["x"]), "y": [(hit.index(name) + 0.5) / len(hit)] * len(gone)}
                | {"yaxis": "y2", "mode": "markers", "showlegend": not known, "text": text}
                | {"marker": {"symbol": "x-thin", "size": 7, "line": line}}
                | {"hovertemplate": "%{x:.4g}: %{text}<extra>%{fullData.name}</extra>"}
            )
    if figure.steps and not traces:  # plotly moves the x axis of a panel that has no trace
        traces.append({"type": "scatter", "x": [1], "y": [None], "showlegend": False})
    return below + traces + above


def _layout(figure: Figure) -> dict[str, Any]:
    x: dict[str, Any] = {"title": {"text": words.markup(figure.x_label)}, "anchor": "y"}
    y: dict[str, Any] = {"title": {"text": words.markup(figure.y_label), "standoff": 12}}
    layout: dict[str, Any] = {"xaxis": x, "yaxis": y}
    values = figure.data[["y", "low", "high"]].to_numpy(float)
    values = np.maximum(values[np.isfinite(values)], LOWEST_SHOWN if figure.log_y else -math.inf)
    at = figure.data["x"].to_numpy(float) / figure.x_unit
    if figure.steps:
        sign = "×" if figure.x == "step_multiple" else ""
        ticks = np.unique(at)
        x |= {"tickvals": _plain(ticks), "ticktext": words.ticks(ticks, "2<sup>{}</sup>", sign)}
    if figure.steps or figure.log_x:
        start = at.min() if figure.steps else figure.x_from / figure.x_unit
        x |= _logarithmic(start, at.max())
    if not len(values):
        said = {"text": "no cell ended ok", "x": 0.5, "y": 0.4, "showarrow": False}
        layout["annotations"] = [{**said, "xref": "paper", "yref": "paper"}]
        y |= {"showticklabels": False, "showgrid": False, "range": [0, 1]}
    elif figure.log_y:  # all panels get one range, so that they can be compared
        y |= _logarithmic(values.min(), values.max())
    if figure.steps and figure.data["diverged"].sum():
        y["domain"] = [0, 0.8]
        layout["yaxis2"] = SECOND_AXIS
    return layout


def _logarithmic(low: float, high: float) -> dict[str, Any]:
    """Return a logarithmic axis with some room at both ends, and ticks at powers of ten where there are some."""
    low, high = math.log10(low), math.log10(high)
    room = 0.04 * (high - low) + 0.05
    ticks = {"dtick": math.ceil((high - low) / 6)} if high - low > 1 else {"nticks": 8}
    ends = {"range": [low - room, high + room]}
    return {"type": "log", "exponentformat": "power", **ends, **ticks}
