"""DCGD, SGD and momentum SGD: bounds with a horizon, rates to a floor, and what their assumptions are for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from toys import ConvexL1, Counterexample, each_round, registered

from raybench.core.draws import Sample
from raybench.execution.resolve import Skip, problem_of
from raybench.problems.quadratic import Quadratic
from raybench.testing.trial import DATA, Method, finished, started

SEEDS = 48
NONCONVEX = {"name": "logistic", **DATA, "regularizer": "nonconvex", "lambda": 0.1}
RIDGE = {"name": "least_squares", **DATA, "regularizer": "l2", "lambda": 0.3}
SHIPPED = {"name": "quadratic", "dim": 20, "heterogeneity": 1.5}
FAR = {"x0": {"normal": 2.0}, "record": {"every": 1}}


def title(value) -> str:
    return "-".join(str(v) for v in value.values()) if isinstance(value, dict) else str(value)


class Opposed(Quadratic):
    """f_1 with Hessian 11 I and f_2 with -9 I: f = ||x||^2/2 is convex, f_2 is not."""

    def __init__(self) -> None:
        eye = torch.eye(2, dtype=torch.float64)
        super().__init__(torch.stack([11 * eye, -9 * eye]), torch.zeros(2, 2, dtype=torch.float64))


@pytest.fixture(scope="module")
def convex():
    with registered("problem", convex_l1=ConvexL1):
        yield {"name": "convex_l1"}


def minimiser(problem) -> torch.Tensor:
    """x* of quadratic f_i plus the problem's penalty, by proximal gradient descent: (1, d)."""
    x, gamma = torch.zeros(1, problem.dim, dtype=torch.float64), 1 / problem.constants.L
    for _ in range(4000):
        x = problem.prox(x - gamma * problem.grad(x).mean(1), gamma)
    return x


# What convex f_i are for ----------------------------------------------------------------------


def test_the_convex_step_diverges_where_some_f_i_is_not_convex():
    """Exactly: E||x+||^2 = ((1 - gamma)^2 + gamma^2 omega (11^2 + 9^2)/4) ||x||^2, 1.19 at gamma = 1/12."""
    gamma, omega = 1 / 12, 1.0
    growth = (1 - gamma) ** 2 + gamma**2 * omega * (11**2 + 9**2) / 4
    assert growth == pytest.approx(1.191, abs=5e-4)
    with registered("problem", opposed=Opposed):
        far = Method(
            "dcgd", {}, {"name": "rand_k", "k": 1}, {"name": "opposed"}, step=gamma, more=FAR
        )
        run = started(far.batch((1.0,), range(400)))
        run.advance(0)
        before = run.s.x.square().sum(-1)
        run.advance(1)
        after = run.s.x.square().sum(-1)
        assert float((after / before).mean()) == pytest.approx(growth, rel=0.1)
        for rule in ("nonconvex", "pl"):
            with pytest.raises(Skip, match="the theorem assumes that every f_i is"):
                far._resolved({"theory": 1.0, "rule": rule}, 0)


@pytest.mark.parametrize("rule", ["nonconvex", "pl"])
def test_the_shipped_quadratics_have_no_theory_of_dcgd(rule):
    method = Method("dcgd", {}, {"name": "rand_k", "k": 2}, SHIPPED)
    with pytest.raises(Skip, match="no theoretical step size"):
        method._resolved({"theory": 1.0, "rule": rule}, 0)


# Bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "compressor",
    [{"name": "rand_k", "k": 3}, {"name": "rand_k", "k": 3, "mask": "common"}, "natural", "perm_k"],
    ids=title,
)
@pytest.mark.parametrize("rounds", [20, 400])
def test_dcgd_nonconvex_bound(compressor, rounds):
    """(1/T) sum_{t<T} E||grad f||^2 <= 2 e (f(x^0) - f_low)/(gamma T), f_low = mean inf f_i >= 0, T the rounds."""
    method = Method("dcgd", {}, compressor, NONCONVEX, rounds=rounds, more=FAR)
    run = finished(method.batch((1.0,), range(SEEDS)))
    norms, first = (
        run.recorder.column("grad_norm_sq")[:, :rounds],
        run.recorder.column("loss")[:, 0],
    )
    assert run.recorder.rounds[rounds] == rounds
    assert norms.mean() <= 2 * math.e * first.mean() / (method.cell().step_size * rounds)


@pytest.mark.parametrize("weight", [0.0, 0.2])
@pytest.mark.parametrize(
    "compressor",
    [{"name": "rand_k", "k": 4}, {"name": "rand_k", "k": 4, "mask": "common"}, "natural"],
    ids=title,
)
def test_dcgd_converges_to_its_floor(convex, compressor, weight):
    """E||x^t - x*||^2 <= (1 - gamma mu)^t ||x^0 - x*||^2 + 2 gamma S/mu, S = (omega/n) mean||grad f_i(x*)||^2."""
    problem = {**convex, "weight": weight}
    method = Method("dcgd", {}, compressor, problem, rule="pl", rounds=500, more=FAR)
    batch = method.batch((1.0, 0.25), range(SEEDS))
    run = started(batch)
    star = minimiser(run.problem)
    different = run.problem.grad(star).square().sum(-1).mean()
    assert different > 1e-4
    square = torch.stack(each_round(run, lambda r: (r.s.x - star).square().sum(-1))).numpy()
    common = isinstance(compressor, dict) and "mask" in compressor
    cell, mu = batch.cells[0], run.problem.constants.mu
    n = 1 if common else run.problem.n
    floors = []
    for own, multiple in ((slice(0, None, 2), 1.0), (slice(1, None, 2), 0.25)):
        gamma, have = cell.step_size * multiple, square[:, own].mean(1)
        t = np.arange(len(have))
        floor = 2 * gamma * cell.omega * float(different) / (n * mu)
        assert (have <= (1 - gamma * mu) ** t * have[0] + floor).all()
        floors.append(have[-200:].mean())
    if common and not weight:  # linear over clients: it compresses grad f, which vanishes at x*
        assert floors[0] < 1e-20
    elif not common:
        assert 2 < floors[0] / floors[1] < 8  # it scales with gamma, times 4


