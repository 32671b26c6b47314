"""Two results folders side by side, spelled for reading."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from raybench.analysis import Frames, How, compare, differences
from raybench.report import words
from raybench.report.content import open_frames
from raybench.report.sheet import Field, Sheet

SHOWN = 6  # keys that the folders differ in


def comparison(
    a: str | os.PathLike[str] | Frames,
    b: str | os.PathLike[str] | Frames,
    accounting: How = None,
    target: float | str | None = None,
    by: str = "series",
    link: str | None = None,
    tuning_seeds: Sequence[int] = (),
) -> Sheet:
    """Return ``analysis.compare`` of two results folders, spelled for reading. Raises InputError as it does."""
    one, two = (open_frames(folder, accounting, link, target, tuning_seeds) for folder in (a, b))
    table = compare(one, two, by=by)
    rows = table.to_dict("records")
    unit, spell = (
        (words.unit_of, words.bits) if one.link is None else (words.time_unit_of, words.seconds)
    )
    paid = "Bits" if one.link is None else "Seconds"
    fields = []
    if table["facet"].nunique() > 1:
        fields.append(Field(name="facet", head="Problem", texts=list(table["facet"]), left=True))
    fields += [
        Field(name="method", head="Method", texts=list(table["method"]), left=True),
        Field(
            name="k", head="K", texts=[f"{v:.0f}" if words.known(v) else "–" for v in table["k"]]
        ),
        Field(
            name="step", head="Step", texts=[_step(row["step_a"], row["step_b"]) for row in rows]
        ),
    ]
    for side in ("a", "b"):
        costs = [float(v) for v in table[f"cost_{side}"]]
        texts = [spell(v) for v in costs]
        fields.append(
            Field(
                name=f"cost_{side}",
                head=f"{paid} in {side.upper()}",
                texts=texts,
                numbers=costs,
                unit=unit,
            )
        )
    if table["apart"].any():
        fields.insert(-3, Field(name="apart", head="A → B", texts=list(table["apart"]), left=True))
    adjusted = [float(v) for v in table["p_adjusted"]]
    fields += [
        Field(name="ratio", head="B ÷ A", texts=[_ratio(row) for row in rows]),
        Field(name="pairs", head="Pairs", texts=[str(row["pairs"]) for row in rows]),
        Field(name="p_adjusted", head="p", texts=[words.number(v, 2) for v in adjusted]),
        Field(name="verdict", head="Difference", texts=[_verdict(row["verdict"]) for row in rows]),
    ]
    sections = table.groupby("facet", sort=False).ngroup().tolist()
    notes = _notes(one, two, table)
    return Sheet(fields=fields, sections=sections, data=table, notes=notes)


def _step(a: str, b: str) -> str:
    one, two = (f"{s[1:]}×" if s.startswith("x") and " " not in s else s for s in (a, b))
    return one or two if one == two or not (one and two) else f"{one} → {two}"


def _ratio(row: Mapping[Any, Any]) -> str:
    ratio = row["ratio"]
    if not words.known(ratio) or not (row["reached_a"] or row["reached_b"]):
        return "–"
    if ratio == 0 or math.isinf(ratio):
        return "B alone" if ratio == 0 else "A alone"  # reaches the target
    return f"{words.number(ratio, 3)}×"


def _verdict(said: str) -> str:
    return {"same": "identical", "only a": "only in A", "only b": "only in B"}.get(said, said)


def _notes(one: Frames, two: Frames, table: pd.DataFrame) -> list[str]:
    notes = [
        f"{name}: {frames.folder}" for name, frames in (("A", one), ("B", two)) if frames.folder
    ]
    apart = differences(one, two)
    said = [f"{key} {a} → {b}" for key, (a, b) in list(apart.items())[:SHOWN]]
    more = f", and {len(apart) - SHOWN} more keys" if len(apart) > SHOWN else ""
    if said:
        notes.append(f"They differ in {'; '.join(said)}{more}")
    goals = table.drop_duplicates("facet")[["facet", "target"]].dropna()
    each = [f"{t:g} ({f})" if f else f"{t:g}" for f, t in goals.itertuples(index=False)]
    if len(set(goals["target"])) == 1:
        each = [f"{goals['target'].iloc[0]:g}"]
    notes.append(f"Cost: median over seeds, to {words.COLUMNS[one.metric]} ≤ {', '.join(each)}")
    count = table["verdict"].value_counts()
    notes.append(
        f"{words.count(len(table), 'row')}: {', '.join(f'{n} {_verdict(v)}' for v, n in count.items())}"
    )
    pairs = int(table["pairs"].max())
    notes.append(
        "p: of no difference, over pairs of equal seeds (Wilcoxon), corrected for all rows (Holm)"
        if pairs
        else "p: of no difference, over seeds, none of which are in both (Mann and Whitney), corrected for all rows (Holm)"
    )
    if 0 < pairs < 6:
        notes.append(
            f"{words.count(pairs, 'pair')} cannot show a difference at 5 %: it takes 6 seeds at least"
        )
    notes += one.chosen_on
    notes += [
        f"{name}: {line}" for name, found in (("A", one), ("B", two)) for line in found.earlier
    ]
    if one.accounting:
        both = (
            one.accounting
            if one.accounting == two.accounting
            else f"{one.accounting}; B: {two.accounting}"
        )
        notes.append(f"Accounting: {both}")
    return notes
