"""Every method's step sizes and automatic numbers a second time, in plain arithmetic.

A line of a sheet is ``methods | rules | settings | step``: all combinations of the methods, the rules and the settings,
and the step as an expression of them. Of settings stand a name and its values, or several names and tuples of values;
a line that is indented goes on. ``CASES`` are (method, rule, setting, step), ``AUTO`` (method, parameter, setting, value).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import sqrt
from typing import Any

import known_problem
import numpy as np
from known_problem import CURVED, LCAL, MOST, PM, SINGLE, TILDE, C, L, generic, q, shrink

from raybench.problems.base import Fact

Case = tuple[str, str, dict[str, Any], float]


def value(text: str, **setting: Any) -> Any:
    """Return what an expression of a sheet says."""
    return eval(text, {**vars(known_problem), **globals()}, setting)


def cases(sheet: str) -> Iterator[Case]:
    """Yield the cases of a sheet."""
    for line in sheet.strip().replace("\n ", " ").splitlines():
        methods, rules, given, step = (part.strip() for part in line.split("|"))
        for method, rule, setting in product(methods.split(), rules.split(), settings(given)):
            yield method, rule, setting, value(step, **setting)


def settings(text: str) -> list[dict[str, Any]]:
    """Return all combinations of the values of names; ``first`` and ``shift`` are compressors."""
    ends: list[list[dict[str, Any]]] = [[{}]]
    for axis in filter(None, map(str.strip, text.split(";"))):
        names, _, values = axis.partition(": ")
        result = [value(text) for text in values.split()]
        result = result[0] if len(result) == 1 and isinstance(result[0], list) else result
        keys = names.split()
        ends.append([dict(zip(keys, v if len(keys) > 1 else (v,), strict=True)) for v in result])
    return [{k: v for part in parts for k, v in part.items()} for parts in product(*ends)]


# Unbiased compressors -------------------------------------------------------------------------------


def marina_root(p, omega, n=3):
    return sqrt((1 - p) * omega / (p * n))


def vr_root(p, omega, b, one, two, n=3):
    return sqrt((1 - p) / (p * n) * (omega * one**2 + (1 + omega) * two**2 / b))


def family(L_, omega, m, n=3):
    """Horvath et al. 2019: 1/(10 L sqrt(1 + omega/n)(m^(2/3) + omega + 1))."""
    return 1 / (10 * L_ * sqrt(1 + omega / n) * (m ** (2 / 3) + omega + 1))


def dasha_lag(omega, a, n=3):
    return 2 * (omega / n) * (1 + 2 * a * omega) / (a * (2 - a))


def tracked(omega, a, change, noise):
    return generic(sqrt(dasha_lag(omega, a) * change) + sqrt(noise))


def mvr(omega, a, momentum, b):
    v = 2 * (1 - momentum) ** 2 * LCAL**2 / b
    return tracked(omega, a, 2 * TILDE**2 + 3 * v, v / (momentum * (2 - momentum) * 3))


def dasha_page(omega, a, p, b):
    l = LCAL**2 / b
    return tracked(omega, a, (1 + p) * TILDE**2 + 3 * (1 - p) * l, (1 - p) * l / (p * 3))


def byz_marina(omega, p, b, kappa):
    """(B/rho, rho) of the recursion."""
    l = LCAL**2 / b
    mean, each = (omega * (TILDE**2 + l) + l) / 3, (1 + omega) * (TILDE**2 + l)
    if kappa == 0:
        return (1 - p) * mean / p, p
    return 2 * (1 - p) / p * ((1 + p / 2) * mean + (1 + 2 / p) * kappa * each), p / 2


def byz_page(omega, a, p, b, kappa):
    l = LCAL**2 / b
    change, drift = (1 + p) * TILDE**2 + 3 * (1 - p) * l, (1 - p) * l / p
    mean = sqrt(dasha_lag(omega, a) * change) + sqrt(drift / 3)
    each = sqrt(2 * omega / (1 - (1 - a) ** 2 - 2 * omega * a**2) * change) + sqrt(drift)
    return generic(mean if kappa == 0 else sqrt(2) * (mean + sqrt(kappa) * each))


def sync_mvr(omega, a, p, b):
    l = LCAL**2 / b
    return tracked(omega, a, (1 - p) * (TILDE**2 + l), (1 - p) * l / (p * 3))


def vr_diana(omega, a, p, b):
    w, V = omega / 3, LCAL**2 / b
    inside = w * (1 + 2 / a) * TILDE**2 / a + (4 * w + 1 / 3) * (2 / p - 1) * V / p
    return generic(sqrt(2 * inside))


def dasha_released(omega):
    mean, square = sum(SINGLE) / 3, sum(v * v for v in SINGLE) / 3
    return 1 / (mean + sqrt(square * omega * (4 * omega + 1) / 3))


def adiana(omega, p):
    if omega == 0:
        return 1 / (2 * MOST)
    return min(1 / (2 * MOST), 3 / (64 * omega * (2 * p * (omega + 1) + 1) ** 2 * MOST))


BATCHES = [1, 4]
DASHA = [(0.0, 1.0), (4.0, 1 / 9), (4.0, 0.02)]
USUAL = [(0.0, 1.0), (4.0, 0.2)]  # a = 1/(1 + omega)
BYZANTINE = [(4.0, 0.2, 1), (0.0, 0.2, 4), (4.0, 1e-4, 2), (4.0, 1.0, 1)]
LOW_MU = replace(C, mu=0.01)

UNBIASED = """
gd vertical_gd | nonconvex pl | | 1 / L
sgd | nonconvex | batch: 4 | 1 / L
sgd | pl | batch: 1 4 | 1 / (L + 2 * 9 / (3 * batch))
sgd | pl | batch: 4; m: 1.0 | 1 / L
heavy_ball | nonconvex | momentum: 0.0 0.4 0.9 | (1 - momentum) ** 2 / L
heavy_ball | pl | momentum: 0.0 0.4 0.99 |
    linear(momentum**2 * L**2 / (1 - momentum) ** 2, 1 - momentum, 1 - momentum)
