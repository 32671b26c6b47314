"""The plan of a sweep: which cells run, in which batches, which are skipped and why."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from raybench.core import registry
from raybench.core.errors import Complaint, InputError
from raybench.execution import search
from raybench.execution.batch import Batch, Resolved, batches_of, most_cells
from raybench.execution.checks import Skip, Skipped
from raybench.execution.recorder import RecordedRounds
from raybench.execution.resolve import Resolver, label_of, problem_of, problem_of_cell
from raybench.execution.search import Best, Stage, batches_to_prune, rounds_of
from raybench.problems.base import Problem
from raybench.problems.minimum import heterogeneity, noise
from raybench.spec import Section, Sweep
from raybench.spec.model import canonical
from raybench.store import identity, reader

MOST_COMPLAINTS = 8
CONSTANTS = (
    *("L", "L_max", "L_tilde", "L_AM", "L_plus", "L_pm", "L_samples", "L_sample_max"),
    *("sample_variance", "mu", "mu_min", "f_inf", "f_star"),
)


@dataclass(frozen=True)
class Plan:
    """What a sweep amounts to on the user's data.

    grid: all cells that the sweep names, of which a search tries some, so that cells are those tried so far.
    """

    sweep: Sweep
    cells: tuple[Resolved, ...]
    batches: tuple[Batch, ...]  # those that are yet to run
    done: Mapping[str, str]  # cells committed before, by status
    skipped: tuple[Skipped, ...]  # cells that make no sense, with the reason
    notes: tuple[str, ...]  # merged duplicates and the like
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by problem
    statuses: Mapping[str, str] = field(default_factory=dict)  # all that the folder held, by status
    grid: tuple[Resolved, ...] = ()
    most: Mapping[str, int] = field(default_factory=dict)  # B_max by problem
    again: frozenset[str] = frozenset()  # cells that failed and are to be tried once more
    stage: Stage | None = None  # where a search is

    def following(self, statuses: Mapping[str, str], best: Best | None) -> Plan:
        """Return the plan of what is to run next, given all cells that the folder holds now, by status.

        best: judges the steps that were tried. Raises TypeError where a search needs it and it is not given.
        """
        undone = {"skipped"} if self.sweep.prune.halves else {"skipped", "pruned"}
        ended = {i: s for i, s in statuses.items() if i not in self.again and s not in undone}
        stage, cells, new = None, self.grid, self.grid
        if self.sweep.search.step_size == "refine":
            start = self.sweep.search.start
            stage = search.stage_of(search.ladders(self.grid), ended, start, best or _unjudged)
            cells = tuple(c for c in self.grid if c.id in stage.tried)
            new = tuple(c for c in cells if c.id in stage.new)
        if self.sweep.prune.halves:
            batches = batches_to_prune(new, ended, self.most, self.facts)
        else:
            todo = [c for c in new if c.id not in ended]
            batches = batches_of(todo, self.most, self.facts)
        done = {c.id: ended[c.id] for c in cells if c.id in ended}
        return replace(self, cells=cells, batches=tuple(batches), done=done, stage=stage)

    def after(self, statuses: Mapping[str, str], best: Best | None) -> Plan:
        """Return what follows on this plan, whose batches have run; statuses: as for ``following``."""
        ran = {c.id for b in self.batches for c in b.cells}
        return replace(self, again=self.again - ran).following(statuses, best)

    @property
    def unpruned(self) -> frozenset[str]:
        """The cells that were pruned before and are to run to their end now."""
        ids = {c.id for b in self.batches for c in b.cells} if not self.sweep.prune.halves else ()
        return frozenset(i for i in ids if self.statuses.get(i) == "pruned")

    @property
    def missing(self) -> int:
        """Return the number of cells yet to run."""
        return sum(len(b.cells) for b in self.batches)

    @property
    def rounds(self) -> float:
        """Return the rounds yet to run at most, summed over the cells."""
        return sum(rounds_of(batch, self.sweep.prune) for batch in self.batches)

    @property
    def ahead(self) -> float:
        """Return how often the work of its batches is to be done in all, at most: a search has more stages."""
        if self.stage is None or not self.batches:
            return 1.0
        _, upto = search.foreseen(search.ladders(self.grid), self.sweep.search.start)
        return max(1.0, (upto - len(self.cells) + self.missing) / self.missing)

    @property
    def title(self) -> str:
        """Return the sweep's name, with the stage where it searches."""
        return self.sweep.name + (f", stage {self.stage.number} of steps" if self.stage else "")

    def work(self, batch: Batch) -> float:
        """Return a rough measure of a batch's time."""
        return batch.work(batch.facts["clients"], batch.facts["d"])

    def grid_text(self) -> str:
        """Return how many cells the grid has in each group, as JSON, as saved in plan/."""
        counts = Counter(c.cell.group for c in self.grid)
        return json.dumps(dict(sorted(counts.items())), indent=1)

    def text(self) -> str:
        """Return the batch list as JSON, as saved in plan/."""
        return json.dumps({b.name: [c.id for c in b.cells] for b in self.batches}, indent=1)


