"""Views of the same samples: files and folders of one's own, honest and not, and the sets known by name."""

from __future__ import annotations

import io
import struct
import time
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from npz_kit import forged_npz, npy
from PIL import Image
from views_kit import CLASSES, SAMPLES, TESTED, WIDTHS, made

from raybench.core import room
from raybench.core.errors import InputError
from raybench.data import Words, views

ARRAYS = made()


def saved(path: Path, **changes) -> Path:
    arrays = {k: v for k, v in {**ARRAYS, **changes}.items() if v is not None}
    if path.suffix == ".mat":
        scipy.io.savemat(path, arrays, do_compression=changes.get("packed", True) is not False)
    else:
        np.savez(path, **arrays)
    return path


def refused(path: Path, *words: str) -> None:
    began = time.monotonic()
    with pytest.raises(InputError) as found:
        views(str(path))
    text = str(found.value)
    assert text.startswith("problem.dataset: ")
    assert all(word in text for word in words), text
    assert len(text) < 1000
    assert time.monotonic() - began < (30 if path.suffix == ".mat" else 2)  # a process of its own


@pytest.mark.parametrize("ending", [".npz", ".mat"])
def test_views_of_a_file(tmp_path, ending):
    found = views(saved(tmp_path / f"own{ending}"))
    assert list(found) == sorted(WIDTHS)
    for view, pair in found.items():
        assert (pair.train.kind, pair.train.classes) == ("features", CLASSES)
        assert pair.train.inputs.dtype == np.float32
        assert np.array_equal(pair.train.inputs, ARRAYS[view].astype(np.float32))
        assert np.array_equal(pair.test.inputs, ARRAYS[f"test_{view}"].astype(np.float32))
        assert np.array_equal(pair.train.targets, ARRAYS["labels"] - 1)
        assert np.array_equal(pair.test.targets, ARRAYS["test_labels"] - 1)
        assert (len(pair.train), len(pair.test)) == (SAMPLES, TESTED)


def test_a_matlab_file_holds_what_an_npz_does(tmp_path):
    one, other = (views(saved(tmp_path / f"a{ending}")) for ending in (".npz", ".mat"))
    for view in one:
        assert one[view].train.checksum == other[view].train.checksum


def test_labels_are_numbered_in_their_order(tmp_path):
    labels = np.array([7, -3, 100])[ARRAYS["labels"] - 1]
    none = {name: None for name in ARRAYS if name.startswith("test_")}
    found = views(saved(tmp_path / "a.npz", labels=labels, **none))["image"]
    assert found.test is None
    assert np.array_equal(found.train.targets, np.array([1, 0, 2])[ARRAYS["labels"] - 1])


def test_pictures_and_texts_of_an_npz(tmp_path):
    pictures = np.random.default_rng(0).integers(0, 256, (SAMPLES, 6, 5, 3), np.uint8)
    texts = np.array([f"word{j % 3} ä" for j in range(SAMPLES)])
    none = {name: None for name in ARRAYS if name.startswith("test_")}
    found = views(saved(tmp_path / "a.npz", image=pictures, text=texts, **none))
    assert [found[v].train.kind for v in ("image", "sound", "text")] == [
        "image",
        "features",
        "texts",
    ]
    assert np.array_equal(found["image"].train.inputs, pictures.transpose(0, 3, 1, 2))
    assert found["text"].train.inputs.tolist() == texts.tolist()


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
    refused(Path("cub"), "CUB_200_2011", "put")


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
    monkeypatch.setattr(room, "memory_here", lambda: 1 << 20)
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
        found = views(path)
        assert all(np.isfinite(pair.train.inputs).all() for pair in found.values())


def test_an_npz_with_a_header_that_lies(tmp_path):
    path = forged_npz(tmp_path / "a.npz", image=npy(np.zeros((2, 2)), shape=(10**9, 2)), labels=npy(np.arange(2)))  # fmt: skip
    refused(path, "header")


# A folder as CUB-200-2011's ---------------------------------------------------------------------------

BIRDS = ("001.Black_footed_Albatross", "002.Laysan_Albatross")


