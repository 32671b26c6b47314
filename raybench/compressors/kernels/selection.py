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
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from raybench.compiled import compiled
from raybench.cores import run_shared, run_tiled, scratch
from raybench.streams import hash_numba

TILE = 32_768  # coordinates marked at a time: whole words of 64
SAMPLE = 32_768  # positions that the guess looks at, at most
BUCKETS = 2048  # of a histogram
COST = 0.5  # of marking a coordinate, in additions
LANES = {32: 16, 64: 8}  # entries of so many bits compared by one instruction


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


@intrinsic
def _within(typing, row, at, cut, most):
    """Return the 64 bits of whether cut < |row[at + i]| <= most: no loop compiles to as little."""

    def build(context, builder, signature, args):
        dtype = signature.args[0].dtype
        lanes, one = LANES[dtype.bitwidth], ir.IntType(dtype.bitwidth)
        vector, word, i32 = ir.VectorType(one, lanes), ir.IntType(64), ir.IntType(32)
        empty = ir.Constant(vector, ir.Undefined)
        spread = ir.Constant(ir.VectorType(i32, lanes), [0] * lanes)
        low, high = (
            builder.shuffle_vector(
                builder.insert_element(
                    empty, context.cast(builder, a, t, dtype), ir.Constant(i32, 0)
                ),
                empty,
                spread,
            )
            for a, t in zip(args[2:], signature.args[2:], strict=True)
        )
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        found = ir.Constant(word, 0)
        for first in range(0, 64, lanes):
            place = builder.gep(data, [builder.add(args[1], ir.Constant(word, first))])
            place = builder.bitcast(place, vector.as_pointer())
            value = builder.load(place, align=dtype.bitwidth // 8)
            value = builder.and_(
                value, ir.Constant(vector, [2 ** (dtype.bitwidth - 1) - 1] * lanes)
            )
            hit = builder.and_(
                builder.icmp_signed(">", value, low), builder.icmp_signed("<=", value, high)
            )
            hits = builder.zext(builder.bitcast(hit, ir.IntType(lanes)), word)
            found = builder.or_(found, builder.shl(hits, ir.Constant(word, first)))
        return found

    return types.uint64(row, types.int64, cut, most), build


@intrinsic
def _ones(typing, word):
    """Return how many bits of a word are set."""
    return types.int64(types.uint64), lambda context, builder, sig, args: builder.ctpop(args[0])


@intrinsic
def _lowest(typing, word):
    """Return the place of the lowest bit that is set."""
    no = ir.Constant(ir.IntType(1), 1)  # the word is never zero
    return types.int64(types.uint64), lambda context, builder, sig, args: builder.cttz(args[0], no)


@compiled
def kth_largest(sizes, k):
    """Return the k-th largest of integers >= 0, and how many equal to it are among the k largest.

    By histograms, so in time linear whatever the data. Overwrites ``sizes`` (n,), n >= k >= 1.
    """
    n = sizes.shape[0]
    found = np.empty(BUCKETS, np.int64)
    while True:
        low, high = sizes[0], sizes[0]
        for i in range(n):
            low, high = min(low, sizes[i]), max(high, sizes[i])
        shift = 0
        while (high - low) >> shift >= BUCKETS:
            shift += 1
        found[:] = 0
        for i in range(n):
            found[(sizes[i] - low) >> shift] += 1
        bucket = BUCKETS - 1
        while found[bucket] < k:
            k -= found[bucket]
            bucket -= 1
        if shift == 0:
            return low + bucket, k
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
def sample(row, key, count, mask, inf):
    """Return magnitudes at ``count`` places of a row (d,), one at random in each equal stretch."""
    d = row.shape[0]
    sizes = np.empty(count, row.dtype)
    for j in range(count):
        jitter = np.float64(hash_numba(key, np.uint64(j)) >> np.uint64(11)) * 2.0**-53
        place = min(np.int64((j + jitter) * (d / count)), d - 1)
        sizes[j] = min(row[place] & mask, inf)
    return sizes


# Marking and collecting ------------------------------------------------------------------------


@compiled
def _mark(bits, r0, r1, lo, hi, cuts, most, todo, marks, counts):
    for r in range(r0, r1):
        if not todo[r]:
            continue
        for t in range(lo // TILE, -(-hi // TILE)):
            row = bits[r, t * TILE : min((t + 1) * TILE, hi)]
            words = marks[r, t * TILE // 64 :]
            whole, found = row.shape[0] // 64, 0
            for w in range(whole):
                word = _within(row, w * 64, cuts[r], most[r])
                words[w] = word
                found += _ones(word)
            if row.shape[0] > 64 * whole:
                rest = np.zeros(64, row.dtype)
                rest[: row.shape[0] - 64 * whole] = row[64 * whole :]
                word = _within(rest, 0, cuts[r], most[r])
                word &= (np.uint64(1) << np.uint64(row.shape[0] - 64 * whole)) - np.uint64(1)
                words[whole] = word
                found += _ones(word)
            counts[r, t] = found


@compiled
def _collect(bits, r0, r1, lo, hi, marks, ends, where, raw):
    for r in range(r0, r1):
        row, to, values = bits[r], where[r], raw[r]
        if lo == 0:  # one of those who share a row clears what lies beyond its count
            to[ends[r, -1] :] = 0
            values[ends[r, -1] :] = 0
        for t in range(lo // TILE, -(-hi // TILE)):
            at = ends[r, t - 1] if t else 0
            for w in range(t * TILE // 64, -(-min((t + 1) * TILE, hi) // 64)):
                word = marks[r, w]
                while word != 0:
                    j = w * 64 + _lowest(word)
                    to[at], values[at] = j, row[j]
                    at += 1
                    word &= word - np.uint64(1)


class Marks(NamedTuple):
    """What was marked: a bit per coordinate, uint64 (R, words), and counts by tile (R, tiles).

    The bits lie in scratch space that the next marking of the same thread overwrites.
    """

    bits: np.ndarray
    tiles: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        """How many are marked in each row, int64 (R,)."""
        return self.tiles.sum(1)


def mark(
    bits: np.ndarray,
    cuts: np.ndarray,
    most: np.ndarray | None = None,
    again: tuple[Marks, np.ndarray] | None = None,
) -> Marks:
    """Mark the entries with cut < |x| <= most of rows (R, d); both (R,), integers like the bits.

    again: marks made before, of which only some rows (bool (R,)) are to be made anew.
    """
    rows, d = bits.shape
    words = -(-d // 64)
    if again is None:
        space = scratch("marks", rows * words, np.uint64).reshape(rows, words)
        again = Marks(space, np.empty((rows, -(-d // TILE)), np.int64)), np.ones(rows, bool)
    marks, todo = again
    high = np.full(rows, np.iinfo(bits.dtype).max, bits.dtype) if most is None else most

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _mark(bits, r0, r1, lo, hi, cuts, high, todo, *marks)

    run_tiled(work, rows, d, COST, TILE)
    return marks


def collect(bits: np.ndarray, marks: Marks, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return indices (ascending, int64) and values (of ``dtype``) marked in each row: (R, most).

    Beyond a row's count both are zero.
    """
    rows, d = bits.shape
    ends = marks.tiles.cumsum(1)
    widest = int(ends[:, -1].max()) if rows else 0
    where = torch.empty(rows, widest, dtype=torch.int64)
    values = torch.empty(rows, widest, dtype=dtype)
    to, raw = where.numpy(), values.numpy().view(bits.dtype)

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _collect(bits, r0, r1, lo, hi, marks.bits, ends, to, raw)

    run_tiled(work, rows, d, COST, TILE)
    return where, values


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
        sizes = sample(bits[r], np.uint64(0), count, mask, inf)
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
        word = _within(part, 0, size - 1, size)
        while word != 0:
            if found == out.shape[0]:
                return found
            out[found] = w * 64 + _lowest(word)
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
