"""What a killed driver leaves behind, and the end of it: processes of its Ray, and folders on a disk.

**Processes.** A small process, the watchdog, reads from a pipe whose other end only the driver holds. The driver's
last word there is ``done``; if the pipe ends without it, the driver was killed, and every process that writes into
the folder of the driver's Ray session, as all of Ray's do for their logs, is killed as well: helpers would wait 60 s
for a lost server. Command lines do not tell: Ray's processes change theirs. The watchdog runs this file as a script
of its own, so nothing of raybench or Ray is imported here.

**Folders.** What Ray wants to put on a disk while it runs lies in folders that belong to the process which holds the
lock of a file in them. The system releases the lock when that process ends, however it ends: so a folder whose lock
can be had is an orphan, whatever number its owner had and whoever else runs sweeps here.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

KINDS = ("tune", "train", "plugin")
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
        # its owner lives, another process removes it as well, or it is not ours
        with suppress(OSError):
            facts = folder.lstat()
            is_ours = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
            if not is_ours or not folder.name.startswith(PREFIXES):
                continue
            with open(folder / LOCK, "r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # under the lock, so that only one process removes it
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder.name)
    return sorted(removed)


# The watchdog -------------------------------------------------------------------------------------


DONE = b"done"
SECONDS_OF_LOOKS = 6.0  # a process that was just being started names the session a moment later
SECONDS_BETWEEN_LOOKS = 0.2


@contextmanager
def watchdog() -> Iterator[None]:
    """Have the processes of a Ray that this process starts inside killed, should this process be killed.

    Does nothing where there is no /proc.
    """
    if not Path("/proc/self/cmdline").exists():
        yield
        return
    # not inherited, so that no process but this one holds the end for writing
    ours, theirs = os.pipe()
    with os.fdopen(theirs, "wb", buffering=0) as line:
        with os.fdopen(ours, "rb") as end:
            dog = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(os.getpid())],
                stdin=end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # signals for the driver's group are not for it
            )
        try:
            yield
        finally:
            with suppress(OSError):  # somebody has killed the dog
                line.write(DONE)
    dog.wait()


def session_processes(driver: int) -> Iterator[int]:
    """Yield the processes that write into a Ray session of this driver: ``session_<date>_<time>_<us>_<pid>``."""
    name = re.compile(rf"/session_[\d-]+_[\d-]+_\d+_{driver}/")
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile, or another user's
            for file in (process / "fd").iterdir():
                facts = (process / "fdinfo" / file.name).read_text()
                flags = int(facts.split("flags:", 1)[1].split()[0], 8)
                # who reads logs is let be
                if flags & os.O_ACCMODE != os.O_RDONLY and name.search(os.readlink(file)):
                    yield int(process.name)
                    break


def main(driver: int) -> None:
    """Wait for the driver's end; kill what it leaves behind if it said nothing before."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read() == DONE:
        return
    until = time.monotonic() + SECONDS_OF_LOOKS
    while time.monotonic() < until:
        for process in session_processes(driver):
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(SECONDS_BETWEEN_LOOKS)


if __name__ == "__main__":
    main(int(sys.argv[1]))
