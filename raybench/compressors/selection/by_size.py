"""Selecting the largest entries of a row without sorting it.

Magnitudes are compared as integers: the bits of |x| order as |x| does, zeros of both signs are one, a
NaN counts as infinity. How many of a row exceed a cut is a loop without branches, which the compiler
vectorises, so the k-th size is found by bisection over counts. Of a long row only what exceeds a cut
guessed from a sample goes into the bisection; the guess decides the time, never the result. On other
devices than the CPU the same is done in plain torch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raybench.core.compiled import compiled
from raybench.core.parallel import run_shared
from raybench.core.streams import hash_numba

Ragged = tuple[Tensor, Tensor, Tensor]  # counts (*lead), indices and values (*lead, most)
COST_OF_SELECTING = 8.0  # a coordinate, in additions
COST_OF_LISTING = 2.0
PLAIN_STEPS = (
    9  # of a bisection that only count; later ones look for sizes that occur, at twice the cost
)
MOST_IN_GROUP = 64  # entries of a row that are represented by their largest
SHARE_PASSED_OVER = 256  # groups are passed over where at most one entry of so many is kept


class Form(NamedTuple):
    """Floats seen as integers: their type, the bits of |x|, and the bits of infinity."""

    integer: type[np.signedinteger[Any]]
    mask: np.signedinteger[Any]
    inf: np.signedinteger[Any]


FORMS = {
    torch.float32: Form(np.int32, np.int32(2**31 - 1), np.int32(0x7F800000)),
    torch.float64: Form(np.int64, np.int64(2**63 - 1), np.int64(0x7FF0000000000000)),
}


def bits_of(x: Tensor) -> np.ndarray:
    """Return x (*lead, d) on the CPU as integers (R, d) over the same memory."""
    return x.detach().reshape(-1, x.shape[-1]).numpy().view(FORMS[x.dtype].integer)


# Pieces of kernels -----------------------------------------------------------------------------


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


@compiled(inline="always")
def count_above(sizes, cut):
    """Return how many of sizes (n,) exceed a cut."""
    found = 0
    for j in range(sizes.shape[0]):
        found += sizes[j] > cut
    return found


@compiled(inline="always")
def cut_of_largest(sizes, k):
    """Return (cut, ties): the k largest of sizes (n,) are those above the cut and ``ties`` equal to it.

    Integers >= 0, 1 <= k <= n. Where many sizes are equal, halving would take as many steps as a size
    has bits; so later steps end at sizes that occur, and each leaves at least one of them behind.
    """
    low, high, one = sizes[0], sizes[0], sizes.dtype.type(1)
    for j in range(sizes.shape[0]):
        low, high = min(low, sizes[j]), max(high, sizes[j])
    equal = count_above(sizes, high - one)
    if equal >= k:  # the largest alone: k = 1, or many that are equal
        return (high - one, 0) if equal == k else (high, k)
    low -= one
    high -= one
    steps = 0
    while high - low > one:  # at least k exceed low, fewer than k exceed high
        cut = low + ((high - low) >> one)
        below, over = cut, cut + one
        if steps < PLAIN_STEPS:
            found = count_above(sizes, cut)
        else:
            found, below, over = _neighbours(sizes, cut, low, high)
        steps += 1
        if found > k:
            low = over - one
        elif found < k:
            high = below
        else:
            return cut, 0
    return high, k - count_above(sizes, high)


@compiled
def kth_largest(sizes, k):
    """Return the k-th largest of sizes (n,), integers >= 0, 1 <= k <= n."""
    cut, ties = cut_of_largest(sizes, k)
    if ties > 0:
        return cut
    least = sizes.max()
    for j in range(sizes.shape[0]):
        least = min(least, sizes[j] if sizes[j] > cut else least)
    return least


@compiled(inline="always")
def count_in(row, cut, mask, inf):
    """Return how many entries of a row (d,), seen as integers, have a size above a cut."""
    found = 0
    for j in range(row.shape[0]):
        found += min(row[j] & mask, inf) > cut
    return found


@compiled
def list_above(row, cut, mask, inf, found, place):
    """Write the places of a row (d,) with a size above a cut, ascending, to place (d + 1,); return how many.

    found: about how many there are. Where they are few, groups without any are passed over.
    """
    d, few, found = row.shape[0], found * SHARE_PASSED_OVER <= row.shape[0], 0
    for start in range(0, d, MOST_IN_GROUP):
        end = min(start + MOST_IN_GROUP, d)
        if few and count_in(row[start:end], cut, mask, inf) == 0:
            continue
        for j in range(start, end):  # without branches on the sizes, which nobody can foresee
            place[found] = j
            found += min(row[j] & mask, inf) > cut
    return found


@compiled
def listed(keep, start, found, place):
    """Write start + j for every j with keep[j] (0 or 1) to place[found:]; return where they end."""
    for j in range(keep.shape[0]):
        place[found] = start + j
        found += keep[j]
    return found


@compiled
def places_of_sample(d, key, count):
    """Return ``count`` places of d, one at random in each equal stretch."""
    found = np.empty(count, np.int64)
    for j in range(count):
        jitter = np.float64(hash_numba(key, np.uint64(j)) >> np.uint64(11)) * 2.0**-53
        found[j] = min(np.int64((j + jitter) * (d / count)), d - 1)
    return found


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
def places_of_largest(row, k, mask, inf, sizes, place):
    """Write the places of the k >= 1 largest of a row (d,) to place[:k], ascending.

    At least k entries reach the k-th largest of all groups' largest entries, and hardly more where k is
    small. So the bisection runs over the groups, and again over what reaches its cut. sizes, of the
    type of the row, and place: space for d and d + 1.
    """
    d, found = row.shape[0], 0
    group = max(1, min(MOST_IN_GROUP, d // (2 * k)))
    groups = (d + group - 1) // group
    for g in range(groups):
        part, most = row[g * group : min((g + 1) * group, d)], mask ^ mask
        for j in range(part.shape[0]):
            most = max(most, part[j] & mask)
        sizes[g] = min(most, inf)
    cut, ties = cut_of_largest(sizes[:groups], k)
    cut -= ties > 0
    if k * SHARE_PASSED_OVER <= d:  # most groups are passed over
        for g in range(groups):
            if sizes[g] > cut:
                for j in range(g * group, min((g + 1) * group, d)):
                    place[found] = j
                    found += min(row[j] & mask, inf) > cut
    else:
        found = list_above(row, cut, mask, inf, d, place)
    if found > k:
        for i in range(found):
            sizes[i] = min(row[place[i]] & mask, inf)
        keep_largest(sizes[:found], k, place)


@compiled
def _largest(rows, k, mask, inf, where, values):
    d = rows.shape[1]
    sizes, place = np.empty(d, rows.dtype), np.empty(d + 1, np.int32)
    for r in range(rows.shape[0]):
        row, to, kept = rows[r], where[r], values[r]
        places_of_largest(row, k, mask, inf, sizes, place)
        for t in range(k):
            own = np.uint32(place[t])
            to[t], kept[t] = own, row[own]


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

    def work(a: int, b: int) -> None:
        _largest(rows[a:b], k, form.mask, form.inf, to[a:b], kept[a:b])

    run_shared(work, len(rows), COST_OF_SELECTING * rows.size)
    return where, values


def largest_torch(x: Tensor, k: int) -> Tensor:
    """Return the same indices in plain torch: the k-th largest, what exceeds it, and its first ties."""
    size = sizes_torch(x)
    cut = size.topk(k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    above, tie = size > cut, size == cut
    room = k - above.sum(-1, keepdim=True)
    keep = above | (tie & (tie.cumsum(-1) <= room))
    return keep.nonzero()[:, -1].view(*x.shape[:-1], k)


# What exceeds a cut ----------------------------------------------------------------------------


@compiled
def _count_above(rows, cuts, mask, inf, counts):
    for r in range(rows.shape[0]):
        counts[r] = count_in(rows[r], cuts[r], mask, inf)


@compiled
def _list_above(rows, cuts, ties, mask, inf, counts, where, values):
    place = np.empty(rows.shape[1] + 1, np.int32)
    for r in range(rows.shape[0]):
        row, cut, left, found = rows[r], cuts[r], ties[r], 0
        if left == 0:
            list_above(row, cut, mask, inf, counts[r], place)
        else:
            for j in range(row.shape[0]):
                size = min(row[j] & mask, inf)
                place[found] = j
                tie = (size == cut) & (left > 0)
                found += (size > cut) | tie
                left -= tie
        to, kept = where[r], values[r]
        for t in range(counts[r]):
            own = np.uint32(place[t])
            to[t], kept[t] = own, row[own]
        to[counts[r] :] = 0
        kept[counts[r] :] = 0


def counts_above(x: Tensor, cuts: np.ndarray) -> np.ndarray:
    """Return how many entries of row r of x (*lead, d), on the CPU, have a size above cuts[r]: (R,)."""
    rows, form = bits_of(x), FORMS[x.dtype]
    counts = np.empty(len(rows), np.int64)

    def work(a: int, b: int) -> None:
        _count_above(rows[a:b], cuts[a:b], form.mask, form.inf, counts[a:b])

    run_shared(work, len(rows), COST_OF_LISTING * rows.size)
    return counts


def above(x: Tensor, cuts: np.ndarray, ties: np.ndarray | None = None) -> Ragged:
    """Return the entries of row r with a size above cuts[r], and the first ties[r] of that size.

    x (*lead, d) on the CPU; cuts integers (R,) of the form of x, ties int64 (R,), none by default; they
    are there. Indices ascend; beyond a row's count both are zero.
    """
    rows, form, lead = bits_of(x), FORMS[x.dtype], x.shape[:-1]
    own = np.zeros(len(rows), np.int64) if ties is None else ties
    counts = counts_above(x, cuts) + own
    shape = len(rows), int(counts.max(initial=0))
    where, values = torch.empty(shape, dtype=torch.int64), torch.empty(shape, dtype=x.dtype)
    to, kept = where.numpy(), values.numpy().view(rows.dtype)

    def work(a: int, b: int) -> None:
        given = rows[a:b], cuts[a:b], own[a:b], form.mask, form.inf, counts[a:b]
        _list_above(*given, to[a:b], kept[a:b])

    run_shared(work, len(rows), COST_OF_LISTING * rows.size)
    return torch.from_numpy(counts).view(lead), where.view(*lead, -1), values.view(*lead, -1)


# In plain torch --------------------------------------------------------------------------------


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
    flat, mask = x.reshape(-1, x.shape[-1]), keep.reshape(-1, x.shape[-1])
    counts = mask.sum(-1)
    most = int(counts.max()) if len(counts) else 0
    where = torch.zeros(len(flat), most, dtype=torch.int64, device=x.device)
    values = torch.zeros(len(flat), most, dtype=x.dtype, device=x.device)
    r, j = mask.nonzero(as_tuple=True)
    at = torch.arange(len(r), device=x.device) - (counts.cumsum(0) - counts)[r]
    where[r, at], values[r, at] = j, flat[r, j]
    lead = x.shape[:-1]
    return counts.view(lead), where.view(*lead, most), values.view(*lead, most)
