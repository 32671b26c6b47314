"""Images by name or path, as a training and a test part: arrays, binary files, and pictures that Pillow decodes.

Nothing is fetched that already lies there. What a file becomes is bounded before it is read.
"""

from __future__ import annotations

import io
import math
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

import numpy as np

from raybench.core.errors import InputError, nearest
from raybench.core.room import check_fits, check_growth, decompressed
from raybench.data.examples import Examples, Pair
from raybench.data.files import (
    AGAIN,
    DATASET_KEY,
    Archive,
    cached,
    data_error,
    kind,
    opened,
    path_of,
)
from raybench.data.known import BATCHES, KNOWN_IMAGES, SPELLINGS, needed

if TYPE_CHECKING:
    from PIL.Image import Image

FIX = "save it with numpy.savez(file, images=..., labels=...), uint8 or floats in [0, 1]"
LAYOUTS = "images are (N, C, H, W) or (N, H, W, C) with C = 1 or 3, or (N, H, W)"
MOST_CLASSES = 1 << 16  # a label beyond that is a mistake, and a last layer of that size no network
MOST_SIDE = 4096  # pixels that pictures may be resized to
THINGS = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
Part = tuple[np.ndarray, np.ndarray]  # images (N, C, H, W) and labels (N,), as they were stored


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
        raise data_error(what, f"allowed: 1 to {MOST_SIDE}")
    given = os.fspath(name_or_path)
    path = None if given == "digits" else path_of(given)
    if path is not None and path.is_dir():
        pictures = listing(path)
        return _folder(pictures.files, path.absolute(), pictures, size)
    if size is not None:
        what = f"size is for folders of pictures; {given} is none"
        raise data_error(what, "leave size out")
    if path is None:
        return _named(SPELLINGS.get(given, given))
    if path.suffix != ".npz" or not path.is_file():
        what = f"{given} is no image data" if path.exists() else f"no file {given}"
        fix = "give a known name, an .npz, or a folder of pictures"
        raise data_error(what, fix)
    return _npz((path.absolute(),))


def _pair(name: str, source: str, classes: int, train: Part, test: Part | None) -> Pair:
    """Return the parts as examples, once their labels have been found to number classes."""
    parts = [train] if test is None else [train, test]
    for _, labels in parts:
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= classes:
            what = f"{source} has labels from {low:,} to {high:,}"
            fix = f"number the classes from 0 to {classes - 1:,}"
            raise data_error(what, fix)
    if len(np.unique(train[1])) < 2:
        what = f"{source} has a single class ({train[1][0]}) to train on"
        raise data_error(what, "the labels must differ")
    made = [
        Examples.of(name, inputs, labels, classes=classes, source=source, kind="image")
        for inputs, labels in parts
    ]
    return Pair(made[0], made[1] if test is not None else None)


# By name --------------------------------------------------------------------------------------------


def _named(name: str) -> Pair:
    if name not in KNOWN_IMAGES:
        fix = f"{nearest(name, [*KNOWN_IMAGES, *SPELLINGS])}; or give a path: ./{name}"
        raise data_error(f"unknown images {name!r}", fix)
    listed = KNOWN_IMAGES[name]
    pair = _read_named(tuple(needed(name)), name)
    has = tuple(0 if part is None else len(part) for part in (pair.train, pair.test))
    if has != (listed.train, listed.test) or pair.train.inputs.shape[1:] != listed.shape:
        what = f"{name} has {has[0]:,} + {has[1]:,} images {pair.train.inputs.shape[1:]}"
        want = f"{listed.train:,} + {listed.test:,} of {listed.shape} are expected"
        raise data_error(what, f"{want}; fetch the files again")
    return pair


