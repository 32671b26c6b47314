"""The closing table: on a terminal, as plain text, Markdown, CSV or LaTeX; which columns it has, and what stands in them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from raybench.analysis import SECONDS, Frames, closing_table
from raybench.analysis.clocked import CLOCK
from raybench.analysis.methods import algorithm_name, k_of_rows, key_of
from raybench.analysis.to_target import seen_late
from raybench.core.errors import InputError, count, nearest
from raybench.report import words
from raybench.report.content import open_frames
from raybench.report.formats import written
from raybench.report.sheet import Row, Sheet, SheetColumn, column

if TYPE_CHECKING:
    from raybench.report.formats import FittedSheet

WORDS = ("facet", "method", "algorithm", "compressor")
COUNTS = ("arrived", "ok", "diverged", "failed", "skipped", "pruned")
FINAL = {"grad_norm_sq": "low", "loss": "low", "test_loss": "low", "accuracy": "high"}
"""Values at the end, and where their best lies."""
LATE = 0.1  # of its rounds to the target: a method that may be there so much earlier is named
OTHERS = {"bits_up": words.bits, "seconds": words.seconds}
HEADS = {
    "step_multiple": "Step, multiple",
    "step_size": "Step size",
    "accuracy": "Accuracy",
    "bits_up": "Bits up",
    "coverage": "Coverage",
    "seconds": "Seconds",
}


def closing(
    source: str | os.PathLike[str] | Frames,
    by: str = "method",
    names: Sequence[str] | None = None,
    **asked: Any,
) -> Sheet:
    """Return the closing table, spelled for reading: per method its best K and step, what the target costs, ratio to gd, seeds.

    by: ``series`` keeps every K, ``k`` compares methods at each K. names: of the columns, those of ``closing_table`` and
    ``step``. asked: of a folder, as for ``analysis.frames``; with a link simulated seconds take the place of bits.
    Raises InputError as that does, and for an unknown column.
    """
    results = open_frames(source, **asked)
    table = closing_table(results, by=by)
    columns = wanted(names, table) if names else usual(results, table, by)
    grown = [words.GREW_NOTE] if any(grown_rows(results, table)) else []
    keys = ["facet", "k"] if by == "k" else ["facet"]
    sections = table.groupby(keys, sort=False, dropna=False).ngroup().tolist()
    return Sheet(
        fields=spelled(results, table, columns),
        sections=sections,
        data=table[raw(names)] if names else table,
        notes=results.chosen_on
        + closing_notes(results, table, results.metric)
        + _late(results, by)
        + grown,
    )


def closing_notes(results: Frames, table: pd.DataFrame, value: str) -> list[str]:
    """Return what a reader of a table should know: targets, how cells ended, accounting, and what costs mean."""
    notes = _target_notes(results, table)
    ended = [f"{n:,} {status}" for status, n in results.cells["status"].value_counts().items()]
    head = count(len(results.cells), "cell")
    notes.append(f"{head}: {', '.join(ended)}" if ended else head)
    notes += growth_notes(results)
    notes += map(words.sentence, results.tuning)
    if results.accounting:
        notes.append(f"Accounting: {results.accounting}")
    bracketed = table[table[f"{results.cost_name}_low"].notna()]
    spread = words.intervals(int(n) for n in bracketed["seeds"])
    if results.cost == "bits_up":
        paid = "Bits: uplink per client"
    elif results.cost == CLOCK:
        paid = "Seconds: on the simulated clock"
    elif results.cost == SECONDS:
        paid = f"Seconds: simulated for {results.link}, each client on a machine of its own"
    else:
        axis = words.axis(results.cost)
        paid = f"Cost: {axis[:1].lower()}{axis[1:]}"
    if not spread:
        notes.append(paid)
    else:
        text = "median over seeds; in brackets an interval that holds the true median"
        notes.append(f"{paid}, {text} with probability {spread}")
        ends = [words.COLUMNS[value]] + ["accuracy"] * bool(table["accuracy"].notna().any())
        notes.append(f"{' and '.join(ends)} at the end: median over seeds")
    notes += map(words.sentence, results.notes)
    notes += [words.EDGE_NOTE[e] for e in ("high", "low", "only") if (table["edge"] == e).any()]
    return notes


def _late(results: Frames, by: str) -> list[str]:
    """Say which methods may have reached the target well before a recorded row shows it."""
    late = seen_late(results, "series" if by == "k" else by)
    far = late[late > LATE].sort_values(ascending=False, kind="stable")
    if far.empty:
        return []
    shares = ", ".join(f"{name} {words.percent(share)}" for name, share in far.items())
    return [
        f"Recorded some rounds apart, so that what the target costs may be less, by up to: {shares}"
    ]


def _target_notes(results: Frames, table: pd.DataFrame) -> list[str]:
    """Say what the targets are, where they come from, and what else they could be."""
    of = table.drop_duplicates("facet").set_index("facet")["target"].dropna()
    if of.empty:
        return []
    goals = {facet: results.kept[facet] for facet in of.index if facet in results.kept}
    values = pd.Series({facet: target.value for facet, target in goals.items()}, dtype=float)
    text = f"Target: {words.COLUMNS[results.metric]} ≤ {words.targets(of.items())}"
    if results.asked is not None:
        text += ", as asked for" if results.asked != "auto" else ", from what the folder holds now"
        moved = values[values != of.reindex(values.index)]
        fixed = f"; the target that was fixed is {words.targets(values.items())}"
        return [text + fixed * (len(moved) > 0)]
    if not goals:
        return [f"{text}, from what the folder holds"]
    dates = sorted({target.since[:10] for target in goals.values()})
    text += f", fixed on {' and '.join(dates)}" if len(goals) == len(of) else ""
    now = pd.Series(results.own_targets, dtype=float).reindex(values.index)
    moved = now[(now != values) & now.notna()]
    more = f"Target from what the folder holds now: {words.targets(now.items())} (--target auto)"
    return [text, more] if len(moved) else [text]


def table(source: str | os.PathLike[str] | Frames, **asked: Any) -> FittedSheet:
    """Return the ``closing`` table of a results folder for ``rich.print``, which fits terminals of any width."""
    from raybench.report.formats import FittedSheet

    return FittedSheet(closing(source, **asked))


def render(source: str | os.PathLike[str] | Frames, form: str = "plain", **asked: Any) -> str:
    """Return the ``closing`` table as text: ``plain``, ``markdown``, ``csv`` (raw numbers in bits) or ``latex``.

    Raises InputError for an unknown form, and as ``closing`` does.
    """
    return written(closing(source, **asked), form)


# Its columns -----------------------------------------------------------------------------------------


def usual(results: Frames, table: pd.DataFrame, by: str) -> list[str]:
    """Return the names of the columns that the closing table shows unless others are asked for."""
    facets = table["facet"].nunique() > 1
    heads = ["k", "method"] if by == "k" else ["method", "k"]
    cost = f"{results.cost_name}_to_target"
    accuracy = bool(table["accuracy"].notna().any())
    costs = [cost, *["clock_to_target"] * ("clock_to_target" in table)]
    names = ["facet"] * facets + heads + ["step", *costs, "ratio_to_gd", "seeds", results.metric]
    return names + ["accuracy"] * (accuracy and results.metric != "accuracy")


def wanted(asked: Sequence[str], table: pd.DataFrame) -> list[str]:
    """Return the names of columns that a user asks for. Raises InputError for one that there is not."""
    there = ["step", *table.columns]
    names = [name.strip() for name in asked if name.strip()]
    for name in names:
        if name not in there:
            fix = nearest(name, there) or f"one of {', '.join(there)}"
            raise InputError.of("--columns", f"unknown column {name!r}", fix)
    if not names:
        raise InputError.of("--columns", "names no column", f"some of {', '.join(there)}")
    return list(dict.fromkeys(names))


def raw(names: Sequence[str]) -> list[str]:
    """Return the columns of the frame that columns for reading stand for."""
    parts = [("step_multiple", "step_size") if name == "step" else (name,) for name in names]
    return list(dict.fromkeys(name for part in parts for name in part))


def spelled(results: Frames, table: pd.DataFrame, names: Sequence[str]) -> list[SheetColumn]:
    """Return columns of the closing table, spelled for reading."""
    more = {"k_word": k_of_rows(results.cells, table), "grew": grown_rows(results, table)}
    rows = table.assign(**more).to_dict("records")
    return [_field(results, rows, name) for name in names]


def _field(results: Frames, rows: Sequence[Row], name: str) -> SheetColumn:
    if name in WORDS:
        head = "Problem" if name == "facet" else name.capitalize()
        return column(rows, name, head, lambda row: str(row[name] or ""), left=True)
    if name == "step":
        return column(rows, name, "Step", _step)
    if name == "k":
        return column(rows, name, "K", _k, behind=["k"], digits=9)
    if name == "clock_to_target":

        def seconds(row: Row) -> str:
            return words.interval(row[name], math.nan, math.nan, words.time_unit_of)

        head, unit_of = "Time to target", words.time_unit_of
        return column(rows, name, head, seconds, behind=[name], unit=unit_of, better="low")
    if name.endswith("_to_target"):
        paid = name.removesuffix("_to_target")
        ends = [name, f"{paid}_low", f"{paid}_high"]
        _, spelled, unit = words.spelling(results.cost)
        head = f"{words.column_of(paid)} to target"
        spell = partial(_cost, ends, spelled)
        return column(rows, name, head, spell, behind=ends, unit=unit, better="low")
    if name == "seeds":
        return column(rows, name, "Seeds", _seeds)
    if name in COUNTS or name == "rounds":
        return column(rows, name, name.capitalize(), lambda row: words.whole(row[name]))
    if name == "edge":
        return column(rows, name, "Edge")
    head = HEADS.get(name, words.COLUMNS.get(name, name.replace("_", " ").capitalize()))
    if name in FINAL:
        digits, mark = 4 if name == "accuracy" else 3, f" {words.GREW_MARK}"

        def final(row: Row) -> str:
            grew = name == results.metric and row["grew"]
            return words.number(row[name], digits) + mark * grew

        head = head if name == "accuracy" else f"{head} end"
        return column(rows, name, head, final, behind=[name], better=FINAL[name], digits=digits)
    if name == "ratio_to_gd":
        names = sorted({algorithm_name(row["algorithm"]) for row in rows if row["baseline"]})

        def ratio(row: Row) -> str:
            return words.number(row[name], 2) if row[name] != math.inf else "–"

        finite = [{**row, name: math.nan if row[name] == math.inf else row[name]} for row in rows]
        return column(finite, name, f"÷ {'/'.join(names) or 'GD'}", ratio, behind=[name], digits=2)
    amount = OTHERS.get(name, words.bits if name.startswith("bits_") else words.number)
    amount = words.seconds if name.startswith("seconds_") else amount
    return column(rows, name, head, lambda row: amount(row[name]), behind=[name])


def _seeds(row: Row) -> str:
    """Return how many seeds there are, and how many of them reach the target where that differs."""
    if row["arrived"] in (0, row["seeds"]):
        return words.whole(row["seeds"])
    return f"{row['arrived']}/{row['seeds']} reach"


def _k(row: Row) -> str:
    """Return K as it was asked for, a share with its count: ``10% (12)``."""
    if not words.known(row["k"]):
        return "–"
    share = row["k_word"].endswith("%")
    return f"{row['k_word']} ({row['k']:.0f})" if share else words.whole(row["k"])


def _step(row: Row) -> str:
    mark = words.EDGE_MARKS[row["edge"]]
    return f"{words.step(row['step_multiple'], row['step_size'])} {mark}".strip()


def _cost(ends: Sequence[str], spelled: Callable[[float, float, float], str], row: Row) -> str:
    """Return what the target costs, with its interval; where no seed ended ok, how they ended."""
    ended = [f"{row[s]} {s}" for s in ("diverged", "failed", "skipped", "pruned") if row[s]]
    if ended and not (row["seeds"] and words.known(row[ends[0]])):
        return ", ".join(ended)
    return spelled(*(row[end] for end in ends))


# Runs that ended ``ok`` though f grew -----------------------------------------------------------------


def growth_notes(results: Frames) -> list[str]:
    """Return a line per method of which cells ended ok though f grew, none where all is well."""
    cells = results.cells.assign(grew=results.growth)[results.growth != ""]
    lines = []
    for method, part in cells.groupby("method", sort=True):
        worst = part.loc[part["loss"].idxmax(), "grew"]
        part = part.sort_values(["step_multiple", "step_size"], kind="stable")
        steps = ", ".join(dict.fromkeys(words.grid_step(step) for step in part["step"].astype(str)))
        steps = steps if len(steps) < 60 else f"{steps[:57].rpartition(',')[0]}, …"
        many = count(len(part), "cell")
        lines.append(f"{method}: {worst} in {many} that ended ok (steps {steps})")
    return lines


def grown_rows(results: Frames, table: pd.DataFrame) -> list[bool]:
    """Return which rows of a closing table stand for cells whose f grew: of their method, K and step."""
    names = ["facet", "algorithm", "compressor", "k", "step_multiple"]
    cells = results.cells[(results.growth != "") & results.cells["step_size"].notna()]
    grown = [
        (key_of(key), size)
        for *key, size in cells[[*names, "step_size"]].drop_duplicates().to_numpy(object)
    ]
    return [
        any(key_of(key) == name and np.isclose(size, other, rtol=1e-6) for name, other in grown)
        for *key, size in table[[*names, "step_size"]].to_numpy(object)
    ]
