"""``raybench.certify``: the worst case of a method, beside what its theorem promises; the step with the least one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from raybench.certificates.cases import Case
from raybench.certificates.program import Program, conditions
from raybench.certificates.question import Question, question, refused
from raybench.certificates.space import BASES, Unfit, abstract
from raybench.core.errors import InputError

SLACK = 1e-5
"""By which share a worst case may lie above a bound that holds: the solver's accuracy."""
FARTHEST = 8.0  # times the theorem's step, or 1/L, to which steps are looked at, and as much below


@dataclass(frozen=True)
class Certificate:
    """The worst case of a method after T rounds, over all functions of a class and all contractive compressors.

    worst: the largest value of the measure, infinite where there is none. bound: the theorem's, None where it says
    nothing, and ``why``. ratio: worst over bound. status, gap: the solver's, relative. replay: where the method itself
    ends on the vectors of the worst case, None where these break the class by more than the solver may. theory_step:
    that of the rule, None for none.
    """

    method: str
    worst: float
    bound: float | None
    ratio: float | None
    status: str
    gap: float
    step_size: float
    theory_step: float | None
    rule: str
    measure: str
    clients: int
    rounds: int
    L: tuple[float, ...]
    mu: tuple[float, ...] | None
    alpha: float | None
    down_alpha: float | None
    conditions: tuple[str, ...]
    replay: float | None
    why: str = ""

    @property
    def refuted(self) -> bool:
        """Whether the method ends above its theorem's bound, on vectors that it was run on."""
        return (
            self.bound is not None
            and self.replay is not None
            and min(self.worst, self.replay) > self.bound * (1 + SLACK)
        )

    @property
    def verdict(self) -> str:
        """Return whether the theorem holds, in words."""
        if self.bound is None or self.ratio is None:
            return self.why
        if self.refuted:
            return "REFUTED"
        if self.ratio > 1 + SLACK:
            return "not decided: the worst case could not be replayed"
        return (
            "holds, and is the truth"
            if self.ratio > 0.9995
            else f"holds, {1 / self.ratio:.2f} times the truth"
        )

    def json(self) -> dict[str, Any]:
        """Return it as an object of JSON, an infinite number as None."""
        plain = {**asdict(self), "refuted": self.refuted}
        endless = {k for k, v in plain.items() if isinstance(v, float) and not math.isfinite(v)}
        return {k: None if k in endless else v for k, v in plain.items()}


def certify(
    method: str,
    *,
    step_multiple: float = 1.0,
    step_size: float | None = None,
    save: str | Path | None = None,
    **asked: Any,
) -> Certificate:
    """Return the worst case of a method after some rounds, over all functions and compressors, beside its theorem.

    Measured in units of what is at most 1 at the start. Exact for one client, and for several on convex functions; for
    several on others an upper bound. Raises InputError, also for a method that is not linear in vectors, with that
    reason, and where cvxpy and Clarabel are not installed.

    Args:
        method: its name, with parameters as in ``ef21:init=full``.
        step_multiple: of the theorem's step under ``rule``.
        step_size: the step itself in its place.
        save: a file ``.npz`` for the vectors of the worst case, which ``raybench.certificates.cases.replay`` reads.
        asked: alpha, down_alpha: contraction of the compressors, 0.5. clients: 1, 3 on a graph. rounds: 5. L, mu: a
            number, or one per client; without mu functions are smooth, with mu = 0 convex, above strongly convex. same:
            all f_i are one function. rule: ``nonconvex``. measure: ``mean_grad`` (t < T), ``last_grad``, ``gap``,
            ``distance`` or ``lyapunov``; the theorem's. start: what is at most 1 at x^0, ``gap``, ``distance`` or
            ``lyapunov``; the theorem's. projection: compressors with <C(v), v> = ||C(v)||^2. graph: ``ring``.
    """
    about = question(method, **asked)
    for key, value in (("step_multiple", step_multiple), ("step_size", step_size)):
        if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
            raise InputError.of(key, f"{value} is no step", "a number > 0")
    if step_size is None:
        if about.theory_step is None:
            raise InputError.of("step_size", about.lack, "give --step-size, or another --rule")
        step_size = step_multiple * about.theory_step
    return at_step(about, step_size, save)


def at_step(
    about: Question, step: float, save: str | Path | None = None, bases: int = BASES
) -> Certificate:
    """Return the certificate of a step; bases: in how many a run is repeated to see whether the method qualifies."""
    about = about.at(step)
    subject = about.subject
    try:
        trace = abstract(subject, bases)
    except Unfit as unfit:
        raise refused(about.entry, str(unfit)) from unfit
    program = Program(subject, trace, about.projection)
    solution = program.solve(about.measure, about.start)
    bound, why = about.bound()
    if not solution.bounded and program.differ:
        extra = "natural" if bound is None else "cap"
        more = replace(program, extra=extra, most=[], equal=[])
        again = more.solve(about.measure, about.start)
        program, solution = (more, again) if again.bounded else (program, solution)
    worst, value = math.inf, None
    if solution.bounded and solution.G is not None and solution.f is not None:
        worst = solution.value
        case = Case.of(about, trace, program, solution.G, solution.f)
        value = case.replay(about, trace)
        if save is not None:
            case.save(save)
    return Certificate(
        method=about.entry.name,
        worst=worst,
        bound=bound,
        ratio=None if bound is None else worst / bound,
        status=solution.status,
        gap=solution.gap,
        step_size=step,
        theory_step=about.theory_step,
        rule=about.rule,
        measure=about.measure,
        clients=subject.n,
        rounds=subject.rounds,
        L=subject.constants.L_i,
        mu=subject.mu or None,
        alpha=subject.alpha,
        down_alpha=subject.down_alpha,
        conditions=tuple(conditions(program, about.start)),
        replay=value,
        why=why,
    )


def best(method: str, save: str | Path | None = None, **asked: Any) -> Certificate:
    """Return the certificate of the step with the least worst case, within a factor of 8 of the theorem's, or 1/L.

    Arguments and errors as those of ``certify``.
    """
    about = question(method, **asked)
    unit, reach = about.unit, math.log(FARTHEST)
    at_step(about, unit)  # raises where the method does not qualify

    def worst(place: float) -> float:
        value = at_step(about, unit * math.exp(place), bases=0).worst
        return math.log(value) if 0 < value < math.inf else 1e3

    least = minimize_scalar(
        worst, bounds=(-reach, reach), method="bounded", options={"xatol": 1e-3}
    )
    return at_step(about, unit * math.exp(float(least.x)), save)


def curve(method: str, multiples: Sequence[float] | None = None, **asked: Any) -> list[Certificate]:
    """Return certificates at multiples of the theorem's step, or of 1/L where there is none.

    Arguments and errors as those of ``certify``.
    """
    about = question(method, **asked)
    steps = np.geomspace(1 / FARTHEST, FARTHEST / 2, 21) if multiples is None else multiples
    return [
        at_step(about, about.unit * float(m), bases=0 if j else BASES) for j, m in enumerate(steps)
    ]
