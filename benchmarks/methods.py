"""One batch of 64 step sizes beside 64 separate runs, for every method: cell-rounds per second and their ratio.

    RAYBENCH_DATA=... python benchmarks/methods.py [--cpu] [name ...]

--cpu: processor time on one thread in place of wall-clock time, for a machine that is not idle.

On mushrooms with 20 clients, float64, loss and ||grad f||^2 recorded as a sweep does by default. A
separate run is one cell alone; its set-up is left out, in its favour. Repeats of both are interleaved
and the best of each counts. Full-gradient methods should reach 8, minibatch methods 3. About 2 min.

What bounds the ratio: on one thread the gradients of 64 cells cost 10 times those of one (1.3 ms and
120 us), so rounds that are little else (neighbours, local steps) come out at 9 to 12, others at 12 to 20. With
features split over clients a message has 8,124 entries: rounds are matrix products and memory traffic even for one
cell, and a batch gains a factor of 2 to 3.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from time import perf_counter, process_time
from typing import Any

from raybench.core.process import tune_process

tune_process()  # before torch is loaded

import torch
from rich.console import Console
from rich.table import Table

from raybench import spec
from raybench.compressors import Role
from raybench.core import registry
from raybench.execution.batch import Batch
from raybench.execution.plan import make_plan
from raybench.execution.resolve import problem_of
from raybench.execution.run import Run

CELLS, REPEATS, SLICE = 64, 5, 0.08  # seconds of each repeat
FULL, MINIBATCH = 8.0, 3.0
STEPS = [round(0.01 + 0.99 * j / (CELLS - 1), 6) for j in range(CELLS)]
LOGISTIC = {"name": "logistic", "dataset": "mushrooms", "clients": 20, "lambda": 0.1}
OPERATORS: Mapping[Any, Any] = {role: {"name": role.usual, "k": 5} for role in Role}


def sweep_of(entry: registry.Entry, step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sweep file of a method's 64 cells."""
    facts = entry.facts
    problem = {**LOGISTIC, "regularizer": "l2" if facts.minimizer else "nonconvex"}
    if entry.name == "adiana":  # for strongly convex f
        problem["regularizer"] = "l2"
    if facts.vertical:
        problem = {"name": "vertical_least_squares", "dataset": "mushrooms", "clients": 20}
    operator = OPERATORS.get(facts.up)
    if facts.decentralised and operator is not None:
        operator = "natural"  # these need fine operators
    parts = {
        "compressor": operator,
        "downlink": OPERATORS[Role.CONTRACTIVE] if facts.down else None,
    }
    return {
        "name": "bench",
        "problem": problem,
        "algorithm": entry.name,
        **{key: value for key, value in parts.items() if value is not None},
        "step_size": dict(step),
        "rounds": 10_000,
        "record": {"every": 1},
        "allow_unproven": True,
    }


def cells_of(entry: registry.Entry) -> Batch:
    """Return the 64 cells as one batch: shares of the theoretical step, or of 0.1/L without one."""
    plan = None
    for rule in ("nonconvex", "paper"):
        plan = make_plan(spec.load(sweep_of(entry, {"theory": STEPS, "rule": rule})))
        if plan.cells:
            break
    else:
        L = problem_of(spec.load(sweep_of(entry, {"value": 1.0})).cells[0].problem).constants.L
        plan = make_plan(spec.load(sweep_of(entry, {"value": [0.1 * s / L for s in STEPS]})))
    assert len(plan.cells) == CELLS, f"{entry.name}: {len(plan.cells)} cells"
    return Batch(plan.cells, facts=plan.batches[0].facts)


def measure(batch: Batch, clock: Callable[[], float]) -> tuple[float, float]:
    """Return the cell-rounds per second of separate runs and of the batch, best of the repeats."""
    problem = problem_of(batch.cells[0].cell.problem)
    singles = [
        Run(Batch((batch.cells[j],), facts=batch.facts), problem)
        for j in range(0, CELLS, CELLS // REPEATS)
    ]
    many, rounds = Run(batch, problem), {1: 4, CELLS: 2}
    for run in (*singles, many):
        run.advance(3)  # compile, fill caches
    best = dict.fromkeys(rounds, 0.0)
    for j in range(REPEATS):
        for run in (singles[j], many):
            size = len(run.index)
            began = clock()
            run.advance(rounds[size])
            taken = clock() - began
            best[size] = max(best[size], size * rounds[size] / taken)
            rounds[size] = max(2, min(4 * rounds[size], int(rounds[size] * SLICE / taken)))
        assert len(many.index) == CELLS, "cells have diverged"
    return best[1], best[CELLS]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="METHOD", help="all by default")
    parser.add_argument("--cpu", action="store_true", help="processor time of one thread")
    given = parser.parse_args()
    table = Table(title="64 step sizes on mushrooms, 20 clients: cell-rounds per second")
    table.add_column("method")
    for head in ("separately", "in a batch", "ratio", "asked"):
        table.add_column(head, justify="right")
    clock, below = perf_counter, []
    if given.cpu:
        torch.set_num_threads(1)
        clock = process_time
    for name in given.names or registry.names("algorithm"):
        entry = registry.lookup("algorithm", name)
        one, many = measure(cells_of(entry), clock)
        minibatch = "batch" in entry.params and entry.params["batch"].default != "full"
        asked, ratio = (MINIBATCH if minibatch else FULL), many / one
        style = "" if ratio >= asked else "bold"
        if ratio < asked:
            below.append(name)
        table.add_row(
            name, f"{one:,.0f}", f"{many:,.0f}", f"{ratio:.1f}", f"{asked:g}", style=style
        )
    Console(width=100).print(table)
    print("all as asked" if not below else f"below what was asked: {', '.join(below)}")


if __name__ == "__main__":
    main()
