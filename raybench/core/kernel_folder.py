"""Where compiled kernels are kept: a folder that nobody but its user can write to.

A kept kernel is machine code in a pickle: whoever can put a file in its place runs what he likes as
whoever loads it. So kernels never lie beside a source file, which others may share, but in a folder of
the user's own, and a folder that others own or can write to is refused.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import platformdirs

from raybench.core.errors import InputError

VARIABLE = "NUMBA_CACHE_DIR"
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def kernel_folder() -> Path | None:
    """Return the folder of compiled kernels: $NUMBA_CACHE_DIR, else one in the user's cache.

    It is made where it is missing, with mode 0700; None where it cannot be made. Raises InputError
    where another user owns it, or others can write to it.
    """
    given = os.environ.get(VARIABLE, "")
    default = Path(platformdirs.user_cache_dir("raybench")) / "kernels"
    folder = Path(given).expanduser() if given else default
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError:  # a disk that is full or read-only: every process compiles for itself
        return None
    if is_own(found):
        return folder
    where = VARIABLE if given else str(folder)
    if not is_owner(found):
        what = f"{folder} belongs to another user, who could replace the compiled kernels in it"
        raise InputError.of(where, what, f"set {VARIABLE} to a folder of your own")
    what = f"others can write to {folder}, and so replace the compiled kernels in it"
    fix = f"chmod go-w {folder}; or set {VARIABLE} to a folder of your own"
    raise InputError.of(where, what, fix)


def is_owner(found: os.stat_result) -> bool:
    """Return whether this process's user owns a file; true where files have no owners (Windows)."""
    return not hasattr(os, "geteuid") or found.st_uid == os.geteuid()


def is_own(found: os.stat_result) -> bool:
    """Return whether a file is this process's user's, and nobody else can write to it."""
    return is_owner(found) and not (hasattr(os, "geteuid") and found.st_mode & OTHERS_WRITE)
