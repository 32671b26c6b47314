"""Values at places that both ends draw from the shared seed: Bernoulli supports, blocks of PermK."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybench.core.compiled import compiled
from raybench.core.counts import Counts
from raybench.core.parallel import ALIGN, run_shared, run_tiled, scratch
from raybench.core.streams import SMALL, Stream, hash_numba
from raybench.wire import bitpack
from raybench.wire.base import DTYPES, Message, zero_absent

Places = tuple[Tensor, Tensor]  # coordinates (*lead, m), zero beyond a row's own; counts (*lead)
HASH = 8.0  # what a random number costs, in additions
SORT = 64.0  # what giving a coordinate its place in a permutation does


class _Drawn(Message):
    """Only values travel: the first counts (*lead) of ``values`` (*lead, m), zeros beyond."""

    values: Tensor
    source: Stream
    held: Places | None

    def _draw(self) -> Places:
        raise NotImplementedError

    def places(self) -> Places:
        """Return the coordinates, int64 (*lead, m), zeros beyond a row's own, and counts (*lead)."""
        if self.held is None:
            self.held = self._draw()
        return self.held

    @property
    def lead(self) -> torch.Size:
        return self.values.shape[:-1]

    @property
    def stream(self) -> Stream:
        return self.source

    def _weighted(self) -> tuple[Tensor, Tensor]:
        where, _ = self.places()
        value = self.values[..., : where.shape[-1]]
        value = value if self.scale == 1.0 else value * self.scale
        return where, value if self.present is None else zero_absent(value, self.present)

    def _write(self, out: Tensor) -> None:
        self.add_to(out.zero_())

    def _add(self, target: Tensor) -> Tensor:
        return target.scatter_add_(-1, *self._weighted())

    def _sum(self) -> Tensor:
        where, value = self._weighted()
        out = torch.zeros(*where.shape[:-2], self.d, dtype=self.dtype, device=self.device)
        return out.scatter_add_(-1, where.flatten(-2), value.flatten(-2))

    def _cost(self) -> Counts:
        return Counts(values=self.places()[1].double())

    def _payload(self) -> Tensor:
        return bitpack.to_bytes(self.values[..., : self.places()[0].shape[-1]])


@dataclass(eq=False)
class BernoulliMessage(_Drawn):
    """Coordinate j is sent where the j-th number of the stream is below p: no indices, no length."""

    values: Tensor
    source: Stream  # of shape lead
    p: float
    held: Places | None = field(default=None, kw_only=True, repr=False)
    kind = "bernoulli"
    tensors = ("values",)
    static = ("p",)

    def _draw(self) -> Places:
        return bernoulli(self.source, self.d, self.p)

    def map(self, of_tensor: Callable[[Tensor], Tensor]) -> BernoulliMessage:
        changed = super().map(of_tensor)
        assert isinstance(changed, BernoulliMessage)
        changed.source, changed.held = Stream(of_tensor(self.source.keys)), None
        return changed

    def select(self, cells: Tensor) -> BernoulliMessage:
        changed = super().map(lambda x: x[cells])
        assert isinstance(changed, BernoulliMessage)
        changed.source, changed.held = self.source[cells], None
        return changed

    @classmethod
    def read(
        cls, known: dict[str, Any], payload: Tensor, stream: Stream | None
    ) -> BernoulliMessage:
        assert stream is not None
        dtype = DTYPES[known["dtype"]]
        values = bitpack.from_bytes(payload, dtype)
        return cls(known["d"], dtype, values, stream, known["p"], scale=known["scale"])


