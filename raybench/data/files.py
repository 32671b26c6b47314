"""What all readers of data files share: errors, one cache, and ``.npz`` archives whose arrays are bounded before they are read."""

from __future__ import annotations

import contextlib
import functools
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.lib import format as npy

from raybench.core.errors import InputError
from raybench.core.limits import check_fits, check_growth, decompressed
from raybench.core.registry import line_in

DATASET_KEY = "problem.dataset"
NPZ_FIX = "save it with numpy.savez(file, X=..., y=...)"
AGAIN = "fetch the file again"
MAGIC = {
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"PK\x03\x04": "a zip archive, as .npz and .xlsx are",
    b"SQLite format 3": "a database of SQLite",
    b"\x93NUMPY": "a single array of numpy",
}
"""How files begin that are no text."""
NUMBERS, COLUMN = "biuf", "biufU"  # kinds of dtype that become float64, and that a column may have
T = TypeVar("T")


def data_error(what: str, fix: str, key: str = DATASET_KEY) -> InputError:
    """Return the error about a data set: what is wrong with it, and what to do."""
    return InputError.of(key, what, fix)


def as_text(content: bytes, where: str, fix: str) -> bytes:
    """Return UTF-8 text without its byte order mark; raises InputError where it is empty, or something else by its start."""
    start = next((kind for magic, kind in MAGIC.items() if content.startswith(magic)), None)
    if start or b"\0" in content[:4096]:
        what = f"{where} is no text" + (f", but {start}" if start else "")
        raise data_error(what, "name the file by what it is: .csv, .tsv, .parquet or .npz")
    content = content.removeprefix(b"\xef\xbb\xbf")
    if not content.strip():
        raise data_error(f"{where} is empty", fix)
    return content


def path_of(name: str | os.PathLike[str]) -> Path | None:
    """Return the path that is meant: with a separator, or of an existing file. Else None: a name.

    Raises InputError where the text cannot be a path.
    """
    text = os.fspath(name)
    # too long, a zero in it, an unknown user
    with input_errors(DATASET_KEY, f"{text!r} cannot be a path", "give a known name, or a path"):
        path = Path(text).expanduser()
        return path if path.is_file() or "/" in text or os.sep in text else None


def file_of(name_or_path: str | os.PathLike[str], fix: str, ending: str = "") -> Path | None:
    """Return the file that is meant, None for a name; raises InputError where there is none, or of another ending."""
    path = path_of(name_or_path)
    if path is not None and not (path.is_file() and path.name.endswith(ending)):
        kind = "a folder" if path.is_dir() else f"no {ending}"
        what = f"{name_or_path} is {kind}" if path.exists() else f"no file {name_or_path}"
        raise data_error(what, fix)
    return path and path.absolute()


def cached(most: int) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Keep the last results of a reader ``read(files, *rest)``, and read anew what has changed.

    files: paths; rest: hashable. All cells of a sweep ask for the same few files.
    """

    def decorate(read: Callable[..., T]) -> Callable[..., T]:
        keep = functools.lru_cache(most)(lambda _, files, *rest: read(files, *rest))

        @functools.wraps(read)
        def call(files: tuple[Path, ...], *rest: Any) -> T:
            return keep(tuple(map(_stamp, files)), files, *rest)

        return call

    return decorate


def _stamp(file: Path) -> tuple[int, int]:
    """Return what changes when a file does."""
    with input_errors(DATASET_KEY, f"cannot read {file}", "check the path and its permissions"):
        stat = file.stat()
        return stat.st_mtime_ns, stat.st_size


def content(path: Path) -> bytearray:
    """Return the decompressed bytes of a file, in a form that can be written to, as torch wants it."""
    return functools.reduce(bytearray.__iadd__, decompressed(path, DATASET_KEY), bytearray())


class Archive:
    """An open ``.npz``: the names of its arrays, and their values where they take no more than they may."""

    def __init__(self, file: zipfile.ZipFile, name: str, fix: str, key: str = DATASET_KEY) -> None:
        self.file, self.name, self.fix, self.key = file, name, fix, key
        self.order = [n.removesuffix(".npy") for n in file.namelist() if n.endswith(".npy")]
        self.names = set(self.order)

    def read(self, name: str, kinds: str = "", words: str = "") -> np.ndarray:
        """Return an array in the dtype it was saved in; one of these ``kinds`` of dtype, which are called ``words``.

        Raises InputError where there is no such array, where it is of another kind, grows or takes more than it may, and
        where shape and dtype do not take the bytes that are there.
        """
        if name not in self.names:
            raise data_error(f"{self.name} lacks the array {name}", self.fix, self.key)
        info, whole = self.file.getinfo(f"{name}.npy"), f"{self.name}: {name}"
        check_growth(self.key, whole, info.compress_size, info.file_size)
        check_fits(self.key, whole, info.file_size, "save fewer rows")
        with self.file.open(info) as stream:
            with input_errors(self.key, whole, self.fix):
                array = npy.read_array(stream, allow_pickle=False)
            if stream.read(1):
                has = f"{info.file_size:,} bytes"
                what = f"{whole} has a header of {array.size:,} values, and {has}"
                raise data_error(what, self.fix, self.key)
        if kinds and array.dtype.kind not in kinds:
            raise data_error(f"{whole} holds {array.dtype}, not {words}", NPZ_FIX, self.key)
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    def numbers(self, name: str) -> np.ndarray:
        """Return an array in float64; raises InputError where it is not of real numbers."""
        array = self.read(name, NUMBERS, "real numbers")
        what = f"{self.name}: {name} in float64"
        check_fits(self.key, what, 8 * array.size, "save fewer rows")
        return array.astype(float, copy=False)


@contextlib.contextmanager
def input_errors(key: str, what: str, fix: str) -> Iterator[None]:
    """Turn whatever a library, a damaged file or a user's code raises into an InputError that says where."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        file = what.partition(":")[0]
        line = error.lineno if isinstance(error, SyntaxError) else line_in(error, file)
        at = f"{what}, line {line}" if line else what
        message = (str(error) or "-").splitlines()[0]
        raise InputError.of(key, f"{at}: {type(error).__name__}: {message}", fix) from error


@contextlib.contextmanager
def renamed(key: str, new: str) -> Iterator[None]:
    """Let errors in the block name another key than ``key``."""
    try:
        yield
    except InputError as error:
        every = error.complaints
        raise InputError([replace(c, where=c.where.replace(key, new, 1)) for c in every]) from error


@contextlib.contextmanager
def open_archive(path: Path, fix: str, key: str = DATASET_KEY) -> Iterator[Archive]:
    """Open an ``.npz``; whatever it turns out to be in the block, its errors are InputError with ``fix``.

    key: what the errors name.
    """
    with input_errors(key, f"cannot read {path.name}", fix), zipfile.ZipFile(path) as file:
        yield Archive(file, path.name, fix, key)
