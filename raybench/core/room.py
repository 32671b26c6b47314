"""How much a file may become: the memory there is, and decompression that stops in time.

A compressed file says nothing of its size: ten kilobytes of bz2 may be four gigabytes. So what is
decompressed is bounded by the file's own size and by the machine's memory, as it is read.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import IO, Any, cast

from raybench.core.errors import InputError

SHARE = 4  # a data set may fill a quarter of the memory: it is copied while it is read
GROWTH = 100  # times that a compressed file may grow; text of numbers grows 3 to 30 times
FREE = 16 * 2**20  # bytes that any file may become
CHUNK = 1 << 20
CGROUP = Path("/sys/fs/cgroup/memory.max")
UNKNOWN = 16 * 2**30  # taken for the memory where the system does not tell
OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


@cache
def memory() -> int:
    """Return the bytes of memory that this machine, or this container, has."""
    found = UNKNOWN
    if hasattr(os, "sysconf"):
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(found, int(CGROUP.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return found


def spelled(size: int) -> str:
    """Return bytes as people say them: ``1.5 GiB``."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size:,} bytes"


def check_fits(where: str, what: str, size: int, fix: str) -> None:
    """Raise InputError, with the numbers, where ``size`` bytes are more than a data set may fill."""
    most = memory() // SHARE
    if size > most:
        have = f"a data set may take {spelled(most)} here, a quarter of the memory"
        raise InputError.of(where, f"{what} takes {spelled(size)}; {have}", fix)


def check_growth(where: str, what: str, packed: int, size: int) -> None:
    """Raise InputError where ``packed`` bytes decompress to more than a file may become."""
    if size > max(FREE, GROWTH * packed):
        grown = f"{what} decompresses to more than {GROWTH} times its {spelled(packed)}"
        fix = "no data set is as repetitive as that; if this one is, decompress it yourself"
        raise InputError.of(where, grown, fix)


def decompressed(path: Path, where: str) -> Iterator[bytes]:
    """Yield the content of a file (.gz, .bz2, .xz by its ending) in pieces, none beyond its bounds.

    Raises InputError, naming the key ``where``, if the file cannot be read, is not what its ending
    says, grows more than a hundredfold, or does not fit into a quarter of the memory.
    """
    opener, seen = OPENERS.get(path.suffix, open), 0
    try:
        packed = path.stat().st_size
        with cast(IO[bytes], opener(path, "rb")) as stream:
            while chunk := stream.read(CHUNK):
                seen += len(chunk)
                check_fits(where, str(path), seen, "take fewer rows, or a larger machine")
                if opener is not open:
                    check_growth(where, str(path), packed, seen)
                yield chunk
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        fix = "fetch the file again" if opener is not open else "check the path and its permissions"
        raise InputError.of(where, f"cannot read {path}: {error}", fix) from error