@cached(2)  # of up to 180 MB each
def _read_named(files: tuple[Path, ...], name: str) -> Pair:
    listed, test = KNOWN_IMAGES[name], None
    if name == "digits":
        train, source = _digits(), "scikit-learn"
    elif name == "cifar10_part":
        (train, test), source = _prefixes(files[0]), str(files[0])
    elif name == "cifar10_jpeg":
        counts = {"train": listed.train, "test": listed.test}
        parts = archived(files[0], THINGS, counts, listed.shape[1])
        train, test, source = parts["train"], parts["test"], str(files[0])
    elif name.startswith("cifar"):
        each = listed.train // (len(files) - 1)
        width = 2 if name == "cifar100" else 1
        train = _joined([cifar(file, each, width) for file in files[:-1]])
        test, source = cifar(files[-1], listed.test, width), str(files[0].parent)
    else:
        train, test, source = _idx(*files[:2]), _idx(*files[2:]), str(files[0].parent)
    return _pair(name, source, listed.classes, train, test)


def _digits() -> Part:
    from sklearn import datasets

    bunch = datasets.load_digits()
    # Intensities are 0 .. 16 there and 0 .. 255 here.
    return np.rint(bunch.images * 255 / 16).astype(np.uint8)[:, None], bunch.target


def _idx(inputs: Path, labels: Path) -> Part:
    images, classes = idx(inputs, 3)[:, None], idx(labels, 1)
    if len(images) != len(classes) or not images.size:
        what = f"{inputs} has {len(images):,} images, and {labels.name} {len(classes):,} labels"
        raise data_error(what, "fetch the files again")
    return images, classes


def _joined(parts: list[Part]) -> Part:
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def _prefixes(path: Path) -> tuple[Part, Part]:
    """Return (train, test) of the first images of each of CIFAR-10's files; labels are of all."""
    with opened(path, AGAIN) as archive:
        parts = []
        for batch in BATCHES:
            inputs = inputs_of(archive, f"{batch}_images")
            labels = _labels(archive, f"{batch}_labels_all10000")
            if len(labels) < len(inputs):
                what = f"{path.name}: {batch} has {len(inputs)} images and {len(labels)} labels"
                raise data_error(what, AGAIN)
            parts.append((inputs, labels[: len(inputs)]))
    return _joined(parts[:5]), parts[5]


def idx(path: Path, axes: int) -> np.ndarray:
    """Return the uint8 array with so many axes of an IDX file, plain or compressed: MNIST's format.

    The header is two zeros, the type (8: bytes), the number of axes, and the length of each as a
    big-endian 32-bit integer; the values follow. Raises InputError where that is not what the file
    holds: a header that promises too much is refused before anything is allocated for it.
    """
    raw, size = _content(path), 4 + 4 * axes
    if len(raw) < size:
        raise data_error(f"{path} ends after {len(raw)} bytes, within its header", AGAIN)
    if raw[:4] != bytes((0, 0, 8, axes)):
        what = f"is no IDX file of bytes with {axes} axes: it starts with {bytes(raw[:4]).hex()}"
        raise data_error(f"{path} {what}", AGAIN)
    shape = tuple(int(n) for n in np.frombuffer(raw, ">u4", axes, 4))
    count = math.prod(shape)
    lengths = " x ".join(f"{n:,}" for n in shape)
    check_fits(DATASET_KEY, f"{path}: a header of {lengths} bytes", count, AGAIN)
    return _exactly(path, count, raw, size).reshape(shape)


def cifar(path: Path, rows: int, labels: int) -> Part:
    """Return (images (rows, 3, 32, 32), labels (rows)) in uint8 of a CIFAR file in the binary version.

    A row is ``labels`` bytes, of which the last is the label that is meant (CIFAR-100 has a coarse one
    before it), and the image's red, green and blue. Raises InputError for a file of another size.
    """
    table = _exactly(path, rows * (labels + 3 * 32 * 32), _content(path)).reshape(rows, -1)
    images = np.ascontiguousarray(table[:, labels:]).reshape(rows, 3, 32, 32)
    return images, table[:, labels - 1].copy()


