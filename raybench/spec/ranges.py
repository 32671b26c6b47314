"""Ranges of numbers: ``a..b`` (integers, both ends), ``2^a..2^b`` (powers) and ``2^a``."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_VALUES = 100_000
MAX_EXPONENT = 1000
RANGE_FORM = "ranges are written a..b or 2^a..2^b"

_INTEGERS = re.compile(r"([-+]?\d{1,18})\.\.([-+]?\d{1,18})", re.ASCII)
_POWER = re.compile(r"(\d{1,6})\^([-+]?\d{1,6})", re.ASCII)


def parse(text: str) -> list[int | float] | None:
    """Return the numbers ``text`` stands for, or None where it is no range.

    Powers with a negative exponent are floats, correctly rounded; all others integers. Raises
    ValueError for a range that is empty or too long, and for powers of two different bases.
    """
    text = text.strip()
    if found := _INTEGERS.fullmatch(text):
        first, last = int(found[1]), int(found[2])
        _check(text, first, last)
        return list(range(first, last + 1))
    if found := _POWER.fullmatch(text):
        return [_power(int(found[1]), int(found[2]), text)]
    left, _, right = text.partition("..")
    low, high = _POWER.fullmatch(left.strip()), _POWER.fullmatch(right.strip())
    if low and high:
        if low[1] != high[1]:
            raise ValueError(f"{text!r} mixes powers of {low[1]} and {high[1]}")
        base, first, last = int(low[1]), int(low[2]), int(high[2])
        _check(text, first, last)
        return [_power(base, e, text) for e in range(first, last + 1)]
    return None


def _check(text: str, first: int, last: int) -> None:
    if last < first:
        raise ValueError(f"the range {text!r} is empty: {first} is above {last}")
    if last - first >= MAX_VALUES:
        raise ValueError(f"the range {text!r} has more than {MAX_VALUES:,} values")


def _power(base: int, exponent: int, text: str) -> int | float:
    if abs(exponent) > MAX_EXPONENT or base < 2:
        raise ValueError(f"{text!r}: the base is at least 2, exponents at most {MAX_EXPONENT}")
    try:
        return base**exponent if exponent >= 0 else float(Fraction(base) ** exponent)
    except OverflowError as error:
        raise ValueError(f"{text!r} is too large") from error
