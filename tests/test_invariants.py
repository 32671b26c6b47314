"""Branches of methods that no reference has: what is conserved, and special cases that are one another."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from toys import (
    FAR,
    MATRIX,
    P1,
    RAND,
    SAMPLES,
    TOP,
    ConvexL1,
    each_round,
    full_gradients,
    largest,
    paths,
    registered,
    title,
)

import raybench
from raybench.algorithms.power_sgd import orthonormal
from raybench.core.errors import InputError
from raybench.testing.trial import TrialMethod, started

L1 = {"name": "convex_l1", "weight": 0.2}
ONE = {**P1, "clients": 1}  # a client
Given = tuple  # (method, parameters, compressor, downlink)


def method(given: Given, problem=P1, step=0.02, rounds=60, **rest) -> TrialMethod:
    name, params, compressor, downlink = (*given, None, None)[:4]
    return TrialMethod(name, params, compressor, problem, downlink, step, rounds=rounds, **rest)


@pytest.fixture(scope="module", autouse=True)
def _toys():
    with registered("problem", convex_l1=ConvexL1):
        yield


def test_saga_refuses_a_table_that_is_too_large(monkeypatch):
    saga = method(("vr_diana", {"estimator": "saga", "batch": 8}, RAND), SAMPLES)  # of 12 samples
    monkeypatch.setattr("raybench.algorithms.diana.MOST_TABLE_VALUES", 5 * 12 * 30 - 1)
    with pytest.raises(InputError, match="lsvrg needs none"):
        started(saga.batch()).advance(1)


# Power iterations: what is held back is kept -----------------------------------------------------


@pytest.mark.parametrize("error", ["own", "shared"])
@pytest.mark.parametrize("rank", [1, 3])
def test_power_sgd_conserves_gradients(rank, error):
    given = ("power_sgd", {"rank": rank, "error": error})
    run = started(method(given, MATRIX, 0.05, more=FAR).batch((1.0, 2.0), (0, 1)))
    seen = each_round(run, lambda r: (r.s.x.clone(), full_gradients(r).mean(1), r.c.e.mean(1)))
    gammas, total = torch.tensor([[0.05], [0.1]], dtype=torch.float64), torch.zeros(2, 20).double()
    for (_, grad, _), (x, _, left) in pairwise(seen):
        total = total + grad
        assert largest(total, (seen[0][0] - x) / gammas + left) < 1e-10
    assert float(left.abs().max()) > 1e-6


def test_power_sgd_survives_zero_and_rank_deficient_gradients():
    for P in (torch.zeros(2, 5, 3), torch.ones(2, 5, 3), torch.eye(5)[None, :, :3]):
        Q = orthonormal(P.double())
        eye = torch.eye(3, dtype=torch.float64).expand(len(Q), 3, 3)
        assert torch.allclose(Q.mT @ Q, eye, atol=1e-12)


# Special cases that are one another -----------------------------------------------------------

I = "identity"
EF21 = ("ef21", {}, TOP)
SAME = [  # in branches beside those that have references of their own
    (("ef21_prox", {}, TOP), EF21, L1),
    (("ef_bv", {"nu": 1.0}, "perm_k"), ("diana", {}, "perm_k"), P1),
    (("pp_marina", {}, "perm_k"), ("pp_marina", {}, I), ONE),
    (("local_ef21", {"init": "full"}, I), ("local_sgd", {}), P1),
    (("dgc", {"vectors": "dense"}, TOP), ("heavy_ball", {}), P1),
    (
        ("dgc", {"warmup": [["100%"]], "warmup_rounds": 30, "nesterov": True}, TOP),
        ("heavy_ball", {"nesterov": True}),
        P1,
    ),
    *(((n, {}, TOP, I), (n, {}, TOP), P1) for n in ("ef21", "ef14")),
    *(((n, {}, RAND, I), (n, {}, RAND), P1) for n in ("diana", "marina")),
]


@pytest.mark.parametrize(("ours", "theirs", "problem"), SAME, ids=title)
def test_they_are_the_same(ours, theirs, problem):
    one, two = paths(*(method(given, problem, rounds=30, more=FAR) for given in (ours, theirs)))
    assert largest(one, two) < 1e-8
    assert largest(one[0], one[-1]) > 0.1


# Compressors whose constant a step relies on ------------------------------------------------------


@pytest.mark.parametrize(("s", "d"), [(2, 4), (3, 9), (2, 100), (8, 16), (1, 4), (1, 25)])
def test_omega_of_dithering_with_the_largest_norm(s, d):
    """min{d/(4 s^2), (1 + sqrt d)/(2 s)}, and (sqrt(d) - 1)/2 for s = 1: more than vectors take that are hard for it.

    Half way between two levels a coordinate varies by 1/(4 s^2); at (1, c, .., c) with c = 1/(1 + sqrt d) by c (1 - c).
    """
    omega = raybench.compressor(f"dithering:s={s},p=inf").omega(d)
    if s == 1:
        c = 1 / (1 + math.sqrt(d))
        assert omega == raybench.compressor("terngrad").omega(d)
        assert omega == pytest.approx((d - 1) * c * (1 - c) / (1 + (d - 1) * c * c), rel=1e-12)
    else:
        least = (d - 1) / (4 * s * s)
        assert omega == pytest.approx(min(d / (4 * s * s), (1 + math.sqrt(d)) / (2 * s)), rel=1e-12)
        assert omega >= least / (1 + least)


@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
def test_the_lazy_gate_reaches_its_omega(p):
    """1/p - 1 exactly, for every x: what is sent has the chance p and the factor 1/p."""
    operator, x = raybench.compressor(f"lazy:p={p}"), torch.tensor([3.0, -4.0]).double()
    assert operator.omega(2) == pytest.approx(1 / p - 1, rel=1e-12)
    many = x.expand(400_000, -1)
    sent = operator.compress(many, stream=raybench.stream(seed=7).spread((len(many),))).decode()
    share = float((sent[:, 0] != 0).double().mean())
    assert share == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / len(many)))
    assert torch.allclose(sent[sent[:, 0] != 0][0] * p, x)
