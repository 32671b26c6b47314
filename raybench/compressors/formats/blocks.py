"""Block formats: consecutive numbers share a scale, each is sent as one of a few levels of it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.formats.block_message import (
    FORMATS,
    SCALES_PER_TOP,
    BlockMessage,
    blocks_of,
    factors_of,
    nonzero,
    shared_max,
    table_of,
)
from raybench.compressors.formats.small_floats import ELEMENTS, mx_codes
from raybench.compressors.norms import in_buckets
from raybench.core.compiled import compiled
from raybench.core.parallel import run_tiled
from raybench.core.params import record
from raybench.core.registry import Choice, Flag, Integer, compressor
from raybench.core.streams import Stream
from raybench.wire import Message
from raybench.wire.levels import aligned, spread

SEARCH_WORK = 2.0  # of a number, in additions
NF4_MIDS = 15  # points midway between its levels


# Constants ---------------------------------------------------------------------------------------


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


# Operators ---------------------------------------------------------------------------------------


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
        shared = min(blocks_of(d, self.block), SCALES_PER_TOP)
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

    def encode(self, x: Tensor, stream: Stream) -> Message:
        element, none = self._element(), x.new_empty(*x.shape[:-1], 0)
        codes, scales = mx_codes(x, ELEMENTS[element], self.block)
        return BlockMessage(x.shape[-1], x.dtype, codes, scales, none, element, self.block)

    def _element(self) -> str:
        raise NotImplementedError

    def alpha(self, d: int) -> float:
        return tight_alpha(self._element(), min(self.block, d))


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

    element: str = Choice("e4m3", "e5m2", help="exponent and mantissa bits of a number")

    def _element(self) -> str:
        return self.element


@compressor("mxfp4")
class MXFP4(_MX):
    """C(x)_j = 2^e times the nearest of 0, 1/2, 1, 3/2, 2, 3, 4, 6, e shared by a block of 32.

    e = floor(log2 max|x_j|) - 2: the largest lies in [4, 8) 2^e and is cut to 6 2^e. alpha is the
    exact worst case over a block: 0.891 for 32 (the largest at 5 2^e, the others at 2^e/4). Range and
    NaN as for mxfp8. 4 bits a number and 8 per block: 4.25. Source: OCP Microscaling Formats v1.0,
    2023; nearest even, deterministic.
    """

    def _element(self) -> str:
        return "e2m1"
