"""What holds of single methods beside the bounds of the generic rule: floors, exactness, rates of their own."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from toys import (
    P1,
    RAND,
    TOP,
    ConvexL1,
    Stretched,
    each_round,
    full_gradients,
    registered,
    title,
)

from raybench import theory
from raybench.core import registry
from raybench.core.streams import Sample
from raybench.execution.resolve import Skip, problem_of
from raybench.testing.trial import DATA, Method, compressors_for, finished, started
from raybench.theory import contraction

pytestmark = pytest.mark.thorough

P2 = {**P1, "dim": 10, "clients": 6, "heterogeneity": 0.7, "seed": 2}
LOGISTIC = {"name": "logistic", **DATA, "regularizer": "nonconvex", "lambda": 0.1}  # bounded noise
RIDGE = {**LOGISTIC, "regularizer": "l2"}
TOP2, RAND2, COMMON2 = (
    {"name": "top_k", "k": 2},
    {"name": "rand_k", "k": 2},
    {"name": "rand_k", "k": 2, "mask": "common"},
)
FAR = {"x0": {"normal": 2.0}, "record": {"every": 1}}


def on(name, compressor=TOP, rounds=60, problem=P1, more=FAR, **rest) -> Method:
    return Method(
        name, rest.pop("params", {}), compressor, problem, rounds=rounds, more=more, **rest
    )


@pytest.fixture(scope="module")
def convex():
    with registered("problem", convex_l1=ConvexL1):
        yield {"name": "convex_l1"}


# Convex f_i: DIANA, and EF21 with the arithmetic mean -------------------------------------------


@pytest.fixture(scope="module")
def stretched():
    with registered("problem", stretched=Stretched):
        yield {"name": "stretched"}


def of_diana(method: Method) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    """V and D of the rule ``convex``, (rounds + 1,), means over seeds, and the method's numbers."""
    run = started(method.batch((1.0,), range(200)))
    cell, star = method.cell(), run.problem.minimizer()
    gamma, alpha, mu = cell.step_size, cell.params["alpha"], run.problem.constants.mu or 0.0
    w = cell.omega / (1 if method.compressor == COMMON2 else run.problem.n)
    at_star = run.problem.oracle(star[None], loss=False)[0]

    def look(run):
        H = (run.c.h - at_star).square().sum(-1).mean(1)
        return (run.s.x - star).square().sum(-1) + 4 * w / alpha * gamma**2 * H

    V = torch.stack(each_round(run, look)).mean(1).numpy()
    D = run.recorder.column("loss").mean(0) - run.problem.constants.f_star
    return V, D, {"gamma": gamma, "alpha": alpha, "mu": mu, "w": w}


