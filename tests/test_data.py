"""Data sets: reading, fetching, labels, scaling, splits, and what a user's mistakes say."""

import bz2
import functools
import gzip
import http.server
import lzma
import os
import threading

import numpy as np
import pytest
import requests
import scipy.sparse
from data_kit import complaint
from tiers import first_of_each

from raybench import data
from raybench.data import catalogue, tables
from raybench.data.images import cifar, idx, inputs_of

TEXT = b"+1 1:0.5 3:-2\n-1\n-1 2:1e-3 # a comment\n+1 1:1 2:2 3:3\n"
DENSE = np.array([[0.5, 0, -2], [0, 0, 0], [0, 1e-3, 0], [1, 2, 3]])
REAL = {
    "mushrooms": (8124, 112, {1: 3916, 2: 4208}),
    "a9a": (32561, 123, {-1: 24720, 1: 7841}),
    "w8a": (49749, 300, {-1: 48270, 1: 1479}),
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tiny"
    path.write_bytes(TEXT)
    return path


def test_libsvm_file(file):
    result = data.load(file)
    assert np.array_equal(result.features.toarray(), DENSE)
    assert np.array_equal(result.labels, [1, -1, -1, 1])
    assert np.array_equal(result.classes, [-1, 1])
    assert np.array_equal(result.binary(), [1, -1, -1, 1])


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip), (".bz2", bz2), (".xz", lzma)])
def test_compressed_files_are_the_same_data(tmp_path, file, ending, pack):
    packed = tmp_path / f"tiny{ending}"
    packed.write_bytes(pack.compress(TEXT))
    plain, other = data.load(file), data.load(packed)
    assert np.array_equal(plain.features.toarray(), other.features.toarray())
    packed.write_bytes(pack.compress(TEXT)[:-9])
    assert "fetch the file again" in complaint(data.load, packed)


@pytest.mark.parametrize(
    "line",
    ["+1 1:0.5 2:abc", "yes 1:1", "+1 1:1 2", "+1 3:1 2:1"]
    + ["+1 0:1", "+1 1:nan", "nan 1:1", "+1 9:1"],
)
def test_corrupt_line_is_named(line):
    text = f"+1 1:1\n\n-1 3:1\n{line}\n+1 1:1\n".encode()
    said = complaint(tables.libsvm, text, "some.file", 3)
    assert "some.file, line 4" in said
    assert line in said


def test_unknown_names_and_missing_files(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYBENCH_DATA", str(tmp_path))
    said = complaint(data.load, "mushroms")
    assert "did you mean mushrooms?" in said
    assert str(tmp_path / "libsvm") in said
    assert "no file" in complaint(data.load, tmp_path / "absent.txt")
    assert "is a folder" in complaint(data.load, tmp_path)


def test_empty_files_and_single_classes(tmp_path):
    path = tmp_path / "x"
    for text, what in ((b"", "is empty"), (b"\n\n", "is empty"), (b"# only\n", "no rows")):
        path.write_bytes(text)
        assert what in complaint(data.load, path)
    path.write_bytes(b"1 1:1\n1 2:1\n")
    assert "single class (1)" in complaint(data.load, path)


def test_rows(file):
    result = data.load(file, rows=2)
    assert np.array_equal(result.features.toarray(), DENSE[:2])
    assert "4 rows" in complaint(data.load, file, rows=5)
    assert "problem.rows" in complaint(data.load, file, rows=1)  # a single class remains


def test_scale_and_intercept(file):
    rows = data.load(file, scale="rows").features.toarray()
    assert np.allclose(np.linalg.norm(rows, axis=1), [1, 0, 1, 1])
    columns = data.load(file, scale="columns").features
    assert scipy.sparse.issparse(columns)
    assert np.allclose(abs(columns.toarray()).max(0), 1)
    with_ones = data.load(file, scale="columns", intercept=True).features
    assert with_ones.shape == (4, 4)
    assert np.array_equal(with_ones.toarray()[:, 3], np.ones(4))
    dense = data.load("breast_cancer", scale="columns", intercept=True).features
    assert np.allclose(abs(dense).max(0), 1)
    assert np.array_equal(dense[:, -1], np.ones(569))
    assert "did you mean rows?" in complaint(data.load, file, scale="row")


def test_a_file_that_was_changed_is_read_anew(file):
    before, stat = data.load(file), file.stat()
    file.write_bytes(TEXT.replace(b"0.5", b"4.5"))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))  # as large as it was
    assert before.features[0, 0] == 0.5
    assert data.load(file).features[0, 0] == 4.5


def signs(labels, positive=None):
    return data.Dataset("x", np.ones((len(labels), 1)), labels, positive=positive).binary()


