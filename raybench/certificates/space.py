"""Methods run unchanged where a vector is its coordinates in a basis of unknown vectors.

A method that is linear in vectors returns the coordinates of every vector that it forms, whatever the basis: x^0, the
gradients at the points where it takes them, and the messages of compressors are the next unknown vector each time.
A script, what was asked for in order, lets the same run be repeated with other vectors in their places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybench import theory
from raybench.algorithms.base import Algorithm
from raybench.algorithms.build import assembled
from raybench.compressors import Compressor, FittedCompressor, Role
from raybench.compressors.base import build
from raybench.core.cells import PerCell, State
from raybench.core.counts import Clock
from raybench.core.errors import InputError
from raybench.core.facts import AlgorithmFacts
from raybench.core.layout import Layout
from raybench.core.registry import Entry
from raybench.core.streams import Stream, stream
from raybench.execution.net import ProblemNet
from raybench.problems.base import Constants, Problem
from raybench.wire import Message
from raybench.wire.dense import Dense
from raybench.wire.neighbours import Mixing

BASES = 8  # random ones in which a run is repeated
FIRST_SIZE = 64
TOLERANCE = 1e-6  # of vectors, relative to the terms that they are sums of


class Unfit(Exception):
    """The method cannot be run on unknown vectors; the text says why."""


class _Full(Exception):
    """There are more unknown vectors than the space has dimensions."""


@dataclass(frozen=True)
class Call:
    """What was asked of a space: ``gradient``, ``message``, or one that is ``exact`` or, as a state, ``free``.

    inputs: (m, D), the points, or what compressors were given. answers: which unknown vectors came back. alpha: of the
    compressor.
    """

    kind: str
    inputs: np.ndarray
    answers: Sequence[int]
    alpha: float = 0.0


class Space:
    """The rows (N, D) of a basis, given out as unknown vectors one after the other, x^0 first.

    same: whether all clients have one function. script: the calls of the run that is repeated; in the first run a
    gradient is new unless the client was asked at that point before.
    """

    def __init__(
        self, rows: Tensor, same: bool = False, script: Sequence[Call] | None = None
    ) -> None:
        self.rows, self.same = rows, same
        self.script = None if script is None else iter(script)
        self.calls: list[Call] = []
        self.count = 1 if script is None else len(rows)
        self._points: dict[int, list[tuple[np.ndarray, int]]] = {}

    def take(self, kind: str, inputs: Tensor, alpha: float = 0.0) -> Tensor:
        """Log a call, inputs (m, D), and return the vectors that answer it, (m, D); what is exact has none."""
        points = inputs.detach().numpy().copy()
        if self.script is not None:
            before = next(self.script, None)
            if before is None or (before.kind, len(before.inputs)) != (kind, len(points)):
                raise Unfit("what it asks for depends on the vectors")
            answers = [*before.answers]
        elif kind == "gradient":
            answers = [self._gradient(0 if self.same else i, x) for i, x in enumerate(points)]
        else:
            answers = [] if kind == "exact" else [self._new() for _ in points]
        self.calls.append(Call(kind, points, answers, alpha))
        return self.rows[answers]

    def _new(self) -> int:
        if self.count == len(self.rows):
            raise _Full
        self.count += 1
        return self.count - 1

    def _gradient(self, i: int, x: np.ndarray) -> int:
        points = self._points.setdefault(i, [])
        for place, number in points:
            if np.abs(place - x).max() <= TOLERANCE * np.abs(x).max():
                return number
        points.append((x, self._new()))
        return points[-1][1]


class Functions(Problem):
    """f_1, .., f_n of which only gradients are asked, at points that a space knows."""

    def __init__(self, space: Space, n: int, constants: Constants, minimiser: bool) -> None:
        super().__init__(n, Layout.vector(space.rows.shape[1]))
        self.space, self._known, self._minimiser = space, constants, minimiser

    def find_constants(self) -> Constants:
        """Return the constants that are assumed."""
        return self._known

    def oracle(self, x: Tensor, loss: bool = True) -> tuple[Tensor, Tensor | None]:
        """Return the gradients; raises Unfit where losses are asked for."""
        if loss:
            raise Unfit("it asks for losses, and decides by them")
        return self.space.take("gradient", self.spread(x)[0])[None], None

    def minimizer(self) -> Tensor | None:
        """Return x* = 0 where there is one."""
        return torch.zeros(self.dim, dtype=self.dtype) if self._minimiser else None


@dataclass(frozen=True)
class Unknown(Compressor):
    """A compressor of which only its contraction is known. opening: ``free`` or ``exact`` until the first round."""

    space: Space
    contraction: float
    opening: str = ""
    deterministic = True

    def omega(self, d: int) -> float | None:
        return 0.0 if self.contraction == 1 else None

    def alpha(self, d: int) -> float:
        return self.contraction

    def encode(self, x: Tensor, stream: Stream) -> Message:
        kind = "exact" if self.contraction == 1 else self.opening or "message"
        answers = self.space.take(kind, x.reshape(-1, x.shape[-1]), self.contraction)
        return Dense(x if kind == "exact" else answers.reshape(x.shape))


class Coinless(ProblemNet):
    """The net of a run without chance. Raises Unfit where a coin could fall either way."""

    def coin(self, purpose: str, p: PerCell) -> Tensor:
        return self.coins(purpose, p)[:, 0]

    def coins(self, purpose: str, p: PerCell) -> Tensor:
        if ((p.values > 0) & (p.values < 1)).any():
            raise Unfit("it tosses coins: what it promises holds in expectation")
        return (p.values >= 1)[:, None].expand(self.B, self.n_here)


@dataclass(frozen=True)
class Subject:
    """A method with its numbers, and what is assumed of functions and compressors.

    mu: of the clients, where they are convex; then x* = 0. alpha, down_alpha: of the compressors up and down, None for
    none. same: whether all clients have one function. says: what the theorem does. opening: see ``Unknown``.
    """

    entry: Entry[AlgorithmFacts]
    params: Mapping[str, Any]
    constants: Constants
    mu: tuple[float, ...]
    n: int
    rounds: int
    alpha: float | None
    down_alpha: float | None
    same: bool
    graph: Mixing | None
    step: float = 1.0
    opening: str = ""
    says: theory.Inequality | None = None

    def compressors(self, space: Space) -> dict[str, FittedCompressor]:
        """Return the compressors among the parameters, bound."""
        compressor, d = Unknown(space, self.alpha or 1.0), space.rows.shape[1]
        roles = self.entry.facts.operators
        return {name: compressor.bind(d, self.n, role=role) for name, role in roles.items()}

    def method(self, space: Space, opening: str) -> Algorithm:
        """Return the method at work in a space."""
        facts, d = self.entry.facts, space.rows.shape[1]
        dims = d, self.n, Layout.vector(d)
        compressors = {name: bound.compressor for name, bound in self.compressors(space).items()}
        params = {**self.params, **compressors}
        numbers = {
            name: PerCell(torch.tensor([float(value)], dtype=torch.float64))
            for name, value in params.items()
            if self.entry.params[name].per_cell and isinstance(value, int | float)
        }

        def bound(compressor: Compressor, role: Role | None) -> tuple[Compressor, FittedCompressor]:
            return compressor, compressor.bind(*dims, role or Role.ANY)

        up = build(facts.own) if facts.own else Unknown(space, self.alpha or 1.0, opening)
        down = Unknown(space, self.down_alpha or 1.0, opening)
        server = None if self.down_alpha is None else bound(down, facts.down)
        a = assembled(self.entry, params, numbers, bound(up, facts.up), server, dims, Clock())
        a.gamma = PerCell(torch.tensor([self.step], dtype=torch.float64))
        return a

    def run(self, rows: Tensor, script: Sequence[Call] | None = None, seed: int = 0) -> Trace:
        """Return the trace of the method on the vectors of a basis. Raises Unfit where it cannot run on them."""
        space = Space(rows, self.same, script)
        f = Functions(space, self.n, self.constants, bool(self.mu))
        if self.mu:
            f.oracle(torch.zeros_like(rows[:1]), loss=False)
        net = Coinless(f, stream([seed]), None, self.graph)
        net.oracle.loss_wanted = False
        a, s, c = self.method(space, self.opening), State(), State()
        s.x = rows[:1].clone()
        if a.D is not None and self.entry.facts.broadcast:
            s.y = s.x.clone()
        points, numbers, ends = [], [], []

        def look() -> None:
            x = a.point(net, s, c)
            grad = f.oracle(x, loss=False)[0]
            points.append(x[0].numpy().copy())
            numbers.append(space.calls[-1].answers)
            if self.says is not None and self.says.vectors is not None:
                ends.append(self.says.vectors(s, c, grad)[0].numpy().copy())

        try:
            with torch.no_grad():
                a.start(net, s, c)
                for name in self.says.free if self.says is not None else ():
                    setattr(c, name, space.take("free", getattr(c, name)[0])[None].clone())
                look()
                then = self.method(space, "")
                a.C, a.Q, a.D = then.C, then.Q, then.D
                for t in range(1, self.rounds + 1):
                    net.begin(t)
                    a.round(net, s, c)
                    net.end_round()
                    look()
        except (_Full, Unfit, InputError):
            raise
        except Exception as error:  # of a method that asks more of vectors than that they add up
            what = f"it cannot be run on unknown vectors: {type(error).__name__}: {error}"
            raise Unfit(what) from error
        V = (ends[0], ends[-1]) if ends else (None, None)
        return Trace(space.calls, np.array(points), np.array(numbers), space.count, *V)


@dataclass(frozen=True)
class Trace:
    """A run in a space: its calls, where it was after each round, and the vectors of its theorem's V.

    points: (T + 1, D). gradients: the unknown vectors of the clients' gradients there, (T + 1, n). start, end: the
    vectors of V, (m, D), None where there are none.
    """

    calls: Sequence[Call]
    points: np.ndarray
    gradients: np.ndarray
    count: int
    start: np.ndarray | None
    end: np.ndarray | None

    def apart(self, other: Trace, basis: np.ndarray) -> float:
        """Return how far vectors of a run in a basis (N, D) are from the coordinates of this one, relative to their terms."""
        lengths, far = np.linalg.norm(basis, axis=1), 0.0
        for coordinates, vectors in zip(self._vectors(), other._vectors(), strict=True):
            gap = np.linalg.norm(coordinates @ basis - vectors, axis=-1)
            size = np.maximum(np.abs(coordinates) @ lengths, 1e-9 * lengths.max())
            far = max(far, float(np.nan_to_num(gap / size, nan=np.inf).max(initial=0.0)))
        return far

    def _vectors(self) -> list[np.ndarray]:
        every = [*(call.inputs for call in self.calls), self.points, self.start, self.end]
        return [v for v in every if v is not None]


def abstract(subject: Subject, bases: int = BASES) -> Trace:
    """Return the trace of a method in coordinates, D = N, after repeating it in bases that are not orthogonal.

    Raises Unfit where it is not linear in vectors: a norm, a sign, a choice by size or a random number makes the
    coordinates of what it asks for others in another basis.
    """
    size, count = FIRST_SIZE, 0
    while not count:
        try:
            count = subject.run(torch.eye(size, dtype=torch.float64)).count
        except _Full:
            size *= 2
    trace = subject.run(torch.eye(count, dtype=torch.float64))
    draws = np.random.default_rng(0)
    for seed in range(1, bases + 1):
        sizes = 10 ** draws.uniform(-3, 3) * np.exp(1.5 * draws.standard_normal((count, 1)))
        basis = sizes * draws.standard_normal((count, count))
        other = subject.run(torch.from_numpy(basis), trace.calls, seed)
        if trace.apart(other, basis) > TOLERANCE:
            raise Unfit("it takes norms, signs, choices by size or random numbers of vectors")
    return trace
