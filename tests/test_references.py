"""Methods against references written in numpy from the updates of their papers, one cell at a time.

A reference is a generator: it yields x^0, then x^t. Gradients are formed from the data, messages are sums
over rows; only operators and random numbers are the library's. Bits sent up and gradient evaluations
are counted beside it.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference_world import LAMBDA, compare
from tiers import first_of_each

from raybench.testing.trial import DATA, Method

GAMMA, ROUNDS = 0.03, 25
PROBLEM = {"name": "least_squares", **DATA, "rows": 57, "regularizer": "l2", "lambda": LAMBDA}
TOP, RAND, DOWN = {"name": "top_k", "k": 3}, {"name": "rand_k", "k": 3}, {"name": "top_k", "k": 4}


# Without memory, and with momentum ------------------------------------------------------------


def gd(w, x, gamma, momentum=0.0, nesterov=False, batch=None):
    v = 0
    while True:
        yield x
        g = w.dense(w.grad(x, batch and w.J(batch))).mean(0)
        v = momentum * v + g
        x = x - gamma * (g + momentum * v if nesterov else v)


def dcgd(w, x, gamma):
    while True:
        yield x
        x = x - gamma * w.C(w.grad(x)).mean(0)


# Error feedback -------------------------------------------------------------------------------


def ef14(w, x, gamma, memory="step", batch=None, alpha=None, shift=None, star=False):
    e, h = w.zero, w.zero
    inside, outside = (gamma, 1.0) if memory == "step" else (1.0, gamma)
    if star:
        right = np.stack([A.T @ b / len(b) for A, b in w.data])
        best = np.linalg.solve(w.hessians().mean(0), right.mean(0))
        h = w.hessians() @ best - right
    while True:
        yield x
        g = w.grad(x, batch and w.J(batch))
        v = e + inside * (g - h + h.mean(0))
        if shift:
            h = h + alpha * w.C(g - h, "shift", w.a.shift)
        c = w.C(v)
        e, x = v - c, x - outside * c.mean(0)


def ec_lsvrg(w, x, gamma, p, batch, memory):
    e, full, at = w.zero, w.grad(x), np.tile(x, (w.n, 1))
    while True:
        yield x
        J, coin = w.J(batch), w.coins("refresh", p)
        v = e + gamma * (w.grad(x, J) - w.grad(at, J) + full)
        full = np.where(coin[:, None], w.grad(x, pays=coin), full)
        at = np.where(coin[:, None], x, at)
        c = w.C(v)
        e, x = v - c, x - c.mean(0)


def double_squeeze(w, x, gamma, batch):
    e, E = w.zero, 0 * x
    while True:
        yield x
        v = w.grad(x, None if batch == "full" else w.J(batch)) + e
        c = w.C(v)
        q = w.D(c.mean(0) + E)
        e, E, x = v - c, c.mean(0) + E - q, x - gamma * q


def ef21(w, x, gamma, init="compressed", p=None, eta=None, heavy=False):
    """EF21; with p its clients take part by coins, with eta and ``heavy`` it is EF21-HB."""
    g = {"compressed": w.C, "full": w.dense, "zero": lambda v: w.zero}[init](w.grad(x))
    v = g.mean(0)
    while True:
        yield x
        x = x - gamma * v
        S = np.full(w.n, True) if p is None else w.coins("participants", p)
        g = g + w.C(w.grad(x, pays=S) - g, sent=S)
        v = eta * v + g.mean(0) if heavy else g.mean(0)


def ef21_plus(w, x, gamma):
    g = w.C(w.grad(x))
    while True:
        yield x
        x = x - gamma * g.mean(0)
        y = w.grad(x)
        before = w.bits
        one, two = g + w.C(y - g), w.C(y)
        w.bits = (before + w.bits) / 2 + 1  # one of the two, of one size, and a flag
        better = ((two - y) ** 2).sum(1) < ((one - y) ** 2).sum(1)
        g = np.where(better[:, None], two, one)


def ef21_bc(w, x, gamma, init):
    own = w.C(w.grad(x))
    g = w.D(own.mean(0))
    while True:
        yield x
        x = x - gamma * g
        own = own + w.C(w.grad(x) - own)
        g = g + w.D(own.mean(0) - g)


def ef21_p(w, x, gamma):
    held = x
    while True:
        yield x
        x = x - gamma * w.dense(w.grad(held)).mean(0)
        held = held + w.D(x - held)


def ef21_w(w, x, gamma, init):
    L = np.linalg.eigvalsh(w.hessians())[:, -1]
    nw = w.n * (L / L.sum())[:, None]
    g = nw * w.C(w.grad(x) / nw)
    while True:
        yield x
        x = x - gamma * g.mean(0)
        g = g + nw * w.C((w.grad(x) - g) / nw)


def ef21_sgdm(w, x, gamma, batch, init, eta=1.0, double=False):
    v = w.grad(x, w.J(batch))
    u, g = v, w.C(v)
    while True:
        yield x
        x = x - gamma * g.mean(0)
        v = (1 - eta) * v + eta * w.grad(x, w.J(batch))
        u = (1 - eta) * u + eta * v
        g = g + w.C((u if double else v) - g)


def ef21_page(w, x, gamma, p, batch, init):
    v = w.grad(x)
    g = w.C(v)
    while True:
        yield x
        old, x = x, x - gamma * g.mean(0)
        coin, J = w.coins("refresh", p), w.J(batch)
        near = v + w.grad(x, J, ~coin) - w.grad(old, J, ~coin)
        v = np.where(coin[:, None], w.grad(x, pays=coin), near)
        g = g + w.C(v - g)


# Three point compressors ----------------------------------------------------------------------


def three_pc(w, x, gamma, init, kind=1, **numbers):
    y = w.grad(x)
    g = w.C(y)
    while True:
        yield x
        x = x - gamma * g.mean(0)
        new = w.grad(x)
        if kind == 1:
            w.dense(y)
            g = y + w.C(new - y)
        elif kind in (2, 4):
            g = g + w.C(new - (y if kind == 2 else g), "first", w.a.first)
            g = g + w.C(new - g)
        elif kind == 5:
            fires = w.coin("sync", numbers["p"])
            g = w.dense(new) if fires else g + w.C(new - y)
        else:
            far = ((new - g) ** 2).sum(1) > numbers["z"] * ((new - y) ** 2).sum(1)
            g = g + w.C(new - g, sent=far)
            w.bits += 1
        y = new


# Gradient differences -------------------------------------------------------------------------


def marina(w, x, gamma, p, batch=None, big=0):
    def anew(x):
        return w.dense(w.grad(x, w.J(big, "big") if big else None)).mean(0)

    g = anew(x)
    while True:
        yield x
        old, x = x, x - gamma * g
        J = w.J(batch) if batch else None
        if w.coin("sync", p):
            g = anew(x)
        elif batch:
            g = g + w.C(w.grad(x, J) - w.grad(old, J)).mean(0)
        else:
            g = g + w.C(w.grad(x) - w.grad(old, pays=0 * w.m)).mean(0)


def pp_marina(w, x, gamma, p, clients):
    g = w.dense(w.grad(x)).mean(0)
    while True:
        yield x
        drawn = w.net.shared_stream("clients").integers(clients, w.n)[0].numpy()
        times = np.bincount(drawn, minlength=w.n)
        coin = w.coin("sync", p)
        before = w.grad(x, pays=(times > 0) & (not coin))
        x = x - gamma * g
        new = w.grad(x, pays=(times > 0) | coin)
        if coin:
            g = w.dense(new).mean(0)
            continue
        for j in range(times.max()):
            stream = w.net.stream("up").fold(j) if j else w.net.stream("up")
            m = w.a.Q(torch.from_numpy(new - before)[None], stream)
            sent = m.masked(torch.tensor(times > j)[None])
            w.bits += float(sent.bits.double().mean())
            g = g + sent.decode()[0].numpy().sum(0) / clients


def diana(w, x, gamma, alpha):
    h = w.zero
    while True:
        yield x
        m = w.C(w.grad(x) - h)
        x = x - gamma * (h + m).mean(0)
        h = h + alpha * m


def vr_diana(w, x, gamma, alpha, p, batch, estimator):
    h, at, full = w.zero, x, w.grad(x) if estimator == "lsvrg" else w.zero
    table = [np.zeros((m, len(x))) for m in w.m]
    while True:
        yield x
        J = w.J(batch)
        if estimator == "lsvrg":
            g = w.grad(x, J) - w.grad(at, J) + full
        else:
            each = [w.grad(x, [j[[k]] for j in J]) for k in range(batch)]
            g = np.mean(each, 0) - [t[j].mean(0) for t, j in zip(table, J)]
            g = g + [t.mean(0) for t in table]
            for k, (i, j) in ((k, ij) for k in range(batch) for ij in enumerate(J)):
                table[i][j[k]] = each[k][i]
        m = w.C(g - h)
        old, x = x, x - gamma * (h + m).mean(0)
        h = h + alpha * m
        if estimator == "lsvrg" and w.coin("refresh", p):
            w.known = None
            at, full = old, w.grad(old)


def adiana(w, x, gamma, alpha, p, mu):
    h, y, z, at = w.zero, x, x, x
    at_w = w.grad(x)
    while True:
        yield y
        theta = min(0.25, np.sqrt(gamma * mu / p))
        ahead = gamma / (2 * (theta + gamma * mu))
        beta = 1 - ahead * mu
        x = theta * z + 0.5 * at + (0.5 - theta) * y
        g = (h + w.C(w.grad(x) - h)).mean(0)
        h = h + alpha * w.C(at_w - h, "shift")
        old, y = y, x - gamma * g
        z = beta * z + (1 - beta) * x + ahead / gamma * (y - x)
        if w.coin("refresh", p):
            at, w.known = old, None
            at_w = w.grad(old)


def dasha(w, x, gamma, alpha, kind="", p=None, batch=None, momentum=None, big=0):
    def anew(x):
        return w.grad(x, w.J(big, "big") if big else None)

    h = anew(x)
    g = w.dense(h)
    while True:
        yield x
        old, x = x, x - gamma * g.mean(0)
        J = w.J(batch) if batch else None
        if kind == "sync" and w.coin("sync", p):
            g = h = w.dense(anew(x))
            continue
        if kind == "page":
            coin = w.net.shared_stream("refresh").uniform(w.n)[0].numpy() < p
            near = h + w.grad(x, J, ~coin) - w.grad(old, J, ~coin)
            new = np.where(coin[:, None], w.grad(x, pays=coin), near)
        elif kind == "mvr":
            new = w.grad(x, J) + (1 - momentum) * (h - w.grad(old, J))
        else:
            new = h + w.grad(x, J) - w.grad(old, J) if kind else w.grad(x)
        g = g + w.C(new - h - alpha * (g - h))
        h = new


# The comparison -------------------------------------------------------------------------------


def with_kind(reference, **fixed):
    return lambda *args, **numbers: reference(*args, **fixed, **numbers)


CASES = [  # method, parameters, operator, downlink, reference
    ("gd", {}, None, None, gd),
    ("sgd", {"batch": 2}, None, None, gd),
    ("heavy_ball", {"momentum": 0.7}, None, None, gd),
    ("heavy_ball", {"momentum": 0.7, "nesterov": True}, None, None, gd),
    ("momentum_sgd", {"momentum": 0.5, "batch": 20}, None, None, gd),
    ("dcgd", {}, TOP, None, dcgd),
    ("dcgd", {}, RAND, None, dcgd),
    ("ef14", {}, TOP, None, ef14),
    ("ef14", {"memory": "gradient"}, RAND, None, ef14),
    ("ec_sgd", {"batch": 3}, TOP, None, ef14),
    ("ec_gd_star", {}, TOP, None, with_kind(ef14, star=True)),
    ("ec_diana", {"shift": "rand_k:k=4", "batch": 2}, TOP, None, ef14),
    ("ec_lsvrg", {"p": 0.3, "batch": 2}, TOP, None, ec_lsvrg),
    ("double_squeeze", {}, TOP, DOWN, double_squeeze),
    ("double_squeeze", {"batch": 2}, RAND, DOWN, double_squeeze),
    ("ef21", {}, TOP, None, ef21),
    ("ef21", {"init": "zero"}, RAND, None, ef21),
    ("ef21", {"init": "full"}, "scaled_sign", None, ef21),
    ("ef21_pp", {"p": 0.4}, TOP, None, ef21),
    ("ef21_hb", {"eta": 0.6}, TOP, None, with_kind(ef21, heavy=True)),
    ("ef21_plus", {}, TOP, None, ef21_plus),
    ("ef21_bc", {}, TOP, DOWN, ef21_bc),
    ("ef21_p", {}, None, DOWN, ef21_p),
    ("ef21_w", {}, "natural", None, ef21_w),
    ("ef21_sgd", {"batch": 2}, TOP, None, ef21_sgdm),
    ("ef21_sgdm", {"batch": 2, "eta": 0.3}, TOP, None, ef21_sgdm),
    ("ef21_sgdm", {"batch": 2, "eta": 0.3, "double": True}, RAND, None, ef21_sgdm),
    ("ef21_page", {"p": 0.3, "batch": 2}, TOP, None, ef21_page),
    ("three_pc_v1", {}, TOP, None, three_pc),
    ("three_pc_v2", {"first": "rand_k:k=2"}, TOP, None, with_kind(three_pc, kind=2)),
    ("three_pc_v4", {"first": "top_k:k=2"}, TOP, None, with_kind(three_pc, kind=4)),
    ("three_pc_v5", {"p": 0.3}, TOP, None, with_kind(three_pc, kind=5)),
    ("clag", {"z": 20.0}, TOP, None, with_kind(three_pc, kind=0)),
    ("lag", {"z": 4.5}, None, None, with_kind(three_pc, kind=0)),
    ("marina", {"p": 0.3}, RAND, None, marina),
    ("vr_marina", {"p": 0.3, "batch": 2}, RAND, None, marina),
    ("vr_marina", {"p": 0.3, "batch": 2, "big": 5}, RAND, None, marina),
    ("pp_marina", {"p": 0.3, "clients": 4}, RAND, None, pp_marina),
    ("diana", {"alpha": 0.1}, RAND, None, diana),
    ("vr_diana", {"p": 0.3, "batch": 2}, RAND, None, vr_diana),
    ("vr_diana", {"estimator": "saga", "batch": 6}, RAND, None, vr_diana),
    ("adiana", {"p": 0.3, "mu": 0.5}, RAND, None, adiana),
    ("dasha", {}, RAND, None, dasha),
    ("dasha_page", {"p": 0.3, "batch": 2}, RAND, None, with_kind(dasha, kind="page")),
    ("dasha_mvr", {"momentum": 0.2, "batch": 2}, RAND, None, with_kind(dasha, kind="mvr")),
    ("dasha_sync_mvr", {"p": 0.3, "batch": 2}, RAND, None, with_kind(dasha, kind="sync")),
    ("dasha_sync_mvr", {"p": 0.3, "batch": 2, "big": 5}, RAND, None, with_kind(dasha, kind="sync")),
]


EXTREMES = {  # what of the problem, of the method's parameters and of its operator is other
    "usual": ({}, {}, {}),
    "one client": ({"clients": 1}, {}, {}),
    "one sample each": ({"clients": 57}, {}, {}),
    "all of everything": ({}, {"p": 1.0, "batch": 40}, {"k": "100%"}),
}


@pytest.mark.parametrize("extreme", first_of_each(EXTREMES))
@pytest.mark.parametrize(
    ("name", "params", "compressor", "downlink", "reference"), CASES, ids=[c[0] for c in CASES]
)
def test_method_is_its_reference(name, params, compressor, downlink, reference, extreme):
    other, numbers, operator = EXTREMES[extreme]
    params = {**params, **{key: v for key, v in numbers.items() if key in params}}
    if isinstance(compressor, dict):
        compressor = {**compressor, **operator}
    rounds = ROUNDS if extreme == "usual" else 6
    more, problem = {"x0": {"normal": 1.0}}, {**PROBLEM, **other}
    method = Method(name, params, compressor, problem, downlink, GAMMA, rounds=rounds, more=more)
    compare(method, reference, GAMMA)
