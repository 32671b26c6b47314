"""Runs on networks: minibatches of the problem, batches of cells, ranks, what a row measures."""

import numpy as np
import pytest
import torch
from test_networks import DIGITS, NORMED, by_hand, network, point
from torch.nn import functional as F

import raybench
from raybench.core.counts import Counts
from raybench.core.errors import InputError
from raybench.testing.trial import Method, finished, recorded, started


def test_gd_is_sgd_on_minibatches_of_the_problem():
    """A network's ``batch`` is the minibatch of every method that does not name its own."""
    problem = {"name": "network", **DIGITS, "batch": 8}
    run = started(Method("gd", {}, None, problem, step=0.1, rounds=5).batch())
    x = run.problem.start()
    for _ in range(5):
        run.advance(1)
        J = run.net.sample("batch", 8)
        g = torch.stack([by_hand(run.problem, x, J.indices[0, i], i)[0] for i in range(3)]).mean(0)
        x = x - 0.1 * g
        torch.testing.assert_close(run.s.x[0], x, rtol=1e-9, atol=1e-12)
    assert run.net.oracle.evals.tolist() == [40]


@pytest.mark.parametrize("name", ["marina", "dasha", "lag", "clag", "three_pc_v5"])
def test_differences_are_of_full_gradients(name):
    problem = {"name": "network", **DIGITS, "batch": 8}
    operator = {"name": "rand_k" if name in ("marina", "dasha") else "top_k", "k": 50}
    run = finished(Method(name, {}, operator, problem, step=0.1, rounds=4).batch())
    assert run.net.oracle.evals.tolist() == [5 * 30]


def test_only_some_rows_of_the_test_part():
    whole, some = network(test_size=0.3), network(test_size=0.3, test_rows=9)
    assert torch.equal(whole.rows[0], some.rows[0])
    inputs, targets = whole.examples(whole.test, torch.arange(9))
    x = point(whole, 1)
    want = F.cross_entropy(whole.passes.outputs(x[0], inputs), targets)
    torch.testing.assert_close(some.evaluate(x)["test_loss"][0], want.detach())
    with pytest.raises(InputError, match="first 99999"):
        network(test_size=0.3, test_rows=99999)


def test_a_row_measures_what_it_is_asked_for():
    more = {"record": {"every": 1}, "evaluate": {"every": 4, "gradient": False}}
    problem = {"name": "network", **DIGITS, "test_size": 0.2}
    frame = raybench.run(
        {"problem": problem, "algorithm": "sgd", "step_size": {"value": 0.1}, "rounds": 10, **more}
    )
    asked = frame["round"] % 4 == 0
    asked |= frame["round"] == 10
    for column in ("loss", "accuracy", "test_loss"):
        assert frame[column].notna().equals(asked)
    assert frame["grad_norm_sq"].isna().all()
    assert np.isfinite(frame["bits_up"]).all()
    more["evaluate"]["loss"] = False
    less = raybench.run(
        {"problem": problem, "algorithm": "sgd", "step_size": {"value": 0.1}, "rounds": 10, **more}
    )
    assert less["loss"].isna().all()
    assert less["test_loss"].equals(frame["test_loss"])
    assert less["bits_up"].equals(frame["bits_up"])


# BatchNorm ------------------------------------------------------------------------------------------


def test_clients_keep_statistics_or_share_them():
    kept, shared = (
        finished(
            Method(
                "sgd", {}, None, {"name": "network", **NORMED, "batchnorm": b}, step=0.05, rounds=4
            ).batch()
        )
        for b in ("server", "sync")
    )
    own, mean = kept.net.oracle.buffers, shared.net.oracle.buffers
    for name in own:
        assert not torch.allclose(own[name][0, 0], own[name][0, 1])
        assert torch.equal(mean[name][0, 0], mean[name][0, 1])
    count = sum(v[0, 0].numel() for v in own.values())
    more = recorded(shared)["values_up"] - recorded(kept)["values_up"]
    assert more[0].tolist() == [count * t for t in range(5)]


@pytest.mark.parametrize("batchnorm", ["server", "sync", "frozen"])
def test_f_is_that_of_the_mean_statistics_whatever_the_passes(batchnorm):
    """Minibatches fit into one pass of either ``chunk``, so that gradients are the same."""
    runs = [
        finished(
            Method(
                "sgd", {}, None,
                {"name": "network", **NORMED, "batchnorm": batchnorm, "chunk": chunk},
                step=0.05, rounds=3,
            ).batch()
        )
        for chunk in (1000, 13)
    ]  # fmt: skip
    whole = recorded(runs[0])["loss"]
    for run in runs[1:]:
        np.testing.assert_allclose(recorded(run)["loss"], whole, rtol=1e-10)
    run = runs[0]
    means = run.net.oracle.means()
    assert bool(means) == (batchnorm != "frozen")
    (want,) = run.problem.losses(run.s.x, means).mean(1).tolist()
    assert whole[0][-1] == pytest.approx(want, rel=1e-12)
    of_start = run.problem.losses(run.s.x).mean(1).item()
    assert (abs(want - of_start) > 1e-6) == (batchnorm != "frozen")


def test_the_record_evaluates_by_the_mean_of_the_clients_statistics():
    problem = {"name": "network", **NORMED, "test_size": 0.3}
    run = finished(Method("sgd", {}, None, problem, step=0.05, rounds=3).batch())
    means = {name: own.mean(1) for name, own in run.net.oracle.buffers.items()}
    torch.testing.assert_close(run.net.oracle.means(), means)
    losses = run.net.oracle.measure(run.s.x, frozenset({"test_loss"})).values["test_loss"]
    torch.testing.assert_close(losses, run.problem.evaluate(run.s.x, means)["test_loss"])
    first = {name: own[:, 0] for name, own in run.net.oracle.buffers.items()}
    assert not torch.allclose(losses, run.problem.evaluate(run.s.x, first)["test_loss"])


def test_clients_that_sit_out_keep_their_statistics():
    problem = {"name": "network", **NORMED}
    net = started(Method("sgd", {}, None, problem, step=0.05).batch((1.0, 0.5))).net
    x, who = point(net.oracle.problem), torch.tensor([[True, False, True], [False, True, False]])
    for cells in (None, torch.tensor([1])):  # clients are those of the cells asked for
        was, took = dict(net.oracle.buffers), torch.zeros_like(who)
        took[slice(None) if cells is None else cells] = True
        there = who if cells is None else who[cells]
        net.grad(x, net.sample(f"batch of {cells}", 8), cells=cells, clients=there)
        for name, own in net.oracle.buffers.items():
            assert torch.equal((own != was[name]).any(-1), who & took)


def test_statistics_are_shared_by_the_cells_that_took_gradients():
    problem = {"name": "network", **NORMED, "batchnorm": "sync"}
    method = Method("sgd", {}, {"name": "identity"}, problem, step=0.1, rounds=3)
    run = started(method.batch([1.0, 2.0]))
    run.advance(1)
    net, before = run.net, Counts(*run.net.ledger.up).values.copy()
    was = {name: own.clone() for name, own in net.oracle.buffers.items()}
    net.oracle.grad(run.s.x, net.sample("more", 8), cells=torch.tensor([1]))
    count = sum(own[0, 0].numel() for own in was.values())
    assert (Counts(*net.ledger.up).values - before).tolist() == [0, count]
    for name, own in net.oracle.buffers.items():
        assert torch.equal(own[0], was[name][0])
        assert not torch.equal(own[1], was[name][1])
        assert torch.equal(own[1, 0], own[1, 1])