heavy_ball | released | momentum: 0.9 | 1 / L
momentum_sgd | nonconvex | momentum: 0.9; batch: 2 | 0.01 / L
dcgd | nonconvex | omega: 0.0 1e-3 4.0; T: 1 100 10_000 |
    min(1 / L, 1 / sqrt(max(omega, 1e-30) * 2 * L * T))
dcgd | pl | omega: 0.0 4.0 | 1 / (L + 2 * omega * MOST / 3)
dcgd | pl | omega: 4.0; common: True | 1 / (L + 2 * 4 * MOST)
dcgd | pl | omega: 4.0; n: 1 | 1 / (L + 2 * 4 * MOST)
marina | nonconvex | p: 1.0 0.2 0.004; omega: 0.0 4.0 | generic(TILDE * marina_root(p, omega))
marina | pl | p: 1.0 0.2 0.004; omega: 0.0 4.0 | linear(TILDE**2 * marina_root(p, omega) ** 2, p)
marina | paper | p: 1.0 0.2 0.004; omega: 0.0 4.0 | 1 / (TILDE * (1 + marina_root(p, omega)))
marina | released | p: 1.0 0.2 0.004; omega: 0.0 4.0 | 1 / (9 * (1 + marina_root(p, omega)))
marina | nonconvex | omega: 4.0; p: 0.2; n: 1 | generic(TILDE * 4.0)
marina | nonconvex | omega: 4.0; p: 0.2; common: True | generic(TILDE * marina_root(0.2, 4.0, 1))
marina | nonconvex paper | omega: 2.0; p: 1/3; ab: (1.0,1.0) | generic(sqrt(2) * PM)
marina | nonconvex | omega: 2.0; p: 0.25; ab: (0.8,0.5) |
    generic(sqrt(3 * (0.3 * PLUS**2 + 0.5 * PM**2)))
vr_marina | nonconvex | p: 1.0 0.2 0.004; omega: 0.0 4.0; batch: BATCHES |
    1 / (L + vr_root(p, omega, batch, TILDE, LCAL))
vr_marina | paper | p: 1.0 0.2 0.004; omega: 0.0 4.0; batch: BATCHES |
    1 / (TILDE + vr_root(p, omega, batch, TILDE, LCAL))
vr_marina | released | p: 1.0 0.2 0.004; omega: 0.0 4.0; batch: BATCHES |
    1 / (9.0 + vr_root(p, omega, batch, 9.0, 9.0))
vr_marina | nonconvex | omega: 4.0; p: 0.2; batch: 2; common: True |
    generic(sqrt(4 * (4 * (TILDE**2 + 12.5) + 12.5 / 3)))
