"""Views of the same samples: files and folders of one's own, honest and not, and the sets known by name."""

from __future__ import annotations

from pathlib import Path

import data_kit
import numpy as np
import pytest
from views_kit import CLASSES, SAMPLES, TESTED, WIDTHS, made

from raybench.data import catalogue, views

pytestmark = pytest.mark.thorough

ARRAYS = made()


def saved(path: Path, **changes) -> Path:
    arrays = {k: v for k, v in {**ARRAYS, **changes}.items() if v is not None}
    np.savez(path, **arrays)
    return path


def refused(path: Path, *words: str) -> None:
    data_kit.refused(views, str(path), *words)


def test_views_of_a_file(tmp_path):
    result = views(saved(tmp_path / "own.npz"))
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


def test_names_that_mean_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(Path("wikipedai"), "unknown views", "wikipedia")
    refused(tmp_path / "none.npz", "no file")
    (tmp_path / "a.txt").write_text("x")
    refused(tmp_path / "a.txt", "holds no views")
    monkeypatch.setenv("RAYBENCH_DATA", str(tmp_path))
    refused(Path("wikipedia"), "raw_features.mat", "put it there")
    (tmp_path / "wikipedia_image_text").mkdir()
    for name in catalogue.VIEW_FILES:
        (tmp_path / name).write_bytes(b"no matrices")
    refused(Path("wikipedia"), "cannot read", "raw_features.mat", "fetch the file again")


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
