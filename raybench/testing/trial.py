"""A method on a small problem: what the checks of algorithms run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from raybench import spec
from raybench.compressors import Role
from raybench.core.errors import InputError
from raybench.core.registry import Entry, lookup, state
from raybench.execution.batch import Batch, Resolved
from raybench.execution.checks import Skip
from raybench.execution.execute import hosted
from raybench.execution.plan import facts_of
from raybench.execution.resolve import Resolver, problem_of
from raybench.execution.run import Options, Run
from raybench.spec.model import Record
from raybench.wire.transport import Transport, on_virtual_ranks

DATA: dict[str, Any] = {"dataset": "breast_cancer", "rows": 60, "clients": 5, "scale": "columns"}
PLAIN = {"name": "quadratic", "shape": [[4, 3]], "clients": 5, "heterogeneity": 0.3}
WILD = 1e12  # a multiple of the step at which a method on a quadratic diverges at once


def problem_for(entry: Entry) -> dict[str, Any]:
    """Return the small problem a method is tried on: five clients, quadratic, in its own form."""
    if entry.facts.vertical:
        return {"name": "vertical_least_squares", **DATA}
    if entry.facts.proximal:
        return {"name": "least_squares", **DATA, "regularizer": "l1", "lambda": 0.01}
    if entry.facts.stochastic:
        return {"name": "least_squares", **DATA}
    return PLAIN


def compressors_for(entry: Entry) -> list[Any]:
    """Return operators of the method's role: deterministic, random, correlated, not of one length."""
    role = entry.facts.up
    if role is None:
        return [None]
    top, rand = {"name": "top_k", "k": 3}, {"name": "rand_k", "k": 3}
    if entry.facts.decentralised:  # these need fine operators
        return ["natural", {**rand, "k": "60%"}, {"name": "dithering", "s": 15}]
    second: dict[Role, Any] = {
        Role.CONTRACTIVE: rand,
        Role.UNBIASED: {**rand, "mask": "common"},
        Role.ANY: top,
    }
    return [{"name": role.usual, "k": 3}, second[role], "natural"]


@dataclass(frozen=True)
class Method:
    """An algorithm by name with its parameters and operators, on a problem.

    step: one times the step size; None is its theory's (by ``rule``), or a tenth of 1/L where it has
    none.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    compressor: Any = None
    problem: Mapping[str, Any] | None = None
    downlink: Any = None
    step: float | None = None
    rule: str = "nonconvex"
    rounds: int = 40
    more: Mapping[str, Any] = field(default_factory=dict)  # further keys of a sweep file

    @property
    def entry(self) -> Entry:
        """The registered algorithm."""
        return lookup("algorithm", self.name)

    def config(self, step: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """Return the sweep file of one cell."""
        given = {
            "problem": dict(self.problem or problem_for(self.entry)),
            "algorithm": {"name": self.name, **self.params},
            "compressor": self.compressor,
            "downlink": self.downlink,
            "step_size": dict(step),
            "seed": seed,
            "rounds": self.rounds,
            "allow_unproven": True,
            **self.more,
        }
        return {key: value for key, value in given.items() if value is not None}

    def cell(self, multiple: float = 1.0, seed: int = 0) -> Resolved:
        """Return one cell; raises InputError where its parameters are wrong or do not fit."""
        if self.step is not None:
            return self._resolved({"value": self.step * multiple}, seed)
        try:
            return self._resolved({"theory": multiple, "rule": self.rule}, seed)
        except Skip:
            (cell,) = spec.load(self.config({"value": 1.0}, seed)).cells
            L = problem_of(cell.problem).constants.L or 1.0
            return self._resolved({"value": 0.1 / L * multiple}, seed)

    def _resolved(self, step: Mapping[str, Any], seed: int) -> Resolved:
        return _resolved(json.dumps(self.config(step, seed)), state())

    def batch(self, multiples: Sequence[float] = (1.0,), seeds: Sequence[int] = (0,)) -> Batch:
        """Return a batch of cells, multiples and seeds taken in pairs (a single one for all)."""
        count = max(len(multiples), len(seeds))
        pairs = [(multiples[j % len(multiples)], seeds[j % len(seeds)]) for j in range(count)]
        return batch_of([self.cell(multiple, seed) for multiple, seed in pairs])


@lru_cache(maxsize=256)  # the checks of a method ask for the same few cells again and again
def _resolved(config: str, registered: object) -> Resolved:
    """Return the one cell of a sweep; registered: the state of the registry, whose names may change."""
    (cell,) = spec.load(json.loads(config)).cells
    return Resolver(allow_unproven=True).resolve(cell)


def batch_of(cells: Sequence[Resolved]) -> Batch:
    """Return a batch of cells of one shape, in the order given. Raises InputError for several shapes."""
    if len({cell.shape() for cell in cells}) != 1:
        raise InputError.of("batch", "these cells differ in more than step size, seed and numbers")
    return Batch(tuple(cells), facts=facts_of(problem_of(cells[0].cell.problem)))


def started(batch: Batch, every: int = 1, transport: Transport | None = None) -> Run:
    """Return the batch ready to run, recording each ``every``-th round."""
    transport = transport or Transport()
    problem = hosted(batch, transport, "cpu")
    return Run(batch, problem, Options(record=Record(every=every)), transport)


def finished(batch: Batch, every: int = 1, transport: Transport | None = None) -> Run:
    """Return the batch after its last round."""
    run = started(batch, every, transport)
    run.advance(run.rounds)
    return run


def on_ranks(size: int, batch: Batch, work: Callable[[Run], Any] = lambda run: run) -> list[Any]:
    """Return what ``work`` makes of the finished batch on each of so many virtual ranks."""
    return on_virtual_ranks(size, lambda transport: work(finished(batch, transport=transport)))
