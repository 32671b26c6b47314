"""The error feedback family: the bounds derived for its members, and their floors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from toys import ConvexL1, each_round, full_gradients, registered

from raybench.core import registry
from raybench.core.draws import Sample
from raybench.testing.trial import DATA, Method, finished, started
from raybench.theory import contraction

P1 = {"name": "quadratic", "dim": 12, "clients": 7, "mu": 0.05, "seed": 3}
NONCONVEX = {**P1, "dim": 10, "clients": 6, "heterogeneity": 0.7, "seed": 2}
SAMPLES = {"name": "least_squares", **DATA}
LOGISTIC = {"name": "logistic", **DATA, "regularizer": "nonconvex", "lambda": 0.1}  # bounded noise
TOP, RAND = {"name": "top_k", "k": 3}, {"name": "rand_k", "k": 3}
FAR = {"x0": {"normal": 2.0}}


def on_p1(name, compressor=TOP, rounds=60, problem=P1, more=FAR, **rest) -> Method:
    return Method(
        name, rest.pop("params", {}), compressor, problem, rounds=rounds, more=more, **rest
    )


def largest(a, b) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(b)).max())


# The bounds derived here ---------------------------------------------------------------------


def constants(method: Method):
    return started(method.batch()).problem.constants


def lyapunov(method: Method, run) -> torch.Tensor:
    """Return the terms of 2 Phi0/(gamma T) that come on top of Delta0, times 2/gamma, per cell."""
    cell, s, c = method.cell(), run.s, run.c
    theta, beta = contraction(cell.alpha or method.downlink["k"] / run.problem.dim)
    grads = full_gradients(run)
    if method.name == "ef21_p":
        return torch.zeros(len(s.x), dtype=torch.float64)  # w = x at the start
    if method.name == "ef21_w":
        L = torch.tensor(run.problem.constants.L_i, dtype=torch.float64)
        nw = len(L) * L / L.sum()
        return ((c.g - grads).square().sum(-1) / nw).mean(1) / theta
    if method.name == "ef21_hb":
        eta = cell.params["eta"]
        M = ((1 - eta) * s.outer - grads.mean(1)).square().sum(-1)
        G = (c.g - grads).square().sum(-1).mean(1)
        return (1 + eta) / (1 - eta) * M + (1 + eta) * (1 - theta) / theta * G
    v, rate = c.v, cell.params.get("p", cell.params.get("eta"))
    G, P = (c.g - v).square().sum(-1).mean(1), (v - grads).square().sum(-1).mean(1)
    mixed = 2 * beta / theta * (rate if method.name == "ef21_sgdm" else 1.0)
    return 2 * G / theta + 2 * (1 / rate + mixed) * P


DERIVED = [  # method, parameters, operator, problem, downlink, seeds (1: path-wise)
    ("ef21_hb", {"eta": 0.5}, TOP, NONCONVEX, None, 1),
    ("ef21_hb", {"eta": 0.9}, TOP, NONCONVEX, None, 1),
    ("ef21_hb", {"eta": 0.5, "init": "zero"}, RAND, NONCONVEX, None, 48),
    ("ef21_w", {}, TOP, NONCONVEX, None, 1),
    ("ef21_w", {"init": "zero"}, RAND, NONCONVEX, None, 48),
    ("ef21_p", {}, None, NONCONVEX, TOP, 1),
    ("ef21_p", {}, None, NONCONVEX, {"name": "top_k", "k": 1}, 1),
    ("ef21_sgdm", {"eta": 1.0}, TOP, NONCONVEX, None, 1),
    ("ef21_sgdm", {"eta": 0.3}, TOP, NONCONVEX, None, 1),
    ("ef21_sgdm", {"eta": 0.05}, TOP, NONCONVEX, None, 1),
    ("ef21_page", {"p": 0.3}, TOP, NONCONVEX, None, 1),
    ("ef21_page", {"batch": 1}, TOP, SAMPLES, None, 48),
    ("ef21_page", {"batch": 3, "p": 0.1}, RAND, SAMPLES, None, 48),
]


@pytest.mark.parametrize(
    ("name", "params", "compressor", "problem", "downlink", "seeds"), DERIVED, ids=str
)
def test_nonconvex_bound(name, params, compressor, problem, downlink, seeds):
    """(1/T) sum_{t<T} E||grad f||^2 <= 2 Phi0/(gamma T), Phi0 = Delta0 and the method's own errors."""
    method = on_p1(name, compressor, 600, problem, params=params, downlink=downlink)
    run = started(method.batch((1.0,), range(max(seeds, 3))))
    run.advance(0)
    extra = lyapunov(method, run).numpy()
    run.advance(run.rounds)
    assert (run.status == "ok").all()
    gamma = method.cell().step_size / (1 - params.get("eta", 0) if name == "ef21_hb" else 1)
    norms = run.recorder.column("grad_norm_sq")
    f_star = run.problem.constants.f_star
    if f_star is None:
        f_star = run.problem.constants.f_inf
    gaps = run.recorder.column("loss")[:, 0] - f_star
    rounds = run.recorder.rounds
    assert rounds[-1] == 600
    for T in (1, 3, 10, 30, 100, 300, 600):
        kept = [j for j, t in enumerate(rounds) if t < T]
        assert len(kept) == T
        have, promised = norms[:, kept].mean(1), (2 * gaps / gamma + extra) / T
        if seeds > 1:
            have, promised = have.mean(), promised.mean()
        assert np.all(have <= promised * (1 + 1e-9)), (T, have, promised)