pp_marina | nonconvex | p: 1.0 0.2 0.004; omega: 0.0 4.0; clients: 1 5 |
    1 / (L + TILDE * sqrt((1 - p) * (1 + omega) / (p * clients)))
pp_marina | paper | p: 1.0 0.2 0.004; omega: 0.0 4.0; clients: 1 5 |
    1 / (TILDE + TILDE * sqrt((1 - p) * (1 + omega) / (p * clients)))
pp_marina | nonconvex | omega: 4.0; p: 0.2; clients: 2; common: True |
    generic(TILDE * sqrt(4 * 4.5))
diana | nonconvex | omega a: USUAL | generic(2 * TILDE * (1 + omega) * sqrt(omega / 3))
diana | nonconvex | omega: 4.0; a: 0.05 | generic(40 * TILDE * sqrt(4 / 3))
diana | nonconvex | omega: 4.0; a: 0.2; common: True | generic(20 * TILDE)
diana | pl | omega: 4.0; a: 0.2 1e-4 | linear(4 / a**2 * TILDE**2 * 4 / 3, a / 2)
diana | convex | omega: 4.0; a: 0.05 | 1 / ((1 + 6 * 4 / 3) * MOST)
diana | convex | omega: 4.0; a: 0.2; common: True | 1 / ((1 + 6 * 4) * MOST)
diana | convex | omega: 0.0; a: 1.0 | 1 / MOST
diana | paper | omega a: USUAL | family(MOST, omega, 1)
diana | released | omega: 0.0 4.0; a: 0.3 | family(9.0, omega, 1)
vr_diana | paper released | omega: 4.0; a: 0.2; batch p: (1,1/20) (2,2/20) |
    family(9.0, 4.0, 20 / batch)
vr_diana | nonconvex | omega a: (0.0,1.0) (4.0,0.2) (4.0,0.05); p: 1.0 0.1; batch: 1 3 |
    vr_diana(omega, a, p, batch)
adiana | paper | omega a: (0.0,1.0) (0.01,1/1.01) (4.0,0.2); p: 1.0 0.1 | adiana(omega, p)
dasha | nonconvex | omega a: DASHA | generic(TILDE * sqrt(dasha_lag(omega, a)))
dasha | nonconvex | omega: 4.0; a: 1/9 | generic(TILDE * sqrt(2 * 4 * 9 / 3))
dasha | pl | omega a: [*DASHA,(4.0,1e-3)] |
    linear(4 * (omega / 3) * (1 + 4 * a * omega) / a * TILDE**2, a / 2)
dasha | paper | omega a: DASHA[:2] | generic(TILDE * sqrt(16 * omega * (2 * omega + 1) / 3))
dasha | released | omega a: DASHA | dasha_released(omega)
dasha_page | nonconvex | omega a: DASHA; p: 1.0 0.2; batch: BATCHES | dasha_page(omega, a, p, batch)
byz_dasha_page | nonconvex | kappa: 0.0 0.5; omega a: DASHA; p batch: (1.0,1) (0.2,4) |
    byz_page(omega, a, p, batch, kappa)
byz_vr_marina | nonconvex | kappa: 0.0 0.5; omega p batch: BYZANTINE |
    generic(sqrt(byz_marina(omega, p, batch, kappa)[0]))
byz_vr_marina | pl | kappa: 0.0 0.5; omega p batch: BYZANTINE |
    linear(*byz_marina(omega, p, batch, kappa))
dasha_mvr | nonconvex | omega a: DASHA; momentum: 1.0 0.2; batch: BATCHES |
    mvr(omega, a, momentum, batch)
dasha_sync_mvr | nonconvex | omega a: DASHA; p: 1.0 0.2; batch: BATCHES |
    sync_mvr(omega, a, p, batch)
vertical_marina | nonconvex | omega: 4.0; p: 1.0 0.2 | generic(sqrt((1 - p) / p * 4 * L * BLK))
vertical_marina | nonconvex | omega: 4.0; p: 1.0 0.2; common: True |
    generic(sqrt((1 - p) / p * 4 * L * L))
