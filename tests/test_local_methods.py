"""Signs, local steps, 1-bit Adam: identities, fixed points, negative controls."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from practice_kit import FAR, P1, RAW, SAMPLES, TOP, VALUES, largest, on_p1, paths
from toys import each_round, full_gradients, registered

from raybench.problems.quadratic import Quadratic
from raybench.testing.trial import Method, finished, started


class Median(Quadratic):
    """f_i = (x_j - b_ij)^2/2 summed over j, b_i = 0, 0, 3: x* = 1 and the majority pulls to 0.

    The last coordinate is the same for all clients: x* = 1 there too, and the majority is right.
    """

    def __init__(self) -> None:
        A = torch.eye(3, dtype=torch.float64).repeat(3, 1, 1)
        b = torch.tensor([[0.0, 0, 1], [0, 0, 1], [3, 3, 1]], dtype=torch.float64)
        super().__init__(A, b)


class Idle(Quadratic):
    """f_i = sum over the first two coordinates of (x_j - b_ij)^2/2; the third has no gradient ever."""

    def __init__(self) -> None:
        A = torch.diag(torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)).repeat(2, 1, 1)
        super().__init__(A, torch.tensor([[1.0, 2, 0], [3, -1, 0]], dtype=torch.float64))


@pytest.fixture(scope="module", autouse=True)
def problems():
    with registered("problem", median=Median, idle=Idle):
        yield


# Signs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sign_sgd", "signum"])
def test_majority_vote(name):
    """The formula, ties at +1 (six clients), and d bits each way."""
    problem = {**P1, "clients": 6}
    params = {"decay": 0.1, **({"momentum": 0.6} if name == "signum" else {})}
    run = started(Method(name, params, None, problem, step=0.05, rounds=40, more=FAR).batch())
    look = each_round(run, lambda r: (r.s.x.clone(), full_gradients(r)))
    m, ties = torch.zeros(1, 6, 12).double(), 0
    for (x, g), (then, _) in pairwise(look):
        m = 0.6 * m + 0.4 * g if name == "signum" else g
        votes = torch.where(m >= 0, 1, -1).sum(1)
        ties += int((votes == 0).sum())
        assert largest(then, x - 0.05 * (torch.where(votes >= 0, 1.0, -1.0) + 0.1 * x)) < 1e-14
    assert ties > 0
    for side in (run.net.ledger.up, run.net.ledger.down):
        assert side[RAW] == 40 * 12
        assert side[VALUES] == 0


def test_ties_by_coin():
    """Two clients that disagree everywhere: the vote is the server's coin, fair and the same for all."""
    problem = {**P1, "clients": 2, "dim": 200}
    run = started(Method("sign_sgd", {"ties": "random"}, None, problem, step=1.0, rounds=1).batch())
    g = full_gradients(run)
    run.advance(1)
    tie = (g[:, 0] >= 0) != (g[:, 1] >= 0)
    went = -run.s.x[tie]
    assert set(went.tolist()) == {-1.0, 1.0}
    assert abs(float(went.mean())) < 4 / tie.sum().item() ** 0.5
    assert torch.equal(-run.s.x[~tie], g[:, 0][~tie].sign())


def test_signum_without_momentum_is_sign_sgd():
    ours, theirs = paths(on_p1("signum", momentum=0.0), on_p1("sign_sgd"))
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("name", ["sign_sgd", "signum"])
def test_the_majority_stalls_on_heterogeneous_data(name):
    """Negative control: it goes to the median of the clients' minimisers at any step; descent does not."""
    args = {"problem": {"name": "median"}, "rounds": 1500}
    run = finished(Method(name, {}, None, step=0.1, **args).batch((1.0, 0.1, 0.01)), every=1500)
    for x, gamma in zip(run.s.x, (0.1, 0.01, 0.001), strict=True):
        assert (x[:2].abs() <= 20 * gamma).all()  # not 1
        assert abs(float(x[2]) - 1) <= 20 * gamma
    star = finished(Method("gd", {}, None, step=0.1, **args).batch(), every=1500).s.x
    assert largest(star, np.ones(3)) < 1e-12


def test_a_gradient_that_is_not_finite_stops_its_own_cell_only():
    run = started(on_p1("sign_sgd").batch((1.0, 0.5), (0, 1)))
    run.advance(3)
    run.s.x[0, 2] = torch.nan
    run.advance(60)
    assert run.status.tolist() == ["diverged", "ok"]