def variance(run) -> torch.Tensor:
    """Return the variance of one sample's gradient at s.x, mean over clients, (B,)."""
    assert set(run.problem.samples) == {12}
    shape, x = (len(run.s.x), run.problem.n, 1), run.s.x
    ones = [Sample.at(torch.full(shape, j)) for j in range(12)]
    each = torch.stack([run.problem.grad(x, one) for one in ones])
    return (each - each.mean(0)).square().sum(-1).mean(0).mean(1)


@pytest.mark.parametrize(("eta", "batch"), [(1.0, 1), (0.3, 1), (0.05, 1), (0.3, 4)])
def test_nonconvex_bound_with_noise(eta, batch):
    """EF21-SGDM: 2 Phi0/(gamma T) + 2 (eta + (eta^2 + 2 eta^3) beta/theta) sigma^2, sigma^2 along the path."""
    params = {"eta": eta, "batch": batch}
    method = on_p1(
        "ef21_sgdm", TOP, 200, LOGISTIC, params=params, more={**FAR, "record": {"every": 1}}
    )
    assert method.cell().theory_step is not None
    run = started(method.batch((1.0,), range(48)))
    run.advance(0)
    extra = lyapunov(method, run).numpy()
    seen = each_round(run, variance)
    sigma2 = torch.stack(seen[1:]).mean().item() / batch
    theta, beta = contraction(method.cell().alpha)
    floor = 2 * (eta + (eta**2 + 2 * eta**3) * beta / theta) * sigma2
    assert floor > 1e-4
    norms = run.recorder.column("grad_norm_sq")[:, :200]
    gaps = run.recorder.column("loss")[:, 0] - run.problem.constants.f_inf
    promised = (2 * gaps / method.cell().step_size + extra) / 200 + floor
    assert norms.mean() <= promised.mean()


@pytest.mark.parametrize("case", [c for c in DERIVED if c[-1] == 1], ids=lambda c: c[0])
def test_far_above_its_step_the_bound_breaks(case):
    """So the test above is able to fail: at 300 times the step a method breaks its bound or diverges."""
    name, params, compressor, problem, downlink, _ = case
    method = on_p1(name, compressor, 100, problem, params=params, downlink=downlink)
    run = started(method.batch((300.0,)))
    run.advance(0)
    extra = float(lyapunov(method, run)[0])
    run.advance(100)
    gamma = 300 * method.cell().step_size / (1 - params.get("eta", 0) if name == "ef21_hb" else 1)
    norms = run.recorder.column("grad_norm_sq")[0]
    gap = run.recorder.column("loss")[0, 0] - run.problem.constants.f_star
    promised = 2 * gap / gamma + extra
    assert run.status[0] == "diverged" or norms.sum() > promised


