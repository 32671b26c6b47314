"""Folders for what Ray wants to put on a disk while it runs, and the end of those that a kill left behind.

A folder belongs to the process that holds the lock of a file in it. The system releases the lock when that
process ends, however it ends: so a folder whose lock can be had is an orphan, whatever number its owner had
and whoever else runs sweeps here.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

KINDS = ("tune", "train", "part", "plugin")
PREFIXES = tuple(f"raybench-{kind}-" for kind in KINDS)
UNBORN = "raybench-new-"  # not locked yet, so not to be taken for an orphan
LOCK = "owner.lock"


@contextmanager
def scratch(kind: str) -> Iterator[str]:
    """Yield a new folder ``raybench-<kind>-..`` of this process, removed at the end; remove orphans first.

    kind: one of ``KINDS``.
    """
    remove_orphans()
    place = Path(tempfile.gettempdir())
    unborn = Path(tempfile.mkdtemp(prefix=UNBORN, dir=place))
    folder = place / f"raybench-{kind}-{uuid.uuid4().hex[:12]}"
    with open(unborn / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(unborn, folder)
        try:
            yield str(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_orphans() -> list[str]:
    """Remove the folders of this user's processes that are gone; return their names."""
    removed = []
    for folder in Path(tempfile.gettempdir()).glob("raybench-*"):
        with suppress(OSError):  # another process removes it as well, or it is not ours to touch
            if folder.name.startswith(PREFIXES) and _orphaned(folder):
                removed.append(folder.name)
    return sorted(removed)


def _orphaned(folder: Path) -> bool:
    """Remove a folder if it is an orphan; return whether it was."""
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        return False
    with open(folder / LOCK, "r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # under the lock, so that only one process removes it
        shutil.rmtree(folder, ignore_errors=True)
    return True
