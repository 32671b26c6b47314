"""Statistics of costs over seeds: the interval of a median, tests of two samples and of many, shares, powers.

Costs may be infinite: a seed that never reaches a target costs more than any that does. So only the order of costs, and
that of their ratios, enters, and no law of the values is assumed.

The interval of a median lies between two order statistics. Let X_(1) <= ... <= X_(n) be the values of n independent
seeds and m a median of their law. At most one half of the law lies strictly below m and at most one half strictly
above. So m < X_(r) needs fewer than r values at or below m, which has at most the probability P(Bin(n, 1/2) < r), and so
for X_(n+1-r) < m:

    P(X_(r) <= m <= X_(n+1-r)) >= 1 - 2 sum_{k < r} C(n, k) / 2^n,

with equality for a continuous law, whatever it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
Values = Sequence[float] | np.ndarray


# One sample ------------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """A median over seeds, the ends of its interval, and the probability that it holds the median.

    For one seed the ends are unknown (NaN) and the probability is 0.
    """

    median: float
    low: float
    high: float
    coverage: float


@lru_cache(maxsize=1024)
def ranks(count: int, level: float = CONFIDENCE) -> tuple[int, float]:
    """Return (r, coverage) of the narrowest interval [X_(r), X_(count + 1 - r)] that covers ``level``.

    Where none does, which is so below six seeds at 95 %, r = 1: the range.
    """
    tails = itertools.accumulate(math.comb(count, k) for k in range(max(1, count // 2)))
    covered = [max(0.0, 1 - 2 * tail / 2**count) for tail in tails]
    rank = max((r for r, share in enumerate(covered, 1) if share >= level), default=1)
    return rank, covered[rank - 1]


def interval(values: Values) -> Interval:
    """Return the median of the values (one per seed, inf where a target was missed) and its interval.

    The median of an even number is the mean of the middle two: inf if one of them is. All is NaN
    without values.
    """
    sort = np.sort(np.asarray(values, float))
    if len(sort) == 0:
        return Interval(math.nan, math.nan, math.nan, 0.0)
    middle = float(np.median(sort))
    if len(sort) == 1:
        return Interval(middle, math.nan, math.nan, 0.0)
    rank, covered = ranks(len(sort))
    return Interval(middle, float(sort[rank - 1]), float(sort[-rank]), covered)


def clopper_pearson(hits: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return intervals that hold the probability of a hit with 95 % at least, of so many hits in ``count``."""
    from scipy.stats import beta

    tail = (1 - CONFIDENCE) / 2
    low = np.nan_to_num(beta.ppf(tail, hits, count - hits + 1), nan=0.0)  # NaN where none hits
    return low, np.nan_to_num(beta.ppf(1 - tail, hits + 1, count - hits), nan=1.0)  # where all do


# Two samples -----------------------------------------------------------------------------------------


class CostComparison(NamedTuple):
    """How costs b compare with costs a. ratio: median b / a; effect: from -1 (all b below a) to 1; p_value: two-sided."""

    ratio: float
    effect: float
    p_value: float


def paired(a: Values, b: Values) -> CostComparison:
    """Compare costs of the same seeds: Wilcoxon's signed-rank test on log(b / a).

    ratio: the median of b / a, 1 where both are infinite. effect: the rank-biserial correlation (W+ - W-) / (W+ + W-)
    of the ranks of the differences that are not zero. p_value: exact, with ties, as scipy's is without; 1 without a
    difference, NaN without a pair.
    """
    from scipy.stats import rankdata

    ratios = _ratios(a, b)
    if len(ratios) == 0:
        return CostComparison(math.nan, math.nan, math.nan)
    ratio, change = float(np.median(ratios)), _logs(a, b)
    change = change[change != 0]
    if len(change) == 0:
        return CostComparison(ratio, 0.0, 1.0)
    place = rankdata(np.abs(change))
    up, down = place[change > 0].sum(), place[change < 0].sum()
    return CostComparison(ratio, float((up - down) / (up + down)), signed_rank(place, float(up)))


