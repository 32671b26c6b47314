"""Theoretical step sizes: one generic rule, fed by each method's pair (rho, B).

If a method's estimator error obeys ||g^t - grad f(x^t)||^2 <= G^t and
E G^{t+1} <= (1 - rho) G^t + B ||x^{t+1} - x^t||^2, then

    nonconvex:  gamma = 1 / (L + sqrt(B / rho))          (1/T) sum E||grad f||^2 <= 2 Delta0/(gamma T) + G^0/(rho T)
    pl:         gamma = min{1 / (L + sqrt(2 B / rho)), rho / (2 mu)}     E Psi^t <= (1 - gamma mu)^t Psi^0,

Psi = f - f* + (gamma / rho) G: the descent lemma
f(x+) <= f(x) - gamma/2 ||grad f||^2 - (1/(2 gamma) - L/2)||x+ - x||^2 + gamma/2 ||g - grad f||^2
plus a multiple of the recursion. Methods with two error sequences give their step themselves.
``paper`` is the constant of the authors' released code, where it differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from raybench.problems.base import Constants


class NoTheory(Exception):
    """There is no theoretical step size here; the text says why."""


@dataclass(frozen=True)
class Setting:
    """What a step size may depend on: constants, n, d, m, the operators and the method's numbers.

    d is the message dimension, m the samples per client, omega / alpha those of the uplink operator,
    ``down_alpha`` of the downlink one, ``dense_share`` the operator's bits over those of d values.
    ab: (A, B) of operators whose messages depend on each other, as PermK's:
    E||mean Q_i(a_i) - mean a_i||^2 <= A mean||a_i||^2 - B ||mean a_i||^2.
    """

    constants: Constants
    n: int
    d: int
    m: float = 1.0
    omega: float | None = None
    alpha: float | None = None
    down_alpha: float | None = None
    dense_share: float = 1.0
    common_mask: bool = False
    ab: tuple[float, float] | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    operators: Mapping[str, Any] = field(default_factory=dict)  # bound, of the method's parameters

    @property
    def mean_omega(self) -> float:
        """Return omega of the mean of n messages: omega/n; omega where they share their mask; A of (A, B)."""
        if self.ab is not None:
            return self.ab[0]
        return self.need("omega") / (1 if self.common_mask else self.n)

    def need(self, name: str) -> float:
        """Return a constant of the problem or the operator; raises NoTheory where it is unknown."""
        value = getattr(self, name) if hasattr(self, name) else getattr(self.constants, name)
        if value is None:
            raise NoTheory(f"{name} is unknown here")
        return float(value)


@dataclass(frozen=True)
class Rate:
    """A method's recursion: rho, B for the generic rule, or its own steps where it has them."""

    rho: float | None = None
    B: float | None = None
    nonconvex: float | None = None
    pl: float | None = None
    paper: float | None = None


Theory = Callable[[Setting], Rate]


def step_size(theory: Theory | None, setting: Setting, rule: str = "nonconvex") -> float:
    """Return the theoretical step size of a method; rule: ``nonconvex``, ``pl`` or ``paper``.

    Raises NoTheory where the method has none under that rule, or a constant is unknown.
    """
    if theory is None:
        raise NoTheory("the method has none")
    rate = theory(setting)
    own = getattr(rate, rule)
    if own is not None:
        return float(own)
    if rule == "paper" or rate.rho is None or rate.B is None:
        raise NoTheory(f"the method has none under the rule {rule!r}")
    L = setting.need("L")
    if rule == "nonconvex":
        return 1 / (L + math.sqrt(rate.B / rate.rho))
    mu = setting.need("mu")
    if mu <= 0:
        raise NoTheory("mu is not positive: the problem satisfies no PL inequality that we know")
    return min(1 / (L + math.sqrt(2 * rate.B / rate.rho)), rate.rho / (2 * mu))


def contraction(alpha: float) -> tuple[float, float]:
    """Return theta = 1 - sqrt(1 - alpha) and beta = (1 - alpha)/theta of a contractive operator."""
    theta = alpha / (1 + math.sqrt(1 - alpha))  # the same, exact for tiny alpha
    return theta, (1 - alpha) / theta


def gd(k: Setting) -> Rate:
    """Gradient descent: exact estimator; 1/L under both rules."""
    return Rate(rho=1.0, B=0.0, pl=1 / k.need("L"))


def dcgd(k: Setting) -> Rate:
    """DCGD, strongly convex with convex f_i: 1/(L + 2 omega L_max/n), up to a floor.

    With one mask for all clients omega takes the place of omega/n.
    """
    if k.omega is None:
        raise NoTheory("DCGD with a biased operator may diverge for every step size")
    step = 1 / (k.need("L") + 2 * k.mean_omega * k.need("L_max"))
    return Rate(nonconvex=step, pl=step)


def ef14(k: Setting) -> Rate:
    """EF14: 1/(14 (2/alpha) L), Beznosikov et al.; the constant is quoted, not tight."""
    step = k.need("alpha") / (28 * k.need("L"))
    return Rate(nonconvex=step, pl=step)


def ef21(k: Setting) -> Rate:
    """EF21: G = mean ||g_i - grad f_i||^2, rho = theta, B = beta L_tilde^2."""
    theta, beta = contraction(k.need("alpha"))
    return Rate(rho=theta, B=beta * k.need("L_tilde") ** 2)


