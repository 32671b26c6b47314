"""What an audit found, in words and as a figure: in which share of the readings a method has which rank."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle

from raybench.analysis import Frames
from raybench.analysis.audit import FACTORS, Audit, audit
from raybench.report import words

MOST_FLIPS_TOLD, MOST_TERMS_TOLD = 12, 4
MISSED = "not reached"
MOST_ROWS = 100_000  # of curves, whose readings take some seconds


def told(found: Audit) -> list[str]:
    """Return what an audit found as lines, the orders that readings turn round first."""
    count = len(found.readings.drop_duplicates([*FACTORS]))
    lines = [f"{count} readings: {_what(found.readings)}"]
    for facet, pairs in found.pairs.groupby("facet", sort=False):
        lines += ["", *([f"{facet}:"] if facet else [])]
        moved = pairs[pairs["flipped"] > 0].sort_values("flipped", kind="stable")
        for row in moved.head(MOST_FLIPS_TOLD).itertuples():
            better, worse = words.bits(row.cost_better), words.bits(row.cost_worse)
            lines.append(
                f"{row.better} ({better}) beats {row.worse} ({worse}) unless {_short(row.unless)} "
                f"({row.flipped} of {row.decided} readings{_others(row)})"
            )
        if len(moved) > MOST_FLIPS_TOLD:
            lines.append(
                f"{len(moved) - MOST_FLIPS_TOLD} more orders that some readings turn round: see the CSV"
            )
        firm = pairs[pairs["flipped"] == 0]
        for better, own in firm.groupby("better", sort=False):
            lines.append(
                f"{better} beats {_listed(own['worse'])} in every reading that tells them apart"
            )
        if (pairs["decided"] < count).any():
            lines.append(
                "a reading does not tell two methods apart where one of them has no such step, neither arrives, or both need the same"
            )
    if found.pairs.empty:
        lines += [
            "",
            "no method is cheaper than another: none reaches the target, or there is one method alone",
        ]
    return lines


def _short(rule: str) -> str:
    """Return a rule with its first terms alone where it has many."""
    terms = rule.split(", or ")
    if len(terms) <= MOST_TERMS_TOLD:
        return rule
    more = f"in {len(terms) - MOST_TERMS_TOLD} cases more, see audit_pairs.csv"
    return ", or ".join([*terms[:MOST_TERMS_TOLD], more])


def _others(row: Any) -> str:
    """Return why the other readings do not tell two methods apart."""
    said = {
        "one has no such step": row.absent,
        "neither arrives": row.missed,
        "both are equal": row.equal,
    }
    return "".join(f"; in {n} more {what}" for what, n in said.items() if n)


def firmness(found: Frames) -> str:
    """Return in which share of its readings the method comes first that a folder's own reading puts first.

    Empty where that is not told: of one method, of several problems, of simulated seconds, and of more than
    ``MOST_ROWS`` rows of curves, which take long.
    """
    alone = found.cells["facet"].nunique() == 1 and found.link is None
    if not alone or len(found.curves) > MOST_ROWS:
        return ""
    readings = audit(found).readings
    own = readings[readings["own"] & (readings["rank"] == 1)]["method"]
    if own.empty or readings["method"].nunique() < 2:
        return ""
    count = len(readings.drop_duplicates([*FACTORS]))
    first = ((readings["method"] == own.iloc[0]) & (readings["rank"] == 1)).sum()
    return f"{own.iloc[0]} is first in {first / count:.0%} of {count} readings: raybench audit {found.folder}"


def _what(readings: pd.DataFrame) -> str:
    return "; ".join(f"{name}: {', '.join(dict.fromkeys(readings[name]))}" for name in FACTORS)


def _listed(names: pd.Series) -> str:
    *rest, last = names
    return f"{', '.join(rest)} and {last}" if rest else str(last)


def shares(readings: pd.DataFrame) -> pd.DataFrame:
    """Return per facet and method (rows) the share of the readings in which it has each rank (columns).

    The last column is the share in which it misses the target. Rows are ordered by mean rank.
    """
    rank = readings["rank"].map(lambda r: MISSED if math.isnan(r) else int(r))
    table = (
        readings.assign(rank=rank).groupby(["facet", "method"])["rank"].value_counts(normalize=True)
    )
    table = table.unstack(fill_value=0.0)
    ranks = sorted(c for c in table if c != MISSED)
    table = table.reindex(columns=[*ranks, MISSED], fill_value=0.0)
    mean = (
        readings.assign(rank=readings["rank"].fillna(len(ranks) + 1))
        .groupby(["facet", "method"])["rank"]
        .mean()
    )
    return (
        table.assign(mean=mean).sort_values(["facet", "mean"], kind="stable").drop(columns="mean")
    )


def draw(found: Audit) -> Canvas:
    """Return the figure: a panel per problem, a row per method, the share of readings in each rank.

    The rank in the folder's own reading is framed.
    """
    table = shares(found.readings)
    facets = list(dict.fromkeys(table.index.get_level_values("facet")))
    rows = [len(table.loc[facet]) for facet in facets]
    widest = max(len(name) for name in table.index.get_level_values("method"))
    width = 0.09 * widest + 0.55 * len(table.columns) + 0.4
    canvas = Canvas(
        figsize=(width, 0.27 * sum(rows) + 0.75 * len(facets) + 0.35), layout="constrained"
    )
    FigureCanvasAgg(canvas)
    axes = canvas.subplots(len(facets), 1, squeeze=False, gridspec_kw={"height_ratios": rows})
    own = found.readings[found.readings["own"]].set_index(["facet", "method"])["rank"]
    for axis, facet in zip(axes.flatten(), facets, strict=True):
        _matrix(axis, table.loc[facet], own.get(facet, pd.Series(dtype=float)))
        axis.set_title(facet, pad=4)
    count = len(found.readings.drop_duplicates([*FACTORS]))
    canvas.supxlabel(
        f"Rank by bits to the target: % of {count} readings; framed: as the folder is read",
        fontsize=7.5,
    )
    return canvas


def _matrix(axis: Axes, table: pd.DataFrame, own: pd.Series) -> None:
    values = 100 * table.to_numpy(float)
    axis.imshow(values, cmap="Blues", vmin=0, vmax=100, aspect="auto")
    axis.grid(False)
    for (i, j), value in np.ndenumerate(values):
        if value:
            dark = value > 55
            axis.text(
                j,
                i,
                f"{value:.0f}",
                ha="center",
                va="center",
                fontsize=7.5,
                color="white" if dark else "black",
            )
    for i, method in enumerate(table.index):
        rank = own.get(method, math.nan)
        at = len(table.columns) - 1 if math.isnan(rank) else list(table.columns).index(int(rank))
        if method in own.index:
            axis.add_patch(Rectangle((at - 0.5, i - 0.5), 1, 1, fill=False, ec="#D55E00", lw=1.4))
    axis.set_yticks(range(len(table)), table.index)
    axis.set_xticks(range(len(table.columns)), [str(c).replace(" ", "\n") for c in table.columns])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
