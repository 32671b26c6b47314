"""Gradient differences: the bounds that theory promises, floors, and acceleration."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toys import ConvexL1, each_round, full_gradients, registered

from raybench.algorithms.vr_marina import VRMarina
from raybench.core import registry
from raybench.core.draws import Sample
from raybench.testing.trial import DATA, Method, finished, started

SEEDS = 32
P1 = {"name": "quadratic", "dim": 12, "clients": 6, "mu": 0.05, "heterogeneity": 0.7, "seed": 3}
SAMPLES = {"name": "least_squares", **DATA, "regularizer": "l2", "lambda": 0.5}
LOGISTIC = {"name": "logistic", **DATA, "regularizer": "nonconvex", "lambda": 0.1}  # bounded noise
CHAIN = {"name": "tridiagonal", "dim": 12, "clients": 4, "noise": 0.5, "lambda": 0.01}
RAND = {"name": "rand_k", "k": 3}
COMMON = {**RAND, "mask": "common"}
FAR = {"x0": {"normal": 1.0}}


def on(problem, name, compressor=None, rounds=60, **rest) -> Method:
    return Method(
        name, rest.pop("params", {}), compressor, problem, rounds=rounds, more=FAR, **rest
    )


def title(value) -> str:
    if isinstance(value, dict):
        return "-".join(str(v) for v in value.values() if not isinstance(v, list))
    return str(value)


# I10: the bounds that theory promises --------------------------------------------------------

BOUNDED = [
    ("dasha", {}, RAND, P1),
    ("dasha", {}, COMMON, P1),
    ("dasha", {}, "natural", P1),
    ("dasha", {}, "perm_k", CHAIN),
    ("dasha", {"alpha": 0.05}, RAND, P1),
    ("dasha_page", {}, RAND, SAMPLES),
    ("dasha_page", {"batch": 3, "p": 0.1}, "natural", SAMPLES),
    ("dasha_mvr", {"momentum": 0.2}, RAND, P1),  # one sample a client: no noise
    ("dasha_sync_mvr", {}, RAND, SAMPLES),
    ("dasha_sync_mvr", {"p": 0.05, "batch": 2}, COMMON, SAMPLES),
    ("pp_marina", {"clients": 1}, RAND, P1),
    ("pp_marina", {"clients": 9}, RAND, P1),  # more draws than clients
    ("pp_marina", {"clients": 3}, COMMON, P1),
    ("pp_marina", {"clients": 2}, "natural", CHAIN),
    ("vr_marina", {"batch": 2}, RAND, SAMPLES),
    ("vr_marina", {"batch": 1}, "perm_k", SAMPLES),
    ("marina", {}, "perm_k", P1),
    ("marina", {}, "perm_k", CHAIN),
    ("marina", {"p": 0.1}, "perm_k", {**CHAIN, "clients": 24}),  # more clients than coordinates
]


@pytest.mark.parametrize(("name", "params", "compressor", "problem"), BOUNDED, ids=title)
def test_nonconvex_bound(name, params, compressor, problem):
    """(1/T) sum_{t<T} E||grad f||^2 <= 2 Delta0/(gamma T): all start with exact estimates."""
    method = on(problem, name, compressor, 200, params=params)
    run = finished(method.batch((1.0,), range(SEEDS)))
    assert (run.status == "ok").all()
    norms = run.recorder.column("grad_norm_sq")[:, :-1].mean(0)
    gap = (run.recorder.column("loss")[:, 0] - run.problem.constants.f_star).mean()
    for T in (1, 3, 10, 30, 100, 200):
        assert norms[:T].mean() <= 2 * gap / (method.cell().step_size * T) * (1 + 1e-9), T


@pytest.mark.parametrize(
    ("params", "compressor"),
    [({}, RAND), ({"batch": 4}, "natural"), ({"p": 1.0, "alpha": 0.1}, COMMON), ({}, "perm_k")],
    ids=title,
)
def test_vr_diana_nonconvex_bound(params, compressor):
    """2 (Delta0 + gamma (w/a) H^0)/(gamma T), w = omega/n (of the mean), H^0 = mean||grad f_i(x^0)||^2."""
    method = on(SAMPLES, "vr_diana", compressor, 200, params=params)
    run = started(method.batch((1.0,), range(SEEDS)))
    run.advance(0)
    H = float(full_gradients(run).square().sum(-1).mean())
    run.advance(200)
    cell = method.cell()
    gap = float((run.recorder.column("loss")[:, 0] - run.problem.constants.f_star).mean())
    one = {"rand_k": cell.omega, "perm_k": 1.0}  # of dependent messages
    mask = compressor == COMMON or compressor == "perm_k"
    w = (
        one[compressor["name"] if isinstance(compressor, dict) else compressor]
        if mask
        else (cell.omega / run.problem.n)
    )
    norms = run.recorder.column("grad_norm_sq")[:, :-1].mean(0)
    for T in (1, 10, 200):
        promised = 2 * (gap / cell.step_size + w / cell.params["alpha"] * H) / T
        assert norms[:T].mean() <= promised, T


PL = [b for b in BOUNDED if b[0] in ("dasha", "pp_marina", "marina")]


@pytest.mark.parametrize(("name", "params", "compressor", "problem"), PL, ids=title)
def test_pl_bound(name, params, compressor, problem):
    """E Psi^t <= (1 - gamma mu)^t Psi^0, Psi = f - f* + (gamma/rho) G >= f - f*, G^0 = 0."""
    method = on(problem, name, compressor, 200, params=params, rule="pl")
    run = started(method.batch((1.0,), range(SEEDS)))
    error = torch.stack(
        each_round(run, lambda r: (r.s.g - full_gradients(r).mean(1)).square().sum(-1))
    ).numpy()
    cell, constants = method.cell(), run.problem.constants
    rho = cell.params["alpha"] / 2 if name == "dasha" else cell.params["p"]
    gaps = run.recorder.column("loss").T - constants.f_star
    psi = (gaps + cell.step_size / rho * error).mean(1)
    promised = psi[0] * (1 - cell.step_size * constants.mu) ** np.arange(len(psi))
    floor = 1e-13 * np.abs(run.recorder.column("loss")).max()  # of evaluating f
    assert (psi <= promised * (1 + 1e-9) + floor).all()


def variance(r) -> torch.Tensor:
    """The variance of one sample's gradient at the iterate, mean over clients and cells."""
    shape = (len(r.s.x), r.problem.n, 1)
    ones = [Sample.at(torch.full(shape, j)) for j in range(r.problem.samples[0])]
    apart = torch.stack([r.problem.grad(r.s.x, one) for one in ones])
    return (apart - apart.mean(0)).square().sum(-1).mean(0).mean()


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("dasha_mvr", {"momentum": 0.2, "batch": 2}),
        ("dasha_mvr", {"momentum": 1.0}),
        ("dasha_sync_mvr", {"p": 0.2, "big": 3}),
    ],
)
def test_dasha_with_noise_has_a_floor(name, params):
    """MVR: (1/(gamma L))(sqrt(6 F q^2) + sqrt(2 q/((2-q) n)))^2 sigma^2/b; SYNC-MVR (1 + 1/(p T)) sigma^2/(gamma L n big)."""
    method = on(LOGISTIC, name, RAND, 150, params=params)
    assert method.cell().theory_step is not None
    run = started(method.batch((1.0,), range(SEEDS)))
    sigma2 = float(torch.stack(each_round(run, variance)[:-1]).max())
    n, gamma, c = run.problem.n, method.cell().step_size, run.problem.constants
    F = 2 * method.cell().omega * (2 * method.cell().omega + 1) / n
    q = params.get("momentum", 0.0)
    norms = run.recorder.column("grad_norm_sq")[:, :-1].mean(0)
    for T in (1, 10, 150):
        if name == "dasha_mvr":
            root = np.sqrt(6 * F * q * q) + np.sqrt(2 * q / ((2 - q) * n))
            floor = root**2 * sigma2 / params.get("batch", 1)
        else:
            floor = (1 + 1 / (params["p"] * T)) * sigma2 / (n * params["big"])
        gap = run.recorder.column("loss")[:, 0].mean()
        assert norms[:T].mean() <= 2 * gap / (gamma * T) + floor / (gamma * c.L)


