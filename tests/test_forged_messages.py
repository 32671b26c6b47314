"""Messages from anybody: a header with a valid checksum may claim what it likes."""

from __future__ import annotations

import copy
import json
import time

import forge
import pytest
import torch
from processes import memory, reset_peak

import raybench
from raybench.core.streams import stream
from raybench.testing.compressors import same_bits
from raybench.wire import Dense, unpack
from raybench.wire.base import MAGIC, PREFIX, checksum

pytestmark = pytest.mark.thorough

PATIENCE = 2.0  # seconds; what is refused is refused at once
MOST = 100 * 10**6  # bytes of memory


def signed(head, rest):
    """Return a message of any header and any bytes, with the checksum that they need."""
    body = json.dumps(head).encode()
    return PREFIX.pack(MAGIC, checksum(body, [memoryview(rest)]), len(body)) + body + rest


def parts_of(packed):
    cut = PREFIX.size + PREFIX.unpack_from(packed)[2]
    return json.loads(packed[PREFIX.size : cut]), packed[cut:]


def message(text="identity", d=24, lead=(2, 3)):
    x = torch.arange(1.0, 1 + d).expand(*lead, d)
    source = stream(0).spread(tuple(lead))
    return raybench.compressor(text).bind(d, 3).operator.compress(x, source)


def forged(text="identity", rest=None, **lies):
    """Return a compressor's message with some header fields replaced, in its tree and its leaves."""
    head, sent = parts_of(message(text).pack())
    for place in (head["tree"], *head["leaves"]):
        place.update(copy.deepcopy(lies))
    return signed(head, sent if rest is None else rest)


def refused(data, shape=None):
    """Assert that bytes are refused in time and in little memory."""
    before, begin = reset_peak(), time.monotonic()
    with pytest.raises(ValueError, match="message"):
        unpack(data, shape)
    assert time.monotonic() - begin < PATIENCE
    assert memory("VmHWM") - before < MOST


@pytest.mark.parametrize(
    "lead", [[2**31], [2**62], [2**62, 2**62], [0, 2**62], [2**20, 0], [1] * 99]
)
@pytest.mark.parametrize("size", [0, 96, 2**31])
def test_more_rows_than_bytes(lead, size):
    refused(forged(lead=lead, size=size))
    refused(forged(lead=lead, size=size, width=0), (2, 3, 24))
    refused(forged("rand_k:k=3", rest=b"", lead=lead, size=0, width=0, keys=[]))


ENORMOUS = {
    "absent rows of a wide payload": forged(
        present=[False] * 6, size=[0] * 6, width=2**40, d=2**38, rest=b""
    ),
    "levels without bits": forged("terngrad", table="linear", s=0, d=2**40, width=4, size=4),
    "a table of 2^40 levels": forged("natural_dithering", s=2**40, rest=b"", size=0, width=0, d=0),
    "one symbol, 2^40 times": signed(
        {
            "tree": {"kind": "coded"},
            "leaves": [
                {
                    **{"kind": "coded", "lead": [], "d": 2**40, "dtype": "float32", "scale": 1.0},
                    **{"width": 8, "size": 8, "of": {"kind": "dense", "size": 2**40}},
                }
            ],
        },
        bytes(8),
    ),
    "values that nobody sent": forged("rand_k:k=3", d=2**60),
    "coins for 2^40 coordinates": forged("random_sparsification", d=2**40),
    "blocks that nobody sent": forged("block_top_k:k=1,block=8", block=2**40),
    "a block of 2^31 coordinates": forged("block_top_k:k=1,block=8", block=2**31 - 1),
    "a tensor of 2^40 entries": forged(
        "cp", dims=[1, 2**40], ranks=[0], d=1, rest=b"", size=0, width=0
    ),
    "a product of 2^40 entries": forged("power_step", a=2**20, b=2**20, rest=b"", size=0, width=0),
    "strings for sizes": forged(size=["x" * 10**6, *["y"] * 5]),
    "a number of a million digits": forged(d=int("9" * 4000)),
}


@pytest.mark.parametrize("what", ENORMOUS)
def test_what_is_claimed_is_not_made(what):
    refused(ENORMOUS[what])


