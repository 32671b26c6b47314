"""Robust servers in runs: what they hold of each client, whom they resist, and what they may be combined with."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from toys import RAND, TOP, Alike, each_round, handed_over, registered

from raybench.algorithms.robust import RULES
from raybench.core import registry
from raybench.execution.checks import Skip
from raybench.testing.algorithms import methods
from raybench.testing.trial import DATA, Method, finished, started

pytestmark = pytest.mark.thorough

UNLIKE = {"name": "quadratic", "dim": 10, "clients": 7, "mu": 0.1, "seed": 1}
LOGISTIC = {"name": "logistic", **DATA, "regularizer": "l2", "lambda": 0.1}
ROBUST = [n for n in registry.names("algorithm") if registry.lookup("algorithm", n).facts.robust]
PRESETS = ("byz_dasha_page", "byz_vr_marina")
FLIP = {"byzantine": 2, "attack": "sign_flip", "scale": 4}


@pytest.fixture(autouse=True)
def _alike():
    with registered("problem", alike=Alike):
        yield


def batch(name, compressor=None, problem=UNLIKE, params=None, step=0.1, rounds=30, **more):
    method = Method(name, params or {}, compressor, problem, step=step, rounds=rounds, more=more)
    return method.batch((1.0, 0.5), (0, 1))


def run(*args, **given):
    return finished(batch(*args, **given))


def operator_of(name):
    up = registry.lookup("algorithm", name).facts.up
    return None if up is None else {"contractive": TOP, "unbiased": RAND, "any": RAND}[up]


# The same method --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gd", "ef21", "ef14", "diana", "marina", "vr_marina", "dasha"])
def test_the_mean_without_an_attack_is_the_method_itself(name):
    """Bit for bit, whatever the rule would be prepared for."""
    plain = run(name, operator_of(name))
    same = run(name, operator_of(name), robust={"rule": "mean", "tolerate": 2})
    assert torch.equal(plain.s.x, same.s.x)
    assert np.array_equal(plain.net.ledger.up, same.net.ledger.up)
    for column in ("loss", "grad_norm_sq"):
        assert np.array_equal(plain.recorder.column(column), same.recorder.column(column))


@pytest.mark.parametrize("name", sorted({*ROBUST} - {*PRESETS}))
def test_client_by_client_it_is_the_same_method(name):
    """What ``robust=True`` claims: the mean of the server's estimates of each is what it makes of the mean.

    A trimmed mean that trims nothing keeps clients apart and is a mean.
    """
    for method in methods(registry.lookup("algorithm", name)):
        more = {"robust": {"rule": "trimmed_mean"}}
        plain = finished(method.batch((1.0, 0.5), (0, 1)))
        more = Method(**{**vars(method), "more": more, "step": plain.batch.cells[0].step_size})
        apart = finished(more.batch((1.0, 0.5), (0, 1)))
        assert apart.net.apart
        torch.testing.assert_close(apart.s.x, plain.s.x, rtol=1e-9, atol=1e-11)
        assert np.array_equal(apart.net.ledger.up, plain.net.ledger.up)
        errors = [r.recorder.column("estimator_error_sq") for r in (apart, plain)]
        np.testing.assert_allclose(*errors, rtol=1e-6, atol=1e-12)


def test_presets_with_the_mean_are_the_methods_that_they_come_from():
    mean = {"rule": "mean"}
    params = {"p": 0.3, "batch": 2}
    one = run("byz_vr_marina", RAND, LOGISTIC, params, robust=mean)
    assert torch.equal(one.s.x, run("vr_marina", RAND, LOGISTIC, params).s.x)
    params = {"p": 1.0}  # no coin
    two = run("byz_dasha_page", RAND, LOGISTIC, params, robust=mean)
    assert torch.equal(two.s.x, run("dasha_page", RAND, LOGISTIC, params).s.x)


# What is judged ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "memory"), [("ef21", "g"), ("dasha", "g"), ("dasha_page", "g")])
def test_the_server_holds_what_every_client_holds(name, memory):
    """Estimates, not differences: g_i at the server is g_i at client i, in every round and under attack."""
    one = started(batch(name, operator_of(name), robust={"rule": "median", **FLIP}))
    for held, own in each_round(one, lambda r: (r.s.g.clone(), getattr(r.c, memory).clone())):
        torch.testing.assert_close(held, own, rtol=1e-12, atol=1e-14)


def test_ef21_with_a_median_by_hand():
    """g_i <- g_i + C(grad f_i - g_i); x <- x - gamma median(g_1, .., -4 g_6, -4 g_7)."""
    one = started(batch("ef21", TOP, rounds=12, robust={"rule": "median", **FLIP}))
    path = np.stack(each_round(one, lambda r: r.s.x[0].clone().numpy()))
    A, b = (t.numpy() for t in one.problem.exact)
    x, g = path[0], np.zeros((7, 10))
    for t in range(13):
        np.testing.assert_allclose(path[t], x, atol=1e-12)
        v = np.einsum("nij,j->ni", A, x) - b - g
        kept = np.argsort(-np.abs(v), 1, kind="stable")[:, :3]
        np.put_along_axis(g, kept, np.take_along_axis(g + v, kept, 1), 1)
        seen = np.concatenate([g[:5], -4 * g[5:]])
        x = x - 0.1 * np.median(seen, 0)


def test_byz_vr_marina_adds_differences_to_what_the_server_holds():
    """Between dense rounds median(g + Q_i) = g + median(Q_i); vr_marina keeps g_i + Q_i of each by itself."""
    params = {"p": 1e-9, "batch": 1}
    given = {"params": params, "rounds": 2, "robust": {"rule": "median"}}
    one, other = (started(batch(n, RAND, **given)) for n in ("byz_vr_marina", "vr_marina"))
    for r in (one, other):
        r.advance(1)
    start = one.problem.oracle(torch.zeros(1, 10, dtype=torch.float64), loss=False)[0]
    first = start.expand(2, -1, -1)
    q = other.s.g - first  # the same messages
    assert (q == 0).any()
    torch.testing.assert_close(one.s.g, RULES["median"](first, 0)[:, None] + q)


# Who is resisted ----------------------------------------------------------------------------------


RESISTING = [("gd", None), ("ef21", TOP), ("diana", RAND), ("marina", RAND), ("dasha", RAND)]
RESISTING += [("byz_vr_marina", RAND), ("byz_dasha_page", RAND)]


@pytest.mark.parametrize(
    ("name", "compressor", "rule"),
    [  # each method with every second rule, each rule with every second method
        (*method, rule)
        for i, method in enumerate(RESISTING)
        for j, rule in enumerate(sorted(set(RULES) - {"mean"}))
        if (i + j) % 2 == 0
    ],
)
def test_breakdown(name, compressor, rule):
    """Two of seven flip signs, fourfold: the mean points uphill, a rule leads to the honest clients' minimum."""
    given = {"compressor": compressor, "problem": {"name": "alike"}, "step": 0.2, "rounds": 600}
    if compressor == RAND:
        given["compressor"] = {"name": "rand_k", "k": 5}
    robust = run(name, **given, robust={"rule": rule, **FLIP})
    first, last = robust.recorder.column("grad_norm_sq")[:, [0, -1]].T
    assert (robust.status == "ok").all()
    assert (last < 1e-6 * first).all()
    if rule == "median" and not name.startswith("byz_"):
        plain = run(name, **given, robust={"rule": "mean", **FLIP})
        assert (plain.recorder.column("grad_norm_sq")[:, -1] > 100 * first).all()


