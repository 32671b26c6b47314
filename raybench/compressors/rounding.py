"""Rounding to a geometric grid of levels, at random without bias or to the nearest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.natural import natural_codes
from raybench.core.compiled import compiled
from raybench.core.errors import InputError
from raybench.core.parallel import run_tiled
from raybench.core.registry import Flag, List, Number, compressor
from raybench.core.streams import Stream, hash_numba
from raybench.wire import Message
from raybench.wire.levels import code_dtype
from raybench.wire.rounded import MOST, RoundedMessage, grid, rounded_width

CHUNK = 512  # coordinates held at once
COST = 6.0  # of a coordinate, in additions
TOP_BITS = 7  # bits of the mantissa by which a level is looked up
_SPAN = math.log(torch.finfo(torch.float64).max) - math.log(torch.finfo(torch.float64).tiny)


@compressor(
    "rounding",
    levels=List((1,), help="[[1, 1.5]]: positive numbers in [1, base), repeated times base^q"),
    base=Number(2.0, low=1, open_low=True, help="ratio b after which the levels repeat"),
)
@dataclass(frozen=True)
class Rounding(Compressor):
    """C(x)_j = sign(x_j) a_k or a_(k+1), a_k <= |x_j| < a_(k+1), unbiased, levels a_(k+m) = b a_k.

    P(up) = (|x_j| - a_k)/(a_(k+1) - a_k); omega = sup_k (a_k/a_(k+1) + a_(k+1)/a_k + 2)/4 - 1. Levels (1)
    with base 2 are natural compression. Holds from the smallest level that is a normal number to the
    largest; smaller numbers go to 0 or that one (unbiased), larger ones to the largest (biased); inf
    and NaN become inf. Bits: d (1 + ceil(log2(2 + levels in the dtype's range))). Raises InputError for
    levels outside [1, base), none, or more than 32766 in float64's range. Source: Beznosikov et al.
    2020, general unbiased rounding.
    """

    levels: Sequence[float] = (1,)
    base: float = 2.0

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
        return rounded(x, stream, tuple(self.levels), self.base)

    def omega(self, d: int) -> float:
        around = (*self.levels, self.levels[0] * self.base)
        ratio = max(b / a for a, b in pairwise(around))
        return (ratio + 1 / ratio - 2) / 4


@compressor(
    "exponential_rounding",
    base=Number(2.0, low=1, open_low=True, help="ratio b of two levels"),
    unbiased=Flag(True, help="at random without bias, or to the nearest level"),
)
@dataclass(frozen=True)
class ExponentialRounding(Compressor):
    """C(x)_j = sign(x_j) b^k or b^(k+1), b^k <= |x_j| < b^(k+1), b = base: at random, or the nearer one.

    Unbiased: P(up) = (|x_j| - b^k)/(b^(k+1) - b^k), omega = (b + 1/b - 2)/4. Nearest: C(x)_j/x_j lies in
    [2/(b+1), 2b/(b+1)], so alpha = 4b/(b+1)^2, B1 (4/(b+1)^2, 2b/(b+1)), B2 (2/(b+1), 2b/(b+1)). Holds for
    numbers from the smallest power of b that is a normal number to the largest; smaller ones go to 0 or
    to it, larger ones to the largest; inf and NaN become inf. Bits: d (1 + ceil(log2(2 + powers in the
    dtype's range))), 9 d in float32 for b = 2. Raises InputError for b below 1.0443, which has more than
    32766 powers in float64's range. Source: Beznosikov et al. 2020.
    """

    base: float = 2.0
    unbiased: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", float(self.base))
        _check_count(1, self.base)

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        return not self.unbiased

    def encode(self, x: Tensor, stream: Stream) -> Message:
        return rounded(x, stream, (1.0,), self.base, nearest=not self.unbiased)

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


def _check_count(levels: int, base: float) -> None:
    if not base > 1 or not levels * _SPAN / math.log(base) <= MOST:
        fix = f"at most {MOST} levels in float64's range: fewer a period, or a larger base"
        raise InputError.of("base", f"{base} with {levels} levels a period", fix)


def rounded(
    x: Tensor, source: Stream, levels: tuple[float, ...], base: float, nearest: bool = False
) -> RoundedMessage:
    """Return the message of x (*lead, d) rounded to the grid, without bias or to the nearest level."""
    if levels == (1.0,) and base == 2 and not nearest:
        codes = natural_codes(x, source)  # the same symbols: sign and exponent
    elif x.device.type == "cpu" and x.numel():
        codes = rounded_codes(x, source, levels, base, nearest)
    else:
        codes = rounded_codes_torch(x, source, levels, base, nearest)
    return RoundedMessage(x.shape[-1], x.dtype, codes, levels, base)


def rounded_codes_torch(
    x: Tensor, source: Stream, levels: tuple[float, ...], base: float, nearest: bool
) -> Tensor:
    """Return the codes of a ``RoundedMessage``, int64 (the reference; any device)."""
    steps = _steps(levels, base, x.dtype).to(x.device)
    size, last = x.abs().double(), len(steps) - 2  # of infinity and NaN
    k = torch.searchsorted(steps[1:-1], size, right=True).clamp(max=last)
    u = 0.5 if nearest else source.uniform(x.shape[-1])
    k += u * (steps[k + 1] - steps[k]) < size - steps[k]
    return k + (x < 0) * 2 ** (rounded_width(levels, base, x.dtype) - 1)


def rounded_codes(
    x: Tensor, source: Stream, levels: tuple[float, ...], base: float, nearest: bool
) -> Tensor:
    """Return the same on CPU, in the message's type, by a kernel."""
    d, wide = x.shape[-1], x.dtype == torch.float64
    width = rounded_width(levels, base, x.dtype)
    out = torch.empty(x.shape, dtype=code_dtype(2**width))
    rows, codes = x.reshape(-1, d).numpy(), out.view(-1, d).numpy()
    unsigned = np.uint64 if wide else np.uint32
    bits, mask = rows.view(unsigned), unsigned(2 ** (63 if wide else 31) - 1)
    if nearest and levels == (1.0,) and base == 2:
        kernel = _POWERS[x.dtype]
        run_tiled(lambda *tile: kernel(bits, *tile, codes), len(rows), d, 1.0)
        return out
    first, most = _lookup(levels, base, x.dtype)
    shift = (52 if wide else 23) - TOP_BITS
    steps = np.append(_steps(levels, base, x.dtype).numpy(), math.nan)  # two after infinity
    keys = np.zeros(len(rows), np.uint64)
    if not nearest:
        keys = source.keys.contiguous().view(-1).numpy().view(np.uint64)
    how = (mask, unsigned(shift), keys, nearest, first, most, steps, np.uint32(2 ** (width - 1)))

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _round(rows, bits, *how, r0, r1, lo, hi, codes)

    run_tiled(work, len(rows), d, COST)
    return out


@lru_cache(maxsize=16)
def _steps(levels: tuple[float, ...], base: float, dtype: torch.dtype) -> Tensor:
    """Return 0, the levels, infinity and NaN: beyond the largest level nothing is nearer or likely."""
    ends = torch.tensor([0.0, math.inf, math.nan], dtype=torch.float64)
    return torch.cat((ends[:1], grid(levels, base, dtype), ends[1:]))


@lru_cache(maxsize=16)
def _lookup(levels: tuple[float, ...], base: float, dtype: torch.dtype) -> tuple[np.ndarray, int]:
    """Return the level at or below the least number with given top bits, and how many can follow."""
    steps, wide = _steps(levels, base, dtype), dtype == torch.float64
    exponent, kind = (11, np.int64) if wide else (8, np.int32)
    tops = np.arange(2 ** (exponent + TOP_BITS), dtype=kind) << ((52 if wide else 23) - TOP_BITS)
    least = torch.from_numpy(tops.view(dtype=np.float64 if wide else np.float32)).double()
    first = torch.searchsorted(steps[1:-1], least, right=True).clamp(max=len(steps) - 2)
    return first.to(torch.int32).numpy().view(np.uint32), max(int(first.diff().max()), 1)


@compiled
def _round(rows, bits, mask, shift, keys, nearest, first, most, steps, sign, r0, r1, lo, hi, out):
    # what is looked up stands in loops of its own: the others become vector instructions
    size, low, mid, high = np.empty(CHUNK), np.empty(CHUNK), np.empty(CHUNK), np.empty(CHUNK)
    k = np.empty(CHUNK, np.uint32)
    for r in range(r0, r1):
        key = keys[r]
        for start in range(lo, hi, CHUNK):
            end = min(start + CHUNK, hi)
            x, raw, o = rows[r, start:end], bits[r, start:end], out[r, start:end]
            for j in range(x.shape[0]):
                size[j] = abs(np.float64(x[j]))
                k[j] = np.uint32((raw[j] & mask) >> shift)
            for j in range(x.shape[0]):
                k[j] = first[k[j]]
            for _ in range(most - 1):
                for j in range(x.shape[0]):
                    k[j] += np.uint32(steps[k[j] + np.uint32(1)] <= size[j])
            for j in range(x.shape[0]):  # at most one more step lies at or below
                at = np.int64(k[j])
                low[j], mid[j], high[j] = steps[at], steps[at + 1], steps[at + 2]
            for j in range(x.shape[0]):
                h = hash_numba(key, np.uint64(start + j))
                u = 0.5 if nearest else np.float64(h >> np.uint64(11)) * 2.0**-53
                above = mid[j] <= size[j]
                a, b = mid[j] if above else low[j], high[j] if above else mid[j]
                code = k[j] + np.uint32(above) + np.uint32(u * (b - a) < size[j] - a)
                o[j] = np.uint32(code) | (sign if x[j] < 0 else np.uint32(0))


def _power_kernel(unsigned: Any, mantissa: int, exponent: int) -> Any:
    sign, one = unsigned(1 << (mantissa + exponent)), unsigned(1)
    half, by = unsigned((1 << (mantissa - 1)) - 1), unsigned(mantissa)
    infinity = unsigned(((1 << exponent) - 1) << mantissa)
    top = unsigned((1 << exponent) - 2)  # from here on nothing is rounded up

    @compiled
    def kernel(raw, r0, r1, lo, hi, out):  # to the nearest power of two, midway to the lower one
        for r in range(r0, r1):
            row, o = raw[r, lo:hi], out[r, lo:hi]
            for j in range(row.shape[0]):
                size = unsigned(row[j] & unsigned(sign - one))
                exact, up = unsigned(size >> by), unsigned(unsigned(size + half) >> by)
                code = exact if exact >= top else up
                negative = unsigned(row[j] > sign) & unsigned(size <= infinity)  # not -0, not NaN
                o[j] = np.int16(code | unsigned(negative << unsigned(exponent)))

    return kernel


_POWERS = {
    torch.float32: _power_kernel(np.uint32, 23, 8),
    torch.float64: _power_kernel(np.uint64, 52, 11),
}
