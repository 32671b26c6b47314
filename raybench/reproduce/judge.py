"""Judge claims on results: measure both sides of every comparison, count those that hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from raybench.analysis import first_crossing
from raybench.analysis.significance import paired
from raybench.core.errors import InputError, nearest
from raybench.reproduce.claims import COMMON, Claim, Measure, Reproduction, Side
from raybench.reproduce.evidence import Evidence

CANDIDATE = ["facet", "series", "step"]  # cells that differ in the seed alone
PASS, FAIL, NOT_RUN = "PASS", "FAIL", "NOT RUN"


@dataclass(frozen=True)
class Compared:
    """One comparison: which (``dataset: a9a, k: 1``), both measured numbers, whether the claim holds there.

    holds: None where a side has no cells. p_value: of the test over seeds that the claim asks for, else NaN.
    """

    of: Mapping[str, object]
    left: float
    right: float
    holds: bool | None
    p_value: float = math.nan

    @property
    def where(self) -> str:
        """The combination in words."""
        return ", ".join(f"{key.rpartition('.')[2]} {_word(v)}" for key, v in self.of.items())


@dataclass(frozen=True)
class Verdict:
    """What came out for one claim."""

    claim: Claim
    compared: tuple[Compared, ...]

    @property
    def holding(self) -> int:
        """How many comparisons hold."""
        return sum(one.holds is True for one in self.compared)

    @property
    def needed(self) -> int:
        """How many have to."""
        return len(self.compared) if self.claim.needed is None else self.claim.needed

    @property
    def word(self) -> str:
        """PASS, FAIL, or NOT RUN where what has not been run could still make it pass."""
        missing = sum(one.holds is None for one in self.compared)
        if self.compared and self.holding >= self.needed:
            return PASS
        return NOT_RUN if not self.compared or self.holding + missing >= self.needed else FAIL


def judge(what: Reproduction, found: Evidence | None) -> list[Verdict]:
    """Return the verdict of every claim on what was measured; all NOT RUN where nothing was.

    Raises InputError for a column that the results do not have.
    """
    if found is None:
        return [Verdict(claim, ()) for claim in what.claims]
    return [Verdict(claim, tuple(_compared(what, claim, found))) for claim in what.claims]


def _compared(what: Reproduction, claim: Claim, found: Evidence) -> list[Compared]:
    where = f"{what.name}.{claim.name}"
    sides = [("left", claim.left)]
    if isinstance(claim.right, Side):
        sides.append(("right", claim.right))
    cells = {name: _chosen(found, side, claim.each, f"{where}.{name}") for name, side in sides}
    every = pd.concat([cells[n] for n, s in sides if s.each is None or s.each == claim.each])
    combinations = every[list(claim.each)].drop_duplicates() if claim.each else pd.DataFrame([{}])
    rows = []
    for key in combinations.to_dict("records") if len(every) else []:
        parts = {name: _part(cells[name], key, side.each) for name, side in sides}
        budget = _budget(found, claim, parts)
        left, seeds = _measured(found, parts["left"], claim.left.measure, budget)
        p_value = math.nan
        if isinstance(claim.right, Side):
            right, others = _measured(found, parts["right"], claim.right.measure, budget)
            if claim.significance is not None:
                p_value = _p_value(claim, seeds, others)
        else:
            right = float(claim.right)
        of = {str(name): value for name, value in key.items()}
        rows.append(Compared(of, left, right, holds(claim, left, right, p_value), p_value))
    return sorted(rows, key=lambda one: [_order(value) for value in one.of.values()])


def holds(claim: Claim, left: float, right: float, p_value: float = math.nan) -> bool | None:
    """Return whether a comparison of two measured numbers is as claimed; None where one was not measured."""
    if math.isnan(left) or math.isnan(right):
        return None
    if claim.significance is not None:
        if math.isnan(p_value):
            return None
        if p_value > claim.significance:
            return False
    if claim.relation == "below":
        return left < claim.factor * right
    if claim.relation == "above":
        return left > claim.factor * right
    if math.isinf(left) or math.isinf(right):  # what was never reached is near to nothing
        return False
    return abs(left - claim.factor * right) <= claim.tolerance * abs(claim.factor * right)


def _p_value(claim: Claim, left: pd.Series, right: pd.Series) -> float:
    """Return how probable seeds that differ as much are if the sides are alike; NaN without seeds that both have."""
    both = left.index.intersection(right.index)
    one, other = (side[both].replace(-math.inf, 0.0) for side in (left, right))  # a run that failed
    if min(one.min(), other.min()) < 0:
        raise InputError.of(f"{claim.name}.significance", "ratios need numbers from 0")
    return paired(claim.factor * other.to_numpy(), one.to_numpy()).p_value


def _chosen(found: Evidence, side: Side, each: Sequence[str], where: str) -> pd.DataFrame:
    """Return the cells that a side means, with the columns that it asks for."""
    cells = found.cells
    asked = [*side.where, *(side.each if side.each is not None else each)]
    for name in asked:
        if name not in cells:
            column = found.config(name)
            if column is None:
                raise InputError.of(
                    where, f"unknown column {name!r}", nearest(name, map(str, cells))
                )
            cells = cells.assign(**{name: column})
    keep = pd.Series(True, index=cells.index)
    for name, wanted in side.where.items():
        values = wanted if isinstance(wanted, list) else [wanted]
        keep &= cells[name].isin(values)
    return cells[keep]


def _part(
    cells: pd.DataFrame, key: Mapping[str, object], each: Sequence[str] | None
) -> pd.DataFrame:
    for name, value in key.items():
        if each is None or name in each:
            cells = cells[cells[name].isna() if pd.isna(value) else cells[name] == value]
    return cells


def _budget(found: Evidence, claim: Claim, parts: Mapping[str, pd.DataFrame]) -> float:
    """Return the largest budget that every cell that ended ok has spent, where a measure asks for that."""
    sides = [claim.left, *([claim.right] if isinstance(claim.right, Side) else [])]
    axes = {
        s.measure.at[0]
        for s in sides
        if isinstance(s.measure.at, tuple) and s.measure.at[1] == COMMON
    }
    if not axes:
        return math.nan
    cells = pd.concat(parts.values())
    ids = cells.loc[cells["status"] == "ok", "cell"]
    rows = found.curves[found.curves["cell"].isin(ids)]
    return float(rows.groupby("cell")[axes.pop()].max().min())


def _measured(
    found: Evidence, cells: pd.DataFrame, measure: Measure, budget: float
) -> tuple[float, pd.Series]:
    """Return one number of some cells, the median over seeds, then the best over what else varies; and its seeds' numbers."""
    alone = pd.Series(dtype=float)
    if cells.empty:
        return math.nan, alone
    if measure.kind == "ended":
        return float((cells["status"] == measure.of).mean()), alone
    if measure.kind == "column":
        if measure.of not in cells:
            raise InputError.of(
                "measure.column",
                f"unknown column {measure.of!r}",
                nearest(measure.of, map(str, cells)),
            )
        values = cells[measure.of].astype(float)
        return float(values.median()), alone
    for name in measure.columns:
        if name not in found.curves:
            raise InputError.of(
                "measure", f"unknown column {name!r}", nearest(name, map(str, found.curves))
            )
    rows = found.curves[found.curves["cell"].isin(cells["cell"])]
    worst = -math.inf if measure.best == "highest" else math.inf
    numbers = (
        cells["cell"].map(_numbers(rows, measure, budget)).where(cells["status"] == "ok", worst)
    )
    groups = cells[[*CANDIDATE, "seed"]].assign(number=numbers).groupby(CANDIDATE, dropna=False)
    candidates = [own.set_index("seed")["number"].dropna() for _, own in groups]
    ranked = sorted((own for own in candidates if len(own)), key=lambda own: float(own.median()))
    if not ranked:
        return math.nan, alone
    if measure.best == "median":
        return float(np.median([own.median() for own in ranked])), alone
    chosen = ranked[-1 if measure.best == "highest" else 0]
    return float(chosen.median()), chosen