HARD_FOR_DIANA = [
    ({"name": "rand_k", "k": 1}, {}),
    (COMMON2, {}),
    (RAND2, {"alpha": 0.02}),
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


# Error feedback ---------------------------------------------------------------------------------


@pytest.mark.parametrize("down", [TOP2, {"name": "top_k", "k": 6}, "identity"], ids=title)
def test_ef21_bc_nonconvex_bound(down):
    """With Phi0 = Delta0 + A P0 + B Q0; top-k on both sides, so path-wise."""
    method = Method("ef21_bc", {}, TOP2, P2, downlink=down, rounds=800, more=FAR)
    run = started(method.batch((1.0,), range(4)))
    run.advance(0)
    gamma = method.cell().step_size
    theta_w, _ = theory.contraction(0.2)
    theta_m, beta_m = theory.contraction({"identity": 1.0}.get(str(down)) or down["k"] / 10)
    A, B = gamma * (1 + 8 * beta_m / theta_m) / theta_w, gamma / theta_m
    P0, Q0 = (
        (run.c.g - full_gradients(run)).square().sum(-1).mean(1).numpy(),
        (run.s.g - run.s.w).square().sum(-1).numpy(),
    )
    run.advance(run.rounds)
    gaps = run.recorder.column("loss")[:, 0] - run.problem.constants.f_star
    norms = run.recorder.column("grad_norm_sq")
    for T in (1, 10, 100, 800):
        assert (norms[:, :T].mean(1) <= 2 * (gaps + A * P0 + B * Q0) / (gamma * T)).all()


def constants(method: Method):
    return started(method.batch()).problem.constants


def variance(run) -> torch.Tensor:
    """Return the variance of one sample's gradient at s.x, mean over clients, (B,)."""
    assert set(run.problem.samples) == {12}
    shape, x = (len(run.s.x), run.problem.n, 1), run.s.x
    ones = [Sample.at(torch.full(shape, j)) for j in range(12)]
    each = torch.stack([run.problem.grad(x, one) for one in ones])
    return (each - each.mean(0)).square().sum(-1).mean(0).mean(1)


EF14S = [
    ("ef14", {"memory": "step"}, TOP),
    ("ef14", {"memory": "gradient"}, "scaled_sign"),
    ("ef14", {}, RAND),
    ("ec_sgd", {"batch": 2}, TOP),
    ("ef_sign_sgd", {}, None),
    ("one_bit_sgd", {"batch": 3}, None),
]


def noise_of(method: Method) -> float:
    """sigma^2: a bound of the variance of a client's minibatch gradient."""
    batch = method.cell().params.get("batch", "full")
    return 0.0 if batch == "full" else constants(method).sample_variance / batch


COMMON = {**RAND, "mask": "common"}
FROM_F = [
    *((*one, rounds, 1.0) for one in EF14S for rounds in (10, 300)),
    *(
        ("dcgd", {}, C, rounds, 1.0)
        for C in (RAND, COMMON, "natural", "perm_k")
        for rounds in (20, 400)
    ),
    *(("sgd", {"batch": b}, None, 150, multiple) for b in (1, 4) for multiple in (1.0, 0.1)),
]


@pytest.mark.parametrize(
    ("name", "params", "compressor", "rounds", "multiple"),
    FROM_F,
    ids=str,
)
def test_nonconvex_bound_from_f_alone(name, params, compressor, rounds, multiple):
    """c (f(x^0) - f_low)/(gamma T) + floor, f_low = mean inf f_i >= 0.

    c = 2 e for DCGD, without a floor; 2 for SGD, gamma L sigma^2/n; 4 e for EF14, and
    (2/n + 4 L gamma beta) e L gamma sigma^2.
    """
    method = on(name, compressor, rounds, LOGISTIC, params=params)
    run = finished(method.batch((multiple,), range(32)))
    cell, c, n = method.cell(), run.problem.constants, run.problem.n
    gamma, noise = multiple * cell.step_size, multiple * cell.step_size * c.L * noise_of(method)
    if name == "dcgd":
        factor, floor = 2 * math.e, 0.0
    elif name == "sgd":
        assert gamma == pytest.approx(multiple / c.L)
        factor, floor = 2, noise / n
    else:
        _, beta = contraction(cell.alpha)
        factor, floor = 4 * math.e, (2 / n + 4 * c.L * gamma * beta) * math.e * noise
    first = run.recorder.column("loss")[:, 0].mean()
    norms = run.recorder.column("grad_norm_sq")[:, :rounds]
    assert run.recorder.rounds[rounds] == rounds
    assert norms.mean() <= factor * first / (gamma * rounds) + floor


@pytest.mark.parametrize(("name", "params", "compressor"), EF14S, ids=str)
def test_ef14_strongly_convex_bound(name, params, compressor):
    """f(x^) - f* <= 4 ||x^0 - x*||^2/(gamma W) + 48 L gamma^2 D/s + (4/n + 24 L gamma beta) gamma sigma^2.

    x^ is the recorded point with ``iterate: weighted``, W the sum of its weights (1 - gamma mu/2)^-(t+1).
    """
    more = {**FAR, "iterate": "weighted"}
    method = on(name, compressor, 400, RIDGE, params=params, more=more, rule="pl")
    run = finished(method.batch((1.0,), range(16)))
    cell, problem, sigma2 = method.cell(), run.problem, noise_of(method)
    c, gamma = problem.constants, cell.step_size
    theta, beta = contraction(cell.alpha)
    star = problem.minimizer()
    differ = float(problem.grad(star[None]).square().sum(-1).mean())
    x0 = started(method.batch((1.0,), range(16)))
    x0.advance(0)
    first = float((x0.s.x - star).square().sum(-1).mean())
    floor = 48 * c.L * gamma**2 * differ * beta / theta
    floor += (4 / problem.n + 24 * c.L * gamma * beta) * gamma * sigma2
    gaps = run.recorder.column("loss").mean(0) - c.f_star
    for T in (1, 10, 100, 400):  # recorded in round T - 1: the mean of x^0 .. x^(T-1)
        W = ((1 - gamma * c.mu / 2) ** -np.arange(1.0, T + 1)).sum()
        assert gaps[T - 1] <= 4 * first / (gamma * W) + floor


def test_ec_gd_star_converges_linearly(convex):
    """||x - mean e - x*||^2 + (6 L gamma/theta) mean||e_i||^2 <= (1 - gamma mu/2)^t ||x^0 - x*||^2; top-k, so path-wise."""
    method = on("ec_gd_star", TOP, 600, convex, rule="pl")
    run = started(method.batch((1.0,), range(3)))
    star, gamma = run.problem.minimizer(), method.cell().step_size
    theta, _ = contraction(0.3)
    c = run.problem.constants

    def potential(r):
        apart = (r.s.x - r.c.e.mean(1) - star).square().sum(-1)
        return apart + 6 * c.L * gamma / theta * r.c.e.square().sum(-1).mean(1)

    have = torch.stack(each_round(run, potential)).numpy()
    rate = (1 - gamma * c.mu / 2) ** np.arange(len(have))[:, None]
    assert (have <= rate * have[0] * (1 + 1e-9) + 1e-24).all()
    assert have[-1].max() < 0.9 * have[0].min()


@pytest.mark.parametrize(("eta", "batch"), [(1.0, 1), (0.3, 1), (0.05, 1), (0.3, 4)])
def test_nonconvex_bound_with_noise(eta, batch):
    """EF21-SGDM: 2 Phi0/(gamma T) + 2 (eta + (eta^2 + 2 eta^3) beta/theta) sigma^2, sigma^2 along the path."""
    params = {"eta": eta, "batch": batch}
    method = on("ef21_sgdm", TOP, 200, LOGISTIC, params=params)
    assert method.cell().theory_step is not None
    run = started(method.batch((1.0,), range(48)))
    run.advance(0)
    theta, beta = contraction(method.cell().alpha)
    G = (run.c.g - run.c.v).square().sum(-1).mean(1)
    P = (run.c.v - full_gradients(run)).square().sum(-1).mean(1)
    extra = (2 * G / theta + 2 * (1 / eta + 2 * beta / theta * eta) * P).numpy()
    seen = each_round(run, variance)
    sigma2 = torch.stack(seen[1:]).mean().item() / batch
    floor = 2 * (eta + (eta**2 + 2 * eta**3) * beta / theta) * sigma2
    assert floor > 1e-4
    norms = run.recorder.column("grad_norm_sq")[:, :200]
    gaps = run.recorder.column("loss")[:, 0] - run.problem.constants.f_inf
    promised = (2 * gaps / method.cell().step_size + extra) / 200 + floor
    assert norms.mean() <= promised.mean()


# Nonsmooth parts --------------------------------------------------------------------------------


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


# Gradient differences ---------------------------------------------------------------------------


NOISY = [
    ("dasha_mvr", {"momentum": 0.2, "batch": 2}),
    ("dasha_mvr", {"momentum": 1.0}),
    ("dasha_sync_mvr", {"p": 0.2, "big": 3}),
    ("vr_marina", {"big": 1, "p": 0.3, "batch": 2}),
    ("vr_marina", {"big": 6, "p": 0.1, "batch": 2}),
]


@pytest.mark.parametrize(("name", "params"), NOISY)
def test_gradient_differences_with_noise_have_a_floor(name, params):
    """2 Delta0/(gamma T) + floor, sigma^2 the largest variance of a sample along the path.

    MVR: (1/(gamma L))(sqrt(6 F q^2) + sqrt(2 q/((2-q) n)))^2 sigma^2/b. VR-MARINA: (1 + 1/(p T)) sigma^2/(n big),
    and SYNC-MVR that over gamma L.
    """
    method = on(name, RAND, 150, LOGISTIC, params=params)
    assert method.cell().theory_step is not None
    run = started(method.batch((1.0,), range(32)))
    sigma2 = float(torch.stack(each_round(run, variance)[:-1]).mean(1).max())
    n, gamma, c = run.problem.n, method.cell().step_size, run.problem.constants
    F = 2 * method.cell().omega * (2 * method.cell().omega + 1) / n
    q = params.get("momentum", 0.0)
    norms = run.recorder.column("grad_norm_sq")[:, :-1].mean(0)
    gap = run.recorder.column("loss")[:, 0].mean()  # f >= 0
    for T in (1, 10, 50, 150):
        if name == "dasha_mvr":
            root = np.sqrt(6 * F * q * q) + np.sqrt(2 * q / ((2 - q) * n))
            floor = root**2 * sigma2 / params.get("batch", 1)
        else:
            floor = (1 + 1 / (params["p"] * T)) * sigma2 / (n * params["big"])
        floor /= 1.0 if name == "vr_marina" else gamma * c.L
        assert norms[:T].mean() <= 2 * gap / (gamma * T) + floor
    if name == "vr_marina":  # the noise is of that order
        error = (run.s.g - full_gradients(run).mean(1)).square().sum(-1).mean()
        assert float(error) > 0.1 * float(variance(run).mean()) / (n * params["big"])


# DCGD, SGD and momentum SGD ---------------------------------------------------------------------


RIDGED = {"name": "least_squares", **DATA, "regularizer": "l2", "lambda": 0.3}


def minimiser(problem) -> torch.Tensor:
    """x* of quadratic f_i plus the problem's penalty, by proximal gradient descent: (1, d)."""
    x, gamma = torch.zeros(1, problem.dim, dtype=torch.float64), 1 / problem.constants.L
    for _ in range(4000):
        x = problem.prox(x - gamma * problem.grad(x).mean(1), gamma)
    return x


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
    batch = method.batch((1.0, 0.25), range(48))
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


@pytest.mark.parametrize("name", ["sgd", "momentum_sgd"])
def test_nonconvex_bound_with_noise_and_a_nonsmooth_part(name):
    """2 Delta0/(h T) + M^0/((1-eta) T) + (1-eta) sigma^2/n for the gradient mapping; eta = 0 for SGD."""
    lasso = {**LOGISTIC, "regularizer": "l1", "lambda": 0.01}
    method = Method(name, {"batch": 2}, None, lasso, rounds=200, more=FAR)
    run = started(method.batch((1.0,), range(48)))
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
    method = Method("sgd", {"batch": batch}, None, RIDGED, rule="pl", rounds=400, more=FAR)
    run = started(method.batch((1.0,), range(48)))
    problem, m = run.problem, run.problem.samples[0]
    star, shape = minimiser(problem), (1, problem.n, 1)
    each = torch.stack([problem.grad(star, Sample.at(torch.full(shape, j))) for j in range(m)])
    C = float((each - each.mean(0)).square().sum(-1).mean())
    have = torch.stack(each_round(run, lambda r: (r.s.x - star).square().sum(-1))).numpy().mean(1)
    gamma, mu = method.cell().step_size, problem.constants.mu
    floor = 2 * gamma * C / (problem.n * batch * mu)
    assert (have <= (1 - gamma * mu) ** np.arange(len(have)) * have[0] + floor).all()
    assert have[-100:].mean() > 0.02 * floor  # of that order


def test_where_noise_is_not_bounded_the_rule_that_does_without_is_named():
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
