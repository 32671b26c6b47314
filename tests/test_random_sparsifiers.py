"""Random sparsifiers: exact laws, supports by the definition, masks that clients share."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import raybench
from raybench.compressors import importance
from raybench.compressors.importance import drawn, one_by_size, threshold
from raybench.compressors.sparsification import PermK, RandK, RandomSparsification, SharedMask
from raybench.core.errors import InputError
from raybench.core.streams import MOST_SORTED, stream
from raybench.testing.claims import draws
from raybench.testing.vectors import cells_and_clients, families, gaussian
from raybench.wire import unpack

DTYPES = [torch.float32, torch.float64]


BLOCK = importance.BLOCK
DRAWS = 4000


def within(sample, want, sigmas=5.0, slack=1e-12):
    """Assert that the mean over axis 0 is ``want``, within standard errors."""
    error = sample.std(0) / math.sqrt(len(sample))
    off = (sample.mean(0) - want).abs()
    assert bool((off <= sigmas * error + slack).all()), (sample.mean(0), want, error)


# The permutation behind Rand-K and PermK -----------------------------------------------------------


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


@pytest.mark.thorough
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


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("op", "d", "n"),
    [
        (PermK(2), 12, 4),
        (PermK(5), 5, 10),
        (SharedMask(2, 3), 6, 6),
        (PermK(3), 12, 4),
        (PermK(10), 20, 4),
        (SharedMask(2, 8), 16, 4),
    ],
    ids=str,
)
def test_of_clients_other_in_number_than_fitted_groups_cancel_and_else_nothing_is_claimed(op, d, n):
    """Clients that share a block are alike, all of them are, or none is."""
    unlike = gaussian(n, d, seed=2)
    pairs, alike = unlike[: n // 2].repeat(2, 1), unlike[:1].expand(n, d)
    for a in (unlike, pairs, alike):
        value = op.compress(a.expand(DRAWS, n, d), cells_and_clients(DRAWS, n)).decode()
        error = (value.mean(1) - a.mean(0)).square().sum(-1)
        far = a.square().sum(-1).mean()
        if n % op.clients:
            assert op.ab(d, n) is None
            bound = op.omega(d) * far
        else:
            A, B = op.ab(d, n)
            bound = A * far - B * a.mean(0).square().sum()
        assert error.mean() <= bound + 5 * error.std() / math.sqrt(DRAWS) + 1e-9


MASKED = [(12, 4, 2), (13, 4, 3), (7, 7, 7), (5, 1, 2)]
MASKED += [(3, 12, 2), (1, 4, 2), (2, 9, 3), (300, 5, 1)]  # fewer coordinates than clients, or many


@pytest.mark.parametrize(("d", "n", "s"), [*((d, n, None) for d, n in SIZES), *MASKED])
def test_every_coordinate_has_its_senders_and_clients_share_alike(d, n, s):
    op, least = (PermK(), max(1, n // d)) if s is None else (SharedMask(s), min(s, n))
    op = op.fit(d, n)
    m = op.compress(torch.ones(20, n, d, dtype=torch.float64), cells_and_clients(20, n))
    sent = m.decode() != 0
    assert torch.equal(unpack(m.pack()).decode(), m.decode())
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
    normal, sizes = (stream(seed).each(range(12)) for seed in (d, d + 1))
    x = (normal.normal(d) * sizes.uniform(d) ** 4).to(dtype)
    x[1], x[2] = 0, 0
    x[2, -1] = -3
    x[3], x[4, ::2] = -1, 0
    x[5] *= 1e-30
    x[6] *= 1e30
    return x.view(3, 4, d)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


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