def test_messages_within_messages():
    head, rest = parts_of(message().pack())
    for depth in (100, 100_000):
        tree = json.dumps(head["tree"])
        outer = '{"kind": "concat", "d": 24, "dtype": "float32", "scale": 1.0, "parts": ['
        text = outer * depth + tree + "]}" * depth
        body = f'{{"tree": {text}, "leaves": {json.dumps(head["leaves"])}}}'.encode()
        data = PREFIX.pack(MAGIC, checksum(body, [memoryview(rest)]), len(body)) + body + rest
        refused(data)


def test_a_header_of_many_objects():
    refused(signed({"tree": [[] for _ in range(3_000_000)], "leaves": []}, b""))


@pytest.mark.parametrize(
    "lies",
    [
        *({"scale": scale} for scale in (1e39, 1e400, -1e400, 2**64 * 10**400, "1", None, True)),
        *({"d": d} for d in (23, 25, -1, 24.0, "24", True)),
        *({"size": size} for size in ([96] * 5, [96] * 7, [95] * 6, 95, -1, [[96]] * 6, 96.0)),
        *({"present": present} for present in ([True] * 5, [1] * 6, "yes", [False] * 6)),
    ],
    ids=str,
)
def test_fields_that_do_not_fit(lies):
    refused(forged(**lies))


def test_compounds_whose_parts_do_not_fit():
    head, rest = parts_of(Dense(torch.ones(2, 3, 4)).pack())
    leaf = head["leaves"][0]
    for kind in ("concat", "sum", "nested", "scaled", "flagged", "cases"):
        for count in (0, 1, 2, 3):
            tree = {"kind": kind, "d": 4, "dtype": "float32", "scale": 1.0, "parts": [leaf] * count}
            tree |= {"cells": [[0, 1]] * count}
            data = signed({"tree": tree, "leaves": [leaf] * count}, rest * count)
            if (kind, count) in {("concat", 1), ("sum", 1), ("sum", 2), ("sum", 3), ("cases", 1)}:
                assert unpack(data).decode().shape == (2, 3, 4)
            else:
                refused(data)
            refused(signed({"tree": tree, "leaves": [leaf] * (count + 1)}, rest * (count + 1)))


def test_a_receiver_says_what_shape_must_come():
    for text in ("identity", "top_k:k=3", "terngrad", "random_sparsification", "perm_k", "natural"):
        m = message(text)
        data = m.pack()
        assert torch.equal(unpack(data, (2, 3, 24)).decode(), m.decode())
        for other in ((2, 3, 25), (3, 2, 24), (24,), (2, 3), ()):
            with pytest.raises(ValueError, match=r"the message is of shape \(2, 3, 24\), not"):
                unpack(data, other)


def test_what_grows_with_d_alone_needs_the_shape():
    """A long row of equal symbols takes some bytes; who expects so long a row says so."""
    d = 20_000_000
    m = raybench.compressor("entropy_coded:of=terngrad").compress(torch.zeros(d))
    data = m.pack()
    assert len(data) < 1000
    refused(data)
    assert unpack(data, (d,)).d == d


def test_absent_rows_need_the_shape_where_they_are_large():
    present = torch.zeros(1, 200, dtype=torch.bool)
    present[0, 0] = True
    data = Dense(torch.ones(1, 200, 100_000)).masked(present).pack()
    refused(data)
    assert unpack(data, (1, 200, 100_000)).decode().sum() == 100_000


@pytest.mark.parametrize("d", [1, 2, 24, 1000])
def test_honest_messages_are_not_refused(d):
    for m in forge.honest_messages(d):
        for shape in (None, (*m.lead, d)):
            assert same_bits(unpack(m.pack(), shape).decode(), m.decode()), m.kind


def test_forged_messages_are_refused_or_decode():
    """A sample; ``make fuzz`` tries more, and other seeds."""
    tally = forge.forge_messages(3000, 0, forge.Tally())
    assert not tally.failures, tally.failures[0]
    assert tally.outcomes["refused"] > 1000
    assert tally.outcomes["decoded"] > 200
