"""Tests that run on the ranks of real processes, and what those train: ``raybench.torch`` on a small network."""

import functools
import gc
import inspect
import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from filelock import FileLock
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import raybench.torch as rt
from raybench.torch.saved import opened

HERE = Path(__file__).parent
LIMIT = 240  # seconds of all that a script does
TOP = "top_k:k=10%"
D = 1715  # parameters of the network


def on_ranks(size: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let every one of so many ranks run a test; all that are selected share one start of processes.

    The ranks run them by pytest, in the same order, until one fails. Marks stand above this decorator; a test has
    parameters, but no fixtures.
    """

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        if "LOOP_RANK" in os.environ:
            return check

        @functools.wraps(check)
        def test(request: pytest.FixtureRequest, **_: Any) -> None:
            items: Any = request.session.items
            selected = [
                f"{item.path}::{item.name}"
                for item in items
                if getattr(item.function, "ranks", 0) == size
            ]
            base = request.getfixturevalue("tmp_path_factory").getbasetemp()
            failures, logs = _outcomes(base.parent if _of_xdist(base) else base, selected, size)
            name = f"{request.path.name}::{request.node.name}"
            for rank, failure in enumerate(failures):
                text = failure.get(name, f"not run, after {list(failure)[-1:]}:\n{logs}")
                assert not text, f"rank {rank}: {text}"

        asks = inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY)
        parameters = [*inspect.signature(check).parameters.values(), asks]
        test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        test.ranks = size  # type: ignore[attr-defined]
        return test

    return decorate


def _of_xdist(base: Path) -> bool:
    return base.name.startswith("popen-")


def _outcomes(base: Path, selected: list[str], size: int) -> tuple[list[dict[str, str]], str]:
    """Return what failed in which test, "" for nothing, of every rank, and what they printed.

    The ranks start once for all workers of xdist: the first one to come starts them, the others read what it left.
    """
    folder = base / f"ranks-{size}"
    with FileLock(base / f"ranks-{size}.lock"):
        if not folder.exists():
            folder.mkdir()
            _wait(start("loop_kit.py", size, folder, *selected), "loop_kit.py", folder)
    files = [folder / f"loop_kit.py.{rank}.json" for rank in range(size)]
    logs = [(folder / f"loop_kit.py.{rank}.log").read_text() for rank in range(size)]
    failures = [json.loads(file.read_text()) if file.exists() else {} for file in files]
    return failures, "\n".join(logs)[-6000:]


class Failures(dict[str, str]):
    """A plug-in of pytest that keeps what failed in which test."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.when == "call":
            file, _, name = report.nodeid.partition("::")
            self[f"{Path(file).name}::{name}"] = report.longreprtext if report.failed else ""


def environment(rank: int, size: int, store: Path) -> dict[str, str]:
    """Return the environment of a rank: torch.distributed finds the others by a file."""
    paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in paths if p),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "LOOP_RANK": str(rank),
        "LOOP_SIZE": str(size),
        "LOOP_STORE": str(store),
    }


def start(script: str, size: int, folder: Path, *arguments: str) -> list[subprocess.Popen[str]]:
    """Start the ranks of a script of this folder; each writes what it prints to a file of its own."""
    store = folder / f"store-{script}-{len(list(folder.iterdir()))}"
    out = []
    for rank in range(size):
        log = (folder / f"{script}.{rank}.log").open("w")
        command = [sys.executable, str(HERE / script), str(folder), *arguments]
        out.append(
            subprocess.Popen(
                command, env=environment(rank, size, store), stdout=log, stderr=log, text=True
            )
        )
    return out


def _wait(ranks: list[subprocess.Popen[str]], script: str, folder: Path) -> tuple[list[int], str]:
    """Return how the ranks ended, and the end of what they printed."""
    try:
        codes = [process.wait(timeout=LIMIT) for process in ranks]
    finally:
        for process in ranks:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
    logs = [(folder / f"{script}.{rank}.log").read_text() for rank in range(len(ranks))]
    return codes, "\n".join(logs)[-6000:]


