"""The plan of a sweep: which cells run, in which batches, which are skipped and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raybench.core import registry
from raybench.core.capacity import need_memory
from raybench.core.errors import Complaint, InputError
from raybench.engine.recorded import RecordedRounds
from raybench.planning.batch import Batch, Resolved, batches_of, most_cells
from raybench.planning.resolve import Resolver, label_of, problem_of
from raybench.planning.skip import Skip, Skipped
from raybench.problems.base import Problem
from raybench.problems.minimum import heterogeneity, noise
from raybench.spec import Section, Sweep
from raybench.spec.parts import canonical

MOST_COMPLAINTS = 8
# columns left out of labels: the step's value tells more than how it was asked for
STEP_AS_ASKED = ("kind", "number", "rule", "of")


@dataclass(frozen=True)
class Plan:
    """What a sweep amounts to on the user's data.

    batches: those that are yet to run. done: cells committed before, by status. skipped: cells that
    make no sense, with the reason. notes: merged duplicates and the like. found: all cells that the folder
    held, by status.
    """

    sweep: Sweep
    cells: tuple[Resolved, ...]
    batches: tuple[Batch, ...]
    done: Mapping[str, str]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...]
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    found: Mapping[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """Return the number of cells yet to run."""
        return sum(len(b.cells) for b in self.batches)

    def work(self, batch: Batch) -> float:
        """Return a rough measure of a batch's time."""
        problem = problem_of(batch.cells[0].cell.problem)
        return batch.work(problem.n, problem.dim)

    def text(self) -> str:
        """Return the batch list as JSON, as saved in plan/."""
        return json.dumps({b.name: [c.id for c in b.cells] for b in self.batches}, indent=1)


def facts_of(problem: Problem) -> dict[str, Any]:
    """Return the columns of ``cells`` that the problem decides."""
    c = problem.constants
    constants = {
        "L": c.L,
        "L_max": c.L_max,
        "L_tilde": c.L_tilde,
        "L_AM": c.L_AM,
        "L_plus": c.L_plus,
        "L_pm": c.L_pm,
        "L_samples": c.L_samples,
        "L_sample_max": c.L_sample_max,
        "sample_variance": c.sample_variance,
        "mu": c.mu,
        "f_inf": c.f_inf,
        "f_star": c.f_star,
        "message_dim": problem.message_dim,
        "noise_at_minimizer": noise(problem),
        "samples": [min(problem.samples), max(problem.samples)],
        "facts": sorted(c.facts),
        **c.extra,
    }
    return {
        "clients": problem.n,
        "d": problem.dim,
        "L": c.L,
        "L_tilde": c.L_tilde,
        "L_pm": c.L_pm,
        "mu": c.mu,
        "f_star": c.f_star,
        "heterogeneity": heterogeneity(problem),
        "constants": json.dumps(constants),
    }


