"""The queue of a sweep: hands out batches one at a time, longest first; what a lost worker held comes back.

One queue lives in an actor on the driver's node. A worker (a Tune trial, or a group of Train workers) is a
loop: take a batch, run it, report, take the next. Of a worker that is gone, the batch that it was at goes
back with one more try; all else stands. Nothing of Ray is used here.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from raybench.core.process import disk_trouble_told
from raybench.execution.batch import Batch
from raybench.execution.execute import Progress
from raybench.spec import Section

SILENT = 10.0  # seconds without a word after which a worker, who speaks once a second, is shown
SWITCH = 2.0  # a worker turns to another problem for a batch that is so many times as long
VAIN_DEATHS = 3  # of all workers, in a row, before they take a batch: then no more are started

Demand = Literal["more", "enough", "over"]


class Attempts(dict[str, int]):
    """How often each cell was tried that has not ended, by id."""

    def begin(self, cells: Sequence[str]) -> int:
        """Note that cells are tried once more; return how often one of them was before, at most."""
        before = max((self.get(cell, 0) for cell in cells), default=0)
        self.update({cell: self.get(cell, 0) + 1 for cell in cells})
        return before

    def end(self, cells: Sequence[str]) -> None:
        """Forget cells that have ended, so that what is saved for each batch does not grow with the sweep."""
        for cell in cells:
            self.pop(cell, None)

    def take(self, counts: Mapping[str, int]) -> None:
        """Take counts in place of these."""
        self.clear()
        self.update(counts)


@dataclass
class Assignment:
    """What a worker is at. number: of the batch; turn: of the worker; heard: by rank, when it last spoke."""

    number: int
    turn: int
    heard: dict[int, float]
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True)
class News:
    """How a sweep stands: the progress of all workers, and what follows."""

    progress: Progress
    attempts: Mapping[str, int]  # how often each cell was tried that has not ended well
    # seconds since the last word of workers that have said nothing for long
    silent: tuple[float, ...]
    begun: bool  # whether any batch was taken yet
    troubles: tuple[str, ...] = ()  # what an object store failed at since the news before


@dataclass(frozen=True)
class QueueEnding:
    """How the queue ended; texts are empty where that has not happened."""

    folder_lost: str  # why the results folder is lost
    disk: str  # what a worker said of a full or broken disk
    given_up: Mapping[str, str]  # by cell, how its last worker ended
    vain: str  # why workers could not even start


class Queue:
    """The batches of a sweep and who is at which.

    work: a rough measure of each batch's time. attempts: how often a batch is handed out, at most.
    fail_fast: whether to stop at the first failed cell. before: how often each cell was tried before.
    """

    def __init__(
        self,
        batches: Sequence[Batch],
        work: Sequence[float],
        attempts: int,
        fail_fast: bool,
        before: Mapping[str, int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.batches, self.work, self.most = batches, work, attempts
        self.fail_fast, self.attempts, self.clock = fail_fast, Attempts(before), clock
        self.tries = [0] * len(batches)  # how often each was handed out
        self.waiting: dict[Section, list[int]] = {}  # by problem, the longest last
        for number, batch in enumerate(batches):
            self.waiting.setdefault(_problem(batch), []).append(number)
        for numbers in self.waiting.values():
            numbers.sort(key=self._rank)
        self.assignments: dict[str, Assignment] = {}
        self.turns: dict[str, int] = {}
        self.problems: dict[str, Section] = {}  # what each worker has loaded last
        self.lost: set[str] = set()
        self.ended = Progress()
        self.given_up: dict[int, str] = {}
        self.folder_lost = self.disk = self.vain = ""
        self.troubles: list[str] = []
        self.in_vain, self.most_live = 0, 1

    # What workers call -----------------------------------------------------------------------------

    def take(self, worker: str, done: Progress | None) -> Batch | None:
        """Take the progress of the batch that a worker has ended; return its next one, or None.

        None ends the worker: nothing waits, or the sweep is stopped, or the worker counts as lost.
        """
        if worker in self.lost:
            return None
        before = self.assignments.pop(worker, None)
        if before is not None and done is not None:
            self.ended.add(done)
            if not done.failed:
                self.attempts.end([c.id for c in self.batches[before.number].cells])
        number = None if self.closed() else self._next(worker)
        if number is None:
            return None
        batch = self.batches[number]
        self.in_vain = 0
        self.tries[number] += 1
        self.problems[worker] = _problem(batch)
        turn = self.turns[worker] = self.turns.get(worker, 0) + 1
        self.assignments[worker] = Assignment(number, turn, {0: self.clock()})
        return Batch(batch.cells, self.attempts.begin([c.id for c in batch.cells]), batch.facts)

    def post(self, worker: str, rank: int, turn: int, progress: Progress | None) -> bool:
        """Hear a worker; return whether it should stop.

        turn: its how-manieth batch this is about. progress: on that batch, of rank 0 only.
        """
        assignment = self.assignments.get(worker)
        if assignment is not None:
            assignment.heard[rank] = self.clock()
            if progress is not None and turn == assignment.turn:
                assignment.progress = progress
        return worker in self.lost or self.closed()

    def lose(self, why: str) -> None:
        """Note that the results folder is lost, so that every worker stops."""
        self.folder_lost = why

    def trouble(self, text: str) -> None:
        """Note what an object store failed at, which a worker tries again."""
        self.troubles.append(text)

    # What the driver calls -------------------------------------------------------------------------

    def release(self, worker: str, why: Sequence[str]) -> None:
        """Take back what a worker held that is gone; why: lines about how it ended, the last tells."""
        self.lost.add(worker)
        assignment = self.assignments.pop(worker, None)
        if disk_trouble_told(why) is not None:
            self.disk = "\n".join(why)
        last = why[-1] if why else ""
        if assignment is None:
            self.in_vain += 1
            if self.in_vain >= VAIN_DEATHS * self.most_live:
                self.vain = last or "killed, or out of memory"
        elif self.tries[assignment.number] < self.most:
            same = self.waiting.setdefault(_problem(self.batches[assignment.number]), [])
            insort(same, assignment.number, key=self._rank)
        else:
            self.given_up[assignment.number] = last

    def demand(self, live: int) -> Demand:
        """Return whether more workers are wanted beside so many that run or are about to: or none ever."""
        self.most_live = max(self.most_live, live)
        if self.closed() or not (self.assignments or self._count()):
            return "over"
        return "more" if self._count() > live - len(self.assignments) else "enough"

    def idle(self) -> bool:
        """Return whether a worker that asks now would get nothing."""
        return self.closed() or not self._count()

    def closed(self) -> bool:
        """Return whether no batch is handed out any more, whatever waits."""
        parts = (self.ended, *(a.progress for a in self.assignments.values()))
        failed = self.fail_fast and any(part.failed for part in parts)
        return bool(failed or self.folder_lost or self.disk or self.vain)

    def news(self) -> News:
        """Return how the sweep stands."""
        now = self.clock()
        troubles, self.troubles = self.troubles, []
        quiet = [now - min(h.heard.values()) for h in self.assignments.values()]
        progress = Progress()
        for part in (self.ended, *(h.progress for h in self.assignments.values())):
            progress.add(part)
        silent = tuple(sorted((s for s in quiet if s > SILENT), reverse=True))
        return News(progress, dict(self.attempts), silent, bool(self.turns), tuple(troubles))

    def ending(self) -> QueueEnding:
        """Return how it ended."""
        why = {c.id: w for n, w in self.given_up.items() for c in self.batches[n].cells}
        return QueueEnding(self.folder_lost, self.disk, why, self.vain)

    # -----------------------------------------------------------------------------------------------

    def _rank(self, number: int) -> tuple[float, str]:
        return self.work[number], self.batches[number].name

    def _count(self) -> int:
        return sum(map(len, self.waiting.values()))

    def _next(self, worker: str) -> int | None:
        """Take the longest batch that waits, or one of the problem that the worker holds if not much shorter."""
        waiting = {problem: numbers for problem, numbers in self.waiting.items() if numbers}
        if not waiting:
            return None
        longest = max(waiting.values(), key=lambda numbers: self._rank(numbers[-1]))
        same = waiting.get(self.problems.get(worker), longest)  # type: ignore[arg-type]
        is_much_shorter = SWITCH * self.work[same[-1]] < self.work[longest[-1]]
        return (longest if is_much_shorter else same).pop()


def _problem(batch: Batch) -> Section:
    return batch.cells[0].cell.problem
