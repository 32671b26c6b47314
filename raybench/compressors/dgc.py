"""DGC's selection: a threshold from a sample of the entries, mended until about k exceed it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor, count_of
from raybench.compressors.kernels.selection import (
    FORMS,
    Form,
    bits_of,
    keep_cut,
    kth_above,
    kth_largest,
    padded,
    ragged,
    rank_of,
    sample,
    sizes_of,
    sizes_torch,
)
from raybench.core.compiled import compiled
from raybench.core.errors import InputError
from raybench.core.parallel import run_shared
from raybench.core.registry import Choice, Count, compressor
from raybench.core.streams import Stream, hash_numba
from raybench.wire import Message, RaggedMessage
from raybench.wire.marks import collect, lowest, mark, ones, within

LONG = 16_384  # from this length on the cores share a row
COST = 12  # of looking at a coordinate of a short one, in additions
TRIES = 10  # times the threshold is lowered, at most
LOWER = 0.8  # by this factor, while fewer than this share of k exceed it
OVER = 1.3  # times k: with more than that above it the k largest are taken whatever ``truncate``


@compressor(
    "dgc",
    k=Count(help="coordinates kept at most, or a share such as 0.1%"),
    sample=Count("1%", help="coordinates looked at for the threshold, or their share"),
    truncate=Choice("magnitude", "random", help="which are left out where more than k exceed it"),
)
@dataclass(frozen=True)
class DGC(Compressor):
    """C(x) = what exceeds a threshold estimated from a sample, at most k entries.

    Of s sampled |x_j|, one from each of s equal stretches, the ceil(s k/d)-th largest is the threshold;
    it is multiplied by 0.8 while fewer than 0.8 k reach it, at most 10 times. Where more than k do, k
    of them are kept: the largest, or a random choice (the largest all the same beyond 1.3 k). Zeros
    are never sent. Only the largest entry is sure to be among the candidates: alpha = 1/d, or 1/(1.3 d)
    with a random choice, is all that holds for every x; in practice it is near top_k. Bits: the count,
    the values and their indices. Raises InputError where k or ``sample`` do not fit d. Source: Lin et
    al. 2018, Deep Gradient Compression.
    """

    k: int | float | str
    sample: int | float | str = "1%"
    truncate: str = "magnitude"
    selection = True

    def __post_init__(self) -> None:
        if self.truncate not in ("magnitude", "random"):
            fix = "allowed: magnitude, random"
            raise InputError.of("truncate", f"unknown {self.truncate!r}", fix)

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d = x.shape[-1]
        k, count = count_of(self.k, d), count_of(self.sample, d, "sample")
        select = _select if x.device.type == "cpu" else select_torch
        return RaggedMessage(d, x.dtype, *select(x, k, count, self.truncate == "random", stream))

    def alpha(self, d: int) -> float:
        return 1 / d if self.truncate == "magnitude" or d == 1 else 1 / (OVER * d)


def select_torch(
    x: Tensor, k: int, count: int, random: bool, stream: Stream
) -> tuple[Tensor, Tensor, Tensor]:
    """Return counts, indices and values (``ragged``) of DGC's selection (the reference; any device)."""
    d, size = x.shape[-1], sizes_torch(x)
    places = torch.arange(count, device=x.device) + stream.uniform(count)
    places = (places * (d / count)).long().clamp(max=d - 1)
    rank = -(-count * k // d)
    cut = size.gather(-1, places).sort(dim=-1, descending=True).values[..., rank - 1 : rank]
    for _ in range(TRIES):
        found = ((size >= cut) & (size > 0)).sum(-1, keepdim=True)
        cut = torch.where(found < LOWER * k, cut * LOWER, cut)
    keep = (size >= cut) & (size > 0)
    found = keep.sum(-1, keepdim=True)
    by_size = rank_of(size.where(keep, -1.0)) < k
    if random:
        score = (stream.fold("truncate").bits(d) >> 1) & (2**63 - 1)
        by_hash = rank_of(score.where(keep, -1)) < k
        by_size = torch.where(found <= OVER * k, by_hash, by_size)
    return ragged(x, keep & by_size)


def _select(
    x: Tensor, k: int, count: int, random: bool, stream: Stream
) -> tuple[Tensor, Tensor, Tensor]:
    bits, form, lead = bits_of(x), FORMS[x.dtype], x.shape[:-1]
    rows, d = bits.shape
    keys, hashes = (
        source.keys.contiguous().view(-1).numpy().view(np.uint64)
        for source in (stream, stream.fold("truncate"))
    )
    limit = math.floor(OVER * k) if random else 0  # up to so many are chosen from by hash
    sampling = keys, count, -(-count * k // d)
    held = k, limit, hashes, form.mask, form.inf
    if d < LONG:
        counts = np.empty(rows, np.int64)
        where, values = torch.empty(rows, k, dtype=torch.int64), torch.empty(rows, k, dtype=x.dtype)
        factor = np.array([LOWER], values.numpy().dtype)
        out = counts, where.numpy(), values.numpy().view(bits.dtype)
        run_shared(
            lambda r0, r1: _of_short(bits, *sampling, factor, *held, r0, r1, *out),
            rows,
            COST * bits.size,
        )
    else:
        where, values, counts = _of_long(bits, x.dtype, k, sampling, form)
        if (counts > k).any():
            found = where.numpy(), values.numpy().view(bits.dtype), counts
            run_shared(
                lambda r0, r1: _truncate(*found, *held, r0, r1), rows, 10 * int(counts.sum())
            )
    most = int(counts.max()) if rows else 0
    parts = (part[:, :most].reshape(*lead, most) for part in (where, values))
    return torch.from_numpy(counts).view(lead), *parts


def _of_long(
    bits: np.ndarray, dtype: torch.dtype, k: int, sampling: tuple[np.ndarray, int, int], form: Form
) -> tuple[Tensor, Tensor, np.ndarray]:
    """Return indices, values and counts of what reaches the threshold, before any is left out."""
    first = np.empty(len(bits), bits.dtype)
    run_shared(
        lambda r0, r1: _sampled(bits, r0, r1, *sampling, form.mask, form.inf, first),
        len(bits),
        10 * len(bits) * sampling[1],
    )
    cuts: np.ndarray = first.view(np.float32 if dtype == torch.float32 else np.float64)
    marks = mark(bits, _below(cuts, bits.dtype))
    for _ in range(TRIES):
        few = marks.counts < LOWER * k
        if not few.any():
            break
        cuts = np.where(few, cuts * cuts.dtype.type(LOWER), cuts)
        marks = mark(bits, _below(cuts, bits.dtype), again=(marks, few))
    return *collect(bits, marks, dtype), marks.counts


def _below(cuts: np.ndarray, integer: np.dtype) -> np.ndarray:
    """Return what the bits of |x| must exceed for |x| >= cut, and x not zero."""
    return np.maximum(cuts.view(integer) - 1, 0)


@compiled
def _cut_of(row, key, count, rank, mask, inf):
    return kth_largest(sizes_of(sample(row, key, count), mask, inf), rank)[0]


@compiled
def _sampled(bits, r0, r1, keys, count, rank, mask, inf, cuts):
    for r in range(r0, r1):
        cuts[r] = _cut_of(bits[r], keys[r], count, rank, mask, inf)


@compiled
def _of_short(
    bits, keys, count, rank, factor, k, limit, hashes, mask, inf, r0, r1, counts, where, raw
):
    value, sizes = np.empty_like(factor), padded(bits.shape[1], bits)
    cut, space = value.view(bits.dtype), np.empty_like(sizes)
    own, held = np.empty(sizes.shape[0], np.int64), np.empty_like(sizes)
    for r in range(r0, r1):
        row, out, values = bits[r], where[r], raw[r]
        for j in range(row.shape[0]):
            sizes[j] = min(row[j] & mask, inf)
        cut[0] = _cut_of(row, keys[r], count, rank, mask, inf)
        for t in range(TRIES + 1):
            least, found = max(cut[0] - 1, 0), 0
            for w in range(sizes.shape[0] // 64):
                found += ones(within(sizes, w * 64, least, mask))
            if found >= LOWER * k or t == TRIES:
                break
            value[0] *= factor[0]
        ties = found
        if found > max(k, limit):  # the largest: those above another cut, and the first at it
            least, ties = kth_above(sizes, least, k, mask, space)
            least -= 1
        n = 0
        for w in range(sizes.shape[0] // 64):
            word = within(sizes, w * 64, least, mask)
            while word != 0:
                j = w * 64 + lowest(word)
                own[n], held[n] = j, row[j]
                tie = sizes[j] == least + 1
                n += (not tie) | (ties > 0)
                ties -= tie
                word &= word - np.uint64(1)
        if n > k:
            _leave_out(own[:n], held[:n], k, limit, hashes[r], mask, inf)
            n = k
        counts[r] = n
        for i in range(n):
            out[i], values[i] = own[i], held[i]
        out[n:] = 0
        values[n:] = 0


@compiled
def _leave_out(own, values, k, limit, key, mask, inf):
    """Move the k of n > k entries that are kept to the front."""
    if own.shape[0] <= limit:
        scores = np.empty_like(own)
        for i in range(own.shape[0]):
            scores[i] = hash_numba(key, np.uint64(own[i])) >> np.uint64(1)
        cut, ties = kth_largest(scores.copy(), k)
        keep_cut(own, values, scores, cut, ties, own, values)
    else:
        sizes = sizes_of(values, mask, inf)
        cut, ties = kth_largest(sizes.copy(), k)
        keep_cut(own, values, sizes, cut, ties, own, values)


@compiled
def _truncate(where, raw, counts, k, limit, keys, mask, inf, r0, r1):
    for r in range(r0, r1):
        n = counts[r]
        if n > k:
            _leave_out(where[r, :n], raw[r, :n], k, limit, keys[r], mask, inf)
            counts[r] = k
            where[r, k:n] = 0
            raw[r, k:n] = 0
