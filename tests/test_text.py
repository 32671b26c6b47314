"""Text as sequences of tokens: which tokens, which windows, which part, and what is refused."""

from __future__ import annotations

import bz2
import gzip
import lzma
from functools import partial

import data_kit
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raybench.core import limits
from raybench.data import text

pytestmark = pytest.mark.thorough

PACK = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
SAID = "the quick brown fox jumps over the lazy dog\n" * 5
# name: characters, distinct ones, checksum of the training part for sequences of 64
REAL = {
    "shakespeare": (1115394, 65, "a2e4aabb9763"),
    "wikitext2_valid": (1120192, 122, "64a6dfa2a1e9"),
    "wikitext2_test": (1255018, 120, "4a01a982d664"),
}


complaint = partial(data_kit.complaint, text)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "said.txt"
    path.write_text(SAID)
    return path


@pytest.mark.parametrize("name", REAL)
def test_real_texts(data_folder, name):
    if not list((data_folder / "text").glob(f"{name}.txt*")):
        pytest.skip(f"the data folder has no text/{name}.txt")
    characters, distinct, checksum = REAL[name]
    pair = text(name, 64)
    assert pair.train.classes == distinct
    count = (characters - 1) // 64
    assert len(pair.test) == round(count / 10)
    assert len(pair.train) + len(pair.test) == count
    assert pair.train.checksum.startswith(checksum)
    raw = text(name, 64, "byte").train
    assert raw.classes == 256
    want = "First Citizen:\nBefore" if name == "shakespeare" else " \n = "
    assert bytes(raw.inputs[0]).decode().startswith(want)
    assert len(set(want)) == len(set(pair.train.inputs[0][: len(want)]))


@given(
    st.text(st.characters(codec="utf-8"), min_size=4, max_size=60),
    st.integers(1, 3),
    st.sampled_from(["byte", "character"]),
)
def test_windows_are_the_text(tmp_path_factory, said, length, level):
    path = tmp_path_factory.mktemp("text") / "said"
    path.write_bytes(said.encode())
    train = text(path, length, level, test_share=0).train
    parts = list(said) if level == "character" else [bytes([b]) for b in said.encode()]
    numbers = {part: j for j, part in enumerate(sorted(set(parts)))}
    tokens = [numbers[p] if level == "character" else p[0] for p in parts]
    count = (len(tokens) - 1) // length
    assert train.inputs.shape == train.targets.shape == (count, length)
    assert train.inputs.ravel().tolist() == tokens[: count * length]
    assert train.targets.ravel().tolist() == tokens[1 : count * length + 1]
    assert train.targets.dtype == np.int64
    assert train.classes == (256 if level == "byte" else len(numbers))


def test_the_last_sequences_are_the_test_part(file):
    whole = text(file, 7, test_share=0)
    assert whole.test is None
    pair = text(file, 7, test_share=0.25)
    assert (len(whole.train), len(pair.train), len(pair.test)) == (31, 23, 8)
    assert np.array_equal(pair.train.inputs, whole.train.inputs[:23])
    assert np.array_equal(pair.test.targets, whole.train.targets[23:])
    assert (pair.train.name, pair.train.kind, pair.train.source) == ("said.txt", "text", str(file))
    assert len(pair.test.first(3)) == 3


def test_more_characters_than_a_byte_counts(tmp_path):
    path = tmp_path / "many.txt"
    path.write_text("".join(chr(0x4E00 + j) for j in range(300)) * 2, encoding="utf-8")
    pair = text(path, 10)
    assert (pair.train.classes, pair.train.inputs.dtype) == (300, np.int64)
    assert pair.train.inputs[0].tolist() == list(range(10))


@pytest.mark.parametrize("ending", PACK)
def test_names_are_files_of_the_data_folder(tmp_path, monkeypatch, file, ending):
    monkeypatch.setenv("RAYBENCH_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "text").mkdir(parents=True)
    path = tmp_path / "data" / "text" / f"mine.txt{ending}"
    path.write_bytes(PACK[ending](SAID.encode()))
    assert text("mine", 5).train.checksum == text(file, 5).train.checksum
    assert text(path, 5).train.checksum == text(file, 5).train.checksum
    said = complaint("mime", 5)
    assert "unknown text 'mime'" in said
    assert "did you mean mine?" in said
    assert f"put mime.txt (or with .bz2, .gz or .xz behind it) into {path.parent}" in said
    said = complaint("shakespeare", 5)
    assert "no file of the text shakespeare" in said
    assert "did you mean wikitext2_valid?" in complaint("wikitext2_vaild", 5)
    assert "no file ./absent" in complaint("./absent", 5)
    assert "is a folder" in complaint(path.parent, 5)
    for name in ("x" * 250, "x" * 5000, "x/" * 5000, "a\0b"):
        complaint(name, 5)


def test_texts_too_short(tmp_path, file):
    said = complaint(file, 220)
    assert "said.txt has 220 tokens" in said
    assert "at most 219" in said
    assert len(text(file, 219, test_share=0).train) == 1
    assert "of 1 sequences leaves a part empty" in complaint(file, 219)
    assert "leaves a part empty" in complaint(file, 73, test_share=0.9)
    for content in (b"", b"x"):
        (tmp_path / "short").write_bytes(content)
        assert f"has {len(content)} tokens" in complaint(tmp_path / "short", 1)


def test_wrong_arguments(file):
    for length in (0, -1, 2.0, True, "8"):
        assert "length is" in complaint(file, length)
    for share in (1, -0.1, float("nan"), "all"):
        assert "test_share is" in complaint(file, 5, test_share=share)
    assert "did you mean character?" in complaint(file, 5, level="characters")
    assert "allowed: byte, character; or {bpe: 2048}" in complaint(file, 5, level="word")


def test_files_that_are_damaged_or_no_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"fine so far \xff and on")
    said = complaint(path, 3)
    assert "not UTF-8 text: byte 12 is 0xff" in said
    assert "level byte" in said
    assert text(path, 3, "byte").train.classes == 256
    for ending, pack in list(PACK.items())[1:]:
        path = tmp_path / f"b{ending}"
        path.write_bytes(pack(SAID.encode())[:-9])
        assert "fetch the file again" in complaint(path, 3)
        path.write_bytes(pack(bytes(3 * 10**7)))
        assert "more than 100 times" in complaint(path, 3)


def test_texts_larger_than_a_quarter_of_the_memory(file, monkeypatch):
    monkeypatch.setattr(limits, "memory_here", lambda: 4 * 1000)
    assert "as characters takes 1.72 KiB" in complaint(file, 4)
    assert "targets takes 1.69 KiB" in complaint(file, 4, "byte")
    monkeypatch.setattr(limits, "memory_here", lambda: 4 * 100)
    assert "takes 220 bytes" in complaint(file, 4)
