"""Sparsification by importance: large coordinates are kept more often."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor, count_of
from raybench.compressors.by_size import ragged, run_rows
from raybench.core.compiled import compiled
from raybench.core.registry import Count, compressor
from raybench.core.streams import Stream, hash_numba
from raybench.wire import Message, RaggedMessage, SparseMessage

BLOCK = 512  # coordinates that are summed, or whose numbers are drawn, together
COST_OF_SUMS, COST_OF_HASHES = 2.0, 8.0  # of a coordinate, in additions
LEAST_SUM, MOST_SUM = 1e-280, 1e300  # between them sums neither overflow nor lose digits


@compressor("adaptive_sparsification")
@dataclass(frozen=True)
class AdaptiveSparsification(Compressor):
    """C(x) = x_j e_j with probability |x_j| / ||x||_1: contractive with alpha = 1/d; B1, B2 (1/d, 1).

    The error is ||x||_2^2 - ||x||_3^3 / ||x||_1, at most (1 - 1/d) ||x||_2^2, tight on flat vectors.
    One value and its index are sent. Source: Beznosikov et al. 2020, On Biased Compression for
    Distributed Learning.
    """

    selection = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        place, _ = one_by_size(x, stream.uniform(1))
        return SparseMessage(x.shape[-1], x.dtype, place, x.gather(-1, place))

    def alpha(self, d: int) -> float:
        return 1 / d


@compressor("l1_sampling")
@dataclass(frozen=True)
class L1Sampling(Compressor):
    """C(x) = ||x||_1 sign(x_j) e_j with probability |x_j| / ||x||_1: unbiased, omega <= d - 1.

    omega(x) = ||x||_1^2 / ||x||_2^2 - 1, tight on flat vectors. One value and its index are sent: the
    value is ||x||_1 / d with the sign of x_j, which no dtype is too narrow for; both ends know d.
    """

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d = x.shape[-1]
        place, size = one_by_size(x, stream.uniform(1))
        value = (size / d).copysign(x.gather(-1, place).double()).to(x.dtype)
        return SparseMessage(d, x.dtype, place, value, scale=float(d))

    def omega(self, d: int) -> float:
        return d - 1.0


@compressor("wangni")
class Wangni(Compressor):
    """C(x)_j = x_j / p_j with probability p_j = min(1, c |x_j|), c such that the p_j sum to k.

    Unbiased. Of all independent samplings of k coordinates on average this one has the least
    variance, so it is no worse than p_j = k/d: omega <= d/k - 1, tight on flat vectors. A vector with
    at most k coordinates that are not zero is sent as it is; so is one that is not finite. Indices
    and their number are sent. Where 1/c is beyond the largest number of x's dtype, infinity is sent:
    in float16 that happens to vectors with entries above 65504 k/d. Source: Wangni et al. 2018, Gradient Sparsification.
    """

    k: int | float | str = Count("10%", help="expected number of coordinates sent, or a share")
    counted = ("k",)

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d = x.shape[-1]
        k = count_of(self.k, d)
        return RaggedMessage(d, x.dtype, *ragged(*drawn(x, threshold(x, k), stream)))

    def omega(self, d: int) -> float:
        return d / count_of(self.k, d) - 1

    def alpha(self, d: int) -> float | None:
        return 1.0 if count_of(self.k, d) == d else None


# One coordinate ----------------------------------------------------------------------------------


def one_by_size(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return a coordinate drawn with probability |x_j| / ||x||_1, and ||x||_1 in float64.

    x (*lead, d), u uniform (*lead, 1); both answers (*lead, 1). A row of zeros gives coordinate 0, a
    row that is not finite one of those that are not.
    """
    if x.device.type != "cpu":
        return one_by_size_torch(x, u)
    place, size = torch.empty(u.shape, dtype=torch.int64), torch.empty_like(u)
    rows = x.reshape(-1, x.shape[-1]).numpy()
    draws = [part.reshape(-1).numpy() for part in (u, place, size)]
    run_rows(_places, (rows, *draws), COST_OF_SUMS * x.numel())
    return place, size


