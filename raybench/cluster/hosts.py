"""Hosts by ssh: run a command, copy files there."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CONNECT_SECONDS = 10


class Unreachable(RuntimeError):
    """A host does not answer, or refuses; what ssh said is the text."""


@dataclass(frozen=True)
class Host:
    """A host: its address, whom to log in as, the private key's file, and a command that leads there.

    A command runs in a plain shell of the host, which reads no profile.
    """

    address: str
    user: str
    key: str = ""
    proxy: str = ""
    known_hosts: str = "/dev/null"

    @property
    def login(self) -> str:
        """``user@address``."""
        return f"{self.user}@{self.address}"

    def ssh(self, *options: str) -> list[str]:
        """Return the command line of ssh up to the command.

        The first key that a host of this launch shows is kept and must not change while the launch lasts: hosts of a
        cloud are new every time, and their keys are known to nobody beforehand.
        """
        keep = "no" if self.known_hosts == "/dev/null" else "accept-new"
        words = ["BatchMode=yes", f"ConnectTimeout={CONNECT_SECONDS}", "LogLevel=ERROR"]
        words += ["ServerAliveInterval=5", "ServerAliveCountMax=4"]
        words += [f"StrictHostKeyChecking={keep}", f"UserKnownHostsFile={self.known_hosts}"]
        words += [f"ProxyCommand={self.proxy}"] if self.proxy else []
        key = ["-i", self.key, "-o", "IdentitiesOnly=yes"] if self.key else []
        return ["ssh", *key, *(part for word in words for part in ("-o", word)), *options]

    def run(self, command: str, *, timeout: float = 120, check: bool = True) -> str:
        """Run a command on the host and return what it printed.

        Raises Unreachable where ssh fails, and RuntimeError where ``check`` and the command does.
        """
        try:
            done = subprocess.run(
                [*self.ssh(), self.login, command],
                capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise Unreachable(f"{self.address}: no answer within {timeout:g} s") from error
        if done.returncode == 255:
            raise Unreachable(f"{self.address}: {last_line(done.stderr) or 'ssh failed'}")
        if check and done.returncode:
            said = last_line(done.stderr) or last_line(done.stdout)
            raise RuntimeError(f"{self.address}: {said or f'exit code {done.returncode}'}")
        return done.stdout

    def push(self, here: Path, there: str, *options: str) -> None:
        """Copy a folder to the host. Raises Unreachable and RuntimeError as ``run`` does."""
        self._rsync("-a", *options, f"{here}/", f"{self.login}:{there}/")

    def pull(self, there: Sequence[str], here: Path, *options: str) -> None:
        """Copy files and folders of the host into a folder, times and no more of what they are, and none that is absent.

        Raises Unreachable and RuntimeError as ``run`` does.
        """
        sources = [f"{self.login}:{path}" for path in there]
        self._rsync("-rt", "--ignore-missing-args", *options, *sources, f"{here}/")

    def _rsync(self, *words: str) -> None:
        # paths on the host are for rsync alone, so that no shell of the host reads them
        call = ["rsync", "--protect-args", "--timeout=60", "-e", shlex.join(self.ssh()), *words]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        if done.returncode in (0, 24):  # 24: a file went away meanwhile
            return
        said = "\n".join(x for x in done.stderr.splitlines() if not x.startswith("rsync"))
        text = f"{self.address}: {last_line(said) or last_line(done.stderr) or 'rsync failed'}"
        # 12, 30, 35, 255: the connection broke or never was
        raise Unreachable(text) if done.returncode in (12, 30, 35, 255) else RuntimeError(text)


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
