"""The bounds that theorems promise, of every method with a recursion: over rounds, linear, and step by step.

G, rho and B are those of the recursion E G^{t+1} <= (1 - rho) G^t + B E||x^{t+1} - x^t||^2; what a method's G is
stands here anew. With a nonsmooth part psi the bounds hold for the gradient mapping of f + psi, with the method's step.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from toys import SaddleL1, each_round, full_gradients, registered

from raybench import theory
from raybench.execution.resolve import Resolver
from raybench.testing.trial import DATA, Method, started

SEEDS = 48  # where the bound holds in expectation; else it holds path by path, and three are run
ROUNDS, SHORT = 300, 80
P1 = {"name": "quadratic", "dim": 12, "clients": 6, "mu": 0.05, "heterogeneity": 0.7, "seed": 3}
P2 = {**P1, "dim": 10, "seed": 2}
CHAIN = {"name": "tridiagonal", "dim": 12, "clients": 4, "noise": 0.3, "lambda": 0.01}
ROWS = {"name": "least_squares", **DATA}
RIDGE = {"name": "logistic", **DATA, "regularizer": "l2", "lambda": 0.1}
VERTICAL = {"name": "vertical_least_squares", **DATA}
LASSO = {"name": "saddle_l1", "weight": 0.3}  # P2 with psi = 0.3 ||x||_1
TOP, RAND = {"name": "top_k", "k": 2}, {"name": "rand_k", "k": 2}
TOP3, RAND3 = {"name": "top_k", "k": 3}, {"name": "rand_k", "k": 3}
COMMON, COMMON3 = {**RAND, "mask": "common"}, {**RAND3, "mask": "common"}
FULL, ZERO = {"init": "full"}, {"init": "zero"}


class Case(NamedTuple):
    """A method on a problem, and whether anything about it is random."""

    name: str
    params: dict[str, Any]
    compressor: Any
    problem: dict[str, Any]
    down: Any = None
    random: bool = False

    def method(self, rounds: int, rule: str = "nonconvex") -> Method:
        """Return the method at its step."""
        more = {"x0": {"normal": 2.0}, "record": {"every": 1}}
        params, down = self.params, self.down
        return Method(
            self.name,
            params,
            self.compressor,
            self.problem,
            down,
            rounds=rounds,
            rule=rule,
            more=more,
        )

    @property
    def seeds(self) -> range:
        """The seeds that are run."""
        return range(SEEDS if self.random else 3)


def sure(name, params, compressor, problem=P2, down=None) -> Case:
    return Case(name, params, compressor, problem, down)


def mean(name, params, compressor, problem=P2, down=None) -> Case:
    return Case(name, params, compressor, problem, down, random=True)


CASES = [
    sure("gd", {}, None),
    sure("heavy_ball", {"momentum": 0.5}, None),
    sure("heavy_ball", {"momentum": 0.97}, None),
    sure("ef21", {"init": "compressed"}, TOP),
    sure("ef21", ZERO, TOP),
    sure("ef21", FULL, "scaled_sign"),
    sure("ef21_plus", {}, TOP),
    mean("ef21", {}, RAND),
    mean("ef21_pp", {"p": 0.4}, TOP),
    mean("ef21_pp", {"p": 0.7}, RAND),
    sure("ef21_hb", {"eta": 0.5}, TOP3),
    sure("ef21_hb", {"eta": 0.9}, TOP3),
    mean("ef21_hb", {"eta": 0.5, **ZERO}, RAND3),
    sure("ef21_w", {}, TOP3),
    mean("ef21_w", ZERO, RAND3),
    sure("ef21_p", {}, None, down=TOP3),
    sure("ef21_p", {}, None, down={**TOP, "k": 1}),
    sure("ef21_sgdm", {"eta": 1.0}, TOP3),
    sure("ef21_sgdm", {"eta": 0.3}, TOP3),
    sure("ef21_sgdm", {"eta": 0.05}, TOP3),
    sure("ef21_page", {"p": 0.3}, TOP3),
    mean("ef21_page", {"batch": 1}, TOP3, ROWS),
    mean("ef21_page", {"batch": 3, "p": 0.1}, RAND3, ROWS),
    sure("vertical_ef21", FULL, {**TOP, "k": 10}, VERTICAL),
    mean("vertical_marina", {}, {**RAND, "k": 10}, VERTICAL),
    mean("vertical_marina", {}, {**COMMON, "k": 10}, VERTICAL),
    mean("marina", {}, RAND),
    mean("marina", {}, COMMON),
    mean("marina", {"p": 0.05}, "natural"),
    mean("marina", {}, "perm_k", P1),
    mean("marina", {}, "perm_k", CHAIN),
    mean("marina", {"p": 0.1}, "perm_k", {**CHAIN, "clients": 24}),  # more clients than coordinates
    mean("vr_marina", {"batch": 2}, RAND, ROWS),
    mean("vr_marina", {"batch": 1}, COMMON, ROWS),
    mean("vr_marina", {"batch": 1}, "perm_k", ROWS),
    mean("pp_marina", {"clients": 1}, RAND3, P1),
    mean("pp_marina", {"clients": 9}, RAND3, P1),  # more draws than clients
    mean("pp_marina", {"clients": 3}, COMMON3, P1),
    mean("pp_marina", {"clients": 2}, "natural", CHAIN),
    mean("diana", {}, RAND),
    mean("diana", {"alpha": 0.05}, RAND),
    mean("diana", {}, COMMON),
    mean("vr_diana", {}, RAND3, ROWS),
    mean("vr_diana", {"batch": 4}, "natural", ROWS),
    mean("vr_diana", {"p": 1.0, "alpha": 0.1}, COMMON3, ROWS),
    mean("vr_diana", {}, "perm_k", ROWS),
    mean("dasha", {}, RAND3, P1),
    mean("dasha", {}, COMMON3, P1),
    mean("dasha", {}, "natural", P1),
    mean("dasha", {}, "perm_k", CHAIN),
    mean("dasha", {"alpha": 0.05}, RAND3, P1),
    mean("dasha_page", {}, RAND3, ROWS),
    mean("dasha_page", {"batch": 3, "p": 0.1}, "natural", ROWS),
    mean("dasha_mvr", {"momentum": 0.2}, RAND3, P1),  # one sample a client: no noise
    mean("dasha_sync_mvr", {}, RAND3, ROWS),
    mean("dasha_sync_mvr", {"p": 0.05, "batch": 2}, COMMON3, ROWS),
    sure("ef_bv", {}, TOP3, P1),
    sure("ef_bv", {"lam": 0.6, "nu": 0.3}, TOP3, P1),
    mean("ef_bv", {}, RAND3, P1),
    mean("ef_bv", {"lam": 0.05, "nu": 1.0}, RAND3, P1),
    mean("ef_bv", {}, COMMON3, P1),
    mean("ef_bv", {}, "perm_k", CHAIN),
    sure("econtrol", {}, TOP3, P1),
    sure("econtrol", {"eta": 0.06}, TOP3, P1),
    sure("econtrol", {"eta": 0.002}, TOP3, P1),
    sure("econtrol", {}, "scaled_sign", P1),
    mean("econtrol", {}, RAND3, P1),
    sure("econtrol", {"eta": 0.6}, {**TOP, "k": 11}, P1),  # the error counts for most
    mean("marina_p", {}, None, P1, RAND3),
    mean("marina_p", {"p": 0.1}, None, P1, COMMON3),
    mean("marina_p", {}, None, P1, "perm_k"),
    mean("marina_p", {"p": 0.05}, None, CHAIN, "perm_k"),
    mean("marina_p", {}, None, RIDGE, RAND3),
    mean("ef21_p_diana", {}, RAND3, P1, TOP3),
    mean("ef21_p_diana", {}, "natural", P1, {**TOP, "k": 1}),
    mean("ef21_p_diana", {"alpha": 0.05}, COMMON3, P1, TOP3),
    mean("ef21_p_diana", {}, RAND3, CHAIN, RAND3),
    sure("lag", {"z": 1.5}, None),
    sure("lag", {"z": 8.0}, None),
    sure("clag", {"z": 20.0, **ZERO}, TOP),
    mean("clag", {"z": 2.0}, RAND),
    mean("three_pc_v1", {}, RAND),
    mean("three_pc_v2", {"first": "natural"}, RAND),
    mean("three_pc_v4", {"first": "rand_k:k=2"}, "scaled_sign"),
    mean("three_pc_v5", {"p": 0.2}, TOP),
    sure("gd", {}, None, LASSO),
    sure("heavy_ball", {"momentum": 0.8}, None, LASSO),
    sure("ef21", {}, TOP, LASSO),
    sure("ef21_prox", ZERO, TOP, LASSO),
    sure("ef21_plus", {}, TOP, LASSO),
    sure("ef21_w", FULL, TOP, LASSO),
    mean("ef21_pp", {"p": 0.4, **FULL}, TOP, LASSO),
    sure("ef21_p", {}, None, LASSO, TOP),
    sure("ef21_sgdm", {"eta": 0.3, **FULL}, TOP, LASSO),
    sure("ef21_page", {"p": 0.3, **FULL}, TOP, LASSO),
    sure("lag", {"z": 2.0, **FULL}, None, LASSO),
    sure("clag", {"z": 2.0, **FULL}, TOP, LASSO),
    sure("three_pc_v1", FULL, TOP, LASSO),
    mean("three_pc_v2", {"first": "rand_k:k=3", **FULL}, TOP, LASSO),
    sure("three_pc_v4", {"first": "top_k:k=1", **FULL}, TOP, LASSO),
    mean("three_pc_v5", {"p": 0.3, **FULL}, TOP, LASSO),
    mean("marina", {}, RAND, LASSO),
    mean("vr_marina", {}, RAND, LASSO),
    mean("pp_marina", {"clients": 2}, RAND, LASSO),
    mean("diana", {}, RAND, LASSO),
    mean("vr_diana", {"p": 0.3}, RAND, LASSO),
    mean("dasha", {}, RAND, LASSO),
    mean("dasha_page", {"p": 0.3}, RAND, LASSO),
    mean("dasha_mvr", {"momentum": 0.3}, RAND, LASSO),
    mean("dasha_sync_mvr", {"p": 0.3}, RAND, LASSO),
]
THREE_POINTS = ("lag", "clag", "three_pc_v1", "three_pc_v2", "three_pc_v4", "three_pc_v5")
DERIVED = ("ef_bv", "econtrol", "marina_p", "ef21_p_diana")
OTHERWISE = {  # bounds over rounds that are not of the generic rule, or methods without a linear rate
    *("ef21_hb", "ef21_sgdm", "ef21_page", "vr_diana", "vertical_ef21"),
    *("dasha_page", "dasha_mvr", "dasha_sync_mvr"),
}


# Of a few for make test: of all, steps and iterates have exact tests elsewhere.
QUICK = ("l1", "ef21", "marina", "diana", *DERIVED)


def cases(*names: str, without: Any = ()) -> pytest.MarkDecorator:
    """Parametrise by the cases of some methods, or of all; make test takes the first of a few, and one with an l1 term."""
    every = [c for c in CASES if (c.name in names or not names) and c.name not in without]
    kinds = {"l1" if c.problem == LASSO else c.name: c for c in reversed(every)}
    quick = [kinds[kind] for kind in QUICK if kind in kinds]
    params = []
    for c in every:
        marks = [] if c in quick else [pytest.mark.thorough]
        params.append(pytest.param(c, marks=marks, id=f"{c.name}-{CASES.index(c)}"))
    return pytest.mark.parametrize("case", params)


@pytest.fixture(autouse=True, scope="module")
def _lasso():
    with registered("problem", saddle_l1=SaddleL1):
        yield


def rate_of(method: Method) -> tuple[Any, theory.Setting]:
    """Return what a method's theorem says, rho and B among it, and the numbers it depends on."""
    setting = Resolver(allow_unproven=True).backing(method.cell().cell)[1]
    return theory.of(method.entry.facts.theory).under(method.rule).formula(setting), setting


