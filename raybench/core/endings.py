"""How a command ends other than well: exit codes, SIGTERM, disks that are full or broken, stores that fail."""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

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
    heard: list[int] = []

    def terminate(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt as stop:
        # what a handler raises while Ray waits comes out of it as a plain KeyboardInterrupt
        if heard:
            raise Terminated from stop
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def deferring_sigterm() -> Iterator[None]:
    """Hear a SIGTERM at the end: what starts Ray is not left in the middle, where it crashes or leaves processes.

    Whatever handler was installed meanwhile, below Python too, is replaced by the one that was there before.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if heard:
            # Ray's handler below Python's sets an alarm that aborts the process three seconds after a SIGTERM.
            signal.alarm(0)
        if heard and callable(before):
            before(signal.SIGTERM, None)  # raised once more it would count as a second signal
        elif heard:
            signal.raise_signal(signal.SIGTERM)


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


def exit_code(stop: KeyboardInterrupt) -> int:
    """Return 143 after SIGTERM, 130 after Ctrl-C."""
    return TERMINATED if isinstance(stop, Terminated) else INTERRUPTED


def disk_trouble(error: OSError) -> str | None:
    """Return what to tell of an error that is the disk's, or the object store's; None for any other."""
    if error.errno not in DISK_TROUBLE:
        return None
    where = f"{os.fspath(error.filename)!s}: " if error.filename is not None else ""
    said = error.strerror or os.strerror(error.errno)
    return (
        f"{where}{said}\n    {DISK_TROUBLE[error.errno]}: what is committed stays, and the same command "
        "goes on"
    )


def disk_trouble_told(lines: Iterable[str]) -> int | None:
    """Return the errno of a disk's trouble that a traceback from another process ends with, None without."""
    for line in lines:
        found = re.search(r"\b\w*Error: \[Errno (\d+)\]", line)
        if found and int(found[1]) in DISK_TROUBLE:
            return int(found[1])
    return None
