"""Fixed-width symbols <-> bytes, by kernels in main memory; what lies on a GPU is brought there and back.

Symbols of w <= 16 bits lie in blocks of 512, bit-sliced: w planes of 64 bytes, bit j of byte i of plane
p being bit p of symbol 64 j + i, so that packing is a transposition that vectorises. What is left over
(fewer than 512), and wider symbols, lie one after another, least significant bit first. Either way m
symbols take ceil(m w / 8) bytes. Trits (0, 1, 2) go five to a byte, in blocks of 320: byte i is the sum
of 3^j times symbol 64 j + i; what is left over lies five consecutive trits to a byte.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raybench.core.compiled import compiled
from raybench.core.parallel import run_tiled

BLOCK = 512  # symbols sliced together
TRIT = -1  # the width of codes 0, 1, 2
TRITS = 320  # of them in a block of 64 bytes
MOST_SLICED = 16  # bits of a symbol up to which symbols are bit-sliced
COST_SLICED, COST_PLAIN = 1.0, 8.0  # of a symbol, in additions: bit-sliced, and one after another
U8 = np.uint8


def width_of(symbols: int) -> int:
    """Return ceil(log2 symbols), the bits of one symbol of a fixed-length code (0 for one symbol)."""
    return max(int(symbols) - 1, 0).bit_length()


def bytes_of(bits: int) -> int:
    """Return the bytes that hold so many bits."""
    return -(-bits // 8)


# Kernels ------------------------------------------------------------------------------------------
# Arrays are (R, m) codes and (R, P) bytes; rows r0..r1 and symbols lo..hi are worked on, lo a multiple
# of the block, the bytes beginning at column ``at``.


@compiled(inline="always")
def _swap(a, b, by, mask):
    t = U8((U8(a >> U8(by)) ^ b) & U8(mask))
    return U8(a ^ U8(t << U8(by))), U8(b ^ t)


@compiled
def _transpose(c, o):  # 64 matrices of 8 x 8 bits at once; its own inverse
    for i in range(64):
        a0, a1, a2, a3 = c[i], c[64 + i], c[128 + i], c[192 + i]
        a4, a5, a6, a7 = c[256 + i], c[320 + i], c[384 + i], c[448 + i]
        a0, a4 = _swap(a0, a4, 4, 0x0F)
        a1, a5 = _swap(a1, a5, 4, 0x0F)
        a2, a6 = _swap(a2, a6, 4, 0x0F)
        a3, a7 = _swap(a3, a7, 4, 0x0F)
        a0, a2 = _swap(a0, a2, 2, 0x33)
        a1, a3 = _swap(a1, a3, 2, 0x33)
        a4, a6 = _swap(a4, a6, 2, 0x33)
        a5, a7 = _swap(a5, a7, 2, 0x33)
        a0, a1 = _swap(a0, a1, 1, 0x55)
        a2, a3 = _swap(a2, a3, 1, 0x55)
        a4, a5 = _swap(a4, a5, 1, 0x55)
        a6, a7 = _swap(a6, a7, 1, 0x55)
        o[i], o[64 + i], o[128 + i], o[192 + i] = a0, a1, a2, a3
        o[256 + i], o[320 + i], o[384 + i], o[448 + i] = a4, a5, a6, a7


@compiled
def _plain(codes, width, out):  # one row, least significant bit first
    held, filled, at = np.uint64(0), 0, 0
    mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)  # a narrow code may be negative
    for j in range(codes.shape[0]):
        held |= (np.uint64(codes[j]) & mask) << np.uint64(filled)
        filled += width
        while filled >= 8:
            out[at] = U8(held)
            held >>= np.uint64(8)
            filled -= 8
            at += 1
    if filled > 0:
        out[at] = U8(held)


@compiled
def _unplain(data, width, out):
    mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    held, filled, at = np.uint64(0), 0, 0
    for j in range(out.shape[0]):
        while filled < width:
            held |= np.uint64(data[at]) << np.uint64(filled)
            filled += 8
            at += 1
        out[j] = held & mask
        held >>= np.uint64(width)
        filled -= width


@compiled
def _pack(codes, r0, r1, lo, hi, width, out, at):
    byte, planes = np.empty(BLOCK, U8), np.empty(BLOCK, U8)
    end = hi - (hi - lo) % BLOCK if width <= MOST_SLICED else lo
    for r in range(r0, r1):
        for first in range(lo, end, BLOCK):
            c = codes[r, first : first + BLOCK]
            for p in range(0, width, 8):
                for i in range(BLOCK):
                    byte[i] = U8(c[i] >> p)
                _transpose(byte, planes)
                start = at + first // BLOCK * 64 * width + 64 * p
                o = out[r, start : start + 64 * min(width - p, 8)]
                for i in range(o.shape[0]):
                    o[i] = planes[i]
        if end < hi:
            _plain(codes[r, end:hi], width, out[r, at + end * width // 8 :])


@compiled
def _unpack(data, r0, r1, lo, hi, width, out, at):
    byte, planes = np.empty(BLOCK, U8), np.empty(BLOCK, U8)
    end = hi - (hi - lo) % BLOCK if width <= MOST_SLICED else lo
    for r in range(r0, r1):
        for first in range(lo, end, BLOCK):
            o = out[r, first : first + BLOCK]
            for p in range(0, width, 8):
                start = at + first // BLOCK * 64 * width + 64 * p
                given = data[r, start : start + 64 * min(width - p, 8)]
                planes[given.shape[0] :] = 0
                for i in range(given.shape[0]):
                    planes[i] = given[i]
                _transpose(planes, byte)
                if p == 0:
                    for i in range(BLOCK):
                        o[i] = byte[i]
                else:
                    for i in range(BLOCK):
                        o[i] |= byte[i] << p
        if end < hi:
            _unplain(data[r, at + end * width // 8 :], width, out[r, end:hi])


@compiled
def _pack_trits(codes, r0, r1, lo, hi, width, out, at):
    end = hi - (hi - lo) % TRITS
    for r in range(r0, r1):
        for first in range(lo, end, TRITS):
            c, start = codes[r, first : first + TRITS], at + first // 5
            o = out[r, start : start + 64]
            for i in range(64):
                high = U8(U8(c[256 + i]) * U8(3) + U8(c[192 + i]))
                high = U8(U8(high * U8(3)) + U8(c[128 + i]))
                high = U8(U8(high * U8(3)) + U8(c[64 + i]))
                o[i] = U8(U8(high * U8(3)) + U8(c[i]))
        c, o = codes[r, end:hi], out[r, at + end // 5 :]
        fives = c.shape[0] // 5
        for g in range(fives):
            j = 5 * g
            o[g] = U8(c[j] + 3 * c[j + 1] + 9 * c[j + 2] + 27 * c[j + 3] + 81 * c[j + 4])
        value = np.int64(0)
        for j in range(c.shape[0] - 1, 5 * fives - 1, -1):
            value = np.int64(3) * value + np.int64(c[j])
        if 5 * fives < c.shape[0]:
            o[fives] = U8(value)


@compiled
def _unpack_trits(data, r0, r1, lo, hi, width, out, at):
    end = hi - (hi - lo) % TRITS
    for r in range(r0, r1):
        for first in range(lo, end, TRITS):
            start = at + first // 5
            given, o = data[r, start : start + 64], out[r, first : first + TRITS]
            for i in range(64):
                v = np.uint16(given[i])
                for j in range(5):
                    third = np.uint16(np.uint16(v * np.uint16(171)) >> np.uint16(9))  # v // 3
                    o[64 * j + i] = U8(v - np.uint16(third * np.uint16(3)))
                    v = third
        given, o = data[r, at + end // 5 :], out[r, end:hi]
        fives = o.shape[0] // 5
        for g in range(fives):
            left = np.uint32(given[g])
            for j in range(5):
                part = np.uint32(np.uint32(left * np.uint32(171)) >> np.uint32(9))
                o[5 * g + j] = np.uint32(left - np.uint32(part * np.uint32(3)))
                left = part
        for j in range(5 * fives, o.shape[0]):
            o[j] = given[fives] // 3 ** (j - 5 * fives) % 3


# What others call ---------------------------------------------------------------------------------
#
# A width is a number of bits up to 56, or TRIT: codes 0, 1, 2, five to a byte.


def packed_size(count: int, width: int) -> int:
    """Return the bytes of so many codes."""
    return -(-count // 5) if width == TRIT else bytes_of(count * width)


def pack(codes: Tensor, width: int) -> Tensor:
    """Return codes (..., m), integers in [0, 2^width), as bytes (..., ``packed_size(m, width)``)."""
    *lead, m = codes.shape
    out = torch.empty(*lead, packed_size(m, width), dtype=torch.uint8, device=codes.device)
    return pack_into(codes, width, out)


def pack_into(codes: Tensor, width: int, out: Tensor, at: int = 0) -> Tensor:
    """Write what ``pack`` returns into contiguous bytes out (..., P) from column ``at``; return out."""
    kernel = _pack_trits if width == TRIT else _pack
    if codes.device.type == "cpu":
        return _run(kernel, codes, width, out, at)
    *lead, m = codes.shape
    here = torch.empty(*lead, packed_size(m, width), dtype=torch.uint8)
    out[..., at : at + here.shape[-1]] = _run(kernel, codes.cpu(), width, here, 0)
    return out


def unpack(
    data: Tensor, width: int, count: int, dtype: torch.dtype = torch.int64, at: int = 0
) -> Tensor:
    """Return ``count`` codes (..., count) of an integer dtype from bytes (..., P), from column ``at``.

    The inverse of ``pack``; of trits also from bytes that it never makes (243 on). Raises ValueError
    where there are fewer bytes than the codes take.
    """
    if data.shape[:-1].numel() and data.shape[-1] < at + packed_size(count, width):
        raise ValueError("the packed codes are cut short")
    kernel = _unpack_trits if width == TRIT else _unpack
    out = torch.empty(*data.shape[:-1], count, dtype=dtype)
    if data.device.type == "cpu":
        return _run(kernel, out, width, data, at)
    here = data[..., at : at + packed_size(count, width)].cpu()
    return _run(kernel, out, width, here, 0).to(data.device)


def _run(kernel, codes: Tensor, width: int, data: Tensor, at: int) -> Tensor:
    """Run a kernel over codes (..., m) and data (..., P), one of them written; return that one."""
    m, size = codes.shape[-1], data.shape[-1]
    written = data if kernel in (_pack, _pack_trits) else codes
    if width == 0:
        return written if written is data else codes.zero_()
    if not (codes.numel() and data.numel()):
        return written
    rows, held = codes.reshape(-1, m), data.reshape(-1, size)
    read, into = (rows, held) if written is data else (held, rows)
    first, second = read.contiguous().numpy(), into.numpy()  # one layout is compiled
    sliced = width <= MOST_SLICED and (m >= BLOCK or width == TRIT)

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        kernel(first, r0, r1, lo, hi, width, second, at)

    run_tiled(work, len(rows), m, COST_SLICED if sliced else COST_PLAIN)
    return written


# Values of full width -----------------------------------------------------------------------------


def to_bytes(values: Tensor) -> Tensor:
    """Return the bytes (..., m * itemsize) of values (..., m) as they lie in memory."""
    return _straight(values).view(torch.uint8)


def from_bytes(data: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the values (..., m) that ``to_bytes`` was given; as a view of the bytes where that can be."""
    if data.shape[-1] == 0:
        return data.new_zeros(data.shape, dtype=dtype)
    # memory that torch did not allocate is the caller's, who may change it
    ours = data.untyped_storage().resizable() and data.storage_offset() % dtype.itemsize == 0
    return _straight(data, copy=not ours).view(dtype)


def _straight(x: Tensor, copy: bool = False) -> Tensor:
    """Return x with the strides of its shape; ``contiguous`` leaves odd ones on axes of size 1."""
    if copy or not x.is_contiguous():
        return x.clone(memory_format=torch.contiguous_format)
    return x.flatten().view(x.shape)
