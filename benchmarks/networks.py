"""Networks in batches: cell-rounds a second of 16 step sizes run as one batch, beside 16 runs alone.

    python benchmarks/networks.py
    python benchmarks/networks.py --models "mlp" "mlp:hidden=[256]" "mlp:hidden=[512,512]"

Both are run in turns, five times, and the medians compared. Rows (a cell and a client) are stacked for networks
of up to ``MOST_STACKED`` parameters, else evaluated one by one: ``--up-to 0`` and ``--up-to 1000000000`` show
what either costs, which is how that bound was found.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from raybench.core.process import tune_process
from raybench.problems.networks import passes
from raybench.testing.trial import Method, started

MODELS = ("mlp", "mlp:hidden=[256]", "mlp:hidden=[512,64]")
CELLS, WARM, ROUNDS, TURNS = 16, 2, 30, 5
MANY = 10**6  # rounds of the run, whose only recorded ones are the first and the last


def method(model: str, batch: int) -> Method:
    """Return EF21 with Top-k on a network for digits, four clients."""
    problem = {"name": "network", "model": model, "dataset": "digits", "clients": 4, "batch": batch}
    return Method("ef21", {}, {"name": "top_k", "k": "5%"}, problem, step=0.1, rounds=MANY)


def seconds(one: Method, multiples: list[float]) -> float:
    """Return the time of all rounds of a batch of these step sizes."""
    run = started(one.batch(multiples, (0,)), every=MANY)
    run.advance(WARM)
    began = time.perf_counter()
    run.advance(ROUNDS)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--batch", type=int, default=16, help="samples of a minibatch")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--up-to", type=int, help="stack networks of up to so many parameters")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.up_to is not None:
        passes.MOST_STACKED = given.up_to
    steps = [0.5 + j / CELLS for j in range(CELLS)]
    print(f"{'model':24} {'d':>8} {'together':>10} {'alone':>10} {'gain':>6}  (ms a cell-round)")
    for model in given.models:
        one = method(model, given.batch)
        d = started(one.batch()).problem.dim
        together, alone = [], []
        for _ in range(TURNS):
            together.append(seconds(one, steps) / CELLS)
            alone.append(seconds(one, steps[:1]))
        a, b = (1e3 * statistics.median(t) / ROUNDS for t in (together, alone))
        print(f"{model:24} {d:8,} {a:10.3f} {b:10.3f} {b / a:6.1f}", flush=True)


if __name__ == "__main__":
    tune_process()
    main()
