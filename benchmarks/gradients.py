"""Speed of all clients' gradients (with loss) against numpy client by client, as ratios.

Run: python benchmarks/gradients.py [--dataset mushrooms] [--clients 20] [--repeats 30]

All variants are timed in turn within one run and compared by their medians, so a busy machine
slows them alike. numpy holds each client's rows as a dense matrix with the labels folded in, and
evaluates one cell at a time; ours evaluates a batch of B cells at once.
"""

from __future__ import annotations

import argparse
import statistics
import time

from raybench.core.process import tune_process

tune_process()  # before torch is loaded

import numpy as np
import torch

from raybench import problems
from raybench.core.errors import InputError


def by_client(parts: list[np.ndarray], lam: float, x: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Return the clients' gradients and losses of nonconvex logistic regression at one x."""
    grads, losses = np.empty((len(parts), len(x))), []
    square = x * x
    shift, value = 2 * lam * x / (1 + square) ** 2, lam * (square / (1 + square)).sum()
    for i, A in enumerate(parts):
        z = A @ x
        grads[i] = A.T @ (-1 / (1 + np.exp(z))) / len(A) + shift
        losses.append(np.logaddexp(0, -z).mean() + value)
    return grads, losses


def main() -> None:
    """Time the variants in turn and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dataset", default="mushrooms")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=30)
    given = parser.parse_args()
    params = {"dataset": given.dataset, "clients": given.clients, "lambda": 0.1}
    try:
        problem = problems.build("logistic", params)
    except InputError as error:
        raise SystemExit(str(error)) from None
    parts = [
        np.ascontiguousarray(y[:, None] * (a.toarray() if hasattr(a, "toarray") else a))
        for a, y in problem.rows.parts()
    ]
    random = torch.Generator().manual_seed(0)
    batches = {
        B: 0.1 * torch.randn(B, problem.dim, dtype=torch.float64, generator=random)
        for B in (1, 8, 64)
    }
    one = batches[1][0].numpy()
    variants = {"numpy, one cell": (1, lambda: by_client(parts, 0.1, one))}
    for B, x in batches.items():
        variants[f"ours, B = {B}"] = (B, lambda x=x: problem.oracle(x))
    grads, losses = by_client(parts, 0.1, one)
    ours = problem.oracle(batches[1])
    assert np.allclose(ours[0][0].numpy(), grads, rtol=1e-10, atol=1e-14)
    assert np.allclose(ours[1][0].numpy(), losses, rtol=1e-12)

    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for repeat in range(given.repeats + 3):
        for name, (_, call) in variants.items():
            begin = time.perf_counter()
            call()
            if repeat >= 3:  # the first calls compile and warm up
                seconds[name].append(time.perf_counter() - begin)
    rate = {name: B / statistics.median(seconds[name]) for name, (B, _) in variants.items()}
    base = rate["numpy, one cell"]
    print(f"{given.dataset}, {given.clients} clients, float64, {torch.get_num_threads()} threads")
    print(f"{'':18}{'us per call':>12}{'cell-rounds/s':>15}{'x numpy':>9}")
    for name, (B, _) in variants.items():
        print(f"{name:18}{1e6 * B / rate[name]:12.0f}{rate[name]:15,.0f}{rate[name] / base:9.1f}")


if __name__ == "__main__":
    main()
