"""Compressors on matrices: truncated singular value decomposition, and a step of PowerSGD."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from raybench.compressors.base import AUTO, Compressor, sizes_of
from raybench.core.compiled import compiled
from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.core.parallel import run_shared
from raybench.core.params import record
from raybench.core.registry import Integer, List, compressor
from raybench.core.streams import Stream
from raybench.wire import Dense, FactorsMessage, Message

# Truncated singular value decompositions ----------------------------------------------------------


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
        factors = by_rotations(matrices, r)
    elif matrices.dtype == torch.float32:
        factors = by_gram(matrices, r)
    else:
        U, S, V = torch.linalg.svd(matrices, full_matrices=False)
        factors = U[..., :r], S[..., :r, None] * V[..., :r, :]
    return factors[0].to(matrices.dtype), factors[1].to(matrices.dtype)


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
    short = (matrices if a <= b else matrices.mT).contiguous().numpy()
    # of the shorter side's vectors the turn is wanted, of the longer side's the turned rows; both contiguous, whatever
    # the matrix: a kernel takes seconds to compile for another layout
    turns, turned = matrices.new_empty(R, r, min(a, b)), matrices.new_empty(R, r, max(a, b))
    arrays = short, turns.numpy(), turned.numpy()
    cost = 8.0 * matrices.numel() * min(a, b)
    run_shared(lambda lo, hi: _leading(*arrays, a <= b, lo, hi), R, cost)
    left, right = (turns, turned) if a <= b else (turned, turns)
    return left.mT.contiguous(), right


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


# Compressors ----------------------------------------------------------------------------------------


SHAPE = List(
    AUTO,
    words=(AUTO,),
    help="sizes of the matrix, [[14, 8]], or of a tensor folded to first x rest; auto: nearly square",
)


def near_square(d: int) -> tuple[int, int]:
    """Return a <= b with a b >= d that minimise a + b, and of those the pair with the smallest a.

    Fewest values for any rank; of equal ones the flattest, as alpha = r / a. No row is empty.
    """
    total = math.isqrt(4 * d - 1) + 1
    a = (total - math.isqrt(total * total - 4 * d)) // 2
    while a * (total - a) < d:
        a += 1
    return a, total - a


def check_fit(sizes: tuple[int, ...], d: int, where: str) -> None:
    """Raise InputError unless d coordinates fill a tensor of these sizes but for part of its last slice."""
    held = math.prod(sizes)
    if not held - held // sizes[0] < d <= held:
        what = f"{' x '.join(map(str, sizes))} = {held} entries for {d} coordinates"
        more = "" if held < d else ", so that no slice of the first axis is empty"
        raise InputError.of(
            where, what, f"sizes whose product is {d} (or little more{more}); or {AUTO}"
        )


def shape_from(layout: Layout | None, d: int) -> tuple[int, ...] | None:
    """Return the shape of a variable that is a single tensor of d entries and at least two axes."""
    shape = layout.tensors[0][1] if layout is not None and len(layout) == 1 else ()
    return shape if len(shape) > 1 and math.prod(shape) == d else None


@lru_cache(maxsize=4096)
def _matrix(shape: tuple[int, ...] | str, rank: int, d: int) -> tuple[int, int, int]:
    """Return (a, b, r); r = 0 where the factors are no smaller than d numbers."""
    if isinstance(shape, str):
        a, b = near_square(d)
    else:
        check_fit(shape, d, "shape")
        a, b = shape[0], math.prod(shape[1:])
    return a, b, rank if rank * (a + b) < d else 0


def matrix_of(flat: Tensor, b: int) -> Tensor:
    """Return the matrices (R, a, b) of flat (R, d), zeros where it ends early."""
    a = -(-flat.shape[1] // b)
    return pad(flat, (0, a * b - flat.shape[1])).view(-1, a, b)


def without_nonfinite(flat: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return flat (R, d) with rows of NaN or infinity set to zero, and which they are (None: none).

    Decompositions refuse such matrices; the rows' messages are then filled with NaN.
    """
    bad = ~flat.isfinite().all(-1)
    if not bool(bad.any()):
        return flat, None
    return flat.masked_fill(bad[:, None], 0), bad


