"""What strangers send: messages with valid checksums that lie, data files that are bombs; all is refused at once."""

from __future__ import annotations

import bz2
import copy
import gzip
import json
import lzma
import time

import data_kit
import forge
import numpy as np
import pytest
import torch
from data_kit import forged_npz, npy
from processes import memory, reset_peak

import raybench
from raybench.core import limits
from raybench.core.errors import InputError
from raybench.core.streams import stream
from raybench.data import load
from raybench.problems.clients import Rows
from raybench.spec import values
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
    return raybench.compressor(text).bind(d, 3).compressor.compress(x, source)


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
    "coins for 2^40 coordinates": forged("random_sparsification", d=2**40),
    "a block of 2^31 coordinates": forged("block_top_k:k=1,block=8", block=2**31 - 1),
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


def test_absent_rows_need_the_shape_where_they_are_large():
    present = torch.zeros(1, 200, dtype=torch.bool)
    present[0, 0] = True
    data = Dense(torch.ones(1, 200, 100_000)).masked(present).pack()
    refused(data)
    assert unpack(data, (1, 200, 100_000)).decode().sum() == 100_000


# Data files: bombs, headers that lie, numbers that are none; each is an InputError ----------------


PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def refused_data(path, *words):
    data_kit.refused(load, str(path), *words, file_size=path.stat().st_size)


@pytest.mark.parametrize("ending", PACK)
def test_bombs(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(limits, "FREE", 1 << 20)
    path = tmp_path / f"bomb{ending}"
    path.write_bytes(PACK[ending](b"1 1:1\n" * 2_000_000))
    assert path.stat().st_size < 60_000
    refused_data(path, "decompresses to more than 100 times", "decompress it yourself")
    # the plan hashes the file before it is loaded
    begin = time.monotonic()
    with pytest.raises(InputError, match="more than 100 times"):
        values.content_hash(str(path), "problem.dataset")
    assert time.monotonic() - begin < PATIENCE


@pytest.mark.parametrize("ending", ["", *PACK])
def test_files_larger_than_a_quarter_of_the_memory(tmp_path, monkeypatch, ending):
    path = tmp_path / f"large{ending}"
    path.write_bytes(PACK.get(ending, bytes)(b"1 1:1\n-1 1:2\n" * 1000))
    assert load(str(path)).shape == (2000, 1)
    again = path.rename(tmp_path / f"again{ending}")
    monkeypatch.setattr(limits, "memory_here", lambda: 40 << 10)
    refused_data(again, "a data set may take 10 KiB here", "fewer rows")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"1 2147483647:1\n-1 1:1\n", ["2,147,483,647 features", "GiB", "is the last index right"]),
        (b"1 2147483648:1\n", ["line 1", "2147483648"]),
        (b"1 " + b"9" * 5000 + b":1\n", ["line 1", "a line is: label index:value"]),
        (b"1 1:" + b"9" * 5000 + b"\n-1 1:1\n", ["line 1", "not finite"]),
        (b"\xff\xfe\x00 1:1\n", ["no text"]),
        (b"1 1:1\n\xff 1:1\n", ["line 2"]),
        (b"1 1:1+2j\n", ["line 1", "1+2j"]),
        (b"a,b,c\n1,2,3\n", ["line 1"]),
        (b"PAR1" + bytes(100), ["no text, but Parquet"]),
    ],
)
def test_libsvm_files(tmp_path, monkeypatch, text, words):
    monkeypatch.setattr(limits, "memory_here", lambda: 2**36)
    path = tmp_path / "file"
    path.write_bytes(text)
    refused_data(path, *words)


def test_a_dense_matrix_that_does_not_fit_is_refused_before_it_is_made(tmp_path):
    path = tmp_path / "wide"
    path.write_text("".join(f"{j % 2} {j + 1}:1 10000000:1\n" for j in range(5000)))
    wide = load(str(path))
    rows = Rows.of(wide.features, wide.labels, [np.arange(5000)])
    with pytest.raises(InputError, match=r"5,000 rows and 10,000,000 features takes 373 GiB"):
        rows.dense()


# npz ------------------------------------------------------------------------------------------------


FEATURES, LABELS = np.ones((4, 3)), np.array([0.0, 1.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (npy(np.zeros(20_000_000)), ["decompresses to more than 100 times"]),
        (npy(FEATURES, shape=(2**40, 3)), ["mine.npz: features"]),
        (npy(FEATURES, shape=(-4, -3)), ["mine.npz"]),
        (npy(FEATURES, shape=(4, 2)), ["a header of 8 values"]),
        (npy(FEATURES.astype(complex)), ["holds complex128"]),
        (npy(FEATURES.astype("M8[s]")), ["not real numbers"]),
        (npy(FEATURES, descr="|O"), ["Object arrays cannot be loaded"]),
        (npy(FEATURES * np.nan), ["not finite"]),
        (npy(FEATURES[0]), ["labels"]),
        (b"\x93NUMPY\x02\x00" + b"\xff\xff\xff\xff" + b"{" * 1000, ["mine.npz"]),
        (b"\x93NUMPY\x01\x00" + b"\xff\xff" + b"(" * 65535, ["mine.npz"]),
        (b"", ["mine.npz"]),
    ],
)
def test_arrays(tmp_path, features, words):
    refused_data(forged_npz(tmp_path / "mine.npz", features=features, labels=npy(LABELS)), *words)


def test_files_that_are_no_archives(tmp_path):
    path = tmp_path / "mine.npz"
    good = forged_npz(path, features=npy(FEATURES), labels=npy(LABELS)).read_bytes()
    assert load(str(path)).shape == (4, 3)
    for j, data in enumerate((b"", npy(FEATURES), b"\x80\x04]", good[:-30], good[30:], good[:100])):
        other = tmp_path / f"{j}.npz"
        other.write_bytes(data)
        refused_data(other, other.name)
    bare = forged_npz(tmp_path / "none.npz", features=npy(FEATURES))
    refused_data(bare, "lacks the array labels")


def test_objects_are_never_unpickled(tmp_path):
    class Run:
        def __reduce__(self):
            return (pytest.fail, ("it was unpickled",))

    path = tmp_path / "mine.npz"
    np.savez(path, features=np.array([[Run()], [Run()]], object), labels=np.array([0, 1]))
    refused_data(path, "features: ValueError: Object arrays cannot be loaded", "numpy.savez")


# Whatever else ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forgery", "tries", "refusals", "reads"),
    [(forge.forge_files, 1500, 300, 20), (forge.forge_messages, 3000, 1000, 200)],
    ids=["files", "messages"],
)
def test_what_was_changed_is_read_or_refused(forgery, tries, refusals, reads):
    """A sample of data files and sweep files, and of messages; ``make fuzz`` tries more, and other seeds."""
    tally = forgery(tries, 0, forge.Tally())
    assert not tally.failures, tally.failures[0]
    assert tally.outcomes["refused"] > refusals
    assert tally.outcomes["read"] + tally.outcomes["decoded"] > reads
