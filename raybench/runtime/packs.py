"""Packs: lists of batches, the unit of scheduling; sized so that start-up does not dominate."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from raybench.planning.batch import Batch

PACKS_PER_SLOT = 4  # enough to even out bad estimates of time, few enough to cost little


def packs_of(
    batches: Sequence[Batch],
    work: Callable[[Batch], float],
    slots: int,
    per_slot: int = PACKS_PER_SLOT,
) -> list[list[Batch]]:
    """Return the batches in at most ``slots * per_slot`` packs of like work, largest first.

    Longest processing time first: each batch, from the largest, goes to the lightest pack.
    """
    count = min(len(batches), max(1, slots) * per_slot)
    heap: list[tuple[float, int]] = [(0.0, j) for j in range(count)]
    packs: list[list[Batch]] = [[] for _ in range(count)]
    for batch in sorted(batches, key=lambda b: (-work(b), b.name)):
        load, j = heapq.heappop(heap)
        packs[j].append(batch)
        heapq.heappush(heap, (load + work(batch), j))
    return sorted(packs, key=lambda pack: -sum(map(work, pack)))
