"""Compressors, one family per file, which the registry imports when it is first asked for one."""

from __future__ import annotations

from raybench.compressors.base import (
    Any_,
    Compressor,
    Contractive,
    FittedCompressor,
    Role,
    Unbiased,
    count_of,
)
from raybench.wire import Dense, Message, choose, unpack

__all__ = [
    "Any_",
    "Compressor",
    "Contractive",
    "Dense",
    "FittedCompressor",
    "Message",
    "Role",
    "Unbiased",
    "choose",
    "count_of",
    "unpack",
]
