"""Real processes over gloo, for tests: a test file runs itself once for every rank."""

import datetime
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from loop_kit import leave

from raybench.wire.transport import Distributed, Transport


def run_processes(file: str, folder: Path, size: int = 2) -> list[Any]:
    """Run a file as every rank of so many processes; return what each of them found, in rank order."""
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, file, str(folder), str(rank), str(size)],
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        errors = [p.communicate(timeout=150)[1] for p in running]
    finally:
        for p in running:
            p.kill()
            p.wait()
    assert [p.returncode for p in running] == [0] * size, "\n".join(errors)
    result = [pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(size)]
    assert all(one == {"from": 0} for _, one in result)
    return [each for each, _ in result]


def serve(work: Callable[[Transport], Any]) -> None:
    """Be the rank that the command line says: join the others, work, store what came out."""
    folder, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=90),
    )
    transport = Distributed()
    result = work(transport)
    one = transport.agree({"from": transport.rank})
    Path(folder, f"{rank}.pickle").write_bytes(pickle.dumps((result, one)))
    leave()
