"""What the head tells while a sweep runs there, asked over one connection by ssh, and its results, as they come."""

from __future__ import annotations

import json
import re
import select
import shlex
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raybench.cluster.hosts import Host
from raybench.cluster.stage import ENDED, LEASE, PID, PROGRESS

# One line of answer to each line that is asked, and each pushes the lease. Whoever is cut off asks nothing any more,
# and the shell on the head ends.
TELL = """\
cd {kept} && while read -r -t 30 _; do
  {lease} push >/dev/null 2>&1
  end=$(cat {job}/{ended} 2>/dev/null)
  if [ -z "$end" ] && [ -f {job}/{pid} ] && ! kill -0 "$(cat {job}/{pid})" 2>/dev/null; then
    sleep 1; end=$(cat {job}/{ended} 2>/dev/null || echo 137)
  fi
  echo "$end|$(ls {out}/cells 2>/dev/null | wc -l)|$(tr -d '\\n' <{job}/{progress} 2>/dev/null)"
done"""
OURS = (  # what a launch has sent to has the mark beside it
    "{{ [ ! -e {out}/sweep.yaml ] || [ -e {out}/../launch ] || "
    "{{ echo '{out} holds the sweep.yaml of another launch' >&2; exit 7; }}; }}"
)
ASKED_EVERY, AGAIN = 1.0, 3.0  # seconds between questions, and between attempts to connect
SHARD = re.compile(
    r"(cells|weights|curves)/[\w-][\w.-]*|plan/(owner|cells|batches|attempts|target)\.json"
)
ORDER = ("plan", "weights", "curves", "cells")  # of commits: cells are what makes a shard count


@dataclass
class Told:
    """What the head told last. code: the exit code of its sweep, None while that runs. shards: of cells, there."""

    progress: dict[str, Any] = field(default_factory=dict)
    code: int | None = None
    shards: int = 0


class Line:
    """A connection to the head, made again where it is lost; ``told`` is what was heard last."""

    def __init__(self, host: Host, kept: str, job: str, out: str) -> None:
        names = {"ended": ENDED, "pid": PID, "progress": PROGRESS, "lease": LEASE}
        command = TELL.format(kept=kept, job=job, out=out or "none", **names)
        self.command = [*host.ssh(), host.login, f"bash -c {shlex.quote(command)}"]
        self.told = Told()
        self.heard = time.monotonic()
        self._ssh: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *error: object) -> None:
        if self._ssh is not None:
            self._ssh.kill()
            self._ssh.wait()
            self._ssh = None

    @property
    def silence(self) -> float:
        """Seconds since the head was heard."""
        return time.monotonic() - self.heard

    def ask(self) -> bool:
        """Ask once, and return whether there was an answer; takes a second or a few."""
        if self._ssh is None:
            pipe = subprocess.PIPE
            self._ssh = subprocess.Popen(
                self.command, bufsize=0, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
            )
        assert self._ssh.stdin is not None
        assert self._ssh.stdout is not None
        with suppress(OSError):
            self._ssh.stdin.write(b"\n")
            self._ssh.stdin.flush()
            if select.select([self._ssh.stdout], [], [], 20)[0]:
                answer = self._ssh.stdout.readline().decode(errors="replace").strip()
                if answer.count("|") >= 2:
                    self._take(*answer.split("|", 2))
                    time.sleep(ASKED_EVERY)
                    return True
        self.__exit__()
        time.sleep(AGAIN)
        return False

    def _take(self, end: str, shards: str, progress: str) -> None:
        self.heard = time.monotonic()
        with suppress(ValueError):
            self.told.shards = int(shards)
            if progress:
                self.told.progress = json.loads(progress)
        if end.strip().isdecimal():
            self.told.code = int(end)


def send(host: Host, results: Path, out: str) -> None:
    """Copy what the folder here holds already to the head, whose driver then goes on from it.

    Raises RuntimeError where the head's folder holds a sweep of somebody else.
    """
    host.run(f"{OURS.format(out=out)} && mkdir -p {out} && touch {out}/../launch")
    # the sweep's text has paths of each machine, and the locks are each machine's own
    apart = ("/sweep.yaml", "/plan/lock*", "/launch", "/tmp")
    host.push(results, out, *(f"--exclude={name}" for name in apart))


def fetch(host: Host, results: Path, out: str) -> int:
    """Copy what is new on the head into the folder here; return how many shards of cells are here then.

    Files travel into a folder that nobody reads, and appear by a rename, cells last. rsync lists cells first: the curves
    of each were written before it, so they are among what it lists afterwards. Raises Unreachable, RuntimeError, OSError.
    """
    spare = results / "tmp"
    shutil.rmtree(spare, ignore_errors=True)
    spare.mkdir(parents=True)
    host.pull(
        [f"{out}/{part}" for part in reversed(ORDER)], spare, "--no-inc-recursive", "--modify-window=-1",
        f"--compare-dest={results.absolute()}", "--exclude=.*", "--exclude=lock*",
        f"--rsync-path={OURS.format(out=out)} && rsync",
    )  # fmt: skip
    for part in ORDER:
        if part != "weights":
            (results / part).mkdir(exist_ok=True)
        for file in sorted(spare.glob(f"{part}/*")):
            if SHARD.fullmatch(f"{part}/{file.name}") and file.is_file() and not file.is_symlink():
                (results / part).mkdir(exist_ok=True)
                file.replace(results / part / file.name)
    shutil.rmtree(spare, ignore_errors=True)
    return sum(1 for _ in (results / "cells").iterdir())