def one_by_size_torch(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same, to the rounding of sums, in plain torch (on other devices)."""
    weight, size = x.abs().double(), x.abs().sum(-1, keepdim=True, dtype=torch.float64)
    most = weight.amax(-1, keepdim=True)
    hard = ~((size > LEAST_SUM) & (size < MOST_SUM))
    unit = torch.where(most.isfinite(), weight / most.where(most > 0, 1.0), ~weight.isfinite())
    ends = torch.where(hard, unit, weight).cumsum(-1)
    total = ends[..., -1:].contiguous()
    aim = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    place = torch.searchsorted(ends, aim, right=True)
    return torch.where(total > 0, place, 0), size


@compiled(fastmath={"reassoc"})  # lets the sum use vectors
def _sum(block):
    total = 0.0
    for j in range(block.shape[0]):
        total += np.float64(abs(block[j]))
    return total


@compiled
def _place(row, draw, sums):
    """Return where the sum of |x_j| passes ``draw`` times that of the row (d,), and ||x||_1.

    sums: space for the sums of blocks. Never a place with x_j = 0, unless all are.
    """
    d, total = row.shape[0], 0.0
    for b in range(sums.shape[0]):
        sums[b] = _sum(row[b * BLOCK : min((b + 1) * BLOCK, d)])
        total += sums[b]
    if not 0.0 < total < np.inf:
        return 0, total
    aim, before, b, place = min(draw * total, np.nextafter(total, 0.0)), 0.0, 0, 0
    while before + sums[b] <= aim:
        before += sums[b]
        b += 1
    for j in range(b * BLOCK, min((b + 1) * BLOCK, d)):
        size = np.float64(abs(row[j]))
        before += size
        if size > 0.0:
            place = j  # the last non-zero one, should rounding keep these sums below the block's
        if before > aim:
            break
    return place, total


@compiled
def _places(rows, draws, places, sizes):
    d = rows.shape[1]
    sums, unit = np.empty((d + BLOCK - 1) // BLOCK), np.empty(0)
    for r in range(rows.shape[0]):
        row = rows[r]
        places[r], sizes[r] = _place(row, draws[r], sums)
        if LEAST_SUM < sizes[r] < MOST_SUM:
            continue
        # the plain sum overflows or loses digits
        unit, most = np.empty(d), np.float64(np.abs(row).max())
        for j in range(d):
            size = np.float64(abs(row[j]))
            if most < np.inf:
                unit[j] = size / most if most > 0.0 else 0.0
            else:
                unit[j] = 0.0 if size < np.inf else 1.0
        places[r] = _place(unit, draws[r], sums)[0]


# Many --------------------------------------------------------------------------------------------


def threshold(x: Tensor, k: int) -> Tensor:
    """Return t (*lead, 1), float64, with sum_j min(1, |x_j| / t) = k over the d of x (*lead, d).

    0 where at most k coordinates are not zero, NaN where x (or ||x||_1) is not finite. Coordinates
    are taken as certain until there are no more: t = (sum of the others) / (k - certain ones).
    """
    if x.device.type != "cpu":
        return threshold_torch(x, k)
    out = torch.empty(*x.shape[:-1], 1, dtype=torch.float64)
    rows, levels = x.reshape(-1, x.shape[-1]).numpy(), out.view(-1).numpy()
    run_rows(_levels, (rows, levels), 4 * COST_OF_SUMS * x.numel(), k)
    return out


def threshold_torch(x: Tensor, k: int) -> Tensor:
    """Return the same, to the rounding of sums, in plain torch (on other devices)."""
    weight = x.abs().double()
    size = weight.sum(-1, keepdim=True)
    level = torch.where(size.isfinite(), size / k, torch.nan)
    certain = torch.full(level.shape, -1, dtype=torch.int64, device=x.device)
    while True:
        above = (weight >= level) & (weight > 0)
        count = above.sum(-1, keepdim=True)
        if torch.equal(count, certain):
            return level
        certain, left = count, k - count
        rest = torch.where(weight < level, weight, 0.0).sum(-1, keepdim=True)
        # the level only falls: by rounding it might alternate between two values for ever
        level = torch.where(left > 0, torch.minimum(level, rest / left.clamp(min=1)), level)


@compiled(fastmath={"reassoc"})
def _parts(row, level):
    """Return how many |x_j| > 0 are at least the level, and the sum of those below."""
    total, above = 0.0, 0
    for j in range(row.shape[0]):
        size = np.float64(abs(row[j]))
        total += size if size < level else 0.0
        above += (size >= level) & (size > 0.0)
    return above, total


@compiled
def _levels(rows, levels, k):
    for r in range(rows.shape[0]):
        size = _sum(rows[r])
        level, certain = (size / k if size < np.inf else np.nan), -1
        while True:
            count, rest = _parts(rows[r], level)
            if count == certain:
                break
            certain = count
            if k > count:
                level = min(level, rest / (k - count)) if level == level else level
        levels[r] = level


def drawn(x: Tensor, level: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
    """Return x_j / p_j for p_j = min(1, |x_j| / level), and which are kept with probability p_j.

    x (*lead, d), level (*lead, 1). Where the level is NaN every coordinate is kept, as it is; where it
    is a number none of those that are zero.
    """
    # as u < 1, what reaches the level is kept; so is everything where the level is NaN
    if x.device.type != "cpu":
        size = x.abs().double()
        keep = ~(stream.uniform(x.shape[-1]) * level >= size)
        return torch.where(size < level, level.copysign(x), x).to(x.dtype), keep
    values, keep = torch.empty_like(x), torch.empty(x.shape, dtype=torch.bool)
    rows, into, marks = (t.view(-1, x.shape[-1]).numpy() for t in (x, values, keep))
    keys = stream.keys.reshape(-1).numpy().view(np.uint64)
    arrays = rows, level.view(-1).numpy(), keys, into, marks
    run_rows(_drawn, arrays, COST_OF_HASHES * x.numel())
    return values, keep


@compiled
def _drawn(rows, levels, keys, values, keep):
    for r in range(rows.shape[0]):
        level, key = levels[r], keys[r]
        for j in range(rows.shape[1]):
            value = rows[r, j]
            size = np.float64(abs(value))
            u = np.float64(hash_numba(key, np.uint64(j)) >> np.uint64(11)) * 2.0**-53
            keep[r, j] = not u * level >= size
            values[r, j] = np.copysign(level, np.float64(value)) if size < level else value
