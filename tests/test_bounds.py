"""Theorems that are derived here: their bounds over rounds, linear, and step by step.

G, rho and B are those of the recursion E G^{t+1} <= (1 - rho) G^t + B E||x^{t+1} - x^t||^2; what a method's G is
stands here anew. The steps of published theorems, and all iterates, have exact tests elsewhere.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from toys import each_round, full_gradients

from raybench import theory
from raybench.execution.resolve import Resolver
from raybench.testing.trial import DATA, TrialMethod, started

SEEDS = 16  # where the bound holds in expectation; else it holds path by path, and three are run
ROUNDS, SHORT = 120, 80
P1 = {"name": "quadratic", "dim": 12, "clients": 6, "mu": 0.05, "heterogeneity": 0.7, "seed": 3}
P2 = {**P1, "dim": 10, "seed": 2}
CHAIN = {"name": "tridiagonal", "dim": 12, "clients": 4, "noise": 0.3, "lambda": 0.01}
RIDGE = {"name": "logistic", **DATA, "regularizer": "l2", "lambda": 0.1}
TOP, RAND = {"name": "top_k", "k": 2}, {"name": "rand_k", "k": 2}
TOP3, RAND3 = {"name": "top_k", "k": 3}, {"name": "rand_k", "k": 3}
COMMON3, ZERO = {**RAND3, "mask": "common"}, {"init": "zero"}


class Case(NamedTuple):
    """A method on a problem, and whether anything about it is random."""

    name: str
    params: dict[str, Any]
    compressor: Any
    problem: dict[str, Any]
    down: Any = None
    random: bool = False

    def method(self, rounds: int, rule: str = "nonconvex") -> TrialMethod:
        """Return the method at its step."""
        more = {"x0": {"normal": 2.0}, "record": {"every": 1}}
        given = (self.name, self.params, self.compressor, self.problem, self.down)
        return TrialMethod(*given, rounds=rounds, rule=rule, more=more)

    @property
    def seeds(self) -> range:
        """The seeds that are run."""
        return range(SEEDS if self.random else 3)


def sure(name, params, compressor, problem=P2, down=None) -> Case:
    return Case(name, params, compressor, problem, down)


def mean(name, params, compressor, problem=P2, down=None) -> Case:
    return Case(name, params, compressor, problem, down, random=True)


CASES = [
    sure("ef_bv", {}, TOP3, P1),
    sure("ef_bv", {"lam": 0.6, "nu": 0.3}, TOP3, P1),
    mean("ef_bv", {"lam": 0.05, "nu": 1.0}, RAND3, P1),
    mean("ef_bv", {}, COMMON3, P1),
    mean("ef_bv", {}, "perm_k", CHAIN),
    sure("econtrol", {}, TOP3, P1),
    sure("econtrol", {"eta": 0.002}, TOP3, P1),
    mean("econtrol", {}, RAND3, P1),
    sure("econtrol", {"eta": 0.6}, {**TOP, "k": 11}, P1),  # the error counts for most
    mean("marina_p", {}, None, P1, RAND3),
    mean("marina_p", {"p": 0.1}, None, P1, COMMON3),
    mean("marina_p", {"p": 0.05}, None, CHAIN, "perm_k"),
    mean("marina_p", {}, None, RIDGE, RAND3),
    mean("ef21_p_diana", {}, RAND3, P1, TOP3),
    mean("ef21_p_diana", {"alpha": 0.05}, COMMON3, P1, TOP3),
    mean("ef21_p_diana", {}, RAND3, CHAIN, RAND3),
    sure("lag", {"z": 8.0}, None),
    sure("clag", {"z": 20.0, **ZERO}, TOP),
    mean("three_pc_v1", {}, RAND),
    mean("three_pc_v2", {"first": "natural"}, RAND),
    mean("three_pc_v4", {"first": "rand_k:k=2"}, "scaled_sign"),
    mean("three_pc_v5", {"p": 0.2}, TOP),
]
THREE_POINTS = ("lag", "clag", "three_pc_v1", "three_pc_v2", "three_pc_v4", "three_pc_v5")
DERIVED = ("ef_bv", "econtrol", "marina_p", "ef21_p_diana")


def cases(*names: str) -> pytest.MarkDecorator:
    """Parametrise by the cases of some methods; make test takes the first of each method whose theorem is derived here."""
    every = [c for c in CASES if c.name in names]
    quick = {c.name: c for c in reversed(every) if c.name in DERIVED}.values()
    params = []
    for c in every:
        marks = [] if c in quick else [pytest.mark.thorough]
        params.append(pytest.param(c, marks=marks, id=f"{c.name}-{CASES.index(c)}"))
    return pytest.mark.parametrize("case", params)


def rate_of(method: TrialMethod) -> tuple[Any, theory.Setting]:
    """Return what a method's theorem says, rho and B among it, and the numbers it depends on."""
    setting = Resolver(allow_unproven=True).backing(method.cell().cell)[1]
    return theory.of(method.entry.facts.theory).under(method.rule).formula(setting), setting


