"""Kernels compiled once per machine: numba's cache on disk, made safe for processes that start together.

numba numbers the data files of a function and keeps the numbers in an index that every process reads,
changes and writes back. Two workers that compile two signatures at the same time choose the same number,
and from then on the index hands one signature the machine code of the other (TypeError: "can't unbox
array", or worse). A sweep starts many workers at once, so here a file is named by a digest of what it
holds: no index, nothing to race for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, overload

import numba
from numba.core.caching import IndexDataCacheFile


class _NamedByContent(IndexDataCacheFile):  # type: ignore[misc]
    """The cached machine code of one function, a file per (signature, processor, code)."""

    def _name(self, key: Any) -> str:
        parts = repr((self._version, self._source_stamp, key))
        return str(self._data_name(int(hashlib.sha256(parts.encode()).hexdigest()[:15], 16)))

    def save(self, key: Any, data: Any) -> None:
        self._save_data(self._name(key), data)  # a temporary file and a rename: whole or not there

    def load(self, key: Any) -> Any:
        try:
            return self._load_data(self._name(key))
        except OSError:  # not there: numba compiles
            return None


@overload
def compiled(function: Callable[..., Any]) -> Any: ...
@overload
def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]: ...
def compiled(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a kernel on first use, keep its machine code on disk, and release the GIL while it runs.

    ``options`` are those of ``numba.njit`` (``fastmath``, ``error_model``, ...).
    """
    if function is None:
        return lambda f: compiled(f, **options)  # type: ignore[call-overload]
    kernel = numba.njit(cache=True, nogil=True, **options)(function)
    file = kernel._cache._cache_file
    kernel._cache._cache_file = _NamedByContent(
        file._cache_path,
        file._index_name.removesuffix(".nbi"),
        file._source_stamp,
    )
    return kernel
