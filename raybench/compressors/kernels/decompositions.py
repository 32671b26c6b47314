"""Tensor decompositions of a batch, row by row the same: Tucker (three ways), tensor trains, CP.

A tensor is X (R, n_1, .., n_N); its k-th unfolding has the n_k slices as rows. Parts are as
``shapes_of`` of the tensor messages says.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from raybench.compressors.kernels.low_rank import columns_times, rows_times, solve
from raybench.compressors.kernels.svd import truncated_svd
from raybench.core.streams import stream
from raybench.wire.tensors import Sizes, khatri_rao

Parts = list[Tensor]


def unfold(T: Tensor, k: int) -> Tensor:
    """Return the k-th unfolding (R, n_k, rest) of T, k = 0 .. N-1."""
    return T.movedim(k + 1, 1).reshape(T.shape[0], T.shape[k + 1], -1)


def fold(M: Tensor, shape: torch.Size, k: int) -> Tensor:
    """Return the tensor of shape ``shape``, but for axis k, whose k-th unfolding is M."""
    others = [n for j, n in enumerate(shape[1:]) if j != k]
    return M.reshape(M.shape[0], M.shape[1], *others).movedim(1, k + 1)


def project(T: Tensor, k: int, U: Tensor) -> Tensor:
    """Return T x_k U', U (R, n_k, r)."""
    M = unfold(T, k)
    value = columns_times(M.flatten(1), M.shape[2], U.mT.double()).to(T.dtype)
    return fold(value, T.shape, k)


def energy(T: Tensor) -> Tensor:
    """Return ||T||^2 per row, float64 (R,); a row's does not depend on the others."""
    flat = T.reshape(T.shape[0], -1)
    return rows_times(flat, flat.shape[1], flat.double()[:, None]).flatten()


def hosvd(X: Tensor, ranks: Sizes) -> Parts:
    """Return core and factors: U_k the leading left singular vectors of X's own unfoldings."""
    factors, core = [truncated_svd(unfold(X, k), r)[0] for k, r in enumerate(ranks)], X
    for k, U in enumerate(factors):
        core = project(core, k, U)
    return [core, *factors]


def st_hosvd(X: Tensor, ranks: Sizes) -> Parts:
    """Return core and factors: each axis is truncated on what the axes before it have left."""
    core, factors = X, []
    for k, r in enumerate(ranks):
        U, left = truncated_svd(unfold(core, k), r)
        core = fold(left, core.shape, k)
        factors.append(U)
    return [core, *factors]


def hooi(X: Tensor, ranks: Sizes, iterations: int) -> Parts:
    """Return the core and factors that alternate from those of ``st_hosvd``, the better of the two.

    Each U_k in turn is the best one for the others. Where r_k exceeds the product of the other ranks
    its last columns are zero: they could not carry anything.
    """
    start = core, *factors = st_hosvd(X, ranks)
    for _ in range(iterations):
        for k, r in enumerate(ranks):
            core = X
            for j, U in enumerate(factors):
                core = core if j == k else project(core, j, U)
            Y = unfold(core, k)
            kept = min(r, Y.shape[2])
            U, left = truncated_svd(Y, kept)
            factors[k] = torch.nn.functional.pad(U, (0, r - kept))
            core = fold(torch.nn.functional.pad(left, (0, 0, 0, r - kept)), core.shape, k)
    return _better(energy(core) > energy(start[0]), [core, *factors], start)


def tensor_train(X: Tensor, ranks: Sizes) -> Parts:
    """Return the cores (R, r_(k-1), n_k, r_k): one singular value decomposition after the other."""
    left, cores, all_ranks = X.flatten(1), [], (1, *ranks)
    for (before, after), n in zip(pairwise(all_ranks), X.shape[1:], strict=False):
        U, left = truncated_svd(left.reshape(X.shape[0], before * n, -1), after)
        cores.append(U.reshape(-1, before, n, after))
    return [*cores, left.reshape(X.shape[0], all_ranks[-1], X.shape[-1], 1)]


