"""Starting and leaving Ray quietly; who can talk to a Ray of our own: who can read this user's token on this machine."""

from __future__ import annotations

import logging
import math
import os
import secrets
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from raybench.core.errors import InputError, SweepStopped
from raybench.core.process import ENVIRONMENT
from raybench.runtime.leftovers import remove_orphans, watchdog

RAY_ENVIRONMENT = {
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_AUTH_MODE": "token",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # we handle Ctrl-C: the store is valid at every moment
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_MAX_PENDING_TRIALS_PG": "200",  # what an autoscaler sees at once; of a searcher's trials, one
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    # a process for each group of workers that would tell them of what they do not listen to
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_METRICS_EXPORT_INTERVAL_MS": "3600000",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
}
HEAD_ENVIRONMENT = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "9000",
    "RAY_health_check_failure_threshold": "2",
}
"""What a cluster's head is to be started with (``ray start --head``): its control store asks every node every
``period`` whether it is there, waits ``timeout`` for the answer, and takes a node for dead after ``threshold``
failures in a row. A node whose link is cut is so given up after 2 (1 + 9) = 20 s at most; with Ray's own
settings (3 s, 10 s, 5) it is after 65 s, in which its batches wait. Read by the head alone."""
_loaded_here = False  # whether Ray was loaded in a session, and so with the variables above


@contextmanager
def ray_session(address: str | None, slots_needed: float = 0) -> Iterator[ModuleType]:
    """Yield the ray module, connected to ``address`` or to a Ray of our own on this machine.

    slots_needed: CPUs that one trial's workers take together. A Ray that was running already, or is
    reached by address, is left running. Raises InputError where it cannot be reached.
    """
    watch = watchdog() if address in (None, "local") else nullcontext()
    # processes of a Ray of our own inherit these variables
    with environment(_variables(address)), watch:
        yield from _session(address, slots_needed)


def _variables(address: str | None) -> dict[str, str]:
    """Return the variables for a session.

    A Ray of our own asks for tokens. Whether a cluster does is its own affair, and what Ray, or the user's
    ``RAY_AUTH_MODE``, says: a token shown to an open one is refused just as none is by a closed one. Ray reads how it
    authenticates when it is loaded, and never again. Where a program had loaded it before the first session, its choice
    holds: a server that asked for tokens would refuse the program.
    """
    global _loaded_here
    _loaded_here = _loaded_here or "ray" not in sys.modules
    variables = {**RAY_ENVIRONMENT, **ENVIRONMENT}
    if not _loaded_here or address not in (None, "local"):
        del variables["RAY_AUTH_MODE"]
    return variables


@contextmanager
def environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment that are not set yet; unset them again in the end."""
    missing = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


@contextmanager
def deferring_sigterm() -> Iterator[None]:
    """Hear a SIGTERM at the end: what starts Ray is not left in the middle, where it crashes or leaves processes.

    Whatever handler was installed meanwhile, below Python too, is replaced by the one that was there before.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if signals:
            # Ray's handler below Python's sets an alarm that aborts the process three seconds after a SIGTERM.
            signal.alarm(0)
        if signals and callable(before):
            before(signal.SIGTERM, None)  # raised once more it would count as a second signal
        elif signals:
            signal.raise_signal(signal.SIGTERM)


@contextmanager
def _without_handlers() -> Iterator[None]:
    """Keep Ray from taking SIGTERM for itself while it starts."""
    from ray._private import utils

    before = utils.set_sigterm_handler
    utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = before


def _session(address: str | None, slots_needed: float) -> Iterator[ModuleType]:
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"ray\..*")
    import ray

    if ray.is_initialized():
        yield ray
        return
    for name in ("ray", "ray.tune", "ray.train", "ray.data"):
        # What fails becomes a row with its error, and need not be told on the terminal again.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if address not in (None, "local"):
        check_access(address)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        with deferring_sigterm(), _without_handlers():
            if address in (None, "local"):
                # One more than there are, since the trials that own Train worker groups take a hundredth each.
                cores = max(os.cpu_count() or 1, math.ceil(slots_needed)) + 1
                guard_token()
                with on_loopback():
                    ray.init("local", num_cpus=cores, include_dashboard=False, **quiet)
            else:
                variables = {name: os.environ[name] for name in ENVIRONMENT}
                ray.init(address, runtime_env={"env_vars": variables}, **quiet)
    except (ConnectionError, ValueError) as error:
        what = f"no Ray cluster answers at {address}"
        raise InputError.of("--address", what, str(error).split("\n")[0]) from error
    except Exception as error:
        # Ray raises the bare class where a process of its own does not answer.
        if type(error) is not Exception:
            raise
        raise SweepStopped(f"Ray did not start: {error}") from error
    try:
        yield ray
    finally:
        ray.shutdown()
        remove_orphans()  # of workers that had no time to end


# Access -------------------------------------------------------------------------------------------


PATIENCE = 5.0  # seconds in which a cluster's head must take a connection


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
    if "RAY_AUTH_TOKEN" in os.environ or not _wants_tokens():
        return
    file = _token_file()
    with suppress(OSError):  # a home that cannot be written: Ray tells what it lacks
        if "RAY_AUTH_TOKEN_PATH" not in os.environ:
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


def check_access(address: str) -> None:
    """Raise InputError where no cluster answers at an address, or it refuses the token of this process.

    ``ray.init`` would say after half a minute that it cannot connect, whichever it is.
    """
    if "://" in address:  # Ray's client, which says what it lacks
        return
    if _wants_tokens() and not (os.environ.get("RAY_AUTH_TOKEN") or _token_file().exists()):
        what = "RAY_AUTH_MODE=token, and this user has no token"
        fix = "set RAY_AUTH_TOKEN or ~/.ray/auth_token to the cluster's, or unset RAY_AUTH_MODE"
        raise InputError.of("--address", what, fix)
    from ray._private import services
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.exceptions import AuthenticationError, RpcError

    try:
        at = services.canonicalize_bootstrap_address(address)
    except ConnectionError:
        at = None
    if at is None:
        raise InputError.of("--address", f"no Ray cluster runs here ({address})", "its HOST:PORT")
    host, _, port = at.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
        GcsClient(address=at)
    except AuthenticationError as error:
        raise InputError.of("--address", *_refusal(address)) from error
    except (OSError, ValueError, RpcError) as error:
        what = f"no Ray cluster answers at {address}"
        raise InputError.of("--address", what, str(error).split("\n")[0]) from error


def _wants_tokens() -> bool:
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"


def _token_file() -> Path:
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    return Path(named) if named else Path.home() / ".ray" / "auth_token"


def _refusal(address: str) -> tuple[str, str]:
    """Return what is wrong with this process's token for a cluster, and how to mend it."""
    if not _wants_tokens():
        return (
            f"the cluster at {address} asks for a token",
            "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or ~/.ray/auth_token to the cluster's",
        )
    named = "RAY_AUTH_TOKEN" if "RAY_AUTH_TOKEN" in os.environ else "~/.ray/auth_token"
    named = os.environ.get("RAY_AUTH_TOKEN_PATH", named)
    return (
        f"the cluster at {address} refuses the token of {named}",
        "give it the one that the cluster's head was started with (ray get-auth-token there)",
    )
