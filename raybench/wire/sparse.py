"""Sparse messages: some of d values; the support is sent, or derived from a shared seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self, cast

import torch
from torch import Tensor

from raybench.core.counts import Counts
from raybench.core.streams import Stream
from raybench.wire import bitpack
from raybench.wire.base import Additive, Message, within, zero_absent
from raybench.wire.fields import (
    DTYPES,
    Field,
    Header,
    Indices,
    Numbers,
    dtype_of,
    natural,
    yes_or_no,
)
from raybench.wire.indices import (
    DAMAGED,
    codes_of,
    decode_rows,
    encode_rows,
    index_cost,
    of_counts,
    per_count,
)


class Drawn(Message):
    """A message whose places both ends draw from ``source``, a stream of shape lead: no indices are sent."""

    source: Stream

    @property
    def stream(self) -> Stream:
        return self.source

    def _keys(self) -> Tensor:
        """Return the key of every row (*lead), with which it stands alone beyond its sender."""
        return self.source.keys

    def map(self, of_tensor: Callable[[Tensor], Tensor]) -> Self:
        changed = cast(Self, super().map(of_tensor))
        changed.source = Stream(of_tensor(self._keys()))
        return changed

    def select(self, cells: Tensor) -> Self:
        changed = cast(Self, super().map(lambda x: x[cells]))
        changed.source = self.source[cells]
        return changed


class _Scattered(Message):
    """What sparse kinds share: ``values`` (*lead, k) at ``support()`` (*lead, k)."""

    values: Tensor

    def support(self) -> Tensor:
        """Return the coordinates, int64 (*lead, k), distinct within a row."""
        raise NotImplementedError

    @property
    def lead(self) -> torch.Size:
        return self.values.shape[:-1]

    def _scaled(self) -> Tensor:
        return self.values if self.scale == 1.0 else self.values * self.scale

    def _weighted(self) -> Tensor:
        value = self._scaled()
        return value if self.present is None else zero_absent(value, self.present)

    def _write(self, out: Tensor) -> None:
        # half the time of a copy where 1 % is kept, in whatever order the support is
        out.zero_().scatter_(-1, self.support(), self._scaled())

    def _add(self, target: Tensor) -> Tensor:
        return target.scatter_add_(-1, self.support(), self._weighted())

    def _sum(self) -> Tensor:
        *lead, n, k = self.values.shape
        out = torch.zeros(*lead, self.d, dtype=self.dtype, device=self.device)
        where, values = self.support(), self._weighted()
        if self.device.type != "cpu":  # there additions of several clients would take any order
            for i in range(n):
                out.scatter_add_(-1, where[..., i, :], values[..., i, :])
            return out
        return out.scatter_add_(-1, where.reshape(*lead, n * k), values.reshape(*lead, n * k))

    def _sends(self) -> Tensor:
        """Return which entries of the support are meant, bool (*lead, k)."""
        live = torch.ones_like(self.values, dtype=torch.bool)
        return live if self.present is None else live & self.present[..., None]

    def _senders(self) -> Tensor:
        """Return how many clients, of the last leading axis, sent each coordinate, int64 (.., d)."""
        *lead, n, k = self.values.shape
        hit = torch.zeros(*lead, self.d, dtype=torch.int64, device=self.device)
        where = self.support().reshape(*lead, n * k)
        return hit.scatter_add_(-1, where, self._sends().reshape(*lead, n * k).long())

    def mean_of_senders(self) -> Tensor:
        return self.sum_clients() / self._senders().clamp(min=1)

    def union(self) -> Counts:
        counts = (self._senders() > 0).sum(-1)
        free = self.stream is not None  # all clients can draw the support: no indices are sent
        costs = per_count(
            counts,
            lambda u: (Counts() if free else index_cost(self.d, u))._replace(values=u),
            torch.float64,
        )
        cost = Counts(*costs)
        size = counts * self.dtype.itemsize + (cost.index_auto.long() + 7) // 8
        return cost._replace(bytes=size, messages=1)


@dataclass(eq=False)
class SparseMessage(_Scattered):
    """k coordinates with their indices: ``indices`` int64, ascending and distinct in a row, and ``values``, (*lead, k).

    Decodes to the values at the indices, and 0 elsewhere. Sends the values, and the indices in the shortest of three
    codes.
    """

    indices: Tensor
    values: Tensor
    kind = "sparse"
    tensors = ("indices", "values")
    shaped = ("k",)

    @classmethod
    def fields(cls, head: Header, width: int) -> Sequence[Field]:
        d, k = natural(head, "d"), natural(head, "k")
        return [Field("values", Numbers(dtype_of(head)), (k,)), Field("indices", Indices(d), (k,))]

    @property
    def k(self) -> int:
        """How many coordinates a row has."""
        return self.values.shape[-1]

    def support(self) -> Tensor:
        return self.indices


@dataclass(eq=False)
class SeededMessage(_Scattered, Drawn, Additive):
    """k ``values`` (*lead, k) at the coordinates ``support_of(source, d, k, common)`` that both ends draw: no indices are sent.

    source: the stream that ``encode`` is given. common: all clients of a cell share the support.
    """

    values: Tensor
    source: Stream  # of shape lead
    common: bool = False  # one support for all clients of a cell
    kind = "seeded"
    tensors = ("values",)
    static = ("common",)

    @classmethod
    def fields(cls, head: Header, width: int) -> Sequence[Field]:
        full, _ = Numbers(dtype_of(head)), yes_or_no(head, "common")
        k = width // full.dtype.itemsize
        if k > natural(head, "d"):
            raise ValueError(f"{k} of {head['d']} coordinates")
        return [Field("values", full, (k,))]

    def support(self) -> Tensor:
        return support_of(self.source, self.d, self.values.shape[-1], self.common)

    @property
    def additive(self) -> bool:
        return self.common

    def of_summands(self, values: Tensor) -> SeededMessage:
        cells = Stream(self.source.root, self.source.tags)  # the support is theirs
        return SeededMessage(self.d, self.dtype, values, cells, True, scale=self.scale)

    def _keys(self) -> Tensor:
        return shared_keys(self.source) if self.common else self.source.keys

    def map(self, of_tensor: Callable[[Tensor], Tensor]) -> Self:
        changed = super().map(of_tensor)
        changed.common = False  # a row's own key, common or not, gives its support
        return changed

    def describe(self) -> Header:
        return self.map(lambda x: x).describe() if self.common else super().describe()


def shared_keys(source: Stream) -> Tensor:
    """Return the key that the clients of a cell share for every one of them, of the stream's shape."""
    return _over_clients(source.shared().keys, source).expand(source.shape)


