"""Random sparsification: every coordinate is kept, or not, by a coin of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.rand_k import MISS
from raybench.core.compiled import compiled
from raybench.core.errors import InputError
from raybench.core.parallel import run_tiled
from raybench.core.registry import Flag, Number, compressor
from raybench.core.streams import Stream
from raybench.wire import Message
from raybench.wire.perm import BernoulliMessage, bernoulli


def probability(p: Any, where: str = "p") -> float:
    """Return p as a float. Raises InputError unless 0 < p <= 1."""
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not 0 < p <= 1:
        raise InputError.of(where, f"{p!r} is no such probability", "a number in (0, 1]")
    return float(p)


@compressor("random_sparsification")
class RandomSparsification(Compressor):
    """C(x)_j = x_j / p with probability p, else 0, independently: unbiased, omega = 1/p - 1, exactly.

    Without the scale C(x)_j = x_j: contractive with alpha = p, exactly, and B1, B2 (p, 1). Both ends
    draw the support from the shared seed: only the values kept travel, p d of them on average.
    Source: Beznosikov et al. 2020, On Biased Compression for Distributed Learning.
    """

    p: float = Number(
        0.25, low=0, high=1, open_low=True, help="probability of keeping a coordinate"
    )
    scaled: bool = Flag(True, help="times 1/p, which makes it unbiased; without, it is contractive")

    def __post_init__(self) -> None:
        probability(self.p)

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d, p = x.shape[-1], float(self.p)
        where, counts = places = bernoulli(stream, d, p)
        values = kept(x, where, counts)
        scale = 1 / p if self.scaled else 1.0
        return BernoulliMessage(d, x.dtype, values, stream, p, scale=scale, held=places)

    @property
    def selection(self) -> bool:  # type: ignore[override]
        return not self.scaled

    def omega(self, d: int) -> float | None:
        return 1 / self.p - 1 if self.scaled or self.p == 1 else None

    def alpha(self, d: int) -> float | None:
        return None if self.scaled and self.p < 1 else float(self.p)

    def b1(self, d: int) -> tuple[float, float] | None:
        return super().b1(d) if self.scaled else (float(self.p), 1.0)

    def b2(self, d: int) -> tuple[float, float] | None:
        return super().b2(d) if self.scaled else (float(self.p), 1.0)


def kept(x: Tensor, where: Tensor, counts: Tensor) -> Tensor:
    """Return x (*lead, d) at the first counts (*lead) of where (*lead, m), and zeros beyond."""
    if x.device.type != "cpu" or not where.is_contiguous():
        return kept_torch(x, where, counts)
    out = torch.empty(where.shape, dtype=x.dtype)
    rows, most = x.reshape(-1, x.shape[-1]).numpy(), where.shape[-1]
    at, to, own = (
        where.numpy().reshape(len(rows), most),
        out.numpy().reshape(len(rows), most),
        counts.reshape(-1).numpy(),
    )

    def work(a: int, b: int, lo: int, hi: int) -> None:
        _kept(rows[a:b], at[a:b], own[a:b], lo, hi, to[a:b])

    run_tiled(work, len(at), most, MISS)
    return out


def kept_torch(x: Tensor, where: Tensor, counts: Tensor) -> Tensor:
    """Return the same (the reference; any device)."""
    values = x.gather(-1, where)
    if not counts.numel() or int(counts.min()) == where.shape[-1]:
        return values
    beyond = counts.new_ones(where.shape[-1]).cumsum(0) > counts[..., None]
    return values.masked_fill_(beyond, 0)


@compiled
def _kept(rows, where, counts, lo, hi, out):
    for r in range(rows.shape[0]):
        row, at, to, own = rows[r], where[r, lo:hi], out[r, lo:hi], max(0, min(counts[r], hi) - lo)
        for j in range(own):
            to[j] = row[np.uint64(at[j])]
        to[own:] = 0
