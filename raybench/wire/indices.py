"""Supports on the wire: k ascending indices of d as a list, a bitmask, or an Elias-Fano code.

Both ends know (d, k), which alone decides the code and its length: the shorter of list and bitmask,
which is what accountings model, unless Elias-Fano saves at least a byte.

* list: every index in ceil(log2 d) bits.
* bitmask: one bit per coordinate.
* Elias-Fano: the l low bits of every index, then the high parts index >> l in unary (the j-th index
  sets bit j + high): k (l + 1) + floor((d - 1) / 2^l) bits, with the l that makes it shortest. It is
  delta coding with Rice's code of parameter l, in a form whose length does not depend on the indices:
  at most log2(d/k) + 2 bits per index. Source: Elias 1974, Fano 1971; Vigna 2013.

Bits lie one after another, least significant first. A kernel does a row in one pass, on the CPU wherever
the message is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raybench.core.compiled import compiled
from raybench.core.counts import Counts
from raybench.core.parallel import run_shared
from raybench.wire import bitpack

LIST, MASK, ELIAS = range(3)
MOST_TABLED = 1024  # dimension up to which the codes of all counts are kept
MOST_COUNTED_EXACTLY = 4096  # k up to which the entropy is that of the exact binomial coefficient
COST_OF_CODING = 12  # of an index, in additions
DAMAGED = "the packed indices are damaged or cut short"
UNSOUND = "indices must ascend, be distinct, and lie in [0, {})"


class Code(NamedTuple):
    """A code of a k-subset of d: its kind, the low bits that every index sends as is, bits in all."""

    kind: int
    width: int
    bits: int


@lru_cache(maxsize=2**16)
def code_of(d: int, k: int) -> Code:
    """Return the code in which k indices below d are sent.

    Raises ValueError unless 0 <= k <= d.
    """
    if not 0 <= k <= d:
        raise ValueError(f"{k} of {d} coordinates")
    if k == 0:
        return Code(LIST, 0, 0)
    wide = bitpack.width_of(d)
    elias = min((k * (low + 1) + ((d - 1) >> low), low) for low in range(wide + 1))
    plain = Code(MASK, 0, d) if d < k * wide else Code(LIST, wide, k * wide)
    saves = bitpack.bytes_of(elias[0]) < bitpack.bytes_of(plain.bits)
    return Code(ELIAS, elias[1], elias[0]) if saves else plain


@lru_cache(maxsize=2**16)
def index_cost(d: int, k: int) -> Counts:
    """Return the bits of a k-subset of d: as packed, explicit, bitmask, the shorter of them, and entropy.

    auto: the code of (d, k), see above; explicit = k ceil(log2 d); bitmask = d (0 for k = 0);
    entropy = ceil(log2 C(d, k)), a lower bound (exact for min(k, d - k) <= 4096, beyond that up to a
    bit).
    """
    explicit, bitmask = k * bitpack.width_of(d), d if k else 0
    if min(k, d - k) <= MOST_COUNTED_EXACTLY:
        entropy = bitpack.width_of(math.comb(d, k))
    else:
        nats = math.lgamma(d + 1) - math.lgamma(k + 1) - math.lgamma(d - k + 1)
        entropy = math.ceil(nats / math.log(2))
    return Counts(
        index_explicit=explicit,
        index_auto=code_of(d, k).bits,
        index_list_or_bitmask=min(explicit, bitmask),
        index_bitmask=bitmask,
        index_entropy=entropy,
    )


def per_count(
    counts: Tensor, of_count: Callable[[int], Sequence[float]], dtype: torch.dtype = torch.int64
) -> Tensor:
    """Return what ``of_count`` says of every count: shape (numbers, *counts.shape)."""
    distinct, where = counts.unique(return_inverse=True)
    table = torch.tensor([of_count(k) for k in distinct.tolist()] or [of_count(0)], dtype=dtype)
    return table.to(counts.device).T[:, where]


@lru_cache(maxsize=256)
def _table(of: Callable[[int, int], Sequence[float]], d: int, dtype: torch.dtype) -> np.ndarray:
    return torch.tensor([of(d, k) for k in range(d + 1)], dtype=dtype).T.contiguous().numpy()


def of_counts(
    of: Callable[[int, int], Sequence[float]], d: int, counts: Tensor, dtype: torch.dtype
) -> Tensor:
    """Return ``of(d, k)`` for every count k: (numbers, *counts.shape), from a table where d is small.

    Raises ValueError as ``of`` does.
    """
    if d <= MOST_TABLED and counts.device.type == "cpu" and counts.numel():
        least, most = counts.aminmax()
        if int(least) >= 0 and int(most) <= d:
            return torch.from_numpy(_table(of, d, dtype).take(counts.numpy(), 1))
    return per_count(counts, lambda k: of(d, k), dtype).contiguous()


def codes_of(counts: Tensor, d: int) -> Tensor:
    """Return the ``code_of`` every count: kinds, widths and bits, int64 (3, *counts.shape)."""
    return of_counts(code_of, d, counts, torch.int64)


# One support length --------------------------------------------------------------------------------


def encode(indices: Tensor, d: int) -> Tensor:
    """Return indices (*lead, k), int64, ascending and distinct, as bytes (*lead, P) in the code of (d, k).

    Raises ValueError where indices are not ascending, not distinct or not in [0, d).
    """
    *lead, k = indices.shape
    size, rows = bitpack.bytes_of(code_of(d, k).bits), math.prod(lead)
    out = torch.zeros(*lead, size, dtype=torch.uint8, device=indices.device)
    counts = torch.full((rows,), k, device=indices.device)
    flat = indices.reshape(rows, k)
    encode_rows(out.view(rows, size), torch.zeros_like(counts), flat, counts, d)
    return out


def decode(data: Tensor, d: int, k: int) -> Tensor:
    """Return the indices, int64 (*lead, k), in bytes (*lead, P): the inverse of ``encode``.

    Rows of zero bytes, which absent rows are, give 0..k-1. Raises ValueError where bytes are missing
    or are no ascending indices.
    """
    *lead, width = data.shape
    rows = math.prod(lead)
    counts = torch.full((rows,), k, device=data.device)
    indices = decode_rows(data.reshape(rows, width), torch.zeros_like(counts), counts, d)
    return indices.new_empty(*lead, k) if not rows else indices.view(*lead, k)


# Rows of different length --------------------------------------------------------------------------


def encode_rows(out: Tensor, starts: Tensor, indices: Tensor, counts: Tensor, d: int) -> None:
    """Write the first counts[r] of indices[r] into out[r] from byte starts[r] on, in their row's code.

    out: uint8 (R, P), zero where it is written to; indices: int64 (R, k); starts, counts: int64 (R,).
    Raises ValueError as ``encode`` does, or where a count exceeds k.
    """
    if bool((counts > indices.shape[-1]).any()):
        raise ValueError(
            f"a row of {int(counts.max())} indices, of which {indices.shape[-1]} are given"
        )
    here, how = out.cpu(), codes_of(counts, d)
    _run(_encode, int(counts.sum()), indices.contiguous(), starts, counts, *how, d, here)
    if here.device != out.device:
        out.copy_(here)


def decode_rows(data: Tensor, starts: Tensor, counts: Tensor, d: int) -> Tensor:
    """Return the indices that ``encode_rows`` wrote, int64 (R, max count), zeros beyond a row's count.

    Raises ValueError as ``decode`` does.
    """
    kinds, widths, bits = codes_of(counts, d)
    if bool((starts + (bits + 7) // 8 > data.shape[-1]).any()):
        raise ValueError(DAMAGED)
    out = torch.zeros(len(counts), int(counts.max()) if len(counts) else 0, dtype=torch.int64)
    _run(_decode, int(counts.sum()), data.contiguous(), starts, counts, kinds, widths, bits, d, out)
    return out.to(data.device)


# Kernels -------------------------------------------------------------------------------------------


def _run(
    kernel: Callable[..., bool], items: int, first: Tensor, *more: Tensor | np.ndarray | int
) -> None:
    """Run a kernel over the rows of arrays, shared among the cores; it says whether they are sound."""
    given = first, *more
    arrays = [x.cpu().numpy() if isinstance(x, Tensor) else x for x in given]
    sound = []

    def work(lo: int, hi: int) -> None:
        part = [x[lo:hi] if isinstance(x, np.ndarray) else x for x in arrays]
        sound.append(kernel(*part))

    run_shared(work, len(first), COST_OF_CODING * items)
    if not all(sound):
        raise ValueError(UNSOUND.format(given[-2]) if kernel is _encode else DAMAGED)


@compiled
def _encode(indices, starts, counts, kinds, widths, bits, d, out):
    for r in range(indices.shape[0]):
        to = out[r, starts[r] : starts[r] + (bits[r] + 7) // 8]
        if not _encode_row(indices[r, : counts[r]], kinds[r], widths[r], d, to):
            return False
    return True


@compiled
def _decode(data, starts, counts, kinds, widths, bits, d, out):
    for r in range(out.shape[0]):
        sent, places = data[r, starts[r] : starts[r] + (bits[r] + 7) // 8], out[r, : counts[r]]
        if not _decode_or_absent(sent, kinds[r], widths[r], bits[r], d, places):
            return False
    return True


@compiled
def _decode_or_absent(sent, kind, width, bits, d, found):
    """Read a row's indices, or 0, 1, .. of an absent row's zero bytes; return whether it is either."""
    if _decode_row(sent, kind, width, bits, d, found):
        return True
    for j in range(sent.shape[0]):
        if sent[j] != 0:
            return False
    for j in range(found.shape[0]):
        found[j] = j
    return True


@compiled
def _ascending(indices, d):
    k = indices.shape[0]
    if k == 0:
        return True
    before, after = indices[: k - 1], indices[1:]
    wrong = (indices[0] < 0) | (indices[k - 1] >= d)
    for j in range(after.shape[0]):  # to the end, so that many are compared at a time
        wrong |= after[j] <= before[j]
    return not wrong


@compiled
def _encode_row(indices, kind, width, d, out):
    """Write the code of a row's indices into ``out``, which is zero; return whether they ascend."""
    if not _ascending(indices, d):
        return False
    k, held, filled, at = indices.shape[0], np.uint64(0), 0, 0
    if width > 0:
        mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
        for j in range(k):
            held |= (np.uint64(indices[j]) & mask) << np.uint64(filled)
            filled += width
            while filled >= 8:
                out[at] = np.uint8(held & np.uint64(255))
                held >>= np.uint64(8)
                filled -= 8
                at += 1
        if filled > 0:
            out[at] = np.uint8(held)
    if kind != LIST:
        step = 1 if kind == ELIAS else 0
        for j in range(k):
            p = k * width + (indices[j] >> width) + step * j
            out[p >> 3] |= np.uint8(1 << (p & 7))
    return True


@compiled
def _decode_row(data, kind, width, bits, d, out):
    k = out.shape[0]
    if kind == LIST:
        out[:] = 0
    else:
        step, start, count = (1 if kind == ELIAS else 0), k * width, 0
        for p in range(start, bits):
            if count == k:
                break
            out[count] = p - start - step * count
            count += (data[p >> 3] >> (p & 7)) & 1
        if count < k:
            return False
    if width > 0:
        mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
        held, filled, at = np.uint64(0), 0, 0
        for j in range(k):
            while filled < width:
                held |= np.uint64(data[at]) << np.uint64(filled)
                filled += 8
                at += 1
            out[j] = (out[j] << width) | np.int64(held & mask)
            held >>= np.uint64(width)
            filled -= width
    return _ascending(out, d)
