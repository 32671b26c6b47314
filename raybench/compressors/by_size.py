"""Selecting the largest entries of a row without sorting it.

Magnitudes are compared as integers: the bits of |x| order as |x| does, zeros of both signs are one, a
NaN counts as infinity. How many of a row exceed a cut is a loop without branches, which the compiler
vectorises, so the k-th size is found by bisection over counts. Of a long row only what exceeds a cut
guessed from a sample goes into the bisection; the guess decides the time, never the result. Plain torch does
the same on other devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raybench.core.compiled import compiled
from raybench.core.parallel import run_shared

Ragged = tuple[Tensor, Tensor, Tensor]  # counts (*lead), indices and values (*lead, most)
COST_OF_SELECTING = 8.0  # a coordinate, in additions
COST_OF_LISTING = 2.0
PLAIN_STEPS = (
    9  # of a bisection that only count; later ones find sizes that occur, at twice the cost
)
BLOCK = 512  # entries that are marked before those marked are listed
LONG_ROW = 8192  # entries from which on a cut is guessed from a sample
MOST_SAMPLED = 4096


class FloatBits(NamedTuple):
    """Floats seen as integers: their type, the bits of |x|, and the bits of infinity."""

    integer: type[np.signedinteger[Any]]
    mask: np.signedinteger[Any]
    inf: np.signedinteger[Any]


FORMS = {
    torch.float32: FloatBits(np.int32, np.int32(2**31 - 1), np.int32(0x7F800000)),
    torch.float64: FloatBits(np.int64, np.int64(2**63 - 1), np.int64(0x7FF0000000000000)),
}


def run_rows(
    kernel: Callable[..., None], arrays: Sequence[np.ndarray], cost: float, *more: Any
) -> None:
    """Run ``kernel(*arrays, *more)`` on all threads where it pays, each on some of the arrays' rows."""
    run_shared(lambda a, b: kernel(*(part[a:b] for part in arrays), *more), len(arrays[0]), cost)


def bits_of(x: Tensor) -> np.ndarray:
    """Return x (*lead, d) on the CPU as integers (R, d) over the same memory."""
    return x.detach().reshape(-1, x.shape[-1]).numpy().view(FORMS[x.dtype].integer)


# Pieces of kernels -----------------------------------------------------------------------------


@compiled(inline="always")
def _neighbours(sizes, cut, low, high):
    """Return how many exceed cut, the largest size up to it, the smallest above it."""
    count, below, over = 0, low, high
    for j in range(sizes.shape[0]):
        size = sizes[j]
        count += size > cut
        below = max(below, low if size > cut else size)
        over = min(over, size if size > cut else high)
    return count, below, over


@compiled(inline="always")
def count_above(sizes, cut):
    """Return how many of sizes (n,) exceed a cut."""
    count = 0
    for j in range(sizes.shape[0]):
        count += sizes[j] > cut
    return count


@compiled(inline="always")
def cut_of_largest(sizes, k):
    """Return (cut, ties): the k largest of sizes (n,) are those above the cut and ``ties`` equal to it.

    Integers >= 0, 1 <= k <= n. Where many sizes are equal, halving would take as many steps as a size
    has bits; so later steps end at sizes that occur, and each leaves at least one of them behind.
    """
    low, high, unit = sizes[0], sizes[0], sizes.dtype.type(1)
    for j in range(sizes.shape[0]):
        low, high = min(low, sizes[j]), max(high, sizes[j])
    equal = count_above(sizes, high - unit)
    if equal >= k:  # the largest alone: k = 1, or many that are equal
        return (high - unit, 0) if equal == k else (high, k)
    high -= unit
    if low == 0:  # few may be anything else
        more, _, over = _neighbours(sizes, low, low, high)
        if more <= k:
            return low, k - more
        low = over
    low -= unit
    steps = 0
    while high - low > unit:  # at least k exceed low, fewer than k exceed high
        cut = low + ((high - low) >> unit)
        below, over = cut, cut + unit
        if steps < PLAIN_STEPS:
            count = count_above(sizes, cut)
        else:
            count, below, over = _neighbours(sizes, cut, low, high)
        steps += 1
        if count > k:
            low = over - unit
        elif count < k:
            high = below
        else:
            return cut, 0
    return high, k - count_above(sizes, high)


@compiled(inline="always")
def count_in(row, cut, mask, inf):
    """Return how many entries of a row (d,), seen as integers, have a size above a cut."""
    count = 0
    for j in range(row.shape[0]):
        count += min(row[j] & mask, inf) > cut
    return count


