"""Images of one's own: ``.npz`` files and folders of pictures, honest and not."""

import numpy as np
import pytest
from data_kit import forged_npz, npy
from PIL import Image
from test_images import refused

from raybench.core.errors import InputError
from raybench.data import Examples, images

pytestmark = pytest.mark.thorough

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (6, 3, 5, 4), np.uint8)
LABELS = np.array([0, 1, 2, 2, 1, 0])


def saved(path, **arrays):
    np.savez(path, **{"labels": LABELS, **arrays})
    return path


# npz ------------------------------------------------------------------------------------------------


def test_the_layouts_of_an_npz_are_the_same_data(tmp_path):
    first = images(saved(tmp_path / "a.npz", images=PIXELS)).train
    assert np.array_equal(first.inputs, PIXELS)
    assert np.array_equal(first.targets, LABELS)
    assert (first.name, first.kind, first.classes) == ("a.npz", "image", 3)
    assert (first.inputs.dtype, first.targets.dtype) == (np.uint8, np.int64)
    last = images(saved(tmp_path / "b.npz", images=PIXELS.transpose(0, 2, 3, 1))).train
    packed = tmp_path / "c.npz"
    np.savez_compressed(packed, images=PIXELS, labels=LABELS.astype(np.uint8))
    assert first.checksum == last.checksum == images(packed).train.checksum
    grey = images(saved(tmp_path / "d.npz", images=PIXELS[:, 0])).train
    assert np.array_equal(grey.inputs, PIXELS[:, :1])
    assert grey.checksum != first.checksum


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", ">f4"])
def test_floats_of_an_npz(tmp_path, kind):
    values = (PIXELS / 255).astype(kind)
    pair = images(
        saved(tmp_path / "a.npz", images=values, test_images=values[:2], test_labels=[3, 0])
    )
    assert pair.train.inputs.dtype == np.dtype("f4")
    assert np.array_equal(pair.train.inputs, values.astype("f4"))
    assert len(pair.test) == 2
    assert pair.train.classes == pair.test.classes == 4


GOOD = {"images": PIXELS, "labels": LABELS}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"images": PIXELS.astype("i8")}, ["images holds int64", "uint8 or floats in [0, 1]"]),
        ({"images": PIXELS > 9}, ["images holds bool"]),
        ({"images": PIXELS.astype(complex)}, ["complex numbers"]),
        ({"images": PIXELS.astype(object)}, ["Python objects"]),
        ({"images": PIXELS.astype("f4")}, ["outside of [0, 1]"]),
        ({"images": PIXELS / 255 - 1e-9}, ["outside of [0, 1]"]),
        ({"images": np.full((6, 4, 4), np.nan)}, ["not finite"]),
        ({"images": PIXELS[:, :2]}, ["(6, 2, 5, 4)", "C = 1 or 3"]),
        ({"images": PIXELS[:, 0, 0]}, ["(6, 4)", "(N, H, W)"]),
        ({"images": PIXELS[:, :, :0]}, ["(6, 3, 0, 4)"]),
        ({"images": np.uint8(3)}, ["the shape ()"]),
        ({"labels": LABELS[:5]}, ["6 images and 5 labels"]),
        ({"labels": LABELS[:, None]}, ["labels is int64 of shape (6, 1)", "one per image"]),
        ({"labels": LABELS / 2}, ["float64"]),
        ({"labels": LABELS - 1}, ["labels from -1 to 1", "from 0 to"]),
        ({"labels": LABELS * 10**6}, ["labels from 0 to 2,000,000", "0 to 65,535"]),
        ({"labels": np.full(6, 2**64 - 1)}, ["labels from 18,446,744,073,709,551,615"]),
        ({"labels": LABELS * 0 + 4}, ["a single class (4)"]),
        ({"test_images": PIXELS}, ["lacks the array test_labels"]),
        (
            {"test_images": PIXELS[:, :1], "test_labels": LABELS},
            ["differ, (3, 5, 4) and (1, 5, 4)"],
        ),
    ],
)
def test_arrays_that_are_no_images(tmp_path, change, words):
    path = tmp_path / "mine.npz"
    np.savez(path, **{**GOOD, **change})
    refused(path, *words)


def test_archives_that_lie(tmp_path):
    good, labels = npy(PIXELS), npy(LABELS)
    lie = npy(PIXELS, shape=(2**40, 3, 5, 4))
    path = forged_npz(tmp_path / "lie.npz", images=lie, labels=labels)
    refused(path, "a header of 65,970,697,666,560 values")
    refused(forged_npz(tmp_path / "none.npz", images=good), "lacks the array labels", "numpy.savez")
    whole = forged_npz(tmp_path / "whole.npz", images=good, labels=labels).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:-30])
    refused(tmp_path / "cut.npz", "cannot read cut.npz")
    (tmp_path / "a.txt").write_text("text")
    refused(tmp_path / "a.txt", "is no image data", "a folder of pictures")


