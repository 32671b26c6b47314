"""The fewest entries of a row that hold a share of its energy, found by histograms of energy."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raybench.compressors.kernels.selection import (
    BUCKETS,
    FORMS,
    bits_of,
    keep_cut,
    ragged,
    rank_of,
    refine,
    sizes_of,
    sizes_torch,
)
from raybench.compressors.top_k import largest
from raybench.core.compiled import compiled
from raybench.core.parallel import run_shared, run_tiled
from raybench.wire.marks import collect, mark

LONG = 131_072  # from this length on a first histogram is made by all cores
PIECE = 262_144  # coordinates of a histogram
COARSE = 4096  # buckets of it: the highest 12 bits of a magnitude


def energy_kept(x: Tensor, share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return counts, indices and values (``ragged``) of the fewest entries with that share of ||x||^2.

    The largest first, ties by lowest index. In float64, relative to the largest entry. A row of zeros
    keeps none; one with entries that are not finite keeps those, all of them.
    """
    if x.device.type != "cpu":
        return energy_kept_torch(x, share)
    bits, form, rows = bits_of(x), FORMS[x.dtype], x.view(-1, x.shape[-1]).numpy()
    cuts, ties = np.empty(len(bits), bits.dtype), np.empty(len(bits), np.int64)
    if bits.shape[1] < LONG:
        run_shared(
            lambda r0, r1: _cuts(bits, rows, r0, r1, share, form.mask, form.inf, cuts, ties),
            len(bits),
            20 * bits.size,
        )
    else:
        _cuts_of_long(x, share, cuts, ties)
    marks = mark(bits, np.maximum(cuts - 1, 0))
    where, values = collect(bits, marks, x.dtype)
    counts, raw = marks.counts, values.numpy().view(bits.dtype)
    run_shared(
        lambda r0, r1: _drop(where.numpy(), raw, counts, cuts, ties, form.mask, form.inf, r0, r1),
        len(bits),
        5 * int(counts.sum()),
    )
    most, lead = int(counts.max()) if len(counts) else 0, x.shape[:-1]
    held = (part[:, :most].reshape(*lead, most) for part in (where, values))
    return torch.from_numpy(counts).view(lead), *held


def energy_kept_torch(x: Tensor, share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same by a sort (the reference; any device), up to the rounding of sums."""
    size = sizes_torch(x)
    most = size.amax(-1, keepdim=True).double()
    part = size.double() / torch.where((most > 0) & most.isfinite(), most, 1.0)
    energy = torch.where(size.isfinite(), part, 0.0).square()
    needed = share * energy.sum(-1, keepdim=True)
    rank = rank_of(size)
    held = torch.zeros_like(energy).scatter_(-1, rank, energy).cumsum(-1)
    kept = (held < needed).sum(-1, keepdim=True) + 1
    keep = torch.where(most.isfinite(), (rank < kept) & (size > 0), size.isinf())
    return ragged(x, keep)


def inverse_of(most: np.ndarray) -> np.ndarray:
    """Return factors for rows with these largest magnitudes that take squares into range, most to 1."""
    most = most.astype(np.float64)
    divisor = np.where(most > 0, np.maximum(most, 1e-300), 1.0)
    return 1 / np.where(np.isfinite(most), divisor, 1e160)


def _cuts_of_long(x: Tensor, share: float, cuts: np.ndarray, ties: np.ndarray) -> None:
    bits, rows, form = bits_of(x), x.view(-1, x.shape[-1]).numpy(), FORMS[x.dtype]
    size, d = bits.shape
    most = sizes_torch(largest(x, 1)[1]).view(-1).numpy()
    scale, shift = inverse_of(most), form.mask.dtype.itemsize * 8 - 13
    pieces = np.zeros((size, -(-d // PIECE), COARSE))

    def work(r0: int, r1: int, lo: int, hi: int) -> None:
        _coarse(bits, rows, r0, r1, lo, hi, shift, form.mask, scale, pieces)

    run_tiled(work, size, d, 3, PIECE)
    from_top = pieces.sum(1)[:, ::-1].cumsum(1)[:, ::-1]
    for r in range(size):
        if most[r] == 0 or not np.isfinite(most[r]):
            cuts[r], ties[r] = form.inf, d
            continue
        needed = share * from_top[r, 0]
        bucket = int((from_top[r] >= needed).sum()) - 1
        above = from_top[r, bucket + 1] if bucket + 1 < COARSE else 0.0
        low = np.array([max((bucket << shift) - 1, 0)], bits.dtype)
        high = np.array([((bucket + 1) << shift) - 1], bits.dtype)
        _, found = collect(bits[r : r + 1], mark(bits[r : r + 1], low, high), x.dtype)
        sizes = sizes_of(found[0].numpy().view(bits.dtype), form.mask, form.inf)
        cuts[r], ties[r] = refine(
            sizes, needed - above, np.empty(BUCKETS), sizes.view(rows.dtype), scale[r]
        )


@compiled
def _coarse(bits, rows, r0, r1, lo, hi, shift, mask, scale, out):
    for r in range(r0, r1):
        for t in range(lo // PIECE, -(-hi // PIECE)):
            row, own = bits[r, t * PIECE : min((t + 1) * PIECE, hi)], out[r, t]
            values = rows[r, t * PIECE : min((t + 1) * PIECE, hi)]
            for j in range(row.shape[0]):
                part = np.float64(values[j]) * scale[r]
                own[(row[j] & mask) >> shift] += part * part


@compiled
def _cuts(bits, rows, r0, r1, share, mask, inf, cuts, ties):
    for r in range(r0, r1):
        sizes = sizes_of(bits[r], mask, inf)
        values = sizes.view(rows.dtype)
        most, total = np.float64(values.max()), 0.0
        if sizes.max() == inf or most == 0:
            cuts[r], ties[r] = inf, sizes.shape[0]
            continue
        scale = 1 / max(most, 1e-300)
        for j in range(sizes.shape[0]):
            part = np.float64(values[j]) * scale
            total += part * part
        cuts[r], ties[r] = refine(sizes, share * total, np.empty(BUCKETS), values, scale)


@compiled
def _drop(where, raw, counts, cuts, ties, mask, inf, r0, r1):
    for r in range(r0, r1):
        own, values = where[r, : counts[r]], raw[r, : counts[r]]
        sizes = sizes_of(values, mask, inf)
        counts[r] = keep_cut(own, values, sizes, cuts[r], ties[r], own, values)
        own[counts[r] :] = 0
        values[counts[r] :] = 0
