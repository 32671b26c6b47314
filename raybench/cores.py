"""Sharing the work of compiled kernels (which release the GIL) among the cores."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch

WORTH_THREADS = 1_500_000  # additions below which waking a thread costs more than it brings
_pool: ThreadPoolExecutor | None = None


def _forget_pool() -> None:
    global _pool
    _pool = None  # a forked child has none of its parent's threads


os.register_at_fork(after_in_child=_forget_pool)


def run_shared(work: Callable[[int, int], None], items: int, cost: float) -> None:
    """Run ``work(lo, hi)`` over range(items), on torch's number of threads where it pays."""
    global _pool
    threads = min(torch.get_num_threads(), items)
    if threads < 2 or cost < WORTH_THREADS:
        return work(0, items)
    if _pool is None or _pool._max_workers < threads - 1:
        _pool = ThreadPoolExecutor(threads - 1, thread_name_prefix="raybench")
    pieces = min(items, 4 * threads)
    ends = [items * i // pieces for i in range(pieces + 1)]
    left = iter(list(pairwise(ends)))

    def take() -> None:
        for lo, hi in left:  # shared: whoever is free takes the next piece
            work(lo, hi)

    helpers = [_pool.submit(take) for _ in range(threads - 1)]
    take()
    for helper in helpers:
        if not helper.cancel():  # on a busy machine a helper may wake when all is done
            helper.result()
    return None
