"""A problem of which all constants are known, and the generic rule by hand: what tests of step sizes share."""

from __future__ import annotations

import math
from dataclasses import replace

from raybench import theory
from raybench.algorithms.by_speed import AIMED
from raybench.problems.base import Constants, Fact
from raybench.theory import Setting

sqrt = math.sqrt

L, EACH, PLUS, PM, MU, CURVED, LCAL, SINGLE, VARIANCE, BLK = (
    2.2,  # not 2: there L^2 is 2 L
    (1.0, 2.0, 6.0),
    3.5,
    1.5,
    0.1,
    0.03,
    5.0,
    (4.0, 7.0, 9.0),
    12.0,
    0.5,
)
TILDE, MEAN, MOST = sqrt((1 + 4 + 36) / 3), 3.0, 6.0
C = Constants(
    L=L,
    L_i=EACH,
    L_plus=PLUS,
    L_pm=PM,
    mu=MU,
    mu_i=(0.2, CURVED, 0.07),
    L_samples=LCAL,
    L_sample_i=SINGLE,
    sample_variance=VARIANCE,
    facts=frozenset(Fact),
    extra={"L_blk": BLK},
)


class Held:
    """A compressor of a method's parameter: its constants are all that a step sees."""

    def __init__(self, omega=None, alpha=None):
        self.omega, self.alpha = omega, alpha


def setting(n=3, m=20.0, T=1000, constants=C, nonsmooth=False, steady=True, share=1.0, **given):
    """A ``Setting``: omega, alpha, what begins with down_, common, ab and first are the compressors'; share is the cost of a
    message over a dense one's; all else are the method's numbers.
    """
    facts = ("omega", "alpha", "down_alpha", "down_omega", "down_share", "down_common", "down_ab")
    operator = {k: given.pop(k) for k in (*facts, "ab", "kappa") if k in given}
    mask = given.pop("common", False) or operator.get("ab") is not None
    own = {k: given.pop(k) for k in ("first", "shift") if k in given}
    numbers = {"a": "alpha"}
    return Setting(
        constants,
        n=n,
        d=10,
        m=m,
        common_mask=mask,
        numbers={numbers.get(k, k): v for k, v in given.items()},
        compressors=own,
        dense_share=share,
        nonsmooth=nonsmooth,
        rounds=T,
        constant_step=steady,
        **operator,
    )


def q(alpha):
    """sqrt(beta/theta) = sqrt(1 - alpha)/(1 - sqrt(1 - alpha)), 0 for an exact compressor."""
    return sqrt(1 - alpha) / (1 - sqrt(1 - alpha))


def generic(root, scale=1.0):
    return scale / (L + root)


def linear(ratio, rho, scale=1.0):
    """The generic rule for PL, ratio = B/rho."""
    return scale * min(1 / (L + sqrt(2 * ratio)), rho / (2 * MU))


def shrink(alpha):
    return 1 - sqrt(1 - alpha)


# What breaks a theorem --------------------------------------------------------------------------

EASY = {  # numbers with which every method has a step
    "omega": 4.0,
    "alpha": 0.5,
    "down_alpha": 0.5,
    "down_omega": 2.0,
    "senders": 2,
    "chi": 0.5,
    "rho": 0.2,
    "lam": 0.005,
    "nu": 0.5,
    "p": 0.1,
    "batch": 2,
    "a": 0.05,
    "momentum": 0.5,
    "eta": 0.5,
    "z": 1.0,
    "clients": 2,
    "first": Held(omega=1.0, alpha=0.5),
    "kappa": 0.5,
}
BREAKS = {  # assumption: a change that breaks it and no other, as far as that is possible
    theory.SMOOTH: {"nonsmooth": True},
    theory.PROXIMABLE: {"nonsmooth": True, "without": Fact.CONVEX_PENALTY},
    theory.PL: {"constants": replace(C, mu=None)},
    theory.STRONGLY_CONVEX: {"without": Fact.STRONGLY_CONVEX},
    theory.STRONGLY_CONVEX_CLIENTS: {"constants": replace(C, mu_i=())},
    theory.CONVEX_CLIENTS: {"without": Fact.CONVEX_CLIENTS},
    theory.CONVEX_SAMPLES: {"without": Fact.CONVEX_SAMPLES},
    theory.BOUNDED_CLIENTS: {"without": Fact.BOUNDED_CLIENTS},
    theory.BOUNDED_NOISE: {"constants": replace(C, sample_variance=None)},
    theory.BOUNDED_ONLINE: {"constants": replace(C, sample_variance=None), "big": 5},
    theory.FULL: {"batch": 2},
    theory.CONTRACTIVE: {"alpha": None},
    theory.UNBIASED: {"omega": None},
    theory.EITHER: {"omega": None, "alpha": None},
    theory.DOWN_UNBIASED: {"down_omega": None},
    theory.INDEPENDENT: {"common": True},
    theory.CONSTANT_STEP: {"steady": False},
    theory.SAME_CLIENTS: {"without": Fact.SAME_CLIENTS},
    AIMED: {"batch": 2, "noise": 0.0},
}


def easy(**changes) -> Setting:
    given = {**EASY, **changes}
    lost = given.pop("without", None)
    constants = given.pop("constants", C)
    if lost is not None:
        constants = replace(constants, facts=constants.facts - {lost})
    return setting(constants=constants, **given)
