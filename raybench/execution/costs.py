"""What a plan needs of memory and disk at least, and the refusal of one that cannot fit."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from statistics import mean
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse
import torch

from raybench.core.cells import State
from raybench.core.errors import Complaint, InputError
from raybench.core.limits import disk_free, memory_here, size
from raybench.execution.batch import MOST_BYTES_PER_TENSOR, Batch
from raybench.execution.checks import robust_of
from raybench.execution.execute import hosted
from raybench.execution.plan import Plan, recorded
from raybench.execution.recorder import COLUMNS_OF_COUNTS, COLUMNS_OF_MEASURES
from raybench.execution.resolve import problem_of, problem_of_cell
from raybench.execution.run import Options, Run
from raybench.execution.search import rounds_of
from raybench.problems.base import Problem
from raybench.spec import Cell, Section
from raybench.spec.model import Record
from raybench.wire import Message
from raybench.wire.transport import Transport

# A row is a float per column in the recorder, and again in the table that is made of it.
MEMORY_PER_ROW = 2 * 8 * (len(COLUMNS_OF_MEASURES) + len(COLUMNS_OF_COUNTS))
# Rows of 34 to 73 bytes were measured, on curves of 80,034 to 120,006 rows; half of the least.
DISK_PER_ROW = 17
FEWER_ROWS = "fewer rows by record: {points: 400}, fewer rounds"


@dataclass(frozen=True)
class Need:
    """Bytes that a plan needs at least, if its cells run all their rounds.

    tensors: of the largest batch, what its clients remember and a gradient of each client, and what a robust
    server keeps of each. server: the last of these, of the batch that keeps most, n d values a cell. sure: whether
    it comes to that, false where a stop rule may end cells before.
    """

    problem: float = 0.0  # of the largest problem, held by the driver
    tensors: float = 0.0
    server: float = 0.0
    rows: float = 0.0  # of the curves that a batch holds until it is committed, the longest
    disk: float = 0.0  # of all curves that are missing
    sure: bool = True

    @property
    def memory(self) -> float:
        """Return the bytes of memory, of one process that runs the largest batch."""
        return self.problem + self.tensors + self.rows


def need_of(plan: Plan) -> Need:
    """Return what the missing cells of a plan need at least."""
    largest, server, disk = Need(), 0.0, 0.0
    memory_of = cache(_held)  # batches share problems
    tensors: dict[tuple[str, int], float] = {}  # and shapes
    places: dict[Section, int] = {}
    for batch in plan.batches:
        places.setdefault(batch.cells[0].cell.problem, len(places))
    # one problem after the other, as few are kept at a time
    for batch in sorted(plan.batches, key=lambda b: places[b.cells[0].cell.problem]):
        first, count = batch.cells[0], len(batch.cells)
        problem, trained = problem_of(first.cell.problem), problem_of_cell(first.cell)
        rows = count * recorded(plan.sweep, first).count  # of one shape, so alike
        apart = 0.0  # a robust server's estimates of all clients, which every process holds whole
        if not robust_of(first.cell).idle(trained.n):
            apart = count * trained.n * trained.message_dim * trained.dtype.itemsize
        kind = first.shape(), count
        if kind not in tensors:
            tensors[kind] = apart + _tensors(batch, trained)
        need = Need(memory_of(problem), tensors[kind], apart, MEMORY_PER_ROW * rows)
        server = max(server, apart)
        largest = max(largest, need, key=lambda need: need.memory)
        disk += DISK_PER_ROW * rows
    sure = not any(_may_stop(batch) for batch in plan.batches)
    return Need(largest.problem, largest.tensors, server, largest.rows, disk, sure)


def check_memory_and_disk(plan: Plan, folder: str | os.PathLike[str]) -> Need:
    """Return what a plan needs, after checking that this machine and the disk of the folder have it.

    A cell that a stop rule may end early is refused for its tensors alone. Raises InputError with the
    numbers and what to change.
    """
    need = need_of(plan)
    certain = need
    if not need.sure:
        bound = tuple(b for b in plan.batches if not _may_stop(b))
        certain = need_of(replace(plan, batches=bound))
    here, free = memory_here(), disk_free(folder)
    tensors, machine = need.problem + need.tensors, f"this machine has {size(here)}"
    complaints = []
    if tensors > here:
        what = f"a batch needs {size(tensors)} of memory at least, for the data, what the clients remember"
        what = f"{what} and the gradients of those at work, and {machine}"
        complaints.append(Complaint("problem", what, "fewer problem.clients, or a smaller problem"))
    elif certain.memory > here:
        what = f"the rows of a batch's curves need {size(certain.rows)} of memory at least"
        fix = f"{FEWER_ROWS}, or a stop rule"
        complaints.append(Complaint("record", f"{what}, and {machine}", fix))
    if certain.disk > free:
        what = f"the curves need {size(certain.disk)} of disk at least, and {size(free)} are free"
        fix = f"{FEWER_ROWS}, or --out on another disk"
        complaints.append(Complaint("record", f"{what} in {os.fspath(folder)}", fix))
    if complaints:
        raise InputError(complaints)
    return need


def _may_stop(batch: Batch) -> bool:
    return any(cell.cell.stop for cell in batch.cells)


def _tensors(batch: Batch, problem: Problem) -> float:
    """Return the bytes of what a batch's clients remember and of the gradients that are there at the same time.

    What they remember is that of two clients after ``setup``, times n/2; of small tensors their gradients alone count.
    """
    length = max(problem.dim, problem.message_dim)
    each = len(batch.cells) * length * problem.dtype.itemsize
    if problem.n * each <= MOST_BYTES_PER_TENSOR:
        return problem.n * each
    here = range(min(2, problem.n))
    state = 0.0
    with suppress(Exception):  # whatever a plug-in raises becomes a failed row when it runs
        few = Options(record=Record(every=max(1, batch.cells[0].cell.rounds)))
        run = Run(batch, problem.host(here), few)
        run.net.per_client = False  # what a robust server keeps is counted by itself
        run.a.setup(run.net, run.s, run.c)
        state = _held(run.c) / len(here)
    return problem.n * (state + each)


def _held(thing: Problem | State) -> float:
    """Return the bytes of the arrays that a thing holds, each counted once."""
    return float(sum(dict(_arrays(thing, set())).values()))


def _arrays(thing: Any, seen: set[int]) -> Iterator[tuple[int, int]]:
    """Yield (address, bytes) of the arrays that a thing is made of."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    parts: Iterable[Any] = ()
    if isinstance(thing, torch.Tensor):
        yield thing.untyped_storage().data_ptr(), thing.untyped_storage().nbytes()
    elif isinstance(thing, np.ndarray):
        yield thing.__array_interface__["data"][0], thing.nbytes
    elif scipy.sparse.issparse(thing) or type(thing).__module__.startswith("raybench"):
        parts = vars(thing).values()
    elif isinstance(thing, Mapping):
        parts = thing.values()
    elif isinstance(thing, list | tuple):
        parts = thing
    for part in parts:
        yield from _arrays(part, seen)


