"""Compression compressors, one family per file; importing the package registers all of them."""

from __future__ import annotations

import importlib
import pkgutil

from raybench.compressors.base import Any_, Bound, Compressor, Contractive, Role, Unbiased, count_of
from raybench.wire import Dense, Message, choose, unpack

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Any_",
    "Bound",
    "Compressor",
    "Contractive",
    "Dense",
    "Message",
    "Role",
    "Unbiased",
    "choose",
    "count_of",
    "unpack",
]
