"""What a target costs after a few random trials of each method's grid: as a table for some number of them, and as a figure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from raybench.analysis import Frames, How, Where, opened, trials
from raybench.analysis.trials import DRAWS
from raybench.core.errors import InputError
from raybench.report import words
from raybench.report.content import Figure, Look, looks, open_frames
from raybench.report.sheet import Field, Sheet

WAYS = ("method", "series", "algorithm")
ROOM = 2.0  # how far above the largest finite cost the figure ends
MOST_EVEN = 40  # more trials read best on a logarithmic axis


def after_trials(
    source: str | os.PathLike[str] | Frames,
    count: int,
    accounting: How = None,
    target: float | str | None = None,
    by: str = "method",
    link: str | None = None,
    x: str | None = None,
    tuning_seeds: Sequence[int] = (),
    where: Where | None = None,
) -> Sheet:
    """Return ``analysis.trials`` after so many trials, cheapest first, spelled for reading.

    A method whose grid is smaller is shown after its whole grid. Raises InputError as ``trials`` does, and for a number below 1.
    """
    if count < 1:
        raise InputError.of("--trials", f"{count} is out of range", "a whole number from 1")
    found = opened(open_frames(source, accounting, link, target, tuning_seeds), where)
    x = x or found.cost
    table = trials(found, by=by, x=x)
    own = table[table["trials"] == np.minimum(count, table["grid"])]
    own = own.assign(missed=-own["reach"])
    own = own.sort_values(["facet", "cost", "missed"], kind="stable", ignore_index=True)
    own = own.drop(columns="missed")
    whole = table[table["trials"] == table["grid"]].set_index(["facet", by])["cost"]
    own["whole_grid"] = whole.reindex(pd.MultiIndex.from_frame(own[["facet", by]])).to_numpy()
    rows = own.to_dict("records")
    sections = own.groupby("facet", sort=False).ngroup().tolist()
    fields = _fields(rows, by, x, count, found.cost)
    if own["facet"].nunique() > 1:
        fields.insert(0, Field(name="facet", head="Problem", texts=list(own["facet"]), left=True))
    return Sheet(fields=fields, sections=sections, data=own, notes=_notes(found, own, by, x, count))


def _fields(
    rows: Sequence[Mapping[Any, Any]], by: str, x: str, count: int, cost: str
) -> list[Field]:
    spell, spelled, unit = _spelling(x)
    head = words.COLUMNS.get(x, x.replace("_", " "))
    numbers = {
        name: [float(row[name]) for row in rows] for name in ("cost", "cost_low", "cost_high")
    }
    return [
        Field(name=by, head="Method", texts=[str(row[by]) for row in rows], left=True),
        Field(name="grid", head="Grid", texts=[str(row["grid"]) for row in rows]),
        Field(
            name="cost",
            head=f"{words.sentence(head)} after {words.count(count, 'trial')}",
            texts=[spelled(row["cost"], row["cost_low"], row["cost_high"]) for row in rows],
            numbers=numbers["cost"],
            low=numbers["cost_low"],
            high=numbers["cost_high"],
            unit=unit,
            better="low",
        ),
        Field(
            name="draws",
            head=f"{_percent(DRAWS)} of draws",
            texts=[_range(spell, row["draws_low"], row["draws_high"]) for row in rows],
        ),
        Field(
            name="reach",
            head="Reach",
            texts=[_share(row["reach"]) for row in rows],
            numbers=[float(row["reach"]) for row in rows],
        ),
        Field(name="expected", head="Mean", texts=[_end(spell, row["expected"]) for row in rows]),
        Field(
            name="whole_grid",
            head="After the whole grid",
            texts=[spell(row["whole_grid"]) for row in rows],
            numbers=[float(row["whole_grid"]) for row in rows],
            unit=unit,
            better="low",
        ),
    ]


def _spelling(x: str) -> tuple[Any, Any, Any]:
    """Return how numbers of a column are spelled, how with their interval, and in which unit."""
    if x.startswith("bits"):
        return words.bits, words.bits_interval, words.unit_of
    if x.startswith("seconds"):
        return words.seconds, words.seconds_interval, words.time_unit_of

    def plain(value: float) -> str:
        return "not reached" if np.isinf(value) else words.number(value, 4)

    def interval(middle: float, low: float, high: float) -> str:
        if not words.known(low) or np.isinf(low):
            return plain(middle)
        return f"{plain(middle)} [{words.number(low, 4)}, {words.number(high, 4)}]"

    return plain, interval, None


def _range(spell: Any, low: float, high: float) -> str:
    return f"{_end(spell, low)} to {_end(spell, high)}" if low < high else _end(spell, low)


def _end(spell: Any, value: float) -> str:
    return "∞" if np.isinf(value) else str(spell(value))


def _share(value: float) -> str:
    """Return a share in percent, never rounded to all or none where it is neither."""
    if 0.999 <= value < 1 - 1e-9:
        return "> 99.9 %"
    return "< 0.1 %" if 1e-9 < value < 0.001 else f"{100 * value:.3g} %"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _notes(found: Frames, own: pd.DataFrame, by: str, x: str, count: int) -> list[str]:
    if own.empty:
        return ["nothing to rank: no cell ran", *found.earlier]
    what = {"method": "a K and a step", "series": "a step", "algorithm": "a cell, seeds apart"}[by]
    paid = words.COLUMNS.get(x, x) + (f" for {found.link}" if found.link is not None else "")
    notes = [
        f"Cost: {paid} to {words.COLUMNS[found.metric]} ≤ {_goals(own)}, of the best of "
        f"{words.count(count, 'random trial')} ({what}) of the method's own grid, drawn without replacement",
        "Median over draws, exact, and over seeds"
        + _interval(own)
        + "; mean: over draws, infinite if one of them misses; reach: share of draws and seeds that get there",
    ]
    small = own[own["grid"] < count]
    if len(small):
        named = ", ".join(f"{row[by]} ({row['grid']})" for row in small.to_dict("records"))
        notes.append(f"After their whole grid, which is smaller: {named}")
    if own["facet"].nunique() > 1:
        place = own["cost"].groupby(own["facet"]).rank(method="average")
        mean = place.groupby(own[by]).mean().sort_values()
        said = ", ".join(f"{name} {value:.3g}" for name, value in mean.items())
        notes.append(f"Mean place over {words.count(own['facet'].nunique(), 'problem')}: {said}")
    notes += [words.sentence(note) for note in found.tuning]
    if found.tuning:
        notes.append(
            "Steps that were not tried, or ended early, were not drawn from a grid: do not trust this table"
        )
    if found.accounting and x.startswith("bits"):
        notes.append(f"Accounting: {found.accounting}")
    return [*notes, *found.chosen_on, *(words.sentence(note) for note in found.notes)]


def _interval(own: pd.DataFrame) -> str:
    said = words.intervals(int(n) for n in own["seeds"])
    return (
        f", in brackets an interval that holds the true median with probability {said}"
        if said
        else ""
    )


def _goals(own: pd.DataFrame) -> str:
    goals = own.drop_duplicates("facet")
    if goals["target"].nunique() == 1:
        return f"{goals['target'].iloc[0]:g}"
    return ", ".join(f"{t:g} ({f})" for f, t in zip(goals["facet"], goals["target"], strict=True))


def against_trials(found: Frames, cells: pd.DataFrame, every: Sequence[str], x: str) -> Figure:
    """Return the figure of ``analysis.trials``: what the target costs against the number of trials, of some cells' methods.

    every: ``all_methods`` of the results. Raises InputError where no method reaches the target in half of all draws.
    """
    table = trials(found, where={"method": sorted(cells["method"].unique())}, x=x)
    finite = table["cost"].replace(np.inf, np.nan)
    if not finite.notna().any():
        raise InputError.of("plot", "no method reaches the target", "another --target")
    heads = found.cells.drop_duplicates("method").assign(k=np.nan, series=lambda t: t["method"])
    heads = heads[heads["method"].isin(table["method"])]
    grids = table.groupby("method")["grid"].max()
    style: dict[str, Look] = {
        name: replace(look, label=f"{name}, {words.count(int(grids[name]), 'cell')}")
        for name, look in looks(heads, every).items()
    }
    data = table.rename(columns={"facet": "panel", "trials": "x", "cost": "y"})
    data = data.assign(series=data["method"], low=data["draws_low"], high=data["draws_high"])
    never = sorted(
        name for name in style if not np.isfinite(table.loc[table["method"] == name, "cost"]).any()
    )
    top = ROOM * float(table[["cost", "draws_high"]].replace(np.inf, np.nan).max().max())
    unit = words.time_unit_of if x.startswith("seconds") else words.unit_of
    size, name = unit(float(finite.min())) if x.startswith(("seconds", "bits")) else (1.0, "")
    data = data[~data["series"].isin(never)]
    tail = _percent((1 - DRAWS) / 2)
    said = [
        f"median over draws and seeds; bands: {_percent(DRAWS)} of them, open above where more than {tail} miss the target",
        f"missed in half of the draws or more: {', '.join(never)}" if never else "",
    ]
    return Figure(
        name="trials",
        x="trials",
        y=x,
        title="What the target costs after some random trials of the grid",
        x_label="Random trials of the method's own grid",
        y_label=f"{words.axis(x, name)}\nto {words.COLUMNS[found.metric]} ≤ "
        + (_goals(table) if table["target"].nunique() == 1 else "its target"),
        data=data[
            [
                "panel",
                "method",
                "series",
                "x",
                "y",
                "low",
                "high",
                "grid",
                "seeds",
                "reach",
                "cost_low",
                "cost_high",
                "coverage",
                "expected",
                "target",
            ]
        ],
        looks=style,
        panels=sorted(table["facet"].unique()),
        band="; ".join(filter(None, said)),
        y_unit=size,
        log_x=bool(grids.max() > MOST_EVEN),
        y_to=top,
    )
