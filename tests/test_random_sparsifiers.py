"""Sparsifiers: random ones by their exact laws, thresholds, selection by sign and by block."""

import math
from dataclasses import replace

import pytest
import torch
from hard_vectors import DTYPES, INF, NAN, by_sorting, hard_vectors, same
from hypothesis import given, settings
from hypothesis import strategies as st

import raybench
from raybench.compressors import importance
from raybench.compressors.block_top_k import BlockTopK, block_energies
from raybench.compressors.by_size import ragged
from raybench.compressors.importance import (
    drawn,
    one_by_size,
    threshold,
)
from raybench.compressors.pos_neg_top_k import PosNegTopK, by_sign
from raybench.compressors.selection import (
    DGC,
    AdaptiveThreshold,
    HardThreshold,
    Masking,
    energy_kept,
    energy_kept_torch,
)
from raybench.compressors.sparsification import (
    PermK,
    RandK,
    RandomSparsification,
    SharedMask,
)
from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.core.streams import MOST_SORTED, stream
from raybench.testing.vectors import cells_and_clients, families, gaussian
from raybench.wire import unpack

pytestmark = pytest.mark.thorough


BLOCK = importance.BLOCK
DRAWS = 4000


def within(sample, want, sigmas=5.0, slack=1e-12):
    """Assert that the mean over axis 0 is ``want``, within standard errors."""
    error = sample.std(0) / math.sqrt(len(sample))
    off = (sample.mean(0) - want).abs()
    assert bool((off <= sigmas * error + slack).all()), (sample.mean(0), want, error)


def draws(op, x, count, seed=0):
    """Return C(x) of ``count`` cells with one client, (count, d)."""
    return op.compress(x.expand(count, 1, -1), cells_and_clients(count, 1, seed)).decode()[:, 0]


# The permutation behind Rand-K and PermK -----------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 14), st.integers(-1, 1), st.integers(0, 2**60))
def test_feistel_is_a_bijection_around_powers_of_two(bits, off, seed):
    d = max(2**bits + off, 1)
    whole = stream(seed)._feistel(d, d)
    assert torch.equal(whole.sort().values, torch.arange(d))


