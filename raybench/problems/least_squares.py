"""Least squares and ridge regression."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from raybench import data
from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.core.limits import need_memory
from raybench.core.registry import Choice, problem
from raybench.problems.base import Constants, Fact, share_right, share_signed
from raybench.problems.minimum import MOST_BY_DENSE_SOLVER, dense, lmax_gram, row_norms_sq
from raybench.problems.quadratic import quadratic_constants
from raybench.problems.scores import DenseScores, ScoreProblem

MOST_CLASSES = 1000  # a data set with more labels, or with fractions, is a regression


@problem("least_squares")
class LeastSquares(ScoreProblem):
    """Least squares: f_i(x) = ||A_i x - b_i||^2 / (2 N_i) + lambda r(x).

    r: none (PL with mu = the smallest nonzero eigenvalue), l2 (||x||^2 / 2: ridge), l1 (lasso, by
    its proximal step) or nonconvex. Targets: two classes, or ``positive``: -1 and +1; up to 1,000
    whole labels: one-hot rows, and the variable is a (features, classes) matrix; else the labels
    themselves. Raises InputError for bad input (see ``DataProblem``).
    """

    per_client = ("rows", "H", "M", "half_square")
    curvature = 1.0
    labelled = False
    H: Tensor | None  # (n, p, p): A_i'A_i / N_i, where that is smaller than A_i
    M: Tensor | None  # (n, p, c): A_i'b_i / N_i

    def __init__(
        self,
        dataset: str,
        clients: int | None = None,
        *,
        regularizer: str = Choice(
            "none", "l2", "l1", "nonconvex", help="what is added to the loss"
        ),
        **rest: Any,
    ) -> None:
        super().__init__(dataset, clients, regularizer=regularizer, **rest)
        self.p, self.c = self.rows.features.shape[1], self.rows.labels[:1].size
        self.H = self.M = None
        parts = [(a, b.reshape(len(b), -1), len(b)) for a, b in self.rows.parts()]
        halves = [float((b * b).sum()) / (2 * count) for _, b, count in parts]
        self.half_square = torch.tensor(halves, dtype=self.dtype)
        self.exact: tuple[np.ndarray, np.ndarray] | None = None
        if self.p <= min(MOST_BY_DENSE_SOLVER, max(self.samples)):
            need_memory(
                2 * 8 * self.n * self.p**2,
                f"{self.n:,} matrices of {self.p:,} x {self.p:,}, twice,",
                "fewer problem.clients",
            )
            H = np.stack([dense(a.T @ a) / count for a, _, count in parts])
            M = np.stack([dense(a.T @ b) / count for a, b, count in parts])
            self.exact = H, M
            self.H, self.M = (torch.from_numpy(v).to(self.dtype) for v in (H, M))
        else:  # of the dense rows that every gradient is computed from
            need_memory(
                self.dtype.itemsize * self.n * max(self.samples) * self.p,
                f"{self.n:,} matrices of {max(self.samples):,} rows and {self.p:,} features",
                "fewer problem.rows, or more problem.clients",
            )

    def targets(self, dataset: data.Dataset) -> np.ndarray:
        """Return signs, one-hot rows or the labels themselves (see the class)."""
        if len(dataset.classes) == 2 and dataset.positive is None:
            return np.where(dataset.labels == dataset.classes[0], -1.0, 1.0)
        if dataset.positive is not None:
            return dataset.binary()
        words = dataset.labels_are_text
        whole = words or (dataset.classes == np.rint(dataset.classes)).all()
        if words and len(dataset.classes) > MOST_CLASSES:
            what = f"{len(dataset.classes):,} labels of text"
            raise InputError.of("problem.dataset", what, f"at most {MOST_CLASSES:,} classes")
        if whole and len(dataset.classes) <= MOST_CLASSES:
            return (dataset.labels[:, None] == dataset.classes).astype(float)
        return dataset.labels

    def shape(self) -> Layout:
        """Return a vector, or a (features, classes) matrix for one-hot targets."""
        p, labels = self.rows.features.shape[1], self.rows.labels
        shape = (p,) if labels.ndim == 1 else (p, labels.shape[1])
        return Layout((("x", shape),))

    def oracle(self, x: Tensor, loss: bool = True) -> tuple[Tensor, Tensor | None]:
        X = self._matrix(x)  # (B[, n], p, c)
        at = X[:, None] if x.ndim == 2 else X
        if self.H is None or self.M is None:
            linear = self.linear()
            A, Y = linear.A, linear.labels.view(*linear.A.shape[:2], self.c)
            weights = linear.weights.view(A.shape[:2])[:, 0]
            residual = A @ at - Y  # (B, n, N, c)
            grads = (A.transpose(1, 2) @ residual) * weights[:, None, None]
            losses = residual.square().sum((-2, -1)) * (0.5 * weights) if loss else None
        else:
            HX = self.H @ X if x.ndim == 3 else self._shared(X, self.H)
            grads = HX - self.M
            losses = (at * (0.5 * HX - self.M)).sum((-2, -1)) + self.half_square if loss else None
        return self.regularized(x, grads.flatten(-2).contiguous(), losses)

    def _shared(self, X: Tensor, H: Tensor) -> Tensor:
        """Return H_i X (B, n, p, c) of X (B, p, c): one product serves all clients."""
        wide = self.once("wide", lambda: H.permute(2, 0, 1).reshape(self.p, -1).contiguous())
        pulled = X.transpose(1, 2) @ wide  # (B, c, n p)
        return pulled.unflatten(-1, (len(H), self.p)).permute(0, 2, 3, 1)

    def linear(self) -> DenseScores:
        return self.once("linear", lambda: DenseScores(self.rows, self.dtype, self.device))

    def terms(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        residual = scores - (labels if self.c > 1 else labels[..., None])
        return residual, 0.5 * residual.square().sum(-1)

    def right_share(self, scores: Tensor, labels: Tensor) -> Tensor | None:
        """Return the share of right signs, or of largest columns; None of regressed values."""
        if self.c > 1:
            return share_right(scores, labels.argmax(-1))
        signs = bool((labels.abs() == 1).all())
        return share_signed(labels * scores[..., 0]) if signs else None

    def find_constants(self) -> Constants:
        """Exact for none and l2; a nonconvex regulariser adds 2 lambda to each but L_pm.

        With l1 or a nonconvex regulariser f_inf is the minimum without it and f_star unknown.
        """
        ridge, extra = self.regularizer.mu, 0.0 if self.regularizer.mu else self.regularizer.L
        norms = row_norms_sq(self.rows.features) + 2 * ridge
        samples = lmax_gram(self.rows.features, norms * self.rows.weights()) + ridge**2
        f_star, mu, _, full = self.once("solution", self._solution)
        if self.exact is not None:
            result = quadratic_constants(self.exact[0] + ridge * np.eye(self.p))
        else:
            each = (lmax_gram(a) / len(b) + ridge for a, b in self.rows.parts())
            curved = (ridge,) * self.n if ridge else ()
            result = Constants(L=self.loss_L() + ridge, L_i=tuple(each), mu_i=curved)
            result = replace(result, L_plus=result.L_tilde, L_pm=0.0 if self.n == 1 else None)
        L_plus = result.L_plus
        assert result.L is not None
        assert L_plus is not None
        plain = not (self.regularizer.nonsmooth or extra)
        result = replace(result, L=result.L + extra, L_i=tuple(v + extra for v in result.L_i))
        assert result.L_tilde is not None
        return replace(
            result,
            L_plus=min(L_plus + extra, result.L_tilde),
            mu=None if extra else mu,
            mu_i=() if extra else result.mu_i,
            f_inf=0.0 if f_star is None else f_star,
            f_star=f_star if plain else None,
            L_samples=math.sqrt(samples) + extra,
            L_sample_i=tuple(
                float(row_norms_sq(a).max()) + ridge + extra for a, _ in self.rows.parts()
            ),
            facts=self.facts_where(
                convex=True,
                strongly_convex=self.regularizer.convex and bool(full or ridge),
            )
            | (frozenset() if extra else {Fact.QUADRATIC}),
        )

    def minimum(self) -> tuple[float, np.ndarray] | None:
        """Return (min f, x* of smallest norm); None for other regularisers, or where too large."""
        if self.regularizer.kind not in ("none", "l2"):
            return None
        least, _, x, _ = self.once("solution", self._solution)
        return None if x is None else (least, x)

    def _solution(self) -> tuple[float | None, float | None, np.ndarray | None, bool]:
        """Return (min of the squares with ridge, its PL constant, x*, whether A'A has full rank).

        None (and False) where that is too large to find.
        """
        A, b = self.rows.features, self.rows.labels.reshape(len(self.rows.labels), -1)
        ridge, root = self.regularizer.mu, np.sqrt(self.rows.weights())[:, None]
        A = scipy.sparse.csr_array(A.multiply(root)) if scipy.sparse.issparse(A) else A * root
        b = b * root
        primal = A.shape[1] <= A.shape[0]
        if min(A.shape) > MOST_BY_DENSE_SOLVER:
            return None, ridge or None, None, False
        values, vectors = np.linalg.eigh(dense(A.T @ A if primal else A @ A.T))
        nonzero = values > max(A.shape) * np.finfo(float).eps * values[-1]
        inverse = np.divide(1.0, values + ridge, out=np.zeros_like(values), where=nonzero)
        x = vectors @ (inverse[:, None] * (vectors.T @ (A.T @ b if primal else b)))
        x = x if primal else A.T @ x
        full = bool(nonzero.all()) and primal
        smallest = float(values[nonzero].min()) if nonzero.any() else 0.0
        mu = ridge if ridge and not full else smallest + ridge
        # by the residual, since the closed form loses half the digits of a small minimum
        residual = A @ x - b
        least = float(0.5 * (residual**2).sum() + 0.5 * ridge * (x**2).sum())
        return least, mu or None, np.asarray(x).reshape(-1), full
