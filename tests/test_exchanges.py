"""Local steps with compressed exchanges: what they become without compression, invariants, and their theorem's rate."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import scipy.linalg
import torch
from toys import each_round

from raybench import theory
from raybench.core.registry import lookup
from raybench.problems.base import Constants, Fact
from raybench.testing.algorithms import conformance
from raybench.testing.trial import DATA, Method, started
from raybench.theory import Setting

pytestmark = pytest.mark.thorough

RIDGE = {"name": "least_squares", **DATA, "regularizer": "l2", "lambda": 0.3}
RAND, NATURAL = {"name": "rand_k", "k": "30%"}, {"name": "natural"}
FAR = {"x0": {"normal": 1.0}}
KINDS = {  # method, compressor, downlink
    "compressed_scaffnew": ("compressed_scaffnew", None, None),
    "locodl natural": ("locodl", NATURAL, None),
    "locodl rand_k": ("locodl", RAND, None),
    "locodl perm_k": ("locodl", {"name": "perm_k"}, None),
    "bicolor": ("bicolor", NATURAL, NATURAL),
    "bicolor rand_k": ("bicolor", RAND, {"name": "rand_k", "k": "50%"}),
}


def method(kind: str, rounds: int = 60, step=None, **params) -> Method:
    name, up, down = KINDS[kind]
    return Method(name, params, up, RIDGE, down, step, "pl", rounds, FAR)


def begun(m: Method, seeds=(0,)):
    """Return a run after its start, x* and the clients' gradients there."""
    run = started(m.batch((1.0,), seeds))
    run.advance(0)
    best = run.problem.minimizer()
    return run, best, run.problem.grad(best[None])


# Without compression ----------------------------------------------------------------------------


def test_one_sender_is_refused():
    with pytest.raises(Exception, match="senders"):
        Method("compressed_scaffnew", {"senders": 1}, None, RIDGE, step=0.1).cell()


# What the control variates keep -------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_control_variates_add_up_to_zero(kind):
    def left(r):
        if kind == "compressed_scaffnew":
            return r.c.h.mean(1), r.c.h
        mean = r.c.u.mean(1) + r.s.v
        return (mean + r.s.w if "bicolor" in kind else mean), r.c.u

    run = started(method(kind, p=0.5).batch((1.0, 0.3), (0, 1)))
    for mean, each in each_round(run, lambda r: tuple(x.clone() for x in left(r))):
        assert mean.abs().max() <= 1e-12 * (1 + each.abs().max())
    assert each.abs().max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_the_minimiser_is_a_fixed_point(kind):
    """From x* with the control variates grad f_i(x*), and those of the functions lent, nothing moves."""
    run, best, at = begun(method(kind, p=0.4))
    settle(run, best, at)
    run.advance(5)
    torch.testing.assert_close(run.s.x[0], best, rtol=0, atol=1e-11)


def settle(run, x, at):
    """Put a run of any of the three at x with the control variates that belong to gradients ``at`` there."""
    s, c = run.s, run.c
    s.x = x[None].clone()
    if run.a.__class__.__name__ == "CompressedScaffnew":
        c.h = at - at.mean(1, keepdim=True)
        return
    lam = float(run.a.lam.values[0])
    c.X, s.v = c.X * 0 + x, lam * s.x
    c.u = at - lam * x
    if run.a.__class__.__name__ == "BiCoLoR":
        c.u, s.z, s.w = at - 2 * lam * x, s.x, lam * s.x


# The rate -----------------------------------------------------------------------------------------


