"""The k largest entries of many short rows: the k-th size by bisection over counts.

Magnitudes are compared as integers, as in ``selection``. How many of a row exceed a cut is a loop
without branches that the compiler vectorises, so a step costs a few dozen cycles, and bisection takes
about ten of them on usual data. Where many sizes are equal it would take as many as a size has bits;
so later steps end at sizes that occur, and each leaves at least one of them behind.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.kernels.selection import FORMS, bits_of
from raybench.core.compiled import compiled
from raybench.core.parallel import run_shared

COST = 8.0  # of looking at a coordinate, in additions
PLAIN = 9  # steps that only count; those after them cost twice as much


@compiled(inline="always")
def _above(sizes, cut):
    found = 0
    for j in range(sizes.shape[0]):
        found += sizes[j] > cut
    return found


@compiled(inline="always")
def _neighbours(sizes, cut, low, high):
    """Return how many exceed cut, the largest size up to it, the smallest above it."""
    found, below, over = 0, low, high
    for j in range(sizes.shape[0]):
        size = sizes[j]
        found += size > cut
        below = max(below, low if size > cut else size)
        over = min(over, size if size > cut else high)
    return found, below, over


@compiled
def _by_bisection(rows, k, mask, inf, where, raw):  # k < d
    d, one = rows.shape[1], rows.dtype.type(1)
    sizes, place = np.empty(d, rows.dtype), np.empty(d + 1, np.int32)
    for r in range(rows.shape[0]):
        row, to, values = rows[r], where[r], raw[r]
        low, high = inf, inf - inf
        for j in range(d):
            size = min(row[j] & mask, inf)
            sizes[j], low, high = size, min(low, size), max(high, size)
        # at least k exceed low, fewer than k exceed high
        low -= one
        ties, cut, steps = k, high, 0
        while high - low > one:
            cut = low + ((high - low) >> one)
            below, over = cut, cut + one
            if steps < PLAIN:
                found = _above(sizes, cut)
            else:
                found, below, over = _neighbours(sizes, cut, low, high)
            steps += 1
            ties = k - found
            if found > k:
                low = over - one
            elif found < k:
                high = below
            else:
                break
        if ties != 0:  # the k-th size is ``high``, and others may be equal to it
            cut = high
            ties = k - _above(sizes, cut)
        at = 0
        if ties == 0:  # without branches on the sizes, which nobody can foresee
            for j in range(d):
                place[at] = j
                at += sizes[j] > cut
        else:
            for j in range(d):
                place[at] = j
                tie = (sizes[j] == cut) & (ties > 0)
                at += (sizes[j] > cut) | tie
                ties -= tie
        for t in range(k):
            own = np.uint32(place[t])
            to[t], values[t] = own, row[own]


def largest_of_short(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return indices (int64, ascending) and values of the k largest magnitudes: (*lead, k), x on the CPU.

    Ties go to the lowest index; NaN is as large as infinity.
    """
    if k == x.shape[-1]:
        return torch.arange(k).expand(x.shape).contiguous(), x.clone()
    bits, form = bits_of(x), FORMS[x.dtype]
    where = torch.empty(*x.shape[:-1], k, dtype=torch.int64)
    values = torch.empty(where.shape, dtype=x.dtype)
    to, raw = where.view(-1, k).numpy(), values.view(-1, k).numpy().view(bits.dtype)

    def work(r0: int, r1: int) -> None:
        _by_bisection(bits[r0:r1], k, form.mask, form.inf, to[r0:r1], raw[r0:r1])

    run_shared(work, len(bits), COST * bits.size)
    return where, values