@pytest.fixture
def cub(tmp_path) -> Path:
    """A folder of eight small JPEGs of two classes with two captions each, as the data set's."""
    folder, random = tmp_path / "CUB_200_2011", np.random.default_rng(0)
    lists: dict[str, list[str]] = {"images": [], "image_class_labels": [], "train_test_split": []}
    for j in range(8):
        bird = BIRDS[j % 2]
        place = f"{bird}/Bird_{j:04}.jpg"
        for top in ("images", "text_c10"):
            (folder / top / bird).mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (20 + j, 30, 3), np.uint8)
        pixels[..., j % 2] //= 8
        Image.fromarray(pixels).save(folder / "images" / place, quality=90)
        words = f"a bird, {'black' if j % 2 else 'white'}\nthe  wings are grey\n"
        (folder / "text_c10" / place).with_suffix(".txt").write_text(words)
        lists["images"].append(f"{j + 1} {place}")
        lists["image_class_labels"].append(f"{j + 1} {j % 2 + 1}")
        lists["train_test_split"].append(f"{j + 1} {int(j < 6)}")
    for name, lines in lists.items():
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_a_folder_of_birds(cub, monkeypatch):
    found = views(cub, size=16)
    assert list(found) == ["image", "text"]
    image, text = found["image"], found["text"]
    assert image.train.inputs.shape == (6, 3, 16, 16)
    assert image.train.inputs.dtype == np.uint8
    assert image.test.inputs.shape == (2, 3, 16, 16)
    assert image.train.targets.tolist() == text.train.targets.tolist() == [0, 1, 0, 1, 0, 1]
    assert text.test.targets.tolist() == [0, 1]
    assert text.train.inputs[0] == "a bird, white the wings are grey"
    # the mean colours are those of the pictures, in the order of images.txt
    colours = image.train.inputs.mean((2, 3))
    assert (colours[0::2, 0] < 40).all()
    assert (colours[1::2, 1] < 40).all()
    monkeypatch.setenv("RAYBENCH_DATA", str(cub.parent))
    assert views("cub", size=16)["image"].train.checksum == image.train.checksum


def edited(cub: Path, name: str, change) -> None:
    file = cub / name
    file.write_text(change(file.read_text()))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: (c / "train_test_split.txt").unlink(), ["no file", "train_test_split.txt"]),
        (lambda c: edited(c, "images.txt", lambda t: t + "9\n"), ["line 9", "NUMBER VALUE"]),
        (lambda c: edited(c, "images.txt", lambda t: t + "9 a/b.jpg\n"), ["9, 8 and 8"]),
        (lambda c: edited(c, "images.txt", lambda t: t.replace(BIRDS[0], "..", 1)), ["CLASS/PICTURE"]),
        (lambda c: edited(c, "images.txt", lambda t: t.replace("1 001", "1 /001", 1)), ["CLASS/PICTURE"]),
        (lambda c: edited(c, "image_class_labels.txt", lambda t: t.replace("1 1", "1 x", 1)), ["'x'"]),
        (lambda c: edited(c, "train_test_split.txt", lambda t: t.replace("1 1", "1 2", 1)), ["'2'"]),
        (lambda c: edited(c, "train_test_split.txt", lambda t: t.replace(" 1\n", " 0\n")), ["train on"]),
        (lambda c: (c / "images" / BIRDS[0] / "Bird_0000.jpg").write_bytes(b"GIF89a"), ["Bird_0000.jpg"]),
        (lambda c: (c / "images" / BIRDS[0] / "Bird_0000.jpg").unlink(), ["Bird_0000.jpg"]),
        (lambda c: (c / "text_c10" / BIRDS[0] / "Bird_0000.txt").unlink(), ["Bird_0000.txt"]),
        (lambda c: (c / "text_c10" / BIRDS[0] / "Bird_0000.txt").write_text("w " * 40_000), ["80,000 bytes"]),
    ],
)  # fmt: skip
def test_a_folder_of_birds_with_a_fault(cub, change, words):
    change(cub)
    refused(cub, *words)


# Words, and the real set ------------------------------------------------------------------------------


def test_words():
    texts = ["The cat, the dog.", "a DOG", ""]
    words = Words.of(texts, 3)
    assert words.known == ("dog", "the", "a")
    assert words.tokens(texts, 5).tolist() == [[2, 5, 1, 5, 3], [2, 6, 4, 3, 0], [2, 3, 0, 0, 0]]
    assert words.shares(texts).tolist() == [[0.25, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize(("name", "width"), [("wikipedia", 10), ("wikipedia_tfidf", 1000)])
def test_the_articles_of_wikipedia(data_folder, name, width):
    found = views(name)
    assert list(found) == ["image", "text"]
    for view, features in (("image", 128), ("text", width)):
        pair = found[view]
        assert pair.train.inputs.shape == (2173, features)
        assert pair.test.inputs.shape == (693, features)
        assert pair.train.classes == 10
        assert np.bincount(pair.train.targets)[[0, 9]].tolist() == [138, 347]
    assert np.allclose(found["image"].train.inputs.sum(1), 1, atol=1e-5)  # shares of visual words
