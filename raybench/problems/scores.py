"""Losses of linear scores X'a: gradients, constants and evaluation, over dense and over compressed rows."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from raybench.core.limits import need_memory
from raybench.core.streams import Sample
from raybench.data.dataset import Features
from raybench.problems.base import Constants, share_right
from raybench.problems.clients import DataProblem, Rows
from raybench.problems.minimum import lmax_gram, row_norms_sq

DENSE_FROM = 0.2  # share of stored entries from which dense products were measured to be faster
SCORES_AT_ONCE = 1 << 23  # entries of a tensor of scores that are held together
Terms = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # as ``ScoreProblem.terms``


class ScoreProblem(DataProblem):
    """f_i(X) = mean_j l_j(X'a_j) + regulariser, where l_j >= 0 is the loss of row j at its scores.

    A subclass says how l_j is computed (``terms``) and which rows are right (``right_share``). ``slope`` is
    sup ||grad l_j||, ``curvature`` sup ||Hessian of l_j||, and ``convex`` says whether l_j is convex. Every
    constant follows from these and from the rows: the Hessian of the mean loss is mean_j (Hessian of l_j) (x)
    a_j a_j', which is at most curvature I (x) mean_j a_j a_j'.
    """

    slope: ClassVar[float]
    curvature: ClassVar[float]
    convex: ClassVar[bool] = False
    labelled: ClassVar[bool] = True

    def terms(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return grad l (.., c) and l (..) at scores (.., c), of labels (..)."""
        raise NotImplementedError

    def right_share(self, scores: Tensor, labels: Tensor) -> Tensor | None:
        """Return the share of right rows, (..), of scores (.., N, c) and labels (N, ..); ties count in part."""
        return share_right(scores, labels)

    def linear(self) -> DenseScores | SparseScores:
        """Return what computes scores and their pull-back here, made on first use.

        Compressed rows on the CPU where few entries are stored, else dense torch.
        """

        def make() -> DenseScores | SparseScores:
            features = self.rows.features
            few = stored_entries(features) < DENSE_FROM * math.prod(features.shape)
            if few and self.device.type == "cpu":
                return SparseScores(self.rows, self.dtype)
            return DenseScores(self.rows, self.dtype, self.device)

        return self.once("linear", make)

    def oracle(self, x: Tensor, loss: bool = True) -> tuple[Tensor, Tensor | None]:
        linear = self.linear()
        groups = list(self._at_once(len(x), len(linear.labels)))
        if len(groups) == 1:  # as a rule: then nothing is copied once more
            grads, losses = self._summed(linear, x)
        else:
            grads = x.new_empty(len(x), len(self.clients), self.dim)
            losses = x.new_empty(grads.shape[:2])
            for cells in groups:
                grads[cells], losses[cells] = self._summed(linear, x[cells])
        return self.regularized(x, grads, losses if loss else None)

    def _summed(self, linear: DenseScores | SparseScores, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return gradients (b, n, d) and losses (b, n) at x (b[, n], d), without the regulariser."""
        z = linear.scores(self._matrix(x))  # (R, b, c)
        labels = linear.labels[:, None].expand(*z.shape[:2], *linear.labels.shape[1:])
        slopes, each = self.terms(z, labels)
        slopes *= linear.weights[:, None, None]
        losses = linear.sums(each * linear.weights[:, None])
        return linear.pull(slopes).flatten(-2).contiguous(), losses

    def grad(self, x: Tensor, sample: Sample | None = None) -> Tensor:
        if sample is None:
            return self.oracle(x, loss=False)[0]
        X = self._matrix(self.spread(x))
        grads = self.linear().minibatch(X, sample.indices, self.terms).flatten(-2)
        return self.regularized(x, grads, None)[0]

    def evaluate(self, x: Tensor) -> dict[str, Tensor]:
        """Return accuracy on the test part (else on all clients' rows), and the mean test loss.

        The test loss has no regulariser. A row whose scores are equal is right as often as a guess, so that
        x = 0 has accuracy 1/classes.
        """
        whole = self.whole
        rows = whole.test or whole.rows
        X, labels = self._matrix(x.cpu().double()), torch.from_numpy(rows.labels)
        result: dict[str, list[Tensor]] = {}
        for cells in self._at_once(len(x), len(labels)):
            some = X[cells].transpose(0, 1)  # (p, b, c)
            flat = torch.from_numpy(rows.features @ some.flatten(1).numpy())
            z = flat.view(-1, *some.shape[1:]).transpose(0, 1)  # (b, N, c)
            if (share := self.right_share(z, labels)) is not None:
                result.setdefault("accuracy", []).append(share)
            if whole.test is not None:
                _, losses = self.terms(z, labels.expand(len(z), *labels.shape))
                result.setdefault("test_loss", []).append(losses.mean(-1))
        return {name: torch.cat(values).to(x.device) for name, values in result.items()}

    def _at_once(self, cells: int, rows: int) -> Iterator[slice]:
        """Yield cells in groups whose scores of so many rows fit into memory together."""
        size = max(1, SCORES_AT_ONCE // (rows * self.outputs))
        return (slice(b, b + size) for b in range(0, cells, size))

    def _matrix(self, x: Tensor) -> Tensor:
        """Return x (.., p c) as (.., p, c)."""
        return x.detach().reshape(*x.shape[:-1], x.shape[-1] // self.outputs, self.outputs)

    def loss_L(self) -> float:
        """Return curvature * lmax(mean_i A_i'A_i / N_i)."""
        return self.curvature * lmax_gram(self.rows.features, self.rows.weights())

    def find_constants(self) -> Constants:
        """L_i = curvature * lmax(A_i'A_i) / N_i + L of the regulariser, and alike for L.

        f* where a strongly convex f is quickly minimised. L_plus is bounded by L_tilde. L_samples is
        the root mean square over clients of curvature * sqrt(lmax(mean_j ||a_j||^2 a_j a_j')) + L of
        the regulariser (Minkowski). A single sample has the constant curvature ||a_j||^2 + L of the
        regulariser, and its gradient is at most slope ||a_j|| away from the regulariser's: hence
        sample_variance.
        """
        reg, c = self.regularizer, self.curvature
        each, samples, single, squares = [], [], [], []
        for features, labels in self.rows.parts():
            count = len(labels)
            each.append(c * lmax_gram(features) / count + reg.L)
            norms = row_norms_sq(features)
            samples.append(c * math.sqrt(lmax_gram(features, norms / count)) + reg.L)
            single.append(c * float(norms.max()) + reg.L)
            squares.append(float(norms.mean()))
        result = Constants(L_i=tuple(each))
        least, mu = self.minimum(), self._mu
        return Constants(
            L=self.loss_L() + reg.L,
            L_i=tuple(each),
            L_plus=result.L_tilde,
            L_pm=0.0 if self.n == 1 else None,
            mu=mu,
            mu_i=(mu,) * self.n if mu else (),
            f_inf=least[0] if least else 0.0,
            f_star=least[0] if least else None,
            L_samples=math.sqrt(float(np.mean(np.square(samples)))),
            L_sample_i=tuple(single),
            sample_variance=self.slope**2 * float(np.mean(squares)),
            facts=self.facts_where(convex=self.convex, strongly_convex=bool(mu)),
        )

    @property
    def _mu(self) -> float | None:
        """Return lambda of l2 where the loss is convex: mu, None where there is none."""
        return (self.regularizer.mu or None) if self.convex else None

    def minimizer(self) -> Tensor | None:
        """Return the minimiser of a strongly convex f, by Newton's method; None where d or N is large."""
        least = self.whole.minimum()
        return None if least is None else torch.from_numpy(least[1]).to(self.dtype).to(self.device)

    def least(self, mu: float) -> tuple[float, np.ndarray] | None:
        """Return (min f, x* (d,)) with the regulariser mu ||x||^2/2, mu > 0, in float64; None where unknown."""
        return None

    def minimum(self) -> tuple[float, np.ndarray] | None:
        """Return (min f, x* (d,)) of the whole problem, found once; None where f is not strongly convex, or unknown."""
        mu = self._mu
        return self.once("minimum", lambda: self.least(mu)) if mu else None

    def flipped(self) -> Self:
        """Return the same problem with wrong labels, see ``turned``; its constants are those of the right ones."""
        other = copy.copy(self)
        other._whole, other._kept = self.whole, {}
        other.rows = replace(self.rows, labels=self.turned(self.rows.labels))
        return other

    def turned(self, labels: np.ndarray) -> np.ndarray:
        """Return wrong labels: signs are turned around, by default."""
        return -labels


def stored_entries(features: Features) -> int:
    """Return how many entries of a matrix are stored: all of a dense one."""
    return features.nnz if scipy.sparse.issparse(features) else features.size


# Scores a_j'X and their pull-back, for all clients and cells: (R, B, c) of R rows, B cells, c class ---


class DenseScores:
    """Rows of n clients as a zero-padded (n, N, p) tensor, so R = n N; rows that pad have weight 0."""

    def __init__(self, rows: Rows, dtype: torch.dtype, device: torch.device) -> None:
        counts, p = rows.counts, rows.features.shape[1]
        what = f"{len(counts):,} dense matrices of {max(counts):,} rows and {p:,} features"
        bytes_held = dtype.itemsize * len(counts) * max(counts) * p
        need_memory(bytes_held, what, "fewer problem.rows, or clients of equal size")
        self.A, labels, weights = rows.padded(dtype, device)
        self.weights, self.labels = weights.flatten(), labels.flatten(0, 1)

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

    def minibatch(self, X: Tensor, sample: Tensor, terms: Terms) -> Tensor:
        """Return mean_j a_j l_j' (B, n, p, c) over the rows ``sample`` (B, n, b) at X (B, n, p, c)."""
        n, N, _ = self.A.shape
        client = torch.arange(n, device=X.device)[None, :, None]
        picked = self.A[client, sample]  # (B, n, b, p)
        S, _ = terms(picked @ X, self.labels.unflatten(0, (n, N))[client, sample])
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

    def minibatch(self, X: Tensor, sample: Tensor, terms: Terms) -> Tensor:
        """Return mean_j a_j l_j' (B, n, p, c) over the rows ``sample`` (B, n, b) at X (B, n, p, c)."""
        B, n, b = sample.shape
        starts = torch.from_numpy(self.ends[:-1])[None, :, None]
        chosen = (starts + sample).flatten()
        rows = self.A[chosen.numpy()]
        # cell and client of each row move its columns, so that one product serves all of them
        owner = np.repeat(np.arange(B * n), b)
        moved = rows.indices + np.repeat(owner, np.diff(rows.indptr)) * np.int64(self.p)
        whole = scipy.sparse.csr_array((rows.data, moved, rows.indptr), (B * n * b, B * n * self.p))
        flat = torch.from_numpy(whole @ X.reshape(B * n * self.p, -1).numpy())
        S, _ = terms(flat.view(B, n, b, -1), self.labels[chosen].view(B, n, b))
        pulled = torch.from_numpy(whole.T @ S.reshape(B * n * b, -1).numpy())
        return pulled.view(B, n, self.p, -1) / b
