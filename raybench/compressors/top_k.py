"""Top-k: the k coordinates of largest magnitude."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor, count_of
from raybench.compressors.messages import Message, SparseMessage
from raybench.cores import run_shared
from raybench.registry import Count, compressor
from raybench.streams import Stream

COST = 5  # of looking at a coordinate, in additions
BLOCK = 8  # coordinates whose largest is found together
ROUNDS = 8  # up to so many looks at a coordinate, taking the largest k times beats a selection


@compressor("top_k", k=Count(help="coordinates kept, or a share such as 10%"))
@dataclass(frozen=True)
class TopK(Compressor):
    """C(x) = the k coordinates of largest |x_j|: contractive with alpha = k/d, deterministic.

    Ties go to the lowest index, NaN counts as largest (a diverged iterate shows). Bits: k values and
    their indices. Source: Alistarh et al. 2018; Beznosikov et al. 2020.
    """

    k: int | float | str
    deterministic = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        k = count_of(self.k, x.shape[-1])
        indices = top_indices(x, k)
        return SparseMessage(x.shape[-1], x.dtype, indices, x.gather(-1, indices))

    def alpha(self, d: int) -> float:
        return count_of(self.k, d) / d

    def omega(self, d: int) -> float | None:
        return 0.0 if count_of(self.k, d) == d else None


def top_indices(x: Tensor, k: int) -> Tensor:
    """Return the indices of the k largest magnitudes of each row, ascending: int64 (*lead, k)."""
    if x.device.type != "cpu":
        return top_indices_torch(x, k)
    out = torch.empty(*x.shape[:-1], k, dtype=torch.int64)
    rows = x.detach().reshape(-1, x.shape[-1]).numpy()
    blocks = -(-x.shape[-1] // BLOCK)
    kernel, into = (
        _by_rounds if k * blocks <= ROUNDS * x.shape[-1] else _by_selection,
        out.view(-1, k).numpy(),
    )

    def work(lo: int, hi: int) -> None:
        kernel(rows[lo:hi], k, into[lo:hi])

    run_shared(work, len(rows), COST * rows.size)
    return out


def top_indices_torch(x: Tensor, k: int) -> Tensor:
    """Return the same by a stable sort (the reference; any device)."""
    size = torch.where(x.isnan(), torch.inf, x.abs())
    order = size.argsort(dim=-1, descending=True, stable=True)
    return order[..., :k].sort(dim=-1).values


@numba.njit(inline="always")
def _size(value):
    return np.inf if np.isnan(value) else abs(value)


@numba.njit(cache=True, nogil=True)
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


@numba.njit(cache=True, nogil=True)
def _by_selection(rows, k, out):
    d = rows.shape[1]
    sizes = np.empty(d, rows.dtype)
    for r in range(rows.shape[0]):
        for j in range(d):
            sizes[j] = _size(rows[r, j])
        cut = np.partition(sizes, d - k)[d - k]
        ties = k
        for j in range(d):
            ties -= sizes[j] > cut
        at = 0
        for j in range(d):
            if sizes[j] > cut or (sizes[j] == cut and ties > 0):
                ties -= sizes[j] == cut
                out[r, at] = j
                at += 1
