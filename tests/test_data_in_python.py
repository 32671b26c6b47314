"""Arrays and frames given in Python, and text as sequences of tokens."""

import bz2
import gzip
import io
import lzma
import zipfile
from functools import partial

import data_kit
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

import raybench
from raybench.core import limits
from raybench.core.errors import InputError
from raybench.data import text
from raybench.data.session import packed

pytestmark = pytest.mark.thorough

random = np.random.default_rng(0)
X = random.standard_normal((40, 3))
Y = np.array(["a", "b", "c"])[X.argmax(1)]
CLIENT = np.arange(40) % 4
FRAME = pd.DataFrame(X, columns=["u", "v", "w"]).assign(label=Y, client=CLIENT)


def config(**problem):
    section = {"name": "softmax", "dataset": "mine", "clients": 4, "split": {"column": "client"}}
    return {
        "problem": {**section, "regularizer": "l2", "lambda": 0.01, **problem},
        "algorithm": "gd",
        "rounds": 5,
    }


def cells(config, **kwargs):
    return set(raybench.run(config, **kwargs)["cell"])


def test_equal_data_make_equal_files():
    one = packed("mine", (np.arange(6).reshape(3, 2), ["a", "b", "a"]))
    same = np.array(["a", "b", "a"], "<U9")
    assert one == packed("mine", (np.arange(6.0).reshape(3, 2).tolist(), same))
    assert one != packed("mine", (np.arange(6).reshape(3, 2), ["a", "b", "b"]))
    with zipfile.ZipFile(io.BytesIO(one)) as file:
        assert [entry.date_time[0] for entry in file.infolist()] == [1980, 1980]


def test_all_forms_give_the_same_curve():
    forms = [
        (X, Y, CLIENT),
        {"X": X, "y": Y, "client": CLIENT},
        FRAME,
        FRAME.astype({"label": "category"}),
        FRAME.astype({"label": object}),
    ]
    curves = [raybench.run(config(), data={"mine": form})["loss"].tolist() for form in forms]
    assert all(curve == curves[0] for curve in curves)
    assert curves[0][-1] < curves[0][0]


def test_a_polars_frame():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({name: FRAME[name].to_list() for name in FRAME})
    result = raybench.run(config(), data={"mine": frame})["loss"].tolist()
    assert result == raybench.run(config(), data={"mine": FRAME})["loss"].tolist()


def test_the_id_is_that_of_the_content():
    one = cells(config(), data={"mine": (X, Y, CLIENT)})
    assert one == cells(config(), data={"mine": (X.copy(), Y.astype(object), CLIENT)})
    assert one == cells(config(dataset="other"), data={"other": (X, Y, CLIENT)})
    assert one != cells(config(), data={"mine": (X + 1e-12, Y, CLIENT)})
    held = (X[:9], Y[:9])
    assert one != cells(config(test_set="held"), data={"mine": (X, Y, CLIENT), "held": held})


def test_a_sweep_finds_its_data_again(tmp_path):
    given = {"mine": (X, Y, CLIENT), "held": (X[:9], Y[:9])}
    asked = {**config(test_set="held"), "step_size": {"theory": [1, 2]}}
    out = tmp_path / "results"
    first = raybench.sweep(asked, out, inline=True, data=given)
    assert first.counts["ok"] == 2
    files = sorted((out / "data").rglob("*.npz"))
    assert [file.name for file in files if file.name != "mine.npz"] == ["held.npz"]
    again = raybench.sweep(asked, out, inline=True, data=given)
    assert again.plan.missing == 0
    alone = raybench.sweep(out / "sweep.yaml", out, inline=True)  # without the arrays
    assert alone.plan.missing == 0
    fresh = raybench.sweep(asked, out, inline=True, fresh=True, data=given)
    assert fresh.counts["ok"] == 2
    assert sorted((out / "data").rglob("*.npz")) == files
    curve = raybench.load(out)
    assert curve["test_loss"].notna().all()


WRONG = {
    "sparse": (scipy.sparse.csr_array(X), r"data.mine.X: is a sparse matrix(.|\n)*toarray"),
    "list": ([1, 2], "data.mine: list is no data set"),
    "lengths": ((X, Y[:-1]), "different lengths: X 40, y 39"),
    "objects": ((X, [None, *Y[1:]]), "data.mine.y: holds object, such as None"),
    "gap": (FRAME.assign(u=[np.nan, *X[1:, 0]]), "data.mine.u: lacks a value in row 0"),
    "text": (FRAME.assign(city="Basel"), "column 'city' of mine.npz holds text"),
    "nan": ((X * np.nan, Y, CLIENT), "mine.npz holds values that are not finite, in X"),
    "clients": ((X, Y), "has no column 'client'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_data_is_refused_and_nothing_is_run(tmp_path, case):
    given, said = WRONG[case]
    given = (given, Y) if case == "sparse" else given
    with pytest.raises(InputError, match=said):
        raybench.run(config(), data={"mine": given})


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("digits", {"dataset": "digits"}, "a data set that raybench knows"),
        ("a/b", {"dataset": "a/b"}, "is no name for data"),
        ("mine", {"dataset": "digits"}, r"no problem names it(.|\n)*dataset: mine"),
        ("mine", {"clents": 3}, "did you mean clients"),
    ],
)
def test_bad_input_leaves_nothing_behind(tmp_path, name, change, said):
    out = tmp_path / "new" / "results"
    with pytest.raises(InputError, match=said):
        raybench.sweep(config(**change), out, inline=True, data={name: (X, Y, CLIENT)})
    assert list(tmp_path.iterdir()) == []


def test_data_is_not_written_through_a_link(tmp_path):
    for name in ("out", "theirs"):
        (tmp_path / name).mkdir()
    (tmp_path / "out/data").symlink_to(tmp_path / "theirs")
    with pytest.raises(InputError, match="data is a link"):
        raybench.sweep(config(), tmp_path / "out", data={"mine": (X, Y, CLIENT)}, inline=True)
    assert not any((tmp_path / "theirs").iterdir())


def test_out_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        raybench.sweep(config(), tmp_path / "file", inline=True, data={"mine": (X, Y, CLIENT)})


@pytest.mark.ray
@pytest.mark.timeout(280)
def test_workers_of_ray_find_the_data(tmp_path):
    """Two batches on two workers, each with a test set of its own: what they record is what one process does."""
    given = {"mine": (X, Y, CLIENT), "held": (X[:9], Y[:9])}
    asked = {
        **config(test_set="held"),
        "algorithm": ["gd", "ef21"],
        "compressor": {"name": "top_k", "k": 2},
    }
    more = {"data": given, "sets": ["resources.workers=2"]}
    one = raybench.sweep(asked, tmp_path / "one", inline=True, **more)
    two = raybench.sweep(asked, tmp_path / "two", address="local", **more)
    assert one.counts["ok"] == two.counts["ok"] == 2
    here, there = raybench.load(tmp_path / "one"), raybench.load(tmp_path / "two")
    assert set(there["cell"]) == set(here["cell"])
    for name in ("loss", "test_loss", "bits_up"):
        np.testing.assert_allclose(there[name], here[name], rtol=1e-12)
    assert raybench.sweep(asked, tmp_path / "two", inline=True, **more).plan.missing == 0


# Text ---------------------------------------------------------------------------------------------

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
    assert "allowed: byte, character" in complaint(file, 5, level="word")


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
