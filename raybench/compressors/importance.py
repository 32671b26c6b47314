"""Sparsification by importance: large coordinates are kept more often."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor, count_of
from raybench.compressors.kernels import importance as kernels
from raybench.compressors.rand_k import MISS
from raybench.compressors.sparsification import kept_torch
from raybench.core.parallel import ALIGN, run_shared, run_tiled
from raybench.core.registry import Count, compressor
from raybench.core.streams import Stream
from raybench.wire import Message, RaggedMessage, SparseMessage
from raybench.wire.perm import in_tiles, listed

Rows = np.ndarray
ADD = 2.0  # what adding a coordinate up costs, in additions of the memory's speed
WALK = 4.0  # what adding one after the other does


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

    def omega(self, d: int) -> float | None:
        return 0.0 if d == 1 else None

    def alpha(self, d: int) -> float:
        return 1 / d

    def b1(self, d: int) -> tuple[float, float]:
        return 1 / d, 1.0

    def b2(self, d: int) -> tuple[float, float]:
        return 1 / d, 1.0


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

    def alpha(self, d: int) -> float | None:
        return 1.0 if d == 1 else None


@compressor("wangni", k=Count("10%", help="expected number of coordinates sent, or a share"))
@dataclass(frozen=True)
class Wangni(Compressor):
    """C(x)_j = x_j / p_j with probability p_j = min(1, c |x_j|), c such that the p_j sum to k.

    Unbiased. Of all independent samplings of k coordinates on average this one has the least
    variance, so it is no worse than p_j = k/d: omega <= d/k - 1, tight on flat vectors. A vector with
    at most k coordinates that are not zero is sent as it is; so is one that is not finite. Indices
    and their number are sent. Where 1/c is beyond the largest number of x's dtype, infinity is sent:
    in float16 that happens to vectors with entries above 65504 k/d. Source: Wangni et al. 2018, Gradient Sparsification.
    """

    k: int | float | str = "10%"

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d = x.shape[-1]
        level = threshold(x, count_of(self.k, d))
        where, counts = drawn(x, level, stream)
        return RaggedMessage(d, x.dtype, counts, where, weighted(x, where, counts, level))

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
    tiles = tile_sums(x)
    place, size = _place(x, tiles, u)
    hard = ~((size > 1e-280) & (size < 1e300))[..., 0]  # sums that overflow, or lose digits
    if bool(hard.any()):
        y = x[hard].double()
        largest = y.abs().amax(-1, keepdim=True)
        y = torch.where(
            largest.isfinite(), y / largest.where(largest > 0, 1.0), (~y.isfinite()).double()
        )
        place[hard] = _place(y, tile_sums(y), u[hard])[0]
    return place, size


def _place(x: Tensor, tiles: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return the coordinate at which the sum of |x_j| passes u ||x||_1, and ||x||_1.

    Never one with x_j = 0, unless all are.
    """
    if x.device.type != "cpu":
        return place_torch(x, tiles, u)
    place, size = torch.empty(u.shape, dtype=torch.int64), torch.empty_like(u)
    rows, sums, draws, to, sizes = (
        t.reshape(-1, t.shape[-1]).numpy() for t in (x, tiles, u, place, size)
    )

    def work(a: int, b: int) -> None:
        kernels.place(rows[a:b], sums[a:b], draws[a:b, 0], to[a:b, 0], sizes[a:b, 0])

    run_shared(work, len(rows), WALK * len(rows) * min(x.shape[-1], ALIGN))
    return place, size


