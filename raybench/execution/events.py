"""The event queue of asynchronous methods: who computes, sends or is away, and whose message arrives next.

A batch holds cells that share their events: one clock, one seed, one threshold. So the client that arrives is one
number, and its gradient at the points of all cells is one call of the problem. A gradient is evaluated when its message
arrives, at the point where it was begun; what a client draws depends on how often it has computed before.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

import numpy as np
from torch import Tensor

from raybench.clock.clients import AWAY, COMPUTING, SENDING, WAITING, Clients, Rounds, Span
from raybench.core.errors import InputError
from raybench.core.streams import Sample, Stream
from raybench.execution.net import Net
from raybench.problems.abilities import Trained
from raybench.problems.base import Problem
from raybench.wire import Message
from raybench.wire.dense import DenseMessage
from raybench.wire.wire import lent

ARRAYS = ("due", "kind", "began", "work", "step", "calls", "attempt", "told", "taken")
NUMBERS = ("now", "spent", "wasted", "_up_free", "_down_free")
FEW = 16  # clients up to which one after the other is faster than all at once
BLOCK = 64  # calls of a client whose seconds are drawn together


class Events:
    """n clients, each with one event ahead of it: ``due`` (n,) seconds, and what it is doing until then.

    clients: with one seed. calls: gradients of a computation. size: samples of a gradient, (n,). up, down: bytes of
    a message and of the model. Events of the same time come by the number of the client. spent, wasted: seconds that
    clients have computed, and those of them whose gradient nobody used. log: (client, kind, from, until) where it
    is wanted.
    """

    def __init__(
        self, clients: Clients, calls: int, size: np.ndarray, up: float, down: float
    ) -> None:
        n = clients.n
        self.clients, self.per, self.size, self.up, self.down = clients, calls, size, up, down
        self.due, self.began, self.work = np.full(n, np.inf), np.zeros(n), np.zeros(n)
        self.kind, self.step = np.full(n, WAITING), np.zeros(n, int)
        self.calls, self.attempt, self.told = np.zeros(n, int), np.zeros(n, int), np.full(n, -1)
        self.taken = np.zeros(n, int)  # gradients that were computed to their end
        self.now = self.spent = self.wasted = self._up_free = self._down_free = 0.0
        self._ahead: dict[int, tuple[int, np.ndarray]] = {}
        self._drops = clients.clock["dropout"] is not None and clients.clock["dropout"]["p"] > 0
        self.log: list[Span] | None = None

    def begin(self, i: int, step: int) -> bool:
        """Let client i begin a computation at the model of a server step; return whether it had to be sent."""
        start, news = self.now, self.told[i] != step
        clients = self.clients
        if news and clients.down_rate is not None:
            if clients.shared:
                self._down_free = max(self._down_free, start) + self.down / clients.down_rate[i]
                start = self._down_free + clients.latency
            else:
                start += clients.latency + self.down / clients.down_rate[i]
        self.told[i] = self.step[i] = step
        spent = sum(self._seconds(i, self.calls[i] + h) for h in range(self.per))
        self.began[i], self.work[i], self.kind[i] = start, spent, COMPUTING
        if self._drops and self._vanishes(i, spent):
            return bool(news)
        self.due[i] = start + spent
        self.calls[i] += self.per
        self.attempt[i] = 0
        return bool(news)

    def begin_all(self, who: np.ndarray, step: int) -> int:
        """Let clients ``who`` begin as ``begin`` does, in their order; return to how many the model had to be sent."""
        if len(who) <= FEW or self._drops:  # who vanishes begins by itself
            return sum(self.begin(int(i), step) for i in who)
        clients, news = self.clients, self.told[who] != step
        start = np.full(len(who), self.now)
        if clients.down_rate is not None:
            travel = self.down / clients.down_rate[who[news]]
            if clients.shared and news.any():
                travel[0] += max(self._down_free, self.now)
                arrival = np.cumsum(travel)
                self._down_free = float(arrival[-1])
                start[news] = arrival + clients.latency
            else:
                start[news] += clients.latency + travel
        calls, size = self.calls[who], self.size[who]
        spent = np.zeros(len(who))
        for h in range(self.per):
            spent += clients.once(calls[None] + h, size, who)[0]
        self.told[who] = self.step[who] = step
        self.began[who], self.work[who], self.due[who] = start, spent, start + spent
        self.kind[who] = COMPUTING
        self.calls[who] += self.per
        return int(news.sum())

    def _vanishes(self, i: int, spent: float) -> bool:
        """Return whether client i vanishes in the middle of what it has begun; it then comes back later."""
        count, attempt, who = self.calls[i : i + 1], int(self.attempt[i]), slice(i, i + 1)
        if not self.clients.vanishes(count, attempt, who)[0, 0]:
            return False
        self.work[i] = spent * self.clients.place(count, attempt, who)[0, 0]
        self.due[i] = self.began[i] + self.work[i] + self.clients.clock["dropout"]["back_after"]
        self.kind[i] = AWAY
        self.attempt[i] += 1
        return True

    def _seconds(self, i: int, count: int) -> float:
        """Return the seconds of one gradient of client i."""
        block, place = divmod(int(count), BLOCK)
        if i not in self._ahead or self._ahead[i][0] != block:
            counts = np.arange(block * BLOCK, (block + 1) * BLOCK)[:, None]
            seconds = self.clients.once(counts, self.size[i], slice(i, i + 1))[:, 0]
            self._ahead[i] = block, seconds
        return float(self._ahead[i][1][place])

    def next(self) -> tuple[int, bool]:
        """Go on to the next event: the client, and whether its message arrives; else it is back, to begin anew."""
        while True:
            i = int(self.due.argmin())
            self.now, kind = float(self.due[i]), self.kind[i]
            if kind == AWAY:
                self._done(i, self.began[i] + self.work[i], wasted=True)
                return i, False
            if kind == SENDING:
                self._note(i, SENDING, self.began[i] + self.work[i], self.now)
                return i, True
            assert kind == COMPUTING, "no client computes: a method let all of them wait"
            self._done(i, self.now)
            self.taken[i] += self.per
            if self.clients.up_rate is None:
                return i, True
            travel = self.up / self.clients.up_rate[i]
            if self.clients.shared:
                self._up_free = max(self._up_free, self.now) + travel
                self.due[i] = self._up_free + self.clients.latency
            else:
                self.due[i] = self.now + self.clients.latency + travel
            self.kind[i] = SENDING

    def wait(self, i: int) -> None:
        """Let client i wait: it is not to begin anew by itself."""
        self.due[i], self.kind[i] = np.inf, WAITING

    def ignored(self, i: int) -> None:
        """Count what client i has computed as thrown away."""
        self.wasted += self.work[i]
        self._note(i, AWAY, self.began[i], self.began[i] + self.work[i])

    def stop_old(self, limit: int, step: int) -> np.ndarray:
        """Stop computations at models of ``limit`` steps or more ago, and throw them away as far as they have come.

        Return whose they were, and who waits.
        """
        some = np.flatnonzero((self.step <= step - limit) | (self.kind == WAITING))
        if not len(some):  # as a rule
            return some
        some = some[(self.kind[some] == COMPUTING) | (self.kind[some] == WAITING)]
        who = some[self.kind[some] == COMPUTING]
        until = np.maximum(self.now, self.began[who])
        spent = float((until - self.began[who]).sum())
        self.spent, self.wasted = self.spent + spent, self.wasted + spent
        if self.log is not None:
            for i, end in zip(who, until, strict=True):
                self._note(int(i), AWAY, self.began[i], end)
        self.due[who], self.kind[who] = np.inf, WAITING
        return some

    def _done(self, i: int, until: float, wasted: bool = False) -> None:
        if self.kind[i] == WAITING:
            return
        spent = until - self.began[i]
        self.spent += spent
        self.wasted += spent if wasted else 0.0
        self._note(i, AWAY if wasted else COMPUTING, self.began[i], until)

    def _note(self, i: int, kind: int, start: float, until: float) -> None:
        if self.log is not None and until > start:
            self.log.append((i, kind, start, until))

    def columns(self, cells: int) -> dict[str, np.ndarray]:
        """Return what a row of so many cells records."""
        values = {
            "clock_seconds": self.now,
            "worker_seconds": self.spent,
            "worker_seconds_wasted": self.wasted,
        }
        return {name: np.full(cells, value) for name, value in values.items()}

    def state(self) -> dict[str, np.ndarray]:
        """Return what a run that goes on elsewhere must know."""
        arrays = {name: getattr(self, name).copy() for name in ARRAYS}
        return {**arrays, **{name: np.array(getattr(self, name)) for name in NUMBERS}}

    def load(self, saved: Mapping[str, np.ndarray]) -> None:
        """Go on from what ``state`` returned."""
        for name in ARRAYS:
            setattr(self, name, saved[name].copy())
        for name in NUMBERS:
            setattr(self, name, float(saved[name]))


class EventNet(Net):
    """The wire and the oracle of clients that do not wait for each other; all of them are hosted here."""

    events: Events

    def __init__(self, problem: Problem, roots: Stream, rounds: Rounds) -> None:
        super().__init__(problem, roots)
        self._clients = rounds.clients.select(np.array([0]))  # cells share their seed
        # the problem of each client alone, and the same as a network, where it is one
        self._alone: dict[int, tuple[Problem, Trained | None]] = {}
        self._drawn: dict[int, tuple[int, Tensor]] = {}

    @property
    def simulated(self) -> Clients:
        """Return the simulated clients."""
        return self._clients

    @property
    def timing(self) -> Events:
        """Return the event queue, made as the method is set up."""
        return self.events

    def end_round(self) -> None:
        """End a round: the clock goes on by events."""

    def prepare(self, calls: int, batch: object, message: Message) -> None:
        """Make the event queue of a method: its gradients per message, their samples, and a message (1, 1) of it.

        Raises InputError where messages differ in length and travel over a link.
        """
        problem, bytes_up = self.oracle.problem, message.cost.bytes
        if isinstance(bytes_up, Tensor) and self.simulated.up_rate is not None:
            what = "messages of this compressor differ in length with their values, so that cells would not share their events"
            raise InputError.of("clock.link", what, "a compressor of fixed length, or no link")
        n = problem.n
        full = np.asarray(problem.samples, float)
        size = np.full(n, float(batch)) if isinstance(batch, int) else full
        model = float(lent(self.zero()).cost.bytes)
        up = 0.0 if isinstance(bytes_up, Tensor) else float(bytes_up)
        self.events = Events(self.simulated, calls, size, up, model)
        self._size, self._first = size, self.roots[:1].fold("round")
        self._fixed = None if message.cost.varies else np.array(message.cost, float) / n
        self._model = lent(self.zero())
        self._model_cost = np.array(self._model.cost, float)[:, None] / n

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
        sample = None
        if isinstance(batch, int):
            sample = self._sample(i, int(self.events.taken[i]) - back, batch)
        alone, network = self._alone[i]
        if sample is not None and network is not None:
            grads, losses, _ = network.sampled(x[:, None], sample, {})
            self.oracle.hear(losses, at=slice(i, i + 1))
        else:
            grads = alone.grad(x[:, None], sample)
        self.clock.gradient += perf_counter() - began
        self.oracle.evals += self._size[i] / self.n
        return self.oracle.clipped(grads, x)[:, 0]

    def _sample(self, i: int, count: int, size: int) -> Sample:
        """Return the minibatch of client i in its call of that number, the same for all cells, which share their seed.

        It is that of the round of this number in a method whose clients wait for each other.
        """
        block, place = divmod(count, BLOCK)
        if self._drawn.get(i, (-1, None))[0] != block:
            rounds = self.roots[:1].fold("round").each(range(block * BLOCK, (block + 1) * BLOCK))
            source = Stream(rounds.keys[0]).fold("batch").each([i])
            self._drawn[i] = block, source.integers(size, self.oracle.samples[i : i + 1])
        indices = self._drawn[i][1][place].expand(self.B, -1, -1)
        path = self._first.fold(count).fold("batch").fold("sample")
        return Sample(indices, path.each(self._ids[i : i + 1]))

    def deliver(self, i: int, message: Message) -> Tensor:
        """Book the message (B, 1) of client i, and return what the server decodes, (B, d)."""
        with self.clock.on("communicate"):
            if self._fixed is None:
                self.ledger.book_one(message, i, self.n)
            else:
                self.ledger.book_fixed(self._fixed, i, self.n)
            if isinstance(message, DenseMessage) and message.scale == 1.0:
                return message.values[:, 0]  # nobody writes to it, so that it need not be copied
            return message.decode()[:, 0]

    def begin_computing(self, i: int, step: int) -> None:
        """Let client i begin a computation at the model of that step, which it is sent if it has another one."""
        if self.events.begin(i, step):
            self.tell(self._model)

    def begin_all(self, who: np.ndarray, step: int) -> None:
        """Let clients ``who`` begin a computation each at the model of that step."""
        self.tell(self._model, self.events.begin_all(who, step))

    def tell(self, model: Message, clients: int = 1) -> None:
        """Book the model (B,) that so many clients are sent, whose length is always the same."""
        self.ledger.down += self._model_cost * clients