@compiled
def listed(marks, size, start, end, place):
    """Append start + j to place[end:] for every j < size with marks[j] = 1, else 0; return where they end.

    marks (BLOCK,) uint8 is read eight at a time; its bytes up to the next multiple of 8 are changed.
    """
    bit, low_bits = np.uint64(1), np.uint64(0x0101010101010101)
    words = (size + 7) // 8
    marks[size : 8 * words] = 0
    eights = marks.view(np.uint64)
    for w in range(words):
        remainder = eights[w]
        while remainder != 0:
            below = (remainder & (~remainder + bit)) - bit  # the bits below the first that is set
            byte = ((below & low_bits) * low_bits) >> np.uint64(
                56
            )  # counts the bytes that they reach into
            place[end] = start + 8 * w + np.int64(byte)
            end += 1
            remainder &= remainder - bit
    return end


@compiled
def list_above(row, cut, mask, inf, start, end, marks, place):
    """Append the places, from ``start`` on, of a row (d,) with a size above a cut to place[end:].

    Ascending. marks: space (BLOCK,) uint8. Returns where they end.
    """
    for first in range(start, row.shape[0], BLOCK):
        part = row[first : min(first + BLOCK, row.shape[0])]
        for j in range(part.shape[0]):
            marks[j] = min(part[j] & mask, inf) > cut
        end = listed(marks, part.shape[0], first, end, place)
    return end


@compiled
def list_largest(row, cut, ties, mask, inf, marks, place):
    """Write the places of a row with a size above a cut, and the first ``ties`` of that size, to place.

    Returns how many there are.
    """
    count = start = 0
    while ties > 0:
        size = min(row[start] & mask, inf)
        place[count] = start
        count += size >= cut
        ties -= size == cut
        start += 1
    return list_above(row, cut, mask, inf, start, count, marks, place)


@compiled
def keep_largest(sizes, k, place):
    """Move the places (n,) of the k largest of sizes (n,) to the front, in order; of ties the first."""
    cut, ties = cut_of_largest(sizes, k)
    at = 0
    for i in range(sizes.shape[0]):  # without branches on the sizes, which nobody can foresee
        place[at] = place[i]
        tie = (sizes[i] == cut) & (ties > 0)
        at += (sizes[i] > cut) | tie
        ties -= tie


# The k largest ---------------------------------------------------------------------------------