# Local steps ----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [3, "full"])
def test_one_local_step_is_sgd(batch):
    args = {"problem": SAMPLES, "step": 0.02}
    plain = Method("gd", {}, **args) if batch == "full" else Method("sgd", {"batch": 3}, **args)
    (want,) = paths(plain)
    for name in ("local_sgd", "fedprox", "scaffold"):
        (have,) = paths(Method(name, {"tau": 1, "batch": batch}, **args))
        assert largest(have, want) < 1e-12, name


def test_special_cases_of_local_steps():
    local, prox, pulled = paths(
        on_p1("local_sgd"), on_p1("fedprox", mu=0.0), on_p1("fedprox", mu=2.0)
    )
    assert np.array_equal(local, prox)
    assert largest(local, pulled) > 1e-3
    pairs = [
        (on_p1("local_sgd", tau=1, momentum=0.8), on_p1("heavy_ball", momentum=0.8)),
        (on_p1("local_ef21", TOP, tau=1), on_p1("ef21", TOP)),
        (on_p1("local_ef21", "identity", init="full", rounds=200), on_p1("local_sgd", rounds=200)),
    ]
    for ours, theirs in (paths(*pair) for pair in pairs):
        assert largest(ours, theirs) < 1e-10


def fixed_point(problem, gamma, tau, mu=0.0) -> torch.Tensor:
    """Where tau local steps from x lead back to x in the mean, by solving the affine map."""
    A, b = problem.A, problem.b
    x, y = torch.eye(12, dtype=torch.float64), torch.zeros(7, 12, 13, dtype=torch.float64)
    y[:, :, :12] = x  # as an affine function of x: columns of the matrix, then the constant
    start = y.clone()
    for _ in range(tau):
        slope = A @ y
        slope[:, :, 12] -= b
        y = y - gamma * (slope + mu * (y - start))
    mean = y.mean(0)
    return torch.linalg.solve(x - mean[:, :12], mean[:, 12])


@pytest.mark.parametrize(("name", "mu"), [("local_sgd", 0.0), ("fedprox", 1.5)])
def test_local_steps_have_a_fixed_point_of_their_own(name, mu):
    params = {"tau": 4, **({"mu": mu} if mu else {})}
    problem = {**P1, "mu": 0.3}
    method = Method(name, params, None, problem, step=0.1, rounds=1000, more=FAR)
    run = finished(method.batch((1.0, 0.5)), every=1000)
    star, away = run.problem.minimizer(), []
    for x, gamma in zip(run.s.x, (0.1, 0.05), strict=True):
        point = fixed_point(run.problem, gamma, 4, mu)
        assert largest(x, point) < 1e-8
        away.append(float((point - star).norm()))
    assert away[0] > 1.3 * away[1] > 1e-2


@pytest.mark.parametrize("params", [{}, {"p": 0.5}, {"momentum": 0.5}, {"server": 0.5}])
def test_scaffold_removes_it(params):
    problem, params = {**P1, "mu": 0.3}, {"tau": 4, **params}
    method = Method("scaffold", params, None, problem, step=0.1, rounds=1000, more=FAR)
    run = finished(method.batch((1.0, 0.5)), every=1000)
    assert largest(run.s.x, run.problem.minimizer().expand(2, -1)) < 1e-9
    assert largest(run.c.h, full_gradients(run)) < 1e-8


@pytest.mark.parametrize("p", [1.0, 0.4])
def test_scaffold_server_keeps_the_mean(p):
    run = started(on_p1("scaffold", None, 60, 0.05, tau=3, p=p).batch((1.0, 2.0), (0, 1)))
    gaps = each_round(run, lambda r: largest(r.s.h, r.c.h.mean(1)))
    assert max(gaps) < 1e-12
    assert float(run.s.h.abs().max()) > 1e-3
    d = 2 * 12
    assert (run.net.ledger.down[VALUES] == 60 * d).all()
    share = run.net.ledger.up[VALUES] / (60 * d)
    assert ((share == 1) if p == 1 else (share > 0.2) & (share < 0.6)).all()


def test_the_mean_is_over_those_who_take_part():
    run = started(on_p1("local_sgd", None, 60, 0.05, tau=2, p=0.2).batch())
    run.advance(0)
    empty = 0
    for t in range(1, 61):
        x, grads = run.s.x.clone(), full_gradients(run)
        run.advance(1)
        S = run.net.participants(run.a.p)[0]
        if S.any():
            y = x[:, None] - 0.05 * grads
            y = y - 0.05 * run.problem.grad(y)
            assert largest(run.s.x, y[:, S].mean(1)) < 1e-13, t
        else:
            empty += 1
            assert torch.equal(run.s.x, x)
    assert 0 < empty < 60