@pytest.mark.parametrize(
    ("name", "compressor", "downlink"), [("ef21_w", TOP, None), ("ef21_p", None, TOP)]
)
def test_pl_bound(name, compressor, downlink):
    """Psi^t <= (1 - gamma mu)^t Psi^0, Psi = f - f* + (gamma/theta) G; top-k, so path-wise."""
    method = on_p1(name, compressor, 400, NONCONVEX, downlink=downlink, rule="pl")
    run = started(method.batch((1.0,), range(3)))
    theta, _ = contraction(0.3)
    L, gamma = run.problem.constants.L, method.cell().step_size

    def error(r):
        if name == "ef21_p":
            return L**2 * (r.s.y - r.s.x).square().sum(-1)
        return lyapunov(method, r) * theta

    G = torch.stack(each_round(run, error)).numpy()
    psi = run.recorder.column("loss").T - run.problem.constants.f_star + gamma / theta * G
    rate = (1 - gamma * run.problem.constants.mu) ** np.arange(len(psi))[:, None]
    floor = 1e-13 * np.abs(run.recorder.column("loss")).max()
    assert G[1:].max() > 1e-6
    assert (psi <= rate * psi[0] * (1 + 1e-9) + floor).all()


def test_steps_of_special_cases():
    """Without momentum EF21-HB has EF21's step; wider memories and coarser operators shorter ones."""
    ef21 = on_p1("ef21").cell().step_size
    assert on_p1("ef21_hb", params={"eta": 0.0}).cell().step_size == pytest.approx(ef21)
    steps = [on_p1("ef21_hb", params={"eta": e}).cell().step_size / (1 - e) for e in (0, 0.5, 0.9)]
    assert steps[0] > steps[1] > steps[2] > 0
    L = constants(on_p1("gd", None)).L
    for name in ("ef21_sgdm", "ef21_page", "ef21_w"):
        params = {"eta": 1.0} if name == "ef21_sgdm" else {}
        one = on_p1(name, "identity", params={**params, **({"p": 1.0} if "page" in name else {})})
        assert one.cell().step_size == pytest.approx(1 / L)


# EF14 ----------------------------------------------------------------------------------------

RIDGE = {"name": "logistic", **DATA, "regularizer": "l2", "lambda": 0.1}
EF14S = [
    ("ef14", {"memory": "step"}, TOP),
    ("ef14", {"memory": "gradient"}, "scaled_sign"),
    ("ef14", {}, RAND),
    ("ec_sgd", {"batch": 2}, TOP),
    ("ef_sign_sgd", {}, None),
    ("one_bit_sgd", {"batch": 3}, None),
]


def noise_of(method: Method) -> float:
    """sigma^2: a bound of the variance of a client's minibatch gradient."""
    batch = method.cell().params.get("batch", "full")
    return 0.0 if batch == "full" else constants(method).sample_variance / batch


@pytest.mark.parametrize("rounds", [10, 300])
@pytest.mark.parametrize(("name", "params", "compressor"), EF14S, ids=str)
def test_ef14_nonconvex_bound(name, params, compressor, rounds):
    """4 e (f(x^0) - f_low)/(gamma T) + (2/n + 4 L gamma beta) e L gamma sigma^2, f_low = mean inf f_i >= 0."""
    more = {**FAR, "record": {"every": 1}}
    method = on_p1(name, compressor, rounds, LOGISTIC, params=params, more=more)
    run = finished(method.batch((1.0,), range(16)))
    cell, c, sigma2 = method.cell(), run.problem.constants, noise_of(method)
    _, beta = contraction(cell.alpha)
    gamma = cell.step_size
    first = run.recorder.column("loss")[:, 0].mean()
    floor = (2 / run.problem.n + 4 * c.L * gamma * beta) * math.e * c.L * gamma * sigma2
    norms = run.recorder.column("grad_norm_sq")[:, :rounds]
    assert norms.mean() <= 4 * math.e * first / (gamma * rounds) + floor


