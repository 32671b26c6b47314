"""Judge claims on results: measure both sides of every comparison, and say what their seeds allow to be said.

What is not known is never filled in: a number lies between two bounds, and a verdict has to hold for all that lies
between them. A cost that was not reached is at least what was spent; of a cell that failed nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from raybench.analysis import first_crossing
from raybench.analysis.statistics import paired
from raybench.reproduce.claims import COMMON, END, Claim, Measure, Reproduction, Side
from raybench.reproduce.evidence import Evidence, check_column, having

CANDIDATE = ["facet", "series", "step"]  # cells that differ in the seed alone
AGREES, DISAGREES, UNDECIDED, NOT_RUN = "AGREES", "DISAGREES", "UNDECIDED", "NOT RUN"
WORDS = (AGREES, DISAGREES, UNDECIDED, NOT_RUN)
LEVEL = 0.05  # of the test over seeds
TESTED = 6  # the fewest pairs of seeds that can have a p-value of LEVEL: 2 / 2^6
SHOWN = 4  # comparisons that are told one by one; of more the span of their ratios
AGAINST = {"below": "<", "above": ">", "within": "="}
SPENT = 0.9  # the share of a budget from which on a curve that ends there is taken to have spent it


@dataclass(frozen=True, eq=False)
class Sample:
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

    def times(self, factor: float) -> Sample:
        """This sample, multiplied by a number."""
        ends = (self.lower * factor, self.upper * factor)
        return Sample(*(ends if factor >= 0 else ends[::-1]), self.drawn, self.spread)

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


NOTHING = Sample(pd.Series(dtype=float), pd.Series(dtype=float))


@dataclass(frozen=True)
class Compared:
    """One comparison: which (``dataset: a9a, k: 1``), both sides, its verdict, the p-value of its test (NaN: none)."""

    of: Mapping[str, object]
    left: Sample
    right: Sample
    word: str
    p_value: float = math.nan

    @property
    def unknown(self) -> bool:
        """Whether a side has no cells, or none of which anything is known."""
        ends = [(side.least, side.value) for side in (self.left, self.right)]
        return any(
            math.isnan(value) or end == (-math.inf, math.inf) for end in ends for value in end
        )

    @property
    def where(self) -> str:
        """The combination in words."""
        numbers = (float, np.floating)
        words = {k: f"{v:g}" if isinstance(v, numbers) else str(v) for k, v in self.of.items()}
        return ", ".join(f"{key.rpartition('.')[2]} {word}" for key, word in words.items())


@dataclass(frozen=True)
class Verdict:
    """What came out for one claim."""

    claim: Claim
    compared: tuple[Compared, ...]

    @property
    def words(self) -> list[str]:
        """The verdicts of its comparisons."""
        return [comparison.word for comparison in self.compared]

    @property
    def word(self) -> str:
        """AGREES where all comparisons do, DISAGREES where one does, else NOT RUN or UNDECIDED for what they lack."""
        decisive = (DISAGREES, NOT_RUN, UNDECIDED, AGREES)
        return next((word for word in decisive if word in self.words), NOT_RUN)


def judge(what: Reproduction, evidence: Evidence | None) -> list[Verdict]:
    """Return the verdict of every claim on what was measured; all NOT RUN where nothing was.

    Raises InputError for a column that the results do not have.
    """
    if evidence is None:
        return [Verdict(claim, ()) for claim in what.claims]
    return [Verdict(claim, tuple(_compared(what, claim, evidence))) for claim in what.claims]


def _compared(what: Reproduction, claim: Claim, evidence: Evidence) -> Iterator[Compared]:
    both = {"left": claim.left, "right": claim.right}
    sides = {name: side for name, side in both.items() if isinstance(side, Side)}
    each = {name: claim.each if s.each is None else s.each for name, s in sides.items()}
    cells = {
        name: evidence.meant(side.where, f"{what.name}.{claim.name}.{name}", each[name])
        for name, side in sides.items()
    }
    every = pd.concat([cells[name] for name in sides if each[name] == claim.each])
    keys = list(claim.each)
    combinations = every[keys].drop_duplicates().sort_values(keys) if keys else pd.DataFrame([{}])
    for of in combinations.to_dict("records") if len(every) else []:
        parts = {
            name: having(cells[name], {k: v for k, v in of.items() if k in each[name]})
            for name in sides
        }
        budget = _budget(evidence.curves, sides.values(), pd.concat(parts.values()))
        left, right = (
            _measured(evidence, parts[name], side.measure, budget, claim.spread)
            if isinstance(side, Side)
            else _certain(float(side), float(side))
            for name, side in both.items()
        )
        yield Compared(of, left, right, *held(claim, left, right))


def held(claim: Claim, left: Sample, right: Sample) -> tuple[str, float]:
    """Return the verdict of one comparison, and the p-value of its test, NaN where there are too few seeds for one.

    Two sides have an order where, of six seeds and more that both have, Wilcoxon's signed-rank test has p <= 0.05, and
    of fewer, where the ranges of the seeds do not overlap. ``within`` is no order beyond the tolerance, in either
    direction, where fewer than six seeds are compared in pairs.
    """
    if not len(left.upper) or not len(right.upper):
        return NOT_RUN, math.nan
    right = right.times(claim.factor)
    if claim.relation == "below":
        return _below(left, right)
    if claim.relation == "above":
        return _below(right, left)
    ends = (right.times(1 + side * claim.tolerance) for side in (-1, 1))
    low, high = sorted(ends, key=lambda end: end.value)
    apart = (_below(left, low, True), _below(high, left, True))
    words = [word for word, _ in apart]
    p_value = max(p for _, p in apart)
    if AGREES in words:
        return DISAGREES, p_value
    if words == [DISAGREES, DISAGREES]:
        return AGREES, p_value
    return (NOT_RUN if NOT_RUN in words else UNDECIDED), p_value


def _below(a: Sample, b: Sample, pairs: bool = False) -> tuple[str, float]:
    """Return whether a is below b, whatever lies between their bounds, and the p-value."""
    less, p_value = _ordered(a, a.upper, b, b.lower, pairs)
    if less:
        return AGREES, p_value
    less, at_best = _ordered(a, a.lower, b, b.upper, pairs)
    if less is False:
        return DISAGREES, at_best
    in_doubt = not all(side.lower.equals(side.upper) for side in (a, b))
    return (NOT_RUN if in_doubt else UNDECIDED), p_value


def _ordered(
    a: Sample, x: pd.Series, b: Sample, y: pd.Series, pairs: bool
) -> tuple[bool | None, float]:
    """Return whether seeds x are below seeds y, None where they do not tell, and the p-value of a test."""
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


def _certain(lower: float, upper: float) -> Sample:
    """Return a number in which no seed enters, between its bounds."""
    return Sample(pd.Series([lower]), pd.Series([upper]), drawn=False)


def _budget(curves: pd.DataFrame, sides: Iterable[Side], cells: pd.DataFrame) -> float:
    """Return the largest budget that every cell that ended ok has spent, where a measure asks for that."""
    axes = [side.measure.at[0] for side in sides if side.measure.at[1] == COMMON]
    if not axes:
        return math.nan
    ids = cells.loc[cells["status"] == "ok", "cell"]
    return float(curves[curves["cell"].isin(ids)].groupby("cell")[axes[0]].max().min())


def _measured(
    evidence: Evidence, cells: pd.DataFrame, measure: Measure, budget: float, spread: float | None
) -> Sample:
    """Return what is measured of some cells: of the step and K that is best by the median over seeds, every seed's number."""
    if measure.kind == "column":
        check_column(measure.of, cells, "measure.column")
        values = cells[measure.of].astype(float)
        return _certain(values.median(), values.median()) if len(cells) else NOTHING
    cells = cells[cells["status"] != "skipped"]  # no setting that can be run
    if cells.empty:
        return NOTHING
    if measure.kind == "ended":
        so = cells["status"] == measure.of
        open_ = ~cells["status"].isin(["ok", "diverged"]) & ~so
        return _certain(so.mean(), (so | open_).mean())
    for name in measure.columns:
        check_column(name, evidence.curves, "measure")
    bounds = _bounds(evidence.curves, cells, measure, budget)
    highest = measure.best == "highest"
    groups = cells[[*CANDIDATE, "seed"]].assign(lower=bounds["lower"], upper=bounds["upper"])
    groups["missed"] = (cells["status"] != "failed") & ~np.isfinite(bounds["upper"])
    candidates = [part.set_index("seed") for _, part in groups.groupby(CANDIDATE, dropna=False)]
    if measure.kind == "cost":
        # as in every table, a setting that loses a seed is not preferred to one that loses none
        candidates = [part for part in candidates if not part["missed"].any()] or candidates
    ends = []
    for end in ("lower", "upper"):
        numbers = [part[end].rename(None).sort_index() for part in candidates]
        ends.append((max if highest else min)(numbers, key=lambda series: float(series.median())))
    return Sample(ends[0], ends[1], spread=spread)


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


