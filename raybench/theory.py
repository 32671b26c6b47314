"""Theoretical step sizes and what they promise: the generic rule, theorems with their assumptions, conventions.

A method's own constants stand beside the method.

If a method's estimator error obeys ||g^t - grad f(x^t)||^2 <= G^t and
E G^{t+1} <= (1 - rho) G^t + B ||x^{t+1} - x^t||^2 + N, then

    nonconvex:  gamma = 1 / (L + sqrt(B / rho))
                (1/T) sum E||grad f||^2 <= 2 Delta0/(gamma T) + G^0/(rho T) + N/rho
    pl:         gamma = min{1 / (L + sqrt(2 B / rho)), rho / (2 mu)}
                E Psi^t <= (1 - gamma mu)^t Psi^0 + N/(rho mu),   Psi = f - f* + (gamma / rho) G.

Proof: the descent lemma f(x+) <= f(x) - Q(x) - (1/(2 gamma) - L/2)||x+ - x||^2 + gamma/2 ||g - grad f(x)||^2
with Q(x) = gamma/2 ||grad f(x)||^2, plus gamma/(2 rho) (pl: gamma/rho) times the recursion.

It holds with a convex nonsmooth part psi as well, x+ = prox(x - gamma g), F = f + psi in place of f
and the gradient mapping M(x) = (x - x^)/gamma, x^ = prox(x - gamma grad f(x)), in place of grad f.
For with z = x^ in the prox inequality of x+, psi(x+) + <g, x+ - z> + (||x+ - x||^2 + ||z - x+||^2)/(2 gamma)
<= psi(z) + ||z - x||^2/(2 gamma), and Q(x) = psi(x) - psi(x^) - <grad f, x^ - x> - ||x^ - x||^2/(2 gamma),
adding up and <grad f - g, x+ - x^> <= gamma/2 ||g - grad f||^2 + ||x+ - x^||^2/(2 gamma) give the same
lemma. Q >= gamma/2 ||M||^2 by the prox inequality of x^; and if f is mu-strongly convex and
gamma mu <= 1, Q >= gamma mu (F - F*) by looking at x + gamma mu (x* - x) in the minimum that Q is.

Steps that follow a schedule with factors <= 1 change nothing but the weights: sum_t gamma_t E||grad f||^2
and prod (1 - gamma_t mu). Source: Karimi, Nutini, Schmidt 2016 (PL and proximal PL); Richtarik,
Sokolov, Fatkhullin 2021 (EF21) for the shape of the proof; the proximal lemma is derived here.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from html import unescape
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from raybench.core.cells import State
from raybench.problems.base import Constants
from raybench.problems.base import Fact as Fact

# What a step size may depend on -----------------------------------------------------------------


class NoTheory(Exception):
    """There is no theoretical step size here; the text says why."""


@dataclass(frozen=True)
class Setting:
    """A problem, compressors and a method's numbers, as far as step sizes depend on them.

    d is the message dimension, m the samples per client, omega / alpha those of the uplink compressor, ``dense_share``
    the compressor's bits over those of d values. common_mask: the clients' messages depend on each other. ab: (A, B) of
    such compressors, as PermK's: E||mean Q_i(a_i) - mean a_i||^2 <= A mean||a_i||^2 - B ||mean a_i||^2. ``down_``: the
    same of the downlink compressor. numbers, compressors: the method's parameters, and those of them that are
    compressors, bound. nonsmooth: the problem has a nonsmooth part. rounds: the horizon T. constant_step: no schedule.
    kappa: that of the server's rule, 0 of the mean; n and constants are then those of the honest clients.
    """

    constants: Constants
    n: int
    d: int
    m: float = 1.0
    omega: float | None = None
    alpha: float | None = None
    down_alpha: float | None = None
    down_omega: float | None = None
    dense_share: float = 1.0
    common_mask: bool = False
    ab: tuple[float, float] | None = None
    down_share: float = 1.0
    down_common: bool = False
    down_ab: tuple[float, float] | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    compressors: Mapping[str, object] = field(default_factory=dict)
    nonsmooth: bool = False
    rounds: int = 1000
    constant_step: bool = True
    kappa: float | None = None

    @property
    def mean_omega(self) -> float:
        """Return omega of the mean of n messages: omega/n; omega where they share their mask; A of (A, B)."""
        if self.ab is not None:
            return self.ab[0]
        return self.need("omega") / (1 if self.common_mask else self.n)

    @property
    def down_theta(self) -> float:
        """Return theta of E||mean Q_i(a) - a||^2 <= theta ||a||^2 for one message down to each client: omega/n; A - B of
        (A, B); omega where they share their mask.
        """
        if self.down_ab is not None:
            return self.down_ab[0] - self.down_ab[1]
        return self.need("down_omega") / (1 if self.down_common else self.n)

    @property
    def minibatch(self) -> int | None:
        """Return the size of the method's minibatches, None where it takes full gradients.

        A client with a single sample has no other gradient than the full one.
        """
        batch = self.numbers.get("batch")
        return batch if isinstance(batch, int) and self.m > 1 else None

    @property
    def noise(self) -> float | None:
        """Return a bound of the variance of a client's minibatch gradient for all x: 0 for full gradients.

        None where it is unknown, as on least squares, where it grows with x.
        """
        if self.minibatch is None:
            return 0.0
        variance = self.constants.sample_variance
        return None if variance is None else variance / self.minibatch

    def states(self, fact: Fact) -> bool:
        """Return whether the problem states that fact."""
        return fact in self.constants.facts

    def need(self, name: str) -> float:
        """Return a constant of the problem or the compressor; raises NoTheory where it is unknown."""
        value = getattr(self if hasattr(self, name) else self.constants, name)
        if value is None:
            raise NoTheory(f"{name} is unknown here")
        return float(value)

    def number(self, name: str) -> float:
        """Return a parameter of the method; raises NoTheory where it has none of that name."""
        if name not in self.numbers:
            raise NoTheory(f"the step depends on {name}, which this method does not have")
        return float(self.numbers[name])

    def compressor(self, name: str) -> Any:
        """Return a compressor of the method's parameters, bound; raises NoTheory where it has none of that name."""
        if name not in self.compressors:
            raise NoTheory(
                f"the step depends on the compressor {name}, which this method does not have"
            )
        return self.compressors[name]


