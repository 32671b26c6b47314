"""Step sizes and what they promise: the generic rule, theorems with their assumptions, conventions.

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
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal

from raybench.theory.assumptions import PL, PROXIMABLE, Assumption
from raybench.theory.setting import NoTheory, Setting

NONCONVEX = "(1/T) sum_{t<T} E||grad f(x^t)||^2 <= 2 Delta0/(gamma T) + G^0/(rho T)"
LINEAR = "E Psi^t <= (1 - gamma mu)^t Psi^0,  Psi = f - f* + (gamma/rho) G"


@dataclass(frozen=True)
class Rate:
    """A method's recursion: rho and B of the generic rule; ``scale`` multiplies its step.

    scale: the method steps along g/scale, as heavy balls do, whose v is g/(1 - eta).
    """

    rho: float
    B: float
    scale: float = 1.0

    def nonconvex(self, k: Setting) -> float:
        """Return scale/(L + sqrt(B/rho))."""
        return self.scale / (k.need("L") + math.sqrt(self.B / self.rho))

    def pl(self, k: Setting) -> float:
        """Return scale min{1/(L + sqrt(2B/rho)), rho/(2 mu)}."""
        fast = 1 / (k.need("L") + math.sqrt(2 * self.B / self.rho))
        return self.scale * min(fast, self.rho / (2 * k.need("mu")))


Formula = Callable[[Setting], Rate | float]
Pair = Callable[[Setting], tuple[float, float]]


@dataclass(frozen=True)
class Theorem:
    """A step size for which something is proved: the largest one for which it is proved here.

    formula: the step, or the recursion that gives it; its docstring says where it comes from.
    promises: what follows. assumes: under what. source: who proved it. linear: the recursion's step
    of the rule ``pl``, not of ``nonconvex``. recalled: constants quoted from memory, neither proved
    nor checked here.
    """

    formula: Formula
    promises: str
    assumes: tuple[Assumption, ...]
    source: str
    linear: bool = False
    recalled: bool = False

    def recursive(self, k: Setting) -> bool:
        """Return whether the step comes from a recursion by the generic rule."""
        return isinstance(self.formula(k), Rate)

    def failing(self, k: Setting) -> list[Assumption]:
        """Return the assumptions that do not hold in a setting."""
        return [one for one in self.assumes if not one.holds(k)]

    @property
    def kind(self) -> str:
        """Return ``theorem``."""
        return "theorem"

    def number(self, k: Setting) -> float:
        """Return the step size whether the theorem applies or not; raises NoTheory for unknown constants."""
        return _number(self.formula(k), k, self.linear)

    def step(self, k: Setting) -> float:
        """Return the step size; raises NoTheory where an assumption does not hold."""
        for one in self.failing(k):
            raise NoTheory(f"the theorem assumes that {one.text}, and here {one.otherwise}")
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


def _number(found: Rate | float, k: Setting, linear: bool) -> float:
    if isinstance(found, Rate):
        return found.pl(k) if linear else found.nonconvex(k)
    return float(found)


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
    paper: Theorem | Convention | None = None
    released: Theorem | Convention | None = None

    def with_rules(self, **rules: Theorem | Convention | None) -> StepSizes:
        """Return the same with other entries for some rules; None takes one out."""
        return replace(self, **rules)

    def under(self, rule: str) -> Theorem | Convention | None:
        """Return what there is under a rule, None for nothing."""
        found: Theorem | Convention | None = getattr(self, rule)
        return found

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
        found = self.under(rule)
        if found is None:
            raise NoTheory(f"the method has none under the rule {rule!r}")
        return found

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
    return StepSizes(nonconvex, linear, convex, arithmetic, paper, released)


def _plus(text: str, floor: str) -> str:
    left, comma, rest = text.partition(",  ")
    return f"{left} + {floor}{comma}{rest}" if floor else text


def thumb(formula: Formula) -> StepSizes:
    """Return the step sizes of a method that has a rule of thumb and no theorem."""
    return StepSizes(nonconvex=Convention(formula, "raybench", "rule of thumb"))


def explained(found: Theorem | Convention) -> str:
    """Return the text of a step's formula: where it comes from."""
    return inspect.getdoc(found.formula) or ""
