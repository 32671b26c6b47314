"""Exact identities of the methods, in every round; special cases that are one another; bounds that are reached."""

from __future__ import annotations

import itertools
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from known_problem import Held, setting
from toys import (
    FAR,
    MATRIX,
    P1,
    RAND,
    SAMPLES,
    TOP,
    ConvexL1,
    Counterexample,
    descend,
    each_round,
    full_gradients,
    largest,
    path,
    paths,
    registered,
    title,
)

import raybench
from raybench import theory
from raybench.algorithms.power_sgd import orthonormal
from raybench.core import registry
from raybench.core.errors import InputError
from raybench.execution.resolve import problem_of
from raybench.problems.base import Constants
from raybench.problems.quadratic import Quadratic
from raybench.testing.trial import Method, finished, started

COMMON = {**RAND, "mask": "common"}
L1 = {"name": "convex_l1", "weight": 0.2}
ONE = {**P1, "clients": 1}  # a client
ALIKE = {"name": "tridiagonal", "dim": 12, "clients": 4, "noise": 0.0, "lambda": 0.01}
Given = tuple  # (method, parameters, compressor, downlink)


def method(given: Given, problem=P1, step=0.02, rounds=60, **rest) -> Method:
    name, params, compressor, downlink = (*given, None, None)[:4]
    return Method(name, params, compressor, problem, downlink, step, rounds=rounds, **rest)


@pytest.fixture(scope="module", autouse=True)
def _toys():
    with registered("problem", counterexample=Counterexample, convex_l1=ConvexL1):
        yield


def test_saga_refuses_a_table_that_is_too_large(monkeypatch):
    saga = method(("vr_diana", {"estimator": "saga", "batch": 8}, RAND), SAMPLES)  # of 12 samples
    monkeypatch.setattr("raybench.algorithms.diana.MOST_TABLE_VALUES", 5 * 12 * 30 - 1)
    with pytest.raises(InputError, match="lsvrg needs none"):
        started(saga.batch()).advance(1)


# Power iterations: what is held back is kept -----------------------------------------------------


@pytest.mark.parametrize("error", ["own", "shared"])
@pytest.mark.parametrize("rank", [1, 3])
def test_power_sgd_conserves_gradients(rank, error):
    given = ("power_sgd", {"rank": rank, "error": error})
    run = started(method(given, MATRIX, 0.05, more=FAR).batch((1.0, 2.0), (0, 1)))
    seen = each_round(run, lambda r: (r.s.x.clone(), full_gradients(r).mean(1), r.c.e.mean(1)))
    gammas, total = torch.tensor([[0.05], [0.1]], dtype=torch.float64), torch.zeros(2, 20).double()
    for (_, grad, _), (x, _, left) in pairwise(seen):
        total = total + grad
        assert largest(total, (seen[0][0] - x) / gammas + left) < 1e-10
    assert float(left.abs().max()) > 1e-6


def test_power_sgd_survives_zero_and_rank_deficient_gradients():
    for P in (torch.zeros(2, 5, 3), torch.ones(2, 5, 3), torch.eye(5)[None, :, :3]):
        Q = orthonormal(P.double())
        eye = torch.eye(3, dtype=torch.float64).expand(len(Q), 3, 3)
        assert torch.allclose(Q.mT @ Q, eye, atol=1e-12)


# Special cases that are gradient descent ------------------------------------------------------

I = "identity"
DESCENT = [  # of methods, or their branches, that have no reference in numpy; a client has one sample
    (("ef21_prox", {}, I), P1),
    (("marina", {"p": 1.0}, RAND), P1),
    (("compressed_scaffnew", {"p": 1.0, "senders": 7}), P1),
    (("power_sgd", {"rank": 4}), MATRIX),
    *(((name, {}), ONE) for name in ("extra", "gradient_tracking", "lsgd")),
    (("lead", {}, I), ONE),
]


@pytest.mark.parametrize(("given", "problem"), DESCENT, ids=title)
def test_it_is_gradient_descent(given, problem):
    run = started(method(given, problem, 0.2, 80, more=FAR).batch((1.0, 0.5), (0, 1)))
    want = descend(started(method(("gd", {}), problem, 0.2, 80, more=FAR).batch()), 0.2)
    got = path(run)
    assert largest(got[:, :1], want) < 1e-8
    assert largest(got[:, :1], got[:, 1:]) > 1e-3  # the other cell is another one


