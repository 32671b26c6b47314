"""What a target costs: for every method and step of a sweep, and as a power of the number of clients, of d or of K."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from raybench.analysis.curves import Rows, first_crossing, ordered
from raybench.analysis.frames import Frames, Source, Where, axis, frames_of, keys, targets_of
from raybench.analysis.statistics import interval, power
from raybench.core.errors import InputError, nearest
from raybench.store.reader import How

OVER = {"n": "clients", "d": "d", "k": "k"}
"""What costs may grow with, by its letter: the column of cells."""


def to_target(
    source: Source,
    target: float | Sequence[float] | None = None,
    *,
    x: str | None = None,
    y: str | None = None,
    by: str | Sequence[str] = ("facet", "series", "step"),
    where: Where | None = None,
    accounting: How = None,
) -> pd.DataFrame:
    """Return what it costs to come down to one target or several: the median over seeds and its interval.

    The cost of a cell is the ``x`` of its first recorded row with ``y <= target``, without interpolation: that of a
    point that was reached. It is infinite where there is no such row, where the cell did not end ok and
    where its last row is above the target again. target: None for that of each problem's table. x: any
    cumulative column of curves, uplink bits per client by default; y: the column that methods are judged by. by: columns
    of the described cells. where: which cells are meant; of a folder no other file is read.

    Columns: facet, ``by``, target, cells, reached (how many got there), x
    (median, inf where the median cell did not get there), x_low, x_high, coverage (its ``interval``). Raises
    InputError for an unknown column and for a target that is no positive number.

    >>> from raybench.analysis.examples import example
    >>> table = to_target(example(), 1e-3, by="series", where={"step": "x2"})
    >>> table[["series", "cells", "reached", "bits_up", "bits_up_low", "bits_up_high"]]
              series  cells  reached  bits_up  bits_up_low  bits_up_high
    0             GD      3        3  17920.0      16000.0       19200.0
    1     EF21 Top-1      3        3   4970.0       4620.0        5250.0
    2     EF21 Top-2      3        3   7980.0       7420.0        8400.0
    3  MARINA Rand-1      3        3   7488.0       7232.0        7680.0
    """
    results = frames_of(source, where, accounting)
    x, y = axis(x or results.cost, results, "x"), axis(y or results.metric, results, "y")
    names = list(dict.fromkeys(["facet", *keys(by, results.cells)]))
    cells = results.cells[results.cells["status"] != "skipped"].reset_index(drop=True)
    costs = costs_of(results, cells, targets_of(results, target), x, y)
    rows: list[dict[str, object]] = []
    heads = costs[[*names, "target"]].columns.to_list()
    for key, part in costs.groupby(heads, sort=False, dropna=False)["cost"]:
        middle, low, high, coverage = interval(part.to_numpy())
        counts = {"cells": len(part), "reached": int(np.isfinite(part).sum())}
        ends = {x: middle, f"{x}_low": low, f"{x}_high": high, "coverage": coverage}
        rows.append({**dict(zip(heads, key, strict=True)), **counts, **ends})
    numbers = ["cells", "reached", x, f"{x}_low", f"{x}_high", "coverage"]
    return pd.DataFrame(rows, columns=[*heads, *numbers])


def costs_of(
    results: Frames, cells: pd.DataFrame, targets: Sequence[tuple[str, float]], x: str, y: str
) -> pd.DataFrame:
    """Return cells, once for each target of their facet, with columns target and cost, as ``to_target`` counts it."""
    rows = results.curves_source.columns([x, y])
    crossings: dict[float, pd.Series] = {}
    pieces = [cells.iloc[:0].assign(target=0.0, cost=0.0)]
    for facet, goal in targets:
        if goal not in crossings:  # NaN, of a problem without a target, is reached by none
            crossings[goal] = first_crossing(rows, goal, x, y, settled=True)
        part = cells[cells["facet"] == facet]
        cost = part["cell"].map(crossings[goal]).astype(float)
        cost = cost.where(part["status"] == "ok", np.inf).fillna(np.inf)
        pieces.append(part.assign(target=goal, cost=cost))
    return pd.concat(pieces, ignore_index=True)


def best_costs(
    results: Frames, by: str, x: str, target: float | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the best candidates, as ``tuned`` chooses them, and their cells with columns target and cost.

    Cells are those of the seeds that have not chosen the step, where frames have seeds that do.
    """
    best = results.tuned(by, target, x)
    if best.empty:
        return best, best
    tells = list(dict.fromkeys(["facet", by, "series", "step"]))
    cells = results.cells[results.reporting(by)].merge(best.loc[best["eligible"], tells], on=tells)
    targets = best.drop_duplicates("facet")[["facet", "target"]].itertuples(index=False)
    return best, costs_of(results, cells, [(f, float(t)) for f, t in targets], x, results.metric)


def seen_late(results: Frames, by: str, target: float | None = None) -> pd.Series:
    """Return by which share of its rounds to the target a method may have been there before a row shows it.

    Rows are some rounds apart, (after - before - 1) / after of the first row at the target and the row before it: the
    largest median over seeds among problems, of the best candidates, by ``by``. Those that miss it are left out.
    """
    best = results.tuned(by, target)
    if best.empty:
        return pd.Series(dtype=float)
    tells = list(dict.fromkeys(["facet", by, "series", "step"]))
    cells = results.cells[results.reporting(by) & (results.cells["status"] == "ok")]
    cells = cells.merge(best.loc[best["eligible"], [*tells, "target"]], on=tells)
    names = ["round", results.metric]
    rows = ordered(results.rows(list(cells["cell"]), names), names)
    late = pd.Series(np.nan, cells.index)
    for goal, part in cells.groupby("target"):
        after = first_crossing(rows, float(goal), "round", results.metric, settled=True)
        before = rows.last("round", _before(after.to_numpy()))
        late[part.index] = part["cell"].map((after - before - 1) / after)
    by_problem = late.where(np.isfinite(late)).groupby([cells["facet"], cells[by]]).median()
    return by_problem.dropna().groupby(level=by).max()