SAME = {**LOGISTIC, "split": {"holdout_mix": 1.0}, "clients": 5}


@pytest.mark.parametrize("attack", ["sign_flip", "inner_product", "a_little_is_enough"])
@pytest.mark.parametrize("rule", ["trimmed_mean", "geometric_median"])
@pytest.mark.parametrize("name", PRESETS)
def test_the_bound_of_the_presets_holds_under_attack(name, rule, attack):
    """(1/T) sum_{t<T} E||grad f||^2 <= 2 Delta0/(gamma T) on clients of the same data: zeta = 0, and G^0 = 0."""
    more = {"robust": {"rule": rule, "byzantine": 1, "attack": attack, "scale": 9, "epsilon": 2}}
    method = Method(name, {"batch": 2}, RAND, SAME, rounds=60, more=more)
    one = finished(method.batch((1.0,), range(8)))
    norms = one.recorder.column("grad_norm_sq")[:, :-1].mean(0)
    gap = one.recorder.column("loss")[:, 0].mean() - one.problem.constants.f_star
    for T in (1, 3, 10, 30, 60):
        assert norms[:T].mean() <= 2 * gap / (method.cell().step_size * T) * (1 + 1e-9), T


# What is recorded ----------------------------------------------------------------------------------


def test_f_is_the_mean_over_the_honest_clients():
    one = run("gd", robust={"rule": "median", **FLIP})
    grads, losses = one.problem.oracle(one.s.x)
    own = grads[:, :5]
    want = {
        "loss": losses[:, :5].mean(1),
        "grad_norm_sq": own.mean(1).square().sum(-1),
        "mean_client_grad_norm_sq": own.square().sum(-1).mean(1),
    }
    for name, values in want.items():
        np.testing.assert_allclose(one.recorder.column(name)[:, -1], values.numpy(), rtol=1e-12)
    assert np.isnan(one.recorder.column("suboptimality")).all()  # f* of all is not theirs