vertical_marina | pl | omega: 4.0; p: 1e-4 | linear((1 - 1e-4) / 1e-4 * 4 * L * BLK, 1e-4)
vertical_marina | nonconvex | omega: 2.0; p: 0.2; ab: (1.0,1.0) | generic(sqrt(4 * 3 * L * BLK))
lead prox_lead extra exact_diffusion diffusion gossip choco_sgd | nonconvex | | 0.5 / MOST
gradient_tracking easgd lsgd codistillation | nonconvex | | 0.5 / MOST
dgd | nonconvex | | 0.25 / MOST
"""

UNBIASED_AUTO = """
marina | p | share: 0.01 1.0 | share
vertical_marina three_pc_v5 | p | share: 0.01 | share
pp_marina | p | share: 0.3; clients: 2 | 0.3 * 2 / 3
pp_marina | p | share: 0.9; clients: 30 | 1.0
vr_marina byz_vr_marina dasha_sync_mvr | p | share: 0.01 1.0; batch: 5; big: 0 40 |
    min(share, 5 / ((big or 20) + 5))
ef21_page dasha_page byz_dasha_page | p | batch: 1 60 | batch / (20 + batch)
vr_diana | p | batch: 1 5 60 | min(1.0, batch / 20)
ec_lsvrg | p | | 1 / 20
diana vr_diana adiana lead prox_lead | alpha | omega: 0.0 4.0 | 1 / (1 + omega)
dasha dasha_page byz_dasha_page dasha_mvr dasha_sync_mvr | alpha | omega: 0.0 4.0 |
    1 / (2 * omega + 1)
ec_diana | alpha | shift: Held(omega=4.0) | 1 / 5
adiana | p | omega: 0.003 0.0156 4.0 |
    min(1.0, max(1.0, sqrt(3 / (32 * omega)) - 1) / (2 * (1 + omega)))
adiana | p | omega: 0.0 | 1.0
adiana | mu | constants: LOW_MU | 0.01
lead prox_lead | mix | omega: 0.1 4.0 | min(1 / (1 + omega), 2 / (1 + omega) ** 3)
gossip choco_sgd | mix | alpha: 1.0 0.1 | alpha / (2 - alpha)
easgd | alpha | beta: 0.9; n: 1 2 7 | 0.9 / max(2, n)
"""


# Error feedback and three point compressors -------------------------------------------------------


def pp(alpha, p):
    """rho and B/L_tilde^2 of EF21 with partial participation, r = p theta/(2 (1-p))."""
    theta = shrink(alpha)
    r = p * theta / (2 * (1 - p))
    return p * theta / 2, p * (1 - alpha) / theta + (1 - p) * (1 + 1 / r)


def ef21_step(alpha, far=TILDE):
    return generic(far * q(alpha))


def ef14_step(alpha, T):
    s = shrink(alpha) ** 2 / (1 - alpha) if alpha < 1 else math.inf
    return min(1 / (2 * L), sqrt(s / (4 * L * MOST)), (s / (4 * L * L * MOST * T)) ** (1 / 3))


def ef14_linear(alpha, times):
    s = shrink(alpha) ** 2 / (1 - alpha) if alpha < 1 else math.inf
    return min(1 / (4 * L), sqrt(s / (times * L * MOST)))


def table(alpha, p):
    """rho and B/(n L L_blk) of EF21 on products: a dense round leaves nothing of the error."""
    theta = shrink(alpha)
    return 1 - (1 - p) * (1 - theta), (1 - p) * (1 - alpha) / theta


def hb(alpha, eta):
    square = 2 * eta * (1 + eta) / (1 - eta) ** 2 * L**2 + (1 + eta) * (TILDE * q(alpha)) ** 2
    return generic(sqrt(square), 1 - eta)


def sgdm(alpha, eta):
    past = (1 - eta) ** 2
    return generic(TILDE * sqrt(2 * (2 * q(alpha) ** 2 * (eta**2 + past) + past / eta**2)))


def page(alpha, p, b):
    l = LCAL**2 / b
    total = q(alpha) ** 2 * ((1 + p) * TILDE**2 + 3 * (1 - p) * l) + (1 - p) * l / p
    return generic(sqrt(2 * total))


def bc(alpha, down):
    s = 8 * q(down) ** 2
    return generic(TILDE * sqrt(2 * ((1 + s) * q(alpha) ** 2 + s)))


def two(first, alpha):
    return 1 - (1 - first) * (1 - alpha)


ALPHAS, NEARLY = [1.0, 0.5, 0.03], [1.0, 0.5, 0.03, 0.999]
NO_MU = replace(C, mu=None)
BIASED = """
ef14 ec_sgd ef_sign_sgd one_bit_sgd | nonconvex | alpha: NEARLY; T: 1 1000 | ef14_step(alpha, T)
adef | convex | alpha: 1.0 | 1 / L
adef | nonconvex | alpha: ALPHAS | alpha**2 / L
ef14 | pl | alpha: NEARLY | ef14_linear(alpha, 96)
ec_gd_star | pl | alpha: NEARLY | ef14_linear(alpha, 48)
ef14 | paper | alpha: ALPHAS | 1 / (14 * 2 / alpha * MOST)
ef21 ef21_prox ef21_plus | nonconvex paper | alpha: ALPHAS | ef21_step(alpha)
ef21 | pl | alpha: [*ALPHAS,1e-5] | linear((TILDE * q(alpha)) ** 2, shrink(alpha))
ef21 ef14 ef21_hb | released | alpha: [*ALPHAS,1e-5] |
    linear((TILDE * q(alpha)) ** 2, shrink(alpha))
