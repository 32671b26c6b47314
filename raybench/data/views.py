"""Several views of the same samples, such as a picture and its text: what clients hold that share rows."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import scipy.io

from raybench.core.errors import nearest
from raybench.core.limits import check_fits
from raybench.data.catalogue import VIEW_FILES, VIEW_SETS, folder, present
from raybench.data.examples import Examples, Pair
from raybench.data.files import (
    AGAIN,
    DATASET_KEY,
    cached,
    content,
    data_error,
    file_of,
    input_errors,
    open_archive,
)
from raybench.data.images import inputs_of

LABELS, TEST = "labels", "test_"
FIX = "save it with numpy.savez(file, image=..., text=..., labels=...)"
SITE = "svcl.ucsd.edu/projects/crossmodal"


def views(name_or_path: str | os.PathLike[str]) -> dict[str, Pair]:
    """Return the views of that name or path: examples of the same samples in the same order, by view.

    A name is one of ``VIEW_SETS``, in the data folder. A path is an ``.npz`` with ``labels`` and any number of other
    arrays, each a view with a row per sample, and with ``test_labels`` and ``test_VIEW`` for a test part. Views come in
    the order of their names. Of kind ``features``: float32 (N, p). ``image``: as ``images`` has them. ``texts``: text
    (N,). Labels, any integers, become 0 .. classes - 1 in their order.

    The arrays are kept for the next caller: do not write to them. Raises InputError for an unknown name, a file that is
    missing, damaged, too large or not of these kinds, and views that do not fit each other.
    """
    text = os.fspath(name_or_path)
    if path := file_of(text, "give a known name of views, or an .npz", ".npz"):
        return _file((path,))
    if text not in VIEW_SETS:
        fix = f"{nearest(text, VIEW_SETS)}; or give a path: ./{text}"
        raise data_error(f"unknown views {text!r}", fix)
    for name in VIEW_FILES:
        if present(name) is None:
            raise data_error(f"no file {folder() / name}", f"put it there (from {SITE})")
    return _wikipedia(tuple((folder() / name).absolute() for name in VIEW_FILES), text)


@cached(2)
def _wikipedia(files: tuple[Path, ...], name: str) -> dict[str, Pair]:
    """Return features of Wikipedia's articles and their pictures; classes from the lists' third column."""
    file, *lists = files
    ends = {"": "tr", TEST: "te"}
    pairs = itertools.product(VIEW_SETS[name].items(), ends.items())
    stored = {f"{prefix}{view}": f"{start}_{end}" for (view, start), (prefix, end) in pairs}
    check_fits(DATASET_KEY, str(file), file.stat().st_size, AGAIN)
    with input_errors(DATASET_KEY, f"cannot read {file}", AGAIN):
        read = scipy.io.loadmat(file, variable_names=[*stored.values()])
        arrays = {view: np.asarray(read[array]) for view, array in stored.items()}
    arrays |= {f"{p}{LABELS}": _categories(part) for p, part in zip(ends, lists, strict=True)}
    return _pairs(name, str(file), arrays)


def _categories(path: Path) -> np.ndarray:
    """Return the last column of a list of text, picture and category, as integers."""
    what = f"{path} has a line that is not text, picture and category"
    with input_errors(DATASET_KEY, what, AGAIN):
        lines = content(path).splitlines()
        return np.array([int(line.split(b"\t")[2]) for line in lines], np.int64)


# A user's own ---------------------------------------------------------------------------------------


@cached(2)
def _file(files: tuple[Path]) -> dict[str, Pair]:
    (path,) = files
    arrays = {}
    with open_archive(path, FIX) as archive:
        for name in sorted(archive.names):
            values = archive.read(name, "fiuU", "real numbers or text")
            whole = f"{path.name}: {name}"
            arrays[name] = inputs_of(values, whole, FIX) if values.ndim == 4 else values
    return _pairs(path.name, str(path), arrays)


def _pairs(name: str, source: str, arrays: Mapping[str, np.ndarray]) -> dict[str, Pair]:
    """Return the views among arrays, once they have been found to fit each other and their labels."""
    if LABELS not in arrays:
        raise data_error(f"{name} lacks the array {LABELS}", FIX)
    chosen = sorted(n for n in arrays if n != LABELS and not n.startswith(TEST))
    tested = {n.removeprefix(TEST) for n in arrays if n.startswith(TEST)}
    if not chosen:
        raise data_error(f"{name} has labels, and no view", FIX)
    if tested and tested != {*chosen, LABELS}:
        odd = sorted(tested ^ {*chosen, LABELS})[0]
        what = f"{name} has a test part, and {odd} is in one part only"
        raise data_error(what, f"give every view and {LABELS} twice, as {TEST}..")
    labels = {p: _labels(name, arrays[f"{p}{LABELS}"]) for p in (("", TEST) if tested else ("",))}
    classes = np.unique(labels[""])
    if len(classes) < 2:
        raise data_error(f"{name} has a single class", "the labels must differ")
    for alien in np.setdiff1d(labels.get(TEST, classes), classes):
        what = f"{name} has the label {alien} in its test part, which training lacks"
        raise data_error(what, "every class needs a sample to train on")

    def examples(view: str, prefix: str) -> Examples:
        inputs, kind = _inputs(name, f"{prefix}{view}", arrays[f"{prefix}{view}"])
        if len(inputs) != len(labels[prefix]):
            what = f"{name}: {prefix}{view} has {len(inputs):,} rows, and {prefix}{LABELS} {len(labels[prefix]):,}"
            raise data_error(what, "all views have a row per sample, in one order")
        places = np.searchsorted(classes, labels[prefix])
        return Examples.of(name, inputs, places, classes=len(classes), source=source, kind=kind)

    pairs = {v: Pair(examples(v, ""), examples(v, TEST) if tested else None) for v in chosen}
    for view, pair in pairs.items():
        kinds = {(part.kind, part.inputs.shape[1:]) for part in (pair.train, pair.test) if part}
        if len(kinds) > 1:
            shapes = " and ".join(f"{kind} {shape}" for kind, shape in sorted(kinds))
            raise data_error(f"{name}: {view} has two shapes, {shapes}", "give it one")
    return pairs


def _labels(name: str, values: np.ndarray) -> np.ndarray:
    flat = np.asarray(values).reshape(-1)
    right = flat.size == max(values.shape, default=0) and flat.dtype.kind in "iuf" and flat.size
    if not right or not (np.isfinite(flat).all() and (flat == np.rint(flat)).all()):
        what = f"{name}: {LABELS} of shape {values.shape} and type {values.dtype}"
        raise data_error(what, "labels are integers, one per sample")
    return flat.astype(np.int64)


def _inputs(name: str, view: str, values: np.ndarray) -> tuple[np.ndarray, str]:
    """Return a view's inputs and their kind: features, image or texts."""
    whole = f"{name}: {view}"
    if values.dtype.kind == "U" and values.ndim == 1:
        return values, "texts"
    if values.ndim == 4:
        return values, "image"
    if values.ndim != 2 or values.dtype.kind not in "iuf" or 0 in values.shape:
        fix = "a view is features (N, p), pictures (N, C, H, W) or text (N,)"
        raise data_error(f"{whole} is {values.dtype} of shape {values.shape}", fix)
    check_fits(DATASET_KEY, f"{whole} in float32", 4 * values.size, "save fewer rows")
    with np.errstate(over="ignore"):  # beyond float32 it is infinite, and refused
        single = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(single).all():
        raise data_error(f"{whole} has values that are not finite", "clean them first")
    return single, "features"
