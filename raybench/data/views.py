"""Several views of the same samples, such as a picture and its text: what clients hold that share rows."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raybench.core.errors import InputError, nearest
from raybench.core.limits import check_fits, decompressed
from raybench.data import captions
from raybench.data.archive import kind, opened
from raybench.data.examples import DATASET_KEY, Examples, Pair, path_of
from raybench.data.images import inputs_of, stamp_of
from raybench.data.known import folder
from raybench.data.matlab import matrices

LABELS, TEST = "labels", "test_"
FIX = "save matrices of equal rows by name, such as image and text, and labels"
NPZ_FIX = "save it with numpy.savez(file, image=..., text=..., labels=...)"
FEATURES = "raw_features.mat"
SITE = "svcl.ucsd.edu/projects/crossmodal"
LISTS = ("trainset_txt_img_cat.list", "testset_txt_img_cat.list")
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class KnownViews:
    """A data set of views known by name: its folder, its samples, and the file's arrays by view."""

    place: str
    train: int
    test: int
    arrays: tuple[tuple[str, str], ...] = ()  # (view, start of the arrays' names)

    @property
    def file(self) -> Path:
        """Return what must be there: the file of the arrays, or the folder of a set of pictures."""
        place = folder() / self.place
        return place / FEATURES if self.arrays else place


KNOWN_VIEWS = {
    "cub": KnownViews("CUB_200_2011", 5994, 5794),
    "wikipedia": KnownViews("wikipedia_image_text", 2173, 693, (("image", "I"), ("text", "T"))),
    "wikipedia_tfidf": KnownViews(
        "wikipedia_image_text", 2173, 693, (("image", "I"), ("text", "T_tfidf"))
    ),
}


def views(name_or_path: str | os.PathLike[str], *, size: int = 224) -> dict[str, Pair]:
    """Return the views of that name or path: examples of the same samples in the same order, by view.

    A name is one of ``KNOWN_VIEWS``, in the data folder. A path is an ``.npz`` or a MATLAB file (version 5
    to 7) with ``labels`` and any number of other arrays, each a view with a row per sample, and with
    ``test_labels`` and ``test_VIEW`` for a test part; or a folder as CUB-200-2011's with texts. Views come in the
    order of their names. Of kind ``features``: float32 (N, p). ``image``: as ``images`` has them, of a folder
    resized to ``size`` pixels a side. ``texts``: text (N,). Labels, any integers, become 0 .. classes - 1 in
    their order.

    The arrays are kept for the next caller: do not write to them. Raises InputError for an unknown name, a
    file that is missing, damaged, too large or not of these kinds, and views that do not fit each other.
    """
    given, path = os.fspath(name_or_path), path_of(name_or_path)
    if path is None and given in KNOWN_VIEWS:
        return _named(given, size)
    if path is None:
        path = Path(given)
        if not path.is_dir():
            fix = f"{nearest(given, KNOWN_VIEWS)}; or give a path: ./{given}"
            raise InputError.of(DATASET_KEY, f"unknown views {given!r}", fix)
    if path.is_dir():
        return _folder(path.absolute(), size, stamp_of(captions.listing(path).every()))
    if path.suffix not in (".npz", ".mat") or not path.is_file():
        what = f"{given} holds no views" if path.exists() else f"no file {given}"
        raise InputError.of(DATASET_KEY, what, "give a known name, an .npz, a .mat or a folder")
    return _own(path.absolute(), stamp_of([path]))


def _named(name: str, size: int) -> dict[str, Pair]:
    known = KNOWN_VIEWS[name]
    place = (folder() / known.place).absolute()
    if not known.arrays:
        if not place.is_dir():
            fix = f"put {known.place} there, with the texts in its folder text_c10"
            raise InputError.of(DATASET_KEY, f"no folder {place}", fix)
        return _folder(place, size, stamp_of(captions.listing(place).every()))
    files = [place / file for file in (FEATURES, *LISTS)]
    for file in files:
        if not file.is_file():
            raise InputError.of(DATASET_KEY, f"no file {file}", f"put it there (from {SITE})")
    return _wikipedia(name, place, stamp_of(files))


@functools.lru_cache(maxsize=2)
def _wikipedia(name: str, place: Path, stamp: str) -> dict[str, Pair]:
    """Return features of Wikipedia's articles and their pictures; classes from the lists' third column."""
    del stamp  # an argument only so that changed files are read anew
    known, file = KNOWN_VIEWS[name], place / FEATURES
    ends = {"": "tr", TEST: "te"}
    stored = {
        f"{prefix}{view}": f"{start}_{end}"
        for view, start in known.arrays
        for prefix, end in ends.items()
    }
    read = matrices(file, set(stored.values()).__contains__)
    for array in stored.values():
        if array not in read:
            raise InputError.of(DATASET_KEY, f"{file} lacks {array}", "fetch the file again")
    arrays = {view: read[array] for view, array in stored.items()}
    for prefix, part in zip(ends, LISTS, strict=True):
        arrays[f"{prefix}{LABELS}"] = _categories(place / part)
    return _pairs(name, str(file), arrays)


def _categories(path: Path) -> np.ndarray:
    """Return the last column of a list of text, picture and category, as integers."""
    lines = b"".join(decompressed(path, DATASET_KEY)).splitlines()
    try:
        return np.array([int(line.split(b"\t")[2]) for line in lines], np.int64)
    except (IndexError, ValueError, OverflowError) as error:
        what = f"{path} has a line that is not text, picture and category"
        raise InputError.of(DATASET_KEY, what, "fetch the file again") from error


