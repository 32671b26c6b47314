"""Methods of practice, vertical, decentralised and led ones against plain numpy, to 1e-10.

Steps follow a schedule with a warm-up, so that a step in the wrong place shows.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import numpy_methods as by_hand
import pytest
import torch
from toys import FAR, MATRIX, P1, TOP, VALUES, path

from raybench.execution.run import factor
from raybench.testing.trial import DATA, TrialMethod, finished, started

UNEVEN = {"name": "least_squares", **DATA, "split": {"dirichlet": 0.3}}
HALF = {"name": "top_k", "k": 6}
ROUNDS = 25


def facts(run) -> SimpleNamespace:
    """What a reference may know, from a run at its start."""
    problem, net, a = run.problem, run.net, run.a
    run.advance(0)

    def grad(X, J=None):
        X = torch.from_numpy(np.broadcast_to(X, (problem.n, problem.dim)).copy())[None]
        return problem.grad(X, J)[0].numpy()

    def drawn(t, j):
        if not isinstance(a.batch, int):
            return None
        net.begin(t + 1)
        return net.sample("batch", a.tau * a.batch).split(a.batch)[j]

    def here(t):
        net.begin(t + 1)
        return net.participants(a.p)[0].numpy()

    def common(t):
        net.begin(t + 1)
        return net.oracle.common_rows("common", a.common)[0].numpy()

    step, gamma = run.first.step, float(run.gamma.values[0])
    return SimpleNamespace(
        x0=run.s.x[0].numpy().copy(),
        n=problem.n,
        grad=grad,
        losses=lambda X: problem.oracle(torch.from_numpy(X)[None])[1][0].numpy(),
        gamma=gamma,
        steps=[gamma * factor(step.schedule, step.warmup, t, ROUNDS) for t in range(1, ROUNDS + 1)],
        batch=drawn,
        here=here,
        common=common,
        run=run,
    )


def compare(method: TrialMethod, reference, **known) -> None:
    """Our path and the reference's agree to 1e-10 of the largest entry, and move."""
    step = {"value": method.step, "schedule": "sqrt", "warmup": 3}
    method = replace(method, rounds=ROUNDS, more={**FAR, **method.more, "step_size": step})
    k = facts(started(method.batch()))
    want = np.stack([k.x0, *reference(k, **known)])
    have = path(started(method.batch()))[: ROUNDS + 1, 0]
    assert have.shape == want.shape
    assert np.abs(have - want).max() < 1e-10 * max(1.0, np.abs(want).max())
    assert np.abs(want[-1] - want[0]).max() > 1e-2


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"nesterov": True, "momentum": 0.7},
        {"clip": 3.0, "decay": 0.2},
        {"masking": False, "clip": 0.5},
    ],
)
def test_dgc(params):
    compare(TrialMethod("dgc", params, TOP, P1, step=0.05), by_hand.dgc, **params)


def test_signs():
    decay = {"decay": 0.3}
    compare(
        TrialMethod("sign_sgd", decay, None, {**P1, "clients": 6}, step=0.05),
        by_hand.signum,
        **decay,
    )
    params = {"momentum": 0.8, **decay}
    compare(
        TrialMethod("signum", params, None, {**P1, "clients": 6}, step=0.05),
        by_hand.signum,
        **params,
    )


def test_error_feedback_of_signs():
    for memory, inside in (("step", True), ("gradient", False)):
        compare(
            TrialMethod("ef_sign_sgd", {"memory": memory}, None, P1, step=0.05),
            by_hand.ef,
            C=by_hand.scaled_sign,
            inside=inside,
        )
        compare(
            TrialMethod("one_bit_sgd", {"memory": memory}, None, P1, step=0.05),
            by_hand.ef,
            C=by_hand.two_means,
            inside=inside,
        )


def test_one_bit_adam():
    params = {"warmup_rounds": 8, "beta2": 0.99, "epsilon": 1e-3}
    compare(TrialMethod("one_bit_adam", params, None, P1, step=0.05), by_hand.one_bit_adam)


@pytest.mark.parametrize(
    "params",
    [
        {"freeze": 11, "updates": 3, "steps_each": 4, "steps_most": 4},
        {"freeze": 6, "updates": 2, "steps_each": 1, "steps_most": 8},
        {"freeze": 40, "updates": 2, "steps_each": 1, "steps_most": 1},
    ],
    ids=["both", "long local", "variance only"],
)
def test_zero_one_adam(params):
    params = {**params, "beta2": 0.99, "epsilon": 1e-3}
    compare(
        TrialMethod("zero_one_adam", params, None, P1, step=0.02), by_hand.zero_one_adam, **params
    )


@pytest.mark.parametrize("params", [(0.8, 5, 127), (0.3, 100, 7), (0.0, 7, "off")], ids=str)
def test_loco(params):
    params = dict(zip(("beta", "reset", "levels"), params, strict=True))
    compare(TrialMethod("loco", params, TOP, P1, step=0.1), by_hand.loco, **params)


@pytest.mark.parametrize(
    "params",
    [
        {"rank": 1},
        {"rank": 2, "momentum": 0.6},
        {"rank": 2, "dense_rounds": 4, "momentum": 0.6, "nesterov": False},
    ],
)
def test_power_sgd(params):
    method = TrialMethod("power_sgd", params, None, MATRIX, step=0.1)
    run = started(replace(method, more=FAR).batch())
    run.advance(0)
    basis = run.s.Q[0][0].numpy()
    assert basis.shape == (4, params["rank"])

    def reference(k, **params):
        k.basis = basis
        return by_hand.power_sgd(k, **params)

    compare(method, reference, **params)


