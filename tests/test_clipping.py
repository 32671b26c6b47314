"""Clip21-SGD2M and normalised EF21: exact cases, noise, and the bound of normalised steps."""

import numpy as np
import pytest
import torch
from toys import each_round

from raybench.testing.trial import DATA, Method, finished, started

pytestmark = pytest.mark.thorough

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


# Clip21-SGD2M -------------------------------------------------------------------------------------


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


# Normalised EF21 ----------------------------------------------------------------------------------


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
