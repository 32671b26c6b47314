"""Thresholds: what exceeds a fixed or adaptive one is kept, so messages differ in length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor, count_of
from raybench.compressors.kernels.energy import energy_kept
from raybench.compressors.kernels.selection import bits_of, ragged, sizes_torch
from raybench.compressors.kernels.signs import sign_counts, signed_kept
from raybench.compressors.top_k import largest
from raybench.core.errors import InputError
from raybench.core.registry import Choice, Count, Number, compressor
from raybench.core.streams import Stream
from raybench.wire import Message, RaggedMessage
from raybench.wire.blocks import TwoMeansMessage
from raybench.wire.indices import per_count
from raybench.wire.marks import collect, mark


@compressor("hard_threshold", threshold=Number(low=0, help="lambda: entries above it are kept"))
@dataclass(frozen=True)
class HardThreshold(Compressor):
    """C(x) = the entries with |x_j| > lambda: deterministic, of a length that x decides.

    ||C(x) - x||^2 <= d lambda^2, an absolute error: no alpha, for a small x all is lost. Bits: the
    count, the values and their indices. Raises InputError for a negative threshold. Source: Sahu et
    al. 2021.
    """

    threshold: float
    deterministic = True
    selection = True

    def __post_init__(self) -> None:
        if not 0 <= self.threshold < math.inf:
            what = f"{self.threshold!r} is negative or not finite"
            raise InputError.of("threshold", what, "a number of the size of the entries")

    def encode(self, x: Tensor, stream: Stream) -> Message:
        cut = torch.tensor(self.threshold, dtype=torch.float64).to(x.dtype)
        if float(cut) <= self.threshold:  # the lowest number of x's type that is above
            cut = torch.nextafter(cut, cut.new_tensor(torch.inf))
        return at_least(x, cut.expand(x.shape[:-1]))


@compressor(
    "adaptive_threshold",
    rule=Choice("max", "energy", "percentile", help="what the threshold follows from"),
    c=Number(
        0.5, low=0, high=1, open_low=True, help="rule max: the threshold over the largest |x_j|"
    ),
    energy=Number(0.9, low=0, high=1, open_low=True, help="rule energy: share of ||x||^2 kept"),
    k=Count("10%", help="rule percentile: entries kept at least, or their share"),
)
@dataclass(frozen=True)
class AdaptiveThreshold(Compressor):
    """C(x) = the entries with |x_j| >= lambda(x), zeros never: deterministic, of varying length.

    max: lambda = c ||x||_inf; what is lost is at most d - 1 entries below it, so alpha =
    1/(1 + (d - 1) c^2). energy: the fewest entries that hold ``energy`` of ||x||^2, ties by lowest
    index; alpha = max(energy, 1/d), up to rounding. percentile: lambda is the k-th largest |x_j|, so
    top_k that keeps all ties; alpha = k/d. B1 and B2 hold with (alpha, 1). Bits: the count, the values
    and their indices. Raises InputError for parameters outside their range. Source: Sahu et al. 2021;
    Strom 2015.
    """

    rule: str = "max"
    c: float = 0.5
    energy: float = 0.9
    k: int | float | str = "10%"
    deterministic = True
    selection = True

    def __post_init__(self) -> None:
        if self.rule not in ("max", "energy", "percentile"):
            fix = "allowed: max, energy, percentile"
            raise InputError.of("rule", f"unknown rule {self.rule!r}", fix)
        for name in ("c", "energy"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError.of(name, f"{getattr(self, name)!r} is outside (0, 1]")

    def encode(self, x: Tensor, stream: Stream) -> Message:
        if self.rule == "energy":
            return RaggedMessage(x.shape[-1], x.dtype, *energy_kept(x, self.energy))
        if self.rule == "percentile":
            cut = sizes_torch(largest(x, count_of(self.k, x.shape[-1]))[1]).amin(-1)
            return at_least(x, cut)
        most = sizes_torch(largest(x, 1)[1][..., 0])
        cut = (most.double() * self.c).to(x.dtype)
        low = cut.double() < most.double() * self.c  # rounded to the type of x, but up
        return at_least(x, torch.where(low, torch.nextafter(cut, most.new_tensor(torch.inf)), cut))

    def alpha(self, d: int) -> float:
        if self.rule == "max":
            return 1 / (1 + (d - 1) * self.c**2)
        return max(self.energy, 1 / d) if self.rule == "energy" else count_of(self.k, d) / d

    def b1(self, d: int) -> tuple[float, float]:
        return self.alpha(d), 1.0

    def b2(self, d: int) -> tuple[float, float]:
        return self.alpha(d), 1.0


@compressor(
    "pos_neg_top_k",
    k=Count(help="entries of each sign kept, or their share among the entries of that sign"),
    values=Choice(
        "exact", "means", help="what is sent of them: themselves, or a mean of each sign"
    ),
)
@dataclass(frozen=True)
class PosNegTopK(Compressor):
    """C(x) = the largest positive and the most negative entries, selected apart; deterministic.

    A share p keeps ceil(p n) of the n entries of a sign, a count min(k, n); zeros are neither. exact:
    alpha = max(p, 1/d), or k/d. means: the s entries kept of a sign become their mean, a projection:
    (x_1 + .. + x_s)^2 / s of that sign's energy is kept, at least min(1/s, s/n) of it (x = (1, c, .., c)
    is the worst for some c in [0, 1], and c = 0 or 1 is), so alpha = min(1/s, s/n) at its least over
    n <= d. B1 and B2 hold with (alpha, 1). Ties go to the lowest index; NaN is a large positive entry.
    Bits: the count, values or two means and a sign each, indices. Source: Dryden et al. 2016, who send
    means.
    """

    k: int | float | str
    values: str = "exact"
    deterministic = True

    def __post_init__(self) -> None:
        if self.values not in ("exact", "means"):
            raise InputError.of("values", f"unknown {self.values!r}", "allowed: exact, means")

    def encode(self, x: Tensor, stream: Stream) -> Message:
        count_of(self.k, x.shape[-1])  # for its complaints
        kept = per_count(sign_counts(x), lambda n: (self._of(n),))[0]
        held = signed_kept(x, kept)
        if self.values == "exact":
            return RaggedMessage(x.shape[-1], x.dtype, *held)
        counts, indices, values = held
        negative = values < 0
        live = torch.arange(values.shape[-1], device=x.device) < counts[..., None]
        means, shown = [], torch.zeros_like(values)
        for group in (~negative & live, negative):
            of = group.sum(-1, keepdim=True)
            total = values.double().where(group, 0.0).sum(-1, keepdim=True)
            means.append((total / of.clamp(min=1)).to(x.dtype))
            shown = torch.where(group, means[-1], shown)
        pair = torch.cat(means, -1)
        return TwoMeansMessage(x.shape[-1], x.dtype, counts, indices, shown, pair)

    def _of(self, n: int) -> int:
        """Return how many of n entries of a sign are kept."""
        if n == 0:
            return 0
        text = str(self.k).strip()
        share = text.endswith("%") or Decimal(text) % 1 != 0
        return count_of(self.k, n) if share else min(int(Decimal(text)), n)

    def alpha(self, d: int) -> float:
        kept = count_of(self.k, d)
        least = kept / d if self._of(2 * d) == kept else max(self._share(), 1 / d)
        return least if self.values == "exact" else min(1 / kept, least)

    def b1(self, d: int) -> tuple[float, float]:
        return self.alpha(d), 1.0

    def b2(self, d: int) -> tuple[float, float]:
        return self.alpha(d), 1.0

    def _share(self) -> float:
        text = str(self.k).strip()
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)


def at_least(x: Tensor, cut: Tensor) -> RaggedMessage:
    """Return the message of the entries with |x_j| >= cut (*lead, of x's dtype) that are not zero.

    A NaN is always sent.
    """
    if x.device.type != "cpu":
        size = sizes_torch(x)
        return RaggedMessage(
            x.shape[-1], x.dtype, *ragged(x, (size >= cut[..., None]) & (size > 0))
        )
    bits = bits_of(x)
    least = cut.contiguous().view(-1).numpy().view(bits.dtype)
    marks = mark(bits, np.maximum(least - 1, 0))
    shape = x.shape[:-1]
    held = (part.view(*shape, part.shape[-1]) for part in collect(bits, marks, x.dtype))
    return RaggedMessage(x.shape[-1], x.dtype, torch.from_numpy(marks.counts).view(shape), *held)
