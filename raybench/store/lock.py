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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO

from raybench.core.errors import InputError
from raybench.store.files import Files, Local, Remote
from raybench.store.patience import patience

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
    with _local(files) if isinstance(files, Local) else _leased(files):
        yield


def holder(files: Files) -> Holder | None:
    """Return who holds a folder now, None if nobody does. Changes nothing."""
    if not isinstance(files, Local):
        own = [said for _, said in _leases(files) if _live(said)]
        return _holder(own[-1]) if own else None
    try:
        with open(files.path(PLACE)) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _holder(_parsed(file.read().encode()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return None


@contextmanager
def _local(files: Local) -> Iterator[None]:
    files.prepare()
    files.create(PLACE, b"")
    with open(files.path(PLACE), "r+") as file:
        if not _locked(file):
            raise _taken(files, _parsed(file.read().encode()))
        file.truncate(0)
        file.write(json.dumps(_self()) + "\n")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)  # closing the file releases the lock


def _locked(file: IO[str]) -> bool:
    for look in range(LOOKS):
        time.sleep(0.1 * (look > 0))
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


@contextmanager
def _leased(files: Files) -> Iterator[None]:
    """Hold the lease with the highest number, made by a conditional PUT, of which only one succeeds.

    A lease that was not renewed in time is not removed, as two who both found it so might then both
    believe to have taken it: the next number is made. Its maker looks again before it relies on it, for
    a holder that was late may have ended meanwhile, and then another began to count anew.
    """
    own = {"own": uuid.uuid4().hex, **_self()}
    before = [name for name, _ in _free(files)]
    number = max((int(name.removeprefix(NUMBERED)) + 1 for name in before), default=0)
    place = f"{PLACE}.{number}"
    if not files.create(place, _lease(own)):
        raise _taken(files, _parsed(files.read(place)))
    try:
        if files.create(
            place, _lease({**own, "again": True})
        ):  # made twice: the store knows no condition
            time.sleep(SETTLED)
            said = _parsed(files.read(place))
            if said.get("own") != own["own"]:
                raise _taken(files, said)
        _free(files, own)
    except InputError:
        if _parsed(files.read(place)).get("own") == own["own"]:
            files.remove(place)
        raise
    for name in before:
        files.remove(f"plan/{name}")
    over = threading.Event()
    quick = Remote(files.name, min(RENEWED, patience()))

    def renew() -> None:
        while not over.wait(RENEWED):
            with suppress(OSError):  # a store in trouble: it is tried until the end
                if _parsed(quick.read(place)).get("own") != own["own"]:
                    return  # somebody took over after a long silence of ours; commits find that out
                quick.write(place, _lease(own))

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=RENEWED)
        with suppress(OSError):  # it runs out by itself
            if _parsed(quick.read(place)).get("own") == own["own"]:
                quick.remove(place)


def _free(
    files: Files, own: dict[str, object] | None = None
) -> list[tuple[str, dict[str, object]]]:
    """Return all leases. Raises InputError if one holds that is not our own."""
    found = _leases(files)
    for _, said in found:
        if _live(said) and (own is None or said.get("own") != own["own"]):
            raise _taken(files, said)
    return found


def _leases(files: Files) -> list[tuple[str, dict[str, object]]]:
    """Return the names of all leases and what they say, the newest last."""
    names = [n for n in files.names("plan") if n.startswith(NUMBERED)]
    names = [n for n in names if n.removeprefix(NUMBERED).isdigit()]
    names.sort(key=lambda name: int(name.removeprefix(NUMBERED)))
    return [(name, _parsed(files.read(f"plan/{name}"))) for name in names]


def _lease(own: dict[str, object]) -> bytes:
    return json.dumps({**own, "until": time.time() + LEASE}).encode()


def _live(said: dict[str, object]) -> bool:
    return _number(said.get("until")) > time.time()


def _parsed(data: bytes | None) -> dict[str, object]:
    try:
        found = json.loads(data or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _self() -> dict[str, object]:
    return {"who": f"pid {os.getpid()} on {socket.gethostname()}", "since": time.time()}


def _holder(said: dict[str, object]) -> Holder:
    return Holder(str(said.get("who") or "unknown"), _number(said.get("since")))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _taken(files: Files, said: dict[str, object]) -> InputError:
    what = f"another sweep is running in {files.name} ({_holder(said).who})"
    return InputError.of("out", what, "wait for it, stop it, or give another --out folder")
