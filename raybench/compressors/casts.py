"""Casts: the same numbers in a narrower float format, or on a uniform grid of 8 bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.block_formats import tight_alpha
from raybench.compressors.kernels.block_codes import (
    block_max,
    nonzero,
    stochastic_codes,
    uniform_codes,
)
from raybench.compressors.kernels.small_floats import to_half
from raybench.core.compiled import compiled
from raybench.core.parallel import run_tiled
from raybench.core.registry import Choice, Integer, compressor
from raybench.core.streams import Stream, hash_numba
from raybench.wire import Message
from raybench.wire.block_formats import BlockMessage
from raybench.wire.casts import (
    FLOATS,
    HALVES,
    HalfMessage,
    TruncatedMessage,
    code_dtype,
    truncated_width,
)

SCALE = Choice("none", "max", help="max: x / max|x_j| is cast, one number of full width is sent")


@dataclass(frozen=True)
class _Half(Compressor):
    """Round to nearest even in two bytes; finite numbers beyond the range become the largest finite."""

    scale: str = "none"
    deterministic = True
    format: ClassVar[str]

    def encode(self, x: Tensor, stream: Stream) -> Message:
        half = HALVES[self.format]
        if self.scale == "none":
            return HalfMessage(
                x.shape[-1], x.dtype, to_half(x, half), _no_scale(x), self.format, False
            )
        top = block_max(x, x.shape[-1])
        values = to_half(x, half, nonzero(top))
        return HalfMessage(x.shape[-1], x.dtype, values, top, self.format, True)


@compressor("fp16", scale=SCALE)
@dataclass(frozen=True)
class FP16(_Half):
    """C(x)_j = x_j rounded to float16 (nearest even): 16 bits a number, deterministic.

    Relative error at most 2^-11 for |x_j| in [2^-14, 65504], absolute at most 2^-25 below; finite
    numbers beyond are sent as +-65504, NaN stays NaN, infinity infinity. No class: x = 2^-26 becomes
    0, 1e9 becomes 65504. With ``scale: max`` x / max|x_j| is rounded (16 bits a number and one of full
    width) and alpha = 1 - max(2^-22, D/(1 + D)), D = (d - 1) 2^-50: the largest entry is exact, the
    others err by 2^-11 |x_j| or, relative to the largest, by 2^-25. A row of scale max with a NaN or
    infinity is NaN throughout. Source: IEEE 754-2008.
    """

    format = "float16"

    def alpha(self, d: int) -> float | None:
        if self.scale == "none":
            return None
        small = (d - 1) * 2.0**-50
        return 1 - max(2.0**-22, small / (1 + small))


@compressor("bf16", scale=SCALE)
@dataclass(frozen=True)
class BF16(_Half):
    """C(x)_j = x_j rounded to bfloat16 (nearest even): 16 bits a number, alpha = 1 - 2^-16.

    Relative error at most 2^-8: alpha holds where every x_j is 0 or of magnitude 2^-126 to 3.38e38,
    the normal numbers of float32. Smaller ones have an absolute error up to 2^-134, so that a vector
    of nothing else may become 0; larger ones (float64 has them) are sent as +-3.39e38, NaN stays NaN,
    infinity infinity. With ``scale: max`` (x / max|x_j| is rounded, one number of full width is sent
    too) alpha holds for every finite x; a row with a NaN or infinity is then NaN throughout.
    Source: Kalamkar et al. 2019.
    """

    format = "bfloat16"

    def alpha(self, d: int) -> float:
        return 1 - 2.0**-16


def _no_scale(x: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], 0)


@compressor(
    "stochastic_rounding",
    bits=Integer(8, low=1, high=24, help="significant bits p, the leading 1 among them"),
)
@dataclass(frozen=True)
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

    bits: int = 8

    def encode(self, x: Tensor, stream: Stream) -> Message:
        cut = cut_codes if x.device.type == "cpu" else cut_codes_torch
        return TruncatedMessage(x.shape[-1], x.dtype, cut(x, stream, self.bits), self.bits)

    def omega(self, d: int) -> float:
        return 4.0**-self.bits / (1 + 2.0 ** (1 - self.bits))


def _cut_kernel(unsigned: Any, mantissa: int, exponent: int) -> Any:
    sign_up = unsigned(mantissa + exponent)
    infinity = unsigned(((1 << exponent) - 1) << mantissa)
    magnitude = unsigned((1 << (mantissa + exponent)) - 1)

    @compiled
    def kernel(raw, keys, drop, r0, r1, lo, hi, out):  # drop: bits of mantissa not sent
        by = unsigned(drop)
        mask = unsigned((unsigned(1) << by) - unsigned(1))
        top = unsigned(infinity >> by)
        quiet = unsigned((unsigned(1) << unsigned(mantissa - drop)) >> unsigned(1))
        for r in range(r0, r1):
            row = raw[r, lo:hi]
            o = out[r, lo:hi]
            key = keys[r]
            for j in range(row.shape[0]):
                size = unsigned(row[j] & magnitude)
                noise = unsigned(unsigned(hash_numba(key, np.uint64(lo + j))) & mask)
                code = unsigned(unsigned(size + noise) >> by)
                code = min(code, unsigned(top - unsigned(1)))  # a carry into infinity
                strange = unsigned(top | (quiet if size > infinity else unsigned(0)))
                code = strange if size >= infinity else code
                o[j] = unsigned(
                    code | unsigned(unsigned(row[j] >> sign_up) << unsigned(sign_up - by))
                )

    return kernel


_CUT = {
    torch.float32: _cut_kernel(np.uint32, 23, 8),
    torch.float64: _cut_kernel(np.uint64, 52, 11),
}


def cut_codes(x: Tensor, stream: Stream, p: int) -> Tensor:
    """Return the top bits of x (*lead, d) on the CPU, rounded at random to p significant bits."""
    _, kind, mantissa, _ = FLOATS[x.dtype]
    d = x.shape[-1]
    out = torch.empty(x.shape, dtype=code_dtype(truncated_width(x.dtype, p)))
    into = out.view(-1, d).numpy()
    into = into.view(f"u{into.itemsize}")
    raw = x.view(-1, d).numpy().view(kind)
    keys = stream.keys.reshape(-1).numpy().view(np.uint64)
    kernel, drop = _CUT[x.dtype], mantissa - p + 1
    run_tiled(lambda *tile: kernel(raw, keys, drop, *tile, into), len(raw), d, 2)
    return out


def cut_codes_torch(x: Tensor, stream: Stream, p: int) -> Tensor:
    """Return the same in plain torch (the reference; any device)."""
    integer, _, mantissa, exponent = FLOATS[x.dtype]
    drop, top = mantissa - p + 1, ((1 << exponent) - 1) << (p - 1)
    size = x.abs().view(integer).long()
    noise = stream.bits(x.shape[-1]) & ((1 << drop) - 1)
    code = ((size + noise) >> drop).clamp(max=top - 1)
    code = torch.where(x.isfinite(), code, top | torch.where(x.isnan(), (1 << (p - 1)) >> 1, 0))
    code = code | (torch.signbit(x).long() << (exponent + p - 1))
    return code.to(code_dtype(truncated_width(x.dtype, p)))


@compressor(
    "int8",
    bucket=Integer(0, low=0, help="numbers that share a scale; 0: all of a row"),
    rounding=Choice(
        "nearest", "stochastic", help="to the nearest level, or at random without bias"
    ),
)
@dataclass(frozen=True)
class Int8(Compressor):
    """C(x)_j = (m/127) c_j, c_j the integer -127..127 nearest to 127 x_j/m, m = max|x_j| of a bucket.

    The largest is exact, the others err by at most min(|x_j|, m/254): with B = min(bucket, d),
    alpha = 1/(1 + (B - 1)/64516), reached where all but one are at m/254. ``rounding: stochastic``
    is dithering with p = inf, s = 127: unbiased, omega = min(B/(4 s^2), (1 + sqrt B)/(2s)). Bits: 8 d
    and a number of full width per bucket. A bucket with a NaN or infinity is NaN throughout.
    Source: Dettmers 2015, 8-Bit Approximations; Alistarh et al. 2017.
    """

    bucket: int = 0
    rounding: str = "nearest"

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        return self.rounding == "nearest"

    def encode(self, x: Tensor, stream: Stream) -> Message:
        block = self._size(x.shape[-1])
        top = block_max(x, block)
        if self.rounding == "nearest":
            codes = uniform_codes(x, nonzero(top), block)
        else:
            codes = stochastic_codes(x, nonzero(top), block, stream)
        return BlockMessage(x.shape[-1], x.dtype, codes, top, top[..., :0], "int8", block)

    def _size(self, d: int) -> int:
        return min(self.bucket or d, d)

    def alpha(self, d: int) -> float | None:
        return tight_alpha("int8", self._size(d)) if self.deterministic else None

    def omega(self, d: int) -> float | None:
        size, s = self._size(d), 127
        if self.deterministic:
            return None
        return min(size / (4 * s * s), (1 + math.sqrt(size)) / (2 * s))