def ef21_pp(k: Setting) -> Rate:
    """EF21-PP, clients join with probability p: rho = p theta - (1-p) r, r = p theta/(2(1-p)).

    B = (p beta + (1-p)(1 + 1/r)) L_tilde^2; with p = 1 that of EF21.
    """
    theta, beta = contraction(k.need("alpha"))
    p = float(k.numbers["p"])
    if p == 1:
        return ef21(k)
    r = p * theta / (2 * (1 - p))
    B = p * beta + (1 - p) * (1 + 1 / r)
    return Rate(rho=p * theta - (1 - p) * r, B=B * k.need("L_tilde") ** 2)


def ef21_bc(k: Setting) -> Rate:
    """EF21-BC: 1/(L + L_tilde sqrt(2[(1 + 8 b_M/t_M) b_w/t_w + 8 b_M/t_M])), both directions."""
    theta_w, beta_w = contraction(k.need("alpha"))
    theta_m, beta_m = contraction(k.need("down_alpha"))
    server = 8 * beta_m / theta_m
    root = math.sqrt(2 * ((1 + server) * beta_w / theta_w + server))
    return Rate(nonconvex=1 / (k.need("L") + k.need("L_tilde") * root))


def marina(k: Setting) -> Rate:
    """MARINA: rho = p, B = (1-p)(omega/n) L_tilde^2. Paper: L = L_tilde = max_i L_i.

    With one mask for all clients the messages are not independent: omega instead of omega/n. With (A, B)
    B = (1-p)((A - B) L_+^2 + B L_pm^2): PermK with p = 1/n takes 1/(L + sqrt(n - 1) L_pm)
    (Szlendak, Tyurin, Richtarik 2021).
    """
    p = float(k.numbers["p"])
    spread = (1 - p) * k.mean_omega
    paper = 1 / (k.need("L_max") * (1 + math.sqrt(spread / p)))
    noise = spread * k.need("L_tilde") ** 2
    if k.ab is not None and k.constants.L_pm is not None:
        A, B = k.ab
        noise = (1 - p) * ((A - B) * k.need("L_plus") ** 2 + B * k.need("L_pm") ** 2)
    return Rate(rho=p, B=noise, paper=paper)


def vr_marina(k: Setting) -> Rate:
    """VR-MARINA, finite sum: rho = p, B = (1-p)(omega L_tilde^2 + (1 + omega) Lcal^2/b)/n.

    The minibatches are independent even where the mask is shared: then
    B = (1-p)(omega (L_tilde^2 + Lcal^2/b) + Lcal^2/(b n)). Paper: max(max_i L_i, Lcal) for L, L_tilde
    and Lcal.
    """
    p, b, omega = float(k.numbers["p"]), float(k.numbers["batch"]), k.mean_omega
    samples = k.need("L_samples") ** 2 / b
    one = max(k.need("L_max"), k.need("L_samples"))
    paper = 1 / (one * (1 + math.sqrt((1 - p) / p * (omega * (1 + 1 / b) + 1 / (b * k.n)))))
    far = k.need("L_tilde") ** 2
    return Rate(rho=p, B=(1 - p) * (omega * (far + samples) + samples / k.n), paper=paper)


def diana(k: Setting) -> Rate:
    """DIANA, a <= 1/(1+omega): rho = a/2, B = (omega/n)(2/a) L_tilde^2.

    Nonconvex with a = 1/(1+omega): 1/(L + 2 L_tilde (1+omega) sqrt(omega/n)). Paper: the MARINA
    authors' baseline, 1/(10 L sqrt(1 + omega/n)(2 + omega)).
    """
    a, omega = float(k.numbers["alpha"]), k.need("omega")
    if not 0 < a <= (1 + 1e-12) / (1 + omega):
        raise NoTheory(f"DIANA needs 0 < alpha <= 1/(1 + omega) = {1 / (1 + omega):.3g}")
    paper = 1 / (10 * k.need("L_max") * math.sqrt(1 + omega / k.n) * (2 + omega))
    return Rate(rho=a / 2, B=k.mean_omega * 2 / a * k.need("L_tilde") ** 2, paper=paper)


def vertical_marina(k: Setting) -> Rate:
    """MARINA on products: G = 4||A||^2 ||v - Ax||^2, rho = p, B = (1-p) omega L L_blk."""
    p, omega = float(k.numbers["p"]), k.need("omega")
    block = k.constants.extra.get("L_blk")
    if block is None:
        raise NoTheory("the problem has no feature blocks")
    L = k.need("L")
    widest = L if k.common_mask else block
    return Rate(rho=p, B=(1 - p) * omega * L * widest)


def prox_lead(k: Setting) -> Rate:
    """Prox-LEAD: half of 1/max_i L_i, the step it is run with; the compression does not enter."""
    step = 0.5 / k.need("L_max")
    return Rate(nonconvex=step, pl=step)


def sync_probability(k: Setting) -> float:
    """Return p that makes dense rounds cost what compressed ones do: K/d for Rand-K.

    Raises NoTheory where messages are empty: without dense rounds nothing would ever be learned.
    """
    if k.dense_share <= 0:
        raise NoTheory("the operator's messages are empty; give a number")
    return k.dense_share


def vr_sync_probability(k: Setting) -> float:
    """Return min{bits(Q)/bits(dense), b/(m + b)}: messages and gradients balanced.

    m: the samples of a dense round, all of a client's or, online, ``big``.
    """
    b = float(k.numbers["batch"])
    return min(sync_probability(k), b / (float(k.numbers.get("big") or k.m) + b))


def shift_rate(k: Setting) -> float:
    """Return a = 1/(1 + omega), the largest rate at which shifts may learn."""
    return 1 / (1 + k.need("omega"))
