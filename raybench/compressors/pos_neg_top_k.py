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
    of_signs = torch.empty(*x.shape[:-1], 2, dtype=torch.int64)
    cost = COST_OF_SELECTING * rows.size
    run_rows(_count, (rows, of_signs.view(-1, 2).numpy()), cost, form.mask, form.inf)
    many = per_count(of_signs, lambda n: (of_sign(n),))[0].contiguous()
    counts = many.sum(-1)
    most = int(counts.max()) if len(rows) else 0
    where = torch.zeros(len(rows), most, dtype=torch.int64)
    values = torch.zeros(where.shape, dtype=x.dtype)
    to = where.numpy(), values.numpy().view(rows.dtype)
    run_rows(_by_sign, (rows, many.view(-1, 2).numpy(), *to), cost, form.mask, form.inf)
    return counts, where.view(*x.shape[:-1], most), values.view(*x.shape[:-1], most)


@compiled(inline="always")
def _is_negative(bits, mask, inf):
    return (bits < 0) & ((bits & mask) <= inf)


@compiled
def _count(rows, counts, mask, inf):
    for r in range(rows.shape[0]):
        row, zero, minus = rows[r], 0, 0
        for j in range(row.shape[0]):
            zero += (row[j] & mask) == 0
            minus += _is_negative(row[j], mask, inf) & ((row[j] & mask) > 0)
        counts[r, 0], counts[r, 1] = row.shape[0] - zero - minus, minus


@compiled
def _by_sign(rows, many, where, values, mask, inf):
    d = rows.shape[1]
    side, sizes = np.empty(d, rows.dtype), np.empty(d, rows.dtype)
    plus, place = np.empty(d, np.int32), np.empty(d + 1, np.int32)
    marks = np.empty(BLOCK, np.uint8)
    for r in range(rows.shape[0]):
        row, p, q = rows[r], many[r, 0], many[r, 1]
        for negative, k in ((0, p), (1, q)):
            plus[: p * negative] = place[: p * negative]
            for j in range(d):
                size = row[j] & mask
                side[j] = size if _is_negative(row[j], mask, inf) == negative else size ^ size
            if k > 0:
                places_of_largest(side, k, mask, inf, sizes, marks, place)
        i, t = 0, 0
        for at in range(p + q):  # both ascend
            if t == q or (i < p and plus[i] < place[t]):
                entry, i = plus[i], i + 1
            else:
                entry, t = place[t], t + 1
            where[r, at], values[r, at] = entry, row[entry]


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
        packed = torch.cat(((counts[:, None] >> places) & 1, negative.long()), -1)
        packed = _bits_to_bytes(packed)[:, : wide - pair]
        flat[:, pair : pair + packed.shape[-1]] = packed
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
        arrays = (counts.view(lead), indices.view(*lead, most), values.view(*lead, most))
        return cls(d, dtype, *arrays, means.view(*lead, 2), scale=known["scale"])


def _bits_to_bytes(bits: Tensor) -> Tensor:
    """Return bits (R, m) as bytes, the first m' of which are those of any first 8 m' bits."""
    eights = torch.nn.functional.pad(bits.to(torch.uint8), (0, -bits.shape[-1] % 8))
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return (eights.unflatten(-1, (-1, 8)) << places).sum(-1, dtype=torch.uint8)


def _bytes_to_bits(data: Tensor) -> Tensor:
    """Return the bits (R, 8 P) of bytes (R, P), uint8: the inverse of ``_bits_to_bytes``."""
    places = torch.arange(8, dtype=torch.uint8, device=data.device)
    return ((data[..., None] >> places) & 1).flatten(-2)