def rho_of(method: Method) -> float:
    rate = rate_of(method)[0]
    return (
        rate.rho if isinstance(rate, theory.Rate) else 1 - method.cell().params.get("momentum", 0)
    )


def mean_square(v: torch.Tensor) -> torch.Tensor:
    """Mean over clients of ||v_i||^2, (B,)."""
    return v.square().sum(-1).mean(1)


def error(run, method: Method) -> torch.Tensor:
    """G at a run's state between rounds, (B,)."""
    name, grads = method.name, full_gradients(run)
    if name in ("ef_bv", "econtrol", "marina_p", "ef21_p_diana"):
        return globals()[name](run, method)
    if name == "ef21_p":
        return run.problem.constants.L**2 * (run.s.y - run.s.x).square().sum(-1)
    if name == "ef21_plus":
        return mean_square(run.s.G - grads)
    if name == "heavy_ball":  # of what x moves along, as momentum lengthens it
        eta, g = method.cell().params["momentum"], grads.mean(1)
        return ((1 - eta) * (eta * run.s.outer + g) - g).square().sum(-1)
    if name == "ef21_w":
        L = torch.tensor(run.problem.constants.L_i, dtype=torch.float64)
        return ((run.c.g - grads).square().sum(-1) / (len(L) * L / L.sum())).mean(1)
    if name in ("marina", "vr_marina", "pp_marina", "dasha"):
        return (run.s.g - grads.mean(1)).square().sum(-1)
    if name == "diana":
        return rate_of(method)[1].mean_omega * mean_square(run.c.h - grads)
    if name == "vertical_marina":
        Ax = run.problem.products(run.c.x).sum(1)
        return 2 * run.problem.constants.L * (run.s.v - Ax).square().sum(-1)  # L = 2||A||^2
    if name in ("gd", "vertical_ef21"):  # exact at the start
        return torch.zeros(len(grads), dtype=torch.float64)
    return mean_square(run.c.g - grads)


