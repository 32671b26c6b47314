"""EF21 with Top-5 on mushrooms, 20 clients, float64: ours beside a plain numpy loop, as ratios.

    RAYBENCH_DATA=... python benchmarks/ef21.py [rounds]

Prints, from one run with everything interleaved (medians):
  one cell          our rounds/s over those of bare per-client gradients in numpy (the floor)
  64 step sizes     our cell-rounds/s over the rounds/s of the method in plain numpy
Both loops of ours record loss and ||grad f||^2 every round; the numpy loop of the method does so too.
"""

from __future__ import annotations

import statistics
import sys
from time import perf_counter

from raybench.core.process import tune_process

tune_process()  # before torch is loaded

import numpy as np

from raybench import spec
from raybench.execution.batch import Batch
from raybench.execution.plan import make_plan
from raybench.execution.resolve import problem_of
from raybench.execution.run import Run

SWEEP = """
name: bench
problem: {name: logistic, dataset: mushrooms, clients: 20, regularizer: nonconvex, lambda: 0.1, remainder: drop}
algorithm: ef21
compressor: {name: top_k, k: 5}
step_size: {theory: STEPS}
rounds: 1000000
record: {every: 1}
"""


def batch_of(steps: str) -> Batch:
    """Return the one batch of EF21 with these step multiples."""
    plan = make_plan(spec.load(SWEEP.replace("STEPS", steps)))
    return Batch(plan.cells, facts=plan.batches[0].facts)


class Numpy:
    """The method as one would write it with numpy, client by client."""

    def __init__(self, batch: Batch) -> None:
        problem = problem_of(batch.cells[0].cell.problem)
        rows = problem.rows
        signed = np.asarray(rows.features.todense()) * rows.labels[:, None]
        at = np.cumsum([0, *problem.samples])
        self.A = [np.ascontiguousarray(signed[at[i] : at[i + 1]]) for i in range(20)]
        self.gamma, self.lam, self.k = batch.cells[0].step_size, 0.1, 5
        self.x = np.zeros(signed.shape[1])
        self.g = np.zeros((20, len(self.x)))
        self.send(self.gradients(self.x))

    def gradients(self, x: np.ndarray) -> np.ndarray:
        """Return the clients' gradients (20, d), the floor."""
        out = np.empty((20, len(x)))
        for i, A in enumerate(self.A):
            out[i] = -(1 / (1 + np.exp(A @ x))) @ A / len(A)
        return out + 2 * self.lam * x / (1 + x * x) ** 2

    def loss(self, x: np.ndarray) -> float:
        """Return f(x)."""
        fit = np.mean([np.logaddexp(0, -(A @ x)).mean() for A in self.A])
        return float(fit + self.lam * (x * x / (1 + x * x)).sum())

    def send(self, grads: np.ndarray) -> None:
        """Let every client send its compressed difference."""
        for i in range(20):
            change = grads[i] - self.g[i]
            # one-hot data is full of ties; a stable sort breaks them as ours does, at equal speed
            keep = np.argsort(-np.abs(change), kind="stable")[: self.k]
            self.g[i, keep] += change[keep]

    def round(self) -> tuple[float, float]:
        """Do one round of EF21 and return loss and ||grad f||^2 at the new point."""
        self.x = self.x - self.gamma * self.g.mean(0)
        grads = self.gradients(self.x)
        self.send(grads)
        return self.loss(self.x), float((grads.mean(0) ** 2).sum())


def main(rounds: int) -> None:
    """Print the table."""
    one, many = batch_of("1"), batch_of(", ".join(str(0.25 * j) for j in range(1, 65)).join("[]"))
    runs = {"one": Run(one, problem_of(one.cells[0].cell.problem))}
    runs["many"] = Run(many, problem_of(many.cells[0].cell.problem))
    plain = Numpy(one)

    def bare() -> None:
        for _ in range(rounds):
            plain.gradients(plain.x)

    def method() -> None:
        for _ in range(rounds):
            plain.round()

    work = {
        "bare": bare,
        "method": method,
        "one": lambda: runs["one"].advance(rounds),
        "many": lambda: runs["many"].advance(max(1, rounds // 4)),
    }
    done = {"bare": rounds, "method": rounds, "one": rounds, "many": max(1, rounds // 4) * 64}
    speed: dict[str, list[float]] = {name: [] for name in work}
    for name in work:
        work[name]()  # warm up: compile, fill caches
    for _ in range(9):
        for name, job in work.items():
            began = perf_counter()
            job()
            speed[name].append(done[name] / (perf_counter() - began))
    median = {name: statistics.median(values) for name, values in speed.items()}
    a, b = runs["one"].recorder.column("loss")[0], Numpy(one)
    losses = [b.round()[0] for _ in range(20)]
    assert np.allclose(a[1:21], losses, rtol=1e-9), "ours and the numpy loop disagree"
    print(f"bare numpy gradients   {median['bare']:>10,.0f} rounds/s")
    print(f"EF21 in plain numpy    {median['method']:>10,.0f} rounds/s")
    print(f"ours, one cell         {median['one']:>10,.0f} rounds/s")
    print(f"ours, 64 step sizes    {median['many']:>10,.0f} cell-rounds/s")
    print(
        f"one cell / bare gradients           {median['one'] / median['bare']:.2f}   (at least 0.5)"
    )
    print(
        f"64 step sizes / plain numpy loop    {median['many'] / median['method']:.1f}  (at least 15)"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