ef21 ef14 ef21_hb | released | alpha: 0.3; constants: NO_MU | ef21_step(0.3)
ef21 | released | alpha: 0.3; constants: LOW_MU | generic(sqrt(2) * TILDE * q(0.3))
ef21_pp ef21_bc ef21_page ef21_sgd | released | alpha: 0.3; p: 0.4; batch: 2; down_alpha: 0.5 |
    ef21_step(0.3)
ef21_w | nonconvex | alpha: ALPHAS | ef21_step(alpha, MEAN)
ef21 | arithmetic | alpha: ALPHAS | ef21_step(alpha, MEAN)
ef21 ef14 | tight | alpha: ALPHAS |
    2 / (MEAN + (0.2 + CURVED + 0.07) / 3) * (1 - sqrt(1 - alpha)) / (1 + sqrt(1 - alpha))
ef21_w | pl | alpha: ALPHAS | linear((MEAN * q(alpha)) ** 2, shrink(alpha))
ef21_p | nonconvex | down_alpha: ALPHAS | ef21_step(down_alpha, L)
vertical_ef21 | nonconvex | alpha: ALPHAS; p: 0.0 0.3 1.0; batch: "full" |
    generic(sqrt(table(alpha, p)[1] / table(alpha, p)[0] * 3 * L * BLK))
vertical_ef21 | pl | alpha: 1e-3; p: 0.0; batch: "full" |
    linear(q(1e-3) ** 2 * 3 * L * BLK, shrink(1e-3))
ef21_pp | nonconvex | alpha: ALPHAS; p: 1.0 | ef21_step(alpha)
ef21_pp | nonconvex | alpha: ALPHAS; p: 0.5 0.1 |
    generic(TILDE * sqrt(pp(alpha, p)[1] / pp(alpha, p)[0]))
ef21_pp | pl | alpha: 0.5 1e-3; p: 0.5 0.1 |
    linear(TILDE**2 * pp(alpha, p)[1] / pp(alpha, p)[0], pp(alpha, p)[0])
ef21_bc | nonconvex | alpha: ALPHAS; down_alpha: ALPHAS | bc(alpha, down_alpha)
ef21_hb | nonconvex | alpha: ALPHAS; eta: 0.0 0.5 0.9 | hb(alpha, eta)
ef21_sgdm | nonconvex | alpha: ALPHAS; eta: 1.0 0.5 0.05; batch: 1 | sgdm(alpha, eta)
ef21_sgd | nonconvex | alpha: ALPHAS; batch: 1 | sgdm(alpha, 1.0)
ef21_sgdm | paper | alpha: ALPHAS; eta: 1.0 0.01 | min(alpha / (20 * TILDE), eta / (7 * L))
ef21_page | nonconvex | alpha: ALPHAS; p: 1.0 0.2; batch: BATCHES | page(alpha, p, batch)
"""
POINTS = """
lag | alpha: 1.0; z: 0.0 3.0 | 1.0 | z
clag | alpha: 0.5; z: 0.1 9.0 | shrink(alpha) | max(0.5 / shrink(0.5), z)
three_pc_v1 | alpha: ALPHAS | 1.0 | 1 - alpha
three_pc_v2 | alpha: ALPHAS; first: Held(omega=0.0) Held(omega=4.0) | alpha | (1 - alpha) * first.omega
three_pc_v4 | alpha: ALPHAS; first: Held(alpha=1.0) Held(alpha=0.2) |
    shrink(two(first.alpha, alpha)) |
    (1 - two(first.alpha, alpha)) / shrink(two(first.alpha, alpha))
