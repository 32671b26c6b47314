"""Whole cells, one checkout beside another: does a change make rounds of a method slower?

    python benchmarks/cells.py --against ../before [--filter top_k] [--threads 1]
    python benchmarks/cells.py --plain               # kernels beside the same in plain torch

Each case is a method with a compressor on a problem, for one cell and for a batch of 16. Two processes, one
per checkout, hold the same run and take turns of some twenty milliseconds of rounds, so that both meet the
same machine in the same second. A turn counts by its median round; printed are the medians over turns and
the median of the ratios of neighbouring turns, now / before. Without ``--against`` only this checkout is
timed, beside gradient descent on the same problem. With ``--plain`` the other process is of this checkout,
with compressors in their plain torch form where there is one: a ratio of 0.5 says that the kernel halves
the round.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pkgutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib import import_module
from inspect import isfunction, signature
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

HERE = Path(__file__).resolve().parent.parent
PROBLEMS: dict[str, dict[str, Any]] = {
    "logistic d=30": {"name": "logistic", "dataset": "breast_cancer", "clients": 20},
    "tridiagonal d=1,000": {"name": "tridiagonal", "dim": 1000, "clients": 10},
    "tridiagonal d=100,000": {"name": "tridiagonal", "dim": 100_000, "clients": 4}
    | {"dtype": "float32"},
    "matrix 24 x 16": {"name": "quadratic", "shape": [[24, 16]], "clients": 4},
    **{
        f"network {model}": {"name": "network", "model": model, "dataset": "digits", "clients": 4}
        | {"batch": 16}
        for model in ("mlp", "mlp:hidden=[256]", "mlp:hidden=[512,256]")
    },
}
Times = tuple[float, float, float]
TURN = 0.02  # seconds
FEWEST, MOST, BUDGET = 5, 40, 4.0  # turns of each side, and the seconds they should not exceed
FORMS = """
identity top_k:k=1% top_k:k=5% top_k:k=10% rtop_k:k=10% rand_k:k=1% perm_k lazy rand_k:k=10%,mask=common
random_sparsification:p=0.1 dgc:k=1% l1_sampling dgc:k=10%,truncate=random block_top_k:k=1,block=10
pos_neg_top_k:k=5 wangni:k=10% block_top_k:k=1,block=10,form=blocks pos_neg_top_k:k=10%
adaptive_threshold adaptive_threshold:rule=energy adaptive_threshold:rule=percentile
hard_threshold:threshold=0.001 adaptive_sparsification natural dithering natural_dithering qsgd terngrad
scaled_sign one_bit exponential_rounding stochastic_rounding fp16 bf16 int8 nf4 mxfp8 mxfp4 chain two_shot
induced optimal_rescale top_k_natural:k=10%
"""
VECTORS = FORMS.split()
MATRICES = ["svd", "power_step", "st_hosvd", "hosvd", "tucker", "tensor_train", "cp"]
OPERATORS = {"matrix": MATRICES, "network": ["top_k:k=5%"]}  # of these problems; others: VECTORS


def cases(pattern: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (title, sweep file) of every case whose title holds the pattern."""
    from raybench import api
    from raybench.core.errors import InputError
    from raybench.spec import sections

    for problem, section in PROBLEMS.items():
        for operator in OPERATORS.get(problem.split()[0], VECTORS):
            try:
                op = api.compressor(operator)
            except InputError:
                continue  # a compressor that this checkout does not have, or that needs parameters
            method = "ef21" if op.omega(64) is None else "diana"
            for cells in (1, 16):
                title = f"{problem}, {cells} cells, {method} {operator}"
                config = {
                    "name": "cells",
                    "problem": section,
                    "algorithm": method,
                    "compressor": sections.parse_short_form(operator, "compressor"),
                    "step_size": {"value": [1e-6 * (j + 1) for j in range(cells)]},
                    "rounds": 1_000_000,
                    "record": {"points": 8},
                    "allow_unproven": True,
                }
                if pattern in title:
                    yield title, config


