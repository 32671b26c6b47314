"""What is measured of cells: a number of each, between bounds where it is not known, and which of two samples is lower.

What is not known is never filled in: a cost that was not reached is at least what was spent; of a cell that failed
nothing is known. Over seeds the median counts, and of several steps or K the best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from raybench.analysis.curves import first_crossing
from raybench.analysis.frames import check_column
from raybench.analysis.statistics import paired
from raybench.core.params import Choice, Number, Text, record

COMMON = "common"  # the largest budget that every cell of a comparison has spent
END = "end"
CANDIDATE = ["facet", "series", "step"]  # cells that differ in the seed alone
SPENT = 0.9  # the share of a budget from which on a curve that ends there is taken to have spent it
LEVEL = 0.05  # of the test over seeds
TESTED = 6  # the fewest pairs of seeds that can have a p-value of LEVEL: 2 / 2^6


@record
class Measure:
    """What is measured of some cells: one number of each, its median over seeds, the best over what else varies.

    kind: ``cost``, the ``of`` spent when ``y`` first comes down to ``target``, inf if it never does; ``value`` of a
    column at the last row that has spent no more than the budget ``at``; the ``lowest`` or ``highest`` recorded; the
    ``rate``, the slope of the line that fits log10 of the column best over rounds; the share of cells that ``ended``
    so; the median of a ``column`` of a script's table. best: which of several steps or K is meant.
    """

    kind: str
    of: str
    at: tuple[str, float | str]
    y: str = Text("grad_norm_sq")
    target: float = Number(math.nan, low=0, open_low=True)
    best: str = Choice("lowest", "highest")

    @property
    def columns(self) -> set[str]:
        """The columns of curves that it reads."""
        if self.kind == "ended":
            return set()
        return {self.of, self.y if self.kind == "cost" else self.at[0]}


@dataclass(frozen=True, eq=False)
class SeedSample:
    """What is measured of one side, by seed, between bounds: those of the step or K that is best by each bound.

    drawn: whether another seed would give another number. spread: how far one seed alone may be off, None if not known.
    """

    lower: pd.Series
    upper: pd.Series
    drawn: bool = True
    spread: float | None = None

    @property
    def value(self) -> float:
        """The median over seeds, inf where a target was never reached."""
        return float(self.upper.median())

    @property
    def least(self) -> float:
        """What the value is at least, where it is not known."""
        return float(self.lower.median())

    @property
    def seeds(self) -> int:
        """How many seeds, 0 where none enters."""
        return len(self.upper) if self.drawn else 0

    def times(self, factor: float) -> SeedSample:
        """This sample, multiplied by a number."""
        ends = (self.lower * factor, self.upper * factor)
        return SeedSample(*(ends if factor >= 0 else ends[::-1]), self.drawn, self.spread)

    def reach(self, values: pd.Series) -> tuple[float, float]:
        """Return between what a seed lies: of several the lowest and highest, of one what ``spread`` allows."""
        low, high = float(values.min()), float(values.max())
        if not self.drawn or len(values) > 1:
            return low, high
        if self.spread is None:
            return -math.inf, math.inf
        if math.isinf(low):
            return low, high
        return low - self.spread * abs(low), high + self.spread * abs(high)


NOTHING = SeedSample(pd.Series(dtype=float), pd.Series(dtype=float))


def certain(lower: float, upper: float) -> SeedSample:
    """Return a number in which no seed enters, between its bounds."""
    return SeedSample(pd.Series([lower]), pd.Series([upper]), drawn=False)


def order(
    a: SeedSample, x: pd.Series, b: SeedSample, y: pd.Series, pairs: bool = False
) -> tuple[bool | None, float]:
    """Return whether seeds x of a are below seeds y of b, None where they do not tell, and the p-value of a test.

    Of six seeds or more that both have, Wilcoxon's signed-rank test tells; of fewer, whether their ranges overlap, or
    with ``pairs`` whether all seeds say the same.
    """
    if a.drawn != b.drawn:  # a number that no seed changes faces every seed
        x, y = (
            v if side.drawn else pd.Series(v.iloc[0], w.index)
            for side, v, w in ((a, x, y), (b, y, x))
        )
    both = x.index.intersection(y.index) if a.drawn or b.drawn else x.index[:0]
    left, right = (v[both].replace(-math.inf, 0.0) for v in (x, y))  # ratios follow
    if len(both) >= TESTED and min(left.min(), right.min()) >= 0:
        if (left == right).all():
            return False, math.nan
        test = paired(right.to_numpy(), left.to_numpy())
        return (test.effect < 0 if test.p_value <= LEVEL else None), test.p_value
    if pairs and len(both) > 1:
        less = x[both] < y[both]
        return (bool(less.all()) if less.all() or not less.any() else None), math.nan
    (low_x, high_x), (low_y, high_y) = a.reach(x), b.reach(y)
    if high_x < low_y:
        return True, math.nan
    return (False if low_x >= high_y else None), math.nan


# Of cells ---------------------------------------------------------------------------------------------


def common_budget(curves: pd.DataFrame, cells: pd.DataFrame, axis: str) -> float:
    """Return the largest budget, of a column of curves, that every cell that ended ok has spent."""
    ids = cells.loc[cells["status"] == "ok", "cell"]
    return float(curves[curves["cell"].isin(ids)].groupby("cell")[axis].max().min())


def sample(
    curves: pd.DataFrame,
    cells: pd.DataFrame,
    measure: Measure,
    budget: float = math.nan,
    spread: float | None = None,
) -> SeedSample:
    """Return what is measured of described cells: of the step and K that is best by the median over seeds, every seed's number.

    budget: what ``common`` stands for. Raises InputError for a column that there is not.
    """
    if measure.kind == "column":
        check_column(measure.of, cells, "measure.column")
        values = cells[measure.of].astype(float)
        return certain(values.median(), values.median()) if len(cells) else NOTHING
    cells = cells[cells["status"] != "skipped"]  # no setting that can be run
    if cells.empty:
        return NOTHING
    if measure.kind == "ended":
        so = cells["status"] == measure.of
        open_ = ~cells["status"].isin(["ok", "diverged"]) & ~so
        return certain(so.mean(), (so | open_).mean())
    for name in measure.columns:
        check_column(name, curves, "measure")
    bounds = _bounds(curves, cells, measure, budget)
    groups = cells[[*CANDIDATE, "seed"]].assign(lower=bounds["lower"], upper=bounds["upper"])
    groups["missed"] = (cells["status"] != "failed") & ~np.isfinite(bounds["upper"])
    candidates = [part.set_index("seed") for _, part in groups.groupby(CANDIDATE, dropna=False)]
    if measure.kind == "cost":
        # as in every table, a setting that loses a seed is not preferred to one that loses none
        candidates = [part for part in candidates if not part["missed"].any()] or candidates
    best = max if measure.best == "highest" else min
    lower, upper = (
        best((part[end].sort_index() for part in candidates), key=pd.Series.median)
        for end in ("lower", "upper")
    )
    return SeedSample(lower, upper, spread=spread)


def _bounds(
    curves: pd.DataFrame, cells: pd.DataFrame, measure: Measure, budget: float
) -> pd.DataFrame:
    """Return between what the number of each cell lies, at the index of the cells.

    Known: what a whole curve gives; of a cell that diverged the worst; of a cost what was spent, which it is at least.
    Of the cells that failed, and of curves that end before the budget or before the rounds that their cell has done,
    nothing.
    """
    rows = curves[curves["cell"].isin(cells["cell"])]
    numbers = cells["cell"].map(_numbers(rows, measure, budget))
    diverged = cells["status"] == "diverged"
    worst = -math.inf if measure.best == "highest" else math.inf
    if measure.kind == "cost":
        spent = cells["cell"].map(rows.groupby("cell")[measure.of].max()).fillna(0.0)
        lower = numbers.where(np.isfinite(numbers), spent.where(~diverged, worst))
        upper, finished = numbers.fillna(worst), cells["status"] != "failed"
    else:
        x, limit = measure.at
        last = cells["cell"].map(rows.groupby("cell")[x].max())
        asked = cells.get("rounds", -math.inf) if limit == END else -math.inf
        whole = last >= (asked if limit in (END, COMMON) else SPENT * float(limit))
        lower = upper = numbers.where(~diverged, worst)
        finished = diverged | ((cells["status"] == "ok") & numbers.notna() & whole)
    return pd.DataFrame(
        {"lower": lower.where(finished, -math.inf), "upper": upper.where(finished, math.inf)}
    )


def _numbers(rows: pd.DataFrame, measure: Measure, budget: float) -> pd.Series:
    """Return what is measured of each curve, by cell; cells of which nothing is known are missing."""
    if measure.kind == "cost":
        return first_crossing(rows, measure.target, measure.of, measure.y)
    x, limit = measure.at
    if limit != END:
        rows = rows[rows[x] <= (budget if limit == COMMON else limit)]
    recorded = rows[rows[measure.of].notna()].sort_values("round", kind="stable")
    if measure.kind == "rate":
        recorded = recorded[recorded[measure.of] > 0]
        slopes = {
            cell: np.polyfit(curve["round"].astype(float), np.log10(curve[measure.of]), 1)[0]
            for cell, curve in recorded.groupby("cell")
            if len(curve) > 1
        }
        return pd.Series(slopes, dtype=float)
    values = recorded.groupby("cell")[measure.of]
    how = {"value": "last", "lowest": "min", "highest": "max"}[measure.kind]
    return values.agg(how).astype(float)