def mean_square(v: torch.Tensor) -> torch.Tensor:
    """Mean over clients of ||v_i||^2, (B,)."""
    return v.square().sum(-1).mean(1)


def error(run, method: TrialMethod) -> torch.Tensor:
    """G at a run's state between rounds, (B,)."""
    if method.name in DERIVED:
        return globals()[method.name](run, method)
    return mean_square(run.c.g - full_gradients(run))


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
    """A lower bound of f: the minimum, where it is known."""
    constants = problem.constants
    return constants.f_inf if constants.f_star is None else constants.f_star


@cases(*DERIVED)
def test_nonconvex_bound(case):
    """(1/T) sum_{t<T} E||grad f(x^t)||^2 <= 2 Delta0/(gamma T) + G^0/(rho T)."""
    method = case.method(ROUNDS)
    run = started(method.batch((1.0,), case.seeds))
    run.advance(0)
    first = (error(run, method) / rate_of(method)[0].rho).numpy()
    run.advance(ROUNDS)
    assert (run.status == "ok").all()
    norms = run.recorder.column("grad_norm_sq").T[:-1]
    gaps = run.recorder.column("loss")[:, 0] - least(run.problem)
    for T in (1, 3, 10, 30, ROUNDS):
        have, promised = norms[:T].mean(0), (2 * gaps / method.cell().step_size + first) / T
        if case.random:
            have, promised = have.mean(), promised.mean()
        assert np.all(have <= promised * (1 + 1e-9)), (T, have, promised)


@pytest.mark.thorough
@cases(*DERIVED)
def test_pl_bound(case):
    """E Psi^t <= (1 - gamma mu)^t Psi^0, Psi = f - f* + (gamma/rho) G."""
    method = case.method(ROUNDS, "pl")
    run = started(method.batch((1.0,), case.seeds))
    G = torch.stack(each_round(run, lambda r: error(r, method))).numpy()[: ROUNDS + 1]
    gamma, mu = method.cell().step_size, run.problem.constants.mu
    psi = run.recorder.column("loss").T - least(run.problem) + gamma / rate_of(method)[0].rho * G
    if case.random:
        psi = psi.mean(1, keepdims=True)
    promised = (1 - gamma * mu) ** np.arange(len(psi))[:, None] * psi[0]
    floor = 1e-12 * np.abs(run.recorder.column("loss")).max()  # of evaluating f and its minimum
    assert (psi <= promised * (1 + 1e-9) + floor).all()


def test_acceleration_keeps_its_promise():
    """f(x^T) - f* <= ||x^0 - x*||^2/(2 A_T), and A_T >= gamma T^2/4."""
    method = sure("adef", {}, {"name": "identity"}, {**RIDGE, "lambda": 0.001}).method(
        ROUNDS, "convex"
    )
    run = started(method.batch((1.0,), range(3)))
    low, best = run.problem.minimum()
    seen = each_round(run, lambda r: (r.s.x.numpy().copy(), r.s.A.numpy().copy()))[: ROUNDS + 1]
    far = ((seen[0][0] - best) ** 2).sum(-1)
    gaps = run.recorder.column("loss").T - low
    gamma = method.cell().step_size
    for T, ((_, A), gap) in enumerate(zip(seen, gaps, strict=True)):
        assert (gamma * T**2 / 4 * (1 - 1e-12) <= A).all()
        assert not T or (2 * A * gap <= far * (1 + 1e-9)).all(), T
    assert (gaps[-1] < gaps[0] / 20).all()


def test_memories_hold_what_acceleration_has_not_heard():
    """v + mean e_i = x^0 - sum of a^t mean_i grad f_i(y^t), whatever the compressor."""
    run = started(sure("adef", {}, TOP, P1).method(SHORT).batch((1.0,), range(2)))

    def look(r):
        y = r.a.ahead(r.s)[0]
        return (r.s.v + r.c.e.mean(1)).clone(), r.s.A.clone(), y, r.problem.oracle(y, loss=False)[0]

    seen = each_round(run, look)[: SHORT + 1]
    for (before, A, _, g), (after, more, _, _) in pairwise(seen):
        step = (more - A)[:, None] * g.mean(1)
        torch.testing.assert_close(after, before - step, rtol=1e-10, atol=1e-10)


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
        assert at_most(((x - y) / gamma - grad).square().sum(-1), before, case.random)
    assert max(float(G.max()) for G, *_ in seen) > 1e-9
