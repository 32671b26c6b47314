"""The largest positive and the most negative entries of rows, selected apart without sorting.

A NaN is an infinite positive entry, whatever its sign bit says. Of a long row two cuts, one of each
sign, are guessed from a sample, so that slightly more than asked for pass; they decide the speed,
never the result.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.kernels.selection import (
    FORMS,
    SAMPLE,
    Form,
    bits_of,
    kth_above,
    kth_largest,
    padded,
    ragged,
    rank_of,
    sample,
    sizes_torch,
)
from raybench.core.compiled import compiled
from raybench.core.parallel import run_shared, run_tiled
from raybench.wire.marks import TILE, collect, lowest, mark_by_sign, within

LONG = 16_384  # from this length on a cut is guessed
COST = 12  # of selecting from a coordinate, in additions


def sign_counts(x: Tensor) -> Tensor:
    """Return how many positive and negative entries the rows of x (*lead, d) have: int64 (*lead, 2)."""
    if x.device.type != "cpu":
        return sign_counts_torch(x)
    bits, form = bits_of(x), FORMS[x.dtype]
    rows, d = bits.shape
    tiles = np.empty((rows, -(-d // TILE), 2), np.int64)
    least = np.iinfo(bits.dtype).min  # the bits of -0.0

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _count(bits, r0, r1, lo, hi, least, least + form.inf, tiles)

    run_tiled(work, rows, d, 1, TILE)
    return torch.from_numpy(tiles.sum(1)).view(*x.shape[:-1], 2)


def sign_counts_torch(x: Tensor) -> Tensor:
    """Return the same in plain torch (the reference; any device)."""
    negative = x < 0
    return torch.stack((((x != 0) & ~negative).sum(-1), negative.sum(-1)), -1)


def signed_kept(x: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return counts, indices and values (``ragged``) of the largest positive and most negative entries.

    counts: int64 (*lead, 2), how many of each, at most what there is; x (*lead, d). Ties go to the
    lowest index.
    """
    if x.device.type != "cpu":
        return ragged(x, signed_kept_torch(x, counts))
    bits, form, lead = bits_of(x), FORMS[x.dtype], x.shape[:-1]
    rows, d = bits.shape
    many = counts.contiguous().view(-1, 2).numpy()
    total = many.sum(1)
    most = int(total.max()) if rows else 0
    where = torch.empty(*lead, most, dtype=torch.int64)
    values = torch.empty(*lead, most, dtype=x.dtype)
    if most:
        out = where.view(rows, most).numpy(), values.view(rows, most).numpy().view(bits.dtype)
        todo = ~_among_marked(bits, x.dtype, many, form, *out) if d >= LONG else np.ones(rows, bool)
        if todo.any():
            own = np.arange(d)

            def work(lo: int, hi: int) -> None:
                _select(own, bits, many, todo, form.mask, form.inf, lo, hi, *out)

            run_shared(work, rows, COST * d * int(todo.sum()))
    return torch.from_numpy(total).view(lead), where, values


def signed_kept_torch(x: Tensor, counts: Tensor) -> Tensor:
    """Return which entries those are, bool (*lead, d), by two sorts (the reference; any device)."""
    sides = torch.where(x < 0, 0.0, x), torch.where(x < 0, x, 0.0)
    kept = [rank_of(sizes_torch(side)) < counts[..., i : i + 1] for i, side in enumerate(sides)]
    return kept[0] | kept[1]


