"""Methods with local steps and compressed exchanges, Clip21-SGD2M and normalised EF21 against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference_world import LAMBDA
from test_references import EXTREMES, GAMMA, PROBLEM, RAND, TOP, compare
from tiers import first_of_each

from raybench.compressors.sparsification import SharedMask
from raybench.execution.resolve import problem_of
from raybench.testing.trial import Method

UNBIASED_DOWN = {"name": "rand_k", "k": 4}


def coins(w, p):
    """Yield the numbers of local steps until the coin of exchanges falls."""
    j = 0
    while True:
        yield j
        if w.coin(f"exchange {j}" if j else "exchange", p):
            return
        j += 1


def compressed_scaffnew(w, x, gamma, senders, p, chi):
    h, s = w.zero, min(senders, w.n)
    chi = (w.n * (s - 1) / (s * (w.n - 1)) if w.n > 1 else 1.0) if chi == "auto" else chi
    while True:
        yield x
        X = x
        for _ in coins(w, p):
            X = X - gamma * (w.grad(X) - h)
        ones = torch.ones(1, *w.zero.shape, dtype=torch.float64)
        q = SharedMask(s, w.n).compress(ones, w.net.stream("up")).decode()[0].numpy() > 0
        assert (q.sum(0) == s).all()
        w.bits += 64 * q.sum() / w.n
        x = (q * X).sum(0) / s
        h = h + p * chi / gamma * q * (x - X)


def locodl(w, x, gamma, p, lam, rho, eta):
    u, v, X, y = w.zero, 0 * x, np.tile(x, (w.n, 1)), x
    while True:
        yield y
        for _ in coins(w, p):
            X, y = X - gamma * (w.grad(X) - lam * X - u), y - gamma * (lam * y - v)
        each = w.C(X - y)
        d = each.sum(0) / (2 * w.n)
        u, v = u + p * eta / gamma * (d - each), v + p * eta / gamma * d
        X, y = (1 - rho) * X + rho * (y + d), y + rho * d


def bicolor(w, x, gamma, p, lam, rho, eta):
    u, v, z_dual, X, y, z = w.zero, 0 * x, 0 * x, np.tile(x, (w.n, 1)), x, x
    while True:
        yield y
        for _ in coins(w, p):
            X = X - gamma * (w.grad(X) - 2 * lam * X - u)
            y, z = y - gamma * (lam * y - v), z - gamma * (lam * z - z_dual)
        up, down = w.C(X - y), w.D(z - y)
        pace = p * eta / gamma
        u, v = u + pace * (down - up), v + pace * down
        z_dual = z_dual + pace * (up.mean(0) - 2 * down)
        X, z = X + rho * (y + down - X), z + rho * (up.mean(0) - (z - y) - (z - y))
        y = y + rho * down


def clip21_sgd2m(w, x, gamma, tau, beta, beta_server, sigma, batch):
    v, g, server = w.zero, w.zero, 0 * x
    while True:
        if batch == "full":
            v = (1 - beta) * v + beta * w.grad(x)
        else:
            v = (1 - beta) * v + beta * w.grad(x, w.J(batch))
        u = v - g
        if tau != "off":
            u = u * np.minimum(1, tau / np.maximum(np.linalg.norm(u, axis=1), 1e-300))[:, None]
        g = g + beta_server * u
        noise = sigma * w.net.stream("noise").normal(len(x))[0].numpy()
        server = server + beta_server * w.dense(u + noise).mean(0)
        yield x
        x = x - gamma * server


def ef21_normalized(w, x, gamma, eta, batch, init):
    def gradient():
        return w.grad(x) if batch == "full" else w.grad(x, w.J(batch))

    v = gradient()
    g = w.C(v)
    while True:
        yield x
        x = x - gamma * g.mean(0) / np.linalg.norm(g.mean(0))
        v = (1 - eta) * v + eta * gradient()
        g = g + w.C(v - g)


OWN = {"lam": 0.1, "rho": 0.6, "eta": 0.2}
CASES = [  # method, parameters, operator, downlink, reference
    ("compressed_scaffnew", {"p": 0.4}, None, None, compressed_scaffnew),
    ("compressed_scaffnew", {"p": 0.7, "chi": 0.3, "senders": 4}, None, None, compressed_scaffnew),
    ("locodl", {"p": 0.4, **OWN}, RAND, None, locodl),
    ("locodl", {"p": 0.4, **OWN}, "natural", None, locodl),
    ("bicolor", {"p": 0.4, **OWN, "rho": 0.2}, RAND, UNBIASED_DOWN, bicolor),
    ("clip21_sgd2m", {"tau": 0.3, "beta": 0.4}, None, None, clip21_sgd2m),
    ("clip21_sgd2m", {"sigma": 0.1, "batch": 3}, None, None, clip21_sgd2m),
    ("clip21_sgd2m", {"tau": "off", "beta_server": 0.9}, None, None, clip21_sgd2m),
    ("ef21_normalized", {}, TOP, None, ef21_normalized),
    ("ef21_normalized", {"eta": 0.3, "batch": 2}, RAND, None, ef21_normalized),
]


@pytest.mark.parametrize("extreme", first_of_each(EXTREMES))
@pytest.mark.parametrize(
    ("name", "params", "compressor", "downlink", "reference"), CASES, ids=[c[0] for c in CASES]
)
def test_method_is_its_reference(name, params, compressor, downlink, reference, extreme):
    other, numbers, operator = EXTREMES[extreme]
    params = {**params, **{key: v for key, v in numbers.items() if key in params}}
    if isinstance(compressor, dict):
        compressor = {**compressor, **operator}
    rounds = 15 if extreme == "usual" else 5
    more, problem = {"x0": {"normal": 1.0}}, {**PROBLEM, **other}
    method = Method(name, params, compressor, problem, downlink, GAMMA, rounds=rounds, more=more)
    compare(method, reference, GAMMA)


def test_the_problem_is_strongly_convex_for_every_client():
    cell = Method("gd", {}, None, PROBLEM, rounds=1).cell()
    assert problem_of(cell.cell.problem).constants.mu_min >= LAMBDA
