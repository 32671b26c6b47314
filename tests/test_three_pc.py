"""Three point compressors: their inequality, their bounds, and the methods they reduce to."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from toys import descend, each_round, full_gradients, path

from raybench.algorithms.base import PerCell
from raybench.compressors import Role
from raybench.compressors.base import build
from raybench.core.registry import lookup
from raybench.core.streams import stream
from raybench.execution.resolve import Skip, problem_of
from raybench.testing.trial import Method, batch_of, finished, started
from raybench.theory import Setting
from raybench.wire import wire as wires

P1 = {"name": "quadratic", "dim": 12, "clients": 7, "mu": 0.05, "seed": 3}
HARD = {"name": "quadratic", "dim": 10, "clients": 6, "mu": 0.05, "heterogeneity": 0.7, "seed": 2}
TOP, RAND = {"name": "top_k", "k": 3}, {"name": "rand_k", "k": 3}
FAR = {"x0": {"normal": 2.0}}
SEEDS = 48
FAMILY = [  # method, its parameters, its operator, seeds (1: all of it is deterministic)
    ("lag", {"z": 0.3}, None, 1),
    ("lag", {"z": 8.0}, None, 1),
    ("clag", {"z": 1.0}, TOP, 1),
    ("clag", {"z": 20.0, "init": "zero"}, TOP, 1),
    ("clag", {"z": 2.0}, RAND, SEEDS),
    ("three_pc_v1", {}, TOP, 1),
    ("three_pc_v1", {}, RAND, SEEDS),
    ("three_pc_v2", {"first": "rand_k:k=2"}, TOP, SEEDS),
    ("three_pc_v2", {"first": "natural"}, RAND, SEEDS),
    ("three_pc_v4", {"first": "top_k:k=1"}, TOP, 1),
    ("three_pc_v4", {"first": "rand_k:k=2"}, "scaled_sign", SEEDS),
    ("three_pc_v5", {"p": 0.2}, TOP, SEEDS),
    ("three_pc_v5", {"p": 0.6}, RAND, SEEDS),
]


def title(value) -> str:
    if isinstance(value, dict):
        return "-".join(str(v) for v in value.values())
    return str(value)


def each(argnames="name,params,compressor,seeds"):
    return pytest.mark.parametrize(argnames, FAMILY, ids=title)


def on_p1(name, compressor=None, rounds=60, **rest) -> Method:
    return Method(name, rest.pop("params", {}), compressor, P1, rounds=rounds, more=FAR, **rest)


def largest(a, b) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


def pair(name, params, compressor, d) -> tuple[float, float]:
    """(A, B) of a method by its theory, with L_plus = 1."""
    entry = lookup("algorithm", name)
    alpha = build("identity" if compressor is None else short(compressor)).bind(
        d, role=Role.CONTRACTIVE
    )
    roles = entry.facts.operators
    own = {n: build(params[n]).bind(d, role=role) for n, role in roles.items()}
    constants = SimpleNamespace(L_plus=1.0)
    rate = entry.facts.theory.nonconvex.formula(
        Setting(constants, n=1, d=d, alpha=alpha.alpha, numbers=params, operators=own)
    )
    return rate.rho, rate.B


def short(compressor) -> str:
    if isinstance(compressor, str):
        return compressor
    return f"{compressor['name']}:k={compressor['k']}"


# The inequality -------------------------------------------------------------------------------


class Wire:
    """A net of N cells and one client that carries messages and books nothing."""

    def __init__(self, count: int, seed: int) -> None:
        self.root = stream(seed).fold("try")
        self.ids = torch.arange(count)

    def stream(self, purpose):
        return self.root.fold(purpose).spread((len(self.ids), 1))

    def coin(self, purpose, p):
        return self.stream(purpose).uniform(1)[:, 0, 0] < p.values

    def cases(self, coin, yes, no):
        return wires.Wire.cases(self, coin, yes, no)

    def charge(self, bits):
        pass

    def up(self, message):
        return SimpleNamespace(mean=lambda: message.decode().mean(1))


def three_points(name, params, compressor, d, h, y, x, seed=0):
    """C_{h,y}(x) of rows (N, d), by the method's own code."""
    entry = lookup("algorithm", name)
    a = entry.target()
    count = len(x)
    for key, value in params.items():
        if entry.params[key].per_cell:
            value = PerCell(torch.full((count,), float(value), dtype=torch.float64))
        setattr(a, key, value)
    for key, role in entry.facts.operators.items():
        setattr(a, key, build(params[key]).bind(d, role=role))
    a.C = build("identity" if compressor is None else short(compressor)).bind(
        d, role=Role.CONTRACTIVE
    )
    s, c = SimpleNamespace(g=torch.zeros(count, d).double()), SimpleNamespace()
    c.g, c.y = h[:, None].clone(), y[:, None].clone()
    mean = a.update(Wire(count, seed), s, c, x[:, None].clone())
    assert largest(mean, (c.g - h[:, None])[:, 0]) < 1e-9
    return c.g[:, 0]


