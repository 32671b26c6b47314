"""Rand-K: K coordinates drawn at random."""

from __future__ import annotations

from torch import Tensor

from raybench.compressors.base import Compressor, count_of
from raybench.core.registry import Choice, Count, Flag, compressor
from raybench.core.streams import Stream
from raybench.wire import Message, SeededMessage, support_of


@compressor("rand_k")
class RandK(Compressor):
    """C(x) = (d/K) x_S, S a uniform K-subset: unbiased with omega = d/K - 1, exactly, for every x.

    Without the scale C(x) = x_S: contractive with alpha = K/d, exactly, and B1, B2 (K/d, 1); methods
    with error feedback need this one. S is drawn without replacement from a stream that the server
    shares, so no indices are sent. With a common mask C is linear over clients but averaging gains
    no 1/n. d/K is applied when decoding. Source: Gorbunov et al. 2021 (MARINA), section 1;
    Beznosikov et al. 2020, On Biased Compression for Distributed Learning.
    """

    k: int | float | str = Count(help="coordinates kept, or a share such as 10%")
    mask: str = Choice("independent", "common", help="whether clients draw their own coordinates")
    scaled: bool = Flag(True, help="times d/K, which makes it unbiased; without, it is contractive")

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d = x.shape[-1]
        k, common = count_of(self.k, d), self.mask == "common"
        values = x.gather(-1, support_of(stream, d, k, common))
        return SeededMessage(
            d, x.dtype, values, stream, common, scale=d / k if self.scaled else 1.0
        )

    @property
    def correlated(self) -> bool:
        return self.mask == "common"

    @property
    def additive(self) -> bool:  # type: ignore[override]
        return self.mask == "common"

    @property
    def selection(self) -> bool:  # type: ignore[override]
        return not self.scaled

    def omega(self, d: int) -> float | None:
        k = count_of(self.k, d)
        return d / k - 1 if self.scaled or k == d else None

    def alpha(self, d: int) -> float | None:
        k = count_of(self.k, d)
        return None if self.scaled and k < d else k / d

    def b1(self, d: int) -> tuple[float, float] | None:
        return super().b1(d) if self.scaled else (count_of(self.k, d) / d, 1.0)

    def b2(self, d: int) -> tuple[float, float] | None:
        return super().b2(d) if self.scaled else (count_of(self.k, d) / d, 1.0)
