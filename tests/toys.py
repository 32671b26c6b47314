"""Small problems and helpers that the tests of the mathematics share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from cli_kit import own_plugins
from torch import Tensor

from raybench.core import registry
from raybench.execution.batch import Batch
from raybench.execution.run import Run, share, whole
from raybench.problems.base import Constants, Fact
from raybench.problems.quadratic import Quadratic
from raybench.testing.trial import DATA, TrialMethod, started
from raybench.wire.ledger import COLUMNS
from raybench.wire.transport import Transport, on_virtual_ranks, share_of

P1 = {"name": "quadratic", "dim": 12, "clients": 7, "mu": 0.05, "seed": 3}
MATRIX = {"name": "quadratic", "shape": [[5, 4]], "clients": 3, "mu": 0.05}
SAMPLES = {"name": "least_squares", **DATA}
TOP, RAND = {"name": "top_k", "k": 3}, {"name": "rand_k", "k": 3}
FAR = {"x0": {"normal": 2.0}}
VALUES = COLUMNS.index("values")


def on_p1(name, compressor=None, rounds=60, step=0.1, **params) -> TrialMethod:
    """Return a method on the first problem, from afar."""
    return TrialMethod(name, params, compressor, P1, step=step, rounds=rounds, more=FAR)


def largest(a, b) -> float:
    """Return the largest difference of two arrays."""
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


def title(value) -> str:
    """Return a short id of a parameter of a test."""
    if isinstance(value, TrialMethod):
        operator = value.compressor
        name = operator["name"] if isinstance(operator, dict) else operator
        return "-".join(map(str, (value.name, name, *value.params.values())))
    if isinstance(value, dict):
        return "-".join(str(v) for v in value.values() if not isinstance(v, list))
    return str(value)


def handed_over(batch: Batch, before: int, look: Callable[[Run], Any]) -> list[Any]:
    """Run on two virtual ranks for some rounds; return what ``look`` finds on each of three that go on to the end."""

    def begin(transport: Transport) -> Any:
        run = started(batch, transport=transport)
        run.advance(before)
        return run.state()

    saved = whole(on_virtual_ranks(2, begin))

    def go_on(transport: Transport) -> Any:
        run = started(batch, transport=transport)
        own = share(saved, share_of(transport.rank, transport.size, run.problem.n))
        run.load(copy.deepcopy(own))  # as each rank reads it from a file
        run.advance(run.rounds)
        return look(run)

    return on_virtual_ranks(3, go_on)


@contextmanager
def registered(kind: str, **plugins: Any) -> Iterator[None]:
    """Register plug-ins (name=target) for a while."""
    with own_plugins():
        for name, target in plugins.items():
            getattr(registry, kind)(name, **getattr(target, "declared", {}))(target)
        yield


class WithL1(Quadratic):
    """Quadratics plus weight * ||x||_1."""

    declared = {"weight": registry.Number(0.0, low=0)}

    def __init__(self, A: Tensor, b: Tensor, weight: float) -> None:
        super().__init__(A, b)
        self.weight, self.has_prox = weight, weight > 0

    def find_constants(self) -> Constants:
        result = super().find_constants()
        return replace(result, facts=result.facts | {Fact.CONVEX_PENALTY})

    def prox(self, v: Tensor, gamma: Tensor | float) -> Tensor:
        return v.sign() * (v.abs() - self.weight * gamma).clamp(min=0)

    def penalty(self, x: Tensor) -> Tensor:
        return self.weight * x.abs().sum(-1)


class ConvexL1(WithL1):
    """Strongly convex heterogeneous quadratics (7 clients, d = 10) plus weight * ||x||_1."""

    def __init__(self, weight: float = 0.0) -> None:
        random = np.random.default_rng(5)
        Q = np.linalg.qr(random.standard_normal((7, 10, 10))).Q
        A = Q * random.uniform(0.5, 2.0, (7, 1, 10)) @ Q.swapaxes(1, 2)
        b = torch.from_numpy(random.standard_normal((7, 10)))
        super().__init__(torch.from_numpy(A), b, weight)


class Shared(Quadratic):
    """Six clients with the same strongly convex quadratic, d = 8."""

    declared = {}

    def __init__(self) -> None:
        random = np.random.default_rng(2)
        Q = np.linalg.qr(random.standard_normal((8, 8))).Q
        A = torch.from_numpy((Q * random.uniform(0.2, 1.0, 8)) @ Q.T)
        b = torch.from_numpy(random.standard_normal(8))
        super().__init__(A.expand(6, 8, 8).contiguous(), b.expand(6, 8).contiguous())


class Alike(Quadratic):
    """Seven clients with the same quadratic, d = 10, minimised at 1: what any of them says is right."""

    declared = {}

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        Q = np.linalg.qr(random.standard_normal((10, 10))).Q
        A = torch.from_numpy(Q * np.linspace(0.2, 1.0, 10) @ Q.T)
        super().__init__(A.expand(7, -1, -1).clone(), A.sum(1).expand(7, -1).clone())


def each_round(run: Run, look: Callable[[Run], Any]) -> list[Any]:
    """Return what ``look`` sees after the start and after each round."""
    run.advance(0)
    seen = [look(run)]
    while not run.advance(1):
        seen.append(look(run))
    return [*seen, look(run)]


def path(run: Run) -> np.ndarray:
    """Return the iterates (T + 1, B, d)."""
    return np.stack(each_round(run, lambda r: r.a.point(r.net, r.s, r.c).clone().numpy()))


def paths(*methods: TrialMethod) -> list[np.ndarray]:
    """Return the iterates of two cells of each method."""
    return [path(started(m.batch((1.0, 0.5), (0, 1)))) for m in methods]


def full_gradients(run: Run) -> Tensor:
    """Return grad f_i at the replicated iterate, (B, n, d), beside the books."""
    return run.problem.oracle(run.s.x, loss=False)[0]