# In words ---------------------------------------------------------------------------------------------


def totals(verdicts: Iterable[Verdict], published: bool) -> list[int]:
    """Return how many claims have each of the ``WORDS``: of those that a source has published, or of our own."""
    words = [v.word for v in verdicts if bool(v.claim.published) == published]
    return [words.count(word) for word in WORDS]


def measured_words(verdict: Verdict) -> str:
    """Return the figures of a verdict: each comparison where they are few, else how far apart the sides are."""
    every = verdict.compared
    if all(comparison.unknown for comparison in every):
        return "not run"
    if len(every) == 1:
        return figures(verdict, every[0])
    head = f"{verdict.words.count(AGREES)} of {len(every)}"
    if len(every) <= SHOWN:
        each = (f"{comparison.where}: {figures(verdict, comparison)}" for comparison in every)
        return f"{head}: {'; '.join(each)}"
    values = [(comparison.left.value, comparison.right.value) for comparison in every]
    ratios = [x / y for x, y in values if y and math.isfinite(x) and math.isfinite(y)]
    if ratios:
        head += f"; left / right from {min(ratios):.3g} to {max(ratios):.3g}"
    tests = [c.p_value for c in every if not math.isnan(c.p_value)]
    return f"{head}; p from {min(tests):.2g} to {max(tests):.2g}" if tests else head


