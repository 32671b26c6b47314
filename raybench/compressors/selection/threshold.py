"""Thresholds: what exceeds a fixed or adaptive one is kept, so messages differ in length."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor, count_of
from raybench.compressors.selection.by_size import (
    FORMS,
    Ragged,
    above,
    largest,
    ragged,
    rank_of,
    sizes_torch,
)
from raybench.core import gpu
from raybench.core.compiled import compiled
from raybench.core.errors import InputError
from raybench.core.parallel import run_shared
from raybench.core.registry import Choice, Count, Number, compressor
from raybench.core.streams import Stream
from raybench.wire import Message, RaggedMessage

BUCKETS = 512  # of a histogram
COST_OF_ENERGIES = 20.0  # of a coordinate, in additions


@compressor("hard_threshold")
class HardThreshold(Compressor):
    """C(x) = the entries with |x_j| > lambda: deterministic, of a length that x decides.

    ||C(x) - x||^2 <= d lambda^2, an absolute error: no alpha, for a small x all is lost. Bits: the
    count, the values and their indices. Raises InputError for a negative threshold. Source: Sahu et
    al. 2021.
    """

    threshold: float = Number(low=0, help="lambda: entries above it are kept")
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


@compressor("adaptive_threshold")
class AdaptiveThreshold(Compressor):
    """C(x) = the entries with |x_j| >= lambda(x), zeros never: deterministic, of varying length.

    max: lambda = c ||x||_inf; what is lost is at most d - 1 entries below it, so alpha =
    1/(1 + (d - 1) c^2). energy: the fewest entries that hold ``energy`` of ||x||^2, ties by lowest
    index; alpha = max(energy, 1/d), up to rounding. percentile: lambda is the k-th largest |x_j|, so
    top_k that keeps all ties; alpha = k/d. B1 and B2 hold with (alpha, 1). Bits: the count, the values
    and their indices. Raises InputError for parameters outside their range. Source: Sahu et al. 2021;
    Strom 2015.
    """

    rule: str = Choice("max", "energy", "percentile", help="what the threshold follows from")
    c: float = Number(
        0.5, low=0, high=1, open_low=True, help="rule max: the threshold over the largest |x_j|"
    )
    energy: float = Number(
        0.9, low=0, high=1, open_low=True, help="rule energy: share of ||x||^2 kept"
    )
    k: int | float | str = Count(
        "10%", help="rule percentile: entries kept at least, or their share"
    )
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
        most = sizes_torch(x.abs().amax(-1))
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


def at_least(x: Tensor, cut: Tensor) -> RaggedMessage:
    """Return the message of the entries with |x_j| >= cut (*lead, of x's dtype) that are not zero.

    A NaN is always sent.
    """
    if gpu.usable(x) and x.dtype != torch.float64:
        from raybench.core.gpu import selection

        below = (cut.float().contiguous().view(torch.int32) - 1).clamp(min=0)
        return RaggedMessage(x.shape[-1], x.dtype, *selection.above(x, below))
    if x.device.type != "cpu":
        size = sizes_torch(x)
        return RaggedMessage(
            x.shape[-1], x.dtype, *ragged(x, (size >= cut[..., None]) & (size > 0))
        )
    form = FORMS[x.dtype]
    least = cut.contiguous().view(-1).numpy().view(form.integer)
    return RaggedMessage(x.shape[-1], x.dtype, *above(x, np.maximum(least - 1, 0)))


def energy_kept(x: Tensor, share: float) -> Ragged:
    """Return the fewest entries with that share of ||x||^2: counts, indices and values.

    The largest first, ties by lowest index. In float64, relative to the largest entry. A row of zeros
    keeps none; one with entries that are not finite keeps those, all of them.
    """
    if x.device.type != "cpu":
        return energy_kept_torch(x, share)
    rows, form = x.reshape(-1, x.shape[-1]).numpy(), FORMS[x.dtype]
    cuts, ties = np.empty(len(rows), form.integer), np.empty(len(rows), np.int64)
    run_shared(
        lambda a, b: _cuts(rows[a:b], share, form.mask, form.inf, cuts[a:b], ties[a:b]),
        len(rows),
        COST_OF_ENERGIES * rows.size,
    )
    return above(x, cuts, ties)


def energy_kept_torch(x: Tensor, share: float) -> Ragged:
    """Return the same by a sort, up to the rounding of sums (on other devices)."""
    size = sizes_torch(x)
    most = size.amax(-1, keepdim=True).double()
    part = size.double() / torch.where((most > 0) & most.isfinite(), most, 1.0)
    energy = torch.where(size.isfinite(), part, 0.0).square()
    needed = share * energy.sum(-1, keepdim=True)
    rank = rank_of(size)
    held = torch.zeros_like(energy).scatter_(-1, rank, energy).cumsum(-1)
    kept = (held < needed).sum(-1, keepdim=True) + 1
    keep = torch.where(most.isfinite(), (rank < kept) & (size > 0), size.isinf())
    return ragged(x, keep)


@compiled
def _cuts(rows, share, mask, inf, cuts, ties):
    d = rows.shape[1]
    sizes, energies, weight = np.empty(d, cuts.dtype), np.empty(d), np.empty(BUCKETS)
    for r in range(rows.shape[0]):
        bits, n, above, needed = rows[r].view(cuts.dtype), d, 0.0, 0.0
        for j in range(d):
            sizes[j] = min(bits[j] & mask, inf)
        low, high = sizes.min(), sizes.max()
        cuts[r], ties[r] = min(high, inf - 1), 0
        if high == 0 or high == inf:  # nothing to keep, or what is not finite
            continue
        scale = 1 / max(np.float64(np.abs(rows[r]).max()), 1e-300)
        for j in range(d):
            part = np.float64(rows[r, j]) * scale
            energies[j] = part * part
            needed += share * energies[j]
        # the least size that is kept is among the n left, by histograms of energy
        while low < high:
            shift, left = 0, 0
            while (high - low) >> shift >= BUCKETS:
                shift += 1
            bucket = (high - low) >> shift
            weight[: bucket + 1] = 0
            for j in range(n):
                weight[(sizes[j] - low) >> shift] += energies[j]
            while bucket > 0 and above + weight[bucket] < needed:
                above += weight[bucket]
                bucket -= 1
            for j in range(n):
                size = sizes[j]
                sizes[left], energies[left] = size, energies[j]
                left += (size - low) >> shift == bucket
            n = left
            low, high = sizes[:n].min(), sizes[:n].max()
        cuts[r], ties[r] = high, n
        if energies[0] > 0:
            ties[r] = min(max(np.int64(np.ceil((needed - above) / energies[0])), 1), n)
