"""Top-k: the k coordinates of largest magnitude; rTop-k: k at random among the largest r."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor, count_of
from raybench.compressors.kernels.selection import largest_of_long, sizes_torch
from raybench.compressors.kernels.short_rows import largest_of_short
from raybench.core.compiled import compiled
from raybench.core.errors import InputError
from raybench.core.parallel import run_shared
from raybench.core.registry import Count, Number, compressor
from raybench.core.streams import Stream
from raybench.wire import Message, SparseMessage

COST = 5  # of looking at a coordinate, in additions
BLOCK = 8  # coordinates whose largest is found together
FEW = 4  # up to this k, taking the largest k times beats counting
LONG = 32_768  # from this length on a sampled cut beats counting
LESS_LONG, SPARSE = 8_000, 64  # or from this one, where at most 1 of 64 is kept


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


@compressor("top_k", k=Count(help="coordinates kept, or a share such as 10%"))
@dataclass(frozen=True)
class TopK(_Selection):
    """C(x) = the k coordinates of largest |x_j|: contractive with alpha = k/d, deterministic.

    Ties go to the lowest index, NaN counts as largest (a diverged iterate shows). B1 and B2 hold with
    (k/d, 1). Bits: k values and their indices. Source: Alistarh et al. 2018; Beznosikov et al. 2020.
    """

    k: int | float | str
    deterministic = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        indices, values = largest(x, count_of(self.k, x.shape[-1]))
        return SparseMessage(x.shape[-1], x.dtype, indices, values)


@compressor(
    "rtop_k",
    k=Count(help="coordinates kept, or a share such as 10%"),
    pool=Number(2.0, low=1, help="r/k: they are drawn from the r largest (at most all)"),
)
@dataclass(frozen=True)
class RTopK(_Selection):
    """C(x) = k coordinates drawn at random from the r = ceil(pool k) of largest |x_j|, unscaled.

    Contractive with alpha = k/d: a coordinate of the pool is kept with probability k/r, and the pool
    holds r/d of ||x||^2 at least. pool = 1 is top_k; r is at most d. B1 and B2 hold with (k/d, 1).
    Bits: k values and their indices. Raises InputError for a pool below 1. Source: Barnes et al.
    2020, rTop-k.
    """

    k: int | float | str
    pool: float = 2.0

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


def largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return indices (int64, ascending) and values of the k largest magnitudes: (*lead, k) each."""
    d, cpu = x.shape[-1], x.device.type == "cpu"
    if cpu and (d >= LONG or (d >= LESS_LONG and k * SPARSE <= d)):
        return largest_of_long(x, k)
    if cpu and k > FEW:
        return largest_of_short(x, k)
    indices = _indices_of_few(x, k) if cpu else top_indices_device(x, k)
    return indices, x.gather(-1, indices)


def top_indices(x: Tensor, k: int) -> Tensor:
    """Return the indices of the k largest magnitudes of each row, ascending: int64 (*lead, k)."""
    return largest(x, k)[0]


def top_indices_torch(x: Tensor, k: int) -> Tensor:
    """Return the same by a stable sort (the reference)."""
    order = sizes_torch(x).argsort(dim=-1, descending=True, stable=True)
    return order[..., :k].sort(dim=-1).values


def top_indices_device(x: Tensor, k: int) -> Tensor:
    """Return the same without a sort: the k-th largest, what exceeds it, and its first ties."""
    size = sizes_torch(x)
    cut = size.topk(k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    above, tie = size > cut, size == cut
    room = k - above.sum(-1, keepdim=True)
    keep = above | (tie & (tie.cumsum(-1) <= room))
    return keep.nonzero()[:, -1].view(*x.shape[:-1], k)


def _indices_of_few(x: Tensor, k: int) -> Tensor:
    out = torch.empty(*x.shape[:-1], k, dtype=torch.int64)
    rows, into = x.detach().reshape(-1, x.shape[-1]).numpy(), out.view(-1, k).numpy()
    run_shared(lambda lo, hi: _by_rounds(rows[lo:hi], k, into[lo:hi]), len(rows), COST * rows.size)
    return out


@compiled
def _by_rounds(rows, k, out):  # take the largest k times, over blocks whose maxima are kept
    d = rows.shape[1]
    blocks = -(-d // BLOCK)
    sizes = np.full(blocks * BLOCK, -1, rows.dtype)
    most = np.empty(blocks, rows.dtype)
    for r in range(rows.shape[0]):
        row, keep = rows[r], out[r]
        for j in range(d):
            sizes[j] = abs(row[j])
        for b in range(blocks):
            largest = sizes[b * BLOCK]
            strange = np.isnan(largest)
            for j in range(b * BLOCK + 1, b * BLOCK + BLOCK):
                strange |= np.isnan(sizes[j])
                largest = max(largest, sizes[j])
            if strange:
                largest = np.inf
                for j in range(b * BLOCK, b * BLOCK + BLOCK):
                    if np.isnan(sizes[j]):
                        sizes[j] = np.inf
            most[b] = largest
        for t in range(k):
            top, b = most[0], 0
            for c in range(1, blocks):  # ties: the earlier block, and in it the earlier index
                if most[c] > top:
                    top, b = most[c], c
            j = b * BLOCK
            while sizes[j] != top:
                j += 1
            sizes[j] = -1
            largest = sizes[b * BLOCK]
            for i in range(b * BLOCK + 1, b * BLOCK + BLOCK):
                largest = max(largest, sizes[i])
            most[b] = largest
            at = t  # indices ascending
            while at > 0 and keep[at - 1] > j:
                keep[at] = keep[at - 1]
                at -= 1
            keep[at] = j