@each()
def test_the_three_point_inequality(name, params, compressor, seeds):
    """E||C_{h,y}(x) - x||^2 <= (1-A)||h-y||^2 + B||x-y||^2, over points of all proportions."""
    d, points, tries = (8, 600, 1) if seeds == 1 else (8, 45, 1500)
    A, B = pair(name, params, compressor, d)
    g = torch.Generator().manual_seed(7)
    y = torch.zeros(points, d, dtype=torch.float64)
    h, x = (torch.randn(points, d, generator=g, dtype=torch.float64) for _ in range(2))
    x = x * torch.logspace(-3, 3, points).double()[:, None]
    factors = torch.rand(points, 1, generator=g, dtype=torch.float64)
    h[::3] = -x[::3] * factors[::3]  # opposite
    h[1::3] = x[1::3] + factors[1::3] * x[1::3].norm(dim=1, keepdim=True) * h[1::3] / d  # near x
    promised = (1 - A) * h.square().sum(-1) + B * x.square().sum(-1)
    many = [t.repeat_interleave(tries, 0) for t in (h, y, x)]
    error = (three_points(name, params, compressor, d, *many) - many[2]).square().sum(-1)
    error = error.view(points, tries)
    spread = error.std(1) / math.sqrt(tries) if tries > 1 else torch.zeros(points)
    assert (error.mean(1) <= promised * (1 + 1e-9) + 4 * spread).all()
    assert (error.mean(1) > 0.05 * promised).any()  # the bound is of the right order


def test_the_constants_are_those_of_the_table():
    d, k = 10, 4
    alpha, one, omega = k / d, 2 / d, d / 2 - 1  # of top-4, top-2, rand-2
    top = {"name": "top_k", "k": k}
    theta = 1 - math.sqrt(1 - alpha)
    beta = (1 - alpha) / theta
    both, p = 1 - (1 - alpha) * (1 - one), 0.3
    want = {
        ("lag", "z", 7.0): (1, 7.0),
        ("clag", "z", 0.5): (theta, beta),
        ("clag", "z", 7.0): (theta, 7.0),
        ("three_pc_v1", "", 0): (1, 1 - alpha),
        ("three_pc_v2", "first", "rand_k:k=2"): (alpha, (1 - alpha) * omega),
        ("three_pc_v4", "first", "top_k:k=2"): (
            1 - math.sqrt(1 - both),
            (1 - both) / (1 - math.sqrt(1 - both)),
        ),
        ("three_pc_v5", "p", p): (
            1 - math.sqrt(1 - p),
            (1 - p) * (1 - alpha) / (1 - math.sqrt(1 - p)),
        ),
    }
    for (name, key, value), constants in want.items():
        got = pair(name, {key: value} if key else {}, None if name == "lag" else top, d)
        assert got == pytest.approx(constants, rel=1e-12), name


def test_lag_steps_by_l_plus():
    cell = on_p1("lag", params={"z": 4.0}).cell()
    known = problem_of(cell.cell.problem).constants
    assert known.L_plus < known.L_tilde
    assert cell.step_size == pytest.approx(1 / (known.L + 2 * known.L_plus))


def test_a_biased_first_operator_of_v2_is_refused():
    with pytest.raises(Skip, match="first"):
        on_p1("three_pc_v2", TOP, params={"first": "top_k:k=2"}, step=0.1).cell()


# What they reduce to --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "params", "compressor"),
    [
        ("lag", {"z": 0.0}, None),
        ("clag", {"z": 0.0}, "identity"),
        ("three_pc_v1", {}, "identity"),
        ("three_pc_v2", {"first": "rand_k:k=2"}, "identity"),
        ("three_pc_v4", {"first": "top_k:k=1"}, "identity"),
        ("three_pc_v4", {"first": "identity", "init": "full"}, TOP),
        ("three_pc_v5", {"p": 0.3}, "identity"),
        ("three_pc_v5", {"p": 1.0, "init": "full"}, TOP),
    ],
    ids=title,
)
def test_it_is_gradient_descent(name, params, compressor):
    run = started(on_p1(name, compressor, 300, params=params, step=0.3).batch((1.0, 0.5), (0, 1)))
    got = path(run)
    plain = descend(started(on_p1("gd", None, 300, step=0.3).batch()), 0.3)
    assert largest(got[:, :1], plain) < 1e-8
    assert largest(got[:, :1], got[:, 1:]) > 1e-3