def first_terms(run, method: Method) -> torch.Tensor:
    """What the bound over T rounds has on top of 2 Delta0/(gamma T), times T, at the start, (B,)."""
    name, cell, s, c = method.name, method.cell(), run.s, run.c
    grads = full_gradients(run)
    if name == "vr_diana":
        return 2 * rate_of(method)[1].mean_omega / cell.params["alpha"] * mean_square(grads)
    if name not in ("ef21_hb", "ef21_sgdm", "ef21_page"):
        return error(run, method) / rho_of(method)
    theta, beta = theory.contraction(cell.alpha)
    G = mean_square(c.g - grads)
    if name == "ef21_hb":
        eta = cell.params["eta"]
        M = ((1 - eta) * s.outer - grads.mean(1)).square().sum(-1)
        return (1 + eta) / (1 - eta) * M + (1 + eta) * (1 - theta) / theta * G
    rate = cell.params["p" if name == "ef21_page" else "eta"]
    mixed = 2 * beta / theta * (rate if name == "ef21_sgdm" else 1.0)
    return 2 * mean_square(c.g - c.v) / theta + 2 * (1 / rate + mixed) * mean_square(c.v - grads)


def ef_bv(run, method):
    k, nu = rate_of(method)[1], method.cell().params["nu"]
    if k.omega is not None:
        of_mean = k.ab[0] if k.ab else k.omega / (1 if k.common_mask else k.n)
        shrunk = (1 - nu) ** 2 + nu**2 * of_mean
    else:
        shrunk = (1 - nu + nu * math.sqrt(1 - k.alpha)) ** 2
    return shrunk * mean_square(full_gradients(run) - run.c.h)


