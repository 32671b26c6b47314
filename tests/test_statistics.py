"""Statistics of costs: coverage by enumeration, tests against scipy, against all signs and all pairs."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from raybench.analysis import bands, interval, ranks
from raybench.analysis.statistics import (
    critical,
    friedman,
    holm,
    paired,
    power,
    signed_rank,
    unpaired,
)
from raybench.report import words

# -- the interval of a median ------------------------------------------------------------------


def coverage(count: int, rank: int) -> float:
    """Return the coverage of [X_(rank), X_(count + 1 - rank)]: as many values above the median as a coin says."""
    return float(1 - 2 * stats.binom.cdf(rank - 1, count, 0.5))


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
def test_the_narrowest_interval_that_covers_enough_is_taken(level):
    for count in (*range(2, 40), 100, 999):
        rank, covered = ranks(count, level)
        assert covered == pytest.approx(coverage(count, rank), abs=1e-12)
        enough = [r for r in range(1, count // 2 + 1) if coverage(count, r) >= level]
        assert rank == max(enough, default=1)
    assert ranks(1, level) == (1, 0.0)


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ([3, 1, 2], (2, 1, 3, 0.75)),
        ([4, 1], (2.5, 1, 4, 0.5)),
        ([9, 1, 8, 2, 7, 3, 6, 4, 5], (5, 2, 8, 1 - 20 / 512)),
        ([1, 2, 3, 4, math.inf], (3, 1, math.inf, 1 - 2 / 32)),
        ([2, 2, 2, 2], (2, 2, 2, 0.875)),
        # inf is the largest value, and never inf - inf: a median of which half is missing is missing
        ([1, math.inf], (math.inf, 1, math.inf, 0.5)),
        ([math.inf] * 3, (math.inf, math.inf, math.inf, 0.75)),
        ([1, 2, math.inf, math.inf], (math.inf, 1, math.inf, 0.875)),
        ([1, 2, 3, 4, 5, 6, 7, 8, math.inf], (5, 2, 8, 1 - 20 / 512)),  # a lone miss is outside
        ([3], (3, math.nan, math.nan, 0)),
        ([], (math.nan, math.nan, math.nan, 0)),
    ],
)
def test_interval_by_hand(values, want):
    assert interval(values) == pytest.approx(want, nan_ok=True)


def curves_of(values: np.ndarray) -> pd.DataFrame:
    """Return curves with a row per cell and round from values (cells, rounds)."""
    cell, t = np.divmod(np.arange(values.size), values.shape[1])
    names = [f"c{i}" for i in cell]
    frame = {"cell": names, "label": "a", "round": t, "grad_norm_sq": values.ravel()}
    return pd.DataFrame(frame)


@pytest.mark.parametrize("cells", [1, 2, 6, 15])
def test_bands_are_intervals_at_each_point(cells):
    values = np.random.default_rng(cells).permuted(np.arange(cells * 7.0).reshape(cells, 7), axis=1)
    values[0, 3] = np.inf
    table = bands(curves_of(values), x="round")
    assert table["round"].tolist() == list(range(7))
    for row, at in zip(table.to_dict("records"), values.T, strict=True):
        want = interval(at)
        assert (row["grad_norm_sq"], row["coverage"]) == (want.median, want.coverage)
        assert row["cells"] == cells
        ends = (want.low, want.high) if cells > 1 else (at[0], at[0])
        assert (row["low"], row["high"]) == ends


def test_the_table_of_the_documentation_is_computed():
    text = (Path(__file__).parent.parent / "docs" / "results.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \|$", text, re.M)
    assert [int(n) for n, _, _ in rows] == [2, 3, 4, 5, 6, 7, 8, 9, 12, 20]
    for count, between, covered in rows:
        assert words.intervals([int(count)]) == f"{covered} ({between} of {count} seeds)"


def test_what_is_said_of_intervals():
    assert words.intervals([1, 1]) == words.band([]) == ""
    assert words.band([1, 1]) == "a single seed"
    assert words.intervals([3, 1, 2, 3]) == "50 % (range of 2 seeds), 75 % (range of 3 seeds)"
    assert words.intervals([9]) == "96.1 % (2nd smallest to 2nd largest of 9 seeds)"
    several = "median and range of 3 seeds, pointwise coverage 75 %"
    assert words.band([3, 3, 1]) == f"{several}; a single seed"
    several = "range of 5 seeds, pointwise coverage 93.8 %; 3rd smallest to 3rd largest of 12 seeds"
    assert words.band([5, 12]) == f"median and {several}, pointwise coverage 96.1 %"


# -- two samples and many ------------------------------------------------------------------------


@given(st.lists(st.integers(-5, 5).filter(bool), min_size=1, max_size=9))
def test_signed_ranks_are_those_of_all_signs(changes):
    place = stats.rankdata(np.abs(changes))
    up = float(place[np.array(changes) > 0].sum())
    sums = [place[np.array(s)].sum() for s in itertools.product([False, True], repeat=len(place))]
    far = 2 * min(np.mean(np.array(sums) <= up), np.mean(np.array(sums) >= up))
    assert signed_rank(place, up) == pytest.approx(min(1.0, far), abs=1e-12)


@given(st.lists(st.floats(0.1, 10), min_size=3, max_size=20, unique=True))
def test_paired_is_scipys_wilcoxon(b):
    change = np.log(b)
    assume(len(set(np.abs(change))) == len(b) and 0 not in change)
    verdict = paired([1.0] * len(b), b)
    assert verdict.p_value == pytest.approx(stats.wilcoxon(change, method="exact").pvalue, abs=1e-9)
    up = stats.rankdata(np.abs(change))[change > 0].sum()
    assert verdict.effect == pytest.approx(4 * up / (len(b) * (len(b) + 1)) - 1)
    assert verdict.ratio == pytest.approx(np.median(b))


def test_the_ratio_is_the_median_of_ratios():
    """Between two pairs it is their mean, and a pair of which one side misses does not make it 0."""
    assert paired([1.0, 1.0], [1.0, 9.0]).ratio == 5.0
    assert paired([math.inf, 4.0], [4.0, 4.0]).ratio == 0.5
    assert paired([4.0, 4.0], [4.0, math.inf]).ratio == math.inf
    assert unpaired([1.0, 3.0], [8.0, 8.0]).ratio == 4.0


def test_unpaired_is_scipys_test():
    a, b = [1.0, 4.0, 6.0, 7.0], [2.0, 3.0, 9.0, 11.0, 12.0]
    assert unpaired(a, b).p_value == stats.mannwhitneyu(a, b, method="exact").pvalue
    worse = unpaired(a, [math.inf] * 5)
    assert (worse.ratio, worse.effect) == (math.inf, 1.0)
    assert worse.p_value < 0.05


def test_infinite_costs_are_worse_than_any():
    assert paired([1.0, 1.0], [math.inf, math.inf]) == (math.inf, 1.0, 0.5)
    assert paired([math.inf] * 6, [5.0] * 6) == (0.0, -1.0, 2 / 64)
    assert paired([math.inf], [math.inf]) == (1.0, 0.0, 1.0)
    assert all(math.isnan(v) for v in paired([], []))


@given(st.lists(st.floats(0, 1) | st.just(math.nan), max_size=8))
def test_holm_by_its_definition(p):
    finite = sorted(v for v in p if v == v)
    for value, adjusted in zip(p, holm(p), strict=True):
        if value != value:
            assert math.isnan(adjusted)
            continue
        place = max(i for i, v in enumerate(finite) if v == value)
        want = max((len(finite) - j) * v for j, v in enumerate(finite[: place + 1]))
        assert adjusted == pytest.approx(min(1.0, want))


# q_0.05 of the Nemenyi test: Demsar 2006, table 5 (a)
DEMSAR = {2: 1.960, 3: 2.343, 4: 2.569, 5: 2.728, 6: 2.850, 7: 2.949, 8: 3.031, 9: 3.102, 10: 3.164}


def test_critical_differences_are_the_published_ones():
    for methods, q in DEMSAR.items():
        want = q * math.sqrt(methods * (methods + 1) / (6 * 14))
        assert critical(methods, 14) == pytest.approx(want, rel=1e-3)


@given(arrays(float, st.tuples(st.integers(2, 8), st.integers(3, 5)), elements=st.integers(0, 4)))
def test_friedman_is_that_of_scipy(costs):
    place = np.apply_along_axis(stats.rankdata, 1, costs)
    want = stats.friedmanchisquare(*costs.T).pvalue if np.ptp(costs, axis=1).any() else 1.0
    assert friedman(place) == pytest.approx(want, abs=1e-12)


def test_a_fit_is_that_of_least_squares():
    rng = np.random.default_rng(0)
    v = [2.0**j for j in range(6)]
    c = [3 * x**0.7 * math.exp(0.1 * e) for x, e in zip(v, rng.standard_normal(6), strict=True)]
    fit, cov = np.polyfit(np.log(v), np.log(c), 1, cov=True)
    wide = stats.t.ppf(0.975, 4) * math.sqrt(cov[0, 0])
    want = (fit[0], fit[0] - wide, fit[0] + wide, 6)
    assert power([*v, 1e9], [*c, math.inf]) == pytest.approx(want)  # what misses is left out
    assert power([1.0, 2.0], [1.0, 4.0])[0] == pytest.approx(2.0)
    assert math.isnan(power([2.0, 2.0], [1.0, 4.0])[0])