@compiled
def _guess(row, k, mask, inf, sizes):
    """Return a cut that slightly more than k entries of a long row probably exceed, from a sample."""
    d = row.shape[0]
    count = min(MOST_SAMPLED, d // 8)
    stretch, share = d // count, k * count / d
    for i in range(count):  # one of every stretch
        sizes[i] = min(row[i * stretch + (i * 7919) % stretch] & mask, inf)
    rank = np.int64(share + 3 * np.sqrt(share) + 2)
    cut, ties = cut_of_largest(sizes[:count], min(rank, count))
    return max(cut - sizes.dtype.type(ties > 0), mask ^ mask)  # of a sparse row what is not zero


@compiled
def places_of_largest(row, k, mask, inf, sizes, marks, place):
    """Write the places of the k >= 1 largest of a row (d,) to place[:k], ascending.

    Of a long row those that exceed a guessed cut, if they are at least k and not many more, and the
    largest of them; else by bisection over all. The guess decides the time, never the result. sizes,
    of the type of the row, and place: space for d and d + 1; marks: (BLOCK,) uint8.
    """
    d = row.shape[0]
    if d >= LONG_ROW:
        cut = _guess(row, k, mask, inf, sizes)
        count = count_in(row, cut, mask, inf)
        if k <= count <= 2 * k + d // 64:
            list_above(row, cut, mask, inf, 0, 0, marks, place)
            for i in range(count):
                sizes[i] = min(row[place[i]] & mask, inf)
            if count > k:
                keep_largest(sizes[:count], k, place)
            return
    for j in range(d):
        sizes[j] = min(row[j] & mask, inf)
    cut, ties = cut_of_largest(sizes[:d], k)
    list_largest(row, cut, ties, mask, inf, marks, place)


@compiled
def _largest(rows, where, values, k, mask, inf):
    d = rows.shape[1]
    sizes, place = np.empty(d, rows.dtype), np.empty(d + 1, np.int32)
    marks = np.empty(BLOCK, np.uint8)
    for r in range(rows.shape[0]):
        row, to, kept = rows[r], where[r], values[r]
        places_of_largest(row, k, mask, inf, sizes, marks, place)
        for t in range(k):
            entry = np.uint32(place[t])
            to[t], kept[t] = entry, row[entry]


def largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return indices (int64, ascending) and values of the k largest |x_j| of x (*lead, d): (*lead, k).

    Ties go to the lowest index; NaN is as large as infinity.
    """
    if x.device.type != "cpu":
        where = largest_torch(x, k)
        return where, x.gather(-1, where)
    rows, form = bits_of(x), FORMS[x.dtype]
    where = torch.empty(*x.shape[:-1], k, dtype=torch.int64)
    values = torch.empty(where.shape, dtype=x.dtype)
    to, kept = where.view(-1, k).numpy(), values.view(-1, k).numpy().view(rows.dtype)
    run_rows(_largest, (rows, to, kept), COST_OF_SELECTING * rows.size, k, form.mask, form.inf)
    return where, values


def largest_torch(x: Tensor, k: int) -> Tensor:
    """Return the same indices in plain torch: the k-th largest, what exceeds it, and its first ties."""
    size = sizes_torch(x)
    cut = size.topk(k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    above, tie = size > cut, size == cut
    room = k - above.sum(-1, keepdim=True)
    keep = above | (tie & (tie.cumsum(-1) <= room))
    return keep.nonzero()[:, -1].view(*x.shape[:-1], k)


# What exceeds a cut, and any selection by marks ------------------------------------------------


def above(x: Tensor, cuts: np.ndarray, ties: np.ndarray) -> Ragged:
    """Return the entries of row r with a size above cuts[r], and the first ties[r] of that size.

    x (*lead, d) on the CPU; cuts integers (R,) of the form of x; ties int64 (R,), which there are.
    Indices ascend; beyond a row's count both are zero.
    """
    rows, form, lead, counts = bits_of(x), FORMS[x.dtype], x.shape[:-1], ties.copy()
    cost, limits = COST_OF_LISTING * rows.size, (form.mask, form.inf)
    run_rows(_count_above, (rows, cuts, counts), cost, *limits)
    most = int(counts.max(initial=0))
    where = torch.zeros(len(rows), most, dtype=torch.int64)
    values = torch.zeros(where.shape, dtype=x.dtype)
    arrays = rows, cuts, ties, where.numpy(), values.numpy().view(rows.dtype)
    run_rows(_list_above, arrays, cost, *limits)
    return torch.from_numpy(counts).view(lead), where.view(*lead, most), values.view(*lead, most)


@compiled
def _count_above(rows, cuts, counts, mask, inf):
    for r in range(rows.shape[0]):
        counts[r] += count_in(rows[r], cuts[r], mask, inf)


@compiled
def _list_above(rows, cuts, ties, where, values, mask, inf):
    place, marks = np.empty(rows.shape[1] + 1, np.int32), np.empty(BLOCK, np.uint8)
    for r in range(rows.shape[0]):
        row, to, kept = rows[r], where[r], values[r]
        for t in range(list_largest(row, cuts[r], ties[r], mask, inf, marks, place)):
            entry = np.uint32(place[t])
            to[t], kept[t] = entry, row[entry]


def sizes_torch(x: Tensor) -> Tensor:
    """Return |x| with NaN as infinity."""
    return torch.where(x.isnan(), torch.inf, x.abs())


def rank_of(size: Tensor) -> Tensor:
    """Return the place of each entry in descending order, ties by lowest index: int64 (*lead, d)."""
    order = size.argsort(dim=-1, descending=True, stable=True)
    places = torch.arange(size.shape[-1], device=size.device).expand(size.shape)
    return torch.empty_like(order).scatter_(-1, order, places)


def ragged(x: Tensor, keep: Tensor) -> Ragged:
    """Return counts, indices and values of the entries to keep (bool, as x (*lead, d)).

    Indices ascend; beyond a row's count both are zero.
    """
    lead, d = x.shape[:-1], x.shape[-1]
    rows, mask = x.detach().reshape(-1, d), keep.reshape(-1, d)
    counts = mask.sum(-1)
    most = int(counts.max()) if len(counts) else 0
    where = torch.zeros(len(rows), most, dtype=torch.int64, device=x.device)
    values = torch.zeros(len(rows), most, dtype=x.dtype, device=x.device)
    if x.device.type == "cpu":
        arrays = [part.numpy() for part in (rows, mask, where, values)]
        run_rows(_list, arrays, COST_OF_LISTING * rows.numel())
    else:
        r, j = mask.nonzero(as_tuple=True)
        at = torch.arange(len(r), device=x.device) - (counts.cumsum(0) - counts)[r]
        where[r, at], values[r, at] = j, rows[r, j]
    return counts.view(lead), where.view(*lead, most), values.view(*lead, most)


@compiled
def _list(rows, keep, where, values):
    d = rows.shape[1]
    place, marks = np.empty(d + 1, np.int32), np.empty(BLOCK, np.uint8)
    for r in range(rows.shape[0]):
        end = 0
        for start in range(0, d, BLOCK):
            part = keep[r, start : min(start + BLOCK, d)]
            for j in range(part.shape[0]):
                marks[j] = part[j]
            end = listed(marks, part.shape[0], start, end, place)
        for t in range(end):
            at = np.uint32(place[t])
            where[r, t], values[r, t] = at, rows[r, at]