def place_torch(x: Tensor, tiles: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same (the reference; any device): tile, then place."""
    d, wide = x.shape[-1], min(ALIGN, x.shape[-1])
    ends = tiles.cumsum(-1)
    size = ends[..., -1:].clone()
    aim = torch.minimum(u * size, torch.nextafter(size, torch.zeros_like(size)))
    tile = torch.searchsorted(ends, aim, right=True).clamp(max=tiles.shape[-1] - 1)
    before = (ends.gather(-1, (tile - 1).clamp(min=0))).where(tile > 0, 0.0)
    at = tile * ALIGN + torch.arange(wide, device=x.device)
    near = x.gather(-1, at.clamp(max=d - 1)).abs().double().masked_fill_(at >= d, 0)
    step = torch.searchsorted(near.cumsum(-1), aim - before, right=True)
    # the sums within a tile may round to less than its own: then it is the last that is not zero
    last = wide - 1 - (near > 0).flip(-1).byte().argmax(-1, keepdim=True)
    return torch.where(size > 0, tile * ALIGN + torch.minimum(step, last), 0), size


def tile_sums(x: Tensor) -> Tensor:
    """Return the sums of |x_j|, x (*lead, d), over tiles of ALIGN coordinates: float64 (*lead, T)."""
    *lead, d = x.shape
    if x.device.type != "cpu":
        return tile_sums_torch(x)
    out = torch.empty(*lead, -(-d // ALIGN), dtype=torch.float64)
    rows, sums = x.reshape(-1, d).numpy(), out.view(-1, out.shape[-1]).numpy()
    run_tiled(lambda a, b, lo, hi: kernels.sums(rows[a:b], lo, hi, sums[a:b]), len(rows), d, ADD)
    return out


def tile_sums_torch(x: Tensor) -> Tensor:
    """Return ``tile_sums``, to rounding (the reference; any device)."""
    padded = torch.nn.functional.pad(x.abs(), (0, -x.shape[-1] % ALIGN))
    return padded.view(*x.shape[:-1], -1, ALIGN).sum(-1, dtype=torch.float64)


# Many --------------------------------------------------------------------------------------------


def threshold(x: Tensor, k: int) -> Tensor:
    """Return t (*lead, 1), float64, with sum_j min(1, |x_j| / t) = k over the d of x (*lead, d).

    0 where at most k coordinates are not zero, NaN where x (or ||x||_1) is not finite. Coordinates
    are taken as certain until there are no more: t = (sum of the others) / (k - certain ones).
    """
    if x.device.type == "cpu" and x.shape[-1] <= ALIGN:
        return _level_of_tile(x, k)
    return _level_of_tiles(x, k)


def _level_of_tiles(x: Tensor, k: int) -> Tensor:
    size = tile_sums(x).cumsum(-1)[..., -1:]
    level = torch.where(size.isfinite(), size / k, torch.nan)
    certain = torch.full(level.shape, -1, dtype=torch.int64, device=x.device)
    while True:
        count, rest = split(x, level)
        if torch.equal(count, certain):
            return level
        certain, left = count, k - count
        # never upwards: rounding might go back and forth
        level = torch.where(left > 0, torch.minimum(level, rest / left.clamp(min=1)), level)


def _level_of_tile(x: Tensor, k: int) -> Tensor:
    out = torch.empty(*x.shape[:-1], 1, dtype=torch.float64)
    rows, levels = x.reshape(-1, x.shape[-1]).numpy(), out.view(-1).numpy()

    def work(a: int, b: int) -> None:
        kernels.level_of_tile(rows[a:b], k, levels[a:b])

    run_shared(work, len(rows), 4 * ADD * x.numel())
    return out


def split(x: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many |x_j| > 0 are at least the level, int64, and the sum of those below, float64."""
    *lead, d = x.shape
    if x.device.type != "cpu":
        return split_torch(x, level)
    counts = torch.empty(*lead, -(-d // ALIGN), dtype=torch.int64)
    sums = torch.empty(counts.shape, dtype=torch.float64)
    rows, levels = x.view(-1, d).numpy(), level.reshape(-1).numpy()
    count, total = (t.view(-1, t.shape[-1]).numpy() for t in (counts, sums))
    run_tiled(
        lambda a, b, lo, hi: kernels.parts(rows[a:b], levels[a:b], lo, hi, count[a:b], total[a:b]),
        len(rows),
        d,
        ADD,
    )
    return counts.sum(-1, keepdim=True), sums.cumsum(-1)[..., -1:]


def split_torch(x: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``split``, to rounding (the reference; any device)."""
    size = x.abs().double()
    count = ((size >= level) & (size > 0)).sum(-1, keepdim=True)
    return count, tile_sums_torch(size.where(size < level, 0.0)).sum(-1, keepdim=True)


def drawn(x: Tensor, level: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
    """Return the coordinates kept with probability min(1, |x_j| / level), ascending, and counts.

    x (*lead, d), level (*lead, 1): places (*lead, m), zeros beyond the counts (*lead). Every
    coordinate is kept where the level is NaN, none of those that are zero where it is a number.
    """
    *lead, d = x.shape
    if x.device.type != "cpu":
        return drawn_torch(x, level, stream)
    keys = stream.keys.contiguous().view(-1).numpy().view(np.uint64)
    rows, levels = x.view(-1, d).numpy(), level.reshape(-1).numpy()

    def count(a: int, b: int, lo: int, hi: int, counts: Rows) -> None:
        kernels.count_drawn(rows[a:b], levels[a:b], keys[a:b], lo, hi, counts)

    def fill(a: int, b: int, lo: int, hi: int, *to: Rows) -> None:
        kernels.fill_drawn(rows[a:b], levels[a:b], keys[a:b], lo, hi, *to)

    return in_tiles(torch.Size(lead), d, count, fill)


def drawn_torch(x: Tensor, level: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
    """Return ``drawn`` (the reference; any device)."""
    size = x.abs().double()
    return listed(((size >= level) & (size > 0)) | ~(stream.uniform(x.shape[-1]) * level >= size))


def weighted(x: Tensor, where: Tensor, counts: Tensor, level: Tensor) -> Tensor:
    """Return x_j / min(1, |x_j| / level) at the first counts (*lead) of where (*lead, m), and zeros.

    x (*lead, d), level (*lead, 1); in x's dtype. As it is where the level is NaN.
    """
    if x.device.type != "cpu":
        return weighted_torch(x, where, counts, level)
    out = torch.empty(where.shape, dtype=x.dtype)
    rows, levels = x.reshape(-1, x.shape[-1]).numpy(), level.reshape(-1).numpy()
    most, own = where.shape[-1], counts.reshape(-1).numpy()
    at, to = where.numpy().reshape(len(rows), most), out.numpy().reshape(len(rows), most)

    def work(a: int, b: int, lo: int, hi: int) -> None:
        kernels.weighted(rows[a:b], at[a:b], own[a:b], levels[a:b], lo, hi, to[a:b])

    run_tiled(work, len(at), most, MISS)
    return out


def weighted_torch(x: Tensor, where: Tensor, counts: Tensor, level: Tensor) -> Tensor:
    """Return the same (the reference; any device)."""
    values = kept_torch(x, where, counts)
    return torch.where(values.abs() < level, values.sign() * level, values).to(x.dtype)
