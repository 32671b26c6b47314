"""Byzantine clients: whether a cell's rule and attack fit, and what theorems may say of those that are honest."""

from __future__ import annotations

import math
from dataclasses import replace

from raybench.core import registry
from raybench.core.errors import InputError
from raybench.core.facts import AlgorithmFacts
from raybench.core.parts import Robust
from raybench.planning.operators import collective_of, relays
from raybench.planning.skip import Skip, SkipCode
from raybench.problems.abilities import Labelled
from raybench.problems.base import Constants, Fact, Problem
from raybench.spec import Cell
from raybench.wire.collectives import GATHER

Method = registry.Entry[AlgorithmFacts]
NOBODY = Robust(rule="mean")


def robust_of(cell: Cell) -> Robust:
    """Return what a cell, or else its method, says of Byzantine clients; by default there are none."""
    if cell.robust is not None:
        return Robust(**cell.robust)
    entry = registry.lookup("algorithm", cell.algorithm.name)
    return getattr(entry.target, "robust", None) or NOBODY


def attackers(cell: Cell, problem: Problem) -> int:
    """Return how many of a cell's clients are Byzantine."""
    return robust_of(cell).attackers(problem.n)


def check_robust(cell: Cell, entry: Method, problem: Problem) -> None:
    """Raise where clients cannot be judged apart: Skip for a method or a problem, InputError for what is asked."""
    robust, n = robust_of(cell), problem.n
    if robust is NOBODY:
        return
    if not entry.facts.robust:
        raise Skip(
            SkipCode.NOT_ROBUST,
            f"what the server of {entry.name} steps along is no mean of an estimate of each client",
            "a method with robust: such as gd, dcgd, ef21, diana, marina, dasha or byz_vr_marina",
        )
    _check_numbers(robust, n)
    if robust.poisons(n) and not (isinstance(problem, Labelled) and problem.labelled):
        raise Skip(
            SkipCode.NOT_ROBUST,
            "robust.attack: label_flip needs labels that can be turned around, and the problem has none",
            "logistic, nonconvex_classification, softmax, a network that tells classes apart; another attack",
        )
    if robust.idle(n):
        return
    how = collective_of(cell.compressor)
    if how != GATHER or relays(cell.downlink):
        key = f"compressor.collective: {how}" if how != GATHER else "downlink: aggregate"
        what = (
            f"needs every client's message by itself, and by {key} the server has their sum alone"
        )
        fix = "collective: gather, and no downlink: aggregate; or leave robust out"
        raise InputError.of("robust", what, fix)
    if cell.cohort is not None:
        what = "the server cannot keep an estimate of clients that are drawn anew in every round"
        raise InputError.of("robust", what, "leave cohort or robust out")


def _check_numbers(robust: Robust, n: int) -> None:
    """Raise InputError for numbers of clients that n clients, or their buckets, cannot have."""
    bad, f, seen = robust.attackers(n), robust.tolerated(n), robust.judged(n)
    if bad >= n:
        what = f"{bad} of {n} clients leave nobody whose f could be minimised"
        raise InputError.of("robust.byzantine", what, f"at most {n - 1}")
    if robust.rule == "mean":
        return
    judged = f"{n} clients" if robust.bucket == 1 else f"{seen} buckets of {n} clients"
    most = seen - 3 if robust.rule == "krum" else (seen - 1) // 2
    if f > min(most, (seen - 1) // 2):
        what = f"{robust.rule} cannot resist {f} of {judged}"
        most = min(most, (seen - 1) // 2)
        fix = (
            f"at most {most}, or tolerate: {most}" if most >= 0 else "more clients, or another rule"
        )
        raise InputError.of("robust.byzantine", what, fix)


def of_honest(constants: Constants, n: int, honest: int) -> Constants:
    """Return constants of the mean of the first so many of n f_i, each valid if not the smallest.

    L is the mean of their L_i; what is a mean square over all clients is at most n/honest times as large over some.
    """
    if honest == n:
        return constants
    own = constants.L_i[:honest]
    more = math.sqrt(n / honest)
    samples, variance = constants.L_samples, constants.sample_variance
    each = {Fact.CONVEX_CLIENTS, Fact.CONVEX_SAMPLES, Fact.BOUNDED_CLIENTS, Fact.CONVEX_PENALTY}
    return replace(
        constants,
        L=sum(own) / honest if own else None,
        L_i=own,
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
