"""Where a bound is reached: inequalities that hold with equality on some quadratic, so that no constant may shrink."""

import itertools
import math

import numpy as np
import pytest
import torch
from known_problem import Held, setting
from toys import registered

import raybench
from raybench import theory
from raybench.core import registry
from raybench.problems.base import Constants
from raybench.problems.quadratic import Quadratic
from raybench.testing.trial import Method, finished


def formula(name: str, rule: str = "nonconvex"):
    return theory.of(registry.lookup("algorithm", name).facts.theory).under(rule).formula


class Bowl(Quadratic):
    """f = 1.7 ||x||^2/2 at one client."""

    def __init__(self) -> None:
        eye = 1.7 * torch.eye(3, dtype=torch.float64)
        super().__init__(eye[None], torch.zeros(1, 3, dtype=torch.float64))


@pytest.mark.parametrize(("multiple", "holds"), [(1.0, True), (1.02, False)])
def test_gradient_descent(multiple, holds):
    """||grad f(x^0)||^2 = 2 Delta0/gamma at gamma = 1/L exactly; 2 % above the inequality fails."""
    with registered("problem", bowl=Bowl):
        more = {"x0": {"normal": 1.0}}
        method = Method("gd", {}, None, {"name": "bowl"}, rounds=1, more=more)
        run, gamma = finished(method.batch((multiple,))), multiple * method.cell().step_size
    norm = float(run.recorder.column("grad_norm_sq")[0, 0])
    promised = 2 * float(run.recorder.column("loss")[0, 0]) / gamma
    assert (norm <= promised * (1 + 1e-12)) == holds
    assert norm == pytest.approx(promised * multiple, rel=1e-12)


@pytest.mark.parametrize("alpha", [0.01, 0.5, 0.99])
def test_theta_and_beta(alpha):
    """(1 - alpha)||a + b||^2 = (1 - theta)||a||^2 + beta ||b||^2 for b = (1/sqrt(1 - alpha) - 1) a."""
    theta, beta = theory.contraction(alpha)
    b = 1 / math.sqrt(1 - alpha) - 1
    assert (1 - alpha) * (1 + b) ** 2 == pytest.approx((1 - theta) + beta * b * b, rel=1e-12)
    for other in (b / 2, 2 * b):  # and less anywhere else
        assert (1 - alpha) * (1 + other) ** 2 < (1 - theta) + beta * other**2


def sums(n: int, d: int, vectors: np.ndarray) -> float:
    """E||mean Q_i(a_i) - mean a_i||^2 of independent Rand-1, all masks gone through."""
    total, mean = 0.0, vectors.mean(0)
    for masks in itertools.product(range(d), repeat=n):
        sent = np.zeros_like(vectors)
        for i, j in enumerate(masks):
            sent[i, j] = d * vectors[i, j]
        total += float(np.square(sent.mean(0) - mean).sum())
    return total / d**n


def test_marina():
    """f_i with Hessians L I: E G+ = B ||x+ - x||^2 after an exact g, Rand-1."""
    n, d, L, p = 3, 3, 1.3, 0.2
    move = np.array([0.3, -1.0, 0.4])
    have = (1 - p) * sums(n, d, np.tile(L * move, (n, 1)))
    constants = Constants(L=L, L_i=(L,) * n)
    rate = formula("marina")(setting(n=n, omega=d - 1.0, p=p, constants=constants))
    assert have == pytest.approx(rate.B * float(move @ move), rel=1e-12)


def test_dcgd():
    """E||g - grad f||^2 = (omega/n) mean||grad f_i||^2 <= 2 A (f - f_low), with equality for f_i = L||x||^2/2."""
    n, d, L = 2, 3, 0.7
    x = np.array([1.0, 2.0, -0.5])
    have = sums(n, d, np.tile(L * x, (n, 1)))
    k = setting(n=n, omega=d - 1.0, constants=Constants(L=L, L_i=(L,) * n))
    A = (1 / formula("dcgd", "pl")(k) - L) / 2
    assert have == pytest.approx(2 * A * L * float(x @ x) / 2, rel=1e-12)


