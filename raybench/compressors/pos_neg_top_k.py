"""Selection by sign: the largest positive and the most negative entries, or a mean of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor, count_of
from raybench.compressors.by_size import (
    BLOCK,
    COST_OF_SELECTING,
    FORMS,
    Ragged,
    bits_of,
    places_of_largest,
    ragged,
    rank_of,
    run_rows,
    sizes_torch,
)
from raybench.core.compiled import compiled
from raybench.core.counts import Counts
from raybench.core.registry import Choice, Count, compressor
from raybench.core.streams import Stream
from raybench.wire import DTYPES, Message, RaggedMessage, bitpack, index_cost
from raybench.wire.fields import Header
from raybench.wire.indices import DAMAGED, decode_rows, encode_rows, per_count


@compressor("pos_neg_top_k")
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

    k: int | float | str = Count(
        help="entries of each sign kept, or their share among the entries of that sign"
    )
    values: str = Choice(
        "exact", "means", help="what is sent of them: themselves, or a mean of each sign"
    )
    deterministic = True
    projection = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        count_of(self.k, x.shape[-1])  # for its complaints
        counts, indices, values = by_sign(x, self._of)
        if self.values == "exact":
            return RaggedMessage(x.shape[-1], x.dtype, counts, indices, values)
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

    def _share(self) -> float:
        text = str(self.k).strip()
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)


def by_sign(x: Tensor, of_sign: Callable[[int], int]) -> Ragged:
    """Return counts, indices and values of the largest positive and the most negative entries of rows.

    x (*lead, d); of n entries of a sign of_sign(n) are kept, ties by lowest index. A NaN is an infinite
    positive entry. Indices ascend; beyond a row's count they and the values are zero.
    """
    if x.device.type != "cpu":
        sides = x.clamp(min=0), x.clamp(max=0).nan_to_num_(0.0, 0.0, -math.inf)
        most_of = [per_count(s.count_nonzero(-1), lambda n: (of_sign(n),))[0] for s in sides]
        chosen = [
            rank_of(sizes_torch(s)) < most[..., None]
            for s, most in zip(sides, most_of, strict=True)
        ]
        return ragged(x, chosen[0] | chosen[1])
    rows, form = bits_of(x), FORMS[x.dtype]
    negative = x < 0
    minus = negative.sum(-1)
    have = torch.stack((x.count_nonzero(-1) - minus, minus), -1)
    most = per_count(have, lambda n: (of_sign(n),))[0].reshape(-1, 2).contiguous().numpy()
    keep = torch.zeros(x.shape, dtype=torch.bool)
    arrays = rows, negative.view(rows.shape).numpy(), most, keep.view(rows.shape).numpy()
    run_rows(_keep_of_sign, arrays, COST_OF_SELECTING * rows.size, form.mask, form.inf)
    return ragged(x, keep)


@compiled
def _keep_of_sign(rows, negative, most, keep, mask, inf):
    d = rows.shape[1]
    side, sizes = np.empty(d, rows.dtype), np.empty(d, rows.dtype)
    place, marks = np.empty(d + 1, np.int32), np.empty(BLOCK, np.uint8)
    for r in range(rows.shape[0]):
        for sign in range(2):
            if most[r, sign] == 0:
                continue
            for j in range(d):
                size = rows[r, j] & mask
                side[j] = size if negative[r, j] == sign else size ^ size
            places_of_largest(side, most[r, sign], mask, inf, sizes, marks, place)
            for t in range(most[r, sign]):
                keep[r, place[t]] = True


@dataclass(eq=False)
class TwoMeansMessage(RaggedMessage):
    """Rows of different length in which all positive values are one number, all negative another.

    ``means`` (*lead, 2) are the two, 0 where there is none. Sends them, the count and a sign per
    entry, and the indices.
    """

    means: Tensor
    kind = "two_means"
    tensors = ("counts", "indices", "values", "means")  # type: ignore[assignment]

    def _cost(self) -> Counts:
        head = bitpack.width_of(self.d + 1)
        costs = per_count(
            self.counts,
            lambda k: index_cost(self.d, k)._replace(values=2, raw=head + k),
            torch.float64,
        )
        return Counts(*costs)

    def _starts(self) -> Tensor:
        signs = (bitpack.width_of(self.d + 1) + self.counts + 7) // 8
        return 2 * self.dtype.itemsize + signs

    def _payload(self) -> Tensor:
        size, head = self._size(), bitpack.width_of(self.d + 1)
        rows, most = math.prod(self.lead), self.values.shape[-1]
        wide = int(size.max()) if rows else 0
        out = torch.zeros(*self.lead, wide, dtype=torch.uint8, device=self.device)
        if not rows:
            return out
        flat, counts, pair = out.view(rows, wide), self.counts.reshape(-1), 2 * self.dtype.itemsize
        flat[:, :pair] = bitpack.to_bytes(self.means.reshape(rows, 2))
        live = torch.arange(most, device=self.device) < counts[:, None]
        negative = (self.values == self.means[..., 1:]).view(rows, most) & live
        places = torch.arange(head, device=self.device)
        own = torch.cat(((counts[:, None] >> places) & 1, negative.long()), -1)
        own = _bits_to_bytes(own)[:, : wide - pair]
        flat[:, pair : pair + own.shape[-1]] = own
        encode_rows(flat, self._starts().reshape(-1), self.indices.view(rows, most), counts, self.d)
        return out

    @classmethod
    def demand(cls, known: Header, width: int) -> int:
        # an entry is a bit for its sign and one or more for its place, and becomes 17 bytes
        return 2 * width + 17 * min(4 * width, known["d"])

    @classmethod
    def read(cls, known: Header, payload: Tensor, stream: Stream | None) -> TwoMeansMessage:
        d, dtype, lead = known["d"], DTYPES[known["dtype"]], payload.shape[:-1]
        head, pair, rows = bitpack.width_of(d + 1), 2 * dtype.itemsize, math.prod(lead)
        data = payload.reshape(rows, payload.shape[-1])
        if rows == 0:
            data = data.new_zeros(0, pair + bitpack.bytes_of(head))
        means = bitpack.from_bytes(data[:, :pair], dtype)
        count = _bytes_to_bits(data[:, pair : pair + bitpack.bytes_of(head)])[:, :head].long()
        counts = (count << torch.arange(head, device=data.device)).sum(-1)
        most = int(counts.max()) if rows else 0
        starts = pair + (head + counts + 7) // 8
        if most > d or (rows and int(starts.max()) > data.shape[-1]):
            raise ValueError(DAMAGED)
        indices = decode_rows(data, starts, counts, d)
        bits = data[:, pair : pair + bitpack.bytes_of(head + most)]
        negative = _bytes_to_bits(bits)[:, head : head + most].bool()
        values = torch.where(negative, means[:, 1:], means[:, :1])
        values.masked_fill_(torch.arange(most, device=data.device) >= counts[:, None], 0)
        own = (counts.view(lead), indices.view(*lead, most), values.view(*lead, most))
        return cls(d, dtype, *own, means.view(*lead, 2), scale=known["scale"])


def _bits_to_bytes(bits: Tensor) -> Tensor:
    """Return bits (R, m) as bytes, the first m' of which are those of any first 8 m' bits."""
    eights = torch.nn.functional.pad(bits.to(torch.uint8), (0, -bits.shape[-1] % 8))
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return (eights.unflatten(-1, (-1, 8)) << places).sum(-1, dtype=torch.uint8)


def _bytes_to_bits(data: Tensor) -> Tensor:
    """Return the bits (R, 8 P) of bytes (R, P), uint8: the inverse of ``_bits_to_bytes``."""
    places = torch.arange(8, dtype=torch.uint8, device=data.device)
    return ((data[..., None] >> places) & 1).flatten(-2)