def test_lag_that_always_fires_costs_a_bit_more_than_gradient_descent():
    ours, theirs = (
        finished(on_p1(name, params=params, step=0.3).batch())
        for name, params in (("lag", {"z": 0.0}), ("gd", {}))
    )
    first = 64 * 12  # LAG begins with the gradients
    assert ours.bits("up") == theirs.bits("up") + first + ours.rounds


@pytest.mark.parametrize("compressor", [TOP, RAND, "natural"], ids=title)
@pytest.mark.parametrize("init", ["compressed", "full", "zero"])
def test_clag_that_always_fires_is_ef21(compressor, init):
    args = {"step": 0.02, "rounds": 80}
    lazy, plain = (
        started(on_p1(name, compressor, params=params, **args).batch((1.0, 2.0), (0, 1)))
        for name, params in (("clag", {"z": 0.0, "init": init}), ("ef21", {"init": init}))
    )
    assert np.array_equal(path(lazy), path(plain))
    assert np.array_equal(lazy.bits("up"), plain.bits("up") + 80)  # the flags
    assert np.array_equal(lazy.bits("down"), plain.bits("down"))


@pytest.mark.parametrize(
    ("name", "compressor", "init"),
    [("lag", None, "full"), ("clag", TOP, "compressed"), ("clag", RAND, "full")],
    ids=title,
)
def test_nobody_fires_for_a_large_z(name, compressor, init):
    method = on_p1(name, compressor, params={"z": 1e300, "init": init}, step=1e-3)
    run = started(method.batch((1.0, 3.0), (0, 1)))
    seen = each_round(run, lambda r: (r.s.x.clone(), r.c.g.clone(), r.bits("up")))
    x, g, sent = seen[0]
    gammas = torch.tensor([[1e-3], [3e-3]], dtype=torch.float64)
    for t, (now, own, bits) in enumerate(seen):
        assert largest(now, x - t * gammas * g.mean(1)) < 1e-12
        assert torch.equal(own, g)
        assert np.array_equal(bits, sent + t)  # a bit each, and no more
    assert float(g.abs().max()) > 0.1


def test_clag_with_the_identity_is_lag():
    lag, clag = (
        started(on_p1(name, compressor, params={"z": 3.0}).batch((1.0, 4.0), (0, 1)))
        for name, compressor in (("lag", None), ("clag", "identity"))
    )
    assert np.array_equal(path(lag), path(clag))
    assert np.array_equal(lag.bits("up"), clag.bits("up"))


def test_v4_is_ef21_with_both_operators_in_one():
    """From zero: at the start EF21 sends both messages, 3PCv4 that of C alone."""
    two = {"name": "two_shot", "first": "top_k:k=2", "then": "top_k:k=3"}
    args, zero = {"multiples": (1.0, 4.0), "seeds": (0, 1)}, {"init": "zero"}
    own = on_p1("three_pc_v4", TOP, params={"first": "top_k:k=2", **zero}, step=0.02)
    ours = started(own.batch(**args))
    theirs = started(on_p1("ef21", two, params=zero, step=0.02).batch(**args))
    assert largest(path(ours), path(theirs)) < 1e-12
    assert np.array_equal(ours.bits("up"), theirs.bits("up"))


@pytest.mark.parametrize("compressor", [RAND, "natural"], ids=title)
def test_v5_with_an_unbiased_operator_is_marina(compressor):
    own = on_p1("three_pc_v5", compressor, params={"p": 0.2, "init": "full"}, step=0.02).batch()
    theirs = started(on_p1("marina", compressor, params={"p": 0.2}, step=0.02).batch())
    unscaled, rescaled = started(own), started(own)
    unscaled.a.C = theirs.a.Q
    want = path(theirs)
    assert largest(path(unscaled), want) < 1e-10
    assert np.array_equal(unscaled.bits("up"), theirs.bits("up"))
    assert largest(path(rescaled), want) > 1e-3  # as a contractive operator it is another method


