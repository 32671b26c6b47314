"""Counter-based random streams: numbers are a hash of (key, counter), never of history.

A stream is a tensor of 64-bit keys. ``fold(tag)`` derives a child, so a number depends only on the
path seed / purpose / round / client / slot that leads to it: not on packing, workers, retries or
resuming. The hash is splitmix64 (Steele, Lea, Flood 2014). Numbers are bit-equal on every device: numba
draws them in main memory, from where they are brought to a GPU.
"""

from __future__ import annotations

import hashlib
import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybench.core.cells import PerCell
from raybench.core.compiled import compiled
from raybench.core.parallel import run_shared, run_tiled

# dimension up to which subsets come from sorting hashes, not from a Feistel network
MOST_SORTED = 4096
FEISTEL_ROUNDS = 12  # even; 2 leave visible structure, with 4 no test sees any: a wide margin
BLOCK = 512  # counters that go through a round together, in the first-level cache


@lru_cache(maxsize=4096)
def tag_of(tag: int | str) -> int:
    """Return the 64-bit integer that stands for a tag (an integer stands for itself)."""
    if isinstance(tag, str):
        return int.from_bytes(hashlib.blake2b(tag.encode(), digest_size=8).digest(), "big") - 2**63
    return (int(tag) + 2**63) % 2**64 - 2**63