class Projection(Compressor):
    """Base of compressors whose C(x) is an orthogonal projection of x onto a subspace chosen from x.

    Then <C(x), x> = ||C(x)||^2, so B2(alpha, 1) and B1(alpha, 1). Where x is padded, C(x) is cut after
    it was projected: ||C(x)||^2 <= <C(x), x> still, but only ||C(x)|| >= alpha ||x||: B1(alpha^2, 1).
    """

    projection = True
    sizes: ClassVar[str]  # the field that holds the sizes of the matrix or tensor, or ``auto``

    def __post_init__(self) -> None:
        object.__setattr__(self, self.sizes, sizes_of(getattr(self, self.sizes), self.sizes))

    def fit(self, d: int, n: int, layout: Layout | None = None) -> Compressor:
        shape = shape_from(layout, d)
        free = shape is not None and getattr(self, self.sizes) == AUTO
        return replace(self, **{self.sizes: shape}) if free else self  # type: ignore[type-var]

    def entries(self, d: int) -> int:
        """Return the entries of the matrix or tensor that x fills, padding included."""
        raise NotImplementedError

    def b1(self, d: int) -> tuple[float, float] | None:
        alpha = self.alpha(d)
        return super().b1(d) if alpha is None or self.entries(d) == d else (alpha**2, 1.0)


@record
class LowRank(Projection):
    """Base of rank-r compressors; a vector whose factors would hold d values or more is sent dense."""

    rank: int = Integer(1, low=1, help="rank of the matrix that is sent")
    shape: tuple[int, ...] | str = SHAPE
    sizes = "shape"

    def alpha(self, d: int) -> float:
        a, b, r = _matrix(self.shape, self.rank, d)
        return r / min(a, b) if r else 1.0

    def entries(self, d: int) -> int:
        a, b, r = _matrix(self.shape, self.rank, d)
        return a * b if r else d


@compressor("svd")
class SVD(LowRank):
    """C(x) = sum of the r leading terms s_i u_i v_i' of x read as a matrix a x b: best rank-r matrix.

    ||C(x) - x||^2 = sum of s_i^2, i > r, so alpha = r / min(a, b), tight on orthogonal matrices. Deterministic, but
    for last bits that the LAPACK library and its threads may change; exact, about min(a, b) d work: seconds at d =
    10^6, see ``power_step``. Sent: U and V S, r (a + b) values; where that is d or more, x itself (alpha = 1).
    shape: sizes whose product is d or little more (zeros are appended); more than two, as (o, i, h, w) of a
    convolution, are folded to first x rest; auto: the variable's own if it is one tensor, else nearly square.
    Raises InputError where the sizes do not fit d. Source: Eckart and Young 1936.
    """

    deterministic = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d = x.shape[-1]
        a, b, r = _matrix(self.shape, self.rank, d)
        if not r:
            return Dense(x)
        flat, bad = without_nonfinite(x.view(-1, d))
        left, right = truncated_svd(matrix_of(flat, b), r)
        if bad is not None:
            left[bad] = math.nan
        factors = left.reshape(*x.shape[:-1], a, r), right.mT.reshape(*x.shape[:-1], b, r)
        return FactorsMessage(d, x.dtype, *factors)


@compressor("power_step")
class PowerStep(LowRank):
    """C(x) = P P'M for M = x read as a matrix a x b, P = orth(M G), G a fresh Gaussian b x r.

    The step of PowerSGD without its state. P P' projects on the span of S W, M = U S V', W Gaussian;
    its i-th diagonal entry grows with s_i and shrinks with the others (leverage scores), and their sum
    is r: by Chebyshev's sum inequality E||C(x) - x||^2 <= (1 - r / rank M) ||x||^2, so alpha =
    r / min(a, b), tight on orthogonal matrices. (From a warm G, as in PowerSGD, alpha = 0.) More
    iterations use S^(2t-1) for S: same bound, smaller error. Sent: P and M'P, r (a + b) values; where
    that is d or more, x itself (alpha = 1). About 2 r d work. shape and InputError as ``svd``.
    Source: Vogels, Karimireddy, Jaggi 2019 (PowerSGD); Halko, Martinsson, Tropp 2011.
    """

    iterations: int = Integer(1, low=1, help="steps of subspace iteration, two products each")

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d, lead = x.shape[-1], x.shape[:-1]
        a, b, r = _matrix(self.shape, self.rank, d)
        if not r:
            return Dense(x)
        M, Q = matrix_of(x.view(-1, d), b), stream.normal(b * r).view(-1, r, b).to(x.dtype)
        for step in range(self.iterations):
            if step:  # of length 1, lest a further product with M vanish or overflow
                Q = normalize(Q, dim=-1, eps=torch.finfo(Q.dtype).tiny)
            # M stands on the right of thin rows: BLAS is several times as fast so
            P = torch.linalg.qr((Q @ M.mT).mT).Q.mT
            Q = P @ M
        left, right = P.mT.reshape(*lead, a, r), Q.mT.reshape(*lead, b, r)
        return FactorsMessage(d, x.dtype, left, right)