def test_the_recorded_error_is_that_of_what_x_moves_along():
    one = run("ef21", TOP, robust={"rule": "median", **FLIP})
    seen = torch.cat((one.s.g[:, :5], -4 * one.s.g[:, 5:]), 1)
    honest = one.problem.oracle(one.s.x, loss=False)[0][:, :5].mean(1)
    want = (RULES["median"](seen, 2) - honest).square().sum(-1)
    got = one.recorder.column("estimator_error_sq")[:, -1]
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-10)


@pytest.mark.parametrize("problem", ["logistic", "nonconvex_classification", "softmax"])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_label_flip_turns_the_labels_of_the_last_clients_around(problem, batch_size):
    """What they send is the gradient on wrong labels; the oracle of the others, and what f is, stay the same."""
    problem = {**LOGISTIC, "name": problem}
    name, params = ("gd", {}) if batch_size is None else ("sgd", {"batch": batch_size})
    lie = {"rule": "median", "byzantine": 1, "attack": "label_flip"}
    one = started(batch(name, None, problem, params, robust=lie))
    x = torch.randn(2, one.problem.dim, dtype=torch.float64, generator=torch.manual_seed(0))
    J = None if batch_size is None else one.net.sample("batch", batch_size)
    got, right = one.net.grad(x, J), one.problem.grad(x, J)
    n = one.problem.n
    assert torch.equal(got[:, : n - 1], right[:, : n - 1])
    labels = one.problem.rows.labels
    one.problem.rows.labels[:] = (
        labels.max() - labels if problem["name"] == "softmax" else -labels
    )  # in place, beside what was computed before
    one.problem._kept = {}
    torch.testing.assert_close(got[:, n - 1], one.problem.grad(x, J)[:, n - 1])
    assert not torch.allclose(got[:, n - 1], right[:, n - 1])


# Wrong labels on networks ---------------------------------------------------------------------------

MLP = {"model": "mlp:hidden=[8]", "dataset": "digits", "clients": 5, "rows": 150, "batch": 6}
PROBLEM = {"name": "network", **MLP, "dtype": "float64"}
LIE = {"byzantine": 1, "attack": "label_flip"}
NET = """
import torch


def small(train):
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 12), torch.nn.BatchNorm1d(12), torch.nn.ReLU(),
        torch.nn.Dropout(0.4), torch.nn.Linear(12, 10),
    )
"""


