"""With a nonsmooth part the theorems of the generic rule hold as they stand, for the gradient mapping.

f + psi has nonconvex f_i, a strongly convex f and psi = w ||x||_1; every proximal method with a theorem
of its own step is run at it.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toys import SaddleL1, WithL1, each_round, full_gradients, registered

from raybench import theory
from raybench.core import registry
from raybench.problems.base import Fact
from raybench.testing.trial import Method, started

TOP, RAND = {"name": "top_k", "k": 2}, {"name": "rand_k", "k": 2}
WEIGHT, ROUNDS, SEEDS = 0.3, 400, 40
FULL = {"init": "full"}

METHODS = [  # method, its parameters, operator, downlink, seeds (1: path by path)
    ("gd", {}, None, None, 1),
    ("heavy_ball", {"momentum": 0.8}, None, None, 1),
    ("ef21", {}, TOP, None, 1),
    ("ef21_prox", {"init": "zero"}, TOP, None, 1),
    ("ef21_plus", {}, TOP, None, 1),
    ("ef21_w", FULL, TOP, None, 1),
    ("ef21_pp", {"p": 0.4, **FULL}, TOP, None, SEEDS),
    ("ef21_p", {}, None, TOP, 1),
    ("ef21_sgdm", {"eta": 0.3, **FULL}, TOP, None, 1),
    ("ef21_page", {"p": 0.3, **FULL}, TOP, None, 1),
    ("lag", {"z": 2.0, **FULL}, None, None, 1),
    ("clag", {"z": 2.0, **FULL}, TOP, None, 1),
    ("three_pc_v1", FULL, TOP, None, 1),
    ("three_pc_v2", {"first": "rand_k:k=3", **FULL}, TOP, None, SEEDS),
    ("three_pc_v4", {"first": "top_k:k=1", **FULL}, TOP, None, 1),
    ("three_pc_v5", {"p": 0.3, **FULL}, TOP, None, SEEDS),
    ("marina", {}, RAND, None, SEEDS),
    ("vr_marina", {}, RAND, None, SEEDS),
    ("pp_marina", {"clients": 2}, RAND, None, SEEDS),
    ("diana", {}, RAND, None, SEEDS),
    ("vr_diana", {"p": 0.3}, RAND, None, SEEDS),
    ("dasha", {}, RAND, None, SEEDS),
    ("dasha_page", {"p": 0.3}, RAND, None, SEEDS),
    ("dasha_mvr", {"momentum": 0.3}, RAND, None, SEEDS),
    ("dasha_sync_mvr", {"p": 0.3}, RAND, None, SEEDS),
]


@pytest.fixture(scope="module")
def saddle():
    with registered("problem", saddle_l1=SaddleL1):
        yield {"name": "saddle_l1", "weight": WEIGHT}


def least(problem: WithL1) -> float:
    """min f + psi, by proximal gradient descent from 0."""
    x, gamma = torch.zeros(1, problem.dim, dtype=torch.float64), 1 / problem.constants.L
    for _ in range(3000):
        x = problem.prox(x - gamma * problem.grad(x).mean(1), gamma)
    return float((problem.oracle(x)[1].mean(1) + problem.penalty(x))[0])


def method_of(saddle, name, params, compressor, downlink, rule="nonconvex") -> Method:
    more = {"x0": {"normal": 2.0}, "record": {"every": 1}}
    return Method(
        name, params, compressor, saddle, downlink=downlink, rule=rule, rounds=ROUNDS, more=more
    )


def at(run) -> torch.Tensor:
    return run.a.point(run.net, run.s, run.c)


def error(run) -> torch.Tensor:
    """G of EF21 and its kin, of EF21-P and of the MARINA family, (B,)."""
    grads, name = full_gradients(run), run.batch.cells[0].cell.algorithm.name
    if name == "ef21_p":
        return run.problem.constants.L**2 * (run.s.y - run.s.x).square().sum(-1)
    if name == "ef21_plus":
        return (run.s.G - grads).square().sum(-1).mean(1)
    if name == "ef21_w":
        L = torch.tensor(run.problem.constants.L_i, dtype=torch.float64)
        return ((run.c.g - grads).square().sum(-1) / (len(L) * L / L.sum())).mean(1)
    if name in ("marina", "vr_marina", "pp_marina"):
        return (run.s.g - grads.mean(1)).square().sum(-1)
    if name == "diana":
        cell = run.batch.cells[0]
        return cell.omega / run.problem.n * (run.c.h - grads).square().sum(-1).mean(1)
    if name in ("gd", "heavy_ball", "vr_diana"):
        return torch.zeros(len(grads), dtype=torch.float64)
    return (run.c.g - grads).square().sum(-1).mean(1)


def first_terms(run, method: Method) -> torch.Tensor:
    """What the bound has on top of 2 Delta0/(gamma T), times T, (B,)."""
    cell, G = method.cell(), error(run)
    if method.name in ("ef21", "ef21_prox", "ef21_plus"):
        return G / theory.contraction(cell.alpha)[0]
    if method.name == "heavy_ball":
        eta = cell.params["momentum"]
        return eta**2 / (1 - eta) * full_gradients(run).mean(1).square().sum(-1)
    if method.name == "diana":
        return 2 * G / cell.params["alpha"]
    if method.name == "vr_diana":
        H = full_gradients(run).square().sum(-1).mean(1)
        return 2 * cell.omega / run.problem.n / cell.params["alpha"] * H
    if method.name not in ("ef21_p", "gd"):
        assert float(G.max()) < 1e-20
    return torch.zeros_like(G)


@pytest.mark.parametrize(("name", "params", "compressor", "downlink", "seeds"), METHODS)
def test_nonconvex_bound_of_the_gradient_mapping(saddle, name, params, compressor, downlink, seeds):
    """(1/T) sum_{t<T} E||M(x^t)||^2 <= 2 (F(x^0) - min F)/(gamma T) + first terms/T, M with the step gamma."""
    method = method_of(saddle, name, params, compressor, downlink)
    run = started(method.batch((1.0,), range(max(seeds, 3))))
    problem = run.problem
    run.advance(0)
    first = first_terms(run, method).numpy()
    gamma = method.cell().step_size / (1 - params.get("momentum", 0) if name == "heavy_ball" else 1)

    def mapping(r) -> torch.Tensor:
        x = at(r)
        moved = problem.prox(x - gamma * problem.grad(x).mean(1), gamma)
        return ((x - moved) / gamma).square().sum(-1)

    norms = torch.stack(each_round(run, mapping)).numpy()[:-1]  # (T, B)
    gaps = run.recorder.column("loss")[:, 0] - least(problem)
    recorded = run.recorder.column("grad_norm_sq").T[:-1]
    assert (
        recorded <= norms * (1 + 1e-9) + 1e-13
    ).all()  # what is recorded has the longer step 1/L
    for T in (1, 3, 10, 30, 100, ROUNDS):
        have, promised = norms[:T].mean(0), (2 * gaps / gamma + first) / T
        if seeds > 1:
            have, promised = have.mean(), promised.mean()
        assert np.all(have <= promised * (1 + 1e-9)), (T, have, promised)


LINEAR = [
    m for m in METHODS if m[0] not in ("heavy_ball", "ef21_sgdm", "ef21_page", "vr_diana", "vr_marina")
    and not m[0].startswith("dasha")
]  # fmt: skip


@pytest.mark.parametrize(("name", "params", "compressor", "downlink", "seeds"), LINEAR)
def test_pl_bound_with_a_nonsmooth_part(saddle, name, params, compressor, downlink, seeds):
    """E Psi^t <= (1 - gamma mu)^t Psi^0, Psi = F - min F + (gamma/rho) G, f being mu-strongly convex."""
    method = method_of(saddle, name, params, compressor, downlink, "pl")
    run = started(method.batch((1.0,), range(max(seeds, 3))))
    steps, k = theory.of(method.entry.facts.theory), setting_of(method)
    rate = steps.pl.formula(k)
    rho = rate.rho if isinstance(rate, theory.Rate) else 1.0
    G = torch.stack(each_round(run, error)).numpy()
    gamma, mu = method.cell().step_size, run.problem.constants.mu
    psi = run.recorder.column("loss").T - least(run.problem) + gamma / rho * G
    if seeds > 1:
        psi = psi.mean(1, keepdims=True)
    promised = (1 - gamma * mu) ** np.arange(len(psi))[:, None] * psi[0]
    floor = 1e-12 * np.abs(run.recorder.column("loss")).max()  # of evaluating F and its minimum
    assert (psi <= promised * (1 + 1e-9) + floor).all()


def setting_of(method: Method):
    from raybench.execution.resolve import Resolver

    return Resolver(allow_unproven=True).backing(method.cell().cell)[1]


def test_without_strong_convexity_there_is_no_linear_rate(saddle):
    """Nor is a nonsmooth part taken for convex unless the problem says so."""

    class Silent(SaddleL1):
        def find_constants(self):
            found = super().find_constants()
            return type(found)(**{**vars(found), "facts": frozenset()})

    with registered("problem", silent=Silent):
        k = setting_of(Method("gd", {}, None, {"name": "silent", "weight": 1.0}, step=0.1))
    steps = theory.of(registry.lookup("algorithm", "gd").facts.theory)
    assert theory.PROXIMABLE in steps.nonconvex.failing(k)
    assert theory.PL in steps.pl.failing(k)
    known = setting_of(Method("gd", {}, None, saddle, step=0.1))
    assert known.constants.facts == {Fact.QUADRATIC, Fact.CONVEX_PENALTY, Fact.STRONGLY_CONVEX}
    assert steps.pl.failing(known) == []
