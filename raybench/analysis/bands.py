"""Curves of several seeds on one grid: a median and the band around it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd


def bands(
    curves: pd.DataFrame,
    x: str = "bits_up",
    y: str = "grad_norm_sq",
    by: Sequence[str] = ("label",),
    points: int = 400,
    band: tuple[float, float] | None = None,
) -> pd.DataFrame:
    """Return per ``by`` the median of ``y`` over cells on a common grid of ``x``, with a band.

    A cell is a step function of x: at a grid point it has the value of its last row at or before
    it, none before its first row, its last value after its end. The grid holds the cells' median x
    of every recorded round up to the median of their ends, thinned to ``points``. band: two quantile levels; None for
    the extremes. Columns: ``by``, x, y, low, high, cells (how many have a value there).
    """
    rows = curves.loc[curves[x].notna() & curves[y].notna()]
    pieces = []
    for key, part in rows.groupby(list(by), sort=False, dropna=False):
        grid, values = _grid(part, x, y, points)
        low, high = band or (0.0, 1.0)
        middle, lowest, highest = _quantiles(values, (0.5, low, high))
        known = np.isfinite(values) | np.isinf(values)
        piece = pd.DataFrame({x: grid, y: middle, "low": lowest, "high": highest})
        piece["cells"] = known.sum(axis=0)
        for j, (name, value) in enumerate(zip(by, key, strict=True)):
            piece.insert(j, name, value)
        pieces.append(piece)
    if not pieces:
        empty = pd.DataFrame(columns=[*by, x, y, "low", "high", "cells"])
        return empty.astype({x: float, y: float, "low": float, "high": float})
    return pd.concat(pieces, ignore_index=True)


def _grid(part: pd.DataFrame, x: str, y: str, points: int) -> tuple[np.ndarray, np.ndarray]:
    cells = [c.sort_values("round", kind="stable") for _, c in part.groupby("cell", sort=False)]
    own = [(c[x].to_numpy(float), c[y].to_numpy(float)) for c in cells]
    end = np.median([xs[-1] for xs, _ in own])
    middle = part.groupby("round")[x].median().to_numpy(float)
    grid = np.unique(np.append(middle[middle < end], end))
    if len(grid) > points:
        grid = grid[np.unique(np.linspace(0, len(grid) - 1, points).round().astype(int))]
    values = np.full((len(own), len(grid)), np.nan)
    for row, (xs, ys) in zip(values, own, strict=True):
        at = np.searchsorted(xs, grid, side="right") - 1
        row[at >= 0] = ys[at[at >= 0]]
    return grid, values


def _quantiles(values: np.ndarray, levels: Sequence[float]) -> list[np.ndarray]:
    """Return quantiles over the cells that have a value; a band's ends are values, the median may mix.

    values (cells, points), NaN where a cell has none. Sorting puts NaN last.
    """
    ordered = np.sort(values, axis=0)
    count = (~np.isnan(values)).sum(axis=0)
    at = np.arange(values.shape[1])
    out = []
    for level in levels:
        place = level * np.maximum(count - 1, 0)
        low, high = np.floor(place).astype(int), np.ceil(place).astype(int)
        if level == 0.5:
            with np.errstate(invalid="ignore"):
                out.append((ordered[low, at] + ordered[high, at]) / 2)
        else:
            out.append(ordered[np.round(place).astype(int), at])
    return out
