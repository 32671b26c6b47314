"""Compressors that select: exactness against brute force, their constants, formulas and messages."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hard_vectors import DTYPES, by_sorting, hard_vectors, same

from raybench.compressors.by_size import largest, largest_torch
from raybench.compressors.selection import RTopK, TopK
from raybench.core.streams import stream
from raybench.testing.vectors import families


def counts_for(d):
    wanted = {1, 2, d // 1000, d // 250, d // 100, d // 12, d // 5, d // 3, d - 1, d}
    return sorted(wanted & set(range(1, d + 1)))


# Exact top-k -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "d", [1, 2, 8, 17, 112, 999, 8200, pytest.param(70_001, marks=pytest.mark.thorough)]
)
def test_top_k_is_brute_force(d, dtype):
    """Most of all where sizes are equal, all of them or some of a few."""
    random = np.random.default_rng(d)
    rows = {**hard_vectors(d, dtype)}
    for most in (1, 2, 6, 40):
        sizes = 0.37 * random.integers(-most, most + 1, d)
        rows[f"{most} sizes"] = torch.from_numpy(sizes).to(dtype)
    rows["spread"] = torch.from_numpy(np.exp(20 * random.standard_normal(d))).to(dtype)
    for name, x in rows.items():
        for k in counts_for(d):
            want = by_sorting(x, k)
            indices, values = largest(x[None], k)
            assert torch.equal(indices[0], want), (name, k)
            assert same(values[0], x[want]), (name, k)
            assert torch.equal(largest_torch(x, k), want), (name, k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_and_threads_change_nothing(dtype, threads):
    d, k = 100_003, 500
    x = torch.stack(list(hard_vectors(d, dtype).values()))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        together, alone = largest(x, k)[0], largest(x[3:4], k)[0]
    finally:
        torch.set_num_threads(before)
    assert torch.equal(together, by_sorting(x, k))
    assert torch.equal(alone, together[3:4])


# What theory says of top-k ---------------------------------------------------------------------


def test_top_k_loses_most_where_all_entries_are_equal():
    x = families(24)["flat"]
    for k in (1, 6, 23):
        value = TopK(k).compress(x).decode()
        lost = (value - x).square().sum() / x.square().sum()
        assert lost == pytest.approx(1 - k / 24)
        assert TopK(k).b1(24) == TopK(k).b2(24) == (k / 24, 1.0)
        assert value @ x == pytest.approx(k / 24 * float(x @ x))  # B1 and B2 are tight there


# rTop-k ----------------------------------------------------------------------------------------


def test_rtop_k_draws_evenly_among_the_largest():
    d, k, rows = 40, 5, 20_000
    x = families(d)["gaussian"]
    op = RTopK(k, pool=3.0)
    m = op.compress(x.expand(rows, d), stream(0))
    assert (m.indices.diff(dim=-1) > 0).all()
    result = torch.bincount(m.indices.flatten(), minlength=d)
    pool = by_sorting(x, 15)
    assert result.sum() == result[pool].sum()
    assert (result[pool] / rows - 1 / 3).abs().max() < 5 * math.sqrt(2 / 9 / rows)
    assert torch.equal(RTopK(k, 1.0).compress(x).decode(), TopK(k).compress(x).decode())
    assert RTopK(25, 2.2).compress(torch.ones(99, 1000)).indices.max() == 54  # r = 55, not 56
