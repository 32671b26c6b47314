"""What ``k`` means: counts and shares of d."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raybench.compressors import count_of
from raybench.core.errors import InputError
from raybench.core.registry import lookup, names
from raybench.testing.vectors import gaussian


def made(name):
    return lookup("compressor", name).target


@pytest.mark.parametrize(
    ("k", "d", "count"),
    [
        (5, 10, 5),
        (5.0, 10, 5),
        ("5", 10, 5),
        (" 5 ", 10, 5),
        (np.int64(5), 10, 5),
        (np.float32(0.5), 10, 5),
        (1.0, 10, 1),  # a whole number is a count, however it is written
        ("1.0", 10, 1),
        (0.1, 10, 1),
        ("0.1", 11, 2),
        ("10%", 30, 3),
        (0.07, 100, 7),  # not 8, although 0.07 * 100 > 7 in floating point
        ("7%", 100, 7),
        ("10%", 112, 12),
        ("100%", 10, 10),
        ("1e-9%", 10, 1),
        (0.999999, 10, 10),
        ("30%", 10**9, 3 * 10**8),
        (1, 1, 1),
    ],
)
def test_count_of(k, d, count):
    assert count_of(k, d) == count


@pytest.mark.parametrize(
    "k",
    [0, -1, 11, 0.0, -0.5, 1.5, "0%", "101%", "200%", "-5%", "", "%", "ten", "1/2", "nan", "inf"]
    + [math.nan, math.inf, None, True, False, [3], "1e999999999", "10%%"],
)
def test_count_of_refuses(k):
    with pytest.raises(InputError) as error:
        count_of(k, 10, "compressor.k")
    assert str(error.value).startswith("compressor.k: ")


@settings(deadline=None)
@given(st.one_of(st.integers(), st.floats(), st.text(max_size=6)), st.integers(1, 10**6))
def test_count_of_is_within_d_or_refuses(k, d):
    try:
        count = count_of(k, d)
    except InputError:
        return
    assert 1 <= count <= d


@settings(deadline=None)
@given(st.floats(0, 1, exclude_min=True, exclude_max=True), st.integers(1, 10**5))
def test_a_share_is_rounded_up(share, d):
    count, exact = count_of(share, d), share * d
    assert exact * (1 - 1e-12) <= count
    assert count - 1 < exact * (1 + 1e-12)


@pytest.mark.parametrize("name", [n for n in names("compressor") if made(n).counted])
def test_fit_makes_integers_of_shares(name):
    target, x = made(name), gaussian(2, 30)
    own = target(**dict.fromkeys(target.counted, "10%"))
    fitted = own.fit(30, 2)
    assert [getattr(fitted, parameter) for parameter in target.counted] == [3] * len(target.counted)
    assert fitted.compress(x).pack() == own.compress(x).pack()
    with pytest.raises(InputError, match="31 of 30"):
        target(**dict.fromkeys(target.counted, 31)).fit(30, 2)
