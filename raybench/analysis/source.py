"""What analyses start from: a results folder, frames, or (curves, cells), and of those the cells that are asked for."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from raybench.analysis.closing import Frames, framed, frames
from raybench.analysis.held import NUMBERS, Held, InFolder
from raybench.analysis.ordered import Ordered, ordered
from raybench.analysis.simulated import SECONDS
from raybench.core.errors import InputError, nearest
from raybench.store.files import open_folder
from raybench.store.reader import How

Source = str | os.PathLike[str] | Frames | tuple[pd.DataFrame, pd.DataFrame]
"""A results folder; its ``frames``; or (curves, cells) as ``raybench.load`` and ``raybench.store.cells`` return them."""
Where = Mapping[str, object]
"""Which cells are meant: columns of cells (or facet, method, series, step), each with a value or a list of values."""


def opened(source: Source, where: Where | None = None, accounting: How = None) -> Frames:
    """Return the frames of a source, with the cells that are meant alone.

    Of a folder only files with such cells are read, and of these only the columns that an analysis asks for. Names of methods
    are those of the whole source. Raises InputError for results that cannot be read and for an unknown column.
    """
    if isinstance(source, Frames):
        found = source
    elif isinstance(source, tuple):
        found = framed(*source)
    else:
        found = frames(source, accounting)
    return found if not where else chosen(found, where)


def chosen(found: Frames, where: Where) -> Frames:
    """Return frames with those cells alone whose columns have one of the values given."""
    keep = pd.Series(True, index=found.cells.index)
    for name, asked in where.items():
        if name not in found.cells:
            there = sorted(map(str, found.cells))
            raise InputError.of("where", f"unknown column {name!r}", nearest(name, there))
        several = isinstance(asked, Collection) and not isinstance(asked, str)
        keep &= found.cells[name].isin(list(asked) if several else [asked])  # type: ignore[call-overload]
    cells = found.cells[keep].reset_index(drop=True)
    return replace(found, cells=cells, held=Part(found.held, cells), _tuned={})


class Part:
    """The curves of some described cells of a source."""

    def __init__(self, held: Held, cells: pd.DataFrame) -> None:
        self.held, self.cells = held, cells

    def all(self) -> pd.DataFrame:
        """Return every row with every column, annotated."""
        rows = self.held.all()
        return rows[rows["cell"].isin(self.cells["cell"])]

    def columns(self, names: Sequence[str]) -> Ordered:
        """Return some columns of numbers, of every row."""
        if isinstance(self.held, InFolder):
            results = self.held.results
            blocks = results.blocks(list(dict.fromkeys(names)), set(self.cells["cell"]))
            return Ordered(pd.Index(results.cells["cell"]), blocks)
        return ordered(self.held.of(list(self.cells["cell"]), names), names)

    def of(self, cells: Collection[str], names: Sequence[str]) -> pd.DataFrame:
        """Return some columns of numbers, and what tells cells apart, of the rows of some cells."""
        return self.held.of(list(set(cells) & set(self.cells["cell"])), names)

    def extras(self, cells: Collection[str]) -> list[str]:
        """Return which metrics of one's own some cells may have: columns ``extra.NAME``."""
        return self.held.extras(list(set(cells) & set(self.cells["cell"])))


def axis(name: str, found: Frames, key: str) -> str:
    """Return a column of curves. Raises InputError, which names ``key``, where it is none that holds numbers."""
    there = [*NUMBERS, *[SECONDS] * (found.link is not None)]
    if name not in there:
        raise InputError.of(key, f"no column of numbers: {name!r}", nearest(name, there))
    return name


def keys(by: str | Sequence[str], cells: pd.DataFrame) -> list[str]:
    """Return columns to group cells by. Raises InputError for an unknown one."""
    names = [by] if isinstance(by, str) else list(by)
    for name in names:
        if name not in cells:
            raise InputError.of(
                "by", f"unknown column {name!r}", nearest(name, sorted(map(str, cells)))
            )
    return names


def targets_of(found: Frames, target: float | Sequence[float] | None) -> list[tuple[str, float]]:
    """Return (facet, target) pairs: the targets given, for every facet, else the own one of each facet."""
    facets = list(dict.fromkeys(found.cells["facet"]))
    if target is None and not facets:
        return []
    if target is None:
        best = found.tuned("method").drop_duplicates("facet")
        return list(zip(best["facet"], best["target"].astype(float), strict=True))
    values = [target] if isinstance(target, int | float) else list(target)
    for value in values:
        if not 0 < value < float("inf"):
            raise InputError.of("target", f"{value:g} is out of range", "a number > 0")
    return [(facet, float(value)) for facet in facets for value in values]


def inside(folder: str, name: str) -> Path:
    """Return the path of what is written into a local results folder for people to open: a file, or a folder of files.

    Raises InputError where a link, or something else that is no file, lies there.
    """
    files = open_folder(folder)
    files.names(name)
    return Path(files.path(name))