@pytest.mark.parametrize(("big", "p"), [(1, 0.3), (6, 0.1)])
def test_online_bound_has_a_floor(big, p):
    """VR-MARINA: 2 Delta0/(gamma T) + (1 + 1/(p T)) sigma^2/(n big), sigma^2 of a sample, along the path."""
    method = on(LOGISTIC, "vr_marina", RAND, 150, params={"big": big, "p": p, "batch": 2})
    assert method.cell().theory_step is not None
    run = started(method.batch((1.0,), range(SEEDS)))
    n = run.problem.n
    sigma2 = torch.stack(each_round(run, variance)[:-1])
    norms = run.recorder.column("grad_norm_sq")[:, :-1].mean(0)
    gap = run.recorder.column("loss")[:, 0].mean()  # f >= 0
    for T in (1, 10, 50, 150):
        floor = (1 + 1 / (p * T)) * float(sigma2[:T].max()) / (n * big)
        assert norms[:T].mean() <= 2 * gap / (method.cell().step_size * T) + floor
    error = (run.s.g - full_gradients(run).mean(1)).square().sum(-1).mean()
    assert float(error) > 0.1 * float(sigma2[-1]) / (n * big)  # the noise is of that order


# Floors, and their absence -------------------------------------------------------------------


def last_norm(name, rounds=700, **params) -> float:
    method = on(SAMPLES, name, RAND, rounds, params=params, step=0.03)
    run = finished(method.batch((1.0,), range(2)), every=50)
    assert (run.status == "ok").all()
    return float(run.recorder.column("grad_norm_sq")[:, -4:].mean())


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("vr_diana", {"estimator": "lsvrg"}),
        ("vr_diana", {"estimator": "saga", "batch": 2}),
        ("vr_marina", {}),
        ("dasha_page", {}),
        ("dasha_sync_mvr", {}),
    ],
    ids=title,
)
def test_variance_reduction_has_no_floor(name, params):
    assert last_norm(name, **params) < 1e-5


