"""Sums over neighbours, W X: compiled where few clients are neighbours, a matrix product elsewhere."""

from __future__ import annotations

from typing import NamedTuple

import scipy.sparse
import torch
from torch import Tensor

from raybench.core.compiled import compiled
from raybench.core.parallel import run_shared

DENSE = 0.4  # share of entries that are not 0 from which on a matrix product is faster


class Mixing(NamedTuple):
    """W (n, n), symmetric, doubly stochastic, eigenvalues in (-1, 1]; degrees (n,) without self."""

    W: Tensor
    degrees: Tensor

    @property
    def gap(self) -> float:
        """Return 1 - max(|lambda_2|, |lambda_n|): how fast gossip forgets disagreement."""
        sizes = torch.linalg.eigvalsh(self.W).abs().sort().values
        return float(1 - sizes[-2]) if len(sizes) > 1 else 1.0


class Neighbours:
    """The rows of a mixing matrix that belong to the clients here, (n_here, n)."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self._dense = float((rows != 0).double().mean()) > DENSE
        sparse = scipy.sparse.csr_array(rows.numpy())
        self._ends, self._who, self._weights = sparse.indptr, sparse.indices, sparse.data

    def mixed(self, X: Tensor) -> Tensor:
        """Return sum_j W_ij X_j of the clients here, (B, n_here, d), for X (B, n, d).

        The order of additions is W's, so neither other cells nor the number of ranks change a bit of
        it, but for dense W.
        """
        if self._dense or X.device.type != "cpu":
            return torch.matmul(self.rows.to(X), X)
        out = X.new_empty(len(X), len(self.rows), X.shape[-1])
        given = X.contiguous().numpy(), self._ends, self._who, self._weights, out.numpy()
        work = len(X) * len(self._who) * X.shape[-1]
        run_shared(lambda lo, hi: _mix(*given, lo, hi), len(X), work)
        return out


@compiled
def _mix(X, ends, who, weights, out, lo, hi):
    for b in range(lo, hi):
        for i in range(out.shape[1]):
            row = out[b, i]
            row[:] = 0.0
            for e in range(ends[i], ends[i + 1]):
                w, other = row.dtype.type(weights[e]), X[b, who[e]]
                for k in range(row.shape[0]):
                    row[k] += w * other[k]
