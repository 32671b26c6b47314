"""A small made-up sweep, so that examples of the analysis show numbers that anyone can check."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from raybench.store.schema import CELLS, CURVES
from raybench.store.table import to_table

# method, compressor, K, bits per round, rounds that a factor of ten takes at one times the step
METHODS = (
    ("gd", None, None, 640, 20),
    ("ef21", "top_k", 1, 70, 50),
    ("ef21", "top_k", 2, 140, 40),
    ("marina", "rand_k", 1, 64, 80),
)
STEPS = (1.0, 2.0)  # twice the step takes half of the rounds
ROUNDS = 240


def example(
    problems: tuple[str, ...] = ("mushrooms",), seeds: int = 3, slower: float = 1.0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return (curves, cells) of a made-up sweep, as ``raybench.load`` and ``raybench.store.cells`` would.

    ||grad f||^2 falls by a constant factor each round, from 1: GD, EF21 with Top-1 and Top-2, and MARINA with Rand-1, two
    steps each, d = 10. Each problem is a half harder than the one before, each seed a few percent
    luckier. slower: how many times as many rounds everything takes.
    """
    rounds = np.arange(ROUNDS + 1)
    curves, cells = [], []
    for p, problem in enumerate(problems):
        for name, operator, k, bits, decade in METHODS:
            compressor = None if operator is None else {"name": operator, "params": {"k": k}}
            config = {
                "problem": {"name": "logistic", "params": {"dataset": problem}},
                "algorithm": {"name": name, "params": {}},
                "compressor": compressor,
            }
            for step in STEPS:
                for seed in range(seeds):
                    luck = 1 - 0.03 * seed * (1 + (len(name) + p) % 3)
                    pace = decade * slower * luck * (1 + 0.5 * p) / step
                    g = 10.0 ** (-rounds / pace)
                    facts = {
                        "cell": f"{problem} {name} {k} {step:g} {seed}",
                        "group": f"{problem} {name} {k}",
                        "label": name if k is None else f"{name} {operator} k={k}",
                        "problem": "logistic",
                        "dataset": problem,
                        "clients": 10 * (p + 1),
                        "algorithm": name,
                        "compressor": operator,
                        "k": k,
                        "step_size": 0.1 * step,
                        "step_multiple": step,
                        "seed": seed,
                    }
                    rows = {"round": rounds, "grad_norm_sq": g, "loss": g, "epoch": 1.0 * rounds}
                    rows |= {"bits_up": 1.0 * bits * rounds, "seconds": 1e-3 * rounds}
                    curves.append(to_table({**facts, **rows}, CURVES).to_pandas())
                    last = {key: value[-1:] for key, value in rows.items()}
                    cell = {**facts, **last, "rounds": ROUNDS, "d": 10, "status": "ok"}
                    cell["config"] = json.dumps(config)
                    columns = {key: value for key, value in cell.items() if key in CELLS.names}
                    cells.append(to_table(columns, CELLS).to_pandas())
    return pd.concat(curves, ignore_index=True), pd.concat(cells, ignore_index=True)
