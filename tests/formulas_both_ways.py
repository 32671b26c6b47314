"""Step sizes of EF-BV, EControl, MARINA-P and EF21-P + DIANA, written anew: (method, rule, setting, step).

``AUTO``: what their word ``auto`` means, (method, parameter, setting, value).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from known_problem import MU, PM, TILDE, C, L, generic, linear, q, shrink

from raybench.problems.base import Fact

sqrt = math.sqrt
CURVED = replace(C, facts=C.facts - {Fact.QUADRATIC})


def shrunk(rate, bias, variance):
    """E||v - rate C(v)||^2/||v||^2 of an operator whose mean is off by ``bias`` and varies by ``variance``."""
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


EF_BV = [  # setting, and bias, variance, variance of the mean of three clients
    *(({"omega": w}, (0.0, w, w / 3)) for w in (0.5, 4.0)),
    ({"omega": 4.0, "common": True}, (0.0, 4.0, 4.0)),
    ({"omega": 2.0, "ab": (1.0, 1.0)}, (0.0, 2.0, 1.0)),
    *(({"alpha": a}, (sqrt(1 - a), 0.0, 0.0)) for a in (0.9, 0.1)),
]
RATES = [(0.2, 1.0), (0.1, 0.7), (0.05, 0.3)]


def econtrol(alpha, eta):
    """rho and the root of B/rho, of the matrix that drives (V, E)."""
    w = sqrt(1 - alpha)
    values, vectors = np.linalg.eig(np.array([[(1 + eta) * w, eta**2], [w, 1 - eta]]).T)
    j = int(np.argmax(values.real))
    one, weight = vectors[:, j].real
    rho, factor = 1 - values[j].real, max(w, eta * one / weight)
    return rho, factor * TILDE / rho


ECONTROL = [(a, part * shrink(a)) for a in (0.9, 0.5, 0.1, 1e-3) for part in (0.25, 0.4, 0.01)]
ECONTROL += [
    (a, 0.9 * shrink(a)) for a in (0.99, 0.9)
]  # the error counts for more than the message


def both_ways(omega, a, down):
    """rho and B of EF21-P + DIANA, three clients; the error of w shrinks by ``left``^2 of ||x+ - w||^2."""
    left = sqrt(1 - down)
    theta = 1 - left
    rho = min(theta, a) / 2
    W = omega / 3 * (2 / a) * ((1 + left) * TILDE) ** 2
    A = max(L**2, W / (left * (theta - rho))) if left else 0.0
    return rho, (A * left**2 + W) / theta


BOTH = [
    (w, a, b)
    for w, a in ((0.0, 1.0), (0.5, 0.4), (4.0, 0.2), (4.0, 0.05))
    for b in (1.0, 0.9, 0.5, 0.1)
]


def apart(p, omega, theta):
    return sqrt((1 - p) / p) * (PM * sqrt(omega) + L * sqrt(theta))


CASES = [
    *(
        ("ef_bv", "nonconvex", {**given, "lam": lam, "nu": nu}, generic(ef_bv(lam, nu, *known)[0]))
        for given, known in EF_BV
        for lam, nu in RATES
    ),
    *(
        (
            "ef_bv",
            "pl",
            {**given, "lam": lam, "nu": nu},
            linear(ef_bv(lam, nu, *known)[0] ** 2, ef_bv(lam, nu, *known)[1]),
        )
        for given, known in EF_BV
        for lam, nu in (*RATES, (1e-4, 0.5))
    ),
    *(
        ("ef_bv", rule, {**given, "lam": lam, "nu": nu}, ef_bv_released(lam, nu, *known))
        for rule in ("paper", "released")
        for given, known in EF_BV
        for lam, nu in RATES
    ),
    *(  # EF21
        ("ef_bv", "nonconvex", {"alpha": a, "lam": 1.0, "nu": 1.0}, generic(TILDE * q(a)))
        for a in (0.9, 0.1, 1.0)
    ),
    *(
        ("econtrol", "nonconvex", {"alpha": a, "eta": e}, generic(econtrol(a, e)[1]))
        for a, e in ECONTROL
    ),
    *(
        (
            "econtrol",
            "pl",
            {"alpha": a, "eta": e},
            linear(econtrol(a, e)[1] ** 2, econtrol(a, e)[0]),
        )
        for a, e in ECONTROL
    ),
    *(("econtrol", "nonconvex", {"alpha": a, "eta": 0.0}, generic(TILDE * q(a))) for a in (0.5, 1)),
    ("econtrol", "nonconvex", {"alpha": 1.0, "eta": 0.3}, 1 / L),
    *(
        (
            "ef21_p_diana",
            "nonconvex",
            {"omega": w, "a": a, "down_alpha": b},
            generic(sqrt(both_ways(w, a, b)[1] / both_ways(w, a, b)[0])),
        )
        for w, a, b in BOTH
    ),
    (
        "ef21_p_diana",
        "pl",
        {"omega": 4.0, "a": 0.2, "down_alpha": 0.5},
        linear(both_ways(4.0, 0.2, 0.5)[1] / both_ways(4.0, 0.2, 0.5)[0], 0.1),
    ),
    (  # the downlink is exact: DIANA
        "ef21_p_diana",
        "nonconvex",
        {"omega": 4.0, "a": 0.2, "down_alpha": 1.0},
        generic(2 * TILDE * 5 * sqrt(4 / 3)),
    ),
    *(
        (
            "marina_p",
            "nonconvex",
            {"down_omega": w, "p": p, "constants": CURVED},
            generic(TILDE * sqrt((1 - p) * w / p)),
        )
        for w in (0.0, 4.0)
        for p in (1.0, 0.1)
    ),
    *(
        (
            "marina_p",
            "nonconvex",
            {"down_omega": 4.0, "p": p},
            generic(min(TILDE * sqrt((1 - p) * 4 / p), apart(p, 4.0, 4 / 3))),
        )
        for p in (0.5, 0.1)
    ),
    *(
        (
            "marina_p",
            "nonconvex",
            {"down_omega": 0.6, "p": 0.1, "n": n, "down_common": shared},
            generic(
                min(TILDE * sqrt(9 * 0.6), apart(0.1, 0.6, 0.6 if shared else 0.6 / n)),
            ),
        )
        for n in (3, 300)
        for shared in (False, True)
    ),
    *(  # PermK: nothing is left in the mean
        (
            "marina_p",
            "nonconvex",
            {"down_omega": 2.0, "p": p, "down_ab": (1.0, 1.0)},
            generic(PM * sqrt((1 - p) * 2 / p)),
        )
        for p in (1 / 3, 0.1)
    ),
    (
        "marina_p",
        "nonconvex",
        {"down_omega": 2.0, "p": 1 / 3, "down_ab": (0.8, 0.79)},
        generic(apart(1 / 3, 2.0, 0.01)),
    ),
    (
        "marina_p",
        "pl",
        {"down_omega": 2.0, "p": 1e-4, "down_ab": (1.0, 1.0)},
        linear(PM**2 * 2 * (1 - 1e-4) / 1e-4, 1e-4),
    ),
    ("marina_p", "pl", {"down_omega": 0.0, "p": 1e-3}, min(1 / L, 1e-3 / (2 * MU))),
]

AUTO = [
    *(("ef_bv", "lam", {"omega": w}, 1 / (1 + w)) for w in (0.0, 4.0)),
    *(("ef_bv", name, {"alpha": 0.1}, 1.0) for name in ("lam", "nu")),
    ("ef_bv", "nu", {"omega": 4.0}, 1 / (1 + 4 / 3)),
    ("ef_bv", "nu", {"omega": 4.0, "common": True}, 1 / 5),
    ("ef_bv", "nu", {"omega": 2.0, "ab": (1.0, 1.0)}, 1 / 2),
    *(("econtrol", "eta", {"alpha": a}, shrink(a) / 4) for a in (1.0, 0.1)),
    *(("ef21_p_diana", "alpha", {"omega": w}, 1 / (1 + w)) for w in (0.0, 4.0)),
    *(("marina_p", "p", {"down_share": s}, s) for s in (0.01, 1.0)),
]
