"""CPU kernels of sampling by importance: sums by tiles, the level of Wangni's scheme, what is drawn.

A tile's size is fixed and its sum is made by one function, so a row has the same sums whichever
kernel asks for them. Reassociation lets them vectorise.
"""

from __future__ import annotations

import numpy as np

from raybench.core.compiled import compiled
from raybench.core.parallel import ALIGN
from raybench.core.streams import hash_numba
from raybench.wire.perm import list_kept


@compiled(fastmath={"reassoc"})
def _tile_sum(tile):
    total = 0.0
    for j in range(tile.shape[0]):
        total += np.float64(abs(tile[j]))
    return total


@compiled(fastmath={"reassoc"})
def _tile_parts(tile, level):  # how many |x_j| > 0 are at least the level, the sum of those below
    total, above = 0.0, 0
    for j in range(tile.shape[0]):
        size = np.float64(abs(tile[j]))
        total += size if size < level else 0.0
        above += (size >= level) & (size > 0.0)
    return above, total


@compiled
def sums(rows, lo, hi, out):
    """Write the sums of |x_j| over the tiles of coordinates lo..hi of rows (R, d): out (R, tiles)."""
    for r in range(rows.shape[0]):
        for start in range(lo, hi, ALIGN):
            out[r, start // ALIGN] = _tile_sum(rows[r, start : min(start + ALIGN, hi)])


@compiled
def place(rows, tiles, draws, places, sizes):
    """Write where the sum of |x_j| passes draws[r] times that of the row, and ||x||_1 of every row.

    rows (R, d), tiles (R, T) as from ``sums``; draws, places, sizes (R,). Never a place with x_j = 0,
    unless all are (then 0); of a row that is not finite any.
    """
    for r in range(rows.shape[0]):
        size = 0.0
        for t in range(tiles.shape[1]):
            size += tiles[r, t]
        sizes[r], places[r] = size, 0
        if not (size > 0.0 and size < np.inf):
            continue
        aim, before, tile = min(draws[r] * size, np.nextafter(size, 0.0)), 0.0, 0
        while before + tiles[r, tile] <= aim:
            before += tiles[r, tile]
            tile += 1
        near = rows[r, tile * ALIGN : (tile + 1) * ALIGN]
        aim, total, found = aim - before, 0.0, 0
        for j in range(near.shape[0]):
            own = np.float64(abs(near[j]))
            total += own
            if own > 0.0:
                found = (
                    j  # the last that is not zero, where these sums round to less than the tile's
                )
            if total > aim:
                break
        places[r] = tile * ALIGN + found


@compiled
def parts(rows, levels, lo, hi, counts, totals):
    """Write of every tile how many |x_j| > 0 are at least levels[r], and the sum of those below."""
    for r in range(rows.shape[0]):
        for start in range(lo, hi, ALIGN):
            above, total = _tile_parts(rows[r, start : min(start + ALIGN, hi)], levels[r])
            counts[r, start // ALIGN], totals[r, start // ALIGN] = above, total


@compiled
def level_of_tile(rows, k, levels):
    """Write t with sum_j min(1, |x_j| / t) = k for rows (R, d) of at most a tile, as ``threshold``."""
    for r in range(rows.shape[0]):
        size = _tile_sum(rows[r])
        level, certain = (size / k if size < np.inf else np.nan), -1
        while True:
            count, rest = _tile_parts(rows[r], level)
            if count == certain:
                break
            certain = count
            if k > count:
                level = min(level, rest / (k - count)) if level == level else level
        levels[r] = level


@compiled(inline="always")
def _keeps(size, level, key, counter):
    u = np.float64(hash_numba(key, counter) >> np.uint64(11)) * 2.0**-53
    return ((size >= level) & (size > 0.0)) | (not u * level >= size)


@compiled
def count_drawn(rows, levels, keys, lo, hi, counts):
    """Write how many coordinates of every tile are kept with probability min(1, |x_j| / level)."""
    for r in range(rows.shape[0]):
        level, key = levels[r], keys[r]
        for start in range(lo, hi, ALIGN):
            tile, kept = rows[r, start : min(start + ALIGN, hi)], 0
            for j in range(tile.shape[0]):
                kept += _keeps(np.float64(abs(tile[j])), level, key, np.uint64(start + j))
            counts[r, start // ALIGN] = kept


@compiled
def fill_drawn(rows, levels, keys, lo, hi, first, out, counts):
    """Write those coordinates from first[r, tile] on, and how many the last tile keeps."""
    keep, place = np.empty(ALIGN, np.uint8), np.empty(ALIGN * (first.shape[1] > 1), np.int32)
    for r in range(rows.shape[0]):
        level, key = levels[r], keys[r]
        for start in range(lo, hi, ALIGN):
            tile = rows[r, start : min(start + ALIGN, hi)]
            for j in range(tile.shape[0]):
                keep[j] = _keeps(np.float64(abs(tile[j])), level, key, np.uint64(start + j))
            to = out[r, first[r, start // ALIGN] :]
            counts[r] = list_kept(keep[: tile.shape[0]], start, to, place)


@compiled
def weighted(rows, where, counts, levels, lo, hi, out):
    """Write x_j / min(1, |x_j| / level) at the first counts[r] places lo..hi, and zeros beyond."""
    for r in range(rows.shape[0]):
        row, level = rows[r], levels[r]
        at, to, own = where[r, lo:hi], out[r, lo:hi], max(0, min(counts[r], hi) - lo)
        for j in range(own):
            value = row[np.uint64(at[j])]
            less = np.float64(abs(value)) < level
            to[j] = np.copysign(level, value) if less else value
        to[own:] = 0
