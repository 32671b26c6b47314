"""Reading results: ``load`` for curves, ``cells`` for the cells, both as pandas frames."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from raybench.core.errors import InputError, Notice
from raybench.store import booking, identity, log
from raybench.store.accounting import Accounting, parse
from raybench.store.files import Files, open_folder
from raybench.store.log import DAMAGED, FOREIGN, NEWER, Log
from raybench.store.schema import CURVES
from raybench.store.table import expand_extra

COLUMNS_JOINED = [
    "group",
    "status",
    "split",
    "compressor_params",
    "downlink",
    "theory_step",
    "rounds",
    "d",
    "L",
    "L_tilde",
    "L_pm",
    "mu",
    "f_star",
    "heterogeneity",
    "omega",
    "alpha",
    "workers",
    "mode",
    "device",
    "batch",
]
"""Columns of ``cells`` that ``load`` joins to every row of a curve."""

Source = str | os.PathLike[str]
How = str | Mapping[str, object] | Accounting | None


def load(folder: Source, accounting: How = None, params: bool = False) -> pd.DataFrame:
    """Return the curves of a results folder, one row per recorded round of a committed cell.

    Columns: those of ``curves`` with the map ``extra`` as columns ``extra.<name>``, and from
    ``cells`` group, status, split, compressor_params, downlink, theory_step, rounds, d, L, L_tilde,
    L_pm, mu, f_star, heterogeneity, omega, alpha, workers, mode, device, batch. Rows are sorted by
    cell and round. With ``accounting`` the bits are booked anew; with ``params`` the resolved
    config is joined too, flattened (``algorithm.p``, ``problem.lambda``). Where some cells do not
    know how many index bits were packed, ``index_bits: auto`` is ``list_or_bitmask``, with a warning.
    Every file is compared with its digest; files that are not this folder's are left out, with a warning.
    Raises InputError if there are no results in the folder, a file is damaged or the accounting is unknown.
    """
    curves, _ = frames(folder, accounting, params)
    _warn(accounting, curves)
    return curves


def cells(folder: Source, accounting: How = None) -> pd.DataFrame:
    """Return the cells of a results folder, one row per planned cell, with the columns of ``cells``.

    With ``accounting`` the bits are booked anew from the last row of each cell's curve.
    Raises InputError as ``load`` does.
    """
    if accounting is None:
        return _cells(checked(open_results(folder)))
    curves, table = frames(folder, accounting)
    _warn(accounting, curves)
    return table


def _warn(accounting: How, curves: pd.DataFrame) -> None:
    asked = None if accounting is None else parse(accounting)
    if asked is not None and booking.settled(asked, curves) != asked:
        warnings.warn(booking.PACKED_BITS_UNKNOWN, Notice, stacklevel=3)


def frames(
    folder: Source, accounting: How = None, params: bool = False
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return ``load`` and ``cells`` of a folder from one reading of it."""
    how = None if accounting is None else parse(accounting)
    files = open_results(folder)
    found = checked(files, curves=CURVES.names)
    table = _cells(found)
    curves = _curves(found, table)
    if how is not None:
        curves, table = booking.rebook(curves, table, how)
    extra = table.set_index("cell")[COLUMNS_JOINED]
    if params:
        config = configs(table).set_index(extra.index)
        extra = extra.join(config.drop(columns=[c for c in config if c in extra or c in curves]))
    index = pd.Index(extra.index).get_indexer(curves["cell"])
    joined = extra.iloc[index].set_index(curves.index)
    return pd.concat([curves, joined], axis=1), table


def sweep_text(folder: Source) -> str:
    """Return the text of a results folder's ``sweep.yaml``, empty where it has none."""
    files = open_results(folder)
    return identity.decoded(files.read("sweep.yaml") or b"", files.name)


def sweep(folder: Source) -> dict[str, Any]:
    """Return the saved sweep of a results folder, empty where it has none."""
    text = sweep_text(folder)
    return identity.parse(text) if text else {}


