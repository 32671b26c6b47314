"""Step sizes without compression, with unbiased operators and by rule of thumb: (method, rule, setting, step).

``AUTO`` has the numbers that theory fills in for ``auto``: (method, parameter, setting, value).
"""

from __future__ import annotations

import math
from dataclasses import replace

from known_problem import BLK, LCAL, MOST, PLUS, PM, SINGLE, TILDE, C, Held, L, generic, linear

sqrt = math.sqrt


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


MARINA = [(p, w) for p in (1.0, 0.2, 0.004) for w in (0.0, 4.0)]
DASHA = [(0.0, 1.0), (4.0, 1 / 9), (4.0, 0.02)]
THUMBS = """lead prox_lead extra exact_diffusion diffusion dgd gossip choco_sgd gradient_tracking
easgd lsgd codistillation"""


CASES: list[tuple[str, str, dict, float]] = [
    *(("gd", rule, {}, 1 / L) for rule in ("nonconvex", "pl")),
    *(("vertical_gd", rule, {}, 1 / L) for rule in ("nonconvex", "pl")),
    ("sgd", "nonconvex", {"batch": 4}, 1 / L),
    *(("sgd", "pl", {"batch": b}, 1 / (L + 2 * 9 / (3 * b))) for b in (1, 4)),
    ("sgd", "pl", {"batch": 4, "m": 1.0}, 1 / L),  # a client's only sample: the full gradient
    *(("heavy_ball", "nonconvex", {"momentum": e}, (1 - e) ** 2 / L) for e in (0.0, 0.4, 0.9)),
    *(
        ("heavy_ball", "pl", {"momentum": e}, linear(e**2 * L**2 / (1 - e) ** 2, 1 - e, 1 - e))
        for e in (0.0, 0.4, 0.99)
    ),
    ("heavy_ball", "released", {"momentum": 0.9}, 1 / L),
    ("momentum_sgd", "nonconvex", {"momentum": 0.9, "batch": 2}, 0.01 / L),
    # DCGD: A = omega L_max/n
    *(
        ("dcgd", "nonconvex", {"omega": w, "T": T}, min(1 / L, 1 / sqrt(max(w, 1e-30) * 2 * L * T)))
        for w in (0.0, 1e-3, 4.0)
        for T in (1, 100, 10_000)
    ),
    *(("dcgd", "pl", {"omega": w}, 1 / (L + 2 * w * MOST / 3)) for w in (0.0, 4.0)),
    ("dcgd", "pl", {"omega": 4.0, "common": True}, 1 / (L + 2 * 4 * MOST)),
    ("dcgd", "pl", {"omega": 4.0, "n": 1}, 1 / (L + 2 * 4 * MOST)),
    # gradient differences
    *(
        ("marina", "nonconvex", {"omega": w, "p": p}, generic(TILDE * marina_root(p, w)))
        for p, w in MARINA
    ),
    *(
        ("marina", "pl", {"omega": w, "p": p}, linear(TILDE**2 * marina_root(p, w) ** 2, p))
        for p, w in MARINA
    ),
    *(
        ("marina", "paper", {"omega": w, "p": p}, 1 / (TILDE * (1 + marina_root(p, w))))
        for p, w in MARINA
    ),
    *(
        ("marina", "released", {"omega": w, "p": p}, 1 / (9 * (1 + marina_root(p, w))))
        for p, w in MARINA
    ),
    ("marina", "nonconvex", {"omega": 4.0, "p": 0.2, "n": 1}, generic(TILDE * 4.0)),
    (
        "marina",
        "nonconvex",
        {"omega": 4.0, "p": 0.2, "common": True},
        generic(TILDE * marina_root(0.2, 4.0, 1)),
    ),
    *(  # PermK at p = 1/n
        ("marina", rule, {"omega": 2.0, "p": 1 / 3, "ab": (1.0, 1.0)}, generic(sqrt(2) * PM))
        for rule in ("nonconvex", "paper")
    ),
    (
        "marina",
        "nonconvex",
        {"omega": 2.0, "p": 0.25, "ab": (0.8, 0.5)},
        generic(sqrt(3 * (0.3 * PLUS**2 + 0.5 * PM**2))),
    ),
    *(
        (
            "vr_marina",
            rule,
            {"omega": w, "p": p, "batch": b},
            1 / (far + vr_root(p, w, b, one, cal)),
        )
        for rule, far, one, cal in (
            ("nonconvex", L, TILDE, LCAL),
            ("paper", TILDE, TILDE, LCAL),
            ("released", 9.0, 9.0, 9.0),
        )
        for p, w in MARINA
        for b in (1, 4)
    ),
    (
        "vr_marina",
        "nonconvex",
        {"omega": 4.0, "p": 0.2, "batch": 2, "common": True},
        generic(sqrt(4 * (4 * (TILDE**2 + 12.5) + 12.5 / 3))),
    ),
    *(
        (
            "pp_marina",
            rule,
            {"omega": w, "p": p, "clients": r},
            1 / (far + TILDE * sqrt((1 - p) * (1 + w) / (p * r))),
        )
        for rule, far in (("nonconvex", L), ("paper", TILDE))
        for p, w in MARINA
        for r in (1, 5)
    ),
    (
        "pp_marina",
        "nonconvex",
        {"omega": 4.0, "p": 0.2, "clients": 2, "common": True},
        generic(TILDE * sqrt(4 * 4.5)),
    ),
    *(
        (
            "diana",
            "nonconvex",
            {"omega": w, "a": 1 / (1 + w)},
            generic(2 * TILDE * (1 + w) * sqrt(w / 3)),
        )
        for w in (0.0, 4.0)
    ),
    ("diana", "nonconvex", {"omega": 4.0, "a": 0.05}, generic(40 * TILDE * sqrt(4 / 3))),
    ("diana", "nonconvex", {"omega": 4.0, "a": 0.2, "common": True}, generic(20 * TILDE)),
    *(
        ("diana", "pl", {"omega": 4.0, "a": a}, linear(4 / a**2 * TILDE**2 * 4 / 3, a / 2))
        for a in (0.2, 1e-4)
    ),
    ("diana", "convex", {"omega": 4.0, "a": 0.05}, 1 / ((1 + 6 * 4 / 3) * MOST)),
    ("diana", "convex", {"omega": 4.0, "a": 0.2, "common": True}, 1 / ((1 + 6 * 4) * MOST)),
    ("diana", "convex", {"omega": 0.0, "a": 1.0}, 1 / MOST),
    *(("diana", "paper", {"omega": w, "a": 1 / (1 + w)}, family(MOST, w, 1)) for w in (0.0, 4.0)),
    *(("diana", "released", {"omega": w, "a": 0.3}, family(9.0, w, 1)) for w in (0.0, 4.0)),
    *(
        (
            "vr_diana",
            rule,
            {"omega": 4.0, "a": 0.2, "batch": b, "p": b / 20},
            family(9.0, 4.0, 20 / b),
        )
        for rule in ("paper", "released")
        for b in (1, 2)
    ),
    *(
        ("vr_diana", "nonconvex", {"omega": w, "a": a, "p": p, "batch": b}, vr_diana(w, a, p, b))
        for w, a in ((0.0, 1.0), (4.0, 0.2), (4.0, 0.05))
        for p in (1.0, 0.1)
        for b in (1, 3)
    ),
    *(  # as recalled
        ("adiana", "paper", {"omega": w, "a": 1 / (1 + w), "p": p}, adiana(w, p))
        for w in (0.0, 0.01, 4.0)
        for p in (1.0, 0.1)
    ),
    *(
        ("dasha", "nonconvex", {"omega": w, "a": a}, generic(TILDE * sqrt(dasha_lag(w, a))))
        for w, a in DASHA
    ),
    ("dasha", "nonconvex", {"omega": 4.0, "a": 1 / 9}, generic(TILDE * sqrt(2 * 4 * 9 / 3))),
    *(
        (
            "dasha",
            "pl",
            {"omega": w, "a": a},
            linear(4 * (w / 3) * (1 + 4 * a * w) / a * TILDE**2, a / 2),
        )
        for w, a in (*DASHA, (4.0, 1e-3))
    ),
    *(  # as recalled
        ("dasha", "paper", {"omega": w, "a": a}, generic(TILDE * sqrt(16 * w * (2 * w + 1) / 3)))
        for w, a in DASHA
    ),
    *(("dasha", "released", {"omega": w, "a": a}, dasha_released(w)) for w, a in DASHA),
    *(
        (
            "dasha_page",
            "nonconvex",
            {"omega": w, "a": a, "p": p, "batch": b},
            dasha_page(w, a, p, b),
        )
        for w, a in DASHA
        for p in (1.0, 0.2)
        for b in (1, 4)
    ),
    *(
        ("byz_dasha_page", "nonconvex", {**given, "kappa": k}, byz_page(w, a, p, b, k))
        for k in (0.0, 0.5)
        for w, a in DASHA
        for p, b in ((1.0, 1), (0.2, 4))
        for given in ({"omega": w, "a": a, "p": p, "batch": b},)
    ),
    *(
        ("byz_vr_marina", rule, {"omega": w, "p": p, "batch": b, "kappa": k}, step)
        for k in (0.0, 0.5)
        for w, p, b in ((4.0, 0.2, 1), (0.0, 0.2, 4), (4.0, 1e-4, 2), (4.0, 1.0, 1))
        for ratio, rho in (byz_marina(w, p, b, k),)
        for rule, step in (("nonconvex", generic(sqrt(ratio))), ("pl", linear(ratio, rho)))
    ),
    *(
        ("dasha_mvr", "nonconvex", {"omega": w, "a": a, "momentum": m, "batch": b}, mvr(w, a, m, b))
        for w, a in DASHA
        for m in (1.0, 0.2)
        for b in (1, 4)
    ),
    *(
        (
            "dasha_sync_mvr",
            "nonconvex",
            {"omega": w, "a": a, "p": p, "batch": b},
            sync_mvr(w, a, p, b),
        )
        for w, a in DASHA
        for p in (1.0, 0.2)
        for b in (1, 4)
    ),
    # features split over clients
    *(
        (
            "vertical_marina",
            "nonconvex",
            {"omega": 4.0, "p": p, **mask},
            generic(sqrt((1 - p) / p * 4 * L * far)),
        )
        for p in (1.0, 0.2)
        for mask, far in (({}, BLK), ({"common": True}, L))
    ),
    (
        "vertical_marina",
        "pl",
        {"omega": 4.0, "p": 1e-4},
        linear((1 - 1e-4) / 1e-4 * 4 * L * BLK, 1e-4),
    ),
    (  # PermK: n A in the place of omega
        "vertical_marina",
        "nonconvex",
        {"omega": 2.0, "p": 0.2, "ab": (1.0, 1.0)},
        generic(sqrt(4 * 3 * L * BLK)),
    ),
    # rules of thumb
    *((name, "nonconvex", {}, (0.25 if name == "dgd" else 0.5) / MOST) for name in THUMBS.split()),
]