def _unjudged(cells: Mapping[str, str]) -> Mapping[str, Sequence[float]]:
    raise TypeError("a sweep that searches needs what judges steps")


def facts_of(problem: Problem) -> dict[str, Any]:
    """Return the columns of ``cells`` that the problem decides."""
    c = problem.constants
    constants = {
        **{name: getattr(c, name) for name in CONSTANTS},
        "message_dim": problem.message_dim,
        "noise_at_minimizer": noise(problem),
        "samples": [min(problem.samples), max(problem.samples)],
        "facts": sorted(c.facts),
        **c.extra,
    }
    return {
        "clients": problem.n,
        "d": problem.dim,
        **{name: getattr(c, name) for name in ("L", "L_tilde", "L_pm", "mu", "f_star")},
        "heterogeneity": heterogeneity(problem),
        "constants": json.dumps(constants),
    }


def make_plan(
    sweep: Sweep,
    done: Mapping[str, str] | None = None,
    retry_failed: bool = False,
    best: Best | None = None,
) -> Plan:
    """Return the plan of a sweep, given the cells its folder already holds.

    best: judges the steps that were tried, where the sweep searches: see ``Plan.following``. Raises InputError with
    every complaint about data, splits or counts.
    """
    if sweep.record.clock is not None and any(cell.clock is None for cell in sweep.cells):
        fix = "clock: {compute: 1.0}, or record: {every: 10}"
        raise InputError.of("record.clock", "cells have no clock", fix)
    done = dict(done or {})
    resolver = Resolver(sweep.allow_unproven)
    cells, skipped = [], []
    complaints: dict[Complaint, None] = {}
    broken: set[Section] = set()
    for cell in sweep.cells:
        if cell.problem in broken:
            continue
        built = False
        try:
            problem_of(cell.problem)
            built = True
            cells.append(resolver.resolve(cell))
        except Skip as why:
            skipped.append(Skipped(cell, label_of(cell), why))
        except (InputError, MemoryError) as error:
            complaints.update(dict.fromkeys(_complaints(error)))
            if not built or isinstance(error, MemoryError):
                # remembered, as trying again for the next cell may mean another download
                broken.add(cell.problem)
    if complaints:
        raise InputError(list(complaints)[:MOST_COMPLAINTS])
    ready, notes = merged(cells, done)
    notes += thumbs(ready)
    facts, most = {}, {}
    by_problem: dict[Section, list[Resolved]] = {}
    for resolved in ready:
        by_problem.setdefault(resolved.cell.problem, []).append(resolved)
    for section, members in by_problem.items():
        problem = problem_of(section)
        key = canonical(section.config())
        try:
            facts[key] = facts_of(problem)
        except MemoryError as error:
            raise InputError(_complaints(error)) from error
        exclusive = sweep.resources.timing == "exclusive"
        forms = {id(c.form): c for c in members}.values()
        notes += wide_batches(forms)
        rows = max(recorded(sweep, c).count for c in forms)
        size, wide = problem.dtype.itemsize, max(problem.dim, problem.message_dim)
        clients = max(problem_of_cell(c.cell).n for c in forms)  # of a round
        most[key] = 1 if exclusive else most_cells(clients, wide, size, rows)
    plan = Plan(
        sweep=sweep,
        cells=(),
        batches=(),
        done={},
        skipped=tuple(skipped),
        notes=(*sweep.notes, *notes),
        facts=facts,
        statuses=done,
        grid=tuple(ready),
        most=most,
        again=frozenset(i for i, s in done.items() if retry_failed and s == "failed"),
    )
    return plan.following(done, best)


