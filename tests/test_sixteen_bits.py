"""Tensors of float16 and bfloat16: sent at 16 bits a value, decoded in float32, rounded at the end."""

from __future__ import annotations

import math

import pytest
import torch

from raybench import compressor
from raybench.compressors import Compressor
from raybench.core.registry import lookup, names
from raybench.testing.compressors import assert_bits_fit_bytes, examples, same_bits
from raybench.testing.vectors import cells_and_clients, gaussian
from raybench.wire import HALVES, Dense, DenseMessage, RaggedMessage, unpack


@pytest.fixture(params=HALVES, ids=str)
def dtype(request):
    return request.param


REGISTERED = {
    label: (name, params)
    for name in names("compressor")
    for label, params in examples(lookup("compressor", name)).items()
}


REGISTERED["rounding:levels=1,1.5"] = ("rounding", {"levels": (1, 1.5)})


@pytest.mark.thorough
@pytest.mark.parametrize("label", REGISTERED)
def test_every_registered_operator_takes_them(label, dtype):
    """For all parameters that the conformance kit tries: bytes, round trip, and 16 bits a value."""
    name, params = REGISTERED[label]
    op = lookup("compressor", name).target(**params).bind(24, 4).compressor
    x, q = gaussian(3, 4, 24, dtype=torch.float32).to(dtype), cells_and_clients(3, 4)
    m, wide = op.compress(x, q), op.compress(x.float(), q)
    value = m.decode()
    assert (value.shape, value.dtype, m.dtype) == (x.shape, dtype, dtype)
    assert value.isfinite().all()
    assert_bits_fit_bytes(m)
    saved = wide.bits.double() - m.bits
    assert torch.equal(saved, 16 * torch.as_tensor(wide.cost.values).double().expand(m.lead))
    back = unpack(m.pack())
    assert (back.dtype, back.bits.tolist()) == (dtype, m.bits.tolist())
    assert same_bits(back.decode(), value)
    assert same_bits(back.sum_clients(), m.sum_clients())
    # values of 16 bits carry an error of eps/2 each, which factors of at most 24 (Rand-1) carry on
    size = wide.decode().double().norm(dim=-1)
    kept = m.decode(out=torch.empty(x.shape))
    off = (kept - wide.decode()).double().norm(dim=-1)
    assert (off <= 4 * torch.finfo(dtype).eps * size).all(), float((off / size).max())
    assert same_bits(kept.to(dtype), value)
    assert same_bits(m.to(torch.float32).to(dtype).decode(), value)


def test_what_is_selected_is_sent_exactly(dtype):
    x = gaussian(3, 40, dtype=torch.float32).to(dtype)
    for name in ("identity", "top_k:k=5", "rtop_k:k=5", "block_top_k:k=1,block=7", "dgc:k=10"):
        value = compressor(name).compress(x).decode()
        assert torch.equal(value, torch.where(value != 0, x, value)), name
        assert (value != 0).any(-1).all()


def test_factors_do_not_overflow():
    """d/k = 12 times 40,000 is beyond float16, not beyond what receivers add up in."""
    x = torch.full((2, 3, 12), 4e4, dtype=torch.float16)
    m = compressor("rand_k", k=1).compress(x, cells_and_clients(2, 3))
    assert m.nbytes == 2
    value = m.decode(out=torch.zeros(2, 3, 12))
    assert torch.equal(value.amax(-1), torch.full((2, 3), 12 * float(x[0, 0, 0])))
    assert m.decode().isinf().any(-1).all()  # float16 has no such number
    assert torch.equal(m.add_to(torch.ones(2, 3, 12)), value + 1)
    assert torch.equal(m.sum_clients(), value.sum(-2))
    assert torch.equal(unpack(m.pack()).sum_clients(), value.sum(-2))
    one = compressor("l1_sampling").compress(x[0, 0])
    assert one.decode(out=torch.zeros(12)).sum() == 12 * float(x[0, 0, 0])


def test_sums_and_targets_of_any_width(dtype):
    x = gaussian(2, 3, 8, dtype=torch.float32).to(dtype)
    m = Dense(x)
    assert m.sum_clients().dtype == torch.float32
    torch.testing.assert_close(m.sum_clients(), x.float().sum(-2))
    for other in (dtype, torch.float32, torch.float64):
        target = torch.ones(2, 3, 8, dtype=other)
        assert m.add_to(target) is target
        assert torch.equal(target, (x.float() + 1).to(other))
    out = torch.empty_like(x)
    assert m.decode(out=out) is out
    assert torch.equal(out, x)
    loose = torch.empty(2, 8, 3, dtype=dtype).mT
    assert torch.equal(m.decode(out=loose), x)
    for wrong in (torch.float64, torch.int16):
        with pytest.raises(ValueError, match="the message decodes to"):
            m.decode(out=torch.empty(2, 3, 8, dtype=wrong))


def test_a_cast_leaves_the_original(dtype):
    x = gaussian(2, 8, dtype=torch.float32)
    m = DenseMessage(8, torch.float32, x)
    half = m.to(dtype)
    assert (m.dtype, m.values.dtype, half.values.dtype) == (torch.float32, torch.float32, dtype)
    assert half.nbytes == m.nbytes // 2


class Hides(Compressor):
    """Says nothing of 16 bits, as a user's compressor may: it sees float32 alone."""

    def encode(self, x, stream):
        assert x.dtype == torch.float32
        assert x.is_contiguous()
        lead = x.shape[:-1]
        where = torch.zeros(*lead, 1, dtype=torch.int64)
        counts = torch.ones(lead, dtype=torch.int64)
        return RaggedMessage(x.shape[-1], x.dtype, counts, where, x[..., :1].clone())


def test_an_operator_of_a_user_needs_to_know_nothing(dtype):
    x = gaussian(5, 2, 3, dtype=torch.float32).to(dtype).transpose(0, 1)
    bound = Hides().bind(3)
    for m in (Hides().compress(x), bound(x, cells_and_clients(2, 5))):
        assert m.dtype == dtype
        assert torch.equal(m.decode()[..., 0], x[..., 0])
        assert (m.decode()[..., 1:] == 0).all()


def test_what_is_not_finite_shows(dtype):
    x = torch.tensor([1.0, math.nan, -math.inf, 2.0], dtype=dtype)
    for name in ("identity", "top_k:k=2", "rand_k:k=4"):
        value = compressor(name).compress(x).decode()
        assert value[1].isnan()
        assert value[2] == -math.inf
