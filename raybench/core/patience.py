"""Patience with what answers over a network: it is asked again, less and less often, for a bounded time."""

from __future__ import annotations

import errno
import math
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from raybench.core.errors import InputError, StoreError

T = TypeVar("T")

VARIABLE = "RAYBENCH_STORE_PATIENCE"
SECONDS = 120.0
FIRST, LONGEST = 0.2, 10.0  # seconds before the second request, and at most between two
FINAL = (
    *(FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError),
    *(ImportError, TypeError, ValueError, AttributeError, NotImplementedError),
)
FINAL_NUMBERS = (errno.ENOSYS, errno.EPERM, errno.ENAMETOOLONG)
FINAL_NAMES = ("Credential", "Profile", "Validation", "InvalidRegion", "Token", "DefaultCreds")
"""Parts of the names of drivers' own errors that no second request mends."""

_random = random.Random()  # for waiting alone; the user's generator stays as it is
_listeners: list[Callable[[str], None]] = []


def patience() -> float:
    """Return for how many seconds a request is made again: $RAYBENCH_STORE_PATIENCE, else two minutes.

    Raises InputError where the variable is no number of seconds.
    """
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text) if text else SECONDS
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise InputError.of(VARIABLE, f"{text!r} is no number of seconds", "such as 120")
    return seconds


@contextmanager
def heard(listener: Callable[[str], None]) -> Iterator[None]:
    """Let ``listener`` be told, in a line, of each request that failed and is made again.

    It takes the place of the one before it, and is called in the thread that waits.
    """
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def patiently(ask: Callable[[], T], where: str, seconds: float | None = None) -> T:
    """Return what ``ask`` returns, which is called again while it fails as a store does that is in trouble.

    where: what it asks for, to tell. seconds: how long, ``patience()`` by default. Raises what no second
    try mends (``final``) as it is, and StoreError when the time is over.
    """
    seconds = patience() if seconds is None else seconds
    until = time.monotonic() + seconds
    attempts = 1
    while True:
        try:
            return ask()
        except Exception as error:
            if final(error):
                raise
            wait = min(LONGEST, FIRST * 2 ** (attempts - 1)) * _random.uniform(0.5, 1.0)
            if time.monotonic() + wait > until:
                what = f"the store failed {attempts} times in {seconds:g} s, last: {reason(error)}"
                raise StoreError(errno.ETIMEDOUT, what, where) from error
            if _listeners:
                _listeners[-1](f"{where}: {reason(error)}; trying again")
            time.sleep(wait)
            attempts += 1


def final(error: Exception) -> bool:
    """Return whether asking again would not help: what is not there, not allowed, or asked wrongly."""
    if isinstance(error, OSError) and error.errno in FINAL_NUMBERS:
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, FINAL) or any(part in n for n in names for part in FINAL_NAMES)


def reason(error: BaseException) -> str:
    """Return in a line what a driver's error says."""
    text = str(error.strerror) if isinstance(error, OSError) and error.strerror else str(error)
    lines = text.strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
