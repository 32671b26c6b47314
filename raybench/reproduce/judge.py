"""Judge claims on results: measure both sides of every comparison, and say what their seeds allow to be said.

A number that is not known lies between two bounds (``analysis.measures``), and a verdict has to hold for all that lies
between them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from raybench.analysis.frames import having
from raybench.analysis.measures import COMMON, SeedSample, certain, common_budget, order, sample
from raybench.reproduce.claims import Claim, Reproduction, Side
from raybench.reproduce.evidence import Evidence

AGREES, DISAGREES, UNDECIDED, NOT_RUN = "AGREES", "DISAGREES", "UNDECIDED", "NOT RUN"
HOLDS = "holds"
WORDS = (AGREES, DISAGREES, UNDECIDED, NOT_RUN)
SHOWN = 4  # comparisons that are told one by one; of more the span of their ratios
AGAINST = {"below": "<", "above": ">", "within": "="}


@dataclass(frozen=True)
class Compared:
    """One comparison: which (``dataset: a9a, k: 1``), both sides, its verdict, the p-value of its test (NaN: none)."""

    of: Mapping[str, object]
    left: SeedSample
    right: SeedSample
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
class ClaimVerdict:
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


def judge(what: Reproduction, evidence: Evidence | None) -> list[ClaimVerdict]:
    """Return the verdict of every claim on what was measured; all NOT RUN where nothing was.

    Raises InputError for a column that the results do not have.
    """
    if evidence is None:
        return [ClaimVerdict(claim, ()) for claim in what.claims]
    return [ClaimVerdict(claim, tuple(_compared(what, claim, evidence))) for claim in what.claims]


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
            name: having(cells[name], {k: v for k, v in of.items() if k in each[name]}, name)
            for name in sides
        }
        axes = [s.measure.at[0] for s in sides.values() if s.measure.at[1] == COMMON]
        of_all = pd.concat(parts.values())
        budget = common_budget(evidence.curves, of_all, axes[0]) if axes else math.nan
        left, right = (
            sample(evidence.curves, parts[name], side.measure, budget, claim.spread)
            if isinstance(side, Side)
            else certain(float(side), float(side))
            for name, side in both.items()
        )
        yield Compared(of, left, right, *held(claim, left, right))


def held(claim: Claim, left: SeedSample, right: SeedSample) -> tuple[str, float]:
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


def _below(a: SeedSample, b: SeedSample, pairs: bool = False) -> tuple[str, float]:
    """Return whether a is below b, whatever lies between their bounds, and the p-value."""
    less, p_value = order(a, a.upper, b, b.lower, pairs)
    if less:
        return AGREES, p_value
    less, at_best = order(a, a.lower, b, b.upper, pairs)
    if less is False:
        return DISAGREES, at_best
    in_doubt = not all(side.lower.equals(side.upper) for side in (a, b))
    return (NOT_RUN if in_doubt else UNDECIDED), p_value


# In words ---------------------------------------------------------------------------------------------


def totals(verdicts: Iterable[ClaimVerdict], published: bool) -> list[int]:
    """Return how many claims have each of the ``WORDS``: of those that a source has published, or of our own."""
    words = [v.word for v in verdicts if bool(v.claim.published) == published]
    return [words.count(word) for word in WORDS]


def measured_words(verdict: ClaimVerdict) -> str:
    """Return the figures of a verdict: each comparison where they are few, else how far apart the sides are."""
    every = verdict.compared
    if all(comparison.unknown for comparison in every):
        return "not run"
    if len(every) == 1:
        return figures(verdict, every[0])
    said = Counter(outcome(comparison) for comparison in every)
    others = [f"{word} in {n}" for word, n in sorted(said.items()) if word != HOLDS]
    head = ", ".join([f"holds in {said[HOLDS]} of {len(every)}", *others])
    if len(every) <= SHOWN:
        each = (f"{comparison.where}: {figures(verdict, comparison)}" for comparison in every)
        return f"{head}: {'; '.join(each)}"
    values = [(comparison.left.value, comparison.right.value) for comparison in every]
    ratios = [x / y for x, y in values if y and math.isfinite(x) and math.isfinite(y)]
    if ratios:
        head += f"; left / right from {min(ratios):.3g} to {max(ratios):.3g}"
    tests = [c.p_value for c in every if not math.isnan(c.p_value)]
    return f"{head}; p from {min(tests):.2g} to {max(tests):.2g}" if tests else head


def outcome(comparison: Compared) -> str:
    """Return what became of a comparison, in a word: one that lacks a number since a run ended early is censored."""
    if comparison.word == NOT_RUN and not comparison.unknown:
        return "censored"
    return {AGREES: HOLDS, DISAGREES: "fails", UNDECIDED: "inconclusive"}.get(
        comparison.word, "not run"
    )


def figures(verdict: ClaimVerdict, comparison: Compared) -> str:
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
        said += f", whose ranges overlap: {' and '.join(ranges)}"
    return f"{text} ({said})"


def details(verdict: ClaimVerdict, every: bool = False) -> Iterator[str]:
    """Yield a line for each comparison that does not agree, or for every one."""
    if len(verdict.compared) == 1 and not every:
        return
    for comparison in verdict.compared:
        if every or (comparison.word != AGREES and verdict.word not in (AGREES, NOT_RUN)):
            where = comparison.where or "all cells"
            yield f"{outcome(comparison)}  {where}: {figures(verdict, comparison)}"


def value(of: SeedSample) -> str:
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
