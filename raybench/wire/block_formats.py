"""Messages of block formats: a small code per number and a scale per block of consecutive ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from raybench.core.compiled import compiled
from raybench.core.counts import Counts
from raybench.core.parallel import run_tiled
from raybench.core.streams import Stream
from raybench.wire import bitpack
from raybench.wire.base import DTYPES, Message
from raybench.wire.casts import pack_codes, unpack_codes

GROUP = 256  # scales that share a scale of full width under double quantisation
EXPONENT_BIAS = 127  # of E8M0, the power-of-two scale of one byte
EXPONENT_NAN = 255


def minifloat(exponent_bits: int, mantissa_bits: int, bias: int, finite: int) -> list[float]:
    """Return what the codes of a small float stand for: sign, exponent, mantissa from the top bit.

    finite: the number of magnitudes that are finite; codes beyond are NaN (never sent).
    """
    values = []
    for code in range(1 << (exponent_bits + mantissa_bits)):
        exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        lead = (1 << mantissa_bits) if exponent else 0
        size = (lead + mantissa) * 2.0 ** (max(exponent, 1) - bias - mantissa_bits)
        values.append(size if code < finite else math.nan)
    return values + [-v for v in values]


def normal_float() -> list[float]:
    """Return the 16 levels of NF4: quantiles of the normal law, 0 and +-1 among them.

    8 levels from 0 up and 9 from 0 down are normal quantiles at equal steps of probability, from 1/2
    to 1 - (1/32 + 1/30)/2, divided by the largest. Source: Dettmers et al. 2023 (QLoRA), with the
    side of nine being the positive one, as in its published table.
    """
    end, quantile = 1 - (1 / 32 + 1 / 30) / 2, NormalDist().inv_cdf
    up = [quantile(end + (0.5 - end) * i / 8) for i in range(8)]
    down = [-quantile(end + (0.5 - end) * i / 7) for i in range(7)]
    return [v / up[0] for v in (*down, 0.0, *reversed(up))]


def scale_levels() -> list[float]:
    """Return the 256 levels of a scale in 8 bits: 0 and the 255 largest numbers <= 1 of 5 bits."""
    sizes = [m / 32 * 2.0**-e for e in range(17) for m in range(32, 16, -1)]
    return [0.0, *reversed(sizes[:255])]


@dataclass(frozen=True)
class Format:
    """What codes of ``width`` bits stand for; ``top``: exponent of the largest level, where the scale
    is a power of two (E8M0), None where it is a number of full width."""

    width: int
    levels: list[float]
    top: int | None = None


FORMATS = {
    "int8": Format(8, [(k - 127) / 127 for k in range(255)]),
    "nf4": Format(4, normal_float()),
    "e2m1": Format(4, minifloat(2, 1, 1, 8), 2),
    "e4m3": Format(8, minifloat(4, 3, 7, 127), 8),
    "e5m2": Format(8, minifloat(5, 2, 15, 124), 15),
}


@lru_cache(maxsize=32)
def table_of(name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a format's levels, or the ``exponents`` or ``scales`` that a byte stands for: 1-d."""
    if name == "exponents":
        values = [2.0 ** (i - EXPONENT_BIAS) for i in range(EXPONENT_NAN)] + [math.nan]
    elif name == "scales":
        values = scale_levels()
    else:
        values = FORMATS[name].levels
    return torch.tensor(values, dtype=torch.float64).to(device=device, dtype=dtype)


