"""Natural compression and stochastic rounding: every number goes to a float of few significant bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.core import gpu
from raybench.core.compiled import compiled
from raybench.core.parallel import run_tiled
from raybench.core.registry import Integer, compressor
from raybench.core.streams import Stream, hash_numba
from raybench.wire import ExponentsMessage, Message
from raybench.wire.exponents import FLOATS, exponent_width, integers_of

ROUNDING_WORK = 3.0  # of a coordinate, in additions


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
    on_gpu = gpu.usable(x)
    if (x.device.type != "cpu" and not on_gpu) or not x.numel():
        return cut_torch(x, p, stream)
    integer, mantissa, exponent = FLOATS[x.dtype]
    d, width = x.shape[-1], exponent_width(x.dtype, p)
    dropped, below_sign = 1 + exponent + mantissa - width, (1 << (width - 1)) - 1
    # the largest finite code; beyond are inf and NaN
    last = below_sign - (below_sign >> exponent) - 1
    out = torch.empty(x.shape, dtype=integers_of(width), device=x.device)
    if on_gpu:
        from raybench.core.gpu import quantisers

        own = None if stream is None else stream.keys
        quantisers.cut(x.view(integer), own, dropped, below_sign, last, out)
        return out
    rows, codes = (_unsigned(t.view(-1, d)) for t in (x.view(integer), out))
    keys = np.empty(0, np.uint64)
    if stream is not None:
        keys = stream.keys.reshape(-1).numpy().view(np.uint64)

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _cut(rows, keys, dropped, (1 << dropped) - 1, below_sign, last, r0, r1, lo, hi, codes)

    run_tiled(work, len(rows), d, ROUNDING_WORK if len(keys) else 1.0)
    return out


def cut_torch(x: Tensor, p: int, stream: Stream | None) -> Tensor:
    """Return the same in plain torch, int64 (the reference; any device)."""
    integer, mantissa, exponent = FLOATS[x.dtype]
    width = exponent_width(x.dtype, p)
    dropped, below_sign = 1 + exponent + mantissa - width, (1 << (width - 1)) - 1
    raw, mask = x.contiguous().view(integer).long(), (1 << dropped) - 1
    noise = mask >> 1 if stream is None else stream.bits(x.shape[-1]) & mask
    exact, up = ((v >> dropped) & (2 * below_sign + 1) for v in (raw, raw + noise))
    # the largest finite code; beyond are inf and NaN
    last = below_sign - (below_sign >> exponent) - 1
    return torch.where(exact & below_sign >= last, exact, up)


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
