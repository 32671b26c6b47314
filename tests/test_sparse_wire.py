"""Supports on the wire: their codes, rows of different length, and decoding in place."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import raybench
from raybench.core.streams import stream
from raybench.testing.vectors import gaussian
from raybench.wire import RaggedMessage, SparseMessage, bitpack, unpack
from raybench.wire import indices as codes
from raybench.wire.indices import ELIAS, LIST, MASK, code_of, decode, encode

DIMS = st.sampled_from([1, 2, 3, 7, 8, 9, 33, 64, 200, 3000])


def supports(lead, d, k, seed=0):
    return stream(seed).spread(lead).subset(d, k).sort(-1).values


def of(*sets):
    return torch.tensor(sets, dtype=torch.int64)


# Which code, how long ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("d", "k", "code"),
    [
        (1, 0, (LIST, 0, 0)),
        (1, 1, (LIST, 0, 0)),
        (2**31, 0, (LIST, 0, 0)),
        (2**31, 1, (LIST, 31, 31)),
        (2**31, 2**31 - 1, (MASK, 0, 2**31)),
        (100, 100, (MASK, 0, 100)),
        (100, 1, (LIST, 7, 7)),
        (20, 2, (LIST, 5, 10)),  # Elias-Fano takes 10 bits too
        (20, 4, (ELIAS, 2, 4 * 3 + 4)),
        (10_000, 100, (ELIAS, 6, 100 * 7 + 156)),
        (11_181_642, 111_817, (ELIAS, 6, 111_817 * 7 + 174_713)),
    ],
)
def test_the_code_of(d, k, code):
    assert code_of(d, k) == code


def test_there_is_no_code_for_more_than_all():
    for k in (-1, 6):
        with pytest.raises(ValueError, match="of 5 coordinates"):
            code_of(5, k)


# The bytes ----------------------------------------------------------------------------------------


def by_hand(where, d):
    """Return the bytes of one row of indices: the docstring of ``indices`` in Python's integers."""
    kind, width, _ = code_of(d, len(where))
    low = sum((j & ((1 << width) - 1)) << (width * i) for i, j in enumerate(where))
    high = [(j >> width) + (i if kind == ELIAS else 0) for i, j in enumerate(where)]
    marks = 0 if kind == LIST else sum(1 << j for j in high)
    size = bitpack.bytes_of(code_of(d, len(where)).bits)
    return (low + (marks << (width * len(where)))).to_bytes(size, "little")


def check_round_trip(where, d):
    k = where.shape[-1]
    data = encode(where, d)
    assert data.shape == (*where.shape[:-1], bitpack.bytes_of(code_of(d, k).bits))
    assert torch.equal(decode(data, d, k), where)
    for row, sent in zip(where[None].flatten(0, -2), data[None].flatten(0, -2), strict=True):
        assert bytes(sent.tolist()) == by_hand(row.tolist(), d)


