"""Tensor messages: the parts of a Tucker, tensor-train or CP decomposition, end to end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raybench.core.counts import Counts
from raybench.core.streams import Stream
from raybench.wire import bitpack
from raybench.wire.base import DTYPES
from raybench.wire.factors import ProductMessage, times

Sizes = tuple[int, ...]


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


def _product(left: Tensor, right: Tensor) -> Tensor:
    out = left.new_empty(left.shape[0], left.shape[1] * right.shape[2])
    times(left, right, out)
    return out


def tucker_pair(core: Tensor, factors: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return U_1 and the first unfolding of core x_2 U_2 .. x_N U_N, for core (R, r_1, .., r_N)."""
    R, *ranks = core.shape
    T, last = core.reshape(R, -1, ranks[-1]), factors[-1].mT
    for k in range(len(ranks) - 1, 0, -1):
        if k == len(ranks) - 1:
            T = _product(T, last)
        else:
            before = math.prod(ranks[:k])
            U = factors[k][:, None].expand(R, before, -1, -1).reshape(-1, *factors[k].shape[1:])
            T = _product(U, T.reshape(R * before, ranks[k], -1))
    return factors[0], T.view(R, ranks[0], -1)


def tt_pair(cores: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the first core and the unfolding of all others, for cores (R, r_(k-1), n_k, r_k)."""
    T = cores[-1][..., 0]
    for core in reversed(cores[1:-1]):
        R, before, n, after = core.shape
        T = _product(core.reshape(R, before * n, after), T).view(R, before, -1)
    return cores[0][:, 0], T


def khatri_rao(lines: list[Tensor]) -> Tensor:
    """Return the products of one entry of each, (R, r, n_1 n_2 ..), for lines (R, r, n_k)."""
    out = lines[-1]
    for line in reversed(lines[:-1]):
        out = (line[..., None] * out[:, :, None]).flatten(2)
    return out


@dataclass(eq=False)
class TensorMessage(ProductMessage):
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

    @property
    def lead(self) -> torch.Size:
        return self.values.shape[:-1]

    def parts(self) -> list[Tensor]:
        """Return the parts, each (R, *shape), R rows in all."""
        shapes = shapes_of(self.form, self.dims, self.ranks)
        flat = self.values.reshape(-1, self.values.shape[-1])
        pieces = flat.split([math.prod(s) for s in shapes], -1)
        return [p.reshape(len(flat), *s) for p, s in zip(pieces, shapes, strict=True)]

    def pair(self) -> tuple[Tensor, Tensor]:
        first, *rest = parts = self.parts()
        if self.form == "tucker":
            left, right = tucker_pair(first, rest)
        elif self.form == "tt":
            left, right = tt_pair(parts)
        else:
            left, right = first.mT, khatri_rao(rest)
        return left.reshape(*self.lead, *left.shape[1:]), right.reshape(
            *self.lead, *right.shape[1:]
        )

    def _cost(self) -> Counts:
        return Counts(values=self.values.shape[-1])

    def _size(self) -> int:
        return self.values.shape[-1] * self.dtype.itemsize

    def _payload(self) -> Tensor:
        return bitpack.to_bytes(self.values)

    @classmethod
    def read(cls, known: dict[str, Any], payload: Tensor, stream: Stream | None) -> TensorMessage:
        dtype = DTYPES[known["dtype"]]
        values = bitpack.from_bytes(payload, dtype)
        d, form = known["d"], known["form"]
        dims, ranks = tuple(known["dims"]), tuple(known["ranks"])
        held, sent = math.prod(dims), values_of(form, dims, ranks)
        if len(dims) < 2 or not held - held // dims[0] < d <= held or sent != values.shape[-1]:
            raise ValueError(
                f"{form} of {dims} with ranks {ranks} is no message of {d} coordinates"
            )
        return cls(d, dtype, values, form, dims, ranks, scale=known["scale"])
