"""Why a cell makes no sense and is not run: a code for programs, a text and a fix for people; and what is checked."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

import numpy as np

from raybench.algorithms.base import HOOKS, Estimator
from raybench.algorithms.events import Asynchronous
from raybench.clock.clients import Clients
from raybench.core import registry
from raybench.core.counts import GATHER, REDUCE
from raybench.core.errors import InputError
from raybench.core.facts import AlgorithmFacts
from raybench.core.parts import Robust
from raybench.execution.build import collective_of, relays, unbound, uplink
from raybench.problems.abilities import Labelled, Predicting, SplitByFeatures, Trained
from raybench.problems.base import Constants, Fact, Problem
from raybench.spec import Cell


class SkipCode(StrEnum):
    """What kind of reason it is."""

    NO_STEP = "no_step"  # theory gives no step size
    NO_VALUE = "no_value"  # a parameter's ``auto`` has no value
    OPERATOR = "operator"  # of another class than the method needs
    OWN_OPERATOR = "own_operator"  # the same of one that is a parameter of the method
    VERTICAL_PROBLEM = "vertical_problem"  # features are split over clients, the method has none
    VERTICAL_METHOD = "vertical_method"  # the method needs features that are split
    NO_PREDICTIONS = "no_predictions"
    NONSMOOTH = "nonsmooth"  # the problem needs proximal steps
    NO_MINIMIZER = "no_minimizer"
    NO_RELAY = "no_relay"  # ``downlink: aggregate``
    NO_COLLECTIVE = "no_collective"  # ``collective: reduce`` or ``all_to_all``
    NO_PARTICIPATION = "no_participation"
    NO_F_STAR = "no_f_star"
    NOT_ROBUST = "not_robust"  # no mean over clients to replace, or no labels to turn around
    NO_CLOCK = "no_clock"  # the method needs simulated clients
    NOT_ASYNCHRONOUS = "not_asynchronous"  # what clients that do not wait for each other cannot do
    OWN_PARTS = "own_parts"  # local work, outer optimizer or delay for a method that has its own


class Skip(Exception):
    """A cell makes no sense. text: why, as the column ``reason`` holds it; fix: what to write instead."""

    def __init__(self, code: SkipCode, text: str, fix: str = "") -> None:
        super().__init__(code, text, fix)
        self.code, self.text, self.fix = code, text, fix

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Skipped:
    """A cell that is not run, with the label of its method and the reason."""

    cell: Cell
    label: str
    why: Skip


@dataclass(frozen=True)
class Reasons:
    """Skipped cells of one code. texts: each with how many cells it holds for, the commonest first."""

    code: SkipCode
    cells: int
    texts: tuple[tuple[str, int], ...]
    fix: str


Why = tuple[str, str, str]
"""Code, text and fix of a reason."""


def counted(skipped: Iterable[Skipped]) -> Counter[Why]:
    """Return how many cells are skipped for each reason."""
    return Counter((skip.why.code.value, skip.why.text, skip.why.fix) for skip in skipped)


def grouped(reasons: Mapping[Why, int]) -> list[Reasons]:
    """Return why cells were skipped, by code, the commonest code first.

    Of several fixes for one code the commonest is kept.
    """
    texts: dict[str, Counter[str]] = defaultdict(Counter)
    fixes: dict[str, Counter[str]] = defaultdict(Counter)
    for (code, text, fix), cells in reasons.items():
        texts[code][text] += cells
        fixes[code][fix] += cells
    groups = []
    for code, counts in texts.items():
        fix = fixes[code].most_common(1)[0][0]
        groups.append(Reasons(SkipCode(code), counts.total(), tuple(counts.most_common()), fix))
    return sorted(groups, key=lambda group: -group.cells)


Method = registry.Entry[AlgorithmFacts]
NOBODY = Robust(rule="mean")
SMOOTH = "a smooth problem.regularizer: nonconvex, l2 or none"


def robust_of(cell: Cell) -> Robust:
    """Return what a cell, or else its method, says of Byzantine clients; by default there are none."""
    if cell.robust is not None:
        return Robust(**cell.robust)
    entry = registry.lookup("algorithm", cell.algorithm.name)
    return getattr(entry.target, "robust", None) or NOBODY


def attackers(cell: Cell, problem: Problem) -> int:
    """Return how many of a cell's clients are Byzantine."""
    return robust_of(cell).attackers(problem.n)


