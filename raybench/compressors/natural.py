"""Natural compression: every number is rounded at random to a power of two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.core.compiled import compiled
from raybench.core.parallel import run_tiled
from raybench.core.registry import compressor
from raybench.core.streams import Stream, hash_numba
from raybench.wire import ExponentsMessage, Message

COST = 3.0  # of a coordinate, in additions


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
        return ExponentsMessage(x.shape[-1], x.dtype, natural_codes(x, stream))

    def omega(self, d: int) -> float:
        return 1 / 8


def natural_codes(x: Tensor, stream: Stream) -> Tensor:
    """Return sign and rounded exponent of x (*lead, d), int16; on CPU by a kernel."""
    if x.device.type != "cpu" or not x.numel():
        return natural_codes_torch(x, stream)
    d, wide = x.shape[-1], x.dtype == torch.float64
    out = torch.empty(x.shape, dtype=torch.int16)
    codes = out.view(-1, d).numpy()
    rows = x.reshape(-1, d).numpy().view(np.uint64 if wide else np.uint32)
    keys = stream.keys.contiguous().view(-1).numpy().view(np.uint64)
    kernel = _exponents_64 if wide else _exponents_32

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        kernel(rows, keys, r0, r1, lo, hi, codes)

    run_tiled(work, len(rows), d, COST)
    return out


def natural_codes_torch(x: Tensor, stream: Stream) -> Tensor:
    """Return the same by plain torch (the reference; any device)."""
    wide = x.dtype == torch.float64
    bits, mantissa, top = (torch.int64, 52, 0x7FF) if wide else (torch.int32, 23, 0xFF)
    raw = x.contiguous().view(bits)
    noise = (stream.bits(x.shape[-1]) & ((1 << mantissa) - 1)).to(bits)
    up, exact = (part >> mantissa & (2 * top + 1) for part in (raw + noise, raw))
    # the top binade stays where it is, lest it become infinite; infinity and NaN stay
    return torch.where(exact & top >= top - 1, exact, up).to(torch.int16)


@compiled
def _exponents_32(rows, keys, r0, r1, lo, hi, out):
    mantissa = np.uint32(2**23 - 1)
    for r in range(r0, r1):
        key, x, o = keys[r], rows[r, lo:hi], out[r, lo:hi]
        for j in range(x.shape[0]):
            noise = np.uint32(np.uint32(hash_numba(key, np.uint64(lo + j))) & mantissa)
            up = np.uint32(np.uint32(x[j] + noise) >> np.uint32(23))
            exact = np.uint32(x[j] >> np.uint32(23))
            o[j] = exact if np.uint32(exact & np.uint32(0xFF)) >= np.uint32(0xFE) else up


@compiled
def _exponents_64(rows, keys, r0, r1, lo, hi, out):
    mantissa = np.uint64(2**52 - 1)
    for r in range(r0, r1):
        key, x, o = keys[r], rows[r, lo:hi], out[r, lo:hi]
        for j in range(x.shape[0]):
            noise = hash_numba(key, np.uint64(lo + j)) & mantissa
            up = (x[j] + noise) >> np.uint64(52)
            exact = x[j] >> np.uint64(52)
            o[j] = exact if exact & np.uint64(0x7FF) >= np.uint64(0x7FE) else up
