"""Requested cells: what a sweep file asks for, one typed object per cell, before any data is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raybench.spec.model import Evaluate, Record, Resources, Train
from raybench.spec.parts import Section, Step
from raybench.store.accounting import Accounting


@dataclass(frozen=True)
class Cell:
    """One requested cell.

    id: 16 hex digits, a hash of the content (see ``raybench.spec.ids``). group: the same without
    seed and step. compressor and downlink are None where the algorithm sends dense messages, graph
    where it has a server. x0: ``zeros``, ``problem``, ``{"normal": scale}`` or the path of an
    ``.npy`` file. stop: thresholds by column name. prox: None so far. participation:
    a client's probability to join a round. f_star: the minimum, where the user knows it. iterate: the
    point that is recorded.
    """

    id: str
    group: str
    problem: Section
    algorithm: Section
    compressor: Section | None
    downlink: Section | None
    step: Step
    seed: int
    x0: Any
    rounds: int
    stop: Mapping[str, float]
    graph: Section | None
    prox: Mapping[str, float] | None
    participation: float
    f_star: float | None
    iterate: str = "last"

    def __hash__(self) -> int:
        return hash(self.id)

    def config(self) -> dict[str, Any]:
        """Return everything that makes the cell as plain JSON values, defaults written out."""

        def section(part: Section | None) -> dict[str, Any] | None:
            return None if part is None else part.config()

        return {
            "problem": section(self.problem),
            "algorithm": section(self.algorithm),
            "compressor": section(self.compressor),
            "downlink": section(self.downlink),
            "step_size": self.step.config(),
            "seed": self.seed,
            "x0": self.x0,
            "rounds": self.rounds,
            "stop": dict(self.stop),
            "graph": section(self.graph),
            "prox": None if self.prox is None else dict(self.prox),
            "participation": self.participation,
            "f_star": self.f_star,
            "iterate": self.iterate,
        }


@dataclass(frozen=True)
class Sweep:
    """A sweep file, read: its cells in grid order with unique ids, and how they are to be run.

    notes: merged duplicates and exclusions that match nothing. excluded: how many cells the
    exclusions took out. text: the normalised YAML, with absolute paths and every ``--set`` applied;
    loading it gives the same cells.
    """

    name: str
    cells: tuple[Cell, ...]
    notes: tuple[str, ...]
    excluded: int
    record: Record
    accounting: Accounting
    resources: Resources
    evaluate: Evaluate
    train: Train
    timeout: float | None
    attempts: int
    plugins: tuple[str, ...]
    allow_unproven: bool
    text: str
    source: str