def figures(verdict: Verdict, comparison: Compared) -> str:
    """Return both numbers of a comparison, ``0.012 against 0.31``, with the factor, and what their seeds say."""
    if comparison.unknown:
        return "not run"
    claim = verdict.claim
    factor = f"{claim.factor:g} × " if claim.factor != 1 else ""
    if isinstance(claim.right, Side):
        text = f"{value(comparison.left)} against {factor}{value(comparison.right)}"
    else:
        band = f" ± {100 * claim.tolerance:g} %" if claim.relation == "within" else ""
        text = f"{value(comparison.left)} (asked {AGAINST[claim.relation]} {factor}{claim.right:g}{band})"
    seeds = max(comparison.left.seeds, comparison.right.seeds)
    if seeds == 0 or (seeds == 1 and claim.spread == 0):
        return text
    said = f"{seeds} seeds" if seeds > 1 else "one seed"
    if seeds == 1 and claim.spread is not None:
        said += f", taken to be within {100 * claim.spread:g} % of others"
    elif not math.isnan(comparison.p_value):
        said += f", p = {comparison.p_value:.2g}"
    elif seeds > 1 and comparison.word == UNDECIDED:
        sides = [side for side in (comparison.left, comparison.right) if side.seeds]
        ranges = (f"{number(s.lower.min())} to {number(s.upper.max())}" for s in sides)
        said += f": {' against '.join(ranges)}"
    return f"{text} ({said})"


def details(verdict: Verdict, every: bool = False) -> Iterator[str]:
    """Yield a line for each comparison that does not agree, or for every one."""
    if len(verdict.compared) == 1 and not every:
        return
    for comparison in verdict.compared:
        if every or (comparison.word != AGREES and verdict.word not in (AGREES, NOT_RUN)):
            yield f"{comparison.word.lower()}  {comparison.where or 'all cells'}: {figures(verdict, comparison)}"


def value(of: Sample) -> str:
    """Return a number; ``more than`` what was spent where a target was not reached, ``at most`` where another run may be better."""
    if of.least == of.value:
        return number(of.value)
    if math.isinf(of.value):
        return f"more than {number(of.least)}" if math.isfinite(of.least) else "unknown"
    return f"at most {number(of.value)}"


def number(value: float) -> str:
    """Return a number with three digits, ``never`` for a cost that is infinite."""
    if math.isinf(value):
        return "never" if value > 0 else "-inf"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e5 else f"{value:.3g}"
