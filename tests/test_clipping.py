"""Clip21-SGD2M and normalised EF21: exact cases, what they send, noise, and the bound of normalised steps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from toys import each_round, registered

from raybench.execution.resolve import Skip, problem_of
from raybench.problems.base import Problem
from raybench.testing.trial import DATA, Method, batch_of, finished, started

SAMPLES = {"name": "least_squares", **DATA, "regularizer": "l2", "lambda": 0.3}
SADDLES = {
    "name": "quadratic",
    "dim": 10,
    "clients": 6,
    "heterogeneity": 0.7,
    "mu": 0.05,
    "seed": 2,
}
FAR = {"x0": {"normal": 1.0}}
TOP = {"name": "top_k", "k": 2}


def clip(rounds=40, step=0.1, problem=SAMPLES, **params) -> Method:
    return Method("clip21_sgd2m", params, None, problem, step=step, rounds=rounds, more=FAR)


def iterates(m: Method) -> torch.Tensor:
    return torch.stack(list(each_round(started(m.batch()), lambda r: r.s.x[0].clone())))


# Clip21-SGD2M -------------------------------------------------------------------------------------


def test_without_clipping_and_momentum_it_is_gradient_descent():
    ours = clip(tau="off", beta=1.0, beta_server=1.0)
    plain = Method("gd", {}, None, SAMPLES, step=0.1, rounds=40, more=FAR)
    torch.testing.assert_close(iterates(ours), iterates(plain), rtol=0, atol=1e-12)


def test_without_clipping_its_estimates_follow_the_gradients_by_a_share():
    """beta = 1, tau = off: the error feedback of an operator that sends a share b' of each difference."""
    run = started(clip(tau="off", beta=1.0, beta_server=0.3).batch())
    share, held = 0.3, 0.0
    for g, each, x in each_round(run, lambda r: (r.s.g.clone(), r.c.g.clone(), r.s.x.clone())):
        held = (1 - share) * held + share * run.problem.grad(x)
        torch.testing.assert_close(each, held, rtol=0, atol=1e-12)
        torch.testing.assert_close(g, held.mean(1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("tau", [1e-3, 0.5])
def test_no_message_is_longer_than_tau(tau):
    run = started(clip(tau=tau, beta=0.7).batch((1.0, 3.0), (0, 1)))
    up, norms = run.net.up, []

    def listening(message):
        norms.append(message.decode().norm(dim=-1))
        return up(message)

    run.net.up = listening
    run.advance(40)
    assert len(norms) == 41
    assert torch.stack(norms).max() <= tau * (1 + 1e-12)
    assert torch.stack(norms).max() >= tau * (1 - 1e-12)  # it did clip


def test_without_noise_the_server_has_the_mean():
    run = started(clip(tau=0.1, batch=3).batch((1.0, 3.0), (0, 1)))
    for g, each in each_round(run, lambda r: (r.s.g.clone(), r.c.g.clone())):
        torch.testing.assert_close(g, each.mean(1), rtol=0, atol=1e-12)


def test_it_reaches_the_minimum_although_gradients_there_are_longer_than_tau():
    run = finished(clip(3000, tau=0.05, beta=0.5, step=0.03).batch())
    grads = run.problem.grad(run.s.x)
    assert grads.norm(dim=-1).max() > 0.1
    assert grads.mean(1).norm() <= 1e-10


def test_noise_has_its_deviation_and_stays_in_the_server():
    sigma, share, rounds = 0.5, 0.4, 60
    m = clip(rounds, tau=0.1, sigma=sigma, beta_server=share, step=1e-3)
    run = started(m.batch((1.0,), range(8)))
    drift = torch.stack(list(each_round(run, lambda r: (r.s.g - r.c.g.mean(1)).clone())))
    change = drift.diff(dim=0) / (share * sigma / run.problem.n**0.5)
    count = change.numel()
    assert abs(float(change.mean())) <= 4 / count**0.5
    assert abs(float(change.square().mean()) - 1) <= 4 * (2 / count) ** 0.5
    apart = torch.corrcoef(change[:, :2].flatten(2).transpose(0, 1).flatten(1))
    assert abs(float(apart[0, 1])) <= 4 / (count / 8) ** 0.5  # of two seeds
    assert float(drift[-1].square().mean()) > 20 * float(drift[0].square().mean())


def test_cells_without_noise_are_not_touched_by_those_with():
    cells = [clip(5, tau=0.1, sigma=s).cell() for s in (0.0, 0.5)]
    both, alone = finished(batch_of(cells)), finished(batch_of(cells[:1]))
    torch.testing.assert_close(both.s.x[0], alone.s.x[0], rtol=0, atol=1e-14)
    assert (both.s.x[1] - alone.s.x[0]).norm() > 1e-3


# Normalised EF21 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{}, {"eta": 0.4, "batch": 3}])
def test_steps_have_one_length_along_the_estimate(params):
    m = Method("ef21_normalized", params, TOP, SAMPLES, step=0.05, rounds=30, more=FAR)
    run = started(m.batch((1.0, 2.0), (0, 1)))
    seen = list(each_round(run, lambda r: (r.s.x.clone(), r.s.g.clone(), r.c.g.clone())))
    gamma = torch.tensor([[0.05], [0.1]], dtype=torch.float64)
    for (x, g, each), (after, _, _) in pairwise(seen):
        torch.testing.assert_close(g, each.mean(1), rtol=0, atol=1e-12)
        torch.testing.assert_close(after - x, -gamma * g / g.norm(dim=1, keepdim=True))


def test_its_estimates_are_those_of_ef21_on_the_same_points():
    """EF21 with a step of gamma/||g|| in every round: by one step size for each round."""
    m = Method("ef21_normalized", {}, TOP, SAMPLES, step=0.05, rounds=10, more=FAR)
    run = started(m.batch())
    other = started(Method("ef21", {}, TOP, SAMPLES, step=1.0, rounds=10, more=FAR).batch())
    run.advance(0)
    other.advance(0)
    for _ in range(10):
        torch.testing.assert_close(run.s.g, other.s.g, rtol=1e-12, atol=0)
        other.a.gamma = type(other.a.gamma)(0.05 / other.s.g.norm(dim=1))
        run.advance(1)
        other.advance(1)
        torch.testing.assert_close(run.s.x, other.s.x, rtol=1e-12, atol=1e-14)


def test_at_a_zero_estimate_it_stays():
    run = started(Method("ef21_normalized", {}, TOP, SAMPLES, step=0.05, rounds=1).batch())
    zero = torch.zeros(2, 5)
    assert torch.equal(run.a.outer_step(None, zero), zero)


@pytest.mark.parametrize("multiple", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("operator", [TOP, {"name": "identity"}])
def test_the_bound_of_normalised_steps_path_by_path(multiple, operator):
    """For any multiple of 1/sqrt(T), with nonconvex f_i: Top-k and the identity know no chance."""
    T = 200
    m = Method("ef21_normalized", {}, operator, SADDLES, rule="paper", rounds=T, more=FAR)
    run = started(m.batch((multiple,)))
    k = run.problem.constants

    def look(r):
        grads = r.problem.grad(r.s.x)
        return float(grads.mean(1).norm()), float((grads - r.c.g).norm(dim=-1).mean())

    seen = list(each_round(run, look))[:T]
    x0 = started(m.batch((multiple,)))
    x0.advance(0)
    losses = x0.problem.oracle(x0.s.x)[1]
    gamma, alpha = multiple / T**0.5, operator.get("k", 10) / 10
    assert float(run.a.gamma.values[0]) == pytest.approx(gamma)
    rest = (1 - alpha) ** 0.5
    theta = 1 - rest
    bound = (
        (float(losses.mean()) - k.f_star) / (gamma * T)
        + 2 * seen[0][1] / (theta * T)
        + gamma * (k.L / 2 + 2 * k.L_AM * rest / theta)
    )
    assert np.mean([norm for norm, _ in seen]) <= bound * (1 + 1e-9)


def test_its_theorem_is_about_full_gradients_without_momentum():
    for params, why in (({"batch": 2}, "all samples"), ({"eta": 0.5}, "momentum")):
        m = Method("ef21_normalized", params, TOP, SAMPLES, rule="paper")
        with pytest.raises(Skip, match=why):
            m._resolved({"theory": 1.0, "rule": "paper"}, 0)
    assert problem_of(m.cell().cell.problem).constants.L is not None


class Quartic(Problem):
    """f_i(x) = a_i sum_j (x_j - i)^4/4: no L, but a Hessian of the order of ||grad f_i||^(2/3)."""

    declared = {}

    def __init__(self) -> None:
        super().__init__(3, 4)

    def f_i(self, i, x):
        return (1 + i) * ((x - i) ** 4).sum(-1) / 4

    def grad_i(self, i, x):
        return (1 + i) * (x - i) ** 3

    def start(self):
        return torch.full((4,), 30.0, dtype=torch.float64)


def test_steep_functions_from_afar():
    """At 30 curvature is 900 times that at 1: EF21 with a step for the valley diverges, steps of one length do not."""
    with registered("problem", quartic=Quartic):
        found = {}
        for name, step in (("ef21", 0.03), ("ef21_normalized", 0.5)):
            m = Method(name, {}, TOP, {"name": "quartic"}, step=step, rounds=400)
            m = Method(**{**vars(m), "more": {"x0": "problem"}})
            run = finished(m.batch())
            found[name] = run.status[0], float(run.problem.grad(run.s.x).mean(1).norm())
    assert found["ef21"][0] == "diverged"
    assert found["ef21_normalized"][0] == "ok"
    assert found["ef21_normalized"][1] < 30.0
