"""Exact identities of the methods: what must hold in every round, to rounding."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import ConvexL1, Counterexample, descend, each_round, full_gradients, path, registered

from raybench.algorithms.power_sgd import orthonormal
from raybench.execution.build import GRAPHS, mixing
from raybench.execution.resolve import problem_of
from raybench.testing.trial import DATA, Method, finished, started
from raybench.wire.ledger import COLUMNS

P1 = {"name": "quadratic", "dim": 12, "clients": 7, "mu": 0.05, "seed": 3}
MATRIX = {"name": "quadratic", "shape": [[5, 4]], "clients": 3, "mu": 0.05}
TOP, RAND = {"name": "top_k", "k": 3}, {"name": "rand_k", "k": 3}
FAR = {"x0": {"normal": 2.0}}


def on_p1(name, compressor=None, rounds=60, **rest) -> Method:
    return Method(name, rest.pop("params", {}), compressor, P1, rounds=rounds, more=FAR, **rest)


def largest(a, b) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


# I1, I2: the server's state is the mean of the clients' --------------------------------------


@pytest.mark.parametrize(
    ("name", "params", "compressor"),
    [
        ("ef21", {"init": "compressed"}, TOP),
        ("ef21", {"init": "full"}, TOP),
        ("ef21", {"init": "zero"}, RAND),
        ("ef21", {}, "natural"),
        ("ef21_pp", {"p": 0.3}, TOP),
        ("ef21_pp", {"p": 0.3}, "natural"),
    ],
)
def test_server_estimate_is_the_mean_of_the_clients(name, params, compressor):
    run = started(on_p1(name, compressor, 300, params=params).batch((1.0, 4.0), (0, 1)))
    gaps = each_round(run, lambda r: largest(r.s.g, r.c.g.mean(1)))
    assert max(gaps) < 1e-12
    assert float(run.s.g.abs().max()) > 0


def test_ef21_plus_server_knows_every_client():
    run = started(on_p1("ef21_plus", TOP).batch((1.0, 16.0), (0, 1)))
    gaps = each_round(run, lambda r: max(largest(r.s.G, r.c.g), largest(r.s.g, r.c.g.mean(1))))
    assert max(gaps) < 1e-12


def test_ef21_plus_is_never_further_than_either_choice():
    run = started(on_p1("ef21_plus", TOP, 80).batch((16.0,), (0,)))

    def look(r):
        grads = full_gradients(r)
        return (r.c.g - grads).square().sum(-1), r.a.C(grads, r.net.stream("up")).decode() - grads

    for own, anew in each_round(run, look)[1:]:
        assert (own <= anew.square().sum(-1) + 1e-12).all()


def test_ef21_bc_keeps_both_means():
    method = on_p1("ef21_bc", TOP, downlink={"name": "top_k", "k": 5})
    gaps = each_round(started(method.batch()), lambda r: largest(r.s.w, r.c.g.mean(1)))
    assert max(gaps) < 1e-12


@pytest.mark.parametrize("compressor", [RAND, "natural", {**RAND, "mask": "common"}])
def test_diana_shift_is_the_mean(compressor):
    run = started(on_p1("diana", compressor).batch((1.0, 2.0), (0, 1)))
    assert max(each_round(run, lambda r: largest(r.s.h, r.c.h.mean(1)))) < 1e-12
    assert float(run.s.h.abs().max()) > 0


# I3, I4: what is held back is kept -----------------------------------------------------------


@pytest.mark.parametrize("compressor", [TOP, RAND, "scaled_sign"])
def test_ef14_virtual_iterate_follows_plain_steps(compressor):
    method = on_p1("ef14", compressor, step=0.02)
    look = each_round(
        started(method.batch((1.0, 3.0), (0, 1))),
        lambda r: (r.s.x - r.c.e.mean(1), full_gradients(r).mean(1)),
    )
    gammas = torch.tensor([[0.02], [0.06]], dtype=torch.float64)
    for (now, grad), (then, _) in pairwise(look):
        assert largest(then, now - gammas * grad) < 1e-13


@pytest.mark.parametrize("error", ["own", "shared"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_power_sgd_conserves_gradients(rank, error):
    params = {"rank": rank, "error": error}
    method = Method("power_sgd", params, None, MATRIX, step=0.05, more=FAR)
    run = started(method.batch((1.0, 2.0), (0, 1)))
    seen = each_round(run, lambda r: (r.s.x.clone(), full_gradients(r).mean(1), r.c.e.mean(1)))
    gammas, total = torch.tensor([[0.05], [0.1]], dtype=torch.float64), torch.zeros(2, 20).double()
    for (_, grad, _), (x, _, error) in pairwise(seen):
        total = total + grad
        steps = (seen[0][0] - x) / gammas
        assert largest(total, steps + error) < 1e-10
        assert float(error.abs().max()) > 1e-6


def test_power_sgd_of_full_rank_is_gradient_descent():
    run = started(Method("power_sgd", {"rank": 4}, None, MATRIX, step=0.1, rounds=300).batch())
    want = descend(started(Method("gd", {}, None, MATRIX, step=0.1, rounds=300).batch()), 0.1)
    assert largest(path(run), want) < 1e-8


def test_power_sgd_compresses_after_its_dense_rounds():
    more = {"momentum": 0.5, "nesterov": False}
    chosen = Method("power_sgd", {"dense_rounds": 4, **more}, None, MATRIX, step=0.05, rounds=9)
    run, plain = (
        started(chosen.batch()),
        started(Method("heavy_ball", {"momentum": 0.5}, None, MATRIX, step=0.05, rounds=9).batch()),
    )
    d = run.problem.dim
    for t in range(1, 10):
        run.advance(1)
        plain.advance(1)
        assert (largest(run.s.x, plain.s.x) < 1e-12) == (t <= 4), t
        assert (float(run.c.e.abs().max()) == 0) == (t <= 4), t
        if t <= 4:
            assert run.net.ledger.up[COLUMNS.index("values")].tolist() == [t * d]
    sent = run.net.ledger.up[COLUMNS.index("values")]
    assert (sent < 9 * d).all()


def test_ef21_prox_is_the_step_of_ef21_on_a_problem_with_a_penalty(convex):
    problem, operator = {"name": "convex_l1", "weight": 0.2}, {"name": "top_k", "k": 3}
    prox, plain = (
        finished(Method(name, {}, operator, problem, rounds=1500, more=FAR).batch())
        for name in ("ef21_prox", "ef21")
    )
    assert torch.equal(prox.s.x, plain.s.x)
    x, L = prox.s.x, prox.problem.constants.L
    grad = prox.problem.oracle(x)[0].mean(1)
    assert largest(x, prox.problem.prox(x - grad / L, 1 / L)) < 1e-9
    assert 0 < int((x == 0).sum()) < prox.problem.dim


def test_power_sgd_survives_zero_and_rank_deficient_gradients():
    for P in (torch.zeros(2, 5, 3), torch.ones(2, 5, 3), torch.eye(5)[None, :, :3]):
        Q = orthonormal(P.double())
        assert torch.isfinite(Q).all()
        eye = torch.eye(3, dtype=torch.float64).expand(len(Q), 3, 3)
        assert torch.allclose(Q.mT @ Q, eye, atol=1e-12)


# I5, I6, I7: special cases that are gradient descent, or one another -------------------------


@pytest.mark.parametrize(
    ("name", "params", "downlink"),
    [
        ("ef21", {"init": "full"}, None),
        ("ef21", {"init": "compressed"}, None),
        ("ef21_plus", {}, None),
        ("ef21_pp", {"p": 1.0}, None),
        ("ef21_bc", {}, "identity"),
        ("ef14", {}, None),
        ("dcgd", {}, None),
        ("diana", {"alpha": 0.3}, None),
        ("diana", {}, None),
        ("marina", {"p": 0.2}, None),
        ("marina", {"p": 1.0}, None),
    ],
)
def test_identity_compressor_is_gradient_descent(name, params, downlink):
    method = on_p1(name, "identity", 300, params=params, downlink=downlink, step=0.3)
    run = started(method.batch((1.0, 0.5), (0, 1)))
    plain = descend(started(on_p1("gd", None, 300, step=0.3).batch((1.0,), (0,))), 0.3)
    got = path(run)
    assert largest(got[:, :1], plain) < 1e-8
    assert largest(got[:, :1], got[:, 1:]) > 1e-3  # the other cell is another one


@pytest.mark.parametrize("compressor", [RAND, "natural"])
def test_marina_that_always_synchronises_is_gradient_descent(compressor):
    run = started(on_p1("marina", compressor, 300, params={"p": 1.0}, step=0.3).batch())
    plain = descend(started(on_p1("gd", None, 300, step=0.3).batch()), 0.3)
    assert largest(path(run), plain) < 1e-8


def test_vr_marina_that_always_synchronises_is_gradient_descent():
    problem = {"name": "least_squares", **DATA}
    args = {"problem": problem, "rounds": 100, "step": 0.05}
    run = started(Method("vr_marina", {"p": 1.0, "batch": 3}, RAND, **args).batch())
    plain = descend(started(Method("gd", **args).batch()), 0.05)
    assert largest(path(run), plain) < 1e-10


@pytest.mark.parametrize("compressor", [RAND, "natural", {**RAND, "mask": "common"}])
def test_diana_that_does_not_learn_is_dcgd(compressor):
    batch = {"multiples": (1.0, 0.5), "seeds": (4, 5)}
    diana = on_p1("diana", compressor, params={"alpha": 0.0}, step=0.02).batch(**batch)
    dcgd = on_p1("dcgd", compressor, step=0.02).batch(**batch)
    assert largest(path(started(diana)), path(started(dcgd))) < 1e-10


def test_ef21_pp_in_which_all_take_part_is_ef21():
    ours = on_p1("ef21_pp", RAND, params={"p": 1.0}, step=0.02).batch((1.0, 2.0), (0, 1))
    theirs = on_p1("ef21", RAND, step=0.02).batch((1.0, 2.0), (0, 1))
    assert np.array_equal(path(started(ours)), path(started(theirs)))


def test_ef21_bc_with_an_open_downlink_is_ef21():
    ours = on_p1("ef21_bc", TOP, downlink="identity", step=0.02).batch()
    theirs = on_p1("ef21", TOP, step=0.02).batch()
    assert largest(path(started(ours)), path(started(theirs))) < 1e-10


@pytest.mark.parametrize("clients", [1, 4, 7])
@pytest.mark.parametrize(
    ("compressor", "p"), [("identity", 0.3), ({"name": "rand_k", "k": 5}, 1.0)]
)
def test_vertical_marina_is_gradient_descent(clients, compressor, p):
    problem = {"name": "vertical_least_squares", **DATA, "clients": clients}
    args = {"compressor": compressor, "problem": problem, "more": {"x0": "problem"}}
    method = Method("vertical_marina", {"p": p}, **args)
    gamma = 1 / problem_of(method.cell().cell.problem).constants.L
    run = started(Method("vertical_marina", {"p": p}, **args, step=gamma, rounds=300).batch())
    x, got = run.s.x.clone(), path(run)
    assert float(x.abs().max()) > 0
    for now in got:
        assert largest(now, x) < 1e-8
        x = x - gamma * run.problem.oracle(x, loss=False)[0][:, 0]


# I8: nothing sent, nothing moves -------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "params"),
    [("ef21", {"init": "zero"}), ("diana", {"alpha": 0.5}), ("dcgd", {}), ("ef14", {})],
)
def test_zero_compressor_freezes_the_model(name, params):
    run = finished(on_p1(name, "zero", params=params, step=0.3).batch())
    assert largest(run.s.x, started(run.batch).s.x) == 0
    assert run.bits("up") == 0


# I9: the counterexample ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def counterexample():
    with registered("problem", counterexample=Counterexample):
        yield {"name": "counterexample"}


def on_counterexample(name, problem, rounds, step=None, compressor=None, **params):
    top = {"name": "top_k", "k": 1}
    return Method(
        name, params, compressor or top, problem, step=step, rounds=rounds, more={"x0": "problem"}
    )


def test_dcgd_with_top_1_blows_up_exactly(counterexample):
    """x stays on (t, t, t), and t grows by 1 + 11 gamma/6 a round: exactly, but for rounding.

    A round multiplies what lies across that line by 1 - 61 gamma/6. What rounding puts there (at most 100
    half units in the last place a round) grows, next to t, by the ratio of the two factors.
    """
    steps, rounds = (1e-3, 0.1, 1.0), 12
    run = started(on_counterexample("dcgd", counterexample, rounds, step=1.0).batch(steps, (0,)))
    got = path(run)
    for k, gamma in enumerate(steps):
        along = 1 + 11 * gamma / 6
        amplified = sum(abs((1 - 61 * gamma / 6) / along) ** t for t in range(rounds))
        ratios = got[1:, k] / got[:-1, k]
        assert np.abs(ratios / along - 1).max() < 100 * np.finfo(float).eps * amplified


def test_counterexample_constants(counterexample):
    c = problem_of(on_counterexample("ef21", counterexample, 1).cell().cell.problem).constants
    assert pytest.approx(103 / 6) == c.L
    assert c.L_i == pytest.approx((69 / 2,) * 3)
    assert c.mu == pytest.approx(7 / 6)
    assert on_counterexample("ef21", counterexample, 1).cell().step_size == pytest.approx(
        0.005859, abs=5e-7
    )


@pytest.mark.parametrize("name", ["ef21", "ef14", "ef21_plus"])
def test_error_feedback_converges_on_it(counterexample, name):
    gamma = on_counterexample("ef21", counterexample, 1).cell().step_size
    run = finished(on_counterexample(name, counterexample, 6_000, step=gamma).batch(), every=6_000)
    assert run.status[0] == "ok"
    assert float(run.s.x.abs().max()) < 1e-14


# EF14's floor --------------------------------------------------------------------------------


def test_ef14_stalls_at_a_floor_that_grows_with_the_step_and_ef21_does_not():
    problem = {"name": "quadratic", "dim": 8, "clients": 5, "mu": 0.3, "seed": 1}
    args = {"compressor": {"name": "top_k", "k": 2}, "problem": problem, "rounds": 6_000}
    gamma = Method("ef21", **args).cell().step_size
    multiples = (1.0, 4.0, 16.0)
    last = {}
    for name in ("ef14", "ef21"):
        run = finished(Method(name, step=gamma, **args).batch(multiples), every=10)
        assert (run.status == "ok").all()
        last[name] = run.recorder.column("grad_norm_sq")[:, -50:].mean(1)
    assert (last["ef21"] < 1e-18).all(), last
    assert (last["ef14"] > 1e-8).all(), last
    assert (last["ef14"][1:] > 3 * last["ef14"][:-1]).all(), last


# I12: decentralised --------------------------------------------------------------------------


@pytest.mark.parametrize("graph", sorted(GRAPHS))
@pytest.mark.parametrize("compressor", ["natural", {"name": "dithering", "s": 15}, "identity"])
def test_prox_lead_keeps_its_sums(graph, compressor):
    method = Method("prox_lead", {}, compressor, P1, rounds=40, more={**FAR, "graph": graph})
    run = started(method.batch((1.0, 0.5), (0, 1)))
    W = mixing(graph, 7).W

    def look(r):
        sums = float(r.c.D.sum(1).abs().max()) / max(1.0, float(r.c.D.abs().max()))
        return sums, largest(r.c.Hw, torch.einsum("ij,bjd->bid", W, r.c.H))

    seen = np.array(each_round(run, look))
    assert seen.max() < 1e-12
    assert float(run.c.D.abs().max()) > 0


@pytest.fixture(scope="module")
def convex():
    with registered("problem", convex_l1=ConvexL1):
        yield


@pytest.mark.parametrize("compressor", ["natural", {"name": "dithering", "s": 15}, "identity"])
@pytest.mark.parametrize("weight", [0.0, 0.2])
def test_prox_lead_is_exact_on_a_ring(convex, compressor, weight):
    problem = {"name": "convex_l1", "weight": weight}
    method = Method("prox_lead", {}, compressor, problem, rounds=600, more=FAR)
    run = finished(method.batch(), every=5)
    norms, apart = (run.recorder.column(n)[0] for n in ("grad_norm_sq", "consensus_error"))
    assert apart[0] < 1e-20
    assert apart.max() > 1e-4  # the clients disagree on the way
    assert norms[-1] < 1e-20 * norms[0], norms
    assert apart[-1] < 1e-20, apart
    zeros = int((run.a.point(run.net, run.s, run.c).abs() < 1e-12).sum())
    assert (0 < zeros < run.problem.dim) if weight else zeros == 0


@given(st.sampled_from(sorted(GRAPHS)), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_mixing_matrices(name, n):
    W, degrees = mixing(name, n)
    values = torch.linalg.eigvalsh(W)
    assert torch.equal(W, W.T)
    assert largest(W.sum(1), torch.ones(n)) < 1e-12
    assert float(W.min()) >= 0
    assert values[0] > -1 + 1e-9
    assert values[-1] == pytest.approx(1)
    assert n == 1 or values[-2] < 1 - 1e-6  # connected
    assert torch.equal(degrees, ((torch.eye(n) == 0) & (W > 0)).sum(1).double())
