"""Robust servers: rules and attacks by their definitions, kappa; what they hold of clients, whom they resist."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from tiers import first_of_each
from toys import RAND, TOP, Alike, each_round, handed_over, registered

from raybench.algorithms.robust import (
    RULES,
    bucketed,
    deviations,
    forged,
    geometric_median,
    kappa,
    pooled,
    where_pulled,
)
from raybench.core import registry
from raybench.core.parts import Robust
from raybench.core.streams import stream
from raybench.execution.checks import Skip
from raybench.testing.algorithms import methods
from raybench.testing.trial import DATA, TrialMethod, finished, started

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
    method = TrialMethod(
        name, params or {}, compressor, problem, step=step, rounds=rounds, more=more
    )
    return method.batch((1.0, 0.5), (0, 1))


def run(*args, **given):
    return finished(batch(*args, **given))


def operator_of(name):
    up = registry.lookup("algorithm", name).facts.up
    return None if up is None else {"contractive": TOP, "unbiased": RAND, "any": RAND}[up]


# The same method --------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted({*ROBUST} - {*PRESETS}))
def test_client_by_client_it_is_the_same_method(name):
    """What ``robust=True`` claims: the mean of the server's estimates of each is what it makes of the mean.

    A trimmed mean that trims nothing keeps clients apart and is a mean.
    """
    method = methods(registry.lookup("algorithm", name))[0]
    plain = finished(method.batch((1.0, 0.5), (0, 1)))
    more = {"more": {"robust": {"rule": "trimmed_mean"}}, "step": plain.batch.cells[0].step_size}
    apart = finished(replace(method, **more).batch((1.0, 0.5), (0, 1)))
    assert apart.net.per_client
    torch.testing.assert_close(apart.s.x, plain.s.x, rtol=1e-9, atol=1e-11)
    assert np.array_equal(apart.net.ledger.up, plain.net.ledger.up)
    errors = [r.recorder.column("estimator_error_sq") for r in (apart, plain)]
    np.testing.assert_allclose(*errors, rtol=1e-6, atol=1e-12)


@pytest.mark.thorough
def test_presets_with_the_mean_are_the_methods_that_they_come_from():
    mean = {"rule": "mean"}
    params = {"p": 0.3, "batch": 2}
    one = run("byz_vr_marina", RAND, LOGISTIC, params, robust=mean)
    assert torch.equal(one.s.x, run("vr_marina", RAND, LOGISTIC, params).s.x)
    params = {"p": 1.0}  # no coin
    two = run("byz_dasha_page", RAND, LOGISTIC, params, robust=mean)
    assert torch.equal(two.s.x, run("dasha_page", RAND, LOGISTIC, params).s.x)


# What is judged ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "memory"), first_of_each([("ef21", "g"), ("dasha", "g"), ("dasha_page", "g")])
)
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


@pytest.mark.parametrize(
    "problem", first_of_each(["logistic", "nonconvex_classification", "softmax"])
)
@pytest.mark.parametrize("batch_size", first_of_each([None, 3]))
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


@pytest.mark.thorough
@pytest.mark.parametrize("batchnorm", ["server", "sync", "frozen"])
@pytest.mark.parametrize("batch", [6, "full"])
def test_liars_train_on_wrong_labels_and_on_nothing_else(tmp_path, batch, batchnorm):
    """Same examples, same dropout, same BatchNorm: what the last client sends differs by its labels alone."""
    (tmp_path / "net.py").write_text(NET)
    model = {"model": f"{tmp_path}/net.py:small", "batchnorm": batchnorm, "batch": batch}
    given = {**PROBLEM, **model}
    more = {"robust": {"rule": "median", **LIE}}
    run = started(TrialMethod("sgd", {}, None, given, step=0.1, rounds=3, more=more).batch())
    problem = run.problem
    x = problem.start()[None] + 0.1 * torch.randn(1, problem.dim, generator=torch.manual_seed(0))
    J = None if batch == "full" else run.net.sample("batch", batch)
    buffers = problem.buffers(1)
    want, _, _ = problem.gradients(x, J, buffers)
    wrong = copy.copy(problem)
    wrong.train, wrong._kept = replace(problem.train, targets=9 - problem.train.targets), {}
    lied, _, after = wrong.gradients(x, J, buffers)
    got = run.net.grad(x, J)
    torch.testing.assert_close(got[:, :4], want[:, :4], rtol=0, atol=0)
    torch.testing.assert_close(got[:, 4], lied[:, 4])
    assert not torch.allclose(got[:, 4], want[:, 4])
    if batchnorm == "server":  # statistics are of pictures, whatever one calls them
        for name, values in run.net.oracle.buffers.items():
            torch.testing.assert_close(values, after[name])


@pytest.mark.thorough
def test_tokens_are_labels_and_pictures_to_be_drawn_again_are_none(tmp_path):
    (tmp_path / "text.txt").write_text("abcabcacbbca" * 40)
    text = {"name": "network", "model": "transformer:width=8,layers=1,heads=1"}
    text |= {"dataset": f"{tmp_path}/text.txt", "clients": 5, "batch": 2, "length": 8}
    more = {"robust": {"rule": "median", **LIE}}
    run = started(TrialMethod("sgd", {}, None, text, step=0.1, rounds=2, more=more).batch())
    classes = run.problem.train.classes
    flipped = run.net.poisoned.problem.train.targets
    np.testing.assert_array_equal(flipped, classes - 1 - run.problem.train.targets)
    auto = {**PROBLEM, "model": "autoencoder:code=2"}
    with pytest.raises(Skip, match="needs labels that can be turned around"):
        TrialMethod("sgd", {}, None, auto, step=0.1, more=more).cell()


# Where it runs --------------------------------------------------------------------------------------

AROUND = {
    "local": {"steps": 2, "optimizer": "adamw", "step_size": 0.01},
    "outer": {"optimizer": "adam"},
    "delay": {"rounds": 2},
}
EVERYTHING = [  # beside what the kit tries of methods alone
    ("ef21", TOP, PROBLEM, AROUND),
    ("ef21", TOP, UNLIKE, {"robust": {**FLIP, "bucket": 2, "tolerate": 1}}),
    ("gd", None, LOGISTIC, {"robust": {"rule": "mean", "byzantine": 1, "attack": "label_flip"}}),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "compressor", "problem", "more"), EVERYTHING)
def test_interrupted_and_on_other_ranks_the_same(name, compressor, problem, more):
    cells = batch(name, compressor, problem, rounds=10, **more)
    once = finished(cells)

    look = lambda run: (run.s.x, run.recorder.column("grad_norm_sq"))  # noqa: E731
    for x, norms in handed_over(cells, 4, look):
        torch.testing.assert_close(x, once.s.x, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(norms, once.recorder.column("grad_norm_sq"), rtol=1e-8)


# Rules against numpy and scipy, attacks against their definitions ---------------------------------


def vectors(seed, cells=3, n=7, d=4):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((cells, n, d)))


def by_hand(rule, x, f):
    """The rule of one cell's vectors x (n, d), in numpy."""
    n = len(x)
    if rule == "mean":
        return x.mean(0)
    if rule == "median":
        return np.median(x, 0)
    if rule == "trimmed_mean":
        columns = [sorted(column)[f : n - f] for column in x.T]
        return np.array([sum(kept) / len(kept) for kept in columns])
    if rule == "krum":
        scores = []
        for i in range(n):
            far = sorted(((x[i] - x[j]) ** 2).sum() for j in range(n) if j != i)
            scores.append(sum(far[: n - f - 2]))
        return x[int(np.argmin(scores))]
    result = minimize(
        lambda y: np.linalg.norm(x - y, axis=1).sum(),
        x.mean(0),
        method="BFGS",
        options={"gtol": 1e-10},
    )
    return result.x


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize(("n", "f"), [(7, 2), (8, 2), (5, 1), (7, 0)])
def test_a_rule_is_what_it_is_by_hand(rule, n, f):
    x = vectors(n + f, n=n)
    got = RULES[rule](x, f).numpy()
    want = np.stack([by_hand(rule, cell, f) for cell in x.numpy()])
    np.testing.assert_allclose(got, want, atol=1e-6 if rule == "geometric_median" else 1e-12)


