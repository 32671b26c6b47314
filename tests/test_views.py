"""Views of the same samples: files and folders of one's own, honest and not, and the sets known by name."""

import io
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import data_kit
import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from views_kit import CLASSES, SAMPLES, TESTED, WIDTHS, made

from raybench.core import limits
from raybench.core.errors import InputError
from raybench.data import views

pytestmark = pytest.mark.thorough

ARRAYS = made()


def saved(path: Path, **changes) -> Path:
    arrays = {k: v for k, v in {**ARRAYS, **changes}.items() if v is not None}
    if path.suffix == ".mat":
        scipy.io.savemat(path, arrays, do_compression=changes.get("packed", True) is not False)
    else:
        np.savez(path, **arrays)
    return path


def refused(path: Path, *words: str) -> None:
    seconds = 30 if path.suffix == ".mat" else 2  # a process of its own
    data_kit.refused(views, str(path), *words, seconds=seconds)


@pytest.mark.parametrize("ending", [".npz", ".mat"])
def test_views_of_a_file(tmp_path, ending):
    result = views(saved(tmp_path / f"own{ending}"))
    assert list(result) == sorted(WIDTHS)
    for view, pair in result.items():
        assert (pair.train.kind, pair.train.classes) == ("features", CLASSES)
        assert pair.train.inputs.dtype == np.float32
        assert np.array_equal(pair.train.inputs, ARRAYS[view].astype(np.float32))
        assert np.array_equal(pair.test.inputs, ARRAYS[f"test_{view}"].astype(np.float32))
        assert np.array_equal(pair.train.targets, ARRAYS["labels"] - 1)
        assert np.array_equal(pair.test.targets, ARRAYS["test_labels"] - 1)
        assert (len(pair.train), len(pair.test)) == (SAMPLES, TESTED)


def test_labels_are_numbered_in_their_order(tmp_path):
    labels = np.array([7, -3, 100])[ARRAYS["labels"] - 1]
    none = {name: None for name in ARRAYS if name.startswith("test_")}
    result = views(saved(tmp_path / "a.npz", labels=labels, **none))["image"]
    assert result.test is None
    assert np.array_equal(result.train.targets, np.array([1, 0, 2])[ARRAYS["labels"] - 1])


def test_pictures_and_texts_of_an_npz(tmp_path):
    pictures = np.random.default_rng(0).integers(0, 256, (SAMPLES, 6, 5, 3), np.uint8)
    texts = np.array([f"word{j % 3} ä" for j in range(SAMPLES)])
    none = {name: None for name in ARRAYS if name.startswith("test_")}
    result = views(saved(tmp_path / "a.npz", image=pictures, text=texts, **none))
    assert [result[v].train.kind for v in ("image", "sound", "text")] == [
        "image",
        "features",
        "texts",
    ]
    assert np.array_equal(result["image"].train.inputs, pictures.transpose(0, 3, 1, 2))
    assert result["text"].train.inputs.tolist() == texts.tolist()


def test_a_changed_file_is_read_again(tmp_path):
    path = saved(tmp_path / "a.npz")
    before = views(path)["image"].train
    saved(path, image=ARRAYS["image"] + 1)
    assert views(path)["image"].train.checksum != before.checksum


SHORT = np.zeros((SAMPLES - 1, 2))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": None, "test_labels": None}, ["lacks the array labels"]),
        (dict.fromkeys(WIDTHS) | {f"test_{v}": None for v in WIDTHS}, ["no view"]),
        ({"test_image": None}, ["image is in one part only"]),
        ({"test_labels": None}, ["labels is in one part only"]),
        ({"test_other": SHORT}, ["other is in one part only"]),
        ({"image": SHORT}, ["39 rows", "40"]),
        ({"test_image": ARRAYS["test_image"][:, :2]}, ["two shapes"]),
        ({"labels": np.ones(SAMPLES)}, ["single class"]),
        ({"labels": ARRAYS["labels"] + 0.5}, ["integers"]),
        ({"labels": np.full(SAMPLES, np.nan)}, ["integers"]),
        ({"labels": np.ones((SAMPLES, 2))}, ["integers", "(40, 2)"]),
        ({"test_labels": np.full(TESTED, 9)}, ["label 9"]),
        ({"image": np.full((SAMPLES, 2), np.inf)}, ["not finite"]),
        ({"image": np.full((SAMPLES, 2), 1e300)}, ["not finite"]),
        ({"image": np.zeros((SAMPLES, 2, 2))}, ["(40, 2, 2)"]),
        ({"image": np.zeros((SAMPLES, 2)) + 1j}, ["image"]),
        ({"image": np.array([{"a": 1}, None], object)}, ["image"]),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, (dict, list)) else None,
)  # fmt: skip
def test_arrays_that_do_not_fit(tmp_path, changes, words):
    refused(saved(tmp_path / "bad.npz", **changes), *words)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (None, "image is in one part only"),
        (np.zeros((SAMPLES, 2)) + 1j, "image is complex"),
        (np.array([1, "a"], object), "image is cell"),
        (scipy.sparse.eye_array(SAMPLES).tocsc(), "image is sparse"),
        ("words", "image is char"),
    ],
)
def test_matrices_that_do_not_fit(tmp_path, image, words):
    refused(saved(tmp_path / "bad.mat", image=image), words)


