"""One Ray of the test session: a process of its own holds it, and sweeps join it by its address."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from process_kit import python

CPUS = 2  # whatever the machine has: what runs beside what is the same everywhere
HOLDER = """
import logging, os, sys
from raybench.core.process import ENVIRONMENT
from raybench.runtime.leftovers import watchdog
from raybench.runtime.session import RAY_ENVIRONMENT, guard_token

os.environ.update(RAY_ENVIRONMENT | ENVIRONMENT)
# Sweeps that join start workers of their own, with an environment of their own.
os.environ["RAY_prestart_worker_first_driver"] = "0"
import ray

guard_token()
with watchdog():
    ray.init(
        "local", num_cpus=int(sys.argv[1]), include_dashboard=False,
        log_to_driver=False, logging_level=logging.ERROR,
    )
    print(ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()  # until the tests are over, or who ran them is no more
    ray.shutdown()
"""


@contextmanager
def running() -> Iterator[str]:
    """Yield the address of a Ray that asks for this user's token, and end it afterwards.

    Its folder of sockets, whose paths must be short, goes with it.
    """
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as short:
        env = {**os.environ, "RAY_TMPDIR": short}
        holder = python("-c", HOLDER, CPUS, env=env, stderr=subprocess.DEVNULL)
        try:
            address = holder.stdout.readline().strip()
            assert address, "Ray did not start"
            yield address
        finally:
            holder.stdin.close()
            holder.wait()