def econtrol(run, method):
    w, eta = math.sqrt(1 - rate_of(method)[1].alpha), method.cell().params["eta"]
    values, vectors = np.linalg.eig(np.array([[(1 + eta) * w, eta**2], [w, 1 - eta]]).T)
    unit, weight = vectors[:, np.argmax(values.real)].real
    c = weight / unit
    V = mean_square(eta * run.c.e + full_gradients(run) - run.c.h)
    E = mean_square(run.c.e)
    if len(V) > 3:  # expectations stand below the roots
        V, E = V.mean().expand_as(V), E.mean().expand_as(E)
    return (max(w, eta / c) * (V.sqrt() + c * E.sqrt())) ** 2


def marina_p(run, method):
    k, constants = rate_of(method)[1], run.problem.constants
    off = run.c.w - run.s.x[:, None]
    every, of_mean = mean_square(off), off.mean(1).square().sum(-1)
    wide = constants.L_tilde**2 * k.down_omega
    if constants.L_pm is None or "quadratic" not in constants.facts:
        return constants.L_tilde**2 * every
    a, b = constants.L_pm * math.sqrt(k.down_omega), constants.L * math.sqrt(k.down_theta)
    if (a + b) ** 2 >= wide:
        return constants.L_tilde**2 * every
    if b == 0:  # the mean stays at x
        return constants.L_pm**2 * every
    s = b / a  # of (a + b)^2 <= (1 + s) a^2 + (1 + 1/s) b^2
    return (1 + s) * constants.L_pm**2 * (every - of_mean) + (1 + 1 / s) * constants.L**2 * of_mean


