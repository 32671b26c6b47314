"""Mutation testing: put small faults into the code and count how many of them the tests notice.

    python benchmarks/mutants.py [--targets theory,ledger] [--count 200] [--seed 0] [--jobs 2]
    python benchmarks/mutants.py --known       the faults that once passed all tests; each must be noticed
    python benchmarks/mutants.py --list        only list what would be tried
    python benchmarks/mutants.py --match TEXT  of all faults those whose line of the list holds TEXT

A *mutant* is the package with one fault in it: an operator exchanged, a constant changed, a condition
negated, a statement dropped (``mutations.py`` says which faults there are, and what is left out because no
result depends on it). A mutant is *killed* when a test fails, and *survives* when all pass. A survivor is
either a fault that the tests should have found or a change that makes no difference; the latter are named,
each with its reason, in ``mutants_listed.py`` and are not tried.

A *target* is a part of the package with the test files that concern it; a mutant that these do not kill
counts as a survivor, even if some other file would have. The faults of a run are drawn by the seed, equally
many of each target, so a run can be repeated exactly. The checkout is never changed: every job works on
a copy of its own. First all test files run on the unchanged copy, because a test that fails anyway would
kill everything. A mutant that runs much longer than its tests took there is stopped and counted as timed
out; it is noticed as well, since the suite has a time limit for each test.

``--limit SECONDS`` leaves out the run without a fault, for repeated runs on one checkout.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from mutant_runs import ROOT, Mutant, Outcome, tried
from mutants_listed import EQUIVALENT, KNOWN, LOOPS, Known
from mutations import Change, changes

COSTS = {"_cost", "_size", "cost", "nbytes", "bits", "union", "packed_bytes", "checksum"}
"""Functions of ``wire/`` that say what a message costs."""


@dataclass(frozen=True)
class Target:
    """A part of the package and the tests that concern it, those that kill most and soonest first.

    files: patterns below ``raybench/``. part: what of a file belongs to it: all of it, ``formulas``
    (functions of a ``Setting`` and what is declared with them), ``others`` than these, or ``costs``.
    """

    files: tuple[str, ...]
    tests: tuple[str, ...]
    part: str = "all"

    def holds(self, change: Change) -> bool:
        """Return whether a change lies in the target's part of its file."""
        if self.part == "costs":
            return bool(COSTS.intersection(change.scope))
        formula = not change.scope or bool(_formulas(change.path).intersection(change.scope))
        return self.part == "all" or formula == (self.part == "formulas")


STEP_TESTS = ("theory", "step_rules", "tightness", "published_steps")
TARGETS = {
    "theory": Target(("theory/*.py",), (*STEP_TESTS, "cli_lookup")),
    "steps": Target(("algorithms/*.py",), STEP_TESTS, "formulas"),
    "methods": Target(
        ("algorithms/*.py",),
        (
            *("references", "references_practice", "practice", "leaders", "vertical"),
            *("invariants", "decentralised"),
        ),
        "others",
    ),
    "ledger": Target(
        ("wire/ledger.py", "core/counts.py"), ("ledger", "message_costs", "accounting")
    ),
    "costs": Target(
        ("wire/*.py",),
        ("message_costs", "independent", "ledger", "messages", "sparse_wire", "nested_messages"),
        "costs",
    ),
    "accounting": Target(
        ("store/accounting.py", "store/booking.py", "store/upgrades.py"),
        ("accounting", "load", "upgrades"),
    ),
    "store": Target(
        ("store/writer.py", "store/log.py", "store/seal.py", "store/combine.py", "store/lock.py"),
        ("store", "load", "store_readers", "upgrades", "durable", "leases"),
    ),
    "analysis": Target(
        ("analysis/*.py",),
        ("trials", "links", "analysis", "tuned", "closing", "intervals", "payoff"),
    ),
    "networks": Target(
        ("problems/network.py", "problems/networks/passes.py", "execution/oracle.py"),
        ("networks", "network_runs", "training"),
    ),
    "oracle": Target(("execution/oracle.py",), ("counted", "engine", "network_runs")),
    "collectives": Target(
        ("wire/collectives.py", "wire/transport.py"), ("collectives", "transport")
    ),
    "loops": Target(("torch/*.py",), ("loop_errors", "loops", "loop_sharded")),
}
ELSEWHERE = {
    "core": ("streams", "independent"),
    "bits": ("accounting",),
    "operators": ("tightness", "random_sparsifiers", "quantisers"),
    "messages": ("independent",),
}
"""Tests for faults of ``KNOWN`` that lie outside of the targets."""


