"""A listener on ``net`` that packs every message and weighs the bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from raybench.compressors import Message
from raybench.execution.net import Net
from raybench.testing.wire import sent
from raybench.wire import CasesMessage
from raybench.wire.collectives import GATHER, combines
from raybench.wire.compound import MeansMessage, PartsMessage


class Spy:
    """Wraps the calls of a net that send, and packs each row of what they are given.

    bytes: cumulative packed bytes (cells,) by side, up as means per client, down the broadcast
    counted once or the mean of the clients' own messages, headers left out; messages: how many there were, an upper bound per client.
    by_round: what each client has sent up in a round, (cells, clients).
    """

    def __init__(self, net: Net) -> None:
        self.net = net
        self.bytes = {side: np.zeros(net.B) for side in ("up", "down")}
        self.messages = {"up": 0, "down": 0}
        self.by_round: dict[int, np.ndarray] = {}
        for name in ("up", "all_gather", "mix", "average", "broadcast", "down_each", "charge"):
            setattr(net, name, self._listening(name, getattr(net, name)))

    @property
    def largest(self) -> np.ndarray:
        """The largest client's bytes of each round, summed over the rounds: (cells,)."""
        return sum((sent.max(1) for sent in self.by_round.values()), np.zeros(self.net.B))

    def _listening(self, name: str, call: Any) -> Any:
        def charge(bits: float, *, down: bool = False) -> Any:
            if down:
                self._add("down", -(-bits // 8), 1)
            else:
                self._add_up(np.full((self.net.B, self.net.n), -(-bits // 8)), 1)
            return call(bits, down=down)

        def send(message: Message) -> Any:
            if name == "broadcast":
                packed = [broadcast(message, b) for b in range(self.net.B)]
                self._add("down", np.array(packed, float), self._most(message))
            elif name == "down_each":
                rows = [
                    [sent_up(message, b, i) for i in range(self.net.n)] for b in range(self.net.B)
                ]
                self._add("down", np.array(rows).mean(1), self._most(message))
            elif name != "up" or self.net.collective == GATHER or not combines(message):
                degrees = np.ones(self.net.n)
                if name == "mix":
                    assert self.net.graph is not None
                    degrees = self.net.graph.degrees.numpy()
                rows = [
                    [sent_up(message, b, i) for i in range(self.net.n)] for b in range(self.net.B)
                ]
                self._add_up(np.array(rows) * degrees, int(degrees.max()) * self._most(message))
                if name == "all_gather":
                    self._add("down", np.array(rows).sum(1), self.net.n * self._most(message))
            return call(message)

        return charge if name == "charge" else send

    def _most(self, message: Message) -> int:
        """Return how many fields that are padded to bytes a message has, at most."""
        if isinstance(message, CasesMessage):
            return sum(map(self._most, message.parts))
        if isinstance(message, PartsMessage | MeansMessage):
            return self.net.n * len(message.inner.leaves())
        return len(message.leaves())

    def _add_up(self, sizes: np.ndarray, messages: int) -> None:
        """Add the bytes of each client, (cells, clients)."""
        self._add("up", sizes.mean(1), messages)
        self.by_round[self.net.t] = self.by_round.get(self.net.t, 0) + sizes

    def _add(self, side: str, size: Any, messages: int) -> None:
        self.bytes[side] += size
        self.messages[side] += messages


def sent_up(message: Message, b: int, i: int) -> int:
    """Return the packed bytes that client i sends in cell b; of its n parts it keeps its own."""
    if isinstance(message, CasesMessage):
        part, at = _case(message, b)
        return sent_up(part, at, i)
    if isinstance(message, PartsMessage):
        others = [j for j in range(message.inner.lead[-1]) if j != i]
        return sum(size(message.inner.row(b, j, i)) for j in others)
    return size(message.row(b, i))


def broadcast(message: Message, b: int) -> float:
    """Return the packed bytes that a client is sent in cell b, the mean over clients."""
    if isinstance(message, CasesMessage):
        return broadcast(*_case(message, b))
    if isinstance(message, MeansMessage):
        n = message.inner.lead[-1]
        return sum(size(message.inner.row(b, j)) for j in range(n)) * (n - 1) / n
    return size(message.row(b))


def _case(message: CasesMessage, b: int) -> tuple[Message, int]:
    """Return the part that holds cell b, and the cell's place in it."""
    for cells, part in zip(message.cells, message.parts, strict=True):
        if b in cells.tolist():
            return part, cells.tolist().index(b)
    raise IndexError(b)


def size(row: Message) -> int:
    """Return the packed bytes of one message without its headers."""
    return sum(sent(leaf) for leaf in row.leaves())
