"""Rounding to small floats: fp16 and bf16, and the elements of MX formats.

To the nearest, ties to even, straight from float32 or float64: the bits are rounded as integers. Finite
numbers stay finite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.norms import buckets, in_buckets
from raybench.core.compiled import compiled
from raybench.core.parallel import run_tiled
from raybench.wire.exponents import FLOATS
from raybench.wire.levels import aligned, spread

CHUNK = 512  # numbers whose quotients are held at once
EXPONENT_BIAS = 127  # of E8M0, the power-of-two scale of one byte
EXPONENT_NAN = 255
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

    def lift(self, dtype: torch.dtype) -> int:
        """Return what turns the biased exponent of a block's largest number into its byte of E8M0."""
        top = (self.largest >> self.mantissa) - self.bias
        return EXPONENT_BIAS - top - (2 ** (FLOATS[dtype].exponent - 1) - 1)

    @property
    def width(self) -> int:
        """Bits of a code."""
        return 1 + self.exponent + self.mantissa

    @property
    def code_dtype(self) -> torch.dtype:
        """The integers that hold codes."""
        return torch.int16 if self.width > 8 else torch.uint8

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


def small_codes(x: Tensor, form: SmallFloat, by: Tensor | None = None) -> Tensor:
    """Return the codes of x (*lead, d), or of x / by (*lead, 1): int16, uint8 for formats of 8 bits or less."""
    if x.device.type != "cpu" or not x.numel():
        return small_codes_torch(x if by is None else x / by, form)
    none = np.empty((0, 0), np.uint8)
    return _codes(x, form, x.shape[-1], x.new_empty(0, 0) if by is None else by, none)


def small_codes_torch(v: Tensor, form: SmallFloat) -> Tensor:
    """Return the codes of v (*lead, d) in plain torch (the reference; any device)."""
    drop, rebias, normal, steps = form.rule(v.dtype)
    u = v.abs().view(FLOATS[v.dtype].integer).long()
    large = ((u + (1 << (drop - 1)) - 1 + (u >> drop & 1)) >> drop) - rebias
    small = (v.abs() * steps).round().nan_to_num(0).long()
    code = torch.where(u >= normal, large, small).clamp(max=form.largest)
    code = torch.where(v.isfinite(), code, form.infinity).masked_fill(v.isnan(), form.nan)
    code |= torch.signbit(v).long() << (form.width - 1)
    return code.to(form.code_dtype)


def mx_codes(x: Tensor, form: SmallFloat, block: int) -> tuple[Tensor, Tensor]:
    """Return the codes of x (*lead, d) and the bytes of E8M0 (*lead, nb) of its blocks, both uint8.

    A byte e stands for 2^(e - 127), the power of two that the block is divided by: floor(log2 max|x_j|)
    less the exponent of the largest level, within -127..127; 255 (NaN) where a number is not finite.
    """
    if x.device.type != "cpu" or not x.numel():
        return mx_codes_torch(x, form, block)
    scales = torch.empty(*x.shape[:-1], buckets(x.shape[-1], block), dtype=torch.uint8)
    codes = _codes(x, form, block, x.new_empty(0, 0), scales.view(-1, scales.shape[-1]).numpy())
    return codes, scales


def mx_codes_torch(x: Tensor, form: SmallFloat, block: int) -> tuple[Tensor, Tensor]:
    """Return the same in plain torch (the reference; any device)."""
    integer, mantissa, _ = FLOATS[x.dtype]
    top = in_buckets(x.abs(), block).amax(-1)
    code = (top.view(integer).long() >> mantissa) + form.lift(x.dtype)
    code = torch.where(top.isfinite(), code.clamp(0, 2 * EXPONENT_BIAS), EXPONENT_NAN)
    # NaN for 255: the last
    inverses = powers_of_two(x.dtype).to(x.device)[2 * EXPONENT_BIAS - code]
    return small_codes_torch(x * spread(inverses, block, x.shape[-1]), form), code.to(torch.uint8)


