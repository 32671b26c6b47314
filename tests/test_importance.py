"""Kernels of sampling by importance and of drawn supports equal their torch references, bit for bit."""

from __future__ import annotations

import pytest
import torch

from raybench.compressors import importance
from raybench.compressors.gate import passed
from raybench.compressors.importance import place_torch, threshold, weighted_torch
from raybench.compressors.sparsification import kept, kept_torch
from raybench.core.parallel import ALIGN
from raybench.core.streams import stream
from raybench.wire import perm
from raybench.wire.perm import bernoulli, listed

DTYPES = [torch.float32, torch.float64]
SIZES = [1, 2, 7, 112, ALIGN - 1, ALIGN, ALIGN + 1, 3 * ALIGN + 5]


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
def test_places_equal_the_reference(d, dtype):
    x = rows(d, dtype)
    tiles = importance.tile_sums(x)
    for u in (stream(3).each(range(12)).uniform(1).view(3, 4, 1), torch.zeros(3, 4, 1)):
        for draw in (u.double(), torch.full((3, 4, 1), 1 - 2.0**-53, dtype=torch.float64)):
            place, size = importance._place(x, tiles, draw)
            expected = place_torch(x, tiles, draw)
            assert torch.equal(place, expected[0])
            assert torch.equal(size, expected[1])
            assert bool((x.gather(-1, place)[size > 0] != 0).all())


def test_sums_that_round_to_less_than_the_tile_give_the_last_that_is_not_zero():
    x = torch.zeros(1, 50, dtype=torch.float64)
    x[0, :40] = 0.1
    tiles = torch.tensor(
        [[4.0 + 1e-9]], dtype=torch.float64
    )  # as if the tile's sum rounded upwards
    draw = torch.full((1, 1), 1 - 2.0**-53, dtype=torch.float64)
    for found in (importance._place(x, tiles, draw), place_torch(x, tiles, draw)):
        assert found[0].item() == 39


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", SIZES)
def test_levels_of_a_tile_equal_those_of_tiles(d, dtype):
    x = rows(d, dtype)
    x[0, 0, 0], x[2, 3, -1] = torch.inf, torch.nan
    for k in sorted({1, max(1, d // 10), max(1, d // 2), d}):
        level = threshold(x, k)
        assert same(level, importance._level_of_tiles(x, k))
        assert level.isnan().flatten().nonzero().flatten().tolist() == [0, 11]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", SIZES)
def test_values_equal_the_reference(d, dtype):
    x = rows(d, dtype)
    x[0, 0, 0], x[2, 3, -1] = torch.inf, torch.nan
    source = stream(9).each(range(3)).each(range(4))
    level = threshold(x, max(1, d // 3))
    where, counts = importance.drawn(x, level, source)
    expected = importance.drawn_torch(x, level, source)
    assert torch.equal(where, expected[0])
    assert torch.equal(counts, expected[1])
    assert counts[2, 3] == d  # what is not finite is sent as it is
    assert counts[0, 1] == 0
    assert same(
        importance.weighted(x, where, counts, level), weighted_torch(x, where, counts, level)
    )
    assert same(kept(x, where, counts), kept_torch(x, where, counts))


@pytest.mark.parametrize("p", [1e-9, 0.3, 1.0])
@pytest.mark.parametrize("d", SIZES)
def test_supports_of_one_tile_and_of_more_equal_the_reference(d, p):
    source = stream(1).each(range(5))
    where, counts = bernoulli(source, d, p)
    expected = listed(source.uniform(d) < p)
    assert torch.equal(where, expected[0])
    assert torch.equal(counts, expected[1])
    again = bernoulli(stream(1).each(range(2)), d, p)  # space used before leaves nothing behind
    assert torch.equal(again[0], where[:2, : again[0].shape[-1]])


@pytest.mark.parametrize("d", [1, 2, 7, 112, 4096, 4097])
def test_blocks_of_a_permutation_equal_the_streams(d):
    shared, count = stream([1, 2, 3]), -(-d // 3)
    first = torch.tensor([0, d // 2, d - 1]).expand(3, 3)
    found = perm._images(shared, d, first, count)
    assert torch.equal(found, shared.images(d, first, count))
    whole = perm._images(shared, d, torch.zeros(3, 1, dtype=torch.int64), d)
    assert torch.equal(whole.sort(-1).values, torch.arange(d).expand(3, 1, d))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [1, 112, 3 * ALIGN + 5])
def test_rows_pass_or_are_zero(d, dtype):
    x = rows(d, dtype)
    x[0, 0, 0], x[2, 3, -1] = torch.inf, torch.nan
    for cut in (0.0, 0.3, 0.7, 1.1):
        sent = stream(4).uniform(12).view(3, 4) < cut
        found = passed(x, sent)
        assert same(found[sent], x[sent])
        assert not bool(found[~sent].any())
    alone = torch.tensor([False])
    assert not bool(passed(x[0, :1], alone).any())
