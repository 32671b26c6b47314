"""Images and texts by name and of a user's own: what is fetched, tokens, files that are no data."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import tarfile
from functools import partial

import data_kit
import numpy as np
import pytest
import requests
import torchvision
from data_kit import forged_npz, npy
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from raybench.core import limits
from raybench.core.errors import InputError
from raybench.data import Examples, catalogue, images, text
from raybench.data.catalogue import IMAGE_SETS, ImageSet

pytestmark = pytest.mark.thorough

refused = partial(data_kit.refused, images)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty data folder."""
    monkeypatch.setenv("RAYBENCH_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_digits():
    from sklearn.datasets import load_digits

    pair = images("digits")
    train, raw = pair.train, load_digits()
    assert pair.test is None
    assert (train.inputs.shape, train.inputs.dtype) == ((1797, 1, 8, 8), np.uint8)
    assert np.array_equal(np.rint(train.inputs[:, 0] / 255 * 16), raw.images)
    assert np.abs(train.inputs[:, 0] - raw.images * 255 / 16).max() <= 0.5
    assert np.array_equal(train.targets, raw.target)
    assert train.checksum.startswith("05e7fdfebef9ebb4")


def test_unknown_names(folder):
    refused("fashion_mnits", "unknown images 'fashion_mnits'", "did you mean fashion_mnist?")
    refused("Cifar100", "did you mean cifar100?")
    refused("cifar10_part", "no site", f"exact_prefix_subset.npz into {folder}")
    refused("./absent.npz", "no file ./absent.npz")
    refused("a\0b", "unknown images")
    refused("x/" * 5000, "problem.dataset")
    refused("mnist", "size is for folders", size=8)


def idx(array, shape=None):
    shape = array.shape if shape is None else shape
    head = bytes((0, 0, 8, len(shape))) + np.array(shape, ">u4").tobytes()
    return head + array.tobytes()


PIXELS = np.random.default_rng(0).integers(0, 256, (6, 28, 28), np.uint8)
DIGITS = np.array([0, 1, 2, 3, 4, 9], np.uint8)
FILES = [idx(PIXELS), idx(DIGITS), idx(PIXELS[:3]), idx(DIGITS[:3])]


@pytest.fixture
def tiny(folder, monkeypatch):
    """A data folder with an MNIST of 6 + 3 images."""
    known = IMAGE_SETS["mnist"]
    monkeypatch.setitem(IMAGE_SETS, "mnist", ImageSet(6, 3, (1, 28, 28), 10, known.files))
    (folder / "MNIST" / "raw").mkdir(parents=True)
    paths = [folder / file for file in known.files]
    for path, data in zip(paths, FILES):
        path.write_bytes(gzip.compress(data))
    return paths


def test_idx_files_packed_or_not(tiny):
    first = images("mnist")
    assert np.array_equal(first.train.inputs[:, 0], PIXELS)
    assert np.array_equal(first.test.targets, DIGITS[:3])
    tiny[0].unlink()
    tiny[0].with_suffix("").write_bytes(FILES[0])
    assert images("mnist").train.checksum == first.train.checksum


LIES = {
    "longer than memory": (idx(PIXELS, (2**32 - 1,) * 3), ["a header of 4,294,967,295 x", "EiB"]),
    "longer": (idx(PIXELS, (2**20, 28, 28)), ["should have 822,083,584 bytes", "has 4,704"]),
    "shorter": (idx(PIXELS, (5, 28, 28)), ["should have 3,920 bytes", "has more"]),
    "fewer than labels": (idx(PIXELS[:5]), ["5 images", "6 labels"]),
    "labels": (idx(DIGITS) + bytes(9), ["no IDX file of bytes with 3 axes", "00000801"]),
    "no header": (b"\0\0\x08", ["ends after 3 bytes, within its header"]),
}


@pytest.mark.parametrize("lie", LIES)
def test_idx_files_that_lie(tiny, lie):
    data, words = LIES[lie]
    tiny[0].write_bytes(gzip.compress(data))
    refused("mnist", *words)


def test_idx_files_that_are_damaged_or_bombs(tiny):
    tiny[0].write_bytes(gzip.compress(FILES[0])[:-20])
    refused("mnist", "cannot read", "fetch the file again")
    tiny[0].write_bytes(FILES[0])
    refused("mnist", "cannot read")
    tiny[0].write_bytes(gzip.compress(idx(PIXELS, (10**5, 28, 28)) + bytes(3 * 10**7)))
    refused("mnist", "more than 100 times")


def test_counts_and_labels_of_known_images(tiny):
    tiny[3].write_bytes(gzip.compress(idx(np.array([0, 1, 10], np.uint8))))
    refused("mnist", "labels from 0 to 10", "from 0 to 9")
    for path, data in zip(tiny[2:], (idx(PIXELS[:2]), idx(DIGITS[:2]))):
        path.write_bytes(gzip.compress(data))
    refused("mnist", "6 + 2 images", "6 + 3 of (1, 28, 28) are expected")


def test_mnist_is_fetched_once_and_only_what_lacks(tiny, monkeypatch):
    class Fetched:
        def __init__(self, root, download):
            assert download
            (root / "MNIST" / "raw").mkdir(parents=True)
            for path, data in zip(tiny, FILES):
                (root / "MNIST" / "raw" / path.name).write_bytes(gzip.compress(data, mtime=1))

    url = {"url": catalogue.MNIST_SITE}
    listed = IMAGE_SETS["mnist"]._replace(**url)
    monkeypatch.setitem(IMAGE_SETS, "mnist", listed)
    monkeypatch.setattr(torchvision.datasets, "MNIST", Fetched)
    before = tiny[0].read_bytes()
    tiny[1].unlink()
    assert len(images("mnist").train) == 6
    assert tiny[0].read_bytes() == before
    monkeypatch.setattr(torchvision.datasets, "MNIST", None)
    assert len(images("mnist").train) == 6
    folder = tiny[0].parents[2]
    assert [path.name for path in folder.iterdir()] == ["MNIST"]

    def fail(root, download):
        raise RuntimeError("Error downloading")

    monkeypatch.setattr(torchvision.datasets, "MNIST", fail)
    tiny[2].unlink()
    put = f"put MNIST/raw/{tiny[2].name} into {folder}"
    refused("mnist", "cannot download mnist", put, url["url"])


@pytest.mark.parametrize(("name", "coarse"), [("cifar10", 0), ("cifar100", 1)])
def test_cifar_out_of_an_archive_that_was_put_there(folder, monkeypatch, name, coarse):
    def rows(seed, count):
        random = np.random.default_rng(seed)
        labels = np.arange(count)[:, None] % 2
        pixels = random.integers(0, 256, (count, 3072))
        return np.hstack([labels * 0 + 7] * coarse + [labels, pixels]).astype(np.uint8)

    known, packed = IMAGE_SETS[name], io.BytesIO()
    trained = len(known.files) - 1
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for j, file in enumerate(known.files):
            data = rows(j, 4).tobytes()
            (info := tarfile.TarInfo(file)).size = len(data)
            archive.addfile(info, io.BytesIO(data))
    sha = hashlib.sha256(packed.getvalue()).hexdigest()
    small = ImageSet(
        4 * trained, 4, (3, 32, 32), known.classes, known.files, known.url, f"sha256:{sha}"
    )
    monkeypatch.setitem(IMAGE_SETS, name, small)
    monkeypatch.setattr(requests, "get", lambda *a, **k: (_ for _ in ()).throw(OSError("offline")))
    file = known.url.rsplit("/", 1)[1]
    refused(name, f"cannot download {name}", known.files[-1], known.url)
    (folder / file).write_bytes(packed.getvalue())
    pair = images(name)
    want = rows(trained, 4)
    assert np.array_equal(pair.test.inputs.reshape(4, -1), want[:, 1 + coarse :])
    assert list(pair.test.targets) == [0, 1, 0, 1]
    assert len(pair.train) == 4 * trained
    (folder / known.files[0]).write_bytes(rows(0, 4).tobytes()[:-1])
    refused(name, "should have", "fetch the file again")


RANDOM = np.random.default_rng(0)
PICTURES = RANDOM.integers(0, 256, (6, 3, 5, 4), np.uint8)
LABELS = np.array([0, 1, 2, 2, 1, 0])


def saved(path, **arrays):
    np.savez(path, **{"labels": LABELS, **arrays})
    return path


# A user's .npz ------------------------------------------------------------------------------------------------


def test_the_layouts_of_an_npz_are_the_same_data(tmp_path):
    first = images(saved(tmp_path / "a.npz", images=PICTURES)).train
    assert np.array_equal(first.inputs, PICTURES)
    assert np.array_equal(first.targets, LABELS)
    assert (first.name, first.kind, first.classes) == ("a.npz", "image", 3)
    assert (first.inputs.dtype, first.targets.dtype) == (np.uint8, np.int64)
    last = images(saved(tmp_path / "b.npz", images=PICTURES.transpose(0, 2, 3, 1))).train
    packed = tmp_path / "c.npz"
    np.savez_compressed(packed, images=PICTURES, labels=LABELS.astype(np.uint8))
    assert first.checksum == last.checksum == images(packed).train.checksum
    grey = images(saved(tmp_path / "d.npz", images=PICTURES[:, 0])).train
    assert np.array_equal(grey.inputs, PICTURES[:, :1])
    assert grey.checksum != first.checksum


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", ">f4"])
def test_floats_of_an_npz(tmp_path, kind):
    values = (PICTURES / 255).astype(kind)
    held = {"test_images": values[:2], "test_labels": [3, 0]}
    pair = images(saved(tmp_path / "a.npz", images=values, **held))
    assert pair.train.inputs.dtype == np.dtype("f4")
    assert np.array_equal(pair.train.inputs, values.astype("f4"))
    assert len(pair.test) == 2
    assert pair.train.classes == pair.test.classes == 4


GOOD = {"images": PICTURES, "labels": LABELS}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"images": PICTURES.astype("i8")}, ["images holds int64", "uint8 or floats in [0, 1]"]),
        (
            {"images": PICTURES.astype(object)},
            ["images: ValueError: Object arrays cannot be loaded"],
        ),
        ({"images": PICTURES.astype("f4")}, ["outside of [0, 1]"]),
        ({"images": np.full((6, 4, 4), np.nan)}, ["not finite"]),
        ({"images": PICTURES[:, :2]}, ["(6, 2, 5, 4)", "C = 1 or 3"]),
        ({"images": PICTURES[:, 0, 0]}, ["(6, 4)", "(N, H, W)"]),
        ({"labels": LABELS[:5]}, ["6 images and 5 labels"]),
        ({"labels": LABELS[:, None]}, ["labels has the shape (6, 1)"]),
        ({"labels": np.full(6, 2**64 - 1)}, ["labels from 18,446,744,073,709,551,615"]),
        ({"labels": LABELS * 0 + 4}, ["a single class (4)"]),
        ({"test_images": PICTURES}, ["lacks the array test_labels"]),
        (
            {"test_images": PICTURES[:, :1], "test_labels": LABELS},
            ["differ, (3, 5, 4) and (1, 5, 4)"],
        ),
    ],
)
def test_arrays_that_are_no_images(tmp_path, change, words):
    path = tmp_path / "mine.npz"
    np.savez(path, **{**GOOD, **change})
    refused(path, *words)


