"""The theorems of local steps with compressed exchanges, in every state at once.

On quadratics of one variable a local step with its exchange is linear in the state (points and control variates less
their values at x*), so E Psi+ is a quadratic form of it: that of the mean step, and of what noise adds. The theorem
says that tau Psi - E Psi+ is never negative: an eigenvalue. Noise has its largest variance, omega times the square.
"""

from itertools import combinations

import numpy as np
import pytest
import scipy.linalg

from raybench import theory
from raybench.core.registry import lookup
from raybench.problems.base import Constants, Fact
from raybench.theory import Setting

pytestmark = pytest.mark.thorough


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
