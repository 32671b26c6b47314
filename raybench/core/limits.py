"""What this machine can hold, and a refusal of what cannot fit before any of it is allocated or read.

Without it a size mistyped by some zeros ends as a MemoryError, or, since Linux grants memory that it
does not have, as a process that the kernel kills. A compressed file says nothing of its size either: ten kilobytes
of bz2 may be four gigabytes. So what is decompressed is bounded by the file's own size and by the machine's
memory, as it is read.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, cast

from raybench.core.errors import InputError

UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
CGROUP = Path("/sys/fs/cgroup")
SHARE = 4  # a data set may fill a quarter of the memory: it is copied while it is read
GROWTH = 100  # times that a compressed file may grow; text of numbers grows 3 to 30 times
FREE = 16 * 2**20  # bytes that any file may become
CHUNK = 1 << 20
OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def size(count: float) -> str:
    """Return a number of bytes for people: ``7.1 PiB``."""
    unit = 0
    while count >= 1000 and unit < len(UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.3g} {UNITS[unit]}"


def duration(seconds: float) -> str:
    """Return a duration as people write it: 8 s, 3:07, 1:02:03."""
    s = round(seconds)
    if s < 60:
        return f"{s} s"
    return (
        f"{s // 60}:{s % 60:02d}" if s < 3600 else f"{s // 3600}:{s % 3600 // 60:02d}:{s % 60:02d}"
    )


def memory_here() -> float:
    """Return the bytes of memory that processes of this machine, or container, may hold together; infinite where
    that is unknown. Swap is none of it: what computes in it does not end.
    """
    try:
        memory = float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        memory = float("inf")
    return min([memory, *_container()])


def _container() -> Iterator[float]:
    """Yield the limits of this process's control groups, of the second version or the first."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        root = CGROUP / "memory" if kinds else CGROUP
        name = "memory.limit_in_bytes" if kinds else "memory.max"
        folder = root / path.strip("/")
        for part in (folder, *folder.parents):  # a group is bounded by those that it is in
            if part == CGROUP.parent:
                break
            with suppress(OSError, ValueError):  # there is none, or it says "max"
                yield float((part / name).read_text())


def disk_free(folder: str | os.PathLike[str]) -> float:
    """Return the free bytes of the disk that a folder is on, or will be; infinite for object stores."""
    if "://" in os.fspath(folder):
        return float("inf")
    place = Path(folder).expanduser().absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        return float(shutil.disk_usage(place).free)
    except OSError:
        return float("inf")


def need_memory(count: float, what: str, fix: str, where: str = "problem") -> None:
    """Refuse what takes more memory than there is; call it before allocating what may be large.

    count: bytes that are certainly held at one moment, so that nothing is refused that would fit. what:
    what they hold. Raises InputError with both numbers and the fix.
    """
    here = memory_here()
    if count > here:
        text = f"{what} take {size(count)} of memory at least, and this machine has {size(here)}"
        raise InputError.of(where, text, fix)


# Files --------------------------------------------------------------------------------------------


def check_fits(where: str, what: str, count: int, fix: str) -> None:
    """Raise InputError, with the numbers, where ``count`` bytes are more than a data set may fill."""
    most = memory_here() / SHARE
    if count > most:
        have = f"a data set may take {size(most)} here, a quarter of the memory"
        raise InputError.of(where, f"{what} takes {size(count)}; {have}", fix)


def check_growth(where: str, what: str, packed: int, count: int, times: int = GROWTH) -> None:
    """Raise InputError where ``packed`` bytes decompress to more than a file may become: so many times as much."""
    if count > max(FREE, times * packed):
        grown = f"{what} decompresses to more than {times:,} times its {size(packed)}"
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


def digest_of(file: Path, where: str) -> str:
    """Return the SHA-256 (hex) of a file's decompressed content, read once until the file changes.

    Raises OSError where there is no file, InputError as ``decompressed``.
    """
    state = file.stat()
    return _digest(file, where, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=1024)
def _digest(file: Path, where: str, mtime: int, size: int) -> str:
    del mtime, size  # arguments only so that a changed file is read anew
    whole = hashlib.sha256()
    for chunk in decompressed(file, where):
        whole.update(chunk)
    return whole.hexdigest()
