"""Rounding of every number by itself: to few significant bits, or to a geometric grid of levels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.core.compiled import compiled
from raybench.core.errors import InputError
from raybench.core.parallel import run_tiled
from raybench.core.registry import Flag, Integer, List, Number, compressor
from raybench.core.streams import Stream, hash_numba
from raybench.wire import ExponentsMessage, Message, bitpack
from raybench.wire.fields import (
    HALVES,
    Field,
    Header,
    Symbols,
    dtype_of,
    finite,
    natural,
)
from raybench.wire.levels import FLOATS, code_dtype, decode_levels, exponent_width, integers_of

# Few significant bits -----------------------------------------------------------------------------


CUT_WORK = 3.0  # of a coordinate, in additions


@compressor("natural")
@dataclass(frozen=True)
class Natural(Compressor):
    """C(x)_j = sign(x_j) 2^e or 2^(e+1), 2^e <= |x_j| < 2^(e+1), unbiased: omega = 1/8.

    P(up) = (|x_j| - 2^e)/2^e: a uniform integer is added to the mantissa, the carry rounds up. Sign
    and exponent are sent: 9 bits in float32, 12 in float64. Numbers of the top binade are not rounded
    up to infinity (biased there), denormals go to 0 or the smallest normal number (unbiased, variance
    up to it times |x_j|); inf and NaN become inf. Source: Horvath et al. 2019.
    """

    def encode(self, x: Tensor, stream: Stream) -> Message:
        return ExponentsMessage(x.shape[-1], x.dtype, cut(x, 1, stream))

    def omega(self, d: int) -> float:
        return 1 / 8


@compressor("stochastic_rounding")
class StochasticRounding(Compressor):
    """C(x)_j = x_j rounded at random to one of the two floats of p significant bits around it.

    Unbiased: P(up) is the part of the gap h below x_j. With x_j in [2^e, 2^(e+1)), h = 2^(e+1-p), the
    variance (x_j - a)(a + h - x_j) <= x_j^2 h^2/(4 a (a + h)) is worst at a = 2^e:
    omega = 2^(-2p)/(1 + 2^(1-p)). p = 1 is natural compression (1/8), p = 8 a stochastic bfloat16.
    Sign, exponent and p - 1 bits are sent: 8 + p bits in float32 (p = 24 loses nothing), 11 + p in
    float64. Holds for normal numbers; denormal ones keep an absolute gap (unbiased, a larger
    variance), numbers in the last gap before infinity are not rounded up to it (biased there).
    Infinity stays; NaN stays NaN, for p = 1 it becomes infinity. Source: Croci et al. 2022; for
    p = 1 Horvath et al. 2019.
    """

    bits: int = Integer(8, low=1, high=24, help="significant bits p, the leading 1 among them")

    def encode(self, x: Tensor, stream: Stream) -> Message:
        return ExponentsMessage(x.shape[-1], x.dtype, cut(x, self.bits, stream), self.bits)

    def omega(self, d: int) -> float:
        return 4.0**-self.bits / (1 + 2.0 ** (1 - self.bits))


def cut(x: Tensor, p: int, stream: Stream | None) -> Tensor:
    """Return the codes (*lead, d) of an ``ExponentsMessage``: x (*lead, d) cut to p significant bits.

    A uniform integer is added to the bits that are cut off, so that their carry rounds up without bias;
    without a stream it rounds to the nearest, midway to the lower one. Nothing finite becomes infinite:
    what lies above the largest finite code stays at it.
    """
    if x.device.type != "cpu" or not x.numel():
        return cut_torch(x, p, stream)
    integer, d, width = FLOATS[x.dtype].integer, x.shape[-1], exponent_width(x.dtype, p)
    dropped, below_sign, last = _rule(x.dtype, width)
    out = torch.empty(x.shape, dtype=integers_of(width))
    rows, codes = (_unsigned(t.view(-1, d)) for t in (x.view(integer), out))
    keys = np.empty(0, np.uint64)
    if stream is not None:
        keys = stream.keys.reshape(-1).numpy().view(np.uint64)

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _cut(rows, keys, dropped, (1 << dropped) - 1, below_sign, last, r0, r1, lo, hi, codes)

    run_tiled(work, len(rows), d, CUT_WORK if len(keys) else 1.0)
    return out


def cut_torch(x: Tensor, p: int, stream: Stream | None) -> Tensor:
    """Return the same in plain torch, int64 (the reference; any device)."""
    dropped, below_sign, last = _rule(x.dtype, exponent_width(x.dtype, p))
    raw, mask = x.contiguous().view(FLOATS[x.dtype].integer).long(), (1 << dropped) - 1
    noise = mask >> 1 if stream is None else stream.bits(x.shape[-1]) & mask
    exact, up = ((v >> dropped) & (2 * below_sign + 1) for v in (raw, raw + noise))
    return torch.where(exact & below_sign >= last, exact, up)


def _rule(dtype: torch.dtype, width: int) -> tuple[int, int, int]:
    """Return the bits cut off, those of a code below its sign, and the largest finite code."""
    _, mantissa, exponent = FLOATS[dtype]
    below_sign = (1 << (width - 1)) - 1
    return 1 + exponent + mantissa - width, below_sign, below_sign - (below_sign >> exponent) - 1


def _unsigned(x: Tensor) -> np.ndarray:
    rows = x.numpy()
    return rows.view(f"u{rows.itemsize}")


@compiled
def _cut(raw, keys, dropped, mask, below_sign, last, r0, r1, lo, hi, out):  # floats as integers
    kind = raw.dtype.type
    by, noisy, nearest = kind(dropped), kind(mask), keys.shape[0] == 0
    magnitude, largest, half = kind(below_sign), kind(last), kind(mask >> 1)
    for r in range(r0, r1):
        row, o = raw[r, lo:hi], out[r, lo:hi]
        if nearest:
            for j in range(row.shape[0]):
                exact, up = kind(row[j] >> by), kind(kind(row[j] + half) >> by)
                o[j] = exact if kind(exact & magnitude) >= largest else up
        else:
            key = keys[r]
            for j in range(row.shape[0]):
                noise = kind(kind(hash_numba(key, np.uint64(lo + j))) & noisy)
                exact, up = kind(row[j] >> by), kind(kind(row[j] + noise) >> by)
                o[j] = exact if kind(exact & magnitude) >= largest else up


# Grids of levels ----------------------------------------------------------------------------------


MOST_LEVELS = 2**15 - 2  # with 0, infinity and the sign 16 bits
GRID_WORK = 6.0  # of a coordinate, in additions
LOOKED_UP_BITS = 7  # bits of the mantissa by which a level is looked up


def span(dtype: torch.dtype) -> float:
    """Return the logarithm of a type's largest number over its smallest normal one."""
    info = torch.finfo(dtype)
    return math.log(info.max) - math.log(info.tiny)