def contraction(alpha: float) -> tuple[float, float]:
    """Return theta = 1 - sqrt(1 - alpha) and beta = (1 - alpha)/theta of a contractive compressor."""
    theta = alpha / (1 + math.sqrt(1 - alpha))  # 1 - sqrt(1 - alpha), exact for tiny alpha too
    return theta, (1 - alpha) / theta


# What theorems take for granted, and whether it holds in a setting ------------------------------
#
# A fact that a problem does not state is not assumed. Each assumption says in words what it demands
# and, for a cell that is skipped, what is the matter where it does not hold.


@dataclass(frozen=True)
class Assumption:
    """An assumption of a theorem: its text, why it may fail, and the test."""

    text: str
    otherwise: str
    holds: Callable[[Setting], bool]


def _stated(fact: Fact) -> Callable[[Setting], bool]:
    return lambda k: k.states(fact)


def _positive(k: Setting) -> bool:
    return (k.constants.mu or 0.0) > 0


# The problem ---------------------------------------------------------------------------------

SMOOTH = Assumption(
    "f has no nonsmooth part", "the problem has a nonsmooth part", lambda k: not k.nonsmooth
)
PROXIMABLE = Assumption(
    "the nonsmooth part of f, if it has one, is convex",
    "nothing says that the problem's nonsmooth part is convex",
    lambda k: not k.nonsmooth or k.states(Fact.CONVEX_PENALTY),
)
PL = Assumption(
    "f satisfies the PL inequality with a known mu > 0; with a nonsmooth part it is mu-strongly convex",
    "no such mu is known",
    lambda k: _positive(k) and (not k.nonsmooth or k.states(Fact.STRONGLY_CONVEX)),
)
STRONGLY_CONVEX = Assumption(
    "f is strongly convex with a known mu > 0",
    "no such mu is known",
    lambda k: _positive(k) and k.states(Fact.STRONGLY_CONVEX),
)
CONVEX_CLIENTS = Assumption(
    "every f_i is convex", "some f_i may not be", _stated(Fact.CONVEX_CLIENTS)
)
STRONGLY_CONVEX_CLIENTS = Assumption(
    "every f_i is strongly convex with a known mu > 0",
    "no such mu is known",
    lambda k: (k.constants.mu_min or 0.0) > 0,
)
CONVEX_SAMPLES = Assumption(
    "the loss of every sample is convex", "some may not be", _stated(Fact.CONVEX_SAMPLES)
)
BOUNDED_CLIENTS = Assumption(
    "every f_i is bounded below", "some f_i may not be", _stated(Fact.BOUNDED_CLIENTS)
)
SAME_CLIENTS = Assumption(
    "all clients have the same f",
    "clients have functions of their own",
    lambda k: k.n == 1 or k.states(Fact.SAME_CLIENTS),
)
BOUNDED_NOISE = Assumption(
    "the variance of minibatch gradients is bounded for all x",
    "no bound is known (of least squares it grows with x)",
    lambda k: k.noise is not None,
)

