"""Images by name or path, as a training and a test part: arrays, binary files, and pictures that Pillow decodes.

Nothing is fetched that already lies there. What a file becomes is bounded before it is read.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from raybench.core.errors import nearest
from raybench.core.limits import check_fits, check_growth
from raybench.data.catalogue import BATCHES, IMAGE_SETS, SPELLINGS, embedded, needed
from raybench.data.examples import Examples, Pair
from raybench.data.files import (
    AGAIN,
    DATASET_KEY,
    Archive,
    cached,
    content,
    data_error,
    file_of,
    input_errors,
    open_archive,
    path_of,
)

FIX = "save it with numpy.savez(file, images=..., labels=...), uint8 or floats in [0, 1]"
LAYOUTS = "images are (N, C, H, W) or (N, H, W, C) with C = 1 or 3, or (N, H, W)"
MOST_CLASSES = 1 << 16  # a label beyond that is a mistake, and a last layer of that size no network
MOST_SIDE = 4096  # pixels that pictures may be resized to
Part = tuple[np.ndarray, np.ndarray]  # images (N, C, H, W) and labels (N,), as they were stored


def images(name_or_path: str | os.PathLike[str], *, size: int | None = None) -> Pair:
    """Return the images of that name or path: inputs (N, C, H, W), labels 0 .. classes - 1.

    A name is one of ``IMAGE_SETS``: read from the data folder, and fetched into it where it is not there. A path is an
    ``.npz`` with ``images`` and ``labels`` (and ``test_images``, ``test_labels``), or a folder with a folder of pictures
    for each class (or with such folders in ``train`` and ``test``). size: resize the pictures of a folder to so many
    pixels a side. uint8 stays uint8, floats become float32.

    The arrays are kept for the next caller: do not write to them. Raises InputError for an unknown name, a file that is
    missing, damaged, too large or not of these kinds, and labels that do not number classes.
    """
    name = os.fspath(name_or_path)
    path = None if name == "digits" else path_of(name)
    if path is not None and path.is_dir():
        train, test = listing(path)
        return _folder(
            tuple(file for file, _ in train + test), path.absolute(), (train, test), size
        )
    if size is not None:
        raise data_error(f"size is for folders of pictures; {name} is none", "leave size out")
    if path is None:
        return _named(SPELLINGS.get(name, name))
    file_of(name, "give a known name, an .npz, or a folder of pictures", ".npz")
    return _npz((path.absolute(),))


def _pair(name: str, source: str, classes: int, train: Part, test: Part | None) -> Pair:
    """Return the parts as examples, once their labels have been found to number classes."""
    parts = [train] if test is None else [train, test]
    for _, labels in parts:
        if labels.min() < 0 or labels.max() >= classes:
            what = f"{source} has labels from {labels.min():,} to {labels.max():,}"
            raise data_error(what, f"number the classes from 0 to {classes - 1:,}")
    if len(np.unique(train[1])) < 2:
        what = f"{source} has a single class ({train[1][0]}) to train on"
        raise data_error(what, "the labels must differ")
    rest: Any = {"classes": classes, "source": source, "kind": "image"}
    first = Examples.of(name, *train, **rest)
    return Pair(first, None if test is None else Examples.of(name, *test, **rest))


# By name --------------------------------------------------------------------------------------------


def _named(name: str) -> Pair:
    if name not in IMAGE_SETS:
        fix = f"{nearest(name, [*IMAGE_SETS, *SPELLINGS])}; or give a path: ./{name}"
        raise data_error(f"unknown images {name!r}", fix)
    listed = IMAGE_SETS[name]
    pair = _read_named(tuple(needed(name)), name)
    has = tuple(0 if part is None else len(part) for part in (pair.train, pair.test))
    if has != (listed.train, listed.test) or pair.train.inputs.shape[1:] != listed.shape:
        what = f"{name} has {has[0]:,} + {has[1]:,} images {pair.train.inputs.shape[1:]}"
        want = f"{listed.train:,} + {listed.test:,} of {listed.shape} are expected"
        raise data_error(what, f"{want}; fetch the files again")
    return pair


@cached(2)  # of up to 180 MB each
def _read_named(files: tuple[Path, ...], name: str) -> Pair:
    listed, test = IMAGE_SETS[name], None
    if name == "digits":
        train, source = _digits(), "scikit-learn"
    elif name == "cifar10_part":
        (train, test), source = _prefixes(files[0]), str(files[0])
    elif name.startswith("cifar"):
        each = listed.train // (len(files) - 1)
        width = 2 if name == "cifar100" else 1
        train = _joined([cifar(file, each, width) for file in files[:-1]])
        test, source = cifar(files[-1], listed.test, width), str(files[0].parent)
    else:
        train, test, source = _idx(*files[:2]), _idx(*files[2:]), str(files[0].parent)
    return _pair(name, source, listed.classes, train, test)


def _digits() -> Part:
    rows = embedded("digits")
    # Intensities are 0 .. 16 there and 0 .. 255 here.
    images = np.rint(rows[:, :-1].reshape(-1, 1, 8, 8) * 255 / 16).astype(np.uint8)
    return images, rows[:, -1].astype(np.int64)


def _idx(inputs: Path, labels: Path) -> Part:
    images, classes = idx(inputs, 3)[:, None], idx(labels, 1)
    if len(images) != len(classes) or not images.size:
        what = f"{inputs} has {len(images):,} images, and {labels.name} {len(classes):,} labels"
        raise data_error(what, "fetch the files again")
    return images, classes


def _joined(parts: list[Part]) -> Part:
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return images, labels


def _prefixes(path: Path) -> tuple[Part, Part]:
    """Return (train, test) of the first images of each of CIFAR-10's files; labels are of all."""
    with open_archive(path, AGAIN) as archive:
        parts = []
        for batch in BATCHES:
            inputs = _stored(archive, f"{batch}_images")
            labels = _labels(archive, f"{batch}_labels_all10000")
            if len(labels) < len(inputs):
                has = f"{len(inputs)} images and {len(labels)} labels"
                raise data_error(f"{path.name}: {batch} has {has}", AGAIN)
            parts.append((inputs, labels[: len(inputs)]))
    return _joined(parts[:5]), parts[5]


