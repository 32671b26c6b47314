"""CPUs and shares of GPUs: how many workers they take, how ranks that have them talk, and whether they are here."""

from __future__ import annotations

import math
import os

from raybench.core.errors import InputError
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
    who = f"{resources.workers} workers take {needed:g} CPUs"
    return [
        f"resources.workers: {who}, and this machine has {here}: they share them, and take longer"
    ]


def count_here() -> int:
    """Return how many GPUs torch can use on this machine."""
    import torch

    return torch.cuda.device_count()
