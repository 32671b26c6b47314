"""Small floats and block formats: NF4 and the MX formats, in which consecutive numbers share a scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.norms import buckets, in_buckets, largest
from raybench.core.compiled import compiled
from raybench.core.parallel import run_tiled
from raybench.core.params import record
from raybench.core.registry import Choice, Flag, Integer, compressor
from raybench.core.streams import Stream
from raybench.wire import Message
from raybench.wire.fields import (
    Field,
    Header,
    Numbers,
    Symbols,
    dtype_of,
    natural,
    yes_or_no,
)
from raybench.wire.levels import FLOATS, aligned, decode_levels, spread

# Small floats -------------------------------------------------------------------------------------


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
        steps = 2.0 ** (self.bias - 1 + self.mantissa)
        return drop, more << self.mantissa, (more + 1) << mantissa, steps

    def lift(self, dtype: torch.dtype) -> int:
        """Return what turns the biased exponent of a block's largest number into its byte of E8M0."""
        return EXPONENT_BIAS - self.top - (2 ** (FLOATS[dtype].exponent - 1) - 1)

    @property
    def top(self) -> int:
        """The exponent of the largest finite number."""
        return (self.largest >> self.mantissa) - self.bias

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
    unit, last, cut, lower = kind(1), kind(8 * raw.itemsize - 1), kind(drop), kind(rebias)
    magnitude, first = kind(kind(unit << last) - unit), kind(normal)
    half = kind(kind(unit << kind(cut - unit)) - unit)
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
                block_scales = scales[r, start // block : -(-stop // block)]
                _over_powers(
                    v, bits, block, magnitude, kind(mantissa), lift, powers, held, block_scales
                )
            elif divisors.shape[0]:
                for j in range(v.shape[0]):
                    held[j] = v[j] / divisors[r]
            if scales.shape[0] or divisors.shape[0]:
                v, bits = held[: stop - start], held_bits[: stop - start]
            for j in range(v.shape[0]):
                u = kind(bits[j] & magnitude)
                even = kind(kind(u >> cut) & unit)
                large = kind(kind(kind(u + half + even) >> cut) - lower)
                small = kind(np.int32(np.rint(abs(v[j]) * step)))
                code = min(large if u >= first else small, top)
                strange = endless if u == infinite else missing
                code = code if u < infinite else strange
                o[j] = code | kind(kind(bits[j] >> last) << place)


# Formats ------------------------------------------------------------------------------------------


SCALES_PER_TOP = 256  # scales that share a number of full width under double quantisation


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


FORMATS = {"nf4": Format(4, normal_float())} | {
    name: Format(form.width, form.levels(), form.top) for name, form in ELEMENTS.items()
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

    @classmethod
    def fields(cls, head: Header, width: int) -> Sequence[Field]:
        d, name, double = natural(head, "d"), head["format"], yes_or_no(head, "double")
        full, symbols = Numbers(dtype_of(head)), Symbols(FORMATS[name].width, torch.uint8)
        count = buckets(d, natural(head, "block", 1))
        small = double or FORMATS[name].top is not None
        return [
            Field("tops", full, (buckets(count, SCALES_PER_TOP) if double else 0,)),
            Field("scales", Numbers(torch.uint8, raw=True) if small else full, (count,)),
            Field("codes", symbols, (d,)),
        ]

    def _write(self, out: Tensor) -> None:
        factors = factors_of(self.scales, self.tops, self.dtype, self.double)
        factors = factors if self.scale == 1.0 else factors * self.scale
        if out.device.type == "cpu":
            decode_levels(self.codes, _padded(self.format, self.dtype), factors, self.block, out)
        else:
            levels = table_of(self.format, self.dtype, out.device)[self.codes.long()]
            out.copy_(levels * spread(factors, self.block, self.d))


# Compressors ----------------------------------------------------------------------------------------


SEARCH_WORK = 2.0  # of a number, in additions
NF4_MIDS = 15  # points midway between its levels


@lru_cache(maxsize=64)
def _gaps(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return where magnitudes err most, midway between levels, and by how much."""
    levels = np.unique([v for v in FORMATS[name].levels if v == v])
    return np.abs(levels[1:] + levels[:-1]) / 2, (levels[1:] - levels[:-1]) / 2


@lru_cache(maxsize=1024)
def tight_alpha(name: str, size: int, slack: tuple[float, float] = (0.0, 0.0)) -> float:
    """Return alpha of rounding blocks of ``size`` to a format's nearest levels; reached by some x.

    With M the largest over the scale, t_j the others, e(.) the distance to the nearest level: the
    largest (e(M)^2 + sum e(t_j)^2)/(M^2 + sum t_j^2). A fraction's largest value is found with all t_j
    alike, and between two levels it is reached at the lower level or midway. M is 1 for a scale of
    full width (1 - slack[0] to 1 + slack[1] where the scale is rounded too), and in [2^top, 2^(top+1))
    for a power of two, where what exceeds the largest level is cut to it.
    """
    form, others = FORMATS[name], size - 1
    at, error = _gaps(name)
    if form.top is None:
        ends = [(1.0, 0.0), (1 - slack[0], slack[0]), (1 + slack[1], slack[1])]
        beyond = (1 + slack[1], slack[1])
    else:
        low, high, most = 2.0**form.top, 2.0 ** (form.top + 1), np.nanmax(form.levels)
        beyond = (high, high - most)
        inside = (at > low) & (at < high)
        ends = [(low, 0.0), beyond, *zip(at[inside], error[inside])]
    t, e = np.append(at, (0.0, beyond[0])), np.append(error, (0.0, beyond[1]))
    lost = max(float(((f**2 + others * e**2) / (m**2 + others * t**2)).max()) for m, f in ends)
    return 1 - lost


# Compressors ---------------------------------------------------------------------------------------


@compressor("nf4")
class NF4(Compressor):
    """C(x)_j = m times the nearest of 16 normal quantiles, m = max|x_j| of a block: deterministic.

    0 and +-1 are levels (the largest is exact), so the error is at most |x_j| each; alpha is the exact
    worst case over a block of min(block, d): 0.885 for 64. Bits: 4 d, and a number of full width per
    block: 4.5 a number in float32. ``double: true``: scales are rounded to 8-bit floats (0 and the 255
    largest of 5 significant bits up to 1) times the largest of 256, 4.127 bits a number; QLoRA also
    takes off the mean of the scales, which is left out here so that the largest and 0 stay exact.
    A block with a NaN or infinity is NaN throughout (with ``double``, all 256 of them).
    Source: Dettmers et al. 2023 (QLoRA).
    """

    block: int = Integer(64, low=1, help="numbers that share a scale")
    double: bool = Flag(help="scales in 8 bits too, 256 of them sharing a number of full width")
    deterministic = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d = x.shape[-1]
        scales = shared_max(x, self.block)
        tops = scales[..., :0]
        if self.double:
            scales, tops = _in_bytes(scales)
        factors = nonzero(factors_of(scales, tops, x.dtype, self.double))
        codes = nf4_codes(x, factors, self.block)
        return BlockMessage(d, x.dtype, codes, scales, tops, "nf4", self.block, self.double)

    def alpha(self, d: int) -> float:
        size = min(self.block, d)
        if not self.double:
            return tight_alpha("nf4", size)
        shared = min(buckets(d, self.block), SCALES_PER_TOP)
        return _double_alpha(size, shared)


def _in_bytes(scales: Tensor) -> tuple[Tensor, Tensor]:
    """Return scales (*lead, nb) as bytes, shares of the largest of 256, and those largest."""
    tops = in_buckets(scales, SCALES_PER_TOP).amax(-1)
    share = scales / nonzero(spread(tops, SCALES_PER_TOP, scales.shape[-1]))
    levels = table_of("scales", scales.dtype, scales.device)
    return torch.bucketize(share, mids_of(levels)).to(torch.uint8), tops


def mids_of(levels: Tensor) -> Tensor:
    """Return the points midway between ascending levels."""
    return (levels[1:] + levels[:-1]) / 2


def nf4_codes(x: Tensor, factors: Tensor, block: int) -> Tensor:
    """Return which level of NF4 is nearest to x_j over the factor (*lead, nb) of its block, of two the lower.

    uint8 (*lead, d): how many of the points midway between levels lie below; 0 for NaN.
    """
    d, mids = x.shape[-1], mids_of(table_of("nf4", x.dtype, x.device))
    if x.device.type != "cpu" or not x.numel():
        share = x / spread(factors, block, d)
        return torch.bucketize(share, mids).where(~share.isnan(), 0).to(torch.uint8)
    out = torch.empty(x.shape, dtype=torch.uint8)
    rows, codes, points = x.view(-1, d).numpy(), out.view(-1, d).numpy(), mids.numpy()
    by = factors.contiguous().view(len(rows), -1).numpy()

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _nearest(rows, by, block, points, r0, r1, lo, hi, codes)

    run_tiled(work, len(rows), d, SEARCH_WORK, aligned(block))
    return out


@compiled
def _nearest(rows, by, block, mids, r0, r1, lo, hi, out):
    for r in range(r0, r1):
        for b in range(lo // block, -(-hi // block)):
            start, stop, factor = b * block, min((b + 1) * block, hi), by[r, b]
            row, o = rows[r, start:stop], out[r, start:stop]
            for j in range(row.shape[0]):
                share, code = row[j] / factor, np.int32(0)
                for m in range(NF4_MIDS):  # a constant, so that the loop is unrolled and vectorised
                    code += np.int32(share > mids[m])
                o[j] = code


@lru_cache(maxsize=256)
def _double_alpha(size: int, shared: int) -> float:
    """Return alpha of NF4 with scales in bytes, ``shared`` blocks of ``size`` under one number.

    Scales above the least level are off by a ratio within [1 - s, 1 + t]: ``tight_alpha`` with that
    slack. Blocks below it lose at most what they are, (least top)^2 a number. And since 0 is a level
    no entry's error exceeds it, while the largest of all is exact: alpha >= 1/(size shared).
    """
    if shared == 1:
        return tight_alpha("nf4", size)
    levels = np.array(table_of("scales", torch.float64, torch.device("cpu")))[1:]
    mids = (levels[1:] + levels[:-1]) / 2
    slack = (float((1 - mids / levels[1:]).max()), float((mids / levels[:-1] - 1).max()))
    lost = size * (shared - 1) * levels[0] ** 2
    return max(tight_alpha("nf4", size, slack) - float(lost), 1 / (size * shared))


@record
class _MX(Compressor):
    """Elements of a small float format times a power of two per block."""

    block: int = Integer(32, low=1, help="numbers that share a power of two")
    deterministic = True
    element: ClassVar[str]

    def encode(self, x: Tensor, stream: Stream) -> Message:
        codes, scales = mx_codes(x, ELEMENTS[self.element], self.block)
        none = x.new_empty(*x.shape[:-1], 0)
        return BlockMessage(x.shape[-1], x.dtype, codes, scales, none, self.element, self.block)

    def alpha(self, d: int) -> float:
        return tight_alpha(self.element, min(self.block, d))


@compressor("mxfp8")
class MXFP8(_MX):
    """C(x)_j = 2^e times the nearest E4M3 (or E5M2) number, e shared by a block of 32: deterministic.

    e = floor(log2 max|x_j|) - 8 (15): the largest lies in [256, 512) 2^e and is cut to 448 2^e. alpha
    is the exact worst case over a block: 0.9844 (a block that is all but 512 2^e; errors of
    the others are at most 1/17, or 1/9, of themselves unless they are below 2^-14, 2^-29 of the
    largest). Holds for blocks whose largest is 0 or leaves e within -127..127; below, precision is
    lost, above (float64) numbers are cut to 448 (57344) 2^127. 8 bits a number and 8 per block: 8.25.
    A block with a NaN or infinity is NaN throughout. Source: OCP Microscaling Formats v1.0, 2023.
    """

    element: str = Choice(  # type: ignore[misc]
        "e4m3", "e5m2", help="exponent and mantissa bits of a number"
    )


@compressor("mxfp4")
class MXFP4(_MX):
    """C(x)_j = 2^e times the nearest of 0, 1/2, 1, 3/2, 2, 3, 4, 6, e shared by a block of 32.

    e = floor(log2 max|x_j|) - 2: the largest lies in [4, 8) 2^e and is cut to 6 2^e. alpha is the
    exact worst case over a block: 0.891 for 32 (the largest at 5 2^e, the others at 2^e/4). Range and
    NaN as for mxfp8. 4 bits a number and 8 per block: 4.25. Source: OCP Microscaling Formats v1.0,
    2023; nearest even, deterministic.
    """

    element = "e2m1"
