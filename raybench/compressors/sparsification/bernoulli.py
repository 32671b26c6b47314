"""Random sparsification: every coordinate is kept, or not, by a coin of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.selection.by_size import listed, ragged
from raybench.compressors.sparsification.drawn import DrawnMessage, Places, kept
from raybench.core.compiled import compiled
from raybench.core.errors import InputError
from raybench.core.parallel import run_shared
from raybench.core.registry import Flag, Number, compressor
from raybench.core.streams import Stream, hash_numba
from raybench.wire import DTYPES, Message, bitpack
from raybench.wire.base import Header

BLOCK = 512  # coordinates whose numbers are drawn at once
COST_OF_HASHES = 8.0  # of a coordinate, in additions


def probability(p: object, where: str = "p") -> float:
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


# What is sent ----------------------------------------------------------------------------------


@dataclass(eq=False)
class BernoulliMessage(DrawnMessage):
    """Coordinate j is sent where the j-th number of the stream is below p: no indices, no length."""

    values: Tensor
    source: Stream  # of shape lead
    p: float
    held: Places | None = field(default=None, kw_only=True, repr=False)
    kind = "bernoulli"
    tensors = ("values",)
    static = ("p",)

    def _draw(self) -> Places:
        return bernoulli(self.source, self.d, self.p)

    def map(self, of_tensor: Callable[[Tensor], Tensor]) -> BernoulliMessage:
        changed = super().map(of_tensor)
        assert isinstance(changed, BernoulliMessage)
        changed.source, changed.held = Stream(of_tensor(self.source.keys)), None
        return changed

    def select(self, cells: Tensor) -> BernoulliMessage:
        changed = super().map(lambda x: x[cells])
        assert isinstance(changed, BernoulliMessage)
        changed.source, changed.held = self.source[cells], None
        return changed

    @classmethod
    def read(cls, known: Header, payload: Tensor, stream: Stream | None) -> BernoulliMessage:
        assert stream is not None
        dtype = DTYPES[known["dtype"]]
        values = bitpack.from_bytes(payload, dtype)
        p = probability(known["p"])
        return cls(known["d"], dtype, values, stream, p, scale=known["scale"])

    @classmethod
    def demand(cls, known: Header, width: int) -> int:
        # every coordinate is looked at, for every row, and those that are kept are listed
        d = known["d"]
        return 10 * width + 5 * d + int(9 * probability(known["p"]) * d)


def bernoulli(source: Stream, d: int, p: float) -> Places:
    """Return the coordinates whose number of ``source`` is below p, ascending, and their counts."""
    keys = source.keys
    if keys.device.type != "cpu":
        keep = source.uniform(d) < p
        counts, where, _ = ragged(keep, keep)
        return where, counts
    flat, limit = keys.contiguous().view(-1).numpy().view(np.uint64), math.ceil(p * 2.0**53)
    found = np.empty(len(flat), np.int64)

    def look(most: int) -> Tensor:
        where = torch.empty(len(flat), most, dtype=torch.int64)
        to = where.numpy()
        run_shared(
            lambda a, b: _bernoulli(flat[a:b], np.uint64(limit), d, found[a:b], to[a:b]),
            len(flat),
            COST_OF_HASHES * len(flat) * d,
        )
        return where.view(*keys.shape, most)

    # room enough but for one row in 10^15, which is drawn again
    room = math.ceil(p * d + 8 * math.sqrt(p * (1 - p) * d)) + 8
    where = look(min(room, d))
    most = int(found.max(initial=0))
    where = where[..., :most].contiguous() if most <= where.shape[-1] else look(most)
    return where, torch.from_numpy(found).view(keys.shape)


@compiled
def _bernoulli(keys, limit, d, counts, where):
    keep, place = np.empty(BLOCK, np.uint8), np.empty(d + 1, np.int32)
    for r in range(keys.shape[0]):
        found = 0
        for start in range(0, d, BLOCK):
            size = min(BLOCK, d - start)
            for j in range(size):  # a loop of its own: the listing does not vectorise
                keep[j] = (hash_numba(keys[r], np.uint64(start + j)) >> np.uint64(11)) < limit
            found = listed(keep, size, start, found, place)
        counts[r] = found
        own = min(found, where.shape[1])
        for t in range(own):
            where[r, t] = place[t]
        where[r, own:] = 0
