"""Machine code kept on disk, safe for processes that start together. Imports numba: see ``compiled``.

numba numbers the data files of a function and keeps the numbers in an index that every process reads,
changes and writes back. Two workers that compile two signatures at the same time choose the same number,
and from then on the index hands one signature the machine code of the other (TypeError: "can't unbox
array", or worse). A sweep starts many workers at once, so here a file is named by a digest of what it
holds: no index, nothing to race for. The digest covers what numba's own stamp (the source file) does
not: the kernels and numbers of other files that were compiled in.

A file begins with the SHA-256 of the rest. One that is torn, garbled or not the user's own is as good as
none: the function is compiled, and the file replaced.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.serialize import dumps

from raybench.core.process import is_own, kernel_folder

DIGEST = 32  # bytes


class _Kept:
    """The machine code of one function on disk, a file per (signature, processor, code)."""

    def __init__(self, folder: Path, stem: str, about: tuple[object, ...]) -> None:
        self.folder, self.stem, self.about = folder, stem, about

    def path(self, key: object) -> Path:
        parts = repr((*self.about, key))
        return self.folder / f"{self.stem}-{hashlib.sha256(parts.encode()).hexdigest()[:16]}.kernel"

    def save(self, key: object, data: object) -> None:
        body, path = dumps(data), self.path(key)
        try:
            # a file of its own that is renamed: a reader sees all of it or nothing
            number, temporary = tempfile.mkstemp(prefix=f"{path.name}.", dir=self.folder)
            try:
                with os.fdopen(number, "wb") as file:
                    file.write(hashlib.sha256(body).digest() + body)
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError:  # a full disk, say: the kernel is there, it is only not kept
            return

    def load(self, key: object) -> object:
        """Return what was saved; None, so that numba compiles, where it is not there or unsound."""
        try:
            with open(self.path(key), "rb") as file:
                if not is_own(os.fstat(file.fileno())):
                    return None
                data = file.read()
            if hashlib.sha256(data[DIGEST:]).digest() != data[:DIGEST]:
                return None
            return pickle.loads(data[DIGEST:])
        except Exception:  # whatever unpickling meets, such as a class that numba no longer has
            return None

    def flush(self) -> None:
        for path in self.folder.glob(f"{self.stem}-*.kernel"):
            path.unlink(missing_ok=True)


class _Place:
    """What numba asks of the place where a function's machine code is kept."""

    def __init__(self, folder: Path, function: Callable[..., Any], stamp: str) -> None:
        self._py_file, self.folder, self.stamp = function.__code__.co_filename, folder, stamp

    def get_cache_path(self) -> str:
        return str(self.folder)

    def ensure_cache_path(self) -> None:
        """The folder was made, and looked at, before."""

    def get_source_stamp(self) -> str:
        return self.stamp

    def get_disambiguator(self) -> str:
        return ""


class _Cache(FunctionCache):
    """numba's cache of a function, in files of ``_Kept``."""

    def __init__(
        self, function: Callable[..., Any], folder: Path, stamp: str, about: tuple[object, ...]
    ) -> None:
        place = _Place(folder, function, stamp)

        class Kernels(CompileResultCacheImpl):
            def __init__(self, py_func: Callable[..., Any]) -> None:
                self._lineno, self._locator = py_func.__code__.co_firstlineno, place
                self._filename_base = py_func.__name__

        self._impl_class = Kernels
        super().__init__(function)
        name = f"{Path(place._py_file).stem}.{function.__name__}"
        self._cache_file = _Kept(
            folder, "".join(c for c in name if c.isalnum() or c in "._"), about
        )


def _stamp(function: Callable[..., Any]) -> str | None:
    """Return a digest of the file or text that a function was written in; None where neither is there."""
    path = function.__code__.co_filename
    try:
        state = os.stat(path)
        return _digest_of(path, state.st_mtime_ns, state.st_size)
    except OSError:
        try:
            return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
        except (OSError, TypeError):
            return None


@lru_cache(maxsize=1024)
def _digest_of(path: str, mtime: int, size: int) -> str:
    del mtime, size  # arguments only so that a changed file is read anew
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def dispatcher(function: Callable[..., Any], options: Mapping[str, object], uses: str) -> Any:
    """Return numba's compiler of a function, which keeps machine code on disk and releases the GIL.

    options: those of ``numba.njit``. uses: what is compiled in from elsewhere. Raises InputError where
    others can write to the folder of compiled kernels.
    """
    made = numba.njit(nogil=True, **options)(function)
    folder, stamp = kernel_folder(), _stamp(function)
    if folder is not None and stamp is not None:
        about = (numba.__version__, sys.version_info[:2], stamp, function.__qualname__)
        line = function.__code__.co_firstlineno
        made._cache = _Cache(function, folder, stamp, (*about, line, uses))
    return made
