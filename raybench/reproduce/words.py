"""What came out of a claim, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator

from raybench.reproduce.claims import Side
from raybench.reproduce.judge import FAIL, NOT_RUN, Compared, Verdict

SHOWN = 4  # comparisons that are told one by one; of more the span of their ratios
AGAINST = {"below": "<", "above": ">", "within": "="}


def measured(verdict: Verdict) -> str:
    """Return the figures of a verdict: each comparison where they are few, else how far apart the sides are."""
    known = [one for one in verdict.compared if one.holds is not None]
    if not known:
        return "not run"
    if len(verdict.compared) == 1:
        return figures(verdict, known[0])
    head = f"{verdict.holding} of {len(verdict.compared)}"
    if verdict.needed != len(verdict.compared):
        head += f", {verdict.needed} needed"
    if len(verdict.compared) <= SHOWN:
        each = (f"{one.where}: {figures(verdict, one)}" for one in verdict.compared)
        return f"{head}: {'; '.join(each)}"
    ratios = [one.left / one.right for one in known if one.right and math.isfinite(one.right)]
    ratios = [ratio for ratio in ratios if not math.isnan(ratio)]
    if not ratios:
        return head
    return f"{head}; left / right from {min(ratios):.3g} to {max(ratios):.3g}"


def figures(verdict: Verdict, one: Compared) -> str:
    """Return both numbers of a comparison, ``0.012 against 0.31``, with the factor where there is one."""
    if one.holds is None:
        return "not run"
    claim = verdict.claim
    factor = f"{claim.factor:g} × " if claim.factor != 1 else ""
    if not isinstance(claim.right, Side):
        wanted = f"{AGAINST[claim.relation]} {factor}{claim.right:g}"
        band = f" ± {100 * claim.tolerance:g} %" if claim.relation == "within" else ""
        return f"{number(one.left)} (asked {wanted}{band})"
    test = f" (p = {one.p_value:.2g})" if claim.significance is not None else ""
    return f"{number(one.left)} against {factor}{number(one.right)}{test}"


def details(verdict: Verdict, every: bool = False) -> Iterator[str]:
    """Yield a line for each comparison that does not hold, or for every one."""
    if len(verdict.compared) == 1 and not every:
        return
    for one in verdict.compared:
        if every or (one.holds is not True and verdict.word == FAIL):
            mark = {True: "holds", False: "fails", None: NOT_RUN.lower()}[one.holds]
            yield f"{mark}  {one.where or 'all cells'}: {figures(verdict, one)}"


def number(value: float) -> str:
    """Return a number with three digits, ``never`` for a cost that is infinite."""
    if math.isinf(value):
        return "never" if value > 0 else "-inf"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e5 else f"{value:.3g}"
