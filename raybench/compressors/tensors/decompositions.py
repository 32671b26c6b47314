"""Tensor decompositions of a batch: Tucker (three ways), tensor trains, CP, and what they guarantee.

A tensor is X (R, n_1, .., n_N); its k-th unfolding has the n_k slices as rows. Parts are as
``shapes_of`` of the tensor messages says.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from raybench.compressors.low_rank.svd import truncated_svd
from raybench.compressors.tensors.message import Sizes, fold, khatri_rao, multiply, rebuilt, unfold
from raybench.core.streams import stream

Parts = list[Tensor]
RIDGE = 1e-14  # added to Gram matrices of unit vectors, lest they be singular


def hosvd(X: Tensor, ranks: Sizes) -> Parts:
    """Return core and factors: U_k the leading left singular vectors of X's own unfoldings."""
    factors, core = [truncated_svd(unfold(X, k), r)[0] for k, r in enumerate(ranks)], X
    for k, U in enumerate(factors):
        core = multiply(core, k, U.mT)
    return [core, *factors]


def st_hosvd(X: Tensor, ranks: Sizes) -> Parts:
    """Return core and factors: each axis is truncated on what the axes before it have left."""
    core, factors = X, []
    for k, r in enumerate(ranks):
        U, left = truncated_svd(unfold(core, k), r)
        core = fold(left, core.shape[1:], k)
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
                core = core if j == k else multiply(core, j, U.mT)
            Y = unfold(core, k)
            kept = min(r, Y.shape[2])
            U, left = truncated_svd(Y, kept)
            factors[k] = pad(U, (0, r - kept))
            core = fold(pad(left, (0, 0, 0, r - kept)), core.shape[1:], k)
    return _better(_energy(core) > _energy(start[0]), [core, *factors], start)


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
    dtype, size = X.dtype, X.abs().flatten(1).amax(-1).view(-1, *[1] * (X.ndim - 1))
    X = X.double() / size.where(size > 0, 1)
    core, *factors = st_hosvd(X, (1,) * (X.ndim - 1))
    start = [pad(U.mT, (0, 0, 0, rank - 1)) for U in factors]
    start[-1] = start[-1] * core.view(-1, 1, 1)
    unfolded = [unfold(X, k) for k in range(X.ndim - 1)]
    lines = [_first_lines(M, U, rank, k) for k, (M, U) in enumerate(zip(unfolded, factors))]
    ridge = RIDGE * torch.eye(rank, dtype=X.dtype, device=X.device)
    for _ in range(iterations):
        for k, M in enumerate(unfolded):
            others = [line for j, line in enumerate(lines) if j != k]
            gram = math.prod((line @ line.mT for line in others), start=ridge * 0 + 1) + ridge
            found = torch.linalg.solve(gram, khatri_rao(others) @ M.mT)
            lines[k] = normalize(found, dim=-1)
    parts = [*lines[:-1], found]
    better = _energy(X - rebuilt("cp", parts).view(X.shape)) < _energy(
        X - rebuilt("cp", start).view(X.shape)
    )
    *lines, weighted = _better(better, parts, start)
    return [line.to(dtype) for line in (*lines, weighted * size.view(-1, 1, 1))]


def _first_lines(M: Tensor, U: Tensor, rank: int, k: int) -> Tensor:
    """Return unit vectors (R, rank, n_k); the first is that of the rank-1 start, U (R, n_k, 1)."""
    R, n, rest = M.shape
    lines = [U.mT]
    more = min(rank, n, rest)
    if more > 1:
        lines.append(truncated_svd(M, more)[0][..., 1:].mT)
    if rank > more:
        noise = stream(0, M.device).fold(k).normal((rank - more) * n).view(1, -1, n)
        lines.append(normalize(noise, dim=-1).expand(R, -1, -1))
    return torch.cat(lines, 1)


def _energy(T: Tensor) -> Tensor:
    """Return ||T||^2 per row, float64 (R,)."""
    return T.double().flatten(1).square().sum(-1)


def _better(choice: Tensor, one: Parts, other: Parts) -> Parts:
    """Return the parts of ``one`` in rows where ``choice`` holds, else those of ``other``."""
    pairs = zip(one, other, strict=True)
    return [torch.where(choice.view(-1, *[1] * (a.ndim - 1)), a, b) for a, b in pairs]


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
