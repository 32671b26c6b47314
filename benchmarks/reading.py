"""How long it takes from a results folder to its tables, figures and report.

    python benchmarks/reading.py --cells 2000

Writes a folder of cells with 1,000 rows each (``benchmarks/to_target.py``) and prints the seconds of `raybench.load`, of the
tuned table, of the bands of the tuned curves, of all figures as PNG, PDF and CSV, of the report and of the audit, each from the folder.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from to_target import ROUNDS, fill

import raybench
from raybench.analysis import bands, closing_table, frames
from raybench.analysis.rankings import audit
from raybench.report import figures, html
from raybench.report.content import chosen, rows_of


def drawn_bands(folder: Path) -> int:
    """Return how many rows the bands of the curves have that a report draws."""
    found = frames(folder)
    rows = rows_of(found, chosen(found)[0])
    return len(bands(rows, by=["facet", "series", "step"]))


def main() -> None:
    """Read the arguments, write the folder and take the times."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cells", type=int, default=2000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as here:
        folder = Path(here) / "large"
        cells = fill(folder, asked.cells * ROUNDS)
        print(f"{cells:,} cells of {ROUNDS:,} rows")
        total = 0.0
        for what, work in {
            "load": lambda: len(raybench.load(folder)),
            "tuned table": lambda: len(closing_table(folder)),
            "bands": lambda: drawn_bands(folder),
            "figures": lambda: len(figures(folder)),
            "report": lambda: html(folder).stat().st_size,
            "audit": lambda: len(audit(folder).pairs),
        }.items():
            begin = time.perf_counter()
            came = work()
            spent = time.perf_counter() - begin
            total += spent if what != "audit" else 0.0
            print(f"{spent:7.2f} s  {what} ({came:,})", flush=True)
        print(f"{total:7.2f} s  in all without the audit")


if __name__ == "__main__":
    main()
