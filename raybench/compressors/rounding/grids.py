"""Rounding to a geometric grid of levels, at random without bias or to the nearest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.rounding.exponents import cut
from raybench.compressors.rounding.levels import MOST_LEVELS, RoundedMessage, round_to, span
from raybench.core.errors import InputError
from raybench.core.registry import Flag, List, Number, compressor
from raybench.core.streams import Stream
from raybench.wire import ExponentsMessage, Message


@compressor("rounding")
class Rounding(Compressor):
    """C(x)_j = sign(x_j) a_k or a_(k+1), a_k <= |x_j| < a_(k+1), unbiased, levels a_(k+m) = b a_k.

    P(up) = (|x_j| - a_k)/(a_(k+1) - a_k); omega = sup_k (a_k/a_(k+1) + a_(k+1)/a_k + 2)/4 - 1. Levels (1)
    with base 2 are natural compression. Holds from the smallest level that is a normal number to the
    largest; smaller numbers go to 0 or that one (unbiased), larger ones to the largest (biased); inf
    and NaN become inf. Bits: d (1 + ceil(log2(2 + levels in the dtype's range))). Raises InputError for
    levels outside [1, base), none, or more than 32766 in float64's range. Source: Beznosikov et al.
    2020, general unbiased rounding.
    """

    levels: Sequence[float] = List(
        (1,), help="[[1, 1.5]]: positive numbers in [1, base), repeated times base^q"
    )
    base: float = Number(2.0, low=1, open_low=True, help="ratio b after which the levels repeat")

    def __post_init__(self) -> None:
        levels = tuple(sorted({float(level) for level in self.levels}))
        object.__setattr__(self, "levels", levels)
        object.__setattr__(self, "base", float(self.base))
        if not levels or not all(1 <= level < self.base for level in levels):
            raise InputError.of(
                "levels", f"{list(levels)} with base {self.base}", "numbers in [1, base)"
            )
        _check_count(len(levels), self.base)

    def encode(self, x: Tensor, stream: Stream) -> Message:
        return _rounded(x, stream, tuple(self.levels), self.base)

    def omega(self, d: int) -> float:
        around = (*self.levels, self.levels[0] * self.base)
        ratio = max(b / a for a, b in pairwise(around))
        return (ratio + 1 / ratio - 2) / 4


@compressor("exponential_rounding")
class ExponentialRounding(Compressor):
    """C(x)_j = sign(x_j) b^k or b^(k+1), b^k <= |x_j| < b^(k+1), b = base: at random, or the nearer one.

    Unbiased: P(up) = (|x_j| - b^k)/(b^(k+1) - b^k), omega = (b + 1/b - 2)/4. Nearest: C(x)_j/x_j lies in
    [2/(b+1), 2b/(b+1)], so alpha = 4b/(b+1)^2, B1 (4/(b+1)^2, 2b/(b+1)), B2 (2/(b+1), 2b/(b+1)). Holds for
    numbers from the smallest power of b that is a normal number to the largest; smaller ones go to 0 or
    to it, larger ones to the largest; inf and NaN become inf. Bits: d (1 + ceil(log2(2 + powers in the
    dtype's range))), 9 d in float32 for b = 2. Raises InputError for b below 1.0443, which has more than
    32766 powers in float64's range. Source: Beznosikov et al. 2020.
    """

    base: float = Number(2.0, low=1, open_low=True, help="ratio b of two levels")
    unbiased: bool = Flag(True, help="at random without bias, or to the nearest level")

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", float(self.base))
        _check_count(1, self.base)

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        return not self.unbiased

    def encode(self, x: Tensor, stream: Stream) -> Message:
        return _rounded(x, stream if self.unbiased else None, (1.0,), self.base)

    def omega(self, d: int) -> float | None:
        return (self.base + 1 / self.base - 2) / 4 if self.unbiased else None

    def alpha(self, d: int) -> float | None:
        return None if self.unbiased else 4 * self.base / (self.base + 1) ** 2

    def b1(self, d: int) -> tuple[float, float] | None:
        b = self.base
        return super().b1(d) if self.unbiased else (4 / (b + 1) ** 2, 2 * b / (b + 1))

    def b2(self, d: int) -> tuple[float, float] | None:
        b = self.base
        return super().b2(d) if self.unbiased else (2 / (b + 1), 2 * b / (b + 1))


def _rounded(x: Tensor, stream: Stream | None, levels: tuple[float, ...], base: float) -> Message:
    """Return the message of x (*lead, d) rounded without bias, or without a stream to the nearest level."""
    d = x.shape[-1]
    if levels == (1.0,) and base == 2:  # powers of two: sign and exponent
        return ExponentsMessage(d, x.dtype, cut(x, 1, stream))
    return RoundedMessage(d, x.dtype, round_to(levels, base, x, stream), levels, base)


def _check_count(levels: int, base: float) -> None:
    if not base > 1 or not levels * span(torch.float64) / math.log(base) <= MOST_LEVELS:
        fix = f"at most {MOST_LEVELS} levels in float64's range: fewer a period, or a larger base"
        raise InputError.of("base", f"{base} with {levels} levels a period", fix)
