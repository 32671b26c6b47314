"""Random dithering: each |x_j| / ||x||_p is rounded at random to a few levels, without bias."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.messages import LevelsMessage, Message
from raybench.registry import Integer, Number, compressor
from raybench.streams import Stream


def norm_of(x: Tensor, p: float | str) -> Tensor:
    """Return ||x||_p over the last axis, kept, in float64: shape (*lead, 1).

    The entries are divided by the largest first: their powers neither overflow nor vanish.
    """
    largest = x.abs().amax(-1, keepdim=True).double()
    if float(p) == math.inf:
        return largest
    scaled = x.double() / largest.where(largest > 0, 1.0)
    return largest * torch.linalg.vector_norm(scaled, ord=float(p), dim=-1, keepdim=True)


def _ratio(x: Tensor, norm: Tensor) -> Tensor:
    """Return |x| / norm in [0, 1], and 0 where the norm is 0."""
    return x.abs().double() / norm.where(norm > 0, 1.0)


def _message(x: Tensor, level: Tensor, norm: Tensor, table: str, s: int) -> Message:
    """Return sign(x) times a level in {0..s}; rounding may give s + 1, which is clamped."""
    code = torch.where(x < 0, -level, level).nan_to_num(0.0).clamp(-s, s) + s
    return LevelsMessage(x.shape[-1], x.dtype, code.long(), norm.to(x.dtype), table, s)


@compressor(
    "dithering",
    s=Integer(3, low=1, high=2**30, help="levels above zero"),
    p=Number(2.0, low=1, words=("inf",), help="norm: 2 (QSGD) or inf"),
)
@dataclass(frozen=True)
class Dithering(Compressor):
    """C(x)_j = ||x||_p sign(x_j) xi_j, xi_j unbiased on {0, 1/s, .., 1}: standard dithering / QSGD.

    A coordinate's variance is at most (N/s) min(N/(4s), |x_j|), N = ||x||_p. With N <= c ||x||_2,
    c = max(1, d^(1/p - 1/2)), and ||x||_1 <= sqrt(d) ||x||_2: omega <= min(d c^2/s^2, c sqrt(d)/s);
    p = 2 is the published min(d/s^2, sqrt(d)/s). p = inf: N ||x||_1 <= (1 + sqrt d)/2 ||x||_2^2, so
    omega <= min(d/(4 s^2), (1 + sqrt d)/(2s)). Bits: one norm and d ceil(log2(2s+1)).
    Source: Alistarh et al. 2017 (QSGD).
    """

    s: int = 3
    p: float | str = 2.0

    def encode(self, x: Tensor, stream: Stream) -> Message:
        norm = norm_of(x, self.p)
        level = torch.floor(_ratio(x, norm) * self.s + stream.uniform(x.shape[-1]))
        return _message(x, level, norm, "linear", self.s)

    def omega(self, d: int) -> float:
        s, root = self.s, math.sqrt(d)
        if float(self.p) == math.inf:
            return min(d / (4 * s * s), (1 + root) / (2 * s))
        size = _spread(d, self.p)
        return min(d * (size / s) ** 2, size * root / s)


def _spread(d: int, p: float | str) -> float:
    """Return a bound on ||x||_p / ||x||_2 (1 for p >= 2)."""
    return max(1.0, d ** (1 / float(p) - 0.5))


@compressor("terngrad")
@dataclass(frozen=True)
class TernGrad(Compressor):
    """C(x)_j = ||x||_inf sign(x_j) Be(|x_j| / ||x||_inf): ternary, omega <= (sqrt(d) - 1)/2, tight.

    omega(x) = ||x||_inf ||x||_1 / ||x||_2^2 - 1. Bits: one norm, 2 d. Source: Wen et al. 2017,
    without its clipping (which biases).
    """

    def encode(self, x: Tensor, stream: Stream) -> Message:
        return Dithering(1, "inf").encode(x, stream)

    def omega(self, d: int) -> float:
        return (math.sqrt(d) - 1) / 2


@compressor(
    "natural_dithering",
    s=Integer(3, low=1, high=1000, help="levels above zero: 2^(1-s), .., 1/2, 1"),
    p=Number(2.0, low=1, words=("inf",), help="norm: 2 or inf"),
)
@dataclass(frozen=True)
class NaturalDithering(Compressor):
    """C(x)_j = ||x||_p sign(x_j) xi_j, xi_j unbiased on {0, 2^(1-s), .., 1/2, 1}.

    omega <= 1/8 + u min(1, u), u = d^(1/r) 2^(1-s), r = min(p, 2). Bits: one norm and
    d ceil(log2(2s+1)). Source: Horvath et al. 2019, Natural Compression.
    """

    s: int = 3
    p: float | str = 2.0

    def encode(self, x: Tensor, stream: Stream) -> Message:
        norm = norm_of(x, self.p)
        ratio, smallest = _ratio(x, norm), 2.0 ** (1 - self.s)
        below = torch.frexp(ratio.clamp(min=smallest)).exponent.double() - 1  # 2^below <= ratio
        low = torch.where(ratio < smallest, 0.0, torch.exp2(below))
        gap = torch.where(ratio < smallest, smallest, low)
        up = stream.uniform(x.shape[-1]) < (ratio - low) / gap
        level = torch.where(ratio < smallest, 0.0, below + self.s) + up
        return _message(x, level, norm, "power", self.s)

    def omega(self, d: int) -> float:
        u = d ** (1 / min(float(self.p), 2.0)) * 2.0 ** (1 - self.s)
        return 1 / 8 + u * min(1.0, u)
