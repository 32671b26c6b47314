"""The error feedback family: identities and reductions, and what its members cost."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from toys import descend, each_round, full_gradients, path

from raybench.algorithms.build import own_operators
from raybench.core import registry
from raybench.execution.resolve import Skip
from raybench.testing.trial import DATA, Method, finished, started

P1 = {"name": "quadratic", "dim": 12, "clients": 7, "mu": 0.05, "seed": 3}
NONCONVEX = {**P1, "dim": 10, "clients": 6, "heterogeneity": 0.7, "seed": 2}
SAMPLES = {"name": "least_squares", **DATA}
TOP, RAND = {"name": "top_k", "k": 3}, {"name": "rand_k", "k": 3}
FAR = {"x0": {"normal": 2.0}}
BOTH: dict[str, Any] = {"multiples": (1.0, 3.0), "seeds": (0, 1)}


def on_p1(name, compressor=TOP, rounds=60, problem=P1, more=FAR, **rest) -> Method:
    return Method(
        name, rest.pop("params", {}), compressor, problem, rounds=rounds, more=more, **rest
    )


def largest(a, b) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


def same_path(ours: Method, theirs: Method, tolerance: float = 0.0) -> None:
    one, two = (path(started(m.batch(**BOTH))) for m in (ours, theirs))
    assert largest(one, two) <= tolerance
    assert largest(one[0], one[-1]) > 0.1
    assert np.isfinite(one).all()


# I1: the server's state is the mean of the clients' ------------------------------------------

ESTIMATORS = [
    ("ef21_sgd", {"batch": 2}),
    ("ef21_sgdm", {"eta": 0.3, "batch": 2}),
    ("ef21_sgdm", {"eta": 0.3, "double": True, "batch": 1}),
    ("ef21_hb", {"eta": 0.5}),
    ("ef21_page", {"batch": 2}),
    ("ef21_w", {}),
    ("ef21_w", {"init": "full"}),
    ("ef21_w", {"init": "zero"}),
]


@pytest.mark.parametrize(("name", "params"), ESTIMATORS, ids=str)
@pytest.mark.parametrize("compressor", [TOP, "natural"], ids=["top_k", "natural"])
def test_server_estimate_is_the_mean_of_the_clients(name, params, compressor):
    method = on_p1(name, compressor, 60, SAMPLES, params=params)
    seen = each_round(started(method.batch(**BOTH)), lambda r: (largest(r.s.g, r.c.g.mean(1)), r))
    assert max(gap for gap, _ in seen) < 1e-12 * max(1.0, float(seen[-1][1].s.g.abs().max()))
    assert float(seen[-1][1].s.g.abs().max()) > 0


def test_ef21_w_weighs_by_smoothness():
    run = finished(on_p1("ef21_w", problem=NONCONVEX, rounds=2).batch())
    L = torch.tensor(run.problem.constants.L_i, dtype=torch.float64)
    assert torch.allclose(run.s.w[0], L / L.sum())
    assert float(L.max() / L.min()) > 1.5  # the weights are no equal ones
    assert largest(run.c.nw[0, :, 0], 6 * L / L.sum()) < 1e-12


# I3: virtual iterates ------------------------------------------------------------------------


def virtual_steps(run, error, grad=lambda r: full_gradients(r).mean(1)) -> float:
    """Return by how much x - error misses x - error - gamma grad of the round before, at most."""
    gammas = run.a.gamma.values[:, None]
    look = each_round(run, lambda r: (r.s.x - error(r), grad(r)))
    assert float(error(run).abs().max()) > 1e-6
    return max(largest(then, now - gammas * g) for (now, g), (then, _) in pairwise(look))


@pytest.mark.parametrize("compressor", [TOP, RAND, "scaled_sign"], ids=["top", "rand", "sign"])
def test_virtual_iterate_with_a_memory_of_gradients(compressor):
    run = started(on_p1("ef14", compressor, params={"memory": "gradient"}, step=0.02).batch(**BOTH))
    assert virtual_steps(run, lambda r: r.a.gamma * r.c.e.mean(1)) < 1e-13


@pytest.mark.parametrize("name", ["ef_sign_sgd", "ec_gd_star", "ec_diana"])
def test_virtual_iterate_with_a_memory_of_steps(name):
    run = started(on_p1(name, step=0.005).batch(**BOTH))
    assert virtual_steps(run, lambda r: r.c.e.mean(1)) < 1e-13


def test_virtual_iterate_of_one_bit_sgd():
    run = started(on_p1("one_bit_sgd", None, step=0.005).batch(**BOTH))
    assert virtual_steps(run, lambda r: r.a.gamma * r.c.e.mean(1)) < 1e-13


def test_virtual_iterate_of_double_squeeze_has_both_errors():
    method = on_p1("double_squeeze", downlink={"name": "top_k", "k": 4}, step=0.005)
    error = lambda r: r.a.gamma * (r.s.E + r.c.e.mean(1))  # noqa: E731
    assert virtual_steps(started(method.batch(**BOTH)), error) < 1e-13
    run = finished(method.batch())
    assert float(run.s.E.abs().max()) > 1e-3
    assert float(run.c.e.abs().max()) > 1e-3


def test_ec_diana_shift_is_the_mean():
    run = started(on_p1("ec_diana", params={"shift": "rand_k:k=2"}, step=0.005).batch(**BOTH))
    assert max(each_round(run, lambda r: largest(r.s.h, r.c.h.mean(1)))) < 1e-12
    assert float(run.s.h.abs().max()) > 0
    assert run.batch.cells[0].params["alpha"] == pytest.approx(2 / 12)  # 1/(1 + omega)


def test_ef21_plus_refuses_to_pass_on_sums():
    """A message that replaces g_i changes g by more than itself: the union would be too cheap."""
    with pytest.raises(Skip, match="is not its step"):
        on_p1("ef21_plus", downlink="aggregate", step=0.005).batch()


# Reductions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "params", "downlink"),
    [
        ("ef21_hb", {"eta": 0.0}, None),
        ("ef21_w", {}, None),
        ("ef21_sgd", {}, None),
        ("ef21_sgdm", {"eta": 1.0, "double": True}, None),
        ("ef21_page", {"p": 0.3}, None),
        ("ef21_p", {}, "identity"),
        ("ef14", {"memory": "gradient"}, None),
        ("ec_sgd", {}, None),
        ("ec_gd_star", {}, None),
        ("ec_diana", {}, None),
        ("ec_lsvrg", {"p": 0.3}, None),
        ("double_squeeze", {}, "identity"),
    ],
    ids=str,
)
def test_identity_operator_is_gradient_descent(name, params, downlink):
    """A quadratic has one sample per client: a minibatch is the full gradient."""
    method = on_p1(name, "identity", 300, params=params, downlink=downlink, step=0.3)
    got = path(started(method.batch((1.0, 0.5), (0, 1))))
    plain = descend(started(on_p1("gd", None, 300, step=0.3).batch()), 0.3)
    assert largest(got[:, :1], plain) < 1e-8
    assert largest(got[:, :1], got[:, 1:]) > 1e-3


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("ef21_pp", {"p": 1.0}),
        ("ef21_hb", {"eta": 0.0}),
        ("ef21_sgd", {}),
        ("ef21_sgdm", {"eta": 1.0}),
        ("ef21_sgdm", {"eta": 1.0, "double": True}),
        ("ef21_page", {"p": 1.0}),
    ],
    ids=str,
)
@pytest.mark.parametrize("compressor", [TOP, RAND], ids=["top_k", "rand_k"])
def test_it_is_ef21(name, params, compressor):
    """Without noise (one sample per client), eta = 1, p = 1 or no momentum."""
    ours, theirs = (
        on_p1(name, compressor, params=params, step=0.01),
        on_p1("ef21", compressor, step=0.01),
    )
    same_path(ours, theirs, 1e-13)


def test_ef21_w_of_a_homogeneous_operator_is_ef21():
    """Top-k commutes with positive factors, so weights change the theory only."""
    same_path(on_p1("ef21_w", step=0.02), on_p1("ef21", step=0.02), 1e-10)
    ours, theirs = on_p1("ef21_w").cell(), on_p1("ef21").cell()
    assert ours.step_size > 1.01 * theirs.step_size


def test_ef21_page_that_always_refreshes_is_ef21_on_data():
    args = {"problem": SAMPLES, "step": 0.05}
    same_path(on_p1("ef21_page", params={"p": 1.0}, **args), on_p1("ef21", **args), 1e-12)


def test_ef21_sgdm_of_weight_one_is_ef21_sgd():
    args = {"problem": SAMPLES, "step": 0.02}
    ours = on_p1("ef21_sgdm", params={"eta": 1.0, "batch": 3}, **args)
    same_path(ours, on_p1("ef21_sgd", params={"batch": 3}, **args), 1e-12)


def test_double_momentum_averages_the_average():
    method = on_p1("ef21_sgdm", "identity", 30, params={"eta": 0.3, "double": True}, step=0.1)
    look = each_round(
        started(method.batch()), lambda r: (r.c.v, r.c.u, r.s.g.clone(), full_gradients(r))
    )
    for (v, u, _, _), (v1, u1, g1, grad) in pairwise(look):
        assert largest(v1, 0.7 * v + 0.3 * grad) < 1e-13
        assert largest(u1, 0.7 * u + 0.3 * v1) < 1e-13
        assert largest(g1, u1.mean(1)) < 1e-12


def test_heavy_ball_is_written_out():
    method = on_p1("ef21_hb", "identity", 80, params={"eta": 0.8}, step=0.05)
    run = started(method.batch())
    x = run.s.x.clone()
    v, got = torch.zeros_like(x), path(run)
    for now in got:
        assert largest(now, x) < 1e-10
        v = 0.8 * v + run.problem.oracle(x, loss=False)[0].mean(1)
        x = x - 0.05 * v


def test_ef21_p_is_gradient_descent_with_a_compressed_broadcast():
    args = {"downlink": TOP, "step": 0.05}
    ours, theirs = (started(on_p1(n, None, **args).batch(**BOTH)) for n in ("ef21_p", "gd"))
    held = [np.stack(each_round(run, lambda r: r.s.x.clone().numpy())) for run in (ours, theirs)]
    assert np.array_equal(*held)
    assert largest(ours.a.point(ours.net, ours.s, ours.c), ours.s.x) > 0  # recorded at the server's
    assert ours.bits("down")[0] < 60 * 12 * 64 / 2
    assert ours.bits("up")[0] == 60 * 12 * 64


def test_memories_of_steps_and_of_gradients_coincide_for_constant_steps():
    one, two = (
        on_p1("ef14", params={"memory": memory}, step=0.01) for memory in ("step", "gradient")
    )
    same_path(one, two, 1e-12)
    falling = {**FAR, "rounds": 60, "step_size": {"value": 0.1, "schedule": "sqrt"}}
    paths = [
        path(started(on_p1("ef14", params={"memory": m}, more=falling).batch()))
        for m in ("step", "gradient")
    ]
    assert largest(*paths) > 1e-4


@pytest.mark.parametrize(
    ("name", "operator", "memory"),
    [("ef_sign_sgd", "scaled_sign", "step"), ("one_bit_sgd", "one_bit", "gradient")],
)
def test_methods_with_an_operator_of_their_own_are_ef14_with_it(name, operator, memory):
    ours = on_p1(name, None, step=0.01)
    theirs = on_p1("ef14", operator, params={"memory": memory}, step=0.01)
    same_path(ours, theirs)
    assert ours.cell().alpha == pytest.approx(1 / 12)
    runs = [finished(m.batch()) for m in (ours, theirs)]
    assert runs[0].bits("up") == runs[1].bits("up") < 60 * 12 * 16


def test_ec_sgd_on_one_sample_is_ef14():
    same_path(on_p1("ec_sgd", step=0.01), on_p1("ef14", step=0.01))


def test_ec_diana_that_does_not_learn_is_ef14():
    ours = on_p1("ec_diana", params={"alpha": 0.0}, step=0.01)
    same_path(ours, on_p1("ef14", step=0.01))


def test_ec_lsvrg_estimates_without_bias():
    """The mean of g_i over minibatches is grad f_i(x): averaged over seeds, within five deviations."""
    method = on_p1("ec_lsvrg", "identity", 4, SAMPLES, params={"p": 0.5}, step=0.02)
    run = started(method.batch((1.0,), range(400)))
    run.advance(3)
    run.net.begin(4)
    g = run.a.source(run.net, run.s, run.c)
    error = g - full_gradients(run)
    spread = error.std(0) / math.sqrt(400)
    assert float(spread.max()) > 1e-6
    assert (error.mean(0).abs() <= 5 * spread + 1e-12).all()


# Gradient evaluations and bits ---------------------------------------------------------------


def test_gradients_are_paid_for_by_those_who_take_them():
    """60 rows over 5 clients: m = 12 samples."""
    args = {"problem": SAMPLES, "rounds": 200, "step": 1e-3}
    page = on_p1("ef21_page", params={"p": 0.25, "batch": 2}, **args)
    evals = finished(page.batch((1.0,), range(8))).net.oracle.evals
    want = 12 + 200 * (0.25 * 12 + 0.75 * 2 * 2)
    assert evals.mean() == pytest.approx(want, rel=0.03)
    assert len(set(evals)) > 1
    svrg = finished(
        on_p1("ec_lsvrg", params={"p": 0.25, "batch": 2}, **args).batch((1.0,), range(8))
    )
    assert svrg.net.oracle.evals.mean() == pytest.approx(12 + 200 * (2 * 2 + 0.25 * 12), rel=0.03)
    sgdm = finished(on_p1("ef21_sgdm", params={"batch": 3}, **args).batch())
    assert sgdm.net.oracle.evals == 201 * 3
    assert (
        finished(on_p1("ec_sgd", params={"batch": 3}, **args).batch()).net.oracle.evals == 200 * 3
    )


def test_auto_probabilities():
    page = on_p1("ef21_page", problem=SAMPLES, params={"batch": 3}).cell()
    assert page.params["p"] == pytest.approx(3 / (12 + 3))
    assert on_p1("ec_lsvrg", problem=SAMPLES, step=1.0).cell().params["p"] == pytest.approx(1 / 12)


def test_ec_diana_books_both_messages_and_both_broadcasts():
    run = finished(on_p1("ec_diana", params={"shift": "rand_k:k=2"}, step=0.01).batch())
    plain = finished(on_p1("ef14", step=0.01).batch())
    assert run.bits("up") == plain.bits("up") + 60 * 2 * 64  # the seed of rand_k is known
    assert run.bits("down") == 2 * plain.bits("down")


# What does not fit ---------------------------------------------------------------------------


def test_a_biased_shift_is_skipped():
    with pytest.raises(Skip, match=r"algorithm\.shift.*biased"):
        on_p1("ec_diana", params={"shift": "top_k:k=2"}, step=0.01).cell()


def test_ec_gd_star_needs_a_minimiser():
    with pytest.raises(Skip, match="minimiser, which is not known"):
        on_p1("ec_gd_star", problem={**SAMPLES, "regularizer": "nonconvex"}, step=0.01).cell()


def test_double_momentum_has_no_step():
    with pytest.raises(Skip, match="double momentum"):
        on_p1("ef21_sgdm", params={"double": True})._resolved({"theory": 1.0}, 0)


def test_the_papers_step_of_ef21_sgdm():
    paper = on_p1("ef21_sgdm", params={"eta": 0.5}, rule="paper")
    c, cell = started(paper.batch()).problem.constants, paper.cell()
    assert cell.step_size == pytest.approx(min(cell.alpha / (20 * c.L_tilde), 0.5 / (7 * c.L)))


def test_operators_of_a_method_are_bound_to_their_roles():
    entry = registry.lookup("algorithm", "ec_diana")
    found = own_operators(entry, {"shift": "rand_k:k=25%"}, (12, 7, None))
    assert found["shift"].omega == pytest.approx(3.0)
