"""Sums of sparse rows on a GPU: O(what was sent), in a fixed order, without atomic additions."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from raybench.core.gpu import launch

TILE = 4096  # coordinates of the sum that a program owns
CHUNK = 512  # entries that it adds at a time


@triton.jit
def add_kernel(indices, values, starts, out, d, k, n, tiles, CHUNK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64)
    c, t = at // tiles, at % tiles
    for i in range(n):
        row = c * n + i
        first, end = (
            tl.load(starts + row * (tiles + 1) + t),
            tl.load(starts + row * (tiles + 1) + t + 1),
        )
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
    given = where, values.contiguous(), starts, out, d, k, n, tiles
    launch(add_kernel, out.numel() // d * tiles, *given, CHUNK=CHUNK)
    return out
