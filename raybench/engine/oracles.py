"""Which oracle a problem gets, by what it is able to do; and the oracle of a problem with buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybench.core.draws import Sample
from raybench.engine.oracle import BlockOracle, Oracle, PredictionOracle
from raybench.problems.abilities import Buffered, Predicting, SplitByFeatures
from raybench.problems.base import EVALUATED, OF_LOSSES, Measured, Problem
from raybench.problems.crowd import Crowd
from raybench.wire.wire import Cells, Wire

Buffers = dict[str, Tensor]


class BufferedOracle(Oracle):
    """The oracle of a problem whose gradients carry memory along, such as BatchNorm's statistics.

    buffers: (B, n_here, ..) by name. They change as methods take gradients, never by the record; clients
    that sit out keep theirs. f and metrics are evaluated with their mean over all clients.
    """

    def __init__(self, problem: Problem, wire: Wire) -> None:
        super().__init__(problem, wire)
        self.buffers = self._buffered.buffers(wire.B)
        self._after: Buffers = {}  # of the last full gradient, until a method has taken it

    @property
    def _buffered(self) -> Buffered:
        assert isinstance(self.problem, Buffered)
        return self.problem

    def grad(
        self,
        x: Tensor,
        sample: Sample | None = None,
        *,
        cells: Cells | None = None,
        clients: Tensor | None = None,
    ) -> Tensor:
        """Return gradients as ``Oracle.grad``, and take over the buffers that they leave."""
        grads = super().grad(x, sample, cells=cells, clients=clients)
        if self._after:
            self._take_over(self._after, cells, clients)
            self._after = {}
        return grads

    def _at(self, x: Tensor, sample: Sample | None, cells: Cells, clients: Tensor | None) -> Tensor:
        before = {name: buffer[cells] for name, buffer in self.buffers.items()}
        grads, self._after = self._buffered.grad_buffered(x, sample, before)
        return grads

    def _everywhere(self, x: Tensor, loss: bool) -> tuple[Tensor, Tensor | None]:
        grads, losses, self._after = self._buffered.oracle_buffered(x, self.buffers)
        return grads, losses

    def _take_over(self, after: Buffers, some: Cells | None, clients: Tensor | None) -> None:
        cells = slice(None) if some is None else some
        for name, new in after.items():
            if clients is not None:
                there = clients.view(*new.shape[:2], *[1] * (new.ndim - 2))
                new = torch.where(there, new, self.buffers[name][cells])
            kept = self.buffers[name].clone()
            kept[cells] = new
            self.buffers[name] = kept
        if self._buffered.shares_buffers:
            for name, own in self.buffers.items():
                mean = self.wire.mean(own, some)[:, None].expand_as(own)
                self.buffers[name][cells] = mean[cells]

    def _measured(
        self, x: Tensor, what: frozenset[str], full: Callable[[], tuple[Tensor, Tensor]]
    ) -> Measured:
        means = self.means()
        found = self.problem.measure(x, what - EVALUATED - OF_LOSSES, full)
        losses = self._buffered.losses(x, means) if what & OF_LOSSES else None
        values = self._buffered.evaluate(x, means) if what & EVALUATED else {}
        return Measured(found.grads, losses, {**found.values, **values})

    def means(self) -> Buffers:
        """Return the mean of the buffers over all clients, (B, ..) by name."""
        gather, n = self.wire.transport.gather_rows, self.wire.n
        return {name: gather(own, n).mean(1) for name, own in self.buffers.items()}

    # What a run keeps ---------------------------------------------------------------------------

    def select(self, cells: Tensor) -> None:
        """Keep some cells only."""
        super().select(cells)
        self.buffers = {name: buffer[cells] for name, buffer in self.buffers.items()}
        self._after = {}

    def state(self, points: Mapping[str, Tensor]) -> dict[str, object]:
        """Return what a run that goes on elsewhere must know, the buffers among it."""
        own = {name: buffer.clone() for name, buffer in self.buffers.items()}
        return {**super().state(points), "buffers": own}

    def load(self, saved: Mapping[str, Any], points: Mapping[str, Tensor]) -> None:
        """Go on from what ``state`` returned."""
        super().load(saved, points)
        self.buffers, self._after = dict(saved["buffers"]), {}


class CohortOracle(Oracle):
    """The oracle of a cohort, drawn anew in every round; f is measured over everyone's rows.

    A client's gradient is that of its own rows, or of a sample of them.
    """

    pooled = True

    def __init__(self, problem: Problem, wire: Wire) -> None:
        super().__init__(problem, wire)
        self._drawn: tuple[int, Tensor] | None = None  # a round, and its cohort

    @property
    def _crowd(self) -> Crowd:
        assert isinstance(self.problem, Crowd)
        return self.problem

    def cohort(self) -> Tensor:
        """Return which clients take part in this round, of those at the places here: (B, n_here)."""
        if self._drawn is None or self._drawn[0] != self.wire.t:
            source = self.wire.shared_stream("cohort")
            ids = self.wire.here(source.subset(self._crowd.everyone, self._crowd.n))
            self._drawn = self.wire.t, ids
        return self._drawn[1]

    def grad(
        self,
        x: Tensor,
        sample: Sample | None = None,
        *,
        cells: Cells | None = None,
        clients: Tensor | None = None,
    ) -> Tensor:
        """Return gradients as ``Oracle.grad``; without a sample those of all rows of each client."""
        if sample is None:
            own = torch.arange(self._crowd.each, device=self.problem.device)
            sample = Sample.at(own.expand(self.wire.B, self.wire.n_here, -1))
        return super().grad(x, sample, cells=cells, clients=clients)

    def _at(self, x: Tensor, sample: Sample | None, cells: Cells, clients: Tensor | None) -> Tensor:
        assert sample is not None
        return self._crowd.grad_of(self.cohort()[cells], x, sample)

    def _pay(self, cost: float | np.ndarray, cells: Cells | None = None) -> None:
        super()._pay(cost * self.problem.turnout, cells)

    def select(self, cells: Tensor) -> None:
        """Keep some cells only."""
        super().select(cells)
        self._drawn = None


def oracle_for(problem: Problem, wire: Wire) -> Oracle:
    """Return the oracle with what the problem is able to do."""
    if isinstance(problem, Crowd):
        return CohortOracle(problem, wire)
    if isinstance(problem, SplitByFeatures):
        return BlockOracle(problem, wire)
    if isinstance(problem, Buffered) and problem.buffers(1):
        return BufferedOracle(problem, wire)
    if isinstance(problem, Predicting):
        return PredictionOracle(problem, wire)
    return Oracle(problem, wire)
