"""Packing of codes, and what each kind of message costs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raybench.core.streams import stream
from raybench.testing.vectors import cells_and_clients, gaussian
from raybench.wire import (
    CasesMessage,
    ConcatMessage,
    Dense,
    ExponentsMessage,
    FactorsMessage,
    LevelsMessage,
    RaggedMessage,
    SeededMessage,
    SparseMessage,
    bitpack,
    index_cost,
)


@pytest.mark.parametrize("width", range(53))
def test_bitpack_kernel_equals_the_reference(width):
    for count in (0, 1, 2, 7, 8, 9, 33):
        codes = stream(width).each(range(3)).integers(count, max(2**width, 1))
        if count:
            codes[0, 0], codes[1, -1] = 2**width - 1, 0
        data = bitpack.pack(codes, width)
        assert data.shape == (3, math.ceil(count * width / 8))
        assert torch.equal(data, bitpack.pack_torch(codes, width))
        assert torch.equal(bitpack.unpack(data, width, count), codes)
        assert torch.equal(bitpack.unpack_torch(data, width, count), codes)


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**13 - 1), max_size=30))
def test_bitpack_is_the_little_endian_integer(codes):
    whole = sum(code << (13 * j) for j, code in enumerate(codes))
    want = whole.to_bytes(math.ceil(13 * len(codes) / 8), "little")
    assert bytes(bitpack.pack(torch.tensor(codes, dtype=torch.int64), 13).tolist()) == want


def test_bitpack_never_reads_beyond_its_bytes():
    with pytest.raises(ValueError, match="cut short"):
        bitpack.unpack(torch.zeros(2, 3, dtype=torch.uint8), 5, 5)


@settings(deadline=None)
@given(st.integers(1, 2**40))
def test_width_is_ceil_log2(symbols):
    width = bitpack.width_of(symbols)
    assert 2**width >= symbols
    assert width == 0 or 2 ** (width - 1) < symbols


# Costs --------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(1, 300), st.data())
def test_index_cost_is_brute_force(d, data):
    k = data.draw(st.integers(0, d))
    cost = index_cost(d, k)
    explicit = k * math.ceil(math.log2(d))
    mask = d if k else 0
    subsets = math.comb(d, k)
    assert (cost.values, cost.raw) == (0, 0)
    assert cost.index_explicit == explicit
    assert cost.index_bitmask == mask
    assert cost.index_auto == min(explicit, mask)
    assert 2**cost.index_entropy >= subsets > (2 ** (cost.index_entropy - 1) if k % d else 0)
    assert cost.index_entropy <= cost.index_auto


@pytest.mark.parametrize(("d", "k"), [(2**20, 1), (2**20, 2**20 - 1), (10**6, 4096), (10**7, 3)])
def test_entropy_of_large_dimensions(d, k):
    assert index_cost(d, k).index_entropy == (math.comb(d, k) - 1).bit_length()


@pytest.mark.parametrize(("d", "k"), [(20_000, 9_000), (10**6, 10**4)])
def test_entropy_beyond_the_exact_range(d, k):
    assert abs(index_cost(d, k).index_entropy - (math.comb(d, k) - 1).bit_length()) <= 1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.data())
def test_ragged_cost_is_the_sparse_cost_of_each_row(d, data):
    counts = data.draw(st.lists(st.integers(0, d), min_size=1, max_size=6))
    k = max(counts)
    live = torch.arange(k) < torch.tensor(counts)[:, None]
    where = torch.arange(k).expand(len(counts), k) * live
    m = RaggedMessage(d, torch.float64, torch.tensor(counts), where, live.double())
    for j, count in enumerate(counts):
        want = index_cost(d, count)._replace(values=count, raw=math.ceil(math.log2(d + 1)))
        assert tuple(float(c[j]) for c in m.cost) == tuple(map(float, want))
        assert int(m.bits[j]) == 64 * count + want.index_auto + want.raw


def test_costs_of_simple_kinds():
    d, x = 20, gaussian(2, 3, 20)
    where = torch.arange(4).expand(2, 3, 4)
    assert Dense(x).cost == (20, 0, 0, 0, 0, 0)
    assert SparseMessage(d, x.dtype, where, x[..., :4]).cost == (4, 20, 20, 20, 13, 0)
    assert SeededMessage(d, x.dtype, x[..., :4], cells_and_clients(2, 3)).cost[0] == 4
    codes = torch.zeros(2, 3, d, dtype=torch.int64)
    assert LevelsMessage(d, x.dtype, codes, x[..., :1], "linear", 3).cost == (1, 0, 0, 0, 0, 60)
    assert LevelsMessage(d, x.dtype, codes, x[..., :1], "sign", 1).cost == (1, 0, 0, 0, 0, 20)
    assert ExponentsMessage(d, x.dtype, codes).cost.raw == 12 * d
    left, right = gaussian(2, 3, 4, 2), gaussian(2, 3, 5, 2)
    assert FactorsMessage(d, x.dtype, left, right).cost.values == 18


def test_costs_of_compounds_and_absent_rows():
    x = gaussian(2, 3, 20)
    both = ConcatMessage(40, x.dtype, [Dense(x), Dense(x)])
    assert both.cost.values == 40
    here = torch.tensor([[True, False, True], [False, False, False]])
    assert both.masked(here).cost.values.tolist() == [[40, 0, 40], [0, 0, 0]]
    sparse = SparseMessage(20, x.dtype, torch.arange(2).expand(1, 3, 2), x[:1, :, :2])
    mixed = CasesMessage(
        20, x.dtype, [torch.tensor([1]), torch.tensor([0])], [Dense(x[:1]), sparse]
    )
    assert mixed.cost.values.tolist() == [[2] * 3, [20] * 3]
    assert mixed.nbytes.tolist() == [[16 + 2] * 3, [160] * 3]
    assert mixed.masked(here).nbytes.tolist() == [[18, 0, 18], [0, 0, 0]]
    with pytest.raises(TypeError, match="several kinds"):
        mixed.map(lambda t: t)
    with pytest.raises(IndexError):
        mixed.row(2, 0)


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_dense_messages_decode_in_place_and_never_alias(scale):
    x = gaussian(2, 3, 7)
    m = Dense(x).scaled(scale)
    out = torch.full_like(x, math.nan)
    for value in (m.decode(out=out), m.decode()):
        assert torch.equal(value, x * scale)
        value.fill_(3.0)
    assert torch.equal(m.decode(), x * scale)
    one = Dense(x[:, :1]).scaled(scale)
    one.sum_clients().fill_(3.0)
    assert torch.equal(one.decode(), x[:, :1] * scale)
