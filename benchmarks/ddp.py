"""raybench beside torch's DistributedDataParallel (DDP), two processes over gloo, one thread each.

    python benchmarks/ddp.py                                    # a round beside a step of DDP
    python benchmarks/ddp.py --hooks --model transformer        # hooks beside torch's own
    python benchmarks/ddp.py --hooks --images 32                # in steps that compute their gradients
    python benchmarks/ddp.py --hooks --link 1Gbit               # needs root, ip and tc

All that is compared takes turns in the same processes. Printed are medians of the slower process, their ratio to DDP's,
that of the processor's time, which is that of all threads of the first process, and its parts: on a busy machine look at
the processor.

A round is one of ``dcgd`` with ``identity``, on the round loop and the transport of ``mode: train``, beside a step of DDP
and SGD on the same network and images; its parts are the columns ``seconds_gradient``, ``seconds_compress`` and
``seconds_communicate``. With ``--hooks`` the model has the tensors of ResNet-18 (11.2 million parameters) or of a
transformer (10.6 million), and its gradients are given: a step of DDP takes as long as its hook. With ``--link`` the
processes are on two machines joined by an emulated link of that rate (benchmarks/links.py).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import links
import numpy as np
import torch
import torch.distributed as dist
from processes import join, run_ranks, timed_together, training_run
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import raybench.torch as rt
from raybench.core.process import tune_process
from raybench.problems.network import NetworkProblem
from raybench.wire.transport import Distributed

PROCESSES, BATCH, WARM = 2, 32, 3
STEP = 0.01
BOUND = 1.15  # what a round may cost, in steps of DDP
RANK = 4  # of PowerSGD's factors
OURS: dict[str, tuple[str, str | None, str]] = {
    "raybench gd": ("gd", None, "bucket"),
    "raybench gd, reduce": ("gd", None, "bucket"),
    "raybench bf16, reduce": ("dcgd", "bf16", "bucket"),
    "raybench power_sgd": (f"power_sgd:rank={RANK}", None, "tensor"),
    "raybench ef21 top_k 1%": ("ef21", "top_k:k=1%", "bucket"),
    "raybench ef14 scaled_sign": ("ef14:memory=gradient", "scaled_sign", "tensor"),
    "raybench dcgd int8": ("dcgd", "int8", "bucket"),
    "raybench dcgd nf4": ("dcgd", "nf4", "bucket"),
    "raybench loco nf4": ("loco", "nf4", "bucket"),
}
Compared = dict[str, tuple[Callable[[], object], Callable[[], str]]]  # what is timed, and its parts


# A round ---------------------------------------------------------------------------------------------


def write_images(folder: str) -> None:
    """Write random images, 3 x 32 x 32, the same each time."""
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (64 * PROCESSES, 3, 32, 32), dtype=np.uint8)
    labels = draw.integers(0, 10, len(pixels))
    labels[:10] = range(10)
    np.savez(Path(folder, "images.npz"), images=pixels, labels=labels)


def rounds(model: str, folder: str) -> Compared:
    """Return a step of DDP and SGD, and a round of ours, on the same network and examples."""
    network = {"model": model, "dataset": f"{folder}/images.npz", "batch": BATCH}
    run = training_run(Distributed(), "dcgd", {"name": "identity"}, **network)
    problem = run.problem
    assert isinstance(problem, NetworkProblem)
    module = copy.deepcopy(problem.passes.model)
    module.train()
    theirs = DistributedDataParallel(module.requires_grad_(True))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=STEP)
    (rows,) = problem.rows
    draw = torch.Generator().manual_seed(0)

    def step() -> None:
        some = rows[torch.randint(len(rows), (BATCH,), generator=draw)]
        inputs, targets = problem.examples(problem.train, some)
        optimizer.zero_grad()
        nn.functional.cross_entropy(theirs(inputs), targets).backward()
        optimizer.step()

    def parts() -> str:
        names = ("gradient", "compress", "communicate")
        each = zip(names, 1e3 * np.array(run.net.clock.parts) / run.t, strict=True)
        return f"at most {BOUND}; mean ms: " + ", ".join(f"{name} {ms:.1f}" for name, ms in each)

    return {"DDP": (step, str), "raybench, a round": (lambda: run.advance(1), parts)}


# Hooks -----------------------------------------------------------------------------------------------


class Given(nn.Module):
    """Parameters of the shapes of a model, whose gradients are fixed tensors."""

    def __init__(self, shapes: list[tuple[int, ...]], rank: int) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(rank)
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])
        self.slopes = [torch.randn(shape, generator=source) * 1e-2 for shape in shapes]

    def forward(self) -> Tensor:
        pairs = zip(self.weights, self.slopes, strict=True)
        return torch.stack([(p * g).sum() for p, g in pairs]).sum()


class Classifier(nn.Module):
    """ResNet-18 on a rank's random images, 3 x 32 x 32, whose gradients are computed."""

    def __init__(self, images: int, rank: int) -> None:
        from torchvision.models import resnet18

        super().__init__()
        source = torch.Generator().manual_seed(rank)
        self.network = resnet18(num_classes=10)
        self.images = torch.randn(images, 3, 32, 32, generator=source)
        self.labels = torch.arange(images) % 10

    def forward(self) -> Tensor:
        return nn.functional.cross_entropy(self.network(self.images), self.labels)