def accounting_of(folder: Source, asked: Accounting | None = None) -> Accounting:
    """Return how a results folder books bits: as its first curves are, ``asked`` where it has none.

    A folder keeps the accounting that it began with, so that its bits compare. Where some curves do
    not know what was packed ``index_bits: auto`` is ``list_or_bitmask``, as ``booking.settled`` says.
    """
    files = open_folder(folder)
    if not files.names("curves"):
        return asked or Accounting()
    text = files.read("sweep.yaml")
    own = asked or Accounting()
    if text is not None:
        own = parse(identity.parse(identity.decoded(text, files.name)).get("accounting"))
    if own.index_bits != "auto":
        return own
    found = log.look(files, columns=["cell", "status"], curves=booking.COUNTS_THAT_TELL)
    return booking.settled(own, joined(found, booking.COUNTS_THAT_TELL).to_pandas())


def flatten(config: str | None) -> dict[str, object]:
    """Return a cell's config (JSON) as one level: ``problem.dataset``, ``algorithm.p``, ``x0``.

    A section's ``params`` are its keys, its ``name`` stays ``<section>.name``; lists stay lists.
    """
    flat: dict[str, object] = {}

    def walk(prefix: str, value: object) -> None:
        if not isinstance(value, Mapping):
            flat[prefix] = value
            return
        for key, inner in value.items():
            walk(prefix if key == "params" else f"{prefix}.{key}" if prefix else str(key), inner)

    walk("", json.loads(config) if isinstance(config, str) and config else {})
    return flat


def configs(table: pd.DataFrame) -> pd.DataFrame:
    """Return the flattened configs of the cells, same rows; missing keys are NaN."""
    return pd.DataFrame([flatten(c) for c in table["config"]], index=table.index)


def open_results(folder: Source) -> Files:
    """Return the files of a results folder. Raises InputError if it is missing or has no results."""
    files = open_folder(folder)
    if not files.exists():
        raise InputError.of(
            "folder", f"no such folder: {files.name}", "sweeps write to results/NAME"
        )
    if not files.names("cells"):
        what = f"{files.name} holds no results yet"
        raise InputError.of("folder", what, "give the folder that holds cells/ and curves/")
    return files


def checked(files: Files, curves: Sequence[str] | None = None) -> Log:
    """Return the log of a folder, with a warning for each file of others; curves: the columns to read.

    Raises InputError for a file that is damaged or that a newer raybench wrote.
    """
    found = log.look(files, curves=curves)
    log.refuse(found, files.name, DAMAGED, NEWER)
    for finding in found.of(FOREIGN):
        what = f"{files.name}/{finding.rel} is left out: {finding.what}"
        warnings.warn(what, Notice, stacklevel=4)
    return found


def _cells(found: Log) -> pd.DataFrame:
    table = found.cells().to_pandas()
    table = table.assign(rank=table["status"].map(log.rank)).sort_values("rank", kind="stable")
    table = table.drop(columns="rank").drop_duplicates("cell")
    return table.sort_index().reset_index(drop=True)


def joined(found: Log, columns: Sequence[str]) -> pa.Table:
    """Return the curves of all shards, as they were read with these columns."""
    empty = pa.schema([CURVES.field(name) for name in columns]).empty_table()
    return pa.concat_tables([empty, *(s.curves for s in found.shards if s.curves is not None)])


def _curves(found: Log, table: pd.DataFrame) -> pd.DataFrame:
    known = pa.array(table["cell"].tolist(), pa.string())
    rows = joined(found, CURVES.names)
    rows = rows.filter(pc.is_in(rows["cell"], known))
    cell = pd.factorize(rows["cell"].to_pandas(), sort=True)[0]
    at = rows["round"].to_numpy()
    order = np.lexsort((at, cell))
    cell, at = cell[order], at[order]
    first = np.ones(len(order), bool)  # a cell that stands in two shards is read once
    first[1:] = (cell[1:] != cell[:-1]) | (at[1:] != at[:-1])
    return expand_extra(rows.take(order[first])).to_pandas()