three_pc_v5 | alpha: ALPHAS; p: 1.0 0.3 | shrink(p) | (1 - p) * (1 - alpha) / shrink(p)
"""


def three_points() -> Iterator[Case]:
    """Yield the cases of three point compressors: name | settings | A | B."""
    for line in POINTS.strip().replace("\n ", " ").splitlines():
        name, given, A, B = map(str.strip, line.split("|"))
        yield from cases(
            f"{name} | nonconvex paper | {given} | generic(PLUS * sqrt(({B}) / ({A})))"
        )
        yield from cases(f"{name} | pl | {given} | linear(PLUS**2 * ({B}) / ({A}), {A})")
        if "lag" not in name:
            yield from cases(f"{name} | released | {given} | generic(TILDE * sqrt(({B}) / ({A})))")


# Both ways ----------------------------------------------------------------------------------------

CURVED_CLIENTS = replace(C, facts=C.facts - {Fact.QUADRATIC})


def shrunk(rate, bias, variance):
    """E||v - rate C(v)||^2/||v||^2 of a compressor whose mean is off by ``bias`` and varies by ``variance``."""
    return (1 - rate + rate * bias) ** 2 + rate**2 * variance


def ef_bv(lam, nu, bias, variance, of_mean):
    """G = r_av U and U+ <= sqrt(r) U + L_tilde^2 R/(1 - sqrt(r)): root of B/rho, and rho."""
    r, r_av = shrunk(lam, bias, variance), shrunk(nu, bias, of_mean)
    return TILDE * sqrt(r_av) / (1 - sqrt(r)), 1 - sqrt(r)


def ef_bv_released(lam, nu, bias, variance, of_mean):
    """As the authors' script: s = sqrt((1 + r)/(2 r)) - 1."""
    r, r_av = shrunk(lam, bias, variance), shrunk(nu, bias, of_mean)
    s = sqrt((1 + r) / (2 * r)) - 1
    return 1 / (L + TILDE * sqrt(r_av / r) / s)


EF_BV = {  # setting: bias, variance, variance of the mean of three clients
    "omega: 0.5": (0.0, 0.5, 0.5 / 3),
    "omega: 4.0": (0.0, 4.0, 4.0 / 3),
    "omega: 4.0; common: True": (0.0, 4.0, 4.0),
    "omega: 2.0; ab: (1.0,1.0)": (0.0, 2.0, 1.0),
    "alpha: 0.9": (sqrt(1 - 0.9), 0.0, 0.0),
    "alpha: 0.1": (sqrt(1 - 0.1), 0.0, 0.0),
}
RATES = [(0.2, 1.0), (0.1, 0.7), (0.05, 0.3)]


def ef_bv_cases() -> Iterator[Case]:
    for given, law in EF_BV.items():
        near, both = f"ef_bv(lam, nu, *{law})", f"{given}; lam nu: "
        yield from cases(f"ef_bv | nonconvex | {both}RATES | generic({near}[0])")
        yield from cases(
            f"ef_bv | pl | {both}[*RATES,(1e-4,0.5)] | linear({near}[0] ** 2, {near}[1])"
        )
        yield from cases(f"ef_bv | paper released | {both}RATES | ef_bv_released(lam, nu, *{law})")


def econtrol(alpha, eta):
    """rho and the root of B/rho, of the matrix that drives (V, E)."""
    w = sqrt(1 - alpha)
    values, vectors = np.linalg.eig(np.array([[(1 + eta) * w, eta**2], [w, 1 - eta]]).T)
    j = int(np.argmax(values.real))
    unit, weight = vectors[:, j].real
    rho, factor = 1 - values[j].real, max(w, eta * unit / weight)
    return rho, factor * TILDE / rho


ECONTROL = [(a, part * shrink(a)) for a in (0.9, 0.5, 0.1, 1e-3) for part in (0.25, 0.4, 0.01)]
ECONTROL += [(a, 0.9 * shrink(a)) for a in (0.99, 0.9)]  # the error counts for more


def both_ways(omega, a, down):
    """rho and B of EF21-P + DIANA, three clients; the error of w shrinks by ``left``^2 of ||x+ - w||^2."""
    left = sqrt(1 - down)
    theta = 1 - left
    rho = min(theta, a) / 2
    W = omega / 3 * (2 / a) * ((1 + left) * TILDE) ** 2
    A = max(L**2, W / (left * (theta - rho))) if left else 0.0
    return rho, (A * left**2 + W) / theta


def root(omega, a, down):
    rho, B = both_ways(omega, a, down)
    return sqrt(B / rho)


