"""Thresholds, DGC, selection by sign and by block: against plain formulas, at their worst vectors."""

from __future__ import annotations

import math

import pytest
import torch
from hard_vectors import DTYPES, INF, NAN, by_sorting, hard_vectors, same

from raybench.compressors.block_top_k import BlockTopK, block_energies
from raybench.compressors.by_size import ragged
from raybench.compressors.selection import (
    AdaptiveThreshold,
    DGCSelection,
    HardThreshold,
    Masking,
    PosNegTopK,
    _passing,
    _passing_torch,
    energy_kept,
    energy_kept_torch,
)
from raybench.core.layout import Layout
from raybench.core.streams import stream
from raybench.testing.vectors import gaussian

pytestmark = pytest.mark.thorough


# Thresholds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [24, 70_001])
def test_hard_threshold_is_a_comparison(d, dtype):
    for name, x in hard_vectors(d, dtype).items():
        for threshold in (0, 0.7, 1e-320, 1, 0.1, 1e300):
            m = HardThreshold(threshold).compress(x)
            keep = (x.abs().double() > threshold) | x.isnan()
            assert int(m.counts) == int(keep.sum()), (name, threshold)
            assert same(m.decode(), torch.where(keep, x, 0)), (name, threshold)
    x = gaussian(50, d, dtype=dtype)
    lost = (HardThreshold(0.7).compress(x).decode() - x).square().sum(-1)
    assert (lost <= d * 0.7**2).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [24, 70_001])
@pytest.mark.parametrize("c", [1.0, 0.5, 0.1, 1 / 3])
def test_threshold_from_the_largest(d, dtype, c):
    op = AdaptiveThreshold("max", c=c)
    for name, x in hard_vectors(d, dtype).items():
        value = op.compress(x).decode()
        size = torch.where(x.isnan(), INF, x.abs()).double()
        keep = (size >= c * size.max()) & (size > 0)
        assert same(value, torch.where(keep, x, 0)), name
    worst = torch.full((d,), c * 0.999999, dtype=torch.float64)
    worst[3] = 1.0
    lost = (op.compress(worst).decode() - worst).square().sum() / worst.square().sum()
    assert lost <= 1 - op.alpha(d)
    assert c == 1 or lost == pytest.approx(1 - op.alpha(d), rel=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_percentile_keeps_the_share_and_its_ties(dtype):
    for d in (24, 40_000):
        for name, x in hard_vectors(d, dtype).items():
            value = AdaptiveThreshold("percentile", k="10%").compress(x).decode()
            size = torch.where(x.isnan(), INF, x.abs())
            cut = size.sort(descending=True).values[math.ceil(d / 10) - 1]
            assert same(value, torch.where((size >= cut) & (size > 0), x, 0)), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [24, 3000, 140_001])
def test_energy_rule_keeps_the_fewest(d, dtype):
    for name, x in hard_vectors(d, dtype).items():
        for share in (0.05, 0.5, 0.99):
            counts, indices, values = energy_kept(x, share)
            want = energy_kept_torch(x, share)
            assert abs(int(counts) - int(want[0])) <= 1 + 1e-6 * d, (name, share)
            assert torch.equal(indices, by_sorting(x, int(counts))), (name, share)
            assert same(values, x[indices])
            y, size = values.double(), x.double()
            if x.isfinite().all() and x.any():
                y, size = y / size.abs().max(), size / size.abs().max()
                total, held = float(size.square().sum()), float(y.square().sum())
                assert held >= share * total * (1 - 1e-9), (name, share)
                assert held - float(y.square().min()) < share * total * (1 + 1e-9), (name, share)


def test_energy_rule_on_whole_numbers_is_exact():
    x = torch.tensor([[3.0, -1, 1, 1, 2, 0, -3], [1, 1, 1, 1, 1, 1, 1]])
    for share, want in ((0.36, [1, 3]), (0.37, [2, 3]), (0.72, [2, 6]), (0.73, [3, 6])):
        for select in (energy_kept, energy_kept_torch):
            counts, indices, _ = select(x, share)
            assert counts.tolist() == want
            assert indices[1, : want[1]].tolist() == list(range(want[1]))
    assert energy_kept(x, 1.0)[0].tolist() == [6, 7]


