"""Curves of described cells: where they are, their first and last rows, what a target costs, whether f grew.

They are in memory, or in a results folder of which only what is asked for is read: the curves of 100,000 cells are more
than memory holds. Numbers are looked at cell by cell and in order of rounds, in blocks as they were read, so that first
and last rows are found without sorting.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from raybench.analysis.methods import METHOD_KEYS, annotate
from raybench.store import reader
from raybench.store.schema import CURVES, EXTRA_COUNTS

NUMBERS = [f.name for f in CURVES if f.name not in ("cell", "extra") and str(f.type) != "string"]
"""Columns of curves that hold numbers."""
GROWN = 2.0
"""A run is marked whose last f is at least so many times f(x^0): it left the start behind it upwards."""
Block = Mapping[str, np.ndarray]
"""Columns of equal length; ``cell`` is the number of each row's cell."""
Rows = Callable[[Block], np.ndarray]
"""Which rows of a block are meant, as a mask."""


# Rows in order ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ordered:
    """Curves in order; the rows of a cell are in one block. cells: the ids that the numbers of cells stand for."""

    cells: pd.Index
    blocks: Sequence[Block]

    def first(self, name: str, where: Rows, missing: float = np.nan) -> pd.Series:
        """Return a column in the first of the rows meant, by cell; ``missing`` for cells without any."""
        return self._ends(name, where, missing, last=False)

    def last(self, name: str, where: Rows, missing: float = np.nan) -> pd.Series:
        """Return a column in the last of the rows meant, by cell; ``missing`` for cells without any."""
        return self._ends(name, where, missing, last=True)

    def known(self, name: str) -> bool:
        """Return whether a column has a value anywhere."""
        return any(name in block and not np.isnan(block[name]).all() for block in self.blocks)

    def _ends(self, name: str, where: Rows, missing: float, last: bool) -> pd.Series:
        values = np.full(len(self.cells), missing)
        for block in self.blocks:
            at = np.flatnonzero(where(block))
            cell = block["cell"][at]
            new = cell[1:] != cell[:-1]
            end = np.append(new, True) if last else np.insert(new, 0, True)
            values[cell[end[: len(at)]]] = block[name][at[end[: len(at)]]]
        return pd.Series(values, index=self.cells)


def every(block: Block) -> np.ndarray:
    """Return that all rows are meant."""
    return np.ones(len(block["cell"]), bool)


def known(name: str) -> Rows:
    """Return that the rows are meant in which a column has a value."""
    return lambda block: ~np.isnan(block[name])


def ordered(curves: pd.DataFrame | Ordered, names: Sequence[str]) -> Ordered:
    """Return curves (with columns cell and round at least) in order, with some of their columns, as floats."""
    if isinstance(curves, Ordered):
        return curves
    code, cells = pd.factorize(curves["cell"])
    order = np.lexsort((curves["round"].to_numpy(), code))
    block = {name: curves[name].to_numpy(float)[order] for name in dict.fromkeys(names)}
    return Ordered(pd.Index(cells), [{**block, "cell": code[order]}])


def pieces(
    block: Block, names: Sequence[str], rows: np.ndarray | slice
) -> list[tuple[np.ndarray, ...]]:
    """Return columns of the rows of a block that a mask means, cell by cell."""
    cell = block["cell"][rows]
    if not len(cell):
        return []
    new = np.flatnonzero(cell[1:] != cell[:-1]) + 1
    return list(zip(*(np.split(block[name][rows], new) for name in names), strict=True))


def first_crossing(
    curves: pd.DataFrame | Ordered,
    target: float,
    x: str = "bits_up",
    y: str = "grad_norm_sq",
    settled: bool = False,
) -> pd.Series:
    """Return per cell the ``x`` of its first row with ``y <= target``, inf where it has none.

    No interpolation: the cost is that of a point that was reached. With ``settled`` a cell whose
    last row is above the target has not reached it: an unstable step only passes by. Rows in which
    y was not measured say nothing. Indexed by cell id.
    """
    rows = ordered(curves, [x, y])
    cost = rows.first(x, lambda block: block[y] <= target, np.inf)
    last = rows.last(y, lambda block: ~np.isnan(block[y]))
    return cost.where(last <= target, np.inf) if settled else cost


# Where they are --------------------------------------------------------------------------------------


class InMemory:
    """Curves that are in memory, annotated."""

    def __init__(self, curves: pd.DataFrame) -> None:
        self.curves = curves

    def all(self) -> pd.DataFrame:
        """Return every row with every column, annotated."""
        return self.curves

    def columns(self, names: Sequence[str]) -> Ordered:
        """Return some columns of numbers, of every row."""
        return ordered(self.curves, names)

    def of(self, cells: Collection[str], names: Sequence[str]) -> pd.DataFrame:
        """Return all columns, of the rows of some cells."""
        del names
        return self.curves[self.curves["cell"].isin(cells)]

    def extras(self, cells: Collection[str]) -> list[str]:
        """Return which metrics of one's own there are: columns ``extra.NAME``."""
        del cells
        counts = {f"extra.{name}" for name in EXTRA_COUNTS}
        return sorted(c for c in self.curves if c.startswith("extra.") and c not in counts)

    def part(self, cells: pd.DataFrame) -> InMemory:
        """Return the curves of some described cells."""
        return InMemory(self.of(cells["cell"], ()))


