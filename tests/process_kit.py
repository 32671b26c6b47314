"""How tests start Python in processes of its own that they talk to, stop or kill."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil


def python(*words: object, **how: Any) -> subprocess.Popen[str]:
    """Start Python with these words, its input, output and errors pipes of text unless told otherwise."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, *map(str, words)]
    # a shell lets what it starts in the background ignore Ctrl-C, and children inherit that
    return subprocess.Popen(
        command,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **{**pipes, **how},
    )


def gone(process: psutil.Process) -> bool:
    """Return whether a process has ended, though nobody may have asked yet how."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(event: Callable[[], object], what: str, seconds: float = 600) -> None:
    """Wait for an event; fail with ``what`` where it has not come long after it should on the slowest machine."""
    until = time.monotonic() + seconds
    while not event():
        assert time.monotonic() < until, what
        time.sleep(0.02)