@lru_cache(maxsize=8)
def powers_of_two(dtype: torch.dtype) -> Tensor:
    """Return what the bytes of E8M0 stand for: 2^-127 .. 2^127, and NaN for 255."""
    powers = torch.arange(-EXPONENT_BIAS, EXPONENT_BIAS + 1, dtype=torch.float64).exp2()
    return torch.cat((powers, torch.tensor([math.nan]))).to(dtype)


def _codes(x: Tensor, form: SmallFloat, block: int, by: Tensor, scales: np.ndarray) -> Tensor:
    """Run the kernel: on x / by where by is not empty, on blocks over powers of two where scales are not."""
    d, out = x.shape[-1], torch.empty(x.shape, dtype=form.code_dtype)
    rows, codes, mantissa = x.view(-1, d).numpy(), out.view(-1, d).numpy(), FLOATS[x.dtype].mantissa
    bits, codes = rows.view(f"u{rows.itemsize}"), codes.view(f"u{codes.itemsize}")
    rule = (*form.rule(x.dtype), form.largest, form.infinity, form.nan, form.width - 1)
    divisors = by.reshape(-1).numpy()
    blocks = block, mantissa, form.lift(x.dtype), powers_of_two(x.dtype).numpy(), scales

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _round(rows, bits, divisors, *blocks, *rule, r0, r1, lo, hi, codes)

    run_tiled(work, len(rows), d, ROUNDING_WORK, aligned(block if scales.size else 0))
    return out


@compiled
def _over_powers(x, bits, block, magnitude, mantissa, lift, powers, held, scales):
    """Write the blocks of x over the powers of two that they share into held, and their bytes."""
    for b in range(scales.shape[0]):
        part, raw = x[b * block : (b + 1) * block], bits[b * block : (b + 1) * block]
        into, most = held[b * block : (b + 1) * block], bits.dtype.type(0)
        for j in range(raw.shape[0]):
            most = max(most, bits.dtype.type(raw[j] & magnitude))
        exponent = np.int64(most >> mantissa)
        strange = exponent == np.int64(magnitude >> mantissa)
        e = min(max(exponent + lift, 0), 254)
        scales[b] = 255 if strange else e
        inverse = powers[255] if strange else powers[254 - e]
        for j in range(part.shape[0]):
            into[j] = part[j] * inverse


@compiled
def _round(
    rows, raw, divisors, block, mantissa, lift, powers, scales,
    drop, rebias, normal, steps, largest, infinity, nan, sign_at, r0, r1, lo, hi, out,
):  # fmt: skip
    kind = raw.dtype.type
    one, last, cut, lower = kind(1), kind(8 * raw.itemsize - 1), kind(drop), kind(rebias)
    magnitude, first = kind(kind(one << last) - one), kind(normal)
    half = kind(kind(one << kind(cut - one)) - one)
    step, top, endless, missing = rows.dtype.type(steps), kind(largest), kind(infinity), kind(nan)
    infinite, place = kind(kind(magnitude >> kind(mantissa)) << kind(mantissa)), kind(sign_at)
    piece = block * max(1, CHUNK // block) if scales.shape[0] else CHUNK  # whole blocks
    held = np.empty(piece, rows.dtype)
    held_bits = held.view(raw.dtype)
    for r in range(r0, r1):
        for start in range(lo, hi, piece):
            stop = min(start + piece, hi)
            v, bits, o = rows[r, start:stop], raw[r, start:stop], out[r, start:stop]
            if scales.shape[0]:
                own = scales[r, start // block : -(-stop // block)]
                _over_powers(v, bits, block, magnitude, kind(mantissa), lift, powers, held, own)
            elif divisors.shape[0]:
                for j in range(v.shape[0]):
                    held[j] = v[j] / divisors[r]
            if scales.shape[0] or divisors.shape[0]:
                v, bits = held[: stop - start], held_bits[: stop - start]
            for j in range(v.shape[0]):
                u = kind(bits[j] & magnitude)
                even = kind(kind(u >> cut) & one)
                large = kind(kind(kind(u + half + even) >> cut) - lower)
                small = kind(np.int32(np.rint(abs(v[j]) * step)))
                code = min(large if u >= first else small, top)
                strange = endless if u == infinite else missing
                code = code if u < infinite else strange
                o[j] = code | kind(kind(bits[j] >> last) << place)
