"""Tests that run on real ranks over gloo: one process of the session imports torch, and each test forks its ranks from it.

That process, ``source``, starts when the first test asks for ranks, whichever worker of xdist runs that. It has one
thread, so that its forks are as sound as new processes, and a rank that fails or hangs spoils no other test.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import importlib
import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

# torch is imported where ranks are, and not where a session ends them

HERE = Path(__file__).parent
LIMIT = 240.0  # seconds of one test
PATIENCE = 10.0  # seconds that the other ranks get to tell of themselves when one has failed
FORK = multiprocessing.get_context("fork")


# For tests ----------------------------------------------------------------------------------------


def on_ranks(size: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let every one of so many ranks run a test, which has parameters but no fixtures."""

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(check)
        def test(**parameters: Any) -> None:
            __tracebackhide__ = True
            run(size, check, **parameters)

        return test

    return decorate


def run(size: int, work: Callable[..., Any], **parameters: Any) -> list[Any]:
    """Return what a function of a file of this folder returns on each of so many ranks; fail where it fails on one."""
    __tracebackhide__ = True
    job = size, work.__module__, work.__qualname__, parameters
    with connected() as visitor, visitor.makefile("rwb") as stream:
        pickle.dump(job, stream)
        stream.flush()
        try:
            results, failures = pickle.load(stream)
        except EOFError:
            results, failures = [], [(folder_of_session() / "log").read_text()]
    assert not failures, "\n".join(failures)
    return results


def folder_of_session() -> Path:
    """Return where all workers of this session of tests find what ranks are forked from."""
    return Path(tempfile.gettempdir(), f"raybench-ranks-{os.environ['RAYBENCH_TEST_SESSION'][:12]}")


def connected() -> socket.socket:
    """Return a connection to what ranks are forked from, which is started where it is not there."""
    folder, visitor = folder_of_session(), socket.socket(socket.AF_UNIX)
    with FileLock(f"{folder}.lock"):
        try:
            visitor.connect(str(folder / "door"))
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            start(folder)
            visitor.connect(str(folder / "door"))
    return visitor


def start(folder: Path) -> None:
    """Start what ranks are forked from; it goes on while the folder and the session's first process are there."""
    first = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    code = f"import gloo_kit; gloo_kit.source({str(folder)!r}, {first})"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=log, stderr=log)
    (folder / "pid").write_text(str(process.pid))
    while not (folder / "door").exists():
        assert process.poll() is None, (folder / "log").read_text()
        time.sleep(0.05)


def close() -> None:
    """Let what ranks are forked from end, if there is one."""
    folder = folder_of_session()
    with suppress(OSError):
        os.kill(int((folder / "pid").read_text()), signal.SIGTERM)
    shutil.rmtree(folder, ignore_errors=True)
    Path(f"{folder}.lock").unlink(missing_ok=True)


# For what ranks are forked from ---------------------------------------------------------------------


def source(folder: str, first: int) -> None:
    """Fork the ranks of every test that comes to the door."""
    warm()
    gc.collect()
    gc.freeze()  # ranks need not look through what was there before them
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who look after a test
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(f"{folder}/new")
        door.listen()
        door.settimeout(1.0)
        os.rename(f"{folder}/new", f"{folder}/door")
        while os.path.exists(folder) and exists(first):
            try:
                visitor, _ = door.accept()
            except TimeoutError:
                continue
            with visitor, visitor.makefile("rwb") as stream:
                job = pickle.load(stream)
                pytest.register_assert_rewrite(job[1])
                with suppress(Exception):  # ranks tell of it
                    importlib.import_module(job[1])
                if os.fork() == 0:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    pickle.dump(outcomes(folder, *job), stream)
                    stream.flush()
                    os._exit(0)


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def warm() -> None:
    """Import what ranks need and load compiled kernels. Nothing may start a thread, as a backward pass would."""
    import torch.distributed.fsdp
    from _pytest.assertion import install_importhook
    from _pytest.config import get_config
    from loop_kit import network, sgd

    from raybench.compressors import unpack
    from raybench.compressors.base import build
    from raybench.core.layout import Layout
    from raybench.torch import CompressedOptimizer, hook  # noqa: F401

    install_importhook(get_config())  # assertions that fail tell values
    torch.set_num_threads(1)
    for algorithm, compressor in (("ef21", "top_k:k=1"), ("diana", "rand_k:k=1")):
        model = network()
        opt = CompressedOptimizer(sgd(model), compressor, algorithm)
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        opt.step()
        unpack(build(compressor).fit(9, 1, Layout.vector(9)).compress(torch.ones(9)).pack())


def outcomes(
    folder: str, size: int, module: str, name: str, parameters: dict[str, Any]
) -> tuple[list[Any], list[str]]:
    """Fork the ranks of one test; return what came out on each of them, and what failed."""
    meeting = tempfile.mkdtemp(dir=folder)
    ranks, pipes = [], []
    for rank in range(size):
        here, there = FORK.Pipe(duplex=False)
        arguments = (rank, size, meeting, there, module, name, parameters)
        ranks.append(FORK.Process(target=be_rank, args=arguments))
        ranks[-1].start()
        there.close()
        pipes.append(here)
    answers: dict[int, tuple[Any, str]] = {}
    until = time.monotonic() + LIMIT
    while len(answers) < size and time.monotonic() < until:
        waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in answers]
        for pipe in wait(waiting, until - time.monotonic()):
            rank = pipes.index(pipe)
            try:
                answers[rank] = pipe.recv()
            except EOFError:
                ranks[rank].join()
                answers[rank] = None, f"ended with {ranks[rank].exitcode}"
            if answers[rank][1]:
                until = min(until, time.monotonic() + PATIENCE)
    failures = []
    for rank, process in enumerate(ranks):
        # none ends before all have answered: it might take along what others have yet to read
        process.kill() if rank in answers else os.kill(process.pid, signal.SIGABRT)
        process.join()
        _, text = answers.setdefault(rank, (None, "still at work"))
        if text:
            log = Path(meeting, f"{rank}.log").read_text()[-3000:]
            failures.append(f"rank {rank} of {size}: {text}\n{log}")
    shutil.rmtree(meeting, ignore_errors=True)
    return [answers[rank][0] for rank in range(size)], failures


# For ranks ------------------------------------------------------------------------------------------


def be_rank(
    rank: int, size: int, meeting: str, pipe: Any, module: str, name: str, parameters: Any
) -> None:
    """Join the other ranks, work, and answer."""
    import torch
    import torch.distributed as dist

    # A fork makes torch's pool of threads anew at the first call, which aborts where two threads are the first.
    torch.set_num_threads(1)
    log = os.open(f"{meeting}/{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable()  # a rank that hangs is ended by a signal that prints where it is
    os.environ["RANKS_FOLDER"] = meeting
    group: dict[str, Any] = {
        "rank": rank,
        "world_size": size,
        "timeout": timedelta(seconds=LIMIT / 2),
    }
    try:
        work = getattr(importlib.import_module(module), name)
        dist.init_process_group("gloo", init_method=f"file://{meeting}/store", **group)
        answer = getattr(work, "__wrapped__", work)(**parameters), ""
    except BaseException:
        answer = None, traceback.format_exc()
    pipe.send(answer)
    while os.getppid() == multiprocessing.parent_process().pid:
        time.sleep(0.5)


def shared_folder() -> Path:
    """Return a folder that the ranks of this test share."""
    return Path(os.environ["RANKS_FOLDER"])


def everyone(value: Any) -> list[Any]:
    """Return the values of all ranks."""
    import torch.distributed as dist

    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
