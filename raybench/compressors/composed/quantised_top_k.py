"""Top-k with quantised values by one name: the last rows of the table of Beznosikov et al. 2020.

Each is a chain: a quantiser Q acts on the k kept values, so u and zeta are those of dimension k. All
are in B1(k/d, zeta) and B2(k/d, zeta), zeta = omega_Q(k) + 1; in the contractive role they are
multiplied by 1/zeta, alpha = (k/d)/zeta. The indices are sent once.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.compose import build
from raybench.compressors.composed.chain import Chain
from raybench.compressors.selection.top_k import TopK
from raybench.core.registry import Count, Integer, Number, compressor
from raybench.core.streams import Stream
from raybench.wire import Message


class _TopKThen(Compressor):
    """Top-k, then the quantiser that a subclass names by its short form."""

    k: int | float | str

    def quantiser(self) -> str:
        """Return the short form of what acts on the kept values."""
        raise NotImplementedError

    @cached_property
    def chain(self) -> Chain:
        """The composition."""
        return Chain(TopK(self.k), build(self.quantiser()))

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        return self.chain.deterministic

    def encode(self, x: Tensor, stream: Stream) -> Message:
        return self.chain.encode(x, stream)

    def omega(self, d: int) -> float | None:
        return self.chain.omega(d)

    def alpha(self, d: int) -> float | None:
        return self.chain.alpha(d)

    def b1(self, d: int) -> tuple[float, float] | None:
        return self.chain.b1(d)

    def b2(self, d: int) -> tuple[float, float] | None:
        return self.chain.b2(d)


def _count() -> Any:
    return Count(help="coordinates kept, or a share such as 10%")


@compressor("top_k_natural")
class TopKNatural(_TopKThen):
    """The k largest |x_j|, each rounded at random to a power of two: zeta = 9/8 in B1 and B2.

    Bits: k times (index and 9, or 12 in float64). Source: Beznosikov et al. 2020.
    """

    k: int | float | str = _count()

    def quantiser(self) -> str:
        return "natural"


@compressor("top_k_dithering")
class TopKDithering(_TopKThen):
    """The k largest |x_j|, dithered to s levels: 1/s, .., 1, or base^(1-s), .., 1/base, 1.

    zeta is that of ``dithering``, or with a base of ``exponential_dithering``, in dimension k:
    (b + 1/b + 2)/4 + u min(1, u), u = k^(1/r) b^(1-s), r = min(p, 2). Bits: one norm, k times (index
    and ceil(log2(2s+1))). Source: Beznosikov et al. 2020.
    """

    k: int | float | str = _count()
    s: int = Integer(3, low=1, high=1000, help="levels above zero")
    p: float | str = Number(2.0, low=1, words=("inf",), help="norm of the kept values: 2 or inf")
    base: float | None = Number(
        None, low=1, open_low=True, help="levels base^-i; null for i/s, equally spaced"
    )

    def quantiser(self) -> str:
        if self.base is None:
            return f"dithering:p={self.p},s={self.s}"
        return f"exponential_dithering:base={self.base},p={self.p},s={self.s}"


@compressor("top_k_natural_dithering")
class TopKNaturalDithering(_TopKThen):
    """The k largest |x_j|, dithered to the levels 2^(1-s), .., 1/2, 1.

    zeta = 9/8 + u min(1, u), u = k^(1/r) 2^(1-s), r = min(p, 2). Bits: one norm, k times (index and
    ceil(log2(2s+1))). Source: Beznosikov et al. 2020.
    """

    k: int | float | str = _count()
    s: int = Integer(3, low=1, high=1000, help="levels above zero: 2^(1-s), .., 1/2, 1")
    p: float | str = Number(2.0, low=1, words=("inf",), help="norm of the kept values: 2 or inf")

    def quantiser(self) -> str:
        return f"natural_dithering:p={self.p},s={self.s}"
