"""EF-BV, EControl, MARINA-P and EF21-P + DIANA against numpy written from their updates, bits down included."""

from __future__ import annotations

import numpy as np
import pytest
from reference_world import LAMBDA, compare
from tiers import first_of_each

from raybench.testing.trial import DATA, Method

GAMMA, ROUNDS = 0.03, 25
PROBLEM = {"name": "least_squares", **DATA, "rows": 57, "regularizer": "l2", "lambda": LAMBDA}
TOP, RAND = {"name": "top_k", "k": 3}, {"name": "rand_k", "k": 3}
SPARSE = {"name": "random_sparsification", "p": 0.3}


def ef_bv(w, x, gamma, lam, nu):
    h = w.zero
    while True:
        yield x
        d = w.C(w.grad(x) - h)
        x = w.model(x - gamma * (h.mean(0) + nu * d.mean(0)))
        h = h + lam * d


def econtrol(w, x, gamma, eta, batch):
    e, h = w.zero, w.zero
    while True:
        yield x
        g = w.grad(x, None if batch == "full" else w.J(batch))
        c = w.C(eta * e + g - h)
        e = e + g - h - c
        h = h + c
        x = w.model(x - gamma * h.mean(0))


def marina_p(w, x, gamma, p):
    held = np.tile(x, (w.n, 1))
    g = w.dense(w.grad(held)).mean(0)
    while True:
        yield x
        new = x - gamma * g
        if w.coin("sync", p):
            held = np.tile(w.model(new), (w.n, 1))
        else:
            held = held + w.each(new - x)
        x, g = new, w.dense(w.grad(held)).mean(0)


def ef21_p_diana(w, x, gamma, alpha):
    held, h = x, w.zero
    while True:
        yield x
        m = w.C(w.grad(held) - h)
        x = x - gamma * (h + m).mean(0)
        h = h + alpha * m
        held = held + w.D(x - held)


CASES = [  # method, parameters, operator, downlink, reference
    ("ef_bv", {}, TOP, None, ef_bv),
    ("ef_bv", {}, RAND, None, ef_bv),
    ("ef_bv", {"lam": 0.3, "nu": 0.6}, "natural", None, ef_bv),
    ("econtrol", {}, TOP, None, econtrol),
    ("econtrol", {"eta": 0.02, "batch": 2}, RAND, None, econtrol),
    ("marina_p", {}, None, RAND, marina_p),
    ("marina_p", {"p": 0.3}, None, "perm_k", marina_p),
    ("marina_p", {"p": 0.3}, None, SPARSE, marina_p),
    ("ef21_p_diana", {}, RAND, {"name": "top_k", "k": 4}, ef21_p_diana),
    ("ef21_p_diana", {"alpha": 0.02}, "natural", RAND, ef21_p_diana),
]
EXTREMES = {"usual": {}, "one client": {"clients": 1}, "one sample each": {"clients": 57}}


@pytest.mark.parametrize("extreme", first_of_each(EXTREMES))
@pytest.mark.parametrize(
    ("name", "params", "compressor", "downlink", "reference"),
    CASES,
    ids=[f"{c[0]}-{j}" for j, c in enumerate(CASES)],
)
def test_method_is_its_reference(name, params, compressor, downlink, reference, extreme):
    problem = {**PROBLEM, **EXTREMES[extreme]}
    if downlink == "perm_k" and extreme == "one sample each":
        pytest.skip("PermK of more clients than coordinates needs a multiple of d")
    rounds, more = ROUNDS if extreme == "usual" else 6, {"x0": {"normal": 1.0}}
    method = Method(name, params, compressor, problem, downlink, GAMMA, rounds=rounds, more=more)
    compare(method, reference, GAMMA, down=True)