@pytest.mark.parametrize("batchnorm", ["server", "sync", "frozen"])
@pytest.mark.parametrize("batch", [6, "full"])
def test_liars_train_on_wrong_labels_and_on_nothing_else(tmp_path, batch, batchnorm):
    """Same examples, same dropout, same BatchNorm: what the last client sends differs by its labels alone."""
    (tmp_path / "net.py").write_text(NET)
    model = {"model": f"{tmp_path}/net.py:small", "batchnorm": batchnorm, "batch": batch}
    given = {**PROBLEM, **model}
    more = {"robust": {"rule": "median", **LIE}}
    run = started(Method("sgd", {}, None, given, step=0.1, rounds=3, more=more).batch())
    problem = run.problem
    x = problem.start()[None] + 0.1 * torch.randn(1, problem.dim, generator=torch.manual_seed(0))
    J = None if batch == "full" else run.net.sample("batch", batch)
    buffers = problem.buffers(1)
    want, _ = problem.grad_buffered(x, J, buffers)
    wrong = copy.copy(problem)
    wrong.train, wrong._kept = replace(problem.train, targets=9 - problem.train.targets), {}
    lied, after = wrong.grad_buffered(x, J, buffers)
    got = run.net.grad(x, J)
    torch.testing.assert_close(got[:, :4], want[:, :4], rtol=0, atol=0)
    torch.testing.assert_close(got[:, 4], lied[:, 4])
    assert not torch.allclose(got[:, 4], want[:, 4])
    if batchnorm == "server":  # statistics are of pictures, whatever one calls them
        for name, values in run.net.oracle.buffers.items():
            torch.testing.assert_close(values, after[name])


def test_tokens_are_labels_and_pictures_to_be_drawn_again_are_none(tmp_path):
    (tmp_path / "text.txt").write_text("abcabcacbbca" * 40)
    text = {
        "name": "network",
        "model": "transformer:width=8,layers=1,heads=1",
        "dataset": f"{tmp_path}/text.txt",
        "clients": 5,
        "batch": 2,
        "length": 8,
    }
    more = {"robust": {"rule": "median", **LIE}}
    run = started(Method("sgd", {}, None, text, step=0.1, rounds=2, more=more).batch())
    classes = run.problem.train.classes
    flipped = run.net.poisoned.problem.train.targets
    np.testing.assert_array_equal(flipped, classes - 1 - run.problem.train.targets)
    auto = {**PROBLEM, "model": "autoencoder:code=2"}
    with pytest.raises(Skip, match="needs labels that can be turned around"):
        Method("sgd", {}, None, auto, step=0.1, more=more).cell()


# Where it runs --------------------------------------------------------------------------------------

EVERYTHING = [
    ("ef21", TOP, UNLIKE, {"robust": {**FLIP, "bucket": 2, "tolerate": 1}}),
    ("byz_vr_marina", RAND, UNLIKE, {"robust": {**FLIP, "rule": "krum"}}),
    ("byz_dasha_page", RAND, LOGISTIC, {"robust": {"byzantine": 1, "attack": "label_flip"}}),
    ("gd", None, LOGISTIC, {"robust": {"rule": "mean", "byzantine": 1, "attack": "label_flip"}}),
    (
        "ef14",
        TOP,
        UNLIKE,
        {"robust": {"byzantine": 2, "attack": "a_little_is_enough"}, "local": {"steps": 2}},
    ),
]


@pytest.mark.parametrize(("name", "compressor", "problem", "more"), EVERYTHING)
def test_interrupted_and_on_other_ranks_the_same(name, compressor, problem, more):
    cells = batch(name, compressor, problem, rounds=10, **more)
    once = finished(cells)

    look = lambda run: (run.s.x, run.recorder.column("grad_norm_sq"))  # noqa: E731
    for x, norms in handed_over(cells, 4, look):
        torch.testing.assert_close(x, once.s.x, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(norms, once.recorder.column("grad_norm_sq"), rtol=1e-8)