BOUNDED_ONLINE = Assumption(
    "dense rounds take all samples, or the variance of their minibatches is bounded for all x",
    "they are minibatches without a known bound",
    lambda k: not k.numbers.get("big") or k.noise is not None,
)

FULL = Assumption(
    "every round takes all samples",
    "the method takes minibatches",
    lambda k: not isinstance(k.numbers.get("batch"), int),
)

# The compressor and the run ----------------------------------------------------------------------

CONTRACTIVE = Assumption(
    "the compressor is contractive", "it is not", lambda k: k.alpha is not None and k.alpha > 0
)
UNBIASED = Assumption("the compressor is unbiased", "it is not", lambda k: k.omega is not None)
EITHER = Assumption(
    "the compressor is unbiased or contractive",
    "it is neither",
    lambda k: UNBIASED.holds(k) or CONTRACTIVE.holds(k),
)
DOWN_UNBIASED = Assumption(
    "the downlink compressor is unbiased", "it is not", lambda k: k.down_omega is not None
)
INDEPENDENT = Assumption(
    "the clients' messages are independent of each other",
    "they share their random numbers",
    lambda k: not k.common_mask and k.ab is None,
)
CONSTANT_STEP = Assumption(
    "the step size is constant", "it follows a schedule", lambda k: k.constant_step
)

# The generic rule, theorems and conventions ------------------------------------------------------

NONCONVEX = "(1/T) sum_{t<T} E||grad f(x^t)||^2 <= 2 Delta0/(gamma T) + G^0/(rho T)"
LINEAR = "E Psi^t <= (1 - gamma mu)^t Psi^0,  Psi = f - f* + (gamma/rho) G"


Vectors: TypeAlias = Callable[[State, State, Tensor], Tensor]
"""Vectors (B, m, d) of a method's s, c and grad f_i (B, n, d) at the recorded point; x* is 0."""


@dataclass(frozen=True)
class Rate:
    """A method's recursion: rho and B of the generic rule; ``scale`` multiplies its step.

    scale: the method steps along g/scale, as heavy balls do, whose v is g/(1 - eta). G: vectors whose mean square is
    G^t after t rounds, for ``raybench certify``; None where the error of the first g is all that is known of G^0.
    """

    rho: float
    B: float
    scale: float = 1.0
    G: Vectors | None = field(default=None, compare=False)

    def nonconvex(self, k: Setting) -> float:
        """Return scale/(L + sqrt(B/rho))."""
        return self.scale / (k.need("L") + math.sqrt(self.B / self.rho))

    def pl(self, k: Setting) -> float:
        """Return scale min{1/(L + sqrt(2B/rho)), rho/(2 mu)}."""
        fast = 1 / (k.need("L") + math.sqrt(2 * self.B / self.rho))
        return self.scale * min(fast, self.rho / (2 * k.need("mu")))


def together(*parts: tuple[float, Tensor]) -> Tensor:
    """Return vectors whose mean square is the weighted sum of the mean squares of those given, (B, m, d) or (B, d)."""
    groups = [(weight, v if v.ndim == 3 else v[:, None]) for weight, v in parts]
    count = sum(v.shape[1] for _, v in groups)
    return torch.cat([math.sqrt(weight * count / v.shape[1]) * v for weight, v in groups], 1)