@settings(deadline=None, max_examples=100)
@given(DIMS, st.lists(st.integers(0, 3), max_size=2), st.integers(0, 99), st.data())
def test_rows_are_coded_as_it_is_said(d, lead, seed, data):
    few = st.integers(0, min(d, 9))
    k = data.draw(st.integers(0, d) | few | st.sampled_from([max(d // 50, 1), d]))
    check_round_trip(supports(tuple(lead), d, k, seed), d)


@pytest.mark.parametrize("d", [2**31, 2**31 + 1, 2**40])
@pytest.mark.parametrize("k", [0, 1, 2, 5, 1000])
def test_round_trip_of_vast_dimensions(d, k):
    far = range(d - k, d)
    spread = [round(j * (d - 1) / max(k - 1, 1)) for j in range(k)]
    where = of(range(k), far, spread)
    assert torch.equal(decode(encode(where, d), d, k), where)


# What is no support --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("d", "kind", "bad"),
    [
        *((20, ELIAS, x) for x in ([0, 5, 2, 9], [0, 5, 5, 9], [-1, 2, 5, 9], [0, 2, 5, 20])),
        *((9, MASK, x) for x in ([0, 5, 2, 8], [0, 5, 5, 8], [-1, 2, 5, 8], [0, 2, 5, 9])),
        *((100, LIST, x) for x in ([5, 2], [5, 5], [-1, 5], [2, 100])),
        *((1, LIST, x) for x in ([1], [-1])),
    ],
)
def test_only_ascending_distinct_indices_are_coded(d, kind, bad):
    assert code_of(d, len(bad)).kind == kind
    where = of(range(len(bad)), bad)
    with pytest.raises(ValueError, match="ascend, be distinct, and lie in"):
        encode(where, d)
    with pytest.raises(ValueError, match="ascend"):
        SparseMessage(d, torch.float64, where, gaussian(*where.shape)).pack()


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 60), st.data())
def test_any_bytes_give_a_support_or_an_error(d, data):
    k = data.draw(st.integers(0, d))
    size = bitpack.bytes_of(code_of(d, k).bits)
    byte = st.sampled_from([0, 0, 1, 3, 128, 255]) | st.integers(0, 255)
    sent = torch.tensor(data.draw(st.lists(byte, min_size=size, max_size=size)), dtype=torch.uint8)
    try:
        support = decode(sent, d, k).tolist()
    except ValueError:
        return
    assert support == sorted(set(support))
    assert all(0 <= j < d for j in support)


@pytest.mark.parametrize(("d", "k"), [(20, 4), (12, 6), (100, 2), (9, 9)])
def test_absent_rows_and_missing_bytes(d, k):
    sent = encode(of(range(k)), d)
    both = torch.cat((torch.zeros_like(sent), sent))
    assert decode(both, d, k).tolist() == [list(range(k))] * 2
    with pytest.raises(ValueError, match="cut short"):
        decode(sent[:, :-1], d, k)


# Decoding in place, sums -------------------------------------------------------------------------


def test_the_union_of_one_cell_is_that_of_a_batch_of_one():
    """Messages of n clients may stand alone, (n,), or in a batch of cells, (B, n)."""
    x = gaussian(3, 20)
    alone = raybench.compressor("top_k", k=4).compress(x).union()
    batch = raybench.compressor("top_k", k=4).compress(x[None]).union()
    for one, many in zip(alone, batch, strict=True):
        assert torch.equal(torch.as_tensor(one).expand(1), torch.as_tensor(many).expand(1))


@st.composite
def ragged(draw):
    d, n = draw(DIMS), draw(st.integers(1, 6))
    most = draw(st.sampled_from([0, 1, min(d, 4), max(d // 40, 1), d]))
    counts = torch.tensor(draw(st.lists(st.integers(0, most), min_size=n, max_size=n)))
    live = torch.arange(most) < counts[:, None]
    order = stream(draw(st.integers(0, 99))).spread((n,)).subset(d, most)
    last = torch.where(live, order, d).sort(-1).values
    return RaggedMessage(d, torch.float64, counts, last * live, gaussian(n, most) * live)


@settings(deadline=None, max_examples=50)
@given(ragged())
def test_a_ragged_row_is_a_count_and_a_sparse_row(m):
    data, head = m.payload(), math.ceil(math.ceil(math.log2(m.d + 1)) / 8)
    back = unpack(m.pack())
    for j, count in enumerate(m.counts.tolist()):
        row = SparseMessage(m.d, m.dtype, m.indices[j, :count], m.values[j, :count])
        want = count.to_bytes(head, "little") + bytes(row.payload().tolist())
        size = int(m.nbytes[j])
        assert bytes(data[j, :size].tolist()) == want
        assert not data[j, size:].any()
        assert int(m.cost.index_auto[j]) == row.cost.index_auto
        assert torch.equal(back.indices[j, :count], m.indices[j, :count])
    assert torch.equal(back.decode(), m.decode())


def test_nothing_beyond_the_count_is_sent():
    """Not even the sign of a zero: it lies where the bitmask has its 16th bit."""
    assert code_of(20, 5).kind == MASK
    where = of([1, 3, 5, 7, 18, 0, 0], [0, 2, 4, 6, 8, 10, 12])
    value = torch.tensor([[1.0] * 5 + [-0.0] * 2, [1.0] * 7], dtype=torch.float16)
    m = RaggedMessage(20, value.dtype, torch.tensor([5, 7]), where, value)
    assert torch.equal(unpack(m.pack()).decode(), m.decode())


def test_a_count_beyond_its_row():
    m = RaggedMessage(9, torch.float64, torch.tensor([3]), of([1, 3]), gaussian(1, 2))
    with pytest.raises(ValueError, match="a row of 3 indices, of which 2"):
        m.pack()
    out, one = torch.zeros(1, 9, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="a row of 3 indices, of which 2"):
        codes.encode_rows(out, one, of([1, 3]), one + 3, 9)


def test_ragged_bytes_that_lie():
    m = RaggedMessage(9, torch.float64, torch.tensor([2]), of([1, 3]), gaussian(1, 2))
    data, known = m.payload(), m.known()
    for count in (3, 10, 15):
        wrong = data.clone()
        wrong[0, 0] = count
        with pytest.raises(ValueError, match="damaged"):
            RaggedMessage.read(known, wrong, None)