@pytest.mark.parametrize(
    "given",
    [
        ("marina", {"p": 1e-12}, "perm_k"),
        ("dasha", {"alpha": 1e-12}, "perm_k"),
        ("marina_p", {"p": 1e-12}, None, "perm_k"),
    ],
    ids=title,
)
def test_perm_k_on_equal_clients_is_gradient_descent(given):
    """All clients alike and no coin: the blocks make up the whole difference, blocks drawn apart do not."""
    got = path(started(method(given, ALIKE, 0.4, 80, more=FAR).batch()))
    want = descend(started(method(("gd", {}), ALIKE, 0.4, 80, more=FAR).batch()), 0.4)
    assert largest(got, want) < 1e-8
    apart = tuple(RAND if part == "perm_k" else part for part in given)
    other = path(started(method(apart, ALIKE, 0.4, 30, more=FAR).batch()))
    assert largest(other, want[:31]) > 1e-3


# ... or one another ---------------------------------------------------------------------------

EF21 = ("ef21", {}, TOP)
TWO_SHOT = {"name": "two_shot", "first": "top_k:k=2", "then": "top_k:k=3"}
SAME = [  # in branches beside those that have references of their own
    (("ef21_w", {}, TOP), EF21, P1),  # Top-k commutes with positive factors
    (("ef21_prox", {}, TOP), EF21, L1),
    (("local_ef21", {"tau": 1}, TOP), EF21, P1),
    (
        ("three_pc_v4", {"first": "top_k:k=2", "init": "zero"}, TOP),
        ("ef21", {"init": "zero"}, TWO_SHOT),
        P1,
    ),
    *((("ef_bv", {"nu": 1.0}, q), ("diana", {}, q), P1) for q in (COMMON, "perm_k")),
    *(((n, {}, "perm_k"), (n, {}, I), ONE) for n in ("marina", "diana", "dasha", "pp_marina")),
    (("local_sgd", {"tau": 1, "momentum": 0.8}), ("heavy_ball", {"momentum": 0.8}), P1),
    (("local_ef21", {"init": "full"}, I), ("local_sgd", {}), P1),
    (
        ("power_sgd", {"rank": 4, "momentum": 0.7, "nesterov": False}),
        ("heavy_ball", {"momentum": 0.7}),
        MATRIX,
    ),
    (("dgc", {"vectors": "dense"}, TOP), ("heavy_ball", {}), P1),
    (
        ("dgc", {"warmup": [["100%"]], "warmup_rounds": 30, "nesterov": True}, TOP),
        ("heavy_ball", {"nesterov": True}),
        P1,
    ),
    *(((n, {}, TOP, I), (n, {}, TOP), P1) for n in ("ef21", "ef14")),
    *(((n, {}, RAND, I), (n, {}, RAND), P1) for n in ("diana", "marina")),
]


@pytest.mark.parametrize(("ours", "theirs", "problem"), SAME, ids=title)
def test_they_are_the_same(ours, theirs, problem):
    one, two = paths(*(method(given, problem, rounds=30, more=FAR) for given in (ours, theirs)))
    assert largest(one, two) < 1e-8
    assert largest(one[0], one[-1]) > 0.1


def test_v5_with_an_unbiased_operator_is_marina():
    """Not rescaled; as a contractive compressor it is another method."""
    own = method(("three_pc_v5", {"p": 0.2, "init": "full"}, RAND), more=FAR).batch()
    theirs = started(method(("marina", {"p": 0.2}, RAND), more=FAR).batch())
    unscaled, rescaled = started(own), started(own)
    unscaled.a.C = theirs.a.Q
    want = path(theirs)
    assert largest(path(unscaled), want) < 1e-10
    assert np.array_equal(unscaled.bits("up"), theirs.bits("up"))
    assert largest(path(rescaled), want) > 1e-3


# What is sent ---------------------------------------------------------------------------------


def largest_message(given: Given) -> int:
    """Return the bytes of the largest message of a client after the start."""
    run = started(method(given, SAMPLES).batch((1.0, 0.5), (0, 1)))
    run.advance(0)
    seen, up = [], run.net.up
    run.net.up = lambda m: seen.append(int(torch.as_tensor(m.nbytes).max())) or up(m)
    run.advance(run.rounds)
    return max(seen)


def test_dasha_and_diana_send_nothing_dense_after_the_start_and_marina_does():
    for name in ("dasha", "dasha_page", "dasha_mvr", "diana", "vr_diana"):
        assert largest_message((name, {}, RAND)) == 3 * 8, name
    for name in ("marina", "vr_marina", "pp_marina", "dasha_sync_mvr"):
        assert largest_message((name, {"p": 0.3}, RAND)) == 8 * 30, name


