"""What a sweep costs beside its rounds, from 100 cells to 100,000: expanding, planning, running, resuming, loading.

    python benchmarks/planning.py                                 # 100, 1,000 and 10,000 cells, in this process's core
    python benchmarks/planning.py --cells 100000 --through ray    # one size, its rounds through Ray
    python benchmarks/planning.py --through none                  # expanding and planning alone

The sweeps are marina and diana on breast_cancer with five K and ten step sizes, and as many seeds as it takes.
Each phase is a process of its own, and its peak memory is that of this process (of the driver, where Ray is).

    expand   the cells of the sweep file, with their ids           floor: hash the config of every cell
    plan     resolve and batch them, admission included            floor: the same
    run      ``raybench sweep``, the rounds included               none
    resume   the same command when all is there                    floor: read and hash all files
    cells    ``raybench.store.cells``                              floor: pyarrow's reading of the same files
    load     ``raybench.load``, every row of every curve           floor: the same
    costs    ``raybench.analysis.to_target``, every cell           floor: the same

Seconds of run and resume include the start of Python and its imports, those of the others do not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from processes import memory

EACH = 2 * 5 * 10  # cells of one seed: methods, K, steps
SWEEP = """
name: planning
problem: {{name: logistic, dataset: breast_cancer, scale: columns, clients: 20, regularizer: nonconvex, lambda: 0.1}}
algorithm: [marina, diana]
compressor: {{name: rand_k, k: [1, 2, 3, 5, 10]}}
step_size: {{theory: 2^-2..2^7}}
seed: 0..{last}
rounds: {rounds}
"""
COMMAND = [sys.executable, "-c", "from raybench.cli import main; main()", "sweep"]
Figures = dict[str, float]


# Phases that are functions: each in a process of its own ----------------------------------------------


def timed(work: Callable[[], object]) -> tuple[float, object]:
    """Return the seconds of some work, and what it returned."""
    began = perf_counter()
    result = work()
    return perf_counter() - began, result


def hashed(cells: Sequence[Any]) -> float:
    """Return the seconds that the canonical texts of configs and their digests take.

    The configs of few cells are held at once: those of all take more memory than what is measured.
    """
    from raybench.spec.model import canonical

    total = 0.0
    for at in range(0, len(cells), EACH):
        configs = [cell.config() for cell in cells[at : at + EACH]]
        total += timed(lambda: [hashlib.sha256(canonical(c).encode()).digest() for c in configs])[0]  # noqa: B023
    return total


def expand(file: Path, out: Path) -> Figures:
    from raybench import spec
    from raybench.core import registry

    for kind in registry.BUILTIN_PACKAGES:
        registry.names(kind)  # imports
    seconds, sweep = timed(lambda: spec.load(file))
    return {"seconds": seconds, "floor": hashed(sweep.cells)}


def plan(file: Path, out: Path) -> Figures:
    from raybench import spec
    from raybench.execution.costs import check_memory_and_disk
    from raybench.execution.plan import make_plan

    make_plan(spec.load(file, sets=["seed=0"]))  # the data, and kernels
    sweep = spec.load(file)
    seconds, _ = timed(lambda: check_memory_and_disk(make_plan(sweep), out.parent))
    return {"seconds": seconds, "floor": hashed(sweep.cells)}


def _reading(out: Path, parts: Sequence[str]) -> float:
    """Return the seconds of pyarrow's reading of the tables in these folders, on one core."""
    import pyarrow.parquet as pq

    files = [file for part in parts for file in (out / part).iterdir()]
    return timed(lambda: [len(pq.read_table(file, use_threads=False)) for file in files])[0]


READERS = {  # what reads results: a function, and the folders of the tables that it needs
    "cells": ("raybench.store", "cells", ["cells"]),
    "load": ("raybench", "load", ["cells", "curves"]),
    "costs": ("raybench.analysis", "to_target", ["cells", "curves"]),
}


def read(name: str, file: Path, out: Path) -> Figures:
    module, function, parts = READERS[name]
    reader = getattr(import_module(module), function)
    return {"floor": _reading(out, parts), "seconds": timed(lambda: reader(out))[0]}


FUNCTIONS = {"expand": expand, "plan": plan, **{name: partial(read, name) for name in READERS}}


# Phases in processes ---------------------------------------------------------------------------------


def ran(command: list[str]) -> Figures:
    """Return seconds and peak memory, in MiB, of a command, whose output is dropped."""
    began, peak = perf_counter(), 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.returncode is None:
        peak = max(peak, memory("VmHWM", process.pid))
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return {"seconds": perf_counter() - began, "memory": peak / 2**20}


def apart(name: str, file: Path, out: Path) -> Figures:
    """Return what a phase found in a process of its own."""
    with tempfile.NamedTemporaryFile("r") as told:
        phase = [sys.executable, __file__, "--phase", name, str(file), str(out), told.name]
        return {**ran(phase), **json.loads(told.read())}


def hashing(out: Path) -> float:
    """Return the seconds that reading and hashing all shards takes."""
    files = [f for folder in ("cells", "curves") for f in (out / folder).iterdir()]
    return timed(lambda: [hashlib.sha256(f.read_bytes()).digest() for f in files])[0]


def shown(cells: int, name: str, figures: Figures) -> None:
    floor = figures.get("floor")
    beside = f"{floor:9.3f} s {figures['seconds'] / floor:8.1f} x" if floor else ""
    each = 1e3 * figures["seconds"] / cells
    spent = f"{figures['seconds']:9.3f} s {each:8.4f} ms {figures['memory']:7.0f} MiB"
    print(f"{cells:>8,} {name:8} {spent}  {beside}", flush=True)


def measured(count: int, rounds: int, through: str, folder: Path, skip: list[str]) -> None:
    """Print the phases of one size."""
    file, out = folder / f"planning-{count}.yaml", folder / f"results-{count}"
    file.write_text(SWEEP.format(last=count // EACH - 1, rounds=rounds))
    command = [*COMMAND, str(file), "--out", str(out)]
    phases: dict[str, Callable[[], Figures]] = {
        "expand": lambda: apart("expand", file, out),
        "plan": lambda: apart("plan", file, out),
    }
    if through != "none":
        inline = ["--inline"] if through == "inline" else []
        phases["run"] = lambda: ran([*command, *inline])
        phases["resume"] = lambda: {**ran([*command, *inline]), "floor": hashing(out)}
        for name in READERS:
            phases[name] = partial(apart, name, file, out)
    for name, phase in phases.items():
        if name not in skip:
            shown(count, name, phase())


def main() -> None:
    """Measure, and print a line per size and phase."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--through", choices=["inline", "ray", "none"], default="inline")
    parser.add_argument("--skip", nargs="*", default=[], help="phases to leave out, such as load")
    parser.add_argument("--phase", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.phase:
        from raybench.core.process import tune_process

        tune_process()
        name, file, out, answer = arguments.phase
        Path(answer).write_text(json.dumps(FUNCTIONS[name](Path(file), Path(out))))
        return
    if any(n % EACH for n in arguments.cells):
        parser.error(f"--cells: multiples of {EACH}, a cell for each method, K and step size")
    print(f"{arguments.rounds} rounds, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    heads = f"{'':>11} {'each':>11} {'memory':>11}  {'floor':>11} {'ratio':>10}"
    print(f"{'cells':>8} {'phase':8} {heads}")
    with tempfile.TemporaryDirectory() as folder:
        for count in arguments.cells:
            measured(count, arguments.rounds, arguments.through, Path(folder), arguments.skip)


if __name__ == "__main__":
    main()