def _content(path: Path) -> bytearray:
    """Return the decompressed bytes of a file, in a form that can be written to, as torch wants it."""
    raw = bytearray()
    for chunk in decompressed(path, DATASET_KEY):
        raw += chunk
    return raw


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
    with opened(path, FIX) as archive:
        train = _pictured(archive, "")
        wants_test = archive.names & {"test_images", "test_labels"}
        test = _pictured(archive, "test_") if wants_test else None
    if test is not None and test[0].shape[1:] != train[0].shape[1:]:
        shapes = " and ".join(str(part[0].shape[1:]) for part in (train, test))
        what = f"{path.name}: images and test_images differ, {shapes}"
        raise data_error(what, "all images must have one shape (C, H, W)")
    most = max(int(part[1].max()) for part in (train, test) if part is not None)
    return _pair(path.name, str(path), min(most + 1, MOST_CLASSES), train, test)


def _pictured(archive: Archive, prefix: str) -> Part:
    inputs, labels = inputs_of(archive, f"{prefix}images"), _labels(archive, f"{prefix}labels")
    if len(inputs) != len(labels):
        what = f"{archive.name} has {len(inputs):,} {prefix}images and {len(labels):,} labels"
        raise data_error(what, "give one label per image")
    return inputs, labels


def inputs_of(archive: Archive, name: str) -> np.ndarray:
    """Return the images of an archive as (N, C, H, W), uint8 or float32 in [0, 1]."""
    shape, dtype = archive.measure(name)
    whole = f"{archive.name}: {name}"
    if dtype != np.uint8 and dtype.kind != "f":
        what = f"{whole} holds {kind(dtype)}, not uint8 or floats in [0, 1]"
        raise data_error(what, archive.fix)
    first, last = (len(shape) == 4 and shape[axis] in (1, 3) for axis in (1, 3))
    if not (len(shape) == 3 or first or last) or 0 in shape:
        raise data_error(f"{whole} has the shape {shape}", LAYOUTS)
    if dtype.kind == "f":
        check_fits(DATASET_KEY, f"{whole} in float32", 4 * math.prod(shape), "save fewer images")
    values = archive.read(name)
    if dtype.kind == "f":
        # A value that is not a number is not in the interval either.
        if not (values.min() >= 0 and values.max() <= 1):
            what = f"{whole} has values outside of [0, 1], or not finite"
            raise data_error(what, "divide them by their largest, or save uint8")
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
        raise data_error(what, "labels are integers, one per image")
    return archive.read(name)


@cached(2)
def _folder(files: tuple[Path, ...], folder: Path, pictures: Listing, size: int | None) -> Pair:
    train, test = read_pictures(pictures, size)
    return _pair(folder.name, str(folder), len(pictures.classes), train, test)


# Pictures -------------------------------------------------------------------------------------------

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".webp")
# What Pillow may take a file for, whatever its ending; it knows dozens of formats more.
FORMATS = ("PNG", "JPEG", "BMP", "PPM", "WEBP")
GREY = ("1", "L", "LA")  # Pillow's names for pictures without colour
COLOUR = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # all become red, green and blue
LAYOUT = "a data set is FOLDER/CLASS/PICTURES, or FOLDER/train/CLASS/... and FOLDER/test/CLASS/..."
MOST_PACKED = 1 << 20  # bytes of a picture in an archive


