"""The operators: dithering to equally spaced or geometric levels, of rows or buckets, and int8."""

from __future__ import annotations

import math

from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.dithering.codes import quantised
from raybench.core.registry import Choice, Integer, Number, compressor
from raybench.core.streams import Stream
from raybench.wire import Message

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
