"""Compressors on tensors: Tucker (three ways), tensor trains and CP, their messages and guarantees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from raybench.compressors.base import AUTO, count_of
from raybench.compressors.low_rank import (
    Projection,
    check_fit,
    near_square,
    truncated_svd,
    without_nonfinite,
)
from raybench.core.errors import InputError
from raybench.core.params import record
from raybench.core.registry import Integer, List, compressor
from raybench.core.streams import Stream, stream
from raybench.wire import Dense, Message
from raybench.wire.fields import Field, Header, Numbers, dtype_of, natural, naturals

# Messages -----------------------------------------------------------------------------------------


Sizes = tuple[int, ...]
FORMS = ("tucker", "tt", "cp")
MOST_AXES = 32  # of a tensor that is unpacked
MOST_PADDED = 1024  # entries of it beyond 2 d
MOST_WITHIN = 64  # entries that rebuilding it passes through, for each entry (and 2^20 more)


def shapes_of(form: str, dims: Sizes, ranks: Sizes) -> list[Sizes]:
    """Return the shapes of a decomposition's parts, in the order they are sent.

    tucker: the core (r_1, .., r_N), then (n_k, r_k); tt: (r_(k-1), n_k, r_k), r_0 = r_N = 1, given
    the ranks r_1 .. r_(N-1); cp: (r, n_k), given the one rank r.
    """
    if form == "tucker":
        return [ranks, *zip(dims, ranks, strict=True)]
    if form == "tt":
        return list(zip((1, *ranks), dims, (*ranks, 1), strict=True))
    return [(ranks[0], n) for n in dims]


def values_of(form: str, dims: Sizes, ranks: Sizes) -> int:
    """Return how many values the parts hold."""
    return sum(math.prod(shape) for shape in shapes_of(form, dims, ranks))


def unfold(T: Tensor, k: int) -> Tensor:
    """Return the k-th unfolding (R, n_k, rest) of T (R, n_1, .., n_N), k = 0 .. N-1."""
    return T.movedim(k + 1, 1).flatten(2)


def fold(M: Tensor, shape: Sizes, k: int) -> Tensor:
    """Return the tensor (R, ..) whose k-th unfolding is M; its sizes but for axis k are those of ``shape``."""
    others = [n for j, n in enumerate(shape) if j != k]
    return M.unflatten(2, others).movedim(1, k + 1)


def multiply(T: Tensor, k: int, U: Tensor) -> Tensor:
    """Return T x_k U, every line of T along axis k multiplied by U (R, m, n_k)."""
    return fold(U @ unfold(T, k), T.shape[1:], k)


def khatri_rao(lines: list[Tensor]) -> Tensor:
    """Return the products of one entry of each, (R, r, n_1 n_2 ..), for lines (R, r, n_k)."""
    out = lines[-1]
    for line in reversed(lines[:-1]):
        out = (line[..., None] * out[:, :, None]).flatten(2)
    return out


def rebuilt(form: str, parts: list[Tensor]) -> Tensor:
    """Return the tensors (R, n_1 .. n_N), flat, of parts (R, *shape) as ``shapes_of`` has them."""
    T = parts[0]
    if form == "cp":
        T = T.mT @ khatri_rao(parts[1:])
    elif form == "tt":
        for core in parts[1:]:
            T = T.flatten(1, -2) @ core.flatten(2)
            T = T.unflatten(2, core.shape[2:])
    else:
        for k, U in enumerate(parts[1:]):
            T = multiply(T, k, U)
    return T.flatten(1)


def _largest_within(form: str, dims: Sizes, ranks: Sizes) -> int:
    """Return the entries of the largest tensor that ``rebuilt`` passes through, for one row."""
    if form == "cp":
        return max(math.prod(dims), ranks[0] * math.prod(dims[1:]))
    if form == "tt":
        return max(math.prod(dims[: k + 1]) * r for k, r in enumerate((*ranks, 1)))
    return max(math.prod(dims[:k]) * math.prod(ranks[k:]) for k in range(len(dims) + 1))


@dataclass(eq=False)
class TensorMessage(Message):
    """A tensor in parts: ``values`` (*lead, m), all parts end to end, as ``shapes_of`` says.

    form: tucker, tt or cp; dims: the sizes n_1 .. n_N, N >= 2, whose product is at least d; ranks: as
    ``shapes_of``. What the tensor has beyond d entries is left out. Sent: m values.
    """

    values: Tensor
    form: str
    dims: Sizes
    ranks: Sizes
    kind = "tensor"
    tensors = ("values",)
    static = ("form", "dims", "ranks")

    @classmethod
    def fields(cls, head: Header, width: int) -> Sequence[Field]:
        d, form = natural(head, "d"), head["form"]
        dims, ranks = tuple(naturals(head, "dims")), tuple(naturals(head, "ranks"))
        if form not in FORMS or len(dims) > MOST_AXES or len(ranks) > MOST_AXES or not all(dims):
            raise ValueError(f"no {form} of {dims}")
        held, what = math.prod(dims), f"{form} of {dims} with ranks {ranks}"
        if len(dims) < 2 or not held - held // dims[0] < d <= held:
            raise ValueError(f"{what} is no message of {d} coordinates")
        most = _largest_within(form, dims, ranks)
        if held > 2 * d + MOST_PADDED or most > MOST_WITHIN * held + 2**20:
            raise ValueError(f"{what} is larger than {d} coordinates")
        return [Field("values", Numbers(dtype_of(head)), (values_of(form, dims, ranks),))]

    def __post_init__(self) -> None:
        self.dims, self.ranks = tuple(self.dims), tuple(self.ranks)

    def parts(self) -> list[Tensor]:
        """Return the parts, each (R, *shape), R rows in all."""
        shapes = shapes_of(self.form, self.dims, self.ranks)
        flat = self.values.reshape(-1, self.values.shape[-1])
        pieces = flat.split([math.prod(s) for s in shapes], -1)
        return [p.reshape(len(flat), *s) for p, s in zip(pieces, shapes, strict=True)]

    def _decode(self) -> Tensor:
        return rebuilt(self.form, self.parts())[:, : self.d].reshape(*self.lead, self.d)


# Decompositions -----------------------------------------------------------------------------------


Parts = list[Tensor]
RIDGE = 1e-14  # added to Gram matrices of unit vectors, lest they be singular


def st_hosvd(X: Tensor, ranks: Sizes) -> Parts:
    """Return core and factors: each axis is truncated on what the axes before it have left."""
    core, factors = X, []
    for k, r in enumerate(ranks):
        U, rest = truncated_svd(unfold(core, k), r)
        core = fold(rest, core.shape[1:], k)
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
            rank = min(r, Y.shape[2])
            U, rest = truncated_svd(Y, rank)
            factors[k] = pad(U, (0, r - rank))
            core = fold(pad(rest, (0, 0, 0, r - rank)), core.shape[1:], k)
    return _better(_energy(core) > _energy(start[0]), [core, *factors], start)


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
            solution = torch.linalg.solve(gram, khatri_rao(others) @ M.mT)
            lines[k] = normalize(solution, dim=-1)
    parts = [*lines[:-1], solution]
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


# Compressors ----------------------------------------------------------------------------------------


Rank = int | float | str  # a count, or a share of the largest that an axis can have


@lru_cache(maxsize=4096)
def near_cube(d: int) -> Sizes:
    """Return a <= b <= c with a b c >= d that minimise a + b + c, and of those a b c."""
    shapes = []
    a = 1
    while a == 1 or (a - 1) ** 3 < d:
        shapes.append((a, *near_square(-(-d // a))))
        a += 1
    return tuple(sorted(min(shapes, key=lambda dims: (sum(dims), math.prod(dims)))))


@dataclass(frozen=True)
class TensorShape:
    """Sizes, ranks that are reached, and alpha; ranks are empty where x is sent dense."""

    dims: Sizes
    ranks: Sizes
    alpha: float | None


def _rank(value: Rank, most: int) -> int:
    """Return how many of ``most`` a rank means: a share of them, or a count, which may be larger."""
    return min(value, most) if type(value) is int else count_of(value, most, "ranks")


def _each(given: Sequence[Rank] | Rank) -> tuple[Rank, ...]:
    """Return ranks as a tuple, also one that is given alone."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        return tuple(given)
    return (given,)