def ef21_p_diana(run, method):
    k, a = rate_of(method)[1], method.cell().params["alpha"]
    n = 1 if k.common_mask else k.n
    left = math.sqrt(1 - k.down_alpha)
    theta, rho = 1 - left, min(1 - left, a) / 2
    L, tilde = run.problem.constants.L, run.problem.constants.L_tilde
    W = k.omega / n * 2 / a * ((1 + left) * tilde) ** 2
    A = max(L**2, W / (left * (theta - rho)))
    P = (run.s.y - run.s.x).square().sum(-1)
    return A * P + k.omega / n * mean_square(full_gradients(run) - run.c.h)


def least(problem) -> float:
    """A lower bound of f + psi: the minimum, by proximal gradient descent from 0 where there is a psi."""
    constants = problem.constants
    if not problem.has_prox:
        return constants.f_inf if constants.f_star is None else constants.f_star
    x, gamma = torch.zeros(1, problem.dim, dtype=torch.float64), 1 / constants.L
    for _ in range(3000):
        x = problem.prox(x - gamma * problem.grad(x).mean(1), gamma)
    return float((problem.oracle(x)[1].mean(1) + problem.penalty(x))[0])


def effective(method: Method, multiple: float = 1.0) -> float:
    """Return the step by which the bound over rounds counts: momentum lengthens it."""
    name, params = method.name, method.cell().params
    eta = {"heavy_ball": "momentum", "ef21_hb": "eta"}.get(name)
    return multiple * method.cell().step_size / (1 - params[eta] if eta else 1.0)


def over_rounds(case: Case, rounds: int, multiple: float = 1.0):
    """Run a case; return ||grad f||^2 or that of the mapping (T, B), Delta0, first terms, step, run."""
    method = case.method(rounds)
    run = started(method.batch((multiple,), case.seeds))
    run.advance(0)
    first, gamma = first_terms(run, method).numpy(), effective(method, multiple)
    problem = run.problem

    def mapping(r) -> torch.Tensor:
        x = r.a.point(r.net, r.s, r.c)
        moved = problem.prox(x - gamma * problem.grad(x).mean(1), gamma)
        return ((x - moved) / gamma).square().sum(-1)

    if problem.has_prox:
        norms = torch.stack(each_round(run, mapping)).numpy()[:-1]
        recorded = run.recorder.column("grad_norm_sq").T[:-1]
        assert (recorded <= norms * (1 + 1e-9) + 1e-13).all()  # it has the longer step 1/L
    else:
        run.advance(rounds)
        norms = run.recorder.column("grad_norm_sq").T[:-1]
    return norms, run.recorder.column("loss")[:, 0] - least(problem), first, gamma, run