@dataclass(frozen=True)
class Inequality:
    """What a theorem says of a step, in numbers that ``raybench certify`` can hold against the worst case.

    V = f - inf f, without it where not ``gap``, plus the mean square of ``vectors``. Then mean_{t<T} ||grad f(x^t)||^2
    <= over V^0/T, or V^t <= factor^t V^0. vectors: None where only the first g tells G^0, in which ``weight`` times
    ||scale g^0 - grad f(x^0)||^2 takes their place. low: inf f is the mean of the inf f_i. free: client state that
    V^t <= factor^t V^0 leaves free at the start.
    """

    vectors: Vectors | None = None
    gap: bool = True
    over: float | None = None
    factor: float | None = None
    weight: float = 0.0
    scale: float = 1.0
    low: bool = False
    free: tuple[str, ...] = ()


Formula = Callable[[Setting], Rate | float]
Pair = Callable[[Setting], tuple[float, float]]


@dataclass(frozen=True)
class Theorem:
    """A step size for which something is proved: the largest one for which it is proved here.

    formula: the step, or the recursion that gives it; its docstring says where it comes from.
    promises: what follows. assumes: under what. source: who proved it. linear: the recursion's step
    of the rule ``pl``, not of ``nonconvex``. recalled: constants quoted from memory, neither proved
    nor checked here. says: the promise at a step gamma in numbers, of a theorem without a recursion.
    """

    formula: Formula
    promises: str
    assumes: tuple[Assumption, ...]
    source: str
    linear: bool = False
    recalled: bool = False
    says: Callable[[Setting, float], Inequality] | None = None

    def inequality(self, k: Setting, gamma: float) -> Inequality | None:
        """Return what is promised of a step gamma, that of the theorem or a smaller one; None where only words say it."""
        if self.says is not None:
            return self.says(k, gamma)
        rate = self.formula(k)
        if not isinstance(rate, Rate):
            return None
        step, G = gamma / rate.scale, rate.G
        weight = step / rate.rho if self.linear else step / (2 * rate.rho)
        vectors = None if G is None else lambda s, c, grad: math.sqrt(weight) * G(s, c, grad)
        over, factor = (None, 1 - step * k.need("mu")) if self.linear else (2 / step, None)
        return Inequality(vectors, True, over, factor, weight, rate.scale)

    def recursive(self, k: Setting) -> bool:
        """Return whether the step comes from a recursion by the generic rule."""
        return isinstance(self.formula(k), Rate)

    def failing(self, k: Setting) -> list[Assumption]:
        """Return the assumptions that do not hold in a setting."""
        return [assumption for assumption in self.assumes if not assumption.holds(k)]

    @property
    def kind(self) -> str:
        """Return ``theorem``."""
        return "theorem"

    def number(self, k: Setting) -> float:
        """Return the step size whether the theorem applies or not; raises NoTheory for unknown constants."""
        return _number(self.formula(k), k, self.linear)

    def step(self, k: Setting) -> float:
        """Return the step size; raises NoTheory where an assumption does not hold."""
        for assumption in self.failing(k):
            raise NoTheory(
                f"the theorem assumes that {assumption.text}, and here {assumption.otherwise}"
            )
        return self.number(k)


@dataclass(frozen=True)
class Convention:
    """A step size of which nothing is proved: a rule of thumb, or what the authors' released code takes."""

    formula: Formula
    source: str
    kind: Literal["rule of thumb", "released code"] = "released code"

    def number(self, k: Setting) -> float:
        """Return the step size; raises NoTheory where a constant is unknown."""
        return _number(self.formula(k), k, False)

    step = number  # a convention assumes nothing, so it is always the same number


def _number(rate: Rate | float, k: Setting, linear: bool) -> float:
    if isinstance(rate, Rate):
        return rate.pl(k) if linear else rate.nonconvex(k)
    return float(rate)