def test_a_geometric_median_may_be_one_of_the_points():
    """Where a point weighs more than the pull of all others: Weiszfeld's own steps would divide by zero there."""
    x = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]], dtype=torch.float64)
    zero = torch.zeros(1, 2, dtype=torch.float64)
    assert torch.equal(where_pulled(x, zero), zero)
    assert torch.equal(geometric_median(x, 0), zero)
    # the median, coordinate by coordinate, is one of the points here, and not the answer
    y = torch.tensor([[[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]]], dtype=torch.float64)
    want = by_hand("geometric_median", y[0].numpy(), 0)
    np.testing.assert_allclose(geometric_median(y, 0)[0].numpy(), want, atol=1e-6)


def test_cells_stop_by_themselves():
    x = vectors(9, cells=6)
    x[2] = x[2, :1]  # done at once
    whole = geometric_median(x, 0)
    for j in range(6):
        alone = geometric_median(x[j : j + 1], 0)[0]
        torch.testing.assert_close(alone, whole[j], rtol=1e-13, atol=0)


# Buckets -----------------------------------------------------------------------------------------


def test_buckets_are_means_in_the_order_given_and_the_last_may_be_smaller():
    x, order = vectors(10, cells=2, n=5), torch.tensor([[4, 0, 2, 1, 3], [0, 1, 2, 3, 4]])
    got = bucketed(x, 2, order)
    assert got.shape == (2, 3, 4)
    torch.testing.assert_close(got[0, 0], (x[0, 4] + x[0, 0]) / 2)
    torch.testing.assert_close(got[0, 2], x[0, 3])
    torch.testing.assert_close(got[1, 1], (x[1, 2] + x[1, 3]) / 2)


class Drawn:
    """The streams of a round."""

    def __init__(self, seeds):
        self.root = stream(seeds)

    def server_stream(self, purpose):
        return self.root.fold(purpose)