def _complaints(error: InputError | MemoryError) -> list[Complaint]:
    """Return what is wrong with a problem, which may not have told before how much it needs."""
    if isinstance(error, InputError):
        return error.complaints
    reason = str(error).rstrip(".") or "there is not enough"
    return [Complaint("problem", f"out of memory: {reason}", "a smaller problem, or fewer clients")]


def thumbs(cells: list[Resolved]) -> list[str]:
    """Return a note that names the methods whose steps are multiples of a rule of thumb, if there are any."""
    guesses = [c for c in cells if c.cell.step.kind == "theory" and c.basis == "rule of thumb"]
    names = ", ".join(sorted({c.cell.algorithm.name for c in guesses}))
    return [f"steps of {names}: multiples of a rule of thumb, no theorem"] if guesses else []


def wide_batches(cells: Iterable[Resolved]) -> list[str]:
    """Return a note for each minibatch that is larger than the data of some client, of cells of one problem."""
    notes: dict[str, None] = {}
    for cell in cells:
        problem = problem_of_cell(cell.cell)
        batch, fewest = cell.form.params.get("batch", problem.batch), min(problem.samples)
        if isinstance(batch, int) and batch > fewest > 1:
            what = f"{batch} samples a round, and a client has {fewest}"
            notes[f"{cell.form.label}: {what}: it draws some more than once"] = None
    return list(notes)


def recorded(sweep: Sweep, cell: Resolved) -> RecordedRounds:
    """Return the rounds of a cell that make a row."""
    entry = registry.lookup("algorithm", cell.cell.algorithm.name)
    record = sweep.record
    stochastic = entry.facts.stochastic or problem_of(cell.cell.problem).costly
    return RecordedRounds.of(cell.cell.rounds, record.every, record.points, stochastic)


def merged(cells: list[Resolved], done: Mapping[str, str]) -> tuple[list[Resolved], list[str]]:
    """Return the cells without those that resolve to another's run, and a note for each kind.

    Of equal cells one that is already done is kept, else the first.
    """
    groups: dict[tuple[str, float, int], list[Resolved]] = {}
    for cell in cells:
        groups.setdefault((cell.form.run, cell.step_size, cell.cell.seed), []).append(cell)
    unique: list[Resolved] = []
    lost: dict[tuple[str, str], int] = {}
    for same in groups.values():
        first = next((c for c in same if c.id in done), same[0])
        unique.append(first)
        for other in same:
            if other is not first:
                pair = (other.label, first.label)
                lost[pair] = lost.get(pair, 0) + 1
    notes = [f"{n} cells of {a} are the same as {b}: merged" for (a, b), n in lost.items()]
    return unique, notes


def as_booked(sweep: Sweep, folder: str | os.PathLike[str]) -> Sweep:
    """Return the sweep with the accounting of its results folder, and a note where it is another.

    A folder keeps the accounting that its first curves were booked by, so that its bits compare.
    """
    stored = reader.accounting_of(folder, sweep.accounting)
    if stored == sweep.accounting:
        return sweep
    note = (
        f"{folder} was begun with the accounting {stored} and keeps it, so that its bits compare: "
        f"raybench table {folder} --accounting HOW shows them by another"
    )
    text = identity.with_accounting(sweep.text, stored)
    return replace(sweep, accounting=stored, text=text, notes=(*sweep.notes, note))
