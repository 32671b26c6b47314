"""Runs on networks: minibatches of the problem, batches of cells, ranks, what a row measures."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from cli_kit import cli
from test_networks import DIGITS, NORMED, by_hand, network, point
from tiers import first_of_each
from torch.nn import functional as F

import raybench
from raybench.core.counts import Counts
from raybench.core.errors import InputError
from raybench.testing.trial import TrialMethod, finished, on_ranks, recorded, started


def test_gd_is_sgd_on_minibatches_of_the_problem():
    """A network's ``batch`` is the minibatch of every method that does not name its own."""
    problem = {"name": "network", **DIGITS, "batch": 8}
    run = started(TrialMethod("gd", {}, None, problem, step=0.1, rounds=5).batch())
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
    run = finished(TrialMethod(name, {}, operator, problem, step=0.1, rounds=4).batch())
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
    more = {"record": {"every": 1}, "evaluate": {"every": 4, "loss": True}}
    problem = {"name": "network", **DIGITS, "test_size": 0.2}
    method = {"algorithm": "sgd", "step_size": {"value": 0.1}, "rounds": 10}
    frame = raybench.run({"problem": problem, **method, **more})
    asked = frame["round"] % 4 == 0
    asked |= frame["round"] == 10
    for column in ("loss", "accuracy", "test_loss"):
        assert frame[column].notna().equals(asked)
    assert frame["grad_norm_sq"].isna().all()
    assert np.isfinite(frame["bits_up"]).all()
    assert frame["extra.minibatch_loss"][1:].notna().all()


def swept(problem=None, **more):
    """Return the curve of three rounds of SGD on a network."""
    config = {
        "problem": {"name": "network", **DIGITS, **(problem or {})},
        "algorithm": "sgd",
        "step_size": {"value": 0.1},
        "rounds": 3,
        **more,
    }
    return raybench.run(config)


@pytest.mark.parametrize(
    ("more", "loss", "gradient"),
    [
        ({}, True, False),  # without a test part
        ({"problem": {"test_size": 0.2}}, False, False),
        ({"problem": {"test_size": 0.2}, "evaluate": {"gradient": True}}, True, True),
        ({"problem": {"test_size": 0.2}, "stop": {"loss": 1e-9}}, True, False),
        ({"problem": {"test_size": 0.2}, "stop": {"grad_norm_sq": 1e-9}}, True, True),
        ({"evaluate": {"loss": False}}, False, False),
    ],
)
def test_f_and_its_gradient_are_measured_where_something_asks_for_them(more, loss, gradient):
    frame = swept(**more)
    assert frame["loss"].notna().all() == loss
    assert frame["grad_norm_sq"].notna().all() == gradient
    assert frame["loss"].isna().all() != loss
    assert frame["grad_norm_sq"].isna().all() != gradient


def test_a_stop_at_a_gradient_stops_networks_too():
    assert swept(stop={"grad_norm_sq": 1e9}, problem={"test_size": 0.2})["round"].tolist() == [0]


@pytest.mark.parametrize("params", [DIGITS, NORMED], ids=["mlp", "batchnorm"])
def test_the_minibatch_loss_is_that_of_the_minibatches_since_the_row_before(params):
    problem = {"name": "network", **params, "batch": 8}
    method = TrialMethod("gd", {}, None, problem, step=0.1, rounds=4)
    run = started(method.batch([1.0, 3.0]), every=2)
    want = []
    for t in range(1, 5):
        x = run.s.x.clone() if t > 1 else run.problem.start().expand(2, -1)
        run.advance(1)
        J = run.net.sample("batch", 8)
        losses = [
            [float(by_hand(run.problem, x[b], J.indices[b, i], i, params is NORMED)[1]) for i in range(3)]
            for b in range(2)
        ]  # fmt: skip
        want.append(np.mean(losses, 1))
    found = run.recorder.column("minibatch_loss")
    assert np.isnan(found[:, 0]).all()
    np.testing.assert_allclose(found[:, -1], np.mean(want[2:], 0), rtol=1e-9)


def test_full_gradients_and_participants_tell_their_loss():
    run = finished(TrialMethod("gd", {}, None, {"name": "network", **DIGITS, "batch": "full"}, step=0.1, rounds=3).batch())  # fmt: skip
    loss, heard = (run.recorder.column(name)[0] for name in ("loss", "minibatch_loss"))
    np.testing.assert_allclose(heard[1:], loss[:-1], rtol=1e-9)
    net = started(TrialMethod("sgd", {}, None, {"name": "network", **DIGITS}, step=0.1).batch()).net
    x, who = net.oracle.problem.start()[None], torch.tensor([[True, False, True]])
    J = net.sample("some", 8)
    net.grad(x, J, clients=who)
    want = [float(by_hand(net.oracle.problem, x[0], J.indices[0, i], i)[1]) for i in (0, 2)]
    assert net.oracle.pop_minibatch_losses()["minibatch_loss"][0] == pytest.approx(
        np.mean(want), rel=1e-9
    )
    assert np.isnan(net.oracle.pop_minibatch_losses()["minibatch_loss"]).all()


