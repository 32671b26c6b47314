"""The bounds that theory promises, on quadratics and small data."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from toys import ConvexL1, Stretched, each_round, full_gradients, registered

from raybench import theory
from raybench.core import registry
from raybench.execution.resolve import Resolver, Skip, problem_of
from raybench.spec import Step
from raybench.testing.trial import DATA, Method, compressors_for, finished, started

SEEDS = 48
NONCONVEX = {
    "name": "quadratic",
    "dim": 10,
    "clients": 6,
    "mu": 0.05,
    "heterogeneity": 0.7,
    "seed": 2,
}
SAMPLES = {"name": "least_squares", **DATA}
VERTICAL = {"name": "vertical_least_squares", **DATA}
TOP, RAND = {"name": "top_k", "k": 2}, {"name": "rand_k", "k": 2}
COMMON = {**RAND, "mask": "common"}
FAR = {"x0": {"normal": 1.0}}


def distances(run) -> torch.Tensor:
    """G of the EF21 family and DIANA: mean ||state_i - grad f_i(x)||^2, (B,)."""
    state = run.c.g if hasattr(run.c, "g") else run.c.h
    return (state - full_gradients(run)).square().sum(-1).mean(1)


def errors(run) -> torch.Tensor:
    """G of the MARINA family: ||g - grad f(x)||^2, (B,)."""
    return (run.s.g - full_gradients(run).mean(1)).square().sum(-1)


def weight(method: Method) -> float:
    """By which ``distances`` is to be multiplied: DIANA's (omega/n)."""
    cell = method.cell()
    if method.name != "diana":
        return 1.0
    return cell.omega / (1 if method.compressor == COMMON else problem_of(cell.cell.problem).n)


def rho_of(method: Method) -> float:
    cell = method.cell()
    name, numbers = method.name, cell.params
    if name in ("marina", "vr_marina", "vertical_marina"):
        return numbers["p"]
    if name == "diana":
        return numbers["alpha"] / 2
    theta = 1 - math.sqrt(1 - cell.alpha)
    return numbers["p"] * theta / (1 if numbers["p"] == 1 else 2) if name == "ef21_pp" else theta


BOUNDED = [  # method, its parameters, operator, problem, seeds (1: the bound holds path-wise)
    ("gd", {}, None, NONCONVEX, 1),
    ("ef21", {"init": "compressed"}, TOP, NONCONVEX, 1),
    ("ef21", {"init": "zero"}, TOP, NONCONVEX, 1),
    ("ef21", {"init": "full"}, "scaled_sign", NONCONVEX, 1),
    ("ef21_plus", {}, TOP, NONCONVEX, 1),
    ("ef21", {}, RAND, NONCONVEX, SEEDS),
    ("ef21_pp", {"p": 0.4}, TOP, NONCONVEX, SEEDS),
    ("ef21_pp", {"p": 0.7}, RAND, NONCONVEX, SEEDS),
    ("marina", {}, RAND, NONCONVEX, SEEDS),
    ("marina", {}, COMMON, NONCONVEX, SEEDS),
    ("marina", {"p": 0.05}, "natural", NONCONVEX, SEEDS),
    ("vr_marina", {"batch": 2}, RAND, SAMPLES, SEEDS),
    ("vr_marina", {"batch": 1}, COMMON, SAMPLES, SEEDS),
    ("diana", {}, RAND, NONCONVEX, SEEDS),
    ("diana", {"alpha": 0.05}, RAND, NONCONVEX, SEEDS),
    ("diana", {}, COMMON, NONCONVEX, SEEDS),
    ("vertical_marina", {}, {"name": "rand_k", "k": 10}, VERTICAL, SEEDS),
    ("vertical_ef21", {"init": "full"}, {"name": "top_k", "k": 10}, VERTICAL, 1),
    ("vertical_marina", {}, {"name": "rand_k", "k": 10, "mask": "common"}, VERTICAL, SEEDS),
]


