"""CPUs and shares of GPUs: what the workers of a sweep take of them, how ranks talk, and whether they are here."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

from raybench.core import registry
from raybench.core.errors import InputError
from raybench.execution.plan import Plan
from raybench.spec.model import Resources


def backend_of(each: float) -> str:
    """Return the backend of torch.distributed for ranks with so many GPUs each.

    NCCL wants a GPU of its own for every rank: two ranks with half of one, or less, may share it, and
    two with more than half cannot. Without GPUs, or with shared ones, ranks talk by gloo.
    """
    return "nccl" if each > 0.5 else "gloo"


def workers_on(gpus: float, each: float) -> int:
    """Return how many workers with so many GPUs each fit on these; a share lies on a single one."""
    if each > 1:
        return int(gpus / each + 1e-9)
    return int(gpus + 1e-9) * int(1 / each + 1e-9)  # 1 / 0.1 are 10, not 9.999


def gpus_for(workers: int, each: float) -> int:
    """Return how many GPUs so many workers take at least."""
    if each > 1:
        return workers * int(each)
    return math.ceil(workers / int(1 / each + 1e-9)) if each else 0


def check_gpus(resources: Resources, workers: int, here: float) -> None:
    """Raise InputError where the workers of a trial need more GPUs than are here: they would never start."""
    each = resources.gpus_per_worker
    needed = gpus_for(workers, each)
    if needed > here:
        who = f"{workers} workers with {each:g} GPUs each" if workers > 1 else f"{each:g} GPUs"
        there = f"there {'is' if here == 1 else 'are'} {here:g}" if here else "there is none"
        what = f"{who} take {needed} GPU{'s' if needed > 1 else ''}, and {there}"
        raise InputError.of("resources.gpus_per_worker", what, "0 runs on CPUs")


def crowded(resources: Resources) -> list[str]:
    """Return a note where the workers of a trial need more CPUs than this machine has: they take turns."""
    needed, here = resources.workers * resources.cpus_per_worker, os.cpu_count() or 1
    if needed <= here:
        return []
    who = f"{resources.workers} workers take {needed:g} CPUs, and this machine has {here}"
    return [f"resources.workers: {who}: they share them, and take longer"]


def mode_of(plan: Plan) -> str:
    """Return ``simulate`` or ``train``, after checking that the workers can host the clients.

    Raises InputError where there are more workers than clients.
    """
    resources = plan.sweep.resources
    mode = resources.mode
    if mode == "auto":
        mode = "train" if resources.workers > 1 else "simulate"
    if mode == "train":
        for name in sorted({b.cells[0].cell.algorithm.name for b in plan.batches}):
            if registry.lookup("algorithm", name).facts.clock:
                what = f"{name} lives on one clock for all clients, and runs in one process"
                raise InputError.of("resources.mode", what, "leave mode and workers out")
        fewest = min((b.facts["clients"] for b in plan.batches), default=1 << 30)
        if resources.workers > fewest:
            what = f"{resources.workers} workers for {fewest} clients"
            raise InputError.of("resources.workers", what, f"at most {fewest}: each hosts a client")
    elif resources.workers > 1:
        what = f"mode simulate runs all clients in one process, not on {resources.workers} workers"
        raise InputError.of("resources.workers", what, "set resources.mode: train")
    return mode


def group_of(resources: Resources, mode: str) -> int:
    """Return how many processes a trial has that take CPUs and GPUs."""
    return resources.workers if mode == "train" else 1


def slots_of(resources: Resources, here: Mapping[str, float], workers: int) -> int:
    """Return how many trials of so many workers run at once with the CPUs and GPUs that are here.

    One at least, and no more where wall-clock time is studied.
    """
    if resources.timing == "exclusive":
        return 1
    fits = here.get("CPU", 0.0) / (workers * resources.cpus_per_worker) + 1e-9
    if resources.gpus_per_worker:
        fits = min(fits, workers_on(here.get("GPU", 0.0), resources.gpus_per_worker) / workers)
    return max(1, int(fits))  # 1 / 0.1 workers are 10, not 9.999
