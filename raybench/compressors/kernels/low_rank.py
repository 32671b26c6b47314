"""Products and bases of low-rank operators: compiled, each with the plain torch version beside it.

BLAS and LAPACK give other bits for the same matrix at another place of a batch (their code depends on
how memory is aligned), so that a row of a batch would not be that row alone. These kernels do not,
sum in float64, and read a padded matrix straight from its vector.

A matrix of shape (a, b) is given as its rows end to end, flat (R, d), (a-1) b < d <= a b; what is
missing of the last row counts as zero.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from raybench.core.compiled import compiled
from raybench.core.parallel import run_shared
from raybench.wire.factors import KERNEL_DTYPES

TILE = 512  # columns whose sums stay in the nearest cache
NOISE = 1e-12  # a column that keeps less of its length than this lies in the span of the others
_REORDER = {"reassoc", "contract"}  # sums of fixed lanes; NaN and infinity are kept


@compiled(fastmath=_REORDER)
def _rows_kernel(flat, b, right, out, lo, hi):  # out[t, k, i] = sum_j M[t, i, j] right[t, k, j]
    r, a, d = right.shape[1], out.shape[2], flat.shape[1]
    for q in range(lo, hi):
        t, i = q // a, q % a
        m = flat[t, i * b : min((i + 1) * b, d)]
        n = m.shape[0]
        k = 0
        while k + 4 <= r:
            q0, q1 = right[t, k, :n], right[t, k + 1, :n]
            q2, q3 = right[t, k + 2, :n], right[t, k + 3, :n]
            s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
            for j in range(n):
                s0 += m[j] * q0[j]
                s1 += m[j] * q1[j]
                s2 += m[j] * q2[j]
                s3 += m[j] * q3[j]
            out[t, k, i], out[t, k + 1, i], out[t, k + 2, i], out[t, k + 3, i] = s0, s1, s2, s3
            k += 4
        while k < r:
            q0, s0 = right[t, k, :n], 0.0
            for j in range(n):
                s0 += m[j] * q0[j]
            out[t, k, i] = s0
            k += 1


@compiled(fastmath={"contract"})
def _columns_kernel(flat, b, left, out, lo, hi):  # out[t, k, j] = sum_i left[t, k, i] M[t, i, j]
    r, a, d = left.shape[1], left.shape[2], flat.shape[1]
    tiles = -(-b // TILE)
    for q in range(lo, hi):
        t, start = q // tiles, (q % tiles) * TILE
        end = min(start + TILE, b)
        out[t, :, start:end] = 0.0
        i = 0
        while i + 4 <= a and (i + 3) * b + end <= d:
            m0 = flat[t, i * b + start : i * b + end]
            m1 = flat[t, (i + 1) * b + start : (i + 1) * b + end]
            m2 = flat[t, (i + 2) * b + start : (i + 2) * b + end]
            m3 = flat[t, (i + 3) * b + start : (i + 3) * b + end]
            for k in range(r):
                p0, p1, p2, p3 = (
                    left[t, k, i],
                    left[t, k, i + 1],
                    left[t, k, i + 2],
                    left[t, k, i + 3],
                )
                o = out[t, k, start:end]
                for j in range(o.shape[0]):
                    o[j] += p0 * m0[j] + p1 * m1[j] + p2 * m2[j] + p3 * m3[j]
            i += 4
        while i < a:
            m0 = flat[t, min(i * b + start, d) : min(i * b + end, d)]
            for k in range(r):
                p0, o = left[t, k, i], out[t, k, start:end]
                for j in range(m0.shape[0]):
                    o[j] += p0 * m0[j]
            i += 1


@compiled(fastmath=_REORDER)
def dot(u, v):  # of float64 vectors, for use in CPU kernels
    total = 0.0
    for j in range(u.shape[0]):
        total += u[j] * v[j]
    return total


@compiled
def _unit(u):  # scales u to length 1 and returns its length; the largest entry goes first
    largest = 0.0
    for j in range(u.shape[0]):
        if not abs(u[j]) <= largest:
            largest = abs(u[j])  # NaN stays
    if largest == 0.0:
        return 0.0
    for j in range(u.shape[0]):
        u[j] /= largest
    length = np.sqrt(dot(u, u))
    for j in range(u.shape[0]):
        u[j] /= length
    return largest * length


@compiled
def _orthonormal_kernel(columns, lo, hi):  # columns (R, r, a), one column per line, in place
    for t in range(lo, hi):
        for k in range(columns.shape[1]):
            u = columns[t, k]
            kept = 1.0
            _unit(u)
            for _ in range(2):  # once is not enough, twice is (Kahan, Parlett)
                for h in range(k):
                    v = columns[t, h]
                    along = dot(u, v)
                    for j in range(u.shape[0]):
                        u[j] -= along * v[j]
                kept *= _unit(u)
            if kept <= NOISE:
                u[:] = 0.0


@compiled
def _solve_kernel(gram, rhs, tolerance, lo, hi):  # gram (R, r, r), rhs (R, r, n): both are changed
    r = gram.shape[1]
    for t in range(lo, hi):
        g, y = gram[t], rhs[t]
        order = np.full(r, -1, np.int64)
        used = np.zeros(r, np.bool_)
        for step in range(r):
            best, at = tolerance, -1
            for k in range(r):
                if not used[k] and not g[k, k] <= best:
                    best, at = g[k, k], k
            if at < 0:
                break
            used[at] = True
            order[step] = at
            for k in range(r):
                if k == at:
                    continue
                factor = g[k, at] / best
                for j in range(r):
                    g[k, j] -= factor * g[at, j]
                for j in range(y.shape[1]):
                    y[k, j] -= factor * y[at, j]
        for k in range(r):
            if used[k]:
                for j in range(y.shape[1]):
                    y[k, j] /= g[k, k]
            else:
                y[k, :] = 0.0


def matrix_of(flat: Tensor, b: int) -> Tensor:
    """Return the matrices (R, a, b) of flat (R, d), zeros where it ends early."""
    a = -(-flat.shape[1] // b)
    return pad(flat, (0, a * b - flat.shape[1])).view(-1, a, b)


def rows_times_torch(flat: Tensor, b: int, right: Tensor) -> Tensor:
    """Return right M' as ``rows_times`` (the reference; any device)."""
    return right @ matrix_of(flat, b).double().mT