def test_dcgd_has_no_floor_where_the_clients_agree_on_the_minimiser():
    one = {"name": "rand_k", "k": 1}
    with registered("problem", counterexample=Counterexample):
        more = {"x0": "problem"}
        method = Method(
            "dcgd", {}, one, {"name": "counterexample"}, rule="pl", rounds=4000, more=more
        )
        run = finished(method.batch((1.0,), range(4)), every=4000)
    assert (run.recorder.column("grad_norm_sq")[:, -1] < 1e-20).all()


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("multiple", [1.0, 0.1])
def test_sgd_nonconvex_bound(batch, multiple):
    """2 Delta0/(gamma T) + gamma L sigma^2/n with sigma^2 = sample_variance/b; f >= 0."""
    method = Method("sgd", {"batch": batch}, None, NONCONVEX, rounds=150, more=FAR)
    run = finished(method.batch((multiple,), range(SEEDS)))
    c, gamma = run.problem.constants, multiple * method.cell().step_size
    assert gamma == pytest.approx(multiple / c.L)
    norms, first = run.recorder.column("grad_norm_sq")[:, :150], run.recorder.column("loss")[:, 0]
    floor = gamma * c.L * c.sample_variance / (batch * run.problem.n)
    assert norms.mean() <= 2 * first.mean() / (gamma * 150) + floor


@pytest.mark.parametrize("name", ["sgd", "momentum_sgd"])
def test_nonconvex_bound_with_noise_and_a_nonsmooth_part(name):
    """2 Delta0/(h T) + M^0/((1-eta) T) + (1-eta) sigma^2/n for the gradient mapping; eta = 0 for SGD."""
    lasso = {**NONCONVEX, "regularizer": "l1", "lambda": 0.01}
    method = Method(name, {"batch": 2}, None, lasso, rounds=200, more=FAR)
    run = started(method.batch((1.0,), range(SEEDS)))
    problem, c = run.problem, run.problem.constants
    eta = method.cell().params.get("momentum", 0.0)
    h, sigma = method.cell().step_size / (1 - eta), c.sample_variance / 2
    run.advance(0)
    first = eta**2 * problem.grad(run.s.x).mean(1).square().sum(-1).mean() / (1 - eta)
    first = float(first) + (1 - eta) * sigma / problem.n  # M^0 of the first minibatch

    def mapping(r) -> torch.Tensor:
        moved = problem.prox(r.s.x - h * problem.grad(r.s.x).mean(1), h)
        return ((r.s.x - moved) / h).square().sum(-1).mean()

    norms = torch.stack(each_round(run, mapping)).numpy()[:-1]
    start = run.recorder.column("loss")[:, 0].mean()
    for T in (1, 10, 200):
        bound = (2 * start / h + first) / T + (1 - eta) * sigma / problem.n
        assert norms[:T].mean() <= bound


@pytest.mark.parametrize("batch", [1, 3])
def test_sgd_converges_to_its_floor(batch):
    """E||x^t - x*||^2 <= (1 - gamma mu)^t ||x^0 - x*||^2 + 2 gamma C/(n b mu), on ridge regression."""
    method = Method("sgd", {"batch": batch}, None, RIDGE, rule="pl", rounds=400, more=FAR)
    run = started(method.batch((1.0,), range(SEEDS)))
    problem, m = run.problem, run.problem.samples[0]
    star, shape = minimiser(problem), (1, problem.n, 1)
    each = torch.stack([problem.grad(star, Sample.at(torch.full(shape, j))) for j in range(m)])
    C = float((each - each.mean(0)).square().sum(-1).mean())
    have = torch.stack(each_round(run, lambda r: (r.s.x - star).square().sum(-1))).numpy().mean(1)
    gamma, mu = method.cell().step_size, problem.constants.mu
    floor = 2 * gamma * C / (problem.n * batch * mu)
    assert (have <= (1 - gamma * mu) ** np.arange(len(have)) * have[0] + floor).all()
    assert have[-100:].mean() > 0.02 * floor  # of that order


def test_sgd_diverges_on_least_squares_at_the_step_of_bounded_noise():
    """Why that theorem is not applied there: 1/L, minibatches of one row, clients with one large row each."""
    squares = {
        "name": "least_squares",
        "dataset": "breast_cancer",
        "clients": 1,
        "regularizer": "none",
    }
    method = Method("sgd", {}, None, squares)
    with pytest.raises(Skip, match="bounded for all x") as why:
        method._resolved({"theory": 1.0}, 0)
    assert "step_size.rule: pl, which there is here" in why.value.fix
    c = problem_of(method.cell().cell.problem).constants
    wild = Method("sgd", {}, None, squares, step=1 / c.L, rounds=3000, more=FAR)
    norms = finished(wild.batch((1.0,), range(4)), every=50).recorder.column("grad_norm_sq")
    assert np.nanmax(norms) > 10 * norms[:, 0].mean()
