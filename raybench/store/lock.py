"""One driver at a time: a lock of the operating system's for a local folder; a lease where there is none, as in object stores."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO

from raybench.core.errors import InputError, Notice
from raybench.core.patience import patience
from raybench.store.files import REFUSALS, Files, LocalFolder
from raybench.store.log import noted
from raybench.store.remote import Remote

PLACE, NUMBERED = "plan/lock", "lock."
LEASE, RENEWED = 60.0, 15.0  # seconds that a lease holds, and after which it is renewed
SETTLED = 2.0  # seconds to wait where a store knows no condition, for another driver's PUT to show
LOOKS = 5  # at a lock that is taken, a tenth of a second apart: ``holder`` takes it for a moment


@dataclass(frozen=True)
class Holder:
    """Who holds a folder: a text that names process and host, and since when (seconds since 1970, 0: unknown)."""

    who: str
    since: float = 0.0


@contextmanager
def held(files: Files) -> Iterator[None]:
    """Hold a folder as its only driver. Raises InputError if another driver holds it.

    Local: the system releases the lock even after ``kill -9``. Object store: a lease that its holder
    renews; after ``kill -9`` the folder is free again a minute later. Clocks of drivers must agree to
    within half a minute.
    """
    files.check()
    with _local(files) if isinstance(files, LocalFolder) else _leased(files):
        yield


def _locked(file: IO[str], how: int) -> bool | None:
    """Take the system's lock of an open file; return whether it could be had, None where the file system knows no locks."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, *REFUSALS, errno.ENOLCK):
            raise
        return False if error.errno == errno.EWOULDBLOCK else None
    return True


def holder(files: Files) -> Holder | None:
    """Return who holds a folder now, None if nobody does. Changes nothing."""
    if isinstance(files, LocalFolder):
        with suppress(FileNotFoundError, NotADirectoryError), open(files.path(PLACE)) as file:
            if _locked(file, fcntl.LOCK_SH) is False:
                return _holder(noted(files, PLACE))
    live = [lease for _, lease in _leases(files) if _is_live(lease)]
    return _holder(live[-1]) if live else None


@contextmanager
def _local(files: LocalFolder) -> Iterator[None]:
    files.prepare()
    files.create(PLACE, b"")
    with open(files.path(PLACE), "r+") as file:
        for look in range(LOOKS):
            time.sleep(0.1 * (look > 0))
            has_lock = _locked(file, fcntl.LOCK_EX)
            if has_lock is not False:
                break
        else:
            raise _taken(files, noted(files, PLACE))
        if has_lock is None:
            what = f"the file system of {files.name} knows no locks: after a kill the folder is free a minute later"
            warnings.warn(what, Notice, stacklevel=2)
            with _leased(files):
                yield
            return
        _free(files)  # of a driver on a machine where there are no locks
        file.truncate(0)
        file.write(json.dumps(_self()) + "\n")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)  # closing the file releases the lock


@contextmanager
def _leased(files: Files) -> Iterator[None]:
    """Hold the lease with the highest number, made by a conditional PUT, of which only one succeeds.

    A lease that was not renewed in time is not removed, as two who both found it so might then both
    believe to have taken it: the next number is made. Its maker looks again before it relies on it, for
    a holder that was late may have ended meanwhile, and then another began to count anew.
    """
    mine: dict[str, object] = {"own": uuid.uuid4().hex, **_self()}
    before = [name for name, _ in _free(files)]
    number = max((int(name.removeprefix(NUMBERED)) + 1 for name in before), default=0)
    place = f"{PLACE}.{number}"
    quick = (
        files if isinstance(files, LocalFolder) else Remote(files.name, min(RENEWED, patience()))
    )

    def is_mine(of: Files) -> bool:
        return noted(of, place).get("own") == mine["own"]

    if not files.create(place, _lease(mine)):
        raise _taken(files, noted(files, place))
    try:
        # made twice: the store knows no condition
        if files.create(place, _lease({**mine, "again": True})):
            time.sleep(SETTLED)
            if not is_mine(files):
                raise _taken(files, noted(files, place))
        _free(files, mine)
    except InputError:
        if is_mine(files):
            files.remove(place)
        raise
    for name in before:
        files.remove(f"plan/{name}")
    over = threading.Event()

    def renew() -> None:
        while not over.wait(RENEWED):
            with suppress(OSError):  # a store in trouble: it is tried until the end
                if not is_mine(quick):
                    return  # somebody took over after a long silence of ours; commits find that out
                quick.write(place, _lease(mine))

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=RENEWED)
        with suppress(OSError):  # it runs out by itself
            if is_mine(quick):
                quick.remove(place)


def _free(
    files: Files, mine: dict[str, object] | None = None
) -> list[tuple[str, dict[str, object]]]:
    """Return all leases. Raises InputError if one holds that is not this driver's."""
    leases = _leases(files)
    for _, lease in leases:
        if _is_live(lease) and (mine is None or lease.get("own") != mine["own"]):
            raise _taken(files, lease)
    return leases


def _leases(files: Files) -> list[tuple[str, dict[str, object]]]:
    """Return the names of all leases and what they say, the newest last."""
    names = [n for n in files.names("plan") if re.fullmatch(NUMBERED + "[0-9]+", n)]
    names.sort(key=lambda name: int(name.removeprefix(NUMBERED)))
    return [(name, noted(files, f"plan/{name}")) for name in names]


def _lease(mine: dict[str, object]) -> bytes:
    return json.dumps({**mine, "until": time.time() + LEASE}).encode()


def _is_live(lease: dict[str, object]) -> bool:
    return _number(lease.get("until")) > time.time()


def _self() -> dict[str, object]:
    return {"who": f"pid {os.getpid()} on {socket.gethostname()}", "since": time.time()}


def _holder(facts: dict[str, object]) -> Holder:
    return Holder(str(facts.get("who") or "unknown"), _number(facts.get("since")))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _taken(files: Files, facts: dict[str, object]) -> InputError:
    what = f"another sweep is running in {files.name} ({_holder(facts).who})"
    return InputError.of("out", what, "wait for it, stop it, or give another --out folder")