def title(value) -> str:
    if isinstance(value, dict):
        return "-".join(
            str(v) for k, v in value.items() if k in ("name", "k", "mask", "init", "p", "alpha")
        )
    return str(value)


def test_the_quadratics_are_hard():
    """Single f_i are nonconvex, f is strongly convex and the clients differ."""
    problem = problem_of(Method("gd", problem=NONCONVEX).cell().cell.problem)
    lowest = np.linalg.eigvalsh(problem.A.numpy())[:, 0]
    assert lowest.min() < -0.01
    assert problem.constants.mu == pytest.approx(0.05)
    assert problem.constants.L_pm > 0.2 * problem.constants.L


@pytest.mark.parametrize(("name", "params", "compressor", "problem", "seeds"), BOUNDED, ids=title)
def test_nonconvex_bound(name, params, compressor, problem, seeds):
    """(1/T) sum_{t<T} E||grad f||^2 <= 2 Delta0/(gamma T) + G^0/(rho T)."""
    method = Method(name, params, compressor, problem, rounds=800, more=FAR)
    run = started(method.batch((1.0,), range(max(seeds, 3))))
    run.advance(0)
    G = torch.zeros(len(run.index))
    if hasattr(run.c, "g") or hasattr(run.c, "h"):
        G = distances(run) * weight(method)
    run.advance(run.rounds)
    assert (run.status == "ok").all()
    rho = 1.0 if name == "gd" else rho_of(method)
    f_star = run.problem.constants.f_star
    norms = run.recorder.column("grad_norm_sq")[:, :-1]
    gaps = run.recorder.column("loss")[:, 0] - f_star
    for T in (1, 3, 10, 30, 100, 300, 800):
        have = norms[:, :T].mean(1)
        promised = (2 * gaps / method.cell().step_size + G.numpy() / rho) / T
        if seeds > 1:
            have, promised = have.mean(), promised.mean()
        assert np.all(have <= promised * (1 + 1e-9)), (T, have, promised)


PL = [b for b in BOUNDED if b[0] not in ("vertical_marina", "vertical_ef21", "gd")]


@pytest.mark.parametrize(("name", "params", "compressor", "problem", "seeds"), PL, ids=title)
def test_pl_bound(name, params, compressor, problem, seeds):
    """E Psi^t <= (1 - gamma mu)^t Psi^0, Psi = f - f* + (gamma/rho) G."""
    method = Method(name, params, compressor, problem, rule="pl", rounds=400, more=FAR)
    run = started(method.batch((1.0,), range(max(seeds, 3))))
    error = errors if "marina" in name else distances
    factor = 1.0 if "marina" in name else weight(method)
    G = torch.stack(each_round(run, error)).numpy() * factor  # (T + 1, B)
    gamma, mu = method.cell().step_size, run.problem.constants.mu
    gaps = run.recorder.column("loss").T - run.problem.constants.f_star
    psi = gaps + gamma / rho_of(method) * G
    if seeds > 1:
        psi = psi.mean(1, keepdims=True)
    promised = (1 - gamma * mu) ** np.arange(len(psi))[:, None] * psi[0]
    floor = 1e-13 * np.abs(run.recorder.column("loss")).max()  # of evaluating f
    assert (psi <= promised * (1 + 1e-9) + floor).all()


@pytest.fixture(scope="module")
def stretched():
    with registered("problem", stretched=Stretched):
        yield {"name": "stretched"}