def test_archives_that_lie(tmp_path):
    lie = npy(PICTURES, shape=(2**40, 3, 5, 4))
    path = forged_npz(tmp_path / "lie.npz", images=lie, labels=npy(LABELS))
    refused(path, "lie.npz: images: ", "allocate")
    none = forged_npz(tmp_path / "none.npz", images=npy(PICTURES))
    refused(none, "lacks the array labels", "numpy.savez")
    (tmp_path / "a.txt").write_text("text")
    refused(tmp_path / "a.txt", "is no .npz", "a folder of pictures")


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


@pytest.mark.parametrize("part", ["val", "valid", "validation"])
def test_val_beside_train_is_the_test_part(tmp_path, part):
    """A folder beside train is never dropped in silence; what an archiver of macOS leaves is no class."""
    train = drawn(tmp_path / "train", ["a", "b"])
    test = drawn(tmp_path / part, ["a", "b"])
    drawn(tmp_path / "__MACOSX", ["train"])
    drawn(tmp_path / "train" / "__MACOSX", ["._a"])
    pair = images(tmp_path)
    assert np.array_equal(pair.train.inputs, train)
    assert np.array_equal(pair.test.inputs, test)
    drawn(tmp_path / "test", ["a"])
    refused(tmp_path, f"has the folder {part} beside test, train", "move it")
    (tmp_path / "test").rename(tmp_path / "more")
    refused(tmp_path, f"has the folder more beside train, {part}", "move it")


