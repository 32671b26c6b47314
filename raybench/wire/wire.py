"""The wire: everything that clients and server send each other, booked as it is sent.

It knows vectors and messages, no problem: a sweep's round loop and a training loop of a user's own
give methods the same wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import torch
from torch import Tensor

from raybench.core.counts import GATHER, MIX, Clock
from raybench.core.layout import Layout
from raybench.core.streams import Stream, StreamDraws
from raybench.wire import collectives
from raybench.wire.base import Message
from raybench.wire.bitpack import width_of
from raybench.wire.compound import CasesMessage, FlaggedMessage
from raybench.wire.dense import DenseMessage
from raybench.wire.ledger import Ledger
from raybench.wire.neighbours import Mixing, Neighbours
from raybench.wire.transport import Transport

NOT_APART = (
    "the server keeps clients apart: a method that takes more than means does not say robust=True"
)
NOT_KNOWN = "messages were averaged on the way: a method that needs more says averaged=False"


@dataclass(frozen=True)
class Received:
    """The messages of all n clients, in client order. clock: what adding them up is counted on."""

    message: Message
    n: int
    clock: Clock

    def _together(self) -> Message:
        """Return the messages where they may be combined. Raises TypeError elsewhere."""
        return self._apart()

    def _apart(self) -> Message:
        """Return the messages where each may be looked at. Raises TypeError elsewhere."""
        return self.message

    def sum(self) -> Tensor:
        """Return the sum over clients, (B, d)."""
        with self.clock.on("communicate"):
            return self._together().sum_clients()

    def mean(self) -> Tensor:
        """Return the mean over all n clients, absent ones as zero, (B, d)."""
        return self.sum().div_(self.n)

    def mean_sent(self, weights: Tensor | None = None) -> Tensor:
        """Return the mean over the clients that sent something, (B, d); zero where none did.

        weights: (n,) or (B, n), positive; equal by default.
        """
        who = self._together().present
        if weights is not None:
            w = weights.expand(self.message.lead) if who is None else weights * who
            return self.weighted(w / w.sum(1, keepdim=True).clamp(min=weights.min()))
        total = self.sum()
        if who is None:
            return total.div_(self.n)
        return total.div_(who.sum(1, keepdim=True).clamp(min=1))

    def mean_of_senders(self) -> Tensor:
        """Return, coordinate by coordinate, the mean over the clients that sent it, (B, d).

        Zero where none did. Sent is what a sparse message lists; of other kinds, what is not zero.
        """
        with self.clock.on("communicate"):
            return self._together().mean_of_senders()

    def weighted(self, w: Tensor) -> Tensor:
        """Return sum_i w_i m_i, (B, d), for weights (B, n)."""
        with self.clock.on("communicate"):
            values = self._together().decode()
        return (w[..., None] * values).sum(1)

    def decode(self) -> Tensor:
        """Return every client's decoded message, (B, n, d)."""
        with self.clock.on("communicate"):
            return self._apart().decode()

    @property
    def flags(self) -> Tensor:
        """Return the flags of ``choose``, bool (B, n). Raises TypeError for messages without flags."""
        message = self._apart()
        if not isinstance(message, FlaggedMessage):
            raise TypeError(f"a {type(message).__name__} has no flags: send what choose() makes")
        return message.flags


class PerClientReceived(Received):
    """The messages of all n clients, of which the server takes no mean: it goes on with each by itself.

    What a method makes of a mean by sums and multiples it then makes of every client's part, so that in the
    end it holds an estimate of each (B, n, d). What else could be asked of messages raises TypeError.
    """

    def mean(self) -> Tensor:
        """Return every client's message, absent ones as zero, (B, n, d)."""
        return self.decode()

    def _together(self) -> NoReturn:
        raise TypeError(NOT_APART)


@dataclass(frozen=True)
class Averaged(Received):
    """What everyone holds where messages were averaged on the way: ``average`` (B, d), over all n clients.

    message: what the clients here sent. Who sent what is not known: what else could be asked of messages
    that were gathered raises TypeError.
    """

    average: Tensor

    def sum(self) -> Tensor:
        """Return the sum over clients, (B, d)."""
        return self.average * self.n

    def mean(self) -> Tensor:
        """Return the mean over all n clients, absent ones as zero, (B, d)."""
        return self.average

    def _apart(self) -> NoReturn:
        raise TypeError(NOT_KNOWN)


