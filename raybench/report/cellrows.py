"""The table of cells in the page: every cell with how it ended, those that did not end well first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from raybench.analysis import SECONDS, Frames
from raybench.analysis.shares import k_order, k_words
from raybench.report import words

MOST_ROWS = 2000
"""Rows a page has room for; of more cells those are left out that have least to tell."""
ENDINGS = {e: e for e in ("failed", "grew", "diverged", "pruned", "skipped", "ok")}
ENDINGS["grew"] = "ok, but f grew"
"""How cells end, in the order in which they stand, and in which words."""


@dataclass(frozen=True)
class Column:
    """A column of the table: its title and texts. numbers: to sort by, None where unknown; () for words.

    options: (value, text) of a filter; keys: what the filter compares where that is not the text.
    """

    title: str
    texts: Sequence[str]
    numbers: Sequence[float | None] = ()
    options: Sequence[tuple[str, str]] = ()
    keys: Sequence[str] = ()


def cell_table(found: Frames) -> tuple[list[Column], list[str], int]:
    """Return the columns for the template, how each row's cell ended, and how many cells there are.

    Cells that failed, were skipped, diverged, were pruned or whose f grew come first. Of more than ``MOST_ROWS`` the
    last are left out.
    """
    cells = found.cells.assign(grew=found.growth, word=k_words(found.cells))
    cells["ending"] = cells["status"].where(
        (cells["grew"] == "") | (cells["status"] != "ok"), "grew"
    )
    cells["place"] = cells["ending"].map({name: i for i, name in enumerate(ENDINGS)})
    order = ["place", "facet", "method", "k", "step_multiple", "step_size", "seed"]
    rows = cells.sort_values(order, kind="stable").head(MOST_ROWS)
    columns: list[Column] = []

    def add(
        title: str,
        texts: pd.Series,
        numbers: pd.Series | None = None,
        key: Callable[[str], Any] | None = None,
        **more: Any,
    ) -> None:
        if key is not None:
            more["options"] = [(value, value) for value in sorted({*texts} - {"–"}, key=key)]
        values = [] if numbers is None else numbers.astype(float).tolist()
        known = [value if words.known(value) else None for value in values]
        columns.append(Column(title, texts.tolist(), known, **more))

    def amount(title: str, name: str, spell: Callable[[float], str]) -> None:
        if name in rows and rows[name].notna().any():
            add(title, rows[name].map(spell), rows[name])

    if cells["facet"].nunique() > 1:
        add("Problem", rows["facet"], key=str)
    add("Method", rows["method"], key=str)
    add("K", rows["word"].replace("", "–"), rows["k"], key=k_order)
    steps = [
        " ".join(filter(None, (words.step(multiple, size), str(step).partition(" ")[2])))
        for multiple, size, step in zip(rows["step_multiple"], rows["step_size"], rows["step"])
    ]
    add("Step", pd.Series(steps), rows["step_multiple"].fillna(rows["step_size"]))
    add("Seed", rows["seed"].map(words.whole), rows["seed"])
    count = cells["ending"].value_counts()
    options = [(e, f"{said} ({count[e]})") for e, said in ENDINGS.items() if e in count]
    add("Status", rows["status"], options=options, keys=rows["ending"].tolist())
    if set(count.index) != {"ok"}:
        said = _reason(rows).where(rows["grew"] == "", rows["grew"])
        add("What happened", said)
    amount("Rounds", "rounds", words.whole)
    for name in ("grad_norm_sq", "loss", "test_loss", "accuracy"):
        title = words.COLUMNS[name]
        title = title if len(title) == 1 else words.sentence(title)
        amount(title, name, lambda value: words.number(value, 4))
    amount("Bits up", "bits_up", words.bits)
    amount("Seconds", "seconds", words.seconds)
    amount("Simulated", SECONDS, words.seconds)
    return columns, rows["ending"].tolist(), len(cells)


def _reason(cells: pd.DataFrame) -> pd.Series:
    """Return why each cell ended as it did, one line, empty where there is nothing to say."""
    said = cells["reason"].where(
        (cells["status"] != "failed") | cells["error"].isna(), cells["error"]
    )
    return said.astype(object).where(said.notna(), "").map(last_line)


def last_line(text: object) -> str:
    """Return the last line of a text that is not empty, cut: that of a traceback names the error."""
    lines = [line for line in str(text).splitlines() if line.strip()]
    return words.one_line(lines[-1] if lines else "")
