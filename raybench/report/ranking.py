"""The ranking of methods over problems and seeds, spelled for reading."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pandas as pd

from raybench.analysis import Frames, How, Where, opened, rank
from raybench.report import words
from raybench.report.content import open_frames
from raybench.report.sheet import Field, Sheet


def ranking(
    source: str | os.PathLike[str] | Frames,
    accounting: How = None,
    target: float | str | None = None,
    by: str = "method",
    link: str | None = None,
    x: str | None = None,
    tuning_seeds: Sequence[int] = (),
    where: Where | None = None,
) -> Sheet:
    """Return ``analysis.rank`` of a results folder, spelled for reading. Raises InputError as it does."""
    found = opened(open_frames(source, accounting, link, target, tuning_seeds), where)
    table = rank(found, by=by, x=x)
    rows = table.to_dict("records")

    behind = ["not shown" if row["tied"] else "yes" for row in rows]
    behind[:1] = ["–"] * len(rows[:1])
    ratios = [words.number(row["ratio"], 3) + "×" * (row["ratio"] < float("inf")) for row in rows]
    fields = [
        Field(name=by, head="Method", texts=[str(row[by]) for row in rows], left=True),
        Field(
            name="rank",
            head="Mean rank",
            texts=[f"{row['rank']:.2f}" for row in rows],
            numbers=[row["rank"] for row in rows],
            better="low",
        ),
        Field(name="wins", head="Wins", texts=[str(row["wins"]) for row in rows]),
        Field(
            name="reached",
            head="Reach",
            texts=[f"{row['reached']}/{row['instances']}" for row in rows],
        ),
        Field(name="ratio", head="Cost ÷ least", texts=ratios),
        Field(name="tied", head="Worse than first", texts=behind),
    ]
    return Sheet(
        fields=fields,
        sections=[0] * len(rows),
        data=table,
        notes=_notes(found, table, by, x or found.cost),
    )


def _notes(found: Frames, table: pd.DataFrame, by: str, x: str) -> list[str]:
    if table.empty:
        return ["nothing to rank: no cell ran", *found.earlier]
    cost = words.COLUMNS.get(x, x.replace("_", " "))
    cost += "" if found.link is None else f" for {found.link}"
    goals = found.tuned(by, cost=x).drop_duplicates("facet")[["facet", "target"]]
    if goals["target"].nunique() == 1:
        goal = f"{goals['target'].iloc[0]:g}"
    else:
        goal = ", ".join(f"{t:g} ({f})" for f, t in goals.itertuples(index=False))
    first = table.iloc[0]
    problems = len(goals)
    notes = [
        f"Cost: {cost} to {words.COLUMNS[found.metric]} ≤ {goal}, each method at its best "
        + ("K and step" if by == "method" else "step"),
        f"Over {words.count(int(first['instances']), 'instance')}: seeds of {words.count(problems, 'problem')}",
    ]
    if words.known(first["critical"]):
        p, apart = words.number(first["p_value"], 2), words.number(first["critical"], 3)
        notes.append(
            f"All methods alike: p = {p} (Friedman); mean ranks less than {apart} apart may be luck (Nemenyi, 95 %)"
        )
    if problems == 1:
        notes.append("Seeds of one problem tell about this problem alone")
    if found.accounting:
        notes.append(f"Accounting: {found.accounting}")
    return [*notes, *found.chosen_on, *(words.sentence(note) for note in found.notes)]
