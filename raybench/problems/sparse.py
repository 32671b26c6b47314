"""Margin losses on the CPU: compressed rows and columns for the compiled kernels."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import scipy.sparse
import torch

from raybench.core.parallel import run_shared
from raybench.problems import kernels
from raybench.problems.clients import Rows

Arrays = tuple[np.ndarray, ...]

KINDS = {"logistic": kernels.LOGISTIC, "sigmoid_sq": kernels.SIGMOID_SQ}


class SparseMargins:
    """f_i(x) = mean_j l(y_j a_j'x) by the kernels: the same calls as ``dense.DenseMargins``."""

    def __init__(self, rows: Rows, loss: str, dtype: torch.dtype) -> None:
        A = scipy.sparse.csr_array(rows.features)
        A.sum_duplicates()
        self.shape, self.nnz = (len(rows.counts), A.shape[1]), A.nnz
        self.dtype, self.kind = dtype, KINDS[loss]
        self.weighted = not bool((A.data == 1).all())
        small = np.uint16 if A.shape[1] < 2**16 else np.uint32
        values = np.ascontiguousarray(A.data, dtype=float)
        self.rows = A.indptr.astype(np.int64), A.indices.astype(small), values
        self.labels = np.ascontiguousarray(rows.labels, dtype=float)
        self.starts = rows.ends.astype(np.int64)
        self._matrix = A
        self._blocks: dict[int, tuple[Arrays, Arrays]] = {}  # kept by the number of rows per block

    def _blocked(self, tile: int) -> tuple[Arrays, Arrays]:
        size = kernels.block_size(tile)
        if size not in self._blocks:
            self._blocks[size] = _column_blocks(self._matrix, self.starts, size)
        return self._blocks[size]

    def oracle(
        self, x: torch.Tensor, shift: torch.Tensor | None, loss: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return gradients (B, n, d) with ``shift`` added, and losses (B, n), at x (B[, n], d)."""
        B, (n, d) = len(x), self.shape
        tile = _tile(B)
        kernel = kernels.margin_kernel(tile, self.weighted, self.kind)
        blocks, columns = self._blocked(tile)
        grads = torch.empty(B, n, d, dtype=self.dtype)
        losses = torch.empty(B, n, dtype=self.dtype)
        given = self.rows, columns, self.labels, blocks, _array(x), *_added(x, shift)
        out = grads.numpy(), losses.numpy()

        def work(lo: int, hi: int) -> None:
            kernel(*given, *out, loss, lo, hi)

        tiles = -(-B // tile)
        run_shared(work, n * tiles, 2 * self.nnz * tiles * max(1, tile / 8))
        return grads, losses if loss else None

    def minibatch(
        self, x: torch.Tensor, sample: torch.Tensor, shift: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the mean gradients (B, n, d) of the rows ``sample`` (B, n, b)."""
        B, (n, d) = len(x), self.shape
        kernel = kernels.minibatch_kernel(self.weighted, self.kind)
        grads, chosen = torch.empty(B, n, d, dtype=self.dtype), sample.contiguous().numpy()
        counts = np.diff(self.starts)[None, :, None]
        if not ((chosen >= 0) & (chosen < counts)).all():
            raise IndexError("a sample index lies outside its client's rows")
        given = self.rows, self.labels, self.starts, _array(x), *_added(x, shift), chosen
        out = grads.numpy()

        def work(lo: int, hi: int) -> None:
            kernel(*given, out, lo, hi)

        per_row = self.nnz / max(len(self.labels), 1)
        run_shared(work, B * n, B * n * (d + 2 * per_row * sample.shape[-1]))
        return grads


def _tile(B: int) -> int:
    if B == 1:
        return 1
    return 16 if -B % 16 < 8 else 8  # tiles of 16 cells, unless half of the last tile were empty


def _array(x: torch.Tensor) -> np.ndarray:
    x = x.detach().contiguous()
    return (x if x.ndim == 3 else x[:, None]).numpy()


def _added(x: torch.Tensor, shift: torch.Tensor | None) -> tuple[np.ndarray, bool]:
    return _array(x if shift is None else shift), shift is not None


def _column_blocks(
    A: scipy.sparse.csr_array, starts: np.ndarray, size: int
) -> tuple[Arrays, Arrays]:
    """Return blocks of at most ``size`` rows within clients, and each block's nonempty columns."""
    edges = [np.arange(a, b, size) for a, b in pairwise(starts)]
    client_blocks = np.cumsum([0, *map(len, edges)])
    block_rows = np.append(np.concatenate(edges), starts[-1])
    row = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    block = np.searchsorted(block_rows, row, side="right") - 1
    key = block * A.shape[1] + A.indices
    order = np.argsort(key, kind="stable")
    keys, first = np.unique(key[order], return_index=True)
    names = keys % A.shape[1]
    block_columns = np.searchsorted(keys // A.shape[1], np.arange(len(block_rows)))
    local = (row - block_rows[block])[order].astype(np.uint16)
    ends = np.append(first, len(order))
    values = np.ascontiguousarray(A.data[order], dtype=float)
    blocks = tuple(v.astype(np.int64) for v in (client_blocks, block_rows, block_columns))
    return blocks, (ends.astype(np.int64), names.astype(np.int64), local, values)
