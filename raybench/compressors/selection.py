"""Selections by size: top-k, rTop-k, thresholds, masks of tensors, and DGC's threshold from a sample."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor, count_of, count_within
from raybench.compressors.by_size import (
    BLOCK,
    COST_OF_LISTING,
    FORMS,
    Ragged,
    above,
    bits_of,
    keep_largest,
    largest,
    list_above,
    ragged,
    rank_of,
    run_rows,
    sizes_torch,
)
from raybench.core.compiled import compiled
from raybench.core.layout import Layout
from raybench.core.registry import Choice, Count, Number, compressor
from raybench.core.streams import Stream
from raybench.wire import ConcatMessage, Message, RaggedMessage, SparseMessage
from raybench.wire.indices import per_count

# Top-k --------------------------------------------------------------------------------------------


class _Selection(Compressor):
    """Keeps k of d coordinates as they are: <E C(x), x> = E||C(x)||^2 >= (k/d) ||x||^2."""

    k: int | float | str
    selection = True
    counted = ("k",)

    def alpha(self, d: int) -> float:
        return count_of(self.k, d) / d

    def omega(self, d: int) -> float | None:
        return 0.0 if count_of(self.k, d) == d else None


@compressor("top_k")
class TopK(_Selection):
    """C(x) = the k coordinates of largest |x_j|: contractive with alpha = k/d, deterministic.

    Ties go to the lowest index, NaN counts as largest (a diverged iterate shows). B1 and B2 hold with
    (k/d, 1). Bits: k values and their indices. Source: Alistarh et al. 2018; Beznosikov et al. 2020.
    """

    k: int | float | str = Count(help="coordinates kept, or a share such as 10%")
    deterministic = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        indices, values = largest(x, count_of(self.k, x.shape[-1]))
        return SparseMessage(x.shape[-1], x.dtype, indices, values)


@compressor("rtop_k")
class RTopK(_Selection):
    """C(x) = k coordinates drawn at random from the r = ceil(pool k) of largest |x_j|, unscaled.

    Contractive with alpha = k/d: a coordinate of the pool is kept with probability k/r, and the pool
    holds r/d of ||x||^2 at least. pool = 1 is top_k; r is at most d. B1 and B2 hold with (k/d, 1).
    Bits: k values and their indices. Raises InputError for a pool below 1. Source: Barnes et al.
    2020, rTop-k.
    """

    k: int | float | str = Count(help="coordinates kept, or a share such as 10%")
    pool: float = Number(2.0, low=1, help="r/k: they are drawn from the r largest (at most all)")

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d = x.shape[-1]
        k = count_of(self.k, d)
        r = min(d, math.ceil(round(self.pool * k, 9)))  # 2.2 times 25 is 55, not 55.00000000000001
        indices, values = largest(x, r)
        if r > k:
            drawn = torch.zeros(indices.shape, dtype=torch.bool, device=x.device)
            drawn.scatter_(-1, stream.subset(r, k), True)
            where = drawn.nonzero()[:, -1].view(*x.shape[:-1], k)
            indices, values = indices.gather(-1, where), values.gather(-1, where)
        return SparseMessage(d, x.dtype, indices, values)


@compressor("pos_neg_top_k")
class PosNegTopK(Compressor):
    """C(x) = the largest positive and the most negative entries, selected apart; deterministic.

    A share p keeps ceil(p n) of the n entries of a sign, a count min(k, n); zeros are neither. alpha =
    max(p, 1/d), or k/d. B1 and B2 hold with (alpha, 1). Ties go to the lowest index; NaN is a large
    positive entry. Bits: the count, the values and their indices. Source: Dryden et al. 2016, who send
    a mean of each sign in place of the values.
    """

    k: int | float | str = Count(
        help="entries of each sign kept, or their share among the entries of that sign"
    )
    deterministic = True
    projection = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d, is_count = x.shape[-1], self._share() is None
        most = count_of(self.k, d)
        keep = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
        for side in (x.clamp(min=0), x.clamp(max=0).nan_to_num_(0.0, 0.0, -math.inf)):
            kept = side.count_nonzero(-1)
            if is_count:
                kept = kept.clamp(max=most)
            else:
                kept = per_count(kept, lambda n: (n and count_of(self.k, n),))[0]
            where, values = largest(side, most)
            among_kept = rank_of(sizes_torch(values)) < kept[..., None]
            keep |= torch.zeros_like(keep).scatter_(-1, where, among_kept)
        return RaggedMessage(d, x.dtype, *ragged(x, keep))

    def alpha(self, d: int) -> float:
        kept, share = count_of(self.k, d), self._share()
        return kept / d if share is None else max(share, 1 / d)

    def _share(self) -> float | None:
        """Return the share of the entries of a sign that is kept; None where ``k`` is a count."""
        text = str(self.k).strip()
        if text.endswith("%"):
            return float(text.removesuffix("%")) / 100
        return None if float(text).is_integer() else float(text)


# Thresholds ---------------------------------------------------------------------------------------


BUCKETS = 512  # of a histogram
COST_OF_ENERGIES = 20.0  # of a coordinate, in additions


@compressor("hard_threshold")
class HardThreshold(Compressor):
    """C(x) = the entries with |x_j| > lambda: deterministic, of a length that x decides.

    ||C(x) - x||^2 <= d lambda^2, an absolute error: no alpha, for a small x all is lost. Bits: the
    count, the values and their indices. Raises InputError for a negative threshold. Source: Sahu et
    al. 2021.
    """

    threshold: float = Number(low=0, help="lambda: entries above it are kept")
    deterministic = True
    selection = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        cut = torch.tensor(self.threshold, dtype=torch.float64).to(x.dtype)
        if float(cut) <= self.threshold:  # the lowest number of x's type that is above
            cut = torch.nextafter(cut, cut.new_tensor(torch.inf))
        return at_least(x, cut.expand(x.shape[:-1]))


@compressor("adaptive_threshold")
class AdaptiveThreshold(Compressor):
    """C(x) = the entries with |x_j| >= lambda(x), zeros never: deterministic, of varying length.

    max: lambda = c ||x||_inf; what is lost is at most d - 1 entries below it, so alpha =
    1/(1 + (d - 1) c^2). energy: the fewest entries that hold ``energy`` of ||x||^2, ties by lowest
    index; alpha = max(energy, 1/d), up to rounding. percentile: lambda is the k-th largest |x_j|, so
    top_k that keeps all ties; alpha = k/d. B1 and B2 hold with (alpha, 1). Bits: the count, the values
    and their indices. Raises InputError for parameters outside their range. Source: Sahu et al. 2021;
    Strom 2015.
    """

    rule: str = Choice("max", "energy", "percentile", help="what the threshold follows from")
    c: float = Number(
        0.5, low=0, high=1, open_low=True, help="rule max: the threshold over the largest |x_j|"
    )
    energy: float = Number(
        0.9, low=0, high=1, open_low=True, help="rule energy: share of ||x||^2 kept"
    )
    k: int | float | str = Count(
        "10%", help="rule percentile: entries kept at least, or their share"
    )
    deterministic = True
    selection = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        if self.rule == "energy":
            return RaggedMessage(x.shape[-1], x.dtype, *energy_kept(x, self.energy))
        if self.rule == "percentile":
            cut = sizes_torch(largest(x, count_of(self.k, x.shape[-1]))[1]).amin(-1)
            return at_least(x, cut)
        most = sizes_torch(x.abs().amax(-1))
        cut = (most.double() * self.c).to(x.dtype)
        low = cut.double() < most.double() * self.c  # rounded to the type of x, but up
        return at_least(x, torch.where(low, torch.nextafter(cut, most.new_tensor(torch.inf)), cut))

    def alpha(self, d: int) -> float:
        if self.rule == "max":
            return 1 / (1 + (d - 1) * self.c**2)
        return max(self.energy, 1 / d) if self.rule == "energy" else count_of(self.k, d) / d


def at_least(x: Tensor, cut: Tensor) -> RaggedMessage:
    """Return the message of the entries with |x_j| >= cut (*lead, of x's dtype) that are not zero.

    A NaN is always sent.
    """
    if x.device.type != "cpu":
        size = sizes_torch(x)
        keep = (size >= cut[..., None]) & (size > 0)
        return RaggedMessage(x.shape[-1], x.dtype, *ragged(x, keep))
    least = cut.contiguous().view(-1).numpy().view(FORMS[x.dtype].integer)
    none = np.zeros(len(least), np.int64)
    return RaggedMessage(x.shape[-1], x.dtype, *above(x, np.maximum(least - 1, 0), none))


def energy_kept(x: Tensor, share: float) -> Ragged:
    """Return the fewest entries with that share of ||x||^2: counts, indices and values.

    The largest first, ties by lowest index. In float64, relative to the largest entry. A row of zeros
    keeps none; one with entries that are not finite keeps those, all of them.
    """
    if x.device.type != "cpu":
        return energy_kept_torch(x, share)
    bits, form = bits_of(x), FORMS[x.dtype]
    cuts, ties = np.empty(len(bits), bits.dtype), np.empty(len(bits), np.int64)
    arrays = x.view(bits.shape).numpy(), bits, cuts, ties
    run_rows(_cuts, arrays, COST_OF_ENERGIES * bits.size, share, form.mask, form.inf)
    return above(x, cuts, ties)


def energy_kept_torch(x: Tensor, share: float) -> Ragged:
    """Return the same by a sort, up to the rounding of sums (on other devices)."""
    size = sizes_torch(x)
    most = size.amax(-1, keepdim=True).double()
    part = size.double() / torch.where((most > 0) & most.isfinite(), most, 1.0)
    energy = torch.where(size.isfinite(), part, 0.0).square()
    needed = share * energy.sum(-1, keepdim=True)
    rank = rank_of(size)
    held = torch.zeros_like(energy).scatter_(-1, rank, energy).cumsum(-1)
    count = (held < needed).sum(-1, keepdim=True) + 1
    keep = torch.where(most.isfinite(), (rank < count) & (size > 0), size.isinf())
    return ragged(x, keep)


@compiled
def _cuts(rows, integers, cuts, ties, share, mask, inf):
    d = rows.shape[1]
    sizes, energies, weight = np.empty(d, cuts.dtype), np.empty(d), np.empty(BUCKETS)
    for r in range(rows.shape[0]):
        bits, n, above, needed = integers[r], d, 0.0, 0.0
        for j in range(d):
            sizes[j] = min(bits[j] & mask, inf)
        low, high = sizes.min(), sizes.max()
        cuts[r], ties[r] = min(high, inf - 1), 0
        if high == 0 or high == inf:  # nothing to keep, or what is not finite
            continue
        scale = 1 / max(np.float64(np.abs(rows[r]).max()), 1e-300)
        for j in range(d):
            part = np.float64(rows[r, j]) * scale
            energies[j] = part * part
            needed += share * energies[j]
        # the least size that is kept is among the n left, by histograms of energy
        while low < high:
            shift, count = 0, 0
            while (high - low) >> shift >= BUCKETS:
                shift += 1
            bucket = (high - low) >> shift
            weight[: bucket + 1] = 0
            for j in range(n):
                weight[(sizes[j] - low) >> shift] += energies[j]
            while bucket > 0 and above + weight[bucket] < needed:
                above += weight[bucket]
                bucket -= 1
            for j in range(n):
                size = sizes[j]
                sizes[count], energies[count] = size, energies[j]
                count += (size - low) >> shift == bucket
            n = count
            low, high = sizes[:n].min(), sizes[:n].max()
        cuts[r], ties[r] = high, n
        if energies[0] > 0:
            ties[r] = min(max(np.int64(np.ceil((needed - above) / energies[0])), 1), n)


# A threshold for every tensor ---------------------------------------------------------------------


@compressor("masking")
class Masking(Compressor):
    """C(x) = the entries with |x_j| >= tau_l, l the tensor of entry j; tau_l is its k_l-th largest |x_j|.

    k_l: ``k``, all of a smaller tensor; or the share ``k`` of its size. With ``threshold: first`` the tau of the first
    tensor holds for all of them, so that much more or much less than the share may be kept: the control of
    the published experiments, which shows what a threshold for every tensor is worth. All ties are kept,
    zeros never. alpha = min_l k_l/d_l, with ``first`` 1/d, as the largest entry of all is always kept; B1
    and B2 hold with (alpha, 1). Deterministic. Bits: of every tensor the count, the values and their indices.
    Raises InputError where k does not fit a tensor. Source: Tejalsjsu/DeepGradientCompression.
    """

    k: int | float | str = Count(help="entries kept at least of a tensor, or their share")
    threshold: str = Choice("tensor", "first", help="whose k-th largest entry is the threshold")
    sizes: tuple[int, ...] = ()  # of the tensors, once it is fitted to them
    deterministic = True
    selection = True
    by_tensor = True

    def fit(self, d: int, n: int, layout: Layout | None = None) -> Compressor:
        count_of(self.k, d)  # raises where it does not fit
        fits = layout is not None and layout.dim == d
        return replace(self, sizes=tuple(s for s in layout.sizes if s) if fits else (d,))  # type: ignore[union-attr]

    def tensors(self, d: int) -> tuple[int, ...]:
        """Return the sizes of the tensors of a vector of length d: those it was fitted to, or one."""
        return self.sizes if sum(self.sizes) == d else (d,)

    def encode(self, x: Tensor, stream: Stream) -> Message:
        pieces = [piece.contiguous() for piece in x.split(self.tensors(x.shape[-1]), -1)]
        cuts = [self._cut(piece) for piece in (pieces[:1] if self.threshold == "first" else pieces)]
        cuts *= len(pieces) // len(cuts)
        parts: list[Message] = [
            at_least(piece, cut) for piece, cut in zip(pieces, cuts, strict=True)
        ]
        return ConcatMessage(x.shape[-1], x.dtype, parts)

    def _cut(self, piece: Tensor) -> Tensor:
        return sizes_torch(largest(piece, count_within(self.k, piece.shape[-1]))[1]).amin(-1)

    def alpha(self, d: int) -> float:
        sizes = self.tensors(d)
        shares = [count_within(self.k, size) / size for size in sizes]
        return 1 / d if self.threshold == "first" and len(sizes) > 1 else min(shares)


# Deep gradient compression ------------------------------------------------------------------------


MOST_LOWERINGS = 10  # of the threshold
LOWERED_TO = 0.8  # of itself, while fewer than this share of k exceed it
MOST_BEFORE_SELECTION = 1.3  # times k; if more exceed the threshold, the k largest of all are taken


@compressor("dgc")
class DGCSelection(Compressor):
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
    counted = ("k", "sample")

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d = x.shape[-1]
        k, count = count_of(self.k, d), count_of(self.sample, d, "sample")
        return RaggedMessage(d, x.dtype, *dgc(x, k, count, self.truncate == "random", stream))

    def alpha(self, d: int) -> float:
        return 1 / d if self.truncate == "magnitude" or d == 1 else 1 / (MOST_BEFORE_SELECTION * d)


def dgc(x: Tensor, k: int, count: int, random: bool, stream: Stream) -> Ragged:
    """Return counts, indices and values of DGC's selection; count: entries that are sampled."""
    d = x.shape[-1]
    places = torch.arange(count, device=x.device) + stream.uniform(count)
    places = (places * (d / count)).long().clamp(max=d - 1)
    sampled = largest(x.gather(-1, places), -(-count * k // d))[1]
    cuts = [sizes_torch(sampled).amin(-1, keepdim=True)]
    for _ in range(MOST_LOWERINGS):
        cuts.append(cuts[-1] * LOWERED_TO)
    few = math.floor(MOST_BEFORE_SELECTION * k) if random else k
    if x.device.type == "cpu":
        counts, where, values = _passing(x, torch.cat(cuts, -1), k, few)
    else:
        counts, where, values = _passing_torch(x, cuts, k, few)
    most = where.shape[-1]
    if most <= k:
        return counts, where, values
    live = torch.arange(most, device=x.device) < counts[..., None]
    score = (stream.fold("truncate").bits(d) >> 1).bitwise_and_(2**63 - 1).gather(-1, where)
    return _thinned(where, values, live & (rank_of(score.where(live, -1)) < k))


def _thinned(where: Tensor, values: Tensor, keep: Tensor) -> Ragged:
    """Return what is left of entries: their counts, indices and values."""
    counts, at, values = ragged(values, keep)
    beyond = torch.arange(at.shape[-1], device=at.device) >= counts[..., None]
    return counts, where.gather(-1, at).masked_fill_(beyond, 0), values


def _passing(x: Tensor, cuts: Tensor, k: int, few: int) -> Ragged:
    """Return the entries that reach the first of the falling cuts (*lead, 11) that enough do.

    The k largest of them where more than ``few`` do.
    """
    rows, form, lead = bits_of(x), FORMS[x.dtype], x.shape[:-1]
    under = np.maximum(cuts.view(len(rows), -1).numpy().view(form.integer) - 1, 0)
    counts, where = np.empty(len(rows), np.int64), torch.zeros(len(rows), few, dtype=torch.int64)
    values = torch.zeros(where.shape, dtype=x.dtype)
    arrays = rows, under, counts, where.numpy(), values.numpy().view(rows.dtype)
    limits = k, LOWERED_TO * k, form.mask, form.inf
    run_rows(_list_passing, arrays, COST_OF_LISTING * rows.size, *limits)
    most = int(counts.max(initial=0))
    where, values = where[:, :most].contiguous(), values[:, :most].contiguous()
    return torch.from_numpy(counts).view(lead), where.view(*lead, most), values.view(*lead, most)


@compiled
def _list_passing(rows, under, counts, where, values, k, least, mask, inf):
    d = rows.shape[1]
    sizes, place = np.empty(d, rows.dtype), np.empty(d + 1, np.int32)
    marks = np.empty(BLOCK, np.uint8)
    for r in range(rows.shape[0]):
        row, to, kept, count = rows[r], where[r], values[r], 0
        for t in range(under.shape[1]):
            count = list_above(row, under[r, t], mask, inf, 0, 0, marks, place)
            if count >= least:
                break
        if count > where.shape[1]:
            for i in range(count):
                sizes[i] = min(row[place[i]] & mask, inf)
            keep_largest(sizes[:count], k, place)
            count = k
        counts[r] = count
        for t in range(count):
            entry = np.uint32(place[t])
            to[t], kept[t] = entry, row[entry]


def _passing_torch(x: Tensor, cuts: list[Tensor], k: int, few: int) -> Ragged:
    """Return the same on other devices."""
    size = sizes_torch(x)
    cut = cuts[0]
    for lower in cuts[1:]:
        lacking = ((size >= cut) & (size > 0)).sum(-1, keepdim=True) < LOWERED_TO * k
        if not bool(lacking.any()):
            break
        cut = torch.where(lacking, lower, cut)
    counts, where, values = ragged(x, (size >= cut) & (size > 0))
    if where.shape[-1] <= few:
        return counts, where, values
    live = torch.arange(where.shape[-1], device=x.device) < counts[..., None]
    best = rank_of(sizes_torch(values).where(live, -1.0)) < k
    return _thinned(where, values, live & (best | (counts[..., None] <= few)))
