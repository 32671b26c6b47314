"""Kernels: functions that numba compiles at their first call, and not before it is imported.

Importing numba takes half a second, so a module of kernels must not do it. ``compiled`` makes a
``Kernel``; its first call builds numba's dispatcher, with the kernels that the function calls in turn.

Machine code is kept on disk, so a machine compiles a kernel once. numba's own cache is not safe for processes
that start together: it numbers the data files of a function and keeps the numbers in an index that every process
reads, changes and writes back. Two workers that compile two signatures at the same time choose the same number,
and from then on the index hands one signature the machine code of the other (TypeError: "can't unbox array", or
worse). So here a file is named by a digest of all that its machine code depends on: no index, nothing to race for.
A file begins with the SHA-256 of the rest. One that is torn, garbled or not the user's own is as good as none: the
function is compiled, and the file replaced.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from raybench.core.process import is_own, kernel_folder, signals_later

DIGEST = 32  # bytes


class Kernel:
    """A function in the part of Python that numba compiles.

    py_func: the function as it was written, for whoever wants to read or interpret it.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        assert isinstance(function, FunctionType)
        self.py_func = self.__wrapped__ = function
        self.options = options
        self.__doc__, self.__name__ = function.__doc__, function.__name__

    def __call__(self, *args: Any) -> Any:
        return self.dispatcher(*args)

    @cached_property
    def dispatcher(self) -> Any:
        """What numba makes of the function, built when first asked for.

        Raises InputError where others can write to the folder of compiled kernels.
        """
        import numba

        given = self.py_func
        used = {name: _resolved(value) for name, value in _outside(given)}
        scope = {**given.__globals__, **used}
        cells = tuple(CellType(_resolved(c.cell_contents)) for c in given.__closure__ or ())
        function = FunctionType(given.__code__, scope, None, given.__defaults__, cells or None)
        function.__qualname__ = given.__qualname__
        dispatcher = numba.njit(nogil=True, **self.options)(function)
        folder = kernel_folder()
        if folder is not None:
            dispatcher._cache = _Files(folder, self)
        plain = dispatcher.compile

        def compile_whole(signature: Any) -> Any:
            with signals_later():  # numba compiles in a callback that loses what a handler raises
                return plain(signature)

        dispatcher.compile = compile_whole
        return dispatcher


class _Files:
    """The machine code of one function on disk, a file per (signature, processor): what numba calls a cache."""

    def __init__(self, folder: Path, kernel: Kernel) -> None:
        import numba

        function = kernel.py_func
        stem = f"{Path(function.__code__.co_filename).stem}.{function.__name__}"
        self.folder, self.stem = folder, "".join(c for c in stem if c.isalnum() or c in "._")
        self.about = (numba.__version__, sys.version_info[:2], *_meaning(kernel))
        self.cache_path = str(folder)

    def _path(self, signature: object, codegen: Any) -> Path:
        parts = repr((*self.about, signature, codegen.magic_tuple()))
        return self.folder / f"{self.stem}-{hashlib.sha256(parts.encode()).hexdigest()[:16]}.kernel"

    def save_overload(self, signature: object, result: Any) -> None:
        from numba.core.serialize import dumps

        if result.library.has_dynamic_globals or not all(part.can_cache for part in result.lifted):
            return
        body, path = dumps(result._reduce()), self._path(signature, result.library.codegen)
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
        from numba.core.compiler import CompileResult

        context.refresh()
        try:
            with open(self._path(signature, context.codegen()), "rb") as file:
                # others may have put it there before the folder was closed to them
                if not is_own(os.fstat(file.fileno())):
                    return None
                data = file.read()
            if hashlib.sha256(data[DIGEST:]).digest() != data[:DIGEST]:
                return None
            return CompileResult._rebuild(context, *pickle.loads(data[DIGEST:]))
        except Exception:  # whatever unpickling meets, such as a class that numba no longer has
            return None


def _resolved(value: Any) -> Any:
    return value.dispatcher if isinstance(value, Kernel) else value


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _outside(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield name and value of what a function takes from its module or its enclosing function."""
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    for name in sorted(names & function.__globals__.keys()):
        yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, cell.cell_contents


def _meaning(kernel: Any) -> tuple[Any, ...]:
    """Return what machine code made of a function depends on: its code, and what is compiled in from elsewhere.

    Not where the function stands: checkouts share their kernels. Nor any address in memory, as the ``repr`` of a
    function of numba's ``njit`` or ``intrinsic`` has it: no other process would find the file again.
    """
    function = getattr(kernel, "__wrapped__", kernel)
    given = getattr(kernel, "options", getattr(kernel, "targetoptions", {}))
    # a set has another order in every process
    options = {k: sorted(v) if isinstance(v, set) else v for k, v in given.items()}
    parts: list[Any] = [function.__qualname__, repr(sorted(options.items()))]
    for code in _codes(function.__code__):
        consts = [const for const in code.co_consts if not isinstance(const, CodeType)]
        parts.append(repr((code.co_code, code.co_names, code.co_freevars, consts)))
    for name, value in _outside(function):
        if isinstance(getattr(value, "__wrapped__", value), FunctionType):
            parts.append((name, _meaning(value)))
        elif not isinstance(value, ModuleType):
            parts.append((name, repr(value)))
    return tuple(parts)


def compiled(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Return the kernel of a function: compiled on first use, kept on disk, run without the GIL.

    ``options`` are those of ``numba.njit`` (``fastmath``, ``error_model``, ``inline``, ...).
    """
    if function is None:
        return lambda f: Kernel(f, options)
    return Kernel(function, options)
