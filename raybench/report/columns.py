"""The columns of the closing table, spelled for reading: which there are, and what stands in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from raybench.analysis import Frames
from raybench.analysis.closing import baselines
from raybench.analysis.methods import algorithm_name
from raybench.analysis.shares import k_of_rows
from raybench.core.errors import InputError, nearest
from raybench.report import words
from raybench.report.growth import grown_rows
from raybench.report.sheet import Field, Unit

Row = Mapping[Any, Any]

WORDS = {"facet": "Problem", "method": "Method", "algorithm": "Algorithm", "compressor": "Operator"}
COUNTS = ("arrived", "ok", "diverged", "failed", "skipped", "pruned")
FINAL = {"grad_norm_sq": "low", "loss": "low", "test_loss": "low", "accuracy": "high"}
"""Values at the end, and where their best lies."""
OTHERS = {"bits_up": words.bits, "seconds": words.seconds}
HEADS = {
    "step_multiple": "Step, multiple",
    "step_size": "Step size",
    "accuracy": "Accuracy",
    "bits_up": "Bits up",
    "coverage": "Coverage",
}


def usual(found: Frames, table: pd.DataFrame, by: str) -> list[str]:
    """Return the names of the columns that the closing table shows unless others are asked for."""
    facets = table["facet"].nunique() > 1
    heads = ["k", "method"] if by == "k" else ["method", "k"]
    cost = "bits_to_target" if found.link is None else "seconds_to_target"
    accuracy = bool(table["accuracy"].notna().any())
    names = ["facet"] * facets + heads + ["step", cost, "ratio_to_gd", "seeds", found.metric]
    return names + ["accuracy"] * (accuracy and found.metric != "accuracy")


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


def spelled(found: Frames, table: pd.DataFrame, names: Sequence[str]) -> list[Field]:
    """Return columns of the closing table, spelled for reading."""
    more = {"k_word": k_of_rows(found.cells, table), "grew": grown_rows(found, table)}
    rows = table.assign(**more, baseline=baselines(table)).to_dict("records")
    return [_field(found, rows, name) for name in names]


def _field(found: Frames, rows: Sequence[Row], name: str) -> Field:
    def made(head: str, spell: Callable[[Row], str], **more: Any) -> Field:
        return Field(name=name, head=head, texts=[spell(row) for row in rows], **more)

    if name in WORDS:
        return made(WORDS[name], lambda row: str(row[name] or ""), left=True)
    if name == "step":
        return made("Step", _step)
    if name == "k":
        numbers = [float(row["k"]) for row in rows]
        return made("K", _k, numbers=numbers, digits=9)
    if name.endswith("_to_target"):
        return _cost(rows, name, words.unit_of if found.link is None else words.time_unit_of)
    if name == "seeds":
        return made("Seeds", _seeds)
    if name in COUNTS or name == "rounds":
        return made(name.capitalize(), lambda row: _whole(row[name]))
    if name == "edge":
        return made("Edge", lambda row: row["edge"])
    head = HEADS.get(name, words.COLUMNS.get(name, name.replace("_", " ").capitalize()))
    numbers = [math.nan if row[name] is None else float(row[name]) for row in rows]
    if name in FINAL:
        digits, mark = 4 if name == "accuracy" else 3, f" {words.GREW_MARK}"
        head = head if name == "accuracy" else f"{head} end"
        return made(
            head,
            lambda row: (
                words.number(row[name], digits) + mark * (name == found.metric and row["grew"])
            ),
            numbers=numbers,
            better=FINAL[name],
            digits=digits,
        )
    if name == "ratio_to_gd":
        names = sorted({algorithm_name(row["algorithm"]) for row in rows if row["baseline"]})
        return made(
            f"÷ {'/'.join(names) or 'GD'}",
            lambda row: words.number(row[name], 2) if row[name] != math.inf else "–",
            numbers=[math.nan if math.isinf(v) else v for v in numbers],
            digits=2,
        )
    amount = OTHERS.get(name, words.bits if name.startswith("bits_") else words.number)
    amount = words.seconds if name.startswith("seconds_") else amount
    return made(head, lambda row: amount(row[name]), numbers=numbers)


def _seeds(row: Row) -> str:
    """Return how many seeds there are, and how many of them reach the target where that differs."""
    if row["arrived"] in (0, row["seeds"]):
        return _whole(row["seeds"])
    return f"{row['arrived']}/{row['seeds']} reach"


def _k(row: Row) -> str:
    """Return K as it was asked for, a share with its count: ``10% (12)``."""
    if not words.known(row["k"]):
        return "–"
    return f"{row['k_word']} ({row['k']:.0f})" if row["k_word"].endswith("%") else _whole(row["k"])


def _step(row: Row) -> str:
    mark = words.EDGE_MARKS[row["edge"]]
    return f"{words.step(row['step_multiple'], row['step_size'])} {mark}".strip()


def _cost(rows: Sequence[Row], name: str, unit: Unit) -> Field:
    """Return what the target costs, with its interval; where no seed ended ok, how they ended."""
    paid = name.removesuffix("_to_target")
    spell = words.bits_interval if unit is words.unit_of else words.seconds_interval
    columns = (name, f"{paid}_low", f"{paid}_high")
    texts = []
    for row in rows:
        none_ok = not row["seeds"] or not words.known(row[name])
        ended = [f"{row[s]} {s}" for s in ("diverged", "failed", "skipped", "pruned") if row[s]]
        said = spell(*(row[column] for column in columns))
        texts.append(", ".join(ended) if none_ok and ended else said)
    middle, low, high = ([float(row[column]) for row in rows] for column in columns)
    return Field(
        name=name,
        head=f"{paid.capitalize()} to target",
        texts=texts,
        numbers=middle,
        low=low,
        high=high,
        unit=unit,
        better="low",
    )


def _whole(value: float) -> str:
    return f"{value:,.0f}" if words.known(value) else "–"
