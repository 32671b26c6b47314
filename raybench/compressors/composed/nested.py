"""Messages within messages: quantised values at a support, sums of messages, a message times a number.

Each is made of leaves that travel on their own: the support without values (its indices are booked
and sent once; a seeded one sends nothing), the message of the kept values, the number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from raybench.core.counts import Counts
from raybench.core.streams import Stream
from raybench.wire import indices
from raybench.wire.base import DTYPES, Header, Message, natural
from raybench.wire.compound import ConcatMessage
from raybench.wire.dense import DenseMessage
from raybench.wire.sparse import SeededMessage, SparseMessage, index_cost

Scattered = SparseMessage | SeededMessage


@dataclass(eq=False)
class SupportMessage(Message):
    """The coordinates of a sparse message without its values: ``indices`` (*lead, k), ascending."""

    indices: Tensor
    kind = "support"
    tensors = ("indices",)

    @property
    def lead(self) -> torch.Size:
        return self.indices.shape[:-1]

    @property
    def k(self) -> int:
        """How many coordinates a row has."""
        return self.indices.shape[-1]

    def holding(self, values: Tensor, scale: float) -> Scattered:
        """Return the sparse message of values (*lead, k) at these coordinates."""
        return SparseMessage(self.d, self.dtype, self.indices, values, scale=scale)

    def _decode(self) -> Tensor:
        ones = torch.ones_like(self.indices, dtype=self.dtype)
        return self.holding(ones, 1.0).decode()

    def _cost(self) -> Counts:
        return index_cost(self.d, self.k)

    def _payload(self) -> Tensor:
        return indices.encode(self.indices, self.d)

    def known(self) -> Header:
        return {**super().known(), "k": self.k}

    @classmethod
    def read(cls, known: Header, payload: Tensor, stream: Stream | None) -> SupportMessage:
        where = indices.decode(payload, known["d"], natural(known, "k"))
        return cls(known["d"], DTYPES[known["dtype"]], where, scale=known["scale"])

    @classmethod
    def demand(cls, known: Header, width: int) -> int:
        # a bit may stand for an index of 64
        return 2 * width + 8 * natural(known, "k")


def Support(message: Message) -> SupportMessage:
    """Return the message of the coordinates that a sparse message lists, part by part if it has parts.

    A dense part lists all of its own. Raises TypeError for other kinds: of ragged rows, seeded, quantised.
    """
    at, listed = 0, []
    for part in message.leaves():
        if type(part) is SparseMessage:
            listed.append(part.indices + at)
        elif type(part) is DenseMessage:
            every = torch.arange(at, at + part.d, device=part.device)
            listed.append(every.expand(*part.lead, -1))
        else:
            raise TypeError(f"a {part.kind} message lists no fixed number of coordinates")
        at += part.d
    return SupportMessage(message.d, message.dtype, torch.cat(listed, -1), present=message.present)


@dataclass(eq=False)
class SeededSupportMessage(SeededMessage):
    """The coordinates of a seeded message without its values: nothing is sent.

    ``values`` holds no memory; its shape (*lead, k) says how many coordinates there are.
    """

    kind = "seeded_support"

    @classmethod
    def of(cls, message: SeededMessage) -> SeededSupportMessage:
        """Return the support of a message."""
        shape, own = message.values.shape, message.values.new_ones((), dtype=torch.uint8)
        source, common = message.source, message.common
        return cls(message.d, message.dtype, own.expand(shape), source, common)

    def holding(self, values: Tensor, scale: float) -> Scattered:
        """Return the seeded message of values (*lead, k) at these coordinates."""
        return SeededMessage(self.d, self.dtype, values, self.source, self.common, scale=scale)

    def _write(self, out: Tensor) -> None:
        self.holding(self.values.to(self.dtype), self.scale)._write(out)

    def _cost(self) -> Counts:
        return Counts()

    def _payload(self) -> Tensor:
        return self.values.new_empty(*self.lead, 0)

    def known(self) -> Header:
        return {**super().known(), "k": self.values.shape[-1]}

    @classmethod
    def read(cls, known: Header, payload: Tensor, stream: Stream | None) -> SeededSupportMessage:
        assert stream is not None
        own = payload.new_ones(()).expand(*payload.shape[:-1], natural(known, "k"))
        common = known.get("common", False) is True
        dtype = DTYPES[known["dtype"]]
        return cls(known["d"], dtype, own, stream, common, scale=known["scale"])


@dataclass(eq=False)
class NestedMessage(ConcatMessage):
    """Values at a support, themselves sent by a message of dimension k: [support, message]."""

    kind = "nested"

    def check(self) -> None:
        where, message = self.parts
        if not isinstance(where, SupportMessage | SeededSupportMessage) or where.d != self.d:
            raise ValueError("not a support and a message")
        k = where.k if isinstance(where, SupportMessage) else where.values.shape[-1]
        if message.d != k:
            raise ValueError(f"{message.d} values at {k} coordinates")

    def plain(self) -> Scattered:
        """Return the sparse or seeded message that stands for the same vector, at full width."""
        where = cast(SupportMessage | SeededSupportMessage, self.parts[0])
        own = where.holding(self.parts[1].decode(), self.scale)
        return own if where.present is None else cast(Scattered, own.masked(where.present))

    def _write(self, out: Tensor) -> None:
        self.plain()._write(out)

    def _add(self, target: Tensor) -> Tensor:
        return self.plain().add_to(target)

    def _sum(self) -> Tensor:
        return self.plain().sum_clients()

    def mean_of_senders(self) -> Tensor:
        return self.plain().mean_of_senders()

    def union(self) -> Counts:
        return self.plain().union()


def nest(message: Message, then: Callable[[Tensor], Message]) -> Message:
    """Return the message that sends the values of ``message`` by ``then(values)``.

    Of a sparse or seeded message of k < d values, also within a nested or scaled one, only those
    (*lead, k) are handed on, before their factors; of all others the decoded vector (*lead, d).
    """
    if kept(message) == message.d:
        return then(message.decode())
    if isinstance(message, NestedMessage | ScaledMessage):
        own, inner = message.parts
        return replace(message, parts=[own, nest(inner, then)])
    support: Message
    if isinstance(message, SparseMessage):
        support = SupportMessage(message.d, message.dtype, message.indices)
    else:
        support = SeededSupportMessage.of(cast(SeededMessage, message))
    values = cast(Scattered, message).values.contiguous()
    return NestedMessage(message.d, message.dtype, [support, then(values)], scale=message.scale)


def scattered(message: Message) -> Scattered | None:
    """Return the sparse or seeded message that stands for the same vector; None if it is not of k values."""
    if type(message) is NestedMessage:
        return message.plain()
    if type(message) is ScaledMessage:
        return message.product()
    whole = isinstance(message, Scattered) and not isinstance(message, SeededSupportMessage)
    return cast(Scattered, message) if whole else None


def kept(message: Message) -> int:
    """Return the length of the vector that ``nest`` hands on."""
    if type(message) is NestedMessage:
        return kept(message.parts[1])
    own = scattered(message)
    return (
        message.d if own is None or own.present is not None else own.values.shape[-1] or message.d
    )


@dataclass(eq=False)
class SumMessage(ConcatMessage):
    """The sum of several messages of one dimension, added in order."""

    kind = "sum"

    def check(self) -> None:
        if any(part.d != self.d for part in self.parts):
            raise ValueError("terms of several dimensions")

    def _write(self, out: Tensor) -> None:
        first, *others = self._weighted()
        first.decode(out=out)
        for part in others:
            if scattered(part) is None:
                # not add_to, whose fused rounding would make a masked message differ in its last bit
                out.add_(part.decode())
            else:
                part.add_to(out)

    def _add(self, target: Tensor) -> Tensor:
        for part in self._weighted():
            part.add_to(target)
        return target

    def _sum(self) -> Tensor:
        first, *others = self._weighted()
        total = first.sum_clients()
        for part in others:
            total = total + part.sum_clients()
        return total

    def mean_of_senders(self) -> Tensor:
        return Message.mean_of_senders(self)

    def union(self) -> Counts:
        parts = [scattered(part) for part in self.parts]
        own = [part for part in parts if part is not None]
        if len(own) < len(parts):
            return Message.union(self)
        where, values = (
            torch.cat(arrays, -1)
            for arrays in zip(*((part.support(), part.values) for part in own), strict=True)
        )
        return SparseMessage(self.d, self.dtype, where, values, present=own[0].present).union()


@dataclass(eq=False)
class ScaledMessage(ConcatMessage):
    """A message times a number that is sent with it: [number, message]; the number is a value."""

    kind = "scaled"

    def check(self) -> None:
        factor, message = self.parts
        if not isinstance(factor, DenseMessage) or (factor.d, message.d) != (1, self.d):
            raise ValueError("not a number and a message")

    @classmethod
    def of(cls, factor: Tensor, message: Message) -> ScaledMessage:
        """Return factor (*lead, 1), of the message's dtype, times the message."""
        return cls(message.d, message.dtype, [DenseMessage(1, message.dtype, factor), message])

    def product(self) -> Scattered | None:
        """Return the sparse or seeded message that stands for the same vector; None if it is dense."""
        own = scattered(self.parts[1])
        if own is None:
            return None
        values, scale = own.values * self.parts[0].decode(), own.scale * self.scale
        return replace(own, values=values, scale=scale)

    def _write(self, out: Tensor) -> None:
        product = self.product()
        if product is not None:
            product.decode(out=out)
            return
        self.parts[1].decode(out=out).mul_(self.parts[0].decode())
        if self.scale != 1.0:
            out.mul_(self.scale)

    def _add(self, target: Tensor) -> Tensor:
        product = self.product()
        return target.add_(self.decode()) if product is None else product.add_to(target)

    def _sum(self) -> Tensor:
        product = self.product()
        return self.decode().sum(-2) if product is None else product.sum_clients()

    def mean_of_senders(self) -> Tensor:
        product = self.product()
        return Message.mean_of_senders(self) if product is None else product.mean_of_senders()

    def union(self) -> Counts:
        return self.parts[1].union()