# Who fires, and the server's state -------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "compressor", "z", "message"),
    [("lag", None, 1.5, 64 * 12), ("clag", TOP, 40.0, 64 * 3 + 12)],
    ids=title,
)
def test_a_client_that_does_not_fire_costs_one_bit(name, compressor, z, message):
    run = started(on_p1(name, compressor, 40, params={"z": z}).batch((1.0, 8.0), (0, 1)))
    seen = each_round(run, lambda r: (full_gradients(r), r.c.g.clone(), r.bits("up")))
    shares = []
    for (y, h, before), (x, g, after) in pairwise(seen):
        left = (x - h).square().sum(-1)
        fired = left > z * (x - y).square().sum(-1)
        assert torch.equal((g != h).any(-1), fired)
        share = fired.double().mean(1).numpy()
        assert after - before == pytest.approx(1 + share * message, abs=1e-6)
        shares.append(share)
    assert 0.02 < np.mean(shares) < 0.98, np.mean(shares)


@each()
def test_server_estimate_is_the_mean_of_the_clients(name, params, compressor, seeds):
    run = started(on_p1(name, compressor, params=params).batch((1.0, 4.0), (0, 1)))
    gaps = each_round(run, lambda r: largest(r.s.g, r.c.g.mean(1)))
    assert max(gaps) < 1e-12
    assert float(run.s.g.abs().max()) > 0


def test_cells_of_several_z_run_together():
    cells = [on_p1("clag", TOP, params={"z": z}, step=0.05).cell() for z in (0.0, 1.0, 30.0)]
    every = path(started(batch_of(cells)))
    for j, cell in enumerate(cells):
        assert largest(every[:, j], path(started(batch_of([cell])))[:, 0]) < 1e-9
    assert largest(every[:, 0], every[:, 2]) > 1e-3


# Bounds ---------------------------------------------------------------------------------------


def distances(run) -> torch.Tensor:
    return (run.c.g - full_gradients(run)).square().sum(-1).mean(1)


def averaged(values, seeds):
    """Values (.., B) of deterministic cells as they are, else their mean over the seeds."""
    return values if seeds == 1 else values.mean(-1, keepdims=True)


@each()
def test_nonconvex_bound(name, params, compressor, seeds):
    """(1/T) sum_{t<T} E||grad f||^2 <= 2 Delta0/(gamma T) + G^0/(A T)."""
    method = Method(name, params, compressor, HARD, rounds=200, more=FAR)
    run = started(method.batch((1.0,), range(max(seeds, 3))))
    run.advance(0)
    G = distances(run).numpy()
    run.advance(run.rounds)
    assert (run.status == "ok").all()
    rho, _ = pair(name, params, compressor, 10)
    norms = run.recorder.column("grad_norm_sq")[:, :-1]
    gaps = run.recorder.column("loss")[:, 0] - run.problem.constants.f_star
    for T in (1, 3, 10, 30, 100, 200):
        have = averaged(norms[:, :T].mean(1), seeds)
        promised = averaged((2 * gaps / method.cell().step_size + G / rho) / T, seeds)
        assert np.all(have <= promised * (1 + 1e-9)), (T, have, promised)


@each()
def test_pl_bound(name, params, compressor, seeds):
    """E Psi^t <= (1 - gamma mu)^t Psi^0, Psi = f - f* + (gamma/A) G."""
    method = Method(name, params, compressor, HARD, rule="pl", rounds=150, more=FAR)
    run = started(method.batch((1.0,), range(max(seeds, 3))))
    assert pl_holds(run, method.cell().step_size, pair(name, params, compressor, 10)[0], seeds)


def pl_holds(run, gamma, rho, seeds) -> bool:
    G = torch.stack(each_round(run, distances)).numpy()
    known = run.problem.constants
    losses = run.recorder.column("loss").T
    psi = averaged(losses - known.f_star + gamma / rho * G, seeds)
    promised = (1 - gamma * known.mu) ** np.arange(len(psi))[:, None] * psi[0]
    floor = 1e-13 * np.abs(losses).max()  # of evaluating f
    return bool((psi <= promised * (1 + 1e-9) + floor).all())


def test_the_step_must_shrink_with_z():
    """LAG with the step of gradient descent breaks the bound it would have for z = 0."""
    gd = Method("gd", {}, None, HARD, rule="pl").cell().step_size
    lazy = Method("lag", {"z": 50.0}, None, HARD, step=gd, rounds=250, more=FAR)
    run = started(lazy.batch((1.0,), range(3)))
    run.advance(250)
    assert (run.status == "diverged").all() or not pl_holds(
        started(lazy.batch((1.0,), range(3))), gd, 1.0, 1
    )
