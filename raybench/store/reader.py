"""Reading results: ``load`` for curves, ``cells`` for the cells, both as pandas frames."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from raybench.core.errors import InputError, Notice
from raybench.store import identity, log
from raybench.store.accounting import Accounting, parse_accounting, rebook
from raybench.store.files import Files, open_folder, reached
from raybench.store.log import BATCHES, DAMAGED, FOREIGN, PLANNED, SWEEPS, UNREADABLE, Log, Shard
from raybench.store.schema import CELLS, CURVES, EXTRA_COUNTS, config_of
from raybench.store.table import cells_frame, coded, curves_frame, expand_extra, in_order

COLUMNS_JOINED = (
    *("status", "compressor_params", "downlink", "theory_step", "rounds", "d", "L"),
    *("L_tilde", "L_pm", "mu", "f_star", "heterogeneity", "omega", "alpha", "workers"),
    *("mode", "device", "value_bits", "exchange", "on_clock", "baseline", "batch"),
)
"""Columns of ``cells`` that ``load`` joins to every row of a curve."""

EXTRA = "extra."  # and a name: a column of the map ``extra``

GRID = "plan/grid.json"
"""Where a search notes how many cells the grid has in each group."""

Source = str | os.PathLike[str] | Files
"""A results folder: its place, its URL, or its files, opened once for several of the functions here."""
How = str | Mapping[str, object] | Accounting | None


def load(folder: Source, accounting: How = None, params: bool = False) -> pd.DataFrame:
    """Return the curves of a results folder, one row per recorded round of a committed cell.

    Columns: those of ``curves`` with the map ``extra`` as columns ``extra.<name>``, and from ``cells`` status,
    compressor_params, downlink, theory_step, rounds, d, L, L_tilde, L_pm, mu, f_star, heterogeneity, omega, alpha,
    workers, mode, device, value_bits, exchange, on_clock, baseline, batch. Rows are sorted by cell and round. Every file
    is compared with its digest; files that are not this folder's are left out, with a warning. Raises InputError if
    there are no results in the folder, a file is damaged or the accounting is unknown.

    Args:
        folder: a results folder, or its URL.
        accounting: under which bits are counted anew; by default as they were.
        params: whether the resolved configuration is joined, as columns such as ``algorithm.p`` and ``problem.lambda``.
    """
    return frames(folder, accounting, params)[0]


def cells(folder: Source, accounting: How = None) -> pd.DataFrame:
    """Return the cells of a results folder, one row per planned cell, with the columns of ``cells``.

    With ``accounting`` the bits are booked anew from the last row of each cell's curve.
    Raises InputError as ``load`` does.
    """
    if accounting is None:
        return cells_frame(checked(open_results(folder)).cells())
    return frames(folder, accounting)[1]


def frames(
    folder: Source, accounting: How = None, params: bool = False
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return ``load`` and ``cells`` of a folder from one reading of it."""
    how = None if accounting is None else parse_accounting(accounting)
    files = open_results(folder)
    commits = checked(files)
    table = cells_frame(commits.cells())
    curves = _curves(files, commits, table)
    if how is not None:
        curves, table = rebook(curves, table, how)
    return _with_cells(curves, table, params), table


def _curves(
    files: Files,
    commits: Log,
    table: pd.DataFrame,
    columns: Sequence[str] = CURVES.names,
    lenient: bool = False,
) -> pd.DataFrame:
    every = log.each_curves(files, commits, columns, lambda part: part, lenient=lenient)
    return curves_frame(every, table["cell"])


def _with_cells(curves: pd.DataFrame, table: pd.DataFrame, params: bool = False) -> pd.DataFrame:
    """Return the curves with the columns of their cells that ``load`` joins."""
    extra = table.set_index("cell")[list(COLUMNS_JOINED)]
    if params:
        config = configs(table).set_index(extra.index)
        extra = extra.join(config.drop(columns=[c for c in config if c in extra or c in curves]))
    index = pd.Index(extra.index).get_indexer(curves["cell"])
    joined = extra.iloc[index].set_index(curves.index)
    return pd.concat([curves, joined], axis=1)


