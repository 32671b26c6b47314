"""What a target costs: the first recorded point at or below it, and its spread over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd


def first_crossing(
    curves: pd.DataFrame,
    target: float,
    x: str = "bits_up",
    y: str = "grad_norm_sq",
    settled: bool = False,
) -> pd.Series:
    """Return per cell the ``x`` of its first row with ``y <= target``, inf where it has none.

    No interpolation: the cost is that of a point that was reached. With ``settled`` a cell whose
    last row is above the target has not reached it: an unstable step only passes by. Indexed by
    cell id.
    """
    cells = pd.Index(curves["cell"].unique())
    columns = list(dict.fromkeys(["cell", "round", x]))
    hits = curves.loc[curves[y] <= target, columns].sort_values("round", kind="stable")
    first = hits.drop_duplicates("cell").set_index("cell")[x]
    found = first.reindex(cells, fill_value=np.inf).astype(float)
    if settled:
        ends = curves[["cell", "round", y]].sort_values("round", kind="stable")
        end = ends.drop_duplicates("cell", keep="last").set_index("cell")[y]
        found = found.where(end.reindex(cells) <= target, np.inf)
    return found


def interval(
    values: Sequence[float] | np.ndarray,
    level: float = 0.95,
    samples: int = 2000,
    seed: int = 0,
) -> tuple[float, float, float]:
    """Return (median, low, high): the median and its bootstrap percentile interval.

    values: one number per random seed, inf where the target was missed. With one value the
    interval is unknown (NaN). The bootstrap draws from its own generator, seeded by ``seed``.
    """
    values = np.asarray(values, float)
    if values.size == 0:
        return np.nan, np.nan, np.nan
    middle = float(_quantile(values, 0.5))
    if values.size == 1:
        return middle, np.nan, np.nan
    draws = np.random.default_rng(seed).integers(0, values.size, (samples, values.size))
    medians = _quantile(values[draws], 0.5)
    tail = (1 - level) / 2
    return middle, float(_quantile(medians, tail)), float(_quantile(medians, 1 - tail))


def _quantile(values: np.ndarray, q: float) -> np.ndarray:
    """Return the quantile along the last axis; inf is a value, never inf - inf."""
    ordered = np.sort(values, axis=-1)
    place = q * (ordered.shape[-1] - 1)
    low, high = ordered[..., int(np.floor(place))], ordered[..., int(np.ceil(place))]
    share = place - np.floor(place)
    with np.errstate(invalid="ignore"):
        mixed = low + share * (high - low) if share else low
    return np.where(np.isinf(high) & (share > 0), high, mixed)


def bits_to_target(
    curves: pd.DataFrame,
    target: float,
    x: str = "bits_up",
    y: str = "grad_norm_sq",
    by: Sequence[str] = ("label", "step_multiple", "step_size"),
) -> pd.DataFrame:
    """Return what ``target`` costs per method and step: median over seeds and its interval.

    Columns: ``by``, cells, reached (how many got there), ``x``, ``x_low``, ``x_high``, all inf
    where the median cell never got there. x: any cumulative column (``bits_up``, ``round``,
    ``seconds``), in its own unit.
    """
    cost = first_crossing(curves, target, x, y)
    heads = curves.drop_duplicates("cell")[["cell", *by]].set_index("cell")
    rows = []
    for key, part in heads.assign(cost=cost).groupby(list(by), dropna=False, sort=False):
        middle, low, high = interval(part["cost"].to_numpy())
        reached = int(np.isfinite(part["cost"]).sum())
        rows.append((*key, len(part), reached, middle, low, high))
    return pd.DataFrame(rows, columns=[*by, "cells", "reached", x, f"{x}_low", f"{x}_high"])
