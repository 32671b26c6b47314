"""The bounds derived for EF-BV, EControl, MARINA-P and EF21-P + DIANA, and the recursions behind them."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from toys import each_round, full_gradients

from raybench import theory
from raybench.core import registry
from raybench.execution.resolve import Resolver
from raybench.testing.trial import DATA, Method, started

P1 = {"name": "quadratic", "dim": 12, "clients": 6, "mu": 0.05, "heterogeneity": 0.7, "seed": 3}
CHAIN = {"name": "tridiagonal", "dim": 12, "clients": 4, "noise": 0.3, "lambda": 0.01}
RIDGE = {"name": "logistic", **DATA, "regularizer": "l2", "lambda": 0.1}
TOP, RAND = {"name": "top_k", "k": 3}, {"name": "rand_k", "k": 3}
COMMON = {**RAND, "mask": "common"}
FAR = {"x0": {"normal": 1.0}}
SEEDS = 48

BOUNDED = [  # method, parameters, operator, downlink, problem, seeds (1: path-wise)
    ("ef_bv", {}, TOP, None, P1, 1),
    ("ef_bv", {"lam": 0.6, "nu": 0.3}, TOP, None, P1, 1),
    ("ef_bv", {}, RAND, None, P1, SEEDS),
    ("ef_bv", {"lam": 0.05, "nu": 1.0}, RAND, None, P1, SEEDS),
    ("ef_bv", {}, COMMON, None, P1, SEEDS),
    ("ef_bv", {}, "perm_k", None, CHAIN, SEEDS),
    ("econtrol", {}, TOP, None, P1, 1),
    ("econtrol", {"eta": 0.06}, TOP, None, P1, 1),
    ("econtrol", {"eta": 0.002}, TOP, None, P1, 1),
    ("econtrol", {}, "scaled_sign", None, P1, 1),
    ("econtrol", {}, RAND, None, P1, SEEDS),
    ("marina_p", {}, None, RAND, P1, SEEDS),
    ("marina_p", {"p": 0.1}, None, COMMON, P1, SEEDS),
    ("marina_p", {}, None, "perm_k", P1, SEEDS),
    ("marina_p", {"p": 0.05}, None, "perm_k", CHAIN, SEEDS),
    ("marina_p", {}, None, RAND, RIDGE, SEEDS),
    ("ef21_p_diana", {}, RAND, TOP, P1, SEEDS),
    ("ef21_p_diana", {}, "natural", {**TOP, "k": 1}, P1, SEEDS),
    ("ef21_p_diana", {"alpha": 0.05}, COMMON, TOP, P1, SEEDS),
    ("ef21_p_diana", {}, RAND, RAND, CHAIN, SEEDS),
    ("econtrol", {"eta": 0.6}, {**TOP, "k": 11}, None, P1, 1),  # the error counts for most
]


def title(value) -> str:
    return "-".join(map(str, value.values())) if isinstance(value, dict) else str(value)


cases = pytest.mark.parametrize(
    ("name", "params", "compressor", "downlink", "problem", "seeds"),
    BOUNDED,
    ids=[f"{c[0]}-{j}" for j, c in enumerate(BOUNDED)],
)


class Known:
    """A method on a problem at its step, with the G, rho and B of its recursion; G written anew."""

    def __init__(self, name, params, compressor, downlink, problem, rounds, rule="nonconvex"):
        more = {**FAR, "record": {"every": 1}}
        self.method = Method(
            name, params, compressor, problem, downlink, rounds=rounds, rule=rule, more=more
        )
        cell = self.method.cell()
        self.gamma, self.numbers = cell.step_size, cell.params
        assert cell.theory_step is not None
        self.k = Resolver(allow_unproven=True).backing(cell.cell)[1]
        steps = theory.of(registry.lookup("algorithm", name).facts.theory)
        self.rate = steps.under(rule).formula(self.k)

    def size(self, r) -> torch.Tensor:
        """Return G at a run's state, between rounds, (B,)."""
        return getattr(self, self.method.name)(r)

    def ef_bv(self, r):
        nu = self.numbers["nu"]
        if self.k.omega is not None:
            of_mean = (
                self.k.ab[0]
                if self.k.ab
                else self.k.omega / (1 if self.k.common_mask else self.k.n)
            )
            shrunk = (1 - nu) ** 2 + nu**2 * of_mean
        else:
            shrunk = (1 - nu + nu * math.sqrt(1 - self.k.alpha)) ** 2
        return shrunk * (full_gradients(r) - r.c.h).square().sum(-1).mean(1)

    def econtrol(self, r):
        w, eta = math.sqrt(1 - self.k.alpha), self.numbers["eta"]
        values, vectors = np.linalg.eig(np.array([[(1 + eta) * w, eta**2], [w, 1 - eta]]).T)
        one, weight = vectors[:, np.argmax(values.real)].real
        c = weight / one
        V = (eta * r.c.e + full_gradients(r) - r.c.h).square().sum(-1).mean(1)
        E = r.c.e.square().sum(-1).mean(1)
        if len(V) > 3:  # expectations stand below the roots
            V, E = V.mean().expand_as(V), E.mean().expand_as(E)
        return (max(w, eta / c) * (V.sqrt() + c * E.sqrt())) ** 2

    def marina_p(self, r):
        off = r.c.w - r.s.x[:, None]
        all_, mean = off.square().sum(-1).mean(1), off.mean(1).square().sum(-1)
        constants, omega = r.problem.constants, self.k.down_omega
        theta = self.k.down_theta
        wide = constants.L_tilde**2 * omega
        if constants.L_pm is None or "quadratic" not in constants.facts:
            return constants.L_tilde**2 * all_
        one, two = constants.L_pm * math.sqrt(omega), constants.L * math.sqrt(theta)
        if (one + two) ** 2 >= wide:
            return constants.L_tilde**2 * all_
        if two == 0:  # the mean stays at x
            return constants.L_pm**2 * all_
        s = two / one  # of (a + b)^2 <= (1 + s) a^2 + (1 + 1/s) b^2
        return (1 + s) * constants.L_pm**2 * (all_ - mean) + (1 + 1 / s) * constants.L**2 * mean

    def ef21_p_diana(self, r):
        a, n = self.numbers["alpha"], 1 if self.k.common_mask else self.k.n
        left = math.sqrt(1 - self.k.down_alpha)
        theta, rho = 1 - left, min(1 - left, a) / 2
        L, tilde = r.problem.constants.L, r.problem.constants.L_tilde
        W = self.k.omega / n * 2 / a * ((1 + left) * tilde) ** 2
        A = max(L**2, W / (left * (theta - rho)))
        P = (r.s.y - r.s.x).square().sum(-1)
        U = (full_gradients(r) - r.c.h).square().sum(-1).mean(1)
        return A * P + self.k.omega / n * U