@pytest.mark.parametrize("params", first_of_each([DIGITS, NORMED]), ids=["mlp", "batchnorm"])
def test_what_minibatches_told_goes_along_to_ranks_and_other_processes(params):
    problem = {"name": "network", **params, "batch": 8}
    batch = TrialMethod("gd", {}, None, problem, step=0.1, rounds=5).batch()
    whole = finished(batch, every=5).recorder.column("minibatch_loss")
    ranks = on_ranks(3, batch, lambda run: run.recorder.column("minibatch_loss")[:, -1])
    of_every_round = finished(batch).recorder.column("minibatch_loss")[:, -1]
    np.testing.assert_allclose(ranks, [of_every_round] * 3, rtol=1e-9)
    first, then = started(batch, every=5), started(batch, every=5)
    first.advance(3)
    then.load(first.state())
    then.advance(2)
    np.testing.assert_array_equal(then.recorder.column("minibatch_loss"), whole)


def test_a_plan_tells_the_share_of_evaluation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = "problem: {name: network, model: mlp, dataset: digits, clients: 2, batch: 1, test_size: 0.2, test_rows: 5}"
    text = few + "\nalgorithm: sgd\nstep_size: {value: 0.1}\nrounds: 400\nevaluate: {every: 400}\n"
    (tmp_path / "few.yaml").write_text(text)
    said = cli("plan", "few.yaml")
    (share,) = re.findall(r"evaluation +(\d+)% of the time", said.out)
    assert int(share) <= 25
    assert "evaluation takes" not in said.err
    (tmp_path / "much.yaml").write_text(text.replace("400}", "1, gradient: true}"))
    said = cli("plan", "much.yaml")
    (share,) = re.findall(r"evaluation +(\d+)% of the time", said.out)
    assert int(share) > 25
    assert f"evaluation takes {share}% of the time: a larger evaluate.every" in said.err


def test_a_network_that_diverges_is_seen_by_its_minibatches():
    frame = swept(problem={"test_size": 0.2}, step_size={"value": 1e30}, rounds=40)
    assert frame["round"].max() < 5


def test_tokens_are_counted_by_client(tmp_path):
    (tmp_path / "own.txt").write_text("to be or not to be, that is the question " * 40)
    text = {"model": "transformer:width=8,layers=1,heads=1", "dataset": str(tmp_path / "own.txt")}
    frame = swept(problem={**text, "rows": None, "length": 8, "batch": 4, "clients": 2})
    assert frame["extra.tokens"].tolist() == [0, 32, 64, 96]
    assert "extra.tokens" not in swept()


# BatchNorm ------------------------------------------------------------------------------------------


def test_clients_keep_statistics_or_share_them():
    problems = ({"name": "network", **NORMED, "batchnorm": how} for how in ("server", "sync"))
    methods = (TrialMethod("sgd", {}, None, problem, step=0.05, rounds=4) for problem in problems)
    kept, shared = (finished(method.batch()) for method in methods)
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
    problem = {"name": "network", **NORMED, "batchnorm": batchnorm}
    problems = ({**problem, "chunk": chunk} for chunk in (1000, 9))
    methods = (TrialMethod("sgd", {}, None, problem, step=0.05, rounds=3) for problem in problems)
    runs = [finished(method.batch()) for method in methods]
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
    run = finished(TrialMethod("sgd", {}, None, problem, step=0.05, rounds=3).batch())
    means = {name: own.mean(1) for name, own in run.net.oracle.buffers.items()}
    torch.testing.assert_close(run.net.oracle.means(), means)
    losses = run.net.oracle.measure(run.s.x, frozenset({"test_loss"})).values["test_loss"]
    torch.testing.assert_close(losses, run.problem.evaluate(run.s.x, means)["test_loss"])
    first = {name: own[:, 0] for name, own in run.net.oracle.buffers.items()}
    assert not torch.allclose(losses, run.problem.evaluate(run.s.x, first)["test_loss"])


def test_clients_that_sit_out_keep_their_statistics():
    problem = {"name": "network", **NORMED}
    net = started(TrialMethod("sgd", {}, None, problem, step=0.05).batch((1.0, 0.5))).net
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
    method = TrialMethod("sgd", {}, {"name": "identity"}, problem, step=0.1, rounds=3)
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