# Folders --------------------------------------------------------------------------------------------


def drawn(top, names, mode="RGB", size=(4, 5), ending=".png", count=3):
    """Write pictures of each class; return those that can be compared, (N, C, H, W)."""
    made = []
    for name in names:
        (top / name).mkdir(parents=True, exist_ok=True)
        for j in range(count):
            shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], 3)
            pixels = RANDOM.integers(0, 256, shape, np.uint8)
            Image.fromarray(pixels).save(top / name / f"{j}{ending}")
            made.append(np.atleast_3d(pixels).transpose(2, 0, 1))
    return np.stack(made)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_folder_is_what_was_drawn(tmp_path, mode):
    want = drawn(tmp_path / "mine", ["cat", "dog"], mode)
    (tmp_path / "mine" / "README.txt").write_text("beside the classes anything may lie")
    (tmp_path / "mine" / "cat" / ".hidden").write_text("")
    pair = images(tmp_path / "mine")
    assert pair.test is None
    assert np.array_equal(pair.train.inputs, want)
    assert list(pair.train.targets) == [0, 0, 0, 1, 1, 1]
    assert (pair.train.name, pair.train.classes) == ("mine", 2)
    same = saved(tmp_path / "a.npz", images=want, labels=pair.train.targets)
    assert images(same).train.checksum == pair.train.checksum


def test_a_folder_in_two_parts_and_resized(tmp_path):
    train = drawn(tmp_path / "train", ["a", "b", "c"])
    test = drawn(tmp_path / "test", ["c"], ending=".bmp")
    pair = images(tmp_path)
    assert np.array_equal(pair.train.inputs, train)
    assert np.array_equal(pair.test.inputs, test)
    assert (list(pair.test.targets), pair.test.classes) == ([2, 2, 2], 3)
    drawn(tmp_path / "test", ["b"], mode="L", size=(9, 9), ending=".jpg")
    refused(tmp_path, "9 x 9 pixels", "4 x 5", "such as size=32")
    sized = images(tmp_path, size=8)
    assert sized.train.inputs.shape == (9, 3, 8, 8)
    assert sized.test.inputs.shape == (6, 3, 8, 8)


def test_folders_that_are_no_images(tmp_path):
    refused(tmp_path, "has no folder of a class", "FOLDER/CLASS/PICTURES")
    drawn(tmp_path, ["a"])
    refused(tmp_path, "a single class (0)")
    (tmp_path / "b").mkdir()
    refused(tmp_path, "no valid file for the classes b")
    file = tmp_path / "b" / "0.txt"
    file.write_text("text")
    file = file.rename(file.with_suffix(".png"))
    refused(tmp_path, "cannot read", "b/0.png", "no format that is read")
    whole = (tmp_path / "a" / "0.png").read_bytes()
    for data in (b"", whole[:-40], whole[:20], whole[:33] + whole[40:]):
        file.write_bytes(data)
        refused(tmp_path, "cannot read", "b/0.png")
    # A picture of one colour: 12 KB that would become 48 MB.
    Image.new("RGB", (4000, 4000)).save(file)
    refused(tmp_path, "4000 x 4000 pixels", "more than 100 times", size=8)
    Image.fromarray(np.zeros((5, 4), np.uint16)).save(file)
    refused(tmp_path, "mode I;16", "8 bits per channel")
    file.unlink()
    drawn(tmp_path / "test", ["a"])
    refused(tmp_path, "has a folder test and no train")


# Examples -------------------------------------------------------------------------------------------


def test_rows_and_channels(tmp_path):
    train = images(saved(tmp_path / "a.npz", images=PIXELS)).train
    assert len(train.first(2)) == len(train[:2]) == len(train[LABELS == 1]) == 2
    assert np.array_equal(train[[3, 0]].inputs, PIXELS[[3, 0]])
    assert train[4].targets.tolist() == [1]
    assert train[:2].checksum == train.checksum
    with pytest.raises(InputError, match=r"first 7 examples[\s\S]*a.npz has 6"):
        train.first(7)
    values = PIXELS.transpose(1, 0, 2, 3).reshape(3, -1) / 255
    assert train.mean == pytest.approx(values.mean(1), rel=1e-14)
    assert train.std == pytest.approx(values.std(1), rel=1e-14)
    rows = Examples.of("x", np.ones((2, 3)), LABELS[:2], classes=2, source="", kind="features")
    with pytest.raises(ValueError, match="no channels"):
        rows.mean  # noqa: B018
