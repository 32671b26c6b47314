"""Messages of composed compressors: bytes, ranks, choices, bits; and the best factor of one."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import raybench
from raybench.compressors import choose, unpack
from raybench.compressors.composed import (
    NestedMessage,
    ScaledMessage,
    SeededSupportMessage,
    SumMessage,
    SupportMessage,
)
from raybench.core.streams import stream
from raybench.testing.compressors import same_bits
from raybench.testing.vectors import cells_and_clients, gaussian
from raybench.wire import (
    CasesMessage,
    Dense,
    DenseMessage,
    SeededMessage,
    SparseMessage,
    index_cost,
)
from raybench.wire.transport import on_virtual_ranks, share_of

D = 24


def op(text, **params):
    return raybench.compressor(text, **params)


# Messages ------------------------------------------------------------------------------------------

SIMPLE = """
identity zero top_k:k=3 rand_k:k=3 rand_k:k=3,mask=common perm_k shared_mask
natural dithering:s=3 natural_dithering terngrad scaled_sign
"""
KINDS = {
    "nested": "chain:first=(top_k:k=40%),then=natural",
    "nested in nested": "chain:first=(top_k:k=50%),then=(chain:first=(rand_k:k=50%),then=natural)",
    "seeded": "chain:first=(rand_k:k=40%),then=(dithering:s=3)",
    "common": "chain:first=(rand_k:k=40%,mask=common),then=natural",
    "sum": "induced:first=(top_k:k=20%),then=(rand_k:k=30%)",
    "sum of dense": "two_shot:first=natural,then=svd",
    "entropy": "entropy_coded:of=terngrad",
    "scaled": "optimal_rescale:of=(chain:first=(top_k:k=40%),then=natural)",
    "scaled dense": "optimal_rescale:of=dithering,correct=true",
    "concat": "per_tensor:of=(chain:first=(rand_k:k=50%),then=natural),sizes=[[7,1,13]]",
}


def sent(name, seed=0, here=range(4), dtype=torch.float64, d=21, cells=3, most=4):
    """A message of a kind for the clients here, the factors of a role and of a sum in it."""
    x = gaussian(cells, most, d, seed=seed, dtype=dtype)[:, here.start : here.stop]
    q = stream(range(cells)).each(list(here))
    return op(KINDS.get(name, name)).bind(d, most).operator.compress(x, q).scaled(1 / 3)


def of_two_kinds(here=range(4), **how):
    """Cell 1 sends a flag and dense values, cells 2 and 0 send few of them."""
    dense = sent("identity", here=here, **how)
    flags = dense.decode()[..., 0] > 0
    both, few = (
        choose(flags, dense, sent("identity", seed=1, here=here, **how)),
        sent("top_k:k=3", here=here, **how),
    )
    cells = [torch.tensor([1]), torch.tensor([2, 0])]
    parts = [part.select(own) for part, own in zip((both, few), cells)]
    return CasesMessage(few.d, few.dtype, cells, parts, scale=0.5)


@pytest.mark.parametrize("name", [*SIMPLE.split(), *KINDS, "cases"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_messages_survive_packing_and_ranks(name, dtype):
    """What a rank gathers decodes to what all clients sent, bit for bit, at the same cost."""

    def made(**where):
        if name == "cases":
            return of_two_kinds(dtype=dtype, **where)
        return sent(name, dtype=dtype, **where)

    whole = made()
    value = whole.decode()
    here = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1]]).bool()
    part = whole.masked(here)
    assert same_bits(unpack(part.pack()).decode(), value * here[..., None])
    assert same_bits(unpack(whole.row(2, 1).pack()).decode(), value[2, 1])
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


@pytest.mark.parametrize("name", [*OTHERS, *KINDS])
def test_choices_between_compounds(name):
    q = cells_and_clients(3, 4)
    own = op(KINDS.get(name, name)).bind(21, 4).operator
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
    chain = [op(KINDS["seeded"]).compress(x, s) for s in (q, q.fold(1))]
    with pytest.raises(TypeError, match="same stream"):
        choose(mask, *chain)
    for other in ("nested", "sum", "concat"):
        with pytest.raises(TypeError, match="same simple kind"):
            choose(mask, chain[0], op(KINDS[other]).compress(x, q))
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
        m = sent(name, d=200)
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
