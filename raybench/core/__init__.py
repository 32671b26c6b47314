"""What every layer above rests on: streams, layouts, numbers per cell, threads, errors, names of plug-ins."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def fetching(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package whose names live in modules of it, imported when first asked for.

    homes: the module of each name, as a dotted name below the package.
    """

    def fetch(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return fetch
