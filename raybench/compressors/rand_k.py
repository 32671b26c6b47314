"""Rand-K: K coordinates drawn at random, scaled to be unbiased."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from raybench.compressors.base import Compressor, count_of
from raybench.compressors.messages import Message, SeededMessage, support_of
from raybench.registry import Choice, Count, compressor
from raybench.streams import Stream


@compressor(
    "rand_k",
    k=Count(help="coordinates kept, or a share such as 10%"),
    mask=Choice("independent", "common", help="whether clients draw their own coordinates"),
)
@dataclass(frozen=True)
class RandK(Compressor):
    """C(x) = (d/K) x_S, S a uniform K-subset: unbiased with omega = d/K - 1, exactly, for every x.

    Drawn without replacement from a stream that the server shares, so no indices are sent. With a
    common mask C is linear over clients but averaging gains no 1/n. d/K is applied when decoding.
    Source: Gorbunov et al. 2021 (MARINA), section 1.
    """

    k: int | float | str
    mask: str = "independent"

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d = x.shape[-1]
        k, common = count_of(self.k, d), self.mask == "common"
        values = x.gather(-1, support_of(stream, d, k, common))
        return SeededMessage(d, x.dtype, values, stream, common, scale=d / k)

    @property
    def correlated(self) -> bool:
        return self.mask == "common"

    def omega(self, d: int) -> float:
        return d / count_of(self.k, d) - 1

    def alpha(self, d: int) -> float | None:
        return 1.0 if count_of(self.k, d) == d else None