LOCAL = {"tau": 3, "p": 0.4, "batch": 2}


@pytest.mark.parametrize("params", [{}, {"server": 0.5, "momentum": 0.8}])
@pytest.mark.parametrize("name", ["local_sgd", "fedavg", "fedprox"])
def test_local_steps(name, params):
    """With few samples each, few who take part, and v in units of x through a schedule."""
    params = {**params, **({"mu": 0.5} if name == "fedprox" else {})}
    method = TrialMethod(name, {**LOCAL, **params}, None, UNEVEN, step=0.02)
    N = np.array(started(method.batch()).problem.samples, float)
    assert N.max() > 2 * N.min()
    compare(method, by_hand.local, by=N if name == "fedavg" else None, **params)


def test_scaffold():
    compare(TrialMethod("scaffold", LOCAL, None, UNEVEN, step=0.02), by_hand.scaffold)
    server = TrialMethod("scaffold", {"tau": 3, "server": 0.7}, None, P1, step=0.05)
    compare(server, by_hand.scaffold, server=0.7)


def test_ef21_on_local_steps():
    compare(TrialMethod("local_ef21", {"tau": 3}, TOP, P1, step=0.03), by_hand.local_ef21)


GRAPHS = {
    "ring": ("ring", by_hand.ring(7)),
    "path": ({"name": "path", "weights": "laplacian"}, by_hand.path_graph(7)),
}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(
    ("name", "operator", "params", "reference", "known"),
    [
        ("gossip", TOP, {"mix": 0.4}, by_hand.gossip, {"choco": False}),
        ("choco_sgd", TOP, {"mix": 0.4}, by_hand.gossip, {}),
        ("diffusion", None, {}, by_hand.diffusion, {}),
        ("diffusion", None, {"order": "cta"}, by_hand.diffusion, {"order": "cta"}),
        ("dgd", None, {}, by_hand.diffusion, {"order": "dgd"}),
        ("extra", None, {}, by_hand.extra, {}),
        ("gradient_tracking", None, {}, by_hand.gradient_tracking, {}),
        ("exact_diffusion", None, {}, by_hand.exact_diffusion, {}),
        ("lead", HALF, {"alpha": 0.6, "mix": 0.5}, by_hand.lead, {}),
        ("prox_lead", HALF, {"alpha": 0.6, "mix": 0.5}, by_hand.lead, {}),
    ],
)
def test_neighbours(name, operator, params, reference, known, graph):
    asked, W = GRAPHS[graph]
    assert np.allclose(W, W.T)
    assert np.allclose(W.sum(1), 1)
    method = TrialMethod(name, params, operator, P1, step=0.1, more={"graph": asked})
    compare(method, reference, W=W, **known)


@pytest.mark.parametrize("groups", [1, 3, 7])
def test_leaders(groups):
    params = {"tau": 2, "lam": 0.1, "far": 0.2, "groups": groups}
    compare(TrialMethod("lsgd", params, None, P1, step=0.05), by_hand.lsgd, groups=groups)


def test_springs():
    compare(TrialMethod("easgd", {"tau": 2}, None, P1, step=0.05), by_hand.easgd)


@pytest.mark.parametrize("exchange", ["predictions", "checkpoints"])
def test_codistillation(exchange):
    params = {"ramp": 5, "common": 6, "exchange": exchange, "every": 4}
    method = TrialMethod("codistillation", params, None, UNEVEN, step=0.01)

    def reference(k):
        k.features = k.run.problem.rows.dense()
        return by_hand.codistillation(k, exchange=exchange)

    compare(method, reference)


def test_features_split_over_clients():
    problem = {"name": "vertical_least_squares", **DATA}
    half = {"name": "top_k", "k": 30}

    def known(k):
        k.A, k.b = k.run.problem.train.dense(), k.run.problem.train.labels
        return (lambda m: by_hand.top(m, 30)), k.run.net

    def marina(k):
        C, net = known(k)

        def coin(t):
            net.begin(t + 1)
            return bool(net.coin("sync", k.run.a.p)[0])

        coins = [coin(t) for t in range(ROUNDS)]
        assert 0 < sum(coins) < ROUNDS
        return by_hand.vertical(k, C, coin)

    def plain(k):
        known(k)
        return by_hand.vertical(k, None, lambda t: True)

    def naive(k):
        return by_hand.vertical_naive(k, known(k)[0])

    step = {"problem": problem, "step": 3e-5}
    compare(TrialMethod("vertical_gd", {}, None, **step), plain)
    compare(TrialMethod("vertical_marina", {"p": 0.3}, half, **step), marina)
    compare(TrialMethod("vertical_naive", {}, half, **step), naive)


# What is booked -------------------------------------------------------------------------------------


def test_scaffold_by_aggregate_books_what_is_passed_on_and_no_more():
    method = TrialMethod("scaffold", {}, None, P1, "aggregate", step=0.05, rounds=10, more=FAR)
    run, dense = finished(method.batch()), finished(replace(method, downlink=None).batch())
    assert run.net.ledger.down[VALUES].tolist() == [10 * 2 * 12]
    assert torch.equal(run.s.x, dense.s.x)
