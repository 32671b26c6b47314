"""Quantised messages: one of a table's levels per coordinate times a scale, or the first bits of every number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raybench.core.compiled import compiled
from raybench.core.parallel import ALIGN, run_tiled
from raybench.wire import bitpack
from raybench.wire.base import Message
from raybench.wire.fields import (
    HALVES,
    Field,
    Header,
    Numbers,
    Symbols,
    dtype_of,
    finite,
    natural,
)

COST_OF_DECODING = 2.0  # of a coordinate, in additions
UNSCALED = -1  # the ``bucket`` of messages without scales
MOST_BITS = 56  # of a symbol, that can be packed
MOST_TABLED = 2**15  # symbols up to which their levels are looked up in a table


def symbols_of(table: str, s: int) -> int:
    """Return how many symbols a table has: 2 for a sign or a pair, else 2s + 1.

    Raises KeyError for another table.
    """
    return {"sign": 2, "pair": 2, "linear": 2 * s + 1, "power": 2 * s + 1}[table]


def code_dtype(symbols: int) -> torch.dtype:
    """Return the narrowest integer type for codes: uint8 up to 256 symbols, then int16, int32, int64."""
    wide = {2**15: torch.int16, 2**31: torch.int32}
    return next((t for top, t in {256: torch.uint8, **wide}.items() if symbols <= top), torch.int64)


@lru_cache(maxsize=64)
def levels_of(table: str, s: int, base: float = 2.0) -> Tensor:
    """Return the levels of a table by code, float64 (symbols,).

    ``linear``: -1, .., -1/s, 0, 1/s, .., 1 (standard dithering). ``power``: -1, -1/b, .., -b^(1-s), 0,
    b^(1-s), .., 1/b, 1 with b = base (exponential dithering). ``sign``: -1, 1.
    """
    if table == "sign":
        return torch.tensor([-1.0, 1.0], dtype=torch.float64)
    if table == "linear":
        return torch.arange(-s, s + 1, dtype=torch.float64) / s
    up = torch.as_tensor(base, dtype=torch.float64) ** torch.arange(1 - s, 1, dtype=torch.float64)
    return torch.cat((-up.flip(0), torch.zeros(1, dtype=torch.float64), up))


@lru_cache(maxsize=64)
def _padded(table: str, s: int, base: float, dtype: torch.dtype) -> Tensor:
    """Return the levels in a type, zeros added up to a power of two from 256 on."""
    levels = levels_of(table, s, base)
    size = max(256, 2 ** bitpack.width_of(len(levels)))
    return torch.nn.functional.pad(levels, (0, size - len(levels))).to(dtype)


def spread(scales: Tensor, bucket: int, d: int) -> Tensor:
    """Return the scales (*lead, nb) by coordinate, (*lead, d), or (*lead, 1) where nb = 1."""
    if scales.shape[-1] == 1:
        return scales
    return scales[..., torch.arange(d, device=scales.device) // bucket]


def decode_torch(m: LevelsMessage, scales: Tensor) -> Tensor:
    """Return the levels times scales (*lead, nb), or 2 nb for a pair (the reference; any device)."""
    if m.table == "pair":
        low, high = (spread(scales[..., i::2], m.bucket, m.d) for i in (0, 1))
        return torch.where(m.codes != 0, high, low)
    if symbols_of(m.table, m.s) > MOST_TABLED and m.table == "linear":
        level = ((m.codes.long() - m.s).double() / m.s).to(m.dtype)
    else:
        level = _padded(m.table, m.s, m.base, m.dtype).to(m.device)[m.codes.long()]
    return level * spread(scales, m.bucket, m.d)


@compiled
def _decode(codes, table, scales, bucket, pair, r0, r1, lo, hi, out):
    mask = np.uint16(table.shape[0] - 1)  # no code reads beyond the table
    for r in range(r0, r1):
        start = lo
        while start < hi:
            b = start // bucket
            end = min((b + 1) * bucket, hi)
            c, o = codes[r, start:end], out[r, start:end]
            if pair:
                low, high = scales[r, 2 * b], scales[r, 2 * b + 1]
                for j in range(c.shape[0]):
                    o[j] = high if c[j] else low
            else:
                scale = scales[r, b]
                for j in range(c.shape[0]):
                    o[j] = table[np.uint16(c[j]) & mask] * scale
            start = end


@dataclass(eq=False)
class LevelsMessage(Message):
    """One of a table's levels per coordinate times a scale: ``codes`` (*lead, d), ``scales`` (*lead, nb).

    table: ``linear``, code c = 0, .., 2s for (c - s)/s; ``power``, for -1, .., -b^(1-s), 0, b^(1-s), .., 1 with b =
    ``base``; ``sign``, 0 and 1 for -1 and 1; or ``pair``, 0 and 1 for the two values that a bucket has in ``scales``
    (*lead, 2 nb). bucket: coordinates that share a scale, nb = ceil(d / bucket); 0 for one scale a row, -1 for none
    (scales (*lead, 0), the levels as they are). Packs to the scales in full width and d symbols of ceil(log2 symbols)
    bits, three symbols five to a byte. Codes of any integer type are made the narrowest one.
    """

    codes: Tensor  # of ``code_dtype``, indices into the table
    scales: Tensor
    table: str
    s: int
    base: float = 2.0
    bucket: int = 0
    kind = "levels"
    tensors = ("codes", "scales")
    static = ("table", "s", "base", "bucket")

    @classmethod
    def fields(cls, head: Header, width: int) -> Sequence[Field]:
        d, table, bucket = natural(head, "d"), head["table"], natural(head, "bucket", UNSCALED)
        symbols = _checked(table, natural(head, "s"), finite(head, "base"), bucket)
        wide = bitpack.TRIT if symbols == 3 else bitpack.width_of(symbols)
        coding = Symbols(wide, code_dtype(symbols))
        scales = scales_of(table, bucket, d)
        return [Field("scales", Numbers(dtype_of(head)), (scales,)), Field("codes", coding, (d,))]

    def __post_init__(self) -> None:
        self.codes = self.codes.to(code_dtype(self.symbols))

    @property
    def symbols(self) -> int:
        """How many symbols there are."""
        return symbols_of(self.table, self.s)

    def _write(self, out: Tensor) -> None:
        if self.bucket == UNSCALED:
            scales = out.new_full((*self.lead, 1), self.scale)
        else:
            scales = self.scales if self.scale == 1.0 else self.scales * self.scale
        if self.device.type != "cpu" or self.symbols > MOST_TABLED:
            out.copy_(decode_torch(self, scales))
        elif out.numel():
            pair = self.table in ("pair", "sign")
            if self.table == "sign":  # -s and s: to choose is faster than to look up
                scales = torch.stack((-scales, scales), -1).flatten(-2)
            table = None if pair else _padded(self.table, self.s, self.base, self.dtype)
            decode_levels(self.codes, table, scales, self.bucket, out)


def _checked(table: str, s: int, base: float, bucket: int) -> int:
    """Return how many symbols a table has. Raises ValueError where there is no such table."""
    symbols = symbols_of(table, s)
    most = MOST_TABLED if table == "power" else 2**MOST_BITS
    if not 2 <= symbols <= most or base <= 0 or (table, bucket) == ("pair", UNSCALED):
        raise ValueError(f"no table {table} of {symbols} levels")
    return symbols


def scales_of(table: str, bucket: int, d: int) -> int:
    """Return how many full-width values a row has beside its symbols."""
    buckets = {UNSCALED: 0, 0: 1}.get(bucket)
    return (-(-d // bucket) if buckets is None else buckets) * (2 if table == "pair" else 1)


def aligned(bucket: int) -> int:
    """Return where long rows may be cut: at multiples of whole tiles or, if there are any, of buckets."""
    return bucket * -(-ALIGN // bucket) if bucket > 0 else ALIGN


def decode_levels(
    codes: Tensor, table: Tensor | None, scales: Tensor, bucket: int, out: Tensor
) -> None:
    """Write the table's levels times scales (*lead, nb) into out (*lead, d) on the CPU, by a kernel.

    table: of out's type, its size a power of two in [256, 2^16]; None for a pair, scales (*lead, 2 nb).
    """
    d = codes.shape[-1]
    symbols, rows = codes.reshape(-1, d).numpy(), out.view(-1, d).numpy()
    held = scales.reshape(len(rows), -1).contiguous().numpy()
    levels, size = held[0] if table is None else table.numpy(), bucket if bucket > 0 else d

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _decode(symbols, levels, held, size, table is None, r0, r1, lo, hi, rows)

    run_tiled(work, len(rows), d, COST_OF_DECODING, aligned(bucket))


# Exponents ----------------------------------------------------------------------------------------


class FloatFormat(NamedTuple):
    """How a float lies in memory: the integers of its width, its bits of mantissa and of exponent."""

    integer: torch.dtype
    mantissa: int
    exponent: int


FLOATS = {
    torch.float64: FloatFormat(torch.int64, 52, 11),
    torch.float32: FloatFormat(torch.int32, 23, 8),
}
FLOATS |= dict.fromkeys(HALVES, FLOATS[torch.float32])
"""A number of 16 bits is coded as the float32 that it is: rounded up, the largest float16 becomes 2^16,
which float16 does not hold."""


def exponent_width(dtype: torch.dtype, p: int = 1) -> int:
    """Return the bits of sign, exponent and the p - 1 first bits of the mantissa.

    8 + p in float32 and for numbers of 16 bits, 11 + p in float64.
    """
    form = FLOATS[dtype]
    return 1 + form.exponent + min(p - 1, form.mantissa)


def integers_of(width: int) -> torch.dtype:
    """Return the narrowest integer type that holds ``width`` bits (the highest may be its sign)."""
    types = (torch.uint8, torch.int16, torch.int32, torch.int64)
    return next(dtype for dtype in types if width <= 8 * dtype.itemsize)


@dataclass(eq=False)
class ExponentsMessage(Message):
    """Floats cut to ``p`` significant bits: ``codes`` (*lead, d), the top bits of every number.

    p = 1, the leading 1 alone, leaves sign and exponent: 9 bits a number in float32, 12 in float64; every
    further bit of the mantissa takes one more. Codes of any integer type are made the narrowest one.
    """

    codes: Tensor
    p: int = 1
    kind = "exponents"
    tensors = ("codes",)
    static = ("p",)

    @classmethod
    def fields(cls, head: Header, width: int) -> Sequence[Field]:
        bits = exponent_width(dtype_of(head), natural(head, "p", 1))
        return [Field("codes", Symbols(bits, integers_of(bits)), (natural(head, "d"),))]

    def __post_init__(self) -> None:
        self.codes = self.codes.to(integers_of(self.width))

    @property
    def width(self) -> int:
        """Bits of a code."""
        return exponent_width(self.dtype, self.p)

    def _write(self, out: Tensor) -> None:
        bits, by = out.view(FLOATS[self.dtype].integer), 8 * self.dtype.itemsize - self.width
        bits.copy_(self.codes)
        bits.bitwise_left_shift_(by)
        if self.scale != 1.0:
            out.mul_(self.scale)