# Of one's own ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=2)
def _own(path: Path, stamp: str) -> dict[str, Pair]:
    del stamp  # an argument only so that a changed file is read anew
    if path.suffix == ".mat":
        arrays: Arrays = matrices(path, lambda name: not name.startswith("_"))
    else:
        with opened(path, NPZ_FIX) as archive:
            arrays = {}
            for name in sorted(archive.names):
                shape, dtype = archive.measure(name)
                if dtype.kind in "fiuU" and len(shape) == 4:
                    arrays[name] = inputs_of(archive, name)
                elif dtype.kind in "fiuU":
                    arrays[name] = archive.read(name)
                else:
                    what = f"{path.name}: {name} holds {kind(dtype)}"
                    raise InputError.of(DATASET_KEY, what, "real numbers, or text")
    return _pairs(path.name, str(path), arrays)


@functools.lru_cache(maxsize=1)  # the pictures of CUB take 1.8 GB at 224 pixels
def _folder(path: Path, size: int, stamp: str) -> dict[str, Pair]:
    del stamp  # an argument only so that changed files are read anew
    return _pairs(path.name, str(path), captions.read(captions.listing(path), size))


def _pairs(name: str, source: str, arrays: Arrays) -> dict[str, Pair]:
    """Return the views among arrays, once they have been found to fit each other and their labels."""
    if LABELS not in arrays:
        raise InputError.of(DATASET_KEY, f"{name} lacks the array {LABELS}", FIX)
    chosen = sorted(n for n in arrays if n != LABELS and not n.startswith(TEST))
    tested = {n.removeprefix(TEST) for n in arrays if n.startswith(TEST)}
    if not chosen:
        raise InputError.of(DATASET_KEY, f"{name} has labels, and no view", FIX)
    if tested and tested != {*chosen, LABELS}:
        odd = sorted(tested ^ {*chosen, LABELS})[0]
        what = f"{name} has a test part, and {odd} is in one part only"
        raise InputError.of(DATASET_KEY, what, f"give every view and {LABELS} twice, as {TEST}..")
    labels = {p: _labels(name, arrays[f"{p}{LABELS}"]) for p in (("", TEST) if tested else ("",))}
    classes = np.unique(labels[""])
    if len(classes) < 2:
        raise InputError.of(DATASET_KEY, f"{name} has a single class", "the labels must differ")
    for values in labels.values():
        alien = values[~np.isin(values, classes)]
        if len(alien):
            what = f"{name} has the label {alien[0]} in its test part, which training lacks"
            raise InputError.of(DATASET_KEY, what, "every class needs a sample to train on")

    def examples(view: str, prefix: str) -> Examples:
        inputs, kind = _inputs(name, f"{prefix}{view}", arrays[f"{prefix}{view}"])
        if len(inputs) != len(labels[prefix]):
            what = f"{name}: {prefix}{view} has {len(inputs):,} rows, and {prefix}{LABELS} {len(labels[prefix]):,}"
            raise InputError.of(DATASET_KEY, what, "all views have a row per sample, in one order")
        places = np.searchsorted(classes, labels[prefix])
        return Examples.of(name, inputs, places, classes=len(classes), source=source, kind=kind)

    found = {
        view: Pair(examples(view, ""), examples(view, TEST) if tested else None) for view in chosen
    }
    for view, pair in found.items():
        _same(f"{name}: {view}", [part for part in (pair.train, pair.test) if part is not None])
    return found


def _same(what: str, parts: Iterable[Examples]) -> None:
    """Raise InputError where training and test part of a view are not of one kind and shape."""
    kinds = {(part.kind, part.inputs.shape[1:]) for part in parts}
    if len(kinds) > 1:
        shapes = " and ".join(f"{kind} {shape}" for kind, shape in sorted(kinds))
        raise InputError.of(DATASET_KEY, f"{what} has two shapes, {shapes}", "give it one")


def _labels(name: str, values: np.ndarray) -> np.ndarray:
    flat = np.asarray(values).reshape(-1)
    right = flat.size == max(values.shape, default=0) and flat.dtype.kind in "iuf" and flat.size
    if not right or not (np.isfinite(flat).all() and (flat == np.rint(flat)).all()):
        what = f"{name}: {LABELS} of shape {values.shape} and type {values.dtype}"
        raise InputError.of(DATASET_KEY, what, "labels are integers, one per sample")
    return flat.astype(np.int64)


def _inputs(name: str, view: str, values: np.ndarray) -> tuple[np.ndarray, str]:
    """Return a view's inputs and their kind: features, image or texts."""
    whole = f"{name}: {view}"
    if values.dtype.kind == "U" and values.ndim == 1:
        return values, "texts"
    if values.ndim == 4:
        return values, "image"
    if values.ndim != 2 or values.dtype.kind not in "iuf" or 0 in values.shape:
        what = f"{whole} is {kind(values.dtype)} of shape {values.shape}"
        fix = "a view is features (N, p), pictures (N, C, H, W) or text (N,)"
        raise InputError.of(DATASET_KEY, what, fix)
    check_fits(DATASET_KEY, f"{whole} in float32", 4 * values.size, "save fewer rows")
    with np.errstate(over="ignore"):  # beyond float32 it is infinite, and refused
        single = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(single).all():
        what = f"{whole} has values that are not finite"
        raise InputError.of(DATASET_KEY, what, "clean them first")
    return single, "features"
