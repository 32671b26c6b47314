"""The recorder: rows of a batch's curves, and when to make one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from raybench.core import registry
from raybench.core.counts import Counts
from raybench.core.registry import metric
from raybench.execution.net import ProblemNet
from raybench.problems.base import Problem
from raybench.store import CURVES, to_table
from raybench.store.accounting import Accounting
from raybench.store.schema import EXTRA_COUNTS, SIDES, column
from raybench.wire.ledger import Ledger

COLUMNS_OF_MEASURES = (
    "loss",
    "grad_norm_sq",
    "suboptimality",
    "mean_client_grad_norm_sq",
    "consensus_error",
    "estimator_error_sq",
    "accuracy",
    "test_loss",
    "grad_evals",
    "clock_seconds",
    "seconds",
    "seconds_gradient",
    "seconds_compress",
    "seconds_communicate",
)
COLUMNS_OF_COUNTS = (
    *(column(count, side) for side in SIDES for count in Counts._fields),
    "bytes_up_max",
)
EXCHANGE = "exchange"  # what the ledger has of that name: no column of a curve


class Recorder:
    """Curves of B cells: at each recorded round a column of numbers per cell that is still running."""

    def __init__(self, cells: int, rows: int) -> None:
        self.cells = cells
        self.names: list[str] = [*COLUMNS_OF_MEASURES, *COLUMNS_OF_COUNTS, EXCHANGE]
        self._data = np.full((min(rows, 256), len(self.names), cells), np.nan)
        self._live = np.zeros((min(rows, 256), cells), bool)
        self.rounds: list[int] = []

    def add(
        self, t: int, index: np.ndarray, live: np.ndarray, values: Mapping[str, np.ndarray]
    ) -> None:
        """Record round t of the cells ``index[live]``; values: arrays over ``index`` by column."""
        at = len(self.rounds)
        if at == len(self._data):  # full: make twice the room
            more = max(1, at)
            room = np.full((more, *self._data.shape[1:]), np.nan)
            self._data = np.concatenate((self._data, room))
            self._live = np.concatenate((self._live, np.zeros((more, self.cells), bool)))
        self.rounds.append(t)
        self._live[at, index[live]] = True
        for name, value in values.items():
            if name not in self.names:
                self._widen(name)
            self._data[at, self.names.index(name), index] = value

    def amend(self, index: np.ndarray, who: np.ndarray, values: Mapping[str, np.ndarray]) -> None:
        """Put further values of the cells ``index[who]`` into the row just recorded; values: arrays over ``index``."""
        for name, value in values.items():
            if name not in self.names:
                self._widen(name)
            row = self._data[len(self.rounds) - 1, self.names.index(name)]
            row[index[who]] = value[who]

    def add_counts(self, ledger: Ledger, index: np.ndarray) -> None:
        """Add the counts of a ledger of the cells ``index`` to the row just recorded."""
        booked = np.vstack((ledger.up, ledger.down, ledger.bytes_up_max, ledger.exchange))
        first = len(COLUMNS_OF_MEASURES)
        self._data[len(self.rounds) - 1, first : first + len(booked), index] = booked.T

    def state(self) -> dict[str, object]:
        """Return the rows recorded so far, copied."""
        rows = len(self.rounds)
        return {
            "rounds": list(self.rounds),
            "names": list(self.names),
            "data": torch.from_numpy(self._data[:rows].copy()),
            "live": torch.from_numpy(self._live[:rows].copy()),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from what ``state`` returned."""
        self.rounds, self.names = list(saved["rounds"]), list(saved["names"])
        self._data, self._live = saved["data"].numpy().copy(), saved["live"].numpy().copy()

    def _widen(self, name: str) -> None:
        self.names.append(name)
        more = np.full((len(self._data), 1, self.cells), np.nan)
        self._data = np.concatenate((self._data, more), axis=1)

    def column(self, name: str) -> np.ndarray:
        """Return one column, (B, T)."""
        return self._data[: len(self.rounds), self.names.index(name)].T

    @property
    def live(self) -> np.ndarray:
        """Return which rows exist, bool (B, T)."""
        return self._live[: len(self.rounds)].T

    def bits(self, side: str, accounting: Accounting, dtype_bits: int) -> np.ndarray:
        """Return cumulative bits (B, T) of ``up`` or ``down`` under an accounting."""
        counts = Counts(*(self.column(column(name, side)) for name in Counts._fields))
        start = Counts(*(count[:, :1] for count in counts))
        return accounting.bits(counts, dtype_bits, start)

    def last(self, name: str) -> np.ndarray:
        """Return each cell's last recorded value, (B,)."""
        return self.column(name)[np.arange(self.cells), self.last_row()]

    def newest(self, name: str) -> np.ndarray:
        """Return each cell's newest known value of a column that few rows have, (B,), NaN for none."""
        column = self.column(name)
        has_value = self.live & ~np.isnan(column)
        newest = column[np.arange(self.cells), _last(has_value)]
        return np.where(has_value.any(1), newest, np.nan)

    def smallest(self, name: str) -> np.ndarray:
        """Return the smallest finite value that each cell has recorded of a column, (B,), inf for none."""
        column = self.column(name)
        return np.where(self.live & np.isfinite(column), column, np.inf).min(1)

    def last_row(self) -> np.ndarray:
        """Return the row number of each cell's last record, (B,)."""
        return _last(self.live)

    def table(
        self,
        facts: Mapping[str, np.ndarray],
        accounting: Accounting,
        dtype_bits: int,
        samples: float,
    ) -> pa.Table:
        """Return the curves; ``facts`` are columns per cell (B, 1), samples those of a mean client."""
        columns = dict(facts)
        columns["round"] = np.array(self.rounds)[None]
        for name in COLUMNS_OF_MEASURES:
            value = self.column(name)
            if not np.isnan(value[self.live]).all():
                columns[name] = value
        columns["epoch"] = self.column("grad_evals") / samples
        for side in SIDES:
            columns[f"bits_{side}"] = self.bits(side, accounting, dtype_bits)
        columns.update({n: self.column(n) for n in COLUMNS_OF_COUNTS if n not in EXTRA_COUNTS})
        measures = self.names[self.names.index(EXCHANGE) + 1 :]
        extra = {n: self.column(n) for n in (*EXTRA_COUNTS, *measures)}
        used = {n: v for n, v in extra.items() if n in measures or np.any(v[self.live] > 0)}
        return to_table({**columns, "extra": used}, CURVES, self.live)


