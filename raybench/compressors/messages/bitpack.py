"""Fixed-width integers <-> bytes, least significant bit first: a CPU kernel and its torch reference."""

from __future__ import annotations

import numba
import numpy as np
import torch
from torch import Tensor


def width_of(symbols: int) -> int:
    """Return ceil(log2 symbols), the bits of one symbol of a fixed-length code (0 for one symbol)."""
    return max(int(symbols) - 1, 0).bit_length()


def bytes_of(bits: int) -> int:
    """Return the bytes that hold so many bits."""
    return -(-bits // 8)


@numba.njit(cache=True, nogil=True)
def _pack(codes, width, out):  # codes (R, m) int64, out (R, P) uint8
    for r in range(codes.shape[0]):
        held, filled, at = np.uint64(0), 0, 0
        for j in range(codes.shape[1]):
            held |= np.uint64(codes[r, j]) << np.uint64(filled)
            filled += width
            while filled >= 8:
                out[r, at] = held & np.uint64(255)
                held >>= np.uint64(8)
                filled -= 8
                at += 1
        if filled > 0:
            out[r, at] = held & np.uint64(255)


@numba.njit(cache=True, nogil=True)
def _unpack(data, width, out):
    mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    for r in range(out.shape[0]):
        held, filled, at = np.uint64(0), 0, 0
        for j in range(out.shape[1]):
            while filled < width:
                held |= np.uint64(data[r, at]) << np.uint64(filled)
                filled += 8
                at += 1
            out[r, j] = held & mask
            held >>= np.uint64(width)
            filled -= width


def pack_torch(codes: Tensor, width: int) -> Tensor:
    """Return the bytes of the codes (the reference; any device). Shapes as ``pack``."""
    *lead, m = codes.shape
    size = bytes_of(m * width)
    bits = (codes[..., None] >> torch.arange(width, device=codes.device)) & 1
    flat = torch.zeros(*lead, size * 8, dtype=torch.uint8, device=codes.device)
    flat[..., : m * width] = bits.reshape(*lead, m * width).to(torch.uint8)
    weights = 2 ** torch.arange(8, device=codes.device)
    return (flat.view(*lead, size, 8) * weights).sum(-1).to(torch.uint8)


def unpack_torch(data: Tensor, width: int, count: int) -> Tensor:
    """Return the codes in the bytes (the reference; any device). Shapes as ``unpack``."""
    *lead, _ = data.shape
    bits = (data[..., None].long() >> torch.arange(8, device=data.device)) & 1
    flat = bits.reshape(*lead, -1)[..., : count * width].reshape(*lead, count, width)
    return (flat << torch.arange(width, device=data.device)).sum(-1)


def pack(codes: Tensor, width: int) -> Tensor:
    """Return codes (..., m) in [0, 2^width), width <= 56, as bytes (..., ceil(m width / 8))."""
    *lead, m = codes.shape
    if codes.device.type != "cpu":
        return pack_torch(codes, width)
    out = torch.zeros(*lead, bytes_of(m * width), dtype=torch.uint8)
    if out.numel():
        _pack(codes.reshape(-1, m).long().numpy(), width, out.view(-1, out.shape[-1]).numpy())
    return out


def unpack(data: Tensor, width: int, count: int) -> Tensor:
    """Return ``count`` codes (..., count), int64, from bytes (..., P): the inverse of ``pack``.

    Raises ValueError where there are fewer bytes than the codes take.
    """
    if data.numel() and data.shape[-1] < bytes_of(count * width):
        raise ValueError("the packed codes are cut short")
    if data.device.type != "cpu":
        return unpack_torch(data, width, count)
    *lead, size = data.shape
    out = torch.zeros(*lead, count, dtype=torch.int64)
    if out.numel() and data.numel() and width:
        _unpack(data.reshape(-1, size).numpy(), width, out.view(-1, count).numpy())
    return out


def to_bytes(values: Tensor) -> Tensor:
    """Return the bytes (..., m * itemsize) of values (..., m) as they lie in memory."""
    return _plain(values).view(torch.uint8)


def from_bytes(data: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the values (..., m) that ``to_bytes`` was given."""
    if data.shape[-1] == 0:
        return data.new_zeros(data.shape, dtype=dtype)
    return _plain(data, copy=True).view(dtype)


def _plain(x: Tensor, copy: bool = False) -> Tensor:
    """Return x with the strides of its shape; ``contiguous`` leaves odd ones on axes of size 1."""
    if copy or not x.is_contiguous() or (x.ndim and x.stride(-1) != 1):
        return x.clone(memory_format=torch.contiguous_format)
    return x
