"""Images by name or path, as a training and a test part. Nothing is fetched that already lies there."""

from __future__ import annotations

import functools
import hashlib
import math
import os
from pathlib import Path

import numpy as np

from raybench.core.errors import InputError, nearest
from raybench.core.limits import check_fits
from raybench.data import binary, pictures
from raybench.data.archive import Archive, kind, opened
from raybench.data.examples import Examples, Pair, path_of
from raybench.data.known_images import KNOWN_IMAGES, SPELLINGS, needed

DATASET_KEY = "problem.dataset"
FIX = "save it with numpy.savez(file, images=..., labels=...), uint8 or floats in [0, 1]"
LAYOUTS = "images are (N, C, H, W) or (N, H, W, C) with C = 1 or 3, or (N, H, W)"
MOST_CLASSES = 1 << 16  # a label beyond that is a mistake, and a last layer of that size no network
MOST_SIDE = 4096  # pixels that pictures may be resized to
THINGS = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
Part = tuple[np.ndarray, np.ndarray]  # images and labels as they were stored


def images(name_or_path: str | os.PathLike[str], *, size: int | None = None) -> Pair:
    """Return the images of that name or path: inputs (N, C, H, W), labels 0 .. classes - 1.

    A name is one of ``KNOWN_IMAGES``: read from the data folder, and fetched into it where it is not
    there. A path is an ``.npz`` with ``images`` and ``labels`` (and ``test_images``, ``test_labels``),
    or a folder with a folder of pictures for each class (or with such folders in ``train`` and
    ``test``). size: resize the pictures of a folder to so many pixels a side.

    uint8 stays uint8, floats become float32. The arrays are kept for the next caller: do not write
    to them. Raises InputError for an unknown name, a file that is missing, damaged, too large or not
    of these kinds, and labels that do not number classes.
    """
    if size is not None and not (type(size) is int and 1 <= size <= MOST_SIDE):
        what = f"size is {size!r}, not a number of pixels"
        raise InputError.of(DATASET_KEY, what, f"allowed: 1 to {MOST_SIDE}")
    given = os.fspath(name_or_path)
    path = None if given == "digits" else path_of(given)
    if path is not None and path.is_dir():
        found = pictures.listing(path)
        files = [file for file, _ in (*found.train, *found.test)]
        return _folder(path.absolute(), found, size, stamp_of(files))
    if size is not None:
        what = f"size is for folders of pictures; {given} is none"
        raise InputError.of(DATASET_KEY, what, "leave size out")
    if path is None:
        return _named(SPELLINGS.get(given, given))
    if path.suffix != ".npz" or not path.is_file():
        what = f"{given} is no image data" if path.exists() else f"no file {given}"
        fix = "give a known name, an .npz, or a folder of pictures"
        raise InputError.of(DATASET_KEY, what, fix)
    return _own_npz(path.absolute(), stamp_of([path]))


def stamp_of(files: list[Path]) -> str:
    """Return a text that changes when one of the files does, so that changed files are read anew."""
    whole = hashlib.sha256()
    for file in files:
        try:
            stat = file.stat()
        except OSError as error:
            fix = "check the path and its permissions"
            raise InputError.of(DATASET_KEY, f"cannot read {file}: {error}", fix) from error
        whole.update(
            f"{file}\0{stat.st_mtime_ns} {stat.st_size}\n".encode(errors="surrogateescape")
        )
    return whole.hexdigest()


def _pair(name: str, source: str, classes: int, train: Part, test: Part | None) -> Pair:
    """Return the parts as examples, once their labels have been found to number classes."""
    parts = [train] if test is None else [train, test]
    for _, labels in parts:
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= classes:
            what = f"{source} has labels from {low:,} to {high:,}"
            fix = f"number the classes from 0 to {classes - 1:,}"
            raise InputError.of(DATASET_KEY, what, fix)
    if len(np.unique(train[1])) < 2:
        what = f"{source} has a single class ({train[1][0]}) to train on"
        raise InputError.of(DATASET_KEY, what, "the labels must differ")
    made = [
        Examples.of(name, inputs, labels, classes=classes, source=source, kind="image")
        for inputs, labels in parts
    ]
    return Pair(made[0], made[1] if test is not None else None)


# By name --------------------------------------------------------------------------------------------


def _named(name: str) -> Pair:
    known = KNOWN_IMAGES.get(name)
    if known is None:
        fix = nearest(name, [*KNOWN_IMAGES, *SPELLINGS])
        raise InputError.of(
            DATASET_KEY, f"unknown images {name!r}", f"{fix}; or give a path: ./{name}"
        )
    files = needed(name)
    pair = _read_named(name, tuple(files), stamp_of(files))
    has = tuple(0 if part is None else len(part) for part in (pair.train, pair.test))
    if has != (known.train, known.test) or pair.train.inputs.shape[1:] != known.shape:
        what = f"{name} has {has[0]:,} + {has[1]:,} images {pair.train.inputs.shape[1:]}"
        fix = (
            f"{known.train:,} + {known.test:,} of {known.shape} are expected; fetch the files again"
        )
        raise InputError.of(DATASET_KEY, what, fix)
    return pair