@dataclass(frozen=True)
class StepSizes:
    """A method's step sizes, by the rule that a sweep asks for.

    nonconvex: for any smooth f, the default. pl: linear rates, for PL or strongly convex f. convex: where every
    f_i is convex. arithmetic: as nonconvex, with the arithmetic mean of the L_i in place of the quadratic one. paper:
    the paper's theorem with the paper's constants. released: what the authors' released code takes.
    """

    nonconvex: Theorem | Convention | None = None
    pl: Theorem | Convention | None = None
    convex: Theorem | Convention | None = None
    arithmetic: Theorem | Convention | None = None
    tight: Theorem | Convention | None = None
    paper: Theorem | Convention | None = None
    released: Theorem | Convention | None = None

    def with_rules(self, **rules: Theorem | Convention | None) -> StepSizes:
        """Return the same with other entries for some rules; None takes one out."""
        return replace(self, **rules)

    def under(self, rule: str) -> Theorem | Convention | None:
        """Return what there is under a rule, None for nothing."""
        theorem: Theorem | Convention | None = getattr(self, rule)
        return theorem

    def step(self, k: Setting, rule: str) -> float:
        """Return the step size under a rule; raises NoTheory where there is none here."""
        return self._known(rule).step(k)

    def lent(self, k: Setting, rule: str) -> float:
        """Return the number that another method borrows: the formula's, whatever its theorem assumes."""
        return self._known(rule).number(k)

    def kind(self, rule: str) -> str:
        """Return what a step rests on: ``theorem``, ``rule of thumb`` or ``released code``."""
        return self._known(rule).kind

    def _known(self, rule: str) -> Theorem | Convention:
        theorem = self.under(rule)
        if theorem is None:
            raise NoTheory(f"the method has none under the rule {rule!r}")
        return theorem

    def working(self, k: Setting) -> list[str]:
        """Return the rules under which there is a step here."""
        good = []
        for rule in RULES:
            try:
                self.step(k, rule)
            except NoTheory:
                continue
            good.append(rule)
        return good


RULES = tuple(field.name for field in fields(StepSizes))
Theory = StepSizes | Formula
"""What a method may say: its step sizes, or, as a short form for plug-ins, its recursion."""


def of(theory: Theory | None) -> StepSizes | None:
    """Return the step sizes a method declares; a bare function of a Setting is a recursion or a step."""
    if theory is None or isinstance(theory, StepSizes):
        return theory
    return recursive(theory, "the plug-in's own")


def step_size(theory: Theory | None, setting: Setting, rule: str = "nonconvex") -> float:
    """Return the theoretical step size of a method under a rule.

    Raises NoTheory where the method has none under that rule, an assumption of its theorem does not
    hold in the setting, or a constant is unknown.
    """
    steps = of(theory)
    if steps is None:
        raise NoTheory("the method has none")
    return steps.step(setting, rule)


def recursive(
    formula: Formula,
    source: str,
    *assumes: Assumption,
    floor: tuple[str, str] = ("", ""),
    convex: Theorem | None = None,
    arithmetic: Theorem | None = None,
    paper: Theorem | None = None,
    as_in_paper: bool = False,
    released: Convention | None = None,
) -> StepSizes:
    """Return the step sizes that a recursion gives by the generic rule, with their two theorems.

    assumes: beside smoothness and a convex nonsmooth part. floor: what noise adds to either bound.
    as_in_paper: the paper states the very step of ``nonconvex``.
    """
    basic = (PROXIMABLE, *assumes)
    nonconvex = Theorem(formula, _plus(NONCONVEX, floor[0]), basic, source)
    linear = Theorem(formula, _plus(LINEAR, floor[1]), (*basic, PL), source, linear=True)
    paper = nonconvex if as_in_paper else paper
    return StepSizes(nonconvex, linear, convex, arithmetic, paper=paper, released=released)


def _plus(text: str, floor: str) -> str:
    left, comma, rest = text.partition(",  ")
    return f"{left} + {floor}{comma}{rest}" if floor else text


def thumb(formula: Formula) -> StepSizes:
    """Return the step sizes of a method that has a rule of thumb and no theorem."""
    return StepSizes(nonconvex=Convention(formula, "raybench", "rule of thumb"))


def explained(step: Theorem | Convention) -> str:
    """Return the text of a step's formula: where it comes from."""
    return inspect.getdoc(step.formula) or ""


GREEK = "gamma rho mu sigma omega theta beta delta eta Psi Phi"
SIGNS = {"grad": "∇", "sum": "Σ", "Delta0": "Δ₀"} | {n: unescape(f"&{n};") for n in GREEK.split()}
MARKS = {"||": "‖", "<=": "≤", "∇ ": "∇", "^2": "²", "^0": "⁰", "^t": "ᵗ", " - ": " − "}


def pretty(formula: str) -> str:
    """Return a formula in signs: ``E||grad f(x^t)||^2`` is ``E‖∇f(xᵗ)‖²``."""
    words = rf"(?<![A-Za-z])({'|'.join(SIGNS)})(?![A-Za-z])"
    text = re.sub(words, lambda m: SIGNS[m[0]], formula)
    for plain, sign in MARKS.items():
        text = text.replace(plain, sign)
    return text


