"""``net``: the wire and the oracle in one, as methods with a round of their own see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from raybench.clock.clients import Clients, Span
from raybench.core.cells import PerCell
from raybench.core.streams import Sample, Stream
from raybench.execution.oracle import oracle_for
from raybench.problems.abilities import Labelled
from raybench.problems.base import Problem
from raybench.wire.collectives import GATHER
from raybench.wire.ledger import COLUMNS
from raybench.wire.neighbours import Mixing
from raybench.wire.transport import Transport
from raybench.wire.wire import Cells, Vectors, Wire


class Timing(Protocol):
    """A simulated clock: that of rounds, or the event queue."""

    log: list[Span] | None

    def columns(self, cells: int) -> dict[str, np.ndarray]:
        """Return what a row records, (B,) each."""

    def state(self) -> dict[str, np.ndarray]:
        """Return what a run that goes on elsewhere must know."""

    def load(self, saved: Mapping[str, np.ndarray]) -> None:
        """Go on from what ``state`` returned."""


def vectors_of(problem: Problem) -> Vectors:
    """Return what the vectors of a problem's clients are like."""
    p = problem
    return Vectors(p.n, p.clients, p.layout, p.message_dim, p.dtype, p.device)


class Net(Wire):
    """The wire of B cells between the clients of ``problem``, and its oracle.

    Arguments as those of ``Wire``; ``oracle`` has what methods seldom ask for.
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
        """Return grad f_i(x) of the clients here, (B, n_here, d): see ``Oracle.grad``."""
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
    def timing(self) -> Timing | None:
        """Return the simulated clock, None where there is none."""
        return self.oracle.rounds

    def end_round(self) -> None:
        """End a round on the simulated clock, if there is one."""
        if self.oracle.rounds is not None:
            down = self.ledger.down[COLUMNS.index("bytes")]
            self.oracle.rounds.end(self.ledger.bytes_of_round(self.n), down)

    @property
    def simulated(self) -> Clients:
        """Return the simulated clients of the clock."""
        assert self.oracle.rounds is not None, "the method is declared with clock=True"
        return self.oracle.rounds.clients

    def repeat(self, calls: int) -> None:
        """Let gradients from now on stand for so many calls on the simulated clock, which share their samples."""
        assert self.oracle.rounds is not None, "the method is declared with clock=True"
        self.oracle.rounds.repeat = calls

    def cut(self, most: np.ndarray | None, size: float | np.ndarray) -> np.ndarray:
        """Cut calls that take longer than ``most`` seconds (B, n) from now on; return whose next call is done by then."""
        assert self.oracle.rounds is not None, "the method is declared with clock=True"
        return self.oracle.rounds.cut(most, size)

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