@pytest.mark.parametrize(
    ("name", "params"),
    [("ef21", {"init": "zero"}), ("diana", {"alpha": 0.5}), ("dcgd", {}), ("ef14", {})],
)
def test_zero_compressor_freezes_the_model(name, params):
    run = finished(method((name, params, "zero"), more=FAR).batch())
    assert largest(run.s.x, started(run.batch).s.x) == 0
    assert run.bits("up") == 0


# The counterexample of biased compressors -------------------------------------------------------


def on_counterexample(name, rounds, step=None) -> Method:
    operator = {"name": "top_k", "k": 1}
    problem, more = {"name": "counterexample"}, {"x0": "problem"}
    return Method(name, {}, operator, problem, step=step, rounds=rounds, more=more)


def test_dcgd_with_top_1_blows_up_exactly():
    """x stays on (t, t, t), and t grows by 1 + 11 gamma/6 a round: exactly, but for rounding.

    A round multiplies what lies across that line by 1 - 61 gamma/6. What rounding puts there (at most 100
    half units in the last place a round) grows, next to t, by the ratio of the two factors.
    """
    steps, rounds = (1e-3, 0.1, 1.0), 12
    got = path(started(on_counterexample("dcgd", rounds, 1.0).batch(steps)))
    for k, gamma in enumerate(steps):
        along = 1 + 11 * gamma / 6
        amplified = sum(abs((1 - 61 * gamma / 6) / along) ** t for t in range(rounds))
        ratios = got[1:, k] / got[:-1, k]
        assert np.abs(ratios / along - 1).max() < 100 * np.finfo(float).eps * amplified


@pytest.mark.thorough
def test_error_feedback_converges_on_it():
    cell = on_counterexample("ef21", 1).cell()
    c = problem_of(cell.cell.problem).constants
    assert (c.L, c.mu) == (pytest.approx(103 / 6), pytest.approx(7 / 6))
    assert cell.step_size == pytest.approx(0.005859, abs=5e-7)
    for name in ("ef21", "ef14", "ef21_plus"):
        run = finished(on_counterexample(name, 6_000, cell.step_size).batch(), every=6_000)
        assert run.status[0] == "ok"
        assert float(run.s.x.abs().max()) < 1e-14


# Inequalities that hold with equality on some quadratic, so that no constant may shrink -----------


def formula(name: str, rule: str = "nonconvex"):
    return theory.of(registry.lookup("algorithm", name).facts.theory).under(rule).formula


class Bowl(Quadratic):
    """f = 1.7 ||x||^2/2 at one client."""

    def __init__(self) -> None:
        eye = 1.7 * torch.eye(3, dtype=torch.float64)
        super().__init__(eye[None], torch.zeros(1, 3, dtype=torch.float64))


@pytest.mark.parametrize(("multiple", "holds"), [(1.0, True), (1.02, False)])
def test_gradient_descent(multiple, holds):
    """||grad f(x^0)||^2 = 2 Delta0/gamma at gamma = 1/L exactly; 2 % above the inequality fails."""
    with registered("problem", bowl=Bowl):
        more = {"x0": {"normal": 1.0}}
        method = Method("gd", {}, None, {"name": "bowl"}, rounds=1, more=more)
        run, gamma = finished(method.batch((multiple,))), multiple * method.cell().step_size
    norm = float(run.recorder.column("grad_norm_sq")[0, 0])
    promised = 2 * float(run.recorder.column("loss")[0, 0]) / gamma
    assert (norm <= promised * (1 + 1e-12)) == holds
    assert norm == pytest.approx(promised * multiple, rel=1e-12)


def sums(n: int, d: int, vectors: np.ndarray) -> float:
    """E||mean Q_i(a_i) - mean a_i||^2 of independent Rand-1, all masks gone through."""
    total, mean = 0.0, vectors.mean(0)
    for masks in itertools.product(range(d), repeat=n):
        sent = np.zeros_like(vectors)
        for i, j in enumerate(masks):
            sent[i, j] = d * vectors[i, j]
        total += float(np.square(sent.mean(0) - mean).sum())
    return total / d**n


def test_marina():
    """f_i with Hessians L I: E G+ = B ||x+ - x||^2 after an exact g, Rand-1."""
    n, d, L, p = 3, 3, 1.3, 0.2
    move = np.array([0.3, -1.0, 0.4])
    have = (1 - p) * sums(n, d, np.tile(L * move, (n, 1)))
    constants = Constants(L=L, L_i=(L,) * n)
    rate = formula("marina")(setting(n=n, omega=d - 1.0, p=p, constants=constants))
    assert have == pytest.approx(rate.B * float(move @ move), rel=1e-12)