def idx(path: Path, axes: int) -> np.ndarray:
    """Return the uint8 array with so many axes of an IDX file, plain or compressed: MNIST's format.

    The header is two zeros, the type (8: bytes), the number of axes, and the length of each as a big-endian 32-bit
    integer; the values follow. Raises InputError where that is not what the file holds, before anything is allocated.
    """
    raw, size = content(path), 4 + 4 * axes
    if len(raw) < size:
        raise data_error(f"{path} ends after {len(raw)} bytes, within its header", AGAIN)
    if raw[:4] != bytes((0, 0, 8, axes)):
        what = f"is no IDX file of bytes with {axes} axes: it starts with {bytes(raw[:4]).hex()}"
        raise data_error(f"{path} {what}", AGAIN)
    shape = np.frombuffer(raw, ">u4", axes, 4).tolist()
    count = math.prod(shape)
    lengths = " x ".join(f"{n:,}" for n in shape)
    check_fits(DATASET_KEY, f"{path}: a header of {lengths} bytes", count, AGAIN)
    return _exactly(path, count, raw, size).reshape(shape)


def cifar(path: Path, rows: int, labels: int) -> Part:
    """Return (images (rows, 3, 32, 32), labels (rows)) in uint8 of a CIFAR file in the binary version.

    A row is ``labels`` bytes, of which the last is the label that is meant (CIFAR-100 has a coarse one
    before it), and the image's red, green and blue. Raises InputError for a file of another size.
    """
    table = _exactly(path, rows * (labels + 3 * 32 * 32), content(path)).reshape(rows, -1)
    images = np.ascontiguousarray(table[:, labels:]).reshape(rows, 3, 32, 32)
    return images, table[:, labels - 1].copy()


