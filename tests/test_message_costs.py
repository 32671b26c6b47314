"""What messages cost: packing of symbols, levels, counts, bits and bytes."""

from __future__ import annotations

import math

import numpy as np
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
    SeededMessage,
    SparseMessage,
    bitpack,
    index_cost,
    unpack,
)
from raybench.wire.levels import (
    UNSCALED,
    code_dtype,
    decode_torch,
    levels_of,
    scales_of,
    symbols_of,
)

DTYPES = (torch.float32, torch.float64)
NARROW = {torch.uint8: 8, torch.int16: 15, torch.int32: 31, torch.int64: 52}


# Packing ------------------------------------------------------------------------------------------


def by_hand(codes, width):
    """Return the bytes of one row of codes: the docstring of ``bitpack`` in numpy and Python's integers."""
    trits, block = width == bitpack.TRIT, bitpack.TRITS if width == bitpack.TRIT else bitpack.BLOCK
    end = len(codes) - len(codes) % block if width <= bitpack.MOST_SLICED else 0
    whole, rest, sent = codes[:end].reshape(-1, block // 64, 64), codes[end:].tolist(), b""
    for rows in whole:
        if trits:
            sent += (rows * 3 ** np.arange(5)[:, None]).sum(0).astype(np.uint8).tobytes()
        else:
            planes = (np.packbits(rows >> p & 1, axis=0, bitorder="little") for p in range(width))
            sent += b"".join(plane.tobytes() for plane in planes)
    if trits:
        fives = (rest[j : j + 5] for j in range(0, len(rest), 5))
        return sent + bytes(sum(trit * 3**j for j, trit in enumerate(five)) for five in fives)
    number = sum(code << (width * j) for j, code in enumerate(rest))
    return sent + number.to_bytes(math.ceil(width * len(rest) / 8), "little")


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_packing_is_what_is_said(data):
    width = data.draw(st.just(bitpack.TRIT) | st.integers(0, 52))
    wide = [dtype for dtype, most in NARROW.items() if width <= most]
    # the dtypes of real codes: each other one is one more kernel to compile
    dtype = torch.uint8 if width == bitpack.TRIT else data.draw(st.sampled_from(wide))
    count = data.draw(st.sampled_from([0, 1, 9, 320, 512, 513, 1100, 2999, 20_001]))
    lead, at = data.draw(st.sampled_from([(), (3,), (2, 0), (2, 2)])), data.draw(st.integers(0, 9))
    symbols = 3 if width == bitpack.TRIT else 2**width
    codes = stream(width).spread(lead).integers(count, symbols).to(dtype)
    packed = bitpack.pack(codes, width)
    assert packed.shape == (*lead, bitpack.packed_size(count, width))
    for row, sent in zip(codes[None].flatten(0, -2), packed[None].flatten(0, -2), strict=True):
        assert bytes(sent.tolist()) == by_hand(row.long().numpy(), width)
    room = torch.full((*lead, at + packed.shape[-1] + 3), 77, dtype=torch.uint8)
    assert bitpack.pack_into(codes, width, room, at) is room
    assert bool((room[..., :at] == 77).all() and (room[..., at + packed.shape[-1] :] == 77).all())
    back = bitpack.unpack(room, width, count, dtype, at)
    assert back.dtype == dtype
    assert torch.equal(back, codes)


def test_threads_change_no_byte(two_threads):
    for count in (20_001, 100_003):
        for width, symbols in ((3, 8), (bitpack.TRIT, 3)):
            codes = stream(0).integers(count, symbols).to(torch.uint8)
            packed = bitpack.pack(codes, width)
            assert bytes(packed.tolist()) == by_hand(codes.long().numpy(), width)
            assert torch.equal(bitpack.unpack(packed, width, count, torch.uint8), codes)


def test_packed_codes_cut_short():
    with pytest.raises(ValueError, match="cut short"):
        bitpack.unpack(torch.zeros(2, 190, dtype=torch.uint8), 3, 512)
    with pytest.raises(ValueError, match="cut short"):
        bitpack.unpack(torch.zeros(2, 5, dtype=torch.uint8), bitpack.TRIT, 21, at=1)


# Levels -------------------------------------------------------------------------------------------

TABLES = [
    *(("linear", s, 2.0) for s in (1, 3, 127, 128, 40_000, 2**30)),
    *(("power", 3, 2.0), ("power", 200, 1.5), ("sign", 1, 2.0), ("pair", 1, 2.0)),
]


def levels(table, s, base, d, bucket, lead, dtype):
    codes = stream(1).spread(lead).integers(d, symbols_of(table, s))
    scales = stream(2).spread(lead).normal(scales_of(table, bucket, d)).to(dtype)
    return LevelsMessage(d, dtype, codes, scales, table, s, base, bucket)


SHAPES = ((1, 0), (24, 7), (24, UNSCALED), (24, 100), (3000, 512), (6000, 1), (5200, 0))


@pytest.mark.parametrize(("table", "s", "base"), TABLES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_decoded_levels_equal_the_reference(table, s, base, dtype, two_threads):
    for d, bucket in SHAPES:
        if table == "pair" and bucket == UNSCALED:
            continue
        for lead in ((), (2, 3)):
            m = levels(table, s, base, d, bucket, lead, dtype)
            assert m.codes.dtype == code_dtype(m.symbols)
            for sent in (m, m.scaled(1 / 3)):
                scales = m.scales * sent.scale
                if bucket == UNSCALED:
                    scales = torch.full((*lead, 1), sent.scale, dtype=dtype)
                assert torch.equal(sent.decode(), decode_torch(sent, scales))
            back = unpack(m.pack())
            assert torch.equal(back.decode(), m.decode())
            assert back.codes.dtype == m.codes.dtype


def test_levels_by_the_definition():
    for table, s, base, dtype in (("linear", 3, 2.0, torch.float32), ("power", 2, 5.0, DTYPES[1])):
        m = levels(table, s, base, 9, 4, (), dtype)
        value = levels_of(table, s, base).to(dtype)[m.codes.long()]
        want = torch.stack([value[j] * m.scales[j // 4] for j in range(9)])
        assert torch.equal(m.decode(), want)
    pair = levels("pair", 1, 2.0, 9, 4, (), torch.float64)
    want = [float(pair.scales[2 * (j // 4) + int(pair.codes[j])]) for j in range(9)]
    assert pair.decode().tolist() == want
    bare = levels("sign", 1, 2.0, 9, UNSCALED, (), torch.float64)
    assert bare.decode().tolist() == (2 * bare.codes.double() - 1).tolist()


@pytest.mark.parametrize("bucket", [UNSCALED, 0, 7, 24, 100])
@pytest.mark.parametrize(
    ("table", "s", "bits"), [("linear", 1, 40), ("linear", 3, 72), ("sign", 1, 24)]
)
def test_what_levels_cost(table, s, bits, bucket):
    m = levels(table, s, 2.0, 24, bucket, (3,), torch.float32)
    count = {UNSCALED: 0, 7: 4}.get(bucket, 1)
    assert m.cost == Counts(values=count, raw=bits, bytes=4 * count + bits // 8, messages=1)
    assert m.nbytes == 4 * count + bits // 8
    assert m.payload().shape == (3, m.nbytes)


@pytest.mark.parametrize("s", [1, 2, 3, 9, 10, 11, 13, 49, 100, 127, 1000])
def test_a_table_has_as_many_levels_as_it_says(s):
    # a published arange(0, 1.1, 1/s) has not, for s >= 11
    table = levels_of("linear", s)
    assert len(table) == symbols_of("linear", s) == 2 * s + 1
    assert (float(table[0]), float(table[s]), float(table[-1])) == (-1, 0, 1)
    assert torch.allclose(table.diff(), torch.full((2 * s,), 1 / s, dtype=table.dtype), rtol=1e-10)
    powers = levels_of("power", s, 3.0)
    assert len(powers) == 2 * s + 1
    assert torch.allclose(powers[s + 1 :], 3.0 ** torch.arange(1 - s, 1).double(), rtol=1e-13)
    assert torch.equal(powers, -powers.flip(0))


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
    if shorter:
        assert cost.index_auto <= k * (math.log2(d / k) + 2) + 1e-6


@pytest.mark.parametrize(("d", "k"), [(2**20, 1), (2**20, 2**20 - 1), (10**6, 4096), (10**7, 3)])
def test_entropy_of_large_dimensions(d, k):
    assert index_cost(d, k).index_entropy == (math.comb(d, k) - 1).bit_length()


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
    cells = [torch.tensor([1]), torch.tensor([0])]
    mixed = CasesMessage(20, x.dtype, cells, [Dense(x[:1]), sparse])
    assert mixed.cost.values.tolist() == [[2] * 3, [20] * 3]
    assert mixed.nbytes.tolist() == [[16 + 2] * 3, [160] * 3]
    assert mixed.masked(here).nbytes.tolist() == [[18, 0, 18], [0, 0, 0]]
    assert mixed.masked(here).cost.messages.tolist() == here.tolist()
    with pytest.raises(TypeError, match="several kinds"):
        mixed.map(lambda t: t)
    with pytest.raises(IndexError):
        mixed.row(2, 0)