class Results:
    """A results folder whose curves are read as far as they are asked for.

    only: ids of the cells that are wanted, None for all; ``left_out`` says how many others there are. Raises
    InputError, as all methods do, if there are no results in the folder or a file is damaged.
    """

    def __init__(self, folder: Source, only: Collection[str] | None = None) -> None:
        self.files = open_results(folder)
        names = [n for n in CELLS.names if n != "constants"]
        self.log = checked(self.files, columns=names)
        every = cells_frame(self.log.cells())
        rows = every if only is None else every[every["cell"].isin(only)]
        self.cells = rows.reset_index(drop=True)
        self.left_out = len(every) - len(self.cells)
        self._places = {cell: j for j, cell in enumerate(self.cells["cell"])}
        shards = self._with(self._places) if self.left_out else self.log.shards
        few = [replace(s, cells=s.cells.select(["cell", "status"])) for s in shards]
        self.log = replace(self.log, shards=tuple(few))

    def blocks(
        self, names: Sequence[str], cells: Collection[str] | None = None
    ) -> list[dict[str, np.ndarray]]:
        """Return columns of numbers of all curves, or those of some cells: a block for each shard.

        The rows of a cell stand together, in one block, in order of their rounds; ``cell`` is its place
        in ``cells``. ``extra.NAME`` is an entry of the map ``extra``, NaN where absent.
        """
        names = list(dict.fromkeys(names))
        extras = [name for name in names if name.startswith(EXTRA)]
        read = dict.fromkeys("extra" if name in extras else name for name in [*names, "round"])
        asked = None if cells is None else {self._places[cell] for cell in cells}

        def block(table: pa.Table) -> dict[str, np.ndarray]:
            codes, ids = coded(table["cell"])
            places = [self._places.get(cell, -1) for cell in ids]
            if asked is not None:
                places = [place if place in asked else -1 for place in places]
            code = np.array([*places, -1], np.int32)[codes]
            table = expand_extra(table)
            rest = {name: np.full(len(code), np.nan) for name in extras}
            there = [name for name in (*names, "round") if name in table.column_names]
            rest |= {name: table[name].to_numpy() for name in there}
            order = in_order(code, rest["round"])
            return {"cell": code[order], **{name: rest[name][order] for name in names}}

        only = None if cells is None else {s.name for s in self._with(cells)}
        blocks, seen = [], np.zeros(len(self.cells), bool)
        for part in log.each_curves(self.files, self.log, ["cell", *read], block, only):
            double = seen[part["cell"]]
            if double.any():  # a cell that stands in two shards is read once
                part = {name: values[~double] for name, values in part.items()}
            seen[part["cell"]] = True
            blocks.append(part)
        return blocks

    def some(self, cells: Collection[str], names: Sequence[str]) -> pd.DataFrame:
        """Return the ids of cells and columns of numbers of the rows of some cells, by id and round."""
        columns = list(dict.fromkeys(["cell", "round", *names]))
        parts = self.blocks(["round", *names], cells)
        empty = {name: np.empty(0, np.int32 if name == "cell" else float) for name in columns}
        whole = {name: np.concatenate([empty[name], *(p[name] for p in parts)]) for name in columns}
        ids = self.cells["cell"].array
        rank = np.argsort(ids.argsort())[whole["cell"]]
        order = np.lexsort((whole["round"], rank))
        numbers = {name: values[order] for name, values in whole.items()}
        return pd.DataFrame({**numbers, "cell": ids.take(numbers["cell"])}, copy=False)

    def extras(self, cells: Collection[str]) -> list[str]:
        """Return which metrics of the map ``extra`` the files know in which some cells stand, as ``extra.NAME``, sorted."""

        def block(table: pa.Table) -> set[str]:
            return {name for name in expand_extra(table).column_names if name.startswith(EXTRA)}

        only = {s.name for s in self._with(cells)}
        parts = log.each_curves(self.files, self.log, ["cell", "extra"], block, only)
        return sorted(set().union(*parts) - {f"{EXTRA}{name}" for name in EXTRA_COUNTS})

    def curves(self) -> pd.DataFrame:
        """Return the curves as ``load`` does."""
        return _with_cells(_curves(self.files, self.log, self.cells), self.cells)

    def _with(self, cells: Collection[str]) -> list[Shard]:
        """Return the shards in which some cells stand."""
        ids = set(cells)
        return [s for s in self.log.shards if not ids.isdisjoint(s.cells["cell"].to_pylist())]