def _spread(given: Sequence[Rank] | Rank, count: int) -> tuple[Rank, ...]:
    """Return a rank for each of so many axes. Raises InputError where there are others."""
    ranks = _each(given)
    if len(ranks) not in (1, count):
        raise InputError.of("ranks", f"{len(ranks)} ranks", f"give {count}, or one for all")
    return ranks * count if len(ranks) == 1 else ranks


@lru_cache(maxsize=4096)
def _plan(op: Decomposition, d: int) -> TensorShape:
    if isinstance(op.dims, str):
        dims = near_cube(d)
    else:
        check_fit(dims := op.dims, d, "dims")
    if len(dims) < 2:
        return TensorShape(dims, (), 1.0)
    ranks = op.reached(dims)
    if values_of(op.form, dims, ranks) >= d:
        return TensorShape(dims, (), 1.0)
    return TensorShape(dims, ranks, op.guarantee(dims, ranks))


@record
class Decomposition(Projection):
    """Base of tensor compressors; x whose parts would hold d values or more is sent dense."""

    dims: Sizes | str = List(
        AUTO,
        words=(AUTO,),
        help="sizes of the tensor's axes, [[7, 4, 4]]; auto: three nearly equal ones",
    )
    form: ClassVar[str] = ""
    sizes = "dims"
    deterministic = True

    def reached(self, dims: Sizes) -> Sizes:
        """Return the ranks that a tensor of these sizes can have, at most those asked for."""
        raise NotImplementedError

    def guarantee(self, dims: Sizes, ranks: Sizes) -> float | None:
        """Return alpha for tensors of these sizes."""
        raise NotImplementedError

    def parts(self, X: Tensor, ranks: Sizes) -> Parts:
        """Return the parts to send of X (R, n_1, .., n_N), which is finite."""
        raise NotImplementedError

    def alpha(self, d: int) -> float | None:
        return _plan(self, d).alpha

    def entries(self, d: int) -> int:
        plan = _plan(self, d)
        return math.prod(plan.dims) if plan.ranks else d

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d, plan = x.shape[-1], _plan(self, x.shape[-1])
        if not plan.ranks:
            return Dense(x)
        flat, bad = without_nonfinite(x.view(-1, d))
        X = pad(flat, (0, math.prod(plan.dims) - d)).view(-1, *plan.dims)
        values = torch.cat([p.flatten(1) for p in self.parts(X, plan.ranks)], 1)
        if bad is not None:
            values[bad] = math.nan
        values = values.view(*x.shape[:-1], values.shape[1])
        return TensorMessage(d, x.dtype, values, self.form, plan.dims, plan.ranks)


