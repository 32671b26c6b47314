"""A round in blocks of clients: what one block passes on to the next, so that the last has what all sent.

The blocks take the round one after the other, each up to its end. What the server receives is added up from
block to block; what is done with the sums before the last block is through is thrown away with its copy
of the server's state. So this is for methods whose clients do not use in a round what came back in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import torch
from torch import Tensor

from raybench.core.counts import Counts
from raybench.wire.base import Message
from raybench.wire.collectives import Stub
from raybench.wire.compound import CasesMessage
from raybench.wire.wire import Received

NOT_KEPT = (
    "clients take the round in blocks: a method that needs more than sums does not say blocks=True"
)


class Turn:
    """Whose turn it is in a round of ``count`` blocks, and what those before have sent, in order of sending."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.enter(0)

    @property
    def last(self) -> bool:
        """Return whether it is the last block's turn, with which everyone has sent."""
        return self._block == self.count - 1

    def enter(self, block: int) -> None:
        """Begin a block's turn; that of the first begins the round."""
        self._block, self._added, self._booked = block, 0, 0
        if block == 0:
            self._sums: list[Tensor] = []
            self._sent: list[list[Message]] = []

    def total(self, own: Tensor) -> Tensor:
        """Add a block's part (B, ..) of a sum; return the whole sum in the last block's turn, else the part."""
        at, self._added = self._added, self._added + 1
        if self._block == 0:
            self._sums.append(own.clone())
        else:
            self._sums[at] += own
        return self._sums[at] if self.last else own

    def book(self, message: Message, book: Callable[[Message], None]) -> None:
        """Note what a block's messages cost; in the last block's turn ``book`` those of all clients."""
        at, self._booked = self._booked, self._booked + 1
        if self._block == 0:
            self._sent.append([])
        self._sent[at].append(_cost_of(message))
        if self.last:
            book(_joined(self._sent[at]))


@dataclass(frozen=True)
class Passing(Received):
    """The messages of a block of clients, added to those of the blocks before.

    message: of the block's clients of all ranks, ``ids`` (their number,). n: of all clients.
    """

    turn: Turn
    ids: Tensor

    def sum(self) -> Tensor:
        with self.clock.on("communicate"):
            return self.turn.total(self.message.sum_clients())

    def mean_sent(self, weights: Tensor | None = None) -> Tensor:
        who = self.message.present
        if weights is not None:
            w = self._own(weights) if who is None else self._own(weights) * who
            total = self._added(w)
            return total / self.turn.total(w.sum(1, keepdim=True)).clamp(min=weights.min())
        total = self.sum()
        if who is None:
            return total.div_(self.n)
        return total.div_(self.turn.total(who.sum(1, keepdim=True)).clamp(min=1))

    def weighted(self, w: Tensor) -> Tensor:
        return self._added(self._own(w))

    def mean_of_senders(self) -> NoReturn:
        raise TypeError(NOT_KEPT)

    def decode(self) -> NoReturn:
        raise TypeError(NOT_KEPT)

    @property
    def flags(self) -> NoReturn:
        raise TypeError(NOT_KEPT)

    def _own(self, weights: Tensor) -> Tensor:
        """Return the weights (B, block) of the block's clients, of those (n,) or (B, n) of all."""
        return weights.expand(self.message.lead[0], self.n)[:, self.ids]

    def _added(self, w: Tensor) -> Tensor:
        with self.clock.on("communicate"):
            return self.turn.total((w[..., None] * self.message.decode()).sum(1))


def _cost_of(message: Message) -> Message:
    """Return what the ledger needs of a message: without its arrays, which may be large."""
    if isinstance(message, CasesMessage):
        return replace(message, parts=[_cost_of(part) for part in message.parts])
    return Stub(message.d, message.dtype, message.lead, message.cost)


def _joined(parts: Sequence[Message]) -> Message:
    """Return the messages of all blocks side by side."""
    first = parts[0]
    if isinstance(first, CasesMessage):
        cases = [one.parts for one in parts if isinstance(one, CasesMessage)]
        return replace(first, parts=[_joined(same) for same in zip(*cases, strict=True)])
    lead = torch.Size((*first.lead[:-1], sum(part.lead[-1] for part in parts)))
    columns = zip(*(part.cost for part in parts), strict=True)
    leads = [part.lead for part in parts]
    return Stub(first.d, first.dtype, lead, Counts(*(_column(c, leads) for c in columns)))


def _column(counts: Sequence[float | Tensor], leads: Sequence[torch.Size]) -> float | Tensor:
    """Return a count of all blocks: a number where all messages are alike in it."""
    numbers = {count for count in counts if not isinstance(count, Tensor)}
    if len(numbers) == 1 and not any(isinstance(count, Tensor) for count in counts):
        return numbers.pop()
    each = zip(counts, leads, strict=True)
    return torch.cat([torch.as_tensor(c).double().cpu().expand(lead) for c, lead in each], -1)
