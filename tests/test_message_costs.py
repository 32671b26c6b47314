"""Packing of codes, and what each kind of message costs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raybench.core.counts import Counts
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
    choose,
    index_cost,
)
from raybench.wire.ledger import Ledger


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
    assert cost.index_list_or_bitmask == min(explicit, mask)
    # Elias-Fano with l low bits: k (l + 1) and one bit for every 2^l coordinates but the first
    elias = min(k * (low + 1) + (d - 1) // 2**low for low in range(10)) if k else 0
    shorter = math.ceil(elias / 8) < math.ceil(min(explicit, mask) / 8)
    assert cost.index_auto == (elias if shorter else min(explicit, mask))
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
        head = math.ceil(math.log2(d + 1))
        want = index_cost(d, count)._replace(values=count, raw=head, messages=1)
        want = want._replace(bytes=8 * count + -(-want.index_auto // 8) + -(-head // 8))
        found = Counts(*(torch.as_tensor(c).double().expand(len(counts))[j] for c in m.cost))
        assert found == want
        assert int(m.bits[j]) == 64 * count + want.index_auto + want.raw


def test_costs_of_simple_kinds():
    d, x = 20, gaussian(2, 3, 20)
    where = torch.arange(4).expand(2, 3, 4)
    assert Dense(x).cost == Counts(values=20, bytes=160, messages=1)
    assert SparseMessage(d, x.dtype, where, x[..., :4]).cost == Counts(
        values=4,
        index_explicit=4 * 5,
        index_auto=16,  # Elias-Fano, two low bits each
        index_list_or_bitmask=20,
        index_bitmask=20,
        index_entropy=13,
        bytes=4 * 8 + 2,
        messages=1,
    )
    seeded = SeededMessage(d, x.dtype, x[..., :4], cells_and_clients(2, 3))
    assert seeded.cost == Counts(values=4, bytes=32, messages=1)
    codes = torch.zeros(2, 3, d, dtype=torch.int64)
    dithered = LevelsMessage(d, x.dtype, codes, x[..., :1], "linear", 3)
    assert dithered.cost == Counts(values=1, raw=3 * d, bytes=8 + 8, messages=1)
    signs = LevelsMessage(d, x.dtype, codes, x[..., :1], "sign", 1)
    assert signs.cost == Counts(values=1, raw=d, bytes=8 + 3, messages=1)
    assert ExponentsMessage(d, x.dtype, codes).cost.raw == 12 * d
    left, right = gaussian(2, 3, 4, 2), gaussian(2, 3, 5, 2)
    assert FactorsMessage(d, x.dtype, left, right).cost.values == 18


def test_bits_are_the_callers_own():
    message = Dense(gaussian(2, 3, 20))
    bits = message.bits
    bits[0, 1] = 0  # each row has a number of its own
    assert bits.tolist() == [[1280, 0, 1280], [1280, 1280, 1280]]
    assert message.bits.tolist() == [[1280] * 3] * 2


def test_costs_of_compounds_and_absent_rows():
    x = gaussian(2, 3, 20)
    both = ConcatMessage(40, x.dtype, [Dense(x), Dense(x)])
    assert both.cost.values == 40
    here = torch.tensor([[True, False, True], [False, False, False]])
    assert both.masked(here).cost.values.tolist() == [[40, 0, 40], [0, 0, 0]]
    assert both.cost.messages == 1
    assert both.masked(here).cost.messages.tolist() == here.tolist()
    sparse = SparseMessage(20, x.dtype, torch.arange(2).expand(1, 3, 2), x[:1, :, :2])
    mixed = CasesMessage(
        20, x.dtype, [torch.tensor([1]), torch.tensor([0])], [Dense(x[:1]), sparse]
    )
    assert mixed.cost.values.tolist() == [[2] * 3, [20] * 3]
    assert mixed.nbytes.tolist() == [[16 + 2] * 3, [160] * 3]
    assert mixed.masked(here).nbytes.tolist() == [[18, 0, 18], [0, 0, 0]]
    assert mixed.masked(here).cost.messages.tolist() == here.tolist()
    with pytest.raises(TypeError, match="several kinds"):
        mixed.map(lambda t: t)
    with pytest.raises(IndexError):
        mixed.row(2, 0)


def test_a_flag_is_a_bit_in_a_byte_of_its_own():
    x, mask = gaussian(2, 3, 20), torch.tensor([[True, False, True], [False, False, True]])
    where = torch.arange(4).expand(2, 3, 4)
    sparse = SparseMessage(20, x.dtype, where, x[..., :4])
    m = choose(mask, sparse, sparse)
    assert (m.bits == sparse.bits + 1).all()
    assert m.nbytes == sparse.nbytes + 1
    assert m.payload()[..., 0].tolist() == mask.tolist()


def test_the_ledger_books_bits_beside_messages_in_whole_bytes():
    ledger = Ledger(2)
    for bits, size in ((1, 1), (8, 1), (9, 2)):
        before = ledger.up.copy()
        ledger.charge(bits)
        booked = Counts(*(ledger.up - before)[:, 1])
        assert booked == Counts(raw=bits, bytes=size, messages=1)
    assert not ledger.down.any()
    ledger.charge(3, down=True)
    assert Counts(*ledger.down[:, 0]) == Counts(raw=3, bytes=1, messages=1)


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
