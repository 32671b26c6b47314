"""Largest eigenvalues of data, where f is least where that is quick, and what gradients are like there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
import scipy.special
import torch
from torch import Tensor

from raybench.core.process import give_back
from raybench.core.streams import Sample
from raybench.data.dataset import Features
from raybench.problems.base import Problem

MOST_NEWTON_STEPS = 100  # ten to twenty are usual
# a Hessian of more products takes over a second
MOST_PRODUCTS_DENSE, MOST_PRODUCTS_SPARSE = 2e9, 2e8
MOST_GRADIENT_VALUES = 1e8  # of gradients that are computed at x*: n d, or N d of samples
VALUES_AT_ONCE = 1 << 22  # values of sample gradients that are held in memory together
# Up to this size all eigenvalues are computed, above only the largest (Lanczos).
MOST_BY_DENSE_SOLVER = 2000


def lmax_gram(features: Features, weights: np.ndarray | None = None) -> float:
    """Return lmax(A' diag(w) A) of a (N, d) matrix, w >= 0 (default 1)."""
    if weights is not None:
        root = np.sqrt(weights)[:, None]
        scaled = features.multiply(root) if scipy.sparse.issparse(features) else features * root
        features = scipy.sparse.csr_array(scaled) if scipy.sparse.issparse(scaled) else scaled
    rows, d = features.shape
    if min(rows, d) > MOST_BY_DENSE_SOLVER:
        operator = scipy.sparse.linalg.aslinearoperator(features)
        gram = operator.H @ operator
        # a fixed start, since that of svds is random and results would vary
        start = np.random.default_rng(0).random(d)
        return float(scipy.sparse.linalg.eigsh(gram, k=1, which="LA", v0=start)[0][0])
    gram = dense(features.T @ features if d <= rows else features @ features.T)
    return max(float(np.linalg.eigvalsh(gram)[-1]), 0.0)


def dense(matrix: Features) -> np.ndarray:
    """Return a matrix as an ndarray."""
    return matrix.toarray() if scipy.sparse.issparse(matrix) else np.asarray(matrix)


def row_norms_sq(features: Features) -> np.ndarray:
    """Return the squared 2-norm of each row."""
    if scipy.sparse.issparse(features):
        return np.asarray(features.power(2).sum(axis=1)).ravel()
    return np.einsum("nd,nd->n", features, features)


def logistic_minimum(
    A: Features, y: np.ndarray, weights: np.ndarray, mu: float
) -> tuple[float, np.ndarray] | None:
    """Return (min, x*) of sum_j w_j log(1 + exp(-y_j a_j'x)) + mu ||x||^2/2, None where too large.

    A: (N, d), y: (N,) of -1 and +1, mu > 0. By Newton's method (``newton``).
    """
    rows, d = A.shape
    sparse = scipy.sparse.issparse(A)
    work = A.nnz**2 / max(rows, 1) if sparse else rows * d * d
    if d > MOST_BY_DENSE_SOLVER or work > (MOST_PRODUCTS_SPARSE if sparse else MOST_PRODUCTS_DENSE):
        return None

    def value(x: np.ndarray) -> float:
        losses = np.logaddexp(0.0, -y * (A @ x))
        return float(weights @ losses + 0.5 * mu * x @ x)

    def slope(x: np.ndarray) -> np.ndarray:
        s = scipy.special.expit(-y * (A @ x))
        return mu * x - A.T @ (weights * y * s)

    def curve(x: np.ndarray) -> np.ndarray:
        s = scipy.special.expit(-y * (A @ x))
        w = weights * s * (1 - s)
        H = A.T @ (A.multiply(w[:, None]) if sparse else A * w[:, None])
        return (H.toarray() if sparse else H) + mu * np.eye(d)

    return newton(value, slope, curve, d, mu)


def softmax_minimum(
    A: Features, y: np.ndarray, weights: np.ndarray, classes: int, mu: float
) -> tuple[float, np.ndarray] | None:
    """Return (min, x* (d c)) of sum_j w_j (log sum_k exp(a_j'X_k) - a_j'X_{y_j}) + mu ||X||^2/2, or None.

    A: (N, d), y: (N,) classes from 0 to c - 1, mu > 0, X: (d, c). By Newton's method, as
    ``logistic_minimum``; None where that is too large.
    """
    rows, d = A.shape
    size = d * classes
    if size > MOST_BY_DENSE_SOLVER or rows * size * size > MOST_PRODUCTS_DENSE:
        return None
    A = dense(A)
    place = np.arange(rows), y

    def value(x: np.ndarray) -> float:
        scores = A @ x.reshape(d, classes)
        losses = scipy.special.logsumexp(scores, axis=1) - scores[place]
        return float(weights @ losses + 0.5 * mu * x @ x)

    def slope(x: np.ndarray) -> np.ndarray:
        off = scipy.special.softmax(A @ x.reshape(d, classes), axis=1)
        off[place] -= 1
        return mu * x + (A.T @ (weights[:, None] * off)).ravel()

    def curve(x: np.ndarray) -> np.ndarray:
        p = scipy.special.softmax(A @ x.reshape(d, classes), axis=1)
        wide = (A[:, :, None] * p[:, None, :]).reshape(rows, size)
        H = -wide.T @ (weights[:, None] * wide)
        blocks = H.reshape(d, classes, d, classes)
        for k in range(classes):
            blocks[:, k, :, k] += A.T @ ((weights * p[:, k])[:, None] * A)
        return H + mu * np.eye(size)

    return newton(value, slope, curve, size, mu)


def newton(
    value: Callable[[np.ndarray], float],
    slope: Callable[[np.ndarray], np.ndarray],
    curve: Callable[[np.ndarray], np.ndarray],
    d: int,
    mu: float,
) -> tuple[float, np.ndarray] | None:
    """Return (min, x*) of a mu-strongly convex function of d numbers from its value, gradient and Hessian.

    Newton's method with halved steps from 0, in float64, until ||grad|| is 1e-12 of that at 0 or
    rounding stops it; None if it is not below 1e-9 then.
    """
    x = np.zeros(d)
    grad = slope(x)
    first, f = float(np.linalg.norm(grad)), value(x)
    for _ in range(MOST_NEWTON_STEPS):
        size = float(np.linalg.norm(grad))
        if size <= 1e-12 * first:
            break
        move = scipy.linalg.solve(curve(x), grad, assume_a="pos")
        t = 1.0
        while t > 1e-8 and value(x - t * move) > f - 1e-4 * t * (grad @ move):
            t /= 2
        if t <= 1e-8:  # so short a step changes f by less than its rounding: the gradient decides
            t = 1.0
        new = x - t * move
        new_grad = slope(new)
        if np.linalg.norm(new_grad) >= size and t == 1.0 and size <= 1e-9 * first:
            break
        x, grad, f = new, new_grad, value(new)
    return (value(x), x) if np.linalg.norm(grad) <= 1e-9 * max(first, mu) else None


def heterogeneity(problem: Problem) -> float | None:
    """Return D = mean_i ||grad f_i(x*)||^2, None where x* is unknown or there are too many f_i.

    Beznosikov, Horvath, Richtarik, Safaryan 2020: what error feedback with a constant step stalls at.
    """
    if problem.n * problem.dim > MOST_GRADIENT_VALUES:
        return None
    best = problem.minimizer()
    if best is None:
        return None
    each = [part.grad(best[None]).square().sum(-1) for part in _parts(problem)]
    return float(torch.cat(each, 1).mean())


def noise(problem: Problem) -> float | None:
    """Return C = mean_i (1/m_i) sum_j ||grad f_ij(x*) - grad f_i(x*)||^2: variance of one sample's gradient.

    None where x* is unknown, f_i has no samples, or there are too many.
    """
    counts, d = problem.samples, problem.dim
    if max(counts) <= 1 or sum(counts) * d > MOST_GRADIENT_VALUES:
        return None
    best = problem.minimizer()
    if best is None:
        return None
    result = float(torch.cat([_noise_of(part, best) for part in _parts(problem)]).mean())
    return result if math.isfinite(result) else None


def _noise_of(part: Problem, best: Tensor) -> Tensor:
    """Return each hosted client's share of the noise, (n_here,)."""
    counts = part.samples[part.clients.start : part.clients.stop]
    whole = part.grad(best[None])  # (1, n_here, d)
    most = torch.tensor(counts, device=best.device)
    total = torch.zeros(len(counts), dtype=torch.float64, device=best.device)
    lines = max(1, VALUES_AT_ONCE // whole.numel())
    for first in range(0, max(counts), lines):
        j = torch.arange(first, min(first + lines, max(counts)), device=best.device)
        there = j[:, None] < most  # (lines, n_here)
        sample = torch.where(there, j[:, None], 0)[..., None]
        apart = part.grad(best.expand(len(j), -1).contiguous(), Sample.at(sample)) - whole
        total += (apart.square().sum(-1).double() * there).sum(0)
    return total / most


def _parts(problem: Problem) -> Iterator[Problem]:
    """Yield the problem in parts of consecutive clients, few enough to hold all their gradients."""
    size = max(1, VALUES_AT_ONCE // problem.dim)
    if problem.n <= size:
        yield problem
        return
    for first in range(0, problem.n, size):
        yield problem.host(range(first, min(first + size, problem.n)))
        give_back()  # what one part leaves free the next cannot use
