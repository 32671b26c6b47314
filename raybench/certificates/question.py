"""What is asked of ``raybench certify``: its arguments, checked, and what the theorem of the method says of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from raybench import theory
from raybench.certificates.program import MEASURES, STARTS
from raybench.certificates.space import Space, Subject
from raybench.core import registry
from raybench.core.errors import InputError, nearest
from raybench.core.facts import AlgorithmFacts, Role
from raybench.core.registry import Entry
from raybench.execution.build import graph_of
from raybench.problems.base import Constants, Fact
from raybench.spec import Section, sections

USUAL_ALPHA = 0.5
USUAL_CLIENTS = 3  # of a graph


@dataclass(frozen=True)
class Question:
    """What is asked of a method, see ``certify``; ``at`` says it of a step.

    backing, theory_step: what the rule's step rests on, and its size. lack: why there is no theorem.
    """

    asked: Mapping[str, Any]
    entry: Entry[AlgorithmFacts]
    k: theory.Setting
    subject: Subject
    backing: theory.Theorem | theory.Convention | None
    theory_step: float | None
    lack: str
    rule: str
    measure: str
    start: str
    projection: bool

    @property
    def unit(self) -> float:
        """Return the theorem's step, or 1/L where there is none."""
        return self.theory_step or 1 / max(self.subject.constants.L_i)

    def at(self, step: float) -> Question:
        """Return the question at a step, with what the theorem says of it and how the method starts."""
        says, lack, subject = None, self.lack, self.subject
        if isinstance(self.backing, theory.Theorem) and self.theory_step is not None:
            says = self.backing.inequality(self.k, step)
            lack = "" if says is not None else "what its theorem promises is told in words alone"
        unknown = says is not None and says.vectors is None and says.weight > 0
        if (
            unknown
            and (subject.alpha or 1.0) < 1
            and not getattr(self.entry.target, "opens", False)
        ):
            says, lack = None, "its recursion does not tell G^0: give theory.Rate(.., G=..)"
        mu = self.k.constants.mu
        measure = self.measure or _usual(says, mu)
        usual = "distance" if measure == "distance" or mu == 0 else "gap"
        start = self.start or (usual if says is None else "lyapunov")
        if "lyapunov" in (measure, start) and (says is None or (measure == "lyapunov" and unknown)):
            what = lack or "its recursion does not tell G, so V^T is not known"
            raise InputError.of("measure", f"lyapunov: {what}", "gap, or another one")
        if "distance" in (measure, start) and not subject.mu:
            raise InputError.of("mu", "the distance to x* needs convex functions", "--mu 0 or more")
        opening = ""
        if start == "lyapunov":
            opening = "exact" if unknown else "free"
        elif says is not None:
            says = replace(says, free=())
        subject = replace(subject, step=step, says=says, opening=opening)
        return replace(self, subject=subject, measure=measure, start=start, lack=lack)

    def bound(self) -> tuple[float | None, str]:
        """Return what the theorem promises of the measure, or None and why it says nothing."""
        says, T = self.subject.says, self.subject.rounds
        if says is None or self.theory_step is None:
            return None, self.lack
        if self.start != "lyapunov":
            return None, "the theorem begins with another condition"
        if self.subject.step > self.theory_step * (1 + 1e-9):
            return None, f"the theorem is about steps up to {self.theory_step:.6g}"
        if says.over is not None and self.measure == "mean_grad":
            return says.over / T, ""
        of_gap = says.gap and self.measure == "gap"
        if says.factor is not None and (self.measure == "lyapunov" or of_gap):
            return says.factor**T, ""
        return None, f"the theorem says nothing of {self.measure}"


def _usual(says: theory.Inequality | None, mu: float | None) -> str:
    """Return the measure that a theorem is about; without one the usual one of the class."""
    if says is not None and says.factor is not None:
        return "lyapunov" if says.vectors is not None else "gap"
    return "mean_grad" if says is not None or mu is None else "gap"


