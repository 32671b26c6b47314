"""Codes of block formats: the largest magnitude of each block, and the nearest levels of its numbers.

Each CPU kernel stands beside its plain torch version, the reference and the way on other devices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybench.core.compiled import compiled
from raybench.core.parallel import ALIGN, run_tiled
from raybench.core.streams import Stream, hash_numba
from raybench.wire.block_formats import blocks_of, table_of

PIECE = 4096  # blocks longer than that are searched for their largest in pieces
INTEGERS = {torch.float32: np.int32, torch.float64: np.int64}


# Largest magnitudes ------------------------------------------------------------------------------


def _max_kernel(integer: Any, magnitude: int) -> Any:
    mask = integer(magnitude)

    @compiled
    def kernel(raw, block, r0, r1, lo, hi, out):  # lo is the start of a block
        for r in range(r0, r1):
            start, b = lo, lo // block
            while start < hi:
                row = raw[r, start : min(start + block, hi)]
                most = integer(0)
                for j in range(row.shape[0]):
                    most = max(most, integer(row[j] & mask))
                out[r, b] = most
                start, b = start + block, b + 1

    return kernel


_MAX = {
    torch.float32: _max_kernel(np.int32, 0x7FFFFFFF),
    torch.float64: _max_kernel(np.int64, 0x7FFFFFFFFFFFFFFF),
}


def block_max(x: Tensor, block: int) -> Tensor:
    """Return the largest |x_j| of each block of x (*lead, d): (*lead, nb); NaN where one is not finite."""
    if x.device.type != "cpu":
        return block_max_torch(x, block)
    d = x.shape[-1]
    whole = block >= d > PIECE  # one block a row: in pieces, so that the cores share it
    size = PIECE if whole else block
    out = torch.empty(*x.shape[:-1], blocks_of(d, size), dtype=x.dtype)
    raw = (
        x.view(-1, d).numpy().view(INTEGERS[x.dtype])
    )  # magnitudes of floats are ordered as integers
    into = out.view(len(raw), -1).numpy().view(INTEGERS[x.dtype])
    kernel, align = _MAX[x.dtype], size * max(1, ALIGN // size)
    run_tiled(lambda *tile: kernel(raw, size, *tile, into), len(raw), d, 0.3, align)
    return _finite(out.amax(-1, keepdim=True) if whole else out)


def block_max_torch(x: Tensor, block: int) -> Tensor:
    """Return the same in plain torch (the reference; any device)."""
    return _finite(in_blocks(x.abs(), block).amax(-1))


def _finite(top: Tensor) -> Tensor:
    return torch.where(
        top.isfinite(), top, torch.nan
    )  # infinity times the level 0 would be NaN too


def in_blocks(x: Tensor, block: int) -> Tensor:
    """Return x (*lead, d) as (*lead, nb, block), the last block filled up with zeros."""
    d = x.shape[-1]
    room = blocks_of(d, block) * block - d
    return torch.nn.functional.pad(x, (0, room)).unflatten(-1, (-1, block))


def spread(values: Tensor, block: int, d: int) -> Tensor:
    """Return values (*lead, nb) of blocks repeated for their numbers: (*lead, d)."""
    return values.repeat_interleave(block, -1)[..., :d]


def nonzero(scale: Tensor) -> Tensor:
    """Return the scales with 1 for 0, to divide by."""
    return torch.where(scale == 0, torch.ones_like(scale), scale)


# Codes -------------------------------------------------------------------------------------------


def _run(kernel: Any, x: Tensor, factors: Tensor, block: int, cost: float, *more: Any) -> Tensor:
    """Return the codes (*lead, d) uint8 that a kernel makes of x and a factor per block."""
    d = x.shape[-1]
    out = torch.empty(x.shape, dtype=torch.uint8)
    rows, into = x.view(-1, d).numpy(), out.view(-1, d).numpy()
    by = factors.contiguous().view(len(rows), -1).numpy()
    run_tiled(lambda *tile: kernel(rows, by, block, *more, *tile, into), len(rows), d, cost)
    return out


@compiled
def _uniform(rows, factors, block, zero, levels, r0, r1, lo, hi, out):
    for r in range(r0, r1):
        start, b = lo, lo // block
        while start < hi:
            stop = min((b + 1) * block, hi)
            row, o, factor = rows[r, start:stop], out[r, start:stop], factors[r, b]
            for j in range(row.shape[0]):
                t = row[j] / factor * levels
                t = t if t == t else zero
                o[j] = np.uint8(np.int32(np.rint(t)) + np.int32(127))
            start, b = stop, b + 1


def uniform_codes(x: Tensor, factors: Tensor, block: int) -> Tensor:
    """Return 127 + the integer nearest to 127 x_j/factor, |x_j| <= factor; 127 for NaN."""
    if x.device.type != "cpu":
        return uniform_codes_torch(x, factors, block)
    one = x.numpy().dtype.type
    return _run(_uniform, x, factors, block, 1.0, one(0), one(127))


def uniform_codes_torch(x: Tensor, factors: Tensor, block: int) -> Tensor:
    """Return the same in plain torch (the reference; any device)."""
    t = x / spread(factors, block, x.shape[-1]) * 127
    return (torch.where(t == t, t, 0).round() + 127).to(torch.uint8)


@compiled
def _stochastic(rows, factors, block, keys, drop, levels, steps, r0, r1, lo, hi, out):
    zero, kind = rows.dtype.type(0), rows.dtype.type
    for r in range(r0, r1):
        start, b, key = lo, lo // block, keys[r]
        while start < hi:
            stop = min((b + 1) * block, hi)
            row, o, factor = rows[r, start:stop], out[r, start:stop], factors[r, b]
            first = np.uint64(start)
            for j in range(row.shape[0]):
                noise = kind(hash_numba(key, first + np.uint64(j)) >> drop)
                t = row[j] / factor * levels
                t = t if t == t else zero
                low = np.floor(t)
                up = np.int32(noise < (t - low) * steps)
                o[j] = np.uint8(np.int32(low) + up + np.int32(127))
            start, b = stop, b + 1


def stochastic_codes(x: Tensor, factors: Tensor, block: int, stream: Stream) -> Tensor:
    """Return 127 + 127 x_j/factor rounded at random without bias; 127 for NaN.

    Up where a random integer of as many bits as x has significant ones is below the rest: nothing
    is added to the ratio, so that nothing is lost of it.
    """
    if x.device.type != "cpu":
        return stochastic_codes_torch(x, factors, block, stream)
    keys, one, bits = (
        stream.keys.reshape(-1).numpy().view(np.uint64),
        x.numpy().dtype.type,
        _digits(x),
    )
    more = (keys, np.uint64(64 - bits), one(127), one(2.0**bits))
    return _run(_stochastic, x, factors, block, 4.0, *more)


def stochastic_codes_torch(x: Tensor, factors: Tensor, block: int, stream: Stream) -> Tensor:
    """Return the same in plain torch (the reference; any device)."""
    d, steps = x.shape[-1], 2.0 ** _digits(x)
    t = x / spread(factors, block, d) * 127
    t = torch.where(t == t, t, 0)
    low = t.floor()
    up = (stream.uniform(d) * steps).floor() < (t - low) * steps
    return (low + up + 127).to(torch.uint8)


def _digits(x: Tensor) -> int:
    return 24 if x.dtype == torch.float32 else 53


@compiled
def _nearest16(rows, factors, block, mids, r0, r1, lo, hi, out):
    a, b0, c, d, e = mids[0], mids[1], mids[2], mids[3], mids[4]
    f, g, h, i, k = mids[5], mids[6], mids[7], mids[8], mids[9]
    l, m, n, p, q = mids[10], mids[11], mids[12], mids[13], mids[14]
    for r in range(r0, r1):
        start, b = lo, lo // block
        while start < hi:
            stop = min((b + 1) * block, hi)
            row, o, factor = rows[r, start:stop], out[r, start:stop], factors[r, b]
            for j in range(row.shape[0]):
                t = row[j] / factor
                code = np.uint8(t > a) + np.uint8(t > b0) + np.uint8(t > c) + np.uint8(t > d)
                code += np.uint8(t > e) + np.uint8(t > f) + np.uint8(t > g) + np.uint8(t > h)
                code += np.uint8(t > i) + np.uint8(t > k) + np.uint8(t > l) + np.uint8(t > m)
                code += np.uint8(t > n) + np.uint8(t > p) + np.uint8(t > q)
                o[j] = np.uint8(code)
            start, b = stop, b + 1


def mids_of(levels: Tensor) -> Tensor:
    """Return the points midway between ascending levels."""
    return (levels[1:] + levels[:-1]) / 2


def nf4_codes(x: Tensor, factors: Tensor, block: int) -> Tensor:
    """Return which level of NF4 is nearest to x_j/factor, the lower one of two; 0 for NaN."""
    if x.device.type != "cpu":
        return nf4_codes_torch(x, factors, block)
    return _run(
        _nearest16, x, factors, block, 2.0, mids_of(table_of("nf4", x.dtype, x.device)).numpy()
    )


def nf4_codes_torch(x: Tensor, factors: Tensor, block: int) -> Tensor:
    """Return the same in plain torch (the reference; any device)."""
    t = x / spread(factors, block, x.shape[-1])
    codes = torch.bucketize(t, mids_of(table_of("nf4", x.dtype, x.device)))
    return torch.where(t == t, codes, 0).to(torch.uint8)
