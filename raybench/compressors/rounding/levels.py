"""Geometric grids of levels: which a type holds, rounding to them, and the message of sign and level."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from raybench.core import gpu
from raybench.core.compiled import compiled
from raybench.core.counts import Counts
from raybench.core.parallel import run_tiled
from raybench.core.streams import Stream, hash_numba
from raybench.wire import Message, bitpack
from raybench.wire.base import DTYPES, HALVES, Header, finite
from raybench.wire.exponents import FLOATS
from raybench.wire.levels import code_dtype, decode_levels

MOST_LEVELS = 2**15 - 2  # with 0, infinity and the sign 16 bits
CHUNK = 512  # coordinates whose levels are looked up together
ROUNDING_WORK = 6.0  # of a coordinate, in additions
LOOKED_UP_BITS = 7  # bits of the mantissa by which a level is looked up


# Grids --------------------------------------------------------------------------------------------


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
    found = (powers[:, None] * torch.tensor(levels, dtype=torch.float64)).to(dtype).unique()
    return found[(found >= info.tiny) & (found <= info.max)].double()


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

    def __post_init__(self) -> None:
        self.levels = tuple(self.levels)
        self.codes = self.codes.to(code_dtype(2**self.width))

    @property
    def lead(self) -> torch.Size:
        return self.codes.shape[:-1]

    @property
    def width(self) -> int:
        """Bits of a symbol."""
        return rounded_width(self.levels, self.base, self.dtype)

    def _write(self, out: Tensor) -> None:
        values = _values(self.levels, self.base, self.dtype)
        if self.device.type == "cpu" or gpu.usable(out):
            decode_levels(self.codes, values, out.new_full((*self.lead, 1), self.scale), 0, out)
        else:
            out.copy_(values.to(self.device)[self.codes.long()] * self.scale)

    def _cost(self) -> Counts:
        return Counts(raw=self.d * self.width)

    def _payload(self) -> Tensor:
        return bitpack.pack(self.codes, self.width)

    @classmethod
    def read(cls, known: Header, payload: Tensor, stream: Stream | None) -> RoundedMessage:
        dtype, levels, base = DTYPES[known["dtype"]], known["levels"], finite(known, "base")
        if base <= 1 or not isinstance(levels, list | tuple) or not 0 < len(levels) <= MOST_LEVELS:
            raise ValueError(f"no grid of powers of {base}")
        levels = tuple(map(float, levels))
        width = rounded_width(levels, base, dtype)
        codes = bitpack.unpack(payload, width, known["d"], code_dtype(2**width))
        return cls(known["d"], dtype, codes, levels, base, scale=known["scale"])


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
    first, most = _lookup(levels, base, x.dtype)
    # so that two steps follow infinity
    steps = np.append(_steps(levels, base, x.dtype).numpy(), math.nan)
    keys = np.zeros(len(rows), np.uint64)
    if stream is not None:
        keys = stream.keys.reshape(-1).numpy().view(np.uint64)
    mask, shift = bits.dtype.type(2 ** (8 * bits.itemsize - 1) - 1), form.mantissa - LOOKED_UP_BITS
    nearest, sign = stream is None, np.uint32(2 ** (width - 1))
    how = (mask, bits.dtype.type(shift), keys, nearest, first, most, steps, sign)

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _round(rows, bits, *how, r0, r1, lo, hi, codes)

    run_tiled(work, len(rows), d, ROUNDING_WORK)
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
def _lookup(levels: tuple[float, ...], base: float, dtype: torch.dtype) -> tuple[np.ndarray, int]:
    """Return the level at or below the least number with given top bits, and how many can follow."""
    steps, (integer, mantissa, exponent) = _steps(levels, base, dtype), FLOATS[dtype]
    tops = torch.arange(2 ** (exponent + LOOKED_UP_BITS), dtype=integer)
    least = (tops << (mantissa - LOOKED_UP_BITS)).view(dtype).double()
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
