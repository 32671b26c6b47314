"""Step sizes of error feedback and three point compressors, written anew: (method, rule, setting, step)."""

from __future__ import annotations

import math
from dataclasses import replace

from known_problem import BLK, LCAL, MEAN, MOST, PLUS, TILDE, C, Held, L, generic, linear, q, shrink

sqrt = math.sqrt


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


ALPHAS = (1.0, 0.5, 0.03)
PAIRS = {  # (A, B) of the three point compressors: (parameters, A, B)
    "lag": [({"alpha": 1.0, "z": z}, 1.0, z) for z in (0.0, 3.0)],
    "clag": [
        ({"alpha": 0.5, "z": 0.1}, shrink(0.5), 0.5 / shrink(0.5)),
        ({"alpha": 0.5, "z": 9.0}, shrink(0.5), 9.0),
    ],
    "three_pc_v1": [({"alpha": a}, 1.0, 1 - a) for a in ALPHAS],
    "three_pc_v2": [
        ({"alpha": a, "first": Held(omega=w)}, a, (1 - a) * w) for a in ALPHAS for w in (0.0, 4.0)
    ],
    "three_pc_v4": [
        (
            {"alpha": a, "first": Held(alpha=f)},
            shrink(two(f, a)),
            (1 - two(f, a)) / shrink(two(f, a)),
        )
        for a in ALPHAS
        for f in (1.0, 0.2)
    ],
    "three_pc_v5": [
        ({"alpha": a, "p": p}, shrink(p), (1 - p) * (1 - a) / shrink(p))
        for a in ALPHAS
        for p in (1.0, 0.3)
    ],
}

CASES: list[tuple[str, str, dict, float]] = [
    # error feedback
    *(
        (name, "nonconvex", {"alpha": a, "T": T}, ef14_step(a, T))
        for name in ("ef14", "ec_sgd", "ef_sign_sgd", "one_bit_sgd")
        for a in (*ALPHAS, 0.999)
        for T in (1, 1000)
    ),
    *(("ef14", "pl", {"alpha": a}, ef14_linear(a, 96)) for a in (*ALPHAS, 0.999)),
    *(("ec_gd_star", "pl", {"alpha": a}, ef14_linear(a, 48)) for a in (*ALPHAS, 0.999)),
    *(("ef14", "paper", {"alpha": a}, 1 / (14 * 2 / a * MOST)) for a in ALPHAS),
    *(
        (name, rule, {"alpha": a}, ef21_step(a))
        for name in ("ef21", "ef21_prox", "ef21_plus")
        for rule in ("nonconvex", "paper")
        for a in ALPHAS
    ),
    *(
        (name, rule, {"alpha": a}, linear((TILDE * q(a)) ** 2, shrink(a)))
        for name, rule in (
            ("ef21", "pl"),
            ("ef21", "released"),
            ("ef14", "released"),
            ("ef21_hb", "released"),
        )
        for a in (*ALPHAS, 1e-5)
    ),
    *(
        (name, "released", {"alpha": 0.3, "constants": replace(C, mu=None)}, ef21_step(0.3))
        for name in ("ef21", "ef14", "ef21_hb")
    ),
    (
        "ef21",
        "released",
        {"alpha": 0.3, "constants": replace(C, mu=0.01)},
        generic(sqrt(2) * TILDE * q(0.3)),
    ),
    *(
        (name, "released", {"alpha": 0.3, "p": 0.4, "batch": 2, "down_alpha": 0.5}, ef21_step(0.3))
        for name in ("ef21_pp", "ef21_bc", "ef21_page", "ef21_sgd")
    ),
    *(("ef21_w", "nonconvex", {"alpha": a}, ef21_step(a, MEAN)) for a in ALPHAS),
    *(("ef21", "arithmetic", {"alpha": a}, ef21_step(a, MEAN)) for a in ALPHAS),
    *(("ef21_w", "pl", {"alpha": a}, linear((MEAN * q(a)) ** 2, shrink(a))) for a in ALPHAS),
    *(("ef21_p", "nonconvex", {"down_alpha": a}, ef21_step(a, L)) for a in ALPHAS),
    *(  # features split over three clients
        (
            "vertical_ef21",
            "nonconvex",
            {"alpha": a, "p": p, "batch": "full"},
            generic(sqrt(table(a, p)[1] / table(a, p)[0] * 3 * L * BLK)),
        )
        for a in ALPHAS
        for p in (0.0, 0.3, 1.0)
    ),
    (
        "vertical_ef21",
        "pl",
        {"alpha": 1e-3, "p": 0.0, "batch": "full"},
        linear(q(1e-3) ** 2 * 3 * L * BLK, shrink(1e-3)),
    ),
    *(("ef21_pp", "nonconvex", {"alpha": a, "p": 1.0}, ef21_step(a)) for a in ALPHAS),
    *(
        (
            "ef21_pp",
            "nonconvex",
            {"alpha": a, "p": p},
            generic(TILDE * sqrt(pp(a, p)[1] / pp(a, p)[0])),
        )
        for a in ALPHAS
        for p in (0.5, 0.1)
    ),
    *(
        (
            "ef21_pp",
            "pl",
            {"alpha": a, "p": p},
            linear(TILDE**2 * pp(a, p)[1] / pp(a, p)[0], pp(a, p)[0]),
        )
        for a in (0.5, 1e-3)
        for p in (0.5, 0.1)
    ),
    *(
        ("ef21_bc", "nonconvex", {"alpha": a, "down_alpha": b}, bc(a, b))
        for a in ALPHAS
        for b in ALPHAS
    ),
    *(
        ("ef21_hb", "nonconvex", {"alpha": a, "eta": e}, hb(a, e))
        for a in ALPHAS
        for e in (0.0, 0.5, 0.9)
    ),
    *(
        ("ef21_sgdm", "nonconvex", {"alpha": a, "eta": e, "batch": 1}, sgdm(a, e))
        for a in ALPHAS
        for e in (1.0, 0.5, 0.05)
    ),
    *(("ef21_sgd", "nonconvex", {"alpha": a, "batch": 1}, sgdm(a, 1.0)) for a in ALPHAS),
    *(  # as recalled, not found in print
        ("ef21_sgdm", "paper", {"alpha": a, "eta": e}, min(a / (20 * TILDE), e / (7 * L)))
        for a in ALPHAS
        for e in (1.0, 0.01)
    ),
    *(
        ("ef21_page", "nonconvex", {"alpha": a, "p": p, "batch": b}, page(a, p, b))
        for a in ALPHAS
        for p in (1.0, 0.2)
        for b in (1, 4)
    ),
    # three point compressors
    *(
        (name, rule, given, generic(far * sqrt(B / A)))
        for name, cases in PAIRS.items()
        for given, A, B in cases
        for rule, far in (("nonconvex", PLUS), ("paper", PLUS))
    ),
    *(
        (name, "pl", given, linear(PLUS**2 * B / A, A))
        for name, cases in PAIRS.items()
        for given, A, B in cases
    ),
    *(
        (name, "released", given, generic(TILDE * sqrt(B / A)))
        for name, cases in PAIRS.items()
        if "lag" not in name
        for given, A, B in cases
    ),
]
