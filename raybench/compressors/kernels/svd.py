"""Truncated singular value decompositions of a batch, each matrix's bits its own.

Small matrices: one-sided Jacobi rotations, compiled, in float64 (one sweep after another until all
rows are orthogonal; more accurate than LAPACK for small singular values). Large ones: LAPACK, one
matrix at a time, since its bits depend on where in memory a matrix of a batch begins. A large float32
matrix goes by the eigenvectors of its Gram matrix in float64: squaring costs half the digits of
float64, which are more than float32 has, and it is several times as fast.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.kernels.low_rank import dot, orthonormal, taken
from raybench.core.compiled import compiled
from raybench.core.parallel import run_shared

SIDE, ENTRIES = 32, 2**16  # up to this smaller side and size rotations beat LAPACK
SWEEPS = 40  # convergence is quadratic; 6 to 8 are usual
ANGLE = 1e-15  # rows whose cosine is less than this times sqrt(length) are orthogonal
NOTHING = 1e-30  # squared length, relative to the longest row, of rounding errors


@compiled(fastmath={"contract"})
def _rotate(u, v, cosine, sine):
    for j in range(u.shape[0]):
        first = u[j]
        u[j] = cosine * first - sine * v[j]
        v[j] = sine * first + cosine * v[j]


@compiled
def _orthogonalise(rows, turn, squares):  # rows (s, L) <- turn rows; their squared lengths
    s = rows.shape[0]
    turn[:] = 0.0
    for i in range(s):
        turn[i, i] = 1.0
    angle = ANGLE * np.sqrt(rows.shape[1])
    for _ in range(SWEEPS):
        turned, longest = False, 0.0
        for i in range(s):
            squares[i] = dot(rows[i], rows[i])
            longest = max(longest, squares[i])
        for i in range(s - 1):
            for j in range(i + 1, s):
                small = min(squares[i], squares[j])
                if small <= NOTHING * longest:
                    continue
                inner = dot(rows[i], rows[j])
                if abs(inner) <= angle * np.sqrt(squares[i]) * np.sqrt(squares[j]):
                    continue
                turned = True
                tau = (squares[j] - squares[i]) / (2 * inner)
                tangent = 1 / (abs(tau) + np.sqrt(1 + tau * tau))
                if tau < 0:
                    tangent = -tangent
                cosine = 1 / np.sqrt(1 + tangent * tangent)
                _rotate(rows[i], rows[j], cosine, cosine * tangent)
                _rotate(turn[i], turn[j], cosine, cosine * tangent)
                squares[i] -= tangent * inner
                squares[j] += tangent * inner
        if not turned:
            break
    for i in range(s):
        squares[i] = dot(rows[i], rows[i])


@compiled
def _jacobi_kernel(matrices, left, right, lo, hi):  # (R, a, b) -> left (R, a, r), right (R, r, b)
    a, b, r = matrices.shape[1], matrices.shape[2], left.shape[2]
    s, length = min(a, b), max(a, b)
    rows, turn, squares = np.empty((s, length)), np.empty((s, s)), np.empty(s)
    for t in range(lo, hi):
        size = 0.0
        for i in range(a):
            for j in range(b):
                size = max(size, abs(np.float64(matrices[t, i, j])))
        if size == 0.0:
            left[t] = 0.0
            right[t] = 0.0
            continue
        for i in range(a):
            for j in range(b):
                value = np.float64(matrices[t, i, j]) / size
                if a <= b:
                    rows[i, j] = value
                else:
                    rows[j, i] = value
        _orthogonalise(rows, turn, squares)
        longest = squares.max()
        for k in range(r):
            at = 0
            for i in range(s):
                if squares[i] > squares[at]:
                    at = i
            square = squares[at]
            squares[at] = -1.0
            if a <= b:
                for i in range(a):
                    left[t, i, k] = turn[at, i]
                for j in range(b):
                    right[t, k, j] = rows[at, j] * size
            else:
                root = np.sqrt(square)
                inverse = 1 / root if square > NOTHING * longest else 0.0
                for i in range(a):
                    left[t, i, k] = rows[at, i] * inverse
                for j in range(b):
                    right[t, k, j] = turn[at, j] * root * size


def svd_torch(matrices: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """Return U and U' M as ``truncated_svd`` (the reference; any device)."""
    U, S, V = torch.linalg.svd(matrices, full_matrices=False)
    return U[..., :r], S[..., :r, None] * V[..., :r, :]


def svd_by_gram(M: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """Return U and U' M of one matrix (a, b), in float64, by its smaller Gram matrix.

    Singular values below 1e-8 of the largest are not told from 0: for float32 data, that is all.
    """
    M = M.double()
    if M.shape[0] <= M.shape[1]:
        U = torch.linalg.eigh(M @ M.mT)[1][:, -r:].flip(1)
    else:
        V = torch.linalg.eigh(M.mT @ M)[1][:, -r:].flip(1)
        U = orthonormal((M @ V).mT[None])[0].mT
    return U, U.mT @ M


def truncated_svd(matrices: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """Return U (R, a, r), the leading left singular vectors of matrices (R, a, b), and U' M (R, r, b).

    r <= min(a, b). Where a matrix has lower rank, the last vectors of U may be zero. Matrices must be
    finite.
    """
    if not taken(matrices):
        return svd_torch(matrices, r)
    R, a, b = matrices.shape
    left, right = matrices.new_empty(R, a, r), matrices.new_empty(R, r, b)
    s = min(a, b)
    if s <= SIDE and a * b <= ENTRIES:
        arrays = [x.numpy() for x in (matrices.contiguous(), left, right)]
        cost = 8.0 * R * a * b * s * max(1.0, math.log2(s))
        run_shared(lambda lo, hi: _jacobi_kernel(*arrays, lo, hi), R, cost)
        return left, right
    for i in range(R):
        own = svd_by_gram if matrices.dtype == torch.float32 else svd_torch
        left[i], right[i] = own(matrices[i].contiguous(), r)
    return left, right
