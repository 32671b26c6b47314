"""numba's cache on disk, made safe for processes that start together. Imports numba: see ``compiled``.

numba numbers the data files of a function and keeps the numbers in an index that every process reads,
changes and writes back. Two workers that compile two signatures at the same time choose the same number,
and from then on the index hands one signature the machine code of the other (TypeError: "can't unbox
array", or worse). A sweep starts many workers at once, so here a file is named by a digest of what it
holds: no index, nothing to race for. The digest covers what numba's own stamp (the source file's time and
size) does not: the kernels and numbers of other files that were compiled in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numba
from numba.core.caching import IndexDataCacheFile


class _NamedByContent(IndexDataCacheFile):
    """The cached machine code of one function, a file per (signature, processor, code)."""

    def __init__(self, like: IndexDataCacheFile, uses: str) -> None:
        super().__init__(
            like._cache_path, like._index_name.removesuffix(".nbi"), like._source_stamp
        )
        self._uses = uses

    def _name(self, key: object) -> str:
        parts = repr((self._version, self._source_stamp, self._uses, key))
        return str(self._data_name(int(hashlib.sha256(parts.encode()).hexdigest()[:15], 16)))

    def save(self, key: object, data: object) -> None:
        self._save_data(
            self._name(key), data
        )  # numba writes a temporary file and renames it, so a reader sees all of it or nothing

    def load(self, key: object) -> object:
        try:
            return self._load_data(self._name(key))
        except OSError:  # the file is not there, and numba compiles the function
            return None


def dispatcher(function: Callable[..., Any], options: Mapping[str, object], uses: str) -> Any:
    """Return numba's compiler of a function, which keeps machine code on disk and releases the GIL.

    options: those of ``numba.njit``. uses: what is compiled in from elsewhere.
    """
    made = numba.njit(cache=True, nogil=True, **options)(function)
    made._cache._cache_file = _NamedByContent(made._cache._cache_file, uses)
    return made
