"""Top-k: the k coordinates of largest magnitude; rTop-k: k at random among the largest r."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from raybench.compressors.base import Compressor, count_of
from raybench.compressors.selection.by_size import largest
from raybench.core.errors import InputError
from raybench.core.registry import Count, Number, compressor
from raybench.core.streams import Stream
from raybench.wire import Message, SparseMessage


class _Selection(Compressor):
    """Keeps k of d coordinates as they are: <E C(x), x> = E||C(x)||^2 >= (k/d) ||x||^2."""

    k: int | float | str
    selection = True

    def alpha(self, d: int) -> float:
        return count_of(self.k, d) / d

    def omega(self, d: int) -> float | None:
        return 0.0 if count_of(self.k, d) == d else None

    def b1(self, d: int) -> tuple[float, float]:
        return self.alpha(d), 1.0

    def b2(self, d: int) -> tuple[float, float]:
        return self.alpha(d), 1.0


@compressor("top_k")
class TopK(_Selection):
    """C(x) = the k coordinates of largest |x_j|: contractive with alpha = k/d, deterministic.

    Ties go to the lowest index, NaN counts as largest (a diverged iterate shows). B1 and B2 hold with
    (k/d, 1). Bits: k values and their indices. Source: Alistarh et al. 2018; Beznosikov et al. 2020.
    """

    k: int | float | str = Count(help="coordinates kept, or a share such as 10%")
    deterministic = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        indices, values = largest(x, count_of(self.k, x.shape[-1]))
        return SparseMessage(x.shape[-1], x.dtype, indices, values)


@compressor("rtop_k")
class RTopK(_Selection):
    """C(x) = k coordinates drawn at random from the r = ceil(pool k) of largest |x_j|, unscaled.

    Contractive with alpha = k/d: a coordinate of the pool is kept with probability k/r, and the pool
    holds r/d of ||x||^2 at least. pool = 1 is top_k; r is at most d. B1 and B2 hold with (k/d, 1).
    Bits: k values and their indices. Raises InputError for a pool below 1. Source: Barnes et al.
    2020, rTop-k.
    """

    k: int | float | str = Count(help="coordinates kept, or a share such as 10%")
    pool: float = Number(2.0, low=1, help="r/k: they are drawn from the r largest (at most all)")

    def __post_init__(self) -> None:
        if not 1 <= self.pool < math.inf:
            raise InputError.of("pool", f"{self.pool!r} is below 1 or not finite", "r/k, such as 2")

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d = x.shape[-1]
        k = count_of(self.k, d)
        r = min(d, math.ceil(round(self.pool * k, 9)))  # 1.1 times 10 is 11, not 11.000000000000002
        indices, values = largest(x, r)
        if r > k:
            drawn = torch.zeros(indices.shape, dtype=torch.bool, device=x.device)
            drawn.scatter_(-1, stream.subset(r, k), True)
            where = drawn.nonzero()[:, -1].view(*x.shape[:-1], k)
            indices, values = indices.gather(-1, where), values.gather(-1, where)
        return SparseMessage(d, x.dtype, indices, values)
