"""The vocabulary algorithms are written in: ``from raybench.algorithms.base import *`` is enough.

A method is a class with ``start`` and ``round``, SPMD pseudocode over batched tensors: axis 0 is the
cells, axis 1 of client state the clients. ``a`` holds its operators and numbers, ``net`` everything
that crosses a wire or touches data, ``s`` replicated state, ``c`` per-client state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, where, zeros_like

from raybench import theory
from raybench.compressors import Any_, Contractive, Dense, Unbiased, choose
from raybench.compressors.keeping import shares
from raybench.core import facts
from raybench.core.groups import clipped, matrices
from raybench.core.registry import Choice, Flag, Integer, List, Number, Operator, Text, algorithm

if TYPE_CHECKING:
    from raybench.compressors import Compressor, Message
    from raybench.core.layout import Layout
    from raybench.core.streams import Stream
    from raybench.engine.net import Net

__all__ = [
    "Algorithm",
    "Any_",
    "Choice",
    "Contractive",
    "Dense",
    "Flag",
    "Integer",
    "List",
    "Number",
    "Operator",
    "PerCell",
    "Points",
    "State",
    "Text",
    "Unbiased",
    "algorithm",
    "choose",
    "clipped",
    "matrices",
    "shares",
    "theory",
    "where",
    "zeros_like",
]


class Operated(Protocol):
    """A bound operator as the methods see it: a.C(x, stream) is the message of x."""

    declared: Compressor  # before it was bound to a dimension

    def __call__(self, x: Tensor, source: Stream) -> Message: ...

    def fitted(self, layout: Layout, share: float | str | None = None) -> Operated:
        """Return the operator for vectors of another layout, keeping that share of them."""
        ...


class PerCell:
    """A number per cell, (B,), that broadcasts against any tensor with cells on axis 0.

    Plain (B, 1) numbers fit iterates (B, d) but not client tensors (B, n, d); this fits both.
    """

    __slots__ = ("values",)
    __array_priority__ = 1000

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def like(self, other: Tensor) -> Tensor:
        """Return the numbers shaped (B, 1, .., 1) for a tensor with cells on axis 0."""
        return self.values.view(-1, *[1] * (other.ndim - 1))

    def __getitem__(self, cells: Any) -> PerCell:
        return PerCell(self.values[cells])

    def _with(self, other: Any, op: Callable[[Any, Any], Any]) -> Any:
        if isinstance(other, PerCell):
            return PerCell(op(self.values, other.values))
        if isinstance(other, Tensor) and other.ndim:
            return op(self.like(other), other)
        return PerCell(op(self.values, other))

    def __mul__(self, other: Any) -> Any:
        return self._with(other, torch.mul)

    __rmul__ = __mul__

    def __add__(self, other: Any) -> Any:
        return self._with(other, torch.add)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._with(other, torch.sub)

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, lambda x, y: y - x)

    def __truediv__(self, other: Any) -> Any:
        return self._with(other, torch.true_divide)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with(other, lambda x, y: y / x)

    def __neg__(self) -> PerCell:
        return PerCell(-self.values)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        wide = max((x.ndim for x in args if isinstance(x, Tensor)), default=1)
        fit = [x.values.view(-1, *[1] * (wide - 1)) if isinstance(x, PerCell) else x for x in args]
        return func(*fit, **(kwargs or {}))


class State:
    """Named tensors with cells on axis 0, or lists of them (replicated ``s``, per-client ``c``)."""

    if TYPE_CHECKING:

        def __setattr__(self, name: str, value: Any) -> None: ...  # names are the method's own

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no {name} in the state: set it in start()")

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(vars(self).items())

    def select(self, cells: Tensor) -> State:
        """Return the state of some cells."""
        kept = State()
        for name, value in self:
            setattr(kept, name, _select(value, cells))
        return kept


def _select(value: Any, cells: Tensor) -> Any:
    if isinstance(value, Tensor | PerCell):
        return value[cells]
    if isinstance(value, list | tuple):
        return type(value)(_select(v, cells) for v in value)
    return value


@facts.base("algorithm", leaves=("batch",))
class Algorithm:
    """Base of all methods; the engine sets the attributes below before ``start``.

    gamma: step size. C, Q: the uplink operator, bound (one and the same; C where a method needs a
    contractive one, Q an unbiased one). D: the downlink operator, None where the server's messages are
    not compressed. Parameters carry their own names. gamma follows the step schedule, if there is one.
    """

    gamma: PerCell
    C: Operated
    Q: Operated
    D: Operated
    batch: int | str | None = None  # samples of a minibatch; None or "full": full gradients

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # parameters carry the names they declare

    def start(a, net: Net, s: State, c: State) -> None:
        """Set the state from s.x = x^0 and send the initial messages."""

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
        a.tell(net, s, net.prox(x - a.gamma * g, a.gamma))

    def move(a, net: Net, s: State, u: Tensor) -> None:
        """x^{t+1} = x^t - u, told to the clients: for methods whose messages hold the step size."""
        a.tell(net, s, (s.x if a.D is None else s.y) - u)

    def tell(a, net: Net, s: State, x: Tensor) -> None:
        """Broadcast the model x (B, d): dense, or compressed as in EF21-P.

        s.x is what the clients hold, where they take gradients and f is recorded. With a downlink
        operator the server's own iterate is s.y, and s.x <- s.x + D(s.y - s.x).
        """
        if a.D is None:
            s.x = net.model(x)
        else:
            s.y = x
            s.x = s.x + net.down(a.D(x - s.x, net.server_stream("down")))

    def point(a, net: Net, s: State, c: State) -> Tensor:
        """Return the point (B, d) at which f is recorded; never booked."""
        return s.x

    @classmethod
    def check(cls, params: Mapping[str, Any], op: Compressor, d: int) -> None:
        """Raise InputError where parameters do not fit the operator or d: told when a sweep is planned."""

    def select(a, cells: Tensor) -> Algorithm:
        """Return the method for some cells: numbers are per cell, operators are not."""
        kept = object.__new__(type(a))
        for name, value in vars(a).items():
            setattr(kept, name, _select(value, cells))
        return kept


class Points(Algorithm):
    """Base of methods in which every client has a point x_i of its own: c.X, (B, n_here, d).

    f is recorded at the mean of the points, and their disagreement as ``consensus_error``.
    """

    def start(a, net: Net, s: State, c: State) -> None:
        c.X = s.x[:, None].expand(-1, net.n_here, -1).clone()

    def point(a, net: Net, s: State, c: State) -> Tensor:
        return net.oracle_mean(c.X)