def of_diana(method: Method) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    """V and D of the rule ``convex``, (rounds + 1,), means over seeds, and the method's numbers."""
    run = started(method.batch((1.0,), range(200)))
    cell, star = method.cell(), run.problem.minimizer()
    gamma, alpha, mu = cell.step_size, cell.params["alpha"], run.problem.constants.mu or 0.0
    w = cell.omega / (1 if method.compressor == COMMON else run.problem.n)
    at_star = run.problem.oracle(star[None], loss=False)[0]

    def look(run):
        H = (run.c.h - at_star).square().sum(-1).mean(1)
        return (run.s.x - star).square().sum(-1) + 4 * w / alpha * gamma**2 * H

    V = torch.stack(each_round(run, look)).mean(1).numpy()
    D = run.recorder.column("loss").mean(0) - run.problem.constants.f_star
    return V, D, {"gamma": gamma, "alpha": alpha, "mu": mu, "w": w}


HARD_FOR_DIANA = [
    ({"name": "rand_k", "k": 1}, {}),
    (COMMON, {}),
    (RAND, {"alpha": 0.02}),
    ("natural", {}),
]


@pytest.mark.parametrize("mu", [0.0, 0.5])
@pytest.mark.parametrize(("operator", "params"), HARD_FOR_DIANA, ids=title)
def test_diana_where_every_f_is_convex(stretched, operator, params, mu):
    """E V falls by 2 gamma D at least, so that D is V^0/(2 gamma T) on average, and with mu > 0 linearly."""
    method = Method(
        "diana", params, operator, {**stretched, "mu": mu}, rule="convex", rounds=300, more=FAR
    )
    V, D, k = of_diana(method)
    L = problem_of(method.cell().cell.problem).constants.L_max
    assert k["gamma"] == pytest.approx(1 / ((1 + 6 * k["w"]) * L), rel=1e-12)
    for T in (1, 3, 10, 30, 100, 300):
        assert D[:T].mean() <= V[0] / (2 * k["gamma"] * T)
    rate = 1 - min(k["gamma"] * k["mu"], k["alpha"] / 2)
    assert (V[0] * rate ** np.arange(301) * (1 + 1e-9) >= V).all()


def test_diana_breaks_the_inequality_beyond_that_step(stretched):
    method = Method(
        "diana", {}, {"name": "rand_k", "k": 1}, stretched, rule="convex", rounds=30, more=FAR
    )
    wild = replace(method, step=32 * method.cell().step_size)
    V, _, _ = of_diana(wild)
    assert V.max() > 2 * V[0]


@pytest.mark.parametrize("name", ["ef21", "ef21_plus"])
@pytest.mark.parametrize("operator", [{"name": "top_k", "k": 1}, "scaled_sign"], ids=title)
@pytest.mark.parametrize("init", ["compressed", "zero"])
def test_ef21_with_the_arithmetic_mean(stretched, name, operator, init):
    """f + gamma/(2 rho) G falls by gamma/2 ||grad f||^2 in every round, G weighted by 1/(n^2 w_i)."""
    if name == "ef21_plus" and init == "zero":
        pytest.skip("it opens with compressed gradients")
    params = {"init": init} if name == "ef21" else {}
    method = Method(name, params, operator, stretched, rule="arithmetic", rounds=400, more=FAR)
    run = started(method.batch((1.0,), range(6)))
    c = run.problem.constants
    assert 0.6 * c.L_tilde > c.L_AM  # so the step is another one
    theta, beta = theory.contraction(method.cell().alpha)
    gamma = method.cell().step_size
    assert gamma == pytest.approx(1 / (c.L + c.L_AM * math.sqrt(beta / theta)), rel=1e-6)
    weights = 1 / (run.problem.n * torch.tensor(c.L_i).double() / c.L_AM)  # 1/(n^2 w_i)
    assert gamma > 1.3 * replace(method, rule="nonconvex").cell().step_size

    def look(run):
        away = (run.c.g - full_gradients(run)).square().sum(-1)
        return away @ weights

    G = torch.stack(each_round(run, look)).numpy()
    f, norms = run.recorder.column("loss").T, run.recorder.column("grad_norm_sq").T
    phi = f - c.f_star + gamma / (2 * theta) * G
    assert (phi[1:] <= phi[:-1] - gamma / 2 * norms[:-1] + 1e-11 * phi[0]).all()


