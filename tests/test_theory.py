"""Step sizes against formulas worked out by hand, and the bounds they promise on quadratics."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import ConvexL1, Counterexample, each_round, full_gradients, registered

from raybench import registry, theory
from raybench.engine.resolve import Resolver, Skip, problem_of
from raybench.problems.base import Constants
from raybench.spec import Step
from raybench.testing.trial import DATA, Method, finished, started

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

# By hand -------------------------------------------------------------------------------------

C = Constants(L=2.0, L_i=(1.0, 2.0, 6.0), mu=0.1, L_samples=5.0, extra={"L_blk": 0.5})
L_TILDE = math.sqrt((1 + 4 + 36) / 3)


def setting(**given) -> theory.Setting:
    numbers = {k: given.pop(k) for k in ("p", "batch") if k in given}
    if "a" in given:
        numbers["alpha"] = given.pop("a")
    return theory.Setting(C, n=3, d=10, m=20.0, numbers=numbers, **given)


HALF = 1 - math.sqrt(0.5)  # theta of alpha = 1/2; beta = 0.5/theta
STEPS = [
    ("gd", {}, "nonconvex", 1 / 2),
    ("gd", {}, "pl", 1 / 2),
    ("sgd", {}, "nonconvex", 1 / 2),
    ("dcgd", {"omega": 4.0}, "nonconvex", 1 / (2 + 2 * 4 * 6 / 3)),
    ("dcgd", {"omega": 4.0, "common_mask": True}, "nonconvex", 1 / (2 + 2 * 4 * 6)),
    ("ef14", {"alpha": 0.5}, "nonconvex", 1 / (14 * 2 * 2 * 2)),
    ("ef21", {"alpha": 0.5}, "nonconvex", 1 / (2 + L_TILDE * math.sqrt(0.5) / HALF)),
    ("ef21", {"alpha": 1.0}, "nonconvex", 1 / 2),
    (
        "ef21",
        {"alpha": 0.5},
        "pl",
        min(1 / (2 + L_TILDE * math.sqrt(2 * 0.5) / HALF), HALF / (2 * 0.1)),
    ),
    ("ef21_plus", {"alpha": 0.5}, "nonconvex", 1 / (2 + L_TILDE * math.sqrt(0.5) / HALF)),
    ("ef21_pp", {"alpha": 0.5, "p": 1.0}, "nonconvex", 1 / (2 + L_TILDE * math.sqrt(0.5) / HALF)),
    (
        "ef21_pp",  # r = p theta/(2 (1-p)) = theta/2, rho = p theta/2
        {"alpha": 0.5, "p": 0.5},
        "nonconvex",
        1 / (2 + L_TILDE * math.sqrt((0.5 * 0.5 / HALF + 0.5 * (1 + 2 / HALF)) / (0.5 * HALF / 2))),
    ),
    (
        "ef21_bc",
        {"alpha": 0.5, "down_alpha": 1.0},
        "nonconvex",
        1 / (2 + L_TILDE * math.sqrt(2 * 0.5) / HALF),
    ),
    (
        "ef21_bc",
        {"alpha": 1.0, "down_alpha": 0.5},
        "nonconvex",
        1 / (2 + L_TILDE * math.sqrt(16 * 0.5) / HALF),
    ),
    ("marina", {"omega": 4.0, "p": 0.2}, "nonconvex", 1 / (2 + L_TILDE * math.sqrt(0.8 * 4 / 0.6))),
    (
        "marina",
        {"omega": 4.0, "p": 0.2, "common_mask": True},
        "nonconvex",
        1 / (2 + L_TILDE * math.sqrt(0.8 * 4 / 0.2)),
    ),
    ("marina", {"omega": 4.0, "p": 0.2}, "paper", 1 / (6 * (1 + math.sqrt(0.8 * 4 / 0.6)))),
    ("marina", {"omega": 4.0, "p": 1.0}, "nonconvex", 1 / 2),
    (
        "marina",
        {"omega": 4.0, "p": 0.01},
        "pl",
        min(1 / (2 + L_TILDE * math.sqrt(2 * 0.99 * 4 / 0.03)), 0.01 / 0.2),
    ),
    (
        "vr_marina",
        {"omega": 4.0, "p": 0.2, "batch": 2},
        "nonconvex",
        1 / (2 + math.sqrt(0.8 / 0.6 * (4 * 41 / 3 + 5 * 25 / 2))),
    ),
    (
        "vr_marina",
        {"omega": 4.0, "p": 0.2, "batch": 2, "common_mask": True},
        "nonconvex",
        1 / (2 + math.sqrt(0.8 / 0.2 * (4 * (41 / 3 + 25 / 2) + 25 / 6))),
    ),
    ("diana", {"omega": 4.0, "a": 0.2}, "nonconvex", 1 / (2 + 2 * L_TILDE * 5 * math.sqrt(4 / 3))),
    (
        "diana",
        {"omega": 4.0, "a": 0.2, "common_mask": True},
        "nonconvex",
        1 / (2 + 2 * L_TILDE * 5 * math.sqrt(4)),
    ),
    ("diana", {"omega": 4.0, "a": 0.2}, "paper", 1 / (60 * math.sqrt(1 + 4 / 3) * 6)),
    (
        "vertical_marina",
        {"omega": 4.0, "p": 0.2},
        "nonconvex",
        1 / (2 + math.sqrt(4 * 4 * 2 * 0.5)),
    ),
    (
        "vertical_marina",
        {"omega": 4.0, "p": 0.2, "common_mask": True},
        "nonconvex",
        1 / (2 + math.sqrt(4 * 4 * 2 * 2)),
    ),
    ("prox_lead", {"omega": 4.0}, "nonconvex", 0.5 / 6),
]


@pytest.mark.parametrize(("name", "given", "rule", "want"), STEPS)
def test_step_by_hand(name, given, rule, want):
    method = registry.lookup("algorithm", name).meta["theory"]
    assert theory.step_size(method, setting(**given), rule) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "given", "rule", "says"),
    [
        ("power_sgd", {}, "nonconvex", "has none"),
        ("dcgd", {"alpha": 0.5}, "nonconvex", "diverge"),
        ("ef21", {"alpha": 0.5}, "paper", "paper"),
        ("ef21", {}, "nonconvex", "alpha"),
        ("marina", {"p": 0.5}, "nonconvex", "omega"),
        ("diana", {"omega": 4.0, "a": 0.0}, "nonconvex", "alpha"),
        ("diana", {"omega": 4.0, "a": 0.21}, "nonconvex", "alpha"),
        ("ef21_bc", {"alpha": 0.5, "down_alpha": 0.5}, "pl", "pl"),
    ],
)
def test_no_theory_says_why(name, given, rule, says):
    with pytest.raises(theory.NoTheory, match=says):
        theory.step_size(registry.lookup("algorithm", name).meta["theory"], setting(**given), rule)


@pytest.mark.parametrize("missing", ["L", "L_i", "mu"])
def test_an_unknown_constant_means_no_step(missing):
    constants = Constants(
        **{"L": 1.0, "L_i": (1.0,), "mu": 0.1, missing: () if missing == "L_i" else None}
    )
    with pytest.raises(theory.NoTheory):
        theory.step_size(theory.ef21, theory.Setting(constants, 1, 5, alpha=0.5), "pl")


@given(st.floats(1e-12, 1.0))
@settings(max_examples=200)
def test_contraction_solves_its_equations(alpha):
    theta, beta = theory.contraction(alpha)
    assert 0 < theta <= 1
    assert (1 - theta) ** 2 == pytest.approx(1 - alpha, abs=1e-15)
    assert theta * (2 - theta) == pytest.approx(alpha, rel=1e-9)
    assert beta == pytest.approx((1 - alpha) / theta)
    assert math.sqrt(beta / theta) <= (2 / alpha - 1) * (1 + 1e-9)


@given(
    st.sampled_from(["ef21", "marina", "diana", "ef21_pp", "vr_marina"]),
    st.floats(1e-3, 1.0),
    st.integers(1, 50),
)
@settings(max_examples=100)
def test_steps_never_beat_gradient_descent(name, alpha, n):
    omega = 1 / alpha - 1
    numbers = {"p": alpha, "batch": 2, "alpha": alpha}
    k = theory.Setting(C, n, 10, omega=omega, alpha=alpha, numbers=numbers)
    steps = [
        theory.step_size(registry.lookup("algorithm", name).meta["theory"], k, r)
        for r in ("nonconvex", "pl")
    ]
    assert 0 < steps[1] <= steps[0] <= 1 / C.L


def test_auto_parameters():
    assert Method("marina", {}, RAND, NONCONVEX).cell().params["p"] == pytest.approx(0.2)
    assert Method("diana", {}, RAND, NONCONVEX).cell().params["alpha"] == pytest.approx(0.2)
    m = 60 / 5
    params = Method("vr_marina", {"batch": 3}, "natural", SAMPLES).cell().params
    assert params["p"] == pytest.approx(min(12 / 64, 3 / (m + 3)))
    params = Method("vr_marina", {"batch": 3}, {"name": "rand_k", "k": 1}, SAMPLES).cell().params
    assert params["p"] == pytest.approx(min(1 / 30, 3 / (m + 3)))


def test_an_unbiased_operator_is_rescaled_where_a_contraction_is_needed():
    rescaled = Method("ef21", {}, RAND, NONCONVEX).cell()
    assert rescaled.alpha == pytest.approx(0.2)
    assert rescaled.omega is None
    c = problem_of(rescaled.cell.problem).constants
    theta = 1 - math.sqrt(0.8)
    assert rescaled.theory_step == pytest.approx(1 / (c.L + c.L_tilde * math.sqrt(0.8) / theta))
    run = started(Method("ef21", {}, RAND, NONCONVEX).batch())
    x = torch.randn(1, 6, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sent = run.a.C(x, run.net.stream("up")).decode()
    assert torch.allclose(sent[sent != 0], x[sent != 0])  # unscaled Rand-K


# The bounds ----------------------------------------------------------------------------------


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


PL = [b for b in BOUNDED if b[0] not in ("vertical_marina", "gd")]


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


def minimiser(problem) -> tuple[torch.Tensor, torch.Tensor]:
    """x* and mean ||grad f_i(x*)||^2 of quadratic f_i, from gradients alone."""
    d, x = problem.dim, torch.zeros(1, problem.dim, dtype=torch.float64)
    start = problem.oracle(x)[0].mean(1)[0]
    H = problem.oracle(torch.eye(d, dtype=torch.float64))[0].mean(1) - start
    x = torch.linalg.solve(H, -start)[None]
    return x[0], problem.oracle(x)[0].square().sum(-1).mean()


@pytest.fixture(scope="module")
def convex():
    with registered("problem", convex_l1=ConvexL1):
        yield {"name": "convex_l1"}


@pytest.mark.parametrize(
    "compressor",
    [{"name": "rand_k", "k": 4}, {"name": "rand_k", "k": 4, "mask": "common"}, "natural"],
    ids=title,
)
def test_dcgd_converges_to_its_floor(convex, compressor):
    """E||x^t - x*||^2 <= (1 - gamma mu)^t ||x^0 - x*||^2 + 2 gamma omega S/(n mu); a real floor."""
    method = Method("dcgd", {}, compressor, convex, rounds=500, more=FAR)
    batch = method.batch((1.0, 0.25), range(SEEDS))
    run = started(batch)
    star, S = minimiser(run.problem)
    assert S > 1e-4
    square = torch.stack(each_round(run, lambda r: (r.s.x - star).square().sum(-1))).numpy()
    common = isinstance(compressor, dict) and "mask" in compressor
    cell, mu = batch.cells[0], run.problem.constants.mu
    n = 1 if common else run.problem.n
    floors = []
    for own, multiple in ((slice(0, None, 2), 1.0), (slice(1, None, 2), 0.25)):
        gamma, have = cell.step_size * multiple, square[:, own].mean(1)
        t = np.arange(len(have))
        floor = 2 * gamma * cell.omega * float(S) / (n * mu)
        assert (have <= (1 - gamma * mu) ** t * have[0] + floor).all()
        floors.append(have[-200:].mean())
    if common:  # linear over clients: it compresses grad f itself, which vanishes at x*
        assert floors[0] < 1e-20
    else:
        assert 2 < floors[0] / floors[1] < 8  # it scales with gamma, times 4


def test_dcgd_has_no_floor_where_the_clients_agree_on_the_minimiser():
    with registered("problem", counterexample=Counterexample):
        method = Method(
            "dcgd", {}, {"name": "rand_k", "k": 1}, {"name": "counterexample"}, rounds=4000
        )
        method = Method(**{**vars(method), "more": {"x0": "problem"}})
        run = finished(method.batch((1.0,), range(4)), every=4000)
    assert (run.recorder.column("grad_norm_sq")[:, -1] < 1e-20).all()


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