Cells: TypeAlias = Tensor | slice  # some cells: their indices, or all of them


@dataclass(frozen=True)
class Vectors:
    """What vectors are like: n clients of which ``clients`` are hosted here, a layout of tensors.

    dim: length of what clients send, that of the layout unless features are split over clients.
    """

    n: int
    clients: range
    layout: Layout
    dim: int
    dtype: torch.dtype
    device: torch.device


class BookedWire(StreamDraws):
    """The wire of B cells, and the round's random numbers.

    roots: one stream per cell (B,), from the cell's seed. graph: for methods without a server.
    aggregate: the server broadcasts the sum of what it receives, charged by its union. collective: how
    messages become a mean: gathered by a server, or averaged on the way, so that everyone has it. per_client:
    the server takes no mean of what it gathers, but goes on with every client by itself.
    """

    per_client: bool = False

    def __init__(
        self,
        vectors: Vectors,
        roots: Stream,
        transport: Transport | None = None,
        graph: Mixing | None = None,
        aggregate: bool = False,
        clock: Clock | None = None,
        collective: str = GATHER,
    ) -> None:
        self.ledger = Ledger(len(roots.root))
        super().__init__(roots, vectors.clients, vectors.n)
        self.vectors, self.graph, self.collective = vectors, graph, collective
        self.aggregate = aggregate or collective != GATHER
        self.layout = vectors.layout
        self.transport = transport or Transport()
        self.clock = clock or Clock()
        here = slice(self.clients.start, self.clients.stop)
        self._neighbours = None if graph is None else Neighbours(graph.W[here])

    def begin(self, t: int) -> None:
        """Start round t: its draws are derived from it, and the ledger books it apart."""
        super().begin(t)
        self.ledger.begin()

    def zeros(self) -> Tensor:
        """Return zeros of the shape of what the clients here send, (B, n_here, d)."""
        return self._zeros(self.B, self.n_here, self.vectors.dim)

    def zero(self) -> Tensor:
        """Return zeros of the shape of what the server sends, (B, d)."""
        return self._zeros(self.B, self.vectors.dim)

    def server_zeros(self) -> Tensor:
        """Return zeros of the shape of what the server adds up of the clients' messages.

        (B, d) for their mean, (B, n, d) where it keeps clients apart.
        """
        lead = (self.B, self.n) if self.per_client else (self.B,)
        return self._zeros(*lead, self.vectors.dim)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.vectors.dtype, device=self.vectors.device)

    def up(self, message: Message) -> Received:
        """Send a message per client to the server; everyone learns what the server received.

        By another collective than ``gather`` everyone learns the mean alone.
        """
        if self.collective != GATHER and collectives.combines(message):
            return Averaged(message, self.n, self.clock, self.average(message))
        with self.clock.on("communicate"):
            got = self.transport.gather(message, self.n)
            self.ledger.book_up(got, GATHER)
            if self.aggregate:
                self.ledger.book_union(got)
        return (PerClientReceived if self.per_client else Received)(got, self.n, self.clock)

    def all_gather(self, message: Message) -> Received:
        """Send a message per client to all others: everyone is sent all of them, and may use what they say.

        Booked down is what all have sent, once, or where the server broadcasts the sum, the union.
        """
        with self.clock.on("communicate"):
            got = self.transport.gather(message, self.n)
            self.ledger.book_up(got, GATHER)
            if self.aggregate:
                self.ledger.book_union(got)
            else:
                self.ledger.book_all(got)
        return Received(got, self.n, self.clock)

    def average(self, message: Message) -> Tensor:
        """Average messages on the way: their mean over all clients (B, d), which everyone is sent."""
        with self.clock.on("communicate"):
            sent = collectives.of_everyone(message, self.n, self.transport)
            self.ledger.book_up(sent, collectives.exchange_of(message))
            mean, answer = collectives.average(message, self.n, self.transport, self.clock)
            self.broadcast(answer)
        return mean

    def broadcast(self, message: Message) -> None:
        """Book a message (B,) that everyone is sent."""
        self.ledger.book_down(message)

    def down(self, message: Message) -> Tensor:
        """Broadcast the server's message (B,) and return what the clients decode, (B, d)."""
        with self.clock.on("communicate"):
            self.broadcast(message)
            return message.decode()

    def down_each(self, message: Message) -> Tensor:
        """Send each client here a message of its own, (B, n_here); return what they decode, (B, n_here, d).

        Every rank has the server's state and makes the messages of its own clients. What all clients are sent is
        booked, as the mean over them.
        """
        with self.clock.on("communicate"):
            self.book_each(message)
            return message.decode()

    def book_each(self, message: Message) -> None:
        """Book the messages that the clients here are sent, and those of the others."""
        self.ledger.book_each(collectives.of_everyone(message, self.n, self.transport))

    def model(self, x: Tensor) -> Tensor:
        """Broadcast the model x (B, d) as it is and return what the clients hold: x, not a copy.

        Costs nothing where everyone has what the server would receive (``aggregate``): clients step
        themselves.
        """
        if not self.aggregate:
            self.broadcast(dense_view(x))
        return x

    def choices(self, x: Tensor, symbols: int) -> Tensor:
        """Broadcast integers x (B, m) in [0, symbols), ceil(log2 symbols) bits each; return what clients hold.

        Raises ValueError where x holds anything else.
        """
        if x.is_floating_point() or bool(((x < 0) | (x >= symbols)).any()):
            raise ValueError(f"choices are integers from 0 to {symbols - 1}")
        self.charge(x.shape[-1] * width_of(symbols), down=True)
        return x

    def mean(self, x: Tensor, cells: Cells | None = None) -> Tensor:
        """All-reduce: dense values (B, n_here, ...) up, their mean (B, ...) down; zeros but of ``cells``."""
        return self.means([x], cells)[0]

    def means(self, tensors: Sequence[Tensor], cells: Cells | None = None) -> list[Tensor]:
        """Return the means of several tensors as ``mean`` does, in one exchange of one message.

        Nothing is sent where there are none.
        """
        if not tensors:
            return []
        flat = [x.reshape(*x.shape[:2], -1) for x in tensors]
        message: Message = dense_view(torch.cat(flat, -1) if len(flat) > 1 else flat[0])
        if cells is not None:
            those = torch.zeros(self.B, dtype=torch.bool, device=flat[0].device)
            those[cells] = True
            message = message.masked(those[:, None].expand(message.lead))
        pieces = self.average(message).split([x.shape[-1] for x in flat], -1)
        pairs = zip(pieces, tensors, strict=True)
        return [piece.reshape(self.B, *x.shape[2:]) for piece, x in pairs]

    def mix(self, message: Message) -> Tensor:
        """Send to the neighbours; return sum_j W_ij decode(m_j) of the clients here, (B, n_here, d).

        Raises RuntimeError for a method that was not declared ``decentralised``: it has no graph.
        """
        if self.graph is None or self._neighbours is None:
            raise RuntimeError("there is no graph: declare the method with decentralised=True")
        with self.clock.on("communicate"):
            got = self.transport.gather(message, self.n)
            self.ledger.book_up(got, MIX, self.graph.degrees)
            return self._neighbours.mixed(got.decode())

    def cases(
        self, coin: Tensor, yes: Callable[[Cells], Message], no: Callable[[Cells], Message]
    ) -> Message:
        """Return the message in which cells with the coin send ``yes(cells)``, the others ``no``."""
        if bool(coin.all()):
            return yes(slice(None))
        if not bool(coin.any()):
            return no(slice(None))
        cells = [torch.nonzero(coin).flatten(), torch.nonzero(~coin).flatten()]
        parts = [yes(cells[0]), no(cells[1])]
        return CasesMessage(parts[0].d, parts[0].dtype, cells, parts)

    def compressing(self) -> AbstractContextManager[None]:
        """Return a block whose time is that of a compressor, for methods that have none and compress themselves."""
        return self.clock.on("compress")

    def charge(self, bits: float, *, down: bool = False) -> None:
        """Book raw bits that every client sends (or the server broadcasts) beside its messages."""
        self.ledger.charge(bits, down)

    def select(self, cells: Tensor) -> None:
        """Keep some cells only."""
        super().select(cells)
        self.ledger = self.ledger.select(cells.cpu().numpy())


def dense_view(values: Tensor) -> DenseMessage:
    """Return a dense message that is only booked and added up, so that it need not copy its values."""
    return DenseMessage(values.shape[-1], values.dtype, values)