def part(folder: Source, columns: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return (curves with these columns alone, cells) of a folder, which a driver may be about to mend.

    columns: of the schema of curves, ``cell`` and ``round`` among them. Shards that are damaged are left out.
    """
    files = open_results(folder)
    commits = log.look(files, deep=True)
    log.refuse(commits, files.name, *UNREADABLE)
    table = cells_frame(commits.cells())
    return _curves(files, commits, table, columns, lenient=True), table


def sweep_texts(folder: Source) -> dict[str, str]:
    """Return the texts of all sweeps that ran in a results folder, by file, each once: the last is ``sweep.yaml``."""
    files = open_results(folder)
    names = ["sweep.yaml", *(f"{SWEEPS}/{name}" for name in files.names(SWEEPS))]
    texts = {name: identity.decoded(files.read(name) or b"", files.name) for name in names}
    last = texts.pop("sweep.yaml")
    texts = {name: text for name, text in texts.items() if text != last}
    return {**texts, "sweep.yaml": last} if last else texts


def sweep(folder: Source) -> dict[str, Any]:
    """Return the saved sweep of a results folder, empty where it has none."""
    return identity.parse_saved_sweep(sweep_texts(folder).get("sweep.yaml") or "{}")


def accounting_of(folder: Source, asked: Accounting | None = None) -> Accounting:
    """Return how a results folder books bits: as its first curves are, ``asked`` where it has none.

    A folder keeps the accounting that it began with, so that its bits compare.
    """
    files = open_folder(folder)
    text = files.read("sweep.yaml") if files.names("curves") else None
    if text is None:
        return asked or Accounting()
    return parse_accounting(
        identity.parse_saved_sweep(identity.decoded(text, files.name)).get("accounting")
    )


def planned(folder: Source) -> frozenset[str] | None:
    """Return the ids of all cells of the sweep that ran last in a results folder; None where every cell counts.

    That is so where no sweep has noted its cells: in folders of single runs, and of files from elsewhere.
    """
    ids = log.written(open_folder(folder), PLANNED, list)
    return None if ids is None else frozenset(map(str, ids))


def missing(folder: Source, ended: Iterable[str]) -> set[str]:
    """Return the ids of cells that the sweep which ran last in a results folder has yet to end."""
    files = open_folder(folder)
    lists = [ids for ids in log.noted(files, BATCHES).values() if isinstance(ids, list)]
    noted, shown = {cell for ids in lists for cell in ids if isinstance(cell, str)}, planned(folder)
    return (noted if shown is None else noted & shown) - set(ended)


def grid(folder: Source) -> dict[str, int]:
    """Return how many cells the grid has by group, of a sweep that searches; empty of any other."""
    files = open_results(folder)
    counts = log.written(files, GRID, dict) or {}
    if not all(type(count) is int and count >= 0 for count in counts.values()):
        raise InputError.of(f"{files.name}/{GRID}", "is not as it was written", "remove it")
    return counts


def flatten(config: object) -> dict[str, object]:
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

    walk("", config_of(config))
    return flat


# as ``execution/rows.py`` writes it, keys sorted: what cells that differ in seed and step number alone do not share
_OWN = (
    (
        r'"seed": \d+, "step_size": \{"kind": "(\w+)", "number": [^,{}]+, ',
        r'"step_size": {"kind": "\1", ',
    ),
    (r', "step_size": [^,{}"]+\}, "rounds": ', '}, "rounds": '),
)


def shared(config: str) -> str:
    """Return a cell's config (JSON) without seed, step number and step size: equal texts differ in no more."""
    for pattern, rest in _OWN:
        config = re.sub(pattern, rest, config, count=1)
    return config


def configs(table: pd.DataFrame) -> pd.DataFrame:
    """Return the flattened configs of the cells, same rows; missing keys are NaN."""
    return pd.DataFrame([flatten(c) for c in table["config"]], index=table.index)


def existing(folder: Source) -> Files:
    """Return the files of a folder. Raises InputError where there are none, or it cannot be reached."""
    files, there = reached(folder, "folder")
    if there:
        return files
    raise InputError.of("folder", f"no such folder: {files.name}", "sweeps write to results/NAME")


def open_results(folder: Source) -> Files:
    """Return the files of a results folder. Raises InputError if it is missing or has no results."""
    if isinstance(folder, Files):
        return folder
    files = existing(folder)
    if not files.names("cells"):
        what = f"{files.name} holds no results yet"
        raise InputError.of("folder", what, "give the folder that holds cells/ and curves/")
    return files


def checked(files: Files, columns: Sequence[str] | None = None) -> Log:
    """Return the log of a folder, or some columns of it, with a warning for each file of others.

    Raises InputError for a file that is damaged or of a version of the schema that this raybench does not read.
    """
    files.check()
    commits = log.look(files, columns=columns)
    log.refuse(commits, files.name, DAMAGED, *UNREADABLE)
    for finding in commits.of(FOREIGN):
        what = f"{files.name}/{finding.rel} is left out: {finding.what}"
        warnings.warn(what, Notice, stacklevel=4)
    return commits