def _exactly(path: Path, count: int, raw: bytearray, start: int = 0) -> np.ndarray:
    """Return the ``count`` bytes from ``start`` to the end; InputError for fewer or for more."""
    size = len(raw) - start
    if size != count:
        has = "more" if size > count else f"{size:,}"
        raise data_error(f"{path} should have {count:,} bytes of values and has {has}", AGAIN)
    return np.frombuffer(raw, np.uint8, count, start)


# A user's own ---------------------------------------------------------------------------------------


@cached(2)
def _npz(files: tuple[Path]) -> Pair:
    (path,) = files
    with open_archive(path, FIX) as archive:
        train = _pictured(archive, "")
        wants_test = archive.names & {"test_images", "test_labels"}
        test = _pictured(archive, "test_") if wants_test else None
    parts = [train] if test is None else [train, test]
    if len(shapes := dict.fromkeys(str(inputs.shape[1:]) for inputs, _ in parts)) > 1:
        what = f"{path.name}: images and test_images differ, {' and '.join(shapes)}"
        raise data_error(what, "all images must have one shape (C, H, W)")
    most = max(int(labels.max()) for _, labels in parts)
    return _pair(path.name, str(path), min(most + 1, MOST_CLASSES), train, test)


def _pictured(archive: Archive, prefix: str) -> Part:
    inputs, labels = _stored(archive, f"{prefix}images"), _labels(archive, f"{prefix}labels")
    if len(inputs) != len(labels):
        what = f"{archive.name} has {len(inputs):,} {prefix}images and {len(labels):,} labels"
        raise data_error(what, "give one label per image")
    return inputs, labels


def _stored(archive: Archive, name: str) -> np.ndarray:
    return inputs_of(archive.read(name), f"{archive.name}: {name}", archive.fix)


def inputs_of(values: np.ndarray, whole: str, fix: str) -> np.ndarray:
    """Return the images of an array as (N, C, H, W), uint8 or float32 in [0, 1]; ``whole`` is what it is called."""
    shape, dtype = values.shape, values.dtype
    if dtype != np.uint8 and dtype.kind != "f":
        raise data_error(f"{whole} holds {dtype}, not uint8 or floats in [0, 1]", fix)
    first, last = (len(shape) == 4 and shape[axis] in (1, 3) for axis in (1, 3))
    if not (len(shape) == 3 or first or last) or 0 in shape:
        raise data_error(f"{whole} has the shape {shape}", LAYOUTS)
    if dtype.kind == "f":
        # A value that is not a number is not in the interval either.
        if not (values.min() >= 0 and values.max() <= 1):
            what = f"{whole} has values outside of [0, 1], or not finite"
            raise data_error(what, "divide them by their largest, or save uint8")
        check_fits(DATASET_KEY, f"{whole} in float32", 4 * values.size, "save fewer images")
        values = values.astype(np.float32)
    if len(shape) == 3:
        return values[:, None]
    # Where both fit, channels come first.
    return values if first else np.ascontiguousarray(values.transpose(0, 3, 1, 2))


def _labels(archive: Archive, name: str) -> np.ndarray:
    labels = archive.read(name, "iu", "integers, one per image")
    if labels.ndim != 1 or not labels.size:
        raise data_error(f"{archive.name}: {name} has the shape {labels.shape}", archive.fix)
    return labels


# Pictures -------------------------------------------------------------------------------------------

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".webp")
# What Pillow may take a file for, whatever its ending; it knows dozens of formats more.
FORMATS = ("PNG", "JPEG", "BMP", "PPM", "WEBP")
GREY = ("1", "L", "LA")  # Pillow's names for pictures without colour
COLOUR = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # all become red, green and blue
LAYOUT = "a data set is FOLDER/CLASS/PICTURES, or FOLDER/train/CLASS/... and FOLDER/test/CLASS/... (or val)"
TEST_PARTS = ("test", "val", "valid", "validation")  # a folder beside train is one of these
Pictures = tuple[tuple[Path, int], ...]  # files, each with the number of its class


