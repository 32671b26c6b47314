"""Curves and cells made up from a few numbers: what tests of the analysis start from."""

import json

import numpy as np
import pandas as pd

from raybench.store import CELLS, CURVES, to_table


def make(runs):
    """Return (curves, cells) of runs: dicts with g (the values of ||grad f||^2) and cell columns."""
    curves, rows = [], []
    for i, run in enumerate(runs):
        run = {"algorithm": "ef21", "compressor": "top_k", "k": 1, "status": "ok", "seed": 0, **run}
        run = {"multiple": 1.0, "per_round": 10.0, "dataset": "a", "params": {}, **run}
        g = np.asarray(run["g"], float)
        cell, bits = f"cell{i}", run["per_round"] * np.arange(len(g))
        group = json.dumps([run[c] for c in ("dataset", "algorithm", "compressor", "k", "params")])
        name = f"{run['algorithm']} k={run['k']}"
        config = {
            "problem": {"name": "logistic", "params": {"dataset": run["dataset"]}},
            "algorithm": {"name": run["algorithm"], "params": run["params"]},
            "compressor": {"name": run["compressor"], "params": {"k": run["k"]}},
        }
        same = {c: run[c] for c in ("algorithm", "compressor", "k", "seed", "dataset")}
        same |= {
            "cell": [cell] * len(g),
            "group": group,
            "label": name,
            "step_multiple": run["multiple"],
        }
        same |= {"step_size": 0.1 * run["multiple"], "problem": "logistic"}
        table = {**same, "round": np.arange(len(g)), "grad_norm_sq": g, "bits_up": bits, "loss": g}
        curves.append(to_table(table, CURVES).to_pandas())
        last = {"rounds": len(g) - 1, "grad_norm_sq": g[-1], "loss": g[-1], "bits_up": bits[-1]}
        row = {**same, **last, "cell": [cell], "status": run["status"]}
        rows.append(to_table({**row, "config": json.dumps(config)}, CELLS).to_pandas())
    return pd.concat(curves, ignore_index=True), pd.concat(rows, ignore_index=True)


def reaching(multiple, *costs, rounds=60, **more):
    """Return runs of seeds 0, 1, .. that fall to 0.01 after so many rounds."""
    values = [[1.0] * cost + [0.01] * (rounds - cost) for cost in costs]
    return [{"g": g, "multiple": multiple, "seed": s, **more} for s, g in enumerate(values)]
