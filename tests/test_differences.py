"""Gradient differences: MARINA, DIANA and DASHA with their relatives, against what is known of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from toys import descend, each_round, full_gradients, path

from raybench.core.errors import InputError
from raybench.execution.resolve import Skip, problem_of
from raybench.testing.trial import DATA, Method, finished, started
from raybench.wire.ledger import COLUMNS

P1 = {"name": "quadratic", "dim": 12, "clients": 6, "mu": 0.05, "heterogeneity": 0.7, "seed": 3}
SAMPLES = {"name": "least_squares", **DATA, "regularizer": "l2", "lambda": 0.5}
CHAIN = {"name": "tridiagonal", "dim": 12, "clients": 4, "noise": 0.5, "lambda": 0.01}
RAND = {"name": "rand_k", "k": 3}
COMMON = {**RAND, "mask": "common"}
FAR = {"x0": {"normal": 1.0}}


def on(problem, name, compressor=None, rounds=60, **rest) -> Method:
    return Method(
        name, rest.pop("params", {}), compressor, problem, rounds=rounds, more=FAR, **rest
    )


def largest(a, b) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


def title(value) -> str:
    if isinstance(value, dict):
        return "-".join(str(v) for v in value.values() if not isinstance(v, list))
    return str(value)


# I1, I2: the server's state is the mean of the clients' --------------------------------------


@pytest.mark.parametrize("name", ["dasha", "dasha_page", "dasha_mvr", "dasha_sync_mvr"])
@pytest.mark.parametrize("compressor", [RAND, "natural", "perm_k"], ids=title)
def test_server_estimate_is_the_mean_of_the_clients(name, compressor):
    params = {"p": 0.3} if name in ("dasha_page", "dasha_sync_mvr") else {}
    method = on(SAMPLES, name, compressor, params=params, step=0.02)
    run = started(method.batch((1.0, 2.0), (0, 1)))
    assert max(each_round(run, lambda r: largest(r.s.g, r.c.g.mean(1)))) < 1e-12
    assert float((run.c.g - run.c.h).abs().max()) > 1e-6


@pytest.mark.parametrize(
    ("name", "params"),
    [("adiana", {"mu": 0.05}), ("vr_diana", {}), ("vr_diana", {"estimator": "saga", "batch": 3})],
)
def test_server_shift_is_the_mean(name, params):
    run = started(on(SAMPLES, name, RAND, params=params, step=0.02).batch((1.0, 2.0), (0, 1)))
    assert max(each_round(run, lambda r: largest(r.s.h, r.c.h.mean(1)))) < 1e-12
    assert float(run.s.h.abs().max()) > 0


def test_saga_knows_the_mean_of_its_table():
    params = {"estimator": "saga", "batch": 8}  # of 12 samples, so some are drawn twice
    run = started(on(SAMPLES, "vr_diana", RAND, params=params, step=0.02).batch())
    assert max(each_round(run, lambda r: largest(r.c.full, r.c.table.mean(2)))) < 1e-12
    assert float(run.c.table.abs().min(-1).values.max()) > 0


def test_saga_refuses_tables_that_fill_the_memory(monkeypatch):
    monkeypatch.setattr("raybench.algorithms.vr_diana.MOST_TABLE_VALUES", 5 * 12 * 30 - 1)
    run = started(on(SAMPLES, "vr_diana", RAND, params={"estimator": "saga"}, step=0.02).batch())
    with pytest.raises(InputError, match="lsvrg needs none"):
        run.advance(1)


# I5, I6: special cases that are gradient descent ---------------------------------------------


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("dasha", {}),
        ("dasha", {"alpha": 0.3}),
        ("dasha_page", {"p": 0.3}),
        ("dasha_mvr", {"momentum": 0.2}),
        ("dasha_sync_mvr", {"p": 0.3}),
        ("vr_marina", {"p": 0.3}),
        ("vr_diana", {}),
        ("vr_diana", {"estimator": "saga", "alpha": 0.3}),
        ("pp_marina", {"p": 1.0}),
    ],
    ids=title,
)
def test_identity_compressor_is_gradient_descent(name, params):
    """With one sample per client, of which a minibatch is the whole."""
    run = started(on(P1, name, "identity", 300, params=params, step=0.3).batch((1.0, 0.5), (0, 1)))
    plain = descend(started(on(P1, "gd", None, 300, step=0.3).batch((1.0,), (0,))), 0.3)
    got = path(run)
    assert largest(got[:, :1], plain) < 1e-8
    assert largest(got[:, :1], got[:, 1:]) > 1e-3  # the other cell is another one


@pytest.mark.parametrize("name", ["pp_marina", "vr_marina", "dasha_sync_mvr", "dasha_page"])
def test_full_gradients_each_round_are_gradient_descent(name):
    compressor = "identity" if name == "dasha_page" else RAND
    method = on(SAMPLES, name, compressor, 100, params={"p": 1.0}, step=0.05)
    plain = descend(started(on(SAMPLES, "gd", None, 100, step=0.05).batch()), 0.05)
    assert largest(path(started(method.batch())), plain) < 1e-10


@pytest.mark.parametrize("n", [2, 3, 6])
@pytest.mark.parametrize("name", ["marina", "dasha"])
def test_perm_k_on_equal_clients_is_gradient_descent(name, n):
    """All clients alike and no coin: the blocks make up the whole difference."""
    problem = {**CHAIN, "clients": n, "noise": 0.0}
    # DASHA's g_i are not alike: only their mean
    params = {"p" if name == "marina" else "alpha": 1e-12}
    run = started(on(problem, name, "perm_k", 300, params=params, step=0.4).batch())
    plain = descend(started(on(problem, "gd", None, 300, step=0.4).batch()), 0.4)
    assert largest(path(run), plain) < 1e-8
    own = {**RAND, "k": 12 // n}  # blocks drawn apart do not
    other = started(on(problem, name, own, 30, params=params, step=0.4).batch())
    assert largest(path(other), plain[:31]) > 1e-3


@pytest.mark.parametrize("name", ["marina", "diana", "dasha", "pp_marina"])
def test_perm_k_of_one_client_is_the_identity(name):
    ours, theirs = (
        on({**P1, "clients": 1}, name, q, params={}, step=0.1) for q in ("perm_k", "identity")
    )
    assert ours.cell().params == theirs.cell().params
    assert largest(path(started(ours.batch())), path(started(theirs.batch()))) < 1e-12


# I7 and other reductions ---------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["lsvrg", "saga"])
@pytest.mark.parametrize("compressor", [RAND, "natural"], ids=title)
def test_vr_diana_on_one_sample_per_client_is_diana(estimator, compressor):
    problem = {**SAMPLES, "rows": 40, "clients": 40}
    args = {"rounds": 100, "step": 0.05}
    ours = on(problem, "vr_diana", compressor, params={"estimator": estimator}, **args)
    theirs = on(problem, "diana", compressor, **args)
    runs = [started(m.batch((1.0, 0.5), (4, 5))) for m in (ours, theirs)]
    assert runs[0].problem.samples == (1,) * 40
    assert largest(*map(path, runs)) < 1e-10


@pytest.mark.parametrize("name", ["diana", "vr_diana"])
def test_diana_that_does_not_learn_is_dcgd(name):
    ours = on(P1, name, RAND, params={"alpha": 0.0}, step=0.02).batch((1.0, 0.5), (4, 5))
    theirs = on(P1, "dcgd", RAND, step=0.02).batch((1.0, 0.5), (4, 5))
    assert largest(path(started(ours)), path(started(theirs))) < 1e-10


def test_pp_marina_of_one_client_is_marina():
    """Drawn once a round; and the more often it is drawn, the nearer to its full gradient."""
    problem = {**P1, "clients": 1}
    ours = on(problem, "pp_marina", RAND, params={"p": 0.2}, step=0.1).batch((1.0, 0.5), (0, 1))
    theirs = on(problem, "marina", RAND, params={"p": 0.2}, step=0.1).batch((1.0, 0.5), (0, 1))
    assert np.array_equal(path(started(ours)), path(started(theirs)))
    error = []
    for r in (1, 8):
        method = on(problem, "pp_marina", RAND, 1, params={"p": 1e-12, "clients": r}, step=0.1)
        run = finished(method.batch((1.0,), range(200)))
        error.append(float((run.s.g - full_gradients(run)[:, 0]).square().sum(-1).mean()))
    assert error[1] == pytest.approx(error[0] / 8, rel=0.25)


def test_dasha_mvr_that_forgets_all_is_dasha_on_minibatches():
    run = started(on(SAMPLES, "dasha_mvr", RAND, 5, params={"momentum": 1.0}, step=0.02).batch())
    for _ in range(5):
        run.advance(1)
        assert torch.equal(run.c.h, run.net.grad(run.s.x, run.net.sample("batch", 1)))


# What is sent, what is evaluated -------------------------------------------------------------


def largest_message(run) -> int:
    """Return the bytes of the largest message of a client after the start."""
    run.advance(0)
    seen, up = [0], run.net.up

    def listening(message):
        seen.append(int(torch.as_tensor(message.nbytes).max()))
        return up(message)

    run.net.up = listening
    run.advance(run.rounds)
    return max(seen)


@pytest.mark.parametrize("name", ["dasha", "dasha_page", "dasha_mvr", "diana", "vr_diana"])
def test_no_dense_message_after_the_start(name):
    run = started(on(SAMPLES, name, RAND, step=0.02).batch((1.0, 0.5), (0, 1)))
    assert largest_message(run) == 3 * 8


def test_marina_sends_dense_messages():
    for name in ("marina", "vr_marina", "pp_marina", "dasha_sync_mvr"):
        run = started(on(SAMPLES, name, RAND, params={"p": 0.3}, step=0.02).batch())
        assert largest_message(run) == 8 * run.problem.dim, name


@pytest.mark.parametrize("r", [1, 4, 20])
def test_pp_marina_sends_one_message_per_draw(r):
    """Also where a client is drawn twice: r messages among 6 clients in each round without a coin."""
    method = on(P1, "pp_marina", RAND, 100, params={"p": 0.3, "clients": r}, step=0.01)
    run = started(method.batch((1.0, 0.5), (0, 1)))
    column = COLUMNS.index("bytes")
    booked = np.diff(each_round(run, lambda r: r.net.ledger.up[column].copy()), axis=0)
    assert {round(v, 9) for v in booked.flat} == {12 * 8.0, round(r / 6 * 3 * 8, 9)}


def test_gradient_evaluations():
    """Per client, of m = 12 samples; a minibatch costs 3, and its second point as much."""

    def spent(name, compressor=RAND, rounds=100, **params):
        method = on(SAMPLES, name, compressor, rounds, params=params, step=0.01)
        return np.diff(finished(method.batch()).recorder.column("grad_evals")[0])

    assert set(spent("vr_marina", p=0.3, batch=3, big=5)) == {5.0, 6.0}
    assert set(spent("dasha_sync_mvr", p=0.3, batch=3)) == {12.0, 6.0}
    assert set(spent("dasha_mvr", batch=3)) == {6.0}
    assert set(spent("vr_diana", p=0.3, batch=3)) == {6.0, 18.0}
    assert set(spent("vr_diana", estimator="saga", batch=3)) == {3.0}
    pages = spent("dasha_page", p=0.5, batch=3)  # each of 5 clients on its own: 6 or 12
    assert set(pages.round(9)) == {6 + 1.2 * j for j in range(6)}
    assert pages.mean() == pytest.approx(9, abs=0.6)
    # two of 5 clients at both points, or one drawn twice; the start's gradient is remembered
    drawn = spent("pp_marina", p=0.3, clients=2)[1:]
    assert set(drawn.round(9)) == {12.0, round(48 / 5, 9), round(24 / 5, 9)}
    assert set(spent("dasha")) == {12.0}


# Numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 4, 6, 12])
def test_perm_k_marina_has_the_paper_s_numbers(n):
    cell = on({**CHAIN, "clients": n}, "marina", "perm_k").cell()
    c = problem_of(cell.cell.problem).constants
    assert cell.params["p"] == pytest.approx(1 / n, rel=1e-12)
    assert cell.step_size == pytest.approx(1 / (c.L + math.sqrt(n - 1) * c.L_pm), rel=1e-9)


def test_numbers_left_to_the_methods():
    def numbers(problem, name, compressor=RAND, **params):
        return on(problem, name, compressor, params=params).cell().params

    assert numbers(P1, "pp_marina", clients=2)["p"] == pytest.approx(3 / 12 * 2 / 6)
    assert numbers(P1, "dasha")["alpha"] == pytest.approx(1 / 7)  # omega = 3
    assert numbers(SAMPLES, "dasha_page", batch=3)["p"] == pytest.approx(3 / 15)
    assert numbers(SAMPLES, "vr_marina", "identity", batch=2, big=6)["p"] == pytest.approx(2 / 8)
    assert numbers(SAMPLES, "dasha_sync_mvr", "identity", batch=2)["p"] == pytest.approx(2 / 14)
    assert numbers(SAMPLES, "vr_diana")["p"] == pytest.approx(1 / 12)
    assert numbers(SAMPLES, "vr_diana", batch=3)["p"] == pytest.approx(3 / 12)
    assert numbers(SAMPLES, "vr_diana", batch=30)["p"] == 1
    got = numbers({**CHAIN, "clients": 4}, "adiana")
    assert got["p"] == pytest.approx(1 / 8)  # omega = 3: max{1, ..}/(2 (1 + omega))
    assert got["mu"] == pytest.approx(0.01)
    assert got["alpha"] == pytest.approx(1 / 4)


def test_adiana_needs_strong_convexity():
    with pytest.raises(Skip, match="mu: auto has no value here"):
        on({"name": "nonconvex_classification", **DATA}, "adiana", RAND, step=0.1).cell()
    assert on(CHAIN, "adiana", RAND).cell().theory_step is None  # by rule: paper only
