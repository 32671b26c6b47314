"""Curves and cells made up from a few numbers: what tests of the analysis start from."""

from __future__ import annotations

import json

import numpy as np

from raybench.store import CELLS, CURVES, to_table

PLAIN = {"algorithm": "ef21", "compressor": "top_k", "k": 1, "status": "ok", "seed": 0}
PLAIN |= {"multiple": 1.0, "per_round": 10.0, "dataset": "a", "params": {}}


def make(runs):
    """Return (curves, cells) of runs: dicts with g (the values of ||grad f||^2) and cell columns."""
    runs = [{**PLAIN, **run} for run in runs]
    g = [np.asarray(run["g"], float) for run in runs]
    rounds = [np.arange(len(values)) for values in g]
    bits = [run["per_round"] * t for run, t in zip(runs, rounds, strict=True)]
    columns = ("algorithm", "compressor", "k", "seed", "dataset")
    same = {column: [run[column] for run in runs] for column in columns}
    same |= {"cell": [f"cell{i}" for i in range(len(runs))], "group": [*map(_group, runs)]}
    same |= {"label": [f"{run['algorithm']} k={run['k']}" for run in runs]}
    same |= {"step_multiple": [run["multiple"] for run in runs]}
    same |= {"step_size": [0.1 * run["multiple"] for run in runs]}
    place = np.repeat(np.arange(len(runs)), [len(values) for values in g])
    texts = {name: np.array(values, object)[place] for name, values in same.items()}
    every, spent = np.concatenate(g), np.concatenate(bits)
    rows = {"round": np.concatenate(rounds), "grad_norm_sq": every, "bits_up": spent, "loss": every}
    last = {"rounds": [t[-1] for t in rounds], "bits_up": [b[-1] for b in bits]}
    last |= {name: [values[-1] for values in g] for name in ("grad_norm_sq", "loss")}
    last |= {"value_bits": 64, "exchange": "gather", "on_clock": False}
    plain = [run["compressor"] in (None, "identity") for run in runs]
    sums = [run["algorithm"] in ("gd", "sgd", "dcgd") for run in runs]
    last |= {"baseline": np.logical_and(plain, sums)}
    last |= {"status": [run["status"] for run in runs], "config": [*map(_config, runs)]}
    tables = [
        to_table({**texts, **rows, "problem": "logistic"}, CURVES),
        to_table({**same, **last, "problem": "logistic"}, CELLS),
    ]
    return tuple(table.to_pandas() for table in tables)


def _group(run):
    return json.dumps([run[c] for c in ("dataset", "algorithm", "compressor", "k", "params")])


def _config(run):
    config = {
        "problem": {"name": "logistic", "params": {"dataset": run["dataset"]}},
        "algorithm": {"name": run["algorithm"], "params": run["params"]},
        "compressor": {"name": run["compressor"], "params": {"k": run["k"]}},
    }
    return json.dumps(config)


def reaching(multiple, *costs, rounds=60, **more):
    """Return runs of seeds 0, 1, .. that fall to 0.01 after so many rounds."""
    values = [[1.0] * cost + [0.01] * (rounds - cost) for cost in costs]
    return [{"g": g, "multiple": multiple, "seed": s, **more} for s, g in enumerate(values)]
