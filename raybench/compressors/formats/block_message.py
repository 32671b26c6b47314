"""Messages of block formats: a small code per number and a scale per block of consecutive ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import torch
from torch import Tensor

from raybench.compressors.formats.small_floats import ELEMENTS, powers_of_two
from raybench.compressors.norms import largest
from raybench.core.counts import Counts
from raybench.core.streams import Stream
from raybench.wire import Message, bitpack
from raybench.wire.base import DTYPES, Header, natural
from raybench.wire.levels import decode_levels, spread

SCALES_PER_TOP = 256  # scales that share a number of full width under double quantisation


# Formats ------------------------------------------------------------------------------------------


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
    "nf4": Format(4, normal_float()),
    "e2m1": Format(4, ELEMENTS["e2m1"].levels(), 2),
    "e4m3": Format(8, ELEMENTS["e4m3"].levels(), 8),
    "e5m2": Format(8, ELEMENTS["e5m2"].levels(), 15),
}


@lru_cache(maxsize=32)
def table_of(name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a format's levels, or those of ``scales`` in 8 bits, by code: 1-d."""
    values = scale_levels() if name == "scales" else FORMATS[name].levels
    return torch.tensor(values, dtype=torch.float64).to(device=device, dtype=dtype)


@lru_cache(maxsize=32)
def _padded(name: str, dtype: torch.dtype) -> Tensor:
    table = table_of(name, dtype, torch.device("cpu"))
    return torch.nn.functional.pad(table, (0, 256 - len(table)))


# Scales -------------------------------------------------------------------------------------------


def blocks_of(d: int, block: int) -> int:
    """Return how many blocks d numbers make; the last one may be shorter."""
    return -(-d // block)


def shared_max(x: Tensor, block: int) -> Tensor:
    """Return the largest |x_j| of each block of x (*lead, d): (*lead, nb); NaN where one is not finite."""
    top = largest(x, block)
    return torch.where(top.isfinite(), top, math.nan)  # infinity times the level 0 would be NaN too


def nonzero(scale: Tensor) -> Tensor:
    """Return the scales with 1 for 0, to divide by."""
    return torch.where(scale == 0, 1.0, scale)


def factors_of(scales: Tensor, tops: Tensor, dtype: torch.dtype, double: bool) -> Tensor:
    """Return what sent scales (*lead, nb) stand for, of ``dtype``; tops as in ``BlockMessage``."""
    if scales.dtype != torch.uint8:
        return scales
    if not double:
        table = powers_of_two(dtype).to(scales.device)
        return table.index_select(0, scales.flatten().int()).view(scales.shape)
    shares = table_of("scales", dtype, scales.device)[scales.int()]
    return shares * spread(tops, SCALES_PER_TOP, scales.shape[-1])


def _scale_counts(d: int, block: int, name: str, double: bool) -> tuple[int, int]:
    """Return how many numbers of full width, and how many bytes, the scales take."""
    count = blocks_of(d, block)
    if double:
        return blocks_of(count, SCALES_PER_TOP), count
    return (0, count) if FORMATS[name].top is not None else (count, 0)


# The message --------------------------------------------------------------------------------------


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

    def _write(self, out: Tensor) -> None:
        factors = factors_of(self.scales, self.tops, self.dtype, self.double)
        factors = factors if self.scale == 1.0 else factors * self.scale
        if out.device.type == "cpu":
            decode_levels(self.codes, _padded(self.format, self.dtype), factors, self.block, out)
        else:
            levels = table_of(self.format, self.dtype, out.device)[self.codes.long()]
            out.copy_(levels * spread(factors, self.block, self.d))

    def _cost(self) -> Counts:
        values, small = _scale_counts(self.d, self.block, self.format, self.double)
        return Counts(values=values, raw=self.width * self.d + 8 * small)

    def _payload(self) -> Tensor:
        parts = [bitpack.to_bytes(x) for x in (self.tops, self.scales)]
        head = sum(part.shape[-1] for part in parts)
        size = head + bitpack.bytes_of(self.width * self.d)
        out = torch.empty(*self.lead, size, dtype=torch.uint8, device=self.device)
        out[..., :head] = torch.cat(parts, -1)
        return bitpack.pack_into(self.codes, self.width, out, head)

    @classmethod
    def read(cls, known: Header, payload: Tensor, stream: Stream | None) -> BlockMessage:
        d, dtype, name = known["d"], DTYPES[known["dtype"]], known["format"]
        block, double = natural(known, "block", 1), known["double"] is True
        values, small = _scale_counts(d, block, name, double)
        head = values * dtype.itemsize
        full = bitpack.from_bytes(payload[..., :head], dtype)
        scales, tops = (
            (payload[..., head : head + small].clone(), full) if small else (full, full[..., :0])
        )
        codes = bitpack.unpack(payload, FORMATS[name].width, d, torch.uint8, head + small)
        return cls(d, dtype, codes, scales, tops, name, block, double, scale=known["scale"])
