"""Whether the theorems that a method declares hold in its worst case (``raybench certify``)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from raybench import theory
from raybench.certificates.certify import certify
from raybench.certificates.program import solver
from raybench.core.errors import InputError, Notice, count
from raybench.core.facts import Role
from raybench.core.registry import Entry
from raybench.testing import Finding

CHECK = "worst case within the theorem"
SIZES = ((1, 3), (2, 3), (1, 10))
"""Clients and rounds: some mistakes show late, others between clients."""
ANY_FUNCTION = ("nonconvex", "arithmetic")  # rules of theorems that need no convexity
MU = 0.1  # for the others, where L is 1


def certified(entry: Entry[Any], given: Mapping[str, Any] | None = None) -> Iterator[Finding]:
    """Yield a finding for each theorem of a method.

    A method that does not qualify, and a theorem that is told in words alone, claim nothing here. Without cvxpy and
    Clarabel there are none, which is said.
    """
    try:
        solver()
    except InputError as error:
        what = f"theorems are not tried in the worst case: {error.complaints[0].fix}"
        warnings.warn(what, Notice, stacklevel=2)
        return
    steps = theory.of(entry.facts.theory)
    told: list[object] = []
    for rule in theory.RULES:
        backing = None if steps is None else steps.under(rule)
        if isinstance(backing, theory.Theorem) and not backing.recalled and backing not in told:
            told.append(backing)
            yield _finding(entry, rule, given or {})


def _finding(entry: Entry[Any], rule: str, given: Mapping[str, Any]) -> Finding:
    params = ",".join(f"{key}={value}" for key, value in given.items())
    name, about = f"{entry.name}:{params}" if params else entry.name, f"{entry.name} under {rule}"
    options: dict[str, Any] = {} if rule in ANY_FUNCTION else {"mu": MU}
    options |= {"alpha": 1} if entry.facts.up == Role.UNBIASED else {}
    claimed = False
    for n, rounds in SIZES:
        more: dict[str, Any] = {"same": True} if rule == "tight" and n > 1 else {}
        try:
            c = certify(name, clients=n, rounds=rounds, rule=rule, **options, **more)
        except InputError:
            continue
        claimed |= c.bound is not None
        if c.refuted:
            what = (
                f"{c.measure} is {c.worst:.4g} in the worst case after {rounds} rounds of {count(n, 'client')}, "
                f"and the theorem promises {c.bound:.4g} at the step {c.step_size:.4g}"
            )
            return Finding(CHECK, about, what)
    return Finding(CHECK, about, claimed=claimed)