def test_online_methods_have_a_floor_that_falls():
    """With q^2 and more for MVR's momentum q, with the samples of a dense round for VR-MARINA."""
    wide, fine = (last_norm("dasha_mvr", momentum=q) for q in (0.3, 0.03))
    assert 1e-4 < fine < wide / 20
    few, many = (last_norm("vr_marina", p=0.3, big=b) for b in (1, 10))
    assert 1e-4 < many < few / 4


def test_vr_marina_with_other_samples_at_the_old_point_stalls():
    """A difference must be of the same samples: the classic mistake."""

    class TwoSamples(VRMarina):
        def round(a, net, s, c):
            grad, seen = net.grad, []

            def other(x, sample=None, **rest):
                seen.append(sample)
                apart = sample is not None and len([j for j in seen if j is not None]) == 2
                return grad(x, net.sample("other", a.batch) if apart else sample, **rest)

            net.grad = other
            super().round(net, s, c)
            net.grad = grad

    entry = registry.lookup("algorithm", "vr_marina")
    TwoSamples.declared = {**vars(entry.facts)}
    with registered("algorithm", two_samples=TwoSamples):
        assert last_norm("two_samples", p=0.3) > 1e-3
    assert last_norm("vr_marina", p=0.3) < 1e-5


# ADIANA --------------------------------------------------------------------------------------


def test_adiana_accelerates():
    """On a chain with L/mu = 1000, all clients alike: about sqrt(L/mu) rounds, not L/mu."""
    problem = {**CHAIN, "dim": 30, "noise": 0.0, "lambda": 1e-3}
    last = {}
    for name, rule in (("gd", "nonconvex"), ("adiana", "paper")):
        run = finished(
            on(problem, name, "identity" if name == "adiana" else None, 800, rule=rule).batch()
        )
        gaps = run.recorder.column("loss")[0] - run.problem.constants.f_star
        last[name] = gaps[-1] / gaps[0]
    assert last["gd"] > 1e-4
    assert last["adiana"] < 1e-8


@pytest.mark.parametrize(("weight", "compressor"), [(0.0, RAND), (0.2, "natural")], ids=title)
def test_adiana_is_exact(weight, compressor):
    with registered("problem", convex_l1=ConvexL1):
        problem = {"name": "convex_l1", "weight": weight}
        run = finished(on(problem, "adiana", compressor, 3000, rule="paper").batch(), every=100)
    norms = run.recorder.column("grad_norm_sq")[0]
    assert norms[-1] < 1e-20 * norms[0]
    assert (int((run.s.y.abs() < 1e-12).sum()) > 0) == (weight > 0)
