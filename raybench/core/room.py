"""How much a file may become: a share of the memory, and decompression that stops in time.

A compressed file says nothing of its size: ten kilobytes of bz2 may be four gigabytes. So what is
decompressed is bounded by the file's own size and by the machine's memory, as it is read.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from raybench.core.capacity import memory_here, size
from raybench.core.errors import InputError

SHARE = 4  # a data set may fill a quarter of the memory: it is copied while it is read
GROWTH = 100  # times that a compressed file may grow; text of numbers grows 3 to 30 times
FREE = 16 * 2**20  # bytes that any file may become
CHUNK = 1 << 20
OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def check_fits(where: str, what: str, count: int, fix: str) -> None:
    """Raise InputError, with the numbers, where ``count`` bytes are more than a data set may fill."""
    most = memory_here() / SHARE
    if count > most:
        have = f"a data set may take {size(most)} here, a quarter of the memory"
        raise InputError.of(where, f"{what} takes {size(count)}; {have}", fix)


def check_growth(where: str, what: str, packed: int, count: int) -> None:
    """Raise InputError where ``packed`` bytes decompress to more than a file may become."""
    if count > max(FREE, GROWTH * packed):
        grown = f"{what} decompresses to more than {GROWTH} times its {size(packed)}"
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
