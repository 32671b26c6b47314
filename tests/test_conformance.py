"""The conformance kit's problem and metric parts: ours pass, broken ones are found."""

from dataclasses import replace

import pytest
import torch

from raybench.core.registry import lookup, names
from raybench.problems import Constants, Layout, Problem, build
from raybench.problems.base import Fact
from raybench.problems.quadratic import Quadratic
from raybench.testing import metrics, problems
from raybench.testing.problems import Objective, check_entry, conformance
from raybench.testing.vectors import gaussian

pytestmark = pytest.mark.thorough

OURS = [
    ("logistic", {}),
    ("logistic", {"regularizer": "l1"}),
    ("logistic", {"regularizer": "l2", "dtype": "float32", "scale": "rows"}),
    ("nonconvex_classification", {}),
    ("least_squares", {}),
    ("least_squares", {"regularizer": "l1"}),
    ("least_squares", {"dataset": "digits", "regularizer": "l2"}),
    ("quadratic", {"dim": 20}),
    ("quadratic", {"shape": [4, 5], "heterogeneity": 2.0}),
    ("quadratic", {"dim": 7, "dtype": "float32"}),
    ("quadratic", {"dim": 1, "clients": 1}),
    ("tridiagonal", {"dim": 30}),
    ("vertical_least_squares", {}),
]


@pytest.mark.parametrize(("name", "params"), OURS, ids=lambda v: str(v))
def test_our_problems_conform(name, params):
    result = check_entry(lookup("problem", name), params)
    assert not [str(f) for f in result if not f.ok]
    assert [f.check for f in result] == list(problems.CHECKS)


@pytest.mark.parametrize("name", names("metric"))
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_our_metrics_conform(name, dtype):
    problem = build("quadratic", {"dim": 6, "clients": 3, "dtype": dtype})
    result = metrics.conformance(lookup("metric", name).target, problem, name)
    assert not [str(f) for f in result if not f.ok]


def test_metrics_by_entry():
    result = metrics.check_entry(lookup("metric", "sparsity"))
    assert [f.check for f in result] == list(metrics.CHECKS)
    assert all(f.ok for f in result)


# A sound problem by the two methods a user writes, and one fault each -------------------------------


class Bowls(Problem):
    """f_i(x) = a_i ||x - c_i||^2 / 2."""

    def __init__(self, n=3, d=5):
        super().__init__(n, d)
        self.a = torch.arange(1.0, n + 1, dtype=torch.float64)
        self.c = gaussian(n, d, seed=8)

    def f_i(self, i, x):
        return self.a[i] * (x - self.c[i]).square().sum(-1) / 2

    def grad_i(self, i, x):
        return self.a[i] * (x - self.c[i])

    def find_constants(self):
        d, n = self.dim, self.n
        A = self.a[:, None, None] * torch.eye(d, dtype=torch.float64)
        return Quadratic(A, self.a[:, None] * self.c).constants if n else Constants()


class Shift(Bowls):
    """The true lower bounds, as Quadratic drops the constant term."""

    def find_constants(self):
        c = super().find_constants()
        base = float((self.a * self.c.square().sum(-1)).mean() / 2)
        return replace(c, f_inf=c.f_inf + base, f_star=c.f_star + base)


def with_constants(**changes):
    class Changed(Shift):
        def find_constants(self):
            return replace(super().find_constants(), **changes)

    return Changed()


class WrongGradient(Shift):
    def grad_i(self, i, x):
        return super().grad_i(i, x) * (1.001 if i == 1 else 1.0)


class Flat(Shift):
    def oracle(self, x, loss=True):
        grads, losses = super().oracle(x, loss)
        return grads, None if losses is None else losses.mean(1)


class MixesCells(Shift):
    def grad_i(self, i, x):
        return super().grad_i(i, x) + 0 * x.sum()


class SharesThePoint(Shift):
    def spread(self, x):
        return super().spread(x if x.ndim == 2 else x[:, 0])


class ForgetsWhoItHosts(Shift):
    def host(self, clients):
        part = super().host(clients)
        part.c = self.whole.c.roll(clients.start, 0)
        return part


class BadSamples(Shift):
    def __init__(self):
        super().__init__()
        self.samples = (4, 4, 4)

    def grad(self, x, sample=None):
        full = super().grad(x)
        return (
            full if sample is None else full * (1 + sample.indices.double().mean(-1, keepdim=True))
        )


class ChangesX(Shift):
    def grad_i(self, i, x):
        x += 1e-9
        return super().grad_i(i, x)