def test_folders_that_are_no_images(tmp_path):
    refused(tmp_path, "has no folder of a class", "FOLDER/CLASS/PICTURES")
    drawn(tmp_path, ["a"])
    refused(tmp_path, "a single class (0)")
    (tmp_path / "b").mkdir()
    refused(tmp_path, "no valid file for the classes b")
    file = tmp_path / "b" / "0.txt"
    file.write_text("text")
    file = file.rename(file.with_suffix(".png"))
    refused(tmp_path, "cannot read", "b/0.png", "cannot identify")
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
    train = images(saved(tmp_path / "a.npz", images=PICTURES)).train
    assert len(train.first(2)) == len(train[:2]) == len(train[LABELS == 1]) == 2
    assert np.array_equal(train[[3, 0]].inputs, PICTURES[[3, 0]])
    assert train[4].targets.tolist() == [1]
    assert train[:2].checksum == train.checksum
    with pytest.raises(InputError, match=r"first 7 examples[\s\S]*a.npz has 6"):
        train.first(7)
    rows = Examples.of("x", np.ones((2, 3)), LABELS[:2], classes=2, source="", kind="features")
    with pytest.raises(ValueError, match="no channels"):
        rows.mean  # noqa: B018


# Text as sequences of tokens ----------------------------------------------------------------------


PACK = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
SAID = "the quick brown fox jumps over the lazy dog\n" * 5
complaint = partial(data_kit.complaint, text)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "said.txt"
    path.write_text(SAID)
    return path


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


def test_wrong_levels(file):
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
