"""Whether a method's clients use nothing of the server's but what messages have carried.

The method runs twice with the same seeds. In the second run the server receives other messages than the
clients have sent, and everything that it broadcasts is replaced by what it broadcast in the first run.
Clients are told the same in both, so all that they send and keep must be the same. It differs where a value of
the server's reached them in another way than by a message that was booked, whichever way that is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from raybench.execution.net import Net
from raybench.execution.run import Run
from raybench.wire import Message
from raybench.wire.wire import Each, Received

OTHER = -1.5  # times another cell's messages: what the server receives in the second run
SENDING = ("up", "all_gather", "mix", "average")


class Heard:
    """What the clients of a run are told, and what they send, in order.

    first: the run whose broadcasts are said again in this one, whose server receives other messages than were sent;
    None for a run that is left as it is.
    """

    def __init__(self, net: Net, first: Heard | None = None) -> None:
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
            got = call(message)
            others = torch.arange(self.net.B).roll(1)
            kind = Each if isinstance(got, Each) else Received
            return kind(got.message.select(others).scaled(OTHER), got.n, got.clock)

        return up

    def down(self, message: Message) -> Tensor:
        """Broadcast the message, or that of the first run in its place, whatever the caller does with it."""
        return self._down(self._as_said(message))

    def down_each(self, message: Message) -> Tensor:
        """Send each client its message, or that of the first run in its place."""
        return self._down_each(self._as_said(message))

    def _as_said(self, message: Message) -> Message:
        said = self._said(message)
        if said is not message:
            vars(message).clear()
            vars(message).update(vars(said))
        return message

    def model(self, x: Tensor) -> Tensor:
        """Broadcast the model x, overwritten with that of the first run."""
        if self.net.aggregate:  # everyone has what the server has
            return self._model(x)
        said = self._said(x)
        if said is not x:
            x.copy_(said)
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
    return len(a) == len(b) and all(
        x.shape == y.shape and bool(((x == y) | ((x != x) & (y != y))).all()) for x, y in zip(a, b)
    )


def tensors(value: Any) -> list[Tensor]:
    """Return the tensors that a value of the state holds."""
    if isinstance(value, Tensor):
        return [value]
    return [t for v in value for t in tensors(v)] if isinstance(value, list | tuple) else []