# Selection by sign -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [24, 70_001])
def test_signs_of_any_counts(d, dtype):
    """One sign only, all of them, none; a NaN is positive whatever its sign bit."""
    rows = hard_vectors(d, dtype)
    rows["negative NaN"] = torch.copysign(rows["some NaN"].abs(), -rows["gaussian"].abs())
    x = torch.stack(list(rows.values()))
    sides = torch.where(x < 0, 0.0, x), torch.where(x < 0, x, 0.0)
    for k, of_sign in (
        ("100%", lambda n: n),
        ("25%", lambda n: -(-n // 4)),
        (2, lambda n: min(n, 2)),
        ("5", lambda n: min(n, 5)),
    ):
        keep = torch.zeros_like(x, dtype=torch.bool)
        for r in range(len(x)):
            for side in sides:
                keep[r, by_sorting(side[r], of_sign(int((side[r] != 0).sum())))] = True
        m = PosNegTopK(k).compress(x)
        result = zip((m.counts, m.indices, m.values), ragged(x, keep), strict=True)
        assert all(same(a, b) for a, b in result)


@pytest.mark.parametrize("k", [1, 3, "10%", "40%", "100%"])
@pytest.mark.parametrize("d", [1, 7, 24])
def test_alpha_of_selection_by_sign_at_its_worst_vectors(d, k):
    if isinstance(k, int) and k > d:
        return
    op, least = PosNegTopK(k), 1.0
    for n in range(1, d + 1):
        for c in (0.0, 1e-9, 0.2, 0.5, 1.0):
            x = torch.zeros(d, dtype=torch.float64)
            x[:n], x[0] = c, 1.0
            lost = (op.compress(x).decode() - x).square().sum() / x.square().sum()
            assert lost <= 1 - op.alpha(d) + 1e-12
            least = min(least, 1 - float(lost))
    exact_count = isinstance(k, int) or k == "100%"
    assert not exact_count or least == pytest.approx(op.alpha(d), rel=1e-6)


# DGC -------------------------------------------------------------------------------------------


def dgc_by_hand(row, places, hashes, k, random):
    """The indices that DGC keeps of a row, given those sampled and a hash of each."""
    d, zero = len(row), row.new_zeros(())
    size = torch.where(row.isnan(), INF, row.abs())
    cut = size[places].sort(descending=True).values[-(-len(places) * k // d) - 1]
    for _ in range(10):
        if int(((size >= cut) & (size > 0)).sum()) >= 0.8 * k:
            break
        cut = (cut * 0.8).to(zero)
    above = ((size >= cut) & (size > 0)).nonzero()[:, 0].tolist()
    if len(above) > k:
        by_hash = random and len(above) <= 1.3 * k
        weight = (lambda j: hashes[j]) if by_hash else (lambda j: float(size[j]))
        above = sorted(sorted(above, key=lambda j: (-weight(j), j))[:k])
    return above


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("d", [24, 3000])
def test_dgc_by_hand(d, random, dtype):
    x = torch.stack(list(hard_vectors(d, dtype).values()))
    for k, count in ((1, 1), (max(1, d // 100), max(1, d // 50)), (d // 4, d // 10), (d, d)):
        q = stream(5).spread((len(x),))
        m = DGCSelection(k, count, "random" if random else "magnitude").compress(x, q)
        sampled = ((torch.arange(count) + q.uniform(count)) * (d / count)).long().clamp(max=d - 1)
        hashes = ((q.fold("truncate").bits(d) >> 1) & (2**63 - 1)).tolist()
        for r, row in enumerate(x):
            want = dgc_by_hand(row, sampled[r], hashes[r], k, random)
            assert m.indices[r, : m.counts[r]].tolist() == want
            assert same(m.values[r, : len(want)], row[want])
            assert not m.indices[r, len(want) :].any()
            assert not m.values[r, len(want) :].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("few", [1.0, 1.3])
def test_what_reaches_a_falling_cut_is_the_same_on_other_devices(few, dtype):
    x = torch.stack(list(hard_vectors(3000, dtype).values()))
    for k, rank in ((1, 1), (30, 3), (900, 70), (3000, 100)):
        cuts = [torch.where(x.isnan(), INF, x.abs())[:, :100].topk(rank).values[..., -1:]]
        for _ in range(10):
            cuts.append(cuts[-1] * 0.8)
        ours = _passing(x, torch.cat(cuts, -1), k, int(few * k))
        theirs = _passing_torch(x, cuts, k, int(few * k))
        assert all(same(one, other) for one, other in zip(ours, theirs, strict=True))


# Block top-k -----------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 4, 7, 100, 256])
@pytest.mark.parametrize("d", [1, 24, 100, 1000])
@pytest.mark.parametrize("lead", [(), (3, 2)])
def test_entries_within_blocks(d, block, lead):
    x = gaussian(*lead, d, dtype=torch.float64)
    for k in {1, (block + 3) // 4, block}:
        op = BlockTopK(k, block)
        m = op.compress(x)
        want = torch.zeros_like(x)
        for lo in range(0, d, block):
            part = x[..., lo : lo + block].contiguous()
            own = by_sorting(part, min(k, part.shape[-1])) + lo
            want.scatter_(-1, own, x.gather(-1, own))
        assert torch.equal(m.decode(), want)
        assert (m.indices.diff(dim=-1) > 0).all()
        lost = (want - x).square().sum(-1) / x.square().sum(-1)
        assert (lost <= 1 - op.alpha(d) + 1e-12).all()
        flat = torch.ones(d, dtype=torch.float64)
        if d % block == 0:
            assert op.compress(flat).decode().sum() / d == pytest.approx(op.alpha(d))


@pytest.mark.parametrize("block", [1, 4, 7, 100, 256])
@pytest.mark.parametrize("d", [1, 24, 100, 1000])
@pytest.mark.parametrize("lead", [(), (3, 2)])
def test_whole_blocks(d, block, lead):
    x, count = gaussian(*lead, d, dtype=torch.float32), -(-d // block)
    norms = torch.stack([p.double().norm(dim=-1) for p in x.split(block, -1)], -1)
    result, want = block_energies(x, block), norms.square()
    shares = [v / v.sum(-1, keepdim=True) for v in (result, want)]  # found is in units of the row
    torch.testing.assert_close(*shares)
    for k in {1, (count + 1) // 2, count}:
        op = BlockTopK(k, block, "blocks")
        m = op.compress(x)
        keep = torch.zeros(*lead, count, dtype=torch.bool)
        keep.scatter_(-1, by_sorting(norms, k), True)
        want = torch.where(keep.repeat_interleave(block, -1)[..., :d], x, 0)
        assert torch.equal(m.decode(), want)
        sent = torch.where(keep, 1, 0).repeat_interleave(block, -1)[..., :d].sum(-1)
        assert torch.equal(torch.as_tensor(m.cost.values).long(), sent)
    # equal norms of all blocks, the shorter last one too: alpha is attained
    x = torch.cat([torch.full((n,), n**-0.5) for n in _sizes(d, block)]).double()
    lost = (BlockTopK(1, block, "blocks").compress(x).decode() - x).square().sum()
    assert lost / x.square().sum() == pytest.approx(1 - 1 / count)


def _sizes(d, block):
    return [min(block, d - lo) for lo in range(0, d, block)]


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1.0, 1e300])
def test_block_norms_neither_overflow_nor_vanish(scale):
    x = torch.tensor([1.0, 1.0, 1.5, 0.0, 1.2, 0.0], dtype=torch.float64) * scale
    m = BlockTopK(1, 2, "blocks").compress(x)
    assert m.blocks.tolist() == [1]  # 2.25 against 2 and 1.44
    x[4] = NAN
    assert BlockTopK(1, 2, "blocks").compress(x).blocks.tolist() == [2]


def test_bits_of_block_messages():
    x = gaussian(1000, dtype=torch.float32)
    m = BlockTopK(2, 100).compress(x)
    assert m.bits == 20 * 32 + 20 * 7  # places within a block of 100
    m = BlockTopK(2, 100, "blocks").compress(x)
    assert m.bits == 200 * 32 + 2 * 4  # numbers of ten blocks
    m = BlockTopK(3, 300, "blocks").compress(torch.cat((0 * x[:1], x[1:])))
    short = bool((m.blocks == 3).any())
    assert m.bits == (900 - 200 * short) * 32 + 4


# Masks -----------------------------------------------------------------------------------------

LAYOUT = Layout((("conv", (3, 4)), ("none", (0,)), ("bias", (2,)), ("dense", (5, 6))))


@pytest.mark.parametrize("threshold", ["tensor", "first"])
@pytest.mark.parametrize("k", [1, 3, "25%", "100%"])
def test_masking_keeps_what_reaches_the_kth_largest_of_its_tensor_or_of_the_first(threshold, k):
    d = LAYOUT.dim
    x = gaussian(2, 3, d)
    x[..., 13] = x[..., 12]  # a tie in the bias, which is all of it
    op = Masking(k, threshold).fit(d, 3, LAYOUT)
    pieces, kept, tau = x.abs().split([12, 2, 30], -1), [], None
    for size, piece in zip((12, 2, 30), pieces, strict=True):
        count = min(k, size) if isinstance(k, int) else math.ceil(float(k[:-1]) / 100 * size)
        if tau is None or threshold == "tensor":
            tau = piece.sort(-1, descending=True).values[..., count - 1 : count]
        kept.append(piece >= tau)
    m = op.compress(x)
    assert torch.equal(m.decode(), x * torch.cat(kept, -1))
    lost = (m.decode() - x).square().sum(-1)
    assert (lost <= (1 - op.alpha(d)) * x.square().sum(-1) * (1 + 1e-12)).all()


def test_without_a_layout_masking_is_top_k_with_all_ties():
    x = torch.tensor([3.0, -3, 1, 0, 2, 3])
    assert torch.equal(Masking(2).compress(x).decode(), torch.tensor([3.0, -3, 0, 0, 0, 3]))
