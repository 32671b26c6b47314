"""A method on a small problem, what the checks of algorithms run; and whether it goes on from its state."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from raybench import spec
from raybench.compressors import Role
from raybench.core import registry
from raybench.core.errors import InputError
from raybench.core.registry import Entry, lookup, state
from raybench.execution.batch import Batch, Resolved
from raybench.execution.checks import Skip
from raybench.execution.execute import hosted
from raybench.execution.plan import facts_of
from raybench.execution.resolve import Resolver, problem_of
from raybench.execution.run import Options, Run, share
from raybench.spec.model import Record
from raybench.testing import subprocess
from raybench.wire.transport import Transport, on_virtual_ranks, share_of

DATA: dict[str, Any] = {"dataset": "breast_cancer", "rows": 60, "clients": 5, "scale": "columns"}
PLAIN = {"name": "quadratic", "shape": [[4, 3]], "clients": 5, "heterogeneity": 0.3}
CLOCK = {"compute": {"power": 1.0}, "jitter": {"exponential": 0.1}}  # of methods that need one
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
    """Return compressors of the method's role: deterministic, random, correlated, not of one length."""
    role = entry.facts.up
    if role is None:
        return [None]
    top, rand = {"name": "top_k", "k": 3}, {"name": "rand_k", "k": 3}
    if entry.facts.decentralised:  # these need fine compressors
        return ["natural", {**rand, "k": "60%"}, {"name": "dithering", "s": 15}]
    second: dict[Role, Any] = {
        Role.CONTRACTIVE: rand,
        Role.UNBIASED: {**rand, "mask": "common"},
        Role.ANY: top,
    }
    kinds = [{"name": role.usual, "k": 3}, second[role], "natural"]
    if entry.facts.clock:  # clients send at different times, so that they share no mask
        kinds = [kinds[0], "natural"]
    return [None, *kinds] if entry.facts.dense else kinds


@dataclass(frozen=True)
class TrialMethod:
    """An algorithm by name with its parameters and compressors, on a problem.

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
        options = {
            "problem": dict(self.problem or problem_for(self.entry)),
            "algorithm": {"name": self.name, **self.params},
            "compressor": self.compressor,
            "downlink": self.downlink,
            "step_size": dict(step),
            "seed": seed,
            "rounds": self.rounds,
            "allow_unproven": True,
            **({"clock": CLOCK} if self.entry.facts.clock else {}),
            **self.more,
        }
        return {key: value for key, value in options.items() if value is not None}

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
        if self.entry.facts.clock:  # cells of a batch share their events, and so their seed
            seeds = (0,)
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


# Going on from a state -----------------------------------------------------------------------------

BEFORE = 5  # rounds until the run is interrupted
MULTIPLES, SEEDS = (1.0, 0.5), (3, 4)
TIMES = ("seconds", "seconds_gradient", "seconds_compress", "seconds_communicate")


def interrupted(m: TrialMethod) -> bytes:
    """Return the state of a run after a few rounds, as the bytes of a file."""
    run = started(m.batch(MULTIPLES, SEEDS))
    run.advance(BEFORE)
    file = io.BytesIO()
    torch.save(run.state(), file)
    return file.getvalue()


def continued(m: TrialMethod, saved: bytes, transport: Transport | None = None) -> Run:
    """Return a run that took the state over and went on to the end."""
    state = torch.load(io.BytesIO(saved), weights_only=True)
    run = started(m.batch(MULTIPLES, SEEDS), transport=transport)
    if transport is not None:
        state = share(state, share_of(transport.rank, transport.size, run.problem.n))
    run.load(state)
    run.advance(run.rounds)
    return run


def ending(run: Run) -> dict[str, Tensor]:
    """Return what a run ended with: what it recorded, and the last point."""
    return {**recorded(run), "x": run.a.point(run.net, run.s, run.c).clone()}


def recorded(run: Run) -> dict[str, Tensor]:
    """Return every recorded column but the times."""
    names = [name for name in run.recorder.names if name not in TIMES]
    return {name: torch.from_numpy(run.recorder.column(name).copy()) for name in names}


def in_another_process(m: TrialMethod, saved: bytes) -> dict[str, Tensor]:
    """Return the curves of the run that a new process continues.

    Methods that no other process could import (those of a test's own file) continue in this one.
    """
    module = m.entry.target.__module__
    plugin = str(sys.modules[module].__file__) if m.entry.source else ""
    if not plugin and not module.startswith("raybench."):
        return ending(continued(m, saved))
    return torch.load(io.BytesIO(subprocess.process().submit(_go_on, m, saved, plugin).result()))


def _go_on(m: TrialMethod, saved: bytes, plugin: str) -> bytes:
    if plugin:
        registry.load_plugin(plugin)
    file = io.BytesIO()
    torch.save(ending(continued(m, saved)), file)
    return file.getvalue()
