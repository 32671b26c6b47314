"""Rules of a robust server against numpy and scipy, attacks against their definitions, kappa against the worst case."""

from __future__ import annotations

import itertools
from statistics import NormalDist

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from raybench.algorithms.robust import (
    RULES,
    bucketed,
    deviations,
    forged,
    geometric_median,
    kappa,
    pooled,
)
from raybench.core.parts import Robust
from raybench.core.streams import stream

pytestmark = pytest.mark.thorough

RESISTING = sorted(set(RULES) - {"mean"})


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


@pytest.mark.parametrize("rule", sorted(RULES))
def test_it_moves_and_scales_with_all_and_is_what_all_are(rule):
    x, away = vectors(4), torch.arange(4.0, dtype=torch.float64)
    moved, still = RULES[rule](3 * x + away, 2), 3 * RULES[rule](x, 2) + away
    torch.testing.assert_close(moved, still, rtol=1e-8, atol=1e-8)
    same = x[:, :1].expand(3, 7, 4)
    torch.testing.assert_close(RULES[rule](same, 2), same[:, 0], rtol=1e-14, atol=0)
    if rule != "krum":  # which judges none alone
        assert torch.equal(RULES[rule](x[:, :1], 0), x[:, 0])


@pytest.mark.parametrize("rule", RESISTING)
def test_a_minority_cannot_pull_it_away(rule):
    """However far 3 of 10 vectors are, the rule stays within the reach of the others; the mean goes with them."""
    x = vectors(8, n=10)
    for far in (1e2, 1e8):
        x[:, 7:] = far
        assert RULES[rule](x, 3).norm(dim=-1).max() < 3 * x[:, :7].norm(dim=-1).max()
        assert RULES["mean"](x, 3).norm(dim=-1).min() > 0.2 * far


def test_a_geometric_median_may_be_one_of_the_points():
    """Where a point weighs more than the pull of all others: Weiszfeld's own steps would divide by zero there."""
    x = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]], dtype=torch.float64)
    assert torch.equal(geometric_median(x, 0), torch.zeros(1, 2, dtype=torch.float64))
    # the median, coordinate by coordinate, is one of the points here, and not the answer
    y = torch.tensor([[[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]]], dtype=torch.float64)
    want = by_hand("geometric_median", y[0].numpy(), 0)
    np.testing.assert_allclose(geometric_median(y, 0)[0].numpy(), want, atol=1e-6)


def test_cells_stop_by_themselves():
    x = vectors(9, cells=6)
    x[2] = x[2, :1]  # done at once
    whole = geometric_median(x, 0)
    for j in range(6):
        torch.testing.assert_close(
            geometric_median(x[j : j + 1], 0)[0], whole[j], rtol=1e-13, atol=0
        )


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
    assert (
        deviations(Robust(byzantine=1, z="auto"), 5) == 0
    )  # a half of the honest ones are lacking


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


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "geometric_median"])
@pytest.mark.parametrize(("n", "f"), [(3, 1), (5, 2), (6, 1), (7, 2)])
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
