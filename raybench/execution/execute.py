"""Running batches: a raising cell is found by halving its batch; every cell ends as a row."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from time import perf_counter

import numpy as np
import pyarrow as pa

from raybench.execution import rows
from raybench.execution.batch import Batch
from raybench.execution.resolve import problem_of_cell
from raybench.execution.run import CheckpointStore, Options, Run, of_rank
from raybench.problems.base import Problem
from raybench.wire.transport import Transport, share_of

FIRST_CHUNK = 16  # rounds that a batch runs before the first look at the clock
Commit = Callable[[str, pa.Table | None, pa.Table, Mapping[str, bytes]], None]
"""``commit(shard, curves, cells, files)``, as ``Store.commit``."""


@dataclass
class Progress:
    """What some batches have come to so far; sums, so that parts add up."""

    ok: int = 0
    failed: int = 0
    diverged: int = 0
    pruned: int = 0
    rounds: float = 0.0  # summed over the cells
    best: dict[str, float] = field(default_factory=dict)  # smallest ||grad f||^2 by method
    errors: list[str] = field(default_factory=list)

    @property
    def cells(self) -> int:
        """Return the cells that have ended."""
        return self.ok + self.failed + self.diverged + self.pruned

    def add(self, part: Progress) -> None:
        """Add the progress of other batches."""
        for name in ("ok", "failed", "diverged", "pruned", "rounds"):
            setattr(self, name, getattr(self, name) + getattr(part, name))
        self.errors += part.errors
        for label, value in part.best.items():
            self.best[label] = min(value, self.best.get(label, np.inf))


def execute(
    batches: Sequence[Batch],
    options: Options,
    commit: Commit,
    *,
    transport: Transport | None = None,
    device: str = "cpu",
    where: Mapping[str, object] | None = None,
    slice_seconds: float = 0.5,
    timeout: float | None = None,
    begin: Callable[[Batch], int] | None = None,
    keeper: CheckpointStore | None = None,
) -> Iterator[Progress]:
    """Run batches one after the other, yielding progress about every ``slice_seconds``.

    commit is called on rank 0 for each finished batch. where: columns of how it
    runs (mode, workers). timeout: seconds for a cell; a batch that takes them all together is halved,
    and a cell that takes them alone has failed. begin: called
    on rank 0 as a batch is about to run; returns how often it was tried before. keeper: keeps states
    of batches that take long, from which they go on. An exception of a cell becomes a ``failed`` row and
    the others go on. All ranks yield in lock step;
    an error on some ranks only is raised.
    """
    transport = transport or Transport()
    host = {**rows.host_facts(), "mode": "simulate", "workers": 1, **(where or {})}
    progress = Progress()
    begun = {batch.name for batch in batches} if begin and transport.rank == 0 else set()
    queue = list(batches)[::-1]
    while queue:
        batch = queue.pop()
        if begin and batch.name in begun:  # not a half of one that has raised
            batch = replace(batch, attempts=begin(batch))
        parts = keeper.find(batch) if keeper else ()
        keeping = False
        try:
            problem = hosted(batch, transport, device)
            if not parts:
                warm_up(batch, problem, options, transport)
            began = perf_counter()
            run = Run(batch, problem, options, transport)
            if parts:
                run.load(of_rank(parts, transport.rank, transport.size, run.problem.clients))
            rounds, chunk, lap, last_save = 0, FIRST_CHUNK, began, began
            while not run.advance(chunk):
                ran, rounds = (run.t - rounds) * len(run.index), run.t
                progress.add(Progress(rounds=ran, best=_best(batch, run)))
                late = timeout and perf_counter() - began > timeout * len(batch.cells)
                if timeout and transport.agree(bool(late)):
                    raise TimeoutError(f"not done after {timeout:g} s (timeout)")
                share = slice_seconds / max(perf_counter() - lap, 1e-9)
                due = keeper is not None and perf_counter() - last_save > keeper.every
                chunk, due = transport.agree((max(1, int(chunk * min(share, 4.0))), due))
                if keeper and due:
                    state = _savable(run)
                    keeping = True
                    if state is not None:
                        keeper.save(batch, run.t, state)
                    keeping, last_save = False, perf_counter()
                yield progress
                lap = perf_counter()
            curves, cells = run.tables(host)
            files = run.files()
        except Exception as error:
            if keeping:
                raise  # a disk that is full, or lost, is no fault of the cells
            if not transport.all_failed():
                raise  # only this rank failed: the ranks are out of step, and their group must start anew
            if len(batch.cells) > 1:
                queue.extend(batch.halves()[::-1])
                continue
            text = "".join(traceback.format_exception(error, limit=-6))
            progress.errors.append(f"{batch.cells[0].label}: {type(error).__name__}: {error}")
            progress.failed += len(batch.cells)
            for cell in batch.cells if transport.rank == 0 else ():
                commit(cell.id, None, rows.failed_table(cell, batch, text, host), {})
            yield progress
            continue
        if transport.rank == 0:
            commit(batch.name, curves, cells, files)
        part = Progress(rounds=(run.t - rounds) * len(run.index), best=_best(batch, run))
        for status in ("ok", "diverged", "pruned"):
            setattr(part, status, int(np.sum(run.status == status)))
        progress.add(part)
        yield progress


def _savable(run: Run) -> dict[str, object] | None:
    """Return the state of a run, None where a plug-in remembers what no file can hold."""
    with suppress(TypeError):
        return run.state()
    return None


def hosted(batch: Batch, transport: Transport, device: str) -> Problem:
    """Return the batch's problem with the clients of this rank, on its device."""
    problem = problem_of_cell(batch.cells[0].cell)
    return _part(problem, share_of(transport.rank, transport.size, problem.n), device)


