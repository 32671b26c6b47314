"""Messages: round trips of every kind, composed ones too, damaged bytes, parts of compounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import raybench
from raybench.compressors.composed import (
    NestedMessage,
    ScaledMessage,
    SeededSupportMessage,
    SumMessage,
    SupportMessage,
)
from raybench.core.streams import stream
from raybench.testing.compressors import assert_bits_fit_bytes, same_bits
from raybench.testing.vectors import cells_and_clients, gaussian
from raybench.wire import (
    CasesMessage,
    ConcatMessage,
    Dense,
    DenseMessage,
    ExponentsMessage,
    FactorsMessage,
    LevelsMessage,
    RaggedMessage,
    SeededMessage,
    SparseMessage,
    bitpack,
    choose,
    index_cost,
    unpack,
)
from raybench.wire.transport import on_virtual_ranks, share_of

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
    assert_bits_fit_bytes(m)
    assert back.pack() == unpack(back.pack()).pack()


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


# Messages of composed compressors, and the best factor of one -------------------------------------


D = 24


def op(text, **params):
    return raybench.compressor(text, **params)


# Messages ------------------------------------------------------------------------------------------

PLAIN_OPERATORS = """
identity zero top_k:k=3 rand_k:k=3 rand_k:k=3,mask=common perm_k shared_mask
natural dithering:s=3 natural_dithering terngrad scaled_sign
"""
COMPOSED = {
    "nested": "chain:first=(top_k:k=40%),then=natural",
    "nested in nested": "chain:first=(top_k:k=50%),then=(chain:first=(rand_k:k=50%),then=natural)",
    "seeded": "chain:first=(rand_k:k=40%),then=(dithering:s=3)",
    "common": "chain:first=(rand_k:k=40%,mask=common),then=natural",
    "sum": "induced:first=(top_k:k=20%),then=(rand_k:k=30%)",
    "sum of dense": "two_shot:first=natural,then=svd",
    "scaled": "optimal_rescale:of=(chain:first=(top_k:k=40%),then=natural)",
    "scaled dense": "optimal_rescale:of=dithering,correct=true",
    "concat": "per_tensor:of=(chain:first=(rand_k:k=50%),then=natural),sizes=[[7,1,13]]",
}


def sent_by(name, seed=0, here=range(4), dtype=torch.float64, d=21, cells=3, most=4):
    """A message of a kind for the clients here, the factors of a role and of a sum in it."""
    x = gaussian(cells, most, d, seed=seed, dtype=dtype)[:, here.start : here.stop]
    q = stream(range(cells)).each(list(here))
    return op(COMPOSED.get(name, name)).bind(d, most).compressor.compress(x, q).scaled(1 / 3)


def of_two_kinds(here=range(4), **how):
    """Cell 1 sends a flag and dense values, cells 2 and 0 send few of them."""
    dense = sent_by("identity", here=here, **how)
    flags = dense.decode()[..., 0] > 0
    both, few = (
        choose(flags, dense, sent_by("identity", seed=1, here=here, **how)),
        sent_by("top_k:k=3", here=here, **how),
    )
    cells = [torch.tensor([1]), torch.tensor([2, 0])]
    parts = [part.select(own) for part, own in zip((both, few), cells)]
    return CasesMessage(few.d, few.dtype, cells, parts, scale=0.5)


@pytest.mark.parametrize("name", [*PLAIN_OPERATORS.split(), *COMPOSED, "cases"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_messages_survive_packing_and_ranks(name, dtype):
    """What a rank gathers decodes to what all clients sent, bit for bit, at the same cost."""

    def made(**where):
        if name == "cases":
            return of_two_kinds(dtype=dtype, **where)
        return sent_by(name, dtype=dtype, **where)

    whole = made()
    value = whole.decode()
    here = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1]]).bool()
    part = whole.masked(here)
    assert same_bits(unpack(part.pack()).decode(), value * here[..., None])
    assert same_bits(unpack(whole.row(2, 1).pack()).decode(), value[2, 1])
    assert same_bits(whole.select(torch.tensor([2, 0])).decode(), value[[2, 0]])
    assert torch.equal(unpack(part.pack()).bits, part.bits)

    def work(transport):
        mine = share_of(transport.rank, 3, 4)
        m = made(here=mine)
        few = m.masked(here[:, mine.start : mine.stop])
        return transport.gather(m, 4), transport.gather(few, 4)

    for gathered, masked in on_virtual_ranks(3, work):
        assert torch.equal(gathered.decode(), value)
        assert torch.equal(gathered.sum_clients(), whole.sum_clients())
        for got, want in ((gathered, whole), (masked, part)):
            assert torch.equal(got.bits, want.bits)
            sizes = (torch.as_tensor(m.nbytes).expand(m.lead) for m in (got, want))
            assert torch.equal(*sizes)
        assert torch.equal(masked.sum_clients(), part.sum_clients())


OTHERS = (
    "identity",
    "perm_k",
    "hard_threshold:threshold=1",
)  # the last in rows of different length


@pytest.mark.parametrize("name", [*OTHERS, *COMPOSED])
def test_choices_between_compounds(name):
    q = cells_and_clients(3, 4)
    own = op(COMPOSED.get(name, name)).bind(21, 4).compressor
    first, second = (own.compress(gaussian(3, 4, 21, seed=s), q) for s in (1, 3))
    mask = torch.arange(12).view(3, 4) % 3 == 0
    for yes, no in ((first, second), (second, first)):
        both = choose(mask, yes, no)
        want = torch.where(mask[..., None], yes.decode(), no.decode())
        assert torch.equal(both.decode(), want)
        assert torch.equal(both.flags, mask)
        assert torch.equal(both.bits, torch.where(mask, yes.bits, no.bits) + 1)
        assert same_bits(unpack(both.pack()).decode(), want)
        torch.testing.assert_close(both.sum_clients(), want.sum(-2))
        torch.testing.assert_close(both.add_to(torch.ones_like(want)), want + 1)
        half = choose(mask, yes.masked(mask), no.masked(mask))
        assert torch.equal(half.decode(), want * mask[..., None])
        assert torch.equal(half.bits, both.bits * mask)


def test_choices_need_messages_made_alike():
    x, q = gaussian(3, 4, 21), cells_and_clients(3, 4)
    mask = torch.ones(3, 4, dtype=torch.bool)
    chain = [op(COMPOSED["seeded"]).compress(x, s) for s in (q, q.fold(1))]
    with pytest.raises(TypeError, match="same stream"):
        choose(mask, *chain)
    for other in ("nested", "sum", "concat"):
        with pytest.raises(TypeError, match="same simple kind"):
            choose(mask, chain[0], op(COMPOSED[other]).compress(x, q))
    dense = Dense(x)
    for other in (dense.scaled(2.0), SeededMessage(21, x.dtype, x[..., :2], q)):
        with pytest.raises(TypeError, match="same simple kind"):
            choose(mask, dense, other)
    fewer = SumMessage(21, x.dtype, [DenseMessage(21, x.dtype, x)])
    more = SumMessage(21, x.dtype, [DenseMessage(21, x.dtype, x)] * 2)
    with pytest.raises(TypeError, match="as many parts"):
        choose(mask, fewer, more)


@given(st.integers(2, 60), st.data(), st.sampled_from([torch.float64, torch.float32]))
@settings(max_examples=40, deadline=None)
def test_nested_bits_book_the_indices_once(d, data, dtype):
    k = data.draw(st.integers(1, d - 1))
    x = gaussian(2, 3, d, dtype=dtype)
    wide, width = 8 * dtype.itemsize, 12 if dtype == torch.float64 else 9
    m = op("chain", first=f"top_k:k={k}", then="natural").compress(x)
    assert isinstance(m, NestedMessage)
    assert (m.bits == index_cost(d, k).index_auto + k * width).all()
    top = op("top_k", k=k).compress(x)
    size = top.nbytes - k * dtype.itemsize + -(-k * width // 8)
    assert m.cost == top.cost._replace(values=0, raw=k * width, bytes=size)
    seeded = op("chain", first=f"rand_k:k={k}", then="natural").compress(x)
    assert (seeded.bits == k * width).all()
    assert (op("chain", first=f"rand_k:k={k}", then="identity").compress(x).bits == k * wide).all()


def test_the_second_acts_on_the_kept_values():
    x, q = gaussian(3, 4, D), cells_and_clients(3, 4)
    m = op("chain:first=(rand_k:k=6),then=(dithering:s=2)").compress(x, q)
    first = op("rand_k:k=6").compress(x, q.fold("first"))
    then = op("dithering:s=2").compress(first.values.contiguous(), q.fold("then"))
    want = SeededMessage(D, x.dtype, then.decode(), first.source, scale=4.0)
    assert torch.equal(m.decode(), want.decode())
    dense = op("chain:first=natural,then=(top_k:k=3)").compress(x, q)
    assert isinstance(dense, SparseMessage)


def test_sparse_compounds_touch_only_their_support():
    """Adding 0.0 to -0.0 gives 0.0: what stays -0.0 was not written to."""
    for name in ("nested", "common", "scaled", "sum"):
        m = sent_by(name, d=200)
        target = torch.full((3, 4, 200), -0.0, dtype=torch.float64)
        m.add_to(target)
        assert torch.equal(torch.signbit(target) & (target == 0), m.decode() == 0), name


def test_broadcasts_of_sums_cost_the_union_of_supports():
    x, q = gaussian(3, 4, 60), cells_and_clients(3, 4)
    here = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1]]).bool()
    for text in (
        "chain:first=(top_k:k=5),then=natural",
        "optimal_rescale:of=(chain:first=(top_k:k=5),then=natural)",
        "two_shot:first=(top_k:k=3),then=(top_k:k=2)",
        "optimal_rescale:of=(top_k:k=4),correct=true",
    ):
        for m in (op(text).compress(x, q), op(text).compress(x, q).masked(here)):
            cost = m.union()
            counts = (m.decode() != 0).any(1).sum(-1).tolist()
            want = [index_cost(60, k)._replace(values=k, messages=1) for k in counts]
            want = [w._replace(bytes=8 * w.values + -(-w.index_auto // 8)) for w in want]
            result = [[float(torch.as_tensor(c).expand(3)[b]) for c in cost] for b in range(3)]
            assert result == [list(map(float, w)) for w in want], text
    parts = op("per_tensor:of=(top_k:k=5),sizes=[[20,40]]").compress(x)
    result = torch.as_tensor(parts.union().values)
    assert result.tolist() == (parts.decode() != 0).any(1).sum(-1).tolist()
    assert op("induced").compress(x, q).union().values.shape == (3,)
    assert op("two_shot:then=natural").compress(x, q).union().values == 60
    flagged = choose(here, op("top_k:k=5").compress(x), op("top_k:k=5").compress(-x))
    assert torch.equal(flagged.union().values, op("top_k:k=5").compress(x).union().values)


def test_the_second_of_a_chain_gets_what_is_kept():
    x, q = gaussian(3, 4, D), cells_and_clients(3, 4)
    for first, length in [
        ("top_k:k=6", 6),
        ("rand_k:k=6", 6),
        ("block_top_k:k=2,block=8", 6),
        ("optimal_rescale:of=(top_k:k=6)", 6),
        ("chain:first=(top_k:k=12),then=(rand_k:k=6)", 6),
        ("natural", D),
        ("top_k:k=24", D),
        ("hard_threshold:threshold=0.5", D),
        ("zero", D),
    ]:
        both = op("chain", first=first, then="dithering:s=7")
        assert both.length(D) == length, first
        leaves = both.compress(x, q).leaves()
        assert leaves[-1].d == length, first
        assert leaves[-1].kind == "levels"


def test_supports_on_their_own():
    x, q = gaussian(3, 4, D), cells_and_clients(3, 4)
    top, rand = op("top_k:k=5").compress(x, q), op("rand_k:k=5").compress(x, q)
    here = torch.arange(12).view(3, 4) % 2 == 0
    for where, like in (
        (SupportMessage(D, x.dtype, top.indices), top),
        (SeededSupportMessage.of(rand), rand),
    ):
        ones = torch.zeros(3, 4, D, dtype=x.dtype).scatter_(-1, like.support(), 1.0)
        for m, want in ((where, ones), (where.masked(here), ones * here[..., None])):
            assert torch.equal(m.decode(), want)
            assert torch.equal(unpack(m.pack()).decode(), want)
        assert where.bits.unique().tolist() == [like.cost.index_auto]


def test_scaled_messages_of_odd_numbers():
    x = gaussian(3, 4, D)
    factor = torch.tensor([0.0, math.nan, math.inf, 2.0], dtype=x.dtype)[:, None].expand(3, 4, 1)
    for inner in (op("top_k:k=5"), op("natural")):
        m = ScaledMessage.of(factor, inner.compress(x))
        assert same_bits(unpack(m.pack()).decode(), m.decode())
        assert not m.decode()[:, 0].any()
        assert not m.decode()[:, 1:3].isfinite().all(-1).any()


@given(
    rows=st.integers(0, 3),
    m=st.integers(0, 4),
    before=st.integers(0, 9),
    behind=st.integers(0, 9),
    dtype=DTYPES,
    is_ours=st.booleans(),
)
def test_values_are_read_wherever_they_lie(rows, m, before, behind, dtype, is_ours):
    """Between other bytes, at any place; of memory that is not torch's they are a copy."""
    x = torch.arange(1.0, 1 + rows * m, dtype=dtype).reshape(rows, m)
    sent = bitpack.to_bytes(x)
    around = np.zeros((rows, before + sent.shape[-1] + behind), np.uint8)
    held = torch.from_numpy(around).clone() if is_ours else torch.from_numpy(around)
    part = held[:, before : before + sent.shape[-1]]
    part.copy_(sent)
    read = bitpack.from_bytes(part, dtype)
    assert torch.equal(read, x)
    if not is_ours:
        around[:] = 255
        assert torch.equal(read, x)