def measured(run, best, at):
    """Return (Psi, tau) of the cells: the weighted square distance to x*, and the theorem's factor."""
    s, c, k = run.s, run.c, run.problem.constants
    gamma, p = run.a.gamma.values, run.a.p.values
    name = run.a.__class__.__name__
    low = k.mu_min
    if name == "CompressedScaffnew":
        n, senders = run.problem.n, run.a.senders
        rate = run.a.chi.values * (senders - 1) / (n - 1)
        points = n * (s.x - best).square().sum(-1)
        duals = (c.h - at + at.mean(1, keepdim=True)).square().sum((1, 2))
    else:
        lam, rate = float(run.a.lam.values[0]), run.a.eta.values
        lent = 2 if name == "BiCoLoR" else 1
        low = min(low - lent * lam, lam)
        points = (c.X - best).square().sum(-1).mean(1) + (s.x - best).square().sum(-1)
        if name == "BiCoLoR":
            points = points + (s.z - best).square().sum(-1)
        # <h, M^+ h> of BiCoLoR as well: u_i and v are the flows from z to x_i and y that make h
        u, v = c.u - (at - lent * lam * best), s.v - lam * best
        duals = u.square().sum(-1).mean(1) + v.square().sum(-1)
    rate = p**2 * rate
    tau = torch.maximum((1 - gamma * low) ** 2, 1 - rate)
    return points + gamma**2 / rate * duals, tau


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p", ["auto", 0.3, 1.0])
def test_linear_convergence_at_the_rate_of_the_theorem(kind, p):
    """tau^-T Psi^T is a supermartingale in the local steps T: it exceeds 1000 times its start with chance 0.001."""
    run, best, at = begun(method(kind, 150, p=p), range(4))
    first, tau = measured(run, best, at)
    before = run.net.oracle.evals.copy()
    run.advance(150)
    last, _ = measured(run, best, at)
    steps = torch.from_numpy((run.net.oracle.evals - before) / np.mean(run.problem.samples))
    bound = np.log(1000) + steps * tau.log()
    floor = np.log(1e-24)  # rounding
    assert bool(((last / first).log() <= torch.maximum(bound, torch.tensor(floor))).all())
    assert bool((last < 0.5 * first).all())


# Where it can be run ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["compressed_scaffnew", "locodl rand_k", "bicolor"])
def test_conforms_with_automatic_numbers(kind):
    wrong = [str(f) for f in conformance(method(kind, 20, p="auto")) if not f.ok]
    assert not wrong, "\n".join(wrong)


# Theorems -----------------------------------------------------------------------------------------


def square(*rows):
    """Return sum r r' of rows (N,): the form that adds up the squares of linear functions of the state."""
    return sum(np.outer(r, r) for r in np.atleast_2d(np.array(rows)))


def settled(name, curvature, n, rho=1.0, **given):
    """Return the step, and the numbers that ``auto`` gives; rho times the automatic one."""
    facts = lookup("algorithm", name).facts
    ends = {"L_i": tuple(curvature), "mu_i": tuple(curvature), "facts": frozenset(Fact)}
    numbers = {k: given.pop(k) for k in ("p", "senders") if k in given}

    def setting():
        return Setting(Constants(**ends), n, 1, numbers=numbers, **given)

    for key, rule in facts.auto.items():
        if key != "p":
            numbers[key] = rule(setting()) * (rho if key == "rho" else 1.0)
    return theory.step_size(facts.theory, setting(), "pl"), numbers


def scaffnew(a, n, p, gamma, senders, chi, **_):
    """Return (E Psi+, Psi) in the state (x_1..x_n, h_1..h_(n-1)): one more local step, then maybe an exchange."""
    s = min(senders, n)
    I = np.eye(2 * n - 1)
    X, h = I[:n], np.vstack([I[n:], -I[n:].sum(0)]) if n > 1 else np.zeros((1, 1))
    rate = p**2 * chi * ((s - 1) / (n - 1) if n > 1 else 1.0)

    def psi(X, h):
        return square(*X) + gamma**2 / rate * square(*h)

    near = X - gamma * (a[:, None] * X - h)
    masks = list(combinations(range(n), s))
    after = (1 - p) * psi(near, h)
    for who in masks:
        mean, moved = near[list(who)].mean(0), h.copy()
        moved[list(who)] += p * chi / gamma * (mean - near[list(who)])
        after = after + p / len(masks) * psi(np.tile(mean, (n, 1)), moved)
    return after, psi(X, h), rate


