"""The event queue of asynchronous methods: who computes, sends or is away, and whose message arrives next.

A batch holds cells that share their events: one clock, one seed, one threshold. So the client that arrives is one
number. What a client draws depends on how often it has computed before.
"""

from __future__ import annotations

import numpy as np

from raybench.clock.clients import AWAY, COMPUTING, SENDING, WAITING, Array, Clients, SimulatedClock

BLOCK = 64  # calls of a client whose seconds are drawn together


class Events(SimulatedClock):
    """n clients, each with one event ahead of it: ``due`` (n,) seconds, and what it is doing until then.

    clients: with one seed. calls: gradients of a computation. size: samples of a gradient, (n,). up, down: bytes of
    a message and of the model. Events of the same time come by the number of the client. spent, wasted: seconds that
    clients have computed, and those of them whose gradient nobody used.
    """

    remembered = (
        *("due", "kind", "began", "work", "step", "calls", "attempt", "taken"),
        *("now", "spent", "wasted", "up_free", "down_free"),
    )

    def __init__(self, clients: Clients, calls: int, size: Array, up: float, down: float) -> None:
        n = clients.n
        self.clients, self.per, self.size, self.up, self.down = clients, calls, size, up, down
        self.due, self.began, self.work = np.full(n, np.inf), np.zeros(n), np.zeros(n)
        self.kind, self.step = np.full(n, WAITING), np.full(n, -1)
        self.calls, self.attempt = np.zeros(n, int), np.zeros(n, int)
        self.taken = np.zeros(n, int)  # gradients that were computed to their end
        self.now = self.spent = self.wasted = self.up_free = self.down_free = 0.0
        # seconds of the calls of a block of each client
        self._block, self._seconds = np.full(n, -1), np.empty((n, BLOCK))

    def begin(self, who: Array, step: int) -> int:
        """Let clients ``who`` begin a computation at the model of a server step, in their order.

        Return to how many of them the model had to be sent: to those that have another one.
        """
        clients, news = self.clients, self.step[who] != step
        start: float | Array = self.now
        if clients.down_rate is not None and news.any():
            start = np.full(len(who), self.now)
            travel = self.down / clients.down_rate[who[news]]
            if clients.shared:  # one copy after the other
                travel[0] += max(self.down_free, self.now)
                travel = np.cumsum(travel)
                self.down_free = float(travel[-1])
                start[news] = travel + clients.latency
            else:
                start[news] += clients.latency + travel
        each = [self._spent(who, self.calls[who] + h) for h in range(self.per)]
        spent = sum(each[1:], each[0])
        self.step[who] = step
        self.began[who], self.work[who], self.due[who] = start, spent, start + spent
        self.kind[who] = COMPUTING
        if clients.leave:
            self._vanish(who, each)
            who = who[self.kind[who] == COMPUTING]
            self.attempt[who] = 0
        self.calls[who] += self.per
        return int(np.count_nonzero(news))

    def _vanish(self, who: Array, each: list[Array]) -> None:
        """Let those of clients ``who`` go that vanish in one of their calls, of ``each`` so many seconds; they come back."""
        attempt, gone = self.attempt[who], np.zeros(len(who), bool)
        for h, seconds in enumerate(each):
            count = self.calls[who] + h
            goes = self.clients.vanishes(count, attempt, who)[0] & ~gone
            until = sum(each[:h], 0.0) + seconds * self.clients.place(count, attempt, who)[0]
            self.work[who[goes]] = until[goes]
            gone |= goes
        away = who[gone]
        self.kind[away] = AWAY
        self.due[away] = self.began[away] + self.work[away] + self.clients.back_after
        self.attempt[away] += 1

    def _spent(self, who: Array, calls: Array) -> Array:
        """Return the seconds of one gradient of each of the clients ``who``, in the calls of these numbers."""
        block, place = np.divmod(calls, BLOCK)
        new = self._block[who] != block
        if np.count_nonzero(new):
            some = who[new]
            counts = block[new] * BLOCK + np.arange(BLOCK)[:, None]
            self._seconds[some] = self.clients.once(counts, self.size[some], some).T
            self._block[some] = block[new]
        return self._seconds[who, place]

    def next(self) -> tuple[int, bool]:
        """Go on to the next event: the client, and whether its message arrives; else it is back, to begin anew."""
        while True:
            i = int(self.due.argmin())
            self.now, kind = float(self.due[i]), self.kind[i]
            done = self.began[i] + self.work[i]
            if kind == SENDING:
                self._note(i, SENDING, done, self.now)
                return i, True
            assert kind != WAITING, "no client computes: a method let all of them wait"
            self.spent += done - self.began[i]
            if kind == AWAY:
                self.wasted += done - self.began[i]
                self._note(i, AWAY, self.began[i], done)
                return i, False
            self._note(i, COMPUTING, self.began[i], done)
            self.taken[i] += self.per
            if self.clients.up_rate is None:
                return i, True
            travel = self.up / self.clients.up_rate[i]
            if self.clients.shared:
                self.up_free = max(self.up_free, self.now) + travel
                self.due[i] = self.up_free + self.clients.latency
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

    def stop_old(self, limit: int, step: int, except_for: int | None = None) -> list[int]:
        """Stop computations at models of ``limit`` steps or more ago, and throw them away as far as they have come.

        Return whose they were, and who waits, without client ``except_for``. Who would have vanished later on does not.
        """
        some = np.flatnonzero((self.step <= step - limit) | (self.kind == WAITING))
        if len(some) and except_for is not None:
            some = some[some != except_for]
        if not len(some):  # as a rule
            return []
        kind, ends = self.kind[some], self.began[some] + self.work[some]
        doomed = (kind == AWAY) & (ends > self.now)
        computes = doomed | (kind == COMPUTING)
        who = some[computes]
        until = np.maximum(self.now, self.began[who])
        spent = float((until - self.began[who]).sum())
        self.spent, self.wasted = self.spent + spent, self.wasted + spent
        for i, end in zip(who, until, strict=True) if self.log is not None else ():
            self._note(int(i), AWAY, self.began[i], end)
        self.calls[some[doomed]] += self.per
        self.attempt[some[doomed]] = 0
        self.due[who], self.kind[who] = np.inf, WAITING
        stopped: list[int] = some[computes | (kind == WAITING)].tolist()
        return stopped

    def columns(self, cells: int) -> dict[str, Array]:
        vanished = (self.kind == AWAY) & (self.began + self.work <= self.now)
        lost = float(self.work[vanished].sum())  # which ``next`` counts as these come back
        values = {
            "clock_seconds": self.now,
            "worker_seconds": self.spent + lost,
            "worker_seconds_wasted": self.wasted + lost,
        }
        return {name: np.full(cells, value) for name, value in values.items()}
