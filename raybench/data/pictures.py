"""Pictures in files: a folder for each class, or all in one tar archive. Decoded by Pillow, bounded."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

import numpy as np

from raybench.core.errors import InputError
from raybench.core.limits import check_fits, check_growth, decompressed

if TYPE_CHECKING:
    from PIL.Image import Image

DATASET_KEY = "problem.dataset"
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".webp")
# What Pillow may take a file for, whatever its ending; it knows dozens of formats more.
FORMATS = ("PNG", "JPEG", "BMP", "PPM", "WEBP")
GREY = ("1", "L", "LA")  # Pillow's names for pictures without colour
COLOUR = ("P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # all become red, green and blue
LAYOUT = "a data set is FOLDER/CLASS/PICTURES, or FOLDER/train/CLASS/... and FOLDER/test/CLASS/..."
MOST_PACKED = 1 << 20  # bytes of a picture in an archive

Part = tuple[np.ndarray, np.ndarray]  # images (N, C, H, W) in uint8, and labels (N)


@dataclass(frozen=True)
class Listing:
    """The pictures of a folder: (file, class) of each part in order, and the names of the classes."""

    train: tuple[tuple[Path, int], ...]
    test: tuple[tuple[Path, int], ...]
    classes: tuple[str, ...]


def listing(folder: Path) -> Listing:
    """Return the pictures of a folder, classes and files in the order of their names.

    Names that start with a dot are passed over. Raises InputError where there is no class, or where a
    class has none or holds anything but pictures.
    """
    try:
        parted = [name for name in ("train", "test") if (folder / name).is_dir()]
        if parted == ["test"]:
            raise InputError.of(DATASET_KEY, f"{folder} has a folder test and no train", LAYOUT)
        top = folder / "train" if parted else folder
        names = _folders(top)
        if not names:
            raise InputError.of(DATASET_KEY, f"{top} has no folder of a class in it", LAYOUT)
        test: tuple[tuple[Path, int], ...] = ()
        if len(parted) == 2:
            alien = sorted(set(_folders(folder / "test")) - set(names))
            if alien:
                what = f"{folder / 'test'} has the class {alien[0]}, which train lacks"
                raise InputError.of(DATASET_KEY, what, LAYOUT)
            test = tuple(_files(folder / "test", names, needed=False))
        return Listing(tuple(_files(top, names)), test, tuple(names))
    except OSError as error:
        raise InputError.of(DATASET_KEY, f"cannot read {folder}: {error}", LAYOUT) from error


def _folders(top: Path) -> list[str]:
    return sorted(p.name for p in top.iterdir() if p.is_dir() and not p.name.startswith("."))


def _files(top: Path, names: list[str], needed: bool = True) -> Iterator[tuple[Path, int]]:
    for label, name in enumerate(names):
        place = top / name
        found = sorted(place.iterdir()) if needed or place.is_dir() else []
        found = [file for file in found if not file.name.startswith(".")]
        for file in found:
            if file.suffix.lower() not in ENDINGS or not file.is_file():
                fix = f"move it away; pictures end with {', '.join(ENDINGS)}"
                raise InputError.of(DATASET_KEY, f"{file} is no picture", fix)
        if needed and not found:
            raise InputError.of(DATASET_KEY, f"the class {place} has no pictures", LAYOUT)
        yield from ((file, label) for file in found)


def read(found: Listing, size: int | None) -> tuple[Part, Part | None]:
    """Return the training part of a listing, and the test part unless it is empty.

    All pictures are grey (C = 1) where all files are, else all are in colour (C = 3). With ``size``
    each is resized to so many pixels a side; without, all must have one size already. Raises
    InputError for a file that is damaged, of another size, of more than 8 bits, or too large.
    """
    files = [file for file, _ in (*found.train, *found.test)]
    # Headers first: they say what the pictures will take before any of them is decoded.
    sides, colour = None if size is None else (size, size), False
    for file in files:
        with file.open("rb") as stream:
            has, mode = _header(stream, file)
        colour = colour or mode in COLOUR
        sides = sides or has
        if size is None and has != sides:
            what = f"{file} has {has[0]} x {has[1]} pixels, and {files[0]} {sides[0]} x {sides[1]}"
            raise InputError.of(DATASET_KEY, what, "give a size to resize all to, such as size=32")
    assert sides is not None
    channels = 3 if colour else 1
    what = f"{len(files):,} pictures of {sides[0]} x {sides[1]} pixels"
    fix = "take fewer pictures, or a smaller size"
    check_fits(DATASET_KEY, what, len(files) * channels * sides[0] * sides[1], fix)
    train, test = (
        _stacked([file for file, _ in part], [label for _, label in part], channels, sides)
        for part in (found.train, found.test)
    )
    return train, test if len(found.test) else None


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
    return InputError.of(DATASET_KEY, what[:400], f"pictures are {', '.join(FORMATS)}")


def _header(stream: IO[bytes], file: Path) -> tuple[tuple[int, int], str]:
    """Return ((width, height), mode) of a picture that is not decoded yet."""
    packed = file.stat().st_size
    with _open(stream, file) as picture:
        (width, height), mode = picture.size, picture.mode
    if mode not in GREY + COLOUR:
        fix = "save it with 8 bits per channel"
        raise InputError.of(DATASET_KEY, f"{file} is in Pillow's mode {mode}", fix)
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
            raise InputError.of(DATASET_KEY, f"{file} has {has} pixels", f"they must have {want}")
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
            raise InputError.of(DATASET_KEY, what, f"the archive has the parts {known}")
        images[part][at] = _pixels(io.BytesIO(data), where, 3, (side, side))
        labels[part][at] = numbers[name]
        seen[part] = at + 1
    for part, count in parts.items():
        if seen[part] != count:
            what = f"{path} has {seen[part]:,} pictures in {part}, not {count:,}"
            raise InputError.of(DATASET_KEY, what, "fetch the file again")
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
                    raise InputError.of(DATASET_KEY, what, "fetch the archive again")
                stream = archive.extractfile(member)
                assert stream is not None
                yield PurePosixPath(member.name), stream.read()
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        what = f"cannot read {path}: {error}"
        raise InputError.of(DATASET_KEY, what, "fetch the archive again") from error
