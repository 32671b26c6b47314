"""Losses l(y a'x) of a margin: logistic regression and its nonconvex sister, by compiled kernels or torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.nn.functional import softplus

from raybench.core.parallel import run_shared
from raybench.core.registry import Choice, Number, problem
from raybench.core.streams import Sample
from raybench.problems import kernels
from raybench.problems.base import share_signed
from raybench.problems.clients import Rows
from raybench.problems.minimum import logistic_minimum
from raybench.problems.scores import ScoreProblem, stored_entries

MOST_ENTRIES_BY_KERNEL = 40_000  # stored entries up to which the kernel beats dense products


class MarginProblem(ScoreProblem):
    """f_i(x) = mean_j l(y_j a_j'x) + regulariser, y_j = -1 or +1 (smaller label: -1).

    ``loss`` names l >= 0 among ``LOSSES``; see ``ScoreProblem`` for slope, curvature and convex.
    """

    loss: ClassVar[str]

    def kernel(self, batch: int | None = None) -> SparseMargins | None:
        """Return the compiled kernels over rows here, made on first use, for so many cells; None where torch is better.

        That is elsewhere than on the CPU, and for one cell on data that is large and mostly not zero
        (measured two to four times faster there).
        """
        most = max(MOST_ENTRIES_BY_KERNEL, 0.5 * math.prod(self.rows.features.shape))
        full = self.once("full", lambda: stored_entries(self.rows.features) > most)
        if self.device.type != "cpu" or (batch == 1 and full):
            return None
        return self.once("kernel", lambda: SparseMargins(self.rows, self.loss, self.dtype))

    def oracle(self, x: Tensor, loss: bool = True) -> tuple[Tensor, Tensor | None]:
        kernel = self.kernel(len(x))
        if kernel is None:
            return super().oracle(x, loss)
        shift, value = self.regularizer.both(x) if self.regularizer.smooth else (None, None)
        grads, losses = kernel.oracle(x, shift, loss)
        if losses is not None and value is not None:
            losses += value if value.ndim == 2 else value[:, None]
        return grads, losses

    def grad(self, x: Tensor, sample: Sample | None = None) -> Tensor:
        kernel = self.kernel()
        if sample is None or kernel is None:
            return super().grad(x, sample)
        shift = self.regularizer.both(x)[0] if self.regularizer.smooth else None
        return kernel.minibatch(x, sample.indices, shift)

    def terms(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        signs = labels[..., None]
        loss, z = LOSSES[self.loss], signs * scores
        return signs * loss(z, True), loss(z, False)[..., 0]

    def right_share(self, scores: Tensor, labels: Tensor) -> Tensor:
        return share_signed(labels * scores[..., 0])

    def link(self, scores: Tensor) -> Tensor:
        """Return the probability of the label +1."""
        return torch.sigmoid(scores)


@problem("logistic")
class Logistic(MarginProblem):
    """Logistic regression: f_i(x) = mean_j log(1 + exp(-y_j a_j'x)) + lambda r(x).

    r: nonconvex (sum_l x_l^2 / (1 + x_l^2), the EF21 and 3PC setting with lambda = 0.1), l2
    (||x||^2 / 2), l1 (||x||_1, by its proximal step) or none. L_i = lmax(A_i'A_i) / (4 N_i) plus
    2 lambda (nonconvex) or lambda (l2). Raises InputError for bad input (see ``DataProblem``).
    """

    loss = "logistic"
    slope = 1.0
    curvature = 0.25
    convex = True

    def least(self, mu: float) -> tuple[float, np.ndarray] | None:
        """Return (min f, x*) with mu ||x||^2/2, by Newton's method; None where d or N is large."""
        return logistic_minimum(self.rows.features, self.rows.labels, self.rows.weights(), mu)


def _steepest() -> float:
    # with s = sigma(-z): l'' = s^2 (1-s) (4-6s), largest where 12 s^2 - 15 s + 4 = 0
    s = (15 - math.sqrt(33)) / 24
    return s * s * (1 - s) * (4 - 6 * s)


@problem("nonconvex_classification")
class NonconvexClassification(MarginProblem):
    """Squared sigmoid loss: f_i(x) = mean_j (1 - sigma(y_j a_j'x))^2 + lambda r(x).

    r: l2 (||x||^2 / 2, with lambda = 1e-6 L by default), nonconvex, l1 or none, as in logistic
    regression. L_i = 0.15406 lmax(A_i'A_i) / N_i + lambda (l2). Loss of Zhao et al. 2010, setting
    of Gorbunov et al. 2021 (MARINA). Raises InputError for bad input (see ``DataProblem``).
    """

    loss = "sigmoid_sq"
    slope = 8 / 27  # |l'| = 2 s^2 (1-s) with s = sigma(-z), largest at s = 2/3
    curvature = _steepest()

    def __init__(
        self,
        dataset: str,
        clients: int | None = None,
        *,
        regularizer: str = Choice(
            "l2", "nonconvex", "l1", "none", help="what is added to the loss"
        ),
        lambda_: float | Mapping[str, float] = Number(
            {"times_L": 1e-6}, low=0, tags={"times_L": Number(low=0)}, help="its factor"
        ),
        **rest: Any,
    ) -> None:
        super().__init__(dataset, clients, regularizer=regularizer, lambda_=lambda_, **rest)


def _logistic(z: Tensor, slope: bool) -> Tensor:
    """Return l(z) = log(1 + exp(-z)), or l'(z) = -sigma(-z)."""
    return -torch.sigmoid(-z) if slope else softplus(-z, threshold=1e9)


def _sigmoid_sq(z: Tensor, slope: bool) -> Tensor:
    """Return l(z) = sigma(-z)^2, or l'(z) = -2 sigma(-z)^2 sigma(z)."""
    square = torch.sigmoid(-z).square()
    return -2 * square * torch.sigmoid(z) if slope else square


LOSSES = {"logistic": _logistic, "sigmoid_sq": _sigmoid_sq}


# Compressed rows and columns on the CPU, for the compiled kernels ---------------------------------


Arrays = tuple[np.ndarray, ...]

KINDS = {"logistic": kernels.LOGISTIC, "sigmoid_sq": kernels.SIGMOID_SQ}


class SparseMargins:
    """f_i(x) = mean_j l(y_j a_j'x) by the kernels."""

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
        self._counts = np.diff(self.starts)[None, :, None]
        self._matrix = A
        self._blocks: dict[int, tuple[Arrays, Arrays]] = {}  # kept by the number of rows per block

    def oracle(self, x: Tensor, shift: Tensor | None, loss: bool) -> tuple[Tensor, Tensor | None]:
        """Return gradients (B, n, d) with ``shift`` added, and losses (B, n), at x (B[, n], d)."""
        B, (n, d) = len(x), self.shape
        # tiles of 16 cells, unless half of the last tile were empty
        tile = 1 if B == 1 else 16 if -B % 16 < 8 else 8
        kernel = kernels.margin_kernel(tile, self.weighted, self.kind)
        size = kernels.block_size(tile)
        if size not in self._blocks:
            self._blocks[size] = _column_blocks(self._matrix, self.starts, size)
        blocks, columns = self._blocks[size]
        grads = torch.empty(B, n, d, dtype=self.dtype)
        losses = torch.empty(B, n, dtype=self.dtype)
        inputs = self.rows, columns, self.labels, blocks, _array(x), *_added(x, shift)
        work = partial(kernel, *inputs, grads.numpy(), losses.numpy(), loss)
        tiles = -(-B // tile)
        run_shared(work, n * tiles, 2 * self.nnz * tiles * max(1, tile / 8))
        return grads, losses if loss else None

    def minibatch(self, x: Tensor, sample: Tensor, shift: Tensor | None) -> Tensor:
        """Return the mean gradients (B, n, d) of the rows ``sample`` (B, n, b)."""
        B, (n, d) = len(x), self.shape
        kernel = kernels.minibatch_kernel(self.weighted, self.kind)
        grads, chosen = torch.empty(B, n, d, dtype=self.dtype), sample.contiguous().numpy()
        if not ((chosen >= 0) & (chosen < self._counts)).all():
            raise IndexError("a sample index lies outside its client's rows")
        inputs = self.rows, self.labels, self.starts, _array(x), *_added(x, shift), chosen
        per_row = self.nnz / max(len(self.labels), 1)
        run_shared(
            partial(kernel, *inputs, grads.numpy()),
            B * n,
            B * n * (d + 2 * per_row * sample.shape[-1]),
        )
        return grads


def _array(x: Tensor) -> np.ndarray:
    x = x.detach().contiguous()
    return (x if x.ndim == 3 else x[:, None]).numpy()


def _added(x: Tensor, shift: Tensor | None) -> tuple[np.ndarray, bool]:
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