def drawn(names: Iterable[str], count: int | None, seed: int, match: str = "") -> list[Mutant]:
    """Return a seeded sample of the targets' mutants, the same number of each as far as there are any."""
    names = list(names)
    found = []
    for j, name in enumerate(names):
        every = [m for m in of_target(name) if match in m.what]
        share = len(every) if count is None else count // len(names) + (j < count % len(names))
        picked = random.Random(f"{seed} {name}").sample(range(len(every)), min(share, len(every)))
        found += [every[i] for i in sorted(picked)]
    return found


def of_target(name: str) -> Iterator[Mutant]:
    """Yield all mutants of a target but those that are listed as equivalent."""
    target = TARGETS[name]
    files = {f for pattern in target.files for f in (ROOT / "raybench").glob(pattern)}
    for file in sorted(files):
        for change in _changes(file.relative_to(ROOT).as_posix()):
            if target.holds(change):
                yield Mutant(name, target.tests, change, f"{change} [{change.kind}]")


@cache
def _formulas(path: str) -> frozenset[str]:
    """Return the functions of a file that take a ``Setting``, or a pair of constants that depends on one."""
    nodes = ast.walk(ast.parse((ROOT / path).read_text()))
    about = {
        node.name: ast.unparse(node.args) for node in nodes if isinstance(node, ast.FunctionDef)
    }
    return frozenset(
        n for n, args in about.items() if "theory.Setting" in args or "theory.Pair" in args
    )


@cache
def _changes(path: str) -> tuple[Change, ...]:
    """Return the changes to a file that may make a difference."""
    every = changes((ROOT / path).read_text(), path)
    return tuple(c for c in every if not any(one.is_of(c) for one in EQUIVALENT))


def known(match: str = "") -> list[Mutant]:
    """Return the faults of the permanent list."""
    return [_of_known(one) for one in (*KNOWN, *LOOPS) if match in one.name]


def _of_known(one: Known) -> Mutant:
    source = (ROOT / one.path).read_text()
    if source.count(one.old) != 1:
        raise ValueError(f"{one.path} holds {source.count(one.old)} times: {one.old}")
    tests = TARGETS[one.target].tests if one.target in TARGETS else ELSEWHERE[one.target]
    before, found, _ = source.partition(one.old)
    start, line = len(before.encode()), before.count("\n") + 1
    end = start + len(found.encode())
    change = Change(one.path, line, (), "known", start, end, one.old, one.new)
    return Mutant("known", tests, change, f"{one.path}:{line}: {one.name}")


def table(outcomes: list[Outcome]) -> str:
    """Return the table of a run: per target how many were tried, killed, survived, timed out."""
    lines = [
        f"{'target':12} {'mutants':>8} {'killed':>8} {'survived':>9} {'timed out':>10} {'rate':>8}"
    ]
    names = list(dict.fromkeys(o.mutant.target for o in outcomes))
    for name in [*names, "all"]:
        own = [o for o in outcomes if name in (o.mutant.target, "all")]
        count = [sum(o.status == s for o in own) for s in ("killed", "survived", "timed out")]
        rate = 1 - count[1] / max(len(own), 1)
        lines.append(f"{name:12} {len(own):8} {count[0]:8} {count[1]:9} {count[2]:10} {rate:8.1%}")
    return "\n".join(lines)


def main() -> int:
    """Run the command line; return 1 where a fault of the permanent list survives."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--targets", default=",".join(TARGETS), help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--count", type=int, help="how many mutants; without it all there are")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="how many run at once")
    parser.add_argument("--known", action="store_true", help="the permanent list instead")
    parser.add_argument("--match", default="", help="only those whose line holds this text")
    parser.add_argument(
        "--limit", type=float, help="seconds for a mutant; leaves out the run without a fault"
    )
    parser.add_argument("--list", action="store_true", help="list them, run nothing")
    asked = parser.parse_args()
    names = [name for name in asked.targets.split(",") if name]
    if unknown := set(names) - TARGETS.keys():
        parser.error(f"unknown targets {sorted(unknown)}; there are {', '.join(TARGETS)}")
    if asked.known:
        mutants = known(asked.match)
    else:
        mutants = drawn(names, asked.count, asked.seed, asked.match)
    if asked.list or not mutants:
        print(*(f"{m.target:12} {m.what}" for m in mutants), f"{len(mutants)} mutants", sep="\n")
        return 0
    outcomes = []
    for outcome in tried(mutants, asked.jobs, asked.limit):
        outcomes.append(outcome)
        by = f" by {outcome.by}" if outcome.by else ""
        print(f"{outcome.status}{by} ({outcome.seconds:.0f} s): {outcome.mutant.what}", flush=True)
    alive = [f"{o.mutant.target:12} {o.mutant.what}" for o in outcomes if o.status == "survived"]
    print(table(outcomes), "", "survived:" if alive else "none survived", *alive, sep="\n")
    return int(asked.known and bool(alive))


if __name__ == "__main__":
    sys.exit(main())