class InFolder:
    """Curves that lie in a results folder. The columns that were read last are kept.

    cells: described. whole: whether these are all cells of the results, so that no file is looked at for others.
    """

    def __init__(self, results: reader.Results, cells: pd.DataFrame, whole: bool = True) -> None:
        self.results, self.cells, self.whole = results, cells, whole
        self._all: pd.DataFrame | None = None
        self._few: tuple[tuple[str, ...], Ordered] | None = None

    def all(self) -> pd.DataFrame:
        """Return every row with every column, annotated; read once."""
        if self._all is None:
            self._all = annotate(self.results.curves(), self.cells)
        return self._all

    def columns(self, names: Sequence[str]) -> Ordered:
        """Return some columns of numbers, of every row."""
        extra = tuple(sorted(set(names)))
        if self._few is None or self._few[0] != extra:
            self._few = None  # first, so that both are never held
            blocks = self.results.blocks(extra, None if self.whole else set(self.cells["cell"]))
            self._few = extra, Ordered(pd.Index(self.results.cells["cell"]), blocks)
        return self._few[1]

    def of(self, cells: Collection[str], names: Sequence[str]) -> pd.DataFrame:
        """Return some columns of numbers, and what tells cells apart, of the rows of some cells."""
        rows = self.results.some(cells, names)
        facts = ["k", "step_size", "step_multiple", "seed", "label", "group", "status"]
        table = self.cells.set_index("cell")[[*facts, *METHOD_KEYS]]
        # curves stand together: one look for each, not for each of its rows
        place, ids = pd.factorize(rows["cell"])
        joined = table.iloc[table.index.get_indexer(ids)[place]].set_index(rows.index)
        return pd.concat([rows, joined], axis=1)

    def extras(self, cells: Collection[str]) -> list[str]:
        """Return which metrics of one's own the files of some cells hold: columns ``extra.NAME``."""
        return self.results.extras(cells)

    def part(self, cells: pd.DataFrame) -> InFolder:
        """Return the curves of some of the described cells; no file without them is read."""
        return InFolder(self.results, cells, whole=False)


CurvesSource = InMemory | InFolder


# Runs that ended ``ok`` though f grew: their gradient may be small, far away from any minimum ----------


def growth(cells: pd.DataFrame, stored: CurvesSource) -> pd.Series:
    """Return how f grew in each cell, same rows as ``cells``: ``f grew 650,000×``, empty where it did not.

    Of cells that ended ok. Where f(x^0) is not positive no factor tells anything: ``f grew from 0 to 454,016``.
    """
    words = pd.Series("", index=cells.index, dtype=object)
    ended = cells[(cells["status"] == "ok") & cells["loss"].notna()]
    if ended.empty:
        return words
    # f(x^0) hangs on problem and seed: one curve for each tells who may have grown, their own curves whether
    heads = ended.drop_duplicates(["facet", "seed"])
    start = heads.assign(start=heads["cell"].map(_first_loss(stored, heads["cell"])))
    near = ended[["facet", "seed"]].merge(start[["facet", "seed", "start"]], "left")["start"]
    maybe = ended[_grew(near, ended["loss"])]
    if maybe.empty:
        return words
    first, last = maybe["cell"].map(_first_loss(stored, maybe["cell"])), maybe["loss"]
    for row in maybe.index[_grew(first, last)]:
        before, after = float(first[row]), float(last[row])
        factor = f"f grew {_two_digits(after / before)}×" if before > 0 else ""
        words[row] = factor or f"f grew from {_two_digits(before)} to {_two_digits(after)}"
    return words


def _first_loss(stored: CurvesSource, cells: pd.Series) -> pd.Series:
    """Return f at the first row of cells that knows it, by cell."""
    return ordered(stored.of(set(cells), ["loss"]), ["loss"]).first("loss", known("loss"))


def _grew(before: pd.Series, after: pd.Series) -> np.ndarray:
    """Return where f grew from before to after; where before is not positive, by 1 and by its own size."""
    first, last = before.to_numpy(float), after.to_numpy(float)
    above = np.where(first > 0, (GROWN - 1) * first, np.maximum(1.0, np.abs(first)))
    with np.errstate(invalid="ignore"):
        grew: np.ndarray = last - first >= above
    return grew


def _two_digits(value: float) -> str:
    """Return two digits: 2.3, 18, 650,000, and powers of ten from a billion on."""
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if 10 <= abs(rounded) < 1e9 else f"{rounded:g}"