def _before(at: np.ndarray) -> Rows:
    """Return that the rows are meant which lie before a round, by the number of their cell."""
    return lambda block: block["round"] < at[block["cell"]]


def instances(
    results: Frames, target: float | None = None, by: str = "method", x: str | None = None
) -> pd.DataFrame:
    """Return the cost of every method's best candidate on every instance: rows (facet, seed), a column for each method.

    The best candidate of a problem is the one that ``tuned`` chooses. Its cost is infinite where it does not reach the
    target, and where a method has no eligible candidate. A method that ran with fewer seeds than others, as one without
    any randomness may, has on the others its median. Where frames have seeds that tune, instances are those of other
    seeds.
    """
    best, costs = best_costs(results, by, axis(x or results.cost, results, "x"), target)
    if best.empty:
        return best
    table = costs.pivot_table(
        index=["facet", "seed"], columns=by, values="cost", aggfunc="median", dropna=False
    )
    table = table.reindex(columns=list(dict.fromkeys(best[by])))
    seeds = costs.drop_duplicates(["facet", "seed"]).set_index(["facet", "seed"]).index
    table = table.reindex(seeds.sort_values())
    usual = table.groupby("facet").transform("median")
    return table.fillna(usual).fillna(np.inf)


def scaling(
    source: Source,
    over: str = "n",
    target: float | None = None,
    *,
    x: str | None = None,
    where: Where | None = None,
    accounting: How = None,
) -> pd.DataFrame:
    """Return what the target costs each method at each n, d or K, and the power of it that fits best.

    over: ``n`` (clients), ``d`` or ``k``. At each value the method has its best step, for n and d its best K too, and
    its cost is the median over seeds. Through the points where that is finite goes the least-squares line

        log cost = exponent log value + constant,

    whose exponent has the interval of Student's t with two degrees of freedom less than points: NaN below three.
    Problems that differ in something else are apart, but data sets that differ in d are together. All points of a line
    have one target: the one given, or the loosest of the problems' own.

    Columns: problem (what sets the rows apart, empty where nothing does), method, the column of ``over`` (clients, d or
    k), target, cells, cost, cost_low, cost_high, coverage, exponent, exponent_low, exponent_high, points (in the fit).
    Methods in their order, by value. Raises InputError for an unknown ``over``.

    >>> from raybench.analysis.examples import example
    >>> table = scaling(example(("a", "b", "c")), "k", 1e-3, where={"algorithm": "ef21"})
    >>> table[["problem", "k", "cost", "exponent", "points"]].round(2)
             problem    k     cost  exponent  points
    0  a, 10 clients  1.0   4970.0      0.68       2
    1  a, 10 clients  2.0   7980.0      0.68       2
    2  b, 20 clients  1.0   7210.0      0.67       2
    3  b, 20 clients  2.0  11480.0      0.67       2
    4  c, 30 clients  1.0  10220.0      0.68       2
    5  c, 30 clients  2.0  16380.0      0.68       2
    """
    if over not in OVER:
        raise InputError.of("over", f"unknown {over!r}", nearest(over, OVER) or "n, d or k")
    results = frames_of(source, where, accounting)
    x, column = axis(x or results.cost, results, "x"), OVER[over]
    kind = "series" if over == "k" else "method"
    heads = ["problem", "method", column]
    ends = ["target", "cells", "cost", "cost_low", "cost_high", "coverage"]
    fits = ["exponent", "exponent_low", "exponent_high", "points"]
    if results.cells.empty:
        return pd.DataFrame(columns=[*heads, *ends, *fits])
    apart = _apart(results.cells, over)
    goals = results.tuned(kind, target, x).drop_duplicates("facet").set_index("facet")["target"]
    common = results.cells["facet"].map(goals).groupby(apart).max()
    pieces = []
    for problem, goal in common.items():
        here = replace(
            results, cells=results.cells[apart == problem].reset_index(drop=True), _tuned={}
        )
        _, few = best_costs(here, kind, x, float(goal))
        pieces.append(few.assign(problem=problem))
    costs = pd.concat(pieces, ignore_index=True)
    rows = []
    finite = costs[costs[column].notna()]
    for (problem, method), part in finite.groupby(["problem", "method"], sort=False):
        points = []
        for (value, goal), few in part.groupby([column, "target"], dropna=False):
            middle = interval(few["cost"].to_numpy())
            points.append((problem, method, value, goal, len(few), *middle))
        fit = power([row[2] for row in points], [row[5] for row in points])
        rows += [(*row, *fit) for row in points]
    return pd.DataFrame(rows, columns=[*heads, *ends, *fits])


def _apart(cells: pd.DataFrame, over: str) -> pd.Series:
    """Return the facet of each cell without the words that tell n, or d, apart."""

    def text(facet: str, dataset: object) -> str:
        words = facet.split(", ") if facet else []
        if over == "n":
            words = [word for word in words if not word.endswith(" clients")]
        if over == "d":
            name = os.path.basename(dataset) if isinstance(dataset, str) else None
            words = [word for word in words if word != name and not word.startswith("dim=")]
        return ", ".join(words)

    places = [text(f, d) for f, d in zip(cells["facet"], cells["dataset"], strict=True)]
    return pd.Series(places, index=cells.index, dtype=object)