@cases
def test_nonconvex_bound(name, params, compressor, downlink, problem, seeds):
    """(1/T) sum_{t<T} E||grad f(x^t)||^2 <= 2 Delta0/(gamma T) + G^0/(rho T)."""
    known = Known(name, params, compressor, downlink, problem, 200)
    run = started(known.method.batch((1.0,), range(max(seeds, 3))))
    run.advance(0)
    first = known.size(run).numpy()
    run.advance(200)
    assert (run.status == "ok").all()
    norms = run.recorder.column("grad_norm_sq")[:, :-1]
    constants = run.problem.constants
    low = constants.f_inf if constants.f_star is None else constants.f_star
    gaps = run.recorder.column("loss")[:, 0] - low
    for T in (1, 3, 10, 30, 100, 200):
        have = norms[:, :T].mean(1)
        promised = (2 * gaps / known.gamma + first / known.rate.rho) / T
        if seeds > 1:
            have, promised = have.mean(), promised.mean()
        assert np.all(have <= promised * (1 + 1e-9)), T


def at_most(have, allowed, seeds) -> bool:
    """Whether it holds path by path, or in the mean up to 4.5 standard errors, as some hold with equality."""
    if seeds == 1:
        return bool((have <= allowed * (1 + 1e-9) + 1e-20).all())
    over = have - allowed * (1 + 1e-9)
    return float(over.mean()) <= 4.5 * float(over.std()) / math.sqrt(len(over)) + 1e-20


