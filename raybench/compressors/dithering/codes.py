"""Rounding of ratios |x_j| / norm to levels: kernels on CPU and on GPUs, plain torch on other devices.

Given the norms all make the same codes, bit for bit: they do the same float64 operations.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.norms import norms
from raybench.core import gpu
from raybench.core.compiled import compiled
from raybench.core.parallel import run_tiled
from raybench.core.streams import Stream, hash_numba
from raybench.wire import LevelsMessage
from raybench.wire.levels import aligned, code_dtype, levels_of, spread

CHUNK = 512  # coordinates whose ratios are held at once
LEAST_NORM, ENLARGED = 2.0**-900, 2.0**600  # norms below are enlarged, lest 1 / norm overflow
CODE_WORK = 6.0  # of a coordinate, in additions
DITHERED, NEAREST, FLOOR, POWER, LADDER = range(5)  # the first three go to equally spaced levels


def quantised(
    x: Tensor,
    stream: Stream,
    table: str,
    s: int,
    p: float,
    base: float = 2.0,
    bucket: int = 0,
    how: str = "dithered",
) -> LevelsMessage:
    """Return the message of x (*lead, d), each |x_j| / ||x||_p rounded to a level of the table.

    table: ``linear`` or ``power`` (see ``levels_of``). The norm is that of the row, or of every ``bucket``
    coordinates, rounded to x's type first, so that what is sent is what was divided by. how, of linear
    levels: ``dithered`` adds a uniform number to s |x_j| / norm and drops the fraction; ``floor`` goes up
    from the level below s x_j / norm, its sign kept, where a uniform number is less than the fraction;
    ``nearest`` uses none, midway to the even level.
    """
    d = x.shape[-1]
    bucket = bucket if 0 < bucket < d else 0
    scales = norms(x, p, bucket).to(x.dtype)
    if table == "power":
        way, steps = (POWER, None) if base == 2 else (LADDER, levels_of(table, s, base)[s:])
    else:
        way, steps = {"dithered": DITHERED, "nearest": NEAREST, "floor": FLOOR}[how], None
    codes = codes_of(x, scales.double(), stream, way, s, bucket, steps)
    return LevelsMessage(d, x.dtype, codes, scales, table, s, base, bucket)


def codes_of(
    x: Tensor, norm: Tensor, stream: Stream, way: int, s: int, bucket: int, steps: Tensor | None
) -> Tensor:
    """Return the codes of x (*lead, d) given the norms (*lead, nb), float64: 0..2s, s for zero.

    way: DITHERED, NEAREST or FLOOR to 0, 1/s, .., 1 (see ``quantised``); POWER to powers of two; LADDER to
    ``steps`` = 0, .., 1, both without bias. What exceeds the norm goes to its level, as does a NaN.
    """
    if gpu.usable(x) and way != LADDER:
        from raybench.core.gpu import quantisers

        coded = torch.empty(x.shape, dtype=code_dtype(2 * s + 1), device=x.device)
        source = norm if way == NEAREST else stream.keys
        name = ("dithered", "nearest", "floor", "power")[way]
        quantisers.codes(x, source, *_factors(norm, way, s), name, s, bucket, coded)
        return coded
    if x.device.type != "cpu" or not x.numel():
        return codes_torch(x, norm, stream, way, s, bucket, steps)
    d, out = x.shape[-1], torch.empty(x.shape, dtype=code_dtype(2 * s + 1))
    rows, codes, own = x.view(-1, d).numpy(), out.view(-1, d).numpy(), bucket or d
    keys = np.zeros(len(rows), np.uint64)
    if way != NEAREST:
        keys = stream.keys.reshape(-1).numpy().view(np.uint64)
    by = norm.reshape(len(rows), -1).contiguous().numpy()
    ladder = np.empty(0) if steps is None else steps.numpy()

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _codes(rows, keys, by, own, way, s, ladder, r0, r1, lo, hi, codes)

    run_tiled(work, len(rows), d, CODE_WORK + len(ladder), aligned(bucket))
    return out


def codes_torch(
    x: Tensor, norm: Tensor, stream: Stream, way: int, s: int, bucket: int, steps: Tensor | None
) -> Tensor:
    """Return the same in plain torch, int64 (the reference; any device)."""
    top = float(s if way <= FLOOR else 1)
    up, inverse = (spread(part, bucket, x.shape[-1]) for part in _factors(norm, way, s))
    ratio = x.abs().double() * up * inverse
    ratio = ratio.where(ratio <= top, top)
    if way == NEAREST:
        level = ratio.round().long()
    elif way == POWER:
        noise = (stream.bits(x.shape[-1]) >> 12) & (2**52 - 1)
        # below the smallest power to it or to 0; the carry of a random mantissa rounds others up
        below = (ratio * 2.0 ** (s - 1)).clamp(max=1.0) + stream.uniform(x.shape[-1])
        above = ((ratio.contiguous().view(torch.int64) + noise) >> 52) - 1023 + s
        level = torch.where(ratio < 2.0 ** (1 - s), below.long(), above)
    elif steps is not None:
        u, level = stream.uniform(x.shape[-1]), torch.zeros_like(x, dtype=torch.int64)
        for low, high in zip(steps.tolist(), steps.tolist()[1:], strict=False):
            level += ratio > low + u * (high - low)  # past a point uniform between two levels
    else:
        u, low = stream.uniform(x.shape[-1]), ratio.floor()
        level = (ratio + u).long().clamp(max=s)
        if way == FLOOR:
            level = torch.where(x < 0, level, low.long() + (u < ratio - low))
    return torch.where(x < 0, s - level, s + level)


def _factors(norm: Tensor, way: int, s: int) -> tuple[Tensor, Tensor]:
    """Return the two factors (*lead, nb) of |x_j| that make it a ratio to the norm, in levels."""
    up = torch.ones_like(norm).masked_fill(norm < LEAST_NORM, ENLARGED)
    return up, torch.where(norm > 0, (s if way <= FLOOR else 1) / (norm * up), 0.0)


@compiled
def _codes(rows, keys, norm, bucket, way, s, steps, r0, r1, lo, hi, out):
    top = np.float64(s if way <= FLOOR else 1)
    ratio, u, level = np.empty(CHUNK), np.empty(CHUNK), np.empty(CHUNK, np.int32)
    noise, bits = np.empty(CHUNK, np.uint64), ratio.view(np.uint64)
    smallest, inverted = 2.0 ** (1 - s), 2.0 ** (s - 1)
    for r in range(r0, r1):
        key, start = keys[r], lo
        while start < hi:
            b = start // bucket
            end = min((b + 1) * bucket, hi, start + CHUNK)
            x, o = rows[r, start:end], out[r, start:end]
            up = ENLARGED if norm[r, b] < LEAST_NORM else 1.0
            inverse = top / (norm[r, b] * up) if norm[r, b] > 0 else 0.0
            for j in range(x.shape[0]):
                value = abs(np.float64(x[j])) * up * inverse
                ratio[j] = value if value <= top else top
            if way != NEAREST:
                for j in range(x.shape[0]):
                    noise[j] = hash_numba(key, np.uint64(start + j))
                    u[j] = np.float64(noise[j] >> np.uint64(11)) * 2.0**-53
            if way == DITHERED:
                for j in range(x.shape[0]):
                    level[j] = np.int32(min(ratio[j] + u[j], top))
            elif way == NEAREST:
                for j in range(x.shape[0]):
                    level[j] = np.int32(np.rint(ratio[j]))
            elif way == FLOOR:
                for j in range(x.shape[0]):
                    low = np.floor(ratio[j])
                    above = low + 1.0 if u[j] < ratio[j] - low else low
                    level[j] = np.int32(min(ratio[j] + u[j], top) if x[j] < 0 else above)
            elif way == POWER:
                for j in range(x.shape[0]):
                    below = np.int32(min(ratio[j] * inverted, 1.0) + u[j])
                    above = np.int32((bits[j] + (noise[j] >> np.uint64(12))) >> np.uint64(52))
                    level[j] = below if ratio[j] < smallest else above - 1023 + s
            else:
                level[: x.shape[0]] = 0
                for i in range(s):
                    low, gap = steps[i], steps[i + 1] - steps[i]
                    for j in range(x.shape[0]):
                        level[j] += np.int32(ratio[j] > low + u[j] * gap)
            for j in range(x.shape[0]):
                o[j] = s - level[j] if x[j] < 0 else s + level[j]
            start = end