AUTO = [  # method, parameter, setting, value
    *(("marina", "p", {"share": s}, s) for s in (0.01, 1.0)),
    ("vertical_marina", "p", {"share": 0.01}, 0.01),
    ("three_pc_v5", "p", {"share": 0.01}, 0.01),
    ("pp_marina", "p", {"share": 0.3, "clients": 2}, 0.3 * 2 / 3),
    ("pp_marina", "p", {"share": 0.9, "clients": 30}, 1.0),
    *(
        (name, "p", {"share": share, "batch": 5, "big": big}, min(share, 5 / ((big or 20) + 5)))
        for name in ("vr_marina", "byz_vr_marina", "dasha_sync_mvr")
        for share in (0.01, 1.0)
        for big in (0, 40)
    ),
    *(("ef21_page", "p", {"batch": b}, b / (20 + b)) for b in (1, 60)),
    *(
        (name, "p", {"batch": b}, b / (20 + b))
        for name in ("dasha_page", "byz_dasha_page")
        for b in (1, 60)
    ),
    *(("vr_diana", "p", {"batch": b}, min(1.0, b / 20)) for b in (1, 5, 60)),
    ("ec_lsvrg", "p", {}, 1 / 20),
    *(
        (name, "alpha", {"omega": w}, 1 / (1 + w))
        for name in ("diana", "vr_diana", "adiana", "lead", "prox_lead")
        for w in (0.0, 4.0)
    ),
    *(
        (name, "alpha", {"omega": w}, 1 / (2 * w + 1))
        for name in ("dasha", "dasha_page", "byz_dasha_page", "dasha_mvr", "dasha_sync_mvr")
        for w in (0.0, 4.0)
    ),
    ("ec_diana", "alpha", {"shift": Held(omega=4.0)}, 1 / 5),
    *(
        ("adiana", "p", {"omega": w}, min(1.0, max(1.0, sqrt(3 / (32 * w)) - 1) / (2 * (1 + w))))
        for w in (0.003, 0.0156, 4.0)
    ),
    ("adiana", "p", {"omega": 0.0}, 1.0),
    ("adiana", "mu", {"constants": replace(C, mu=0.01)}, 0.01),
    *(
        (name, "mix", {"omega": w}, min(1 / (1 + w), 2 / (1 + w) ** 3))
        for name in ("lead", "prox_lead")
        for w in (0.1, 4.0)
    ),
    *(
        (name, "mix", {"alpha": a}, a / (2 - a))
        for name in ("gossip", "choco_sgd")
        for a in (1.0, 0.1)
    ),
    *(("easgd", "alpha", {"beta": 0.9, "n": n}, 0.9 / max(2, n)) for n in (1, 2, 7)),
]
