"""Rows of different length <-> one run of bytes: a CPU kernel and its torch reference."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raybench.core.compiled import compiled


@compiled
def _join(rows, sizes, out):  # rows (R, P), sizes (R,), out (sum of sizes,)
    at = 0
    for r in range(rows.shape[0]):
        size = sizes[r]
        source, target = rows[r, :size], out[at : at + size]
        for j in range(source.shape[0]):
            target[j] = source[j]
        at += size


@compiled
def _split(data, sizes, out):  # the inverse
    at = 0
    for r in range(out.shape[0]):
        size = sizes[r]
        source, target = data[at : at + size], out[r, :size]
        for j in range(target.shape[0]):
            target[j] = source[j]
        out[r, size:] = 0
        at += size


def join(rows: Tensor, sizes: Tensor) -> Tensor:
    """Return the first sizes (*lead) bytes of every row (*lead, P), uint8, one after the other."""
    if rows.device.type != "cpu":
        return join_torch(rows, sizes)
    out = torch.empty(int(sizes.sum()), dtype=torch.uint8)
    if out.numel() == 0:
        return out
    flat = rows.reshape(-1, rows.shape[-1]).contiguous()
    _join(flat.numpy(), sizes.reshape(-1).contiguous().numpy(), out.numpy())
    return out


def join_torch(rows: Tensor, sizes: Tensor) -> Tensor:
    """Return the same by a mask (the reference; any device)."""
    return rows[torch.arange(rows.shape[-1], device=rows.device) < sizes[..., None]]


def split(data: Tensor, sizes: Tensor, width: int) -> Tensor:
    """Return rows (R, width), uint8, shorter ones padded with zeros, of what ``join`` made; on the CPU.

    Raises ValueError where a size is negative or above width, or data is of another length.
    """
    if len(sizes) and (int(sizes.min()) < 0 or int(sizes.max()) > width):
        raise ValueError("sizes of rows beyond their width")
    if int(sizes.sum()) != len(data):
        raise ValueError("the message is cut short")
    out = torch.empty(len(sizes), width, dtype=torch.uint8)
    if out.numel():
        _split(data.numpy(), np.ascontiguousarray(sizes.numpy()), out.numpy())
    return out
