"""This process: how its idle threads wait, memory that is kept, where its kernels are kept, signals, and exit codes.

Nothing here happens by importing raybench, by ``compress`` or by a run: a user's process stays as it
is. The command line calls ``tune_process`` for the verbs that compute, Ray's workers do when they start
to work, and so do the benchmarks; a program of yours may call it as well.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType

from raybench.core.errors import InputError, SweepStopped

ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Read by OpenMP when torch is loaded, without effect afterwards. Idle threads of torch spin by
default and take the cores from the compiled kernels: 64 cells on two cores are six times slower."""

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc's names of two settings of malloc
LARGEST_KEPT_ARRAY, MOST_KEPT = 1 << 28, 1 << 30  # bytes: of one freed array, of all free memory


def tune_process() -> None:
    """Set environment and memory of this process as is best for computing; call it before torch is loaded.

    A variable that is set already stays. Where the C library is not glibc, memory stays as it was.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    keep_freed()


@cache
def keep_freed() -> bool:
    """Let the C library keep freed arrays of up to 256 MiB, 1 GiB of them; return whether it can.

    By default glibc gives arrays above 32 MiB back to the system at once, and the pages of the next
    ones are made anew: measured on vectors of 8,124 entries and 64 cells of 20 clients, four times
    slower than the arithmetic. Holds for the process; elsewhere nothing is changed.
    """
    mallopt = _of_libc("mallopt")
    if mallopt is None:
        return False
    results = mallopt(MMAP_THRESHOLD, LARGEST_KEPT_ARRAY), mallopt(TRIM_THRESHOLD, MOST_KEPT)
    return all(results)


def give_back() -> None:
    """Give free memory of the C library back to the system, where it is glibc.

    It cannot use a hole for an aligned array of the size of the one that left it (before version 2.38), so
    that arrays which come and go beside others that stay take several times the room they need.
    """
    trim = _of_libc("malloc_trim")
    if trim is not None:
        trim(0)


@cache
def _of_libc(name: str) -> Callable[..., int] | None:
    """Return a function that glibc has and other C libraries lack."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return None


# Compiled kernels ---------------------------------------------------------------------------------


# A kept kernel is machine code in a pickle: whoever can put a file in its place runs what he likes as
# whoever loads it. So kernels never lie beside a source file, which others may share, but in a folder of
# the user's own, and a folder that others own or can write to is refused.
KERNELS = "NUMBA_CACHE_DIR"
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def kernel_folder() -> Path | None:
    """Return the folder of compiled kernels: $NUMBA_CACHE_DIR, else one in the user's cache.

    It is made where it is missing, with mode 0700; None where it cannot be made. Raises InputError
    where another user owns it, or others can write to it.
    """
    import platformdirs

    given = os.environ.get(KERNELS, "")
    default = Path(platformdirs.user_cache_dir("raybench")) / "kernels"
    folder = Path(given).expanduser() if given else default
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
    except OSError:  # a disk that is full or read-only: every process compiles for itself
        return None
    if is_own(state):
        return folder
    if state.st_uid == os.geteuid():
        who, first = f"others can write to {folder}", f"chmod go-w {folder}; or "
    else:
        who, first = f"{folder} belongs to another user", ""
    what = f"{who}, and so the compiled kernels in it can be replaced"
    fix = f"{first}set {KERNELS} to a folder of your own"
    raise InputError.of(KERNELS if given else str(folder), what, fix)


def is_own(state: os.stat_result) -> bool:
    """Return whether a file is this process's user's, and nobody else can write to it.

    True where files have no owners (Windows).
    """
    if not hasattr(os, "geteuid"):
        return True
    return state.st_uid == os.geteuid() and not state.st_mode & OTHERS_WRITE


# Endings ------------------------------------------------------------------------------------------


INTERRUPTED = 130  # exit codes by the custom of shells: 128 and the number of the signal
TERMINATED = 143
SAME_WISH = 1.0  # seconds within which a signal that comes again says nothing new
DISK_TROUBLE = {
    errno.ENOSPC: "free some of it",
    errno.EDQUOT: "free some of it",
    errno.EIO: "look at the disk",
    errno.EROFS: "give --out on another disk",
    errno.ETIMEDOUT: "look at the network and the store",
    errno.EREMOTEIO: "look at what the store's permissions allow",
}


