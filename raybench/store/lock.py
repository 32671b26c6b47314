"""One driver at a time: a lock of the operating system's for a local folder, a lease for an object store."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from raybench.core.errors import InputError
from raybench.store.files import Files, Local

PLACE, NUMBERED = "plan/lock", "lock."
LEASE, RENEWED = 60.0, 15.0  # seconds that a lease holds, and after which it is renewed


@contextmanager
def held(files: Files) -> Iterator[None]:
    """Hold a folder as its only driver. Raises InputError if another driver holds it.

    Local: the system releases the lock even after ``kill -9``. Object store: a lease that its holder
    renews; after ``kill -9`` the folder is free again a minute later.
    """
    with _local(files) if isinstance(files, Local) else _leased(files):
        yield


@contextmanager
def _local(files: Local) -> Iterator[None]:
    files.prepare()
    files.create(PLACE, b"")
    with open(files.path(PLACE), "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _taken(files, file.read().strip()) from None
        file.truncate(0)
        file.write(f"{_who()}\n")
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
    own = uuid.uuid4().hex
    before = _leases(files)
    number = max((int(name.removeprefix(NUMBERED)) + 1 for name in before), default=0)
    place = f"{PLACE}.{number}"
    if not files.create(place, _lease(own)):
        raise _taken(files, str(_read(files, place).get("who", "")))
    try:
        _leases(files, own)
    except InputError:
        files.remove(place)
        raise
    for name in before:
        files.remove(f"plan/{name}")
    over = threading.Event()

    def renew() -> None:
        while not over.wait(RENEWED):
            if _read(files, place).get("own") != own:
                return  # somebody took over after a long silence of ours; commits find that out
            files.write(place, _lease(own))

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=RENEWED)
        if _read(files, place).get("own") == own:
            files.remove(place)


def _leases(files: Files, own: str = "") -> list[str]:
    """Return the names of all leases. Raises InputError if one holds that is not our own."""
    found = files.names("plan")
    names = [n for n in found if n.startswith(NUMBERED) and n.removeprefix(NUMBERED).isdigit()]
    for name in names:
        said = _read(files, f"plan/{name}")
        if said.get("own") != own and float(str(said.get("until", 0))) > time.time():
            raise _taken(files, str(said.get("who", "")))
    return names


def _lease(own: str) -> bytes:
    return json.dumps({"own": own, "who": _who(), "until": time.time() + LEASE}).encode()


def _read(files: Files, place: str) -> dict[str, object]:
    try:
        found = json.loads(files.read(place) or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _who() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"


def _taken(files: Files, who: str) -> InputError:
    what = f"another sweep is running in {files.name} ({who or 'unknown'})"
    return InputError.of("out", what, "wait for it, stop it, or give another --out folder")
