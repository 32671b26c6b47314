"""A round in blocks of clients: its temporaries are those of a block, not of all clients.

Every block has a wire, an oracle and client state of its own, as a rank has, and the method's round runs for
one block after the other (``raybench.wire.blocks`` says how what they send is added up). All but the last work on
a copy of the server's state, which nobody looks at again. Gradients are not kept for the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from raybench.core.cells import State, copied
from raybench.core.draws import Draws, Sample
from raybench.core.facts import AlgorithmFacts
from raybench.core.parallel import wide
from raybench.core.process import give_back
from raybench.execution.net import Net, vectors_of
from raybench.execution.oracle import BlockOracle, BufferedOracle, CohortOracle, Oracle
from raybench.execution.recorder import SPREAD, Found
from raybench.execution.saved import joined, part_of
from raybench.problems.base import EVALUATED, Problem
from raybench.wire.base import Message
from raybench.wire.blocks import NOT_KEPT, Passing, Turn
from raybench.wire.collectives import GATHER, of_everyone
from raybench.wire.transport import Transport, share_of
from raybench.wire.wire import Cells, Wire

MOST_BYTES_WHOLE = 1 << 26  # of a tensor (B, n_here, d) in a round that is not cut into blocks
BYTES_OF_BLOCK = 1 << 22  # enough for threads and vector units, little beside the clients' state


def clients_at_once(problem: Problem, cells: int, facts: AlgorithmFacts) -> int | None:
    """Return how many clients of so many cells make a block, None where all take the round together.

    Blocks are for tensors (B, n_here, d) above ``MOST_BYTES_WHOLE``, where the method allows them; on the CPU,
    as they are to spare main memory.
    """
    each = cells * problem.message_dim * problem.dtype.itemsize
    whole = len(problem.clients) * each <= MOST_BYTES_WHOLE
    if whole or not facts.blocks or problem.device.type != "cpu":
        return None
    return max(1, BYTES_OF_BLOCK // each)


def allows(net: Net) -> bool:
    """Return whether the clients of a net may take a round in blocks, if the method does not mind.

    Not where messages are averaged or relayed as one, nor where the server keeps clients apart or some of them lie,
    nor where gradients leave something behind, nor a cohort, which is a block already.
    """
    if net.apart or net.poisoned is not None:
        return False
    kept = isinstance(net.oracle, BufferedOracle | BlockOracle | CohortOracle)
    return not kept and net.collective == GATHER and not net.aggregate and net.graph is None


class PartOracle(Oracle):
    """The oracle of a block: it remembers for what it was paid, but no gradient, and pays into ``main``."""

    wire: BlockNet

    def __init__(self, problem: Problem, wire: BlockNet, main: Oracle) -> None:
        self.problem, self.wire, self.main = problem, wire, main
        self.spared, self.loss_wanted, self._last = 0.0, False, None
        self._counts, self._full = main._counts, main._full

    def grad(
        self,
        x: Tensor,
        sample: Sample | None = None,
        *,
        cells: Cells | None = None,
        clients: Tensor | None = None,
    ) -> Tensor:
        """Return gradients as ``Oracle.grad`` does, and forget them."""
        grads = super().grad(x, sample, cells=cells, clients=clients)
        if self._last is not None:
            self._last.grads = None
            self._last.written = x._version, 0
        return grads

    def _pay(self, cost: float | np.ndarray, cells: Cells | None = None) -> None:
        # a number is what all clients cost, an array what those of this block do
        if isinstance(cost, np.ndarray) or self.wire.turn.last:
            self.main._pay(cost, cells)

    def _mean_over_clients(self, x: Tensor) -> np.ndarray:
        rows = self.wire.transport.gather_rows(x, len(self.wire.ids))
        return (rows.sum(1) / self.wire.n).cpu().numpy()

    def select(self, cells: Tensor) -> None:
        """Keep some cells only."""
        self._last = None


class BlockNet(Net):
    """The wire and the oracle of a block of clients. ids: the clients of the block, of all ranks."""

    oracle: PartOracle

    def __init__(self, problem: Problem, main: Net, turn: Turn, ids: Tensor) -> None:
        self.turn, self.ids, self.main = turn, ids, main
        Wire.__init__(self, vectors_of(problem), main.roots, main.transport, clock=main.clock)
        self.poisoned = None
        self.ledger = main.ledger
        self.oracle = PartOracle(problem, self, main.oracle)

    def begin(self, t: int) -> None:
        """Start round t; the ledger is begun once for all blocks."""
        Draws.begin(self, t)

    def up(self, message: Message) -> Passing:
        """Send a message per client of the block; the server adds them up block by block."""
        with self.clock.on("communicate"):
            got = self.transport.gather(message, len(self.ids), self.ids)
            self.turn.book(got, self.ledger.book_up)
        return Passing(got, self.n, self.clock, self.turn, self.ids)

    def book_each(self, message: Message) -> None:
        """Book a message of its own for every client: when all blocks have had their turn."""
        everyone = of_everyone(message, len(self.ids), self.transport)
        self.turn.book(everyone, self.ledger.book_each)

    def broadcast(self, message: Message) -> None:
        """Book a message that everyone is sent: once, when all blocks have had their turn."""
        if self.turn.last:
            super().broadcast(message)

    def charge(self, bits: float, *, down: bool = False) -> None:
        """Book raw bits of every client, or of the broadcast: once."""
        if self.turn.last:
            super().charge(bits, down=down)

    def all_gather(self, message: Message) -> NoReturn:
        raise TypeError(NOT_KEPT)

    def average(self, message: Message) -> NoReturn:
        raise TypeError(NOT_KEPT)

    def mix(self, message: Message) -> NoReturn:
        raise TypeError(NOT_KEPT)

    def oracle_mean(self, X: Tensor) -> NoReturn:
        raise TypeError(NOT_KEPT)

    def oracle_spread(self, X: Tensor) -> NoReturn:
        raise TypeError(NOT_KEPT)

    def select(self, cells: Tensor) -> None:
        """Keep some cells only, after ``main`` has done so."""
        Draws.select(self, cells)
        self.ledger = self.main.ledger
        self.oracle.select(cells)


class Blocks:
    """The clients hosted here in blocks of ``size``, with their state. main: the wire of all of them."""

    def __init__(self, main: Net, size: int) -> None:
        problem = main.oracle.problem
        self.main, self.here = main, problem.clients
        ranges = list(_ranges(main.n, main.transport, size))
        self.turn = Turn(len(ranges))
        self.nets = [
            BlockNet(problem.part(own), main, self.turn, ids.to(problem.device))
            for own, ids in ranges
        ]
        self.states = [State() for _ in self.nets]

    def run(self, work: Callable[[Net, State, State], None], s: State) -> None:
        """Do one round's work in every block; s is then what the last block has made of it."""
        for block, net in self._in_turn():
            self.turn.enter(block)
            work(net, s if self.turn.last else copied(s), self.states[block])

    @wide()
    def found(self, x: Tensor, what: frozenset[str]) -> Found:
        """Return what the problem measures at x (B, d), from sums over the blocks."""
        problem, transport, n = self.main.oracle.problem, self.main.transport, self.main.n
        values = dict(problem.evaluate(x)) if what & EVALUATED else {}
        sums: list[Tensor | None] = [None, None, None]
        for _, net in self._in_turn():
            own = _sums(net.oracle.problem, x, what - EVALUATED)
            sums = [_plus(before, more) for before, more in zip(sums, own, strict=True)]

        def mean(own: Tensor | None) -> Tensor | None:
            if own is None:
                return None
            return transport.gather_rows(own[:, None], transport.size).sum(1) / n

        return Found(mean(sums[0]), mean(sums[1]), mean(sums[2]), values)

    def _in_turn(self) -> Iterator[tuple[int, BlockNet]]:
        """Yield the blocks by number, and see to it that what they leave behind does not pile up."""
        vectors, left = self.main.vectors, 0
        each = self.main.B * vectors.dim * vectors.dtype.itemsize
        for block, net in enumerate(self.nets):
            yield block, net
            left += net.n_here * each
            if left >= MOST_BYTES_WHOLE:
                left = 0
                give_back()

    def begin(self, t: int) -> None:
        """Start round t."""
        for net in self.nets:
            net.begin(t)

    def select(self, cells: Tensor) -> None:
        """Keep some cells only, after ``main`` has done so; of the clients' state too."""
        for net in self.nets:
            net.select(cells)
        self.states = [c.select(cells) for c in self.states]

    def state(self) -> dict[str, object]:
        """Return the state of all clients here, as ``State.state``."""
        names = dict.fromkeys(name for c in self.states for name, _ in c)
        return {
            name: joined([State.of({name: vars(c)[name]}).state()[name] for c in self.states])
            for name in names
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Take over what ``state`` has returned."""
        first = self.here.start
        for j, net in enumerate(self.nets):
            own = range(net.clients.start - first, net.clients.stop - first)
            self.states[j] = State.of({name: part_of(v, own) for name, v in saved.items()})


def _plus(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Return the sum of two parts, of what is known."""
    return b if a is None else a if b is None else a + b


def _sums(problem: Problem, x: Tensor, what: frozenset[str]) -> list[Tensor | None]:
    """Return the sums over a block's clients of f_i (B,), grad f_i (B, d) and ||grad f_i||^2 (B,)."""

    def full() -> tuple[Tensor, Tensor]:
        grads, losses = problem.oracle(x)
        assert losses is not None
        return grads, losses

    found = problem.measure(x, what, full)
    loss = None if found.losses is None else found.losses.sum(1)
    if found.grads is None:
        return [loss, None, None]
    spread = found.grads.square().sum(-1).sum(1) if SPREAD in what else None
    return [loss, found.grads.sum(1), spread]


def _ranges(n: int, transport: Transport, size: int) -> Iterator[tuple[range, Tensor]]:
    """Yield the clients of each block that are here, and those of all ranks, in rank order.

    All ranks have as many blocks, and blocks of the same size but for the last, which is larger by one where
    a rank hosts one more client: so ranks differ in a block as they do in all clients (``share_of``).
    """
    ranks = [share_of(rank, transport.size, n) for rank in range(transport.size)]
    count = -(-len(ranks[-1]) // size)  # the last rank has the fewest clients
    for block in range(count):
        last = block == count - 1
        parts = [
            range(own.start + block * size, own.stop if last else own.start + (block + 1) * size)
            for own in ranks
        ]
        yield parts[transport.rank], torch.cat([torch.arange(p.start, p.stop) for p in parts])
