"""A table spelled for reading: what the terminal, Markdown and LaTeX forms of every table are written from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from raybench.report.words import Unit

Row = Mapping[Any, Any]


@dataclass(frozen=True, kw_only=True)
class SheetColumn:
    """A column: its name, its head, a text for each row and, where it has them, the numbers behind.

    low, high: ends of the numbers' intervals, NaN where unknown. unit: of a number of some size. better:
    ``low`` or ``high`` where the least or largest number of a section is the best. left: a column of words.
    """

    name: str
    head: str
    texts: Sequence[str]
    numbers: Sequence[float] = ()
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    unit: Unit | None = None
    better: str = ""
    digits: int = 3
    left: bool = False


def column(
    rows: Sequence[Row],
    name: str,
    head: str,
    spell: Callable[[Row], str] | None = None,
    *,
    behind: Sequence[str] = (),
    **more: Any,
) -> SheetColumn:
    """Return a column of rows. spell: the text of a row, that of its entry by default.

    behind: the entries that hold its numbers and, where they have some, the ends of their intervals. more: of ``SheetColumn``.
    """
    numbers = [
        [math.nan if r[entry] is None else float(r[entry]) for r in rows] for entry in behind
    ]
    more |= dict(zip(("numbers", "low", "high"), numbers, strict=False))
    texts = [str(row[name]) if spell is None else spell(row) for row in rows]
    return SheetColumn(name=name, head=head, texts=texts, **more)


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """Columns of equal length, a number of the section each row belongs to, notes, and the frame behind."""

    fields: Sequence[SheetColumn]
    sections: Sequence[int]
    data: pd.DataFrame
    notes: Sequence[str] = field(default_factory=list)

    @property
    def head(self) -> list[str]:
        """The heads of the columns."""
        return [f.head for f in self.fields]

    @property
    def rows(self) -> list[list[str]]:
        """The texts row by row."""
        return [list(row) for row in zip(*(f.texts for f in self.fields), strict=True)]

    def best(self, column: SheetColumn) -> list[bool]:
        """Return which rows of a column are the best of their sections, to the digits that are shown.

        None is where a section has one row, or no finite number.
        """
        marks = [False] * len(column.texts)
        if not column.better or not column.numbers:
            return marks
        sign = 1 if column.better == "low" else -1
        for section in set(self.sections):
            places = [i for i, s in enumerate(self.sections) if s == section]
            finite = [i for i in places if math.isfinite(column.numbers[i])]
            if len(places) < 2 or not finite:
                continue
            least = min(finite, key=lambda i: sign * column.numbers[i])
            number = f"{column.numbers[least]:.{column.digits}g}"
            for i in finite:
                marks[i] = f"{column.numbers[i]:.{column.digits}g}" == number
        return marks
