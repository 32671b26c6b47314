"""How long a folder with millions of rows takes to become a table of what a target costs.

    python benchmarks/to_target.py --rows 10000000

Writes such a folder (cells of 1,000 rows, all columns that a run on logistic regression fills, 64 cells to a file) and prints
rows, cells, size, and seconds of `raybench.analysis.to_target`: for all cells, and for those of one method, of
which the files alone are read. `--keep DIR` leaves the folder there.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from raybench.analysis import to_target
from raybench.store import CELLS, CURVES, Store, shard_name, to_table

ROUNDS, BATCH = 1000, 64
METHODS = (("ef21", "top_k"), ("marina", "rand_k"), ("diana", "rand_k"), ("ef14", "top_k"))
KS = (1, 5, 11, 28, 56)


def fill(folder: Path, rows: int) -> int:
    """Write the folder; return how many cells it has."""
    store = Store(folder)
    store.claim({"name": "large", "problem": {"name": "logistic", "dataset": "mushrooms"}})
    t = np.arange(ROUNDS, dtype=float)
    rng = np.random.default_rng(0)
    written = 0
    while written * ROUNDS < rows:
        batch = written // BATCH
        (method, operator), k = METHODS[batch % 4], KS[batch // 4 % 5]
        size = min(BATCH, -(-rows // ROUNDS) - written)
        number = written + np.arange(size)
        ids = [f"{n:016x}" for n in number]
        multiple, seed = 2.0 ** (number // 8 % 8), number % 8 + 8 * (batch // 20)
        pace = 0.02 * multiple[:, None] ** 0.5 * (1 + 0.1 * rng.random((size, 1)))
        g = np.exp(-pace * t + 0.05 * rng.standard_normal((size, ROUNDS)))
        config = {
            "problem": {"name": "logistic", "params": {"dataset": "mushrooms"}},
            "algorithm": {"name": method, "params": {}},
            "compressor": {"name": operator, "params": {"k": k}},
        }
        same = {
            **{
                "label": f"{method} {operator} k={k}",
                "problem": "logistic",
                "dataset": "mushrooms",
            },
            **{"clients": 20, "algorithm": method, "compressor": operator, "k": k},
            "group": f"{method} {k}",
        }
        sent = k * t * np.ones((size, 1))
        curves = {
            **{"round": t.astype(int), "epoch": t, "grad_evals": 400 * t, "loss": g + 0.1},
            **{"bits_up": 71 * sent, "bits_down": 64 * 112 * t, "bytes_up": 71 / 8 * sent},
            **{"bytes_down": 8 * 112 * t, "bytes_up_max": 71 / 8 * sent, "messages_up": t},
            **{"messages_down": t, "values_up": sent, "index_explicit_up": 7 * sent},
            **{"index_auto_up": 7 * sent, "raw_bits_up": 0.0, "values_down": 112 * t},
            **{"index_explicit_down": 0.0, "index_auto_down": 0.0, "raw_bits_down": 0.0},
            **{"grad_norm_sq": g, "estimator_error_sq": 0.1 * g, "suboptimality": g**2},
            "seconds": np.cumsum(1e-4 * rng.random((size, ROUNDS)), axis=1),
        }
        own = {"step_size": 0.01 * multiple, "step_multiple": multiple, "seed": seed}
        columns = {name: value[:, None] for name, value in own.items()}
        cells = {**same, **own, "cell": ids, "status": "ok"}
        cells |= {"rounds": ROUNDS - 1, "grad_norm_sq": g[:, -1], "loss": g[:, -1] + 0.1}
        store.commit(
            shard_name(ids),
            to_table({"cell": np.array(ids, object)[:, None], **same, **columns, **curves}, CURVES),
            to_table({**cells, "config": json.dumps(config)}, CELLS),
        )
        written += size
    return written


def main() -> None:
    """Read the arguments, write the folder and take the times."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--keep", metavar="DIR", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as here:
        folder = asked.keep or Path(here) / "large"
        begin = time.perf_counter()
        cells = fill(folder, asked.rows)
        size = sum(f.stat().st_size for f in folder.rglob("*.parquet"))
        print(
            f"{cells * ROUNDS:,} rows of {cells:,} cells, {size / 1e9:.2f} GB, "
            f"written in {time.perf_counter() - begin:.1f} s"
        )
        questions = {
            "all cells, their own target": {},
            "all cells, a target given": {"target": 1e-6},
            "one method, a target given": {"target": 1e-6, "where": {"algorithm": "ef21"}},
        }
        for what, question in questions.items():
            begin = time.perf_counter()
            table = to_target(folder, **question)
            print(f"{time.perf_counter() - begin:6.2f} s  {what}: {len(table):,} rows")


if __name__ == "__main__":
    main()
