"""Iterates of authors' code beside ours: the same gradients, float64, two clients, largest difference of x.

    git clone https://github.com/bloc97/DeMo
    git clone https://github.com/microsoft/dion
    git clone https://github.com/epfml/powersgd
    git clone https://github.com/synxlin/deep-gradient-compression
    pip install einops
    python benchmarks/parity.py --demo DeMo --dion dion --powersgd powersgd --dgc deep-gradient-compression

Theirs run as they are, DeMo and PowerSGD in two gloo processes, but for constants that would hide a difference
behind rounding: Dion's QR is told to work in float64 (it works in float32), PowerSGD's division guard 1e-8 is 0.
Horovod, which the DGC code imports for its rank alone, is stood in for. The exit status is 1 where x differs by
more than 1e-8 of its largest entry.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from raybench.problems import build
from raybench.testing.trial import TrialMethod, started

NET = {"model": "mlp:hidden=[24]", "dataset": "digits", "clients": 2, "rows": 200}
PROBLEM = {**NET, "batch": "full", "dtype": "float64"}
NEAR = 1e-8
Path_ = list[Tensor]  # x after every round


def ours(name: str, params: dict[str, Any], compressor: Any, step: float, rounds: int) -> Any:
    """Return our run, not yet begun."""
    problem = {"name": "network", **PROBLEM}
    return started(TrialMethod(name, params, compressor, problem, step=step, rounds=rounds).batch())


def followed(run: Any, rounds: int) -> Path_:
    """Return x after every round of our run."""
    result = []
    for _ in range(rounds):
        run.advance(1)
        result.append(run.s.x[0].clone())
    return result


def module(path: Path, name: str, change: Callable[[str], str] = lambda text: text) -> Any:
    """Return a file of theirs as a module, its text changed."""
    spec = importlib.util.spec_from_loader(name, loader=None)
    assert spec is not None
    out = importlib.util.module_from_spec(spec)
    out.__package__ = name.rpartition(".")[0]
    sys.modules[name] = out
    exec(compile(change(path.read_text()), str(path), "exec"), out.__dict__)
    return out


class Model:
    """The parameters of the network as tensors, and every client's gradients at them."""

    def __init__(self) -> None:
        self.problem = build("network", PROBLEM)
        start = self.problem.layout.views(self.problem.start())
        self.params = [torch.nn.Parameter(view.clone()) for view in start]

    @property
    def x(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.params])

    def grads(self, client: int | None = None) -> list[Tensor]:
        """Return a client's gradient, or the mean, tensor by tensor."""
        every = self.problem.oracle(self.x[None])[0][0]
        gradient = every.mean(0) if client is None else every[client]
        return [view.clone() for view in self.problem.layout.views(gradient)]


# Theirs ----------------------------------------------------------------------------------------------


def demo(code: Path, rank: int, rounds: int) -> Iterator[Tensor]:
    """DeMo's optimizer."""
    model = Model()
    theirs = module(code / "demo.py", "their_demo")
    settings = {"compression_decay": 0.9, "compression_topk": 5, "weight_decay": 0.1}
    optimizer = theirs.DeMo(model.params, lr=0.003, **settings)
    for _ in range(rounds):
        for p, g in zip(model.params, model.grads(rank), strict=True):
            p.grad = g
        optimizer.step()
        yield model.x


def powersgd(code: Path, rank: int, rounds: int, basis: list[Tensor | None]) -> Iterator[Tensor]:
    """PowerSGD's reducer of the paper's experiments, with error feedback around it as in its training loop."""
    model = Model()
    theirs = module(code / "paper-code/gradient_reducers.py", "their_powersgd")
    theirs.orthogonalize = partial(theirs.orthogonalize, eps=torch.tensor(0.0))
    reducer = object.__new__(theirs.RankKReducer)  # its constructor draws a gigabyte of numbers
    vars(reducer).update(n_workers=dist.get_world_size(), rank=2, device="cpu", reuse_query=True)
    vars(reducer).update(timer=lambda *_, **__: nullcontext(), p_memory=None)
    vars(reducer).update(q_memory=None)
    queries = iter([Q[0] for Q in basis if Q is not None])
    reducer.set_random = lambda q: q.data.copy_(next(queries))
    memory = [torch.zeros_like(p) for p in model.params]
    for _ in range(rounds):
        send = [g + e for g, e in zip(model.grads(rank), memory, strict=True)]
        out = [torch.empty_like(g) for g in send]
        for e in memory:  # of vectors, which are sent as they are, the reducer leaves it alone
            e.zero_()
        reducer.reduce(send, out, memory)
        for p, step in zip(model.params, out, strict=True):
            p.data.sub_(step, alpha=0.05)
        yield model.x