def server(r) -> torch.Tensor:
    return r.a.point(r.net, r.s, r.c).clone()


@cases
def test_recursion(name, params, compressor, downlink, problem, seeds):
    """E G^{t+1} <= (1 - rho) G^t + B E||x^{t+1} - x^t||^2 in every round, of a single run where nothing is random.

    MARINA-P's coin leaves G = 0 and multiplies the rest by 1 - p = 1 - rho: it is taken out of the mean.
    """
    known = Known(name, params, compressor, downlink, problem, 80)
    run = started(known.method.batch((1.0,), range(max(seeds, 3))))
    coins = name == "marina_p"

    def look(r):
        coin = r.net.coin("sync", r.a.p) if coins else torch.zeros(len(r.s.x), dtype=torch.bool)
        return known.size(r), server(r), coin

    seen = each_round(run, look)[:81]
    rho, B = known.rate.rho, known.rate.B
    assert 0 < rho <= 1
    for (before, x, _), (after, y, coin) in pairwise(seen):
        allowed = (1 - rho) * before + B * (y - x).square().sum(-1)
        assert bool((after[coin] == 0).all())
        rest = allowed[~coin] / ((1 - rho) if coins else 1.0)
        assert at_most(after[~coin], rest, seeds)
    assert float(seen[40][0].max()) > 1e-9


@cases
def test_the_estimate_is_within_it(name, params, compressor, downlink, problem, seeds):
    """E||g^t - grad f(x^t)||^2 <= G^t, g^t being what x moves along: (x^t - x^{t+1})/gamma."""
    known = Known(name, params, compressor, downlink, problem, 80)
    run = started(known.method.batch((1.0,), range(max(seeds, 3))))

    def look(r):
        x = server(r)
        return known.size(r), x, r.problem.oracle(x, loss=False)[0].mean(1)

    for (size, x, grad), (_, y, _) in pairwise(each_round(run, look)[:81]):
        error = ((x - y) / known.gamma - grad).square().sum(-1)
        assert at_most(error, size, seeds)


@cases
def test_pl_bound(name, params, compressor, downlink, problem, seeds):
    """E Psi^t <= (1 - gamma mu)^t Psi^0, Psi = f - f* + (gamma/rho) G."""
    known = Known(name, params, compressor, downlink, problem, 200, rule="pl")
    run = started(known.method.batch((1.0,), range(max(seeds, 3))))
    G = torch.stack(each_round(run, known.size)).numpy()[:201]
    constants = run.problem.constants
    low = constants.f_inf if constants.f_star is None else constants.f_star
    gaps = run.recorder.column("loss").T - low
    psi = gaps + known.gamma / known.rate.rho * G
    if seeds > 1:
        psi = psi.mean(1, keepdims=True)
    decay = (1 - known.gamma * constants.mu) ** np.arange(len(psi))[:, None]
    floor = 1e-13 * np.abs(run.recorder.column("loss")).max()
    assert (psi <= decay * psi[0] * (1 + 1e-9) + floor).all()


@pytest.mark.parametrize("case", [BOUNDED[j] for j in (0, 6, 13, 16)], ids=lambda c: c[0])
def test_far_above_its_step_the_bound_breaks(case):
    """So the tests above are able to fail: at 300 times the step a method breaks its bound or diverges."""
    known = Known(*case[:5], rounds=100)
    run = started(known.method.batch((300.0,), range(3)))
    run.advance(0)
    first = known.size(run).numpy()
    run.advance(100)
    norms = run.recorder.column("grad_norm_sq")[:, :-1].sum(1)
    gaps = run.recorder.column("loss")[:, 0] - run.problem.constants.f_star
    broken = norms > 2 * gaps / (300 * known.gamma) + first / known.rate.rho
    assert bool((broken | (run.status == "diverged")).all())
