"""Rows of a count, so many values and the code of so many indices: written and read in one pass."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raybench.core.compiled import compiled
from raybench.core.parallel import run_shared
from raybench.wire import bitpack
from raybench.wire.indices import (
    COST,
    DAMAGED,
    UNSOUND,
    codes_of,
    decode_or_absent,
    decode_rows,
    encode_row,
    encode_rows,
)


def write_rows(
    out: Tensor,
    starts: Tensor,
    sizes: Tensor,
    counts: Tensor,
    values: Tensor,
    indices: Tensor,
    d: int,
) -> None:
    """Write rows into bytes out (P,) on the CPU: row r from starts[r] on, sizes[r] bytes, or none if 0.

    A row is its count in ceil(log2(d + 1)) bits and whole bytes, its first counts[r] of values (R, k)
    and the code of as many indices (R, k). starts, sizes, counts: int64 (R,). Raises ValueError where
    indices do not ascend in [0, d), or a count exceeds k.
    """
    most = indices.shape[-1]
    if bool((counts > most).any()):
        raise ValueError(f"a row of {int(counts.max())} indices, of which {most} are given")
    given = [bitpack.to_bytes(values), indices.contiguous(), starts, sizes, counts]
    rows = [x.numpy() for x in (*given, *codes_of(counts, d))]
    head, width = bitpack.bytes_of(bitpack.width_of(d + 1)), values.dtype.itemsize
    into, sound = out.numpy(), []

    def work(lo: int, hi: int) -> None:
        sound.append(_write(*rows, lo, hi, head, width, d, into))

    run_shared(work, len(counts), COST * int(counts.sum()))
    if not all(sound):
        raise ValueError(UNSOUND.format(d))


def write_rows_torch(out: Tensor, counts: Tensor, values: Tensor, indices: Tensor, d: int) -> None:
    """Write the same into rows of bytes out (R, P), zero so far (the reference; any device)."""
    head, width = bitpack.bytes_of(bitpack.width_of(d + 1)), values.dtype.itemsize
    most = int(counts.max()) if len(counts) else 0
    out[:, :head] = bitpack.pack(counts[:, None], bitpack.width_of(d + 1))
    sent = bitpack.to_bytes(_cut(values[:, :most], counts))
    out[:, head : head + sent.shape[-1]] = sent
    encode_rows(out, head + counts * width, indices[:, :most], counts, d)


def read_rows(data: Tensor, counts: Tensor, d: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return indices and values (R, most) of rows (R, P) of such bytes on the CPU, counts (R,).

    Beyond a row's count both are zero. Raises ValueError where bytes are missing or are no ascending
    indices; a row of zero bytes has none.
    """
    kinds, widths, bits = codes_of(counts, d)
    head = bitpack.bytes_of(bitpack.width_of(d + 1))
    ends = head + counts * dtype.itemsize + (bits + 7) // 8
    if len(counts) and int(ends.max()) > data.shape[-1]:
        raise ValueError(DAMAGED)
    shape = len(counts), int(counts.max()) if len(counts) else 0
    indices, values = torch.empty(shape, dtype=torch.int64), torch.empty(shape, dtype=dtype)
    given = [x.numpy() for x in (data.contiguous(), counts, kinds, widths, bits)]
    out, sound = (indices.numpy(), bitpack.to_bytes(values).numpy()), []

    def work(lo: int, hi: int) -> None:
        sound.append(_read(*given, lo, hi, head, dtype.itemsize, d, *out))

    run_shared(work, len(counts), COST * int(counts.sum()))
    if not all(sound):
        raise ValueError(DAMAGED)
    return indices, values


def read_rows_torch(
    data: Tensor, counts: Tensor, d: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the same in plain torch (the reference; any device)."""
    head, width = bitpack.bytes_of(bitpack.width_of(d + 1)), dtype.itemsize
    indices = decode_rows(data, head + counts * width, counts, d)
    values = bitpack.from_bytes(data[:, head : head + indices.shape[-1] * width], dtype)
    return indices, _cut(values, counts)


def _cut(values: Tensor, counts: Tensor) -> Tensor:
    """Return values (R, k) with zeros beyond the first counts[r] of row r."""
    beyond = torch.arange(values.shape[-1], device=values.device) >= counts[:, None]
    return values.masked_fill(beyond, 0)


@compiled
def _read(data, counts, kinds, widths, bits, r0, r1, head, width, d, indices, values):
    for r in range(r0, r1):
        row, k = data[r, head:], counts[r]
        given, to = row[: k * width], values[r, : k * width]
        for i in range(to.shape[0]):
            to[i] = given[i]
        values[r, k * width :] = 0
        code = row[k * width : k * width + (bits[r] + 7) // 8]
        if not decode_or_absent(code, kinds[r], widths[r], bits[r], d, indices[r, :k]):
            return False
        indices[r, k:] = 0
    return True


@compiled
def _write(
    values, indices, starts, sizes, counts, kinds, widths, bits, r0, r1, head, width, d, out
):
    for r in range(r0, r1):
        if sizes[r] == 0:
            continue
        row, k = out[starts[r] : starts[r] + sizes[r]], counts[r]
        left = np.uint64(k)
        for i in range(head):
            row[i] = left & np.uint64(255)
            left >>= np.uint64(8)
        given, to = values[r, : k * width], row[head : head + k * width]
        for i in range(to.shape[0]):
            to[i] = given[i]
        code = row[head + k * width :]
        if not encode_row(indices[r, :k], kinds[r], widths[r], d, code):
            return False
    return True