def in_numbers(
    backing: Theorem | Convention, step: float, k: Setting, start: float | None
) -> list[str]:
    """Return the step with its factors and, for the generic rule, the inequality with its numbers."""
    rate = backing.formula(k)
    if not isinstance(rate, Rate) or not isinstance(backing, Theorem):
        return [f"γ = {step:.6g}"]
    times = "" if rate.scale == 1 else f"{rate.scale:.4g} · "
    lines, form = [], "1/L"
    if rate.B:
        numbers = {"ρ": rate.rho, "B": rate.B, "√(B/ρ)": math.sqrt(rate.B / rate.rho)}
        said = ", ".join(f"{name} = {value:.6g}" for name, value in numbers.items())
        lines.append(f"E G⁺ ≤ (1 − ρ) G + B ‖x⁺ − x‖², where ‖g − ∇f‖² ≤ G: {said}")
        form = "1/(L + √(B/ρ))"
    if backing.linear:
        form = "min{1/(L + √(2B/ρ)), ρ/(2μ)}"
    lines += [f"γ = {times}{form} = {step:.6g}", pretty(backing.promises)]
    if backing.linear or start is not None:
        lines.append(_in_words(backing, rate, step / rate.scale, k, start or 0.0))
    return lines


def _in_words(theorem: Theorem, rate: Rate, step: float, k: Setting, start: float) -> str:
    """Return what the inequality of the generic rule says with this problem's numbers."""
    exact = "G^0" not in theorem.promises
    noisy = "sigma" in theorem.promises and k.noise != 0
    beside = " beside the floor of the noise" if noisy else ""
    if theorem.linear:
        shrink = step * k.need("mu")
        rounds = math.ceil(math.log(10) / -math.log1p(-shrink)) if shrink < 1 else 1
        tenth = "a round" if rounds == 1 else f"{rounds:,} rounds"
        return f"Here γμ = {shrink:.4g}: the bound falls tenfold every {tenth}{beside}."
    first = 2 * start / step
    sums = f"{first:.4g}" if exact else f"({first:.4g} + {1 / rate.rho:.4g} G⁰)"
    return (
        f"Here Δ₀ ≤ {start:.4g}: over T rounds the mean of ‖∇f‖² is at most {sums}/T{beside}, "
        f"below 1e-6 from T = {1e6 * first:.2g} on{'' if exact else ' if G⁰ = 0'}."
    )


# Expected smoothness -----------------------------------------------------------------------------
#
# Unbiased estimates whose variance f itself bounds: DCGD, and SGD on samples.
#
# Let E g = grad f(x) and E||g - grad f(x)||^2 <= 2 A (f(x) - f_low), f_low <= f (Khaled, Richtarik 2020).
#
# Nonconvex. E f(x+) - f_low <= (1 + L A gamma^2)(f(x) - f_low) - gamma (1 - L gamma/2) ||grad f(x)||^2. Weigh
# round t by (1 + L A gamma^2)^-(t+1), which is at least 1/e while L A gamma^2 T <= 1, and add up.
#
# Strongly convex f, nonsmooth part allowed; E||g - grad f(x*)||^2 <= 2 (L + 2A) D + 2 S, D = f(x) - f(x*) -
# <grad f(x*), x - x*>, as where the parts of g are convex: then with gamma <= 1/(L + 2A)
# E||x+ - x*||^2 <= (1 - gamma mu)||x - x*||^2 + 2 gamma^2 S, as the prox draws no points apart and
# <grad f(x) - grad f(x*), x - x*> >= D + mu/2 ||x - x*||^2.

EXPECTED_NONCONVEX = "(1/T) sum_{t<T} E||grad f(x^t)||^2 <= 2 e (f(x^0) - f_low)/(gamma T)"
EXPECTED_STRONG = "E||x^t - x*||^2 <= (1 - gamma mu)^t ||x^0 - x*||^2 + 2 gamma S/mu"


def expected_nonconvex(k: Setting, A: float) -> float:
    """Return min{1/L, 1/sqrt(L A T)}, T the rounds."""
    L = k.need("L")
    return min(1 / L, 1 / math.sqrt(L * A * k.rounds)) if A > 0 else 1 / L


def expected_strong(k: Setting, A: float) -> float:
    """Return 1/(L + 2 A)."""
    return 1 / (k.need("L") + 2 * A)
