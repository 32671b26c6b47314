"""Rounding to levels, cutting floats short, and levels back to numbers, on a GPU: one pass each.

The codes are those of the references bit for bit: the same float64 operations, and integers. A sender
decodes its own message, so codes are kept, a byte each; the wire packs them where they are sent.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from raybench.core.gpu import launch
from raybench.core.gpu.streams import hashed, unit

BLOCK = 1024  # coordinates of a program
HALFWAY = tl.constexpr(4503599627370496.0)  # 2^52: added, it leaves no room for a fraction


@triton.jit
def _bucket(r, j, many, BUCKET: tl.constexpr):
    """Return which of ``many`` in each row each coordinate belongs to; all are of one for 0."""
    return r + j * 0 if BUCKET == 0 else r * many + j // BUCKET


@triton.jit
def code_kernel(
    x, keys, up, inverse, out, d, blocks, many, s,
    WAY: tl.constexpr, BUCKET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0)
    r = (at // blocks).to(tl.int64)
    j = (at % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside, b = j < d, _bucket(r, j, many, BUCKET)
    value = tl.load(x + r * d + j, mask=inside, other=0.0)
    most = tl.full((), 0, tl.int64) + s
    top = tl.full((), 1, tl.float64) if WAY == "power" else most.to(tl.float64)
    ratio = tl.abs(value.to(tl.float64)) * tl.load(up + b, mask=inside, other=1.0)
    ratio = ratio * tl.load(inverse + b, mask=inside, other=0.0)
    ratio = tl.where(ratio <= top, ratio, top)  # a NaN goes to the top too
    if WAY == "nearest":
        level = ((ratio + HALFWAY) - HALFWAY).to(tl.int64)
    else:
        h = hashed(tl.load(keys + r), j)
        u = unit(h)
        if WAY == "power":
            smallest = ((1024 - most) << 52).to(tl.float64, bitcast=True)  # 2^(1 - s)
            inverted = ((1022 + most) << 52).to(tl.float64, bitcast=True)
            below = (tl.minimum(ratio * inverted, 1.0) + u).to(tl.int64)
            carried = ratio.to(tl.int64, bitcast=True) + (h >> 12).to(tl.int64, bitcast=True)
            level = tl.where(ratio < smallest, below, (carried >> 52) - 1023 + most)
        else:
            level = tl.minimum((ratio + u).to(tl.int64), most)
            if WAY == "floor":
                low = tl.floor(ratio)
                above = low.to(tl.int64) + (u < ratio - low).to(tl.int64)
                level = tl.where(value < 0, level, above)
    code = tl.where(value < 0, most - level, most + level)
    tl.store(out + r * d + j, code.to(out.dtype.element_ty), mask=inside)


@triton.jit
def cut_kernel(
    raws, keys, out, d, blocks, dropped, below_sign, last, NOISY: tl.constexpr, BLOCK: tl.constexpr
):
    at = tl.program_id(0)
    r = (at // blocks).to(tl.int64)
    j = (at % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    raw = tl.load(raws + r * d + j, mask=j < d, other=0).to(tl.int64)
    mask = (tl.full((), 1, tl.int64) << dropped) - 1
    noise = mask >> 1
    if NOISY:
        noise = hashed(tl.load(keys + r), j).to(tl.int64, bitcast=True) & mask
    code_mask = (tl.full((), 0, tl.int64) + below_sign) * 2 + 1
    exact = (raw >> dropped) & code_mask
    rounded = ((raw + noise) >> dropped) & code_mask
    code = tl.where((exact & below_sign) >= last, exact, rounded)
    tl.store(out + r * d + j, code.to(out.dtype.element_ty), mask=j < d)


@triton.jit
def decode_kernel(
    codes, table, scales, out, d, blocks, many,
    PAIR: tl.constexpr, BUCKET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0)
    r = (at // blocks).to(tl.int64)
    j = (at % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside, b = j < d, _bucket(r, j, many, BUCKET)
    code = tl.load(codes + r * d + j, mask=inside, other=0).to(tl.int64)
    if PAIR:
        value = tl.load(scales + 2 * b + (code != 0).to(tl.int64), mask=inside, other=0.0)
    else:
        level = tl.load(table + code, mask=inside, other=0.0)
        value = level * tl.load(scales + b, mask=inside, other=0.0)
    tl.store(out + r * d + j, value, mask=inside)


def codes(
    x: Tensor, keys: Tensor, up: Tensor, inverse: Tensor, way: str, s: int, bucket: int, out: Tensor
) -> None:
    """Write the codes of x (*lead, d), 0..2s with s for zero, into ``out``, of x's shape.

    The ratio |x_j| up inverse, at most the top level, goes to 0, 1, .., s (``dithered``, ``nearest``,
    ``floor``) or to powers of two (``power``). up, inverse: float64 (*lead, nb), for ``bucket``
    coordinates each, or for bucket 0 for all of a row; keys: (*lead), not read for ``nearest``.
    """
    rows, d, blocks = _shape(out)
    arguments = x.contiguous(), keys.contiguous(), up.contiguous(), inverse.contiguous(), out
    how = {"WAY": way, "BUCKET": bucket, "BLOCK": BLOCK}
    launch(code_kernel, rows * blocks, *arguments, d, blocks, up.shape[-1], s, **how)


def cut(
    raw: Tensor, keys: Tensor | None, dropped: int, below_sign: int, last: int, out: Tensor
) -> None:
    """Write floats, seen as integers (*lead, d), without their lowest bits into ``out``, of that shape.

    The bits that are dropped round up at random, or without keys (*lead) to the nearest; from the code
    ``last`` on they do not. below_sign: all bits of a code but its sign.
    """
    rows, d, blocks = _shape(out)
    arguments = raw.contiguous(), (raw if keys is None else keys).contiguous(), out, d, blocks
    how = {"NOISY": keys is not None, "BLOCK": BLOCK}
    launch(cut_kernel, rows * blocks, *arguments, dropped, below_sign, last, **how)


def decode(codes: Tensor, table: Tensor | None, scales: Tensor, bucket: int, out: Tensor) -> None:
    """Write the table's levels times scales (*lead, nb) into out (*lead, d), of the table's type.

    table: None for a pair, one of the two of a bucket in scales (*lead, 2 nb). bucket 0: one scale a row.
    """
    rows, d, blocks = _shape(out)
    arguments = codes.contiguous(), scales if table is None else table, scales.contiguous(), out
    many = scales.shape[-1] // (2 if table is None else 1)
    how = {"PAIR": table is None, "BUCKET": max(bucket, 0), "BLOCK": BLOCK}
    launch(decode_kernel, rows * blocks, *arguments, d, blocks, many, **how)


def _shape(out: Tensor) -> tuple[int, int, int]:
    """Return rows, their length, and how many blocks a row has."""
    d = out.shape[-1]
    return out.shape[:-1].numel(), d, -(-d // BLOCK)
