"""Listeners on ``net``: whether a method sees, uses and sends no more than is booked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybench.algorithms import protocols
from raybench.core.counts import GATHER
from raybench.execution.net import ProblemEventNet, ProblemNet
from raybench.execution.run import Run
from raybench.testing.compressors import same_bits, sent
from raybench.wire import CasesMessage, Message
from raybench.wire.collectives import combines
from raybench.wire.compound import MeansMessage, PartsMessage
from raybench.wire.wire import PerClientReceived, Received

# What methods may call -----------------------------------------------------------------------------

RECORD = ("oracle_mean", "oracle_spread", "assemble")  # for ``point`` and ``disagreement`` alone
PAGE = "docs/plugins.md lists what may be called"


def named(*kinds: type) -> frozenset[str]:
    """Return the public names of protocols."""
    parts = [vars(part) for kind in kinds for part in kind.__mro__]
    every = {n for part in parts for n in [*part, *part.get("__annotations__", {})]}
    return frozenset(n for n in every if not n.startswith("_")) - {*RECORD}


OF_NET = named(protocols.Net, protocols.EventNet, protocols.Timed)
OF_ORACLE = named(protocols.Oracle, protocols.Predictions, protocols.Vertical)


class Only:
    """An object of which only some names may be used. Raises AssertionError for others."""

    def __init__(self, whole: Any, names: frozenset[str], about: str) -> None:
        self.__dict__.update(_whole=whole, _names=names, _about=about)

    def __getattr__(self, name: str) -> Any:
        about = f"{self._about}.{name}"
        assert name not in RECORD, f"{about} is for the record only: it books nothing; {PAGE}"
        assert name in self._names, f"{about} is not a method's to use: {PAGE}"
        value = getattr(self._whole, name)
        return Only(value, OF_ORACLE, f"{self._about}.oracle") if name == "oracle" else value

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError(f"{self._about}.{name} is not a method's to set")


def fence(run: Run) -> None:
    """Let the method of a run that has not begun see nothing but what ``protocols`` lists, in start and rounds."""
    net = Only(run.net, OF_NET, "net")
    for name in ("start", "round"):
        setattr(run.a, name, _given(getattr(run.a, name), net))


def _given(work: Any, net: Only) -> Any:
    return lambda _, s, c: work(net, s, c)


# What clients are told -----------------------------------------------------------------------------

OTHER = -1.5  # times another cell's messages: what the server receives in the second run
SENDING = ("up", "all_gather", "mix", "average")


class Heard:
    """What the clients of a run are told, and what they send, in order.

    first: the run whose broadcasts are said again in this one, whose server receives other messages than were sent;
    None for a run that is left as it is.
    """

    def __init__(self, net: ProblemNet, first: Heard | None = None) -> None:
        self.net, self.first = net, first
        self.told: list[tuple[int, Any]] = []  # round and message, or the model
        self.sent: list[tuple[int, list[Tensor]]] = []  # round and the clients' messages
        self._down, self._down_each = net.down, net.down_each
        self._model, self._choices = net.model, net.choices
        for name in SENDING:
            setattr(net, name, self._listening(getattr(net, name)))
        vars(net).update(down=self.down, down_each=self.down_each)
        vars(net).update(model=self.model, choices=self.choices)
        if first is not None and not net.aggregate:
            vars(net)["up"] = self._distorted(net.up)

    def _listening(self, call: Any) -> Any:
        def send(message: Message) -> Any:
            self.sent.append((self.net.t, contents(message)))
            return call(message)

        return send

    def _distorted(self, call: Any) -> Any:
        def up(message: Message) -> Received:
            reply = call(message)
            others = torch.arange(self.net.B).roll(1)
            kind = PerClientReceived if isinstance(reply, PerClientReceived) else Received
            return kind(reply.message.select(others).scaled(OTHER), reply.n, reply.clock)

        return up

    def down(self, message: Message) -> Tensor:
        """Broadcast the message, or that of the first run in its place, whatever the caller does with it."""
        return self._down(self._as_said(message))

    def down_each(self, message: Message) -> Tensor:
        """Send each client its message, or that of the first run in its place."""
        return self._down_each(self._as_said(message))

    def _as_said(self, message: Message) -> Message:
        answer = self._said(message)
        if answer is not message:
            vars(message).clear()
            vars(message).update(vars(answer))
        return message

    def model(self, x: Tensor) -> Tensor:
        """Broadcast the model x, overwritten with that of the first run."""
        if self.net.aggregate:  # everyone has what the server has
            return self._model(x)
        answer = self._said(x)
        if answer is not x:
            x.copy_(answer)
        return self._model(x)

    def choices(self, x: Tensor, symbols: int) -> Tensor:
        """Broadcast integers, or those of the first run in their place."""
        return self._choices(self._said(x), symbols)

    def _said(self, now: Any) -> Any:
        """Return what is said: this, or what was said at this place in the first run."""
        at, t = len(self.told), self.net.t
        if self.first is None:
            self.told.append((t, copied(now)))
            return now
        self.told.append((t, None))
        none: tuple[int, Any] = (-1, None)
        when, said = self.first.told[at] if at < len(self.first.told) else none
        assert when == t, f"whether the server sends in round {t} depends on what it received"
        assert type(said) is type(now), f"in round {t} the server sends another kind of message"
        return copied(said)


def copied(said: Any) -> Any:
    """Return a copy of a message, or of the model."""
    if isinstance(said, Tensor):
        return said.clone()
    return said.select(torch.arange(said.lead[0]))


def contents(message: Message) -> list[Tensor]:
    """Return what a message says: what it decodes to, and who sent one."""
    sent = [leaf.present for leaf in message.leaves() if leaf.present is not None]
    return [message.decode().clone(), *(who.clone() for who in sent)]


def difference(first: Run, second: Run, heard: Heard, again: Heard) -> str:
    """Return what clients sent or keep in the second run but not in the first; nothing if all is equal."""
    for (t, ours), (_, theirs) in zip(heard.sent, again.sent):
        if not same(ours, theirs):
            return f"in round {t} clients send"
    if len(heard.sent) != len(again.sent):
        return "at times clients send"
    for name, value in first.c:
        if not same(tensors(value), tensors(dict(second.c).get(name))):
            return f"in c.{name} clients keep"
    return ""


def same(ours: Iterable[Tensor], theirs: Iterable[Tensor]) -> bool:
    """Return whether these are the same tensors bit by bit, NaN being equal to itself."""
    a, b = list(ours), list(theirs)
    return len(a) == len(b) and all(map(same_bits, a, b))


def tensors(value: Any) -> list[Tensor]:
    """Return the tensors that a value of the state holds."""
    if isinstance(value, Tensor):
        return [value]
    return [t for v in value for t in tensors(v)] if isinstance(value, list | tuple) else []


# What is sent --------------------------------------------------------------------------------------


class Spy:
    """Wraps the calls of a net that send, and packs each row of what they are given.

    bytes: cumulative packed bytes (cells,) by side, up as means per client, down the broadcast counted once or the mean
    of the clients' own messages, headers left out; messages: how many there were, an upper bound per client. by_round:
    what each client has sent up in a round, (cells, clients).
    """

    def __init__(self, net: ProblemNet) -> None:
        self.net = net
        self.bytes = {side: np.zeros(net.B) for side in ("up", "down")}
        self.messages = {"up": 0, "down": 0}
        self.by_round: dict[int, np.ndarray] = {}
        names = ["up", "all_gather", "mix", "average", "broadcast", "down_each", "charge"]
        for name in [*names, *(["deliver", "tell"] if isinstance(net, ProblemEventNet) else [])]:
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
            elif name != "up" or self.net.collective == GATHER or not combines(message):
                cells, clients = range(self.net.B), range(self.net.n)
                rows = np.array([[sent_up(message, b, i) for i in clients] for b in cells])
                if name == "down_each":
                    self._add("down", rows.mean(1), self._most(message))
                    return call(message)
                degrees = np.ones(self.net.n)
                if name == "mix":
                    assert self.net.graph is not None
                    degrees = self.net.graph.degrees.numpy()
                self._add_up(rows * degrees, int(degrees.max()) * self._most(message))
                if name == "all_gather":
                    self._add("down", rows.sum(1), self.net.n * self._most(message))
            return call(message)

        def deliver(i: int, message: Message) -> Any:
            rows = np.zeros((self.net.B, self.net.n))
            rows[:, i] = [sent_up(message, b, 0) for b in range(self.net.B)]
            self._add_up(rows, self._most(message))
            return call(i, message)

        def tell(message: Message, clients: int) -> Any:
            packed = np.array([broadcast(message, b) for b in range(self.net.B)], float)
            self._add("down", packed * clients / self.net.n, clients * self._most(message))
            return call(message, clients)

        return {"charge": charge, "deliver": deliver, "tell": tell}.get(name, send)

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
