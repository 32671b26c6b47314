"""Top-k: the k coordinates of largest magnitude."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor, count_of
from raybench.compressors.messages import Message, SparseMessage
from raybench.registry import Count, compressor
from raybench.streams import Stream

INSERTION = 24  # up to this k a sorted list beats a selection over a copy of the row


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
    kernel = _by_insertion if k <= INSERTION else _by_selection
    kernel(rows, k, out.view(-1, k).numpy())
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
def _by_insertion(rows, k, out):
    best = np.empty(k, rows.dtype)  # sizes of those kept, descending
    for r in range(rows.shape[0]):
        row, keep = rows[r], out[r]
        best[:] = -1
        cut = best[k - 1]
        for j in range(row.shape[0]):
            size = abs(row[j])
            if size <= cut:  # nearly always; ties: the earlier index stays; false for NaN
                continue
            if np.isnan(size):
                size = np.inf
                if size <= cut:
                    continue
            at = k - 1
            while at > 0 and best[at - 1] < size:
                best[at] = best[at - 1]
                keep[at] = keep[at - 1]
                at -= 1
            best[at] = size
            keep[at] = j
            cut = best[k - 1]
        for a in range(1, k):  # indices ascending
            index, at = keep[a], a
            while at > 0 and keep[at - 1] > index:
                keep[at] = keep[at - 1]
                at -= 1
            keep[at] = index


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