@lru_cache(maxsize=16)
def grid(levels: tuple[float, ...], base: float, dtype: torch.dtype) -> Tensor:
    """Return the numbers base^q l, q any integer and l one of the levels, that a type holds, ascending.

    Only its normal numbers; for numbers of 16 bits those of float32, in which they are compressed.
    float64, of those values that the type has. Raises ValueError where they are more than 32766.
    """
    dtype = torch.float32 if dtype in HALVES else dtype
    info = torch.finfo(dtype)
    if len(levels) * span(dtype) / math.log(base) > MOST_LEVELS:
        raise ValueError(f"more than {MOST_LEVELS} levels in the range of {dtype}")
    low, high = (int(math.log(end) / math.log(base)) for end in (info.tiny, info.max))
    powers = torch.arange(low - 2, high + 2, dtype=torch.float64)
    powers = torch.as_tensor(base, dtype=torch.float64) ** powers
    values = (powers[:, None] * torch.tensor(levels, dtype=torch.float64)).to(dtype).unique()
    return values[(values >= info.tiny) & (values <= info.max)].double()


def rounded_width(levels: tuple[float, ...], base: float, dtype: torch.dtype) -> int:
    """Return the bits of a symbol: a sign, and which of 0, the levels and infinity."""
    return 1 + bitpack.width_of(len(grid(levels, base, dtype)) + 2)


@lru_cache(maxsize=16)
def _values(levels: tuple[float, ...], base: float, dtype: torch.dtype) -> Tensor:
    """Return what every code stands for, (2^width,), at least 256."""
    held, width = grid(levels, base, dtype), rounded_width(levels, base, dtype)
    half = torch.full((2 ** (width - 1),), math.inf, dtype=torch.float64)
    half[0], half[1 : len(held) + 1] = 0.0, held
    both = torch.cat((half, -half)).to(dtype)
    return torch.nn.functional.pad(both, (0, max(256 - len(both), 0)))


# The message --------------------------------------------------------------------------------------


@dataclass(eq=False)
class RoundedMessage(Message):
    """A level of a geometric grid, or 0, per coordinate with its sign: ``codes`` (*lead, d).

    The levels are base^q l for the numbers l of ``levels``, within the normal numbers of the dtype; a
    code is a sign bit over 0 for zero, 1, 2, .. for the levels ascending, then infinity. ceil(log2(2 +
    levels)) + 1 bits each.
    """

    codes: Tensor
    levels: tuple[float, ...]
    base: float
    kind = "rounded"
    tensors = ("codes",)
    static = ("levels", "base")

    @classmethod
    def fields(cls, head: Header, width: int) -> Sequence[Field]:
        levels, base = head["levels"], finite(head, "base")
        if base <= 1 or not isinstance(levels, list | tuple) or not 0 < len(levels) <= MOST_LEVELS:
            raise ValueError(f"no grid of powers of {base}")
        bits = rounded_width(tuple(map(float, levels)), base, dtype_of(head))
        return [Field("codes", Symbols(bits, code_dtype(2**bits)), (natural(head, "d"),))]

    def __post_init__(self) -> None:
        self.levels = tuple(map(float, self.levels))
        self.codes = self.codes.to(code_dtype(2**self.width))

    @property
    def width(self) -> int:
        """Bits of a symbol."""
        return rounded_width(self.levels, self.base, self.dtype)

    def _write(self, out: Tensor) -> None:
        values = _values(self.levels, self.base, self.dtype)
        if self.device.type == "cpu":
            decode_levels(self.codes, values, out.new_full((*self.lead, 1), self.scale), 0, out)
        else:
            out.copy_(values.to(self.device)[self.codes.long()] * self.scale)


