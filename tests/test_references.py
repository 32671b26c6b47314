"""Methods against references written in numpy from the updates of their papers, one cell at a time.

A reference is a generator: it yields x^0, then x^t. Gradients are formed from the data, messages are sums
over rows; only compressors and random numbers are the library's. Bits sent up and gradient evaluations
are counted beside it.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference_world import LAMBDA, compare
from toys import RAND, TOP, ConvexL1, registered

from raybench import spec
from raybench.compressors.sparsification import SharedMask
from raybench.core import registry
from raybench.core.errors import InputError
from raybench.execution.resolve import Resolver, Skip, problem_of
from raybench.testing.trial import DATA, TrialMethod, compressors_for, finished, started

GAMMA, ROUNDS = 0.03, 25
PROBLEM = {"name": "least_squares", **DATA, "rows": 57, "regularizer": "l2", "lambda": LAMBDA}
DOWN = {"name": "top_k", "k": 4}


# Without memory, and with momentum ------------------------------------------------------------


def gd(w, x, gamma, momentum=0.0, nesterov=False, batch=None):
    v = 0
    while True:
        yield x
        g = w.dense(w.grad(x, w.J(batch))).mean(0)
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
        g = w.grad(x, w.J(batch))
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
        v = w.grad(x, w.J(batch)) + e
        c = w.C(v)
        q = w.D(c.mean(0) + E)
        e, E, x = v - c, c.mean(0) + E - q, x - gamma * q


def ef21(w, x, gamma, init="compressed", p=None, eta=None, heavy=False, weighted=False):
    """EF21; with p its clients take part by coins, with eta and ``heavy`` it is EF21-HB, ``weighted`` EF21-W."""
    L = np.linalg.eigvalsh(w.hessians())[:, -1:]
    nw = w.n * L / L.sum() if weighted else 1.0
    opening = {"compressed": w.C, "full": w.dense, "zero": lambda v: w.zero}[init]
    g = nw * opening(w.grad(x) / nw)
    v = g.mean(0)
    while True:
        yield x
        x = x - gamma * v
        S = np.full(w.n, True) if p is None else w.coins("participants", p)
        g = g + nw * w.C((w.grad(x, pays=S) - g) / nw, sent=S)
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


def ef21_sgdm(w, x, gamma, batch, init, eta=1.0, double=False, normalized=False):
    v = w.grad(x, w.J(batch))
    u, g = v, w.C(v)
    while True:
        yield x
        step = g.mean(0)
        x = x - gamma * (step / np.linalg.norm(step) if normalized else step)
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
        return w.dense(w.grad(x, w.J(big, "big"))).mean(0)

    g = anew(x)
    while True:
        yield x
        old, x = x, x - gamma * g
        J = w.J(batch)
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


def adef(w, x, gamma):
    h, e, v, A = w.zero, w.zero, x, 0.0
    while True:
        yield x
        a = max(np.roots([1, -gamma, -gamma * A]))
        g = w.grad((A * x + a * v) / (A + a))
        h = h + w.C(g - h, "change")
        wanted = g - h - e / a
        m = w.C(wanted)
        e = a * (m - wanted)
        v = v - a * (h + m).mean(0)
        x = (A * x + a * v) / (A + a)
        A = A + a


def dasha(w, x, gamma, alpha, kind="", p=None, batch=None, momentum=None, big=0):
    def anew(x):
        return w.grad(x, w.J(big, "big"))

    h = anew(x)
    g = w.dense(h)
    while True:
        yield x
        old, x = x, x - gamma * g.mean(0)
        J = w.J(batch)
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


# Both ways -----------------------------------------------------------------------------------


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
        g = w.grad(x, w.J(batch))
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


SPARSE = {"name": "random_sparsification", "p": 0.3}
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
        v = (1 - beta) * v + beta * w.grad(x, w.J(batch))
        u = v - g
        if tau != "off":
            u = u * np.minimum(1, tau / np.maximum(np.linalg.norm(u, axis=1), 1e-300))[:, None]
        g = g + beta_server * u
        noise = sigma * w.net.stream("noise").normal(len(x))[0].numpy()
        server = server + beta_server * w.dense(u + noise).mean(0)
        yield x
        x = x - gamma * server


# The comparison -------------------------------------------------------------------------------


def with_kind(reference, **fixed):
    return lambda *args, **numbers: reference(*args, **fixed, **numbers)


OWN = {"lam": 0.1, "rho": 0.6, "eta": 0.2}
CASES = [  # method, parameters, compressor, downlink, reference
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
    *(
        ("ef21_w", {"init": init}, "natural", None, with_kind(ef21, weighted=True))
        for init in ("compressed", "full", "zero")
    ),
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
    ("adef", {}, TOP, None, adef),
    ("dasha", {}, RAND, None, dasha),
    ("dasha_page", {"p": 0.3, "batch": 2}, RAND, None, with_kind(dasha, kind="page")),
    ("dasha_mvr", {"momentum": 0.2, "batch": 2}, RAND, None, with_kind(dasha, kind="mvr")),
    ("dasha_sync_mvr", {"p": 0.3, "batch": 2}, RAND, None, with_kind(dasha, kind="sync")),
    ("dasha_sync_mvr", {"p": 0.3, "batch": 2, "big": 5}, RAND, None, with_kind(dasha, kind="sync")),
    ("compressed_scaffnew", {"p": 0.4}, None, None, compressed_scaffnew),
    ("compressed_scaffnew", {"p": 0.7, "chi": 0.3, "senders": 4}, None, None, compressed_scaffnew),
    ("locodl", {"p": 0.4, **OWN}, RAND, None, locodl),
    ("locodl", {"p": 0.4, **OWN}, "natural", None, locodl),
    ("bicolor", {"p": 0.4, **OWN, "rho": 0.2}, RAND, UNBIASED_DOWN, bicolor),
    ("clip21_sgd2m", {"tau": 0.3, "beta": 0.4}, None, None, clip21_sgd2m),
    ("clip21_sgd2m", {"sigma": 0.1, "batch": 3}, None, None, clip21_sgd2m),
    ("clip21_sgd2m", {"tau": "off", "beta_server": 0.9}, None, None, clip21_sgd2m),
    *(
        ("ef21_normalized", params, operator, None, with_kind(ef21_sgdm, normalized=True))
        for params, operator in (({}, TOP), ({"eta": 0.3, "batch": 2}, RAND))
    ),
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
BITS_DOWN = {ef_bv, econtrol, marina_p, ef21_p_diana}  # whose references count them


EXTREMES = {  # what of the problem, of the method's parameters and of its compressor is other
    "usual": ({}, {}, {}),
    "one client": ({"clients": 1}, {}, {}),
    "one sample each": ({"clients": 57}, {}, {}),
    "all of everything": ({}, {"p": 1.0, "batch": 40}, {"k": "100%"}),
}


def fits(case: tuple, extreme: str) -> bool:
    """Whether a case has that extreme: what both ways share is fixed, and PermK needs a multiple of d clients."""
    other = extreme == "all of everything" and case[-1] in BITS_DOWN
    return not other and not (extreme == "one sample each" and case[3] == "perm_k")


EVERY = [(*case, extreme) for extreme in EXTREMES for case in CASES if fits(case, extreme)]


@pytest.mark.parametrize(
    ("name", "params", "compressor", "downlink", "reference", "extreme"),
    [
        pytest.param(
            *case,
            id=f"{case[0]}-{case[-1]}",
            marks=[] if case[-1] == "usual" else [pytest.mark.thorough],
        )
        for case in EVERY
    ],
)
def test_method_is_its_reference(name, params, compressor, downlink, reference, extreme):
    other, numbers, operator = EXTREMES[extreme]
    params = {**params, **{key: v for key, v in numbers.items() if key in params}}
    if isinstance(compressor, dict):
        compressor = {**compressor, **operator}
    rounds = ROUNDS if extreme == "usual" else 6
    more, problem = {"x0": {"normal": 1.0}}, {**PROBLEM, **other}
    method = TrialMethod(
        name, params, compressor, problem, downlink, GAMMA, rounds=rounds, more=more
    )
    compare(method, reference, GAMMA, down=reference in BITS_DOWN)


def test_the_problem_is_strongly_convex_for_every_client():
    cell = TrialMethod("gd", {}, None, PROBLEM, rounds=1).cell()
    assert problem_of(cell.cell.problem).constants.mu_min >= LAMBDA


# At the edges ---------------------------------------------------------------------------------


def test_a_normalised_step_along_nothing_is_none():
    run = started(TrialMethod("ef21_normalized", {}, TOP, PROBLEM, step=0.05, rounds=1).batch())
    zero = torch.zeros(2, 5)
    assert torch.equal(run.a.outer_step(None, zero), zero)


@pytest.mark.thorough
def test_compressed_scaffnew_needs_two_senders():
    with pytest.raises(InputError, match="senders"):
        TrialMethod("compressed_scaffnew", {"senders": 1}, None, PROBLEM, step=0.1).cell()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("downlink", "says"), [(TOP, "unbiased"), ("aggregate", "would relay, is not its step")]
)
def test_marina_p_needs_an_unbiased_downlink(downlink, says):
    config = TrialMethod("marina_p", {}, None, PROBLEM, downlink, step=0.1).config(
        {"value": 0.1}, 0
    )
    (cell,) = spec.load({**config, "allow_unproven": False}).cells
    with pytest.raises(Skip, match=says):
        Resolver().resolve(cell)


# Nonsmooth parts --------------------------------------------------------------------------------

PROXIMAL = [
    n for n in registry.names("algorithm") if registry.lookup("algorithm", n).facts.proximal
]


@pytest.mark.thorough
@pytest.mark.parametrize("name", PROXIMAL)
def test_proximal_methods_end_at_the_minimiser_of_f_and_the_penalty(name):
    """One sample per client, so no noise: the gradient mapping of f + 0.2 ||x||_1 vanishes."""
    lasso = {"name": "convex_l1", "weight": 0.2}
    entry = registry.lookup("algorithm", name)
    operator = "identity" if name == "dcgd" else compressors_for(entry)[0]  # DCGD has a floor
    down = {"name": "top_k", "k": 3} if entry.facts.down else None
    # on clients of unlike data a median leads beside the minimiser of the mean
    robust = {"robust": {"rule": "mean"}} if name.startswith("byz_") else {}
    more = {"x0": {"normal": 2.0}, **robust}
    method = TrialMethod(name, {}, operator, lasso, down, step=0.05, rounds=600, more=more)
    with registered("problem", convex_l1=ConvexL1):
        run = finished(method.batch(), every=600)
    assert run.recorder.column("grad_norm_sq")[0, -1] < 1e-12
    assert run.recorder.column("loss")[0, -1] == pytest.approx(-0.1454849561387832, rel=1e-9)