@record
class Ranked(Decomposition):
    """Base of compressors with a rank for each axis."""

    ranks: Sequence[Rank] | Rank = List(
        (1,), help="one rank per axis, [[2, 2, 2]], or one for all, [[2]]; counts or shares"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        ranks = _each(self.ranks)
        if not ranks:
            raise InputError.of("ranks", "no ranks", "one for all axes: [[2]]; or one for each")
        for rank in ranks:
            count_of(rank, 2**31, "ranks")
        object.__setattr__(self, "ranks", ranks)


class Tuckered(Ranked):
    """Base of the Tucker forms: a core and one factor for each axis."""

    form = "tucker"

    def reached(self, dims: Sizes) -> Sizes:
        ranks: list[int] = []
        for k, rank in enumerate(_spread(self.ranks, len(dims))):
            others = math.prod(ranks) * math.prod(dims[k + 1 :])
            ranks.append(min(_rank(rank, dims[k]), others))
        return tuple(ranks)

    def guarantee(self, dims: Sizes, ranks: Sizes) -> float | None:
        return guaranteed(dims, ranks)


@compressor("hosvd")
class HOSVD(Tuckered):
    """C(x) = X x_1 U_1 U_1' .. x_N U_N U_N', U_k from the unfoldings of X itself: plain HOSVD.

    NOT contractive, alpha = None: X in R^(7x7x7) with X[0,j,j] = X[j,0,j] = X[j,j,0] = 1, j >= 1, and
    ranks (1,1,1) is rebuilt as exactly 0, since each U_k = e_0 and X[0,0,0] = 0. Use ``st_hosvd``.
    Sent: prod r_k + sum n_k r_k values; where that is d or more, x itself. dims: sizes whose product
    is d or little more (zeros are appended); ranks above what an axis can have are lowered. Raises
    InputError where dims do not fit d or ranks do not fit dims. Source: De Lathauwer et al. 2000.
    """

    def reached(self, dims: Sizes) -> Sizes:
        most = [min(n, math.prod(dims) // n) for n in dims]
        ranks = _spread(self.ranks, len(dims))
        return tuple(min(_rank(r, n), m) for r, n, m in zip(ranks, dims, most, strict=True))

    def guarantee(self, dims: Sizes, ranks: Sizes) -> float | None:
        return None

    def parts(self, X: Tensor, ranks: Sizes) -> Parts:
        core, factors = X, [truncated_svd(unfold(X, k), r)[0] for k, r in enumerate(ranks)]
        for k, U in enumerate(factors):
            core = multiply(core, k, U.mT)
        return [core, *factors]


@compressor("st_hosvd")
class STHOSVD(Tuckered):
    """C(x) = X x_1 U_1 U_1' .. x_N U_N U_N', each U_k from what axes 1..k-1 have left of X.

    Every step is a truncated SVD of an unfolding, hence alpha = prod_k min(1, r_k / min(n_k,
    prod_{j<k} r_j prod_{j>k} n_j)); the worst case is rarely near. Sent: prod r_k + sum n_k r_k
    values. dims, ranks, dense and InputError as ``hosvd``. Source: Vannieuwenhoven, Vandebril,
    Meerbergen 2012.
    """

    def parts(self, X: Tensor, ranks: Sizes) -> Parts:
        return st_hosvd(X, ranks)


@compressor("tucker")
class Tucker(Tuckered):
    """C(x) = core x_1 U_1 .. x_N U_N by HOOI: from ``st_hosvd``, each U_k in turn the best for the rest.

    Never worse than ``st_hosvd`` (the better of the two is sent), so the same alpha; about N times the
    work per sweep. Sent: prod r_k + sum n_k r_k values. dims, ranks, dense and InputError as
    ``hosvd``. Source: De Lathauwer, De Moor, Vandewalle 2000 (HOOI).
    """

    iterations: int = Integer(5, low=0, help="sweeps of alternating improvement (HOOI)")

    def parts(self, X: Tensor, ranks: Sizes) -> Parts:
        return hooi(X, ranks, self.iterations)


@compressor("tensor_train")
class TensorTrain(Ranked):
    """C(x)_(i_1..i_N) = G_1[i_1] .. G_N[i_N], matrices r_(k-1) x r_k: TT-SVD, r_0 = r_N = 1.

    One truncated SVD after the other, hence alpha = prod_k min(1, r_k / min(r_(k-1) n_k,
    prod_{j>k} n_j)). Sent: sum r_(k-1) n_k r_k values; where that is d or more, x itself. ranks: N - 1
    of them, or one for all. dims and InputError as ``hosvd``. Source: Oseledets 2011.
    """

    ranks: Sequence[Rank] | Rank = List(
        (1,), help="the ranks between axes, one fewer than axes, or one for all"
    )

    form = "tt"

    def reached(self, dims: Sizes) -> Sizes:
        ranks: list[int] = []
        for k, rank in enumerate(_spread(self.ranks, len(dims) - 1)):
            before = ranks[-1] if ranks else 1
            ranks.append(_rank(rank, min(before * dims[k], math.prod(dims[k + 1 :]))))
        return tuple(ranks)

    def guarantee(self, dims: Sizes, ranks: Sizes) -> float | None:
        alpha, before = 1.0, 1
        for k, r in enumerate(ranks):
            alpha *= min(1.0, r / min(before * dims[k], math.prod(dims[k + 1 :])))
            before = r
        return alpha

    def parts(self, X: Tensor, ranks: Sizes) -> Parts:
        rest, cores, all_ranks = X.flatten(1), [], (1, *ranks)
        for (before, after), n in zip(pairwise(all_ranks), X.shape[1:], strict=False):
            U, rest = truncated_svd(rest.reshape(X.shape[0], before * n, -1), after)
            cores.append(U.reshape(-1, before, n, after))
        return [*cores, rest.reshape(X.shape[0], all_ranks[-1], X.shape[-1], 1)]


@compressor("cp")
class CP(Decomposition):
    """C(x) = sum of r terms a_t o b_t o .., by alternating least squares: CP (PARAFAC).

    A best approximation of rank r > 1 need not exist, and least squares may stop anywhere; but they
    start from the rank-1 ``st_hosvd`` and are never worse, so alpha = prod_k 1 / min(n_k,
    prod_{j>k} n_j), which does not grow with r. Deterministic: further terms start from singular
    vectors. Sent: r sum n_k values; where that is d or more, x itself. dims and InputError as
    ``hosvd``. Source: Harshman 1970; Carroll and Chang 1970.
    """

    rank: int = Integer(1, low=1, help="number of terms")
    iterations: int = Integer(10, low=1, help="sweeps of alternating least squares")
    form = "cp"

    def reached(self, dims: Sizes) -> Sizes:
        return (self.rank,)

    def guarantee(self, dims: Sizes, ranks: Sizes) -> float | None:
        return guaranteed(dims, (1,) * len(dims))

    def parts(self, X: Tensor, ranks: Sizes) -> Parts:
        return cp(X, ranks[0], self.iterations)
