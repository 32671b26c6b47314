"""Norms and sums of rows or buckets, in float64: what quantisers divide by.

On CPU compiled kernels add up tiles of fixed size, so that a row's norm depends neither on the rows
beside it nor on the number of threads; plain torch serves other devices and is the reference.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from raybench.core.compiled import compiled
from raybench.core.parallel import ALIGN, run_tiled
from raybench.wire.levels import aligned

SUM_WORK = 1.0  # of a coordinate, in additions
SIZES, SQUARES = range(2)  # what is added up: |v| or v^2


def buckets(d: int, bucket: int) -> int:
    """Return how many norms a row of d coordinates has: ceil(d / bucket), or 1 for bucket 0."""
    return -(-d // bucket) if bucket > 0 else 1


def norms(x: Tensor, p: float, bucket: int = 0) -> Tensor:
    """Return ||x||_p of every row or bucket of x (*lead, d), float64 (*lead, nb); p >= 1 or inf.

    Entries far from 1 are scaled first, so that their powers neither overflow nor vanish. A NaN gives
    NaN, an infinity infinity or NaN.
    """
    if x.device.type != "cpu" or p not in (1.0, 2.0, math.inf) or not x.numel():
        return norms_torch(x, p, bucket)
    if p == math.inf:
        return largest(x, bucket).double()
    if p == 1:
        return sums(x, SIZES, bucket)
    total = sums(x, SQUARES, bucket)
    if x.dtype == torch.float64:  # squares of float32 numbers are within float64
        strange = ~((total > 1e-200) & (total < 1e200))
        if strange.any():
            most = largest(x, bucket).numpy()
            scale = np.exp2(-np.clip(np.frexp(most)[1], -1000, 1000).astype(np.float64))
            up = torch.from_numpy(np.where(strange.numpy() & np.isfinite(most), scale, 1.0))
            return sums(x, SQUARES, bucket, up).sqrt() / up
    return total.sqrt()


def norms_torch(x: Tensor, p: float, bucket: int = 0) -> Tensor:
    """Return the same by plain torch, to rounding (the reference; any device, any p)."""
    parts = in_buckets(x, bucket)
    most = parts.abs().amax(-1).double()
    if p == math.inf:
        return most
    scale = most.where((most > 0) & most.isfinite(), 1.0)[..., None]
    return scale[..., 0] * torch.linalg.vector_norm(parts.double() / scale, ord=p, dim=-1)


def in_buckets(x: Tensor, bucket: int) -> Tensor:
    """Return x (*lead, d) as (*lead, nb, bucket), the last bucket filled up with zeros."""
    d, size = x.shape[-1], min(bucket, x.shape[-1]) or x.shape[-1]
    return torch.nn.functional.pad(x, (0, -d % size)).unflatten(-1, (-1, size))


def sums(x: Tensor, what: int, bucket: int = 0, up: Tensor | None = None) -> Tensor:
    """Return sums over every row or bucket of x (*lead, d), float64 (*lead, nb).

    what: SIZES of |v|, SQUARES of v^2; v = up x_j, up (*lead, nb) float64, 1 by default.
    """
    if x.device.type != "cpu" or not x.numel():
        return sums_torch(x, what, bucket, up)
    d, size = x.shape[-1], bucket or ALIGN
    rows, many = x.view(-1, d).numpy(), buckets(d, bucket)
    parts = np.empty((len(rows), buckets(d, size)))
    factors = np.ones((len(rows), many)) if up is None else up.reshape(len(rows), many).numpy()

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _sums(rows, what, factors, size, r0, r1, lo, hi, parts)

    run_tiled(work, len(rows), d, SUM_WORK, aligned(bucket))
    total = parts if bucket else parts.sum(1, keepdims=True)
    return torch.from_numpy(total).view(*x.shape[:-1], many)


def sums_torch(x: Tensor, what: int, bucket: int = 0, up: Tensor | None = None) -> Tensor:
    """Return the same by plain torch, to rounding (the reference; any device)."""
    v = in_buckets(x.double(), bucket)
    v = v if up is None else v * up[..., None]
    return (v.square() if what == SQUARES else v.abs()).sum(-1)


def side_sums(x: Tensor) -> Tensor:
    """Return the sums of the x_j that are not >= 0 (NaN is among them) and of those that are, float64 (*lead, 2)."""
    wide = x.double()
    return torch.stack([wide.where((x >= 0) == side, 0.0).sum(-1) for side in (False, True)], -1)


def largest(x: Tensor, bucket: int = 0) -> Tensor:
    """Return the largest |x_j| of every row or bucket of x (*lead, d), (*lead, nb) of its dtype.

    A NaN gives NaN.
    """
    if x.device.type != "cpu" or not x.numel():
        return norms_torch(x, math.inf, bucket).to(x.dtype)
    d = x.shape[-1]
    bucket = bucket if bucket < d else 0
    size = bucket or ALIGN
    rows = x.view(-1, d).numpy()
    bits = rows.view(f"i{rows.itemsize}")  # sizes of floats are ordered as integers
    out = np.empty((len(rows), buckets(d, size)), bits.dtype)

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _largest(bits, np.iinfo(bits.dtype).max, size, r0, r1, lo, hi, out)

    run_tiled(work, len(rows), d, SUM_WORK, aligned(bucket))
    best = out if bucket else out.max(1, keepdims=True)
    return torch.from_numpy(best.view(rows.dtype)).view(*x.shape[:-1], -1)


@compiled(
    fastmath={"reassoc", "contract"}
)  # added in the order that suits the processor; NaN stays
def _sum(x, what, up):
    total = 0.0
    if what == SQUARES:
        for j in range(x.shape[0]):
            v = np.float64(x[j]) * up
            total += v * v
    else:
        for j in range(x.shape[0]):
            total += abs(np.float64(x[j]) * up)
    return total


@compiled
def _sums(rows, what, up, bucket, r0, r1, lo, hi, out):  # up (R, 1 or nb), out (R, nb)
    for r in range(r0, r1):
        for b in range(lo // bucket, -(-hi // bucket)):
            end, total = min((b + 1) * bucket, hi), 0.0
            factor = up[r, b if up.shape[1] > 1 else 0]
            for first in range(b * bucket, end, ALIGN):
                total += _sum(rows[r, first : min(first + ALIGN, end)], what, factor)
            out[r, b] = total


@compiled
def _largest(bits, mask, bucket, r0, r1, lo, hi, out):
    magnitude = bits.dtype.type(mask)
    for r in range(r0, r1):
        for b in range(lo // bucket, -(-hi // bucket)):
            part, most = bits[r, b * bucket : min((b + 1) * bucket, hi)], bits.dtype.type(0)
            for j in range(part.shape[0]):
                most = max(most, bits.dtype.type(part[j] & magnitude))
            out[r, b] = most
