"""The table a sweep ends with: per method its best K and step, and what the target costs."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from raybench.analysis.methods import annotate, describe
from raybench.analysis.tuned import main_metric, tuned, with_final
from raybench.store import booking, reader
from raybench.store.accounting import parse
from raybench.store.reader import How


@dataclass(frozen=True)
class Frames:
    """A results folder in memory: annotated curves, described cells, how bits were booked."""

    curves: pd.DataFrame
    cells: pd.DataFrame
    sweep: dict[str, Any] = field(default_factory=dict)
    accounting: str = ""
    folder: str = ""
    text: str = ""  # the content of sweep.yaml
    _tuned: dict[tuple[str, float | None], pd.DataFrame] = field(default_factory=dict, repr=False)

    def tuned(self, by: str, target: float | None = None) -> pd.DataFrame:
        """Return ``tuned`` of these frames by their metric; computed once."""
        key = (by, target)
        if key not in self._tuned:
            self._tuned[key] = tuned(self.curves, self.cells, target, by, self.metric)
        return self._tuned[key].copy()

    @property
    def notes(self) -> list[str]:
        """What a reader of the bits should know besides the accounting."""
        if "list_or_bitmask" in self.accounting and not booking.knows_packed(self.curves):
            return [booking.PACKED_BITS_UNKNOWN]
        return []

    @property
    def metric(self) -> str:
        """The column methods are judged by."""
        return main_metric(self.curves)


def frames(folder: str | os.PathLike[str], accounting: How = None) -> Frames:
    """Return the frames of a results folder, its bits booked anew under ``accounting`` if given.

    Raises InputError if there are no results in the folder or the accounting is unknown.
    """
    curves, cells = reader.frames(folder, accounting)
    sweep = reader.sweep(folder)
    saved = sweep.get("accounting")
    asked = parse(accounting if accounting is not None else saved)
    how = booking.settled(asked, curves)
    return framed(
        curves,
        cells,
        sweep=sweep,
        accounting=str(how),
        folder=os.fspath(folder),
        text=reader.sweep_text(folder),
    )


def framed(curves: pd.DataFrame, cells: pd.DataFrame, **more: Any) -> Frames:
    """Return the frames of (curves, cells) of ``load`` and ``cells``; ``more`` as in ``Frames``."""
    cells = describe(cells)
    curves = annotate(curves, cells)
    return Frames(curves, with_final(cells, curves, main_metric(curves)), **more)


COLUMNS = [
    "facet",
    "method",
    "algorithm",
    "compressor",
    "k",
    "step_multiple",
    "step_size",
    "edge",
    "target",
    "bits_to_target",
    "bits_low",
    "bits_high",
    "coverage",
    "ratio_to_gd",
    "seeds",
    "grad_norm_sq",
    "loss",
    "test_loss",
    "accuracy",
    "bits_up",
    "rounds",
    "seconds",
    "ok",
    "diverged",
    "failed",
    "skipped",
    "pruned",
]
"""Columns of ``closing_table``."""


def closing_table(
    source: str | os.PathLike[str] | Frames | tuple[pd.DataFrame, pd.DataFrame],
    accounting: How = None,
    target: float | None = None,
    by: str = "method",
) -> pd.DataFrame:
    """Return per facet and method its best K and step and what the target costs, best first.

    source: a results folder, its ``frames``, or (curves, cells) of ``load`` and ``cells``. bits are
    upstream bits per client; bits_to_target is the median over seeds, inf where the median seed does
    not reach the target; bits_low and bits_high are its ``interval`` (NaN for one seed), which holds
    the median of all seeds with the probability ``coverage``. ratio_to_gd is bits_to_target over
    that of gd. ok, diverged, ... count all cells of the method. grad_norm_sq, loss, ... are final
    means over seeds. ``by="series"`` keeps every K.
    """
    if isinstance(source, Frames) and accounting is None:
        found = source
    elif isinstance(source, Frames | tuple):
        curves, cells = source if isinstance(source, tuple) else (source.curves, source.cells)
        if accounting is not None:
            curves, cells = booking.rebook(curves, cells, parse(accounting))
        found = framed(curves, cells)
    else:
        found = frames(source, accounting)
    best = found.tuned(by, target)
    if best.empty:
        return pd.DataFrame(columns=COLUMNS)
    best = best.rename(columns={"cost": "bits_to_target"})
    best["bits_low"], best["bits_high"] = best["cost_low"], best["cost_high"]
    best.loc[~best["eligible"], ["bits_to_target", "bits_low", "bits_high"]] = math.nan
    gd = best[best["algorithm"] == "gd"].drop_duplicates("facet").set_index("facet")
    base = best["facet"].map(gd["bits_to_target"]).replace(np.inf, np.nan)
    best["ratio_to_gd"] = best["bits_to_target"] / base
    counts = found.cells.groupby(["facet", by])["status"].value_counts().unstack(fill_value=0)
    index = pd.MultiIndex.from_frame(best[["facet", by]])
    for status in ("ok", "diverged", "failed", "skipped", "pruned"):
        column = counts[status] if status in counts else counts.sum(axis=1) * 0
        best[status] = column.reindex(index).to_numpy()
    for name in {"grad_norm_sq", "test_loss"} - set(best):  # methods are judged by another column
        best[name] = math.nan
    best["method"] = best[by]
    order = ["facet", "bits_to_target", found.metric]
    best = best.sort_values(order, kind="stable", na_position="last", ignore_index=True)
    return best[COLUMNS]
