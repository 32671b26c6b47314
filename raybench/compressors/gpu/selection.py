"""The largest entries of rows, and those above a cut, on a GPU: exact, without a sort.

Sizes are the bits of |x| as a float32, of 31 bits: they order as |x| does, zeros of both signs are one,
a NaN counts as infinity. A short row is held by one program, which finds the k-th size bit by bit. Of
a long row a cut is guessed from a sample; one pass over the row marks what exceeds it, each tile
listing its own marks in a slot of its own; the k-th size is found among the marks, by histograms of
eight bits at a time; a sum over tiles tells each where to write. A tile with more marks than its slot
holds is read again instead, and so is all of a row in which fewer than k were marked: the guess
decides the time, never the result. Nothing is sent to the host on the way.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from raybench.core.gpu import launch

SHORT_ROW = 4096  # entries that one program holds
TILE = 4096  # entries of a long row that a program marks; places are of 16 bits
GROUPS = 128  # of the tiles of a row, each with a histogram of its own
MOST_SAMPLED, SPARED = 1 << 17, 64  # entries of a sample, and how many of the row stand for one
LEAST_SLOT = 128
BINS = tl.constexpr(256)
DIGITS = (24, 16, 8, 0)  # the lowest bit of each digit, from the highest on


# Pieces of kernels -----------------------------------------------------------------------------


@triton.jit
def _raw(x, at, mask):
    """Return the bits of entries as float32, which holds those of 16 bits."""
    return tl.load(x + at, mask=mask, other=0.0).to(tl.float32).to(tl.int32, bitcast=True)


@triton.jit
def _size(raw, mask):
    """Return the sizes of entries by their bits, -1 where there is none."""
    return tl.where(mask, tl.minimum(raw & 0x7FFFFFFF, 0x7F800000), -1)


@triton.jit
def _listed(counts, at, sound, SLOT: tl.constexpr):
    """Return whether a tile's marks are all in its slot, and they are all that matters of it."""
    return (tl.load(counts + at) <= SLOT) & (tl.load(sound) != 0)


@triton.jit
def _of_slot(raws, counts, at, SLOT: tl.constexpr):
    """Return bits and sizes of a tile's marks."""
    i = tl.arange(0, SLOT)
    there = i < tl.load(counts + at)
    raw = tl.load(raws + at * SLOT + i, mask=there, other=0)
    return raw, _size(raw, there)


@triton.jit
def _of_tile(x, r, t, d, TILE: tl.constexpr):
    """Return bits and sizes of all of a tile."""
    j = t * TILE + tl.arange(0, TILE)
    raw = _raw(x, r * d + j, j < d)
    return raw, _size(raw, j < d)


@triton.jit
def _histogram(size, prefix, SHIFT: tl.constexpr):
    """Return how often each digit follows the prefix."""
    alike = (size >> min(SHIFT + 8, 31)) == prefix
    return tl.histogram((size >> SHIFT) & 255, BINS, mask=alike)


@triton.jit
def _over(size, cut):
    """Return how many sizes exceed a cut, and how many are equal to it."""
    return tl.sum((size > cut).to(tl.int64), 0), tl.sum((size == cut).to(tl.int64), 0)


@triton.jit
def _write(raw, size, place, cut, before, room, where, values):
    """Write what exceeds a cut, and of its ties as many as there is room for, in order."""
    above, tie = size > cut, size == cut
    keep = above | (tie & (before + tl.cumsum(tie.to(tl.int32), 0) <= room))
    to = tl.cumsum(keep.to(tl.int32), 0) - 1
    tl.store(where + to, place, mask=keep)
    value = raw.to(tl.float32, bitcast=True).to(values.dtype.element_ty)
    tl.store(values + to, value, mask=keep)


# Kernels ---------------------------------------------------------------------------------------


@triton.jit
def row_kernel(x, where, values, d, k, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, BLOCK)
    raw = _raw(x, r * d + j, j < d)
    size, cut = _size(raw, j < d), tl.full((), 0, tl.int32)
    for b in range(31):
        higher = cut | (1 << (30 - b))
        cut = tl.where(tl.sum((size >= higher).to(tl.int32), 0) >= k, higher, cut)
    room = k - tl.sum((size > cut).to(tl.int32), 0)
    _write(raw, size, j.to(tl.int64), cut, 0, room, where + r * k, values + r * k)


@triton.jit
def mark_kernel(x, cuts, raws, places, counts, d, tiles, TILE: tl.constexpr, SLOT: tl.constexpr):
    at = tl.program_id(0).to(tl.int64)
    r, t = at // tiles, at % tiles
    raw, size = _of_tile(x, r, t, d, TILE)
    keep = size > tl.load(cuts + r)
    nth = tl.cumsum(keep.to(tl.int32), 0) - 1
    tl.store(counts + at, tl.sum(keep.to(tl.int32), 0))
    tl.store(raws + at * SLOT + nth, raw, mask=keep & (nth < SLOT))
    tl.store(places + at * SLOT + nth, tl.arange(0, TILE).to(tl.int16), mask=keep & (nth < SLOT))


