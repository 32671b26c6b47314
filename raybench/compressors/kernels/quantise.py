"""What quantisers share: norms of rows and buckets, and rounding at random to levels.

On CPU compiled kernels do it, a plain torch version beside each is the reference and serves other
devices. Given the norms both make the same codes, bit for bit: they do the same float64 operations.
Sums are taken in float64, in tiles of fixed size with fixed lanes, so that a row's norm depends
neither on the rows beside it nor on the number of threads.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from raybench.core.compiled import compiled
from raybench.core.parallel import ALIGN, run_tiled
from raybench.core.streams import Stream, hash_numba
from raybench.wire import LevelsMessage
from raybench.wire.levels import aligned, code_dtype, levels_of, spread

LANES = 64  # partial sums kept side by side
CHUNK = 512  # coordinates whose ratios are held at once
TINY, UP = 2.0**-900, 2.0**600  # norms below TINY are multiplied by UP, lest 1 / norm overflow
NORM_COST, CODE_COST = 1.0, 6.0  # of a coordinate, in additions


# Norms --------------------------------------------------------------------------------------------


@compiled(inline="always")
def fold(lanes):
    """Return the sum of LANES partial sums in a fixed order; for use in CPU kernels."""
    for first in range(8, LANES, 8):
        for i in range(8):
            lanes[i] += lanes[first + i]
    left = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
    return left + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]))


@compiled
def _sum_tile(v, square, up, lanes):
    lanes[:] = 0.0
    for first in range(0, v.shape[0], LANES):
        part = v[first : min(first + LANES, v.shape[0])]
        if square:
            for i in range(part.shape[0]):
                a = np.float64(part[i]) * up
                lanes[i] += a * a
        else:
            for i in range(part.shape[0]):
                lanes[i] += abs(np.float64(part[i]) * up)
    return fold(lanes)


@compiled
def _sums(rows, square, up, bucket, r0, r1, lo, hi, out):  # up (R, 1 or nb), out (R, nb)
    lanes = np.empty(LANES)
    for r in range(r0, r1):
        for b in range(lo // bucket, -(-hi // bucket)):
            end, total = min((b + 1) * bucket, hi), 0.0
            factor = up[r, b if up.shape[1] > 1 else 0]
            for first in range(b * bucket, end, ALIGN):
                total += _sum_tile(rows[r, first : min(first + ALIGN, end)], square, factor, lanes)
            out[r, b] = total


@compiled
def _largest(bits, mask, bucket, r0, r1, lo, hi, out):  # of numbers without sign, as integers
    for r in range(r0, r1):
        for b in range(lo // bucket, -(-hi // bucket)):
            part, most = bits[r, b * bucket : min((b + 1) * bucket, hi)], mask & 0
            for j in range(part.shape[0]):
                most = max(most, part[j] & mask)
            out[r, b] = most


@compiled
def _add_up(parts, out):
    for r in range(parts.shape[0]):
        total = 0.0
        for t in range(parts.shape[1]):
            total += parts[r, t]
        out[r] = total


def buckets(d: int, bucket: int) -> int:
    """Return how many scales a row of d coordinates has: ceil(d / bucket), or 1 for bucket 0."""
    return -(-d // bucket) if bucket > 0 else 1


def norms(x: Tensor, p: float, bucket: int = 0) -> Tensor:
    """Return ||x||_p of every row or bucket of x (*lead, d), float64 (*lead, nb); p >= 1 or inf.

    Entries far from 1 are scaled first, so that their powers neither overflow nor vanish. A NaN gives
    NaN, an infinity infinity or NaN.
    """
    if x.device.type != "cpu" or p not in (1.0, 2.0, math.inf) or not x.numel():
        return norms_torch(x, p, bucket)
    d = x.shape[-1]
    shape, rows = (*x.shape[:-1], buckets(d, bucket)), x.reshape(-1, d).numpy()
    if p == math.inf:
        return _largest_of(rows, bucket).view(shape).double()
    up = np.ones((len(rows), 1))
    total = _sum_of(rows, p == 2, up, bucket).numpy()
    if p == 1:
        return torch.from_numpy(total).view(shape)
    if x.dtype == torch.float64:  # squares of float32 numbers are within float64
        strange = ~((total > 1e-200) & (total < 1e200))
        if strange.any():
            largest = _largest_of(rows, bucket).numpy()
            scale = np.exp2(-np.clip(np.frexp(largest)[1], -1000, 1000).astype(np.float64))
            up = np.where(strange & np.isfinite(largest), scale, 1.0)
            total = _sum_of(rows, True, up, bucket).numpy()
    # numpy's root: torch's need not round correctly, nor alike wherever in an array a number is
    return torch.from_numpy(np.sqrt(total) / up).view(shape)


def _sum_of(rows: np.ndarray, square: bool, up: np.ndarray, bucket: int) -> Tensor:
    parts = torch.empty(len(rows), buckets(rows.shape[1], bucket or ALIGN), dtype=torch.float64)
    sums, own = parts.numpy(), bucket or ALIGN

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _sums(rows, square, up, own, r0, r1, lo, hi, sums)

    run_tiled(work, rows.shape[0], rows.shape[1], NORM_COST, aligned(bucket))
    if bucket or parts.shape[1] == 1:
        return parts
    out = torch.empty(len(rows), 1, dtype=torch.float64)
    _add_up(sums, out.view(-1).numpy())
    return out


def _largest_of(rows: np.ndarray, bucket: int) -> Tensor:
    wide, own = rows.dtype == np.float64, bucket or ALIGN
    kind, mask = (np.int64, np.int64(2**63 - 1)) if wide else (np.int32, np.int32(2**31 - 1))
    out = np.empty((len(rows), buckets(rows.shape[1], own)), kind)

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _largest(rows.view(kind), mask, own, r0, r1, lo, hi, out)

    run_tiled(work, rows.shape[0], rows.shape[1], NORM_COST, aligned(bucket))
    best = torch.from_numpy(out if bucket else out.max(1, keepdims=True))
    return best.view(torch.float64 if wide else torch.float32)


def norms_torch(x: Tensor, p: float, bucket: int = 0) -> Tensor:
    """Return the same by plain torch, to rounding (the reference; any device, any p)."""
    *lead, d = x.shape
    own = min(bucket, d) or d
    parts = torch.nn.functional.pad(x, (0, -d % own)).reshape(*lead, -(-d // own), own)
    largest = parts.abs().amax(-1).double()
    if p == math.inf:
        return largest
    scale = largest.where((largest > 0) & largest.isfinite(), 1.0)[..., None]
    return scale[..., 0] * torch.linalg.vector_norm(parts.double() / scale, ord=p, dim=-1)


# Rounding at random -------------------------------------------------------------------------------


@compiled(inline="always")
def _inverse(norm, s):
    up = UP if norm < TINY else 1.0
    return up, (s / (norm * up) if norm > 0 else 0.0)


@compiled
def _linear(rows, keys, norm, bucket, s, r0, r1, lo, hi, out):
    top = np.float64(s) + 1
    for r in range(r0, r1):
        key, start = keys[r], lo
        while start < hi:
            b = start // bucket
            end = min((b + 1) * bucket, hi)
            x, o = rows[r, start:end], out[r, start:end]
            up, inverse = _inverse(norm[r, b], np.float64(s))
            for j in range(x.shape[0]):
                h = hash_numba(key, np.uint64(start + j))
                u = np.float64(h >> np.uint64(11)) * 2.0**-53
                value = abs(np.float64(x[j])) * up * inverse + u
                value = value if value < top else np.float64(s)
                level = np.int32(value)
                o[j] = s - level if x[j] < 0 else s + level
            start = end


@compiled
def _power(rows, keys, norm, bucket, s, r0, r1, lo, hi, out):
    ratio = np.empty(CHUNK)
    bits = ratio.view(np.uint64)
    smallest, largest = 2.0 ** (1 - s), 2.0 ** (s - 1)
    for r in range(r0, r1):
        key, start = keys[r], lo
        while start < hi:
            b = start // bucket
            end = min((b + 1) * bucket, hi, start + CHUNK)
            x, o = rows[r, start:end], out[r, start:end]
            up, inverse = _inverse(norm[r, b], 1.0)
            for j in range(x.shape[0]):
                value = abs(np.float64(x[j])) * up * inverse
                ratio[j] = value if value <= 1 else 1.0
            for j in range(x.shape[0]):
                h = hash_numba(key, np.uint64(start + j))
                u = np.float64(h >> np.uint64(11)) * 2.0**-53
                below = np.int32(min(ratio[j] * largest, 1.0) + u)
                above = np.int32((bits[j] + (h >> np.uint64(12))) >> np.uint64(52)) - 1023 + s
                level = below if ratio[j] < smallest else above
                o[j] = s - level if x[j] < 0 else s + level
            start = end


@compiled
def _ladder(rows, keys, norm, bucket, steps, r0, r1, lo, hi, out):  # steps: levels 0, .., 1
    s = steps.shape[0] - 1
    ratio, u, level = np.empty(CHUNK), np.empty(CHUNK), np.empty(CHUNK, np.int32)
    for r in range(r0, r1):
        key, start = keys[r], lo
        while start < hi:
            b = start // bucket
            end = min((b + 1) * bucket, hi, start + CHUNK)
            x, o = rows[r, start:end], out[r, start:end]
            up, inverse = _inverse(norm[r, b], 1.0)
            for j in range(x.shape[0]):
                value = abs(np.float64(x[j])) * up * inverse
                ratio[j] = value if value <= 1 else 1.0
                h = hash_numba(key, np.uint64(start + j))
                u[j] = np.float64(h >> np.uint64(11)) * 2.0**-53
                level[j] = 0
            for i in range(s):
                low, gap = steps[i], steps[i + 1] - steps[i]
                for j in range(x.shape[0]):
                    level[j] += np.int32(ratio[j] > low + u[j] * gap)
            for j in range(x.shape[0]):
                o[j] = s - level[j] if x[j] < 0 else s + level[j]
            start = end


def linear_torch(x: Tensor, norm: Tensor, source: Stream, s: int, bucket: int) -> Tensor:
    """Return the codes of linear levels, int64 (the reference; any device)."""
    value = _ratio(x, norm, s, bucket) + source.uniform(x.shape[-1])
    level = value.where(value < s + 1, float(s)).long()
    return torch.where(x < 0, s - level, s + level)


def power_torch(x: Tensor, norm: Tensor, source: Stream, s: int, bucket: int) -> Tensor:
    """Return the codes of powers of two, int64 (the reference; any device)."""
    ratio = _ratio(x, norm, 1, bucket)
    ratio = ratio.where(ratio <= 1, 1.0)
    noise = (source.bits(x.shape[-1]) >> 12) & (2**52 - 1)
    # numbers below the smallest power go to it or to 0; the carry of a random mantissa rounds others up
    below = (ratio * 2.0 ** (s - 1)).clamp(max=1.0) + source.uniform(x.shape[-1])
    above = ((ratio.contiguous().view(torch.int64) + noise) >> 52) - 1023 + s
    level = torch.where(ratio < 2.0 ** (1 - s), below.long(), above)
    return torch.where(x < 0, s - level, s + level)


def ladder_torch(x: Tensor, norm: Tensor, source: Stream, steps: Tensor, bucket: int) -> Tensor:
    """Return the codes of the levels ``steps`` = 0, .., 1 and their negatives, int64 (the reference)."""
    ratio, s = _ratio(x, norm, 1, bucket), len(steps) - 1
    ratio, u = ratio.where(ratio <= 1, 1.0), source.uniform(x.shape[-1])
    level = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    for low, high in zip(steps.tolist(), steps.tolist()[1:], strict=False):
        level += ratio > low + u * (high - low)  # past a point drawn uniformly between two levels
    return torch.where(x < 0, s - level, s + level)


def _ratio(x: Tensor, norm: Tensor, s: int, bucket: int) -> Tensor:
    """Return s |x| / norm, 0 where the norm is 0."""
    up = torch.ones_like(norm).masked_fill(norm < TINY, UP)
    inverse = torch.where(norm > 0, s / (norm * up), 0.0)
    up, inverse = (spread(part, bucket, x.shape[-1]) for part in (up, inverse))
    return x.abs().double() * up * inverse


def quantised(
    x: Tensor, source: Stream, table: str, s: int, p: float, base: float = 2.0, bucket: int = 0
) -> LevelsMessage:
    """Return the message of x (*lead, d), each |x_j| / ||x||_p rounded at random without bias.

    table: ``linear`` or ``power`` (see ``levels_of``); the norm is that of the row, or of every
    ``bucket`` coordinates, first rounded to x's type, so that what is sent is what was divided by.
    """
    d = x.shape[-1]
    bucket = bucket if 0 < bucket < d else 0
    scales = norms(x, p, bucket).to(x.dtype)
    codes = codes_of(x, scales.double(), source, table, s, base, bucket)
    return LevelsMessage(d, x.dtype, codes, scales, table, s, base, bucket)


def codes_of(
    x: Tensor, norm: Tensor, source: Stream, table: str, s: int, base: float, bucket: int
) -> Tensor:
    """Return the codes of x (*lead, d) given the norms (*lead, nb), float64: 0..2s, s for zero."""
    steps = levels_of(table, s, base)[s:] if table == "power" and base != 2 else None
    if x.device.type != "cpu" or not x.numel():
        if steps is not None:
            return ladder_torch(x, norm, source, steps, bucket)
        return (linear_torch if table == "linear" else power_torch)(x, norm, source, s, bucket)
    kernel = _linear if table == "linear" else _power if steps is None else _ladder
    out = torch.empty(x.shape, dtype=code_dtype(2 * s + 1))
    d = x.shape[-1]
    rows, codes, own = x.reshape(-1, d).numpy(), out.view(-1, d).numpy(), bucket or d
    keys = source.keys.contiguous().view(-1).numpy().view(np.uint64)
    norm_rows = norm.reshape(len(rows), -1).contiguous().numpy()
    levels = s if steps is None else steps.numpy()

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        kernel(rows, keys, norm_rows, own, levels, r0, r1, lo, hi, codes)

    cost = CODE_COST if steps is None else CODE_COST + s
    run_tiled(work, len(rows), d, cost, aligned(bucket))
    return out
