"""Top-k of blocks: of every block or whole ones, of the coordinates or of their cosine transform."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from raybench.compressors import norms
from raybench.compressors.base import Compressor, count_of, count_within
from raybench.compressors.by_size import largest
from raybench.core.counts import Counts
from raybench.core.layout import Layout
from raybench.core.registry import Choice, Count, Integer, compressor
from raybench.core.streams import Stream
from raybench.wire import DTYPES, ConcatMessage, Message, SparseMessage, bitpack, index_cost
from raybench.wire.fields import Field, Header, Indices, Symbols, natural
from raybench.wire.indices import DAMAGED, code_of, decode, encode


@compressor("block_top_k")
class BlockTopK(Compressor):
    """C(x) = the k largest entries of every block of B coordinates, or the k blocks of largest norm.

    within: k <= B entries of each block, all of a shorter last block that has no more; contractive
    with alpha = k/B (min(k, d)/d if d < B). An index takes ceil(log2 B) bits. blocks: of the
    N = ceil(d/B) blocks those of largest l2 norm, alpha = k/N, tight also for a shorter last block;
    an index per block. Ties go to the lowest index; a norm that is NaN counts as largest. B1 and B2
    hold with (alpha, 1). Deterministic. Raises InputError where k or B do not fit.
    """

    k: int | float | str = Count(
        help="within: entries kept of a block, or a share of it; blocks: blocks kept, or a share"
    )
    block: int = Integer(256, low=1, help="coordinates of a block")
    form: str = Choice(
        "within", "blocks", help="the largest entries of each block, or whole blocks"
    )
    deterministic = True
    selection = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d, size = x.shape[-1], self.block
        if self.form == "blocks":
            blocks, _ = largest(block_energies(x, size), count_of(self.k, -(-d // size)))
            padded = norms.in_buckets(x, size) if size < d else pad(x, (0, size - d))[..., None, :]
            index = blocks[..., None].expand(*blocks.shape, size)
            return BlocksMessage(d, x.dtype, blocks, padded.gather(-2, index))
        k, whole, lead = count_of(self.k, size), d // size, x.shape[:-1]
        parts = []
        if whole:
            inside = x[..., : whole * size].reshape(*lead, whole, size)
            where, values = largest(inside, k)
            starts = torch.arange(whole, device=x.device)[:, None] * size
            parts.append(((where + starts).flatten(-2), values.flatten(-2)))
        if d > whole * size:
            tail = x[..., whole * size :].contiguous()
            where, values = largest(tail, min(k, tail.shape[-1]))
            parts.append((where + whole * size, values))
        indices, values = (torch.cat(both, -1) for both in zip(*parts, strict=True))
        return BlockSparseMessage(d, x.dtype, indices, values, size, k)

    def alpha(self, d: int) -> float:
        if self.form == "blocks":
            blocks = -(-d // self.block)
            return count_of(self.k, blocks) / blocks
        return min(1.0, count_of(self.k, self.block) / min(self.block, d))


def block_energies(x: Tensor, block: int) -> Tensor:
    """Return ||.||^2 of every block of x (*lead, d) in units of its row: (*lead, ceil(d/block)), float64.

    The unit is a power of two near the row's largest, lest squares overflow or vanish. A block that is
    not finite has an energy that is not.
    """
    most = norms.largest(x).double()
    near = most.where(most > 0, 1.0).where(most.isfinite(), 1e160)
    unit = near.frexp().exponent.clamp(-1000, 1000)
    up = torch.ones_like(most).ldexp(-unit)
    return norms.sums(x, norms.SQUARES, block, up.expand(*x.shape[:-1], -(-x.shape[-1] // block)))


# What is sent ----------------------------------------------------------------------------------


class IndicesInBlocks(NamedTuple):
    """``each`` ascending places of every block, ceil(log2 block) bits each within it.

    Or the code of all places among d, where that is shorter.
    """

    d: int
    block: int
    each: int

    def cost(self, count: int) -> Counts:
        whole, rest = divmod(self.d, self.block)
        explicit = count * bitpack.width_of(self.block)
        last = index_cost(rest, min(self.each, rest)).index_entropy if rest else 0
        entropy = whole * index_cost(self.block, self.each).index_entropy if whole else 0
        return Counts(
            index_explicit=explicit,
            index_auto=min(explicit, code_of(self.d, count).bits),
            index_list_or_bitmask=min(explicit, self.d),
            index_bitmask=self.d,
            index_entropy=entropy + last,
        )

    def size(self, count: int) -> int:
        return bitpack.bytes_of(self.cost(count).index_auto)

    def memory(self, count: int) -> int:
        return 16 * count

    def _within(self, count: int) -> Symbols | None:
        """Return how places within the blocks are sent; None where all places are, as they are shorter."""
        wide = bitpack.width_of(self.block)
        short = count * wide <= code_of(self.d, count).bits
        return Symbols(wide, torch.int64) if short else None

    def write(self, values: Tensor, out: Tensor, at: int) -> None:
        within = self._within(values.shape[-1])
        if within is None:
            Indices(self.d).write(values, out, at)
        else:
            within.write(values % self.block, out, at)

    def read(self, data: Tensor, at: int, count: int) -> Tensor:
        within = self._within(count)
        if within is None:
            return Indices(self.d).read(data, at, count)
        places = within.read(data, at, count)
        where = places + torch.arange(count, device=data.device) // self.each * self.block
        if bool((places >= self.block).any()) or bool((where >= self.d).any()):
            raise ValueError(DAMAGED)
        return where


@dataclass(eq=False)
class BlockSparseMessage(SparseMessage):
    """``each`` entries of every block of ``block`` coordinates (all of a last block that is shorter).

    ``indices`` (*lead, k) ascend over the whole vector.
    """

    block: int = 1
    each: int = 1
    kind = "block_sparse"
    static = ("block", "each")

    @classmethod
    def fields(cls, head: Header, width: int) -> Sequence[Field]:
        values, _ = super().fields(head, width)
        d, block, each = natural(head, "d"), natural(head, "block", 1), natural(head, "each", 1)
        whole, rest = divmod(d, block)
        if each > block or values.entries != whole * each + min(each, rest):
            raise ValueError(f"{values.entries} coordinates of {d}, {each} of every {block}")
        return [values, Field("indices", IndicesInBlocks(d, block, each), values.shape)]


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
    def block(self) -> int:
        """Coordinates of a block."""
        return self.values.shape[-1]

    @property
    def _of(self) -> int:
        return -(-self.d // self.block)

    def _write(self, out: Tensor) -> None:
        index = self.blocks[..., None].expand(self.values.shape)
        whole = out.new_zeros(*self.lead, self._of, self.block)
        whole.scatter_(-2, index, self.values if self.scale == 1.0 else self.values * self.scale)
        out.copy_(whole.flatten(-2)[..., : self.d])

    def _short(self) -> Tensor:
        """Return how many values the last block chosen lacks, int64 of shape lead."""
        return (self.blocks[..., -1] == self._of - 1).long() * (self._of * self.block - self.d)

    def _cost(self) -> Counts:
        count = self.blocks.shape[-1]
        values = (count * self.block - self._short()).double()
        return index_cost(self._of, count)._replace(values=values)

    def _payload(self) -> Tensor:
        where, values = encode(self.blocks, self._of), bitpack.to_bytes(self.values.flatten(-2))
        size = torch.as_tensor(self._size())
        return torch.cat((where, values), -1)[..., : int(size.max()) if size.numel() else 0]

    def known(self) -> Header:
        return {**super().known(), "block": self.block, "count": self.blocks.shape[-1]}

    @classmethod
    def read(cls, known: Header, payload: Tensor, stream: Stream | None) -> BlocksMessage:
        d, dtype = known["d"], DTYPES[known["dtype"]]
        block, count = natural(known, "block", 1), natural(known, "count", 1)
        head, full = bitpack.bytes_of(code_of(-(-d // block), count).bits), count * block
        blocks = decode(payload[..., :head], -(-d // block), count)
        sent = payload[..., head:]
        # without rows there are no bytes that could be too few
        rows = math.prod(payload.shape[:-1])
        if rows and not 0 <= full - sent.shape[-1] // dtype.itemsize < block:
            raise ValueError(DAMAGED)
        sent = pad(sent, (0, full * dtype.itemsize - sent.shape[-1]))
        values = bitpack.from_bytes(sent, dtype).unflatten(-1, (count, block))
        return cls(d, dtype, blocks, values, scale=known["scale"])

    @classmethod
    def demand(cls, known: Header, width: int) -> int:
        # blocks are held whole, also one that is longer than the vector
        return 2 * width + 16 * natural(known, "count") * natural(known, "block")


# The cosine transform -----------------------------------------------------------------------------


Chunks = tuple[tuple[int, int, int, int], ...]
"""(a, b, p, q) of every tensor: a matrix a x b, of which a chunk is p x q."""


@compressor("dct_top_k")
class DCTTopK(Compressor):
    """C(x) = T' top-k(T x), T the orthonormal cosine transform of every chunk; k coefficients of each are sent.

    A chunk of a matrix is p x q, p and q being the largest divisors of its sides up to ``chunk``; tensors of
    more axes are folded to (first, rest), a vector has chunks of one row. As T keeps norms, C is contractive
    with alpha = min over the tensors of k/(p q), at most 1. An index takes ceil(log2(p q)) bits. B1 and B2 hold
    with (alpha, 1) as for top-k. Deterministic. Source: Peng, Quesnelle, Kingma 2024, DeMo; bloc97/DeMo.
    """

    k: int | float | str = Count(32, help="coefficients kept of a chunk, or a share of it")
    chunk: int = Integer(64, low=1, high=4096, help="side of a chunk, at most")
    fitted: Chunks = ()
    deterministic = True
    projection = True
    by_tensor = True

    def fit(self, d: int, n: int, layout: Layout | None = None) -> Compressor:
        fits = layout is not None and layout.dim == d
        return replace(self, fitted=chunks_of(layout if fits else Layout.vector(d), self.chunk))  # type: ignore[arg-type]

    def chunks(self, d: int) -> Chunks:
        """Return the chunks of a vector of length d: those it was fitted to, or of a single row."""
        fits = self.fitted and sum(a * b for a, b, _, _ in self.fitted) == d
        return self.fitted if fits else chunks_of(Layout.vector(d), self.chunk)

    def encode(self, x: Tensor, stream: Stream) -> Message:
        chunks, d = self.chunks(x.shape[-1]), x.shape[-1]
        z = transformed(x, chunks)
        parts: list[Message] = []
        for (_, _, p, q), piece in zip(chunks, z.split(_sizes(chunks), -1), strict=True):
            op = BlockTopK(count_within(self.k, p * q), p * q)
            parts.append(op.encode(piece.contiguous(), stream))
        return DCTMessage(d, x.dtype, parts, chunks)

    def alpha(self, d: int) -> float:
        return min(count_within(self.k, p * q) / (p * q) for _, _, p, q in self.chunks(d))


def chunks_of(layout: Layout, most: int) -> Chunks:
    """Return the chunks of the tensors of a layout, with sides up to ``most``; empty tensors have none."""
    sides = [(s[0], math.prod(s[1:])) if len(s) > 1 else (1, math.prod(s)) for _, s in layout]
    return tuple((a, b, _divisor(a, most), _divisor(b, most)) for a, b in sides if a * b)


def _divisor(size: int, most: int) -> int:
    return next(c for c in range(min(size, most), 0, -1) if size % c == 0)


def _sizes(chunks: Chunks) -> list[int]:
    return [a * b for a, b, _, _ in chunks]


@lru_cache(maxsize=256)
def cosine(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the orthonormal cosine matrix (DCT-II): entry (i, j) is c_i cos(pi i (2 j + 1)/(2 size)).

    c_0 = sqrt(1/size), the others sqrt(2/size). Its transpose is its inverse.
    """
    i = torch.arange(size, dtype=torch.float64)[:, None]
    matrix = torch.cos(math.pi / (2 * size) * i * (2 * i.T + 1)) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix.to(device, dtype)