def results(script: str, size: int, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run a script on so many ranks and return what each has written as JSON."""
    codes, logs = _wait(start(script, size, folder, *arguments), script, folder)
    assert codes == [0] * size, logs
    return [json.loads((folder / f"{script}.{rank}.json").read_text()) for rank in range(size)]


# For the ranks ------------------------------------------------------------------------------------


def join() -> int:
    """Join the other ranks and return the own number."""
    rank, size = int(os.environ["LOOP_RANK"]), int(os.environ["LOOP_SIZE"])
    store = "file://" + os.environ["LOOP_STORE"]
    patience = timedelta(seconds=LIMIT / 2)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size, timeout=patience)
    return rank


def leave() -> None:
    """Leave the other ranks; nothing may keep a process group alive beyond that.

    Its threads would go on, and one that drops a tensor while the interpreter ends aborts the process.
    """
    groups = [weakref.ref(group) for group in dist.distributed_c10d._world.pg_map]
    dist.destroy_process_group()
    gc.collect()
    assert [group() for group in groups] == [None] * len(groups)


def everyone(value: Any) -> list[Any]:
    """Return the values of all ranks."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def save(found: Mapping[str, Any]) -> None:
    """Write what this rank has found."""
    rank = os.environ["LOOP_RANK"]
    Path(sys.argv[1], f"{Path(sys.argv[0]).name}.{rank}.json").write_text(json.dumps(found))


def network(dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Sequential:
    """Return a small network."""
    torch.manual_seed(seed)
    layers = nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 5)
    return nn.Sequential(*layers).to(dtype)


def data(t: int, rank: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Return a rank's minibatch of step t."""
    source = torch.Generator().manual_seed(1000 * t + rank)
    inputs = torch.randn(16, 20, generator=source, dtype=torch.float64).to(dtype)
    return inputs, torch.randint(0, 5, (16,), generator=source)


def loss(model: nn.Module, t: int, rank: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the loss of a rank's minibatch of step t."""
    inputs, targets = data(t, rank, dtype)
    return F.cross_entropy(model(inputs).float() if dtype.itemsize < 4 else model(inputs), targets)


def vector(model: nn.Module) -> Tensor:
    """Return all parameters."""
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def spread(model: nn.Module) -> float:
    """Return how far the ranks' parameters are apart."""
    x = vector(model)
    every = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(every, x)
    return max(float((other - x).abs().max()) for other in every)


def far(a: Tensor, b: Tensor) -> float:
    """Return the largest difference."""
    return float((a - b).abs().max())


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    """Return plain SGD."""
    return torch.optim.SGD(model.parameters(), lr=lr)


def memory(opt: Any, name: str) -> Tensor:
    """Return what this rank's method remembers under a name, (1, 1, d)."""
    [part] = opened(opt.state_dict()).values()
    return part["exchanges"][0]["c"][name]


def steps(
    model: nn.Module, optimizer: Any, rank: int, times: Sequence[int], dtype: Any = torch.float64
) -> list[float]:
    """Train on the minibatches of some steps and return their losses."""
    out = []
    for t in times:
        optimizer.zero_grad()
        f = loss(model, t, rank, dtype)
        f.backward()
        optimizer.step()
        out.append(float(f.detach()))
    return out


def trained(algorithm: Any = "ef21", compressor: Any = TOP, count: int = 10, **more: Any) -> Any:
    """Return a network trained by a ``CompressedOptimizer``, and that."""
    model = network()
    opt = rt.CompressedOptimizer(sgd(model), compressor, algorithm, **more)
    steps(model, opt, dist.get_rank(), range(count))
    return model, opt


def hooked(algorithm: Any = "ef21", compressor: Any = TOP, count: int = 10, **more: Any) -> Any:
    """Return a network trained with a hook, that, the parallel model and its optimizer."""
    model = network()
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.004)  # several, rebuilt after a step
    hook = rt.attach(parallel, algorithm, compressor, **{"granularity": "tensor", **more})
    optimizer = sgd(model)
    steps(parallel, optimizer, dist.get_rank(), range(count))
    return model, hook, parallel, optimizer


def plain(count: int = 10) -> nn.Module:
    """Return a network after data-parallel SGD."""
    model = network()
    steps(DistributedDataParallel(model), sgd(model), dist.get_rank(), range(count))
    return model


if __name__ == "__main__":
    join()
    failures = Failures()
    settings = ["-q", "-x", "-c", os.devnull, "--noconftest", "-p", "no:warnings"]
    code = pytest.main([*settings, "-p", "no:cacheprovider", *sys.argv[2:]], [failures])
    save(failures)
    if code == 0:
        dist.destroy_process_group()
    sys.exit(code)
