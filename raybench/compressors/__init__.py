"""Compressors, one family per file, which the registry imports when it is first asked for one."""

from __future__ import annotations

from raybench.compressors.base import Any_, Bound, Compressor, Contractive, Role, Unbiased, count_of
from raybench.wire import Dense, Message, choose, unpack

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
