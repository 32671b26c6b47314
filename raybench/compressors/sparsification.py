"""Random sparsification: coordinates drawn from a seed that both ends share, by every client or for all of them together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from raybench.compressors.base import AUTO, Compressor, count_of
from raybench.compressors.by_size import ragged
from raybench.core.counts import Counts
from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.core.registry import Choice, Count, Flag, Integer, Number, compressor
from raybench.core.streams import MOST_SORTED, Stream
from raybench.wire import (
    DenseMessage,
    FlaggedMessage,
    Message,
    SeededMessage,
    bitpack,
    support_of,
)
from raybench.wire.base import zero_absent, zero_rows
from raybench.wire.compound import FlagMessage
from raybench.wire.fields import Field, Header, Numbers, dtype_of, finite, natural, naturals
from raybench.wire.sparse import Drawn, shared_keys

Places = tuple[Tensor, Tensor]  # coordinates (*lead, m), zero beyond a row's own; counts (*lead)


class PlacedMessage(Drawn):
    """Base: only values travel, the first counts (*lead) of ``values`` (*lead, m), zeros beyond.

    ``source`` is the stream that the places come from; ``held`` are the places, once they are drawn.
    """

    values: Tensor
    source: Stream
    held: Places | None

    def _draw(self) -> Places:
        """Return the places that the stream stands for."""
        raise NotImplementedError

    def places(self) -> Places:
        """Return the coordinates, int64 (*lead, m), zeros beyond a row's own, and counts (*lead)."""
        if self.held is None:
            self.held = self._draw()
        return self.held

    @classmethod
    def fields(cls, head: Header, width: int) -> Sequence[Field]:
        full = Numbers(dtype_of(head))
        return [Field("values", full, (width // full.dtype.itemsize,))]

    def map(self, of_tensor: Callable[[Tensor], Tensor]) -> Self:
        changed = super().map(of_tensor)
        changed.held = None
        return changed

    def select(self, cells: Tensor) -> Self:
        changed = super().select(cells)
        changed.held = None
        return changed

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

    def check(self) -> None:
        where, _ = self.places()
        if self.values.shape[-1] < where.shape[-1]:
            raise ValueError(f"{self.values.shape[-1]} values at {where.shape[-1]} places")

    def _payload(self) -> Tensor:
        return bitpack.to_bytes(self.values[..., : self.places()[0].shape[-1]])


def kept(x: Tensor, where: Tensor, counts: Tensor) -> Tensor:
    """Return x (*lead, d) at the first counts (*lead) of where (*lead, m), and zeros beyond."""
    values = x.gather(-1, where)
    if not counts.numel() or int(counts.min()) == where.shape[-1]:
        return values
    beyond = torch.arange(where.shape[-1], device=x.device) >= counts[..., None]
    return values.masked_fill_(beyond, 0)


# K coordinates ------------------------------------------------------------------------------------


@compressor("rand_k")
class RandK(Compressor):
    """C(x) = (d/K) x_S, S a uniform K-subset: unbiased with omega = d/K - 1, exactly, for every x.

    Without the scale C(x) = x_S: contractive with alpha = K/d, exactly, and B1, B2 (K/d, 1); methods
    with error feedback need this one. S is drawn without replacement from a stream that the server
    shares, so no indices are sent. With a common mask C is linear over clients but averaging gains
    no 1/n. d/K is applied when decoding. Source: Gorbunov et al. 2021 (MARINA), section 1;
    Beznosikov et al. 2020, On Biased Compression for Distributed Learning.
    """

    k: int | float | str = Count(help="coordinates kept, or a share such as 10%")
    mask: str = Choice("independent", "common", help="whether clients draw their own coordinates")
    scaled: bool = Flag(True, help="times d/K, which makes it unbiased; without, it is contractive")
    counted = ("k",)

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d = x.shape[-1]
        k, common = count_of(self.k, d), self.mask == "common"
        values = x.gather(-1, support_of(stream, d, k, common))
        return SeededMessage(
            d, x.dtype, values, stream, common, scale=d / k if self.scaled else 1.0
        )

    @property
    def correlated(self) -> bool:
        return self.mask == "common"

    @property
    def additive(self) -> bool:  # type: ignore[override]
        return self.mask == "common"

    @property
    def selection(self) -> bool:  # type: ignore[override]
        return not self.scaled

    def omega(self, d: int) -> float | None:
        k = count_of(self.k, d)
        return d / k - 1 if self.scaled or k == d else None

    def alpha(self, d: int) -> float | None:
        k = count_of(self.k, d)
        return None if self.scaled and k < d else k / d


# A coin for every coordinate, or one for all ------------------------------------------------------


@compressor("random_sparsification")
class RandomSparsification(Compressor):
    """C(x)_j = x_j / p with probability p, else 0, independently: unbiased, omega = 1/p - 1, exactly.

    Without the scale C(x)_j = x_j: contractive with alpha = p, exactly, and B1, B2 (p, 1). Both ends
    draw the support from the shared seed: only the values kept travel, p d of them on average.
    Source: Beznosikov et al. 2020, On Biased Compression for Distributed Learning.
    """

    p: float = Number(
        0.25, low=0, high=1, open_low=True, help="probability of keeping a coordinate"
    )
    scaled: bool = Flag(True, help="times 1/p, which makes it unbiased; without, it is contractive")

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d, p = x.shape[-1], float(self.p)
        where, counts = places = bernoulli(stream, d, p)
        values = kept(x, where, counts)
        scale = 1 / p if self.scaled else 1.0
        return BernoulliMessage(d, x.dtype, values, stream, p, scale=scale, held=places)

    @property
    def selection(self) -> bool:  # type: ignore[override]
        return not self.scaled

    def omega(self, d: int) -> float | None:
        return 1 / self.p - 1 if self.scaled or self.p == 1 else None

    def alpha(self, d: int) -> float | None:
        return None if self.scaled and self.p < 1 else float(self.p)


# What is sent ----------------------------------------------------------------------------------


@dataclass(eq=False)
class BernoulliMessage(PlacedMessage):
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

    @classmethod
    def demand(cls, known: Header, width: int) -> int:
        # a number is drawn for every coordinate, and those that are kept are listed
        d, p = known["d"], finite(known, "p")
        if not 0 < p <= 1:
            raise ValueError(f"{p} is no probability")
        return super().demand(known, width) + 10 * d + int(40 * p * d)


def bernoulli(source: Stream, d: int, p: float) -> Places:
    """Return the coordinates whose number of ``source`` is below p, ascending, and their counts."""
    keep = source.uniform(d) < p
    counts, where, _ = ragged(keep, keep)
    return where, counts


@compressor("lazy")
class Lazy(Compressor):
    """C(x) = x / p with probability p, else 0: the Bernoulli gate, unbiased, omega = 1/p - 1, exactly.

    One bit says whether the vector follows, full width; it is sent and booked either way.
    Source: the lazy communication of Condat & Richtarik 2022 (MURANA).
    """

    p: float = Number(0.5, low=0, high=1, open_low=True, help="probability of sending the vector")

    def encode(self, x: Tensor, stream: Stream) -> Message:
        sent = stream.uniform(1)[..., 0] < self.p
        flag = FlagMessage(1, x.dtype, sent.to(torch.uint8)[..., None])
        held = zero_rows(x.clone(), ~sent)
        whole = DenseMessage(x.shape[-1], x.dtype, held, scale=1 / self.p, present=sent)
        return FlaggedMessage(x.shape[-1], x.dtype, [flag, whole])

    def omega(self, d: int) -> float:
        return 1 / self.p - 1

    def alpha(self, d: int) -> float | None:
        return 1.0 if self.p == 1 else None


# Supports that the clients share ------------------------------------------------------------------


class _SharedSupport(Compressor):
    """Base: C_i(x)_j = (n/s) x_j where client i is one of the s that send coordinate j, else 0."""

    clients: int | str

    def _sizes(self, d: int, n: int | str) -> tuple[int, int]:
        """Return n and s. Raises InputError where n is not known, or does not fit d."""
        if not isinstance(n, int):
            raise InputError.of("clients", "is auto: the number of clients is not known", "give it")
        return n, self._senders(d, n)

    def _senders(self, d: int, n: int) -> int:
        raise NotImplementedError

    def fit(self, d: int, n: int, layout: Layout | None = None) -> Self:
        sized = replace(self, clients=n) if self.clients == AUTO else self  # type: ignore[type-var]
        sized._sizes(d, sized.clients)
        return sized

    def encode(self, x: Tensor, stream: Stream) -> Message:
        auto = x.shape[-2] if x.ndim > 1 else 1
        n, s = self._sizes(x.shape[-1], auto if self.clients == AUTO else self.clients)
        return self._send(x, stream, n, s)

    def _send(self, x: Tensor, stream: Stream, n: int, s: int) -> Message:
        raise NotImplementedError

    def omega(self, d: int) -> float | None:
        if self.clients == AUTO:
            return None
        n, s = self._sizes(d, self.clients)
        return n / s - 1

    def alpha(self, d: int) -> float | None:
        return 1.0 if self.omega(d) == 0 else None

    def ab(self, d: int, n: int | None = None) -> tuple[float, float] | None:
        """Return (A, B) of E||mean C_i(a_i) - mean a_i||^2 <= A mean||a_i||^2 - B ||mean a_i||^2.

        A = B = (n - s)/(s (n - 1)), with equality: the mean of s of n numbers drawn without
        replacement; 0 for n = 1. Independent compressors have (omega/n, 0). n None: the fitted clients.
        Where these are fewer, groups of clients share a block and have the constants of the fitted number, as
        their means are no longer than they are; None where n is no multiple of it: then some blocks are sent by more
        clients than others, or by none, and errors do not cancel.
        MARINA's step becomes 1/(L + sqrt((1 - p)/p ((A - B) L_+^2 + B L_pm^2))), L_pm^2 the Hessian
        variance: with A = B the clients' likeness is all that counts, and identical clients allow that
        of gradient descent. Raises InputError where n is not known, or does not fit d.
        """
        if n is not None and isinstance(self.clients, int) and n % self.clients:
            return None
        n, s = self._sizes(d, n if self.clients == AUTO and n is not None else self.clients)
        both = 0.0 if n == 1 else (n - s) / (s * (n - 1))
        return both, both


@compressor("perm_k")
class PermK(_SharedSupport):
    """C_i(x) = n x_(block i of a shared random permutation): unbiased, omega = n - 1, exactly.

    d >= n: blocks of d/n coordinates; where n does not divide d some are one longer, and a random
    turn decides whose. n > d: d must divide n; client i sends d x_j e_j, j drawn without replacement
    from a list of every coordinate n/d times: omega = d - 1. The clients' errors cancel (``ab``):
    none is left where all send the same vector. The support comes from the shared seed, so d/n
    values travel and no indices.

    clients auto: those of the problem; where the compressor was not fitted to one, the size of the
    last leading axis of x (1 for a vector), and no class is claimed. A client with an id i >= n has
    the block of i mod n. Raises InputError where n > d and d does not divide n.
    Source: Szlendak, Tyurin, Richtarik 2021, Permutation Compressors.
    """

    clients: int | str = Integer(
        AUTO, low=1, words=(AUTO,), help="clients n that share a permutation"
    )

    def _senders(self, d: int, n: int) -> int:
        _check_clients(d, n)
        return max(n // d, 1)

    def _send(self, x: Tensor, stream: Stream, n: int, s: int) -> Message:
        places = block_of(stream.shared(), clients_of(stream), x.shape[-1], n)
        values = kept(x, *places)
        return PermMessage(x.shape[-1], x.dtype, values, stream, n, scale=n / s, held=places)

    @property
    def correlated(self) -> bool:
        return self.clients != 1


def _check_clients(d: int, n: int) -> None:
    if n > d and n % d:
        what = f"{n} clients for {d} coordinates"
        raise InputError.of("clients", what, f"at most {d}, or a multiple of {d}")


@compressor("shared_mask")
class SharedMask(_SharedSupport):
    """C_i(x)_j = (n/s) x_j where client i is one of the s clients that send coordinate j, else 0.

    Unbiased, omega = n/s - 1, exactly. The s clients of a coordinate are a random subset of the n, the same for
    both ends; a client sends d s/n values, up to one more or less, and no indices. s = n sends all; with s = 1 every
    coordinate has one sender, as in ``perm_k``. The clients' errors cancel (``ab``): none is left where all send
    the same vector.

    senders: s; n where there are fewer clients. clients: n, as in ``perm_k``.
    Source: Condat, Agarsky, Richtarik 2022, CompressedScaffnew.
    """

    senders: int = Integer(2, low=1, help="clients s that send each coordinate")
    clients: int | str = Integer(AUTO, low=1, words=(AUTO,), help="clients n that share a mask")

    def _senders(self, d: int, n: int) -> int:
        return min(self.senders, n)

    def _send(self, x: Tensor, stream: Stream, n: int, s: int) -> Message:
        places = columns(stream.shared(), clients_of(stream), x.shape[-1], n, s)
        values = kept(x, *places)
        return MaskMessage(x.shape[-1], x.dtype, values, stream, n, s, scale=n / s, held=places)

    @property
    def correlated(self) -> bool:
        return not isinstance(self.clients, int) or self.clients > self.senders


# What is sent ----------------------------------------------------------------------------------


@dataclass(eq=False)
class PermMessage(PlacedMessage):
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
    static: ClassVar[tuple[str, ...]] = ("n",)

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

    def _keys(self) -> Tensor:
        return shared_keys(self.source) if self.slots is None else self.source.keys

    def map(self, of_tensor: Callable[[Tensor], Tensor]) -> Self:
        changed, slots = super().map(of_tensor), self.slots
        changed.slots = of_tensor(clients_of(self.source) if slots is None else slots)
        return changed

    def select(self, cells: Tensor) -> Self:
        return super().select(cells) if self.slots is None else self.map(lambda x: x[cells])

    def known(self) -> Header:
        alone = {} if self.slots is None else {"slots": self.slots.flatten().tolist()}
        return {**super().known(), **alone}

    def describe(self) -> Header:
        if self.slots is not None:
            return super().describe()
        alone = self.map(lambda x: x)
        alone.held = self.held
        return alone.describe()

    @classmethod
    def fields(cls, head: Header, width: int) -> Sequence[Field]:
        (values,) = super().fields(head, width)
        if values.entries not in cls._lengths(head):
            raise ValueError(f"{values.entries} values of {head['d']} coordinates")
        return [values]

    @classmethod
    def _lengths(cls, head: Header) -> tuple[int, int]:
        """Return how many values a client sends, the fewest and the most."""
        d, n = natural(head, "d"), natural(head, "n", 1)
        _check_clients(d, n)
        return max(d // n, 1), max(-(-d // n), 1)

    @classmethod
    def read(cls, known: Header, payload: Tensor, stream: Stream | None) -> PermMessage:
        slots = None  # of rows that stand alone
        if "slots" in known:
            slots = torch.tensor(naturals(known, "slots"), device=payload.device)
            slots = slots.long().view(payload.shape[:-1])
        return cls._read(known, payload, stream, slots=slots)

    @classmethod
    def demand(cls, known: Header, width: int) -> int:
        # few coordinates are sorted for every row
        few = min(max(known["d"], natural(known, "n", 1)), MOST_SORTED)
        return super().demand(known, width) + 8 * width + 4 * few


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
    where = shared.images(d, first, most)
    if most > length:
        where[..., -1] *= counts > length
    return where, counts


@dataclass(eq=False)
class MaskMessage(PermMessage):
    """A client's column of a mask that all clients of a cell draw from their shared stream."""

    senders: int = 1
    kind = "mask"
    static = ("n", "senders")

    def _draw(self) -> Places:
        n, s = self.n, self.senders
        if self.slots is None:
            return columns(self.source.shared(), clients_of(self.source), self.d, n, s)
        return columns(self.source, self.slots, self.d, n, s)

    @property
    def _ragged(self) -> bool:
        return self.d * self.senders % self.n > 0

    @property
    def _most(self) -> int:
        return -(-self.d * self.senders // self.n)

    @classmethod
    def _lengths(cls, head: Header) -> tuple[int, int]:
        d, n = natural(head, "d"), natural(head, "n", 1)
        s = natural(head, "senders", 1, n)
        return d * s // n, -(-d * s // n)


def columns(shared: Stream, clients: Tensor, d: int, n: int, s: int) -> Places:
    """Return the coordinates that each client of n sends, drawn from what the clients share.

    shared: of the shape of clients, int64 (*lead), or without its last axis. The answer has shapes (*lead, m),
    ascending and zeros beyond a row's own, and (*lead). Number the d s entries of the mask coordinate by
    coordinate: column q of a template has every n-th of them from q on, and a random permutation gives the
    columns to the clients.
    """
    column = shared.images(n, clients % n, 1)  # (*lead, 1)
    entry = column + n * torch.arange(-(-d * s // n), device=column.device)
    inside = entry < d * s
    counts = inside.sum(-1)
    most = int(counts.max()) if counts.numel() else entry.shape[-1]  # of short columns alone: less
    return (entry // s).masked_fill(~inside, 0)[..., :most], counts