def support_of(source: Stream, d: int, k: int, common: bool) -> Tensor:
    """Return the k coordinates of d that a stream stands for, int64 of shape (*source.shape, k)."""
    if common:
        shared = source.shared().subset(d, k)
        return _over_clients(shared, source, -2).expand(*source.shape, k)
    return source.subset(d, k)


def _over_clients(shared: Tensor, source: Stream, axis: int = -1) -> Tensor:
    """Return what the clients of a cell share with an axis for them, if the stream has clients."""
    return shared if source.ids is None else shared.unsqueeze(axis)


def _ragged_cost(d: int, k: int) -> Counts:
    """Return the cost of a row of k values with their indices and their number."""
    return index_cost(d, k)._replace(values=k, raw=bitpack.width_of(d + 1))


@dataclass(eq=False)
class RaggedMessage(_Scattered):
    """Rows of different length: the first ``counts`` (*lead) of ``indices``, ``values`` (*lead, k).

    A row's indices ascend; its entries beyond the count must be zero (index 0, value 0) and are
    neither sent nor booked. Sends the count (ceil(log2(d+1)) bits, in whole bytes), the values, the
    indices in the code of (d, count).
    """

    counts: Tensor
    indices: Tensor
    values: Tensor
    kind = "ragged"
    tensors = ("counts", "indices", "values")

    def support(self) -> Tensor:
        return self.indices

    def _write(self, out: Tensor) -> None:
        out.zero_().scatter_add_(-1, self.indices, self._scaled())

    def _cost(self) -> Counts:
        return Counts(*of_counts(_ragged_cost, self.d, self.counts, torch.float64))

    def _sends(self) -> Tensor:
        return within(self.counts, self.values.shape[-1]) & super()._sends()

    def _starts(self) -> Tensor:
        """Return the byte of each row from which on its indices lie."""
        return _head(self.d) + self.counts * self.dtype.itemsize

    def _size(self) -> Tensor:
        bits = codes_of(self.counts, self.d)[2]  # without the entropies, which the cost computes
        return self._starts() + (bits + 7) // 8

    def _payload(self) -> Tensor:
        size, rows = self._size(), self.counts.numel()
        wide = int(size.max()) if rows else 0
        out = torch.zeros(rows, wide, dtype=torch.uint8, device=self.device)
        if not rows:
            return out.view(*self.lead, wide)
        counts, head = self.counts.reshape(rows), _head(self.d)
        most = int(counts.max())
        if most > self.values.shape[-1]:
            raise ValueError(f"a row of {most} indices, of which {self.values.shape[-1]} are given")
        values = self._own(self.values[..., :most]).reshape(rows, most)
        out[:, :head] = bitpack.pack(counts[:, None], bitpack.width_of(self.d + 1))
        out[:, head : head + most * self.dtype.itemsize] = bitpack.to_bytes(values)
        indices = self.indices[..., :most].reshape(rows, most)
        encode_rows(out, self._starts().reshape(rows), indices, counts, self.d)
        return out.view(*self.lead, wide)

    def _own(self, x: Tensor) -> Tensor:
        """Return x (*lead, m) with zeros beyond each row's count."""
        return x.masked_fill(~within(self.counts, x.shape[-1]), 0)

    @classmethod
    def read(cls, known: Header, payload: Tensor, stream: Stream | None) -> RaggedMessage:
        d, dtype, lead = known["d"], DTYPES[known["dtype"]], payload.shape[:-1]
        head, rows = _head(d), payload.reshape(math.prod(lead), payload.shape[-1])
        counts = bitpack.unpack(rows[:, :head], bitpack.width_of(d + 1), 1)[:, 0]
        most = int(counts.max()) if counts.numel() else 0
        starts = head + counts * dtype.itemsize
        if most > d or (counts.numel() and int(starts.max()) > rows.shape[-1]):
            raise ValueError(DAMAGED)
        indices = decode_rows(rows, starts, counts, d).view(*lead, most)
        values = bitpack.from_bytes(rows[:, head : head + most * dtype.itemsize], dtype)
        read = cls(d, dtype, counts.view(lead), indices, values.view(*lead, most))
        return replace(read, values=read._own(read.values), scale=known["scale"])

    @classmethod
    def demand(cls, known: Header, width: int) -> int:
        # an entry takes two bytes at least, and becomes an index and a value
        return 2 * width + 16 * min(width // 2, known["d"])


def _head(d: int) -> int:
    """Return the bytes of a row's count."""
    return bitpack.bytes_of(bitpack.width_of(d + 1))