def question(
    method: str,
    *,
    alpha: float | None = None,
    down_alpha: float | None = None,
    clients: int | None = None,
    rounds: int = 5,
    L: float | Sequence[float] = 1.0,
    mu: float | Sequence[float] | None = None,
    rule: str = "nonconvex",
    measure: str = "",
    start: str = "",
    same: bool = False,
    projection: bool = False,
    graph: str = "ring",
) -> Question:
    """Return what is asked of a method, its arguments as those of ``certify``. Raises InputError."""
    asked = dict(locals())
    section = sections.section("algorithm", method, where="method")
    entry = registry.lookup("algorithm", section.name)
    facts = entry.facts
    _allowed("rule", rule, theory.RULES)
    _allowed("measure", measure, ("", *MEASURES))
    _allowed("start", start, ("", *STARTS))
    n = clients if clients is not None else USUAL_CLIENTS if facts.decentralised else 1
    for key, count in (("clients", n), ("rounds", rounds)):
        if type(count) is not int or count < 1:
            raise InputError.of(key, f"{count} is no number of {key}", "an integer from 1 on")
    L_i, mu_i = _each("L", L, n), () if mu is None else _each("mu", mu, n, zero=True)
    for low, high in zip(mu_i, L_i):
        if low >= high:
            raise InputError.of("mu", f"{low:g} is not below L = {high:g}", "a smaller one")
    if same and (len({*L_i}) > 1 or len({*mu_i}) > 1):
        raise InputError.of("same", "one function has one L and one mu", "leave it out")
    for about, case in (
        ("features that clients share", facts.vertical),
        ("predictions", facts.predicts),
        ("the speed of clients", facts.clock),
    ):
        if case:
            raise refused(entry, f"it is about {about}, which no class of functions has")
    if facts.minimizer and mu is None:
        raise InputError.of("mu", f"{entry.name} needs x*, so convex functions", "--mu 0 or more")
    alpha = _contraction("alpha", alpha, facts.up, facts.up is not None)
    if alpha != 1 and Role.UNBIASED in facts.operators.values():
        raise refused(entry, "its second compressor is unbiased, so random", "--alpha 1")
    if facts.down is not None or down_alpha is not None:
        usual = alpha if down_alpha is None and facts.down == Role.CONTRACTIVE else down_alpha
        takes = facts.down is not None or facts.broadcast is not None
        down_alpha = _contraction("down_alpha", usual, facts.down, takes)
    mixing = graph_of(Section(graph, {}), n) if facts.decentralised else None
    constants, params = _constants(L_i, mu_i, same or n == 1), dict(section.params)
    subject = Subject(entry, params, constants, mu_i, n, rounds, alpha, down_alpha, same, mixing)
    k = _setting(subject)
    subject = replace(subject, params=k.numbers)
    basis = _theory(entry, k, rule, down_alpha is not None and facts.down is None)
    return Question(asked, entry, k, subject, *basis, rule, measure, start, projection)


def refused(entry: Entry[AlgorithmFacts], why: str, fix: str = "") -> InputError:
    """Return the error that tells why a method does not qualify."""
    fix = fix or "another method: docs/certify.md lists those that qualify"
    return InputError.of("method", f"{entry.name} has no certificate: {why}", fix)


def _allowed(key: str, word: str, words: Sequence[str]) -> None:
    if word not in words:
        fix = f"{nearest(word, words)}; one of {', '.join(filter(None, words))}"
        raise InputError.of(key, f"unknown {key} {word!r}", fix)


def _each(
    key: str, value: float | Sequence[float], n: int, zero: bool = False
) -> tuple[float, ...]:
    """Return one number per client. Raises InputError."""
    numbers = tuple(value) if isinstance(value, Sequence) else (value,)
    if len(numbers) not in (1, n):
        raise InputError.of(
            key, f"{len(numbers)} numbers for {n} clients", "one, or one per client"
        )
    for number in numbers:
        good = isinstance(number, int | float) and 0 <= number < math.inf
        if not good or (number == 0 and not zero):
            raise InputError.of(
                key, f"{number!r} is out of range", f"a number {'>=' if zero else '>'} 0"
            )
    return tuple(map(float, numbers * (n if len(numbers) == 1 else 1)))