def _numbers(rows: pd.DataFrame, measure: Measure, budget: float) -> pd.Series:
    """Return what is measured of each curve, by cell; cells of which nothing is known are missing."""
    if measure.kind == "cost":
        return first_crossing(rows, measure.target, measure.of, measure.y)
    if isinstance(measure.at, tuple):
        x, limit = measure.at
        rows = rows[rows[x] <= (budget if limit == COMMON else limit)]
    known = rows[rows[measure.of].notna()].sort_values("round", kind="stable")
    if measure.kind == "rate":
        known = known[known[measure.of] > 0]
        slopes = {
            cell: np.polyfit(own[measure.per].astype(float), np.log10(own[measure.of]), 1)[0]
            for cell, own in known.groupby("cell")
            if len(own) > 1
        }
        return pd.Series(slopes, dtype=float)
    values = known.groupby("cell")[measure.of]
    how = {"value": values.last, "lowest": values.min, "highest": values.max}
    return how[measure.kind]().astype(float)


def _order(value: object) -> tuple[bool, float, str]:
    """Return what values are sorted by: numbers by size, then texts."""
    number = isinstance(value, int | float | np.number)
    return (not number, float(value) if number else 0.0, str(value))  # type: ignore[arg-type]


def _word(value: object) -> str:
    return f"{value:g}" if isinstance(value, float | np.floating) else str(value)
