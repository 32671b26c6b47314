"""Gradients are counted as they are evaluated: a second count is kept beside the books."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiers import first_of_each
from toys import registered

from raybench.algorithms.gd import GD
from raybench.core import registry
from raybench.testing.algorithms import methods
from raybench.testing.trial import DATA, Method, problem_for, started


class Counting:
    """Counts the sample gradients that a problem evaluates for a run's method, beside the books.

    total: over cells, means per client. Recording is switched off. Participants pay for themselves:
    what others would have evaluated is not counted, and participants remember no gradient of the
    round before. Known minimisers (oracles of tests) are left out.
    """

    def __init__(self, run) -> None:
        self.run, self.total, self.mask, self.depth = run, 0.0, None, 0
        run._record = lambda t: None
        net, problem = run.net, copy.copy(run.problem)
        net.oracle.problem = problem
        self.m = torch.tensor(problem.samples, dtype=torch.float64)
        for name in ("oracle", "grad", "block_grad", "distill"):
            if hasattr(problem, name):
                setattr(problem, name, self.counted(name, getattr(problem, name)))
        problem.host = self.hosted(problem.host)
        grad, star = net.grad, net.oracle.at_minimizer

        def asked(x, sample=None, *, cells=None, clients=None):
            if clients is not None:
                net.oracle._last, self.mask = None, clients.double()
            out = grad(x, sample, cells=cells, clients=clients)
            self.mask = None
            return out

        def unseen():
            before = self.total
            out = star()
            self.total = before
            return out

        net.grad, net.oracle.at_minimizer = asked, unseen

    def hosted(self, host):
        """The single clients of asynchronous methods."""

        def counting(clients):
            part = host(clients)
            for name in ("oracle", "grad"):  # a copy of what is counted
                vars(part).pop(name, None)
            grad, share = part.grad, 1 / len(self.m)

            def asked(x, sample=None):
                size = self.m[clients.start] if sample is None else sample.size
                self.total += len(x) * float(size) * share
                return grad(x, sample)

            part.grad = asked
            return part

        return counting

    def counted(self, name, call):
        def counting(x, *rest, **named):
            if not self.depth:
                self.total += self.cost(name, x, *rest)
            self.depth += 1
            try:
                return call(x, *rest, **named)
            finally:
                self.depth -= 1

        return counting

    def cost(self, name, x, *rest) -> float:
        sample = rest[0] if rest and name in ("grad", "distill") else None
        each = (
            self.m
            if sample is None
            else torch.full_like(self.m, (sample.size if name == "grad" else sample.shape[-1]))
        )
        if name == "block_grad" and rest[1] is not None:  # of some rows (B, b) of all N
            each = each * rest[1].shape[-1] / self.run.problem.sample_count
        mask = torch.ones(len(x), len(each)) if self.mask is None else self.mask
        return float((mask * each).mean(1).sum())


SETS = {name: methods(registry.lookup("algorithm", name)) for name in registry.names("algorithm")}
COUNTED = [  # with one compressor each: what is evaluated does not hang on it
    m for own in SETS.values() for m in own if m is own[0] or m.params != own[0].params
]


def label(m: Method) -> str:
    operator = m.compressor["name"] if isinstance(m.compressor, dict) else m.compressor
    return f"{m.name}-{operator}-{'-'.join(str(v) for v in m.params.values())}"


@pytest.mark.parametrize("method", first_of_each(COUNTED, lambda m: m.name), ids=label)
def test_gradients_are_counted_as_they_are_evaluated(method):
    if method.problem is None and "dataset" in (problem := problem_for(method.entry)):
        uneven = {**problem, "rows": 63, "remainder": "last"}  # 12 rows each, the last client 15
        method = replace(method, problem=uneven if "vertical" not in problem["name"] else problem)
    run = started(replace(method, rounds=25).batch((1.0, 0.5, 0.7), (0, 1, 2)))
    spy = Counting(run)
    run.advance(25)
    assert spy.total > 0
    assert float(run.net.oracle.evals.sum()) == pytest.approx(spy.total, rel=1e-12)


def test_participants_pay_for_their_own_samples():
    """And what some have paid for costs the others still, until all have paid."""
    uneven = {"name": "least_squares", **DATA, "rows": 63, "remainder": "last"}
    run = started(Method("gd", {}, None, uneven).batch((1.0, 0.5)))
    m, who = np.array(run.problem.samples), torch.zeros(2, run.problem.n, dtype=torch.bool)
    who[0, -1], who[1, :2] = True, True
    share = who.double().mean(1).numpy()
    own, x = (who.numpy() * m).mean(1), run.s.x.clone()
    assert not np.allclose(own, share * m.mean())

    def spent(*args, **named):
        before = run.net.oracle.evals.copy()
        run.net.grad(x, *args, **named)
        return run.net.oracle.evals - before

    run.net.oracle.loss_wanted = False
    np.testing.assert_allclose(spent(clients=who), own)
    np.testing.assert_allclose(spent(run.net.sample("batch", 4), clients=who), 4 * share)
    np.testing.assert_allclose(spent(), m.mean())
    run.net.oracle.full(x, loss=True)  # evaluated once more for the record
    np.testing.assert_allclose([spent(), spent(clients=who)], 0.0)


class Peeks(GD):
    """Evaluates a second gradient past the books."""

    def round(a, net, s, c):
        super().round(net, s, c)
        net.oracle.problem.grad(s.x, net.sample("peek", 1))


def test_gradients_past_the_books_are_noticed():
    with registered("algorithm", peeks=Peeks):
        run = started(
            Method("peeks", {}, None, {"name": "least_squares", **DATA}, rounds=25).batch()
        )
        spy = Counting(run)
        run.advance(25)
    assert float(run.net.oracle.evals.sum()) == spy.total - 25
