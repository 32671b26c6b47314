"""Step sizes and automatic numbers of every method, written anew in plain arithmetic from the papers and the released code.

``CASES`` are (method, rule, setting, step), ``AUTO`` (method, parameter, setting, value): a formula in each combination
of the settings and axes that stand beside it. A formula takes those numbers of the setting that it names.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from known_problem import (
    BLK,
    CURVED,
    LCAL,
    MEAN,
    MOST,
    MU,
    PLUS,
    PM,
    SINGLE,
    TILDE,
    C,
    Held,
    L,
    generic,
    linear,
    q,
    shrink,
)

from raybench.problems.base import Fact

sqrt = math.sqrt
CASES: list[tuple[str, str, dict[str, Any], float]] = []
AUTO: list[tuple[str, str, dict[str, Any], float]] = []


def declared(kind: list, names: str, rules: str, want: Callable | float, *settings, **axes) -> None:
    """Add a formula of some methods under some rules (or for some parameters), in every setting with every combination of axes."""
    lists = [value if isinstance(value, list) else [value] for value in axes.values()]
    for own, combination in product(settings or ({},), product(*lists)):
        given = {**own, **dict(zip(axes, combination))}
        value = want
        if callable(want):
            taken = inspect.signature(want).parameters
            value = want(**{name: given[name] for name in taken if name in given})
        kind.extend((name, rule, given, value) for name in names.split() for rule in rules.split())


def step(names, rules, want, *settings, **axes):
    declared(CASES, names, rules, want, *settings, **axes)


def auto(names, parameter, want, *settings, **axes):
    declared(AUTO, names, parameter, want, *settings, **axes)


ALPHAS = [1.0, 0.5, 0.03]
WIDE = [0.0, 4.0]  # values of omega
BOTH = [1.0, 0.2]  # values of p
COMMON, PERM = {"common": True}, {"ab": (1.0, 1.0)}
UNKNOWN_MU, SMALL_MU = {"constants": replace(C, mu=None)}, {"constants": replace(C, mu=0.01)}

# Without compression ---------------------------------------------------------------------------

step("gd vertical_gd", "nonconvex pl", 1 / L)
step("sgd", "nonconvex", 1 / L, batch=4)
step("sgd", "pl", lambda batch: 1 / (L + 2 * 9 / (3 * batch)), batch=[1, 4])
step("sgd", "pl", 1 / L, batch=4, m=1.0)  # a client's only sample: the full gradient
step("heavy_ball", "nonconvex", lambda momentum: (1 - momentum) ** 2 / L, momentum=[0.0, 0.4, 0.9])
step(
    "heavy_ball",
    "pl",
    lambda momentum: linear((momentum * L / (1 - momentum)) ** 2, 1 - momentum, 1 - momentum),
    momentum=[0.0, 0.4, 0.99],
)
step("heavy_ball", "released", 1 / L, momentum=0.9)
step("momentum_sgd", "nonconvex", 0.01 / L, momentum=0.9, batch=2)
step(
    "lead prox_lead extra exact_diffusion diffusion gossip choco_sgd gradient_tracking easgd lsgd codistillation",
    "nonconvex",
    0.5 / MOST,
)
step("dgd", "nonconvex", 0.25 / MOST)

# DCGD and MARINA -------------------------------------------------------------------------------


def dcgd(omega, T):
    return min(1 / L, 1 / sqrt(max(omega, 1e-30) * 2 * L * T))


def marina_root(p, omega, n=3):
    return sqrt((1 - p) * omega / (p * n))


def vr_marina(p, omega, batch, far, one, two):
    return 1 / (far + sqrt((1 - p) / (p * 3) * (omega * one**2 + (1 + omega) * two**2 / batch)))


MARINA = {"p": [1.0, 0.2, 0.004], "omega": WIDE}
step("dcgd", "nonconvex", dcgd, omega=[0.0, 1e-3, 4.0], T=[1, 100, 10_000])
step("dcgd", "pl", lambda omega: 1 / (L + 2 * omega * MOST / 3), omega=WIDE)
step("dcgd", "pl", 1 / (L + 8 * MOST), COMMON, {"n": 1}, omega=4.0)
step("marina", "nonconvex", lambda p, omega: generic(TILDE * marina_root(p, omega)), **MARINA)
step("marina", "pl", lambda p, omega: linear((TILDE * marina_root(p, omega)) ** 2, p), **MARINA)
step("marina", "paper", lambda p, omega: 1 / (TILDE * (1 + marina_root(p, omega))), **MARINA)
step("marina", "released", lambda p, omega: 1 / (9 * (1 + marina_root(p, omega))), **MARINA)
step("marina", "nonconvex", generic(TILDE * 4.0), {"n": 1}, COMMON, omega=4.0, p=0.2)
step("marina", "nonconvex paper", generic(sqrt(2) * PM), PERM, omega=2.0, p=1 / 3)  # p = 1/n
step(
    "marina",
    "nonconvex",
    generic(sqrt(3 * (0.3 * PLUS**2 + 0.5 * PM**2))),
    omega=2.0,
    p=0.25,
    ab=(0.8, 0.5),
)
for rule, far, one, two in (
    ("nonconvex", L, TILDE, LCAL),
    ("paper", TILDE, TILDE, LCAL),
    ("released", 9.0, 9.0, 9.0),
):
    step(
        "vr_marina",
        rule,
        lambda p, omega, batch, far=far, one=one, two=two: vr_marina(
            p, omega, batch, far, one, two
        ),
        **MARINA,
        batch=[1, 4],
    )
step(
    "vr_marina",
    "nonconvex",
    generic(sqrt(4 * (4 * (TILDE**2 + 12.5) + 12.5 / 3))),
    COMMON,
    omega=4.0,
    p=0.2,
    batch=2,
)
for rule, far in (("nonconvex", L), ("paper", TILDE)):
    step(
        "pp_marina",
        rule,
        lambda p, omega, clients, far=far: (
            1 / (far + TILDE * sqrt((1 - p) * (1 + omega) / (p * clients)))
        ),
        **MARINA,
        clients=[1, 5],
    )
step("pp_marina", "nonconvex", generic(TILDE * sqrt(18)), COMMON, omega=4.0, p=0.2, clients=2)
step(
    "vertical_marina",
    "nonconvex",
    lambda p, common=False: generic(sqrt((1 - p) / p * 4 * L * (L if common else BLK))),
    {},
    COMMON,
    omega=4.0,
    p=BOTH,
)
step("vertical_marina", "pl", linear((1 - 1e-4) / 1e-4 * 4 * L * BLK, 1e-4), omega=4.0, p=1e-4)
step("vertical_marina", "nonconvex", generic(sqrt(12 * L * BLK)), PERM, omega=2.0, p=0.2)


def byz_marina(omega, p, batch, kappa):
    """(B/rho, rho) of the recursion."""
    l = LCAL**2 / batch
    mean, each = (omega * (TILDE**2 + l) + l) / 3, (1 + omega) * (TILDE**2 + l)
    if kappa == 0:
        return (1 - p) * mean / p, p
    return 2 * (1 - p) / p * ((1 + p / 2) * mean + (1 + 2 / p) * kappa * each), p / 2


BYZ = [
    {"omega": w, "p": p, "batch": b}
    for w, p, b in ((4.0, 0.2, 1), (0.0, 0.2, 4), (4.0, 1e-4, 2), (4.0, 1.0, 1))
]
step(
    "byz_vr_marina",
    "nonconvex",
    lambda omega, p, batch, kappa: generic(sqrt(byz_marina(omega, p, batch, kappa)[0])),
    *BYZ,
    kappa=[0.0, 0.5],
)
step(
    "byz_vr_marina",
    "pl",
    lambda omega, p, batch, kappa: linear(*byz_marina(omega, p, batch, kappa)),
    *BYZ,
    kappa=[0.0, 0.5],
)
auto("marina vertical_marina three_pc_v5", "p", lambda share: share, share=[0.01, 1.0])
auto("pp_marina", "p", 0.3 * 2 / 3, share=0.3, clients=2)
auto("pp_marina", "p", 1.0, share=0.9, clients=30)
auto(
    "vr_marina byz_vr_marina dasha_sync_mvr",
    "p",
    lambda share, big: min(share, 5 / ((big or 20) + 5)),
    share=[0.01, 1.0],
    big=[0, 40],
    batch=5,
)

# DIANA, ADIANA and DASHA -----------------------------------------------------------------------


def family(far, omega, m, n=3):
    """Horvath et al. 2019: 1/(10 L sqrt(1 + omega/n)(m^(2/3) + omega + 1))."""
    return 1 / (10 * far * sqrt(1 + omega / n) * (m ** (2 / 3) + omega + 1))


def vr_diana(omega, a, p, batch):
    w, V = omega / 3, LCAL**2 / batch
    inside = w * (1 + 2 / a) * TILDE**2 / a + (4 * w + 1 / 3) * (2 / p - 1) * V / p
    return generic(sqrt(2 * inside))


def adiana(omega, p):
    if omega == 0:
        return 1 / (2 * MOST)
    return min(1 / (2 * MOST), 3 / (64 * omega * (2 * p * (omega + 1) + 1) ** 2 * MOST))


def lag(omega, a, n=3):
    return 2 * (omega / n) * (1 + 2 * a * omega) / (a * (2 - a))


def tracked(omega, a, change, noise):
    return generic(sqrt(lag(omega, a) * change) + sqrt(noise))


def mvr(omega, a, momentum, batch):
    v = 2 * (1 - momentum) ** 2 * LCAL**2 / batch
    return tracked(omega, a, 2 * TILDE**2 + 3 * v, v / (momentum * (2 - momentum) * 3))


def page_terms(p, batch):
    l = LCAL**2 / batch
    return (1 + p) * TILDE**2 + 3 * (1 - p) * l, (1 - p) * l / p


def dasha_page(omega, a, p, batch):
    change, drift = page_terms(p, batch)
    return tracked(omega, a, change, drift / 3)


def byz_page(omega, a, p, batch, kappa):
    change, drift = page_terms(p, batch)
    mean = sqrt(lag(omega, a) * change) + sqrt(drift / 3)
    each = sqrt(2 * omega / (1 - (1 - a) ** 2 - 2 * omega * a**2) * change) + sqrt(drift)
    return generic(mean if kappa == 0 else sqrt(2) * (mean + sqrt(kappa) * each))


def sync_mvr(omega, a, p, batch):
    l = LCAL**2 / batch
    return tracked(omega, a, (1 - p) * (TILDE**2 + l), (1 - p) * l / (p * 3))


def dasha_released(omega):
    mean, square = sum(SINGLE) / 3, sum(v * v for v in SINGLE) / 3
    return 1 / (mean + sqrt(square * omega * (4 * omega + 1) / 3))


DIANA = [{"omega": w, "a": 1 / (1 + w)} for w in WIDE]
DASHA = [{"omega": 0.0, "a": 1.0}, {"omega": 4.0, "a": 1 / 9}, {"omega": 4.0, "a": 0.02}]
step("diana", "nonconvex", lambda omega: generic(2 * TILDE * (1 + omega) * sqrt(omega / 3)), *DIANA)
step("diana", "nonconvex", generic(40 * TILDE * sqrt(4 / 3)), omega=4.0, a=0.05)
step("diana", "nonconvex", generic(20 * TILDE), COMMON, omega=4.0, a=0.2)
step("diana", "pl", lambda a: linear(4 / a**2 * TILDE**2 * 4 / 3, a / 2), omega=4.0, a=[0.2, 1e-4])
step("diana", "convex", 1 / ((1 + 6 * 4 / 3) * MOST), omega=4.0, a=0.05)
step("diana", "convex", 1 / ((1 + 6 * 4) * MOST), COMMON, omega=4.0, a=0.2)
step("diana", "convex", 1 / MOST, omega=0.0, a=1.0)
step("diana", "paper", lambda omega: family(MOST, omega, 1), *DIANA)
step("diana", "released", lambda omega: family(9.0, omega, 1), omega=WIDE, a=0.3)
step(
    "vr_diana",
    "paper released",
    lambda batch: family(9.0, 4.0, 20 / batch),
    *({"batch": b, "p": b / 20} for b in (1, 2)),
    omega=4.0,
    a=0.2,
)
step(
    "vr_diana", "nonconvex", vr_diana, *DIANA, {"omega": 4.0, "a": 0.05}, p=[1.0, 0.1], batch=[1, 3]
)
step(  # as recalled
    "adiana",
    "paper",
    adiana,
    *({"omega": w, "a": 1 / (1 + w)} for w in (0.0, 0.01, 4.0)),
    p=[1.0, 0.1],
)
step("dasha", "nonconvex", lambda omega, a: generic(TILDE * sqrt(lag(omega, a))), *DASHA)
step("dasha", "nonconvex", generic(TILDE * sqrt(2 * 4 * 9 / 3)), omega=4.0, a=1 / 9)
step(
    "dasha",
    "pl",
    lambda omega, a: linear(4 * (omega / 3) * (1 + 4 * a * omega) / a * TILDE**2, a / 2),
    *DASHA,
    {"omega": 4.0, "a": 1e-3},
)
step(  # as recalled
    "dasha", "paper", lambda omega: generic(TILDE * sqrt(16 * omega * (2 * omega + 1) / 3)), *DASHA
)
step("dasha", "released", dasha_released, *DASHA)
step("dasha_page", "nonconvex", dasha_page, *DASHA, p=BOTH, batch=[1, 4])
step("byz_dasha_page", "nonconvex", byz_page, *DASHA, p=BOTH, batch=4, kappa=[0.0, 0.5])
step("dasha_mvr", "nonconvex", mvr, *DASHA, momentum=[1.0, 0.2], batch=[1, 4])
step("dasha_sync_mvr", "nonconvex", sync_mvr, *DASHA, p=BOTH, batch=[1, 4])
auto("diana vr_diana adiana lead prox_lead", "alpha", lambda omega: 1 / (1 + omega), omega=WIDE)
auto(
    "dasha dasha_page byz_dasha_page dasha_mvr dasha_sync_mvr",
    "alpha",
    lambda omega: 1 / (2 * omega + 1),
    omega=WIDE,
)
auto("ef21_page dasha_page byz_dasha_page", "p", lambda batch: batch / (20 + batch), batch=[1, 60])
auto("vr_diana", "p", lambda batch: min(1.0, batch / 20), batch=[1, 5, 60])
auto(
    "adiana",
    "p",
    lambda omega: min(1.0, max(1.0, sqrt(3 / (32 * omega)) - 1) / (2 * (1 + omega))),
    omega=[0.003, 0.0156, 4.0],
)
auto("adiana", "p", 1.0, omega=0.0)
auto("adiana", "mu", 0.01, SMALL_MU)
auto(
    "lead prox_lead",
    "mix",
    lambda omega: min(1 / (1 + omega), 2 / (1 + omega) ** 3),
    omega=[0.1, 4.0],
)
auto("gossip choco_sgd", "mix", lambda alpha: alpha / (2 - alpha), alpha=[1.0, 0.1])
auto("easgd", "alpha", lambda n: 0.9 / max(2, n), n=[1, 2, 7], beta=0.9)

# Error feedback --------------------------------------------------------------------------------


def ef14(alpha, T):
    s = shrink(alpha) ** 2 / (1 - alpha) if alpha < 1 else math.inf
    return min(1 / (2 * L), sqrt(s / (4 * L * MOST)), (s / (4 * L * L * MOST * T)) ** (1 / 3))


def ef14_linear(times):
    def formula(alpha):
        s = shrink(alpha) ** 2 / (1 - alpha) if alpha < 1 else math.inf
        return min(1 / (4 * L), sqrt(s / (times * L * MOST)))

    return formula


def ef21(far=TILDE):
    return lambda alpha: generic(far * q(alpha))


def ef21_linear(far=TILDE):
    return lambda alpha: linear((far * q(alpha)) ** 2, shrink(alpha))


def participation(alpha, p):
    """rho and B/L_tilde^2 of EF21 with partial participation, r = p theta/(2 (1-p))."""
    theta = shrink(alpha)
    r = p * theta / (2 * (1 - p))
    return p * theta / 2, p * (1 - alpha) / theta + (1 - p) * (1 + 1 / r)


def heavy(alpha, eta):
    square = 2 * eta * (1 + eta) / (1 - eta) ** 2 * L**2 + (1 + eta) * (TILDE * q(alpha)) ** 2
    return generic(sqrt(square), 1 - eta)


def sgdm(alpha, eta=1.0):
    past = (1 - eta) ** 2
    return generic(TILDE * sqrt(2 * (2 * q(alpha) ** 2 * (eta**2 + past) + past / eta**2)))


def ef21_page(alpha, p, batch):
    change, drift = page_terms(p, batch)
    return generic(sqrt(2 * (q(alpha) ** 2 * change + drift)))


def both_compressed(alpha, down_alpha):
    s = 8 * q(down_alpha) ** 2
    return generic(TILDE * sqrt(2 * ((1 + s) * q(alpha) ** 2 + s)))


def table(alpha, p):
    """B/rho of EF21 on products at three clients: a dense round leaves nothing of the error."""
    theta = shrink(alpha)
    rho, B = 1 - (1 - p) * (1 - theta), (1 - p) * (1 - alpha) / theta
    return generic(sqrt(B / rho * 3 * L * BLK))


FINE = [*ALPHAS, 0.999]
step("ef14 ec_sgd ef_sign_sgd one_bit_sgd", "nonconvex", ef14, alpha=FINE, T=[1, 1000])
step("ef14", "pl", ef14_linear(96), alpha=FINE)
step("ec_gd_star", "pl", ef14_linear(48), alpha=FINE)
step("ef14", "paper", lambda alpha: 1 / (14 * 2 / alpha * MOST), alpha=ALPHAS)
step("ef21 ef21_prox ef21_plus", "nonconvex paper", ef21(), alpha=ALPHAS)
step("ef21", "pl", ef21_linear(), alpha=[*ALPHAS, 1e-5])
step("ef21 ef14 ef21_hb", "released", ef21_linear(), alpha=[*ALPHAS, 1e-5])
step("ef21 ef14 ef21_hb", "released", ef21(), UNKNOWN_MU, alpha=0.3)
step("ef21", "released", generic(sqrt(2) * TILDE * q(0.3)), SMALL_MU, alpha=0.3)
step(
    "ef21_pp ef21_bc ef21_page ef21_sgd",
    "released",
    ef21(),
    alpha=0.3,
    p=0.4,
    batch=2,
    down_alpha=0.5,
)
step("ef21_w", "nonconvex", ef21(MEAN), alpha=ALPHAS)
step("ef21", "arithmetic", ef21(MEAN), alpha=ALPHAS)
step("ef21_w", "pl", ef21_linear(MEAN), alpha=ALPHAS)
step("ef21_p", "nonconvex", lambda down_alpha: generic(L * q(down_alpha)), down_alpha=ALPHAS)
step("vertical_ef21", "nonconvex", table, alpha=ALPHAS, p=[0.0, 0.3, 1.0], batch="full")
step(
    "vertical_ef21",
    "pl",
    linear(q(1e-3) ** 2 * 3 * L * BLK, shrink(1e-3)),
    alpha=1e-3,
    p=0.0,
    batch="full",
)


def ratio_of(alpha, p):
    rho, B = participation(alpha, p)
    return TILDE**2 * B / rho


step("ef21_pp", "nonconvex", ef21(), alpha=ALPHAS, p=1.0)
step(
    "ef21_pp",
    "nonconvex",
    lambda alpha, p: generic(sqrt(ratio_of(alpha, p))),
    alpha=ALPHAS,
    p=[0.5, 0.1],
)
step(
    "ef21_pp",
    "pl",
    lambda alpha, p: linear(ratio_of(alpha, p), participation(alpha, p)[0]),
    alpha=[0.5, 1e-3],
    p=[0.5, 0.1],
)
step("ef21_bc", "nonconvex", both_compressed, alpha=ALPHAS, down_alpha=ALPHAS)
step("ef21_hb", "nonconvex", heavy, alpha=ALPHAS, eta=[0.0, 0.5, 0.9])
step("ef21_sgdm", "nonconvex", sgdm, alpha=ALPHAS, eta=[1.0, 0.5, 0.05], batch=1)
step("ef21_sgd", "nonconvex", sgdm, alpha=ALPHAS, batch=1)
step(  # as recalled, not found in print
    "ef21_sgdm",
    "paper",
    lambda alpha, eta: min(alpha / (20 * TILDE), eta / (7 * L)),
    alpha=ALPHAS,
    eta=[1.0, 0.01],
)
step("ef21_page", "nonconvex", ef21_page, alpha=ALPHAS, p=BOTH, batch=[1, 4])
step("ef21_normalized", "paper", lambda T: 1 / sqrt(T), alpha=0.3, T=[1, 1000])
auto("ec_lsvrg", "p", 1 / 20)
auto("ec_diana", "alpha", 1 / 5, shift=Held(omega=4.0))

# Three point compressors: (A, B) ---------------------------------------------------------------


def two(first, alpha):
    return 1 - (1 - first.alpha) * (1 - alpha)


def clag(alpha, z):
    return shrink(alpha), max((1 - alpha) / shrink(alpha), z)


def v5(alpha, p):
    return shrink(p), (1 - p) * (1 - alpha) / shrink(p)


def v4(alpha, first):
    left = two(first, alpha)
    return shrink(left), (1 - left) / shrink(left)


UNBIASED = [Held(omega=w) for w in WIDE]
CONTRACTIVE = [Held(alpha=f) for f in (1.0, 0.2)]
for name, pair, axes in (
    ("lag", lambda z: (1.0, z), {"alpha": 1.0, "z": [0.0, 3.0]}),
    ("clag", clag, {"alpha": 0.5, "z": [0.1, 9.0]}),
    ("three_pc_v1", lambda alpha: (1.0, 1 - alpha), {"alpha": ALPHAS}),
    (
        "three_pc_v2",
        lambda alpha, first: (alpha, (1 - alpha) * first.omega),
        {"alpha": ALPHAS, "first": UNBIASED},
    ),
    ("three_pc_v4", v4, {"alpha": ALPHAS, "first": CONTRACTIVE}),
    ("three_pc_v5", v5, {"alpha": ALPHAS, "p": [1.0, 0.3]}),
):
    pairs: list[Any] = []
    declared(pairs, name, "pair", pair, **axes)
    for _, _, given, (A, B) in pairs:
        CASES += [
            (name, rule, given, generic(PLUS * sqrt(B / A))) for rule in ("nonconvex", "paper")
        ]
        CASES.append((name, "pl", given, linear(PLUS**2 * B / A, A)))
        if "lag" not in name:
            CASES.append((name, "released", given, generic(TILDE * sqrt(B / A))))

# EF-BV, EControl, and compression both ways ------------------------------------------------------


def ef_bv(lam, nu, known):
    """r and r_av of operators whose mean is off by ``bias`` and varies by ``variance``, that of three by ``of_mean``."""
    bias, variance, of_mean = known

    def left(rate, spread):
        return (1 - rate + rate * bias) ** 2 + rate**2 * spread

    return left(lam, variance), left(nu, of_mean)


OPERATORS = [  # setting, and bias, variance, variance of the mean of three clients
    *(({"omega": w}, (0.0, w, w / 3)) for w in (0.5, 4.0)),
    ({"omega": 4.0, "common": True}, (0.0, 4.0, 4.0)),
    ({"omega": 2.0, "ab": (1.0, 1.0)}, (0.0, 2.0, 1.0)),
    *(({"alpha": a}, (sqrt(1 - a), 0.0, 0.0)) for a in (0.9, 0.1)),
]
for (own, known), (lam, nu) in product(
    OPERATORS, [(0.2, 1.0), (0.1, 0.7), (0.05, 0.3), (1e-4, 0.5)]
):
    r, r_av = ef_bv(lam, nu, known)
    given = {**own, "lam": lam, "nu": nu}
    root = TILDE * sqrt(r_av) / (1 - sqrt(r))
    step("ef_bv", "nonconvex", generic(root), given)
    step("ef_bv", "pl", linear(root**2, 1 - sqrt(r)), given)
    # as the authors' script
    script = 1 / (L + TILDE * sqrt(r_av / r) / (sqrt((1 + r) / (2 * r)) - 1))
    if lam > 1e-3:
        step("ef_bv", "paper released", script, given)
step("ef_bv", "nonconvex", ef21(), alpha=[0.9, 0.1, 1.0], lam=1.0, nu=1.0)


def econtrol(alpha, eta):
    """rho and the root of B/rho, of the matrix that drives (V, E)."""
    w = sqrt(1 - alpha)
    values, vectors = np.linalg.eig(np.array([[(1 + eta) * w, eta**2], [w, 1 - eta]]).T)
    j = int(np.argmax(values.real))
    one, weight = vectors[:, j].real
    rho, factor = 1 - values[j].real, max(w, eta * one / weight)
    return rho, factor * TILDE / rho


STRENGTHS = [
    {"alpha": a, "eta": part * shrink(a)}
    for a, part in (
        *product((0.9, 0.5, 0.1, 1e-3), (0.25, 0.4, 0.01)),
        *((a, 0.9) for a in (0.99, 0.9)),  # the error counts for more than the message
    )
]
step("econtrol", "nonconvex", lambda alpha, eta: generic(econtrol(alpha, eta)[1]), *STRENGTHS)
step(
    "econtrol",
    "pl",
    lambda alpha, eta: linear(econtrol(alpha, eta)[1] ** 2, econtrol(alpha, eta)[0]),
    *STRENGTHS,
)
step("econtrol", "nonconvex", ef21(), alpha=[0.5, 1], eta=0.0)
step("econtrol", "nonconvex", 1 / L, alpha=1.0, eta=0.3)


def both_ways(omega, a, down_alpha):
    """B/rho and rho of EF21-P + DIANA, three clients; the error of w shrinks by ``left``^2 of ||x+ - w||^2."""
    left = sqrt(1 - down_alpha)
    theta = 1 - left
    rho = min(theta, a) / 2
    W = omega / 3 * (2 / a) * ((1 + left) * TILDE) ** 2
    A = max(L**2, W / (left * (theta - rho))) if left else 0.0
    return (A * left**2 + W) / theta / rho, rho


step(
    "ef21_p_diana",
    "nonconvex",
    lambda omega, a, down_alpha: generic(sqrt(both_ways(omega, a, down_alpha)[0])),
    *({"omega": w, "a": a} for w, a in ((0.0, 1.0), (0.5, 0.4), (4.0, 0.2), (4.0, 0.05))),
    down_alpha=[1.0, 0.9, 0.5, 0.1],
)
step(
    "ef21_p_diana",
    "pl",
    lambda omega, a, down_alpha: linear(*both_ways(omega, a, down_alpha)),
    omega=4.0,
    a=0.2,
    down_alpha=0.5,
)
step(  # the downlink is exact: DIANA
    "ef21_p_diana",
    "nonconvex",
    generic(2 * TILDE * 5 * sqrt(4 / 3)),
    omega=4.0,
    a=0.2,
    down_alpha=1.0,
)


def apart(p, omega, theta):
    return sqrt((1 - p) / p) * (PM * sqrt(omega) + L * sqrt(theta))


def marina_p(p, down_omega, n=3, down_common=False):
    far = TILDE * sqrt((1 - p) * down_omega / p)
    return generic(min(far, apart(p, down_omega, down_omega / (1 if down_common else n))))


NOT_QUADRATIC = {"constants": replace(C, facts=C.facts - {Fact.QUADRATIC})}
step(
    "marina_p",
    "nonconvex",
    lambda p, down_omega: generic(TILDE * sqrt((1 - p) * down_omega / p)),
    NOT_QUADRATIC,
    down_omega=WIDE,
    p=[1.0, 0.1],
)
step("marina_p", "nonconvex", marina_p, down_omega=4.0, p=[0.5, 0.1])
step(
    "marina_p", "nonconvex", marina_p, down_omega=0.6, p=0.1, n=[3, 300], down_common=[False, True]
)
step(  # PermK: nothing is left in the mean
    "marina_p",
    "nonconvex",
    lambda p: generic(PM * sqrt((1 - p) * 2 / p)),
    down_omega=2.0,
    p=[1 / 3, 0.1],
    down_ab=(1.0, 1.0),
)
step(
    "marina_p",
    "nonconvex",
    generic(apart(1 / 3, 2.0, 0.01)),
    down_omega=2.0,
    p=1 / 3,
    down_ab=(0.8, 0.79),
)
step(
    "marina_p",
    "pl",
    linear(PM**2 * 2 * (1 - 1e-4) / 1e-4, 1e-4),
    down_omega=2.0,
    p=1e-4,
    down_ab=(1.0, 1.0),
)
step("marina_p", "pl", min(1 / L, 1e-3 / (2 * MU)), down_omega=0.0, p=1e-3)
auto("ef_bv", "lam", lambda omega: 1 / (1 + omega), omega=WIDE)
auto("ef_bv", "lam nu", 1.0, alpha=0.1)
auto("ef_bv", "nu", 1 / (1 + 4 / 3), omega=4.0)
auto("ef_bv", "nu", 1 / 5, COMMON, omega=4.0)
auto("ef_bv", "nu", 1 / 2, PERM, omega=2.0)
auto("econtrol", "eta", lambda alpha: shrink(alpha) / 4, alpha=[1.0, 0.1])
auto("ef21_p_diana", "alpha", lambda omega: 1 / (1 + omega), omega=WIDE)
auto("marina_p", "p", lambda down_share: down_share, down_share=[0.01, 1.0])

# Local steps with compressed exchanges -----------------------------------------------------------

GAMMA = 2 / (MOST + CURVED)


def shared(lent, lam):
    """The step of f_i - lent lam ||x||^2/2 beside lent functions lam ||x||^2/2."""
    functions = [(CURVED - lent * lam, MOST - lent * lam), (lam, lam)]
    return 2 / (min(low for low, _ in functions) + max(high for _, high in functions))


def seldom(gamma, mu, dual):
    """p at which p^2 dual is what a local step gains, 1 - (1 - gamma mu)^2."""
    return min(1.0, sqrt((2 * gamma * mu - (gamma * mu) ** 2) / dual))


def most(n, senders):
    s = min(n, senders)
    return n * (s - 1) / (s * (n - 1)) if n > 1 else 1.0


def both_rho(omega, down_omega, n=3):
    return 1 / (3 + 2 * down_omega + 2 * omega / n)


def up_eta(omega, rho):
    return (2 * rho - rho**2 * (1 + omega / 3)) / (1 + 2 * omega)


def both_eta(omega, down_omega, rho):
    spread = 1 + 2 * omega + 2 * down_omega
    return (2 * rho - rho**2 / both_rho(omega, down_omega)) / spread


UNCURVED = {"constants": replace(C, mu_i=())}
SENDERS = [{"n": n, "senders": s} for n, s in ((3, 2), (7, 4), (5, 5), (1000, 2))]
step(
    "compressed_scaffnew",
    "pl",
    GAMMA,
    *(
        {"n": n, "senders": s, "chi": chi}
        for n, s, chi in ((3, 2, 0.75), (3, 3, 1.0), (3, 2, 0.1), (1, 2, 1.0), (7, 4, 0.875))
    ),
)
step(
    "locodl",
    "pl",
    lambda lam: shared(1, lam),
    omega=4.0,
    rho=0.4,
    eta=0.04,
    lam=[CURVED / 2, CURVED / 10, CURVED * 0.9],
)
step(
    "bicolor",
    "pl",
    lambda lam: shared(2, lam),
    omega=4.0,
    down_omega=2.0,
    rho=0.1,
    eta=0.007,
    lam=[CURVED / 3, CURVED / 10, CURVED * 0.45],
)
auto("compressed_scaffnew", "chi", most, *SENDERS, {"n": 5, "senders": 9}, {"n": 1, "senders": 2})
auto(
    "compressed_scaffnew",
    "p",
    lambda n, senders: seldom(GAMMA, CURVED, most(n, senders) * (senders - 1) / (n - 1)),
    *SENDERS,
)
auto("compressed_scaffnew", "p", seldom(GAMMA, CURVED, 1), n=1, senders=2)
auto("locodl", "lam", CURVED / 2)
auto("bicolor", "lam", CURVED / 3)
auto("locodl bicolor", "lam", 0.0, UNCURVED)
auto("locodl", "rho", lambda omega, n: 1 / (1 + omega / n), omega=WIDE, n=[3, 5])
auto("locodl", "rho", 1 / 5, COMMON, omega=4.0)
auto("locodl", "rho", 1 / 1.5, omega=2.0, ab=(0.5, 0.5))
auto(
    "locodl",
    "eta",
    up_eta,
    {"omega": 0.0, "rho": 1.0},
    *({"omega": 4.0, "rho": r} for r in (3 / 7, 0.2)),
)
auto("locodl", "eta", 3 / 7 / 9, omega=4.0, rho=3 / 7)
auto("bicolor", "rho", both_rho, omega=WIDE, down_omega=[0.0, 1.0], n=[3, 5])
auto("bicolor", "eta", both_eta, omega=WIDE, down_omega=[0.0, 1.0], rho=0.05)
for name, lent, lam in (("locodl", 1, CURVED / 2), ("bicolor", 2, CURVED / 3)):
    auto(
        name,
        "p",
        lambda eta, lent=lent, lam=lam: seldom(shared(lent, lam), lam, eta),
        eta=[0.01, 1e-6],
        lam=lam,
    )