def listing(folder: Path) -> tuple[Pictures, Pictures]:
    """Return the pictures of a folder's training and test part, classes and files in the order of their names.

    Folders that start with a dot or two underscores (__MACOSX), and files that are no pictures by their ending, are
    passed over. Raises InputError where a class or its pictures lack, and for folders that would be left out.
    """
    from torchvision.datasets.folder import make_dataset

    top = folder / "train" if (folder / "train").is_dir() else folder
    beside = [name for name in _classes(folder) if name != "train"] if top != folder else []
    if odd := [name for name in beside if name not in TEST_PARTS] or beside[1:]:
        rest = sorted({"train", *beside} - {odd[0]})
        what = f"{folder} has the folder {odd[0]} beside {', '.join(rest)}"
        raise data_error(what, f"move it elsewhere, or into train; {LAYOUT}")
    if top == folder and (folder / "test").is_dir():
        raise data_error(f"{folder} has a folder test and no train", LAYOUT)
    tests = folder / beside[0] if beside else None
    with input_errors(DATASET_KEY, f"cannot read {folder}", LAYOUT):
        names = _classes(top)
        if not names:
            raise data_error(f"{top} has no folder of a class in it", LAYOUT)
        if alien := sorted(set(_classes(tests)) - set(names)):
            raise data_error(f"{tests} has the class {alien[0]}, which train lacks", LAYOUT)
        numbers = {name: label for label, name in enumerate(names)}
        train = make_dataset(top, numbers, ENDINGS)
        test = make_dataset(tests, numbers, ENDINGS, allow_empty=True) if tests else []
    paths = [tuple((Path(file), label) for file, label in part) for part in (train, test)]
    return paths[0], paths[1]


def _classes(top: Path | None) -> list[str]:
    places = [] if top is None else [*top.iterdir()]
    return sorted(p.name for p in places if p.is_dir() and not p.name.startswith((".", "__")))


@cached(2)
def _folder(
    files: tuple[Path, ...], folder: Path, parts: tuple[Pictures, Pictures], size: int | None
) -> Pair:
    """Return the pictures of a folder: the training part of its listing, and the test part unless that is empty.

    All are grey (C = 1) where all files are, else in colour (C = 3). With ``size`` each is resized to so many pixels a
    side. Raises InputError for a file that is damaged, of another size, of more than 8 bits, or too large.
    """
    from PIL import Image

    labels = np.array([label for part in parts for _, label in part], np.int64)
    grey, images = True, np.empty((0, 3, 0, 0), np.uint8)
    for i, file in enumerate(files):
        with (
            input_errors(DATASET_KEY, f"cannot read {file}", f"pictures are {', '.join(FORMATS)}"),
            Image.open(file, formats=FORMATS) as picture,  # not decoded yet
        ):
            width, height = picture.size
            if picture.mode not in GREY + COLOUR:
                fix = "save it with 8 bits per channel"
                raise data_error(f"{file} is in Pillow's mode {picture.mode}", fix)
            what = f"{file}, a picture of {width} x {height} pixels,"
            check_growth(DATASET_KEY, what, file.stat().st_size, 3 * width * height)
            if not i:
                sides = picture.size if size is None else (size, size)
                shape, fix = (len(files), 3, *sides[::-1]), "take fewer pictures, or a smaller size"
                what = f"{len(files):,} pictures of {sides[0]} x {sides[1]} pixels"
                check_fits(DATASET_KEY, what, math.prod(shape), fix)
                images = np.empty(shape, np.uint8)
            elif size is None and picture.size != sides:
                first = f"{files[0]} {sides[0]} x {sides[1]}"
                what = f"{file} has {width} x {height} pixels, and {first}"
                raise data_error(what, "give a size to resize all to, such as size=32")
            grey &= picture.mode in GREY
            decoded = picture.convert("RGB")
            pixels = np.asarray(decoded.resize(sides, Image.Resampling.BILINEAR))
            images[i] = pixels.transpose(2, 0, 1)
    images = np.ascontiguousarray(images[:, :1]) if grey else images
    n = len(parts[0])
    test = (images[n:], labels[n:]) if parts[1] else None
    classes = 1 + int(labels[:n].max())
    return _pair(folder.name, str(folder), classes, (images[:n], labels[:n]), test)
