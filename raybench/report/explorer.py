"""What the page draws curves from: of every method at every K its tuned cells, thinned, axes chosen in the page.

The page makes medians and bands itself, as ``analysis.bands`` defines them (report.js): for each pair of axes they
are others, and all of them would take more room than the curves of the seeds.
"""

from __future__ import annotations

import math
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
    step_word,
)

MOST_NUMBERS = 90_000
"""Numbers that all curves of a page may have: about 0.6 MB."""
MOST_POINTS, FEWEST_POINTS = 400, 24  # of a curve
MOST_LINES = 400
DIGITS = 6
XS = {
    "bits_up": ("Bits up per client", "bit"),
    "bits": ("Bits up and down per client", "bit"),
    "round": ("Communication rounds", ""),
    "epoch": ("Epochs", ""),
    "grad_evals": ("Gradient evaluations per client", ""),
    "seconds": ("Seconds of wall time", "s"),
    SECONDS: ("Simulated seconds", "s"),
}
"""Columns of x: how the page calls them, and their unit."""
YS = {
    "grad_norm_sq": ("‖∇f(x<sup>t</sup>)‖²", True),
    "loss": ("f(x<sup>t</sup>)", False),
    "suboptimality": ("f(x<sup>t</sup>) − f*", True),
    "test_loss": ("Test loss", False),
    "accuracy": ("Accuracy", False),
    "mean_client_grad_norm_sq": ("mean ‖∇f<sub>i</sub>(x<sup>t</sup>)‖²", True),
    "consensus_error": ("Consensus error", True),
    "estimator_error_sq": ("‖g<sup>t</sup> − ∇f(x<sup>t</sup>)‖²", True),
}
"""Columns of y: how the page calls them, and whether they read best on a logarithmic axis."""


def explorer(found: Frames) -> dict[str, Any]:
    """Return what the page draws curves from, plain values for JSON.

    panels: problems. xs, ys: the axes there are; own: of a user's metric, whose name is no markup. methods: {name, colour, dash, on}. ks: the K there are, in
    order. lines: {panel, method, k, label, best, cells}, of each cell the places of its columns in arrays.
    ranks: by the number of seeds which of them bound the band, from 1, and its coverage. left_out: lines that
    are not in the page. Empty where no cell ended ok.
    """
    best, left_out = _lines(found)
    if best.empty:
        return {}
    names = [x for x in XS if x not in ("bits", SECONDS)] + ["bits_down", *YS]
    rows, own = _rows(found, best, names + ([SECONDS] if found.link is not None else []))
    measured = [name for name in rows if name.startswith("extra.")]
    rows = rows.assign(bits=rows["bits_up"] + rows["bits_down"])
    xs = [x for x in XS if x in rows and rows[x].notna().any()]
    ys = [y for y in (*YS, *measured) if rows[y].notna().any()]
    if rows.empty or not ys:
        return {}
    arrays, cells = _arrays(rows, own, [*xs, *ys], ys)
    panels = sorted(best["facet"].unique())
    methods = _methods(found, best)
    place = {m["name"]: i for i, m in enumerate(methods)}
    lines: list[dict[str, Any]] = []
    for row in best.to_dict("records"):
        key = (row["facet"], row["series"], row["step"])
        lines.append(
            {
                "panel": panels.index(row["facet"]),
                "method": place[row["method"]],
                "k": row["word"],
                "label": f"{row['series']}, {_step(row)}",
                "best": bool(row["best"]),
                "cells": [cells[cell] for cell in own.get(key, []) if cell in cells],
            }
        )
    most = max(len(line["cells"]) for line in lines)
    return {
        "panels": panels,
        "xs": [{"key": x, "label": XS[x][0], "unit": XS[x][1]} for x in xs],
        "ys": [
            {"key": y, "label": _label(y), "log": _log(rows, y), "own": y not in YS} for y in ys
        ],
        "main": found.metric,
        "methods": methods,
        "ks": sorted({line["k"] for line in lines if line["k"]}, key=k_order),
        "lines": [line for line in lines if line["cells"]],
        "arrays": arrays,
        "ranks": {str(n): list(ranks(n)) for n in range(1, most + 1)},
        "dashes": list(DASHES),
        "lowest": LOWEST_SHOWN,
        "left_out": left_out,
        "link": str(found.link) if found.link is not None else "",
    }


def _step(row: dict[str, Any]) -> str:
    return step_word(row["step_multiple"], row["step_size"], str(row["step"]))


def _lines(found: Frames) -> tuple[pd.DataFrame, int]:
    """Return the tuned series that are eligible, with columns word (K) and best (of its method); how many are not here."""
    table = found.tuned("series")
    if table.empty or not table["eligible"].any():
        return pd.DataFrame(), 0
    table = table[table["eligible"]].copy()
    cells = found.cells.assign(word=k_words(found.cells))
    spelled = cells.drop_duplicates(["facet", "series"]).set_index(["facet", "series"])["word"]
    table["word"] = spelled.reindex(pd.MultiIndex.from_frame(table[["facet", "series"]])).to_numpy()
    tuned = found.tuned("method")
    first = pd.MultiIndex.from_frame(tuned.loc[tuned["eligible"], ["facet", "series"]])
    table["best"] = pd.MultiIndex.from_frame(table[["facet", "series"]]).isin(first)
    order = table.assign(cost=table["cost"].fillna(np.inf), other=~table["best"])
    kept = order.sort_values(["other", "cost"], kind="stable").head(MOST_LINES).index
    table = table.assign(place=[k_order(word) for word in table["word"]])
    lines = table.loc[table.index.isin(kept)].sort_values(["facet", "method", "place"])
    return lines, len(table) - len(lines)


