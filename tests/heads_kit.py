"""Real heads of Ray clusters for tests: started in the foreground, asking for a token or not, ended with the test."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def free_port() -> int:
    """Return a port of the loopback that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def without_token(**more: str) -> dict[str, str]:
    """Return this environment without what it says of tokens, and more variables."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}
    return {**kept, "RAY_USAGE_STATS_ENABLED": "0", **more}


def write_token(file: Path) -> Path:
    """Write a new token that its user alone can read."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(secrets.token_hex(32))
    file.chmod(0o600)
    return file


@contextmanager
def head(*flags: str, **variables: str) -> Iterator[int]:
    """Yield the port of a running head; all its processes end with it, and no other Ray of this machine."""
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as short:  # sockets have long names
        port, log = free_port(), Path(short) / "head.log"
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
        command += [f"--port={port}", "--num-cpus=2", "--object-store-memory=200000000"]
        with log.open("w") as stream:
            process = subprocess.Popen(
                [*command, f"--temp-dir={short}/r", *flags], env=without_token(**variables),
                stdout=stream, stderr=stream, start_new_session=True,
            )  # fmt: skip
        try:
            until = time.monotonic() + 120
            while "Ray runtime started" not in log.read_text() and time.monotonic() < until:
                assert process.poll() is None, log.read_text()
                time.sleep(0.25)
            yield port
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
