"""Curves of many cells on one axis: each interpolated in logarithms, or the median over seeds with its interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from raybench.analysis.curves import ordered, pieces
from raybench.analysis.frames import Source, Where, axis, frames_of, keys
from raybench.analysis.statistics import ranks
from raybench.core.errors import InputError
from raybench.store.reader import How

AXES = ("bits_up", "round", "epoch", "grad_evals", "seconds")
"""What curves are mostly aligned on; any cumulative column of curves will do."""
POINTS = 200


def curves(
    source: Source,
    x: str | None = None,
    y: str | None = None,
    *,
    by: str | Sequence[str] = ("facet", "series", "step"),
    at: Sequence[float] | np.ndarray | None = None,
    points: int = POINTS,
    where: Where | None = None,
    accounting: How = None,
) -> pd.DataFrame:
    """Return every cell's ``y`` on a common grid of ``x``, so that rows of different cells can be subtracted or averaged.

    Between two recorded rows log y is linear in log x: a curve that falls like a power of x, or is flat, is met
    exactly. Where one end of a piece is not positive, y is linear in log x. Nothing is extrapolated: before a cell's
    first positive x and after its last row y is NaN. Of several rows with one x, as of rounds in which nobody sends,
    the last counts. at: the grid, else ``points`` of them evenly in log x from the least positive x of any cell to the
    largest. x: ``bits_up``, ``round``, ``epoch``, ``grad_evals``, ``seconds`` or another cumulative column; by: columns
    of the described cells. Columns: cell, seed, ``by``, x, y. Cells one after the other, in order of x. Raises
    InputError for unknown columns and a grid that is not positive and increasing.

    >>> from raybench.analysis.examples import example
    >>> table = curves(example(), "bits_up", by="series", at=[1000, 2000, 4000], where={"seed": 0, "step": "x2"})
    >>> table.pivot(index="bits_up", columns="series", values="grad_norm_sq").round(5)
    series   EF21 Top-1  EF21 Top-2       GD  MARINA Rand-1
    bits_up
    1000.0      0.26809     0.43897  0.68488        0.40662
    2000.0      0.07194     0.19291  0.48508        0.16545
    4000.0      0.00518     0.03726  0.23633        0.02738
    """
    results = frames_of(source, where, accounting)
    x, y = axis(x or results.cost, results, "x"), axis(y or results.metric, results, "y")
    names = keys(by, results.cells)
    rows = results.curves_source.columns([x, y])
    parts: list[tuple[str, np.ndarray, np.ndarray]] = []
    for block in rows.blocks:
        shown = (block[x] > 0) & ~np.isnan(block[y])
        for cell, xs, ys in pieces(block, ["cell", x, y], shown):
            last = np.append(xs[1:] != xs[:-1], True)  # of each distinct x
            parts.append((rows.cells[int(cell[0])], xs[last], ys[last]))
    heads = list(dict.fromkeys(["cell", "seed", *names]))
    if not parts:
        return pd.DataFrame(columns=[*heads, x, y])
    if at is None:
        low, high = min(xs[0] for _, xs, _ in parts), max(xs[-1] for _, xs, _ in parts)
        grid = np.geomspace(low, high, points)
        grid[0], grid[-1] = low, high  # not a rounding error outside of the curves
        grid = np.unique(grid)
    else:
        grid = _checked(at)
    values = {cell: interpolated(xs, ys, grid) for cell, xs, ys in parts}
    cells = results.cells.loc[results.cells["cell"].isin(values.keys()), heads]
    table = cells.loc[cells.index.repeat(len(grid))].reset_index(drop=True)
    table[x] = np.tile(grid, len(cells))
    table[y] = np.concatenate([values[cell] for cell in cells["cell"]])
    return table


def interpolated(xs: np.ndarray, ys: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Return a curve with increasing positive ``xs`` at the points of a grid, NaN outside of it.

    log y is linear in log x; where one of the two values is not positive, y is.
    """
    after = np.clip(np.searchsorted(xs, grid, side="left"), 0, len(xs) - 1)
    before = np.where(xs[after] == grid, after, np.maximum(after - 1, 0))
    a, b = ys[before], ys[after]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = np.log(grid / xs[before]) / np.log(xs[after] / xs[before])
        share = np.where(before == after, 0.0, share)
        logs = np.exp((1 - share) * np.log(a) + share * np.log(b))
    values = np.where((a > 0) & (b > 0), logs, a + share * (b - a))
    values = np.where(share == 0, a, values)  # at a recorded row its very value
    return np.where((grid < xs[0]) | (grid > xs[-1]), np.nan, values)


