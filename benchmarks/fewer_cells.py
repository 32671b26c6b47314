"""How much less than the whole grid a search over steps and halving run, and whether they choose the same steps.

    python benchmarks/fewer_cells.py sweeps/quickstart.yaml sweeps/ef21_a9a.yaml

Runs each sweep four times in this process: the grid, `search: {step_size: refine}`, `prune: halving`, and
both. Prints cells that were run, rounds summed over cells, seconds, and for how many (method, K) the best step
is that of the grid; for those it is not, both steps. `--set` changes the sweeps, as for `raybench sweep`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pandas as pd

import raybench
from raybench.analysis import closing_table, frames
from raybench.report import words

REFINE, HALVE = "search={step_size: refine}", "prune=halving"
WAYS = {"grid": [], "refine": [REFINE], "halving": [HALVE], "both": [REFINE, HALVE]}


def chosen(folder: Path) -> pd.DataFrame:
    """Return the best step of every method at every K."""
    table = closing_table(frames(folder), by="series")
    return table.set_index(["facet", "method"])[["step_multiple", "step_size", "bits_to_target"]]


def compare(sweep: str, sets: list[str], out: Path) -> None:
    """Run a sweep in each way and print the table."""
    print(f"\n{sweep}\n\n| steps | cells | cell-rounds | seconds | same best step |")
    print("|---|---:|---:|---:|---:|")
    result, all_rounds, lines = {}, 0.0, []
    for name, more in WAYS.items():
        outcome = raybench.sweep(sweep, out / name, sets=[*sets, *more], inline=True)
        cells = pd.read_parquet(out / name / "cells")
        rounds = float(cells["rounds"].sum())
        all_rounds = all_rounds or rounds
        result[name] = chosen(out / name)
        result[name] = result[name].reindex(result["grid"].index)
        same = (result[name]["step_size"] == result["grid"]["step_size"]).sum()
        row = [name, f"{(cells['status'] != 'skipped').sum():,}"]
        row += [f"{rounds:,.0f} ({rounds / all_rounds:.0%})", f"{outcome.seconds:.0f}"]
        print(f"| {' | '.join(row)} | {same} of {len(result['grid'])} |", flush=True)
        for key, one in result["grid"].iterrows():
            other = result[name].loc[key]
            if other["step_size"] != one["step_size"]:
                steps = [words.step(s["step_multiple"], s["step_size"]) for s in (other, one)]
                bits = [words.bits(s["bits_to_target"]) for s in (other, one)]
                which = " ".join(part for part in map(str, key) if part)
                lines.append(f"{name}: {which} {steps[0]} ({bits[0]}), grid {steps[1]} ({bits[1]})")
    print("\n" + "\n".join(lines))


def main() -> None:
    """Read the arguments and compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sweeps", nargs="+")
    parser.add_argument("--set", action="append", default=[], dest="sets", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    for sweep in arguments.sweeps:
        with tempfile.TemporaryDirectory(prefix="raybench-fewer-") as out:
            compare(sweep, arguments.sets, Path(out))


if __name__ == "__main__":
    main()