def blocks_of(d: int, block: int) -> int:
    """Return how many blocks d numbers make; the last one may be shorter."""
    return -(-d // block)


@dataclass(eq=False)
class BlockMessage(Message):
    """A level per number times its block's scale: ``codes`` uint8 (*lead, d), of the format's width.

    scales (*lead, nb): of full width; bytes of E8M0 for formats with a power-of-two scale; or, under
    double quantisation, bytes that are shares of ``tops`` (*lead, nb/256), else of width 0.
    """

    codes: Tensor
    scales: Tensor
    tops: Tensor
    format: str
    block: int
    double: bool = False
    kind = "block"
    tensors = ("codes", "scales", "tops")
    static = ("format", "block", "double")

    @property
    def lead(self) -> torch.Size:
        return self.codes.shape[:-1]

    @property
    def width(self) -> int:
        """Bits of a code."""
        return FORMATS[self.format].width

    def factors(self) -> Tensor:
        """Return the scales as numbers (*lead, nb) of the message's dtype."""
        return factors_of(self.scales, self.tops, self.dtype, self.double)

    def _write(self, out: Tensor) -> None:
        table = table_of(self.format, self.dtype, out.device)
        expand = expand_blocks if out.device.type == "cpu" else expand_blocks_torch
        expand(self.codes, table, self.factors(), self.block, self.scale, out)

    def _cost(self) -> Counts:
        values, small = _scale_counts(self.d, self.block, self.format, self.double)
        return Counts(values=values, raw=self.width * self.d + 8 * small)

    def _size(self) -> int:
        values, small = _scale_counts(self.d, self.block, self.format, self.double)
        return values * self.dtype.itemsize + small + bitpack.bytes_of(self.d * self.width)

    def _payload(self) -> Tensor:
        parts = [bitpack.to_bytes(x) for x in (self.tops, self.scales) if x.shape[-1]]
        out = torch.empty(*self.lead, self._size(), dtype=torch.uint8, device=self.device)
        cut = sum(part.shape[-1] for part in parts)
        out[..., :cut] = torch.cat(parts, -1)
        return pack_codes(self.codes, self.width, out, cut)

    @classmethod
    def read(cls, known: dict[str, Any], payload: Tensor, stream: Stream | None) -> BlockMessage:
        d, dtype, name = known["d"], DTYPES[known["dtype"]], known["format"]
        block, double = known["block"], known["double"]
        values, small = _scale_counts(d, block, name, double)
        cut = values * dtype.itemsize
        full = bitpack.from_bytes(payload[..., :cut], dtype)
        if small:
            scales, tops = payload[..., cut : cut + small].clone(), full
        else:
            scales, tops = full, full[..., :0]
        codes = unpack_codes(payload, FORMATS[name].width, d, cut + small)
        return cls(d, dtype, codes, scales, tops, name, block, double, scale=known["scale"])


def _scale_counts(d: int, block: int, name: str, double: bool) -> tuple[int, int]:
    """Return how many numbers of full width, and how many bytes, the scales take."""
    count = blocks_of(d, block)
    if double:
        return blocks_of(count, GROUP), count
    return (0, count) if FORMATS[name].top is not None else (count, 0)


def factors_of(scales: Tensor, tops: Tensor, dtype: torch.dtype, double: bool) -> Tensor:
    """Return what sent scales (*lead, nb) stand for, of ``dtype``; tops as in ``BlockMessage``."""
    if scales.dtype != torch.uint8:
        return scales
    table = table_of("scales" if double else "exponents", dtype, scales.device)
    value = table.index_select(0, scales.flatten().int()).view(scales.shape)
    if not double:
        return value
    return value * tops.repeat_interleave(GROUP, -1)[..., : scales.shape[-1]]


@compiled
def _expand(codes, table, factors, block, scale, r0, r1, lo, hi, out):
    for r in range(r0, r1):
        start, b = lo, lo // block
        while start < hi:
            stop = min((b + 1) * block, hi)
            row = codes[r, start:stop]
            o = out[r, start:stop]
            factor = factors[r, b]
            for j in range(row.shape[0]):
                o[j] = table[row[j]] * factor * scale
            start, b = stop, b + 1


def expand_blocks(
    codes: Tensor, table: Tensor, factors: Tensor, block: int, scale: float, out: Tensor
) -> None:
    """Write table[code] * factor * scale into out (*lead, d), on the CPU."""
    d = out.shape[-1]
    rows, into = codes.contiguous().view(-1, d).numpy(), out.view(-1, d).numpy()
    by, levels = factors.contiguous().view(len(rows), -1).numpy(), table.numpy()
    one = into.dtype.type(scale)
    run_tiled(lambda *tile: _expand(rows, levels, by, block, one, *tile, into), len(rows), d, 1.0)


def expand_blocks_torch(
    codes: Tensor, table: Tensor, factors: Tensor, block: int, scale: float, out: Tensor
) -> None:
    """Write the same in plain torch (the reference; any device)."""
    spread = factors.repeat_interleave(block, -1)[..., : out.shape[-1]]
    out.copy_(table[codes.long()] * spread * scale)
