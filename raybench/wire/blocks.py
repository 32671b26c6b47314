"""Messages of selections: so many in each block, whole blocks, and two values at many places."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raybench.core.counts import Counts
from raybench.core.streams import Stream
from raybench.wire import bitpack
from raybench.wire.base import DTYPES, Message
from raybench.wire.indices import (
    DAMAGED,
    code_of,
    decode,
    decode_rows,
    encode,
    encode_rows,
    per_count,
)
from raybench.wire.sparse import RaggedMessage, SparseMessage, index_cost


@dataclass(eq=False)
class BlockSparseMessage(SparseMessage):
    """``each`` entries of every block of ``block`` coordinates (all of a last block that is shorter).

    ``indices`` (*lead, k) ascend over the whole vector. Sends the values and the places within the
    blocks, ceil(log2 block) bits each, or the code of all indices where that is shorter.
    """

    block: int = 1
    each: int = 1
    kind = "block_sparse"
    static = ("block", "each")

    def _cost(self) -> Counts:
        k, (whole, rest) = self.values.shape[-1], divmod(self.d, self.block)
        explicit = k * bitpack.width_of(self.block)
        last = index_cost(rest, min(self.each, rest)).index_entropy if rest else 0
        entropy = whole * index_cost(self.block, self.each).index_entropy if whole else 0
        return Counts(
            values=k,
            index_explicit=explicit,
            index_auto=min(explicit, code_of(self.d, k).bits),
            index_list_or_bitmask=min(explicit, self.d),
            index_bitmask=self.d,
            index_entropy=entropy + last,
        )

    def _places(self) -> bool:
        """Return whether the places within the blocks are sent, rather than the code of all indices."""
        k = self.values.shape[-1]
        return k * bitpack.width_of(self.block) <= code_of(self.d, k).bits

    def _payload(self) -> Tensor:
        if self._places():
            where = bitpack.pack(self.indices % self.block, bitpack.width_of(self.block))
        else:
            where = encode(self.indices, self.d)
        return torch.cat((bitpack.to_bytes(self.values), where), -1)

    @classmethod
    def read(
        cls, known: dict[str, Any], payload: Tensor, stream: Stream | None
    ) -> BlockSparseMessage:
        d, k, block, dtype = known["d"], known["k"], known["block"], DTYPES[known["dtype"]]
        values = bitpack.from_bytes(payload[..., : k * dtype.itemsize], dtype)
        where, own = payload[..., k * dtype.itemsize :], {"block": block, "each": known["each"]}
        message = cls(d, dtype, values, values, scale=known["scale"], **own)
        if message._places():
            starts = torch.arange(k, device=payload.device) // own["each"] * block
            message.indices = bitpack.unpack(where, bitpack.width_of(block), k) + starts
        else:
            message.indices = decode(where, d, k)
        if bool((message.indices >= d).any()):
            raise ValueError(DAMAGED)
        return message


@dataclass(eq=False)
class BlocksMessage(Message):
    """Whole blocks: ``blocks`` (*lead, J) ascending, their ``values`` (*lead, J, block).

    The last block of the vector may be shorter: its values end in zeros that are not sent. Sends the
    code of the blocks' numbers, then the values.
    """

    blocks: Tensor
    values: Tensor
    kind = "blocks"
    tensors = ("blocks", "values")

    @property
    def lead(self) -> torch.Size:
        return self.blocks.shape[:-1]

    @property
    def block(self) -> int:
        """Coordinates of a block."""
        return self.values.shape[-1]

    @property
    def _of(self) -> int:
        return -(-self.d // self.block)

    def _parts(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return views of flat (R, d): its whole blocks (R, d // block, block), and what is left."""
        whole = self.d // self.block * self.block
        return flat[:, :whole].unflatten(-1, (-1, self.block)), flat[:, whole:]

    def _scatter(self, out: Tensor, add: bool) -> None:
        count = self.blocks.shape[-1]
        rows, values = self.blocks.view(-1, count), self.values.view(-1, count, self.block)
        if self.scale != 1.0:
            values = values * self.scale
        if self.present is not None:
            values = values.masked_fill(~self.present.view(-1)[:, None, None], 0)
        whole, rest = self._parts(out.view(-1, self.d))
        r, j = (rows < whole.shape[1]).nonzero(as_tuple=True)
        whole.index_put_((r, rows[r, j]), values[r, j], accumulate=add)
        if rest.shape[-1]:  # only the highest block can be the shorter one
            here = (rows[:, -1] == whole.shape[1])[:, None]
            rest.add_(torch.where(here, values[:, -1, : rest.shape[-1]], 0))

    def _write(self, out: Tensor) -> None:
        self._scatter(out.zero_(), add=False)

    def _add(self, target: Tensor) -> Tensor:
        if not target.is_contiguous():
            return target.add_(self.decode())
        self._scatter(target, add=True)
        return target

    def _short(self) -> Tensor:
        """Return how many values the last block chosen lacks, int64 of shape lead."""
        return (self.blocks[..., -1] == self._of - 1).long() * (self._of * self.block - self.d)

    def _cost(self) -> Counts:
        count = self.blocks.shape[-1]
        values = (count * self.block - self._short()).double()
        return Counts(*(values * 0 + c for c in index_cost(self._of, count)))._replace(
            values=values
        )

    def _payload(self) -> Tensor:
        where, values = encode(self.blocks, self._of), bitpack.to_bytes(self.values.flatten(-2))
        size = torch.as_tensor(self._size())
        return torch.cat((where, values), -1)[..., : int(size.max()) if size.numel() else 0]

    def known(self) -> dict[str, Any]:
        return {**super().known(), "block": self.block, "count": self.blocks.shape[-1]}

    @classmethod
    def read(cls, known: dict[str, Any], payload: Tensor, stream: Stream | None) -> BlocksMessage:
        d, block, count, dtype = known["d"], known["block"], known["count"], DTYPES[known["dtype"]]
        head, full = bitpack.bytes_of(code_of(-(-d // block), count).bits), count * block
        blocks = decode(payload[..., :head], -(-d // block), count)
        sent = payload[..., head:]
        sent = torch.nn.functional.pad(sent, (0, full * dtype.itemsize - sent.shape[-1]))
        values = bitpack.from_bytes(sent, dtype).unflatten(-1, (count, block))
        return cls(d, dtype, blocks, values, scale=known["scale"])


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

    joined = Message.joined

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
    def read(cls, known: dict[str, Any], payload: Tensor, stream: Stream | None) -> TwoMeansMessage:
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
