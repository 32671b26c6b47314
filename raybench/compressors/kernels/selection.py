"""Selecting the largest entries of a row without sorting it.

Magnitudes are compared as integers: the bits of |x| order as |x| does, zeros of both signs are one, a
NaN counts as infinity. A row is read once to mark what lies above a cut (a bit per coordinate), what
is marked is collected in ascending order, and what is asked for is found among the collected. The
cut is a guess from a sample that lets slightly more than k pass; it decides the speed, never the
result.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raybench.core.compiled import compiled
from raybench.core.parallel import run_shared
from raybench.core.streams import hash_numba
from raybench.wire.marks import collect, lowest, mark, within

SAMPLE = 32_768  # positions that the guess looks at, at most
BUCKETS = 2048  # of a histogram
ROUNDS, SHORT = (
    8,
    256,
)  # ranks up to which the largest is taken so often; 4 times that in short rows


class Form(NamedTuple):
    """Floats seen as integers: their type, the bits of |x|, and the bits of infinity."""

    integer: Any
    mask: Any
    inf: Any


FORMS = {
    torch.float32: Form(np.int32, np.int32(2**31 - 1), np.int32(0x7F800000)),
    torch.float64: Form(np.int64, np.int64(2**63 - 1), np.int64(0x7FF0000000000000)),
}


def bits_of(x: Tensor) -> np.ndarray:
    """Return x (*lead, d) on the CPU as integers (R, d) over the same memory."""
    return x.detach().reshape(-1, x.shape[-1]).numpy().view(FORMS[x.dtype].integer)


# Pieces of kernels -----------------------------------------------------------------------------


@compiled
def kth_largest(sizes, k):
    """Return the k-th largest of integers >= 0, and how many equal to it are among the k largest.

    Overwrites ``sizes`` (n,), n >= k >= 1.
    """
    n = sizes.shape[0]
    if k > (4 * ROUNDS if n <= SHORT else ROUNDS):
        return refine(sizes, k, np.empty(BUCKETS, np.int64), None, 0.0)
    last = sizes[0]
    for i in range(n):
        last = max(last, sizes[i])
    while True:  # from the largest downwards, one size at a time
        equal, below = 0, sizes.dtype.type(-1)
        for i in range(n):
            equal += sizes[i] == last
            below = max(below, sizes[i] if sizes[i] < last else sizes.dtype.type(-1))
        if k <= equal:
            return last, k
        k -= equal
        last = below


@compiled
def padded(d, like):
    """Return zeros (m,) of the type of ``like`` for d sizes and whole words of 64 after them."""
    return np.zeros(-(-d // 64) * 64, like.dtype)


@compiled
def kth_above(sizes, low, k, mask, space):
    """Return ``kth_largest`` of padded sizes, at least k of which exceed ``low``; keeps them.

    space: (m,) like ``sizes``, overwritten.
    """
    if k <= (4 * ROUNDS if sizes.shape[0] <= SHORT else ROUNDS):
        return kth_largest(sizes, k)
    n = 0
    for w in range(sizes.shape[0] // 64):
        word = within(sizes, w * 64, low, mask)
        while word != 0:
            space[n] = sizes[w * 64 + lowest(word)]
            n += 1
            word &= word - np.uint64(1)
    return kth_largest(space[:n], k)


@compiled
def refine(sizes, needed, weight, values, scale):
    """Return (cut, ties): the largest of sizes that weigh ``needed``, and how many equal to the least.

    Every size weighs 1 (values: None), or its energy: values are the same memory as floats, the
    energy being that of values times ``scale``. By histograms, so in time linear whatever the data.
    Reorders sizes (n,), n >= 1, integers >= 0. weight: space (BUCKETS,) of the type of ``needed``.
    """
    n, above = sizes.shape[0], weight.dtype.type(0)
    found = np.empty(BUCKETS, np.int64)
    while True:
        if n == 1:
            return sizes[0] + 0, np.int64(1)
        low, high = sizes[0], sizes[0]
        for i in range(n):
            low, high = min(low, sizes[i]), max(high, sizes[i])
        shift = 0
        while (high - low) >> shift >= BUCKETS:
            shift += 1
        weight[:] = 0
        if values is None:
            for i in range(n):
                weight[(sizes[i] - low) >> shift] += 1
        else:
            found[:] = 0
            for i in range(n):
                bucket, part = (sizes[i] - low) >> shift, np.float64(values[i]) * scale
                weight[bucket] += part * part
                found[bucket] += 1
        bucket = (high - low) >> shift
        while bucket > 0 and above + weight[bucket] < needed:
            above += weight[bucket]
            bucket -= 1
        if shift == 0:
            if values is None:
                return low + bucket, np.int64(needed - above)
            ties, each = found[bucket], weight[bucket] / found[bucket]
            if each > 0:
                ties = min(max(np.int64(np.ceil((needed - above) / each)), 1), ties)
            return low + bucket, ties
        kept = 0
        for i in range(n):
            value = sizes[i]
            sizes[kept] = value
            kept += (value - low) >> shift == bucket
        n = kept


@compiled
def keep_cut(where, raw, sizes, cut, ties, out, values):
    """Write the indices and values whose size exceeds the cut, and the first ``ties`` equal to it.

    Returns how many; ``out`` and ``values`` may be ``where`` and ``raw``.
    """
    at, room = 0, out.shape[0]
    for i in range(where.shape[0]):  # without branches on the sizes, which nobody can foresee
        if at == room:
            break
        tie = (sizes[i] == cut) & (ties > 0)
        out[at], values[at] = where[i], raw[i]
        at += (sizes[i] > cut) | tie
        ties -= tie
    return at


@compiled
def sizes_of(raw, mask, inf):
    """Return the magnitudes of bits (n,), NaN as infinity."""
    sizes = np.empty_like(raw)
    for i in range(raw.shape[0]):
        sizes[i] = min(raw[i] & mask, inf)
    return sizes


@compiled
def sample(row, key, count):
    """Return the bits at ``count`` places of a row (d,), one at random in each equal stretch."""
    d = row.shape[0]
    raw = np.empty(count, row.dtype)
    for j in range(count):
        jitter = np.float64(hash_numba(key, np.uint64(j)) >> np.uint64(11)) * 2.0**-53
        raw[j] = row[min(np.int64((j + jitter) * (d / count)), d - 1)]
    return raw


# In plain torch --------------------------------------------------------------------------------


def sizes_torch(x: Tensor) -> Tensor:
    """Return |x| with NaN as infinity."""
    return torch.where(x.isnan(), torch.inf, x.abs())


def rank_of(size: Tensor) -> Tensor:
    """Return the place of each entry in descending order, ties by lowest index: int64 (*lead, d)."""
    order = size.argsort(dim=-1, descending=True, stable=True)
    places = torch.arange(size.shape[-1], device=size.device).expand(size.shape)
    return torch.empty_like(order).scatter_(-1, order, places)


def ragged(x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return counts (*lead), indices and values (*lead, most), of the entries to keep (bool, as x).

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


# The k largest of long rows --------------------------------------------------------------------


@compiled
def _guess(bits, r0, r1, count, rank, mask, inf, cuts):
    for r in range(r0, r1):
        sizes = sizes_of(sample(bits[r], np.uint64(0), count), mask, inf)
        # infinities and NaN are one size, so all of them must pass
        cuts[r] = min(kth_largest(sizes, rank)[0], inf - 1)


@compiled
def _finish(where, raw, counts, k, mask, inf, r0, r1, out, values):
    for r in range(r0, r1):
        n = counts[r]
        if n >= k:
            sizes = sizes_of(raw[r, :n], mask, inf)
            cut, ties = kth_largest(sizes.copy(), k)
            keep_cut(where[r, :n], raw[r, :n], sizes, cut, ties, out[r], values[r])


@compiled
def _first_equal(row, size, out):  # the first places of that size, and how many there are
    found = 0
    for w in range(-(-row.shape[0] // 64)):
        part = row[w * 64 : w * 64 + 64]
        if part.shape[0] < 64:
            rest = np.full(64, -1, row.dtype)  # the size of a NaN, which none asks for
            rest[: part.shape[0]] = part
            part = rest
        word = within(part, 0, size - 1, size)
        while word != 0:
            if found == out.shape[0]:
                return found
            out[found] = w * 64 + lowest(word)
            found += 1
            word &= word - np.uint64(1)
    return found


def guess(bits: np.ndarray, k: int, form: Form) -> np.ndarray:
    """Return for each row (R, d) a cut that most likely somewhat more than k exceed, or -1: all do."""
    rows, d = bits.shape
    count = min(SAMPLE, d // 8)
    expected = count * k / d
    rank = math.ceil(expected + 4 * math.sqrt(expected) + 4)
    cuts = np.full(rows, -1, bits.dtype)
    if rank <= count:
        run_shared(
            lambda r0, r1: _guess(bits, r0, r1, count, rank, form.mask, form.inf, cuts),
            rows,
            10 * rows * count,
        )
    return cuts


def largest_of_long(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return indices (ascending) and values of the k largest magnitudes: (*lead, k), x on the CPU.

    Ties go to the lowest index; NaN is as large as infinity.
    """
    bits, form = bits_of(x), FORMS[x.dtype]
    shape = (*x.shape[:-1], k)
    cuts = guess(bits, k, form)
    marks = mark(bits, cuts)
    counts = marks.counts
    where, found = collect(bits, marks, x.dtype)
    out = torch.empty(len(bits), k, dtype=torch.int64)
    values = torch.empty(len(bits), k, dtype=x.dtype)
    given = where.numpy(), found.numpy().view(bits.dtype), counts, k, form.mask, form.inf
    taken = out.numpy(), values.numpy().view(bits.dtype)
    run_shared(lambda r0, r1: _finish(*given, r0, r1, *taken), len(bits), 10 * int(counts.sum()))
    for r in np.flatnonzero(counts < k):
        own = where[r, : counts[r]].numpy()
        ties = np.empty(k - len(own), np.int64)
        if cuts[r] >= 0 and _first_equal(bits[r], cuts[r], ties) == len(ties):
            taken[0][r] = np.sort(np.concatenate((own, ties)))
            taken[1][r] = bits[r][taken[0][r]]
        else:  # the sample misled: all pass
            sizes = sizes_of(bits[r], form.mask, form.inf)
            cut, equal = kth_largest(sizes.copy(), k)
            every = np.arange(bits.shape[1])
            keep_cut(every, bits[r], sizes, cut, equal, taken[0][r], taken[1][r])
    return out.view(shape), values.view(shape)
