"""What running cells through Ray costs: seconds a cell without Ray, through raybench, and by plain Ray Tune.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --cells 10000 --rounds 200 --tune 20

The same small cells (EF21 with Top-k on breast_cancer, by step and seed) are run in this process and on Ray, first
in batches of up to 64 cells on all cores, then in batches of one cell on one worker, where the queue is asked for
every single cell. Plain Tune runs one trial a cell, with new and with reused actors, a few of them, each of
which does what a user would write: get the data by ``with_parameters``, run, write the tables. Everything is
done in one run on one Ray, whose start is timed by itself. Overhead is what a cell takes longer than without
Ray: on several workers, than its share of that time.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from raybench import spec
from raybench.core.process import tune_process
from raybench.execution.execute import execute
from raybench.execution.plan import make_plan
from raybench.execution.resolve import problem_of
from raybench.runtime.crew import options_of
from raybench.runtime.driver import drive
from raybench.runtime.session import ray_session
from raybench.store import Store

SEEDS = 10
SWEEP = """
name: overhead
problem: {name: logistic, dataset: breast_cancer, clients: 10, regularizer: nonconvex, lambda: 0.1, scale: columns}
algorithm: ef21
compressor: {name: top_k, k: 3}
"""


def sweep_of(cells: int, rounds: int, alone: bool) -> spec.Sweep:
    """Return a sweep of about so many cells; alone: in batches of one cell, on one worker."""
    multiples = ", ".join(str(0.5 + j / 1000) for j in range(max(1, cells // SEEDS)))
    text = f"{SWEEP}step_size: {{theory: [{multiples}]}}\nseed: 0..{SEEDS - 1}\nrounds: {rounds}\n"
    return spec.load(text + ("resources: {timing: exclusive}\n" if alone else ""))


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that some work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def through_raybench(sweep: spec.Sweep, inline: bool) -> float:
    """Return the seconds of a sweep into a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        spent = timed(lambda: drive(sweep, out, inline=inline))
        assert len(Store(out).done()) == len(sweep.cells)
        return spent


def by_tune(sweep: spec.Sweep, cells: int, reuse: bool) -> float:
    """Return the seconds of a Tune run with one trial a cell, as one would write it."""
    from ray import tune

    plan = make_plan(sweep)
    batches = plan.batches[:cells]
    problem = problem_of(batches[0].cells[0].cell.problem)

    class Cell(tune.Trainable):
        def setup(self, config: dict[str, int], data: Any = None) -> None:
            self.batches, self.options, self.folder, self.problem = data
            self.number = config["cell"]

        def reset_config(self, new_config: dict[str, int]) -> bool:
            self.number = new_config["cell"]
            return True

        def step(self) -> dict[str, object]:
            from raybench.execution.resolve import adopt

            batch = self.batches[self.number]
            adopt(batch.cells[0].cell.problem, lambda: self.problem)
            for _ in execute([batch], self.options, Store(self.folder).commit):
                pass
            return {"done": True}

    with tempfile.TemporaryDirectory() as folder:
        data = (batches, options_of(sweep), f"{folder}/out", problem)
        tuner = tune.Tuner(
            tune.with_parameters(Cell, data=data),
            param_space={"cell": tune.grid_search(list(range(len(batches))))},
            tune_config=tune.TuneConfig(reuse_actors=reuse),
            run_config=tune.RunConfig(storage_path=f"{folder}/tune", verbose=0),
        )
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            spent = timed(tuner.fit)
        assert len(list(Path(folder).glob("out/cells/*.parquet"))) == len(batches)
        return spent


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cells", type=int, default=2000, help="in batches of many")
    parser.add_argument("--alone", type=int, default=500, help="in batches of one")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--tune", type=int, default=8, help="of plain Tune; ten times as many reused"
    )
    args = parser.parse_args()
    tune_process()
    many, alone = (
        sweep_of(args.cells, args.rounds, False),
        sweep_of(args.alone, args.rounds, True),
    )
    cores = os.cpu_count() or 1
    rows: list[tuple[str, int, float, float | None]] = []

    def add(what: str, cells: int, seconds: float, without: float | None = None) -> float:
        each = seconds / cells
        rows.append((what, cells, each, None if without is None else each - without))
        return each

    through_raybench(sweep_of(20, args.rounds, False), True)  # what is compiled or loaded once
    batched = add("in this process", len(many.cells), through_raybench(many, True))
    single = add(
        "in this process, one cell a batch", len(alone.cells), through_raybench(alone, True)
    )
    began = time.perf_counter()
    with ray_session(None):
        start = time.perf_counter() - began
        add("raybench on Ray", len(many.cells), through_raybench(many, False), batched / cores)
        what = "raybench on Ray, one cell a batch, one worker"
        best = add(what, len(alone.cells), through_raybench(alone, False), single)
        for reuse, cells in ((True, 10 * args.tune), (False, args.tune)):
            what = f"Tune, one trial a cell, {'reused' if reuse else 'new'} actors"
            add(what, cells, by_tune(alone, cells, reuse), single / cores)
    print(
        f"{cores} cores, {args.rounds} rounds a cell; Ray started in {start:.1f} s, not counted below\n"
    )
    print(f"{'':46} {'cells':>6} {'ms a cell':>10} {'overhead':>9} {'times':>7}")
    for what, cells, each, over in rows:
        said = "" if over is None else f"{1e3 * over:.1f} ms"
        print(f"{what:46} {cells:6,} {1e3 * each:10.1f} {said:>9} {each / best:7.1f}")


if __name__ == "__main__":
    main()