def test_dcgd():
    """E||g - grad f||^2 = (omega/n) mean||grad f_i||^2 <= 2 A (f - f_low), with equality for f_i = L||x||^2/2."""
    n, d, L = 2, 3, 0.7
    x = np.array([1.0, 2.0, -0.5])
    have = sums(n, d, np.tile(L * x, (n, 1)))
    k = setting(n=n, omega=d - 1.0, constants=Constants(L=L, L_i=(L,) * n))
    A = (1 / formula("dcgd", "pl")(k) - L) / 2
    assert have == pytest.approx(2 * A * L * float(x @ x) / 2, rel=1e-12)


def test_pp_marina():
    """Clients whose gradient changes cancel: E||(1/r) sum Q(a_i) - 0||^2 = (1 + omega)/r mean||a_i||^2."""
    d, L, r, p = 2, 2.0, 1, 0.25
    move = np.array([0.5, 1.5])
    changes = np.stack([L * move, -L * move])
    have = np.mean([(d * a[j]) ** 2 for a in changes for j in range(d)])  # a drawn client, one mask
    k = setting(n=2, omega=d - 1.0, p=p, clients=r, constants=Constants(L=0.1, L_i=(L, L)))
    assert (1 - p) * have == pytest.approx(formula("pp_marina")(k).B * float(move @ move))


def test_the_shift_of_diana():
    """E||h + a Q(v) - (h + v)||^2 = (1 - a)||v||^2 with a = 1/(1 + omega), Rand-1."""
    v = np.array([1.0, -2.0, 0.5])
    d, omega = 3, 2.0
    a = formula("diana")(setting(omega=omega, a=1 / 3)).rho * 2
    have = np.mean([np.square(a * d * v * (np.arange(d) == j) - v).sum() for j in range(d)])
    assert have == pytest.approx((1 - a) * float(v @ v), rel=1e-12)


def test_three_point_compressors():
    """v2: E||b - x||^2 = ||h - y||^2 + omega ||x - y||^2 for Rand-1, and C leaves 1 - alpha of a flat vector."""
    rate = formula("three_pc_v2")(setting(alpha=0.25, first=Held(omega=3.0)))
    flat = np.ones(4)
    left = flat.copy()
    left[0] = 0  # Top-1 of 4 equal coordinates
    assert left @ left == pytest.approx((1 - 0.25) * (flat @ flat))
    assert (rate.rho, rate.B) == pytest.approx((0.25, 0.75 * 3.0 * 3.5**2))


# Compressors whose constant a step relies on ------------------------------------------------------


@pytest.mark.parametrize(("s", "d"), [(2, 4), (3, 9), (2, 100), (8, 16), (1, 4), (1, 25)])
def test_omega_of_dithering_with_the_largest_norm(s, d):
    """min{d/(4 s^2), (1 + sqrt d)/(2 s)}, and (sqrt(d) - 1)/2 for s = 1: more than vectors take that are hard for it.

    Half way between two levels a coordinate varies by 1/(4 s^2); at (1, c, .., c) with c = 1/(1 + sqrt d) by c (1 - c).
    """
    omega = raybench.compressor(f"dithering:s={s},p=inf").omega(d)
    if s == 1:
        c = 1 / (1 + math.sqrt(d))
        assert omega == raybench.compressor("terngrad").omega(d)
        assert omega == pytest.approx((d - 1) * c * (1 - c) / (1 + (d - 1) * c * c), rel=1e-12)
    else:
        least = (d - 1) / (4 * s * s)
        assert omega == pytest.approx(min(d / (4 * s * s), (1 + math.sqrt(d)) / (2 * s)), rel=1e-12)
        assert omega >= least / (1 + least)


@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
def test_the_lazy_gate_reaches_its_omega(p):
    """1/p - 1 exactly, for every x: what is sent has the chance p and the factor 1/p."""
    operator, x = raybench.compressor(f"lazy:p={p}"), torch.tensor([3.0, -4.0]).double()
    assert operator.omega(2) == pytest.approx(1 / p - 1, rel=1e-12)
    many = x.expand(400_000, -1)
    sent = operator.compress(many, stream=raybench.stream(seed=7).spread((len(many),))).decode()
    share = float((sent[:, 0] != 0).double().mean())
    assert share == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / len(many)))
    assert torch.allclose(sent[sent[:, 0] != 0][0] * p, x)