@pytest.mark.parametrize(("name", "params", "compressor"), EF14S, ids=str)
def test_ef14_strongly_convex_bound(name, params, compressor):
    """f(x^) - f* <= 4 ||x^0 - x*||^2/(gamma W) + 48 L gamma^2 D/s + (4/n + 24 L gamma beta) gamma sigma^2.

    x^ is the recorded point with ``iterate: weighted``, W the sum of its weights (1 - gamma mu/2)^-(t+1).
    """
    more = {**FAR, "record": {"every": 1}, "iterate": "weighted"}
    method = on_p1(name, compressor, 400, RIDGE, params=params, more=more, rule="pl")
    run = finished(method.batch((1.0,), range(16)))
    cell, problem, sigma2 = method.cell(), run.problem, noise_of(method)
    c, gamma = problem.constants, cell.step_size
    theta, beta = contraction(cell.alpha)
    star = problem.minimizer()
    differ = float(problem.grad(star[None]).square().sum(-1).mean())
    x0 = started(method.batch((1.0,), range(16)))
    x0.advance(0)
    first = float((x0.s.x - star).square().sum(-1).mean())
    floor = 48 * c.L * gamma**2 * differ * beta / theta
    floor += (4 / problem.n + 24 * c.L * gamma * beta) * gamma * sigma2
    gaps = run.recorder.column("loss").mean(0) - c.f_star
    for T in (1, 10, 100, 400):  # recorded in round T - 1: the mean of x^0 .. x^(T-1)
        W = ((1 - gamma * c.mu / 2) ** -np.arange(1.0, T + 1)).sum()
        assert gaps[T - 1] <= 4 * first / (gamma * W) + floor


def test_ec_gd_star_converges_linearly(convex):
    """||x - mean e - x*||^2 + (6 L gamma/theta) mean||e_i||^2 <= (1 - gamma mu/2)^t ||x^0 - x*||^2; top-k, so path-wise."""
    method = on_p1("ec_gd_star", TOP, 600, convex, rule="pl")
    run = started(method.batch((1.0,), range(3)))
    star, gamma = run.problem.minimizer(), method.cell().step_size
    theta, _ = contraction(0.3)
    c = run.problem.constants

    def potential(r):
        apart = (r.s.x - r.c.e.mean(1) - star).square().sum(-1)
        return apart + 6 * c.L * gamma / theta * r.c.e.square().sum(-1).mean(1)

    have = torch.stack(each_round(run, potential)).numpy()
    rate = (1 - gamma * c.mu / 2) ** np.arange(len(have))[:, None]
    assert (have <= rate * have[0] * (1 + 1e-9) + 1e-24).all()
    assert have[-1].max() < 0.9 * have[0].min()


# Floors --------------------------------------------------------------------------------------


def last_norms(method: Method, multiples=(1.0,), seeds=(0,), name="grad_norm_sq") -> np.ndarray:
    """Return the mean of the last ten recorded values, per cell."""
    run = finished(method.batch(multiples, seeds), every=20)
    assert (run.status == "ok").all(), method.name
    return run.recorder.column(name)[:, -10:].mean(1)


def test_ec_methods_with_shifts_have_no_floor_where_plain_ones_do(convex):
    gamma, last = 1 / (8 * constants(on_p1("ef14", problem=convex)).L_max), {}
    for name in ("ef14", "ec_gd_star", "ec_diana", "double_squeeze"):
        down = TOP if name == "double_squeeze" else None
        params = {"shift": "rand_k:k=5"} if name == "ec_diana" else {}
        method = on_p1(name, TOP, 1500, convex, params=params, downlink=down, step=gamma)
        last[name] = last_norms(method, (0.3, 1.2))
    for name in ("ec_gd_star", "ec_diana"):
        assert (last[name] < 1e-18).all(), last
    for name in ("ef14", "double_squeeze"):
        assert (last[name] > 1e-5).all(), last
        assert last[name][1] > 3 * last[name][0], last  # it grows with the step