@dataclass(eq=False)
class PermMessage(_Drawn):
    """A client's block of a permutation that all clients of a cell draw from their shared stream.

    slots None: ``source`` is the cell's and the clients' stream, and its ids are the clients (0
    where there are none). Else ``source`` has a shared key for every row, and ``slots`` (*lead)
    the clients: a row that stands alone. Which client sends is known to both ends and costs nothing.
    """

    values: Tensor
    source: Stream
    n: int
    slots: Tensor | None = field(default=None, kw_only=True)
    held: Places | None = field(default=None, kw_only=True, repr=False)
    kind = "perm"
    tensors = ("values",)
    static = ("n",)

    def _draw(self) -> Places:
        if self.slots is None:
            return block_of(self.source.shared(), clients_of(self.source), self.d, self.n)
        return block_of(self.source, self.slots, self.d, self.n)

    def _cost(self) -> Counts:
        return super()._cost() if self._ragged else Counts(values=self._most)

    @property
    def _ragged(self) -> bool:
        return self.d > self.n and self.d % self.n > 0

    @property
    def _most(self) -> int:
        return -(-self.d // self.n)

    def map(self, of_tensor: Callable[[Tensor], Tensor]) -> PermMessage:
        keys, slots = self.source.keys, self.slots
        if slots is None:
            slots = clients_of(self.source)
            shared = self.source.shared().keys
            keys = (shared if self.source.ids is None else shared[..., None]).expand(self.lead)
        changed = super().map(of_tensor)
        assert isinstance(changed, PermMessage)
        changed.source, changed.slots = Stream(of_tensor(keys)), of_tensor(slots)
        changed.held = None
        return changed

    def select(self, cells: Tensor) -> PermMessage:
        if self.slots is not None:
            return self.map(lambda x: x[cells])
        changed = super().map(lambda x: x[cells])
        assert isinstance(changed, PermMessage)
        changed.source, changed.held = self.source[cells], None
        return changed

    def known(self) -> dict[str, Any]:
        alone = {} if self.slots is None else {"slots": self.slots.flatten().tolist()}
        return {**super().known(), **alone}

    def describe(self) -> dict[str, Any]:
        if self.slots is not None:
            return super().describe()
        alone = self.map(lambda x: x)
        alone.held = self.held
        return alone.describe()

    @classmethod
    def read(cls, known: dict[str, Any], payload: Tensor, stream: Stream | None) -> PermMessage:
        assert stream is not None
        dtype = DTYPES[known["dtype"]]
        values, slots = bitpack.from_bytes(payload, dtype), None
        if "slots" in known:
            slots = torch.tensor(known["slots"], dtype=torch.int64, device=payload.device)
            slots = slots.view(values.shape[:-1])
        return cls(known["d"], dtype, values, stream, known["n"], scale=known["scale"], slots=slots)


def clients_of(source: Stream) -> Tensor:
    """Return the clients that a stream is for, int64 of its shape: its ids, or 0 without."""
    if source.ids is None:
        return torch.zeros(source.shape, dtype=torch.int64, device=source.device)
    return source.ids.expand(source.shape)


def block_of(shared: Stream, clients: Tensor, d: int, n: int) -> Places:
    """Return the coordinates of each client of n, drawn from what the clients share.

    shared: of the shape of clients, int64 (*lead), or without its last axis. The answer has shapes
    (*lead, m) and (*lead). d >= n: the blocks of one permutation of the coordinates; those one
    longer, where n does not divide d, go to other clients by a random turn, so that every coordinate
    is a client's with probability 1/n. n > d: entry i of a permutation of the multiset that holds
    every coordinate n/d times.
    """
    turn = shared.fold("turn").integers(1, n)
    slots = (clients + (turn if clients.ndim > len(shared.shape) else turn[..., 0])) % n
    if n > d:
        return shared.images(n, slots, 1) % d, torch.ones_like(slots)
    if n == 1:
        every = torch.arange(d, device=slots.device).expand(*slots.shape, d)
        return every, torch.full_like(slots, d)
    length, longer = divmod(d, n)
    first = slots * length + slots.clamp(max=longer)
    counts = length + (slots < longer).long()
    most = int(counts.max()) if counts.numel() else length
    where = _images(shared, d, first, most)
    if most > length:
        where[..., -1] *= counts > length
    return where, counts


def _images(shared: Stream, d: int, first: Tensor, count: int) -> Tensor:
    """Return ``shared.images``; of few coordinates on the CPU a kernel sorts and cuts the blocks."""
    keys = shared.keys
    if d > SMALL or keys.device.type != "cpu" or not first.numel():
        return shared.images(d, first, count)
    where = torch.empty(*first.shape, count, dtype=torch.int64)
    cells = keys.contiguous().view(-1).numpy().view(np.uint64)
    begin = first.reshape(len(cells), -1).numpy()
    out = where.numpy().reshape(*begin.shape, count)
    run_shared(
        lambda a, b: _blocks(cells[a:b], d, begin[a:b], out[a:b]), len(cells), SORT * len(cells) * d
    )
    return where


@compiled
def _blocks(keys, d, first, out):  # first (R, n), out (R, n, count): of 0..d-1 in order of hashes
    hashes, bucket = np.empty(d, np.uint64), np.empty(d, np.int32)
    ends, order = np.empty(d + 1, np.int32), np.empty(d, np.int32)
    for r in range(keys.shape[0]):
        for j in range(d):
            hashes[j] = hash_numba(keys[r], np.uint64(j))
            bucket[j] = ((hashes[j] >> np.uint64(32)) * np.uint64(d)) >> np.uint64(32)
        ends[:] = 0
        for j in range(d):
            ends[bucket[j] + 1] += 1
        for b in range(d):
            ends[b + 1] += ends[b]
        for j in range(d):  # hashes are uniform: a bucket holds one or a few
            order[ends[bucket[j]]] = j
            ends[bucket[j]] += 1
        for j in range(1, d):  # sorted but for those; equal ones stay by number
            own, at = order[j], j
            while at > 0 and hashes[order[at - 1]] > hashes[own]:
                order[at] = order[at - 1]
                at -= 1
            order[at] = own
        for i in range(first.shape[1]):
            for j in range(out.shape[2]):
                out[r, i, j] = order[min(first[r, i] + j, d - 1)]


# Bernoulli supports ------------------------------------------------------------------------------


def bernoulli(source: Stream, d: int, p: float) -> Places:
    """Return the coordinates whose number of ``source`` is below p, ascending, and their counts."""
    keys = source.keys
    if keys.device.type != "cpu":
        return listed(source.uniform(d) < p)
    flat = keys.contiguous().view(-1).numpy().view(np.uint64)
    limit = np.uint64(math.ceil(p * 2.0**53))

    def count(r0: int, r1: int, lo: int, hi: int, counts: np.ndarray) -> None:
        _count(flat[r0:r1], limit, lo, hi, counts)

    def fill(r0: int, r1: int, lo: int, hi: int, *to: np.ndarray) -> None:
        _fill(flat[r0:r1], limit, lo, hi, *to)

    return in_tiles(keys.shape, d, count, fill)


def listed(mask: Tensor) -> Places:
    """Return where a mask (*lead, d) holds, ascending, and how often (the reference)."""
    counts = mask.sum(-1)
    most = int(counts.max()) if counts.numel() else 0
    order = mask.byte().argsort(dim=-1, descending=True, stable=True)[..., :most]
    return order * (torch.arange(most, device=mask.device) < counts[..., None]), counts


def in_tiles(
    lead: torch.Size, d: int, count: Callable[..., None], fill: Callable[..., None]
) -> Places:
    """Return places from two kernels: ``count`` per tile of ALIGN coordinates, then ``fill``.

    Rows of one tile are filled at once, into space for all of d, and then cut.
    """
    rows, tiles = math.prod(lead), -(-d // ALIGN)
    if tiles == 1:
        return _in_one(lead, d, fill)
    found, last = np.zeros((rows, tiles), np.int64), np.empty(rows, np.int64)
    run_tiled(lambda a, b, lo, hi: count(a, b, lo, hi, found[a:b]), rows, d, HASH)
    ends = found.cumsum(1)
    counts, first = torch.from_numpy(ends[:, -1].copy()), ends - found
    most = int(counts.max()) if rows else 0
    where = torch.zeros(rows, most, dtype=torch.int64)
    out = where.numpy()
    run_tiled(
        lambda a, b, lo, hi: fill(a, b, lo, hi, first[a:b], out[a:b], last[a:b]), rows, d, HASH
    )
    return where.view(*lead, most), counts.view(lead)


def _in_one(lead: torch.Size, d: int, fill: Callable[..., None]) -> Places:
    rows = math.prod(lead)
    space = scratch("places", rows * d, np.int64).reshape(rows, d)
    first, counts = np.zeros((rows, 1), np.int64), np.zeros(rows, np.int64)
    run_tiled(
        lambda a, b, lo, hi: fill(a, b, lo, hi, first[a:b], space[a:b], counts[a:b]), rows, d, HASH
    )
    most = int(counts.max(initial=0))
    where = torch.empty(rows, most, dtype=torch.int64)
    _cut(space, counts, where.numpy())
    return where.view(*lead, most), torch.from_numpy(counts).view(lead)


@compiled
def _cut(places, counts, out):
    for r in range(out.shape[0]):
        own, to = places[r], out[r]
        for j in range(counts[r]):
            to[j] = own[j]
        to[counts[r] :] = 0


@compiled
def _count(keys, limit, lo, hi, counts):
    for r in range(keys.shape[0]):
        for start in range(lo, hi, ALIGN):
            kept = 0
            for j in range(min(start + ALIGN, hi) - start):
                kept += (hash_numba(keys[r], np.uint64(start + j)) >> np.uint64(11)) < limit
            counts[r, start // ALIGN] = kept


@compiled
def _fill(keys, limit, lo, hi, first, out, counts):  # counts: of the last tile
    keep, place = np.empty(ALIGN, np.uint8), np.empty(ALIGN * (first.shape[1] > 1), np.int32)
    for r in range(keys.shape[0]):
        for start in range(lo, hi, ALIGN):
            size = min(start + ALIGN, hi) - start
            for j in range(size):
                keep[j] = (hash_numba(keys[r], np.uint64(start + j)) >> np.uint64(11)) < limit
            counts[r] = list_kept(keep[:size], start, out[r, first[r, start // ALIGN] :], place)


@compiled(inline="always")
def list_kept(keep, start, out, place):
    """Write start + j into out for every j with keep[j]; return how many (in kernels).

    place: space for a slot per j, or nothing where out itself has room for all, used or not.
    """
    found = 0
    if place.shape[0] == 0:
        for j in range(keep.shape[0]):  # no branch: a slot is written again until it is to be kept
            out[found] = start + j
            found += keep[j]
        return found
    for j in range(keep.shape[0]):
        place[found] = j
        found += keep[j]
    for j in range(found):
        out[j] = start + place[j]
    return found