def _contraction(key: str, alpha: float | None, role: Role | None, takes: bool) -> float | None:
    """Return alpha of the compressors that a method has, None without one. Raises InputError."""
    if not takes:
        if alpha is not None:
            raise InputError.of(key, "the method has no such compressor", "leave it out")
        return None
    if role == Role.UNBIASED and alpha != 1:
        what = (
            "the method needs an unbiased compressor, and so a random one, which has no worst case"
        )
        raise InputError.of(key, what, "1: the method with dense messages")
    if alpha is None:
        return USUAL_ALPHA
    if not isinstance(alpha, int | float) or not 0 < alpha <= 1:
        raise InputError.of(key, f"{alpha} is out of range", "0 < alpha <= 1, such as 0.5")
    return float(alpha)


def _constants(L_i: tuple[float, ...], mu_i: tuple[float, ...], same: bool) -> Constants:
    """Return what is known of the mean of functions of which these are the constants."""
    positive = bool(mu_i) and min(mu_i) > 0
    facts = {Fact.BOUNDED_CLIENTS} | ({Fact.SAME_CLIENTS} if same else set())
    facts |= {Fact.CONVEX_CLIENTS, Fact.CONVEX_SAMPLES} if mu_i else set()
    facts |= {Fact.STRONGLY_CONVEX} if positive else set()
    L_tilde = float(np.sqrt(np.mean(np.square(L_i))))
    return Constants(
        L=float(np.mean(L_i)),
        L_i=L_i,
        L_plus=L_tilde,
        L_pm=0.0 if same else L_tilde,
        mu=float(np.mean(mu_i)) if mu_i else None,
        mu_i=mu_i if positive else (),
        f_inf=0.0,
        L_samples=L_tilde,
        L_sample_i=L_i,
        sample_variance=0.0,
        facts=frozenset(facts),
    )


def _setting(subject: Subject) -> theory.Setting:
    """Return what step sizes depend on; its ``numbers`` are the parameters with every ``auto`` filled in."""
    params = dict(subject.params)
    up, down = subject.alpha or 1.0, subject.down_alpha or 1.0
    k = theory.Setting(
        constants=subject.constants,
        n=subject.n,
        d=1,
        alpha=up,
        omega=0.0 if up == 1 else None,
        down_alpha=down,
        down_omega=0.0 if down == 1 else None,
        dense_share=0.5,  # a coin whose chance is the share of a message stays a coin
        down_share=0.5,
        numbers=params,
        compressors=subject.compressors(Space(torch.eye(1))),
        rounds=subject.rounds,
    )
    for name, rule in subject.entry.facts.auto.items():
        if params.get(name) == "auto":
            try:
                params[name] = rule(k)
            except theory.NoTheory as why:
                what = f"{name}: auto has no value here: {why}"
                raise InputError.of(f"method.{name}", what, f"--set {name}=..") from None
    return k


def _theory(
    entry: Entry[AlgorithmFacts], k: theory.Setting, rule: str, other_downlink: bool
) -> tuple[theory.Theorem | theory.Convention | None, float | None, str]:
    """Return what the step of a rule rests on, its size, and why there is no theorem where there is none."""
    steps = theory.of(entry.facts.theory)
    backing = None if steps is None or other_downlink else steps.under(rule)
    if backing is None:
        missing = (
            "no theorem covers this downlink"
            if other_downlink
            else f"no theorem under the rule {rule}"
        )
        return None, None, missing
    try:
        return backing, backing.step(k), f"its step is a {backing.kind}, no theorem"
    except theory.NoTheory as why:
        return backing, None, f"no step under the rule {rule}: {why}"
