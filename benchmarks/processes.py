"""Processes of benchmarks: ranks that meet over gloo, what they run and how long it takes them, and memory."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from links import Machines

    from raybench.execution.run import Run
    from raybench.wire.transport import Distributed

MANY = 10**6  # rounds of a run whose only recorded ones are the first and the last


def memory(name: str, process: int | str = "self") -> int:
    """Return an entry of a process's status in bytes, such as ``VmRSS``; 0 where there is none."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:  # not Linux
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


def reset_peak() -> int:
    """Forget the peak ``VmHWM`` of this process (Linux); return the bytes that are resident now."""
    references = Path("/proc/self/clear_refs")
    if references.exists():
        references.write_text("5")
    return memory("VmRSS")


def run_ranks(count: int, folder: str, threads: int = 1, machines: Machines | None = None) -> None:
    """Run this script again, with ``--folder`` and ``--rank``, as every rank; leave with 1 if one fails."""
    command = [sys.executable, *sys.argv, "--folder", folder, "--rank"]
    commands = [[*command, str(rank)] for rank in range(count)]
    # torch and what it calls are told by the environment, before they are loaded
    env = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    env["GLOO_SOCKET_IFNAME"] = "lo"
    if machines is not None:
        from links import DEVICE

        commands = [machines.command(rank, *words) for rank, words in enumerate(commands)]
        env["GLOO_SOCKET_IFNAME"] = DEVICE
    ranks = [subprocess.Popen(words, env={**os.environ, **env}) for words in commands]
    exit_codes = [process.wait() for process in ranks]
    if any(exit_codes):
        sys.exit("a process failed")


def join(folder: str, rank: int, count: int) -> None:
    """Be a rank of a group of so many over gloo, all of which name the same folder."""
    import torch.distributed as dist

    meet, patience = f"file://{folder}/meet", datetime.timedelta(seconds=300)
    dist.init_process_group("gloo", meet, rank=rank, world_size=count, timeout=patience)


def timed_together(work: Callable[[], object]) -> float:
    """Return the seconds of a call that all ranks begin together: those of the slowest."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    began = time.perf_counter()
    work()
    spent = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
    dist.all_reduce(spent, dist.ReduceOp.MAX)
    return float(spent)


def training_run(
    transport: Distributed, algorithm: str, operator: dict[str, Any], **network: Any
) -> Run:
    """Return a run on a network with a client for each rank, as a worker of Ray Train has it."""
    from raybench.execution.execute import hosted
    from raybench.execution.run import Options, Run
    from raybench.spec.model import Evaluate, Record
    from raybench.testing.trial import TrialMethod

    problem = {"name": "network", "clients": transport.size, **network}
    batch = TrialMethod(algorithm, {}, operator, problem, step=0.01, rounds=MANY).batch()
    options = Options(record=Record(every=MANY), evaluate=Evaluate(gradient=False, loss=False))
    return Run(batch, hosted(batch, transport, "cpu"), options, transport)