def _last(rows: np.ndarray) -> np.ndarray:
    """Return the number of the last row (B, T) that is true, (B,)."""
    return rows.shape[1] - 1 - rows[:, ::-1].argmax(1)


# rows of a stochastic method's curve unless the sweep says otherwise
POINTS_PER_STOCHASTIC_CURVE = 400


@dataclass(frozen=True)
class RecordedRounds:
    """The rounds that make a row, 0 and the last one among them: ``t in these``.

    every: each so many-th round. points: so many rounds evenly spread, rounded to whole ones. Up to the first of
    those, rounds 1, 2, 4, 8, .. make a row as well: on a logarithmic axis a curve would begin too late.
    """

    rounds: int
    every: int = 1
    points: int | None = None

    @classmethod
    def of(
        cls, rounds: int, every: int | None, points: int | None, stochastic: bool
    ) -> RecordedRounds:
        """Return those of a sweep's ``record``: every round unless it says otherwise, 400 if stochastic."""
        if every is None and points is None and stochastic:
            points = POINTS_PER_STOCHASTIC_CURVE
        return cls(rounds, every or 1, None if points is None else min(points, rounds))

    @property
    def count(self) -> int:
        """Return how many rows that makes; no ``len``, which ends at 2^63."""
        spread = -(-self.rounds // self.every) if self.points is None else self.points
        return 1 + (self._first - 1).bit_length() + spread

    @property
    def _first(self) -> int:
        """The first round after 0 that is recorded in any case."""
        if self.points is None:
            return min(self.every, self.rounds)
        return round(self.rounds / self.points)

    def __contains__(self, t: int) -> bool:
        if t < self._first:
            return t & (t - 1) == 0  # 0 and the powers of two
        if self.points is None:
            return t == self.rounds or t % self.every == 0
        if t == self.rounds:
            return True
        apart = self.rounds / self.points  # at least 1, so that only its neighbours may round to t
        near = math.floor(t / apart)
        return any(round(j * apart) == t for j in (near, near + 1) if j < self.points)


CHEAP_MEASURES = frozenset({"loss", "grad_norm_sq", "suboptimality", "estimator_error_sq"})
SPREAD = "mean_client_grad_norm_sq"
# a pass over the data each
COSTLY_MEASURES = frozenset({SPREAD, "accuracy", "test_loss"})


def measured(
    net: ProblemNet,
    x: Tensor,
    what: frozenset[str],
    facts: Mapping[str, Any],
    *,
    bad: int = 0,
    estimate: Tensor | None = None,
    metrics: Sequence[str] = (),
) -> dict[str, np.ndarray]:
    """Return the columns of a row at x (B, d), (B,) each; what is not known is left out.

    what: the columns that are asked for; f and its gradient are means over every client but the last ``bad``.
    facts: the problem's constants; f_star for the suboptimality, L for the step 1/L of the gradient
    mapping, which takes the gradient's place where f has a nonsmooth part. estimate: the method's g (B, d),
    whose error is recorded. metrics: names of plug-ins.
    """
    problem, measurement = net.oracle.problem, net.oracle.measure(x, what)
    values: dict[str, Tensor] = dict(measurement.values)

    def mean(each: Tensor | None) -> Tensor | None:
        """Return the mean over the clients of what is measured of each, (B, n_here, ..)."""
        if each is None or net.oracle.pooled:
            return None if each is None else each[:, 0]
        every = net.transport.gather_rows(each, net.n)
        return (every[:, : net.n - bad] if bad else every).mean(1)

    loss, grad = mean(measurement.losses), mean(measurement.grads)
    spread = None
    if measurement.grads is not None and SPREAD in what and not net.oracle.pooled:
        spread = mean(measurement.grads.square().sum(-1))
    if spread is not None:
        values[SPREAD] = spread
    if problem.has_prox:
        loss = None if loss is None else loss + problem.penalty(x)
        if grad is not None:
            L = float(facts.get("L") or 1.0)
            grad = (x - problem.prox(x - grad / L, 1 / L)) * L
    if loss is not None:
        values["loss"] = loss
        if facts.get("f_star") is not None:
            values["suboptimality"] = loss - facts["f_star"]
    if grad is not None:
        values["grad_norm_sq"] = grad.square().sum(-1)
        if estimate is not None and not problem.has_prox and estimate.shape == grad.shape:
            values["estimator_error_sq"] = (estimate - grad).square().sum(-1)
    for name in metrics:
        values[name] = registry.lookup("metric", name).target(problem, x)
    return {name: value.double().cpu().numpy() for name, value in values.items()}


@metric("iterate_norm")
def iterate_norm(problem: Problem, x: Tensor) -> Tensor:
    """||x||_2, by which a run that drifts away shows."""
    return torch.linalg.vector_norm(x, dim=-1)


@metric("sparsity")
def sparsity(problem: Problem, x: Tensor) -> Tensor:
    """The share of coordinates of x that are exactly zero, for l1-regularised problems."""
    return (x == 0).double().mean(-1)
