"""Arrays of an ``.npz`` file that anybody may have made: measured by their headers before they are read."""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from raybench.core.errors import InputError
from raybench.core.limits import check_fits, check_growth
from raybench.data.tables import Table, of_frame

DATASET_KEY = "problem.dataset"
FIX = "save it with numpy.savez(file, X=..., y=...)"
FEATURES, LABELS = ("X", "features", "images"), ("y", "labels")
NUMBERS = "biuf"  # kinds of dtype that become float64 without loss of meaning
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def arrays(path: Path, label: str | None = None, client: str | None = None) -> Table:
    """Return the table of an ``.npz``: ``X`` (or ``features``, ``images``) and ``y`` (or ``labels``).

    An ``.npz`` of neither is a table: every array is a column (see ``tables.of_frame``).

    label, client: names of other arrays of one entry per row, for the label and for the client. Labels
    and clients are real numbers or text. Raises InputError where an array is missing, is not of real
    finite numbers, does not fit the others, or takes more memory than a data set may.
    """
    with opened(path, FIX) as archive:
        if not archive.names & {*FEATURES, "labels"}:
            return _columns(archive, label, client)
        key = _first(archive, FEATURES)
        own = _first(archive, LABELS if key == "X" else LABELS[::-1])
        own = own if label is None else _there(archive, label, "problem.label")
        raw, labels = _numbers(archive, key), _words(archive, own)
        clients = None
        if client is not None:
            clients = _words(archive, _there(archive, client, "problem.split.column"))
        features = raw.reshape(len(raw), -1) if raw.ndim else raw.reshape(0, 0)
    for name, word, column in ((own, "label", labels), (client, "client", clients)):
        if column is not None and (column.shape != (len(features),) or features.size == 0):
            what = f"{path.name} has {len(features)} rows and {name} of shape {column.shape}"
            raise InputError.of(DATASET_KEY, what, f"give one {word} per row")
    for name, values in ((key, features), (own, labels), (client, clients)):
        if values is not None and values.dtype.kind == "f" and not np.isfinite(values).all():
            what = f"{path.name} holds values that are not finite, in {name}"
            raise InputError.of(DATASET_KEY, what, "clean them first")
    return Table(features, labels, clients)


def _columns(archive: Archive, label: str | None, client: str | None) -> Table:
    """Return the table of an archive whose arrays are columns."""
    import pandas as pd

    columns, rows = {}, None
    for name in archive.order:
        shape, _ = archive.measure(name)
        rows = shape if rows is None else rows
        if len(shape) != 1 or shape != rows:
            what = (
                f"{archive.name} lacks the arrays X and y, and {name} of shape {shape} is no column"
            )
            raise InputError.of(DATASET_KEY, what, archive.fix)
        columns[name] = _words(archive, name)
    if not columns:
        raise InputError.of(DATASET_KEY, f"{archive.name} lacks the arrays X and y", archive.fix)
    return of_frame(pd.DataFrame(columns), archive.name, label, client)


def _first(archive: Archive, names: tuple[str, ...]) -> str:
    """Return the first of some names that an archive has, else the first."""
    return next((name for name in names if name in archive.names), names[0])


def _there(archive: Archive, name: str, key: str) -> str:
    if name not in archive.names:
        fix = "its arrays are " + ", ".join(sorted(archive.names)[:12])
        raise InputError.of(key, f"{archive.name} has no array {name!r}", fix)
    return name


def _words(archive: Archive, name: str) -> np.ndarray:
    """Return labels or clients of an archive: text as it is, numbers in float64."""
    _, dtype = archive.measure(name)
    return archive.read(name) if dtype.kind == "U" else _numbers(archive, name)


class Archive:
    """An open ``.npz``: the names of its arrays, their headers and, once those are sound, their values."""

    def __init__(self, file: zipfile.ZipFile, name: str, fix: str, key: str = DATASET_KEY) -> None:
        self.file, self.name, self.fix, self.key = file, name, fix, key
        self.order = [n.removesuffix(".npy") for n in file.namelist() if n.endswith(".npy")]
        self.names = set(self.order)

    def measure(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Return the shape and dtype of an array; both are only what its header says.

        Raises InputError where there is no such array, where it grows or takes more than it may, and
        where shape and dtype do not take the bytes that are there.
        """
        if name not in self.names:
            what = f"{self.name} lacks the array {name}"
            raise InputError.of(self.key, what, self.fix)
        info = self.file.getinfo(f"{name}.npy")
        whole = f"{self.name}: {name}"
        check_growth(self.key, whole, info.compress_size, info.file_size)
        check_fits(self.key, whole, info.file_size, "save fewer rows")
        with self.file.open(info) as stream:
            version = npy.read_magic(stream)
            if version not in HEADERS:
                raise InputError.of(self.key, f"{whole} is in npy format {version}", self.fix)
            shape, _, dtype = HEADERS[version](stream)
            held = info.file_size - stream.tell()
        count = math.prod(shape)
        if not dtype.hasobject and count * dtype.itemsize != held:
            what = f"{whole} has a header of {count:,} values, and {info.file_size:,} bytes"
            raise InputError.of(self.key, what, self.fix)
        return shape, dtype

    def read(self, name: str) -> np.ndarray:
        """Return an array that was measured, in the dtype it was saved in."""
        with self.file.open(f"{name}.npy") as stream:
            return npy.read_array(stream, allow_pickle=False)


@contextlib.contextmanager
def opened(path: Path, fix: str, key: str = DATASET_KEY) -> Iterator[Archive]:
    """Open an ``.npz``; whatever it turns out to be in the block, its errors are InputError with ``fix``.

    key: what the errors name.
    """
    try:
        with zipfile.ZipFile(path) as file:
            yield Archive(file, path.name, fix, key)
    except InputError:
        raise
    except Exception as error:  # zipfile and numpy raise a dozen kinds on files that are damaged
        what = f"cannot read {path.name}: {str(error) or type(error).__name__}"
        raise InputError.of(key, what[:300], fix) from error


def _numbers(archive: Archive, name: str) -> np.ndarray:
    """Return an array of an archive in float64, once its header has been found to be sound."""
    shape, dtype = archive.measure(name)
    whole = f"{archive.name}: {name}"
    check_fits(DATASET_KEY, f"{whole} in float64", 8 * math.prod(shape), "save fewer rows")
    if dtype.kind not in NUMBERS:
        raise InputError.of(DATASET_KEY, f"{whole} holds {kind(dtype)}, not real numbers", FIX)
    return np.asarray(archive.read(name), dtype=float)


def kind(dtype: np.dtype) -> str:
    """Return what values of a dtype are called in an error."""
    return {"c": "complex numbers", "O": "Python objects"}.get(dtype.kind, f"{dtype}")
