"""Networks in batches: cell-rounds a second of 16 step sizes run as one batch, beside 16 runs alone.

    python benchmarks/networks.py
    python benchmarks/networks.py --models "mlp" "mlp:hidden=[256]" "mlp:hidden=[512,512]"

Both are run in turns, five times, and the medians compared; printed is also where gradients alone stand, as
the floor. Stacked are networks of up to ``MOST_STACKED`` parameters: ``--always`` stacks all, which is how
that bound was found.
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
CELLS, ROUNDS, TURNS = 16, 30, 5


def method(model: str, batch: int) -> Method:
    """Return EF21 with Top-k on a network for digits, four clients."""
    problem = {"name": "network", "model": model, "dataset": "digits", "clients": 4, "batch": batch}
    more = {"evaluate": {"every": 10**6}, "record": {"every": 10**6}}
    return Method(
        "ef21", {}, {"name": "top_k", "k": "5%"}, problem, step=0.1, rounds=ROUNDS, more=more
    )


def seconds(one: Method, multiples: list[float]) -> float:
    """Return the time of all rounds of a batch of these step sizes."""
    run = started(one.batch(multiples, (0,)))
    run.advance(2)
    began = time.perf_counter()
    run.advance(ROUNDS)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--always", action="store_true", help="stack networks of any size")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.always:
        passes.MOST_STACKED = 10**12
    steps = [0.5 + j / CELLS for j in range(CELLS)]
    print(f"{'model':24} {'d':>8} {'together':>10} {'alone':>10} {'gain':>6}  (ms a cell-round)")
    for model in given.models:
        one = method(model, given.batch)
        d = started(one.batch()).problem.dim
        together, alone = [], []
        for _ in range(TURNS):
            together.append(seconds(one, steps) / CELLS)
            alone.append(seconds(one, steps[:1]))
        a, b = (1e3 * statistics.median(t) / (ROUNDS - 2) for t in (together, alone))
        print(f"{model:24} {d:8,} {a:10.3f} {b:10.3f} {b / a:6.1f}", flush=True)


if __name__ == "__main__":
    tune_process()
    main()