def apart(p, omega, theta):
    return sqrt((1 - p) / p) * (PM * sqrt(omega) + L * sqrt(theta))


BOTH_WAYS = """
ef_bv | nonconvex | alpha: 0.9 0.1 1.0; lam: 1.0; nu: 1.0 | generic(TILDE * q(alpha))
econtrol | nonconvex | alpha eta: ECONTROL | generic(econtrol(alpha, eta)[1])
econtrol | pl | alpha eta: ECONTROL | linear(econtrol(alpha, eta)[1] ** 2, econtrol(alpha, eta)[0])
econtrol | nonconvex | alpha: 0.5 1; eta: 0.0 | generic(TILDE * q(alpha))
econtrol | nonconvex | alpha: 1.0; eta: 0.3 | 1 / L
ef21_p_diana | nonconvex | omega a: (0.0,1.0) (0.5,0.4) (4.0,0.2) (4.0,0.05); down_alpha: 1.0 0.9 0.5 0.1 |
    generic(root(omega, a, down_alpha))
ef21_p_diana | pl | omega: 4.0; a: 0.2; down_alpha: 0.5 |
    linear(both_ways(4.0, 0.2, 0.5)[1] / both_ways(4.0, 0.2, 0.5)[0], 0.1)
ef21_p_diana | nonconvex | omega: 4.0; a: 0.2; down_alpha: 1.0 | generic(2 * TILDE * 5 * sqrt(4 / 3))
marina_p | nonconvex | down_omega: 0.0 4.0; p: 1.0 0.1; constants: CURVED_CLIENTS |
    generic(TILDE * sqrt((1 - p) * down_omega / p))
marina_p | nonconvex | down_omega: 4.0; p: 0.5 0.1 |
    generic(min(TILDE * sqrt((1 - p) * 4 / p), apart(p, 4.0, 4 / 3)))
marina_p | nonconvex | down_omega: 0.6; p: 0.1; n: 3 300; down_common: False True |
    generic(min(TILDE * sqrt(9 * 0.6), apart(0.1, 0.6, 0.6 if down_common else 0.6 / n)))
marina_p | nonconvex | down_omega: 2.0; p: 1/3 0.1; down_ab: (1.0,1.0) |
    generic(PM * sqrt((1 - p) * 2 / p))
marina_p | nonconvex | down_omega: 2.0; p: 1/3; down_ab: (0.8,0.79) | generic(apart(1 / 3, 2.0, 0.01))
marina_p | pl | down_omega: 2.0; p: 1e-4; down_ab: (1.0,1.0) |
    linear(PM**2 * 2 * (1 - 1e-4) / 1e-4, 1e-4)
marina_p | pl | down_omega: 0.0; p: 1e-3 | min(1 / L, 1e-3 / (2 * MU))
"""

BOTH_WAYS_AUTO = """
ef_bv | lam | omega: 0.0 4.0 | 1 / (1 + omega)
ef_bv | lam nu | alpha: 0.1 | 1.0
ef_bv | nu | omega: 4.0 | 1 / (1 + 4 / 3)
ef_bv | nu | omega: 4.0; common: True | 1 / 5
ef_bv | nu | omega: 2.0; ab: (1.0,1.0) | 1 / 2
econtrol | eta | alpha: 1.0 0.1 | shrink(alpha) / 4
ef21_p_diana | alpha | omega: 0.0 4.0 | 1 / (1 + omega)
marina_p | p | down_share: 0.01 1.0 | down_share
"""


# Local steps with compressed exchanges, and normalised EF21 -----------------------------------------

UNCURVED = replace(C, mu_i=())
GAMMA = 2 / (MOST + CURVED)


def lent(count, lam):
    """The step of f_i - count lam ||x||^2/2 beside count lent functions lam ||x||^2/2."""
    functions = [(CURVED - count * lam, MOST - count * lam), (lam, lam)]
    return 2 / (min(low for low, _ in functions) + max(high for _, high in functions))


def seldom(gamma, mu, dual):
    """p at which p^2 dual is what a local step gains, 1 - (1 - gamma mu)^2."""
    return min(1.0, sqrt((2 * gamma * mu - (gamma * mu) ** 2) / dual))


def most(n, s):
    return n * (s - 1) / (s * (n - 1))


def up_eta(w, rho, n=3):
    return (2 * rho - rho**2 * (1 + w / n)) / (1 + 2 * w)


