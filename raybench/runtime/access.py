"""Who can talk to a Ray of our own: programs of this machine that can read this user's token."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def on_loopback() -> Iterator[None]:
    """Let Ray take 127.0.0.1 for this node's address, so that its servers listen there and nowhere else.

    This is Ray's own switch for machines that form no cluster, by default set on macOS and Windows. An
    address of 127.0.0.1 given to ``ray.init`` is replaced by the outward one.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def guard_token() -> None:
    """Make the file of Ray's token readable by this user alone; write it, if there is none.

    Ray would write it so that everybody on the machine can read it, and so run code in this user's name.
    Tokens in the environment, and files that belong to others, stay as they are.
    """
    if "RAY_AUTH_TOKEN" in os.environ or os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    file = Path(named) if named else Path.home() / ".ray" / "auth_token"
    with suppress(OSError):  # a home that cannot be written: Ray tells what it lacks
        if named is None:
            file.parent.mkdir(mode=0o700, exist_ok=True)
            _close(file.parent, 0o700)
        if file.exists():
            _close(file, 0o600)
            return
        new = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(new, "w") as out:
            out.write(secrets.token_hex(32))


def _close(path: Path, mode: int) -> None:
    facts = path.stat()
    if facts.st_uid == os.getuid() and facts.st_mode & 0o077:
        path.chmod(mode)
