"""The closing table: on a terminal, as plain text, Markdown, CSV or LaTeX."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from raybench.analysis import Frames, How, closing_table
from raybench.report import columns, words
from raybench.report.content import open_frames
from raybench.report.formats import check, written
from raybench.report.growth import grown_rows, growth_notes
from raybench.report.sheet import Sheet

if TYPE_CHECKING:
    from raybench.report.formats import Fitted


def closing(
    source: str | os.PathLike[str] | Frames,
    accounting: How = None,
    target: float | str | None = None,
    by: str = "method",
    link: str | None = None,
    names: Sequence[str] | None = None,
    tuning_seeds: Sequence[int] = (),
) -> Sheet:
    """Return the closing table, spelled for reading.

    names: of the columns, those of ``closing_table`` and ``step``. tuning_seeds: on which K and steps are chosen, to
    be reported on the others. Raises InputError for an unknown column and for seeds that are not there.
    """
    found = open_frames(source, accounting, link, target, tuning_seeds)
    table = closing_table(found, by=by)
    shown = columns.wanted(names, table) if names else columns.usual(found, table, by)
    grown = [words.GREW_NOTE] if any(grown_rows(found, table)) else []
    keys = ["facet", "k"] if by == "k" else ["facet"]
    sections = table.groupby(keys, sort=False, dropna=False).ngroup().tolist()
    return Sheet(
        fields=columns.spelled(found, table, shown),
        sections=sections,
        data=table[columns.raw(names)] if names else table,
        notes=found.chosen_on + _notes(found, table, found.metric) + grown,
    )


def _notes(found: Frames, table: pd.DataFrame, value: str) -> list[str]:
    notes = _target_notes(found, table)
    count = found.cells["status"].value_counts()
    ended = [f"{count[s]:,} {s}" for s in count.index]
    notes.append(": ".join(filter(None, [words.count(len(found.cells), "cell"), ", ".join(ended)])))
    notes += growth_notes(found)
    notes += [note[:1].upper() + note[1:] for note in found.tuning]
    if found.accounting:
        notes.append(f"Accounting: {found.accounting}")
    spread = words.intervals(int(n) for n in table["seeds"])
    if found.link is None:
        paid = "Bits: upstream per client"
    else:
        paid = f"Seconds: simulated for {found.link}, each client on a machine of its own"
    if not spread:
        notes.append(paid)
    else:
        said = "median over seeds; in brackets an interval that holds the true median"
        notes.append(f"{paid}, {said} with probability {spread}")
        ends = [words.COLUMNS[value]] + ["accuracy"] * bool(table["accuracy"].notna().any())
        notes.append(f"{' and '.join(ends)} at the end: median over seeds")
    notes += [note[:1].upper() + note[1:] for note in found.notes]
    notes += [words.EDGE_NOTE[e] for e in ("high", "low", "only") if (table["edge"] == e).any()]
    return notes


def _target_notes(found: Frames, table: pd.DataFrame) -> list[str]:
    """Say what the targets are, where they come from, and what else they could be."""
    of = table.drop_duplicates("facet").set_index("facet")["target"].dropna()
    if of.empty:
        return []
    kept = {facet: one for facet, one in found.kept.items() if facet in of}
    held = pd.Series({facet: one.value for facet, one in kept.items()}, dtype=float)
    said = f"Target: {words.COLUMNS[found.metric]} ≤ {_by_facet(of)}"
    if found.asked is not None:
        said += ", as asked for" if found.asked != "auto" else ", from what the folder holds now"
        moved = held[held != of.reindex(held.index)]
        return [f"{said}; the target that was fixed is {_by_facet(moved)}" if len(moved) else said]
    if not kept:
        return [f"{said}, from what the folder holds"]
    dates = sorted({one.since[:10] for one in kept.values()})
    said += f", fixed on {' and '.join(dates)}" if len(kept) == len(of) else ""
    now = pd.Series(found.own_targets, dtype=float).reindex(held.index)
    moved = now[(now != held) & now.notna()]
    more = f"Target from what the folder holds now: {_by_facet(moved)} (--target auto)"
    return [said, more] if len(moved) else [said]


def _by_facet(values: pd.Series) -> str:
    """Return one number where all facets share it, else each with its facet."""
    if values.nunique() == 1:
        return f"{values.iloc[0]:g}"
    return ", ".join(f"{value:g} ({facet})" for facet, value in values.items())


def table(
    source: str | os.PathLike[str] | Frames,
    accounting: How = None,
    target: float | str | None = None,
    by: str = "method",
    link: str | None = None,
    names: Sequence[str] | None = None,
) -> Fitted:
    """Return the closing table of a results folder for ``rich.print``, which fits terminals of any width.

    Per method its best K and step, bits to the target with its interval, ratio to gd, seeds and
    final value. ``by="series"`` keeps every K, ``by="k"`` compares methods at each K. link: a network such as
    ``1Gbit,ring``, for which seconds are simulated; they take the place of bits. names: of the columns, those of
    ``closing_table`` and ``step``. Raises InputError as ``raybench.load`` does, and for an unknown link or column.
    """
    from raybench.report.formats import Fitted

    return Fitted(closing(source, accounting, target, by, link, names))


def render(
    source: str | os.PathLike[str] | Frames,
    form: str = "plain",
    accounting: How = None,
    target: float | str | None = None,
    by: str = "method",
    link: str | None = None,
    names: Sequence[str] | None = None,
) -> str:
    """Return the closing table as text: ``plain``, ``markdown``, ``csv`` (raw numbers in bits) or ``latex``.

    link, by, names: as for ``table``. Raises InputError for an unknown form, and as ``table`` does.
    """
    form = check(form)
    return written(closing(source, accounting, target, by, link, names), form)
