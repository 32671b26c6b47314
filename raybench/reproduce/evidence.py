"""What claims are judged on: a results folder, the table that a script measures, or results that are kept with the docs."""

from __future__ import annotations

import hashlib
import runpy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from raybench.analysis import describe, frames
from raybench.analysis.frames import check_column, having
from raybench.analysis.tuned import main_metric
from raybench.core.errors import InputError
from raybench.reproduce.claims import Reproduction
from raybench.spec import load
from raybench.store.reader import configs
from raybench.store.schema import CURVES

MEASURED = "measured.parquet"
COLUMNS = [
    *("cell", "group", "label", "status", "problem", "dataset", "clients", "split", "algorithm"),
    *("compressor", "k", "step_size", "step_multiple", "seed", "d"),
    *("value_bits", "exchange", "on_clock", "baseline", "config"),
    *("rounds", "loss", "grad_norm_sq", "accuracy", "bits_up", "seconds"),
]
"""The columns of cells that are kept with the docs."""
IN_CURVES = CURVES.names[: CURVES.names.index("round")]
"""The columns that tell cells apart in curves: they are kept once, with the cells."""


@dataclass(frozen=True)
class Evidence:
    """Described cells and their curves; of a script its rows, as cells without curves.

    origin: where it comes from, in words.
    """

    cells: pd.DataFrame
    curves: pd.DataFrame
    origin: str

    def meant(self, where: Mapping[str, Any], place: str, more: Sequence[str] = ()) -> pd.DataFrame:
        """Return the cells that have one of the values given in each of some columns, and ``more`` columns beside.

        A column may be a key of the configuration. Raises InputError, which names ``place``, for an unknown one.
        """
        cells, names = self.cells, list(dict.fromkeys([*where, *more]))
        if "config" in cells and not set(names) <= set(cells):
            settings = configs(cells)
            cells = cells.join(settings[[n for n in names if n in settings and n not in cells]])
        for name in more:
            check_column(name, cells, place)
        return having(cells, where, place)


def of_folder(folder: Path) -> Evidence | None:
    """Return what a results folder, or a script's table in it, holds; None where it holds nothing."""
    if (folder / MEASURED).exists():
        return Evidence(pd.read_parquet(folder / MEASURED), pd.DataFrame(), str(folder))
    if not (folder / "cells").is_dir():
        return None
    results = frames(folder)
    return Evidence(results.cells, results.curves, str(folder))


def kept(what: Reproduction, docs: Path) -> Evidence | None:
    """Return the results that are kept with the docs for a reproduction, None where there are none.

    Cells that its sweep no longer has, since it or a method was changed, are left out.
    """
    table = docs / f"{what.name}.measured.parquet"
    if table.exists():
        return Evidence(pd.read_parquet(table), pd.DataFrame(), table.name)
    cells, curves = (docs / f"{what.name}.{part}.parquet" for part in ("cells", "curves"))
    if cells.exists() and curves.exists():
        rows = pd.read_parquet(cells)
        if what.sweep is not None:
            rows = rows[rows["cell"].isin([cell.id for cell in load(what.sweep).cells])]
        told = rows[[name for name in IN_CURVES if name in rows]]
        whole = pd.read_parquet(curves).merge(told, on="cell")
        return Evidence(describe(rows), whole, curves.name) if len(rows) else None
    other = what.evidence
    if other is None or other.is_dir():
        return None if other is None else of_folder(other)
    loaded = pd.read_parquet(other)  # some of the columns of raybench.load
    last = loaded.sort_values("round").drop_duplicates("cell", keep="last")
    facts = {"config": None, "step_multiple": float("nan"), "clients": None}
    facts |= {"exchange": None, "on_clock": False, "baseline": False}
    last = last.assign(rounds=last["round"], **{k: v for k, v in facts.items() if k not in last})
    return Evidence(describe(last), loaded, other.name)


def keep(what: Reproduction, evidence: Evidence, docs: Path) -> list[Path]:
    """Write what the claims and figures of a reproduction need of its results into ``docs``; return the paths."""
    docs.mkdir(parents=True, exist_ok=True)
    if evidence.curves.empty:
        path = docs / f"{what.name}.measured.parquet"
        evidence.cells.to_parquet(path, index=False)
        return [path]
    chosen_by = {main_metric(evidence.curves), "bits_up"}  # how figures choose steps
    asked = ["cell", "round", *sorted((what.columns | chosen_by) - {"round", *IN_CURVES})]
    curves = evidence.curves[[name for name in asked if name in evidence.curves]]
    cells = evidence.cells[[name for name in COLUMNS if name in evidence.cells]]
    paths = [docs / f"{what.name}.{part}.parquet" for part in ("cells", "curves")]
    cells.to_parquet(paths[0], index=False, compression="zstd")
    # curves are smooth: the bytes of equal weight stand together, which takes two thirds of the room
    smooth = [*curves.select_dtypes("floating")]
    how = {"compression_level": 19, "use_dictionary": ["cell"], "use_byte_stream_split": smooth}
    curves.to_parquet(paths[1], index=False, compression="zstd", **how)
    return paths


def measured(script: Path, folder: Path, full: bool) -> None:
    """Write the table that a script's ``measure(full)`` returns into a folder, unless the same script has done so.

    The script is one of raybench's own, or stands beside a claims file that the user named. Raises InputError where it
    cannot be run, and where it has no such function or that returns no table.
    """
    table, digest = folder / MEASURED, hashlib.sha256(script.read_bytes()).hexdigest()
    if table.exists() and pd.read_parquet(table).attrs.get("script") == digest:
        return
    try:
        measure = runpy.run_path(str(script)).get("measure")
        rows = measure(full) if callable(measure) else None
    except InputError:
        raise
    except Exception as error:  # whatever a user's script raises
        what = f"cannot be run: {type(error).__name__}: {error}"
        raise InputError.of(str(script), what) from error
    if not isinstance(rows, pd.DataFrame):
        fix = "def measure(full: bool) -> pandas.DataFrame"
        raise InputError.of(str(script), "returns no table", fix)
    folder.mkdir(parents=True, exist_ok=True)
    rows.attrs["script"] = digest
    rows.to_parquet(table, index=False)
