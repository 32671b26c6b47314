"""Natural compression: every number is rounded at random to a power of two."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.messages import ExponentsMessage, Message
from raybench.registry import compressor
from raybench.streams import Stream


@compressor("natural")
@dataclass(frozen=True)
class Natural(Compressor):
    """C(x)_j = sign(x_j) 2^e or 2^(e+1), 2^e <= |x_j| < 2^(e+1), unbiased: omega = 1/8.

    P(up) = (|x_j| - 2^e)/2^e: a uniform integer is added to the mantissa, the carry rounds up. Sign
    and exponent are sent: 9 bits in float32, 12 in float64. Numbers of the top binade are not rounded
    up to infinity (biased there); inf and NaN become inf. Source: Horvath et al. 2019.
    """

    def encode(self, x: Tensor, stream: Stream) -> Message:
        wide = x.dtype == torch.float64
        bits, mantissa, top = (torch.int64, 52, 0x7FF) if wide else (torch.int32, 23, 0xFF)
        raw = x.contiguous().view(bits)
        noise = (stream.bits(x.shape[-1]) & ((1 << mantissa) - 1)).to(bits)
        code = ((raw + noise) >> mantissa) & (2 * top + 1)
        # a carry into the exponent of infinity: stay at the largest power of two
        code = torch.where((code & top == top) & x.isfinite(), code - 1, code)
        exact = raw >> mantissa & (2 * top + 1)
        code = torch.where(x.isfinite(), code, exact)
        return ExponentsMessage(x.shape[-1], x.dtype, code)

    def omega(self, d: int) -> float:
        return 1 / 8