@triton.jit
def digit_kernel(
    x, raws, counts, sound, prefixes, partial, d, tiles, groups,
    SHIFT: tl.constexpr, TILE: tl.constexpr, SLOT: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64)
    r, g = at // groups, at % groups
    prefix, histogram = tl.load(prefixes + r), tl.zeros((BINS,), tl.int32)
    for t in range(g, tiles, groups):
        if _listed(counts, r * tiles + t, sound + r, SLOT):
            histogram += _histogram(_of_slot(raws, counts, r * tiles + t, SLOT)[1], prefix, SHIFT)
        else:
            histogram += _histogram(_of_tile(x, r, t, d, TILE)[1], prefix, SHIFT)
    tl.store(partial + at * BINS + tl.arange(0, BINS), histogram)


@triton.jit
def pick_kernel(partial, prefixes, ranks, groups):
    r = tl.program_id(0).to(tl.int64)
    digit, histogram = tl.arange(0, BINS), tl.zeros((BINS,), tl.int64)
    for first in range(0, groups, 32):
        g = first + tl.arange(0, 32)
        at = (r * groups + g[:, None]) * BINS + digit[None, :]
        histogram += tl.sum(
            tl.load(partial + at, mask=g[:, None] < groups, other=0).to(tl.int64), 0
        )
    rank = tl.load(ranks + r)
    # of this digit or a larger one
    from_here = tl.sum(histogram, 0) - tl.cumsum(histogram, 0) + histogram
    chosen = tl.sum((from_here >= rank).to(tl.int32), 0) - 1
    above = tl.sum(tl.where(digit > chosen, histogram, 0), 0)
    tl.store(prefixes + r, (tl.load(prefixes + r) << 8) | chosen)
    tl.store(ranks + r, rank - above)


@triton.jit
def count_kernel(
    x, raws, counts, sound, cuts, above, ties, d, tiles, TILE: tl.constexpr, SLOT: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64)
    r, t = at // tiles, at % tiles
    cut = tl.load(cuts + r)
    if _listed(counts, at, sound + r, SLOT):
        larger, tied = _over(_of_slot(raws, counts, at, SLOT)[1], cut)
    else:
        larger, tied = _over(_of_tile(x, r, t, d, TILE)[1], cut)
    tl.store(above + at, larger)
    tl.store(ties + at, tied)


@triton.jit
def emit_kernel(
    x, raws, places, counts, sound, cuts, above, ties, rooms, where, values, d, tiles, most,
    TILE: tl.constexpr, SLOT: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64)
    r, t = at // tiles, at % tiles
    cut, before, room = tl.load(cuts + r), tl.load(ties + at), tl.load(rooms + r)
    start = r * most + tl.load(above + at) + tl.minimum(before, room)
    where, values = where + start, values + start
    if _listed(counts, at, sound + r, SLOT):
        raw, size = _of_slot(raws, counts, at, SLOT)
        i = tl.arange(0, SLOT)
        place = tl.load(places + at * SLOT + i, mask=size >= 0, other=0).to(tl.int64)
        _write(raw, size, t * TILE + place, cut, before, room, where, values)
    else:
        all_raw, all_sizes = _of_tile(x, r, t, d, TILE)
        j = t * TILE + tl.arange(0, TILE)
        _write(all_raw, all_sizes, j, cut, before, room, where, values)


# What others call ------------------------------------------------------------------------------


def largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return indices (int64, ascending) and values of the k largest |x_j| of x (*lead, d): (*lead, k).

    Ties go to the lowest index; NaN is as large as infinity. float32 or of 16 bits; 1 <= k <= d.
    """
    lead, d = x.shape[:-1], x.shape[-1]
    where = torch.empty(*lead, k, dtype=torch.int64, device=x.device)
    values = torch.empty(*lead, k, dtype=x.dtype, device=x.device)
    rows = x.reshape(-1, d).contiguous()
    if d <= SHORT_ROW:
        block = triton.next_power_of_2(d)
        warps = max(1, min(block // 512, 8))
        launch(row_kernel, len(rows), rows, where, values, d, k, BLOCK=block, num_warps=warps)
    else:
        _largest(rows, k, where, values)
    return where, values


def _largest(x: Tensor, k: int, where: Tensor, values: Tensor) -> None:
    """Write the same of long rows x (R, d)."""
    slot = max(LEAST_SLOT, triton.next_power_of_2(-(-4 * TILE * k // x.shape[-1])))
    marks = _Marks(x, _guess(x, k), slot, k)
    cuts = marks.kth(k)
    above, ties = marks.over(cuts)
    marks.emit(cuts, above, ties, k - above.sum(-1), where, values)


def above(x: Tensor, cuts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return counts (*lead), indices and values (*lead, most) of the entries of a size above cuts (*lead).

    x (*lead, d), float32 or of 16 bits; cuts: int32, bits of a float32 of 0 or more. Indices ascend;
    beyond a row's count both are zero. The largest count is read by the host.
    """
    lead, of_rows = x.shape[:-1], cuts.reshape(-1).contiguous()
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    marks = _Marks(rows, of_rows, TILE // 4, 0)
    larger = marks.counts.long()
    counts = larger.sum(-1)
    most = int(counts.max()) if len(rows) else 0
    where = torch.zeros(*lead, most, dtype=torch.int64, device=x.device)
    values = torch.zeros(*lead, most, dtype=x.dtype, device=x.device)
    no_ties, no_room = torch.zeros_like(larger), torch.zeros_like(counts)
    marks.emit(of_rows, larger, no_ties, no_room, where, values)
    return counts.view(lead), where, values


class _Marks:
    """What exceeds cuts (R,) of x (R, d): how many of each tile, and in its slot which.

    A row with fewer than ``least`` of them is not sound: all of it is read again.
    """

    def __init__(self, x: Tensor, cuts: Tensor, slot: int, least: int) -> None:
        rows, d = x.shape
        self.x, self.tile = x, min(TILE, triton.next_power_of_2(d))
        self.slot, self.tiles = min(slot, self.tile), -(-d // self.tile)
        held = rows, self.tiles, self.slot
        self.raws = torch.empty(held, dtype=torch.int32, device=x.device)
        self.places = torch.empty(held, dtype=torch.int16, device=x.device)
        self.counts = torch.empty(held[:2], dtype=torch.int32, device=x.device)
        self._launch(mark_kernel, x, cuts, self.raws, self.places, self.counts, d, self.tiles)
        self.sound = self.counts.sum(-1) >= least

    def kth(self, k: int) -> Tensor:
        """Return the k-th largest size of every row, int32 (R,)."""
        rows, d = self.x.shape
        groups = min(GROUPS, self.tiles)
        cuts = torch.zeros(rows, dtype=torch.int32, device=self.x.device)
        ranks = torch.full((rows,), k, dtype=torch.int64, device=self.x.device)
        histograms = torch.empty(rows, groups, BINS.value, dtype=torch.int32, device=self.x.device)
        for shift in DIGITS:
            given = self.x, self.raws, self.counts, self.sound, cuts, histograms
            sizes = d, self.tiles, groups
            self._launch(digit_kernel, *given, *sizes, programs=rows * groups, SHIFT=shift)
            launch(pick_kernel, rows, histograms, cuts, ranks, groups)
        return cuts

    def over(self, cuts: Tensor) -> tuple[Tensor, Tensor]:
        """Return how many of every tile exceed cuts (R,), and how many are equal: int64 (R, tiles)."""
        above, ties = (torch.empty_like(self.counts, dtype=torch.int64) for _ in range(2))
        given = self.x, self.raws, self.counts, self.sound, cuts, above, ties
        self._launch(count_kernel, *given, self.x.shape[-1], self.tiles)
        return above, ties

    def emit(
        self, cuts: Tensor, above: Tensor, ties: Tensor, room: Tensor, where: Tensor, values: Tensor
    ) -> None:
        """Write what exceeds cuts (R,), and the first ``room`` (R,) of that size; see ``over``."""
        starts = (of_tiles.cumsum(-1) - of_tiles for of_tiles in (above, ties))
        given = self.x, self.raws, self.places, self.counts, self.sound, cuts, *starts, room
        sizes = self.x.shape[-1], self.tiles, where.shape[-1]
        self._launch(emit_kernel, *given, where, values, *sizes)

    def _launch(self, kernel: Any, *given: Any, programs: int | None = None, **more: int) -> None:
        """Run a kernel, by default a program for every tile."""
        count = self.counts.numel() if programs is None else programs
        launch(kernel, count, *given, TILE=self.tile, SLOT=self.slot, **more)


def _guess(x: Tensor, k: int) -> Tensor:
    """Return a cut that slightly more than k entries of each long row probably exceed, int32 (R,)."""
    d = x.shape[-1]
    count = min(MOST_SAMPLED, d // SPARED)
    stretch, share = d // count, k * count / d
    i = torch.arange(count, device=x.device)
    some = x.index_select(-1, i * stretch + i * 7919 % stretch).float()  # one of every stretch
    sizes = (some.view(torch.int32) & 0x7FFFFFFF).clamp_(max=0x7F800000)
    rank = math.ceil(share + 4 * math.sqrt(share) + 2)
    if rank > count:
        return torch.full((len(x),), -1, dtype=torch.int32, device=x.device)
    # of a sparse row no more than what is not zero
    return (sizes.topk(rank, dim=-1, sorted=False).values.amin(-1) - 1).clamp_(min=0)
