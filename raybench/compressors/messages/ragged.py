"""Rows of a count, so many values and the code of so many indices: written and read in one pass."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from raybench.compiled import compiled
from raybench.compressors.messages import bitpack
from raybench.compressors.messages.indices import COST, UNSOUND, codes_of, encode_row
from raybench.cores import run_shared


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
