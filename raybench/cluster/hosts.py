"""Hosts by ssh: run a command, copy files there, and bring home what a sweep tells and its results, by one rsync."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raybench.cluster.stage import ENDED, LEASE, PID, PROGRESS


class Unreachable(RuntimeError):
    """A host does not answer, or refuses; what ssh said is the text."""


@dataclass(frozen=True)
class Host:
    """A host: its address, and how it is reached from here, as a cluster file says under ``auth``.

    A command runs in a plain shell of the host, which reads no profile. The first key that a host shows is written into
    known_hosts and must not change while the launch lasts: hosts of a cloud are new every time, and their keys are known
    to nobody beforehand.
    """

    address: str
    auth: Mapping[str, Any]
    known_hosts: str = "/dev/null"

    @property
    def login(self) -> str:
        """``user@address``."""
        return f"{self.auth.get('ssh_user', 'root')}@{self.address}"

    def ssh(self) -> list[str]:
        """Return the command line of ssh up to the login."""
        words = ["BatchMode=yes", "ConnectTimeout=10", "LogLevel=ERROR"]
        words += ["ServerAliveInterval=5", "ServerAliveCountMax=4"]
        words += ["StrictHostKeyChecking=accept-new", f"UserKnownHostsFile={self.known_hosts}"]
        if proxy := self.auth.get("ssh_proxy_command"):
            words.append(f"ProxyCommand={proxy}")
        key = os.path.expanduser(self.auth.get("ssh_private_key", ""))
        identity = ["-i", key, "-o", "IdentitiesOnly=yes"] if key else []
        return ["ssh", *identity, *(f"-o{word}" for word in words)]

    def run(self, command: str, *, timeout: float = 120, check: bool = True) -> str:
        """Run a command on the host and return what it printed.

        Raises Unreachable where ssh fails, and RuntimeError where ``check`` and the command does.
        """
        well = {0} if check else range(255)
        return self._call([*self.ssh(), self.login, command], well, {255}, timeout)

    def push(self, here: Path, there: str, apart: Sequence[str] = ()) -> None:
        """Copy a folder to the host, but for some names. Raises Unreachable and RuntimeError as ``run`` does."""
        left_out = (f"--exclude={name}" for name in apart)
        self.rsync("-a", *left_out, f"{here}/", f"{self.login}:{there}/")

    def rsync(self, *words: str) -> None:
        """Call rsync with ssh as for this host. Raises Unreachable and RuntimeError as ``run`` does."""
        # paths on the host are for rsync alone, so that no shell of the host reads them
        call = ["rsync", "--protect-args", "--timeout=60", "-e", shlex.join(self.ssh()), *words]
        # 24: a file went away meanwhile; 12, 30, 35, 255: the connection broke or never was
        self._call(call, {0, 24}, {12, 30, 35, 255})

    def _call(
        self, words: list[str], well: Container[int], lost: set[int], timeout: float | None = None
    ) -> str:
        """Call a program that reaches the host; well, lost: exit codes of what went well, and of a connection that did not."""
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise Unreachable(f"{self.address}: no answer within {error.timeout:g} s") from error
        if done.returncode in well:
            return done.stdout
        text = f"{done.stdout}\n{done.stderr}"
        said = [line.strip() for line in text.splitlines() if line.strip()]
        # what rsync says last is that it ends
        said = [line for line in said if not line.startswith("rsync")] or said
        text = f"{self.address}: {said[-1] if said else f'exit code {done.returncode}'}"
        silent = done.returncode in lost or done.returncode < 0  # ssh itself was killed
        raise (Unreachable if silent else RuntimeError)(text)


# What a sweep on the head tells, and its results ---------------------------------------------------

OURS = (  # what a launch has sent to has the mark beside it
    "{{ [ ! -e {out}/sweep.yaml ] || [ -e {out}/../launch ] || "
    "{{ echo '{out} holds the sweep.yaml of another launch' >&2; exit 7; }}; }}"
)
# What the head runs before it sends: it pushes the lease, and notes the end of a job that was killed.
LOOK = """\
{lease} push >/dev/null 2>&1
if [ ! -e {job}/{ended} ] && [ -e {job}/{pid} ] && ! kill -0 "$(cat {job}/{pid})" 2>/dev/null; then
  sleep 1; [ -e {job}/{ended} ] || echo 137 >{job}/{ended}
fi
{ours} && rsync"""
SHARD = re.compile(
    r"(cells|weights|curves)/[\w-][\w.-]*|plan/(owner|cells|batches|attempts|target)\.json"
)
# What stays here: the sweep's text has paths of each machine, and the locks are each machine's own.
APART = ("/sweep.yaml", "/plan/lock*", "/launch", "/tmp")
ORDER = ("plan", "weights", "curves", "cells")  # of commits: cells are what makes a shard count


def send(host: Host, results: Path, out: str) -> None:
    """Copy what the folder here holds already to the head, whose driver then goes on from it.

    Raises RuntimeError where the head's folder holds a sweep of somebody else.
    """
    host.run(f"{OURS.format(out=out)} && mkdir -p {out} && touch {out}/../launch")
    host.push(results, out, APART)


def fetch(host: Host, results: Path, job: str, out: str) -> tuple[dict[str, Any], int | None]:
    """Copy what is new on the head into the folder here, and return what a job's folder there tells of it.

    That is the progress, and the exit code, None while it runs. out: the folder there, empty where results go
    elsewhere. Files travel into a folder that nobody reads, and appear by a rename, cells last. rsync looks for the end
    of the job first, so that all is there when it is told, and for cells before curves: those of each cell were written
    before it. Raises Unreachable, RuntimeError and OSError.
    """
    spare = results / "tmp"
    shutil.rmtree(spare, ignore_errors=True)
    spare.mkdir(parents=True)
    ours = OURS.format(out=out) if out else "true"
    look = LOOK.format(lease=LEASE, job=job, ended=ENDED, pid=PID, ours=ours)
    there = [f"{job}/{ENDED}", f"{job}/{PROGRESS}"]
    there += [f"{out}/{part}" for part in reversed(ORDER) if out]
    host.rsync(
        "-rt", "--ignore-missing-args", "--no-inc-recursive", "--modify-window=-1",
        f"--compare-dest={results.absolute()}", "--exclude=.*", "--exclude=lock*", f"--rsync-path={look}",
        *(f"{host.login}:{path}" for path in there), f"{spare}/",
    )  # fmt: skip
    progress: dict[str, Any] = {}
    code: int | None = None
    with suppress(OSError, ValueError, TypeError):
        progress = dict(json.loads((spare / PROGRESS).read_text()))
    with suppress(OSError, ValueError):
        code = int((spare / ENDED).read_text())
    for part in ORDER if out else ():
        for file in sorted(spare.glob(f"{part}/*")):
            if SHARD.fullmatch(f"{part}/{file.name}") and file.is_file() and not file.is_symlink():
                (results / part).mkdir(exist_ok=True)
                file.replace(results / part / file.name)
    shutil.rmtree(spare, ignore_errors=True)
    return progress, code
