"""raybench's hooks beside torch's own: what exchanging the gradients of a model takes, two processes over gloo.

    python benchmarks/hooks.py
    python benchmarks/hooks.py --model transformer --link 1Gbit      (needs root, ip and tc)

The model has the tensors of ResNet-18 (11.2 million parameters) or of a transformer (10.6 million), and its
gradients are given: a step of DistributedDataParallel takes as long as its hook. All hooks take turns in the same
processes, one thread each; medians of the slower process. With ``--link`` the processes are on two machines joined by
an emulated link of that rate (benchmarks/emulated.py). Ratios are to the all-reduce of float32 that DistributedDataParallel
does by itself, and, for PowerSGD, to torch's hook.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import emulated
import numpy as np
import torch
import torch.distributed as dist
from processes import join, run_ranks, timed_together
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import raybench.torch as rt

RANK = 4  # of PowerSGD's factors
OURS: dict[str, tuple[str, str | None, str]] = {
    "raybench gd": ("gd", None, "bucket"),
    "raybench bf16, reduce": ("dcgd", "bf16", "bucket"),
    "raybench power_sgd": (f"power_sgd:rank={RANK}", None, "tensor"),
    "raybench ef21 top_k 1%": ("ef21", "top_k:k=1%", "bucket"),
    "raybench ef14 scaled_sign": ("ef14:memory=gradient", "scaled_sign", "tensor"),
    "raybench dcgd int8": ("dcgd", "int8", "bucket"),
    "raybench dcgd nf4": ("dcgd", "nf4", "bucket"),
    "raybench loco nf4": ("loco", "nf4", "bucket"),
}


class Given(nn.Module):
    """Parameters of the shapes of a model, whose gradients are fixed tensors."""

    def __init__(self, shapes: list[tuple[int, ...]], rank: int) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(rank)
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])
        self.slopes = [torch.randn(shape, generator=source) * 1e-2 for shape in shapes]

    def forward(self) -> Tensor:
        return torch.stack(
            [(p * g).sum() for p, g in zip(self.weights, self.slopes, strict=True)]
        ).sum()


def shapes_of(model: str) -> list[tuple[int, ...]]:
    """Return the shapes of a model's parameters."""
    if model == "resnet18":
        from torchvision.models import resnet18

        return [tuple(p.shape) for p in resnet18(num_classes=10).parameters()]
    width, layers = 384, 6
    block = [(3 * width, width), (3 * width,), (width, width), (width,), (4 * width, width)]
    block += [(4 * width,), (width, 4 * width), (width,), (width,), (width,), (width,), (width,)]
    return [(65, width), (256, width), *(block * layers), (width,), (width,), (65, width)]


def hooks(shapes: list[tuple[int, ...]], rank: int) -> dict[str, tuple[Callable[[], None], Any]]:
    """Return a step and, for ours, the hook, by name."""
    power = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=RANK, start_powerSGD_iter=2, use_error_feedback=True
    )
    theirs = {
        "torch fp16": (None, default_hooks.fp16_compress_hook),
        "torch bf16": (None, default_hooks.bf16_compress_hook),
        "torch PowerSGD": (power, powerSGD_hook.powerSGD_hook),
    }
    result: dict[str, tuple[Callable[[], None], Any]] = {}
    for name in ["torch all-reduce", *theirs, *OURS]:
        # in one bucket: with several its callbacks send in another order on each rank, and gloo stops
        more = {"bucket_cap_mb": 1000} if name == "torch PowerSGD" else {}
        model = DistributedDataParallel(Given(shapes, rank), **more)
        hook = None
        if name in OURS:
            how = "reduce" if "reduce" in name else "gather"
            hook = rt.attach(model, *OURS[name], collective=how, watch=10**9)
        elif name in theirs:
            model.register_comm_hook(*theirs[name])
        result[name] = (lambda m=model: m().backward()), hook
    return result


def rank_main(given: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    join(given.folder, given.rank, 2)
    todo = hooks(shapes_of(given.model), given.rank)
    if given.only:
        todo = {n: v for n, v in todo.items() if any(o in n for o in given.only)}
    times: dict[str, list[float]] = {name: [] for name in todo}
    for turn in range(given.rounds + 3):
        for name, (step, _) in todo.items():
            took = timed_together(step)
            if turn >= 3:
                times[name].append(took)
    if given.rank == 0:
        parts = {name: hook.report() for name, (_, hook) in todo.items() if hook is not None}
        out = {
            name: {
                "ms": 1000 * float(np.median(values)),
                "least": 1000 * min(values),
                "report": str(parts[name]) if name in parts else "",
                "bytes": parts[name].rows["bytes_up"][-1] if name in parts else None,
            }
            for name, values in times.items()
        }
        Path(given.folder, "times.json").write_text(json.dumps(out))
    dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", choices=["resnet18", "transformer"], default="resnet18")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--link", help="rate of the link between the processes: 1Gbit")
    parser.add_argument("--only", nargs="*", help="hooks whose names hold one of these")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank >= 0:
        rank_main(given)
        return
    with tempfile.TemporaryDirectory() as folder:
        with emulated.machines(2) if given.link else contextlib.nullcontext() as machines:
            if machines is not None:
                machines.set(*emulated.link(f"{given.link},0ms"))
            run_ranks(2, folder, machines=machines)
        show(given, json.loads(Path(folder, "times.json").read_text()))


def show(given: argparse.Namespace, rows: dict[str, Any]) -> None:
    d = sum(int(np.prod(shape)) for shape in shapes_of(given.model))
    print(f"{given.model}, {d:,} parameters, 2 processes, {given.link or 'loopback'}")
    print(f"{'hook':28}{'ms':>9}{'least':>9}{'of dense':>10}{'MB up':>9}")
    dense = rows.get("torch all-reduce", {}).get("ms", float("nan"))
    for name, row in rows.items():
        size = "" if row["bytes"] is None else f"{row['bytes'] / 1e6:9.2f}"
        print(f"{name:28}{row['ms']:9.1f}{row['least']:9.1f}{row['ms'] / dense:10.2f}{size}")
        if row["report"]:
            print(f"    {row['report'].split(' · ', 2)[-1]}")
    if {"torch PowerSGD", "raybench power_sgd"} <= rows.keys():
        ratio = rows["raybench power_sgd"]["ms"] / rows["torch PowerSGD"]["ms"]
        print(f"PowerSGD of rank {RANK}: {ratio:.2f} of torch's hook")


if __name__ == "__main__":
    main()
