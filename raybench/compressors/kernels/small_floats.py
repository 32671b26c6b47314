"""Rounding to small floats: fp16 and bf16, and the elements of MX formats with their powers of two.

To the nearest, ties to even, straight from float32 or float64; finite numbers stay finite. The CPU
kernels round the bits as integers; the plain torch version beside each is the reference and the way
on other devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.kernels.block_codes import block_max, spread
from raybench.core.compiled import compiled
from raybench.core.parallel import ALIGN, run_tiled
from raybench.wire.block_formats import (
    EXPONENT_BIAS,
    EXPONENT_NAN,
    FORMATS,
    blocks_of,
    table_of,
)

CHUNK = 512  # numbers whose quotients are held at once


@dataclass(frozen=True)
class Small:
    """A small float: bits of mantissa, bias and bits of the exponent, code of its largest number."""

    mantissa: int
    bias: int
    exponent: int
    most: int

    def rule(self, x: Tensor) -> tuple[int, int, int, Any]:
        """Return how the magnitude's bits in x's dtype become a code: drop, rebias, normal, steps.

        From ``normal`` on ``drop`` bits are rounded away and ``rebias`` taken off; below, the code is
        the number of ``steps``-ths. Where exponents are alike, all are rounded as normal ones.
        """
        mantissa, bias = (23, 127) if x.dtype == torch.float32 else (52, 1023)
        if bias == self.bias:
            return mantissa - self.mantissa, 0, 0, x.numpy().dtype.type(0)
        rebias, normal = (bias - self.bias) << self.mantissa, (bias - self.bias + 1) << mantissa
        steps = x.numpy().dtype.type(2.0 ** (self.bias - 1 + self.mantissa))
        return mantissa - self.mantissa, rebias, normal, steps


HALVES = {
    torch.float16: Small(10, 15, 5, 0x7BFF),
    torch.bfloat16: Small(7, 127, 8, 0x7F7F),
}
NAN = {torch.float16: 0x7E00, torch.bfloat16: 0xFFFF}  # the sign stays where it is free
ELEMENTS = {"e4m3": Small(3, 7, 4, 0x7E), "e5m2": Small(2, 15, 5, 0x7B), "e2m1": Small(1, 1, 2, 7)}
E8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
E2M1_UP = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)  # ties go to the even code: 2nd, 4th, 6th go up


def _kernels(real: Any, unsigned: Any, mantissa: int, exponent: int) -> tuple[Any, Any]:
    magnitude = unsigned((1 << (mantissa + exponent)) - 1)
    infinity = unsigned(((1 << exponent) - 1) << mantissa)
    last, bias, one = unsigned(mantissa + exponent), 2 ** (exponent - 1) - 1, unsigned(1)

    @compiled
    def halves(rows, by, drop, rebias, normal, steps, most, nan, r0, r1, lo, hi, out):
        cut, lower, first = unsigned(drop), unsigned(rebias), unsigned(normal)
        half = unsigned(unsigned(one << unsigned(cut - one)) - one)
        largest, strange = unsigned(most), unsigned(nan)
        for r in range(r0, r1):
            row, o = rows[r, lo:hi], out[r, lo:hi]
            divided, factor = by.shape[1] > 0, by[r, 0] if by.shape[1] > 0 else real(1)
            for j in range(row.shape[0]):
                v = real(row[j] / factor if divided else row[j])
                raw = v.view(unsigned)
                u = unsigned(raw & magnitude)
                even = unsigned(unsigned(u >> cut) & one)
                large = unsigned(unsigned(unsigned(u + half + even) >> cut) - lower)
                small = unsigned(np.int32(np.rint(abs(v) * steps)))
                code = min(large if u >= first else small, largest)
                code = code if u < infinity else unsigned(largest + one)
                code = code if u <= infinity else strange
                o[j] = np.uint16(code | unsigned(unsigned(raw >> last) << unsigned(15)))

    @compiled
    def elements(  # zero: what turns -0 into the 0 that is sent, or -0; missing: sent for NaN
        rows, powers, block, top, sign, drop, rebias, normal, steps, most, zero, missing,
        r0, r1, lo, hi, out, scales,
    ):  # fmt: skip
        cut, lower, first, at = unsigned(drop), unsigned(rebias), unsigned(normal), unsigned(sign)
        half = unsigned(unsigned(one << unsigned(cut - one)) - one)
        largest_code, strange = unsigned(most), unsigned(missing)
        held = np.empty(CHUNK, rows.dtype)
        for r in range(r0, r1):
            inverse, ends = real(0), lo  # of the block at hand, and where it ends
            for start in range(lo, hi, CHUNK):
                stop = min(start + CHUNK, hi)
                row, o = rows[r, start:stop], out[r, start:stop]
                begin = 0
                while begin < row.shape[0]:
                    if start + begin == ends:  # a new block: its power of two
                        ends = min(ends + block, hi)
                        new, largest = rows[r, start + begin : ends], unsigned(0)
                        for j in range(new.shape[0]):
                            u = unsigned(real(new[j]).view(unsigned) & magnitude)
                            largest = max(largest, u)
                        e = np.int64(largest >> unsigned(mantissa)) - bias + 127 - top
                        e = min(max(e, 0), 254)
                        scales[r, (start + begin) // block] = 255 if largest >= infinity else e
                        inverse = powers[254 - e]
                    end = min(ends - start, row.shape[0])
                    part, into = row[begin:end], held[begin:end]
                    for j in range(part.shape[0]):
                        into[j] = part[j] * inverse + zero
                    begin = end
                for j in range(row.shape[0]):
                    v = real(held[j])
                    raw = v.view(unsigned)
                    u = unsigned(raw & magnitude)
                    even = unsigned(unsigned(u >> cut) & one)
                    large = unsigned(unsigned(unsigned(u + half + even) >> cut) - lower)
                    small = unsigned(np.int32(np.rint(abs(v) * steps)))
                    code = min(large if u >= first else small, largest_code)
                    code = unsigned(code | unsigned(unsigned(raw >> last) << at))
                    o[j] = np.uint8(code if u <= infinity else strange)

    return halves, elements


_KERNELS = {
    torch.float32: _kernels(np.float32, np.uint32, 23, 8),
    torch.float64: _kernels(np.float64, np.uint64, 52, 11),
}


# Casts -------------------------------------------------------------------------------------------


def to_half(x: Tensor, half: torch.dtype, by: Tensor | None = None) -> Tensor:
    """Return x (*lead, d), or x / by (*lead, 1), rounded to float16 or bfloat16.

    Finite numbers beyond the range become the largest finite; infinity stays, NaN becomes a quiet one.
    """
    if x.device.type != "cpu" or not x.numel():
        return to_half_torch(x, half, by)
    d, out = x.shape[-1], torch.empty(x.shape, dtype=half)
    into = out.view(torch.int16).view(-1, d).numpy().view(np.uint16)
    rows = x.view(-1, d).numpy()
    divisors = rows[:, :0] if by is None else by.contiguous().view(-1, 1).numpy()
    kernel, small = _KERNELS[x.dtype][0], HALVES[half]
    more = (*small.rule(x), small.most, NAN[half])
    run_tiled(lambda *tile: kernel(rows, divisors, *more, *tile, into), len(rows), d, 1.0)
    return out


def to_half_torch(x: Tensor, half: torch.dtype, by: Tensor | None = None) -> Tensor:
    """Return the same in plain torch (the reference; any device)."""
    x = x if by is None else x / by
    out = (x if x.dtype == torch.float32 else narrow(x)).to(half)
    most = torch.tensor(torch.finfo(half).max, dtype=half, device=x.device)
    out = torch.where(out.isinf() & x.isfinite(), torch.copysign(most, out), out)
    code = (NAN[half] | torch.signbit(x).int() << 15).to(torch.int16)
    return torch.where(x.isnan(), code, out.view(torch.int16)).view(half)


def narrow(x: Tensor) -> Tensor:
    """Return float64 x as float32, inexact numbers cut toward zero with the last bit set to 1.

    Rounded so ("to odd"), a further rounding to a format with at least two bits less gives the same
    as rounding x at once. Beyond float32's range: its largest finite, or its smallest.
    """
    single = x.float()
    back = single.double()
    bits = single.view(torch.int32) - (back.abs() > x.abs()).int()
    return (bits | (back != x).int()).view(torch.float32)


# Elements of MX formats --------------------------------------------------------------------------


def mx_codes(x: Tensor, block: int, element: str) -> tuple[Tensor, Tensor]:
    """Return the codes of x (*lead, d) and the bytes of E8M0 (*lead, nb) of its blocks, both uint8.

    The exponent is floor(log2 max|x_j|) less that of the element's largest level, within -127..127;
    the byte is 255 (NaN) where a number of the block is not finite. Codes are the nearest levels to
    x_j over the power of two, ties to even, cut to the largest; NaN is cut to it too, or is 0 in E2M1.
    """
    if x.device.type != "cpu" or not x.numel():
        return mx_codes_torch(x, block, element)
    d, form, small = x.shape[-1], FORMATS[element], ELEMENTS[element]
    out = torch.empty(x.shape, dtype=torch.uint8)
    scales = torch.empty(*x.shape[:-1], blocks_of(d, block), dtype=torch.uint8)
    rows, into = x.view(-1, d).numpy(), out.view(-1, d).numpy()
    bytes_ = scales.view(len(rows), -1).numpy()
    powers, real = table_of("exponents", x.dtype, x.device).numpy(), x.numpy().dtype.type
    ends = (real(-0.0), small.most) if element in E8 else (real(0.0), 0)
    more = (powers, block, form.top, form.width - 1, *small.rule(x), small.most, *ends)
    kernel, align = _KERNELS[x.dtype][1], block * max(1, ALIGN // block)

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        kernel(rows, *more, r0, r1, lo, hi, into, bytes_)

    run_tiled(work, len(rows), d, 2.0, align)
    return out, scales


def mx_codes_torch(x: Tensor, block: int, element: str) -> tuple[Tensor, Tensor]:
    """Return the same in plain torch (the reference; any device)."""
    scales, inverses = shared_exponents(x, block, element)
    v = x * spread(inverses, block, x.shape[-1])
    if element in E8:
        most = torch.finfo(E8[element]).max
        v = v.clamp(-most, most).nan_to_num(most)
        v = v if v.dtype == torch.float32 else narrow(v)
        return v.to(E8[element]).view(torch.uint8), scales
    t = v.abs()
    up = [t >= at if i % 2 else t > at for i, at in enumerate(E2M1_UP)]
    return (torch.stack(up).sum(0) + 8 * (v < 0)).to(torch.uint8), scales


def shared_exponents(x: Tensor, block: int, element: str) -> tuple[Tensor, Tensor]:
    """Return the bytes of E8M0 (*lead, nb), and one over what they stand for, of x's dtype."""
    top, shift = block_max(x, block), FORMATS[element].top or 0
    if x.dtype == torch.float32:
        exponent = (top.view(torch.int32) >> 23).long()
    else:
        exponent = (top.view(torch.int64) >> 52) - 1023 + EXPONENT_BIAS
    code = (exponent - shift).clamp(0, 2 * EXPONENT_BIAS)
    inverses = table_of("exponents", x.dtype, x.device)[2 * EXPONENT_BIAS - code]
    return torch.where(top.isfinite(), code, EXPONENT_NAN).to(torch.uint8), inverses