@dataclass(frozen=True)
class Listing:
    """The pictures of a folder: (file, class) of each part in order, and the names of the classes."""

    train: tuple[tuple[Path, int], ...]
    test: tuple[tuple[Path, int], ...]
    classes: tuple[str, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """Return all files, those of the training part first."""
        return tuple(file for file, _ in (*self.train, *self.test))


def listing(folder: Path) -> Listing:
    """Return the pictures of a folder, classes and files in the order of their names.

    Names that start with a dot are passed over. Raises InputError where there is no class, or where a
    class has none or holds anything but pictures.
    """
    try:
        parted = [name for name in ("train", "test") if (folder / name).is_dir()]
        if parted == ["test"]:
            raise data_error(f"{folder} has a folder test and no train", LAYOUT)
        top = folder / "train" if parted else folder
        names = _folders(top)
        if not names:
            raise data_error(f"{top} has no folder of a class in it", LAYOUT)
        test: tuple[tuple[Path, int], ...] = ()
        if len(parted) == 2:
            alien = sorted(set(_folders(folder / "test")) - set(names))
            if alien:
                what = f"{folder / 'test'} has the class {alien[0]}, which train lacks"
                raise data_error(what, LAYOUT)
            test = tuple(_files(folder / "test", names, needed=False))
        return Listing(tuple(_files(top, names)), test, tuple(names))
    except OSError as error:
        raise data_error(f"cannot read {folder}: {error}", LAYOUT) from error


def _folders(top: Path) -> list[str]:
    return sorted(p.name for p in top.iterdir() if p.is_dir() and not p.name.startswith("."))


def _files(top: Path, names: list[str], needed: bool = True) -> Iterator[tuple[Path, int]]:
    for label, name in enumerate(names):
        place = top / name
        files = sorted(place.iterdir()) if needed or place.is_dir() else []
        files = [file for file in files if not file.name.startswith(".")]
        for file in files:
            if file.suffix.lower() not in ENDINGS or not file.is_file():
                fix = f"move it away; pictures end with {', '.join(ENDINGS)}"
                raise data_error(f"{file} is no picture", fix)
        if needed and not files:
            raise data_error(f"the class {place} has no pictures", LAYOUT)
        yield from ((file, label) for file in files)


def read_pictures(pictures: Listing, size: int | None) -> tuple[Part, Part | None]:
    """Return the training part of a listing, and the test part unless it is empty.

    All pictures are grey (C = 1) where all files are, else all are in colour (C = 3). With ``size``
    each is resized to so many pixels a side; without, all must have one size already. Raises
    InputError for a file that is damaged, of another size, of more than 8 bits, or too large.
    """
    files = pictures.files
    # Headers first: they say what the pictures will take before any of them is decoded.
    sides, colour = None if size is None else (size, size), False
    for file in files:
        with file.open("rb") as stream:
            has, mode = _header(stream, file)
        colour = colour or mode in COLOUR
        sides = sides or has
        if size is None and has != sides:
            what = f"{file} has {has[0]} x {has[1]} pixels, and {files[0]} {sides[0]} x {sides[1]}"
            raise data_error(what, "give a size to resize all to, such as size=32")
    assert sides is not None
    channels = 3 if colour else 1
    what = f"{len(files):,} pictures of {sides[0]} x {sides[1]} pixels"
    fix = "take fewer pictures, or a smaller size"
    check_fits(DATASET_KEY, what, len(files) * channels * sides[0] * sides[1], fix)
    train, test = (
        _stacked([file for file, _ in part], [label for _, label in part], channels, sides)
        for part in (pictures.train, pictures.test)
    )
    return train, test if pictures.test else None


def _stacked(files: list[Path], labels: list[int], channels: int, sides: tuple[int, int]) -> Part:
    images = np.empty((len(files), channels, sides[1], sides[0]), np.uint8)
    for image, file in zip(images, files):
        with file.open("rb") as stream:
            image[:] = _pixels(stream, file, channels, sides, resized=True)
    return images, np.array(labels, np.int64)


def _open(stream: IO[bytes], file: Path | str) -> Image:
    from PIL import Image

    try:
        return Image.open(stream, formats=FORMATS)
    except Exception as error:  # Pillow raises a dozen kinds on files that are damaged
        raise _damaged(file, error) from error


def _damaged(file: Path | str, error: Exception) -> InputError:
    # Pillow's own words name the stream's address where it cannot tell the format.
    said = str(error) if "identify" not in str(error) else "it is of no format that is read"
    what = f"cannot read {file}: {said or type(error).__name__}"
    return data_error(what[:400], f"pictures are {', '.join(FORMATS)}")


def _header(stream: IO[bytes], file: Path) -> tuple[tuple[int, int], str]:
    """Return ((width, height), mode) of a picture that is not decoded yet."""
    packed = file.stat().st_size
    with _open(stream, file) as picture:
        (width, height), mode = picture.size, picture.mode
    if mode not in GREY + COLOUR:
        fix = "save it with 8 bits per channel"
        raise data_error(f"{file} is in Pillow's mode {mode}", fix)
    check_growth(
        DATASET_KEY, f"{file}, a picture of {width} x {height} pixels,", packed, 3 * width * height
    )
    return (width, height), mode


def _pixels(
    stream: IO[bytes],
    file: Path | str,
    channels: int,
    sides: tuple[int, int],
    resized: bool = False,
) -> np.ndarray:
    """Return a picture of ``sides`` (width, height), or resized to them, as uint8 (C, H, W)."""
    from PIL import Image

    with _open(stream, file) as picture:
        if not resized and picture.size != sides:
            has, want = (f"{w} x {h}" for w, h in (picture.size, sides))
            raise data_error(f"{file} has {has} pixels", f"they must have {want}")
        try:
            decoded = picture.convert("L" if channels == 1 else "RGB")
            if decoded.size != sides:
                decoded = decoded.resize(sides, Image.Resampling.BILINEAR)
        except Exception as error:  # Pillow raises a dozen kinds on files that are damaged
            raise _damaged(file, error) from error
        return np.asarray(decoded).reshape(sides[1], sides[0], channels).transpose(2, 0, 1)


class _Flow:
    """The decompressed bytes of a file, for a reader that asks for so many at a time."""

    def __init__(self, path: Path) -> None:
        self._chunks, self._held = decompressed(path, DATASET_KEY), b""

    def read(self, count: int) -> bytes:
        parts, have = [self._held], len(self._held)
        while have < count and (chunk := next(self._chunks, b"")):
            parts.append(chunk)
            have += len(chunk)
        whole = b"".join(parts)
        self._held = whole[count:]
        return whole[:count]


def archived(
    path: Path, classes: tuple[str, ...], parts: dict[str, int], side: int
) -> dict[str, Part]:
    """Return the parts of a tar archive of pictures ``ANY/PART/CLASS/FILE``, in the archive's order.

    parts: how many pictures each has, as is known beforehand; all are in colour, ``side`` pixels wide
    and high. Nothing is unpacked to the disk. Raises InputError where anything else is found.
    """
    images = {name: np.empty((n, 3, side, side), np.uint8) for name, n in parts.items()}
    labels = {name: np.empty(n, np.int64) for name, n in parts.items()}
    seen, numbers = dict.fromkeys(parts, 0), {name: j for j, name in enumerate(classes)}
    for place, data in _members(path):
        part, name = place.parts[-3:-1] if len(place.parts) > 2 else ("", "")
        at, where = seen.get(part, 0), f"{path}: {place}"
        if name not in numbers or at >= parts.get(part, 0):
            known = f"{'/'.join(parts)} of the classes {', '.join(classes)}"
            what = f"{where} is none of the {sum(parts.values()):,} pictures expected"
            raise data_error(what, f"the archive has the parts {known}")
        images[part][at] = _pixels(io.BytesIO(data), where, 3, (side, side))
        labels[part][at] = numbers[name]
        seen[part] = at + 1
    for part, count in parts.items():
        if seen[part] != count:
            what = f"{path} has {seen[part]:,} pictures in {part}, not {count:,}"
            raise data_error(what, AGAIN)
    return {part: (images[part], labels[part]) for part in parts}


def _members(path: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield the name and the bytes of each file of a tar archive."""
    try:
        with tarfile.open(fileobj=_Flow(path), mode="r|") as archive:  # type: ignore[call-overload]
            for member in archive:
                # Else tarfile keeps what it knows of every file, of which there may be millions.
                archive.members = []
                if member.isdir():
                    continue
                if not member.isreg() or member.size > MOST_PACKED:
                    what = f"{path}: {member.name} is no small file"
                    raise data_error(what, "fetch the archive again")
                stream = archive.extractfile(member)
                assert stream is not None
                yield PurePosixPath(member.name), stream.read()
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        what = f"cannot read {path}: {error}"
        raise data_error(what, "fetch the archive again") from error
