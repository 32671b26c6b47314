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
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from raybench.core.errors import InputError
from raybench.core.limits import digest_of
from raybench.core.process import KERNELS, is_own, kernel_folder

DIGEST = 32  # bytes


class _Kept(NullCache):
    """The machine code of one function on disk, a file per (signature, processor, code)."""

    def __init__(self, folder: Path, function: Callable[..., Any], about: tuple[object, ...]):
        stem = f"{Path(function.__code__.co_filename).stem}.{function.__name__}"
        self.folder, self.stem = folder, "".join(c for c in stem if c.isalnum() or c in "._")
        enclosed = tuple(cell.cell_contents for cell in function.__closure__ or ())
        code = function.__code__.co_code, dumps(enclosed) if enclosed else b""
        self.about = (*about, *(hashlib.sha256(part).hexdigest() for part in code))

    @property
    def cache_path(self) -> str:
        return str(self.folder)

    def _path(self, signature: object, codegen: Any) -> Path:
        parts = repr((*self.about, signature, codegen.magic_tuple()))
        return self.folder / f"{self.stem}-{hashlib.sha256(parts.encode()).hexdigest()[:16]}.kernel"

    def save_overload(self, signature: object, made: Any) -> None:
        if made.library.has_dynamic_globals or not all(part.can_cache for part in made.lifted):
            return
        body, path = dumps(made._reduce()), self._path(signature, made.library.codegen)
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

    def load_overload(self, signature: object, context: Any) -> Any:
        """Return what was saved; None, so that numba compiles, where it is not there or unsound."""
        context.refresh()
        try:
            with open(self._path(signature, context.codegen()), "rb") as file:
                if not is_own(os.fstat(file.fileno())):
                    return None
                data = file.read()
            if hashlib.sha256(data[DIGEST:]).digest() != data[:DIGEST]:
                return None
            return CompileResult._rebuild(context, *pickle.loads(data[DIGEST:]))
        except Exception:  # whatever unpickling meets, such as a class that numba no longer has
            return None


def stamp(function: Callable[..., Any]) -> str | None:
    """Return a digest of the file that a function was written in; None where there is none."""
    try:
        return digest_of(Path(function.__code__.co_filename), KERNELS)
    except (OSError, InputError):
        return None


def dispatcher(function: Callable[..., Any], options: Mapping[str, object], uses: str) -> Any:
    """Return numba's compiler of a function, which keeps machine code on disk and releases the GIL.

    options: those of ``numba.njit``. uses: what is compiled in from elsewhere. Raises InputError where
    others can write to the folder of compiled kernels.
    """
    made = numba.njit(nogil=True, **options)(function)
    folder, source = kernel_folder(), stamp(function)
    if folder is not None and source is not None:
        about = (numba.__version__, sys.version_info[:2], source, function.__qualname__)
        line = function.__code__.co_firstlineno
        made._cache = _Kept(folder, function, (*about, line, uses))
    return made
