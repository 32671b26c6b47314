"""What this machine can hold, and a refusal of what cannot fit before any of it is allocated.

Without it a size mistyped by some zeros ends as a MemoryError, or, since Linux grants memory that it
does not have, as a process that the kernel kills.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from raybench.core.errors import InputError

UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
CGROUP = Path("/sys/fs/cgroup")


def size(count: float) -> str:
    """Return a number of bytes for people: ``7.1 PiB``."""
    unit = 0
    while count >= 1000 and unit < len(UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.3g} {UNITS[unit]}"


def memory_here() -> float:
    """Return the bytes that processes of this machine may hold together, swap and limits of a container
    considered; infinite where that is unknown.
    """
    bounds = [*_physical(), *_container()]
    return min(bounds, default=float("inf"))


def _physical() -> Iterator[float]:
    try:
        memory = float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return
    yield memory + _swap()


def _swap() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0.0
    found = [line.split()[1] for line in lines if line.startswith("SwapTotal:")]
    return 1024 * float(found[0]) if found else 0.0


def _container() -> Iterator[float]:
    """Yield the limits of this process's control groups, of the second version or the first."""
    try:
        own = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in own:
        _, kinds, path = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        root = CGROUP / "memory" if kinds else CGROUP
        name = "memory.limit_in_bytes" if kinds else "memory.max"
        folder = root / path.strip("/")
        for part in (folder, *folder.parents):  # a group is bounded by those that it is in
            if part == CGROUP.parent:
                break
            limit = _number(part / name)
            if limit is not None:
                swap = None if kinds else _number(part / "memory.swap.max")
                yield limit + (_swap() if swap is None else swap)


def _number(file: Path) -> float | None:
    try:
        return float(file.read_text())
    except (OSError, ValueError):  # there is none, or it says "max"
        return None


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
