"""A round of ours beside a step of torch's DistributedDataParallel: ResNet-18, two processes over gloo.

    python benchmarks/ddp.py
    python benchmarks/ddp.py --model resnet20 --rounds 40

Both train the same network in the same processes, one thread each, batch 32 each, in turns: a step of DDP and
SGD, then a round of ``dcgd`` with ``identity``, on the round loop and the transport of ``mode: train``. The
images are random, 3 x 32 x 32. A time is that of the slower process; medians are compared. The parts of a round
are those of the columns ``seconds_gradient``, ``seconds_compress`` and ``seconds_communicate``. On a busy machine
look at the processor's time, which is that of all threads of the first process.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from processes import join, run_ranks, timed_together, training_run
from torch import nn

from raybench.core.process import tune_process
from raybench.problems.network import NetworkProblem
from raybench.wire.transport import Distributed

BOUND = 1.15  # what a round may cost, in steps of DDP
STEP = 0.01
PARTS = ("gradient", "compress", "communicate")


def theirs(problem: NetworkProblem, batch: int) -> Callable[[], None]:
    """Return a function that takes a step of DDP and SGD on the same network and examples."""
    module = copy.deepcopy(problem.passes.model)
    module.train()
    model = nn.parallel.DistributedDataParallel(module.requires_grad_(True))
    optimizer = torch.optim.SGD(model.parameters(), lr=STEP)
    (rows,) = problem.rows
    draw = torch.Generator().manual_seed(0)

    def step() -> None:
        some = rows[torch.randint(len(rows), (batch,), generator=draw)]
        inputs, targets = problem.examples(problem.train, some)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of a call of all processes: of the slowest one, and of this one's processor."""
    busy = time.process_time()
    spent = timed_together(work)
    return spent, time.process_time() - busy


def rank(given: argparse.Namespace) -> None:
    """Be one of the processes: time both in turns; the first one writes what came out."""
    tune_process()
    torch.set_num_threads(given.threads)
    join(given.folder, given.rank, given.processes)
    images = str(Path(given.folder, "images.npz"))
    network = {"model": given.model, "dataset": images, "batch": given.batch}
    run = training_run(Distributed(), "dcgd", {"name": "identity"}, **network)
    assert isinstance(run.problem, NetworkProblem)
    step = theirs(run.problem, given.batch)
    names = ("ddp", "ddp_busy", "ours", "ours_busy", *PARTS)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(given.warm + given.rounds):
        a = timed(step)
        before = np.array(run.net.clock.parts)
        b = timed(lambda: run.advance(1))
        if turn >= given.warm:
            spent = np.array(run.net.clock.parts) - before
            for name, value in zip(names, (*a, *b, *spent), strict=True):
                times[name].append(float(value))
    if given.rank == 0:
        Path(given.folder, "times.json").write_text(json.dumps({"d": run.problem.dim, **times}))
    dist.destroy_process_group()


def table(seconds: dict[str, list[float]], d: int) -> str:
    """Return what was measured, as lines."""
    ms = {name: 1e3 * float(np.median(values)) for name, values in seconds.items()}
    spread = {n: 1e3 * (np.quantile(v, 0.75) - np.quantile(v, 0.25)) for n, v in seconds.items()}
    ratios = np.array(seconds["ours"]) / np.array(seconds["ddp"])
    rest = ms["ours"] - sum(ms[part] for part in PARTS)
    lines = [
        f"{d:,} parameters, {len(ratios)} rounds each, medians in ms (between the quartiles)",
        f"DDP                 {ms['ddp']:9.1f} ({spread['ddp']:.1f})",
        f"ours                {ms['ours']:9.1f} ({spread['ours']:.1f})",
        *(f"  {part:18}{ms[part]:9.1f} ({spread[part]:.1f})" for part in PARTS),
        f"  {'rest':18}{rest:9.1f}",
        f"ratio of medians    {ms['ours'] / ms['ddp']:9.3f}   (at most {BOUND})",
        f"median of ratios    {np.median(ratios):9.3f}",
        f"of processor time   {ms['ours_busy'] / ms['ddp_busy']:9.3f}   "
        f"({ms['ours_busy']:.0f} and {ms['ddp_busy']:.0f} ms)",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=32, help="samples per process")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--warm", type=int, default=3, help="rounds before the first that counts")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        rank(given)
        return
    with tempfile.TemporaryDirectory() as folder:
        draw = np.random.default_rng(0)
        images = draw.integers(0, 256, (64 * given.processes, 3, 32, 32), dtype=np.uint8)
        labels = draw.integers(0, 10, len(images))
        labels[:10] = range(10)
        np.savez(Path(folder, "images.npz"), images=images, labels=labels)
        run_ranks(given.processes, folder, given.threads)
        result = json.loads(Path(folder, "times.json").read_text())
    print(table(result, result.pop("d")))


if __name__ == "__main__":
    main()