def test_buckets_are_drawn_for_each_cell_and_in_one_bucket_it_is_the_mean():
    x = vectors(11, cells=1).expand(2, -1, -1)
    two = pooled(Robust("median", bucket=2), Drawn([0, 1]), x)
    assert not torch.allclose(two[0], two[1])
    one = pooled(Robust("median", bucket=7), Drawn([0, 1]), x)
    torch.testing.assert_close(one, x.mean(1))


# Attacks -----------------------------------------------------------------------------------------


def test_attacks_are_what_their_papers_say():
    x = vectors(13)
    honest = x[:, :5].numpy()
    mean, std = honest.mean(1), np.sqrt(((honest - honest.mean(1, keepdims=True)) ** 2).mean(1))
    flipped = forged(Robust(byzantine=2, attack="sign_flip", scale=4.0), x)
    torch.testing.assert_close(flipped[:, 5:], -4 * x[:, 5:])
    little = forged(Robust(byzantine=2, attack="a_little_is_enough", z=1.5), x)
    inner = forged(Robust(byzantine=2, attack="inner_product", epsilon=0.3), x)
    for seen in (flipped, little, inner):
        assert torch.equal(seen[:, :5], x[:, :5])  # the honest ones' are theirs
    for i in (5, 6):
        np.testing.assert_allclose(little[:, i].numpy(), mean - 1.5 * std, atol=1e-12)
        np.testing.assert_allclose(inner[:, i].numpy(), -0.3 * mean, atol=1e-12)


def test_the_automatic_z_leaves_a_majority_farther_out():
    """Of 50 clients and 24 attackers 2 honest ones are lacking: Phi(z) = 24/26, as in the paper's formula."""
    robust = Robust(byzantine=24, attack="a_little_is_enough", z="auto")
    assert deviations(robust, 50) == pytest.approx(NormalDist().inv_cdf(24 / 26))
    # a half of the honest ones are lacking
    assert deviations(Robust(byzantine=1, z="auto"), 5) == 0


# Numbers of clients, and kappa ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "n", "want"), [(2, 7, 2), ("20%", 10, 2), ("29%", 100, 29), ("25%", 7, 1), (0, 5, 0)]
)
def test_a_share_of_clients_is_rounded_down(number, n, want):
    assert Robust(byzantine=number).attackers(n) == want
    assert Robust(byzantine=number).tolerated(n) == want
    assert Robust(byzantine=0, tolerate=number).tolerated(n) == want


def ratio(x, got, f):
    """The largest ||F - z||^2 / mean ||x_i - z||^2 over all n - f of n vectors x (n, d)."""
    worst = 0.0
    for chosen in itertools.combinations(range(len(x)), len(x) - f):
        own = x[list(chosen)]
        spread = ((own - own.mean(0)) ** 2).sum(1).mean()
        if spread > 0:
            worst = max(worst, ((got - own.mean(0)) ** 2).sum() / spread)
    return worst


@pytest.mark.thorough
@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "geometric_median"])
@pytest.mark.parametrize(("n", "f"), [(3, 1), (5, 2)])
def test_no_vectors_break_the_bound(rule, n, f):
    """Random ones, of which some are far out, together, or equal."""
    random = np.random.default_rng(1)
    bound = kappa(Robust(rule, byzantine=f), n)
    for trial in range(60):
        x = random.standard_normal((n, 2))
        x[n - f :] *= 10 ** random.uniform(-1, 2)
        if trial % 3 == 0:
            x[n - f :] = x[n - f]
        if trial % 4 == 0:
            x[: n // 2] = x[0] + 1e-3 * x[: n // 2]
        got = RULES[rule](torch.from_numpy(x)[None], f)[0].numpy()
        assert ratio(x, got, f) <= bound * (1 + 1e-9)


@pytest.mark.parametrize(("n", "f"), [(3, 1), (5, 2), (9, 2)])
def test_kappa_of_the_trimmed_mean_is_attained(n, f):
    """f of the n - f honest values 1, the others 0, and the attackers at 0: all that is kept is 0."""
    x = np.zeros((n, 1))
    x[:f] = 1.0
    got = RULES["trimmed_mean"](torch.from_numpy(x)[None], f)[0].numpy()
    assert ratio(x, got, f) == pytest.approx(kappa(Robust("trimmed_mean", byzantine=f), n))
    assert kappa(Robust("trimmed_mean", byzantine=f), n) == f / (n - 2 * f)


def test_nothing_is_claimed_where_nothing_is_proved():
    assert kappa(Robust("mean"), 5) == 0
    assert kappa(Robust("trimmed_mean"), 5) == 0
    assert kappa(Robust("mean", byzantine=1), 5) is None
    assert kappa(Robust("krum", byzantine=1), 5) is None
    assert kappa(Robust("median", byzantine=1, bucket=2), 9) is None
    assert kappa(Robust("median", byzantine=2, tolerate=1), 9) is None
    assert kappa(Robust("trimmed_mean", byzantine=2), 4) is None  # half of them: no rule can tell
