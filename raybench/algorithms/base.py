"""The vocabulary algorithms are written in: ``from raybench.algorithms.base import *`` is enough.

A method is a class, SPMD pseudocode over batched tensors that every rank runs: axis 0 is the cells, axis 1
of client state the clients. ``a`` holds its compressors and numbers, ``s`` replicated state, ``c`` per-client
state. Most methods with a server are estimators: they turn the clients' gradients into one, by
messages. Others have a round of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, where, zeros_like

from raybench import theory
from raybench.algorithms import parts, robust
from raybench.algorithms.protocols import Net, Wire
from raybench.compressors import Any_, Contractive, Dense, Unbiased, choose
from raybench.compressors.base import TimedCompressor, count_within, keeping, shares
from raybench.compressors.composed import Support
from raybench.compressors.sparsification import SharedMask
from raybench.core import facts, registry
from raybench.core.cells import PerCell, State, part_of_cells
from raybench.core.errors import InputError
from raybench.core.layout import clipped, matrices
from raybench.core.parts import Delay, Local, Outer, Robust
from raybench.core.registry import Choice, Count, Flag, Integer, List, Number, Operator, Text

if TYPE_CHECKING:
    from raybench.compressors import Compressor

__all__ = [
    "Algorithm",
    "Any_",
    "Choice",
    "Contractive",
    "Count",
    "Dense",
    "Estimator",
    "Flag",
    "InputError",
    "Integer",
    "List",
    "Local",
    "Number",
    "Operator",
    "Outer",
    "PerCell",
    "Points",
    "Robust",
    "SharedMask",
    "State",
    "Support",
    "Text",
    "Unbiased",
    "algorithm",
    "choose",
    "clipped",
    "count_within",
    "keeping",
    "matrices",
    "shares",
    "theory",
    "where",
    "zeros_like",
]


@facts.base("algorithm", leaves=("batch", "stop"))
class Algorithm:
    """Base of all methods; the engine sets the attributes below before ``start``.

    gamma: step size. C, Q: the uplink compressor, bound (one and the same; C where a method needs a
    contractive one, Q an unbiased one). D: the downlink compressor, None where the server's messages are
    not compressed. Parameters carry their own names. gamma follows the step schedule, if there is one.

    All that a method remembers is in s and c: a run can be interrupted after any round and continued
    elsewhere. On ``a`` only what ``setup`` makes anew.
    """

    gamma: PerCell
    C: TimedCompressor
    Q: TimedCompressor
    D: TimedCompressor | None
    batch: int | str | None = None  # samples of a minibatch; None or "full": full gradients
    robust: Robust | None = None  # the rule of a server that keeps clients apart; None: the mean

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # parameters carry the names they declare

    def setup(a, wire: Wire, s: State, c: State) -> None:
        """Make the state from shapes, layout and streams; send nothing."""

    def start(a, net: Net, s: State, c: State) -> None:
        """Set the state from s.x = x^0 and send the initial messages."""
        a.setup(net, s, c)

    def round(a, net: Net, s: State, c: State) -> None:
        """Do one communication round: x^t -> x^{t+1}."""
        raise NotImplementedError

    # What methods with a server have in common ----------------------------------------------

    def gradient(a, net: Net, x: Tensor) -> Tensor:
        """Return grad f_i(x) of the clients here, or of ``batch`` samples where the method says so."""
        return (
            net.grad(x, net.sample("batch", a.batch)) if isinstance(a.batch, int) else net.grad(x)
        )

    def step(a, net: Net, s: State, g: Tensor) -> None:
        """x^{t+1} = prox(x^t - gamma g), told to the clients; the prox is the problem's, if it has one."""
        x = s.x if a.D is None else s.y
        step = a.gamma * g
        a.broadcast_model(
            net, s, net.prox(torch.sub(x, step, out=step), a.gamma)
        )  # in the memory of the step

    def pooled(a, wire: Wire, g: Tensor) -> Tensor:
        """Return the server's estimate (B, d): g itself, or what its rule makes of its estimates of each (B, n, d)."""
        return g if a.robust is None else robust.pooled(a.robust, wire, g)

    def move(a, net: Net, s: State, u: Tensor) -> None:
        """x^{t+1} = x^t - u, told to the clients: for methods whose messages hold the step size."""
        a.broadcast_model(net, s, (s.x if a.D is None else s.y) - u)

    def broadcast_model(a, net: Net, s: State, x: Tensor) -> None:
        """Broadcast the model x (B, d): dense, or compressed as in EF21-P.

        s.x is what the clients hold, where they take gradients and f is recorded. With a downlink
        compressor the server's own iterate is s.y, and s.x <- s.x + D(s.y - s.x).
        """
        if a.D is None:
            s.x = net.model(x)
        else:
            s.y = x
            s.x = s.x + a.broadcast(net, x - s.x)

    def broadcast(a, wire: Wire, v: Tensor) -> Tensor:
        """Send the server's D(v), v (B, d), to all clients; return what they decode."""
        assert a.D is not None, "only methods with a downlink compressor send one"
        return wire.down(a.D(v, wire.server_stream("down")))

    def point(a, net: Net, s: State, c: State) -> Tensor:
        """Return the point (B, d) at which f is recorded; never booked."""
        return s.x

    def disagreement(a, net: Net, s: State, c: State) -> Tensor | None:
        """Return how far the clients' points are apart, (B,), where they have any; never booked."""
        return None

    @classmethod
    def check(cls, params: Mapping[str, object], op: Compressor, d: int) -> None:
        """Raise InputError where parameters do not fit the compressor or d: told when a sweep is planned."""

    def select(a, cells: Tensor) -> Algorithm:
        """Return the method for some cells: numbers are per cell, compressors are not."""
        subset = object.__new__(type(a))
        for name, value in vars(a).items():
            setattr(subset, name, part_of_cells(value, cells))
        return subset


