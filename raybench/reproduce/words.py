"""What came out of a claim, in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from raybench.reproduce.claims import Side
from raybench.reproduce.judge import AGREES, NOT_RUN, UNDECIDED, WORDS, Compared, Number, Verdict

SHOWN = 4  # comparisons that are told one by one; of more the span of their ratios
AGAINST = {"below": "<", "above": ">", "within": "="}


def totals(verdicts: Iterable[Verdict], published: bool) -> list[int]:
    """Return how many claims have each of the ``WORDS``: of those that a source has published, or of our own."""
    said = [one.word for one in verdicts if bool(one.claim.published) == published]
    return [said.count(word) for word in WORDS]


def measured(verdict: Verdict) -> str:
    """Return the figures of a verdict: each comparison where they are few, else how far apart the sides are."""
    every = verdict.compared
    if all(_nothing(one) for one in every):
        return "not run"
    if len(every) == 1:
        return figures(verdict, every[0])
    head = f"{verdict.count(AGREES)} of {len(every)}"
    if verdict.needed != len(every):
        head += f", {verdict.needed} needed"
    if len(every) <= SHOWN:
        each = (f"{one.where}: {figures(verdict, one)}" for one in every)
        return f"{head}: {'; '.join(each)}"
    values = [(one.left.value, one.right.value) for one in every]
    ratios = [x / y for x, y in values if y and math.isfinite(x) and math.isfinite(y)]
    if ratios:
        head += f"; left / right from {min(ratios):.3g} to {max(ratios):.3g}"
    return head + _tests(every)


def figures(verdict: Verdict, one: Compared) -> str:
    """Return both numbers of a comparison, ``0.012 against 0.31``, with the factor, and what their seeds say."""
    if _nothing(one):
        return "not run"
    claim = verdict.claim
    factor = f"{claim.factor:g} × " if claim.factor != 1 else ""
    if isinstance(claim.right, Side):
        text = f"{value(one.left)} against {factor}{value(one.right)}"
    else:
        band = f" ± {100 * claim.tolerance:g} %" if claim.relation == "within" else ""
        text = f"{value(one.left)} (asked {AGAINST[claim.relation]} {factor}{claim.right:g}{band})"
    seeds = max(one.left.seeds, one.right.seeds)
    if seeds == 0 or (seeds == 1 and claim.spread == 0):
        return text
    if seeds == 1:
        off = (
            ""
            if claim.spread is None
            else f", taken to be within {100 * claim.spread:g} % of others"
        )
        return f"{text} (one seed{off})"
    if not math.isnan(one.p_value):
        return f"{text} ({seeds} seeds, p = {one.p_value:.2g})"
    if one.word != UNDECIDED:
        return f"{text} ({seeds} seeds)"
    ranges = (f"{number(n.low)} to {number(n.high)}" for n in (one.left, one.right) if n.seeds)
    return f"{text} ({seeds} seeds: {' against '.join(ranges)})"


def details(verdict: Verdict, every: bool = False) -> Iterator[str]:
    """Yield a line for each comparison that does not agree, or for every one."""
    if len(verdict.compared) == 1 and not every:
        return
    for one in verdict.compared:
        if every or (one.word != AGREES and verdict.word not in (AGREES, NOT_RUN)):
            yield f"{one.word.lower()}  {one.where or 'all cells'}: {figures(verdict, one)}"


def value(of: Number) -> str:
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


def _nothing(one: Compared) -> bool:
    """Whether a side of a comparison has no cells, or none of which anything is known."""
    sides = (one.left, one.right)
    return any(math.isnan(n.value) or (n.least == -math.inf and n.value == math.inf) for n in sides)


def _tests(every: Iterable[Compared]) -> str:
    tests = [one.p_value for one in every if not math.isnan(one.p_value)]
    return f"; p from {min(tests):.2g} to {max(tests):.2g}" if tests else ""
