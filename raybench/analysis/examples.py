"""A small made-up sweep, so that examples of the analysis show numbers that anyone can check."""

from __future__ import annotations

import itertools
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
    cells: list[dict[str, object]] = []
    paces = []
    for p, problem in enumerate(problems):
        for name, form, k, bits, decade in METHODS:
            compressor = None if form is None else {"name": form, "params": {"k": k}}
            config = {
                "problem": {"name": "logistic", "params": {"dataset": problem}},
                "algorithm": {"name": name, "params": {}},
                "compressor": compressor,
            }
            for step, seed in itertools.product(STEPS, range(seeds)):
                luck = 1 - 0.03 * seed * (1 + (len(name) + p) % 3)
                paces.append((decade * slower * luck * (1 + 0.5 * p) / step, bits))
                cells.append(
                    {
                        "cell": f"{problem} {name} {k} {step:g} {seed}",
                        "group": f"{problem} {name} {k}",
                        "label": name if k is None else f"{name} {form} k={k}",
                        "problem": "logistic",
                        "dataset": problem,
                        "clients": 10 * (p + 1),
                        "algorithm": name,
                        "compressor": form,
                        "k": k,
                        "step_size": 0.1 * step,
                        "step_multiple": step,
                        "seed": seed,
                        "value_bits": 64,
                        "exchange": "gather",
                        "on_clock": False,
                        "baseline": name == "gd",
                        "config": json.dumps(config),
                    }
                )
    facts = {name: np.array([cell[name] for cell in cells], object) for name in cells[0]}
    pace, bits_of = np.array(paces, float).T[:, :, None]
    g = 10.0 ** (-rounds / pace)
    rows = {"round": rounds, "grad_norm_sq": g, "loss": g, "epoch": 1.0 * rounds}
    rows |= {"bits_up": bits_of * rounds, "seconds": 1e-3 * rounds}
    curves = {name: facts[name][:, None] for name in facts if name in CURVES.names}
    last = {name: values[..., -1] for name, values in rows.items() if name in CELLS.names}
    ended = {**facts, **last, "rounds": ROUNDS, "d": 10, "status": "ok"}
    tables = to_table({**curves, **rows}, CURVES), to_table(ended, CELLS)
    return tables[0].to_pandas(), tables[1].to_pandas()