def both_rho(w, v, n=3):
    return 1 / (3 + 2 * v + 2 * w / n)


def both_eta(w, v, rho, n=3):
    return (2 * rho - rho**2 / both_rho(w, v, n)) / (1 + 2 * w + 2 * v)


LOCAL = """
compressed_scaffnew | pl | n senders chi: (3,2,0.75) (3,3,1.0) (3,2,0.1) (1,2,1.0) (7,4,0.875) | GAMMA
locodl | pl | omega: 4.0; rho: 0.4; eta: 0.04; lam: CURVED/2 CURVED/10 CURVED*0.9 | lent(1, lam)
bicolor | pl | omega: 4.0; down_omega: 2.0; rho: 0.1; eta: 0.007; lam: CURVED/3 CURVED/10 CURVED*0.45 |
    lent(2, lam)
ef21_normalized | paper | alpha: 0.3; T: 1 1000 | 1 / sqrt(T)
"""

LOCAL_AUTO = """
compressed_scaffnew | chi | n senders: (3,2) (7,4) (5,5) (5,9) | most(n, min(senders, n))
compressed_scaffnew | chi | n: 1; senders: 2 | 1.0
compressed_scaffnew | p | n senders: (3,2) (7,4) (5,5) (1000,2) |
    seldom(GAMMA, CURVED, most(n, senders) * (senders - 1) / (n - 1))
compressed_scaffnew | p | n: 1; senders: 2 | seldom(GAMMA, CURVED, 1)
locodl | lam | | CURVED / 2
bicolor | lam | | CURVED / 3
locodl bicolor | lam | constants: UNCURVED | 0.0
locodl | rho | omega n: (0.0,3) (4.0,5) | 1 / (1 + omega / n)
locodl | rho | omega: 4.0; common: True | 1 / 5
locodl | rho | omega: 2.0; ab: (0.5,0.5) | 1 / 1.5
locodl | eta | omega rho: (0.0,1.0) (4.0,3/7) (4.0,0.2) | up_eta(omega, rho)
locodl | eta | omega: 4.0; rho: 3/7 | 3 / 7 / 9
bicolor | rho | omega down_omega n: (0.0,0.0,3) (4.0,1.0,5) | both_rho(omega, down_omega, n)
bicolor | eta | omega down_omega rho: (0.0,0.0,1/3) (4.0,1.0,0.1) | both_eta(omega, down_omega, rho)
locodl | p | eta: 0.01 1e-6; lam: CURVED/2 | seldom(lent(1, lam), lam, eta)
bicolor | p | eta: 0.01 1e-6; lam: CURVED/3 | seldom(lent(2, lam), lam, eta)
"""

# On a simulated clock ---------------------------------------------------------------------------------

ON_A_CLOCK = """
ringmaster_asgd | nonconvex | batch: 2; target: 0.5; threshold: 1 12 40 |
    min(1 / (2 * threshold * L), 0.5 / (4 * 6 * L))
ringmaster_asgd | nonconvex | m: 1.0; batch: 2; target: 0.5; threshold: 3 | 1 / (6 * L)
rennala_sgd | nonconvex | batch: 2; target: 0.5; collect: 1 12 40 |
    min(1 / L, 0.5 * collect / (2 * 6 * L))
malenia_sgd | nonconvex | batch: 2; target: 0.5; collect: 1 12 40 | min(1 / L, 0.5 * collect / (2 * 6 * L))
shadowheart_sgd | nonconvex | noise: 0.5; batch: 2 | 1 / (2 * L)
shadowheart_sgd | nonconvex | noise: 0.0; m: 1.0 | 1 / (2 * L)
"""

ON_A_CLOCK_AUTO = """
ringmaster_asgd | threshold | batch: 2; target: 0.5 5.0 50.0 | math.ceil(6 / target)
rennala_sgd | collect | batch: 2; target: 0.5 5.0 50.0 | math.ceil(6 / target)
malenia_sgd | collect | batch: 2; target: 0.5 5.0; n: 3 7 | max(math.ceil(6 / target), n)
"""

CASES = [
    *(*cases(UNBIASED), *cases(BIASED), *three_points()),
    *(*ef_bv_cases(), *cases(BOTH_WAYS), *cases(LOCAL), *cases(ON_A_CLOCK)),
]
AUTO = [*cases(UNBIASED_AUTO), *cases(BOTH_WAYS_AUTO), *cases(LOCAL_AUTO), *cases(ON_A_CLOCK_AUTO)]
