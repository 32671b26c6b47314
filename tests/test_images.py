"""Images by name, and data files from anybody: what is fetched, files that are not what they say, bombs."""

import bz2
import gzip
import hashlib
import io
import lzma
import tarfile
import time
from functools import partial

import data_kit
import forge
import forge_files
import numpy as np
import pytest
import requests
import torchvision
from data_kit import forged_npz, npy

from raybench.core import limits
from raybench.core.errors import InputError
from raybench.data import IMAGE_SETS, ImageSet, catalogue, images, load
from raybench.problems.clients import Rows
from raybench.spec import sections

pytestmark = pytest.mark.thorough

TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # digits in MNIST
TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
CHECKSUMS = {
    "digits": "05e7fdfebef9ebb4",
    "mnist": "6cc8122a73186f7b",
    "cifar10_part": "9a6f26a6de9b921e",
}
refused = partial(data_kit.refused, images)


def by_name(data_folder, name):
    for file in IMAGE_SETS[name].files:
        if not (data_folder / file).is_file():
            pytest.skip(f"the data folder has no {file}")
    return images(name)


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
    assert train.checksum.startswith(CHECKSUMS["digits"])


def test_mnist(data_folder):
    pair = by_name(data_folder, "mnist")
    assert (pair.train.inputs.shape, len(pair.test)) == ((60000, 1, 28, 28), 10000)
    assert list(pair.train.targets[:5]) == [5, 0, 4, 1, 9]
    assert list(np.bincount(pair.train.targets)) == TRAIN
    assert list(np.bincount(pair.test.targets)) == TEST
    assert pair.train.checksum.startswith(CHECKSUMS["mnist"])
    assert pair.train.mean == pytest.approx([0.1307], abs=5e-5)
    assert pair.train.std == pytest.approx([0.3081], abs=5e-5)
    assert images("MNIST").train is pair.train


def test_the_exact_part_of_cifar10(data_folder):
    pair = by_name(data_folder, "cifar10_part")
    assert pair.train.inputs.shape == (5085, 3, 32, 32)
    assert pair.test.inputs.shape == (1017, 3, 32, 32)
    assert (pair.train.inputs.dtype, pair.train.classes) == (np.uint8, 10)
    assert list(pair.train.targets[:10]) == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert list(pair.test.targets[:5]) == [3, 8, 8, 0, 6]
    assert pair.train.checksum.startswith(CHECKSUMS["cifar10_part"])


def test_unknown_names(folder):
    refused("fashion_mnits", "unknown images 'fashion_mnits'", "did you mean fashion_mnist?")
    refused("Cifar100", "did you mean cifar100?")
    refused("cifar10_part", "no site", f"exact_prefix_subset.npz into {folder}")
    refused("./absent.npz", "no file ./absent.npz")
    refused("a\0b", "unknown images")
    refused("x/" * 5000, "problem.dataset")
    refused("mnist", "size is for folders", size=8)
    refused(folder.parent, "size is 0", size=0)


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
    "empty": (b"", ["within its header"]),
    "zeros": (bytes(10**7), ["no IDX file"]),
    "text": (b"not an image at all", ["no IDX file"]),
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

    url = {"url": catalogue.MIRRORS[0]}
    listed = ImageSet(**{**IMAGE_SETS["mnist"].__dict__, **url})
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
    refused(
        "mnist", "cannot download mnist", f"put MNIST/raw/{tiny[2].name} into {folder}", url["url"]
    )


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


# Data files from anybody --------------------------------------------------------------------------

PATIENCE = 2.0  # seconds
PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def bad_table(path, *words):
    data_kit.refused(load, str(path), *words, file_size=path.stat().st_size)


@pytest.mark.parametrize("ending", PACK)
def test_bombs(tmp_path, ending):
    path = tmp_path / f"bomb{ending}"
    path.write_bytes(PACK[ending](b"1 1:1\n" * 20_000_000))
    assert path.stat().st_size < 600_000
    bad_table(path, "decompresses to more than 100 times", "decompress it yourself")
    # the plan hashes the file before it is loaded
    begin = time.monotonic()
    with pytest.raises(InputError, match="more than 100 times"):
        sections.content_hash(str(path), "problem.dataset")
    assert time.monotonic() - begin < PATIENCE


@pytest.mark.parametrize("ending", ["", *PACK])
def test_files_larger_than_a_quarter_of_the_memory(tmp_path, monkeypatch, ending):
    path = tmp_path / f"large{ending}"
    path.write_bytes(PACK.get(ending, bytes)(b"1 1:1\n-1 1:2\n" * 1000))
    assert load(str(path)).shape == (2000, 1)
    again = path.rename(tmp_path / f"again{ending}")
    monkeypatch.setattr(limits, "memory_here", lambda: 40 << 10)
    bad_table(again, "a data set may take 10 KiB here", "fewer rows")


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
    bad_table(path, *words)


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
    bad_table(forged_npz(tmp_path / "mine.npz", features=features, labels=npy(LABELS)), *words)


def test_files_that_are_no_archives(tmp_path):
    path = tmp_path / "mine.npz"
    good = forged_npz(path, features=npy(FEATURES), labels=npy(LABELS)).read_bytes()
    assert load(str(path)).shape == (4, 3)
    for j, data in enumerate((b"", npy(FEATURES), b"\x80\x04]", good[:-30], good[30:], good[:100])):
        other = tmp_path / f"{j}.npz"
        other.write_bytes(data)
        bad_table(other, other.name)
    bad_table(forged_npz(tmp_path / "none.npz", features=npy(FEATURES)), "lacks the array labels")


def test_objects_are_never_unpickled(tmp_path):
    class Run:
        def __reduce__(self):
            return (pytest.fail, ("it was unpickled",))

    path = tmp_path / "mine.npz"
    np.savez(path, features=np.array([[Run()], [Run()]], object), labels=np.array([0, 1]))
    bad_table(path, "features: Object arrays cannot be loaded", "numpy.savez")


# Whatever else ---------------------------------------------------------------------------------------


def test_changed_files_are_read_or_refused():
    """A sample of data files and sweep files; ``make fuzz`` tries more, and other seeds."""
    tally = forge_files.forge_files(1500, 0, forge.Tally())
    assert not tally.failures, tally.failures[0]
    assert tally.outcomes["refused"] > 300
    assert tally.outcomes["read"] > 20
