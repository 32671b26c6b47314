"""What is run: resolved cells, and batches of cells that differ in numbers only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from raybench.compressors import Role
from raybench.spec import Cell
from raybench.spec.parts import canonical
from raybench.store import shard_name

MOST_CELLS_PER_BATCH = (
    64  # with 64 right-hand sides matrix products are at their full speed, and more gain little
)
MOST_BYTES_PER_TENSOR = 1 << 26  # B is limited so that a tensor (B, n, d) does not exceed it
MOST_ROWS_PER_BATCH = 1 << 21  # recorded rows are held in memory until the batch is committed
OVERHEAD_PER_ROUND = 50_000.0  # what a round costs beside its arithmetic, in units of coordinates touched; for sizing packs


@dataclass(frozen=True)
class Resolved:
    """A requested cell whose numbers are known.

    step_size: gamma. theory_step: one times the theory, None without one. basis: what that one rests on,
    ``theorem``, ``rule of thumb``, ``released code``, or ``borrowed`` from another method. k: coordinates kept.
    params: the algorithm's parameters with every ``auto`` filled in. omega, alpha: of the operator as
    bound. group_label: how tables and figures name the method.
    """

    cell: Cell
    step_size: float
    theory_step: float | None
    k: int | None
    params: Mapping[str, Any]
    numbers: tuple[str, ...]  # names of the params that may differ between the cells of a batch
    omega: float | None
    alpha: float | None
    label: str
    # in which role the uplink and the downlink operator serve
    roles: tuple[Role, Role] = (Role.ANY, Role.ANY)
    basis: str | None = None

    @property
    def id(self) -> str:
        """Return the requested cell's id."""
        return self.cell.id

    def shape(self) -> str:
        """Return what must be equal within a batch: all but step size, seed and numbers."""
        config = self.cell.config()
        for key in ("seed", "step_size"):
            del config[key]
        config["algorithm"] = [
            self.cell.algorithm.name,
            {k: v for k, v in self.params.items() if k not in self.numbers},
        ]
        config["k"] = self.k
        if self.cell.train is not None and self.cell.train["save"] != "none":
            config["alone"] = self.id  # whose weights are kept runs by itself
        config["schedule"] = [self.cell.step.schedule, self.cell.step.warmup]
        return canonical(config)


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
        """Return a rough measure of the time it takes, for packing: coordinates touched."""
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
    groups: dict[str, list[Resolved]] = {}
    for cell in cells:
        groups.setdefault(cell.shape(), []).append(cell)
    out = []
    for _, members in sorted(groups.items()):
        members.sort(key=lambda c: c.id)
        problem = canonical(members[0].cell.problem.config())
        parts = -(-len(members) // most[problem])
        for j in range(parts):
            own = members[len(members) * j // parts : len(members) * (j + 1) // parts]
            out.append(Batch(tuple(own), facts=facts[problem]))
    return out