def dion(code: Path, rounds: int, basis: list[Tensor | None]) -> Iterator[Tensor]:
    """Dion's simple optimizer on the mean gradient, vectors by Lion."""
    model = Model()
    package = types.ModuleType("their_dion")
    package.__path__ = [str(code / "dion")]
    sys.modules["their_dion"] = package
    wider = lambda text: text.replace("torch.float32", "torch.float64")  # noqa: E731
    theirs = module(code / "dion/dion_simple.py", "their_dion.simple", wider)
    matrices = [p for p in model.params if p.ndim == 2]
    vectors = [p for p in model.params if p.ndim < 2]
    groups = [{"params": matrices}, {"params": vectors, "algorithm": "lion"}]
    more = {"mu": 0.9, "weight_decay": 0.1, "rank": 3}
    optimizer = theirs.Dion(groups, lr=0.01, **more)
    for p, Q in zip(model.params, basis, strict=True):
        if Q is not None:
            optimizer.state[p] = {"momentum": torch.zeros_like(p), "Q": Q[0].clone()}
    for _ in range(rounds):
        for p, g in zip(model.params, model.grads(), strict=True):
            p.grad = g
        optimizer.step()
        yield model.x


def dgc(code: Path, rounds: int, nesterov: bool) -> Iterator[Tensor]:
    """DGC's memory around the exact top 10 % of every tensor, at two clients."""
    horovod = types.ModuleType("horovod")
    stand_in = types.ModuleType("horovod.torch")
    vars(stand_in)["rank"] = lambda: 1
    vars(horovod)["torch"] = stand_in
    sys.modules |= {"horovod": horovod, "horovod.torch": stand_in}
    theirs = module(code / "dgc/memory.py", "their_dgc_memory")
    model = Model()
    memories = [theirs.DGCSGDMemory(momentum=0.9, nesterov=nesterov) for _ in range(2)]
    for memory in memories:
        memory.initialize([(str(j), p) for j, p in enumerate(model.params)])
    for _ in range(rounds):
        steps = [torch.zeros_like(p) for p in model.params]
        for client, memory in enumerate(memories):
            for j, g in enumerate(model.grads(client)):
                sent = memory.compensate(g, str(j)).flatten()
                where = sent.abs().topk(-(-sent.numel() // 10)).indices
                steps[j].view(-1).index_add_(0, where, sent[where] / 2)
                memory.update(str(j), (where,))
        for p, step in zip(model.params, steps, strict=True):
            p.data.sub_(step, alpha=0.02)
        yield model.x


# Beside each other -----------------------------------------------------------------------------------


def _worker(rank: int, meeting: str, what: Callable[[int], Iterator[Tensor]], out: str) -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=2)
    result = list(what(rank))
    if rank == 0:
        torch.save(result, out)
    dist.destroy_process_group()


def in_two_processes(what: Callable[[int], Iterator[Tensor]]) -> Path_:
    """Return what rank 0 found after every round."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/x.pt"
        mp.spawn(_worker, (f"{folder}/meeting", what, out), nprocs=2)
        return torch.load(out, weights_only=True)


def _of_rank(function: Any, code: Path, rounds: int, more: tuple[Any, ...], rank: int) -> Any:
    return function(code, rank, rounds, *more)


def compared(what: str, code: Path, rounds: int) -> tuple[str, Path_, Path_]:
    """Return a name, our iterates and theirs."""
    if what == "demo":
        params = {"beta": 0.9, "decay": 0.1, "combine": "senders"}
        run = ours("demo", params, {"name": "dct_top_k", "k": 5}, 0.003, rounds)
        return (
            "DeMo",
            followed(run, rounds),
            in_two_processes(partial(_of_rank, demo, code, rounds, ())),
        )
    if what == "powersgd":
        run = ours("power_sgd", {"rank": 2}, None, 0.05, rounds)
        run.advance(0)
        basis = [None if Q is None else Q.clone() for Q in run.s.Q]
        points = followed(run, rounds)
        theirs = in_two_processes(partial(_of_rank, powersgd, code, rounds, (basis,)))
        return "PowerSGD, rank 2", points, theirs
    if what == "dion":
        params = {"rank": 3, "momentum": 0.9, "decay": 0.1}
        run = ours("dion", params, None, 0.01, rounds)
        run.advance(0)
        basis = [None if Q is None else Q.clone() for Q in run.s.Q]
        return "Dion, rank 3", followed(run, rounds), list(dion(code, rounds, basis))
    nesterov = what == "dgc, nesterov"
    params = {"momentum": 0.9, "nesterov": nesterov}
    operator = {"name": "top_k", "k": "10%", "granularity": "tensor"}
    points = followed(ours("dgc", params, operator, 0.02, rounds), rounds)
    return f"DGC's memory{what[3:]}", points, list(dgc(code, rounds, nesterov))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    names = ("demo", "dion", "powersgd", "dgc")
    for name in names:
        parser.add_argument(f"--{name}", type=Path, metavar="DIR", help="a clone of their code")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    torch.set_default_dtype(torch.float64)
    todo = [(name, getattr(arguments, name)) for name in names if getattr(arguments, name)]
    if arguments.dgc:
        todo.append(("dgc, nesterov", arguments.dgc))
    failed = False
    for what, code in todo:
        name, points, theirs = compared(what, code, arguments.rounds)
        moved = float((points[-1] - points[0]).abs().max())
        pairs = zip(points, theirs, strict=True)
        apart = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
        failed |= not apart <= NEAR
        moved_and_apart = f"x moved {moved:.2g}, differs by {apart:.1e}"
        print(f"{name:24} {arguments.rounds} rounds: {moved_and_apart}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