@compiled(inline="always")
def hash_numba(key: np.uint64, counter: np.uint64) -> np.uint64:
    """Return splitmix64(key, counter) for scalars, for use in CPU kernels."""
    z = key + (counter + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled
def _bits_kernel(keys, out):  # keys (R,), out (R, m)
    for r in range(out.shape[0]):
        key = keys[r]
        for j in range(out.shape[1]):
            out[r, j] = hash_numba(key, np.uint64(j))


@compiled
def _uniform_kernel(keys, out):
    for r in range(out.shape[0]):
        key = keys[r]
        for j in range(out.shape[1]):
            out[r, j] = np.float64(hash_numba(key, np.uint64(j)) >> np.uint64(11)) * 2.0**-53


@compiled
def _keys_kernel(root, tags, ids, out):  # root (B,), out (B, n): fold tags, then the ids, if any
    for b in range(root.shape[0]):
        key = root[b]
        for tag in tags:
            key = hash_numba(key, tag)
        if ids.shape[0] == 0:
            out[b, 0] = key
        for i in range(ids.shape[0]):
            out[b, i] = hash_numba(key, ids[i])


@compiled
def _subset_kernel(keys, d, k, out):
    """Write the places of the k < d smallest hashes, ascending, found by bisection over counts."""
    hashes, place, unit = np.empty(d, np.uint64), np.empty(d + 1, np.int32), np.uint64(1)
    for r in range(keys.shape[0]):
        for j in range(d):
            hashes[j] = hash_numba(keys[r], np.uint64(j))
        low, high, under, within, steps = np.uint64(0), ~np.uint64(0), 0, d, 0
        while within != k and low != high:  # under < k hashes are below low, within at most high
            share = (k - under) / (within - under) if steps % 4 < 3 else 0.5  # hashes are uniform
            ahead = np.uint64(min(share, 0.999) * np.float64(high - low))
            cut, count = low + min(ahead, high - low - unit), 0
            for j in range(d):
                count += hashes[j] <= cut
            if count < k:
                low, under = cut + unit, count
            else:
                high, within = cut, count
            steps += 1
        kept = 0
        for j in range(d):  # without branches on the hashes, which nobody can foresee
            place[kept] = j
            kept += hashes[j] <= high
        for t in range(k):  # of equal hashes at the cut the first
            out[r, t] = place[t]


@compiled
def _order_kernel(keys, d, out):  # out (R, d): 0..d-1 in the order of their hashes
    hashes, bucket, ends = np.empty(d, np.uint64), np.empty(d, np.int32), np.empty(d + 1, np.int32)
    for r in range(keys.shape[0]):
        order = out[r]
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
        # the buckets are in order, each is sorted by insertion; equal hashes stay by number
        for j in range(1, d):
            entry, at = order[j], j
            while at > 0 and hashes[order[at - 1]] > hashes[entry]:
                order[at] = order[at - 1]
                at -= 1
            order[at] = entry


@compiled
def _feistel_kernel(keys, first, d, high, low, lo, hi, out):  # out (R, count), columns lo..hi
    unit = np.uint64(1)
    above, below = (unit << np.uint64(high)) - unit, (unit << np.uint64(low)) - unit
    by, last = np.uint64(low), np.uint64(d - 1)
    round_keys = np.empty(FEISTEL_ROUNDS, np.uint64)
    left, right = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    at = np.empty(BLOCK, np.int64)
    for r in range(keys.shape[0]):
        for t in range(FEISTEL_ROUNDS):
            round_keys[t] = hash_numba(keys[r], np.uint64(t))
        for start in range(lo, hi, BLOCK):
            block = out[r, start : min(start + BLOCK, hi)]
            todo = block.shape[0]
            begin = np.uint64(first[r] + start)
            for j in range(todo):
                v = min(begin + np.uint64(j), last)
                left[j], right[j], at[j] = v >> by, v & below, j
            while todo > 0:
                for t in range(0, FEISTEL_ROUNDS, 2):
                    a, b = round_keys[t], round_keys[t + 1]
                    for j in range(todo):
                        half = left[j] ^ (hash_numba(a, right[j]) & above)
                        right[j] ^= hash_numba(b, half) & below
                        left[j] = half
                outside = 0
                for j in range(todo):  # those beyond d walk on; a slot is written until it fits
                    v = (left[j] << by) | right[j]
                    place = at[j]
                    block[place] = v
                    left[outside], right[outside], at[outside] = left[j], right[j], place
                    outside += v > last
                todo = outside


def _numpy(keys: Tensor) -> np.ndarray:
    return keys.cpu().contiguous().view(-1).numpy().view(np.uint64)


class Stream:
    """A tensor of 64-bit keys, with the path that led to it kept so that it can be re-derived.

    ``root`` (B,) holds a key per cell, ``tags`` the folds since, ``ids`` (n,) the clients (or None);
    ``keys`` has shape (B, n), or root's where there are no clients. Keys are computed when first
    asked for, so a deterministic compressor pays nothing.
    """

    __slots__ = ("_drawn", "_keys", "ids", "root", "tags")

    def __init__(self, root: Tensor, tags: tuple[int, ...] = (), ids: Tensor | None = None) -> None:
        self.root, self.tags, self.ids = root, tags, ids
        self._keys: Tensor | None = None
        self._drawn: tuple[int, int, Tensor] | None = None  # both ends of a message ask for it

    @property
    def keys(self) -> Tensor:
        """The keys, int64 of shape root.shape + ids.shape."""
        if self._keys is None:
            root, out = self.root, torch.empty(self.shape, dtype=torch.int64)
            if out.numel():
                ids = np.empty(0, np.uint64) if self.ids is None else _numpy(self.ids)
                tags = np.array(self.tags, np.int64).view(np.uint64)
                _keys_kernel(_numpy(root), tags, ids, _numpy(out).reshape(root.numel(), -1))
            self._keys = out.to(root.device)
        return self._keys

    @property
    def shape(self) -> torch.Size:
        """The shape of ``keys``."""
        clients = () if self.ids is None else (len(self.ids),)
        return torch.Size((*self.root.shape, *clients))

    @property
    def device(self) -> torch.device:
        """The device the numbers are made on."""
        return self.root.device

    def fold(self, tag: int | str) -> Stream:
        """Return the child stream of a tag: another purpose, round, slot or local step.

        Clients come last on the path wherever ``each`` was called: fold and each commute, so that
        ``shared`` and ``at`` hold for children too.
        """
        return Stream(self.root, (*self.tags, tag_of(tag)), self.ids)

    def each(self, ids: Tensor | Iterable[int]) -> Stream:
        """Return streams for clients: a new last axis, one key per id, independent of each other."""
        ids = torch.as_tensor(list(ids) if not isinstance(ids, Tensor) else ids, dtype=torch.int64)
        base = self if self.ids is None else Stream(self.keys)
        return Stream(base.root, base.tags, ids.to(self.device))

    def shared(self) -> Stream:
        """Return the stream that all clients of a cell have in common (common masks, PermK)."""
        return Stream(self.root, (*self.tags, tag_of("shared")))

    def at(self, ids: Tensor) -> Stream:
        """Return this stream for other clients: what a receiver derives for messages it was sent."""
        return Stream(self.root, self.tags, None if self.ids is None else ids.to(self.ids))

    def __getitem__(self, cells: Any) -> Stream:
        if self.root.ndim == 0 and self.ids is not None:  # one key spread over rows
            return Stream(self.root, self.tags, self.ids[cells])
        return Stream(self.root[cells], self.tags, self.ids)

    def spread(self, lead: tuple[int, ...]) -> Stream:
        """Return a stream of the leading shape of a tensor: itself, or children of a single key.

        Raises ValueError where the shapes do not fit.
        """
        if tuple(self.shape) == tuple(lead):
            return self
        if self.shape != ():
            raise ValueError(f"a stream of shape {tuple(self.shape)} for data of shape {lead}")
        root = Stream(self.keys)
        for size in lead:
            root = root.each(range(size))
        return root

    def bits(self, count: int) -> Tensor:
        """Return 64 random bits each, int64 of shape (..., count)."""
        return self._draw(count, torch.int64, _bits_kernel)

    def uniform(self, count: int) -> Tensor:
        """Return numbers uniform on [0, 1), float64 of shape (..., count), multiples of 2^-53."""
        return self._draw(count, torch.float64, _uniform_kernel)

    def _draw(self, count: int, dtype: torch.dtype, kernel: Any) -> Tensor:
        keys = self.keys
        out = torch.empty(keys.numel(), count, dtype=dtype)
        raw = out.numpy()
        kernel(_numpy(keys), raw.view(np.uint64) if dtype == torch.int64 else raw)
        return out.view(*keys.shape, count).to(keys.device)

    def integers(self, count: int, high: int | Tensor) -> Tensor:
        """Return integers uniform on [0, high), int64 (..., count); high < 2^53 may vary by row."""
        if isinstance(high, Tensor):
            high = high.to(self.device)[..., None]
        return (self.uniform(count) * high).long()

    def normal(self, count: int) -> Tensor:
        """Return standard Gaussians, float64 of shape (..., count) (Box-Muller)."""
        u, v = self.uniform(count), self.fold("angle").uniform(count)
        return torch.sqrt(-2 * torch.log1p(-u)) * torch.cos(2 * math.pi * v)

    def subset(self, d: int, k: int) -> Tensor:
        """Return k distinct coordinates of d, uniform without replacement, int64 (..., k).

        d <= 4096: the k smallest of d hashes, ascending. Larger d: the first k images of a
        pseudo-random permutation (Feistel network, cycle walking), O(k) work, in its own order.
        Not to be written to. Raises ValueError unless 0 <= k <= d.
        """
        if not 0 <= k <= d:
            raise ValueError(f"{k} of {d} coordinates")
        if self._drawn is None or self._drawn[:2] != (d, k):
            self._drawn = (d, k, self._subset(d, k))
        return self._drawn[2]

    def _subset(self, d: int, k: int) -> Tensor:
        keys = self.keys
        if k == 0:
            return torch.empty(*keys.shape, 0, dtype=torch.int64, device=keys.device)
        if k == d:
            return torch.arange(d, device=keys.device).expand(*keys.shape, d)
        if d > MOST_SORTED:
            return self._feistel(d, k)
        out = torch.empty(keys.numel(), k, dtype=torch.int64)
        flat, raw = _numpy(keys), out.numpy()
        cost = len(flat) * d * 4.0
        run_shared(lambda a, b: _subset_kernel(flat[a:b], d, k, raw[a:b]), len(flat), cost)
        return out.view(*keys.shape, k).to(keys.device)

    def images(self, d: int, first: Tensor, count: int) -> Tensor:
        """Return pi(first), .., pi(first + count - 1), pi a random permutation of 0..d-1 per key.

        first: int64 (*self.shape, *more), so that many blocks of one permutation can be asked for;
        the answer is int64 (*first.shape, count). Beyond d - 1 the last image is repeated.
        """
        if d > MOST_SORTED:
            keys = self.keys.view((*self.shape, *[1] * (first.ndim - len(self.shape))))
            return Stream(keys.expand(first.shape))._feistel(d, count, first)
        order = self._shuffled(d)
        at = (first[..., None] + torch.arange(count, device=first.device)).clamp(max=d - 1)
        return order.gather(-1, at.flatten(len(self.shape))).view((*first.shape, count))

    def _shuffled(self, d: int) -> Tensor:
        """Return 0..d-1 in the order of their hashes, int64 (..., d)."""
        keys = self.keys
        out = torch.empty(*keys.shape, d, dtype=torch.int64)
        flat, raw = _numpy(keys), out.view(-1, d).numpy()
        run_shared(lambda a, b: _order_kernel(flat[a:b], d, raw[a:b]), len(flat), 64.0 * raw.size)
        return out.to(keys.device)

    def _feistel(self, d: int, count: int, first: Tensor | None = None) -> Tensor:
        keys = self.keys
        width = max(d - 1, 1).bit_length()
        high, low = width - width // 2, width // 2
        start = torch.zeros_like(keys) if first is None else first
        out = torch.empty(keys.numel(), count, dtype=torch.int64)
        flat, begin, raw = _numpy(keys), start.cpu().reshape(-1).numpy(), out.numpy()

        def work(r0: int, r1: int, lo: int, hi: int) -> None:
            _feistel_kernel(flat[r0:r1], begin[r0:r1], d, high, low, lo, hi, raw[r0:r1])

        run_tiled(work, len(flat), count, 4.0 * FEISTEL_ROUNDS)
        return out.view(*keys.shape, count).to(keys.device)


def stream(seed: int | Iterable[int] = 0, device: str | torch.device = "cpu") -> Stream:
    """Return the root stream of a seed, or of one seed per cell (then of shape (B,))."""
    is_single = isinstance(seed, numbers.Integral)
    seeds = torch.as_tensor(seed if is_single else list(seed), dtype=torch.int64)  # type: ignore[arg-type]
    return Stream(seeds.to(device), (tag_of("raybench"),))


# What is random in a round: coins, participants, minibatches ------------------------------------


@dataclass(frozen=True)
class Sample:
    """A minibatch of every client here: which samples, and where what else is random comes from.

    indices: int64 (B, n_here, b), counted from 0 within a client. stream: of shape (B, n_here), for
    augmentation and dropout. The same sample at two points is the same minibatch with the same
    augmentation and dropout, as variance reduction needs.
    """

    indices: Tensor
    stream: Stream

    @classmethod
    def at(cls, indices: Tensor) -> Sample:
        """Return the sample of given indices (B, n_here, b), for problems that draw nothing else."""
        return cls(indices, stream(0, indices.device).spread(tuple(indices.shape[:-1])))

    @classmethod
    def drawn(cls, source: Stream, size: int, samples: Tensor) -> Sample:
        """Return so many samples of every client, drawn with replacement from its own (n_here,)."""
        return cls(source.integers(size, samples), source.fold("sample"))

    @property
    def size(self) -> int:
        """Return b, the samples of a client."""
        return self.indices.shape[-1]

    def split(self, size: int) -> list[Sample]:
        """Return the consecutive parts of so many samples each, with streams of their own."""
        parts = self.indices.split(size, -1)
        return [Sample(indices, self.stream.fold(j)) for j, indices in enumerate(parts)]

    def __getitem__(self, cells: Tensor | slice) -> Sample:
        return Sample(self.indices[cells], self.stream[cells])

    def of(self, clients: slice) -> Sample:
        """Return the minibatches of some of the clients."""
        ids = self.stream.ids
        assert ids is not None, "a sample has a stream per client"
        return Sample(self.indices[:, clients], self.stream.at(ids[clients]))


class StreamDraws:
    """The random numbers of B cells in round t, for the clients hosted here.

    roots: a stream per cell (B,), from the cell's seed. clients: those hosted here, of n in all.
    """

    def __init__(self, roots: Stream, clients: range, n: int) -> None:
        self.roots, self.clients, self.n = roots, clients, n
        self._ids = torch.arange(clients.start, clients.stop, device=roots.device)
        self.begin(0)

    @property
    def B(self) -> int:
        """Return the number of cells."""
        return len(self.roots.root)

    @property
    def n_here(self) -> int:
        """Return how many clients are hosted here."""
        return len(self.clients)

    def begin(self, t: int) -> None:
        """Start round t: streams are derived from it."""
        self.t = t
        self._round = self.roots.fold("round").fold(t)

    def stream(self, purpose: str) -> Stream:
        """Return this round's streams of the clients here, (B, n_here), independent of each other."""
        return self._round.fold(purpose).each(self._ids)

    def shared_stream(self, purpose: str) -> Stream:
        """Return this round's stream that everyone shares, (B,)."""
        return self._round.fold(purpose)

    def server_stream(self, purpose: str) -> Stream:
        """Return this round's stream of the server (client -1), (B,)."""
        return self._round.fold(purpose).fold(-1)

    def coin(self, purpose: str, p: PerCell) -> Tensor:
        """Return one coin per cell, bool (B,), the same for all clients: true with probability p."""
        return self.shared_stream(purpose).uniform(1)[:, 0] < p.values

    def coins(self, purpose: str, p: PerCell) -> Tensor:
        """Return each client's own coin, bool (B, n_here): true with probability p."""
        draws = self.stream(purpose).uniform(1)[..., 0]
        return draws < p.like(draws)

    def participants(self, p: PerCell) -> Tensor:
        """Return who takes part, bool (B, n_here): each client independently with probability p."""
        return self.coins("participants", p)

    def here(self, per_client: Tensor) -> Tensor:
        """Return the part of a tensor (B, n, ..) that belongs to the clients here, (B, n_here, ..)."""
        return per_client[:, self.clients.start : self.clients.stop]

    def select(self, cells: Tensor) -> None:
        """Keep some cells only."""
        self.roots, self._round = self.roots[cells], self._round[cells]
