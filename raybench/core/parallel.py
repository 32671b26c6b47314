"""Threads: work of compiled kernels (which release the GIL) shared among the cores."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

import torch

WORTH_THREADS = 1_500_000  # additions below which waking a thread costs more than it brings
# Entries of a tensor below which waking a thread costs torch more than it brings.
LEAST_ENTRIES_FOR_THREADS = 1 << 20
ALIGN = 2560  # long rows are cut at its multiples: whole blocks of every packing (512, 320)
_pool: ThreadPoolExecutor | None = None


def _forget_pool() -> None:
    global _pool
    _pool = None  # a forked child has none of its parent's threads


os.register_at_fork(after_in_child=_forget_pool)


# .threads: torch's number outside ``one_thread``. Torch keeps its number per thread, so do we
_given = threading.local()


def threads() -> int:
    """Return how many threads may be used here: torch's number, also inside ``one_thread``."""
    outside: int | None = getattr(_given, "threads", None)
    return torch.get_num_threads() if outside is None else outside


@contextmanager
def one_thread(entries: int) -> Iterator[None]:
    """Run torch's own operations on one thread if they are on tensors of fewer than 2^20 entries.

    Measured on two cores: a product of 2^17 numbers takes 18 us on one thread and 62 us on two, of
    which 50 wake the second; the two are even at 2^20. Our kernels keep all threads.
    """
    before, outside = getattr(_given, "threads", None), torch.get_num_threads()
    _given.threads = threads()
    torch.set_num_threads(1 if entries < LEAST_ENTRIES_FOR_THREADS else threads())
    try:
        yield
    finally:
        torch.set_num_threads(outside)
        _given.threads = before


@contextmanager
def all_threads() -> Iterator[None]:
    """Give torch all threads again inside ``one_thread``: for matrix products, which are worth it."""
    inside = torch.get_num_threads()
    torch.set_num_threads(threads())
    try:
        yield
    finally:
        torch.set_num_threads(inside)


def run_shared(work: Callable[[int, int], None], items: int, cost: float) -> None:
    """Run ``work(lo, hi)`` over range(items), on all threads where it pays."""
    global _pool
    many = min(threads(), items)
    if many < 2 or cost < WORTH_THREADS:
        return work(0, items)
    if _pool is None or _pool._max_workers < many - 1:
        _pool = ThreadPoolExecutor(many - 1, thread_name_prefix="raybench")
    pieces = min(items, 4 * many)
    ends = [items * i // pieces for i in range(pieces + 1)]
    pieces_ahead = iter(list(pairwise(ends)))

    def take() -> None:
        for lo, hi in pieces_ahead:  # shared: whoever is free takes the next piece
            work(lo, hi)

    helpers = [_pool.submit(take) for _ in range(many - 1)]
    take()
    for helper in helpers:
        if not helper.cancel():  # on a busy machine a helper may wake when all is done
            helper.result()
    return None


def run_tiled(
    work: Callable[[int, int, int, int], None], rows: int, d: int, cost: float, align: int = ALIGN
) -> None:
    """Run ``work(r0, r1, lo, hi)`` over rows r0..r1 and coordinates lo..hi, shared among the cores.

    Many rows are shared out whole; few long ones are cut at multiples of ``align``. cost: of a
    coordinate, in additions. Inside a kernel slice first (``row = rows[r, lo:hi]``) and count from 0:
    with an offset the compiler keeps a check for negative indices and does not vectorise.
    """
    if rows >= 2 * threads() or rows * d * cost < WORTH_THREADS or d <= align:
        return run_shared(lambda a, b: work(a, b, 0, d), rows, rows * d * cost)
    tiles = -(-d // align)

    def piece(a: int, b: int) -> None:
        while a < b:  # a run of tiles may end one row and begin the next
            r, first = divmod(a, tiles)
            last = min(b, (r + 1) * tiles)
            work(r, r + 1, first * align, min((last - r * tiles) * align, d))
            a = last

    return run_shared(piece, rows * tiles, rows * d * cost)
