"""Clients that do not wait, written anew from docs/clock.md: an event loop in numpy, without raybench.

x and gradients are (cells, d). A method is a coroutine (event_methods.py): it is sent what arrives, (client, gradient,
delay), and yields the u of x <- x - gamma u, None where the server does not step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np


@dataclass
class World:
    """n clients, and what they draw.

    seconds(i, k): of the k-th call of client i, from 0. leaves(i, k, attempt): at which share of it the client vanishes,
    or None; it is back ``back_after`` seconds later. up, down: seconds of each client's message and model on its link,
    None for none, or on the one link of the server, if it is shared; the latency comes on top. grad(i, x, k): of the
    k-th gradient that client i ends, from 1. compressed(i, v, k): what the server reads in a message of v after it.
    """

    n: int
    seconds: Callable
    grad: Callable
    compressed: Callable = lambda i, v, k: v
    leaves: Callable = lambda i, k, attempt: None
    back_after: float = 0.0
    up: list[float] | None = None
    down: list[float] | None = None
    latency: float = 0.0
    shared: bool = False


class Loop:
    """Clients and a server. limit: what is so many steps late does not count; stop: nor is it computed to the end.

    waits: who has arrived waits for the step. calls: local steps, of size eta, if it is given, by which messages are
    multiplied then, else gamma. memory: a message is C(v + e), ``error``, or C(v - g), ``shift``.
    """

    def __init__(
        self, world, method, x, gamma, *, limit=math.inf, stop=False, waits=False, **local
    ):
        self.world, self.x, self.gamma, self.method = world, x, gamma, method
        self.limit, self.stop, self.waits = limit, stop, waits
        self.per, self.eta = local.get("calls", 1), local.get("eta")
        self.memory, self.kept = local.get("memory"), np.zeros((world.n, *x.shape))
        self.k, self.models, self.now, self.spent, self.wasted = 0, 0, 0.0, 0.0, 0.0
        self.up_free = self.down_free = 0.0  # when the server's link is
        self.begun, self.attempt, self.ended = ([0] * world.n for _ in range(3))  # calls of each
        self.at, self.model = [x] * world.n, [-1] * world.n
        self.start, self.work, self.sent = ([0.0] * world.n for _ in range(3))
        self.event: list[tuple[float, str]] = [(0.0, "")] * world.n
        next(method)
        for i in range(world.n):
            self.begin(i)

    def begin(self, i: int) -> None:
        """Let client i compute at x, which it has or is sent."""
        world, t, lacks = self.world, self.now, self.model[i] != self.k
        self.models += lacks
        if world.down is not None and lacks:
            if world.shared:
                t = max(t, self.down_free)
                self.down_free = t + world.down[i]
            t += world.down[i] + world.latency
        self.at[i], self.model[i], self.start[i] = self.x, self.k, t
        for call in range(self.begun[i], self.begun[i] + self.per):
            seconds, share = world.seconds(i, call), world.leaves(i, call, self.attempt[i])
            if share is not None:
                self.event[i] = t + share * seconds, "vanishes"
                return
            t += seconds
        self.event[i] = t, "computed"

    def steps(self) -> Iterator[tuple[np.ndarray, float, float, float]]:
        """Yield x, the clock, and the seconds that clients have computed, and in vain, after each server step."""
        world = self.world
        while True:
            i = min(range(world.n), key=lambda j: (self.event[j][0], j))
            self.now, what = self.event[i]
            if what == "returns":
                self.begin(i)
            elif what == "vanishes":
                self.throw_away(i)
                self.attempt[i] += 1  # at the same calls
                self.event[i] = self.now + world.back_after, "returns"
            elif what == "computed":
                self.work[i] = self.now - self.start[i]
                self.spent += self.work[i]
                self.begun[i], self.attempt[i] = self.begun[i] + self.per, 0
                self.ended[i] += self.per
                self.sent[i] = self.message(i)
                self.event[i] = self.send(i), "arrives"
            elif self.arrives(i):
                yield self.x, self.now, self.spent, self.wasted

    def send(self, i: int) -> float:
        """Return when the message that client i sends now arrives."""
        world = self.world
        if world.up is None:
            return self.now
        begins = max(self.now, self.up_free) if world.shared else self.now
        self.up_free = begins + world.up[i]
        return self.up_free + world.latency

    def arrives(self, i: int) -> bool:
        """Let the server take the message of client i; return whether it steps."""
        late, u, waits = self.k - self.model[i], None, False
        if late < self.limit:
            u, waits = self.method.send((i, self.sent[i], late)), self.waits
        else:
            self.wasted += self.work[i]
        self.event[i] = math.inf, "waits"
        again = [] if waits else [i]
        if u is not None:
            self.x, self.k = self.x - self.gamma * u, self.k + 1
            for j in range(self.world.n) if self.stop else ():
                computes = self.event[j][1] in ("vanishes", "computed")
                if computes and self.k - self.model[j] >= self.limit:
                    self.throw_away(j)
                    self.begun[j], self.attempt[j] = self.begun[j] + self.per, 0
                    again.append(j)
                elif self.event[j][1] == "waits" and j not in again:
                    again.append(j)
        for j in again:
            self.begin(j)
        return u is not None

    def throw_away(self, i: int) -> None:
        seconds = max(0.0, self.now - self.start[i])  # none while the model is on its way
        self.spent, self.wasted = self.spent + seconds, self.wasted + seconds

    def message(self, i: int) -> np.ndarray:
        """Return what the server reads in the message of client i, whose gradients have ended."""
        y, v = self.at[i], np.zeros_like(self.x)
        for k in range(self.ended[i] - self.per + 1, self.ended[i] + 1):
            g = self.world.grad(i, y, k)
            y, v = y - (self.gamma if self.eta is None else self.eta) * g, v + g
        v = v if self.eta is None else self.eta * v
        sign = {"error": 1, "shift": -1, None: 0}[self.memory]
        whole = v + sign * self.kept[i]
        read = self.world.compressed(i, whole, self.ended[i])
        self.kept[i] = whole - read if sign == 1 else self.kept[i] + read
        return read
