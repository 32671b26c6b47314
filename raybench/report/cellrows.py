"""The table of cells in the page: every cell with how it ended, those that did not end well first."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from raybench.analysis import SECONDS, Frames
from raybench.analysis.methods import k_order, k_words
from raybench.report import words

MOST_ROWS = 2000
"""Rows a page has room for; of more cells those are left out that have least to tell."""
ENDINGS = ("failed", "grew", "diverged", "pruned", "skipped", "ok")  # as they are sorted
DIGITS = 4


def cell_table(found: Frames) -> dict[str, Any]:
    """Return the cells for the template: head, rows, count, and the values that the filters offer.

    head: (title, whether it is a text). rows: {status, grew, method, k, facet, values}, a value (text, number
    to sort by or None). Cells that failed, were skipped, diverged, were pruned or whose f grew come first. Of more
    than ``MOST_ROWS`` the last are left out; left_out says how many.
    """
    cells = found.cells
    cells = cells.assign(grew=found.growth, word=k_words(cells), said=_said(cells))
    ending = cells["status"].where((cells["grew"] == "") | (cells["status"] != "ok"), "grew")
    place = ending.map({name: i for i, name in enumerate(ENDINGS)})
    cells = cells.assign(place=place, ending=ending).sort_values(
        ["place", "facet", "method", "k", "step_multiple", "step_size", "seed"], kind="stable"
    )
    facets = cells["facet"].nunique() > 1
    columns = _columns(cells, found, facets)
    rows = [
        {
            "status": row["ending"],
            "method": row["method"],
            "k": row["word"],
            "facet": row["facet"],
            "values": [spell(row) for _, _, spell in columns],
        }
        for row in cells.head(MOST_ROWS).to_dict("records")
    ]
    shown = cells.head(MOST_ROWS)
    return {
        "head": [(title, text) for title, text, _ in columns],
        "rows": rows,
        "count": len(cells),
        "left_out": len(cells) - len(rows),
        "endings": [(e, int((ending == e).sum())) for e in ENDINGS if (ending == e).any()],
        "methods": sorted(shown["method"].unique()),
        "ks": sorted((k for k in shown["word"].unique() if k), key=k_order),
        "facets": sorted(shown["facet"].unique()) if facets else [],
    }


def _said(cells: pd.DataFrame) -> pd.Series:
    """Return why each cell ended as it did, one line, empty where there is nothing to say."""
    failed = cells["status"] == "failed"
    said = cells["error"].where(failed & cells["error"].notna(), cells["reason"])
    return said.where(said.notna(), "").map(last_line)


def last_line(text: object) -> str:
    """Return the last line of a text that is not empty, cut: that of a traceback names the error."""
    lines = [line for line in str(text).splitlines() if line.strip()]
    return words.one_line(lines[-1] if lines else "")


def _title(y: str) -> str:
    word = words.COLUMNS[y]
    return word if len(word) == 1 else words.sentence(word)


Spell = Callable[[dict[str, Any]], tuple[str, float | None]]


def _columns(cells: pd.DataFrame, found: Frames, facets: bool) -> list[tuple[str, bool, Spell]]:
    """Return (title, whether it is a text, how a row spells it) of the columns that tell something."""

    def text(name: str) -> Spell:
        return lambda row: (str(row[name]), None)

    def number(name: str, spell: Callable[[float], str]) -> Spell:
        def spelled(row: dict[str, Any]) -> tuple[str, float | None]:
            value = row[name]
            value = float(value) if words.known(value) else math.nan
            return spell(value), value if words.known(value) else None

        return spelled

    def step(row: dict[str, Any]) -> tuple[str, float | None]:
        multiple, size = row["step_multiple"], row["step_size"]
        value = multiple if words.known(multiple) else size
        theory = str(row["step"]).partition(" ")[2]  # such as paper, or rule of thumb
        spelled = " ".join(p for p in (words.step(multiple, size), theory) if p)
        return spelled, float(value) if words.known(value) else None

    def k(row: dict[str, Any]) -> tuple[str, float | None]:
        count = row["k"]
        return row["word"] or "–", float(count) if words.known(count) else None

    def ended(row: dict[str, Any]) -> tuple[str, float | None]:
        return " · ".join(p for p in ("" if row["grew"] else row["said"], row["grew"]) if p), None

    def digits(value: float) -> str:
        return words.number(value, DIGITS)

    def whole(value: float) -> str:
        return f"{value:,.0f}" if words.known(value) else "–"

    columns: list[tuple[str, bool, Spell]] = [("Problem", True, text("facet"))] if facets else []
    columns += [("Method", True, text("method")), ("K", False, k), ("Step", False, step)]
    columns += [("Seed", False, number("seed", whole)), ("Status", True, text("status"))]
    if found.cells["status"].ne("ok").any() or cells["grew"].ne("").any():
        columns.append(("What happened", True, ended))
    spelled: list[tuple[str, str, Callable[[float], str]]] = [
        ("Rounds", "rounds", whole),
        *[(_title(y), y, digits) for y in ("grad_norm_sq", "loss", "test_loss", "accuracy")],
        ("Bits up", "bits_up", words.bits),
        ("Seconds", "seconds", words.seconds),
        ("Simulated", SECONDS, words.seconds),
    ]
    columns += [
        (title, False, number(name, spell))
        for title, name, spell in spelled
        if name in cells and cells[name].notna().any()
    ]
    return columns