def test_pp_marina():
    """Clients whose gradient changes cancel: E||(1/r) sum Q(a_i) - 0||^2 = (1 + omega)/r mean||a_i||^2."""
    d, L, r, p = 2, 2.0, 1, 0.25
    move = np.array([0.5, 1.5])
    changes = np.stack([L * move, -L * move])
    have = np.mean([(d * a[j]) ** 2 for a in changes for j in range(d)])  # a drawn client, one mask
    k = setting(n=2, omega=d - 1.0, p=p, clients=r, constants=Constants(L=0.1, L_i=(L, L)))
    assert (1 - p) * have == pytest.approx(formula("pp_marina")(k).B * float(move @ move))


def test_the_shift_of_diana():
    """E||h + a Q(v) - (h + v)||^2 = (1 - a)||v||^2 with a = 1/(1 + omega), Rand-1."""
    v = np.array([1.0, -2.0, 0.5])
    d, omega = 3, 2.0
    a = formula("diana")(setting(omega=omega, a=1 / 3)).rho * 2
    have = np.mean([np.square(a * d * v * (np.arange(d) == j) - v).sum() for j in range(d)])
    assert have == pytest.approx((1 - a) * float(v @ v), rel=1e-12)


def test_three_point_compressors():
    """v2: E||b - x||^2 = ||h - y||^2 + omega ||x - y||^2 for Rand-1, and C leaves 1 - alpha of a flat vector."""
    rate = formula("three_pc_v2")(setting(alpha=0.25, first=Held(omega=3.0)))
    flat = np.ones(4)
    left = flat.copy()
    left[0] = 0  # Top-1 of 4 equal coordinates
    assert left @ left == pytest.approx((1 - 0.25) * (flat @ flat))
    assert (rate.rho, rate.B) == pytest.approx((0.25, 0.75 * 3.0 * 3.5**2))


# Compressors whose constant a step relies on ------------------------------------------------------


def variance(operator, x: torch.Tensor, draws: int) -> float:
    """E||C(x) - x||^2/||x||^2 by Monte-Carlo."""
    many = x.expand(draws, -1)
    off = operator.compress(many, stream=raybench.stream(seed=5).spread((draws,))).decode() - many
    return float(off.square().sum(-1).mean() / x.square().sum())


@pytest.mark.parametrize("d", [4, 25])
@pytest.mark.parametrize("name", ["dithering:s=1,p=inf", "terngrad"])
def test_ternary_dithering_reaches_its_omega(name, d):
    """(sqrt(d) - 1)/2, at x = (1, c, .., c) with c = 1/(1 + sqrt d)."""
    x = torch.full((d,), 1 / (1 + math.sqrt(d)), dtype=torch.float64)
    x[0] = 1.0
    operator = raybench.compressor(name)
    assert operator.omega(d) == pytest.approx((math.sqrt(d) - 1) / 2, rel=1e-12)
    assert variance(operator, x, 60_000) == pytest.approx(operator.omega(d), rel=0.01)


@pytest.mark.parametrize(("s", "d"), [(2, 4), (3, 9), (2, 100), (8, 16)])
def test_omega_of_dithering_with_the_largest_norm(s, d):
    """min{d/(4 s^2), (1 + sqrt d)/(2 s)}: each coordinate varies by at most (N/s) min{N/(4s), |x_j|}."""
    operator = raybench.compressor(f"dithering:s={s},p=inf")
    want = min(d / (4 * s * s), (1 + math.sqrt(d)) / (2 * s))
    assert operator.omega(d) == pytest.approx(want, rel=1e-12)
    x = torch.full((d,), 1 / (2 * s), dtype=torch.float64)  # half way between two levels
    x[0] = 1.0
    have, exact = variance(operator, x, 40_000), (d - 1) / (4 * s * s) / (1 + (d - 1) / (4 * s * s))
    assert have == pytest.approx(exact, rel=0.02)
    assert have <= operator.omega(d)


@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
def test_the_lazy_gate_reaches_its_omega(p):
    """1/p - 1 exactly, for every x: what is sent has the chance p and the factor 1/p."""
    operator, x = raybench.compressor(f"lazy:p={p}"), torch.tensor([3.0, -4.0]).double()
    assert operator.omega(2) == pytest.approx(1 / p - 1, rel=1e-12)
    many = x.expand(400_000, -1)
    sent = operator.compress(many, stream=raybench.stream(seed=7).spread((len(many),))).decode()
    share = float((sent[:, 0] != 0).double().mean())
    assert share == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / len(many)))
    assert torch.allclose(sent[sent[:, 0] != 0][0] * p, x)