def of_honest(constants: Constants, n: int, honest: int) -> Constants:
    """Return constants of the mean of the first so many of n f_i, each valid if not the smallest.

    L is the mean of their L_i; what is a mean square over all clients is at most n/honest times as large over some.
    """
    if honest == n:
        return constants
    L_i = constants.L_i[:honest]
    more = math.sqrt(n / honest)
    samples, variance = constants.L_samples, constants.sample_variance
    each = {Fact.CONVEX_CLIENTS, Fact.CONVEX_SAMPLES, Fact.BOUNDED_CLIENTS, Fact.CONVEX_PENALTY}
    return replace(
        constants,
        L=sum(L_i) / honest if L_i else None,
        L_i=L_i,
        L_plus=None if constants.L_plus is None else constants.L_plus * more,
        L_pm=None,
        mu=None,
        f_inf=None,
        f_star=None,
        L_samples=None if samples is None else samples * more,
        L_sample_i=constants.L_sample_i[:honest],
        sample_variance=None if variance is None else variance * more**2,
        facts=constants.facts & each,
    )


Reason: TypeAlias = tuple[SkipCode | str, str, str]
"""Code, text and fix of what is wrong. A code that is a text is the key of a sweep file that a user is to correct."""
Check: TypeAlias = Callable[[Cell, Method, Problem], Iterator[Reason]]


def check_cell(cell: Cell, entry: Method, problem: Problem, checks: Sequence[Check] = ()) -> None:
    """Raise the first reason that ``CHECKS``, or some of them, have against a cell with its method and problem.

    Skip where the pair makes no sense, InputError for wrong input.
    """
    for reasons in checks or CHECKS:
        for code, text, fix in reasons(cell, entry, problem):
            if isinstance(code, SkipCode):
                raise Skip(code, text, fix)
            raise InputError.of(code, text, fix)


def about_problem(cell: Cell, entry: Method, problem: Problem) -> Iterator[Reason]:
    """Yield why the method cannot do with the problem, or with what the cell asks of it."""
    facts, vertical = entry.facts, isinstance(problem, SplitByFeatures)
    if facts.vertical and not vertical:
        what = "a method for features split over clients needs such a problem"
        fix = "problem: {name: vertical_least_squares, ...}, or vertical_network"
        yield SkipCode.VERTICAL_METHOD, what, fix
    if vertical and not facts.vertical:
        what = "a method for features split over clients is needed for such a problem"
        yield SkipCode.VERTICAL_PROBLEM, what, "algorithm: vertical_gd or vertical_marina"
    if facts.predicts and not isinstance(problem, Predicting):
        what = "the method needs a problem with predictions"
        yield SkipCode.NO_PREDICTIONS, what, "a problem on a data set, such as logistic"
    if problem.has_prox and not facts.proximal:
        what = "the problem has a nonsmooth part and the method has no proximal step"
        yield SkipCode.NONSMOOTH, what, SMOOTH
    if facts.minimizer and problem.minimizer() is None:
        what = "the method needs the minimiser, which is not known here"
        fix = "a strongly convex problem, as by problem.regularizer: l2"
        yield SkipCode.NO_MINIMIZER, what, fix
    if relays(cell.downlink) and not facts.relay:
        what = "the sum of the method's messages, which the server would relay, is not its step"
        yield SkipCode.NO_RELAY, what, "another downlink than aggregate"
    if cell.participation != 1 and facts.participation is None:
        fix = "leave participation out, or give it in a case of its own"
        yield SkipCode.NO_PARTICIPATION, "the method has no partial participation", fix
    has_minimum = problem.constants.f_star is not None and not attackers(cell, problem)
    if "suboptimality" in cell.stop and cell.f_star is None and not has_minimum:
        what = "stop.suboptimality needs f_star, which is unknown here"
        yield SkipCode.NO_F_STAR, what, "give f_star, or stop at a grad_norm_sq"


def about_parts(cell: Cell, entry: Method, problem: Problem) -> Iterator[Reason]:
    """Yield why a method's round has no place for the local work, outer optimizer or delay asked for."""
    target = entry.target
    for part, hook in HOOKS.items():
        if getattr(cell, part) is None:
            continue
        hooks = ("round", hook)
        is_plain = all(getattr(target, h, None) is getattr(Estimator, h) for h in hooks)
        if not is_plain or part in target.presets:
            what = f"{entry.name} has a round of its own, without a place for {part}"
            yield SkipCode.OWN_PARTS, what, "an estimator, such as gd, ef14, ef21 or diana"
        if problem.has_prox:
            what = f"{part} and a nonsmooth part of the problem do not go together"
            yield SkipCode.OWN_PARTS, what, SMOOTH
    local = cell.local
    if local is not None and local["optimizer"] != "sgd" and local["step_size"] is None:
        what = f"{local['optimizer']} has steps of its own, and step_size is the outer one"
        yield "local.step_size", f"is missing: {what}", "such as 0.001"