def _among_marked(
    bits: np.ndarray,
    dtype: torch.dtype,
    many: np.ndarray,
    form: Form,
    out: np.ndarray,
    values: np.ndarray,
) -> np.ndarray:
    """Select among what exceeds the guessed cuts; return in which rows (R,) enough do."""
    rows, d = bits.shape
    count, cuts = min(SAMPLE, d // 8), np.empty((rows, 2), bits.dtype)
    expected = many * (count / d)
    ranks = np.ceil(expected + 4 * np.sqrt(expected) + 4).astype(np.int64)
    ranks[many == 0] = 0

    def look(r0: int, r1: int) -> None:
        _guess(bits, r0, r1, count, ranks, form.mask, form.inf, cuts)

    run_shared(look, rows, 10 * rows * count)
    marks = mark_by_sign(bits, cuts)
    counts, (where, found) = marks.counts, collect(bits, marks, dtype)
    enough = np.zeros(rows, bool)
    given = where.numpy(), found.numpy().view(bits.dtype), counts, many, form.mask, form.inf

    def finish(r0: int, r1: int) -> None:
        _select_marked(*given, r0, r1, out, values, enough)

    run_shared(finish, rows, COST * int(counts.sum()))
    return enough


@compiled
def _count(bits, r0, r1, lo, hi, least, most, out):
    for r in range(r0, r1):
        for t in range(lo // TILE, -(-hi // TILE)):
            row, negative, zero = bits[r, t * TILE : min((t + 1) * TILE, hi)], 0, 0
            for j in range(row.shape[0]):
                negative += (row[j] > least) & (row[j] <= most)
                zero += (row[j] == 0) | (row[j] == least)
            out[r, t, 0], out[r, t, 1] = row.shape[0] - negative - zero, negative


@compiled
def _apart(raw, mask, inf, plus, minus):
    """Write the sizes of the entries of each sign; return how many there are."""
    p, q = 0, 0
    for i in range(raw.shape[0]):
        size = raw[i] & mask
        negative = (raw[i] < 0) & (size <= inf)
        plus[p], minus[q] = min(size, inf), size
        p += (size > 0) & (not negative)
        q += (size > 0) & negative
    return p, q


@compiled
def _guess(bits, r0, r1, count, ranks, mask, inf, cuts):
    plus, minus = np.empty(count + 1, bits.dtype), np.empty(count + 1, bits.dtype)
    for r in range(r0, r1):
        p, q = _apart(sample(bits[r], np.uint64(0), count), mask, inf, plus, minus)
        for side in range(2):
            sizes, rank = (minus[:q], ranks[r, 1]) if side else (plus[:p], ranks[r, 0])
            # none asked for: none; too few seen: all of them; infinities always pass
            cuts[r, side] = 0 if rank else inf
            if 0 < rank <= sizes.shape[0]:
                cuts[r, side] = min(kth_largest(sizes, rank)[0], inf - 1)


@compiled
def _keep(where, raw, room, mask, inf, plus, minus, space, out, values):
    """Write what is asked for of raw (n,); return False where there is too little of a sign.

    plus, minus, space: padded space, of n entries at least.
    """
    d, words = raw.shape[0], -(-raw.shape[0] // 64)
    plus, minus = plus[: words * 64], minus[: words * 64]
    p, q = 0, 0
    for i in range(d):
        size = raw[i] & mask
        negative = (raw[i] < 0) & (size <= inf)
        plus[i], minus[i] = 0 if negative else min(size, inf), size if negative else 0
        p += plus[i] > 0
        q += minus[i] > 0
    plus[d:] = 0
    minus[d:] = 0
    if p < room[0] or q < room[1]:
        return False
    cut_p, ties_p, cut_q, ties_q = mask, 0, mask, 0  # a cut that nothing reaches
    if room[0] > 0:
        cut_p, ties_p = kth_above(plus, 0, room[0], mask, space)
    if room[1] > 0:
        cut_q, ties_q = kth_above(minus, 0, room[1], mask, space)
    at = 0
    for w in range(words):
        word = within(plus, w * 64, cut_p - 1, mask) | within(minus, w * 64, cut_q - 1, mask)
        while word != 0:
            i = w * 64 + lowest(word)
            word &= word - np.uint64(1)
            tie_p, tie_q = plus[i] == cut_p, minus[i] == cut_q
            if (tie_p and ties_p <= 0) or (tie_q and ties_q <= 0):
                continue
            out[at], values[at] = where[i], raw[i]
            at += 1
            ties_p -= tie_p
            ties_q -= tie_q
    out[at:] = 0
    values[at:] = 0
    return True


@compiled
def _select(where, bits, many, todo, mask, inf, r0, r1, out, values):
    m = bits.shape[1]
    plus, minus, space = padded(m, bits), padded(m, bits), padded(m, bits)
    for r in range(r0, r1):
        if todo[r]:
            _keep(where, bits[r], many[r], mask, inf, plus, minus, space, out[r], values[r])


@compiled
def _select_marked(where, raw, counts, many, mask, inf, r0, r1, out, values, enough):
    m = raw.shape[1]
    plus, minus, space = padded(m, raw), padded(m, raw), padded(m, raw)
    for r in range(r0, r1):
        n = counts[r]
        enough[r] = _keep(
            where[r, :n], raw[r, :n], many[r], mask, inf, plus, minus, space, out[r], values[r]
        )