def use_plain_torch() -> None:
    """Put the plain torch form, ``NAME_torch``, in the place of every kernel ``NAME`` that compressors call."""
    from raybench import compressors
    from raybench.compressors import by_size, low_rank

    def largest(x: Any, k: int) -> Any:
        where = by_size.largest_torch(x, k)
        return where, x.gather(-1, where)

    def svd(matrices: Any, r: int) -> Any:
        U, S, V = matrices.svd()
        return U[..., :r], S[..., :r, None] * V.mT[..., :r, :]

    names = [module.name for module in pkgutil.iter_modules(compressors.__path__)]
    modules = [vars(import_module(f"raybench.compressors.{name}")) for name in names]
    forms = {by_size.largest: largest, low_rank.truncated_svd: svd}
    for module in modules:
        for name, form in module.items():
            kernel = module.get(name.removesuffix("_torch"))
            if name.endswith("_torch") and kernel and signature(kernel) == signature(form):
                forms[kernel] = form
    for module in modules:
        module.update({n: forms[f] for n, f in module.items() if isfunction(f) and f in forms})


class _Over(BaseException):
    """The driver wants another case: ends the run from within, past everything that catches errors."""


def serve(plain: bool) -> None:
    """Run a sweep file given as a line of JSON, in turns: one for each line ``go`` that follows.

    A turn is answered by the seconds of its median round; any other line ends the run.
    """
    from raybench.core.process import tune_process

    tune_process()  # before torch is loaded

    import torch

    import raybench
    from raybench.execution.run import Run

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if plain:
        use_plain_torch()
    answers = sys.stdout
    spent: list[float] = []
    step = Run._step

    def timed(self: Run, *given: Any) -> None:
        began = perf_counter()
        step(self, *given)
        spent.append(perf_counter() - began)
        if len(spent) >= 3 and sum(spent) > TURN:
            print(median(spent), file=answers, flush=True)
            spent.clear()
            if sys.stdin.readline() != "go\n":
                raise _Over

    Run._step = timed  # type: ignore[method-assign]
    for line in sys.stdin:
        spent.clear()
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
            try:
                raybench.sweep(json.loads(line), Path(folder) / "out", inline=True)
                print("nan", file=answers, flush=True)  # it ended by itself: it cannot be run
            except _Over:
                pass


class Worker:
    """A process that runs the cases with one checkout's code."""

    def __init__(self, checkout: Path, threads: int, *flags: str) -> None:
        env = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", *flags], env=env, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        if hasattr(os, "sched_setaffinity"):  # both on the same cores, which may differ in speed
            os.sched_setaffinity(self.process.pid, sorted(os.sched_getaffinity(0))[:threads])

    def ask(self, line: str) -> float:
        """Return the seconds of a round in the turn that this line starts, NaN if there is none."""
        self.tell(line)
        assert self.process.stdout is not None
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"a process failed on {line}; run it with --serve by hand to see why")
        return float(answer)

    def tell(self, line: str) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()


def compare(now: Worker, mine: dict[str, Any], other: Worker, theirs: dict[str, Any]) -> Times:
    """Return the seconds of a round of both runs, and the ratio, from turns that alternate."""
    workers, pairs = (now, other), []
    for worker, config in zip(workers, (mine, theirs), strict=True):
        if math.isnan(worker.ask(json.dumps(config))):  # the first turn compiles kernels
            return math.nan, math.nan, math.nan
    began = perf_counter()
    while len(pairs) < MOST and (len(pairs) < FEWEST or perf_counter() - began < BUDGET):
        pairs.append([worker.ask("go") for worker in workers])
    for worker in workers:
        worker.tell("over")
    a, b = zip(*pairs, strict=True)
    return median(a), median(b), median(x / y for x, y in pairs)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--against", type=Path, help="another checkout of raybench")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--filter", default="", help="only cases whose title holds this text")
    parser.add_argument("--plain", action="store_true", help="beside kernels in plain torch")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.plain)
        return
    flags = ["--plain"] if arguments.plain else []
    now = Worker(HERE, arguments.threads)
    other = Worker((arguments.against or HERE).resolve(), arguments.threads, *flags)
    slower = []
    print(f"{'milliseconds of a round':62s} {'now':>9s} {'before':>9s} {'ratio':>6s}")
    for title, config in cases(arguments.filter):
        theirs = config
        if not (arguments.against or arguments.plain):
            theirs = {k: v for k, v in config.items() if k != "compressor"} | {"algorithm": "gd"}
        a, b, ratio = compare(now, config, other, theirs)
        mark = " slower" if theirs is config and ratio > 1.1 else ""
        slower += [title] if mark else []
        print(f"{title:62s} {1e3 * a:9.4f} {1e3 * b:9.4f} {ratio:6.2f}{mark}", flush=True)
    if arguments.against or arguments.plain:
        print(f"{len(slower)} cases slower by more than 10 %")


if __name__ == "__main__":
    main()
