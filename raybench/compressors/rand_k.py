"""Rand-K: K coordinates drawn at random."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor, count_of
from raybench.core.compiled import compiled
from raybench.core.parallel import run_tiled
from raybench.core.registry import Choice, Count, Flag, compressor
from raybench.core.streams import Stream
from raybench.wire import Message, SeededMessage, support_of

MISS = 16.0  # what fetching a number from anywhere costs, in additions
FEW = 4096  # numbers below which torch's gather is as fast


@compressor(
    "rand_k",
    k=Count(help="coordinates kept, or a share such as 10%"),
    mask=Choice("independent", "common", help="whether clients draw their own coordinates"),
    scaled=Flag(True, help="times d/K, which makes it unbiased; without, it is contractive"),
)
@dataclass(frozen=True)
class RandK(Compressor):
    """C(x) = (d/K) x_S, S a uniform K-subset: unbiased with omega = d/K - 1, exactly, for every x.

    Without the scale C(x) = x_S: contractive with alpha = K/d, exactly, and B1, B2 (K/d, 1); methods
    with error feedback need this one. S is drawn without replacement from a stream that the server
    shares, so no indices are sent. With a common mask C is linear over clients but averaging gains
    no 1/n. d/K is applied when decoding. Source: Gorbunov et al. 2021 (MARINA), section 1;
    Beznosikov et al. 2020, On Biased Compression for Distributed Learning.
    """

    k: int | float | str
    mask: str = "independent"
    scaled: bool = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d = x.shape[-1]
        k, common = count_of(self.k, d), self.mask == "common"
        values = gather(x, support_of(stream, d, k, common))
        return SeededMessage(
            d, x.dtype, values, stream, common, scale=d / k if self.scaled else 1.0
        )

    @property
    def correlated(self) -> bool:
        return self.mask == "common"

    @property
    def selection(self) -> bool:  # type: ignore[override]
        return not self.scaled

    def omega(self, d: int) -> float | None:
        k = count_of(self.k, d)
        return d / k - 1 if self.scaled or k == d else None

    def alpha(self, d: int) -> float | None:
        k = count_of(self.k, d)
        return None if self.scaled and k < d else k / d

    def b1(self, d: int) -> tuple[float, float] | None:
        return super().b1(d) if self.scaled else (count_of(self.k, d) / d, 1.0)

    def b2(self, d: int) -> tuple[float, float] | None:
        return super().b2(d) if self.scaled else (count_of(self.k, d) / d, 1.0)


@compiled
def _gather(rows, where, lo, hi, out):
    for r in range(rows.shape[0]):
        row, at, kept = rows[r], where[r, lo:hi], out[r, lo:hi]
        for j in range(at.shape[0]):
            kept[j] = row[np.uint64(at[j])]


def gather(x: Tensor, where: Tensor) -> Tensor:
    """Return x (*lead, d) at the coordinates ``where`` (*lead, k): a fresh tensor (*lead, k).

    torch shares out rows, but not one long row; that is what the kernel is for.
    """
    k, count = where.shape[-1], where.numel()
    rows = x.view(-1, x.shape[-1])
    if x.device.type != "cpu" or count < FEW or len(rows) > 8 or not where.is_contiguous():
        return x.gather(-1, where)
    out = torch.empty(where.shape, dtype=x.dtype)
    source, at, kept = rows.numpy(), where.view(-1, k).numpy(), out.view(-1, k).numpy()

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _gather(source[r0:r1], at[r0:r1], lo, hi, kept[r0:r1])

    run_tiled(work, len(rows), k, MISS)
    return out
