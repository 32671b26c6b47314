"""Truncated singular value decompositions of a batch of matrices.

Small matrices: one-sided Jacobi rotations, compiled, in float64; LAPACK takes several times as long for
a batch of them. Large float32 matrices: the eigenvectors of the smaller Gram matrix in float64, since
squaring costs half the digits of float64, which are more than float32 has. Others: LAPACK.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raybench.core.compiled import compiled
from raybench.core.parallel import run_shared

# up to this smaller side and this many entries rotations are faster
SMALL_SIDE, SMALL_SIZE = 32, 2**16
MOST_SWEEPS = 40  # convergence is quadratic; 6 to 8 are usual
ORTHOGONAL = 1e-15  # rows whose cosine is less than this times sqrt(length) are orthogonal
ROUNDING = 1e-30  # squared length, relative to the longest row, of a row of rounding errors


def truncated_svd(matrices: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """Return U (R, a, r), the leading left singular vectors of matrices (R, a, b), and U' M (R, r, b).

    r <= min(a, b). Where a matrix has lower rank, the last vectors of U are arbitrary or zero. Matrices
    must be finite.
    """
    _, a, b = matrices.shape
    if matrices.device.type == "cpu" and min(a, b) <= SMALL_SIDE and a * b <= SMALL_SIZE:
        found = by_rotations(matrices, r)
    elif matrices.dtype == torch.float32:
        found = by_gram(matrices, r)
    else:
        U, S, V = torch.linalg.svd(matrices, full_matrices=False)
        found = U[..., :r], S[..., :r, None] * V[..., :r, :]
    return found[0].to(matrices.dtype), found[1].to(matrices.dtype)


def by_gram(matrices: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """Return the same by the smaller Gram matrices, float64.

    Singular values below 1e-8 of the largest are not told from 0: for float32 data, that is all.
    """
    M = matrices.double()
    if M.shape[1] <= M.shape[2]:
        U = torch.linalg.eigh(M @ M.mT)[1][..., -r:].flip(-1)
    else:
        V = torch.linalg.eigh(M.mT @ M)[1][..., -r:].flip(-1)
        U = torch.linalg.qr(M @ V).Q
    return U, U.mT @ M


def by_rotations(matrices: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """Return the same by one-sided Jacobi rotations, computed in float64, on CPU.

    The shorter side's vectors, rows of X, are rotated until they are orthogonal: W X with W orthogonal.
    Scaling and sorting are compiled too: for a few small matrices they would cost more than the rotations.
    """
    R, a, b = matrices.shape
    left, right = matrices.new_empty(R, a, r), matrices.new_empty(R, r, b)
    short = (matrices if a <= b else matrices.mT).contiguous().numpy()
    # of the shorter side's vectors the turn is wanted, of the longer side's the turned rows
    turns, turned = (left.mT, right) if a <= b else (right, left.mT)
    arrays = short, turns.numpy(), turned.numpy()
    cost = 8.0 * matrices.numel() * min(a, b)
    run_shared(lambda lo, hi: _leading(*arrays, a <= b, lo, hi), R, cost)
    return left, right


@compiled(fastmath={"reassoc", "contract"})
def _dot(u, v):
    total = 0.0
    for j in range(u.shape[0]):
        total += u[j] * v[j]
    return total


@compiled(fastmath={"contract"})
def _rotate(u, v, cosine, sine):
    for j in range(u.shape[0]):
        first = u[j]
        u[j] = cosine * first - sine * v[j]
        v[j] = sine * first + cosine * v[j]


@compiled
# x (s, L) <- w x, w (s, s) the rotation, squares (s,) of x's rows
def _orthogonalise(x, w, squares):
    s = x.shape[0]
    angle = ORTHOGONAL * np.sqrt(x.shape[1])
    for _ in range(MOST_SWEEPS):
        turned = False
        for i in range(s):
            squares[i] = _dot(x[i], x[i])
        least = ROUNDING * squares.max()
        for i in range(s - 1):
            for j in range(i + 1, s):
                if min(squares[i], squares[j]) <= least:
                    continue
                inner = _dot(x[i], x[j])
                if abs(inner) <= angle * np.sqrt(squares[i]) * np.sqrt(squares[j]):
                    continue
                turned = True
                tau = (squares[j] - squares[i]) / (2 * inner)
                tangent = (1.0 if tau >= 0 else -1.0) / (abs(tau) + np.sqrt(1 + tau * tau))
                cosine = 1 / np.sqrt(1 + tangent * tangent)
                _rotate(x[i], x[j], cosine, cosine * tangent)
                _rotate(w[i], w[j], cosine, cosine * tangent)
                squares[i] -= tangent * inner
                squares[j] += tangent * inner
        if not turned:
            break


@compiled
def _leading(matrices, turns, rows, weigh_rows, lo, hi):
    """Write the r leading singular pairs of matrices (R, s, L): turns (R, r, s), rows (R, r, L).

    The singular values go to ``rows`` where ``weigh_rows``, else to ``turns``.
    """
    s = matrices.shape[1]
    squares = np.empty(s)
    for t in range(lo, hi):
        size = 0.0
        for value in matrices[t].flat:
            size = max(size, abs(np.float64(value)))
        x, w = matrices[t].astype(np.float64), np.eye(s)
        if size > 0:
            x /= size
        _orthogonalise(x, w, squares)
        for i in range(s):
            squares[i] = _dot(x[i], x[i])
        least = ROUNDING * squares.max()
        for k in range(turns.shape[1]):
            best = squares.argmax()
            length = np.sqrt(squares[best])
            inverse = 1 / length if squares[best] > least else 0.0
            for i in range(s):
                turns[t, k, i] = w[best, i] * (1.0 if weigh_rows else length * size)
            for j in range(x.shape[1]):
                rows[t, k, j] = x[best, j] * (size if weigh_rows else inverse)
            squares[best] = -1.0
