"""One results folder, read in every way: under each accounting and each rule for the step.

A reading is a choice of: how many bits a value costs; which code of the indices is charged; whether messages before
the first round count; whether the downlink counts; and which step of a method is shown. Under each reading a method has
a cost of the target, and so each pair of methods has an order.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from raybench.analysis.curves import ordered
from raybench.analysis.frames import Frames, frames
from raybench.analysis.tuned import candidates
from raybench.core.errors import InputError
from raybench.store.accounting import INDEX_BITS, Accounting, parse_accounting, rebook

FACTORS = ("values", "indices", "first", "side", "steps")
"""Columns of ``Audit.readings`` that say what a reading is."""

STEPS = ("tuned", "theory", "lowest end")
OF_CELLS = [
    *("cell", "status", "facet", "method", "series", "step", "group", "algorithm", "compressor"),
    *(
        "baseline",
        "k",
        "step_size",
        "step_multiple",
        "loss",
        "accuracy",
        "bits_up",
        "seconds",
        "rounds",
    ),
]
"""Columns that ``candidates`` needs: others, such as whole configurations, are not copied for each reading."""
PAIRS = [
    *("facet", "better", "worse", "cost_better", "cost_worse", "decided", "flipped", "unless"),
    *("absent", "missed", "equal"),
]
Term = tuple[tuple[str, str], ...]
"""Conditions (column, value) that hold together."""
MOST_TERMS = 3  # of the shortest rule that is looked for among all


@dataclass(frozen=True)
class Audit:
    """The readings of a results folder, and what they say of each pair of methods.

    readings: a row per facet, reading and method: facet, ``FACTORS``, method, cost (bits per client to the target, inf
    where the median seed misses it), rank (1 is cheapest; NaN where it misses), own (whether this is how the folder is
    read unless told). pairs: a row per facet and pair of methods: facet, better and worse (in the folder's own
    reading), cost_better, cost_worse, decided (readings in which they differ), flipped (those with the other order),
    unless (the readings that turn them round, as a rule; empty where none does). The readings that do not tell them
    apart are absent (one of them has no such step), missed (neither arrives) or equal.
    """

    readings: pd.DataFrame
    pairs: pd.DataFrame


def audit(source: str | os.PathLike[str] | Frames) -> Audit:
    """Return how the order of methods depends on how bits are booked and steps are chosen.

    values: ``dtype``, 32 where cells are wider, and the width of the folder's own accounting. indices: each code of
    ``Accounting.index_bits``. first: whether the messages before round 1 are ``counted`` or ``free``. side: ``up``, or ``up + down``. steps: the one that is
    ``tuned``, one times ``theory``, or the one with the ``lowest end``. The target is that of the folder in all of
    them. Raises InputError where no cell ended ok.
    """
    results = source if isinstance(source, Frames) else frames(source)
    if not (results.cells["status"] == "ok").any():
        fix = "; ".join(results.absent) or "a folder with results"
        raise InputError.of("audit", "no cell ended ok", fix)
    readings = pd.concat(_readings(results), ignore_index=True)
    return Audit(readings, _pairs(readings))


def _readings(results: Frames) -> Iterator[pd.DataFrame]:
    goals, declared, y = results.goals, parse_accounting(results.accounting), results.metric
    by_facet = {f: goals if isinstance(goals, float) else goals[f] for f in results.cells["facet"]}
    curves = results.curves.reset_index(drop=True)
    narrow = _telling(curves, curves["facet"].map(by_facet), y)
    ran = results.cells["cell"].isin(curves["cell"])
    stored = set(results.cells["value_bits"][ran].dropna().astype(int))
    if stored == {declared.value_bits}:  # by another name
        declared = replace(declared, value_bits="dtype")
    widths = dict.fromkeys(["dtype", *[32] * (max(stored, default=0) > 32), declared.value_bits])
    cells = results.cells[[c for c in results.cells if c in {*OF_CELLS, y}]]
    for values, code in itertools.product(widths, INDEX_BITS):
        # one table chooses for four readings: each has copies of all cells, whose names its number ends
        ways: list[tuple[object, ...]] = []
        rows, copies = [], []
        for counted in (True, False):
            how = Accounting(values, code, counted)
            booked, _ = rebook(narrow, results.cells, how)
            both = booked["bits_up"] + booked["bits_down"].fillna(0.0)
            for side, bits in (("up", booked["bits_up"]), ("up + down", both)):
                end, first = f"/{len(ways)}", "counted" if counted else "free"
                rows.append(booked[["round", y]].assign(cell=booked["cell"] + end, bits=bits))
                copies.append(cells.assign(cell=cells["cell"] + end, reading=end))
                is_stated = how == declared and side == "up"
                ways.append((end, is_stated, str(values), code, first, side))
        way = pd.DataFrame(ways, columns=["reading", "own", *FACTORS[:-1]])
        every = ordered(pd.concat(rows, ignore_index=True), ["bits", y])
        for facet, part in pd.concat(copies, ignore_index=True).groupby("facet", sort=False):
            part = part.assign(facet=part["reading"])
            table = candidates(every, part, by_facet[facet], "method", y, "bits")
            for steps in STEPS if len(table) else ():  # where not all cells were skipped
                best = _chosen(table[table["eligible"]], steps, y)
                cost = best["cost"].replace(np.inf, np.nan)
                rank = cost.groupby(best["facet"]).rank(method="min")
                best = best[["method", "cost"]].assign(rank=rank, reading=best["facet"])
                best = best.merge(way, "left", on="reading").drop(columns="reading")
                own = best["own"] & (steps == "tuned")
                yield best.assign(facet=facet, own=own, steps=steps)


def _telling(curves: pd.DataFrame, goals: pd.Series, y: str) -> pd.DataFrame:
    """Return the rows of curves that a cost can hang on: of each cell the first, the one that comes down to the goal, the last.

    Which row comes down to the goal hangs on no accounting, so that readings need not look at the others.
    """
    curves = curves.sort_values(["cell", "round"], kind="stable")
    there = curves[curves[y] <= goals.loc[curves.index]].drop_duplicates("cell").index
    ends = [curves.drop_duplicates("cell", keep=end).index for end in ("first", "last")]
    return curves[curves.index.isin(there.union(ends[0]).union(ends[1]))]


def _chosen(table: pd.DataFrame, steps: str, y: str) -> pd.DataFrame:
    """Return a candidate per reading (its ``facet``) and method. table: as ``candidates`` orders them."""
    if steps == "theory":
        table = table[table["step_multiple"] == 1]
    elif steps == "lowest end":
        table = table.sort_values(y, kind="stable")
    return table.drop_duplicates(["facet", "method"])


def _pairs(readings: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for facet, part in readings.groupby("facet", sort=False):
        costs = part.set_index([*FACTORS, "own", "method"])["cost"].unstack()
        first = costs[costs.index.get_level_values("own")].iloc[0]
        order = first.dropna().sort_values(kind="stable").index
        for better, worse in itertools.combinations(order, 2):
            if not first[better] < first[worse]:
                continue  # neither arrives: there is no order to turn round
            both = costs[[better, worse]]
            absent = both.isna().any(axis=1)
            missed = ~absent & ~np.isfinite(both).any(axis=1)
            gap = (both[worse] - both[better])[~absent & ~missed]
            decided = gap[gap != 0]
            flipped = (decided < 0).to_numpy()
            table = decided.index.to_frame(index=False)[list(FACTORS)]
            ends = (facet, better, worse, first[better], first[worse])
            counts = (int(absent.sum()), int(missed.sum()), len(gap) - len(decided))
            flips = (len(decided), int(flipped.sum()), explained(table, flipped))
            rows.append((*ends, *flips, *counts))
    return pd.DataFrame(rows, columns=PAIRS)


def explained(table: pd.DataFrame, hit: np.ndarray) -> str:
    """Return a rule for the rows of a table that are hit, empty where none is. The rows differ from one another.

    A rule is some terms, joined by ``or``, each of some conditions ``column = value``: together they hold for the rows
    that are hit, and for no others. Of those with one to three terms of one or two conditions the one with the fewest;
    where there is none, the terms that hold for most of what is left, one after the other.
    """
    if not hit.any():
        return ""
    pure = dict(_pure(table, hit, 1, 2))
    for count in range(1, MOST_TERMS + 1):
        for terms in itertools.combinations(pure, count):
            if (np.logical_or.reduce([pure[term] for term in terms]) == hit).all():
                return _worded(terms)
    pure |= _pure(table, hit, 3, table.shape[1])
    chosen, rest = [], hit.copy()
    while rest.any() and pure:
        # the first of equals is the shortest
        chosen.append(max(pure, key=lambda term: (pure[term] & rest).sum()))
        rest = rest & ~pure[chosen[-1]]
    return _worded(tuple(chosen))


def _pure(table: pd.DataFrame, hit: np.ndarray, least: int, most: int) -> dict[Term, np.ndarray]:
    """Return the terms of so many conditions that hold for rows which are hit alone, and for which rows."""
    columns = {c: list(dict.fromkeys(table[c])) for c in table if table[c].nunique() > 1}
    holds = {(c, v): (table[c] == v).to_numpy() for c in columns for v in columns[c]}
    results = {}
    for size in range(least, most + 1):
        for names in itertools.combinations(columns, size):
            for values in itertools.product(*(columns[name] for name in names)):
                term = tuple(zip(names, values, strict=True))
                rows = np.logical_and.reduce([holds[condition] for condition in term])
                if rows.any() and not (rows & ~hit).any():
                    results[term] = rows
    return results


def _worded(terms: tuple[Term, ...]) -> str:
    """Return terms as text, those of one column alone together: ``indices = explicit or bitmask``."""
    alone: dict[str, list[str]] = {}
    rest = []
    for term in terms:
        if len(term) == 1:
            alone.setdefault(term[0][0], []).append(term[0][1])
        else:
            rest.append(" and ".join(f"{column} = {value}" for column, value in term))
    return ", or ".join([f"{c} = {' or '.join(values)}" for c, values in alone.items()] + rest)
