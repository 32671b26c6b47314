"""Scores a_j'X of several classes and their pull-back, for all clients and cells at once.

Two ways of the same calls. ``DenseScores``: zero-padded dense rows, on every device. ``SparseScores``:
compressed rows on the CPU, where one product with the block-diagonal matrix of all clients' rows serves
everybody. Both lay scores out as (R, B, c): R rows of all clients, B cells, c classes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse
import torch

from raybench.core.limits import need_memory
from raybench.problems.clients import Rows

# called as slopes(scores (.., c), labels (..)): the loss's gradient in the scores (.., c)
Slopes = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class DenseScores:
    """Rows of n clients as a zero-padded (n, N, p) tensor, so R = n N; rows that pad have weight 0."""

    def __init__(self, rows: Rows, dtype: torch.dtype, device: torch.device) -> None:
        counts, p = rows.counts, rows.features.shape[1]
        what = f"{len(counts):,} dense matrices of {max(counts):,} rows and {p:,} features"
        bytes_held = dtype.itemsize * len(counts) * max(counts) * p
        need_memory(bytes_held, what, "fewer problem.rows, or clients of equal size")
        dense = torch.from_numpy(rows.dense()).to(dtype)
        self.A = torch.zeros(len(counts), max(counts), p, dtype=dtype, device=device)
        self.weights = torch.zeros(len(counts), max(counts), dtype=dtype, device=device)
        self.labels = torch.zeros(len(counts), max(counts), dtype=torch.long, device=device)
        for i, (count, start) in enumerate(zip(counts, rows.ends)):
            self.A[i, :count] = dense[start : start + count]
            self.labels[i, :count] = torch.from_numpy(rows.labels[start : start + count])
            self.weights[i, :count] = 1 / count
        self.weights, self.labels = self.weights.flatten(), self.labels.flatten()

    def scores(self, X: torch.Tensor) -> torch.Tensor:
        """Return a_j'X (R, B, c) at X (B, p, c), or (B, n, p, c) with a point per client."""
        n, N, p = self.A.shape
        if X.ndim == 3:
            flat = self.A.view(n * N, p) @ X.transpose(0, 1).reshape(p, -1)
        else:
            flat = self.A @ X.permute(1, 2, 0, 3).reshape(n, p, -1)
        return flat.reshape(n * N, len(X), -1)

    def pull(self, S: torch.Tensor) -> torch.Tensor:
        """Return sum_j a_j s_j' of each client, (B, n, p, c), of S (R, B, c)."""
        n, N, p = self.A.shape
        # bmm(S', A) is 2.6 times as fast as bmm(A', S)
        pulled = torch.bmm(S.reshape(n, N, -1).transpose(1, 2), self.A)
        return pulled.view(n, *S.shape[1:], p).permute(1, 0, 3, 2)

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of values (R, B) over the rows of each client, (B, n)."""
        return values.view(*self.A.shape[:2], -1).sum(1).T

    def minibatch(self, X: torch.Tensor, sample: torch.Tensor, slopes: Slopes) -> torch.Tensor:
        """Return mean_j a_j slopes_j' (B, n, p, c) over the rows ``sample`` (B, n, b) at X (B, n, p, c)."""
        n, N, _ = self.A.shape
        client = torch.arange(n, device=X.device)[None, :, None]
        picked = self.A[client, sample]  # (B, n, b, p)
        S = slopes(picked @ X, self.labels.view(n, N)[client, sample])
        return picked.mT @ S / sample.shape[-1]


class SparseScores:
    """Rows of n clients in compressed form, so R is the number of rows; the same calls as ``DenseScores``."""

    def __init__(self, rows: Rows, dtype: torch.dtype) -> None:
        kind = np.float64 if dtype == torch.float64 else np.float32
        self.A = scipy.sparse.csr_array(rows.features).astype(kind)
        self.ends, self.n, self.p = rows.ends, len(rows.counts), self.A.shape[1]
        # row j of client i with its columns moved by i p: all clients' rows as one block-diagonal matrix
        client = np.repeat(np.arange(self.n), rows.counts)
        moved = self.A.indices + np.repeat(client, np.diff(self.A.indptr)) * np.int64(self.p)
        shape = self.A.shape[0], self.n * self.p
        self.blocks = scipy.sparse.csr_array((self.A.data, moved, self.A.indptr), shape)
        self.across = scipy.sparse.csr_array(self.blocks.T)
        self.labels = torch.from_numpy(rows.labels)
        self.weights = torch.from_numpy(1 / np.repeat(rows.counts, rows.counts)).to(dtype)

    def scores(self, X: torch.Tensor) -> torch.Tensor:
        """Return a_j'X (R, B, c) at X (B, p, c), or (B, n, p, c) with a point per client."""
        if X.ndim == 3:
            flat = self.A @ X.transpose(0, 1).reshape(self.p, -1).numpy()
        else:
            flat = self.blocks @ X.permute(1, 2, 0, 3).reshape(self.n * self.p, -1).numpy()
        return torch.from_numpy(flat).view(self.A.shape[0], len(X), -1)

    def pull(self, S: torch.Tensor) -> torch.Tensor:
        """Return sum_j a_j s_j' of each client, (B, n, p, c), of S (R, B, c)."""
        flat = torch.from_numpy(self.across @ S.reshape(len(S), -1).numpy())
        return flat.view(self.n, self.p, *S.shape[1:]).permute(2, 0, 1, 3)

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of values (R, B) over the rows of each client, (B, n)."""
        return torch.from_numpy(np.add.reduceat(values.numpy(), self.ends[:-1], axis=0)).T

    def minibatch(self, X: torch.Tensor, sample: torch.Tensor, slopes: Slopes) -> torch.Tensor:
        """Return mean_j a_j slopes_j' (B, n, p, c) over the rows ``sample`` (B, n, b) at X (B, n, p, c)."""
        B, n, b = sample.shape
        starts = torch.from_numpy(self.ends[:-1])[None, :, None]
        chosen = (starts + sample).flatten()
        taken = self.A[chosen.numpy()]
        # cell and client of each row move its columns, so that one product serves all of them
        owner = np.repeat(np.arange(B * n), b)
        moved = taken.indices + np.repeat(owner, np.diff(taken.indptr)) * np.int64(self.p)
        whole = scipy.sparse.csr_array(
            (taken.data, moved, taken.indptr), (B * n * b, B * n * self.p)
        )
        flat = torch.from_numpy(whole @ X.reshape(B * n * self.p, -1).numpy())
        S = slopes(flat.view(B, n, b, -1), self.labels[chosen].view(B, n, b))
        pulled = torch.from_numpy(whole.T @ S.reshape(B * n * b, -1).numpy())
        return pulled.view(B, n, self.p, -1) / b