class Estimator(Algorithm):
    """A method that is an estimator of the gradient: messages in, the direction g out.

    The three parts of a round are independent of each other: local work (``source``) gives every
    client a direction, the estimator (``estimate``) makes one direction of them by messages, the outer
    optimizer (``outer_step``) says how x moves along it. A training loop of a user's own replaces the first
    and the last.

    opens: g^0 is exchanged at x^0, and a round is step, gradient, estimate; else a round is gradient,
    estimate, step, and nothing is sent before the first. broadcasts_model: the server broadcasts the model; else
    every client steps itself. in_steps: the step size is inside the messages, g is a displacement and
    x <- x - g, without a prox. local, outer, delay: what a sweep, or a preset, puts in place of a
    gradient, of a plain step, and of a step at once. presets: which of them a method sets itself, in ``setup``.

    unsent_state: names of client state that holds what has not been sent yet, so that the sum over clients counts;
    other client state is about a client's gradient. refused_in_loops: parameters that say how a gradient is
    taken or x steps, each with what takes their place in a training loop of a user's own.
    """

    opens: bool = False
    broadcasts_model: bool = True
    in_steps: bool = False
    presets: tuple[str, ...] = ()
    unsent_state: tuple[str, ...] = ()
    refused_in_loops: Mapping[str, str] = {}
    local: Local | None = None
    outer: Outer | None = None
    delay: Delay | None = None

    def estimate(a, wire: Wire, s: State, c: State, grad: Tensor) -> Tensor:
        """Return g (B, d) of the clients' gradients (B, n_here, d), exchanging messages.

        Of a server that keeps clients apart (``robust``) an estimate of each, (B, n, d).

        Uses neither s.x nor, unless ``in_steps``, gamma. grad is never written to, by anyone; nor is g.
        """
        raise NotImplementedError

    def open(a, wire: Wire, s: State, c: State, grad: Tensor) -> Tensor:
        """Return g^0 of the gradients at x^0, exchanging the first messages."""
        return a.estimate(wire, s, c, grad)

    def source(a, net: Net, s: State, c: State) -> Tensor:
        """Return the clients' directions at s.x, (B, n_here, d): local work, by default a gradient."""
        if a.local is None:
            return a.gradient(net, s.x)
        return parts.directions(a.local, net, s, c, a.batch, a.gamma)

    def outer_step(a, s: State, g: Tensor) -> Tensor:
        """Return what x moves along, given g: the outer optimizer, by default g itself."""
        if a.delay is not None:
            g = parts.late(a.delay, s, g)
        if a.outer is None:
            return g
        if a.in_steps and a.outer.optimizer == "adam":  # whose step has a scale of its own
            return a.gamma * parts.outer_step(a.outer, s, g / a.gamma, 1.0)
        return parts.outer_step(a.outer, s, g, 1.0 if a.in_steps else a.gamma)

    def start(a, net: Net, s: State, c: State) -> None:
        a.setup(net, s, c)
        if a.opens:
            s.g = a.open(net, s, c, a.source(net, s, c))

    def round(a, net: Net, s: State, c: State) -> None:
        if a.opens:
            a.apply(net, s, a.outer_step(s, a.pooled(net, s.g)))
            s.g = a.estimate(net, s, c, a.source(net, s, c))
        else:  # not kept as s.g: that would be recorded as an estimate of the gradient at the next point
            g = a.pooled(net, a.estimate(net, s, c, a.source(net, s, c)))
            a.apply(net, s, a.outer_step(s, g))

    def apply(a, net: Net, s: State, u: Tensor) -> None:
        """Step x along u: x - gamma u with the problem's prox, or x - u; then broadcast it where clients are told."""
        in_steps = a.in_steps or (a.outer is not None and a.outer.in_steps)
        if a.outer is not None and a.outer.weight_decay:
            decay = a.outer.weight_decay * s.x
            u = u + (a.gamma * decay if in_steps else decay)
        if not a.broadcasts_model:
            s.x = s.x - (u if in_steps else a.gamma * u)
        elif in_steps:
            a.move(net, s, u)
        else:
            a.step(net, s, u)

    def select(a, cells: Tensor) -> Algorithm:
        subset = super().select(cells)
        if a.outer is not None and isinstance(a.outer.momentum, PerCell):  # a preset's
            vars(subset)["outer"] = replace(a.outer, momentum=a.outer.momentum[cells])
        return subset