def about_robust(cell: Cell, entry: Method, problem: Problem) -> Iterator[Reason]:
    """Yield why clients cannot be judged apart."""
    robust, n = robust_of(cell), problem.n
    if robust is NOBODY:
        return
    if not entry.facts.robust:
        what = (
            f"what the server of {entry.name} steps along is no mean of an estimate of each client"
        )
        fix = "a method with robust: such as gd, dcgd, ef21, diana, marina, dasha or byz_vr_marina"
        yield SkipCode.NOT_ROBUST, what, fix
    bad, f, seen = robust.attackers(n), robust.tolerated(n), -(-n // robust.bucket)
    if bad >= n:
        what = f"{bad} of {n} clients leave nobody whose f could be minimised"
        yield "robust.byzantine", what, f"at most {n - 1}"
    most = min(seen - 3 if robust.rule == "krum" else seen, (seen - 1) // 2)
    if robust.rule != "mean" and f > most:
        judged = f"{n} clients" if robust.bucket == 1 else f"{seen} buckets of {n} clients"
        fix = f"at most {most}, or tolerate: {most}"
        what = f"{robust.rule} cannot resist {f} of {judged}"
        yield "robust.byzantine", what, fix if most >= 0 else "more clients, or another rule"
    if robust.poisons(n) and not (isinstance(problem, Labelled) and problem.labelled):
        what = "robust.attack: label_flip needs labels that can be turned around, and the problem has none"
        fix = "logistic, nonconvex_classification, softmax, a network that tells classes apart; another attack"
        yield SkipCode.NOT_ROBUST, what, fix
    if robust.idle(n):
        return
    how = collective_of(cell.compressor)
    if how != GATHER or relays(cell.downlink):
        key = f"compressor.collective: {how}" if how != GATHER else "downlink: aggregate"
        what = (
            f"needs every client's message by itself, and by {key} the server has their sum alone"
        )
        yield "robust", what, "collective: gather, and no downlink: aggregate; or leave robust out"


def about_collective(cell: Cell, entry: Method, problem: Problem) -> Iterator[Reason]:
    """Yield why messages cannot be averaged on the way."""
    section, how = uplink(cell, entry), collective_of(cell.compressor)
    if section is None or how == GATHER:
        return
    facts = entry.facts
    server = facts.down is not None or (cell.downlink is not None and not relays(cell.downlink))
    if facts.decentralised or facts.vertical or not facts.averaged or server:
        why = "its server sends compressed messages" if server else "it takes more than their mean"
        what = f"messages of {entry.name} cannot be averaged on the way: {why}"
        fix = (
            "compressor.collective: gather, and no downlink where messages are averaged on the way"
        )
        yield SkipCode.NO_COLLECTIVE, what, fix
    if how == REDUCE and not unbound(section).additive:
        fix = "gather or all_to_all; those of identity, bf16, fp16 and rand_k with mask: common do"
        what = f"{section.name}'s messages do not add up to one"
        yield "compressor.collective", what, fix


def about_start(cell: Cell, entry: Method, problem: Problem) -> Iterator[Reason]:
    """Yield why x0 cannot be read from its file, or is not of the problem's size."""
    if not isinstance(cell.x0, str) or cell.x0 in ("zeros", "problem"):
        return
    try:
        size = np.load(cell.x0, mmap_mode="r", allow_pickle=False).size
    except (OSError, ValueError):
        yield "x0", f"cannot read {cell.x0}", "save numbers with numpy.save"
        return
    if size != problem.dim:
        what = f"{cell.x0} holds {size} numbers and x has {problem.dim}"
        yield "x0", what, f"save {problem.dim} numbers with numpy.save"


def about_clock(cell: Cell, entry: Method, problem: Problem) -> Iterator[Reason]:
    """Yield why a method cannot live on the cell's clock, or without one."""
    if cell.clock is not None:
        Clients(cell.clock, problem.n, [cell.seed], problem.samples)  # raises what does not fit
    elif entry.facts.clock:
        what = f"{entry.name} depends on how fast clients are, and no clock says so"
        yield SkipCode.NO_CLOCK, what, "clock: {compute: {lognormal: {median: 1.0, sigma: 0.5}}}"
    elif "clock" in cell.stop:
        yield "stop.clock", "there is no clock", "clock: {compute: 1.0}"
    if not issubclass(entry.target, Asynchronous):
        return
    correlated = unbound(uplink(cell, entry)).correlated
    if correlated or collective_of(cell.compressor) != GATHER:
        what = f"clients of {entry.name} send at different times, and messages of this compressor belong together"
        yield SkipCode.NOT_ASYNCHRONOUS, what, "an independent compressor, such as rand_k"
    if problem.has_prox:
        yield SkipCode.NONSMOOTH, f"{entry.name} takes no proximal steps", SMOOTH
    if isinstance(problem, Trained) and problem.buffers(1):
        what = f"{entry.name} has no place for the statistics of BatchNorm"
        yield SkipCode.NOT_ASYNCHRONOUS, what, "problem.batchnorm: none, or another model"


CHECKS = (about_problem, about_parts, about_robust, about_collective, about_start, about_clock)
"""What is asked of every cell, in this order."""