@pytest.mark.parametrize("d", [1, 2, 3, 100, MOST_SORTED + 9, 70_000])
def test_images_are_blocks_of_one_permutation(d):
    q, m = stream([3, 4]), -(-d // 3)
    first = torch.tensor([0, m, 2 * m]).clamp(max=d).expand(2, 3)
    blocks = q.images(d, first, m)
    assert blocks.shape == (2, 3, m)
    order = q.images(d, torch.zeros(2, dtype=torch.int64), d)
    assert torch.equal(order.sort(-1).values, torch.arange(d).expand(2, d))
    at = (first[..., None] + torch.arange(m)).clamp(max=d - 1)
    assert torch.equal(blocks, order.gather(-1, at.view(2, -1)).view(2, 3, m))
    if d > MOST_SORTED:
        assert torch.equal(order[:, :50], q.subset(d, 50))


# Rand-K and the Bernoulli sparsifier ---------------------------------------------------------------


def test_unscaled_rand_k_is_contractive_and_scaled_is_not():
    d, k = 10, 4
    scaled, plain = RandK(k), RandK(k, scaled=False)
    assert (scaled.omega(d), scaled.alpha(d)) == (1.5, None)
    assert (plain.omega(d), plain.alpha(d)) == (None, 0.4)
    assert plain.b1(d) == plain.b2(d) == (0.4, 1.0)
    assert scaled.b1(d) == (1.0, 2.5)
    assert (RandK(d, scaled=False).omega(d), RandK(d).alpha(d)) == (0.0, 1.0)
    x = gaussian(3, 4, d)
    q = cells_and_clients(3, 4)
    value = plain.compress(x, q).decode()
    assert bool(((value == x) | (value == 0)).all())
    assert torch.equal(scaled.compress(x, q).decode(), value * (d / k))
    assert raybench.compressor("rand_k:k=4,scaled=false") == plain


def test_bernoulli_sends_the_values_and_nothing_else():
    m = RandomSparsification(0.2).compress(gaussian(3, 50), stream(0).spread((3,)))
    nonzero = (m.decode() != 0).sum(-1)
    assert torch.equal(m.nbytes, nonzero * 8)
    assert torch.equal(m.bits, nonzero * 64)


# By importance -------------------------------------------------------------------------------------


def test_the_extreme_numbers_draw_what_is_there():
    x = torch.tensor([0.0, 0.0, 3.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    u = torch.tensor([[0.0], [0.75 - 2**-40], [0.75 + 2**-40], [1 - 2**-53]], dtype=torch.float64)
    for scale in (1.0, 5e307, 1e-310, 5e-324, 0.1):
        places, _ = importance.one_by_size((x * scale).expand(4, -1), u)
        assert places[:, 0].tolist() == [2, 2, 4, 4], scale
    assert int(importance.one_by_size(x * 0, u[3])[0]) == 0


def test_errors_of_one_coordinate_are_exact():
    adaptive, l1 = (raybench.compressor(n) for n in ("adaptive_sparsification", "l1_sampling"))
    for x in families(12).values():
        error = (draws(adaptive, x, 5000) - x).square().sum(-1)
        want = x.square().sum() - x.abs().pow(3).sum() / x.abs().sum()
        within(error, want)
        assert want <= (1 - adaptive.alpha(12)) * x.square().sum() + 1e-15
        torch.testing.assert_close(draws(l1, x, 50).abs().sum(-1), x.abs().sum().expand(50))
    assert adaptive.b1(12) == adaptive.b2(12) == (1 / 12, 1.0)
    assert adaptive.b3(12) == (12.0, 1.0)
    assert l1.omega(12) == 11.0


def test_wangni_sends_few_coordinates_as_they_are():
    x = torch.zeros(30)
    x[[3, 7, 20]] = torch.tensor([1e-30, 5.0, -1e20])
    m = raybench.compressor("wangni:k=3").compress(x, stream(0))
    assert torch.equal(m.decode(), x)
    assert int(m.counts) == 3
    whole = raybench.compressor("wangni:k=3").compress(x / 0, stream(0)).decode()
    assert torch.equal(whole.isinf(), x != 0)
    assert bool(whole[x == 0].isnan().all())
    assert not bool(raybench.compressor("wangni:k=3").compress(x * 0).decode().any())


# PermK ---------------------------------------------------------------------------------------------

SIZES = [(12, 4), (13, 4), (7, 7), (5, 1), (3, 12), (1, 4), (MOST_SORTED + 6, 4)]


FITTED = [
    *(PermK().fit(d, n) for d, n in ((12, 4), (5, 3), (3, 6), (2, 2))),
    *(
        SharedMask(s).fit(d, n)
        for d, n, s in ((6, 4, 2), (5, 3, 2), (3, 6, 4), (4, 4, 4), (4, 3, 1))
    ),
]


@pytest.mark.parametrize(
    ("op", "d"), zip(FITTED, (12, 5, 3, 2, 6, 5, 3, 4, 4), strict=True), ids=str
)
def test_errors_of_what_clients_share_are_those_of_the_constants(op, d):
    n, cells = op.clients, DRAWS
    a = gaussian(n, d, seed=2)
    value = op.compress(a.expand(cells, n, d), cells_and_clients(cells, n)).decode()
    for i in range(n):
        within(value[:, i], a[i])
        within((value[:, i] - a[i]).square().sum(-1), op.omega(d) * a[i].square().sum())
    A, B = op.ab(d, n)
    want = A * a.square().sum(-1).mean() - B * a.mean(0).square().sum()
    within((value.mean(1) - a.mean(0)).square().sum(-1), want)


MASKED = [
    (12, 4, 2),
    (13, 4, 3),
    (7, 7, 7),
    (5, 1, 2),
    (3, 12, 2),
    (1, 4, 2),
    (2, 9, 3),
    (300, 5, 1),
]


@pytest.mark.parametrize(("d", "n", "s"), [*((d, n, None) for d, n in SIZES), *MASKED])
def test_shared_supports_survive_rows_choices_and_bytes(d, n, s):
    op = PermK(n) if s is None else SharedMask(s, n)
    x, q = gaussian(3, n, d, dtype=torch.float32), cells_and_clients(3, n)
    m = op.compress(x, q)
    value = m.decode()
    assert torch.equal(unpack(m.pack()).decode(), value)
    assert torch.equal(unpack(m.row(1, n - 1).scaled(0.5).pack()).decode(), value[1, n - 1] * 0.5)
    # what a receiver makes of what two ranks sent: payloads of their clients, the stream of all
    cut = n // 2
    ranks = [torch.arange(cut), torch.arange(cut, n)]
    sent = [op.compress(x[:, ids], q.at(ids)) for ids in ranks if len(ids)]
    wide = max(p.payload().shape[-1] for p in sent)
    data = [torch.nn.functional.pad(p.payload(), (0, wide - p.payload().shape[-1])) for p in sent]
    everyone = sent[0].stream.at(torch.arange(n))
    whole = type(m).read(sent[0].known(), torch.cat(data, 1), everyone)
    assert torch.equal(whole.decode(), value)


@pytest.mark.parametrize(("d", "n", "s"), [*((d, n, None) for d, n in SIZES), *MASKED])
def test_every_coordinate_has_its_senders_and_clients_share_alike(d, n, s):
    op, least = (PermK(), max(1, n // d)) if s is None else (SharedMask(s), min(s, n))
    op = op.fit(d, n)
    m = op.compress(torch.ones(20, n, d, dtype=torch.float64), cells_and_clients(20, n))
    sent = m.decode() != 0
    assert bool((sent.sum(1) == least).all())
    each = sent.sum(-1)
    assert int(each.max()) == -(-d * least // n)
    assert int(each.min()) == d * least // n
    assert torch.equal(torch.as_tensor(m.nbytes).expand(20, n), each * 8)
    # where all clients send the same vector, their mean is it
    x = gaussian(20, 1, d).expand(20, n, d)
    mean = op.compress(x, cells_and_clients(20, n)).sum_clients() / n
    torch.testing.assert_close(mean, x[:, 0], rtol=1e-14, atol=0)


def test_perm_k_unfitted_and_beyond_its_clients():
    x = gaussian(6)
    assert torch.equal(PermK().compress(x).decode(), x)
    two = PermK().compress(x.expand(2, 6)).decode()
    torch.testing.assert_close(two.mean(0), x)
    assert int((two != 0).sum()) == 6
    four = PermK(2).compress(torch.ones(1, 4, 8), cells_and_clients(1, 4)).decode()[0]
    assert torch.equal(four[:2], four[2:])  # ids beyond n share the slots
    assert not torch.equal(four[0], four[1])


LENGTHS = [1, 2, 7, 112, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5]


def rows(d: int, dtype: torch.dtype) -> torch.Tensor:
    """Return 3 x 4 rows: heavy tails, zeros, one entry, ties, tiny, huge."""
    x = (stream(d).each(range(12)).normal(d) * stream(d + 1).each(range(12)).uniform(d) ** 4).to(
        dtype
    )
    x[1], x[2] = 0, 0
    x[2, -1] = -3
    x[3], x[4, ::2] = -1, 0
    x[5] *= 1e-30
    x[6] *= 1e30
    return x.view(3, 4, d)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", LENGTHS)
def test_the_place_is_where_the_sum_of_sizes_passes_u(d, dtype):
    x = rows(d, dtype)
    for u in (stream(3).each(range(12)).uniform(1).view(3, 4, 1), torch.zeros(3, 4, 1).double()):
        for draw in (u, torch.full((3, 4, 1), 1 - 2.0**-53, dtype=torch.float64)):
            place, size = one_by_size(x, draw)
            weight = x.abs().double()
            torch.testing.assert_close(size, weight.sum(-1, keepdim=True))
            before = torch.where(torch.arange(d) < place, weight, 0.0).sum(-1, keepdim=True)
            own, slack = weight.gather(-1, place), 1e-9 * size
            assert bool((before <= draw * size + slack).all())
            assert bool((before + own >= draw * size - slack).all())
            assert bool((own[size > 0] > 0).all())
            assert bool((place[size == 0] == 0).all())


def test_what_is_not_finite_is_drawn_if_anything_is():
    x = torch.tensor([1.0, math.inf, 3.0, math.nan])
    place, _ = one_by_size(x.expand(2, 4), torch.tensor([[0.1], [0.9]], dtype=torch.float64))
    assert place.flatten().tolist() == [1, 3]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", LENGTHS)
def test_levels_give_k_on_average(d, dtype):
    x = rows(d, dtype)
    x[0, 0, 0], x[2, 3, -1] = torch.inf, torch.nan
    for k in sorted({1, max(1, d // 10), max(1, d // 2), d}):
        level = threshold(x, k)
        assert level.isnan().flatten().nonzero().flatten().tolist() == [0, 11]
        weight = x.abs().double()
        p = torch.where(weight > 0, (weight / level).clamp(max=1), 0.0).sum(-1)
        want = (weight > 0).sum(-1).clamp(max=k).double()
        fine = ~level.isnan()[..., 0]
        torch.testing.assert_close(p[fine], want[fine])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", LENGTHS)
def test_entries_are_kept_where_the_streams_number_says_so(d, dtype):
    x = rows(d, dtype)
    x[0, 0, 0], x[2, 3, -1] = torch.inf, torch.nan
    source, k = stream(9).each(range(3)).each(range(4)), max(1, d // 3)
    level = threshold(x, k)
    values, keep = drawn(x, level, source)
    size, u = x.abs().double(), source.uniform(d)
    p = torch.where(size == 0, 0.0, (size / level).clamp(max=1))
    fine = (u - p).abs() > 1e-12  # but for rounding
    assert torch.equal(keep[fine], ((u < p) | p.isnan())[fine])
    assert bool(keep[2, 3].all())  # what is not finite is sent as it is
    assert not bool(keep[0, 1].any())
    torch.testing.assert_close(values[0, 3:][keep[0, 3:]], (x / p)[0, 3:][keep[0, 3:]].to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [1, 112, 3000])
def test_lazy_rows_pass_or_are_zero(d, dtype):
    x = rows(d, dtype)
    x[0, 0, 0], x[2, 3, -1] = torch.inf, torch.nan
    for p in (0.01, 0.5, 1.0):
        q = stream(4).spread((3, 4))
        m = raybench.compressor("lazy", p=p).compress(x, q)
        sent = q.uniform(1)[..., 0] < p
        assert torch.equal(m.flags, sent)
        assert torch.equal(m.bits, 1 + d * 8 * dtype.itemsize * sent)  # the flag is sent always
        assert torch.equal(torch.as_tensor(m.nbytes), 1 + d * dtype.itemsize * sent)
        assert same(m.decode(), torch.where(sent[..., None], x / p, 0.0).to(dtype))


@pytest.mark.parametrize("op", [PermK(), SharedMask(2)], ids=str)
def test_clients_are_those_of_the_problem(op):
    assert (op.omega(10), op.alpha(10), op.correlated) == (None, None, True)
    assert (op.fit(10, 1).alpha(10), op.fit(10, 1).correlated) == (1.0, False)
    assert op.ab(10, 1) == (0.0, 0.0)
    assert replace(op, clients=7).fit(10, 5).clients == 7
    with pytest.raises(InputError, match="the number of clients is not known"):
        op.ab(4)


def test_a_permutation_needs_clients_that_fit():
    assert PermK().ab(9, 8) == SharedMask(1).ab(9, 8) == (1.0, 1.0)
    with pytest.raises(InputError, match="multiple of 4"):
        PermK().fit(4, 6)


# Thresholds, selection by sign and by block -------------------------------------------------------

# Thresholds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [24, 70_001])
def test_hard_threshold_is_a_comparison(d, dtype):
    for name, x in hard_vectors(d, dtype).items():
        for cut in (0, 0.7, 1e-320, 1, 0.1, 1e300):
            m = HardThreshold(cut).compress(x)
            keep = (x.abs().double() > cut) | x.isnan()
            assert int(m.counts) == int(keep.sum()), (name, cut)
            assert same(m.decode(), torch.where(keep, x, 0)), (name, cut)
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
    for of_sign in (lambda n: n, lambda n: -(-n // 3), lambda n: min(n, 2), lambda n: 0):
        keep = torch.zeros_like(x, dtype=torch.bool)
        for r in range(len(x)):
            for side in sides:
                keep[r, by_sorting(side[r], of_sign(int((side[r] != 0).sum())))] = True
        result = zip(by_sign(x, of_sign), ragged(x, keep), strict=True)
        assert all(same(a, b) for a, b in result)


def test_means_of_each_sign():
    x = torch.tensor([5.0, -1, 3, -8, 0, 1, -2, 2], dtype=torch.float64)
    m = PosNegTopK(2, "means").compress(x)
    assert m.decode().tolist() == [4, 0, 4, -5, 0, 0, -5, 0]
    back = unpack(m.pack())
    assert torch.equal(back.decode(), m.decode())
    assert torch.equal(back.means, m.means)
    assert m.bits == 2 * 64 + 4 + 4 + 8  # two means, the count, signs, a bitmask
    none = PosNegTopK(2, "means").compress(torch.zeros(8))
    assert none.bits == 2 * 32 + 4


@pytest.mark.parametrize("values", ["exact", "means"])
@pytest.mark.parametrize("k", [1, 3, "10%", "40%", "100%"])
@pytest.mark.parametrize("d", [1, 7, 24])
def test_alpha_of_selection_by_sign_at_its_worst_vectors(d, k, values):
    if isinstance(k, int) and k > d:
        return
    op, least = PosNegTopK(k, values), 1.0
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
        m = DGC(k, count, "random" if random else "magnitude").compress(x, q)
        sampled = ((torch.arange(count) + q.uniform(count)) * (d / count)).long().clamp(max=d - 1)
        hashes = ((q.fold("truncate").bits(d) >> 1) & (2**63 - 1)).tolist()
        for r, row in enumerate(x):
            want = dgc_by_hand(row, sampled[r], hashes[r], k, random)
            assert m.indices[r, : m.counts[r]].tolist() == want
            assert same(m.values[r, : len(want)], row[want])
            assert not m.indices[r, len(want) :].any()
            assert not m.values[r, len(want) :].any()


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