def _rows(
    found: Frames, best: pd.DataFrame, names: list[str]
) -> tuple[pd.DataFrame, dict[tuple[str, str, str], list[str]]]:
    """Return the curves of tuned cells that ended ok, and the ids of each line's cells, by seed."""
    keys = ["facet", "series", "step"]
    wanted = pd.MultiIndex.from_frame(best[keys])
    ok = found.cells[(found.cells["status"] == "ok") & found.reporting("series")]
    mine = ok[pd.MultiIndex.from_frame(ok[keys]).isin(wanted)].sort_values("seed", kind="stable")
    own = {key: part["cell"].tolist() for key, part in mine.groupby(keys, sort=False)}
    ids = set(mine["cell"])
    return found.rows(ids, [*names, *found.held.extras(ids)]), own


def _label(y: str) -> str:
    return YS[y][0] if y in YS else words.sentence(words.axis(y))


def _methods(found: Frames, best: pd.DataFrame) -> list[dict[str, Any]]:
    """Return every method with its look; on: gd and those that pay least, at most eight at first."""
    heads = best.assign(cost=best["cost"].fillna(np.inf)).sort_values("cost", kind="stable")
    heads = heads.drop_duplicates("method").set_index("method")
    plain = [m for m in heads.index if heads.loc[m, "algorithm"] == "gd"]
    on = set([*plain, *(m for m in heads.index if m not in plain)][:MOST_SERIES])
    listed = [*plain, *sorted(m for m in heads.index if m not in plain)]
    colours = {m: i for i, m in enumerate(m for m in listed if m not in plain)}
    return [
        {
            "name": m,
            "colour": PALETTE[colours[m] % len(PALETTE)] if m in colours else BASELINE_COLOUR,
            "dash": _dash(colours[m]) if m in colours else 0,
            "on": m in on,
        }
        for m in listed
    ]


def _dash(place: int) -> int:
    """Return a dash so that 48 methods in a row differ from one another in colour or dash, neighbours in both."""
    return (place + place // math.lcm(len(PALETTE), len(DASHES))) % len(DASHES)


def _arrays(
    rows: pd.DataFrame, own: dict[tuple[str, str, str], list[str]], names: list[str], ys: list[str]
) -> tuple[list[list[float | None]], dict[str, dict[str, int]]]:
    """Return distinct columns of numbers, and by cell which of them are its columns.

    Seeds and methods share columns such as rounds, which are held once. All cells of a line keep the same rounds,
    as a band is made round by round.
    """
    parts = {str(cell): part for cell, part in rows.groupby("cell", sort=False)}
    distinct = {part[n].to_numpy(float).tobytes() for part in parts.values() for n in names}
    points = int(np.clip(MOST_NUMBERS // len(distinct), FEWEST_POINTS, MOST_POINTS))
    place: dict[tuple[float | None, ...], int] = {}
    found: dict[str, dict[str, int]] = {}
    for ids in own.values():
        line = [parts[cell] for cell in ids if cell in parts]
        if not line:
            continue
        kept = _kept(np.unique(np.concatenate([p["round"].to_numpy(float) for p in line])), points)
        for part in line:
            last = part["round"] == part["round"].max()
            if len(part) > len(
                kept
            ):  # what is measured now and then may stand in a round that goes
                part = part.assign(**{y: part[y].ffill() for y in ys})
            few = part[part["round"].isin(kept) | last]
            found[str(part["cell"].iloc[0])] = {
                name: place.setdefault(_plain(few[name], name in ys), len(place))
                for name in names
                if few[name].notna().any()
            }
    return [list(values) for values in place], found


def _kept(rounds: np.ndarray, points: int) -> np.ndarray:
    """Return the rounds that are kept: half of them evenly spaced, half closer to the start as logarithms are."""
    if len(rounds) <= points:
        return rounds
    even = np.linspace(0, len(rounds) - 1, points // 2)
    early = np.geomspace(1, len(rounds), points - points // 2) - 1
    return rounds[np.unique(np.concatenate([even, early]).round().astype(int))]


def _plain(values: pd.Series, y: bool) -> tuple[float | None, ...]:
    """Return numbers for JSON: six digits, whole ones without a point, null where there is none."""
    found: list[float | None] = []
    for value in values.to_numpy(float):
        if not np.isfinite(value):
            found.append(None)
            continue
        short = float(f"{value:.{DIGITS}g}") if y or value % 1 or abs(value) >= 1e15 else value
        found.append(int(short) if short == int(short) and abs(short) < 1e15 else short)
    return tuple(found)


def _log(rows: pd.DataFrame, y: str) -> bool:
    values = rows[y].to_numpy(float)
    values = values[np.isfinite(values)]
    wide = len(values) and values.min() > 0 and values.max() > 20 * values.min()
    if y not in YS:
        return bool(wide)
    return bool(YS[y][1] or (y.endswith("loss") and wide))