@cases()
def test_nonconvex_bound(case):
    """(1/T) sum_{t<T} E||grad f(x^t)||^2 <= 2 Delta0/(gamma T) + G^0/(rho T)."""
    norms, gaps, first, gamma, run = over_rounds(case, ROUNDS)
    assert (run.status == "ok").all()
    assert len(norms) == ROUNDS
    for T in (1, 3, 10, 30, 100, ROUNDS):
        have, promised = norms[:T].mean(0), (2 * gaps / gamma + first) / T
        if case.random:
            have, promised = have.mean(), promised.mean()
        assert np.all(have <= promised * (1 + 1e-9)), (T, have, promised)


BREAKING = [c for c in CASES if not c.random and c.problem != LASSO and c.name != "gd"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case", {c.name: c for c in reversed(BREAKING)}.values(), ids=lambda c: c.name
)
def test_far_above_its_step_the_bound_breaks(case):
    """So the test above is able to fail: at 300 times the step a method breaks its bound or diverges."""
    norms, gaps, first, gamma, run = over_rounds(case, 100, 300.0)
    broken = norms.sum(0) > 2 * gaps / gamma + first
    assert bool((broken | (run.status == "diverged")).all())


@pytest.mark.thorough
@cases(without=OTHERWISE)
def test_pl_bound(case):
    """E Psi^t <= (1 - gamma mu)^t Psi^0, Psi = f - f* + (gamma/rho) G."""
    method = case.method(ROUNDS, "pl")
    run = started(method.batch((1.0,), case.seeds))
    G = torch.stack(each_round(run, lambda r: error(r, method))).numpy()[: ROUNDS + 1]
    gamma, mu = effective(method), run.problem.constants.mu
    psi = run.recorder.column("loss").T - least(run.problem) + gamma / rho_of(method) * G
    if case.random:
        psi = psi.mean(1, keepdims=True)
    promised = (1 - gamma * mu) ** np.arange(len(psi))[:, None] * psi[0]
    floor = 1e-12 * np.abs(run.recorder.column("loss")).max()  # of evaluating f and its minimum
    assert (psi <= promised * (1 + 1e-9) + floor).all()


def at_most(have, allowed, random: bool) -> bool:
    """Whether it holds path by path, or in the mean up to 4.5 standard errors, as some hold with equality."""
    if not random:
        return bool((have <= allowed * (1 + 1e-9) + 1e-20).all())
    over = have - allowed * (1 + 1e-9)
    return float(over.mean()) <= 4.5 * float(over.std()) / math.sqrt(len(over)) + 1e-20


@cases(*DERIVED, *THREE_POINTS)
def test_recursion(case):
    """E G^{t+1} <= (1 - rho) G^t + B E||x^{t+1} - x^t||^2 in every round, and G^t bounds the estimate's error.

    Of three point compressors that is their inequality, on the way that the method goes. The estimate is what x moves along, (x^t - x^{t+1})/gamma. MARINA-P's coin leaves G = 0 and multiplies the
    rest by 1 - p = 1 - rho: it is taken out of the mean.
    """
    method = case.method(SHORT)
    run = started(method.batch((1.0,), case.seeds))
    coins = case.name == "marina_p"

    def look(r):
        coin = r.net.coin("sync", r.a.p) if coins else torch.zeros(len(r.s.x), dtype=torch.bool)
        x = r.a.point(r.net, r.s, r.c).clone()
        return error(r, method), x, coin, r.problem.oracle(x, loss=False)[0].mean(1)

    seen = each_round(run, look)[: SHORT + 1]
    rate, gamma = rate_of(method)[0], method.cell().step_size
    assert 0 < rate.rho <= 1
    for (before, x, _, grad), (after, y, coin, _) in pairwise(seen):
        allowed = (1 - rate.rho) * before + rate.B * (y - x).square().sum(-1)
        assert bool((after[coin] == 0).all())
        rest = allowed[~coin] / ((1 - rate.rho) if coins else 1.0)
        assert at_most(after[~coin], rest, case.random)
        if not run.problem.has_prox:
            assert at_most(((x - y) / gamma - grad).square().sum(-1), before, case.random)
    assert max(float(G.max()) for G, *_ in seen) > 1e-9
