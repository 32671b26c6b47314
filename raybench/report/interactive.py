"""Figures as plotly draws them in the page: plain values for JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from raybench.report import words
from raybench.report.content import Figure, alone, shown

DIGITS = 5
SECOND_AXIS = {
    **{"domain": [0.82, 1], "range": [0, 1], "fixedrange": True, "zeroline": False},
    **{"showgrid": False, "showticklabels": False, "ticks": "", "showline": False},
    "title": {"text": "diverged", "font": {"size": 11}},
}
"""The strip above the figure of steps that marks those at which cells diverged."""


def panels(figure: Figure) -> list[dict[str, Any]]:
    """Return per panel of a figure what ``Plotly.newPlot`` takes: {title, data, layout}."""
    return [
        {"title": name, "data": _traces(figure, name), "layout": _layout(figure, name)}
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
        part = part.assign(high=figure.up_to_the_end(part["high"]))
        y, low, high = (shown(part[c], figure.log_y) for c in ("y", "low", "high"))
        finite = bool(np.isfinite(y).any())
        common = {"type": "scatter", "legendgroup": name, "x": _plain(part["x"] / figure.x_unit)}
        silent = {**common, "mode": "lines", "showlegend": False, "hoverinfo": "skip"}
        spoken = {**common, "name": words.markup(look.label)}
        if figure.marked and part[figure.marked].any():
            dots = {"y": _plain(np.where(part[figure.marked], y, math.nan)), "mode": "markers"}
            below.append({**silent, **dots, "marker": {"color": look.colour, "size": 6}})
        if finite and np.nanmax(np.abs(high - low), initial=0.0) > 0:
            edge = {**silent, "line": {"width": 0}}
            fill = {"fill": "tonexty", "fillcolor": f"{look.colour}2e"}
            traces += [{**edge, "y": _plain(low)}, {**edge, "y": _plain(high), **fill}]
        if finite:
            lone = alone(y)
            marked = figure.steps or lone.any()
            line = {"color": look.colour, "dash": look.dash, "width": 2}
            hover = "%{x:.4g}, %{y:.3g}<extra>%{fullData.name}</extra>"
            trace: dict[str, Any] = {
                **spoken,
                "y": _plain(y),
                "mode": "lines+markers" if marked else "lines",
            }
            if marked and not figure.steps:
                trace["marker"] = {"size": [6 if point else 0 for point in lone]}
            traces.append({**trace, "line": line, "hovertemplate": hover})
        if name in hit:
            ends = part[part["diverged"] > 0]
            line = {"color": look.colour, "width": 2}
            text = [f"{d} of {c} diverged" for d, c in zip(ends["diverged"], ends["cells"])]
            above.append(
                spoken
                | {"x": _plain(ends["x"]), "y": [(hit.index(name) + 0.5) / len(hit)] * len(ends)}
                | {"yaxis": "y2", "mode": "markers", "showlegend": not finite, "text": text}
                | {"marker": {"symbol": "x-thin", "size": 7, "line": line}}
                | {"hovertemplate": "%{x:.4g}: %{text}<extra>%{fullData.name}</extra>"}
            )
    if figure.steps and not traces:  # plotly moves the x axis of a panel that has no trace
        traces.append({"type": "scatter", "x": [1], "y": [None], "showlegend": False})
    return below + traces + above


def _layout(figure: Figure, panel: str) -> dict[str, Any]:
    x: dict[str, Any] = {"title": {"text": words.markup(figure.x_label)}, "anchor": "y"}
    y: dict[str, Any] = {"title": {"text": words.markup(figure.y_label), "standoff": 12}}
    layout: dict[str, Any] = {"xaxis": x, "yaxis": y}
    values = figure.data[["y", "low", "high"]].to_numpy(float)
    values = np.maximum(values[np.isfinite(values)], figure.lowest if figure.log_y else -math.inf)
    at = figure.data["x"].to_numpy(float) / figure.x_unit
    at = at if len(at) else np.ones(1)
    if figure.steps:
        sign = "×" if figure.x == "step_multiple" else ""
        ticks = np.unique(at)
        x |= {"tickvals": _plain(ticks), "ticktext": words.ticks(ticks, "2<sup>{}</sup>", sign)}
    if figure.steps or figure.log_x:
        start = at.min() if figure.steps else figure.x_from / figure.x_unit
        x |= _logarithmic(start, at.max())
        if figure.x_kind:
            spell = words.SPELLED[figure.x_kind]
            powers = range(math.floor(math.log10(start)), math.ceil(math.log10(at.max())) + 1)
            x |= {
                "tickvals": [10.0**k for k in powers],
                "ticktext": [spell(10.0**k) for k in powers],
            }
    if not len(values):
        note = {"text": "no cell ended ok", "x": 0.5, "y": 0.4, "showarrow": False}
        layout["annotations"] = [{**note, "xref": "paper", "yref": "paper"}]
        y |= {"showticklabels": False, "showgrid": False, "range": [0, 1]}
    elif figure.log_y:  # all panels get one range, so that they can be compared
        y |= _logarithmic(values.min(), values.max())
    goal = figure.goals.get(panel)
    if goal is not None and len(values) and (values.min() <= goal <= values.max()):
        across = {"xref": "paper", "x0": 0, "x1": 1, "y0": goal, "y1": goal}
        layout["shapes"] = [{"type": "line", **across, "line": {"color": "#777777", "width": 1}}]
        at_goal = {"y": math.log10(goal) if figure.log_y else goal, "yanchor": "bottom"}
        note = {"text": "target", "x": 0, "xref": "paper", "xanchor": "left", "showarrow": False}
        layout["annotations"] = [{**note, **at_goal, "font": {"size": 11, "color": "#777777"}}]
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


def _plain(values: Any) -> list[float | None]:
    """Return numbers for JSON: null where there is none, else ``DIGITS`` digits."""
    return [
        float(f"{v:.{DIGITS}g}") if math.isfinite(v) else None for v in np.asarray(values, float)
    ]