def test_the_floor_of_ef21_variants_does_not_grow_with_the_step(convex):
    gamma = on_p1("ef21", problem=convex).cell().step_size
    for name, params in (("ef21_hb", {"eta": 0.5}), ("ef21_w", {}), ("ef21_sgdm", {"eta": 0.5})):
        method = on_p1(name, TOP, 1200, convex, params=params, step=gamma)
        assert (last_norms(method, (1.0, 4.0)) < 1e-20).all(), name


def test_ec_lsvrg_removes_the_noise():
    args = {"problem": SAMPLES, "rounds": 1000, "step": 0.02, "params": {"batch": 2}}
    top = {"name": "top_k", "k": "30%"}
    plain, reduced = (last_norms(on_p1(n, top, **args)) for n in ("ec_sgd", "ec_lsvrg"))
    assert reduced[0] < plain[0] / 3


def test_momentum_lowers_the_error_of_minibatches():
    errors = []
    for eta in (1.0, 0.3, 0.1):
        params = {"eta": eta, "batch": 1}
        method = on_p1("ef21_sgdm", TOP, 500, SAMPLES, params=params, step=0.002)
        errors.append(last_norms(method, (1.0,), range(6), "estimator_error_sq").mean())
    assert errors[0] > 2 * errors[1] > 4 * errors[2], errors


def test_ef21_page_has_a_lower_floor_than_minibatches():
    page = on_p1("ef21_page", problem=SAMPLES, params={"batch": 2}, rounds=600)
    step = page.cell().step_size
    sgd = on_p1("ef21_sgd", problem=SAMPLES, params={"batch": 2}, rounds=600, step=step)
    assert last_norms(page, (8.0,)) < last_norms(sgd, (8.0,)) / 5


@pytest.mark.parametrize("name", ["ef21_sgdm", "ef21_hb", "ef21_page", "ef21_w", "ef14"])
def test_scaled_rand_k_is_rescaled(name):
    """Without the factor 1/(omega + 1) the members diverge; the contractive role puts it in."""
    params = {"ef21_sgdm": {"eta": 1.0}, "ef21_hb": {"eta": 0.5}}.get(name, {})
    step = on_p1("ef21", TOP, problem=NONCONVEX).cell().step_size
    one = {"name": "rand_k", "k": 1}
    method = on_p1(name, one, 400, NONCONVEX, params=params, step=step / 4)
    assert finished(method.batch(), every=50).status[0] == "ok"
    assert method.cell().alpha == pytest.approx(0.1)
    run = started(method.batch(), every=50)
    run.a.C = registry.lookup("compressor", "rand_k").target(1).compress
    run.advance(400)
    assert run.status[0] == "diverged"


@pytest.fixture(scope="module")
def convex():
    with registered("problem", convex_l1=ConvexL1):
        yield {"name": "convex_l1"}


def test_prox_is_exact(convex):
    """EF21-Prox, plain and with momentum, weights and PAGE: the same point, with zeros in it."""
    ends = {}
    for name in ("ef21", "ef21_w", "ef21_sgdm", "ef21_page", "ef21_plus"):
        params = {"eta": 0.5} if name == "ef21_sgdm" else {}
        method = on_p1(name, TOP, 600, {**convex, "weight": 0.2}, params=params, step=0.2)
        run = finished(method.batch(), every=100)
        assert run.recorder.column("grad_norm_sq")[0, -1] < 1e-20, name
        ends[name] = run.s.x
    assert all(largest(x, ends["ef21"]) < 1e-9 for x in ends.values())
    assert 0 < int((ends["ef21"].abs() < 1e-12).sum()) < 10
