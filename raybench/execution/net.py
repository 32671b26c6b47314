"""``net``: the wire and the oracle in one, as methods with a round of their own see them."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from raybench.clock.clients import Rounds, SimulatedClock
from raybench.clock.events import BLOCK, Events
from raybench.core.cells import PerCell
from raybench.core.counts import GATHER, SERVER
from raybench.core.errors import InputError
from raybench.core.streams import Sample, Stream
from raybench.execution.oracle import oracle_for
from raybench.problems.abilities import Labelled, Trained
from raybench.problems.base import Problem
from raybench.wire import Message
from raybench.wire.dense import DenseMessage
from raybench.wire.ledger import COLUMNS
from raybench.wire.neighbours import Mixing
from raybench.wire.transport import Transport
from raybench.wire.wire import BookedWire, Cells, Vectors, dense_view


def vectors_of(problem: Problem) -> Vectors:
    """Return what the vectors of a problem's clients are like."""
    p = problem
    return Vectors(p.n, p.clients, p.layout, p.message_dim, p.dtype, p.device)


class ProblemNet(BookedWire):
    """The wire of B cells between the clients of ``problem``, and its oracle.

    Arguments as those of ``BookedWire``; ``oracle`` has what methods seldom ask for.
    """

    def __init__(
        self,
        problem: Problem,
        roots: Stream,
        transport: Transport | None = None,
        graph: Mixing | None = None,
        aggregate: bool = False,
        collective: str = GATHER,
    ) -> None:
        vectors = vectors_of(problem)
        super().__init__(vectors, roots, transport, graph, aggregate, collective=collective)
        self.oracle = oracle_for(problem, self)
        self.poisoned: Poisoned | None = None

    def grad(
        self,
        x: Tensor,
        sample: Sample | None = None,
        *,
        cells: Cells | None = None,
        clients: Tensor | None = None,
    ) -> Tensor:
        """Return grad f_i(x) of the clients here, (B, n_here, d): see ``CountedOracle.grad``."""
        grads = self.oracle.grad(x, sample, cells=cells, clients=clients)
        if self.poisoned is None:
            return grads
        return self.poisoned.replaced(grads, x, sample, cells)

    def sample(self, purpose: str, size: int) -> Sample:
        """Return a minibatch of so many samples per client, drawn with replacement."""
        return self.oracle.sample(purpose, size)

    def prox(self, v: Tensor, gamma: PerCell) -> Tensor:
        """Return prox_{gamma penalty}(v) of the problem's nonsmooth part."""
        return self.oracle.prox(v, gamma)

    def oracle_mean(self, X: Tensor) -> Tensor:
        """Return the mean over all clients of X (B, n_here, d): for the record only, never booked."""
        return self.transport.gather_rows(X, self.n).mean(1)

    def oracle_spread(self, X: Tensor) -> Tensor:
        """Return mean_i ||x_i - mean x||^2, (B,), of X (B, n_here, d): for the record, never booked."""
        everyone = self.transport.gather_rows(X, self.n)
        return (everyone - everyone.mean(1, keepdim=True)).square().sum(-1).mean(-1)

    @property
    def timing(self) -> SimulatedClock | None:
        """Return the simulated clock, None where there is none."""
        return self.oracle.rounds

    def end_round(self) -> None:
        """End a round on the simulated clock, if there is one."""
        if self.oracle.rounds is not None:
            down = self.ledger.down[COLUMNS.index("bytes")]
            self.oracle.rounds.end(self.ledger.bytes_of_round(self.n), down)

    def select(self, cells: Tensor) -> None:
        """Keep some cells only."""
        super().select(cells)
        self.oracle.select(cells)


class Poisoned:
    """The last ``count`` of n clients see the labels of ``problem`` turned around; what f is stays as it is."""

    def __init__(self, problem: Problem, count: int) -> None:
        here = problem.clients
        bad = range(max(here.start, problem.n - count), here.stop)
        self.honest = len(here) - len(bad)
        self.problem: Problem | None = None
        if len(bad):
            part = problem.host(bad)
            assert isinstance(part, Labelled)
            self.problem = part.flipped()

    def replaced(
        self, grads: Tensor, x: Tensor, sample: Sample | None, cells: Cells | None
    ) -> Tensor:
        """Return the gradients (B, n_here, d) at x with those of these clients on wrong labels."""
        if self.problem is None:
            return grads
        some = slice(None) if cells is None else cells
        at = x[some] if x.ndim == 2 else x[some][:, self.honest :]
        rows = None if sample is None else sample[some].of(slice(self.honest, None))
        return torch.cat((grads[:, : self.honest], self.problem.grad(at, rows)), 1)


