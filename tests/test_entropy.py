"""Entropy coding: the same values in fewer bytes, exactly, with the model counted."""

import sys

import numpy as np
import pytest
import torch

import raybench
from raybench.compressors import entropy as wire
from raybench.compressors import unpack
from raybench.core.errors import InputError
from raybench.core.streams import stream
from raybench.testing.vectors import cells_and_clients, gaussian

pytestmark = pytest.mark.thorough

INNER = [
    *("dithering:s=3", "dithering:s=40", "terngrad", "natural", "natural_dithering:s=5", "sign"),
    *("int8", "int8:rounding=stochastic", "nf4", "nf4:double=true", "mxfp4", "mxfp8"),
    *("stochastic_rounding:bits=1", "stochastic_rounding", "stochastic_rounding:bits=24"),
]


def wrapped(text):
    return raybench.compressor("entropy_coded", of=text)


@pytest.mark.parametrize("text", INNER)
@pytest.mark.parametrize("d", [1, 9, 700])
def test_the_same_values_travel(text, d):
    inner, q = raybench.compressor(text), cells_and_clients(2, 3)
    for dtype in (torch.float32, torch.float64):
        x = gaussian(2, 3, d, dtype=dtype)
        m, plain = wrapped(text).compress(x, q), inner.compress(x, q)
        assert torch.equal(m.decode(), plain.decode())
        assert torch.equal(m.scaled(0.7).decode(), plain.scaled(0.7).decode())
        got = unpack(m.pack())
        assert torch.equal(got.decode(), plain.decode())
        assert got.pack() == m.pack()
        assert (m.nbytes <= plain.nbytes + 1).all()
        assert torch.equal(m.bits, 8 * m.nbytes)


def entropy_of(codes):
    _, counts = np.unique(codes, return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


@pytest.mark.parametrize("text", ["dithering:s=3", "dithering:s=200", "natural", "nf4", "int8"])
def test_the_size_is_near_the_entropy(text):
    d = 100_000
    x = gaussian(d, dtype=torch.float32)
    plain = raybench.compressor(text).compress(x)
    m = wrapped(text).compress(x)
    model = 2 * (int(plain.codes.max()) - int(plain.codes.min()) + 1)
    side = wire.side_of(plain).shape[-1]
    bound = d * entropy_of(plain.codes.numpy()) / 8
    assert bound + side <= int(m.nbytes) <= 1.001 * bound + side + model + 16
    assert int(m.nbytes) < plain.nbytes
    if text == "dithering:s=3":  # nearly all levels are zero
        assert int(m.nbytes) < plain.nbytes / 10


@pytest.mark.parametrize("text", ["dithering:s=3", "natural", "nf4"])
def test_a_row_of_one_symbol_costs_its_name(text):
    m = wrapped(text).compress(torch.zeros(2, 10_000))
    assert not unpack(m.pack()).decode().any()
    side = 4 * {"dithering:s=3": 1, "natural": 0, "nf4": 157}[text]
    assert (m.nbytes <= side + 4).all()


def test_rows_that_coding_does_not_shorten_are_sent_as_they_are():
    x = torch.stack((gaussian(20), torch.zeros(20)))
    m = wrapped("dithering:s=100").compress(x)
    plain = raybench.compressor("dithering:s=100").compress(x)
    assert m.payload()[0, 0] == wire.PLAIN
    assert m.nbytes.tolist() == [plain.nbytes + 1, 1 + 8 + 2]  # mode, scale, symbol and number
    assert torch.equal(unpack(m.pack()).decode(), plain.decode())
    wide = gaussian(5000, dtype=torch.float32)  # symbols too many to list
    m = wrapped("stochastic_rounding:bits=24").compress(wide)
    assert int(m.nbytes) == 4 * 5000 + 1
    assert torch.equal(unpack(m.pack()).decode(), wide)


def test_short_and_long_frequencies():
    few = torch.zeros(400)
    few[3], few[7] = 1.0, -1.0
    many = torch.zeros(200_000)
    many[::60_000] = 1.0
    modes = []
    for x in (few, many):
        m = wrapped("terngrad").compress(x)
        modes.append(int(m.payload()[0]))
        assert torch.equal(unpack(m.pack()).decode(), x)
    assert modes == [wire.BYTES, wire.WORDS]


def test_class_and_constants_are_those_of_the_inner_operator():
    for text in ("dithering:s=5", "nf4", "fp16", "int8:rounding=stochastic"):
        op, inner = wrapped(text), raybench.compressor(text)
        for d in (1, 24, 1000):
            for name in ("omega", "alpha", "b1", "b2"):
                assert getattr(op, name)(d) == getattr(inner, name)(d)
        assert op.deterministic == inner.deterministic


def test_a_compound_message_is_coded_by_parts():
    op = wrapped("per_tensor:of=(dithering:s=2),sizes=[[600, 400]]")
    x = gaussian(2, 1000, dtype=torch.float32)
    m = op.compress(x, stream(0).each(range(2)))
    plain = op.part("of").compress(x, stream(0).each(range(2)))
    assert torch.equal(unpack(m.pack()).decode(), plain.decode())
    assert (m.nbytes < plain.nbytes).all()


@pytest.mark.parametrize("text", ["top_k:k=3", "identity", "fp16"])
def test_operators_without_symbols_are_refused(text):
    with pytest.raises(InputError, match="sends no symbols"):
        wrapped(text).compress(gaussian(10))


def test_without_the_library_the_extra_is_named(monkeypatch):
    data = wrapped("terngrad").compress(torch.eye(1, 500)[0]).pack()
    monkeypatch.setitem(sys.modules, "constriction", None)
    with pytest.raises(InputError, match=r"raybench\[entropy\]"):
        wrapped("terngrad")
    with pytest.raises(ValueError, match="does not fit"):
        unpack(data)
