"""A problem of which all constants are known, and the generic rule by hand: what tests of step sizes share."""

from __future__ import annotations

import math

from raybench.problems.base import Constants, Fact
from raybench.theory import Setting

sqrt = math.sqrt

L, EACH, PLUS, PM, MU, LCAL, SINGLE, VARIANCE, BLK = (
    2.2,  # not 2: there L^2 is 2 L
    (1.0, 2.0, 6.0),
    3.5,
    1.5,
    0.1,
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
    L_samples=LCAL,
    L_sample_i=SINGLE,
    sample_variance=VARIANCE,
    facts=frozenset(Fact),
    extra={"L_blk": BLK},
)


class Held:
    """An operator of a method's parameter: its constants are all that a step sees."""

    def __init__(self, omega=None, alpha=None):
        self.omega, self.alpha = omega, alpha


def setting(n=3, m=20.0, T=1000, constants=C, nonsmooth=False, steady=True, share=1.0, **given):
    """A ``Setting``: omega, alpha, down_alpha, common, ab and first are the operators'; share is the cost of a
    message over a dense one's; all else are the method's numbers.
    """
    operator = {k: given.pop(k) for k in ("omega", "alpha", "down_alpha", "ab") if k in given}
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
        operators=own,
        dense_share=share,
        nonsmooth=nonsmooth,
        rounds=T,
        constant_step=steady,
        **operator,
    )


def q(alpha):
    """sqrt(beta/theta) = sqrt(1 - alpha)/(1 - sqrt(1 - alpha)), 0 for an exact operator."""
    return sqrt(1 - alpha) / (1 - sqrt(1 - alpha))


def generic(root, scale=1.0):
    return scale / (L + root)


def linear(ratio, rho, scale=1.0):
    """The generic rule for PL, ratio = B/rho."""
    return scale * min(1 / (L + sqrt(2 * ratio)), rho / (2 * MU))


def shrink(alpha):
    return 1 - sqrt(1 - alpha)
