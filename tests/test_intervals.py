"""Intervals of a median: their coverage by enumeration and by simulation, for laws of every kind."""

from __future__ import annotations

import itertools
import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raybench.analysis import bands, interval, ranks
from raybench.analysis.intervals import coverage
from raybench.report import words


def enumerated(count: int, rank: int) -> Fraction:
    """Return the coverage of [X_(rank), X_(count + 1 - rank)] by going through all cases.

    Each of the values lies below the median or above it, like a coin: the interval holds the median
    where at least ``rank`` lie on either side.
    """
    cases = list(itertools.product((0, 1), repeat=count))
    held = sum(rank <= sum(case) <= count - rank for case in cases)
    return Fraction(held, len(cases))


@pytest.mark.parametrize("count", range(2, 13))
def test_coverage_is_that_of_all_cases(count):
    for rank in range(1, count // 2 + 1):
        assert coverage(count, rank) == pytest.approx(float(enumerated(count, rank)), abs=1e-15)


def test_coverage_of_few_seeds():
    """The figures of the documentation, from binomial tails computed by hand."""
    want = {2: "50 %", 3: "75 %", 4: "87.5 %", 5: "93.8 %", 6: "96.9 %", 7: "98.4 %", 8: "99.2 %"}
    for count, said in want.items():
        assert ranks(count)[0] == 1
        assert words.intervals([count]) == f"{said} (range of {count} seeds)"
    assert ranks(9) == (2, 1 - 2 * (1 + 9) / 2**9)
    assert ranks(1) == (1, 0.0)


@pytest.mark.parametrize("count", [*range(2, 40), 100, 999])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
def test_the_narrowest_interval_that_covers_enough_is_taken(count, level):
    rank, covered = ranks(count, level)
    assert covered == coverage(count, rank)
    enough = [r for r in range(1, count // 2 + 1) if coverage(count, r) >= level]
    assert rank == max(enough, default=1)
    assert 1 <= rank <= count / 2


LAWS = {
    "normal": (lambda draw, size: draw.normal(size=size), 0.0),
    "exponential": (lambda draw, size: draw.exponential(size=size), math.log(2)),
    "heavy tails": (lambda draw, size: draw.standard_cauchy(size=size) ** 3, 0.0),
    "two of five never get there": (
        lambda draw, size: np.where(draw.random(size) < 0.4, np.inf, draw.random(size)),
        0.5 / 0.6,
    ),
    "most never get there": (
        lambda draw, size: np.where(draw.random(size) < 0.7, np.inf, 1.0),
        np.inf,
    ),
    "whole numbers": (lambda draw, size: draw.integers(0, 5, size).astype(float), 2.0),
}
CONTINUOUS = ("normal", "exponential", "heavy tails", "two of five never get there")
TRIALS = 4000


@pytest.mark.parametrize("count", [2, 3, 5, 6, 9, 12])
@pytest.mark.parametrize("law", LAWS)
def test_the_interval_covers_as_often_as_it_says(law, count):
    """Of 4,000 draws within five standard errors; where values repeat, at least as often."""
    values, median = LAWS[law]
    draws = values(np.random.default_rng(count), (TRIALS, count))
    found = [interval(row) for row in draws]
    (said,) = {i.coverage for i in found}
    held = np.mean([i.low <= median <= i.high for i in found])
    error = 5 * math.sqrt(said * (1 - said) / TRIALS)
    assert held >= said - error
    if law in CONTINUOUS:
        assert held <= said + error


def test_interval_by_hand():
    assert interval([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0, 0.75)
    assert interval([4.0, 1.0]) == (2.5, 1.0, 4.0, 0.5)
    values = [9.0, 1, 8, 2, 7, 3, 6, 4, 5]
    assert interval(values) == (5.0, 2.0, 8.0, 1 - 20 / 512)
    assert interval([1.0, 2.0, 3.0, 4.0, math.inf]) == (3.0, 1.0, math.inf, 1 - 2 / 32)
    assert interval([2.0] * 4) == (2.0, 2.0, 2.0, 0.875)


def test_seeds_that_never_get_there():
    """inf is the largest value, and never inf - inf: a median of which half is missing is missing."""
    inf = math.inf
    assert interval([1.0, inf]) == (inf, 1.0, inf, 0.5)
    assert interval([inf, inf, inf]) == (inf, inf, inf, 0.75)
    assert interval([1.0, 2.0, inf, inf]) == (inf, 1.0, inf, 0.875)
    assert interval([1.0, 2.0, 3.0, inf])[:2] == (2.5, 1.0)
    nine = interval([1.0, 2, 3, 4, 5, 6, 7, 8, inf])
    assert nine[:3] == (5.0, 2.0, 8.0)  # a lone miss is outside


def test_one_seed_and_none():
    alone, nothing = interval([3.0]), interval([])
    assert alone.median == 3.0
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)
    assert alone.coverage == nothing.coverage == 0.0
    assert all(math.isnan(v) for v in nothing[:3])


@settings(deadline=None)
@given(st.lists(st.one_of(st.floats(0, 1e12), st.just(math.inf)), min_size=2, max_size=30))
def test_interval_brackets_the_median_and_is_of_values(values):
    middle, low, high, covered = interval(values)
    assert low <= middle <= high
    assert {low, high} <= set(values)
    assert middle == np.median(values)
    assert (covered >= 0.95) == (len(values) >= 6)
    assert interval(values[::-1]) == interval(values)


# -- bands -----------------------------------------------------------------------------------


def curves_of(values: np.ndarray) -> pd.DataFrame:
    """Return curves with a row per cell and round from values (cells, rounds)."""
    cells, rounds = values.shape
    cell, t = np.divmod(np.arange(cells * rounds), rounds)
    names = [f"c{i}" for i in cell]
    frame = {"cell": names, "label": "a", "round": t, "grad_norm_sq": values.ravel()}
    return pd.DataFrame(frame)


@pytest.mark.parametrize("cells", [1, 2, 5, 6, 9, 15])
def test_bands_are_intervals_at_each_point(cells):
    values = np.random.default_rng(cells).permuted(np.arange(cells * 7.0).reshape(cells, 7), axis=1)
    values[0, 3] = np.inf
    found = bands(curves_of(values), x="round")
    assert found["round"].tolist() == list(range(7))
    for row, at in zip(found.to_dict("records"), values.T, strict=True):
        want = interval(at)
        assert row["grad_norm_sq"] == want.median
        assert row["coverage"] == want.coverage
        assert row["cells"] == cells
        ends = (want.low, want.high) if cells > 1 else (at[0], at[0])
        assert (row["low"], row["high"]) == ends


def test_bands_count_the_cells_that_have_a_value():
    """A cell has none before its first row: there the interval is that of fewer."""
    values = np.arange(18.0).reshape(6, 3)
    frame = curves_of(values)
    late = frame[~((frame["cell"].isin(["c0", "c1", "c2"])) & (frame["round"] == 0))]
    found = bands(late, x="round")
    assert found["cells"].tolist() == [3, 6, 6]
    assert found["coverage"].tolist() == [0.75, 1 - 2 / 64, 1 - 2 / 64]
    assert found.loc[0, ["grad_norm_sq", "low", "high"]].tolist() == [12.0, 9.0, 15.0]


def test_the_table_of_the_documentation_is_computed():
    text = (Path(__file__).parent.parent / "docs" / "results.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \|$", text, re.M)
    assert [int(n) for n, _, _ in rows] == [2, 3, 4, 5, 6, 7, 8, 9, 12, 20]
    for count, between, said in rows:
        assert words.intervals([int(count)]) == f"{said} ({between} of {count} seeds)"


# -- words -----------------------------------------------------------------------------------


def test_what_is_said_of_intervals():
    assert words.intervals([1, 1]) == words.band([1]) == words.band([]) == ""
    assert words.intervals([3, 1, 2, 3]) == "50 % (range of 2 seeds), 75 % (range of 3 seeds)"
    assert words.intervals([9]) == "96.1 % (2nd smallest to 2nd largest of 9 seeds)"
    assert words.band([3, 3, 1]) == "median and range of 3 seeds, pointwise coverage 75 %"
    several = "range of 5 seeds, pointwise coverage 93.8 %; 3rd smallest to 3rd largest of 12 seeds"
    assert words.band([5, 12]) == f"median and {several}, pointwise coverage 96.1 %"
    assert "6th smallest to 6th largest of 20 seeds" in words.band([20])