@functools.lru_cache(maxsize=2)  # all cells of a sweep ask for the same few, of up to 180 MB each
def _read_named(name: str, files: tuple[Path, ...], stamp: str) -> Pair:
    del stamp  # an argument only so that changed files are read anew
    known = KNOWN_IMAGES[name]
    train: Part
    test: Part | None
    if name == "digits":
        train, test, source = _digits(), None, "scikit-learn"
    elif name == "cifar10_part":
        (train, test), source = _prefixes(files[0]), str(files[0])
    elif name == "cifar10_jpeg":
        counts = {"train": known.train, "test": known.test}
        found = pictures.archived(files[0], THINGS, counts, known.shape[1])
        train, test, source = found["train"], found["test"], str(files[0])
    elif name.startswith("cifar"):
        each = known.train // (len(files) - 1)
        coarse = 1 if name == "cifar100" else 0
        read = [binary.cifar(file, each, 1 + coarse) for file in files[:-1]]
        train = _joined(read)
        test, source = binary.cifar(files[-1], known.test, 1 + coarse), str(files[0].parent)
    else:
        read = [_idx(*files[:2]), _idx(*files[2:])]
        (train, test), source = read, str(files[0].parent)
    return _pair(name, source, known.classes, train, test)


def _digits() -> Part:
    from sklearn import datasets

    bunch = datasets.load_digits()
    # Intensities are 0 .. 16 there and 0 .. 255 here.
    return np.rint(bunch.images * 255 / 16).astype(np.uint8)[:, None], bunch.target


def _idx(inputs: Path, labels: Path) -> Part:
    found = binary.idx(inputs, 3)[:, None], binary.idx(labels, 1)
    if len(found[0]) != len(found[1]) or not found[0].size:
        what = f"{inputs} has {len(found[0]):,} images, and {labels.name} {len(found[1]):,} labels"
        raise InputError.of(DATASET_KEY, what, "fetch the files again")
    return found


def _joined(parts: list[Part]) -> Part:
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def _prefixes(path: Path) -> tuple[Part, Part]:
    """Return (train, test) of the first images of each of CIFAR-10's files; labels are of all."""
    fix = "fetch the file again"
    with opened(path, fix) as archive:
        parts = []
        for batch in (*(f"data_batch_{j}" for j in range(1, 6)), "test_batch"):
            inputs = inputs_of(archive, f"{batch}_images")
            labels = _labels(archive, f"{batch}_labels_all10000")
            if len(labels) < len(inputs):
                what = f"{path.name}: {batch} has {len(inputs)} images and {len(labels)} labels"
                raise InputError.of(DATASET_KEY, what, fix)
            parts.append((inputs, labels[: len(inputs)]))
    return _joined(parts[:5]), parts[5]


# Of one's own ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=2)
def _own_npz(path: Path, stamp: str) -> Pair:
    del stamp  # an argument only so that a changed file is read anew
    with opened(path, FIX) as archive:
        train = _pictured(archive, "")
        wants_test = archive.names & {"test_images", "test_labels"}
        test = _pictured(archive, "test_") if wants_test else None
    if test is not None and test[0].shape[1:] != train[0].shape[1:]:
        shapes = " and ".join(str(part[0].shape[1:]) for part in (train, test))
        what = f"{path.name}: images and test_images differ, {shapes}"
        raise InputError.of(DATASET_KEY, what, "all images must have one shape (C, H, W)")
    most = max(int(part[1].max()) for part in (train, test) if part is not None)
    return _pair(path.name, str(path), min(most + 1, MOST_CLASSES), train, test)


def _pictured(archive: Archive, prefix: str) -> Part:
    inputs, labels = inputs_of(archive, f"{prefix}images"), _labels(archive, f"{prefix}labels")
    if len(inputs) != len(labels):
        what = f"{archive.name} has {len(inputs):,} {prefix}images and {len(labels):,} labels"
        raise InputError.of(DATASET_KEY, what, "give one label per image")
    return inputs, labels


def inputs_of(archive: Archive, name: str) -> np.ndarray:
    """Return the images of an archive as (N, C, H, W), uint8 or float32 in [0, 1]."""
    shape, dtype = archive.measure(name)
    whole = f"{archive.name}: {name}"
    if dtype != np.uint8 and dtype.kind != "f":
        what = f"{whole} holds {kind(dtype)}, not uint8 or floats in [0, 1]"
        raise InputError.of(DATASET_KEY, what, archive.fix)
    first, last = (len(shape) == 4 and shape[axis] in (1, 3) for axis in (1, 3))
    if not (len(shape) == 3 or first or last) or 0 in shape:
        raise InputError.of(DATASET_KEY, f"{whole} has the shape {shape}", LAYOUTS)
    if dtype.kind == "f":
        check_fits(DATASET_KEY, f"{whole} in float32", 4 * math.prod(shape), "save fewer images")
    values = archive.read(name)
    if dtype.kind == "f":
        # A value that is not a number is not in the interval either.
        if not (values.min() >= 0 and values.max() <= 1):
            what = f"{whole} has values outside of [0, 1], or not finite"
            raise InputError.of(DATASET_KEY, what, "divide them by their largest, or save uint8")
        values = values.astype(np.float32)
    if len(shape) == 3:
        values = values[:, None]
    # Where both fit, channels come first.
    return np.ascontiguousarray(
        values if len(shape) == 3 or first else values.transpose(0, 3, 1, 2)
    )


def _labels(archive: Archive, name: str) -> np.ndarray:
    shape, dtype = archive.measure(name)
    if dtype.kind not in "iu" or len(shape) != 1 or not math.prod(shape):
        what = f"{archive.name}: {name} is {kind(dtype)} of shape {shape}"
        raise InputError.of(DATASET_KEY, what, "labels are integers, one per image")
    return archive.read(name)


@functools.lru_cache(maxsize=2)
def _folder(path: Path, found: pictures.Listing, size: int | None, stamp: str) -> Pair:
    del stamp  # an argument only so that changed files are read anew
    train, test = pictures.read(found, size)
    return _pair(path.name, str(path), len(found.classes), train, test)
