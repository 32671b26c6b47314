"""Sparse messages: some of d values; the support is sent, or derived from a shared seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from raybench.compressors.messages import bitpack
from raybench.compressors.messages.base import DTYPES, Cost, Message, zero_absent
from raybench.streams import Stream

EXACT = 4096  # up to this k the entropy is that of the exact binomial coefficient


@lru_cache(maxsize=2**16)
def index_cost(d: int, k: int) -> Cost:
    """Return the bits of a k-subset of d: explicit, bitmask, the shorter of them, and entropy.

    explicit = k ceil(log2 d); bitmask = d (0 for k = 0); entropy = ceil(log2 C(d, k)), a lower bound
    (exact for min(k, d - k) <= 4096, beyond that up to a bit).
    """
    explicit, bitmask = k * bitpack.width_of(d), d if k else 0
    if min(k, d - k) <= EXACT:
        entropy = bitpack.width_of(math.comb(d, k))
    else:
        nats = math.lgamma(d + 1) - math.lgamma(k + 1) - math.lgamma(d - k + 1)
        entropy = math.ceil(nats / math.log(2))
    return Cost(0, explicit, min(explicit, bitmask), bitmask, entropy, 0)


class _Scattered(Message):
    """What sparse kinds share: ``values`` (*lead, k) at ``support()`` (*lead, k)."""

    values: Tensor

    def support(self) -> Tensor:
        """Return the coordinates, int64 (*lead, k), distinct within a row."""
        raise NotImplementedError

    @property
    def lead(self) -> torch.Size:
        return self.values.shape[:-1]

    def _weighted(self) -> Tensor:
        value = self.values if self.scale == 1.0 else self.values * self.scale
        return value if self.present is None else zero_absent(value, self.present)

    def _decode(self) -> Tensor:
        out = torch.zeros(*self.lead, self.d, dtype=self.dtype, device=self.device)
        return out.scatter_(-1, self.support(), self.values)

    def add_to(self, target: Tensor) -> Tensor:
        return target.scatter_add_(-1, self.support(), self._weighted())

    def sum_clients(self) -> Tensor:
        *lead, n, k = self.values.shape
        out = torch.zeros(*lead, self.d, dtype=self.dtype, device=self.device)
        where = self.support().reshape(*lead, n * k)
        return out.scatter_add_(-1, where, self._weighted().reshape(*lead, n * k))


@dataclass(eq=False)
class SparseMessage(_Scattered):
    """k coordinates with their indices, ascending: ``indices`` and ``values`` (*lead, k)."""

    indices: Tensor
    values: Tensor
    kind = "sparse"
    tensors = ("indices", "values")

    def support(self) -> Tensor:
        return self.indices

    def _cost(self) -> Cost:
        k = self.values.shape[-1]
        return index_cost(self.d, k)._replace(values=k)

    def _size(self) -> int:
        k = self.values.shape[-1]
        index_bits = int(index_cost(self.d, k).index_auto)
        return bitpack.bytes_of(index_bits) + k * self.dtype.itemsize

    def _payload(self) -> Tensor:
        cost = index_cost(self.d, self.values.shape[-1])
        if cost.index_explicit <= cost.index_bitmask:
            where = bitpack.pack(self.indices, bitpack.width_of(self.d))
        else:
            mask = torch.zeros(*self.lead, self.d, dtype=torch.int64, device=self.device)
            where = bitpack.pack(mask.scatter_(-1, self.indices, 1), 1)
        return torch.cat((bitpack.to_bytes(self.values), where), -1)

    def known(self) -> dict[str, Any]:
        return {**super().known(), "k": self.values.shape[-1]}

    @classmethod
    def read(cls, known: dict[str, Any], payload: Tensor, stream: Stream | None) -> SparseMessage:
        d, k, dtype = known["d"], known["k"], DTYPES[known["dtype"]]
        values = bitpack.from_bytes(payload[..., : k * dtype.itemsize], dtype)
        where, cost = payload[..., k * dtype.itemsize :], index_cost(d, k)
        if cost.index_explicit <= cost.index_bitmask:
            indices = bitpack.unpack(where, bitpack.width_of(d), k)
        else:
            mask = bitpack.unpack(where, 1, d)
            # ones first, in ascending order; an absent row has none and decodes to zeros
            indices = mask.argsort(dim=-1, descending=True, stable=True)[..., :k]
        return cls(d, dtype, indices, values, scale=known["scale"])


@dataclass(eq=False)
class SeededMessage(_Scattered):
    """k values at coordinates that both sides draw from a stream: no indices are sent."""

    values: Tensor
    source: Stream  # of shape lead
    common: bool = False  # one support for all clients of a cell
    kind = "seeded"
    tensors = ("values",)
    static = ("common",)

    def support(self) -> Tensor:
        return support_of(self.source, self.d, self.values.shape[-1], self.common)

    @property
    def stream(self) -> Stream:
        return self.source

    def _cost(self) -> Cost:
        return Cost(values=self.values.shape[-1])

    def _size(self) -> int:
        return self.values.shape[-1] * self.dtype.itemsize

    def _payload(self) -> Tensor:
        return bitpack.to_bytes(self.values)

    def map(self, of_tensor: Any) -> SeededMessage:
        changed = super().map(of_tensor)
        assert isinstance(changed, SeededMessage)
        # beyond the sender a row stands alone: its own key, common or not, gives its support
        keys = self.source.keys
        if self.common:
            shared = self.source.shared().keys
            keys = _over_clients(shared, self.source).expand(self.lead)
        changed.source = Stream(of_tensor(keys))
        changed.common = False
        return changed

    def select(self, cells: Tensor) -> SeededMessage:
        changed = super().map(lambda x: x[cells])
        assert isinstance(changed, SeededMessage)
        changed.source = self.source[cells]
        return changed

    def describe(self) -> dict[str, Any]:
        if self.common:
            return self.map(lambda x: x).describe()
        return super().describe()

    @classmethod
    def read(cls, known: dict[str, Any], payload: Tensor, stream: Stream | None) -> SeededMessage:
        assert stream is not None
        dtype = DTYPES[known["dtype"]]
        values = bitpack.from_bytes(payload, dtype)
        common = known.get("common", False)
        return cls(known["d"], dtype, values, stream, common, scale=known["scale"])


def support_of(source: Stream, d: int, k: int, common: bool) -> Tensor:
    """Return the k coordinates of d that a stream stands for, int64 of shape (*source.shape, k)."""
    if common:
        shared = source.shared().subset(d, k)
        return _over_clients(shared, source, -2).expand(*source.shape, k)
    return source.subset(d, k)


def _over_clients(shared: Tensor, source: Stream, axis: int = -1) -> Tensor:
    """Return what the clients of a cell share with an axis for them, if the stream has clients."""
    return shared if source.ids is None else shared.unsqueeze(axis)


@dataclass(eq=False)
class RaggedMessage(_Scattered):
    """Rows of different length: the first ``counts`` (*lead) of ``indices``, ``values`` (*lead, k).

    Entries beyond a row's count must be zero (index 0, value 0); they are neither sent nor booked.
    Sends the count (ceil(log2(d+1)) bits, in whole bytes), the values, the packed indices.
    """

    counts: Tensor
    indices: Tensor
    values: Tensor
    kind = "ragged"
    tensors = ("counts", "indices", "values")

    def support(self) -> Tensor:
        return self.indices

    def _decode(self) -> Tensor:
        out = torch.zeros(*self.lead, self.d, dtype=self.dtype, device=self.device)
        return out.scatter_add_(-1, self.indices, self.values)

    def _cost(self) -> Cost:
        found, where = self.counts.unique(return_inverse=True)
        costs = [index_cost(self.d, k)._replace(values=k) for k in found.tolist()]
        costs = [c._replace(raw=bitpack.width_of(self.d + 1)) for c in costs]
        table = torch.tensor(costs, dtype=torch.float64, device=self.device)
        return Cost(*table.view(-1, len(Cost._fields)).T[:, where])

    def _size(self) -> Tensor:
        head = bitpack.bytes_of(bitpack.width_of(self.d + 1))
        index_bits = self._index_bits()
        return head + self.counts * self.dtype.itemsize + (index_bits + 7) // 8

    def _index_bits(self) -> Tensor:
        return (self.counts * bitpack.width_of(self.d)).clamp(max=self.d)

    def _payload(self) -> Tensor:
        width, kmax = bitpack.width_of(self.d), self.values.shape[-1]
        head = bitpack.pack(self.counts[..., None], bitpack.width_of(self.d + 1))
        explicit = bitpack.pack(self.indices, width)
        live = torch.arange(kmax, device=self.device) < self.counts[..., None]
        mask = torch.zeros(*self.lead, self.d, dtype=torch.int64, device=self.device)
        mask = bitpack.pack(mask.scatter_add_(-1, self.indices, live.long()), 1)
        room = max(explicit.shape[-1], mask.shape[-1])
        where = torch.where(
            (self.counts * width <= self.d)[..., None], _padded(explicit, room), _padded(mask, room)
        )
        first = torch.cat((head, bitpack.to_bytes(self.values)), -1)
        full = torch.cat((first, where), -1)
        # close the gap between a row's own values and its indices
        cut = head.shape[-1] + self.counts[..., None] * self.dtype.itemsize
        at = torch.arange(full.shape[-1], device=self.device).expand(full.shape)
        source = torch.where(at < cut, at, at - cut + first.shape[-1])
        packed = full.gather(-1, source.clamp(max=full.shape[-1] - 1))
        size = self._size()
        packed = packed * (at < size[..., None]).to(torch.uint8)
        return packed[..., : int(size.max()) if size.numel() else 0]

    @classmethod
    def read(cls, known: dict[str, Any], payload: Tensor, stream: Stream | None) -> RaggedMessage:
        d, dtype = known["d"], DTYPES[known["dtype"]]
        width, wide = bitpack.width_of(d), bitpack.width_of(d + 1)
        head = bitpack.bytes_of(wide)
        counts = bitpack.unpack(payload[..., :head], wide, 1)[..., 0]
        kmax = int(counts.max()) if counts.numel() else 0
        body = _padded(payload[..., head:], max(payload.shape[-1], kmax * dtype.itemsize))
        live = torch.arange(kmax, device=payload.device) < counts[..., None]
        values = bitpack.from_bytes(body[..., : kmax * dtype.itemsize], dtype)
        cut = counts[..., None] * dtype.itemsize
        room = max(bitpack.bytes_of(kmax * width), bitpack.bytes_of(d))
        at = torch.arange(room, device=payload.device).expand(*counts.shape, room) + cut
        where = _padded(body, body.shape[-1] + room).gather(
            -1, at.clamp(max=body.shape[-1] + room - 1)
        )
        explicit = bitpack.unpack(where[..., : bitpack.bytes_of(kmax * width)], width, kmax)
        mask = bitpack.unpack(where[..., : bitpack.bytes_of(d)], 1, d)
        masked = mask.argsort(dim=-1, descending=True, stable=True)[..., :kmax]
        indices = torch.where((counts * width <= d)[..., None], explicit, masked)
        values = torch.where(live, values, torch.zeros_like(values))
        return cls(d, dtype, counts, indices * live, values, scale=known["scale"])


def _padded(data: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(data, (0, max(size - data.shape[-1], 0)))
