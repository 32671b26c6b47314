"""What a plan would cost: its first rounds are run, the rest is extrapolated."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from time import perf_counter

import numpy as np

from raybench.engine.execute import hosted
from raybench.engine.run import Options, Run
from raybench.planning.batch import Batch
from raybench.planning.pruning import rounds_of
from raybench.spec import Cell
from raybench.wire.transport import Transport

MOST_SHAPES_TRIED = 60  # batches beyond so many are estimated from those that were tried
SECONDS_IN_ALL = 1.0  # for all trials together
MOST_SECONDS_EACH = 0.1
LONG_ROUND = 5.0  # seconds, of a round that is not run again to be timed


@dataclass(frozen=True)
class Estimate:
    """Of one batch: seconds for its rounds, bits up per client at their end, first error if any, and a warning.

    The bits are a mean over the batch's cells and, where messages are random, over few rounds.
    """

    seconds: float
    bits_up: float
    error: str = ""
    warning: str = ""


@dataclass(frozen=True)
class _Trial:
    """The first rounds of a batch: its cells, seconds of a round of all, bits up at the start and of each round.

    over: how many rounds it took where all its cells ended, None where they go on.
    """

    cells: int
    seconds: float = 0.0
    start: float = 0.0
    each: float = 0.0
    over: int | None = None
    error: str = ""
    warning: str = ""

    def rounds(self, cell: Cell) -> float:
        """Return after how many rounds a cell ends: by its number of them, its bits or its seconds.

        What it stops at of the objective is not foreseen.
        """
        left = [float(cell.rounds), float(cell.rounds if self.over is None else self.over)]
        if "bits_up" in cell.stop and self.each:
            left.append(ceil(max(0.0, cell.stop["bits_up"] - self.start) / self.each))
        if "seconds" in cell.stop and self.seconds:
            left.append(ceil(cell.stop["seconds"] * self.cells / self.seconds))
        return min(left)

    def estimate(self, batch: Batch, options: Options) -> Estimate:
        """Return what a batch of this shape takes."""
        cells = [one.cell for one in batch.cells]
        share = rounds_of(batch, options.prune) / sum(cell.rounds for cell in cells)
        rounds = sum(self.rounds(cell) for cell in cells)
        bits = self.start + self.each * rounds / len(cells)
        return Estimate(self.seconds * rounds * share / self.cells, bits, self.error, self.warning)


def estimate(batches: Sequence[Batch], options: Options) -> dict[str, Estimate]:
    """Return estimates by batch name, from the first rounds of one batch of each shape.

    Of many shapes ``MOST_SHAPES_TRIED``, evenly spaced, are tried, and batches of the others have no
    estimate. What is pruned is left out, and so is what follows a stop at so many bits or seconds; one at a
    value of the objective may end cells earlier.
    """
    shapes: dict[str, Batch] = {}
    for batch in batches:
        shapes.setdefault(batch.cells[0].shape(), batch)
    every = list(shapes.values())
    count = min(len(every), MOST_SHAPES_TRIED)
    chosen = [every[len(every) * j // count] for j in range(count)]
    each = min(MOST_SECONDS_EACH, SECONDS_IN_ALL / max(1, count))
    trials = {batch.cells[0].shape(): _try(batch, options, each) for batch in chosen}
    shaped = [(batch, trials.get(batch.cells[0].shape())) for batch in batches]
    return {batch.name: t.estimate(batch, options) for batch, t in shaped if t is not None}


def _try(batch: Batch, options: Options, seconds: float) -> _Trial:
    count = len(batch.cells)
    try:
        run = Run(batch, hosted(batch, Transport(), "cpu"), options)
        run.advance(0)
        warning = _warning(run)
        start = float(run.bits("up").mean())
        began = perf_counter()
        over = run.advance(1)
        first = perf_counter() - began
        # the first round loads compiled kernels, which is nothing in one that lasts long
        laps = [first] if first > LONG_ROUND else []
        until = perf_counter() + seconds
        while not over and first <= LONG_ROUND and (not laps or perf_counter() < until):
            began = perf_counter()
            over = run.advance(1)
            laps.append(perf_counter() - began)
        # the median, as a lap in which a kernel is loaded would mislead
        spent = median(laps) if laps else 0.0
        each = (float(run.bits("up").mean()) - start) / max(1, run.t)
        return _Trial(count, spent, start, each, run.t if over else None, warning=warning)
    except Exception as error:  # whatever a user's plug-in raises is shown in the plan
        return _Trial(count, error=traceback.format_exception_only(error)[-1].strip())


def _warning(run: Run) -> str:
    """Return what is wrong with a given f_star at the start, empty if nothing is."""
    given, loss = run.first.f_star, float(np.nanmin(run.recorder.last("loss")))
    if given is None or not loss < given:
        return ""
    return f"f_star: {given:g} lies above f(x0) = {loss:.6g}: no minimum does; suboptimality would be negative"
