"""Booking finished sweeps anew: from the counts of stored curves to bits, without running again."""

from __future__ import annotations

import numpy as np
import pandas as pd

from raybench.core.counts import Counts
from raybench.store.accounting import Accounting, dtype_bits
from raybench.store.schema import SIDES, column


def rebook(
    curves: pd.DataFrame, cells: pd.DataFrame, accounting: Accounting
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return copies of curves and cells with ``bits_up``, ``bits_down`` booked under ``accounting``.

    Counts are cumulative means per client. A cell's bits are those of the last row of its curve,
    null where it has none. ``count_init=False`` takes away the counts of the cell's row of round 0.
    """
    curves, cells = curves.copy(deep=False), cells.copy(deep=False)
    widths = cells.set_index("cell")["config"].map(dtype_bits)
    width = curves["cell"].map(widths).fillna(64).to_numpy(float)
    curves.index = pd.RangeIndex(len(curves))
    first = curves.index[curves["round"] == 0]
    last = curves.groupby("cell")["round"].idxmax() if len(curves) else curves.index
    for side in SIDES:
        counts = Counts(*(_count(curves, column(count, side)) for count in Counts._fields))
        booked = accounting.bits(counts, width)
        curves[f"bits_{side}"] = booked
        if not accounting.count_init:
            start = curves.loc[first].set_index("cell")[f"bits_{side}"]
            curves[f"bits_{side}"] = booked - curves["cell"].map(start).fillna(0.0).to_numpy(float)
        ends = curves.loc[last].set_index("cell")[f"bits_{side}"]
        cells[f"bits_{side}"] = cells["cell"].map(ends).astype(float)
    return curves, cells


def _count(curves: pd.DataFrame, name: str) -> np.ndarray:
    """Return a count as a float array; one that is kept in the map ``extra`` is zero where absent."""
    if name in curves:
        return curves[name].to_numpy(float)
    counts = pd.Series(0.0, curves.index)
    if f"extra.{name}" in curves:  # a frame that ``raybench.load`` returned
        counts = curves[f"extra.{name}"]
    elif "extra" in curves:
        counts = curves["extra"].map(lambda pairs: dict(pairs).get(name), na_action="ignore")
    return counts.astype(float).fillna(0.0).to_numpy()
