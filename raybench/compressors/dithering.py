"""Quantisers by a norm: signs, and dithering of |x_j| over the norm of a row or bucket to a few levels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.norms import norms, side_sums
from raybench.core.compiled import compiled
from raybench.core.parallel import run_tiled
from raybench.core.registry import Choice, Integer, Number, compressor
from raybench.core.streams import Stream, hash_numba
from raybench.wire import LevelsMessage, Message
from raybench.wire.levels import UNSCALED, aligned, code_dtype, levels_of, spread

# Signs --------------------------------------------------------------------------------------------


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
        mean = norms(x, 1.0) / x.shape[-1]
        return LevelsMessage(x.shape[-1], x.dtype, signs(x), mean.to(x.dtype), "sign", 1)

    def alpha(self, d: int) -> float:
        return 1 / d


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
        if not bool(norms(x, math.inf).isfinite().all()):
            raise ValueError("sign has no bit for NaN or infinity")
        none = x.new_zeros(*x.shape[:-1], 0)
        return LevelsMessage(x.shape[-1], x.dtype, signs(x), none, "sign", 1, bucket=UNSCALED)


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
        codes = signs(x)
        above = codes.sum(-1, keepdim=True, dtype=torch.int32)
        counts = torch.cat((d - above, above), -1)
        means = side_sums(x) / counts.clamp(min=1)
        return LevelsMessage(d, x.dtype, codes, means.to(x.dtype), "pair", 1)

    def alpha(self, d: int) -> float:
        return 1 / d


def signs(x: Tensor) -> Tensor:
    """Return whether x_j >= 0, uint8 (*lead, d); NaN counts as not."""
    if x.device.type == "cpu":  # numpy compares several times as fast as torch
        return torch.from_numpy(x.numpy() >= 0).view(torch.uint8)
    return (x >= 0).view(torch.uint8)


# Rounding of ratios -------------------------------------------------------------------------------


CHUNK = 512  # coordinates whose ratios are held at once
LEAST_NORM, ENLARGED = 2.0**-900, 2.0**600  # norms below are enlarged, lest 1 / norm overflow
CODE_WORK = 6.0  # of a coordinate, in additions
DITHERED, NEAREST, FLOOR, POWER, LADDER = range(5)  # the first three go to equally spaced levels


def quantised(
    x: Tensor,
    stream: Stream,
    table: str,
    s: int,
    p: float,
    base: float = 2.0,
    bucket: int = 0,
    how: str = "dithered",
) -> LevelsMessage:
    """Return the message of x (*lead, d), each |x_j| / ||x||_p rounded to a level of the table.

    table: ``linear`` or ``power`` (see ``levels_of``). The norm is that of the row, or of every ``bucket``
    coordinates, rounded to x's type first, so that what is sent is what was divided by. how, of linear
    levels: ``dithered`` adds a uniform number to s |x_j| / norm and drops the fraction; ``floor`` goes up
    from the level below s x_j / norm, its sign kept, where a uniform number is less than the fraction;
    ``nearest`` uses none, midway to the even level.
    """
    d = x.shape[-1]
    bucket = bucket if 0 < bucket < d else 0
    scales = norms(x, p, bucket).to(x.dtype)
    if table == "power":
        way, steps = (POWER, None) if base == 2 else (LADDER, levels_of(table, s, base)[s:])
    else:
        way, steps = {"dithered": DITHERED, "nearest": NEAREST, "floor": FLOOR}[how], None
    codes = codes_of(x, scales.double(), stream, way, s, bucket, steps)
    return LevelsMessage(d, x.dtype, codes, scales, table, s, base, bucket)


def codes_of(
    x: Tensor, norm: Tensor, stream: Stream, way: int, s: int, bucket: int, steps: Tensor | None
) -> Tensor:
    """Return the codes of x (*lead, d) given the norms (*lead, nb), float64: 0..2s, s for zero.

    way: DITHERED, NEAREST or FLOOR to 0, 1/s, .., 1 (see ``quantised``); POWER to powers of two; LADDER to
    ``steps`` = 0, .., 1, both without bias. What exceeds the norm goes to its level, as does a NaN.
    """
    if x.device.type != "cpu" or not x.numel():
        return codes_torch(x, norm, stream, way, s, bucket, steps)
    d, out = x.shape[-1], torch.empty(x.shape, dtype=code_dtype(2 * s + 1))
    rows, codes, size = x.view(-1, d).numpy(), out.view(-1, d).numpy(), bucket or d
    keys = np.zeros(len(rows), np.uint64)
    if way != NEAREST:
        keys = stream.keys.reshape(-1).numpy().view(np.uint64)
    by = norm.reshape(len(rows), -1).contiguous().numpy()
    ladder = np.empty(0) if steps is None else steps.numpy()

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _codes(rows, keys, by, size, way, s, ladder, r0, r1, lo, hi, codes)

    run_tiled(work, len(rows), d, CODE_WORK + len(ladder), aligned(bucket))
    return out


def codes_torch(
    x: Tensor, norm: Tensor, stream: Stream, way: int, s: int, bucket: int, steps: Tensor | None
) -> Tensor:
    """Return the same in plain torch, int64 (the reference; any device)."""
    top = float(s if way <= FLOOR else 1)
    up, inverse = (spread(part, bucket, x.shape[-1]) for part in _factors(norm, way, s))
    ratio = x.abs().double() * up * inverse
    ratio = ratio.where(ratio <= top, top)
    if way == NEAREST:
        level = ratio.round().long()
    elif way == POWER:
        noise = (stream.bits(x.shape[-1]) >> 12) & (2**52 - 1)
        # below the smallest power to it or to 0; the carry of a random mantissa rounds others up
        below = (ratio * 2.0 ** (s - 1)).clamp(max=1.0) + stream.uniform(x.shape[-1])
        above = ((ratio.contiguous().view(torch.int64) + noise) >> 52) - 1023 + s
        level = torch.where(ratio < 2.0 ** (1 - s), below.long(), above)
    elif steps is not None:
        u, level = stream.uniform(x.shape[-1]), torch.zeros_like(x, dtype=torch.int64)
        for low, high in zip(steps.tolist(), steps.tolist()[1:], strict=False):
            level += ratio > low + u * (high - low)  # past a point uniform between two levels
    else:
        u, low = stream.uniform(x.shape[-1]), ratio.floor()
        level = (ratio + u).long().clamp(max=s)
        if way == FLOOR:
            level = torch.where(x < 0, level, low.long() + (u < ratio - low))
    return torch.where(x < 0, s - level, s + level)


def _factors(norm: Tensor, way: int, s: int) -> tuple[Tensor, Tensor]:
    """Return the two factors (*lead, nb) of |x_j| that make it a ratio to the norm, in levels."""
    up = torch.ones_like(norm).masked_fill(norm < LEAST_NORM, ENLARGED)
    return up, torch.where(norm > 0, (s if way <= FLOOR else 1) / (norm * up), 0.0)


@compiled
def _codes(rows, keys, norm, bucket, way, s, steps, r0, r1, lo, hi, out):
    top = np.float64(s if way <= FLOOR else 1)
    ratio, u, level = np.empty(CHUNK), np.empty(CHUNK), np.empty(CHUNK, np.int32)
    noise, bits = np.empty(CHUNK, np.uint64), ratio.view(np.uint64)
    smallest, inverted = 2.0 ** (1 - s), 2.0 ** (s - 1)
    for r in range(r0, r1):
        key, start = keys[r], lo
        while start < hi:
            b = start // bucket
            end = min((b + 1) * bucket, hi, start + CHUNK)
            x, o = rows[r, start:end], out[r, start:end]
            up = ENLARGED if norm[r, b] < LEAST_NORM else 1.0
            inverse = top / (norm[r, b] * up) if norm[r, b] > 0 else 0.0
            for j in range(x.shape[0]):
                value = abs(np.float64(x[j])) * up * inverse
                ratio[j] = value if value <= top else top
            if way != NEAREST:
                for j in range(x.shape[0]):
                    noise[j] = hash_numba(key, np.uint64(start + j))
                    u[j] = np.float64(noise[j] >> np.uint64(11)) * 2.0**-53
            if way == DITHERED:
                for j in range(x.shape[0]):
                    level[j] = np.int32(min(ratio[j] + u[j], top))
            elif way == NEAREST:
                for j in range(x.shape[0]):
                    level[j] = np.int32(np.rint(ratio[j]))
            elif way == FLOOR:
                for j in range(x.shape[0]):
                    low = np.floor(ratio[j])
                    above = low + 1.0 if u[j] < ratio[j] - low else low
                    level[j] = np.int32(min(ratio[j] + u[j], top) if x[j] < 0 else above)
            elif way == POWER:
                for j in range(x.shape[0]):
                    below = np.int32(min(ratio[j] * inverted, 1.0) + u[j])
                    above = np.int32((bits[j] + (noise[j] >> np.uint64(12))) >> np.uint64(52))
                    level[j] = below if ratio[j] < smallest else above - 1023 + s
            else:
                level[: x.shape[0]] = 0
                for i in range(s):
                    low, gap = steps[i], steps[i + 1] - steps[i]
                    for j in range(x.shape[0]):
                        level[j] += np.int32(ratio[j] > low + u[j] * gap)
            for j in range(x.shape[0]):
                o[j] = s - level[j] if x[j] < 0 else s + level[j]
            start = end


# Dithering ----------------------------------------------------------------------------------------


_NORM = Number(2.0, low=1, words=("inf",), help="norm: 2 or inf")
_BUCKET = "coordinates that share a norm; 0: all of them"


def _in_bucket(d: int, bucket: int) -> int:
    """Return how many coordinates share a norm."""
    return min(bucket, d) if bucket > 0 else d


@compressor("dithering", version="2")
class Dithering(Compressor):
    """C(x)_j = ||x||_p sign(x_j) xi_j, xi_j unbiased on {0, 1/s, .., 1}: standard dithering.

    A coordinate's variance is at most (N/s) min(N/(4s), |x_j|), N = ||x||_p. With N <= c ||x||_2,
    c = max(1, d^(1/p - 1/2)), and ||x||_1 <= sqrt(d) ||x||_2: omega <= min(d c^2/s^2, c sqrt(d)/s);
    p = 2 is the published min(d/s^2, sqrt(d)/s), but s = 1 has omega = ||x||_1/||x||_2 - 1 <=
    sqrt(d) - 1, tight. p = inf: N ||x||_1 <= (1 + sqrt d)/2 ||x||_2^2, so omega <= min(d/(4 s^2),
    (1 + sqrt d)/(2s)), and (sqrt(d) - 1)/2 for s = 1. With buckets of B coordinates, each with its own
    norm, min(B, d) takes the place of d. Bits: ceil(d/B) norms and d ceil(log2(2s+1)), 8 ceil(d/5) for
    s = 1. NaN or infinity makes its bucket non-finite. Source: Alistarh et al. 2017 (QSGD).
    """

    s: int = Integer(3, low=1, high=2**30, help="levels above zero")
    p: float | str = Number(2.0, low=1, words=("inf",), help="norm: 2 (QSGD) or inf")
    bucket: int = Integer(0, low=0, help=_BUCKET)

    def encode(self, x: Tensor, stream: Stream) -> Message:
        return quantised(x, stream, "linear", self.s, float(self.p), bucket=self.bucket)

    def omega(self, d: int) -> float:
        d = _in_bucket(d, self.bucket)
        s, root = self.s, math.sqrt(d)
        if float(self.p) == math.inf:
            return (root - 1) / 2 if s == 1 else min(d / (4 * s * s), (1 + root) / (2 * s))
        if s == 1 and float(self.p) == 2:
            return root - 1
        size = max(1.0, d ** (1 / float(self.p) - 0.5))  # ||x||_p / ||x||_2 at most
        return min(d * (size / s) ** 2, size * root / s)


@compressor("qsgd", title="QSGD")
class Qsgd(Compressor):
    """Dithering with the 2-norm in buckets of 512 coordinates: omega <= min(B/s^2, sqrt(B)/s), B = 512.

    B is min(bucket, d), or d for bucket 0. Source: Alistarh et al. 2017 (QSGD), section 4.
    """

    s: int = Integer(3, low=1, high=2**30, help="levels above zero")
    bucket: int = Integer(512, low=0, help=_BUCKET)

    def encode(self, x: Tensor, stream: Stream) -> Message:
        return quantised(x, stream, "linear", self.s, 2.0, bucket=self.bucket)

    def omega(self, d: int) -> float:
        return Dithering(self.s, 2.0, self.bucket).omega(d)


@compressor("terngrad", title="TernGrad", version="2")
class TernGrad(Compressor):
    """C(x)_j = ||x||_inf sign(x_j) Be(|x_j| / ||x||_inf): ternary, omega <= (sqrt(d) - 1)/2, tight.

    omega(x) = ||x||_inf ||x||_1 / ||x||_2^2 - 1. With buckets of B coordinates min(B, d) takes the
    place of d. Bits: a norm a bucket, 8 ceil(d/5). Source: Wen et al. 2017, without its clipping
    (which biases).
    """

    bucket: int = Integer(0, low=0, help=_BUCKET)

    def encode(self, x: Tensor, stream: Stream) -> Message:
        return quantised(x, stream, "linear", 1, math.inf, bucket=self.bucket)

    def omega(self, d: int) -> float:
        return (math.sqrt(_in_bucket(d, self.bucket)) - 1) / 2


@compressor("exponential_dithering")
class ExponentialDithering(Compressor):
    """C(x)_j = ||x||_p sign(x_j) xi_j, xi_j unbiased on {0, b^(1-s), .., 1/b, 1}, b = base > 1.

    omega <= zeta_b - 1 + u min(1, u), zeta_b = (b + 1/b + 2)/4, u = d^(1/r) b^(1-s), r = min(p, 2):
    between two powers the variance is at most (zeta_b - 1) x_j^2, below the smallest, l = b^(1-s) ||x||,
    at most |x_j| l and l^2/4. With buckets of B coordinates min(B, d) takes the place of d. Bits: a
    norm a bucket, d ceil(log2(2s+1)), 8 ceil(d/5) for s = 1. Source: Beznosikov et al. 2020.
    """

    s: int = Integer(3, low=1, high=1000, help="levels above zero: b^(1-s), .., 1/b, 1")
    p: float | str = _NORM
    base: float = Number(2.0, low=1, open_low=True, help="ratio b of two levels")
    bucket: int = Integer(0, low=0, help=_BUCKET)

    def encode(self, x: Tensor, stream: Stream) -> Message:
        return quantised(x, stream, "power", self.s, float(self.p), float(self.base), self.bucket)

    def omega(self, d: int) -> float:
        d, b = _in_bucket(d, self.bucket), float(self.base)
        u = d ** (1 / min(float(self.p), 2.0)) * b ** (1 - self.s)
        return (b + 1 / b - 2) / 4 + u * min(1.0, u)


@compressor("natural_dithering", version="2")
class NaturalDithering(Compressor):
    """C(x)_j = ||x||_p sign(x_j) xi_j, xi_j unbiased on {0, 2^(1-s), .., 1/2, 1}.

    Exponential dithering with base 2: omega <= 1/8 + u min(1, u), u = d^(1/r) 2^(1-s), r = min(p, 2).
    Bits: a norm a bucket, d ceil(log2(2s+1)). Source: Horvath et al. 2019, Natural Compression.
    """

    s: int = Integer(3, low=1, high=1000, help="levels above zero: 2^(1-s), .., 1/2, 1")
    p: float | str = _NORM
    bucket: int = Integer(0, low=0, help=_BUCKET)

    def encode(self, x: Tensor, stream: Stream) -> Message:
        return quantised(x, stream, "power", self.s, float(self.p), bucket=self.bucket)

    def omega(self, d: int) -> float:
        return ExponentialDithering(self.s, self.p, 2.0, self.bucket).omega(d)


@compressor("int8")
class Int8(Compressor):
    """C(x)_j = (m/127) c_j, c_j the integer -127..127 nearest to 127 x_j/m, m = max|x_j| of a bucket.

    The largest is exact, the others err by at most min(|x_j|, m/254): with B = min(bucket, d),
    alpha = 1/(1 + (B - 1)/64516), reached where all but one are at m/254. ``rounding: stochastic``
    is dithering with p = inf, s = 127: unbiased, omega = min(B/(4 s^2), (1 + sqrt B)/(2s)). Bits: 8 d
    and a number of full width per bucket. NaN or infinity makes its bucket non-finite throughout.
    Source: Dettmers 2015, 8-Bit Approximations; Alistarh et al. 2017.
    """

    bucket: int = Integer(0, low=0, help="numbers that share a scale; 0: all of a row")
    rounding: str = Choice(
        "nearest", "stochastic", help="to the nearest level, or at random without bias"
    )

    @property
    def deterministic(self) -> bool:  # type: ignore[override]
        return self.rounding == "nearest"

    def encode(self, x: Tensor, stream: Stream) -> Message:
        how = "nearest" if self.deterministic else "floor"
        return quantised(x, stream, "linear", 127, math.inf, bucket=self.bucket, how=how)

    def alpha(self, d: int) -> float | None:
        return 1 / (1 + (_in_bucket(d, self.bucket) - 1) / 254**2) if self.deterministic else None

    def omega(self, d: int) -> float | None:
        return None if self.deterministic else Dithering(127, "inf", self.bucket).omega(d)
