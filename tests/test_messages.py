"""Messages: round trips of every kind, damaged bytes, parts of compounds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raybench.core.registry import lookup, names
from raybench.core.streams import stream
from raybench.testing.compressors import assert_bits_fit_bytes, examples, same_bits, sent
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
    choose,
    unpack,
)
from raybench.wire.base import KINDS, MAGIC

DTYPES = st.sampled_from([torch.float64, torch.float32])
ODD = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, 5e-324, 3e38]


def values(draw, *shape, dtype):
    """Return Gaussians with some odd numbers among them."""
    x = gaussian(*shape, seed=draw(st.integers(0, 99)), dtype=dtype)
    for odd in draw(st.lists(st.sampled_from(ODD), max_size=3)):
        if x.numel():
            x.view(-1)[draw(st.integers(0, x.numel() - 1))] = odd
    return x


def indices(draw, *lead, d, k):
    return stream(draw(st.integers(0, 99))).spread(lead).subset(d, k).sort(-1).values


def dense(draw, lead, d, dtype):
    return Dense(values(draw, *lead, d, dtype=dtype))


def sparse(draw, lead, d, dtype):
    k = draw(st.integers(0, d))
    where = indices(draw, *lead, d=d, k=k)
    return SparseMessage(d, dtype, where, values(draw, *lead, k, dtype=dtype))


def seeded(draw, lead, d, dtype):
    k, seed, common = draw(st.integers(1, d)), draw(st.integers(0, 99)), draw(st.booleans())
    source = cells_and_clients(*lead, seed) if len(lead) == 2 else stream(seed).spread(lead)
    return SeededMessage(d, dtype, values(draw, *lead, k, dtype=dtype), source, common)


def ragged(draw, lead, d, dtype):
    k = draw(st.integers(0, d))
    counts = (stream(draw(st.integers(0, 99))).spread(lead).uniform(1)[..., 0] * (k + 1)).long()
    live = torch.arange(k) < counts[..., None]
    where, given = indices(draw, *lead, d=d, k=k), values(draw, *lead, k, dtype=dtype)
    return RaggedMessage(d, dtype, counts, where * live, given.masked_fill(~live, 0))


def levels(draw, lead, d, dtype):
    table, s = draw(st.sampled_from([("linear", 1), ("linear", 3), ("linear", 500), ("power", 4)]))
    top = 2 * s + 1
    if draw(st.booleans()):
        table, s, top = "sign", 1, 2
    codes = stream(draw(st.integers(0, 99))).spread(lead).integers(d, top)
    return LevelsMessage(d, dtype, codes, values(draw, *lead, 1, dtype=dtype), table, s)


def exponents(draw, lead, d, dtype):
    width = 12 if dtype == torch.float64 else 9
    codes = stream(draw(st.integers(0, 99))).spread(lead).integers(d, 2**width)
    return ExponentsMessage(d, dtype, codes)


def factors(draw, lead, d, dtype):
    a = draw(st.sampled_from([a for a in range(1, d + 1) if d % a == 0]))
    r = draw(st.integers(1, 3))
    left, right = (values(draw, *lead, m, r, dtype=dtype) for m in (a, d // a))
    return FactorsMessage(d, dtype, left, right)


SIMPLE = [dense, sparse, seeded, ragged, levels, exponents, factors]


def concat(draw, lead, d, dtype):
    first = draw(st.integers(1, d - 1)) if d > 1 else 1
    sizes = [first, d - first] if d > 1 else [1]
    parts = [draw(st.sampled_from(SIMPLE))(draw, lead, size, dtype) for size in sizes]
    return ConcatMessage(d, dtype, parts)


def flagged(draw, lead, d, dtype):
    make = draw(st.sampled_from([dense, ragged, exponents]))
    mask = stream(draw(st.integers(0, 99))).spread(lead).uniform(1)[..., 0] < 0.5
    return choose(mask, make(draw, lead, d, dtype), make(draw, lead, d, dtype))


def cases(draw, lead, d, dtype, depth=2):
    if len(lead) < 1 or lead[0] < 2:
        return concat(draw, lead, d, dtype)
    order = torch.tensor(draw(st.permutations(range(lead[0]))))
    cut = draw(st.integers(1, lead[0] - 1))
    cells = [order[:cut], order[cut:]]
    kinds = [*SIMPLE, concat, flagged] + ([cases] if depth else [])
    parts = []
    for own in cells:
        make, rows = draw(st.sampled_from(kinds)), (len(own), *lead[1:])
        deeper = (depth - 1,) if make is cases else ()
        parts.append(make(draw, rows, d, dtype, *deeper))
    return CasesMessage(d, dtype, cells, parts)


@st.composite
def messages(draw, kinds=(*SIMPLE, concat, flagged, cases), client_axis=False):
    """Return any message of shape () to (B, n), perhaps scaled, perhaps masked."""
    lead = tuple(draw(st.lists(st.integers(1, 3), min_size=2 * client_axis, max_size=2)))
    make, d, dtype = draw(st.sampled_from(kinds)), draw(st.integers(1, 20)), draw(DTYPES)
    m = make(draw, lead, d, dtype)
    if draw(st.booleans()):
        m = m.scaled(draw(st.sampled_from([0.5, 1 / 3, 7.0])))
    if draw(st.booleans()):
        present = stream(draw(st.integers(0, 99))).spread(lead).uniform(1)[..., 0] < 0.6
        m = m.masked(present)
    return m


# Round trips ----------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(messages())
def test_unpack_of_pack_is_the_message(m):
    back = unpack(m.pack())
    assert type(back) is type(m)
    assert (back.lead, back.d, back.dtype) == (m.lead, m.d, m.dtype)
    assert same_bits(back.decode(), m.decode())
    assert torch.equal(back.bits, m.bits)
    for mine, theirs in zip(m.cost, back.cost, strict=True):
        assert torch.equal(torch.as_tensor(mine).double(), torch.as_tensor(theirs).double())
    assert torch.equal(torch.as_tensor(back.nbytes), torch.as_tensor(m.nbytes))
    assert back.pack() == unpack(back.pack()).pack()


@settings(max_examples=100, deadline=None)
@given(messages())
def test_nbytes_is_what_is_sent(m):
    total = 0
    for leaf in m.leaves():
        sizes, payload = torch.as_tensor(leaf.nbytes).expand(leaf.lead), leaf.payload()
        assert payload.shape[:-1] == leaf.lead
        assert payload.shape[-1] >= int(sizes.max())
        beyond = torch.arange(payload.shape[-1]) >= sizes[..., None]
        assert bool((payload[beyond.expand_as(payload)] == 0).all())
        total += sent(leaf)
    assert total == int(torch.as_tensor(m.nbytes).expand(m.lead).sum())
    assert_bits_fit_bytes(m)


@settings(max_examples=100, deadline=None)
@given(messages())
def test_a_row_alone(m):
    for at in {(0,) * len(m.lead), tuple(size - 1 for size in m.lead)}:
        row = m.row(*at)
        assert row.lead == ()
        assert same_bits(row.decode(), m.decode()[at])
        assert same_bits(unpack(row.pack()).decode(), m.decode()[at])
        assert int(row.bits) == int(m.bits[at])
        size = int(row.nbytes)
        assert size == int(torch.as_tensor(m.nbytes).expand(m.lead)[at])
        if m.leaves() == [m]:
            assert torch.equal(row.payload()[:size], m.payload()[at][:size])


@settings(max_examples=100, deadline=None)
@given(messages(client_axis=True), st.data())
def test_selecting_cells(m, data):
    cells = torch.tensor(data.draw(st.lists(st.integers(0, m.lead[0] - 1), max_size=4))).long()
    for chosen in (cells, torch.arange(m.lead[0]) % 2 == 0):
        part = m.select(chosen)
        assert same_bits(part.decode(), m.decode()[chosen])
        assert torch.equal(part.bits, m.bits[chosen])
        assert torch.equal(
            torch.as_tensor(part.nbytes).expand(part.lead),
            torch.as_tensor(m.nbytes).expand(m.lead)[chosen],
        )


@settings(max_examples=100, deadline=None)
@given(messages(client_axis=True))
def test_sums(m):
    value = m.decode()
    # numbers near overflow or of very different sizes depend on the order of the summands
    off, size = (m.sum_clients() - value.sum(-2)).abs(), value.abs().double().sum(-2)
    assert bool(((off <= 1e-5 * size) | ~(size < 1e38)).all())
    assert bool((m.sum_clients().isfinite() == value.isfinite().all(-2))[size < 1e38].all())
    target = torch.ones_like(value)
    assert m.add_to(target) is target
    torch.testing.assert_close(target, value + 1, equal_nan=True, rtol=1e-5, atol=1e-5)
    out = torch.full_like(value, 7.0)
    assert m.decode(out) is out
    assert same_bits(out, value)


# Absent rows, factors ----------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_absent_row_is_zero_whatever_it_holds(bad):
    x = torch.full((2, 3, 5), bad)
    here = torch.tensor([[True, False, False], [False, False, False]])
    sparse = SparseMessage(5, x.dtype, torch.arange(5).expand(2, 3, 5), x)
    seeded = SeededMessage(5, x.dtype, x, cells_and_clients(2, 3))
    for m in (Dense(x), sparse, seeded, ConcatMessage(5, x.dtype, [Dense(x)])):
        part = m.masked(here)
        assert bool((part.decode()[~here] == 0).all())
        assert bool((unpack(part.pack()).decode()[~here] == 0).all())
        assert bool((part.add_to(torch.zeros(2, 3, 5))[~here] == 0).all())
        assert bool((part.sum_clients()[1] == 0).all())
        assert not bool(part.decode()[here].isfinite().any())


def test_masked_twice_needs_both():
    x = gaussian(4, 5)
    a, b = torch.tensor([1, 1, 0, 0]).bool(), torch.tensor([1, 0, 1, 0]).bool()
    assert torch.equal(Dense(x).masked(a).masked(b).decode(), x * (a & b)[:, None])


def test_common_support_without_clients():
    # a stream of cells alone: a row is a cell, and its own
    x = gaussian(3, 10)
    for source, rows in ((stream([1, 2, 3]), x), (stream(1), x[0])):
        want = source.shared().subset(10, 4)
        m = SeededMessage(10, x.dtype, rows.gather(-1, want), source, common=True)
        assert torch.equal(m.support(), want)
        assert torch.equal(unpack(m.pack()).support(), want)


# Damaged bytes ------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(messages(), st.data())
def test_damaged_cut_short_or_prolonged_bytes_are_a_value_error(m, data):
    packed = m.pack()
    flipped, at = bytearray(packed), data.draw(st.integers(0, len(packed) - 1))
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError, match="message"):
        unpack(bytes(flipped))
    with pytest.raises(ValueError, match="message"):
        unpack(packed[: data.draw(st.integers(0, len(packed) - 1))])
    with pytest.raises(ValueError, match="message"):
        unpack(packed + data.draw(st.binary(min_size=1, max_size=9)))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_error(data):
    for text in (data, MAGIC + data):
        with pytest.raises(ValueError, match="message"):
            unpack(text)


def test_every_kind_is_tried():
    by_hand = {"cases", "concat", "flag", "flagged", "dense", "ragged", "factors"}
    # tests/test_nested_messages.py; test_quantisers.py: levels other than 2^q
    by_hand |= {"seeded_support", "rounded"}
    by_operators = set()  # which the conformance kit packs and unpacks
    for name in names("compressor"):
        entry = lookup("compressor", name)
        for params in examples(entry).values():
            q = entry.target(**params).bind(24, 4).operator
            m = q.compress(gaussian(2, 4, 24), cells_and_clients(2, 4))
            by_operators |= {m.kind, *(leaf.kind for leaf in m.leaves())}
    ours = {kind for kind, one in KINDS.items() if one.__module__.startswith("raybench.")}
    assert ours <= by_hand | by_operators, sorted(ours - by_hand - by_operators)