def test_gradient_descent_pl_rate():
    run = finished(Method("gd", {}, None, NONCONVEX, rule="pl", rounds=300, more=FAR).batch())
    gaps = run.recorder.column("loss")[0] - run.problem.constants.f_star
    rate = (1 - run.problem.constants.mu / run.problem.constants.L) ** np.arange(301)
    assert (gaps <= gaps[0] * rate * (1 + 1e-9) + 1e-13).all()


@pytest.mark.parametrize("down", [TOP, {"name": "top_k", "k": 6}, "identity"], ids=title)
def test_ef21_bc_nonconvex_bound(down):
    """With Phi0 = Delta0 + A P0 + B Q0; top-k on both sides, so path-wise."""
    method = Method("ef21_bc", {}, TOP, NONCONVEX, downlink=down, rounds=800, more=FAR)
    run = started(method.batch((1.0,), range(4)))
    run.advance(0)
    gamma = method.cell().step_size
    theta_w, _ = theory.contraction(0.2)
    theta_m, beta_m = theory.contraction({"identity": 1.0}.get(str(down)) or down["k"] / 10)
    A, B = gamma * (1 + 8 * beta_m / theta_m) / theta_w, gamma / theta_m
    P0, Q0 = distances(run).numpy(), (run.s.g - run.s.w).square().sum(-1).numpy()
    run.advance(run.rounds)
    gaps = run.recorder.column("loss")[:, 0] - run.problem.constants.f_star
    norms = run.recorder.column("grad_norm_sq")
    for T in (1, 10, 100, 800):
        assert (norms[:, :T].mean(1) <= 2 * (gaps + A * P0 + B * Q0) / (gamma * T)).all()


@pytest.fixture(scope="module")
def convex():
    with registered("problem", convex_l1=ConvexL1):
        yield {"name": "convex_l1"}


def test_scaled_rand_k_in_ef21_diverges_where_the_rescaled_one_does_not():
    """Why unbiased operators are rescaled: unscaled roles keep the factor d/K."""
    method = Method("ef21", {}, {"name": "rand_k", "k": 1}, NONCONVEX, rounds=400)
    run = started(method.batch((1.0,), (0,)))
    run.a.C = registry.lookup("compressor", "rand_k").target(1).compress
    run.advance(400)
    assert run.status[0] == "diverged"
    assert finished(method.batch()).status[0] == "ok"


def test_a_step_without_theory_is_skipped_with_a_reason():
    cell = Method("power_sgd", problem=NONCONVEX).cell().cell
    with pytest.raises(Skip, match="no theoretical step size"):
        Resolver().resolve(replace(cell, step=Step("theory", 1.0)))


PROXIMAL = [
    name
    for name in registry.names("algorithm")
    if registry.lookup("algorithm", name).facts.proximal
]


@pytest.mark.parametrize("name", PROXIMAL)
def test_proximal_methods_end_at_the_minimiser_of_f_and_the_penalty(convex, name):
    """One sample per client, so no noise: the gradient mapping of f + 0.2 ||x||_1 vanishes."""
    entry = registry.lookup("algorithm", name)
    operator = "identity" if name == "dcgd" else compressors_for(entry)[0]  # DCGD has a floor
    # on clients of unlike data a median leads beside the minimiser of the mean
    more = {**FAR, "robust": {"rule": "mean"}} if name.startswith("byz_") else FAR
    method = Method(name, {}, operator, {**convex, "weight": 0.2}, step=0.05, rounds=600, more=more)
    if entry.facts.down:
        method = replace(method, downlink={"name": "top_k", "k": 3})
    run = finished(method.batch(), every=600)
    assert run.recorder.column("grad_norm_sq")[0, -1] < 1e-12
    assert run.recorder.column("loss")[0, -1] == pytest.approx(-0.1454849561387832, rel=1e-9)
