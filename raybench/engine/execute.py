"""Running batches: a raising cell is found by halving its batch; every cell ends as a row."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from raybench.engine import rows
from raybench.engine.batch import Batch
from raybench.engine.resolve import problem_of
from raybench.engine.run import Options, Run
from raybench.engine.transport import Transport, share_of
from raybench.problems.base import Problem

Commit = Callable[[str, pa.Table | None, pa.Table], None]


@dataclass
class Progress:
    """What a pack of batches has done so far; sums, so that packs add up."""

    ok: int = 0
    failed: int = 0
    diverged: int = 0
    rounds: float = 0.0  # cell-rounds
    best: dict[str, float] = field(default_factory=dict)  # smallest ||grad f||^2 by method
    errors: list[str] = field(default_factory=list)

    @property
    def cells(self) -> int:
        """Return the cells that have ended."""
        return self.ok + self.failed + self.diverged


def execute(
    batches: Sequence[Batch],
    options: Options,
    commit: Commit,
    *,
    transport: Transport | None = None,
    device: str = "cpu",
    where: dict[str, Any] | None = None,
    slice_seconds: float = 0.5,
) -> Iterator[Progress]:
    """Run batches one after the other, yielding progress about every ``slice_seconds``.

    commit(shard, curves, cells) is called on rank 0 for each finished batch. where: columns of how it
    runs (mode, workers). An exception of a cell becomes a ``failed`` row and the others go on.
    """
    transport = transport or Transport()
    host = {**rows.host_facts(), "mode": "simulate", "workers": 1, **(where or {})}
    progress = Progress()
    queue = list(batches)[::-1]
    while queue:
        batch = queue.pop()
        try:
            run = Run(batch, hosted(batch, transport, device), options, transport)
            rounds = 0
            while not run.advance(slice_seconds):
                progress.rounds += (run.t - rounds) * len(run.index)
                rounds = run.t
                yield _noting(progress, batch, run)
            curves, cells = run.tables(host)
        except Exception as error:
            if len(batch.cells) > 1:
                queue.extend(batch.halves()[::-1])
                continue
            text = "".join(traceback.format_exception(error, limit=-6))
            progress.errors.append(f"{batch.cells[0].label}: {type(error).__name__}: {error}")
            progress.failed += 1
            if transport.rank == 0:
                commit(batch.name, None, rows.failed_table(batch.cells[0], batch, text, host))
            yield progress
            continue
        if transport.rank == 0:
            commit(batch.name, curves, cells)
        progress.rounds += (run.t - rounds) * len(run.index)
        progress.ok += int(np.sum(run.status == "ok"))
        progress.diverged += int(np.sum(run.status == "diverged"))
        yield _noting(progress, batch, run)


def hosted(batch: Batch, transport: Transport, device: str) -> Problem:
    """Return the batch's problem with the clients of this rank, on its device."""
    problem = problem_of(batch.cells[0].cell.problem)
    if transport.size > 1:
        problem = problem.host(share_of(transport.rank, transport.size, problem.n))
    return problem.to(device)


def _noting(progress: Progress, batch: Batch, run: Run) -> Progress:
    label = batch.cells[0].label
    progress.best[label] = min(progress.best.get(label, np.inf), run.best())
    return progress