def transformed(x: Tensor, chunks: Chunks) -> Tensor:
    """Return the coefficients of x (*lead, d), (*lead, d): tensor after tensor, chunk after chunk."""
    out = []
    for piece, (a, b, p, q) in zip(x.split(_sizes(chunks), -1), chunks, strict=True):
        tiles = piece.reshape(-1, a // p, p, b // q, q).transpose(2, 3).reshape(-1, p, q)
        out.append(_both_sides(tiles, False).reshape(piece.shape))
    return torch.cat(out, -1)


def restored(z: Tensor, chunks: Chunks) -> Tensor:
    """Return x (*lead, d) of its coefficients z: the inverse of ``transformed``."""
    out = []
    for piece, (a, b, p, q) in zip(z.split(_sizes(chunks), -1), chunks, strict=True):
        tiles = _both_sides(piece.reshape(-1, p, q), True).view(-1, a // p, b // q, p, q)
        out.append(tiles.transpose(2, 3).reshape(piece.shape))
    return torch.cat(out, -1)


def _both_sides(tiles: Tensor, back: bool) -> Tensor:
    """Return A X B' of every chunk X (R, p, q), A and B the cosine matrices of its sides; or A' X B.

    By scipy's transform on the CPU, which rounds a chunk in the same way wherever it lies in memory; a
    product of matrices does not.
    """
    lower = tiles.dtype if tiles.dtype in (torch.float32, torch.float64) else torch.float32
    if tiles.device.type == "cpu":
        import scipy.fft  # takes a while to import, and few use it

        function = scipy.fft.idctn if back else scipy.fft.dctn
        out = torch.from_numpy(function(tiles.to(lower).numpy(), axes=(1, 2), norm="ortho"))
    else:
        A, B = (cosine(size, lower, tiles.device) for size in tiles.shape[1:])
        out = A.T @ tiles.to(lower) @ B if back else A @ tiles.to(lower) @ B.T
    return out.to(tiles.dtype)


@dataclass(eq=False)
class DCTMessage(ConcatMessage):
    """Coefficients of the cosine transform: a part for every tensor, and the chunks that both sides know."""

    chunks: Chunks
    kind = "dct"

    def _write(self, out: Tensor) -> None:
        super()._write(out)
        out.copy_(restored(out, self.chunks))

    def _add(self, target: Tensor) -> Tensor:
        return target.add_(self.decode())

    def _sum(self) -> Tensor:
        return restored(super()._sum(), self.chunks)

    def mean_of_senders(self) -> Tensor:
        return restored(super().mean_of_senders(), self.chunks)

    def known(self) -> Header:
        return {**super().known(), "chunks": [list(chunk) for chunk in self.chunks]}

    @classmethod
    def assemble(cls, head: Header, leaves: Iterator[Message]) -> Message:
        parts = cls._parts(head, leaves)
        shapes = head["chunks"]
        whole = isinstance(shapes, list) and all(
            isinstance(c, list) and len(c) == 4 for c in shapes
        )
        if not whole or not all(type(side) is int and side > 0 for c in shapes for side in c):
            raise ValueError("chunks that are no lists of four sides")
        if any(part.lead != parts[0].lead for part in parts):
            raise ValueError("parts of several shapes")
        chunks: Chunks = tuple((a, b, p, q) for a, b, p, q in shapes)
        message = cls(head["d"], parts[0].dtype, parts, chunks, scale=head["scale"])
        message.check()
        return message

    def check(self) -> None:
        super().check()
        if any(max(p, q) > 4096 or a % p or b % q for a, b, p, q in self.chunks):
            raise ValueError("chunks that do not divide their tensors")
        if [part.d for part in self.parts] != _sizes(self.chunks):
            raise ValueError("parts that are not the tensors")