def test_names_that_mean_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(Path("wikipedai"), "unknown views", "wikipedia")
    refused(tmp_path / "none.npz", "no file")
    (tmp_path / "a.txt").write_text("x")
    refused(tmp_path / "a.txt", "holds no views")
    monkeypatch.setenv("RAYBENCH_DATA", str(tmp_path))
    refused(Path("wikipedia"), "raw_features.mat", "put it there")


# MATLAB files of anybody ------------------------------------------------------------------------------


def test_matlab_bombs(tmp_path):
    path = tmp_path / "bomb.mat"
    head = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    zeros = zlib.compress(bytes(150 << 20), 9)
    path.write_bytes(head + struct.pack("<II", 15, len(zeros)) + zeros)
    refused(path, "cannot read bomb.mat")
    # a length that lies: there is no more than the file has
    path.write_bytes(head + struct.pack("<II", 15, 2**32 - 8) + zeros[:1000])
    refused(path, "bomb.mat")


def test_matrices_larger_than_a_quarter_of_the_memory(tmp_path, monkeypatch):
    path = saved(tmp_path / "a.mat", image=np.random.default_rng(0).random((SAMPLES, 5000)))
    monkeypatch.setattr(limits, "memory_here", lambda: 1 << 20)
    refused(path, "takes", "a quarter of the memory")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["another format"]),
        (b"\x89HDF\r\n\x1a\n" + bytes(600), ["another format", "-v7"]),
        (b"MATLAB 7.3 MAT-file".ljust(124) + struct.pack("<H", 0x0200) + b"IM", ["another format"]),
        (b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM", ["labels"]),
        (b"\x80\x04K\x01." * 100, ["another format"]),
    ],
)
def test_files_that_are_no_matrices(tmp_path, content, words):
    path = tmp_path / "a.mat"
    path.write_bytes(content)
    refused(path, *words)


def raw_mat(packed: bool) -> bytes:
    out = io.BytesIO()
    scipy.io.savemat(out, ARRAYS, do_compression=packed)
    return out.getvalue()


WHOLE = {packed: raw_mat(packed) for packed in (False, True)}


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.booleans(), st.floats(0, 1, exclude_max=True), st.integers(1, 255), st.booleans())
def test_damaged_matlab_files_are_refused_or_sound(tmp_path, packed, where, bits, cut):
    raw = bytearray(WHOLE[packed])
    at = int(where * len(raw))
    if cut:
        del raw[at:]
    else:
        raw[at] ^= bits
    path = tmp_path / "a.mat"
    path.write_bytes(raw)
    with suppress(InputError):  # anything else, and a crash, is a fault
        result = views(path)
        assert all(np.isfinite(pair.train.inputs).all() for pair in result.values())


# Words, and the real set ------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "width"), [("wikipedia", 10), ("wikipedia_tfidf", 1000)])
def test_the_articles_of_wikipedia(data_folder, name, width):
    result = views(name)
    assert list(result) == ["image", "text"]
    for view, features in (("image", 128), ("text", width)):
        pair = result[view]
        assert pair.train.inputs.shape == (2173, features)
        assert pair.test.inputs.shape == (693, features)
        assert pair.train.classes == 10
        assert np.bincount(pair.train.targets)[[0, 9]].tolist() == [138, 347]
    assert np.allclose(result["image"].train.inputs.sum(1), 1, atol=1e-5)  # shares of visual words
