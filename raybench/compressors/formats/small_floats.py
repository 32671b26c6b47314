"""Rounding to small floats: fp16 and bf16, and the elements of MX formats.

To the nearest, ties to even, straight from float32 or float64: the bits are rounded as integers. Finite
numbers stay finite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raybench.core.compiled import compiled
from raybench.core.parallel import run_tiled
from raybench.wire.exponents import FLOATS
from raybench.wire.levels import spread

CHUNK = 512  # numbers whose quotients are held at once
ROUNDING_WORK = 1.5  # of a number, in additions


@dataclass(frozen=True)
class SmallFloat:
    """Bits of exponent and mantissa, bias of the exponent, and the codes of its largest finite number,
    of infinity and of NaN, without sign; a format that lacks those sends its largest number."""

    exponent: int
    mantissa: int
    bias: int
    largest: int
    infinity: int
    nan: int

    def rule(self, dtype: torch.dtype) -> tuple[int, int, int, float]:
        """Return how the magnitude's bits of a wider float become a code: drop, rebias, normal, steps.

        From ``normal`` on ``drop`` bits are rounded away and ``rebias`` taken off; below, the code is
        the number of ``steps``-ths. Where exponents are alike, all are rounded as normal ones.
        """
        _, mantissa, exponent = FLOATS[dtype]
        more, drop = 2 ** (exponent - 1) - 1 - self.bias, mantissa - self.mantissa
        if more == 0:
            return drop, 0, 0, 0.0
        return (
            drop,
            more << self.mantissa,
            (more + 1) << mantissa,
            2.0 ** (self.bias - 1 + self.mantissa),
        )

    def levels(self) -> list[float]:
        """Return what the codes stand for, the sign being their highest bit; NaN for what is not sent."""
        sizes = []
        for code in range(1 << (self.exponent + self.mantissa)):
            exponent, mantissa = code >> self.mantissa, code & ((1 << self.mantissa) - 1)
            lead = (1 << self.mantissa) if exponent else 0
            size = (lead + mantissa) * 2.0 ** (max(exponent, 1) - self.bias - self.mantissa)
            sizes.append(size if code <= self.largest else math.nan)
        return sizes + [-size for size in sizes]


HALVES = {
    "float16": SmallFloat(5, 10, 15, 0x7BFF, 0x7C00, 0x7E00),
    "bfloat16": SmallFloat(8, 7, 127, 0x7F7F, 0x7F80, 0x7FC0),
}
ELEMENTS = {
    "e4m3": SmallFloat(4, 3, 7, 0x7E, 0x7E, 0x7E),
    "e5m2": SmallFloat(5, 2, 15, 0x7B, 0x7B, 0x7B),
    "e2m1": SmallFloat(2, 1, 1, 7, 7, 7),
}


def small_codes(x: Tensor, form: SmallFloat, factors: Tensor | None, block: int) -> Tensor:
    """Return the codes of x (*lead, d), each x_j over the factor (*lead, nb) of its block.

    uint8 for formats of up to 8 bits, int16 for those of 16; without factors x itself is rounded.
    """
    if x.device.type != "cpu" or not x.numel():
        return small_codes_torch(x, form, factors, block)
    d, wide = x.shape[-1], form.exponent + form.mantissa > 7
    out = torch.empty(x.shape, dtype=torch.int16 if wide else torch.uint8)
    rows, codes = x.view(-1, d).numpy(), out.view(-1, d).numpy()
    bits, codes = rows.view(f"u{rows.itemsize}"), codes.view(f"u{codes.itemsize}")
    by = rows[:, :0] if factors is None else factors.contiguous().view(len(rows), -1).numpy()
    ends = form.largest, form.infinity, form.nan, form.exponent + form.mantissa
    how = (block, *form.rule(x.dtype), *ends)

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _round(rows, bits, by, *how, r0, r1, lo, hi, codes)

    run_tiled(work, len(rows), d, ROUNDING_WORK)
    return out


def small_codes_torch(x: Tensor, form: SmallFloat, factors: Tensor | None, block: int) -> Tensor:
    """Return the same in plain torch (the reference; any device)."""
    v = x if factors is None else x / spread(factors, block, x.shape[-1])
    drop, rebias, normal, steps = form.rule(x.dtype)
    u = v.abs().view(FLOATS[x.dtype].integer).long()
    large = ((u + (1 << (drop - 1)) - 1 + (u >> drop & 1)) >> drop) - rebias
    small = (v.abs() * steps).round().nan_to_num(0).long()
    code = torch.where(u >= normal, large, small).clamp(max=form.largest)
    code = torch.where(v.isfinite(), code, form.infinity).masked_fill(v.isnan(), form.nan)
    code |= torch.signbit(v).long() << (form.exponent + form.mantissa)
    return code.to(torch.int16 if form.exponent + form.mantissa > 7 else torch.uint8)


@compiled
def fill_scaled(x, by, block, first, held):
    """Write x_j over the factor of its block into held, x being the numbers of a row from ``first`` on."""
    begin = 0
    while begin < x.shape[0]:
        b = (first + begin) // block
        end = min((b + 1) * block - first, x.shape[0])
        part, into, factor = x[begin:end], held[begin:end], by[b]
        for j in range(part.shape[0]):
            into[j] = part[j] / factor
        begin = end


@compiled
def _round(
    rows, raw, by, block, drop, rebias, normal, steps, largest, infinity, nan, sign_at,
    r0, r1, lo, hi, out,
):  # fmt: skip
    kind = raw.dtype.type
    one, last, cut, lower = kind(1), kind(8 * raw.itemsize - 1), kind(drop), kind(rebias)
    magnitude, first = kind(kind(one << last) - one), kind(normal)
    half = kind(kind(one << kind(cut - one)) - one)
    step, top = rows.dtype.type(steps), kind(largest)
    held = np.empty(CHUNK, rows.dtype)
    held_bits = held.view(raw.dtype)
    held[0] = np.inf
    infinite = held_bits[0]
    for r in range(r0, r1):
        for start in range(lo, hi, CHUNK):
            stop = min(start + CHUNK, hi)
            v, bits, o = rows[r, start:stop], raw[r, start:stop], out[r, start:stop]
            if by.shape[1] > 0:
                fill_scaled(v, by[r], block, start, held)
                v, bits = held[: v.shape[0]], held_bits[: v.shape[0]]
            for j in range(v.shape[0]):
                u = kind(bits[j] & magnitude)
                even = kind(kind(u >> cut) & one)
                large = kind(kind(kind(u + half + even) >> cut) - lower)
                small = kind(np.int32(np.rint(abs(v[j]) * step)))
                code = min(large if u >= first else small, top)
                code = code if u < infinite else kind(infinity)
                code = code if u <= infinite else kind(nan)
                o[j] = code | kind(kind(bits[j] >> last) << kind(sign_at))
