"""The wire's kernels for GPUs: symbols <-> bytes in the blocks of ``wire.bitpack``, and sums of sparse rows.

Of packing they do whole blocks, bit-sliced or trits: what is left over of a row, and symbols wider than 16 bits,
are left to the caller.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from raybench.core.gpu import launch

SLICED, TRITS = 512, 320  # symbols of a block
MOST_SLICED = 16  # bits of a symbol up to which symbols are bit-sliced
BLOCKS = 4  # of a program


@triton.jit
def _places(blocks, BLOCKS: tl.constexpr):
    """Return row, block, and numbers j < 8 and i < 64: symbol 64 j + i of a block is at byte i."""
    at = tl.program_id(0)
    groups = (blocks + BLOCKS - 1) // BLOCKS
    r = (at // groups).to(tl.int64)
    b = (at % groups).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    return r, b[:, None, None], tl.arange(0, 8)[None, :, None], tl.arange(0, 64)[None, None, :]


@triton.jit
def _weight(j):
    """Return 3^j for j < 5."""
    low = tl.where(j == 0, 1, tl.where(j == 1, 3, 9))
    return tl.where(j < 3, low, tl.where(j == 3, 27, 81))


@triton.jit
def pack_kernel(codes, out, m, size, start, blocks, WIDTH: tl.constexpr, BLOCKS: tl.constexpr):
    r, b, j, i = _places(blocks, BLOCKS)
    code = tl.load(codes + r * m + b * 512 + j * 64 + i, mask=b < blocks, other=0).to(tl.int32)
    to = out + r * size + start + b * 64 * WIDTH + i
    for p in tl.static_range(WIDTH):
        byte = tl.sum(((code >> p) & 1) << j, 1, keep_dims=True)
        tl.store(to + 64 * p, byte.to(tl.uint8), mask=b < blocks)


@triton.jit
def unpack_kernel(data, out, m, size, start, blocks, WIDTH: tl.constexpr, BLOCKS: tl.constexpr):
    r, b, j, i = _places(blocks, BLOCKS)
    at = data + r * size + start + b * 64 * WIDTH + i
    code = tl.zeros((BLOCKS, 8, 64), tl.int32)
    for p in tl.static_range(WIDTH):
        byte = tl.load(at + 64 * p, mask=b < blocks, other=0).to(tl.int32)
        code |= ((byte >> j) & 1) << p
    to = out + r * m + b * 512 + j * 64 + i
    tl.store(to, code.to(out.dtype.element_ty), mask=b < blocks)


@triton.jit
def pack_trits_kernel(codes, out, m, size, start, blocks, BLOCKS: tl.constexpr):
    r, b, j, i = _places(blocks, BLOCKS)
    mask = (b < blocks) & (j < 5)
    code = tl.load(codes + r * m + b * 320 + j * 64 + i, mask=mask, other=0).to(tl.int32)
    byte = tl.sum(code * _weight(j), 1, keep_dims=True)
    tl.store(out + r * size + start + b * 64 + i, byte.to(tl.uint8), mask=b < blocks)


@triton.jit
def unpack_trits_kernel(data, out, m, size, start, blocks, BLOCKS: tl.constexpr):
    r, b, j, i = _places(blocks, BLOCKS)
    at = data + r * size + start + b * 64 + i
    byte = tl.load(at, mask=b < blocks, other=0).to(tl.int32)
    code = (byte // _weight(j)) % 3
    to = out + r * m + b * 320 + j * 64 + i
    tl.store(to, code.to(out.dtype.element_ty), mask=(b < blocks) & (j < 5))


def pack_blocks(codes: Tensor, width: int, out: Tensor, at: int) -> int:
    """Write the whole blocks of codes (*lead, m) into bytes out (*lead, P), contiguous, from column ``at``.

    width: bits of a code, negative for trits. Returns how many codes of a row that are: none of more than
    16 bits.
    """
    kernel = pack_trits_kernel if width < 0 else pack_kernel
    return _run(kernel, codes, out, width, codes.shape[-1], out.shape[-1], at)


def unpack_blocks(data: Tensor, width: int, out: Tensor, at: int) -> int:
    """Read the same blocks of data (*lead, P) into codes out (*lead, m), contiguous; return how many."""
    kernel = unpack_trits_kernel if width < 0 else unpack_kernel
    return _run(kernel, data, out, width, out.shape[-1], data.shape[-1], at)


def _run(kernel: Any, given: Tensor, out: Tensor, width: int, m: int, size: int, at: int) -> int:
    if width == 0 or width > MOST_SLICED:
        return 0
    block = TRITS if width < 0 else SLICED
    blocks, rows = m // block, given.shape[:-1].numel()
    wide = {} if width < 0 else {"WIDTH": width}
    sizes = m, size, at, blocks
    launch(
        kernel, rows * -(-blocks // BLOCKS), given.contiguous(), out, *sizes, **wide, BLOCKS=BLOCKS
    )
    return blocks * block


# Sums of sparse rows: O(what was sent), in a fixed order, without atomic additions ----------------


TILE = 4096  # coordinates of a sum that a program owns
CHUNK = 512  # entries that it adds at a time


@triton.jit
def add_kernel(indices, values, starts, out, d, k, n, tiles, CHUNK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64)
    c, t = at // tiles, at % tiles
    for i in range(n):
        row = c * n + i
        edge = starts + row * (tiles + 1) + t
        first, end = tl.load(edge), tl.load(edge + 1)
        for e in range(first, end, CHUNK):
            place = e + tl.arange(0, CHUNK)
            to = out + c * d + tl.load(indices + row * k + place, mask=place < end, other=0)
            value = tl.load(values + row * k + place, mask=place < end, other=0.0)
            held = tl.load(to, mask=place < end, other=0.0)
            tl.store(to, held + value, mask=place < end)
        tl.debug_barrier()  # the next client's entries are other threads' to add


def add_rows(indices: Tensor, values: Tensor, out: Tensor) -> Tensor:
    """Add values (*lead, n, k) at indices (*lead, n, k) to out (*lead, d), client by client; return out.

    A row's indices ascend; those that are d are none.
    """
    (n, k), d = indices.shape[-2:], out.shape[-1]
    tiles = -(-d // TILE)
    edges = (torch.arange(tiles + 1, device=out.device) * TILE).clamp_(max=d)
    where = indices.contiguous()
    starts = torch.searchsorted(where, edges.expand(*where.shape[:-1], tiles + 1).contiguous())
    arguments = where, values.contiguous(), starts, out, d, k, n, tiles
    launch(add_kernel, out.numel() // d * tiles, *arguments, CHUNK=CHUNK)
    return out
