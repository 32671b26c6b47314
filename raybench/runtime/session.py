"""Starting and leaving Ray quietly."""

from __future__ import annotations

import logging
import math
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import ModuleType

from raybench.core.endings import deferring_sigterm
from raybench.core.errors import InputError, SweepStopped
from raybench.core.process import ENVIRONMENT
from raybench.runtime.access import check_access, guard_token, on_loopback
from raybench.runtime.scratch import remove_orphans
from raybench.runtime.watchdog import watched

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
    own = watched() if address in (None, "local") else nullcontext()
    with (
        environment(_wanted(address)),
        own,
    ):  # processes of a Ray of our own inherit these variables
        yield from _session(address, slots_needed)


def _wanted(address: str | None) -> dict[str, str]:
    """Return the variables for a session.

    A Ray of our own asks for tokens. Whether a cluster does is its own affair, and what Ray, or the user's
    ``RAY_AUTH_MODE``, says: a token shown to an open one is refused just as none is by a closed one. Ray reads how it authenticates when it is loaded, and never again. Where a program had loaded it
    before the first session, its choice holds: a server that asked for tokens would refuse the program.
    """
    global _loaded_here
    _loaded_here = _loaded_here or "ray" not in sys.modules
    wanted = {**RAY_ENVIRONMENT, **ENVIRONMENT}
    if not _loaded_here or address not in (None, "local"):
        del wanted["RAY_AUTH_MODE"]
    return wanted


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
    try:
        with deferring_sigterm(), _without_handlers():
            if address in (None, "local"):
                # One more than there are, since the trials that own Train worker groups take a hundredth each.
                cores = max(os.cpu_count() or 1, math.ceil(slots_needed)) + 1
                guard_token()
                with on_loopback():
                    ray.init(
                        address="local",
                        num_cpus=cores,
                        include_dashboard=False,
                        log_to_driver=False,
                        logging_level=logging.ERROR,
                        configure_logging=True,
                    )
            else:
                given = {name: os.environ[name] for name in ENVIRONMENT}
                ray.init(
                    address=address,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    runtime_env={"env_vars": given},
                )
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