def shapes_of(model: str) -> list[tuple[int, ...]]:
    """Return the shapes of a model's parameters."""
    if model == "resnet18":
        from torchvision.models import resnet18

        return [tuple(p.shape) for p in resnet18(num_classes=10).parameters()]
    width, layers = 384, 6
    block = [(3 * width, width), (3 * width,), (width, width), (width,), (4 * width, width)]
    block += [(4 * width,), (width, 4 * width), (width,), (width,), (width,), (width,), (width,)]
    return [(65, width), (256, width), *(block * layers), (width,), (width,), (65, width)]


def hooks(model: str, images: int, rank: int) -> Compared:
    """Return steps by torch's hooks, the all-reduce of float32 that DDP does by itself first, and by ours.

    images: from which gradients are computed; they are given where there are none.
    """
    power = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=RANK, start_powerSGD_iter=2, use_error_feedback=True
    )
    theirs = {
        "torch fp16": (None, default_hooks.fp16_compress_hook),
        "torch bf16": (None, default_hooks.bf16_compress_hook),
        "torch PowerSGD": (power, powerSGD_hook.powerSGD_hook),
    }
    result: Compared = {}
    for name in ["torch all-reduce", *theirs, *OURS]:
        # in one bucket: with several its callbacks send in another order on each rank, and gloo stops
        more = {"bucket_cap_mb": 1000} if name == "torch PowerSGD" else {}
        module = Classifier(images, rank) if images else Given(shapes_of(model), rank)
        copied = DistributedDataParallel(module, **more)
        said: Callable[[], str] = str  # which says nothing
        if name in OURS:
            how = "reduce" if "reduce" in name else "gather"
            hook = rt.attach(copied, *OURS[name], collective=how, watch=10**9)
            said = lambda hook=hook: str(hook.report()).split(" · ", 1)[-1]  # noqa: E731
        elif name in theirs:
            copied.register_comm_hook(*theirs[name])
        result[name] = (lambda m=copied: m().backward()), said
    return result


# Both ------------------------------------------------------------------------------------------------


def rank(given: argparse.Namespace) -> None:
    """Be one of the processes: time all in turns; the first one writes what came out."""
    tune_process()
    torch.set_num_threads(1)
    join(given.folder, given.rank, PROCESSES)
    if given.hooks:
        todo = hooks(given.model, given.images, given.rank)
    else:
        todo = rounds(given.model, given.folder)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in todo}
    for turn in range(given.rounds + WARM):
        for name, (step, _) in todo.items():
            busy = time.process_time()
            took = timed_together(step), time.process_time() - busy
            if turn >= WARM:
                times[name].append(took)
    if given.rank == 0:
        result = {name: (times[name], said()) for name, (_, said) in todo.items()}
        Path(given.folder, "times.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def show(given: argparse.Namespace, result: dict[str, Any]) -> None:
    """Print a line for all that was compared, in steps of DDP, which is the first."""
    print(f"{given.model}, {PROCESSES} processes, {given.link or 'loopback'}, ms of {given.rounds}")
    print(f"{'':27}{'median':>8}{'least':>8}{'of DDP':>8}{'its processor':>15}  parts")
    floor = None
    for name, (times, parts) in result.items():
        spent, busy = 1e3 * np.median(times, axis=0)
        floor = floor or (spent, busy)
        line = f"{name:27}{spent:8.1f}{1e3 * np.min(times, axis=0)[0]:8.1f}"
        print(f"{line}{spent / floor[0]:8.2f}{busy / floor[1]:15.2f}  {parts}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--hooks", action="store_true", help="hooks, not rounds")
    parser.add_argument("--model", default="resnet18", help="with --hooks: resnet18, transformer")
    parser.add_argument(
        "--images", type=int, default=0, help="compute ResNet-18's gradients of so many"
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--link", help="rate of the link between the processes: 1Gbit")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        rank(arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        write_images(folder)
        with links.machines(PROCESSES) if arguments.link else contextlib.nullcontext() as machines:
            if machines is not None:
                machines.set(*links.link(f"{arguments.link},0ms"))
            run_ranks(PROCESSES, folder, machines=machines)
        show(arguments, json.loads(Path(folder, "times.json").read_text()))


if __name__ == "__main__":
    main()