T = TypeVar("T", bound=type)


def algorithm(name: str, **given: Any) -> Callable[[T], T]:
    """Register a method that comes with raybench, with the facts that its class tells unless they are given.

    The model that an estimator broadcasts may be compressed as in EF21-P; who has minibatches is stochastic.
    """

    def register(kind: T) -> T:
        told = issubclass(kind, Estimator) and kind.broadcasts_model and given.get("down") is None
        batched = "batch" in {*given, *getattr(kind, "__params__", {})}
        usual = {"broadcast": Contractive if told else None, "stochastic": batched}
        return registry.algorithm(name, **{**usual, **given})(kind)

    return register


HOOKS = {"local": "source", "outer": "outer_step", "delay": "outer_step"}
"""In which method of ``Estimator`` a part of a round that a sweep may ask for takes place."""


class Points(Algorithm):
    """Base of methods in which every client has a point x_i of its own: c.X, (B, n_here, d).

    f is recorded at the mean of the points, and their disagreement as ``consensus_error``.
    """

    def start(a, net: Net, s: State, c: State) -> None:
        a.setup(net, s, c)
        c.X = s.x[:, None].expand(-1, net.n_here, -1).clone()

    def point(a, net: Net, s: State, c: State) -> Tensor:
        return net.oracle_mean(c.X)

    def disagreement(a, net: Net, s: State, c: State) -> Tensor | None:
        return net.oracle_spread(c.X)