def locodl(a, n, p, gamma, lam, rho, eta, omega):
    I = np.eye(2 * n + 1)
    X, y, U = I[:n], I[n], I[n + 1 :]
    v, weight, t = -U.mean(0), gamma**2 / (p**2 * eta), p * eta / gamma

    def psi(X, y, U, v):
        return square(*X) + n * square(y) + weight * (square(*U) + n * square(v))

    near, ny = X - gamma * ((a - lam)[:, None] * X - U), y - gamma * (lam * y - v)
    d = near - ny
    m = d.mean(0) / 2
    exchanged = psi(near + rho * (ny + m - near), ny + rho * m, U + t * (m - d), v + t * m)
    k = 1 / (2 * n)  # the share of one d_i in m, which moves all points and control variates
    noise = 2 * n * (rho * k) ** 2 + weight * t**2 * ((2 * n - 1) * k**2 + (1 - k) ** 2)
    exchanged = exchanged + noise * omega * square(*d)
    return p * exchanged + (1 - p) * psi(near, ny, U, v), psi(X, y, U, v), p**2 * eta


def bicolor(a, n, p, gamma, lam, rho, eta, omega, down_omega):
    I = np.eye(2 * n + 3)
    X, z, y, U, v = I[:n], I[n], I[n + 1], I[n + 2 : 2 * n + 2], I[2 * n + 2]
    w, weight, t = -U.mean(0) - v, gamma**2 / (p**2 * eta), p * eta / gamma

    def psi(X, z, y, U, v):  # U and v are flows from z: <h, M^+ h> is their energy
        return square(*X) / n + square(z, y) + weight * (square(*U) / n + square(v))

    near = X - gamma * ((a - 2 * lam)[:, None] * X - U)
    nz, ny = z - gamma * (lam * z - w), y - gamma * (lam * y - v)
    d, e = near - ny, nz - ny
    exchanged = psi(
        near + rho * (ny + e - near),
        nz + rho * (d.mean(0) - 2 * e),
        ny + rho * e,
        U + t * (e - d),
        v + t * e,
    )
    exchanged = exchanged + down_omega * 2 * (rho**2 + weight * t**2) * square(e)
    exchanged = exchanged + omega * ((rho / n) ** 2 + weight * t**2 / n) * square(*d)
    return p * exchanged + (1 - p) * psi(near, nz, ny, U, v), psi(X, z, y, U, v), p**2 * eta


FORMS = {"compressed_scaffnew": scaffnew, "locodl": locodl, "bicolor": bicolor}
LENT = {"compressed_scaffnew": 0, "locodl": 1, "bicolor": 2}


def above(name, random, pace=1.0):
    """Return how far E Psi+ is above tau Psi at worst, in a setting drawn at random; pace times its eta or chi."""
    n, p = int(random.integers(1, 7)), random.choice([0.02, 0.3, 1.0])
    a = np.append(random.uniform(1, 10, n - 1), 1.0) * random.choice([1e-3, 1.0])
    given = {"omega": random.choice([0.0, 0.1, 3.0, 100.0])}
    if name == "bicolor":
        given["down_omega"] = random.choice([0.0, 1.0, 100.0])
    if name == "compressed_scaffnew":
        given = {"senders": int(random.integers(2, 8))}
    rho = random.choice([1.0, 0.3, 1.7])
    gamma, numbers = settled(name, a, n, rho if LENT[name] else 1.0, p=p, **given)
    key = "eta" if LENT[name] else "chi"
    numbers[key] *= pace
    after, before, rate = FORMS[name](a, n, gamma=gamma, **{**given, **numbers})
    lam, lent = numbers.get("lam", 0.0), LENT[name]
    low = min(a.min() - lent * lam, lam) if lent else a.min()
    tau = max((1 - gamma * low) ** 2, 1 - rate)
    return scipy.linalg.eigh(after, before, eigvals_only=True)[-1] - tau


@pytest.mark.parametrize("name", FORMS)
def test_no_state_shrinks_more_slowly_than_the_theorem_says(name):
    random = np.random.default_rng(4)
    assert max(above(name, random) for _ in range(150)) <= 1e-12


@pytest.mark.parametrize("name", FORMS)
def test_with_half_as_much_again_it_may_be_wrong(name):
    random = np.random.default_rng(4)
    result = [above(name, random, 1.5) for _ in range(150)]
    assert np.mean(np.array(result) > 1e-9) > 0.1