def rows_times(flat: Tensor, b: int, right: Tensor) -> Tensor:
    """Return right M', float64 (R, r, a): each row of M times the r vectors right (R, r, b), float64."""
    if not taken(flat):
        return rows_times_torch(flat, b, right)
    (R, d), r = flat.shape, right.shape[1]
    a = -(-d // b)
    out = torch.empty(R, r, a, dtype=torch.float64)
    arrays = flat.contiguous().numpy(), b, right.contiguous().numpy(), out.numpy()
    run_shared(lambda lo, hi: _rows_kernel(*arrays, lo, hi), R * a, float(R * d * r))
    return out


def columns_times_torch(flat: Tensor, b: int, left: Tensor) -> Tensor:
    """Return left M as ``columns_times`` (the reference; any device)."""
    return left @ matrix_of(flat, b).double()


def columns_times(flat: Tensor, b: int, left: Tensor) -> Tensor:
    """Return left M, float64 (R, r, b): the r vectors left (R, r, a), float64, times each column."""
    if not taken(flat):
        return columns_times_torch(flat, b, left)
    (R, d), r = flat.shape, left.shape[1]
    out = torch.empty(R, r, b, dtype=torch.float64)
    arrays = flat.contiguous().numpy(), b, left.contiguous().numpy(), out.numpy()
    tiles = R * -(-b // TILE)
    run_shared(lambda lo, hi: _columns_kernel(*arrays, lo, hi), tiles, float(R * d * r))
    return out


def orthonormal_torch(columns: Tensor) -> Tensor:
    """Return orthonormal vectors as ``orthonormal``, by QR: dependent ones become arbitrary."""
    return torch.linalg.qr(columns.mT).Q.mT


def orthonormal(columns: Tensor) -> Tensor:
    """Return an orthonormal basis of the span of columns (R, r, a), float64, r <= a.

    Gram-Schmidt, twice; vectors in the span of those before them become zero, never NaN.
    """
    if not taken(columns):
        return orthonormal_torch(columns)
    out = columns.clone(memory_format=torch.contiguous_format)
    raw, (R, r, a) = out.numpy(), out.shape
    run_shared(lambda lo, hi: _orthonormal_kernel(raw, lo, hi), R, float(2 * R * r * r * a))
    return out


def solve_torch(gram: Tensor, rhs: Tensor, tolerance: float) -> Tensor:
    """Return a solution of gram y = rhs as ``solve`` (the reference; any device)."""
    return torch.linalg.pinv(gram, hermitian=True, rtol=tolerance) @ rhs


def solve(gram: Tensor, rhs: Tensor, tolerance: float = 1e-10) -> Tensor:
    """Return y with gram y = rhs, (R, r, n) float64, for Gram matrices (R, r, r) of unit vectors.

    Elimination, largest diagonal entry first; vectors whose rest has squared length <= tolerance
    get 0, so a singular Gram matrix gives a solution too.
    """
    if not taken(rhs):
        return solve_torch(gram, rhs, tolerance)
    left, out = (t.clone(memory_format=torch.contiguous_format) for t in (gram, rhs))
    arrays, (R, r, n) = (left.numpy(), out.numpy()), out.shape
    run_shared(lambda lo, hi: _solve_kernel(*arrays, tolerance, lo, hi), R, float(R * r * r * n))
    return out


def without_nonfinite(flat: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return flat (R, d) with rows of NaN or infinity set to zero, and which they are (None: none).

    Decompositions refuse such matrices; the rows' messages are then filled with NaN.
    """
    bad = ~flat.isfinite().all(-1)
    if not bool(bad.any()):
        return flat, None
    return flat.masked_fill(bad[:, None], 0), bad


def taken(x: Tensor) -> bool:
    """Return whether the kernels take x: float32 or float64 on CPU."""
    return x.device.type == "cpu" and x.dtype in KERNEL_DTYPES