def make_plan(
    sweep: Sweep, done: Mapping[str, str] | None = None, retry_failed: bool = False
) -> Plan:
    """Return the plan of a sweep, given the cells its folder already holds.

    Raises InputError with every complaint about data, splits or counts.
    """
    done = dict(done or {})
    resolver = Resolver(sweep.allow_unproven)
    cells, skipped = [], []
    complaints: dict[Complaint, None] = {}
    broken: set[Section] = set()
    for cell in sweep.cells:
        if cell.problem in broken:
            continue
        try:
            problem_of(cell.problem)
        except (
            InputError
        ) as error:  # remembered, as trying again for the next cell may mean another download
            broken.add(cell.problem)
            complaints.update(dict.fromkeys(error.complaints))
            continue
        except MemoryError as error:
            broken.add(cell.problem)
            complaints[_too_large(error)] = None
            continue
        try:
            cells.append(resolver.resolve(cell))
        except Skip as why:
            skipped.append(Skipped(cell, label_of(cell), why))
        except InputError as error:
            complaints.update(dict.fromkeys(error.complaints))
        except MemoryError as error:
            broken.add(cell.problem)
            complaints[_too_large(error)] = None
    if complaints:
        raise InputError(list(complaints)[:MOST_COMPLAINTS])
    kept, notes = merged(cells, done)
    notes += thumbs(kept)
    finished = {i: s for i, s in done.items() if not (retry_failed and s == "failed")}
    todo = [c for c in kept if finished.get(c.id, "skipped") == "skipped"]
    facts, most = {}, {}
    for section, own in _by_problem(kept):
        problem = problem_of(section)
        key = canonical(section.config())
        need_memory(
            problem.n * problem.dim * problem.dtype.itemsize,
            f"one gradient of each client, {problem.n:,} times {problem.dim:,} coordinates,",
            "fewer problem.clients, or a smaller problem",
        )
        try:
            facts[key] = facts_of(problem)
        except MemoryError as error:
            raise InputError([_too_large(error)]) from error
        exclusive = sweep.resources.timing == "exclusive"
        rows = max(recorded(sweep, c).count for c in own)
        size, wide = problem.dtype.itemsize, max(problem.dim, problem.message_dim)
        most[key] = 1 if exclusive else most_cells(problem.n, wide, size, rows)
    batches = batches_of(todo, most, facts)
    return Plan(
        sweep=sweep,
        cells=tuple(kept),
        batches=tuple(batches),
        done={c.id: finished[c.id] for c in kept if c.id in finished},
        skipped=tuple(skipped),
        notes=(*sweep.notes, *notes),
        facts=facts,
        found=done,
    )


def _too_large(error: MemoryError) -> Complaint:
    """Return the complaint about a problem that has not told before how much it needs."""
    said = str(error).rstrip(".") or "there is not enough"
    return Complaint("problem", f"out of memory: {said}", "a smaller problem, or fewer clients")


def thumbs(cells: list[Resolved]) -> list[str]:
    """Return a note that names the methods whose steps are multiples of a rule of thumb, if there are any."""
    found = {
        c.cell.algorithm.name
        for c in cells
        if c.cell.step.kind == "theory" and c.basis == "rule of thumb"
    }
    said = f"steps of {', '.join(sorted(found))}: multiples of a rule of thumb, no theorem"
    return [said] if found else []


def recorded(sweep: Sweep, cell: Resolved) -> RecordedRounds:
    """Return the rounds of a cell that make a row."""
    entry = registry.lookup("algorithm", cell.cell.algorithm.name)
    record = sweep.record
    stochastic = entry.facts.stochastic or problem_of(cell.cell.problem).costly
    return RecordedRounds.of(cell.cell.rounds, record.every, record.points, stochastic)


def _by_problem(cells: list[Resolved]) -> list[tuple[Section, list[Resolved]]]:
    groups: dict[Section, list[Resolved]] = {}
    for cell in cells:
        groups.setdefault(cell.cell.problem, []).append(cell)
    return list(groups.items())


def merged(cells: list[Resolved], done: Mapping[str, str]) -> tuple[list[Resolved], list[str]]:
    """Return the cells without those that resolve to another's run, and a note for each kind.

    Of equal cells one that is already done is kept, else the first.
    """
    groups: dict[str, list[Resolved]] = {}
    for cell in cells:
        config = cell.cell.config()
        # two ways of writing may be the same K, such as 10% and 5 where d is 50
        if cell.k is not None:
            config["compressor"]["params"]["k"] = cell.k
        config["algorithm"]["params"] = dict(cell.params)
        step = {k: v for k, v in cell.cell.step.config().items() if k not in STEP_AS_ASKED}
        config["step_size"] = {**step, "first": cell.step_size}
        groups.setdefault(canonical(config), []).append(cell)
    kept: list[Resolved] = []
    lost: dict[tuple[str, str], int] = {}
    for same in groups.values():
        first = next((c for c in same if c.id in done), same[0])
        kept.append(first)
        for other in same:
            if other is not first:
                pair = (other.label, first.label)
                lost[pair] = lost.get(pair, 0) + 1
    notes = [f"{n} cells of {a} are the same as {b}: merged" for (a, b), n in lost.items()]
    return kept, notes
