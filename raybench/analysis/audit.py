"""How much of a ranking is bookkeeping: the same results read under every accounting and every rule for the step.

A reading is a choice of: how many bits a value costs; which code of the indices is charged; whether messages before the
first round count; whether the downlink counts; and which step of a method is shown. Under each reading a method has a
cost of the target, and so each pair of methods has an order. ``audit`` says which orders hold in every reading, and
of the others what it is that turns them round.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from raybench.analysis.closing import Frames, frames
from raybench.analysis.ordered import ordered
from raybench.analysis.tuned import candidates
from raybench.core.errors import InputError
from raybench.store import booking
from raybench.store.accounting import INDEX_BITS, Accounting, parse

FACTORS = ("values", "indices", "first", "side", "steps")
"""Columns of ``Audit.readings`` that say what a reading is."""

STEPS = ("tuned", "theory", "lowest end")
Term = tuple[tuple[str, str], ...]
"""Conditions (column, value) that hold together."""
MOST_TERMS = 3  # of the shortest rule that is looked for among all


@dataclass(frozen=True)
class Audit:
    """The readings of a results folder, and what they say of each pair of methods.

    readings: a row per facet, reading and method: facet, ``FACTORS``, method, cost (bits per client to the target, inf
    where the median seed misses it), rank (1 is cheapest; NaN where it misses), own (whether this is how the folder is
    read unless told). pairs: a row per facet and pair of methods: facet, better and worse (in the folder's own reading),
    cost_better, cost_worse, decided (readings in which they differ), flipped (those with the other order), unless (the
    readings that turn them round, as a rule; empty where none does). The readings that do not tell them apart are absent (one of them has no such
    step), missed (neither arrives) or equal.
    """

    readings: pd.DataFrame
    pairs: pd.DataFrame


def audit(source: str | os.PathLike[str] | Frames) -> Audit:
    """Return how the order of methods depends on how bits are booked and steps are chosen.

    values: ``dtype``, or 32 where cells are wider. indices: each code of ``Accounting.index_bits``.
    first: whether the messages before round 1 are ``counted`` or ``free``. side: ``up``, or ``up + down``. steps: the one that is
    ``tuned``, one times ``theory``, or the one with the ``lowest end``. The target is that of the folder in all of them.
    Raises InputError where no cell ended ok.
    """
    found = source if isinstance(source, Frames) else frames(source)
    if not (found.cells["status"] == "ok").any():
        fix = "; ".join(found.earlier) or "a folder with results"
        raise InputError.of("audit", "no cell ended ok", fix)
    readings = pd.concat(_readings(found), ignore_index=True)
    return Audit(readings, _pairs(readings))


def _readings(found: Frames) -> Iterator[pd.DataFrame]:
    goals, own = found.goals, parse(found.accounting)
    by_facet = {f: goals if isinstance(goals, float) else goals[f] for f in found.cells["facet"]}
    curves = found.curves.reset_index(drop=True)
    narrow = _telling(curves, curves["facet"].map(by_facet), found.metric)
    wide = bool((curves["cell"].map(_widths(found)) > 32).any())
    widths: list[str | int] = ["dtype", 32] if wide else ["dtype"]
    for values, code, counted in itertools.product(widths, INDEX_BITS, [True, False]):
        how = Accounting(values, code, counted)
        booked, cells = booking.rebook(narrow, found.cells, how)
        both = booked["bits_up"] + booked["bits_down"].fillna(0.0)
        for side, x in (("up", "bits_up"), ("up + down", "bits")):
            rows = ordered(booked.assign(bits=both), [x, found.metric])
            for facet, part in cells.assign(bits=np.nan).groupby("facet", sort=False):
                table = candidates(rows, part, by_facet[facet], "method", found.metric, x)
                table = table[table["eligible"]] if len(table) else table
                for steps in STEPS:
                    best = _chosen(table, steps, found.metric)
                    facts = {"facet": facet, "values": str(values), "indices": code}
                    facts |= {
                        "first": "counted" if counted else "free",
                        "side": side,
                        "steps": steps,
                    }
                    is_own = how == own and side == "up" and steps == "tuned"
                    rank = best["cost"].replace(np.inf, np.nan).rank(method="min")
                    yield best[["method", "cost"]].assign(rank=rank, own=is_own, **facts)


def _telling(curves: pd.DataFrame, goals: pd.Series, y: str) -> pd.DataFrame:
    """Return the rows of curves that a cost can hang on: of each cell the first, the one that comes down to the goal, the last.

    Which row comes down to the goal hangs on no accounting, so that readings need not look at the others.
    """
    curves = curves.sort_values(["cell", "round"], kind="stable")
    there = curves[curves[y] <= goals.loc[curves.index]]
    ends = [curves.drop_duplicates("cell", keep=end).index for end in ("first", "last")]
    keep = there.drop_duplicates("cell").index.union(ends[0]).union(ends[1])
    return curves[curves.index.isin(keep)]


def _widths(found: Frames) -> Mapping[str, int]:
    from raybench.store.accounting import dtype_bits

    return dict(zip(found.cells["cell"], found.cells["config"].map(dtype_bits), strict=True))


def _chosen(table: pd.DataFrame, steps: str, y: str) -> pd.DataFrame:
    """Return a candidate per method. table: as ``candidates`` orders them."""
    if steps == "theory":
        table = table[table["step_multiple"] == 1]
    elif steps == "lowest end":
        table = table.sort_values(y, kind="stable")
    return table.drop_duplicates("method")


def _pairs(readings: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for facet, part in readings.groupby("facet", sort=False):
        costs = part.set_index([*FACTORS, "own", "method"])["cost"].unstack()
        own = costs[costs.index.get_level_values("own")]
        if own.empty:  # such as a width that no reading has: then the first one stands for it
            own = costs.iloc[:1]
        first = own.iloc[0]
        for one, other in itertools.combinations(
            first.dropna().sort_values(kind="stable").index, 2
        ):
            both = costs[[one, other]]
            absent = both.isna().any(axis=1)
            missed = ~absent & ~np.isfinite(both).any(axis=1)
            gap = (both[other] - both[one])[~absent & ~missed]
            equal, gap = int((gap == 0).sum()), gap[gap != 0]
            flipped = gap < 0
            if not first[one] < first[other]:
                continue  # neither arrives: there is no order to turn round
            table = gap.index.to_frame(index=False)[list(FACTORS)]
            rows.append(
                {
                    "facet": facet,
                    "better": one,
                    "worse": other,
                    "cost_better": first[one],
                    "cost_worse": first[other],
                    "decided": len(gap),
                    "flipped": int(flipped.sum()),
                    "unless": explained(table, flipped.to_numpy()),
                    "absent": int(absent.sum()),
                    "missed": int(missed.sum()),
                    "equal": equal,
                }
            )
    heads = [
        "facet",
        "better",
        "worse",
        "cost_better",
        "cost_worse",
        "decided",
        "flipped",
        "unless",
        "absent",
        "missed",
        "equal",
    ]
    return pd.DataFrame(rows, columns=heads)


def explained(table: pd.DataFrame, hit: np.ndarray) -> str:
    """Return a rule for the rows of a table that are hit, empty where none is. The rows differ from one another.

    A rule is some terms, joined by ``or``, each of some conditions ``column = value``: together they hold for the rows that
    are hit, and for no others. Of those with one to three terms of one or two conditions the one with the fewest; where
    there is none, the terms that hold for most of what is left, one after the other.
    """
    if not hit.any():
        return ""
    pure = dict(_pure(table, hit, 1, 2))
    for count in range(1, MOST_TERMS + 1):
        for terms in itertools.combinations(pure, count):
            if (np.logical_or.reduce([pure[term] for term in terms]) == hit).all():
                return _worded(terms)
    pure |= _pure(table, hit, 3, table.shape[1])
    chosen, left = [], hit.copy()
    while left.any() and pure:
        chosen.append(
            max(pure, key=lambda term: (pure[term] & left).sum())
        )  # the shortest of equals
        left = left & ~pure[chosen[-1]]
    return _worded(tuple(chosen))


def _pure(table: pd.DataFrame, hit: np.ndarray, least: int, most: int) -> dict[Term, np.ndarray]:
    """Return the terms of so many conditions that hold for rows which are hit alone, and for which rows."""
    columns = {c: list(dict.fromkeys(table[c])) for c in table if table[c].nunique() > 1}
    holds = {(c, v): (table[c] == v).to_numpy() for c in columns for v in columns[c]}
    found = {}
    for size in range(least, most + 1):
        for names in itertools.combinations(columns, size):
            for values in itertools.product(*(columns[name] for name in names)):
                term = tuple(zip(names, values, strict=True))
                rows = np.logical_and.reduce([holds[condition] for condition in term])
                if rows.any() and not (rows & ~hit).any():
                    found[term] = rows
    return found


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