def cp(X: Tensor, rank: int, iterations: int) -> Parts:
    """Return lines (R, rank, n_k), k = 1 .. N, by alternating least squares; the last holds weights.

    It starts from the rank-1 ST-HOSVD, the next singular vectors of each unfolding and, where they
    end, fixed Gaussians. Each step solves for one axis exactly, so in exact arithmetic the error never
    exceeds that of the rank-1 start; where rounding breaks this, the start is returned.
    """
    largest = X.abs().flatten(1).amax(-1)
    size = largest.where(largest > 0, 1).view(-1, *[1] * (X.ndim - 1))
    X = X / size
    core, *factors = st_hosvd(X, (1,) * (X.ndim - 1))
    ones = [U.mT for U in factors]
    ones[-1] = ones[-1] * core.view(-1, 1, 1)
    start = [torch.cat((u, u.new_zeros(len(u), rank - 1, u.shape[2])), 1) for u in ones]
    unfolded = [unfold(X, k) for k in range(X.ndim - 1)]
    lines = [_first_lines(M, U, rank, k) for k, (M, U) in enumerate(zip(unfolded, factors))]
    grams = [_gram(line) for line in lines]
    for _ in range(iterations):
        for k, M in enumerate(unfolded):
            others = [j for j in range(len(lines)) if j != k]
            rest, gram = khatri_rao([lines[j] for j in others]), grams[others[0]]
            for j in others[1:]:
                gram = gram * grams[j]
            found = solve(gram, rows_times(M.flatten(1), M.shape[2], rest))
            lines[k], grams[k] = _unit(found)
    parts = [line.to(X.dtype) for line in (*lines[:-1], found)]
    better = _missed(X, parts) < _missed(X, start)
    *lines, weighted = _better(better, parts, start)
    return [*lines, weighted * size.view(-1, 1, 1)]


def _first_lines(M: Tensor, U: Tensor, rank: int, k: int) -> Tensor:
    """Return unit vectors (R, rank, n_k), float64; the first is that of the rank-1 start."""
    R, n, rest = M.shape
    lines = [U.mT.double()]
    more = min(rank, n, rest)
    if more > 1:
        lines.append(truncated_svd(M, more)[0][..., 1:].mT.double())
    if rank > more:
        noise = stream(0, M.device).fold(k).normal((rank - more) * n).view(1, -1, n)
        lines.append((noise / noise.norm(dim=-1, keepdim=True)).expand(R, -1, -1))
    return torch.cat(lines, 1)


def _gram(lines: Tensor) -> Tensor:
    R, r, n = lines.shape
    return rows_times(lines.reshape(R, r * n), n, lines)


def _unit(lines: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lines scaled to length 1 (zero stays zero) and their Gram matrices."""
    length = _gram(lines).diagonal(dim1=-2, dim2=-1).sqrt()
    unit = lines / length.where(length > 0, 1.0)[..., None]
    return unit, _gram(unit)


def _missed(X: Tensor, lines: Parts) -> Tensor:
    """Return ||X - sum of the lines' products||^2 per row, float64."""
    first, rest = lines[0].double(), khatri_rao([line.double() for line in lines[1:]])
    value = columns_times(rest.flatten(1), rest.shape[2], first.mT.contiguous())
    return energy(X.double() - value.view(X.shape))


def _better(choice: Tensor, one: Parts, other: Parts) -> Parts:
    """Return the parts of ``one`` in rows where ``choice`` holds, else those of ``other``."""
    return [
        torch.where(choice.view(-1, *[1] * (a.ndim - 1)), a, b)
        for a, b in zip(one, other, strict=True)
    ]


def guaranteed(dims: Sizes, ranks: Sizes) -> float:
    """Return alpha of ``st_hosvd``: the product of min(1, r_k / min(n_k, r_1..r_(k-1) n_(k+1)..n_N))."""
    alpha = 1.0
    for k, (n, r) in enumerate(zip(dims, ranks, strict=True)):
        alpha *= min(1.0, r / min(n, math.prod(ranks[:k]) * math.prod(dims[k + 1 :])))
    return alpha


def guaranteed_train(dims: Sizes, ranks: Sizes) -> float:
    """Return alpha of ``tensor_train``: the product of min(1, r_k / min(r_(k-1) n_k, n_(k+1)..n_N))."""
    alpha, before = 1.0, 1
    for k, r in enumerate(ranks):
        alpha *= min(1.0, r / min(before * dims[k], math.prod(dims[k + 1 :])))
        before = r
    return alpha