def _checked(at: Sequence[float] | np.ndarray) -> np.ndarray:
    grid = np.asarray(at, float)
    sound = grid.ndim == 1 and len(grid) and np.isfinite(grid).all() and (np.diff(grid) > 0).all()
    if not sound or grid[0] <= 0:
        raise InputError.of("at", "the grid is not positive and increasing", "such as [1e3, 1e4]")
    return grid


def bands(
    curves: pd.DataFrame,
    x: str = "bits_up",
    y: str = "grad_norm_sq",
    by: Sequence[str] = ("label",),
    points: int = 400,
) -> pd.DataFrame:
    """Return per ``by`` the median of ``y`` over cells on a common grid of ``x``, with its interval.

    A cell is a step function of x: at a grid point it has the value of its last row at or before
    it, none before its first row, its last value after its end. The grid holds the cells' median x
    of every recorded round up to the median of their ends, thinned to ``points``. Columns: ``by``,
    x, y, low, high, coverage (``interval`` at that point alone; of one cell its value, with
    coverage 0), cells (how many have a value there).

    >>> from raybench.analysis.examples import example
    >>> curves, _ = example()
    >>> table = bands(curves[curves["algorithm"] == "gd"], by=["step_multiple"], points=3)
    >>> table.drop(columns="coverage").round(6)
       step_multiple   bits_up  grad_norm_sq  low      high  cells
    0            1.0       0.0           1.0  1.0  1.000000      3
    1            1.0   76800.0           0.0  0.0  0.000001      3
    2            1.0  153600.0           0.0  0.0  0.000000      3
    3            2.0       0.0           1.0  1.0  1.000000      3
    4            2.0   76800.0           0.0  0.0  0.000000      3
    5            2.0  153600.0           0.0  0.0  0.000000      3
    """
    rows = curves.loc[curves[x].notna() & curves[y].notna()]
    parts = []
    for key, part in rows.groupby(list(by), sort=False, dropna=False):
        grid, values = _steps(part, x, y, points)
        piece = pd.DataFrame({x: grid, **_intervals(values, y)})
        for j, (name, value) in enumerate(zip(by, key, strict=True)):
            piece.insert(j, name, value)
        parts.append(piece)
    if not parts:
        numbers = [x, y, "low", "high", "coverage"]
        empty = pd.DataFrame(columns=[*by, *numbers, "cells"])
        return empty.astype(dict.fromkeys(numbers, float))
    return pd.concat(parts, ignore_index=True)


def _steps(part: pd.DataFrame, x: str, y: str, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a grid, and the values of cells on it (cells, points) as step functions, NaN before their first row."""
    (block,) = ordered(part, [x, y]).blocks
    curves = pieces(block, [x, y], slice(None))
    end = np.median([xs[-1] for xs, _ in curves])
    middle = part.groupby("round")[x].median().to_numpy(float)
    grid = np.unique(np.append(middle[middle < end], end))
    if len(grid) > points:
        grid = grid[np.unique(np.linspace(0, len(grid) - 1, points).round().astype(int))]
    values = np.full((len(curves), len(grid)), np.nan)
    for row, (xs, ys) in zip(values, curves, strict=True):
        at = np.searchsorted(xs, grid, side="right") - 1
        row[at >= 0] = ys[at[at >= 0]]
    return grid, values


def _intervals(values: np.ndarray, y: str) -> dict[str, np.ndarray]:
    """Return the median and its interval of every column of values (cells, points), NaN for none."""
    sort = np.sort(values, axis=0)  # NaN comes last
    count = (~np.isnan(values)).sum(axis=0)
    out = {name: np.full(values.shape[1], np.nan) for name in (y, "low", "high", "coverage")}
    for cells in np.unique(count[count > 0]):
        at = count == cells
        present = sort[:cells, at]
        rank, covered = ranks(int(cells))
        out[y][at] = np.median(present, axis=0)
        out["low"][at], out["high"][at] = present[rank - 1], present[cells - rank]
        out["coverage"][at] = covered
    return {**out, "cells": count}
