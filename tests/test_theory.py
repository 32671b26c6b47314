"""Step sizes against formulas worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raybench import theory
from raybench.core import registry
from raybench.planning.resolve import Skip, problem_of
from raybench.problems.base import Constants
from raybench.testing.trial import DATA, Method, started

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
    (
        "vr_marina",  # L_max for all three
        {"omega": 4.0, "p": 0.2, "batch": 2},
        "paper",
        1 / (6 + math.sqrt(0.8 / 0.6 * (4 * 36 + 5 * 36 / 2))),
    ),
    (
        "vr_diana",  # 20 samples are 10 batches of 2
        {"omega": 4.0, "a": 0.2, "batch": 2},
        "paper",
        1 / (60 * math.sqrt(1 + 4 / 3) * (10 ** (2 / 3) + 5)),
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
    method = registry.lookup("algorithm", name).facts.theory
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
        theory.step_size(registry.lookup("algorithm", name).facts.theory, setting(**given), rule)


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
        theory.step_size(registry.lookup("algorithm", name).facts.theory, k, r)
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


@pytest.mark.parametrize(
    "name", ["marina", "vr_marina", "pp_marina", "dasha_sync_mvr", "three_pc_v5"]
)
def test_empty_messages_have_no_automatic_p(name):
    params = {"alpha": 0.5} if name == "dasha_sync_mvr" else {}
    with pytest.raises(Skip, match="p: auto has no value here: the operator's messages are empty"):
        Method(name, params, "zero", NONCONVEX, step=0.1).cell()
    assert Method(name, {**params, "p": 0.5}, "zero", NONCONVEX, step=0.1).cell().step_size == 0.1


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
