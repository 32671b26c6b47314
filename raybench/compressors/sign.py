"""Sign operators: one bit per coordinate."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.messages import LevelsMessage, Message
from raybench.registry import compressor
from raybench.streams import Stream


@compressor("scaled_sign")
@dataclass(frozen=True)
class ScaledSign(Compressor):
    """C(x) = (||x||_1/d) sign(x), sign(0) = +1: contractive, alpha >= 1/d.

    ||C(x) - x||^2 = ||x||^2 - ||x||_1^2/d exactly, so alpha(x) = ||x||_1^2/(d ||x||^2). Bits: one
    scale and d. Source: Karimireddy et al. 2019, Error Feedback Fixes SignSGD.
    """

    deterministic = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        scale = x.abs().double().mean(-1, keepdim=True).to(x.dtype)
        return LevelsMessage(x.shape[-1], x.dtype, (x >= 0).long(), scale, "sign", 1)

    def alpha(self, d: int) -> float:
        return 1 / d

    def omega(self, d: int) -> float | None:
        return 0.0 if d == 1 else None
