"""Sign operators: one bit per coordinate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.kernels.quantise import LANES, fold
from raybench.core.compiled import compiled
from raybench.core.parallel import ALIGN, run_tiled
from raybench.core.registry import compressor
from raybench.core.streams import Stream
from raybench.wire import LevelsMessage, Message
from raybench.wire.levels import UNSCALED

COST = 2.0  # of a coordinate, in additions


@compressor("scaled_sign", version="2")
@dataclass(frozen=True)
class ScaledSign(Compressor):
    """C(x) = (||x||_1/d) sign(x), sign(0) = +1: contractive, alpha >= 1/d.

    ||C(x) - x||^2 = ||x||^2 - ||x||_1^2/d exactly, so alpha(x) = ||x||_1^2/(d ||x||^2). Bits: one
    scale and d. NaN or infinity makes its row non-finite. Source: Karimireddy et al. 2019, Error
    Feedback Fixes SignSGD.
    """

    deterministic = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        codes, found = signs(x, apart=False)
        mean = found[..., 0] / x.shape[-1]
        return LevelsMessage(x.shape[-1], x.dtype, codes, mean.to(x.dtype)[..., None], "sign", 1)

    def alpha(self, d: int) -> float:
        return 1 / d

    def omega(self, d: int) -> float | None:
        return 0.0 if d == 1 else None


@compressor("sign")
@dataclass(frozen=True)
class Sign(Compressor):
    """C(x) = sign(x), sign(0) = +1, unscaled: signSGD, with no guarantee in any class.

    C(0) = (1, .., 1): a bit cannot encode 0. Nor NaN or infinity: ValueError. Bits: d. Source:
    Bernstein et al. 2018, signSGD.
    """

    deterministic = True
    zero_to_zero = False

    def encode(self, x: Tensor, stream: Stream) -> Message:
        codes, sums = signs(x, apart=False)
        if not (bool(sums.isfinite().all()) or bool(x.isfinite().all())):
            raise ValueError("sign has no bit for NaN or infinity")
        return LevelsMessage(
            x.shape[-1], x.dtype, codes, x.new_zeros(*x.shape[:-1], 0), "sign", 1, bucket=UNSCALED
        )


@compressor("one_bit")
@dataclass(frozen=True)
class OneBit(Compressor):
    """C(x)_j = the mean of the x_i >= 0 where x_j >= 0, else the mean of the x_i < 0: alpha >= 1/d.

    ||C(x) - x||^2 = ||x||^2 - S+^2/n+ - S-^2/n- exactly, S and n the sums and counts of either side:
    never more than scaled sign's, as S+^2/n+ + S-^2/n- >= ||x||_1^2/d. Bits: two values and d. NaN or
    infinity makes its side of the row non-finite. Source: Seide et al. 2014, 1-bit SGD.
    """

    deterministic = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d = x.shape[-1]
        codes, found = signs(x)
        high, low, count = found.unbind(-1)
        means = torch.stack((-low / (d - count).clamp(min=1), high / count.clamp(min=1)), -1)
        return LevelsMessage(d, x.dtype, codes, means.to(x.dtype), "pair", 1)

    def alpha(self, d: int) -> float:
        return 1 / d

    def omega(self, d: int) -> float | None:
        return 0.0 if d == 1 else None


def signs(x: Tensor, apart: bool = True) -> tuple[Tensor, Tensor]:
    """Return whether x_j >= 0, uint8 (*lead, d), and per row, float64 (*lead, 3): the sums of |x_j|
    where it is and where not, and how many are.

    apart = False: the sum of all |x_j|, 0, 0, in less time. Sums are taken in tiles of fixed size; NaN counts as not.
    """
    if x.device.type != "cpu" or not x.numel():
        return signs_torch(x, apart)
    d = x.shape[-1]
    codes = torch.empty(x.shape, dtype=torch.uint8)
    parts = torch.empty(*x.shape[:-1], -(-d // ALIGN), 3, dtype=torch.float64)
    rows, out = x.reshape(-1, d).numpy(), codes.view(-1, d).numpy()
    sums = parts.view(len(rows), -1, 3).numpy()

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        kernel(rows, r0, r1, lo, hi, out, sums)

    kernel = _signs if apart else _sizes
    run_tiled(work, len(rows), d, COST)
    total = torch.empty(*x.shape[:-1], 3, dtype=torch.float64)
    _add_up(sums, total.view(-1, 3).numpy())
    return codes, total


def signs_torch(x: Tensor, apart: bool = True) -> tuple[Tensor, Tensor]:
    """Return the same by plain torch, the sums to rounding (the reference; any device)."""
    above, wide = x >= 0, x.double()
    if not apart:
        total = wide.abs().sum(-1)
        return above.to(torch.uint8), torch.stack((total, *[torch.zeros_like(total)] * 2), -1)
    zero = torch.zeros((), dtype=torch.float64, device=x.device)
    sums = (torch.where(above, wide, zero).sum(-1), torch.where(above, zero, -wide).sum(-1))
    return above.to(torch.uint8), torch.stack((*sums, above.sum(-1).double()), -1)


@compiled
def _signs(rows, r0, r1, lo, hi, out, sums):  # sums (R, tiles, 3)
    high, low = np.empty(LANES), np.empty(LANES)
    for r in range(r0, r1):
        for first in range(lo, hi, ALIGN):
            x, o = rows[r, first : min(first + ALIGN, hi)], out[r, first : min(first + ALIGN, hi)]
            count = np.int64(0)
            for j in range(x.shape[0]):
                o[j] = x[j] >= 0
                count += x[j] >= 0
            high[:] = 0.0
            low[:] = 0.0
            for start in range(0, x.shape[0], LANES):
                part = x[start : min(start + LANES, x.shape[0])]
                for i in range(part.shape[0]):
                    v = np.float64(part[i])
                    high[i] += v if v >= 0 else 0.0
                    low[i] += 0.0 if v >= 0 else -v
            mine = sums[r, first // ALIGN]
            mine[0], mine[1], mine[2] = fold(high), fold(low), count


@compiled
def _sizes(rows, r0, r1, lo, hi, out, sums):  # signs, and the sums of |x_j| alone
    held = np.empty(LANES)
    for r in range(r0, r1):
        for first in range(lo, hi, ALIGN):
            x, o = rows[r, first : min(first + ALIGN, hi)], out[r, first : min(first + ALIGN, hi)]
            for j in range(x.shape[0]):
                o[j] = x[j] >= 0
            held[:] = 0.0
            for start in range(0, x.shape[0], LANES):
                part = x[start : min(start + LANES, x.shape[0])]
                for i in range(part.shape[0]):
                    held[i] += np.float64(abs(part[i]))
            mine = sums[r, first // ALIGN]
            mine[0], mine[1], mine[2] = fold(held), 0.0, 0.0


@compiled
def _add_up(parts, out):  # one after another: the same for every row, whatever is beside it
    for r in range(parts.shape[0]):
        for side in range(3):
            total = 0.0
            for t in range(parts.shape[1]):
                total += parts[r, t, side]
            out[r, side] = total
