"""Sign operators: one bit per coordinate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.norms import norms, side_sums
from raybench.core.registry import compressor
from raybench.core.streams import Stream
from raybench.wire import LevelsMessage, Message
from raybench.wire.levels import UNSCALED


@compressor("scaled_sign", version="2")
@dataclass(frozen=True)
class ScaledSign(Compressor):
    """C(x) = (||x||_1/d) sign(x), sign(0) = +1: contractive, alpha >= 1/d.

    ||C(x) - x||^2 = ||x||^2 - ||x||_1^2/d exactly, so alpha(x) = ||x||_1^2/(d ||x||^2). Bits: one
    scale and d. NaN or infinity makes its row non-finite. Source: Karimireddy et al. 2019, Error
    Feedback Fixes SignSGD.
    """

    deterministic = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        mean = norms(x, 1.0) / x.shape[-1]
        return LevelsMessage(x.shape[-1], x.dtype, signs(x), mean.to(x.dtype), "sign", 1)

    def alpha(self, d: int) -> float:
        return 1 / d

    def omega(self, d: int) -> float | None:
        return 0.0 if d == 1 else None


@compressor("sign")
@dataclass(frozen=True)
class Sign(Compressor):
    """C(x) = sign(x), sign(0) = +1, unscaled: signSGD, with no guarantee in any class.

    C(0) = (1, .., 1): a bit cannot encode 0. Nor NaN or infinity: ValueError. Bits: d. Source:
    Bernstein et al. 2018, signSGD.
    """

    deterministic = True
    zero_to_zero = False

    def encode(self, x: Tensor, stream: Stream) -> Message:
        if not bool(norms(x, math.inf).isfinite().all()):
            raise ValueError("sign has no bit for NaN or infinity")
        none = x.new_zeros(*x.shape[:-1], 0)
        return LevelsMessage(x.shape[-1], x.dtype, signs(x), none, "sign", 1, bucket=UNSCALED)


@compressor("one_bit")
@dataclass(frozen=True)
class OneBit(Compressor):
    """C(x)_j = the mean of the x_i >= 0 where x_j >= 0, else the mean of the x_i < 0: alpha >= 1/d.

    ||C(x) - x||^2 = ||x||^2 - S+^2/n+ - S-^2/n- exactly, S and n the sums and counts of either side:
    never more than scaled sign's, as S+^2/n+ + S-^2/n- >= ||x||_1^2/d. Bits: two values and d. NaN or
    infinity makes its side of the row non-finite. Source: Seide et al. 2014, 1-bit SGD.
    """

    deterministic = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d = x.shape[-1]
        codes = signs(x)
        above = codes.sum(-1, keepdim=True, dtype=torch.int32)
        counts = torch.cat((d - above, above), -1)
        means = side_sums(x) / counts.clamp(min=1)
        return LevelsMessage(d, x.dtype, codes, means.to(x.dtype), "pair", 1)

    def alpha(self, d: int) -> float:
        return 1 / d

    def omega(self, d: int) -> float | None:
        return 0.0 if d == 1 else None


def signs(x: Tensor) -> Tensor:
    """Return whether x_j >= 0, uint8 (*lead, d); NaN counts as not."""
    if x.device.type == "cpu":  # numpy compares several times as fast as torch
        return torch.from_numpy(x.numpy() >= 0).view(torch.uint8)
    return (x >= 0).view(torch.uint8)
