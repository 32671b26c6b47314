"""Rows of different length on the wire: one pass against the reference, bytes, what is no row."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raybench.compressors.pos_neg_top_k import PosNegTopK
from raybench.core.streams import stream
from raybench.testing.vectors import gaussian
from raybench.wire import RaggedMessage, SparseMessage, unpack
from raybench.wire import indices as codes
from raybench.wire.indices import code_of

DIMS = st.sampled_from([1, 2, 3, 7, 8, 9, 33, 64, 200, 3000])


def of(*sets):
    return torch.tensor(sets, dtype=torch.int64)


@st.composite
def ragged(draw, dtype=torch.float64):
    d, n = draw(DIMS), draw(st.integers(1, 6))
    most = draw(st.sampled_from([0, 1, min(d, 4), max(d // 40, 1), d]))
    counts = torch.tensor(draw(st.lists(st.integers(0, most), min_size=n, max_size=n)))
    live = torch.arange(most) < counts[:, None]
    order = stream(draw(st.integers(0, 99))).spread((n,)).subset(d, most)
    last = torch.where(live, order, d).sort(-1).values
    return RaggedMessage(d, dtype, counts, last * live, gaussian(n, most, dtype=dtype) * live)


@settings(deadline=None, max_examples=150)
@given(ragged(), st.integers(0, 5))
def test_rows_are_coded_as_the_reference_does(m, gap):
    starts = gap + torch.arange(len(m.counts))
    wide = int((starts + (codes.codes_of(m.counts, m.d)[2] + 7) // 8).max()) + 1
    out, want = (torch.zeros(len(starts), wide, dtype=torch.uint8) for _ in range(2))
    codes.encode_rows(out, starts, m.indices, m.counts, m.d)
    codes.encode_rows_torch(want, starts, m.indices, m.counts, m.d)
    assert torch.equal(out, want)
    most = int(m.counts.max())
    for decoder in (codes.decode_rows, codes.decode_rows_torch):
        assert torch.equal(decoder(out, starts, m.counts, m.d), m.indices[:, :most])


@settings(deadline=None, max_examples=150)
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


@settings(deadline=None, max_examples=150)
@given(ragged() | ragged(torch.float16), st.integers(0, 63))
def test_rows_one_after_the_other_and_back(m, mask):
    """The rows of a message, some of them left out, lie in the bytes as each alone would."""
    some = m.masked(torch.tensor([bool(mask >> r & 1) for r in range(len(m.counts))]))
    for each in (m, some):
        alone = [each.row(r).payload()[: int(each.nbytes[r])] for r in range(len(m.counts))]
        assert torch.equal(each.joined(each.nbytes), torch.cat(alone))
        assert torch.equal(unpack(each.pack()).decode(), each.decode())


def test_two_means_have_their_own_rows():
    m = PosNegTopK(2, "means").compress(gaussian(3, 30))
    alone = [m.row(r).payload()[: int(m.nbytes[r])] for r in range(3)]
    assert torch.equal(m.joined(m.nbytes), torch.cat(alone))


@pytest.mark.parametrize("d", [1, 24, codes.MOST_TABLED, codes.MOST_TABLED + 1, 9000])
def test_codes_of_many_counts(d):
    counts = torch.tensor([[0, 1, d], [d // 2, d // 50, d - 1]])
    want = [[code_of(d, k) for k in row] for row in counts.tolist()]
    assert torch.equal(codes.codes_of(counts, d), torch.tensor(want).movedim(-1, 0))
    for wrong in (-1, d + 1):
        with pytest.raises(ValueError, match=f"{wrong} of {d} coordinates"):
            codes.codes_of(torch.tensor([1, wrong]), d)


def test_nothing_beyond_the_count_is_sent():
    where = of([1, 3, 0, 0], [0, 2, 4, 8])
    value = torch.tensor([[1.0, 2.0, -0.0, -0.0], [3.0, 4.0, 5.0, 6.0]])
    m = RaggedMessage(9, value.dtype, torch.tensor([2, 4]), where, value)
    clean = RaggedMessage(9, value.dtype, torch.tensor([2, 4]), where, value.abs())
    assert m.pack() == clean.pack()


def test_ragged_indices_must_ascend_too():
    m = RaggedMessage(9, torch.float64, torch.tensor([2]), of([3, 1]), gaussian(1, 2))
    with pytest.raises(ValueError, match="ascend"):
        m.pack()


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


def test_no_rows_at_all():
    for k in (0, 3):
        empty = torch.zeros(0, k)
        m = RaggedMessage(9, empty.dtype, torch.zeros(0).long(), empty.long(), empty)
        assert unpack(m.pack()).decode().shape == (0, 9)
        m = SparseMessage(9, empty.dtype, empty.long(), empty)
        assert unpack(m.pack()).decode().shape == (0, 9)
