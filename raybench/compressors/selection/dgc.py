"""DGC's selection: a threshold from a sample of the entries, mended until about k exceed it."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor, count_of
from raybench.compressors.selection.by_size import (
    BLOCK,
    COST_OF_SELECTING,
    FORMS,
    Ragged,
    bits_of,
    count_in,
    keep_largest,
    kth_largest,
    list_above,
    places_of_sample,
    ragged,
    rank_of,
    sizes_torch,
)
from raybench.core.compiled import compiled
from raybench.core.errors import InputError
from raybench.core.parallel import run_shared
from raybench.core.registry import Choice, Count, compressor
from raybench.core.streams import Stream, hash_numba
from raybench.wire import Message, RaggedMessage

MOST_LOWERINGS = 10  # of the threshold
LOWERED_TO = 0.8  # of itself, while fewer than this share of k exceed it
MOST_BEFORE_SELECTION = 1.3  # times k; if more exceed the threshold, the k largest of all are taken


@compressor("dgc")
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

    k: int | float | str = Count(help="coordinates kept at most, or a share such as 0.1%")
    sample: int | float | str = Count(
        "1%", help="coordinates looked at for the threshold, or their share"
    )
    truncate: str = Choice(
        "magnitude", "random", help="which are left out where more than k exceed it"
    )
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
        return 1 / d if self.truncate == "magnitude" or d == 1 else 1 / (MOST_BEFORE_SELECTION * d)


def select_torch(x: Tensor, k: int, count: int, random: bool, stream: Stream) -> Ragged:
    """Return counts, indices and values of DGC's selection in plain torch (on other devices)."""
    d, size = x.shape[-1], sizes_torch(x)
    places = torch.arange(count, device=x.device) + stream.uniform(count)
    places = (places * (d / count)).long().clamp(max=d - 1)
    rank = -(-count * k // d)
    cut = size.gather(-1, places).sort(dim=-1, descending=True).values[..., rank - 1 : rank]
    for _ in range(MOST_LOWERINGS):
        found = ((size >= cut) & (size > 0)).sum(-1, keepdim=True)
        cut = torch.where(found < LOWERED_TO * k, cut * LOWERED_TO, cut)
    keep = (size >= cut) & (size > 0)
    found = keep.sum(-1, keepdim=True)
    by_size = rank_of(size.where(keep, -1.0)) < k
    if random:
        score = (stream.fold("truncate").bits(d) >> 1) & (2**63 - 1)
        by_hash = rank_of(score.where(keep, -1)) < k
        by_size = torch.where(found <= MOST_BEFORE_SELECTION * k, by_hash, by_size)
    return ragged(x, keep & by_size)


def _select(x: Tensor, k: int, count: int, random: bool, stream: Stream) -> Ragged:
    rows, form, lead = bits_of(x), FORMS[x.dtype], x.shape[:-1]
    keys, hashes = (
        source.keys.contiguous().view(-1).numpy().view(np.uint64)
        for source in (stream, stream.fold("truncate"))
    )
    rank = -(-count * k // x.shape[-1])
    # up to so many are chosen from by hash
    limit = math.floor(MOST_BEFORE_SELECTION * k) if random else 0
    counts = np.empty(len(rows), np.int64)
    where, values = torch.empty(len(rows), k, dtype=torch.int64), torch.empty(len(rows), k).to(x)
    to, kept = where.numpy(), values.numpy()
    lower = kept.dtype.type(LOWERED_TO)

    def work(a: int, b: int) -> None:
        sampling, held = (keys[a:b], count, rank, lower), (k, limit, hashes[a:b])
        out = counts[a:b], to[a:b], kept[a:b].view(rows.dtype)
        _of_rows(rows[a:b], *sampling, *held, form.mask, form.inf, np.empty(1, kept.dtype), *out)

    run_shared(work, len(rows), COST_OF_SELECTING * rows.size)
    most = int(counts.max(initial=0))
    where, values = (part[:, :most].reshape(*lead, most) for part in (where, values))
    return torch.from_numpy(counts).view(lead), where, values


@compiled
def _of_rows(
    rows, keys, count, rank, lower, k, limit, hashes, mask, inf, value, counts, where, values
):
    cut = value.view(rows.dtype)  # (1,): the threshold seen as an integer
    sizes, place = np.empty(rows.shape[1], rows.dtype), np.empty(rows.shape[1] + 1, np.int32)
    scores, marks = np.empty(limit, np.int64), np.empty(BLOCK, np.uint8)
    for r in range(rows.shape[0]):
        row = rows[r]
        sample = places_of_sample(row.shape[0], keys[r], count)
        for i in range(count):
            sizes[i] = min(row[sample[i]] & mask, inf)
        cut[0] = kth_largest(sizes[:count], rank)
        for _ in range(MOST_LOWERINGS):
            found = count_in(row, max(cut[0] - 1, 0), mask, inf)
            if found >= LOWERED_TO * k or cut[0] == 0:
                break
            value[0] *= lower
        found = list_above(row, max(cut[0] - 1, 0), mask, inf, 0, 0, marks, place)
        if k < found <= limit:
            for i in range(found):
                scores[i] = hash_numba(hashes[r], np.uint64(place[i])) >> np.uint64(1)
            keep_largest(scores[:found], k, place)
        elif found > k:
            for i in range(found):
                sizes[i] = min(row[place[i]] & mask, inf)
            keep_largest(sizes[:found], k, place)
        counts[r] = min(found, k)
        for t in range(counts[r]):
            where[r, t], values[r, t] = place[t], row[place[t]]
        where[r, counts[r] :] = 0
        values[r, counts[r] :] = 0