@pytest.mark.parametrize("pair", [(0, 1), (1, 2), (-1, 1), (3.5, 7)])
def test_two_labels_become_signs(pair):
    raw = np.array([pair[1], pair[0], pair[1]], dtype=float)
    assert np.array_equal(signs(raw), [1, -1, 1])


def test_more_labels_need_positive():
    raw = np.array([0.0, 1, 2, 2])
    said = complaint(signs, raw)
    assert "problem.positive" in said
    assert "not 3" in said
    assert np.array_equal(signs(raw, (0, 2)), [1, -1, 1, 1])
    for wrong in ([5], [], [0, 1, 2]):
        assert "problem.positive" in complaint(signs, raw, tuple(wrong))


def test_bytes_of_images_by_hand(tmp_path):
    """MNIST's format has big-endian lengths, and CIFAR-100's a coarse label before the one that is meant."""
    path, rows = tmp_path / "x", np.arange(2 * 3074, dtype=np.uint8).reshape(2, 3074)
    path.write_bytes(bytes([0, 0, 8, 3]) + np.array([2, 3, 4], ">u4").tobytes() + bytes(range(24)))
    assert np.array_equal(idx(path, 3), np.arange(24).reshape(2, 3, 4))
    path.write_bytes(rows.tobytes())
    pictures, labels = cifar(path, 2, 2)
    assert labels.tolist() == rows[:, 1].tolist()
    assert np.array_equal(pictures.reshape(2, -1), rows[:, 2:])
    last = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)  # (N, H, W, C)
    inputs = inputs_of(last, "x", "")
    assert all(np.array_equal(inputs[:, c], last[..., c]) for c in range(3))
    held = data.Examples.of("x", inputs, labels, classes=9, source="", kind="image")
    assert held.mean == pytest.approx(last.reshape(-1, 3).mean(0) / 255)
    assert held.std == pytest.approx(last.reshape(-1, 3).std(0) / 255)


def test_sequences_of_a_text_by_hand(tmp_path):
    (tmp_path / "said.txt").write_text("abcabdab")
    pair = data.text(tmp_path / "said.txt", 2, test_share=1 / 3)
    assert pair.train.inputs.tolist() == [[0, 1], [2, 0]]
    assert pair.train.targets.tolist() == [[1, 2], [0, 1]]
    assert (pair.test.inputs.tolist(), pair.test.targets.tolist()) == ([[1, 3]], [[3, 0]])
    assert (pair.train.classes, pair.train.kind) == (4, "text")


@pytest.mark.parametrize("name", first_of_each(REAL))
def test_real_sets(name):
    if not os.environ.get("RAYBENCH_DATA") or catalogue.find("libsvm", name) is None:
        pytest.skip("RAYBENCH_DATA names no folder with this set")
    rows, d, counts = REAL[name]
    result = data.load(name)
    assert result.shape == (rows, d)
    if counts:
        values, sizes = np.unique(result.labels, return_counts=True)
        assert dict(zip(values, sizes)) == counts
    if name.startswith("w"):
        assert (np.diff(result.features.indptr) == 0).any()  # rows without features are kept


def test_offline_error_names_folder_and_file(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise requests.ConnectionError("offline")

    monkeypatch.setenv("RAYBENCH_DATA", str(tmp_path))
    monkeypatch.setattr(requests, "get", refuse)
    said = complaint(data.load, "ijcnn1")
    assert "cannot download ijcnn1" in said
    assert f"put the file ijcnn1.bz2 into {tmp_path / 'libsvm'}" in said
    assert catalogue.LIBSVM_SETS["ijcnn1"].url in said
    assert list((tmp_path / "libsvm").iterdir()) == []


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A web server that offers the tiny set, and a data folder of its own."""
    shown = tmp_path / "site"
    shown.mkdir()
    (shown / "tiny.bz2").write_bytes(bz2.compress(TEXT))
    handler = functools.partial(Quiet, directory=str(shown))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("RAYBENCH_DATA", str(tmp_path / "data"))
        yield f"http://127.0.0.1:{server.server_port}/tiny.bz2"
        server.shutdown()
        thread.join()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def test_download_by_name(site, tmp_path, monkeypatch):
    monkeypatch.setitem(catalogue.LIBSVM_SETS, "tiny", catalogue.LibsvmSet(4, 5, site))
    result = data.load("tiny")
    assert result.shape == (4, 5)  # two more features than the file shows
    folder = tmp_path / "data" / "libsvm"
    assert [f.name for f in folder.iterdir()] == ["tiny.bz2"]
    monkeypatch.setattr(requests, "get", None)  # a second load must not ask the network
    again = data.load("tiny")
    assert np.array_equal(again.features.toarray(), result.features.toarray())
