"""What is run: resolved cells, and batches of cells that differ in numbers only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from raybench.compressors import Role
from raybench.spec import Cell
from raybench.spec.model import canonical
from raybench.store import shard_name

# with 64 right-hand sides matrix products are at their full speed, and more gain little
MOST_CELLS_PER_BATCH = 64
MOST_BYTES_PER_TENSOR = 1 << 26  # B is limited so that a tensor (B, n, d) does not exceed it
MOST_ROWS_PER_BATCH = 1 << 21  # recorded rows are held in memory until the batch is committed
# what a round costs beside its arithmetic, in units of coordinates touched
OVERHEAD_PER_ROUND = 50_000.0


@dataclass(frozen=True, slots=True)
class ResolvedFamily:
    """What cells that differ in step number and seed alone have in common, resolved once for all of them.

    basis: what the theoretical step rests on, ``theorem``, ``rule of thumb``, ``released code``, or ``borrowed``
    from another method. numbers: names of parameters that may differ between the cells of a batch. shape: what
    must be equal within a batch. run: what decides a run beside its first step size and its seed, however it
    was written.
    """

    theory_step: float | None
    basis: str | None
    k: int | None
    params: Mapping[str, Any]  # of the algorithm, with every ``auto`` filled in
    numbers: tuple[str, ...]
    omega: float | None  # of the compressor as bound
    alpha: float | None
    label: str  # how tables and figures name the method
    roles: tuple[Role, Role]  # in which the uplink and the downlink compressor serve
    shape: str
    alone: bool  # whether each cell is a batch by itself
    by_seed: (
        bool  # whether cells of a batch have one seed, as where they share the events of a clock
    )
    run: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """A requested cell whose numbers are known. step_size: gamma; all else stands in its form."""

    cell: Cell
    step_size: float
    form: ResolvedFamily

    @property
    def id(self) -> str:
        """Return the requested cell's id."""
        return self.cell.id

    # what stands in the form, under the names that it has there
    theory_step = property(attrgetter("form.theory_step"))
    basis = property(attrgetter("form.basis"))
    k = property(attrgetter("form.k"))
    params = property(attrgetter("form.params"))
    numbers = property(attrgetter("form.numbers"))
    omega = property(attrgetter("form.omega"))
    alpha = property(attrgetter("form.alpha"))
    label = property(attrgetter("form.label"))
    roles = property(attrgetter("form.roles"))

    def shape(self) -> str:
        """Return what must be equal within a batch: all but step size, seed and numbers."""
        # a cell whose weights are kept runs by itself
        if self.form.alone:
            return f"{self.form.shape} {self.id}"
        return f"{self.form.shape} {self.cell.seed}" if self.form.by_seed else self.form.shape


def batch_keys(
    cell: Cell, k: int | None, params: Mapping[str, Any], numbers: tuple[str, ...]
) -> tuple[str, str]:
    """Return the texts ``shape`` and ``run`` of the form of a cell: see ``ResolvedFamily``."""
    config, step = cell.config(), cell.step
    for key in ("seed", "step_size"):
        del config[key]
    texts = {name: value for name, value in params.items() if name not in numbers}
    schedule = [step.schedule, step.warmup]
    shape = {**config, "algorithm": [cell.algorithm.name, texts], "k": k, "schedule": schedule}
    run = {**config, "algorithm": [cell.algorithm.name, dict(params)], "schedule": schedule}
    if k is not None:  # of which there are two ways of writing, such as 10% and 5 where d is 50
        section = config["compressor"]
        run["compressor"] = [section["name"], {**section["params"], "k": k}]
    return canonical(shape), canonical(run)


@dataclass(frozen=True)
class Batch:
    """Cells that run together. attempts: how often it was tried before this time."""

    cells: tuple[Resolved, ...]
    attempts: int = 0
    # constants of the problem, as columns of the table
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the shard's name: a hash of the sorted ids, or the id of a single cell."""
        return shard_name([c.id for c in self.cells])

    def without(self, ids: Collection[str]) -> Batch | None:
        """Return the batch of its other cells, None where there are none."""
        left = tuple(c for c in self.cells if c.id not in ids)
        return Batch(left, self.attempts, self.facts) if left else None

    def halves(self) -> tuple[Batch, Batch]:
        """Return the two halves of a batch of several cells."""
        middle = len(self.cells) // 2
        first, second = self.cells[:middle], self.cells[middle:]
        return Batch(first, self.attempts, self.facts), Batch(second, self.attempts, self.facts)

    def work(self, clients: int, d: int) -> float:
        """Return a rough measure of the time it takes, by which the longest run first: coordinates touched."""
        rounds = self.cells[0].cell.rounds
        return rounds * (len(self.cells) * clients * d + OVERHEAD_PER_ROUND)


def most_cells(clients: int, d: int, itemsize: int, rows: int) -> int:
    """Return B_max from n, d, the dtype's bytes and the rows a cell records: never from the machine."""
    by_bytes = MOST_BYTES_PER_TENSOR // max(1, clients * d * itemsize)
    by_rows = MOST_ROWS_PER_BATCH // max(1, rows)
    return max(1, min(MOST_CELLS_PER_BATCH, by_bytes, by_rows))


def batches_of(
    cells: Iterable[Resolved], most: Mapping[str, int], facts: Mapping[str, Mapping[str, Any]]
) -> list[Batch]:
    """Return the batches of cells: by shape, ids sorted, in even parts of at most B_max.

    most, facts: B_max and the problem's facts by problem (its canonical text).
    """
    out = []
    for members in by_shape(cells):
        problem = canonical(members[0].cell.problem.config())
        parts = -(-len(members) // most[problem])
        for j in range(parts):
            part = members[len(members) * j // parts : len(members) * (j + 1) // parts]
            out.append(Batch(tuple(part), facts=facts[problem]))
    return out


def by_shape(cells: Iterable[Resolved]) -> list[list[Resolved]]:
    """Return the cells that may share a batch, each list sorted by id, in a fixed order."""
    groups: dict[str, list[Resolved]] = {}
    for cell in cells:
        groups.setdefault(cell.shape(), []).append(cell)
    return [sorted(members, key=lambda c: c.id) for _, members in sorted(groups.items())]
