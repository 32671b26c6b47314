"""Requested cells: what a sweep file asks for, one typed object per cell, before any data is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raybench.spec.model import Evaluate, Record, Resources, Train
from raybench.store.accounting import Accounting


def canonical(value: Any) -> str:
    """Return the one JSON text of a plain value: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, eq=False)
class Section:
    """A plug-in by name with its parameters, typed and with the defaults filled in.

    Equal and hashed by content. Shares such as ``10%`` stay text; what they amount to depends on
    the problem's message dimension.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        """Return the section as plain JSON values."""
        return {"name": self.name, "params": dict(self.params)}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Section):
            return NotImplemented
        return canonical(self.config()) == canonical(other.config())

    def __hash__(self) -> int:
        return hash(canonical(self.config()))


@dataclass(frozen=True)
class Step:
    """A step size as requested: ``number`` times the theoretical one, or ``number`` itself.

    rule and of say whose theory: the rule (nonconvex | pl | paper | released) and the algorithm, None for the
    cell's own. schedule: how the step changes over the rounds; warmup: rounds of linear growth first.
    """

    kind: str = "theory"
    number: float = 1.0
    rule: str = "nonconvex"
    of: str | None = None
    schedule: str = "constant"
    warmup: int = 0

    def config(self) -> dict[str, Any]:
        """Return the step as plain JSON values."""
        return {
            "kind": self.kind,
            "number": self.number,
            "rule": self.rule,
            "of": self.of,
            "schedule": self.schedule,
            "warmup": self.warmup,
        }


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