@pytest.mark.parametrize("p", [1.0, 0.4])
def test_fedavg_weighs_clients_by_their_samples(p):
    problem = {**SAMPLES, "split": {"dirichlet": 0.3}}
    run = started(Method("fedavg", {"tau": 2, "p": p}, None, problem, step=0.02, rounds=30).batch())
    N = torch.tensor(run.problem.samples, dtype=torch.float64)
    assert N.max() > 2 * N.min()
    for t in range(1, 31):
        x = run.s.x.clone()
        y = x[:, None] - 0.02 * run.problem.grad(x)
        y = y - 0.02 * run.problem.grad(y)
        run.advance(1)
        w = N * run.net.participants(run.a.p)[0]
        want = (w[:, None] * y[0]).sum(0) / w.sum() if w.any() else x[0]
        assert largest(run.s.x[0], want) < 1e-13, t


def test_fedavg_minimises_the_mean_over_all_samples():
    problem = {**SAMPLES, "split": {"dirichlet": 0.3}, "regularizer": "l2", "lambda": 0.1}
    method = Method("fedavg", {"tau": 1}, None, problem, step=0.05, rounds=3000)
    run = finished(method.batch(), every=3000)
    N, grads = torch.tensor(run.problem.samples).double(), run.problem.grad(run.s.x)[0]
    assert float(((N / N.sum())[:, None] * grads).sum(0).norm()) < 1e-8
    assert float(grads.mean(0).norm()) > 1e-3  # no minimum of f, whose clients weigh the same


@pytest.mark.parametrize("name", ["local_sgd", "fedavg", "fedprox", "scaffold", "local_ef21"])
def test_local_gradients_are_counted(name):
    compressor = TOP if name == "local_ef21" else None
    for batch, cost in ((3, 3), ("full", 12)):
        params = {"tau": 4, "batch": batch, **({"init": "zero"} if compressor else {})}
        method = Method(name, params, compressor, SAMPLES, step=1e-3, rounds=10)
        run = finished(method.batch(), every=5)
        start = 4 * cost if compressor else 0  # EF21 asks for gradients at the start
        assert run.net.oracle.evals.tolist() == [10 * 4 * cost + start]


def test_those_who_stay_away_compute_nothing():
    params = {"tau": 4, "batch": 3, "p": 0.3}
    run = finished(Method("local_sgd", params, None, SAMPLES, step=1e-3, rounds=50).batch())
    share = run.net.ledger.up[VALUES] / (50 * 30)
    assert 0.1 < share < 0.5
    assert run.net.oracle.evals == pytest.approx(share * 50 * 12)


# 1-bit Adam -----------------------------------------------------------------------------------


def test_one_bit_adam_is_adam_at_first_and_then_conserves():
    params = {"warmup_rounds": 10, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3}
    run = started(on_p1("one_bit_adam", None, 40, 0.03, **params).batch())

    def look(r):
        mean = full_gradients(r).mean(1)
        held = r.s.E + r.c.e.mean(1)
        return r.s.x.clone(), mean, r.s.m.clone(), r.s.v.clone(), held, r.net.ledger.up.copy()

    seen = each_round(run, look)[:41]
    for t, ((x, g, m, v, held, sent), (x1, _, m1, v1, held1, sent1)) in enumerate(pairwise(seen)):
        assert largest(x1, x - 0.03 * m1 / (v1.sqrt() + 1e-3)) < 1e-13
        want = 0.8 * m + 0.2 * g
        cost = (sent1 - sent)[:, 0]
        if t < 10:
            assert largest(m1, want) < 1e-13
            assert largest(v1, 0.95 * v + 0.05 * g**2) < 1e-13
            assert held1.abs().max() == 0
            assert (cost[VALUES], cost[RAW]) == (12, 0)
        else:
            assert largest(m1 + held1, want + held) < 1e-12
            assert torch.equal(v1, v)
            assert held1.abs().max() > 1e-6
            assert m1.abs().unique().numel() <= 2  # signs times one scale
            assert (cost[VALUES], cost[RAW]) == (1, 12)


def test_one_bit_adam_leaves_coordinates_without_gradients():
    params = {"warmup_rounds": 5}
    problem = {"name": "idle"}
    run = finished(
        Method("one_bit_adam", params, None, problem, step=0.01, rounds=300, more=FAR).batch()
    )
    start = started(run.batch).s.x
    assert torch.equal(run.s.x[:, 2], start[:, 2])
    assert (run.s.x[:, :2] != start[:, :2]).all()
    assert run.status[0] == "ok"