MOST_SHAPES_TRIED = 60  # batches beyond so many are estimated from those that were tried
SECONDS_IN_ALL = 1.0  # for all trials together
MOST_SECONDS_EACH = 0.1
LONG_ROUND = 5.0  # seconds, of a round that is run once more at most to be timed


@dataclass(frozen=True)
class Estimate:
    """Of one batch: seconds for its rounds, bits up per client at their end, first error if any, and a warning.

    The bits are a mean over the batch's cells and, where messages are random, over few rounds; over the coin of methods
    that toss one it is exact. spread: by which the
    seconds may be less and more, as those of the rounds that were tried.
    """

    seconds: float
    bits_up: float
    error: str = ""
    warning: str = ""
    spread: tuple[float, float] = (1.0, 1.0)
    evaluation: float = 0.0  # of the seconds, those of passes over the data for the record


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
    spread: tuple[float, float] = (1.0, 1.0)
    evaluation: float = 0.0  # seconds of all that is measured for the record
    costly: bool = False  # whether that takes passes over the data which methods do not make

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
        cells = [member.cell for member in batch.cells]
        share = rounds_of(batch, options.prune) / sum(cell.rounds for cell in cells)
        rounds = sum(self.rounds(cell) for cell in cells)
        bits = self.start + self.each * rounds / len(cells)
        seconds = self.seconds * rounds * share / self.cells
        looks = self.evaluation * share * len(cells) / self.cells
        costly = looks if self.costly else 0.0
        return Estimate(seconds + looks, bits, self.error, self.warning, self.spread, costly)


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


