"""Sampling by importance and drawn supports: kernels against plain formulas on hard rows."""

from __future__ import annotations

import math

import pytest
import torch

import raybench
from raybench.compressors import importance
from raybench.compressors import sparsification as perm_k
from raybench.compressors.importance import (
    drawn,
    drawn_torch,
    one_by_size,
    threshold,
)
from raybench.compressors.sparsification import bernoulli, kept
from raybench.core.streams import stream

DTYPES = [torch.float32, torch.float64]
BLOCK = importance.BLOCK
SIZES = [1, 2, 7, 112, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5]


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


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", SIZES)
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
@pytest.mark.parametrize("d", SIZES)
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
@pytest.mark.parametrize("d", SIZES)
def test_entries_are_kept_where_the_streams_number_says_so(d, dtype):
    x = rows(d, dtype)
    x[0, 0, 0], x[2, 3, -1] = torch.inf, torch.nan
    source, k = stream(9).each(range(3)).each(range(4)), max(1, d // 3)
    level = threshold(x, k)
    found, want = (
        draw(x, level, *more, source) for draw, more in ((drawn, (k,)), (drawn_torch, ()))
    )
    assert all(same(a, b) for a, b in zip(found, want, strict=True))
    assert found[0][2, 3] == d  # what is not finite is sent as it is
    assert found[0][0, 1] == 0


@pytest.mark.parametrize("p", [1e-9, 0.3, 1.0])
@pytest.mark.parametrize("d", SIZES)
def test_bernoulli_supports_are_where_the_streams_number_is_below_p(d, p):
    source = stream(1).each(range(5))
    where, counts = bernoulli(source, d, p)
    keep = source.uniform(d) < p
    assert torch.equal(counts, keep.sum(-1))
    assert where.shape[-1] == int(counts.max())
    for r in range(5):
        own = where[r, : counts[r]]
        assert torch.equal(own, keep[r].nonzero()[:, 0])
        assert not where[r, counts[r] :].any()
    x = stream(2).each(range(5)).normal(d)
    value = torch.zeros_like(x).scatter_add_(-1, where, kept(x, where, counts))
    assert torch.equal(value, torch.where(keep, x, 0.0))


def test_more_than_there_was_space_for_is_drawn_again(monkeypatch):
    source, want = stream(1).each(range(50)), bernoulli(stream(1).each(range(50)), 400, 0.3)
    monkeypatch.setattr(importance.math, "sqrt", lambda v: 0.0)  # no space to spare
    again = bernoulli(source, 400, 0.3)
    assert torch.equal(again[0], want[0])
    assert torch.equal(again[1], want[1])


@pytest.mark.parametrize("d", [1, 2, 7, 112, 4096, 4097])
def test_blocks_of_a_permutation_equal_the_streams(d):
    shared, count = stream([1, 2, 3]), -(-d // 3)
    first = torch.tensor([0, d // 2, d - 1]).expand(3, 3)
    found = perm_k._images(shared, d, first, count)
    assert torch.equal(found, shared.images(d, first, count))
    whole = perm_k._images(shared, d, torch.zeros(3, 1, dtype=torch.int64), d)
    assert torch.equal(whole.sort(-1).values, torch.arange(d).expand(3, 1, d))


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
        assert same(m.decode(), torch.where(sent[..., None], x / p, 0.0).to(dtype))
