"""Multinomial logistic regression: any number of classes, one column of the variable for each."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from raybench import data
from raybench.core.draws import Sample
from raybench.core.layout import Layout
from raybench.core.limits import need_memory
from raybench.core.registry import problem
from raybench.problems.base import share_right
from raybench.problems.clients import Rows, ScoreProblem, stored_entries
from raybench.problems.minimum import softmax_minimum

DENSE_FROM = (
    0.2  # share of entries that are stored from which dense products were measured to be faster
)
SCORES_AT_ONCE = 1 << 23  # entries of a tensor of scores that are held together


@problem("softmax")
class Softmax(ScoreProblem):
    """Multinomial logistic regression: f_i(X) = mean_j (log sum_k exp(a_j'X_k) - a_j'X_(y_j)) + lambda r(X).

    X has a column X_k per class, (features, classes); labels may be numbers or text, two classes or
    more, numbered in sorted order. r: nonconvex, l2, l1 or none, as of ``logistic``.

    L_i = lmax(A_i'A_i) / (2 N_i) plus 2 lambda (nonconvex) or lambda (l2), and alike for L. For the
    Hessian of log-sum-exp is H = diag(p) - p p', p the probabilities, and H <= I/2: for any v, v'Hv
    is the variance of a random variable that takes the value v_k with probability p_k, at most
    (max v - min v)^2 / 4 (Popoviciu), and (v_a - v_b)^2 <= 2 (v_a^2 + v_b^2) <= 2 ||v||^2. So the
    Hessian of f_i without r, mean_j H_j (x) a_j a_j', is at most I/2 (x) A_i'A_i / N_i. It is attained where
    two classes have probability 1/2 each, so with two classes at X = 0. The gradient of one
    row's loss in its scores, p - e_y, has a norm of at most sqrt(2). (Boehning 1992.)

    Raises InputError for bad input (see ``DataProblem``).
    """

    slope = math.sqrt(2)
    curvature = 0.5
    convex = True

    def targets(self, dataset: data.Dataset) -> np.ndarray:
        """Return each row's class as an integer from 0, in the order of the sorted labels."""
        return np.searchsorted(dataset.classes, dataset.labels)

    def turned(self, labels: np.ndarray) -> np.ndarray:
        """Return wrong labels: of c classes c - 1 - k in place of k."""
        return len(self.data.classes) - 1 - labels

    def shape(self) -> Layout:
        """Return a (features, classes) matrix."""
        return Layout((("x", (self.rows.features.shape[1], len(self.data.classes))),))

    def linear(self) -> DenseScores | SparseScores:
        """Return what computes scores and their pull-back here, made on first use.

        Compressed rows on the CPU where few entries are stored, else dense torch.
        """
        if "linear" not in self._kept:
            features = self.rows.features
            sparse = stored_entries(features) < DENSE_FROM * math.prod(features.shape)
            self._kept["linear"] = (
                SparseScores(self.rows, self.dtype)
                if sparse and self.device.type == "cpu"
                else DenseScores(self.rows, self.dtype, self.device)
            )
        return self._kept["linear"]

    def oracle(self, x: Tensor, loss: bool = True) -> tuple[Tensor, Tensor | None]:
        B, n, linear = len(x), len(self.clients), self.linear()
        grads = x.new_empty(B, n, self.dim)
        losses = x.new_empty(B, n) if loss else None
        at_once = max(1, SCORES_AT_ONCE // (len(linear.labels) * self.outputs))
        for cells in (slice(b, b + at_once) for b in range(0, B, at_once)):
            z = linear.scores(self._matrix(x[cells]))  # (R, b, c)
            labels = linear.labels[:, None].expand(z.shape[:2])
            off, each = _cross_entropy(z, labels)
            if losses is not None:
                losses[cells] = linear.sums(each * linear.weights[:, None])
            off *= linear.weights[:, None, None]
            grads[cells] = linear.pull(off).flatten(-2)
        return self.regularized(x, grads, losses)

    def grad(self, x: Tensor, sample: Sample | None = None) -> Tensor:
        if sample is None:
            return self.oracle(x, loss=False)[0]
        at = self.spread(x)
        grads = self.linear().minibatch(self._matrix(at), sample.indices, _slopes).flatten(-2)
        return grads + self.regularizer.both(at)[0] if self.regularizer.smooth else grads

    def link(self, scores: Tensor) -> Tensor:
        """Return the probabilities of the classes."""
        return torch.softmax(scores, -1)

    def least(self, mu: float) -> tuple[float, np.ndarray] | None:
        """Return (min f, x*) with mu ||X||^2/2, by Newton's method; None where d or N is large."""
        rows, classes = self.rows, len(self.data.classes)
        return softmax_minimum(rows.features, rows.labels, rows.weights(), classes, mu)

    def evaluate(self, x: Tensor) -> dict[str, Tensor]:
        """Return accuracy on the test part (else on all clients' rows), and the mean test loss.

        The test loss has no regulariser. Where t classes share the largest score a row counts as 1/t
        right if its class is among them: X = 0 has accuracy 1/classes.
        """
        whole = self.whole
        rows = whole.test or whole.rows
        label = torch.from_numpy(rows.labels)
        result: dict[str, list[Tensor]] = {"accuracy": []}
        for one in self._matrix(x.detach().cpu().double()):
            z = torch.from_numpy(rows.features @ one.numpy())  # (rows, c), of one cell at a time
            result["accuracy"].append(share_right(z, label))
            if whole.test is not None:
                loss = torch.nn.functional.cross_entropy(z, label)
                result.setdefault("test_loss", []).append(loss)
        return {name: torch.stack(values).to(x.device) for name, values in result.items()}

    def _matrix(self, x: Tensor) -> Tensor:
        return x.detach().unflatten(-1, (-1, len(self.data.classes)))


def _cross_entropy(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return p - e_y (.., c) and log sum_k exp(z_k) - z_y (..) of scores z (.., c) and labels y (..).

    p_y - 1 is taken as minus the sum of the others, since 1 less a number close to it has no digits left.
    Written out, because torch.softmax over so short an axis takes several times as long.
    """
    place = labels[..., None]
    top = scores.amax(-1, keepdim=True)
    p = (scores - top).exp_()
    total = p.sum(-1, keepdim=True)
    losses = (total.log() - (scores.gather(-1, place) - top))[..., 0]
    p /= total
    p.scatter_(-1, place, 0.0)
    return p.scatter_(-1, place, -p.sum(-1, keepdim=True)), losses


def _slopes(scores: Tensor, labels: Tensor) -> Tensor:
    return _cross_entropy(scores, labels)[0]


# Scores a_j'X and their pull-back, for all clients and cells: (R, B, c) of R rows, B cells, c class


# called as slopes(scores (.., c), labels (..)): the loss's gradient in the scores (.., c)
Slopes = Callable[[Tensor, Tensor], Tensor]


class DenseScores:
    """Rows of n clients as a zero-padded (n, N, p) tensor, so R = n N; rows that pad have weight 0."""

    def __init__(self, rows: Rows, dtype: torch.dtype, device: torch.device) -> None:
        counts, p = rows.counts, rows.features.shape[1]
        what = f"{len(counts):,} dense matrices of {max(counts):,} rows and {p:,} features"
        bytes_held = dtype.itemsize * len(counts) * max(counts) * p
        need_memory(bytes_held, what, "fewer problem.rows, or clients of equal size")
        self.A, labels, weights = rows.padded(dtype, device)
        self.weights, self.labels = weights.flatten(), labels.flatten()

    def scores(self, X: Tensor) -> Tensor:
        """Return a_j'X (R, B, c) at X (B, p, c), or (B, n, p, c) with a point per client."""
        n, N, p = self.A.shape
        if X.ndim == 3:
            flat = self.A.view(n * N, p) @ X.transpose(0, 1).reshape(p, -1)
        else:
            flat = self.A @ X.permute(1, 2, 0, 3).reshape(n, p, -1)
        return flat.reshape(n * N, len(X), -1)

    def pull(self, S: Tensor) -> Tensor:
        """Return sum_j a_j s_j' of each client, (B, n, p, c), of S (R, B, c)."""
        n, N, p = self.A.shape
        # bmm(S', A) is 2.6 times as fast as bmm(A', S)
        pulled = torch.bmm(S.reshape(n, N, -1).transpose(1, 2), self.A)
        return pulled.view(n, *S.shape[1:], p).permute(1, 0, 3, 2)

    def sums(self, values: Tensor) -> Tensor:
        """Return the sum of values (R, B) over the rows of each client, (B, n)."""
        return values.view(*self.A.shape[:2], -1).sum(1).T

    def minibatch(self, X: Tensor, sample: Tensor, slopes: Slopes) -> Tensor:
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

    def scores(self, X: Tensor) -> Tensor:
        """Return a_j'X (R, B, c) at X (B, p, c), or (B, n, p, c) with a point per client."""
        if X.ndim == 3:
            flat = self.A @ X.transpose(0, 1).reshape(self.p, -1).numpy()
        else:
            flat = self.blocks @ X.permute(1, 2, 0, 3).reshape(self.n * self.p, -1).numpy()
        return torch.from_numpy(flat).view(self.A.shape[0], len(X), -1)

    def pull(self, S: Tensor) -> Tensor:
        """Return sum_j a_j s_j' of each client, (B, n, p, c), of S (R, B, c)."""
        flat = torch.from_numpy(self.across @ S.reshape(len(S), -1).numpy())
        return flat.view(self.n, self.p, *S.shape[1:]).permute(2, 0, 1, 3)

    def sums(self, values: Tensor) -> Tensor:
        """Return the sum of values (R, B) over the rows of each client, (B, n)."""
        return torch.from_numpy(np.add.reduceat(values.numpy(), self.ends[:-1], axis=0)).T

    def minibatch(self, X: Tensor, sample: Tensor, slopes: Slopes) -> Tensor:
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
