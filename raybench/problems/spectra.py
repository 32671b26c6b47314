"""Largest eigenvalues of Gram matrices, by whichever way is cheap for their size."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from raybench.data.dataset import Features

MOST_BY_DENSE_SOLVER = (
    2000  # up to this size all eigenvalues are computed, above only the largest (Lanczos)
)


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
    gram = features.T @ features if d <= rows else features @ features.T
    if scipy.sparse.issparse(gram):
        gram = gram.toarray()
    return max(float(np.linalg.eigvalsh(gram)[-1]), 0.0)


def row_norms_sq(features: Features) -> np.ndarray:
    """Return the squared 2-norm of each row."""
    if scipy.sparse.issparse(features):
        return np.asarray(features.power(2).sum(axis=1)).ravel()
    return np.einsum("nd,nd->n", features, features)
