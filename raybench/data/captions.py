"""Pictures with captions in a folder as CUB-200-2011's, with the texts of Reed et al. 2016."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from raybench.core.errors import InputError
from raybench.core.limits import check_fits, decompressed
from raybench.data import pictures

DATASET_KEY = "problem.dataset"
LISTS = ("images.txt", "image_class_labels.txt", "train_test_split.txt")
LAYOUT = f"a folder with images/, text_c10/ (CLASS/PICTURE.txt) and {', '.join(LISTS)}"
MOST_TEXT = 1 << 16  # bytes of the captions of a picture; ten of them take about 700

Samples = tuple[tuple[Path, Path, int], ...]  # picture, captions, label


@dataclass(frozen=True)
class Listing:
    """The samples of a folder in the order of images.txt, of each part."""

    folder: Path
    train: Samples
    test: Samples

    def every(self) -> list[Path]:
        """Return all files that are read."""
        samples = [file for *files, _ in (*self.train, *self.test) for file in files]
        return [*(self.folder / name for name in LISTS), *samples]


def listing(folder: Path) -> Listing:
    """Return the samples of a folder: pictures, their captions, labels and parts by the folder's lists.

    Raises InputError where a list is missing or damaged, the lists do not number the same pictures, or a
    name in them leads out of the folder.
    """
    names, labels, trains = (dict(_lines(folder / name)) for name in LISTS)
    if not names or names.keys() != labels.keys() or names.keys() != trains.keys():
        what = (
            f"the lists of {folder} number {len(names)}, {len(labels)} and {len(trains)} pictures"
        )
        raise InputError.of(DATASET_KEY, what, LAYOUT)
    parts: dict[str, list[tuple[Path, Path, int]]] = {"1": [], "0": []}
    for number, name in names.items():
        inner = PurePosixPath(name)
        if inner.is_absolute() or ".." in inner.parts or "\0" in name or len(inner.parts) != 2:
            what = f"{folder / LISTS[0]} names {name!r}, which is not CLASS/PICTURE"
            raise InputError.of(DATASET_KEY, what[:300], LAYOUT)
        if trains[number] not in parts or not labels[number].isdecimal():
            what = (
                f"{folder}: picture {number} has label {labels[number]!r}, part {trains[number]!r}"
            )
            raise InputError.of(DATASET_KEY, what[:300], "labels are numbers, parts 0 (test) or 1")
        words = folder / "text_c10" / inner.with_suffix(".txt")
        sample = (folder / "images" / inner, words, int(labels[number][:9]))
        parts[trains[number]].append(sample)
    if not parts["1"]:
        raise InputError.of(DATASET_KEY, f"{folder} has no picture to train on", LAYOUT)
    return Listing(folder, tuple(parts["1"]), tuple(parts["0"]))


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield number and value of every line ``NUMBER VALUE`` of a list."""
    if not path.is_file():
        raise InputError.of(DATASET_KEY, f"no file {path}", LAYOUT)
    whole = b"".join(decompressed(path, DATASET_KEY)).decode("utf-8", "replace")
    for at, line in enumerate(whole.splitlines(), 1):
        number, _, value = line.strip().partition(" ")
        if line.strip() and not value:
            raise InputError.of(DATASET_KEY, f"{path}, line {at}: not NUMBER VALUE", LAYOUT)
        if value:
            yield number, value.strip()


def read(found: Listing, size: int) -> dict[str, np.ndarray]:
    """Return image (N, C, H, W), text (N,) and labels (N,), and the test part's, as ``views`` names them.

    Pictures are resized to ``size`` pixels a side. Captions, one a line, are joined by spaces; bytes that
    are no UTF-8 become replacement characters. Raises InputError for a file that is missing, damaged or too large.
    """
    parts = {"": found.train, "test_": found.test}
    files = pictures.Listing(_pictured(found.train), _pictured(found.test), ())
    for picture, _, _ in (*found.train, *found.test):
        if not picture.is_file():
            raise InputError.of(DATASET_KEY, f"no file {picture}", LAYOUT)
    arrays: dict[str, np.ndarray] = {}
    for (prefix, samples), part in zip(parts.items(), pictures.read(files, size), strict=True):
        if part is not None:
            arrays[f"{prefix}image"], arrays[f"{prefix}labels"] = part
            arrays[f"{prefix}text"] = _texts([words for _, words, _ in samples])
    return arrays


def _pictured(samples: Samples) -> tuple[tuple[Path, int], ...]:
    return tuple((picture, label) for picture, _, label in samples)


def _texts(files: list[Path]) -> np.ndarray:
    texts = []
    for file in files:
        if not file.is_file():
            raise InputError.of(DATASET_KEY, f"no file {file}", LAYOUT)
        raw = b"".join(decompressed(file, DATASET_KEY))
        if len(raw) > MOST_TEXT:
            what = f"{file} has {len(raw):,} bytes"
            raise InputError.of(DATASET_KEY, what, f"captions have at most {MOST_TEXT:,}")
        texts.append(" ".join(raw.decode("utf-8", "replace").split()))
    longest = max(map(len, texts))
    check_fits(DATASET_KEY, f"{len(texts):,} texts", 4 * longest * len(texts), "shorter captions")
    return np.array(texts, dtype=f"<U{max(1, longest)}")
