"""What rounds of many clients, and events of asynchronous methods, cost beside the gradients alone.

    python benchmarks/clients.py
    python benchmarks/clients.py --methods gd ef21 marina --clients 10000 100000 --dim 1000 --rounds 3
    python benchmarks/clients.py --events mushrooms

Each method takes a few rounds of one cell on `tridiagonal`, whose data is two numbers per client, in a process of
its own for each n. ``gradients`` is the floor: the same gradients, in blocks of the same size, added up, and
nothing else. Seconds are the median of the rounds, those of the processor their mean; peak is by how much the
process grows over what it was before the first round, beside what `raybench plan` says.

With ``--events`` 64 step sizes run in one batch on a data set of two classes, 100 clients, minibatches of 32: processor
seconds of an event, of its gradient alone (2000 events are recorded, and their gradients taken again: the same clients,
points and minibatches in the same order), and their ratio; medians of interleaved runs.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter, process_time
from typing import Any
from unittest.mock import patch

from processes import memory, reset_peak

from raybench.core.process import tune_process

tune_process()
import torch

from raybench import spec
from raybench.execution.costs import need_of
from raybench.execution.plan import make_plan
from raybench.testing.trial import TrialMethod, started

FLOOR = "gradients"
BYTES_OF_BLOCK = 1 << 22  # enough for threads and vector units
CELLS, CLIENTS, BATCH, EVENTS = 64, 100, 32, 2000
ASYNCHRONOUS = {
    "async_sgd": {},
    "ringmaster_asgd": {"threshold": 50},
    "rennala_sgd": {"collect": 20},
}


def measured(work: Callable[[], object], rounds: int) -> dict[str, float]:
    """Return seconds of a round and by how many bytes the process grows, of rounds after a first one."""
    ctypes.CDLL(None).malloc_trim(0)  # what planning has freed is not free for the rounds
    before = reset_peak()
    work()
    laps, began = [], process_time()
    for _ in range(rounds):
        start = perf_counter()
        work()
        laps.append(perf_counter() - start)
    spent = (process_time() - began) / rounds
    peak = float(memory("VmHWM") - before)
    return {"seconds": median(laps), "processor": spent, "peak": peak}


def one(name: str, clients: int, dim: int, rounds: int) -> dict[str, Any]:
    """Measure a method in this process."""
    plain = name in (FLOOR, "gd")
    compressor = None if plain else {"name": "rand_k", "k": max(1, dim // 10)}

    def method(n: int) -> TrialMethod:
        problem = {"name": "tridiagonal", "dim": dim, "clients": n}
        params: dict[str, Any] = {"problem": problem, "step": 0.1, "rounds": rounds + 2}
        return TrialMethod("gd" if name == FLOOR else name, {}, compressor, **params)

    # compiled kernels and threads have memory of their own
    started(method(200).batch(), every=rounds + 2).advance(2)
    run = started(method(clients).batch(), every=rounds + 2)
    if name == FLOOR:
        return measured(_gradients(run), rounds)
    need = need_of(make_plan(spec.load(method(clients).config({"value": 0.1}, 0))))
    return {**measured(lambda: run.advance(1), rounds), "planned": need.tensors}


def _gradients(run: Any) -> Callable[[], object]:
    """Return what takes the clients' gradients in blocks and adds them up."""
    problem, x = run.problem, run.s.x
    size = max(1, BYTES_OF_BLOCK // (problem.dim * problem.dtype.itemsize))
    firsts = range(0, problem.n, size)
    parts = [problem.host(range(j, min(j + size, problem.n))) for j in firsts]

    @torch.no_grad()
    def work() -> object:
        total = torch.zeros_like(x)
        for part in parts:
            total += part.grad(x).sum(1)
        return total

    return work


def apart(*args: object) -> dict[str, Any]:
    """Measure in a process of its own: the arguments of ``one``. Raises RuntimeError with what it said."""
    command = [sys.executable, __file__, "--one", json.dumps(args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def gradients_of(run: Any, length: int) -> list[tuple[Any, Any, Any]]:
    """Let a run go on for some events, so many rounds at a time; return of what it took minibatch gradients, and where."""
    kind, calls = type(run.problem), []
    plain = kind.grad

    def grad(self: Any, x: Any, sample: Any = None) -> Any:
        calls.append((self, x, sample))
        return plain(self, x, sample)

    with patch.object(kind, "grad", grad):
        while len(calls) < EVENTS:
            run.advance(length)
    return [call for call in calls if call[2] is not None]


def events(dataset: str, runs: int) -> None:
    """Print microseconds of an event and of a bare gradient, and their ratio."""
    torch.set_num_threads(1)
    problem = {"name": "logistic", "dataset": dataset, "clients": CLIENTS, "lambda": 0.1}
    speed = {"lognormal": {"median": 1.0, "sigma": 0.5}}
    more = {"clock": {"compute": speed, "jitter": {"exponential": 0.1}}}
    for name, params in ASYNCHRONOUS.items():
        params = {"batch": BATCH, **params}
        m = TrialMethod(name, params, None, problem, step=0.01, rounds=10**6, more=more)
        run = started(m.batch([10 ** (-j / 32) for j in range(CELLS)]), every=10**6)
        run.advance(200)  # kernels are compiled, every client is hosted
        length = 1 if name == "rennala_sgd" else 100
        calls = gradients_of(run, length)
        ours, bare = [], []
        for _ in range(runs):
            before, began = run.net.events.taken.sum(), process_time()
            while run.net.events.taken.sum() - before < EVENTS:
                run.advance(length)
            ours.append((process_time() - began) / (run.net.events.taken.sum() - before))
            began = process_time()
            for part, x, sample in calls:
                part.grad(x, sample)
            bare.append((process_time() - began) / len(calls))
        event, gradient = 1e6 * median(ours), 1e6 * median(bare)
        each = f"event {event:6.0f} us, bare gradient {gradient:6.0f} us"
        print(f"{name:16} {each}, ratio {event / gradient:.2f}", flush=True)


def main() -> None:
    """Read the arguments, measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--methods", nargs="+", default=["gd", "ef21", "diana"])
    parser.add_argument("--clients", nargs="+", type=int, default=[10_000, 20_000, 40_000, 80_000])
    parser.add_argument("--dim", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5, help="of a method; or runs of events")
    parser.add_argument("--events", metavar="DATASET", help="events, not rounds")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(*json.loads(args.one))))
        return
    if args.events:
        events(args.events, args.rounds)
        return
    heads = "clients | ms a round | of the processor | x gradients | peak MB | planned MB"
    print(f"| method | {heads} |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    floor: dict[int, float] = {}
    for name in [FLOOR, *args.methods]:
        for n in sorted(args.clients):
            figures = apart(name, n, args.dim, args.rounds)
            spent = figures["processor"]
            least = floor.setdefault(n, spent)
            row = [name, f"{n:,}", f"{1e3 * figures['seconds']:,.0f}", f"{1e3 * spent:,.0f}"]
            row += [f"{spent / least:.2f}", f"{figures['peak'] / 1e6:,.0f}"]
            row += [f"{figures['planned'] / 1e6:,.0f}" if "planned" in figures else ""]
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