class _Coins:
    """Let the coin that decides between two kinds of message fall on either side in turns, and count the bits of each.

    A coin with probability p would show one side alone in the few rounds that are tried; their mean over it is a
    formula, p yes + (1 - p) no.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.side = run, True
        self.plain_coin, self.plain_cases = run.net.coin, run.net.cases
        self.last: torch.Tensor | None = None  # the coin that was drawn last,
        self.chance: Any = None  # and its probability
        self.p: Any = None  # that of the coin which has decided between messages
        # of each round: the bits to be expected of its side, and as they were
        self.bits: list[tuple[float, float]] = []
        run.net.coin, run.net.cases = self.coin, self.cases  # type: ignore[method-assign]

    def coin(self, purpose: str, p: Any) -> torch.Tensor:
        """Draw a coin as the method does."""
        self.last, self.chance = self.plain_coin(purpose, p), p
        return self.last

    def cases(self, coin: torch.Tensor, yes: Any, no: Any) -> Message:
        """Send what the side of this round sends, in every cell; what another thing than a coin decides stays."""
        if coin is not self.last:
            return self.plain_cases(coin, yes, no)
        self.p = self.chance
        return self.plain_cases(torch.full_like(coin, self.side), yes, no)

    def advance(self) -> bool:
        """Run one round; return whether all cells have ended."""
        run, before = self.run, self.run.bits("up")
        self.side = len(self.bits) % 2 == 0
        over = run.advance(1)
        spent = run.bits("up")
        if len(spent) == len(before):  # else some cells have ended, and are no longer here
            spent = spent - before
            share = np.ones(len(spent))
            if self.p is not None:
                share = np.asarray(self.p.values if self.side else 1 - self.p.values)
            self.bits.append((float((share * spent).mean()), float(spent.mean())))
        return over

    def each(self) -> float:
        """Return the bits up of a round to be expected, the mean over the cells."""
        expected, bits = np.array(self.bits or [(0.0, 0.0)]).T
        if self.p is not None and len(bits) > 1:
            return float(expected[::2].mean() + expected[1::2].mean())
        return float(bits.mean())


def _try(batch: Batch, options: Options, seconds: float) -> _Trial:
    count = len(batch.cells)
    try:
        run = Run(batch, hosted(batch, Transport(), "cpu"), options)
        run.advance(0)
        coins = _Coins(run)
        warning, f_star = "", run.first.f_star
        loss, start = run.recorder.smallest("loss").min(), float(run.bits("up").mean())
        if f_star is not None and loss < f_star:
            what = f"f_star: {f_star:g} lies above f(x0) = {loss:.6g}: no minimum does"
            warning = f"{what}; suboptimality would be negative"
        began = perf_counter() - sum(run.looks)
        over = coins.advance()
        first = perf_counter() - sum(run.looks) - began
        # the first round loads compiled kernels, for seconds: it counts where a second one takes as long
        laps: list[float] = []
        until = perf_counter() + (0.0 if first > LONG_ROUND else seconds)
        while not over and (not laps or perf_counter() < until):
            began = perf_counter() - sum(run.looks)
            over = coins.advance()
            laps.append(perf_counter() - sum(run.looks) - began)
        if first > LONG_ROUND and (not laps or laps[0] > first / 2):
            laps.append(first)
        # the mean, as rounds of one method may differ much; without a single lap in which a kernel was loaded
        laps, few = sorted(laps), len(laps) // 10
        if len(laps) > 2 and laps[-1] > 5 * laps[-2]:
            laps.pop()
        spent = mean(laps) if laps else 0.0
        spread = (laps[few] / spent, laps[-1 - few] / spent) if spent else (1.0, 1.0)
        if len(laps) == 1:
            spread = (0.5, 2.0)  # one round says little
        each, ended = coins.each(), run.t if over else None
        looks = run.evaluation()
        costly = run.problem.costly
        return _Trial(count, spent, start, each, ended, "", warning, spread, looks, costly)
    except Exception as error:  # whatever a user's plug-in raises is shown in the plan
        return _Trial(count, error=traceback.format_exception_only(error)[-1].strip())
