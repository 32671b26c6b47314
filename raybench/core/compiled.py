"""Kernels: functions that numba compiles at their first call, and not before it is imported.

Importing numba takes half a second, so a module of kernels must not do it. ``compiled`` makes a
``Kernel``; its first call builds numba's dispatcher, with the kernels that the function calls in turn.
Machine code is kept on disk (``machine_code``), so a machine compiles a kernel once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any, overload

import numpy as np

_building = threading.RLock()


class Kernel:
    """A function in the part of Python that numba compiles.

    py_func: the function as it was written, for whoever wants to read or interpret it.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        assert isinstance(function, FunctionType)
        self.py_func, self.options = function, options
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        self._dispatcher: Any = None

    def __call__(self, *args: Any) -> Any:
        made = self._dispatcher
        return (self.dispatcher if made is None else made)(*args)

    @property
    def dispatcher(self) -> Any:
        """What numba made of the function; made when first asked for."""
        if self._dispatcher is None:
            with _building:
                if self._dispatcher is None:
                    self._dispatcher = self._made()
        return self._dispatcher

    def _made(self) -> Any:
        from raybench.core import machine_code

        given, uses = self.py_func, repr(_meaning(self.py_func))
        names = {name: value for name, value in _outside(given) if isinstance(value, Kernel)}
        scope = {**given.__globals__, **{name: used.dispatcher for name, used in names.items()}}
        cells = tuple(CellType(_resolved(c.cell_contents)) for c in given.__closure__ or ())
        function = FunctionType(given.__code__, scope, None, given.__defaults__, cells or None)
        function.__qualname__ = given.__qualname__
        return machine_code.dispatcher(function, self.options, uses)


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


def _meaning(function: FunctionType) -> tuple[Any, ...]:
    """Return what machine code made of a function depends on beside its own source file."""
    from raybench.core import machine_code

    parts: list[Any] = []
    for name, value in _outside(function):
        if isinstance(value, Kernel):
            inner = value.py_func
            # one that was written in no file is known by its code alone
            code = machine_code.stamp(inner) or repr(
                (inner.__code__.co_code, inner.__code__.co_consts)
            )
            parts.append((name, code, inner.__qualname__, _meaning(inner)))
        elif isinstance(value, int | float | str | tuple | np.generic):
            parts.append((name, repr(value)))
    return tuple(parts)


@overload
def compiled(function: Callable[..., Any]) -> Kernel: ...
@overload
def compiled(**options: Any) -> Callable[[Callable[..., Any]], Kernel]: ...
def compiled(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Return the kernel of a function: compiled on first use, kept on disk, run without the GIL.

    ``options`` are those of ``numba.njit`` (``fastmath``, ``error_model``, ``inline``, ...).
    """
    if function is None:
        return lambda f: Kernel(f, options)
    return Kernel(function, options)