class Terminated(KeyboardInterrupt):
    """SIGTERM has come: the work stops as it does by Ctrl-C."""


@contextmanager
def stopping_on_sigterm() -> Iterator[None]:
    """Raise Terminated in the main thread when SIGTERM comes, unless the program has a handler of its own.

    By default SIGTERM ends a process without a word and without its ``finally`` parts.
    """
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if main else None
    home = getattr(before, "__module__", "")
    ours = before == signal.SIG_DFL or home == __name__ or home.split(".")[0] == "ray"
    if not (main and ours):
        yield
        return
    signals: list[int] = []

    def terminate(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt as stop:
        # what a handler raises while Ray waits comes out of it as a plain KeyboardInterrupt
        if signals:
            raise Terminated from stop
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def signals_later() -> Iterator[None]:
    """Let SIGINT and SIGTERM wait until the block has ended: for code in which what a handler raises would be lost."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    both = signal.SIGINT, signal.SIGTERM
    before = {one: signal.signal(one, lambda number, frame: came.append(number)) for one in both}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, signal.SIG_DFL if handler is None else handler)
        if came:
            signal.raise_signal(came[0])


@contextmanager
def ending_on_the_second_signal() -> Iterator[None]:
    """Leave with the exit code of a second SIGINT or SIGTERM as it comes, whatever the main thread waits for.

    For a process that is a command's own: what of Ray's does not answer keeps the main thread from running any
    handler. What arrives within a second of the first is the same wish, as of a shell that tells the whole group.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)

    def listen() -> None:
        first = 0.0
        while number := os.read(ours, 1):
            if number[0] not in (signal.SIGINT, signal.SIGTERM):
                continue
            if not first:
                first = time.monotonic()
            elif time.monotonic() - first > SAME_WISH:
                os.write(
                    2,
                    b"\x1b[?25h" * os.isatty(2)
                    + b"note: left without waiting for what still runs\n",
                )
                os._exit(128 + number[0])

    before = signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(theirs)
        thread.join()
        os.close(ours)


NO_THREAD = "can't start new thread"  # for the lack of memory, or of processes, that a limit leaves


def ending(error: BaseException) -> tuple[int, list[str]] | None:
    """Return the exit code of a command that an error ends, and what to say of it; None for a defect of ours.

    1: the disk is full, or the sweep had to stop; 2: the input is wrong; 130: Ctrl-C; 143: SIGTERM.
    """
    if isinstance(error, InputError):
        return 2, error.shown()
    if isinstance(error, SweepStopped):
        return 1, [str(error)]
    if isinstance(error, MemoryError) or str(error) == NO_THREAD:
        return 1, [f"out of memory: {str(error).rstrip('.') or 'there is not enough'}"]
    if isinstance(error, KeyboardInterrupt):
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED, ["interrupted"]
    if isinstance(error, OSError):  # such as a folder that cannot be written, or a full disk
        trouble = disk_trouble(error)
        if trouble is not None:
            return 1, [trouble]
        if error.filename is not None:
            return 2, [f"{os.fspath(error.filename)!s}: {error.strerror}"]
    return None


def disk_trouble(error: OSError) -> str | None:
    """Return what to tell of an error that is the disk's, or the object store's; None for any other."""
    if error.errno not in DISK_TROUBLE:
        return None
    where = f"{os.fspath(error.filename)!s}: " if error.filename is not None else ""
    text = error.strerror or os.strerror(error.errno)
    return (
        f"{where}{text}\n    {DISK_TROUBLE[error.errno]}: what is committed stays, and the same command "
        "goes on"
    )


def disk_trouble_told(lines: Iterable[str]) -> int | None:
    """Return the errno of a disk's trouble that a traceback from another process ends with, None without."""
    for line in lines:
        match = re.search(r"\b\w*Error: \[Errno (\d+)\]", line)
        if match and int(match[1]) in DISK_TROUBLE:
            return int(match[1])
    return None