@lru_cache(maxsize=2)
def _part(problem: Problem, clients: range, device: str) -> Problem:
    """Return a problem with these clients alone on a device; kept for the next batch of the problem."""
    return (problem if len(clients) == problem.n else problem.host(clients)).to(device)


def _best(batch: Batch, run: Run) -> dict[str, float]:
    """Return the smallest ||grad f||^2 recorded so far, by method."""
    return {batch.cells[0].label: float(run.recorder.smallest("grad_norm_sq").min())}


@dataclass(frozen=True)
class Smoked:
    """How two rounds of a kind of cells went: its label, seconds, and what it raised, empty where nothing was."""

    label: str
    seconds: float
    error: str


def smoke(batches: Sequence[Batch], options: Options) -> Iterator[Smoked]:
    """Run two rounds of one batch of each kind and make its tables; nothing is kept.

    A kind is a method on a problem, and what differs from others in more than numbers: compressors, optimizers and so
    on. Of a batch the first and the last cell run, and networks have few examples.
    """
    kinds: dict[object, Batch] = {}
    for batch in batches:
        config = batch.cells[0].cell.config()
        kinds.setdefault((config.pop("problem")["name"], _names(config)), batch)
        kinds.setdefault((batch.cells[0].cell.problem, _names(config["algorithm"])), batch)
    several = len({batch.cells[0].cell.problem for batch in kinds.values()}) > 1
    for batch in {b.name: b for b in kinds.values()}.values():
        first = batch.cells[0].cell.problem
        on = f" on {first.params.get('dataset') or first.name}" if several else ""
        batch = replace(batch, cells=batch.cells[:: max(1, len(batch.cells) - 1)])
        began, error = perf_counter(), ""
        try:
            run = Run(batch, problem_of_cell(batch.cells[0].cell).few(), options)
            run.advance(2)
            run.tables({**rows.host_facts(), "mode": "simulate", "workers": 1})
            run.files()
        except Exception as raised:  # whatever a user's code raises
            error = "".join(traceback.format_exception(raised, limit=-1)).strip()
        yield Smoked(batch.cells[0].label + on, perf_counter() - began, error)


ROUNDS = 3

_warm: set[tuple[object, ...]] = set()


def warm_up(batch: Batch, problem: Problem, options: Options, transport: Transport) -> None:
    """Run a few rounds of a batch and forget them, where none of its kind has run in this process.

    A kind is a method with compressors of some names on a problem. Rounds of networks take so long that the first one
    hardly counts; they run no others. Raises what the method raises. All ranks of a group do the same.
    """
    cell = batch.cells[0].cell
    names = cell.algorithm.name, _names(cell.config()["compressor"])
    # by rank, since ranks may be threads of one process, and what one does each must do
    kind = (cell.problem, *names, problem.device, transport.rank, transport.size)
    if problem.costly or kind in _warm:
        return
    _warm.add(kind)
    quiet = replace(options, evaluate=replace(options.evaluate, metrics=()))
    Run(batch, problem, quiet, transport).advance(min(ROUNDS, batch.cells[0].cell.rounds))


def _names(value: object) -> object:
    """Return the texts of a section, without its numbers: kernels are the same for each K."""
    if isinstance(value, dict):
        return tuple((key, _names(item)) for key, item in sorted(value.items()))
    return value if isinstance(value, str) else ""
