"""The operators on tensors: what each keeps, guarantees and sends."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

import raybench.compressors.tensors.decompositions as methods
from raybench.compressors.base import Compressor, count_of
from raybench.compressors.low_rank.operators import (
    AUTO,
    Projection,
    at_least,
    check_fit,
    near_square,
    shape_from,
    sizes_of,
    without_nonfinite,
)
from raybench.compressors.tensors.message import Sizes, TensorMessage, values_of
from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.core.params import record
from raybench.core.registry import Integer, List, compressor
from raybench.core.streams import Stream
from raybench.wire import Dense, Message

Rank = int | float | str  # a count, or a share of the largest that an axis can have


@lru_cache(maxsize=4096)
def near_cube(d: int) -> Sizes:
    """Return a <= b <= c with a b c >= d that minimise a + b + c, and of those a b c."""
    found = []
    a = 1
    while a == 1 or (a - 1) ** 3 < d:
        found.append((a, *near_square(-(-d // a))))
        a += 1
    return tuple(sorted(min(found, key=lambda dims: (sum(dims), math.prod(dims)))))


@dataclass(frozen=True)
class Plan:
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
def _plan(op: Decomposition, d: int) -> Plan:
    if isinstance(op.dims, str):
        dims = near_cube(d)
    else:
        check_fit(dims := op.dims, d, "dims")
    if len(dims) < 2:
        return Plan(dims, (), 1.0)
    ranks = op.reached(dims)
    if values_of(op.form, dims, ranks) >= d:
        return Plan(dims, (), 1.0)
    return Plan(dims, ranks, op.guarantee(dims, ranks))


@record
class Decomposition(Projection):
    """Base of tensor operators; x whose parts would hold d values or more is sent dense."""

    dims: Sizes | str = List(
        AUTO,
        words=(AUTO,),
        help="sizes of the tensor's axes, [[7, 4, 4]]; auto: three nearly equal ones",
    )
    form: ClassVar[str] = ""
    deterministic = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", sizes_of(self.dims, "dims"))

    def reached(self, dims: Sizes) -> Sizes:
        """Return the ranks that a tensor of these sizes can have, at most those asked for."""
        raise NotImplementedError

    def guarantee(self, dims: Sizes, ranks: Sizes) -> float | None:
        """Return alpha for tensors of these sizes."""
        raise NotImplementedError

    def parts(self, X: Tensor, ranks: Sizes) -> list[Tensor]:
        """Return the parts to send of X (R, n_1, .., n_N), which is finite."""
        raise NotImplementedError

    def alpha(self, d: int) -> float | None:
        return _plan(self, d).alpha

    def entries(self, d: int) -> int:
        plan = _plan(self, d)
        return math.prod(plan.dims) if plan.ranks else d

    def fit(self, d: int, n: int, layout: Layout | None = None) -> Compressor:
        own = shape_from(layout, d)
        return self if own is None or self.dims != AUTO else dataclasses.replace(self, dims=own)

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
    """Base of operators with a rank for each axis."""

    ranks: Sequence[Rank] | Rank = List(
        (1,), help="one rank per axis, [[2, 2, 2]], or one for all, [[2]]; counts or shares"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        ranks = _each(self.ranks)
        if not ranks:
            raise InputError.of("ranks", "no ranks", "one for all axes: [[2]]; or one for each")
        for rank in ranks:
            if type(rank) is int:
                at_least(rank, 1, "ranks")
            else:
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
        return methods.guaranteed(dims, ranks)


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

    def parts(self, X: Tensor, ranks: Sizes) -> list[Tensor]:
        return methods.hosvd(X, ranks)


@compressor("st_hosvd")
class STHOSVD(Tuckered):
    """C(x) = X x_1 U_1 U_1' .. x_N U_N U_N', each U_k from what axes 1..k-1 have left of X.

    Every step is a truncated SVD of an unfolding, hence alpha = prod_k min(1, r_k / min(n_k,
    prod_{j<k} r_j prod_{j>k} n_j)); the worst case is rarely near. Sent: prod r_k + sum n_k r_k
    values. dims, ranks, dense and InputError as ``hosvd``. Source: Vannieuwenhoven, Vandebril,
    Meerbergen 2012.
    """

    def parts(self, X: Tensor, ranks: Sizes) -> list[Tensor]:
        return methods.st_hosvd(X, ranks)


@compressor("tucker")
class Tucker(Tuckered):
    """C(x) = core x_1 U_1 .. x_N U_N by HOOI: from ``st_hosvd``, each U_k in turn the best for the rest.

    Never worse than ``st_hosvd`` (the better of the two is sent), so the same alpha; about N times the
    work per sweep. Sent: prod r_k + sum n_k r_k values. dims, ranks, dense and InputError as
    ``hosvd``. Source: De Lathauwer, De Moor, Vandewalle 2000 (HOOI).
    """

    iterations: int = Integer(5, low=0, help="sweeps of alternating improvement (HOOI)")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self.iterations, 0, "iterations")

    def parts(self, X: Tensor, ranks: Sizes) -> list[Tensor]:
        return methods.hooi(X, ranks, self.iterations)


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
        return methods.guaranteed_train(dims, ranks)

    def parts(self, X: Tensor, ranks: Sizes) -> list[Tensor]:
        return methods.tensor_train(X, ranks)


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

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self.rank, 1, "rank")
        at_least(self.iterations, 1, "iterations")

    def reached(self, dims: Sizes) -> Sizes:
        return (self.rank,)

    def guarantee(self, dims: Sizes, ranks: Sizes) -> float | None:
        return methods.guaranteed(dims, (1,) * len(dims))

    def parts(self, X: Tensor, ranks: Sizes) -> list[Tensor]:
        return methods.cp(X, ranks[0], self.iterations)
