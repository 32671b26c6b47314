"""Every candidate of a table, with why it was not chosen: the answer to "this is not the best K of my sweep"."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from raybench.analysis import Frames
from raybench.analysis.tuned import candidates_by_facet
from raybench.core.errors import InputError, count
from raybench.report import words
from raybench.report.sheet import Row, Sheet, column
from raybench.report.tables import closing_notes, spelled

LOST = ("diverged", "pruned", "failed")


def choices(results: Frames) -> Sheet:
    """Return the candidates of every method, the chosen one first, in the order in which they would be chosen.

    Where a candidate does not reach the target, ``budget`` is what all settings that it is compared with have spent, and
    beside it stands the value that it had reached there. Raises InputError where every cell was skipped.
    """
    curves = results.curves_source.columns([results.cost, results.metric])
    goals, seeds = results.goals, results.tuning_seeds or None
    every = [
        table.assign(facet=facet, target=goal)
        for facet, goal, table, _ in candidates_by_facet(
            curves, results.cells, goals, "method", results.metric, results.cost, seeds
        )
    ]
    if not every:
        raise InputError.of("table", "every cell was skipped", "raybench plan FILE says why")
    table = pd.concat(every, ignore_index=True)
    by = ["facet", "method"]
    within = table["series"] == table.groupby(by)["series"].transform("first")
    # within the series of the chosen one by its own budget, else by that of all
    table["budget"] = table["budget"].where(within, table["common_budget"])
    table["at_budget"] = table["at_budget"].where(within, table["at_common_budget"])
    table["reason"] = [
        reason
        for _, part in table.groupby(by, sort=False)
        for reason in _reasons(part.to_dict("records"), results)
    ]
    cost, value = results.cost_name, words.COLUMNS[results.metric]
    ends = (f"{cost}_to_target", f"{cost}_low", f"{cost}_high")
    renamed = dict(zip(("cost", "cost_low", "cost_high"), ends, strict=True))
    data = table.rename(columns=renamed).assign(edge="", skipped=0)
    names = ["facet"] * (data["facet"].nunique() > 1) + ["method", "k", "step"]
    rows, (amount, _, _) = data.to_dict("records"), words.spelling(results.cost)

    def where_compared(name: str, spell: Callable[[float], str]) -> Callable[[Row], str]:
        """Return what spells a number of a row that is judged by its value at a budget."""
        return lambda row: spell(row[name]) if row["eligible"] and row["tier"] == 2 else "–"

    fields = [
        *spelled(results, data, [*names, ends[0], "seeds"]),
        column(rows, "budget", "Budget", where_compared("budget", amount)),
        column(rows, "at_budget", f"{value} there", where_compared("at_budget", words.number)),
        column(rows, "reason", "Why not", left=True),
    ]
    heads = [*by, "k", "step_multiple", "step_size", *ends, "seeds", "arrived", *LOST]
    sections = data.groupby(by, sort=False).ngroup().tolist()
    notes = results.chosen_on + closing_notes(results, data, results.metric)
    data = data[[*heads, "budget", "at_budget", "reason"]]
    return Sheet(fields=fields, sections=sections, data=data, notes=notes)


def _reasons(rows: list[dict[Any, Any]], results: Frames) -> list[str]:
    """Return why each of a method's candidates was not chosen; they are in the order of the choice."""
    first = rows[0]
    head = "chosen" if first["eligible"] else _lost(first)
    return [head, *(_reason(row, first, results) for row in rows[1:])]


def _reason(row: Row, first: Row, results: Frames) -> str:
    if not row["eligible"]:
        return _lost(row)
    if row["tier"] > first["tier"]:
        if row["tier"] == 2:
            return "does not reach the target" if not row["arrived"] else _arrived(row)
        return _arrived(row)
    if row["tier"] < 2:
        if row["cost"] == first["cost"]:
            return "costs the same; it ends no lower"
        times = row["cost"] / first["cost"] if first["cost"] else math.inf
        return f"costs {words.number(times)} times as much"
    name = words.COLUMNS[results.metric]
    if not words.known(row["at_budget"]):
        return f"{name} is not known at the budget"
    if row["series"] == first["series"]:
        return f"{name} is no lower at the budget"
    if row["at_budget"] >= first["at_common_budget"]:
        return f"{name} is no lower at the budget of all K"
    return "its K has a better step, which was not chosen either"


def _arrived(row: Row) -> str:
    return f"reaches the target with {row['arrived']} of {count(int(row['seeds']), 'seed')}"


def _lost(row: Row) -> str:
    """Return how the seeds of a candidate that cannot be chosen have ended."""
    return ", ".join(f"{count(int(row[s]), 'seed')} {s}" for s in LOST if row[s])