def signed_rank(place: np.ndarray, up: float) -> float:
    """Return how probable a sum of positive ranks at least as far from its mean as ``up`` is, all 2^n signs being alike.

    The law of the sum is a product of polynomials, (1 + z^r_1) (1 + z^r_2) ..; twice a rank is whole, ties or not.
    """
    law = np.ones(1)
    for r in np.rint(2 * place).astype(int):
        law = (np.pad(law, (0, r)) + np.pad(law, (r, 0))) / 2
    at = round(2 * up)
    return float(min(1.0, 2 * min(law[: at + 1].sum(), law[at:].sum())))


def unpaired(a: Values, b: Values) -> CostComparison:
    """Compare costs of different seeds: the test of Mann and Whitney.

    ratio: that of the medians. effect: Cliff's delta, P(b > a) - P(b < a) over all pairs. p_value: exact without ties
    up to eight values, else the normal approximation; NaN without values.
    """
    from scipy.stats import mannwhitneyu

    a, b = np.asarray(a, float), np.asarray(b, float)
    if not len(a) or not len(b):
        return CostComparison(math.nan, math.nan, math.nan)
    ratio = float(_ratios([np.median(a)], [np.median(b)])[0])
    both = np.concatenate([a, b])
    worst = 2 * max(both[np.isfinite(both)], default=1.0) + 1
    x, y = np.minimum(b, worst), np.minimum(a, worst)
    if len({*x, *y}) == 1:
        return CostComparison(ratio, 0.0, 1.0)
    test = mannwhitneyu(x, y, alternative="two-sided", method="auto")
    return CostComparison(
        ratio, float(2 * test.statistic / (len(a) * len(b)) - 1), float(test.pvalue)
    )


def holm(p_values: Values) -> np.ndarray:
    """Return p-values corrected for being many (Holm 1979); NaN stays NaN and does not count.

    The i-th smallest of m becomes max_{j <= i} (m + 1 - j) p_(j), at most 1.
    """
    p = np.asarray(p_values, float)
    order = np.argsort(p, kind="stable")  # NaN comes last
    raised = p[order] * (np.count_nonzero(~np.isnan(p)) - np.arange(len(p)))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(raised), 1.0)
    return adjusted


def _ratios(a: Values, b: Values) -> np.ndarray:
    """Return b / a, 1 where they are equal, infinities among them."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(a == b, 1.0, b / a)


def _logs(a: Values, b: Values) -> np.ndarray:
    """Return log(b / a), 0 where they are equal, infinities among them."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(a == b, 0.0, np.log(b) - np.log(a))


# Many samples ----------------------------------------------------------------------------------------


def critical(methods: int, count: int) -> float:
    """Return how far two mean ranks of so many methods over so many instances are apart by more than luck (Nemenyi)."""
    from scipy.stats import studentized_range

    if methods < 2:
        return math.nan
    q = float(studentized_range.ppf(CONFIDENCE, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * count))


def friedman(ranks: np.ndarray) -> float:
    """Return the p-value of Friedman's test that all methods are equal, from ranks (instances, methods) with ties.

        Q = (m - 1) sum_j (R_j - N (m + 1) / 2)^2 / (sum_ij r_ij^2 - N m (m + 1)^2 / 4),  chi-squared with m - 1 degrees,

    R_j the sum of ranks of method j: scipy's, which wants three methods. 1 where all ranks are equal; NaN below two
    methods or instances.
    """
    from scipy.stats import chi2

    count, methods = ranks.shape
    if methods < 2 or count < 2:
        return math.nan
    spread = (ranks**2).sum() - count * methods * (methods + 1) ** 2 / 4
    if spread <= 0:
        return 1.0
    apart = ((ranks.sum(axis=0) - count * (methods + 1) / 2) ** 2).sum()
    return float(chi2.sf((methods - 1) * apart / spread, methods - 1))


def power(values: Values, costs: Values) -> tuple[float, float, float, int]:
    """Return (exponent, its low and high end, points) of the power law through the finite costs."""
    from scipy import stats

    v, c = np.asarray(values, float), np.asarray(costs, float)
    good = np.isfinite(c) & (c > 0) & (v > 0)
    count = int(good.sum())
    if len(np.unique(v[good])) < 2:
        return math.nan, math.nan, math.nan, count
    fit = stats.linregress(np.log(v[good]), np.log(c[good]))
    wide = (
        float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 2) * fit.stderr) if count > 2 else math.nan
    )
    return float(fit.slope), float(fit.slope) - wide, float(fit.slope) + wide, count
