"""The base of methods whose clients do not wait for each other: the server acts as messages arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from raybench import theory
from raybench.algorithms.base import Algorithm, Dense, Integer, Number, Unbiased, algorithm
from raybench.algorithms.protocols import EventNet, Net
from raybench.compressors.dense import Identity
from raybench.core.cells import State
from raybench.wire import Message
from raybench.wire.wire import dense_view

BATCH = Integer("full", low=1, words=("full",), help="samples of a gradient")
TARGET = Number(
    1e-4,
    low=0,
    open_low=True,
    help="epsilon: the E||grad f||^2 that `auto` and theoretical steps aim at",
)
T = TypeVar("T", bound=type)


def on_clock(name: str, **facts: Any) -> Callable[[T], T]:
    """Register a method on a simulated clock: minibatches, messages unbiased or dense, unless facts say otherwise."""
    usual = {"up": Unbiased, "dense": True, "clock": True, "theory": None, "batch": BATCH}
    return algorithm(name, **{**usual, **facts})


class Asynchronous(Algorithm):
    """A method on events: ``arrive`` is called as messages reach the server, in the order of the simulated clock.

    A client computes at the model that it was given, sends what it has, and begins anew at the model of that moment;
    s.at holds the points, (B, d) for each client. A round is a server step, so a recorded row has the clock of that
    step. delay: the server steps since the client began.

    calls: gradients that a client takes between two messages. limit: messages that are so many steps late, or more,
    are ignored; None: none is. stop: computations that old are stopped at once and begun anew, not ignored as they
    arrive. waits: a client whose message has been used waits for the next step.
    """

    calls: int = 1
    limit: int | None = None
    stop: bool = False
    waits: bool = False

    def arrive(a, net: EventNet, s: State, c: State, i: int, grad: Tensor, delay: int) -> bool:
        """Take what client i has sent, grad (B, d), ``delay`` steps late; return whether the server has stepped."""
        raise NotImplementedError

    def message(a, net: EventNet, s: State, c: State, i: int) -> Message:
        """Return the message (B, 1) of client i: its gradient, compressed where there is a compressor."""
        g = a.direction(net, s, c, i)[:, None]
        return a.Q(g, net.call_stream("uplink", i)) if compresses(a) else dense_view(g)

    def direction(a, net: EventNet, s: State, c: State, i: int) -> Tensor:
        """Return what client i has computed at its point, (B, d): by default a gradient."""
        return net.grad_of(i, s.at[i], a.batch)

    def start(a, net: Any, s: State, c: State) -> None:
        a.setup(net, s, c)
        s.at = [s.x] * net.n
        net.begin_computing(np.arange(net.n), 0)

    def setup(a, net: Any, s: State, c: State) -> None:
        net.prepare(a.calls, a.batch, trial(a, net))
        a.begin(net, s, c)

    def begin(a, net: EventNet, s: State, c: State) -> None:
        """Make the state of the method beside s.x and s.at."""

    def round(a, net: Any, s: State, c: State) -> None:
        stepped = False
        while not stepped:
            i, arrives = net.events.next()
            delay = net.t - 1 - int(net.events.step[i])
            counts = arrives and (a.limit is None or delay < a.limit)
            if arrives:
                grad = net.deliver(i, a.message(net, s, c, i))
                if counts:
                    stepped = a.arrive(net, s, c, i, grad, delay)
                else:  # sent, and thrown away
                    net.events.ignored(i)
            waits = counts and a.waits  # for the step, after which it begins with the others
            if waits:
                net.events.wait(i)
            who = [] if waits else [i]
            if stepped and a.limit is not None and (a.stop or a.waits):
                who += net.events.stop_old(a.limit, net.t, except_for=None if waits else i)
            a.begin_anew(net, s, who, net.t if stepped else net.t - 1)

    def begin_anew(a, net: EventNet, s: State, who: list[int], step: int) -> None:
        """Let clients ``who`` begin at the present model, which is that of a server step."""
        for i in who:
            s.at[i] = s.x  # never written to, so that clients may share it
        if who:
            net.begin_computing(np.array(who), step)

    def collected(a, s: State, v: Tensor, count: int) -> Tensor | None:
        """Return the mean (B, d) of the last ``count`` values of v, and forget them; None before there are so many.

        s.total and s.count, which begin as zero, are their sum and number.
        """
        total, number = s.total + v, s.count + 1
        if number < count:
            s.total, s.count = total, number
            return None
        s.total, s.count = torch.zeros_like(total), 0
        mean: Tensor = total / count
        return mean

    def descend(a, net: EventNet, s: State, u: Tensor) -> bool:
        """x <- x - gamma u; return that the server has stepped."""
        step = a.gamma * u
        s.x = torch.sub(s.x, step, out=step)  # x stays as it is for the clients that compute at it
        return True


def compresses(a: Algorithm) -> bool:
    """Return whether a method compresses its messages."""
    return not isinstance(a.Q.declared, Identity)


def trial(a: Algorithm, net: Net) -> Message:
    """Return a message (1, 1) of a method, from which its length can be told."""
    ramp = torch.linspace(0.5, 1.5, net.layout.dim, dtype=net.zero().dtype)[None, None]
    return a.Q(ramp, net.server_stream("trial")[:1].each([0])) if compresses(a) else Dense(ramp)


def length(a: Algorithm, net: Net) -> float:
    """Return the bytes of a method's message."""
    return float(trial(a, net).cost.bytes)


# What theory needs -----------------------------------------------------------------------------------


def noise_over_target(k: theory.Setting) -> float:
    """Return sigma^2/epsilon, sigma^2 the variance of a client's gradient. Raises NoTheory where it is unknown."""
    sigma2 = k.noise
    if sigma2 is None:
        raise theory.NoTheory("the variance of a minibatch gradient is unknown here")
    if k.omega is not None and k.omega > 0:
        raise theory.NoTheory("the theorem is about messages that are not compressed")
    return sigma2 / k.number("target")


def threshold(k: theory.Setting) -> float:
    """max{1, ceil(sigma^2/epsilon)}."""
    return float(max(1, -(-noise_over_target(k) // 1)))
