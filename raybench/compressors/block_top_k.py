"""Block top-k: the largest entries of every block, or the blocks of largest norm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.base import Compressor, count_of
from raybench.compressors.kernels.energy import inverse_of
from raybench.compressors.kernels.selection import sizes_torch
from raybench.compressors.top_k import largest, top_indices
from raybench.core.compiled import compiled
from raybench.core.errors import InputError
from raybench.core.parallel import run_tiled
from raybench.core.registry import Choice, Count, Integer, compressor
from raybench.core.streams import Stream
from raybench.wire import Message
from raybench.wire.blocks import BlocksMessage, BlockSparseMessage

STRETCH = 32_768  # coordinates whose blocks are worked on together, about


@compressor(
    "block_top_k",
    k=Count(
        help="within: entries kept of a block, or a share of it; blocks: blocks kept, or a share"
    ),
    block=Integer(256, low=1, help="coordinates of a block"),
    form=Choice("within", "blocks", help="the largest entries of each block, or whole blocks"),
)
@dataclass(frozen=True)
class BlockTopK(Compressor):
    """C(x) = the k largest entries of every block of B coordinates, or the k blocks of largest norm.

    within: k <= B entries of each block, all of a shorter last block that has no more; contractive
    with alpha = k/B (min(k, d)/d if d < B). An index takes ceil(log2 B) bits. blocks: of the
    N = ceil(d/B) blocks those of largest l2 norm, alpha = k/N, tight also for a shorter last block;
    an index per block. Ties go to the lowest index; a norm that is NaN counts as largest. B1 and B2
    hold with (alpha, 1). Deterministic. Raises InputError where k or B do not fit.
    """

    k: int | float | str
    block: int = 256
    form: str = "within"
    deterministic = True
    selection = True

    def __post_init__(self) -> None:
        if self.block < 1:
            raise InputError.of("block", f"{self.block} is below 1", "coordinates of a block")
        if self.form not in ("within", "blocks"):
            raise InputError.of("form", f"unknown form {self.form!r}", "allowed: within, blocks")

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d, size = x.shape[-1], self.block
        if self.form == "blocks":
            blocks = top_indices(block_energies(x, size), count_of(self.k, -(-d // size)))
            return BlocksMessage(d, x.dtype, blocks, _take_blocks(x, blocks, size))
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

    def b1(self, d: int) -> tuple[float, float]:
        return self.alpha(d), 1.0

    def b2(self, d: int) -> tuple[float, float]:
        return self.alpha(d), 1.0


def block_energies(x: Tensor, block: int) -> Tensor:
    """Return the squared l2 norm of every block over that of the largest entry: (*lead, ceil(d/block)).

    In float64; entries are divided by the largest first, so that their squares neither overflow nor
    vanish; one that is not finite makes its block's energy infinite or NaN.
    """
    if x.device.type != "cpu":
        return block_energies_torch(x, block)
    rows = x.view(-1, x.shape[-1]).numpy()
    scale = inverse_of(sizes_torch(largest(x, 1)[1]).view(-1).numpy())
    out = torch.empty(*x.shape[:-1], -(-x.shape[-1] // block), dtype=torch.float64)
    into = out.view(len(rows), out.shape[-1]).numpy()

    def add(r0: int, r1: int, lo: int, hi: int) -> None:
        _energies(rows, r0, r1, lo, hi, block, scale, into)

    run_tiled(add, len(rows), x.shape[-1], 1, block * max(1, STRETCH // block))
    return out


def block_energies_torch(x: Tensor, block: int) -> Tensor:
    """Return the same in plain torch (the reference; any device), up to rounding."""
    most = sizes_torch(x).amax(-1, keepdim=True).double()
    most = torch.where(most > 0, most.clamp(min=1e-300), 1.0).where(most.isfinite(), 1e160)
    padded = torch.nn.functional.pad(x.double() / most, (0, -x.shape[-1] % block))
    return padded.unflatten(-1, (-1, block)).square().sum(-1)


@compiled(fastmath={"reassoc"})  # sums of several at a time
def _energies(rows, r0, r1, lo, hi, block, scale, out):
    for r in range(r0, r1):
        for b in range(lo // block, -(-hi // block)):
            row, total = rows[r, b * block : min((b + 1) * block, hi)], 0.0
            for j in range(row.shape[0]):
                part = np.float64(row[j]) * scale[r]
                total += part * part
            out[r, b] = total


def _take_blocks(x: Tensor, blocks: Tensor, block: int) -> Tensor:
    """Return the blocks of x (*lead, d) as (*lead, J, block), a shorter last one filled with zeros."""
    d, count = x.shape[-1], blocks.shape[-1]
    flat, rows = x.view(-1, d), blocks.view(-1, count)
    whole = d // block
    out = x.new_zeros(len(rows), count, block)
    r, j = (rows < whole).nonzero(as_tuple=True)
    if whole:
        out[r, j] = flat[:, : whole * block].unflatten(-1, (whole, block))[r, rows[r, j]]
    if d > whole * block:
        last = (rows[:, -1] == whole)[:, None]
        out[:, -1, : d - whole * block] = torch.where(
            last, flat[:, whole * block :], out[:, -1, : d - whole * block]
        )
    return out.view(*blocks.shape, block)