class ProblemEventNet(ProblemNet):
    """The wire and the oracle of clients that do not wait for each other; all of them are hosted here.

    A gradient is evaluated when its message arrives, at the point where it was begun. The client that arrives is the
    same for all cells, so its gradient at the points of all is one call of the problem.
    """

    events: Events

    def __init__(self, problem: Problem, roots: Stream, rounds: Rounds) -> None:
        super().__init__(problem, roots)
        self._clients = rounds.clients.select(np.array([0]))  # cells share their seed
        # the problem of each client alone, and the same as a network, where it is one
        self._alone: dict[int, tuple[Problem, Trained | None]] = {}
        self._drawn: dict[int, tuple[int, Sample]] = {}

    @property
    def timing(self) -> SimulatedClock:
        """Return the event queue, made as the method is set up."""
        return self.events

    def end_round(self) -> None:
        """End a round: the clock goes on by events."""

    def prepare(self, calls: int, batch: object, message: Message) -> None:
        """Make the event queue of a method: its gradients per message, their samples, and a message (1, 1) of it.

        Raises InputError where messages differ in length and travel over a link.
        """
        problem, bytes_up = self.oracle.problem, message.cost.bytes
        if isinstance(bytes_up, Tensor) and self._clients.up_rate is not None:
            what = "messages of this compressor differ in length with their values, so that cells would not share their events"
            raise InputError.of("clock.link", what, "a compressor of fixed length, or no link")
        size = np.asarray(batch if isinstance(batch, int) else problem.samples, float)
        size, self._model = np.broadcast_to(size, (self.n,)), dense_view(self.zero())
        self._share = (size / self.n).tolist()  # of a call, in gradients of all clients
        cost = self._model.cost
        up = 0.0 if isinstance(bytes_up, Tensor) else float(bytes_up)
        self.events = Events(self._clients, calls, size, up, float(cost.bytes))
        self.ledger.exchanged(SERVER)
        self._fixed = None if message.cost.varies else np.array(message.cost, float) / self.n
        self._model_cost = np.array(cost, float)[:, None] / self.n

    def call_stream(self, purpose: str, i: int, back: int = 0) -> Stream:
        """Return the stream (B, 1) of client i's latest computation, as the round of that number has it."""
        count = int(self.events.taken[i]) - back
        return self.roots.fold("round").fold(count).fold(purpose).each([i])

    def grad_of(self, i: int, x: Tensor, batch: object = None, back: int = 0) -> Tensor:
        """Return the gradient (B, d) of client i at x (B, d), of ``batch`` samples or all of them.

        back: which call of its computation, counted from the last one.
        """
        began = perf_counter()
        if i not in self._alone:
            hosted = self.oracle.problem.host(range(i, i + 1))
            self._alone[i] = hosted, hosted if isinstance(hosted, Trained) else None
        alone, network = self._alone[i]
        sample = None
        if isinstance(batch, int):
            sample = self._sample(i, int(self.events.taken[i]) - back, batch)
        if sample is not None and network is not None:
            grads, losses, _ = network.gradients(x[:, None], sample, {})
            self.oracle.note_losses(losses, at=slice(i, i + 1))
        else:
            grads = alone.grad(x[:, None], sample)
        self.clock.gradient += perf_counter() - began
        self.oracle.evals += self._share[i]
        return self.oracle.clipped(grads, x)[:, 0]

    def _sample(self, i: int, count: int, size: int) -> Sample:
        """Return the minibatch of client i in its call of that number, the same for all cells, which share their seed.

        It is that of the round of this number in a method whose clients wait for each other.
        """
        block, place = divmod(count, BLOCK)
        if self._drawn.get(i, (-1, None))[0] != block:
            rounds = self.roots[:1].fold("round").each(range(block * BLOCK, (block + 1) * BLOCK))
            source = Stream(rounds.keys[0]).fold("batch").each([i])
            self._drawn[i] = block, Sample.drawn(source, size, self.oracle.samples[i : i + 1])
        drawn, here = self._drawn[i][1], slice(place, place + 1)
        return Sample(drawn.indices[here].expand(self.B, -1, -1), drawn.stream[here])

    def deliver(self, i: int, message: Message) -> Tensor:
        """Book the message (B, 1) of client i, and return what the server decodes, (B, d)."""
        began = perf_counter()
        if self._fixed is None:
            self.ledger.book_one(message, i, self.n)
        else:
            self.ledger.book_fixed(self._fixed, i, self.n)
        if isinstance(message, DenseMessage) and message.scale == 1.0:
            decoded = message.values  # nobody writes to it, so that it need not be copied
        else:
            decoded = message.decode()
        self.clock.communicate += perf_counter() - began
        return decoded[:, 0]

    def begin_computing(self, who: np.ndarray, step: int) -> None:
        """Let clients ``who`` begin a computation each at the model of that step; book it for those that lack it."""
        self.tell(self._model, self.events.begin(who, step))

    def tell(self, model: Message, clients: int) -> None:
        """Book the model (B,) that so many clients are sent, whose length is always the same."""
        self.ledger.down += self._model_cost * clients