class PlainProx(Shift):
    """A penalty, and the step of half its size."""

    has_prox = True

    def penalty(self, x):
        return 0.1 * x.abs().sum(-1)

    def prox(self, v, gamma):
        return v.sign() * (v.abs() - 0.05 * gamma).clamp(min=0)


class UnsaidPenalty(Shift):
    def penalty(self, x):
        return x.abs().sum(-1)


class WrongLayout(Shift):
    @property
    def dim(self):
        return 5

    def __init__(self):
        super().__init__()
        self.layout = Layout((("x", (2, 2)),))


class NotConvex(Bowls):
    """f_1 is concave, and the constants say that every f_i is convex."""

    def __init__(self):
        super().__init__()
        self.a[0] = -1.0

    def find_constants(self):
        return replace(super().find_constants(), facts=frozenset({Fact.CONVEX_CLIENTS}))


STRONG = frozenset({Fact.STRONGLY_CONVEX})
BROKEN = [
    (WrongLayout, "shapes are as documented", "layout"),
    (Flat, "shapes are as documented", "losses have shape (3,)"),
    (WrongGradient, "gradients match finite differences", "client 1"),
    (MixesCells, "cells do not depend on each other", "changed another"),
    (SharesThePoint, "clients may be at different points", "at its own point"),
    (ForgetsWhoItHosts, "hosted parts make the whole", "of parts"),
    (BadSamples, "samples average to the gradient", "all samples"),
    (ChangesX, "x is left alone", "changed x"),
    (lambda: with_constants(L=1.9), "smoothness constants hold", "L = 1.9, but"),
    (lambda: with_constants(L_i=(1.0, 2.0, 2.9)), "smoothness constants hold", "L_2 = 2.9"),
    (lambda: with_constants(L_i=(1.0,)), "smoothness constants hold", "1 constants L_i"),
    (lambda: with_constants(L_plus=2.1), "smoothness constants hold", "L_plus"),
    (lambda: with_constants(L_pm=0.8), "smoothness constants hold", "L_pm"),
    (NotConvex, "facts hold", "some f_i is not convex"),
    (lambda: with_constants(mu=2.5, facts=STRONG), "facts hold", "f is not 2.5-convex"),
    (lambda: with_constants(mu=None, facts=STRONG), "facts hold", "mu is unknown"),
    (lambda: with_constants(facts=frozenset({"convex"})), "facts hold", "must be of Fact"),
    (lambda: with_constants(mu=2.5), "lower bounds hold", "too large"),
    (lambda: with_constants(f_star=100.0, f_inf=0.0), "lower bounds hold", "f ="),
    (lambda: with_constants(f_inf=1e6), "lower bounds hold", "f_inf"),
    (PlainProx, "prox minimises", "another point"),
    (UnsaidPenalty, "prox minimises", "has_prox is False"),
]


def test_a_sound_problem_conforms():
    result = conformance(Shift())
    assert not [str(f) for f in result if not f.ok]


@pytest.mark.parametrize(("make", "check", "says"), BROKEN, ids=range(len(BROKEN)))
def test_a_broken_problem_is_found(make, check, says):
    result = {f.check: f for f in conformance(make())}
    assert says in result[check].detail


def test_every_problem_check_is_shown_to_fail():
    assert {check for _, check, _ in BROKEN} == set(problems.CHECKS)


def test_directions_of_high_curvature_are_found():
    # one steep direction of 200: random pairs alone would miss it
    diagonal = torch.full((200,), 0.01, dtype=torch.float64)
    diagonal[17] = 1.0
    problem = Quadratic(torch.diag(diagonal)[None], torch.zeros(1, 200, dtype=torch.float64))
    steepest = max(
        float(((problem.grad(x) - problem.grad(y)).norm(dim=-1)[:, 0] / (x - y).norm(dim=-1)).max())
        for x, y in Objective(problem).pairs()
    )
    assert steepest > 0.999


METRICS = [
    (lambda p, x: x.norm(), "gives a number per cell", "shape ()"),
    (lambda p, x: 1.0, "gives a number per cell", "not a tensor"),
    (lambda p, x: x.norm(dim=-1) - x.mean(), "cells do not depend on each other", "a cell alone"),
    (lambda p, x: x.mul_(2).norm(dim=-1), "x is left alone", "changed x"),
    (lambda p, x: torch.rand(len(x)), "x is left alone", "two calls differ"),
]


@pytest.mark.parametrize(("metric", "check", "says"), METRICS, ids=range(len(METRICS)))
def test_a_broken_metric_is_found(metric, check, says):
    problem = build("quadratic", {"dim": 6, "clients": 3})
    result = {f.check: f for f in metrics.conformance(metric, problem)}
    assert says in result[check].detail