# Rounding -----------------------------------------------------------------------------------------


def round_to(levels: tuple[float, ...], base: float, x: Tensor, stream: Stream | None) -> Tensor:
    """Return the codes of a ``RoundedMessage`` of x (*lead, d): at random without bias, or without a
    stream to the nearest level, midway to the lower one."""
    if x.device.type != "cpu" or not x.numel():
        return round_to_torch(levels, base, x, stream)
    d, form, width = x.shape[-1], FLOATS[x.dtype], rounded_width(levels, base, x.dtype)
    out = torch.empty(x.shape, dtype=code_dtype(2**width))
    rows, codes = x.view(-1, d).numpy(), out.view(-1, d).numpy()
    bits = rows.view(f"u{rows.itemsize}")
    first, steps = _lookup(levels, base, x.dtype), _steps(levels, base, x.dtype).numpy()
    keys = np.zeros(len(rows), np.uint64)
    if stream is not None:
        keys = stream.keys.reshape(-1).numpy().view(np.uint64)
    mask, shift = bits.dtype.type(2 ** (8 * bits.itemsize - 1) - 1), form.mantissa - LOOKED_UP_BITS
    nearest, sign = stream is None, np.uint32(2 ** (width - 1))
    how = (mask, bits.dtype.type(shift), keys, nearest, first, steps, sign)

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _round(rows, bits, *how, r0, r1, lo, hi, codes)

    run_tiled(work, len(rows), d, GRID_WORK)
    return out


def round_to_torch(
    levels: tuple[float, ...], base: float, x: Tensor, stream: Stream | None
) -> Tensor:
    """Return the same in plain torch, int64 (the reference; any device)."""
    steps = _steps(levels, base, x.dtype).to(x.device)
    size, last = x.abs().double(), len(steps) - 2  # the place of infinity, which NaN takes too
    k = torch.searchsorted(steps[1:-1], size, right=True).clamp(max=last)
    u = 0.5 if stream is None else stream.uniform(x.shape[-1])
    k += u * (steps[k + 1] - steps[k]) < size - steps[k]
    return k + (x < 0) * 2 ** (rounded_width(levels, base, x.dtype) - 1)


@lru_cache(maxsize=16)
def _steps(levels: tuple[float, ...], base: float, dtype: torch.dtype) -> Tensor:
    """Return 0, the levels, infinity and NaN: beyond the largest level nothing is nearer or likely."""
    ends = torch.tensor([0.0, math.inf, math.nan], dtype=torch.float64)
    return torch.cat((ends[:1], grid(levels, base, dtype), ends[1:]))


@lru_cache(maxsize=16)
def _lookup(levels: tuple[float, ...], base: float, dtype: torch.dtype) -> np.ndarray:
    """Return the level at or below the least number with given top bits."""
    steps, (integer, mantissa, exponent) = _steps(levels, base, dtype), FLOATS[dtype]
    tops = torch.arange(2 ** (exponent + LOOKED_UP_BITS), dtype=integer)
    least = (tops << (mantissa - LOOKED_UP_BITS)).view(dtype).double()
    first = torch.searchsorted(steps[1:-1], least, right=True).clamp(max=len(steps) - 2)
    return first.to(torch.int32).numpy().view(np.uint32)


@compiled
def _round(rows, bits, mask, shift, keys, nearest, first, steps, sign, r0, r1, lo, hi, out):
    for r in range(r0, r1):
        key = keys[r]
        for j in range(lo, hi):
            size, k = abs(np.float64(rows[r, j])), first[(bits[r, j] & mask) >> shift]
            while steps[k + np.uint32(1)] <= size:  # few, and never beyond the NaN that ends them
                k += np.uint32(1)
            noise = hash_numba(key, np.uint64(j))
            u = 0.5 if nearest else np.float64(noise >> np.uint64(11)) * 2.0**-53
            gap = steps[k + np.uint32(1)] - steps[k]
            code = k + np.uint32(u * gap < size - steps[k])
            out[r, j] = np.uint32(code) | (sign if rows[r, j] < 0 else np.uint32(0))


# Rounding to a grid -------------------------------------------------------------------------------


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
