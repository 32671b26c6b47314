"""Data files from anybody: bombs, headers that lie, numbers that are none. Each is an InputError."""

from __future__ import annotations

import bz2
import gzip
import lzma
import time

import data_kit
import forge
import numpy as np
import pytest
from data_kit import forged_npz, npy

from raybench.core import limits
from raybench.core.errors import InputError
from raybench.data import load
from raybench.problems.clients import Rows
from raybench.spec import values

pytestmark = pytest.mark.thorough

PATIENCE = 2.0  # seconds
PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def refused(path, *words):
    data_kit.refused(load, str(path), *words, file_size=path.stat().st_size)


@pytest.mark.parametrize("ending", PACK)
def test_bombs(tmp_path, ending):
    path = tmp_path / f"bomb{ending}"
    path.write_bytes(PACK[ending](b"1 1:1\n" * 20_000_000))
    assert path.stat().st_size < 600_000
    refused(path, "decompresses to more than 100 times", "decompress it yourself")
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
    refused(again, "a data set may take 10 KiB here", "fewer rows")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"1 2147483647:1\n-1 1:1\n", ["2,147,483,647 features", "GiB", "is the last index right"]),
        (b"1 2147483648:1\n", ["line 1", "too large"]),
        (b"1 " + b"9" * 5000 + b":1\n", ["line 1", "is not index:value"]),
        (b"1 1:" + b"9" * 5000 + b"\n-1 1:1\n", ["line 1", "is not index:value"]),
        (b"1e999 1:1\n", ["line 1", "not a finite number"]),
        (b"\xff\xfe\x00 1:1\n", ["line 1"]),
        (b"1 1:1\n\xff 1:1\n", ["line 2"]),
        (b"\x00" * 1000, ["line 1"]),
        (b"1 1:nan\n-1 1:1\n", ["line 1"]),
        (b"1 1:1+2j\n", ["line 1", "is not index:value"]),
        (b"a,b,c\n1,2,3\n", ["line 1"]),
        (b"PAR1" + bytes(100), ["no text, but Parquet"]),
    ],
)
def test_libsvm_files(tmp_path, monkeypatch, text, words):
    monkeypatch.setattr(limits, "memory_here", lambda: 2**36)
    path = tmp_path / "file"
    path.write_bytes(text)
    refused(path, *words)


def test_a_dense_matrix_that_does_not_fit_is_refused_before_it_is_made(tmp_path):
    path = tmp_path / "wide"
    path.write_text("".join(f"{j % 2} {j + 1}:1 10000000:1\n" for j in range(5000)))
    data = load(str(path))
    rows = Rows.of(data.features, data.labels, [np.arange(5000)])
    with pytest.raises(InputError, match=r"5,000 rows and 10,000,000 features takes 373 GiB"):
        rows.dense()


# npz ------------------------------------------------------------------------------------------------


FEATURES, LABELS = np.ones((4, 3)), np.array([0.0, 1.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("features", "words"),
    [
        (npy(np.zeros(20_000_000)), ["decompresses to more than 100 times"]),
        (npy(FEATURES, shape=(2**40, 3)), ["mine.npz: features"]),
        (npy(FEATURES, shape=(2**62, 2**62)), ["mine.npz: features"]),
        (npy(FEATURES, shape=(-4, -3)), ["mine.npz"]),
        (npy(FEATURES, shape=(4, 2)), ["a header of 8 values"]),
        (npy(FEATURES.astype(complex)), ["holds complex128"]),
        (npy(FEATURES.astype("U8")), ["not real numbers"]),
        (npy(FEATURES.astype("M8[s]")), ["not real numbers"]),
        (npy(FEATURES, descr="|O"), ["Object arrays cannot be loaded"]),
        (npy(FEATURES * np.nan), ["not finite"]),
        (npy(FEATURES[0]), ["labels"]),
        (npy(np.array(3.0)), ["mine.npz"]),
        (b"\x93NUMPY\x02\x00" + b"\xff\xff\xff\xff" + b"{" * 1000, ["mine.npz"]),
        (b"\x93NUMPY\x01\x00" + b"\xff\xff" + b"(" * 65535, ["mine.npz"]),
        (b"\x93NUMPY\x09\x00" + bytes(100), ["mine.npz"]),
        (b"", ["mine.npz"]),
    ],
)
def test_arrays(tmp_path, features, words):
    refused(forged_npz(tmp_path / "mine.npz", features=features, labels=npy(LABELS)), *words)


def test_files_that_are_no_archives(tmp_path):
    path = tmp_path / "mine.npz"
    good = forged_npz(path, features=npy(FEATURES), labels=npy(LABELS)).read_bytes()
    assert load(str(path)).shape == (4, 3)
    for j, data in enumerate((b"", npy(FEATURES), b"\x80\x04]", good[:-30], good[30:], good[:100])):
        other = tmp_path / f"{j}.npz"
        other.write_bytes(data)
        refused(other, other.name)
    refused(forged_npz(tmp_path / "none.npz", features=npy(FEATURES)), "lacks the array labels")


def test_objects_are_never_unpickled(tmp_path):
    class Run:
        def __reduce__(self):
            return (pytest.fail, ("it was unpickled",))

    path = tmp_path / "mine.npz"
    np.savez(path, features=np.array([[Run()], [Run()]], object), labels=np.array([0, 1]))
    refused(path, "features: Object arrays cannot be loaded", "numpy.savez")


# Whatever else ---------------------------------------------------------------------------------------


def test_changed_files_are_read_or_refused():
    """A sample of data files and sweep files; ``make fuzz`` tries more, and other seeds."""
    tally = forge.forge_files(1500, 0, forge.Tally())
    assert not tally.failures, tally.failures[0]
    assert tally.outcomes["refused"] > 300
    assert tally.outcomes["read"] > 20
