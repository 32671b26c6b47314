"""Events of an asynchronous method beside the bare gradients that they evaluate, in one run.

    python benchmarks/events.py

64 step sizes in one batch on mushrooms (or --dataset), 100 clients, minibatches of 32: CPU seconds of each event, of one
call of the problem's gradient for the same client, cells and samples, and their ratio; medians of interleaved runs.
"""

from __future__ import annotations

import statistics
from time import process_time
from typing import Annotated

import torch
import typer

from raybench.core.streams import Sample
from raybench.testing.trial import Method, started

CELLS, CLIENTS, BATCH, EVENTS = 64, 100, 32, 2000


def main(
    dataset: Annotated[str, typer.Option(help="a data set of two classes")] = "mushrooms",
    runs: Annotated[int, typer.Option(help="interleaved runs")] = 5,
) -> None:
    """Print microseconds of an event and of a bare gradient, and their ratio."""
    torch.set_num_threads(1)
    problem = {"name": "logistic", "dataset": dataset, "clients": CLIENTS, "lambda": 0.1}
    clock = {
        "compute": {"lognormal": {"median": 1.0, "sigma": 0.5}},
        "jitter": {"exponential": 0.1},
    }
    for name, params in (
        ("async_sgd", {}),
        ("ringmaster_asgd", {"threshold": 50}),
        ("rennala_sgd", {"collect": 20}),
    ):
        m = Method(
            name,
            {"batch": BATCH, **params},
            None,
            problem,
            step=0.01,
            rounds=10**6,
            more={"clock": clock},
        )
        run = started(m.batch([10 ** (-j / 32) for j in range(CELLS)]), every=10**6)
        run.advance(200)  # kernels are compiled, every client is hosted
        alone = [run.problem.host(range(i, i + 1)) for i in range(CLIENTS)]
        x, least = run.s.x[:, None].clone(), int(min(run.problem.samples))
        drawn = [torch.randint(0, least, (1, 1, BATCH)) for _ in range(CLIENTS)]
        every = [Sample.at(indices.expand(CELLS, -1, -1)) for indices in drawn]
        for part, sample in zip(alone, every, strict=True):
            part.grad(x, sample)
        ours, bare = [], []
        for _ in range(runs):
            before, began = run.net.events.taken.sum(), process_time()
            while run.net.events.taken.sum() - before < EVENTS:
                run.advance(1 if name == "rennala_sgd" else 100)
            ours.append((process_time() - began) / (run.net.events.taken.sum() - before))
            began = process_time()
            for j in range(EVENTS):
                alone[j % CLIENTS].grad(x, every[j % CLIENTS])
            bare.append((process_time() - began) / EVENTS)
        event, gradient = statistics.median(ours), statistics.median(bare)
        print(
            f"{name:16} event {1e6 * event:6.0f} us, bare gradient {1e6 * gradient:6.0f} us, ratio {event / gradient:.2f}"
        )


if __name__ == "__main__":
    typer.run(main)
