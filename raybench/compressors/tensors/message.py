"""Tensor messages: the parts of a Tucker, tensor-train or CP decomposition, end to end."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from raybench.core.counts import Counts
from raybench.core.streams import Stream
from raybench.wire import Message, bitpack
from raybench.wire.base import DTYPES, Header, naturals

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

    @property
    def lead(self) -> torch.Size:
        return self.values.shape[:-1]

    def parts(self) -> list[Tensor]:
        """Return the parts, each (R, *shape), R rows in all."""
        shapes = shapes_of(self.form, self.dims, self.ranks)
        flat = self.values.reshape(-1, self.values.shape[-1])
        pieces = flat.split([math.prod(s) for s in shapes], -1)
        return [p.reshape(len(flat), *s) for p, s in zip(pieces, shapes, strict=True)]

    def _decode(self) -> Tensor:
        return rebuilt(self.form, self.parts())[:, : self.d].reshape(*self.lead, self.d)

    def _cost(self) -> Counts:
        return Counts(values=self.values.shape[-1])

    def _payload(self) -> Tensor:
        return bitpack.to_bytes(self.values)

    @classmethod
    def read(cls, known: Header, payload: Tensor, stream: Stream | None) -> TensorMessage:
        dtype = DTYPES[known["dtype"]]
        values = bitpack.from_bytes(payload, dtype)
        d, form = known["d"], known["form"]
        dims, ranks = tuple(naturals(known, "dims")), tuple(naturals(known, "ranks"))
        if form not in FORMS or len(dims) > MOST_AXES or len(ranks) > MOST_AXES or not all(dims):
            raise ValueError(f"no {form} of {dims}")
        held, sent = math.prod(dims), values_of(form, dims, ranks)
        most = _largest_within(form, dims, ranks)
        if len(dims) < 2 or not held - held // dims[0] < d <= held or sent != values.shape[-1]:
            raise ValueError(
                f"{form} of {dims} with ranks {ranks} is no message of {d} coordinates"
            )
        if held > 2 * d + MOST_PADDED or most > MOST_WITHIN * held + 2**20:
            raise ValueError(f"{form} of {dims} with ranks {ranks} is larger than {d} coordinates")
        return cls(d, dtype, values, form, dims, ranks, scale=known["scale"])
