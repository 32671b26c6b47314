"""Two results folders cell by cell: what became cheaper, by how much, and whether that is more than luck."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from raybench.analysis.closing import Frames
from raybench.analysis.significance import holm, paired, unpaired
from raybench.analysis.source import Source, Where, axis, opened, targets_of
from raybench.analysis.to_target import costs_of
from raybench.analysis.tuned import candidates, set_apart
from raybench.core.errors import InputError, nearest
from raybench.store.reader import How, flatten, shared

WAYS = ("step", "series", "method")
ENOUGH = 0.05
"""Below this adjusted p-value a difference is called one."""
COLUMNS = [
    *("facet", "method", "k", "step_a", "step_b", "target", "cells_a", "cells_b", "pairs"),
    *("identical", "reached_a", "reached_b", "cost_a", "cost_b", "ratio", "effect"),
    *("p_value", "p_adjusted", "verdict", "apart"),
]


def compare(
    a: Source,
    b: Source,
    target: float | None = None,
    *,
    by: str = "step",
    x: str | None = None,
    where: Where | None = None,
    accounting: How = None,
) -> pd.DataFrame:
    """Return what the target costs in b and in a, for every method, K and step that both have.

    Groups belong together if they asked for the same, but for what all cells of a and b differ in (``differences``), such as
    lambda where b was run with another one. Where several groups of a folder do, each has a row with each of the other's that is
    not in both. ``by="series"`` compares the best step of a with that of b at each K,
    ``by="method"`` the best K and step. target: None for those of a's table. Seeds that both have are compared in pairs
    (``significance.paired``), of those that have not tuned, where frames have seeds that do; where there are none, as two samples (``significance.unpaired``).

    Columns: facet, method, k, step_a, step_b, target, cells_a, cells_b, pairs, identical (pairs that agree in
    cost and in final value to the last bit), reached_a, reached_b, cost_a, cost_b (medians), ratio (b over a, below 1 where
    b is cheaper; 0 or inf where only b or only a reaches the target), effect (from -1, all of b cheaper, to 1), p_value, p_adjusted (Holm, over all rows) and verdict: ``cheaper``
    or ``dearer`` where p_adjusted is below 5 %, ``same`` where all pairs are identical, ``not shown``, or ``only a``, ``only b``
    for what the other folder lacks; apart: what the two sides of the row differ in, where it is not the same in all rows. Three pairs have no p-value below 25 %, six none below 3 %. Rows in order of a's cost.
    Raises InputError for unknown columns and where the folders have nothing in common.

    >>> from raybench.analysis.examples import example
    >>> before, after = example(seeds=8), example(seeds=8, slower=0.5)
    >>> found = compare(before, after, 1e-3, by="series")
    >>> found[["method", "k", "cost_a", "cost_b", "ratio", "p_adjusted", "verdict"]].round(3)
              method    k   cost_a  cost_b  ratio  p_adjusted  verdict
    0     EF21 Top-K  1.0   4165.0  2100.0  0.503       0.031  cheaper
    1     EF21 Top-K  2.0   6720.0  3360.0  0.504       0.031  cheaper
    2  MARINA Rand-K  1.0   6912.0  3456.0  0.502       0.031  cheaper
    3             GD  NaN  13440.0  6720.0  0.500       0.031  cheaper
    """
    if by not in WAYS:
        raise InputError.of("by", f"unknown {by!r}", nearest(by, WAYS) or f"one of {WAYS}")
    one, two = opened(a, where, accounting), opened(b, where, accounting)
    if by == "step" and (one.tuning_seeds or two.tuning_seeds):
        raise InputError.of(
            "--tuning-seeds", "every step is compared, and none chosen", "--by series"
        )
    x, y = axis(x or one.cost, one, "x"), one.metric
    left, right = _keyed(one, two, by)
    if set(left["key"]).isdisjoint(right["key"]):
        raise InputError.of("compare", "the folders have no method on a problem in common")
    left, right = _paired(left, right)
    right = _renamed(right, left, by)
    goals = targets_of(one, target)
    left, right = _tuned(one, left, by, goals, x), _tuned(two, right, by, goals, x)
    costs = [costs_of(f, c, goals, x, y) for f, c in ((one, left), (two, right))]
    rows = list(_rows(costs[0], costs[1], y))
    table = pd.DataFrame(rows, columns=COLUMNS)
    table["p_adjusted"] = holm(table["p_value"].to_numpy(float))
    table["verdict"] = [_verdict(row) for row in table.to_dict("records")]
    order = ["facet", "cost_a", "cost_b"]
    return table.sort_values(order, kind="stable", na_position="last", ignore_index=True)


def differences(a: Source, b: Source) -> dict[str, tuple[str, str]]:
    """Return what all cells of two sources differ in: {key of the sweep file: (values in a, values in b)}."""
    one, two = (_asked(opened(source).cells)[0] for source in (a, b))
    return {name: (_values(one, name), _values(two, name)) for name in _apart(one, two)}


def _asked(cells: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
    """Return what cells asked for, as flat texts without seed and step, each once, and the place of each cell in it."""
    place, texts = pd.factorize(cells["config"].astype(object).map(shared, na_action="ignore"))
    # texts at once: pandas would make 4 of some cells 4.0 where others have no such key
    rows = [{k: repr(v) for k, v in flatten(text).items() if v is not None} for text in texts]
    few = pd.DataFrame(rows, dtype=object).fillna("")
    keep = [c for c in few if c not in ("seed", "step.number") and not c.startswith("resolved")]
    return few[keep], place


def _values(asked: pd.DataFrame, name: str) -> str:
    values = asked[name].unique() if name in asked else [""]
    return ", ".join(sorted(value.strip("'") or "-" for value in values))


def _apart(one: pd.DataFrame, two: pd.DataFrame) -> list[str]:
    names = sorted({*one, *two})
    seen = [{n: set(part[n]) if n in part else {""} for n in names} for part in (one, two)]
    return [n for n in names if not seen[0][n] & seen[1][n]]


def _keyed(one: Frames, two: Frames, by: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the cells that ran, with columns key, unit and own: texts.

    key: what cells have in common that are compared; unit: the groups of a side that are one; own: what such a
    side has of the keys in which the sides differ, where it has several.
    """
    asked = [_asked(found.cells) for found in (one, two)]
    apart = _apart(asked[0][0], asked[1][0])
    names = sorted({*asked[0][0], *asked[1][0]} - set(apart))
    names = [n for n in names if by != "method" or n != "compressor.k"]
    told = [n for n in apart if any(n in few and few[n].nunique() > 1 for few, _ in asked)]
    found = []
    for frames, (few, place) in zip((one, two), asked, strict=True):
        cells = frames.cells
        rows = few.reindex(columns=names, fill_value="").to_numpy(object).tolist()
        texts = np.array(["\n".join(row) for row in rows] + [""], object)[place]
        step = cells["step_multiple"].map("x{:.12g}".format)
        step = step.where(cells["step_multiple"].notna(), cells["step_size"].map("{:.12g}".format))
        head = cells["problem"].fillna("") + "\n" + cells["algorithm"].fillna("") + "\n"
        key = head + texts + ("\n" + step if by == "step" else "")
        rows = few.reindex(columns=told, fill_value="").to_numpy(object).tolist()
        short = [name.rpartition(".")[2] + " " if len(told) > 1 else "" for name in told]
        said = [
            ", ".join(name + (v.strip("'") or "-") for name, v in zip(short, row, strict=True))
            for row in rows
        ]
        unit = cells["facet"] + "\n" + cells["method"]
        unit = unit if by == "method" else cells["group"].fillna(cells["facet"] + cells["series"])
        more = {"key": key, "unit": unit, "own": np.array([*said, ""], object)[place]}
        found.append(cells.assign(**more)[cells["status"] != "skipped"].reset_index(drop=True))
    return found[0], found[1]


def _paired(left: pd.DataFrame, right: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return cells with a key for each pair of units, one of each side: a unit that is in both is a pair by itself."""
    units = [side[["key", "unit"]].drop_duplicates() for side in (left, right)]
    if not any(part["key"].duplicated().any() for part in units):
        return left, right
    pairs = units[0].merge(units[1], "outer", on="key", suffixes=("_a", "_b"))
    both = [
        pairs[name].isin(set(units[1 - i]["unit"])) for i, name in enumerate(("unit_a", "unit_b"))
    ]
    pairs = pairs[(pairs["unit_a"] == pairs["unit_b"]) | ~(both[0] | both[1])]
    pairs["pair"] = pairs.fillna("").agg("\n".join, axis=1)
    found = []
    for side, name in ((left, "unit_a"), (right, "unit_b")):
        own = pairs[["key", name, "pair"]].dropna().rename(columns={name: "unit"})
        cells = side.merge(own, on=["key", "unit"])
        found.append(cells.assign(key=cells["pair"]).drop(columns="pair"))
    return found[0], found[1]


def _renamed(right: pd.DataFrame, left: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return cells with the names that the other side has for what they share."""
    known = left.drop_duplicates("key").set_index("key")
    for name in (
        "facet",
        "method",
        *["series"] * (by != "method"),
    ):  # there a key has several series
        own = right["key"].map(known[name])
        right = right.assign(**{name: own.where(own.notna(), right[name])})
    return right


def _tuned(
    found: Frames, cells: pd.DataFrame, by: str, goals: list[tuple[str, float]], x: str
) -> pd.DataFrame:
    """Return the cells of each key's best step, or best K and step; all where steps are compared."""
    if by == "step":
        return cells
    pieces = [cells.iloc[:0]]
    rows = found.held.columns([x, found.metric])
    several = cells.groupby("cell").cumcount()  # a cell may stand in several pairs
    for facet, goal in goals:
        for _, part in cells[cells["facet"] == facet].groupby(several, sort=False):
            apart = set_apart(part, "key", found.tuning_seeds or None)
            ranked = candidates(rows, part[~apart], goal, "key", found.metric, x)
            if len(ranked):
                best = ranked.drop_duplicates("key")[["key", "series", "step"]]
                others = apart | ~apart.groupby(part["key"]).transform("any")
                pieces.append(part[others].merge(best, on=["key", "series", "step"]))
    return pd.concat(pieces, ignore_index=True)


def _rows(a: pd.DataFrame, b: pd.DataFrame, y: str) -> Iterator[dict[str, object]]:
    parts = [dict(list(side.groupby("key", sort=False))) for side in (a, b)]
    for key in dict.fromkeys([*parts[0], *parts[1]]):
        one, two = (part.get(key) for part in parts)
        head = (one if one is not None else two).iloc[0]  # type: ignore[union-attr]
        row: dict[str, object] = {name: head[name] for name in ("facet", "method", "k", "target")}
        for side, part in (("a", one), ("b", two)):
            if part is None:
                row |= {f"step_{side}": "", f"cells_{side}": 0, f"reached_{side}": 0}
                row[f"cost_{side}"] = math.nan
                continue
            row |= {f"step_{side}": part["step"].iloc[0], f"cells_{side}": len(part)}
            row[f"reached_{side}"] = int(np.isfinite(part["cost"]).sum())
            row[f"cost_{side}"] = float(np.median(part["cost"]))
        sides = [str(part["own"].iloc[0]) for part in (one, two) if part is not None]
        row["apart"] = " → ".join(dict.fromkeys(sides))
        row |= {"pairs": 0, "identical": 0, "ratio": math.nan, "effect": math.nan}
        row["p_value"] = math.nan
        if one is not None and two is not None:
            pairs = one.drop_duplicates("seed").merge(two.drop_duplicates("seed"), on="seed")
            same = (pairs["cost_x"] == pairs["cost_y"]) & (pairs[f"{y}_x"] == pairs[f"{y}_y"])
            row |= {"pairs": len(pairs), "identical": int(same.sum())}
            costs = (pairs["cost_x"], pairs["cost_y"]) if len(pairs) else (one["cost"], two["cost"])
            test = paired if len(pairs) else unpaired
            row |= test(*(cost.to_numpy() for cost in costs))._asdict()
        yield row


def _verdict(row: dict[str, object]) -> str:
    if not row["cells_a"] or not row["cells_b"]:
        return "only b" if not row["cells_a"] else "only a"
    if row["pairs"] and row["identical"] == row["pairs"]:
        return "same"
    if float(row["p_adjusted"]) < ENOUGH:  # type: ignore[arg-type]
        return "cheaper" if float(row["effect"]) < 0 else "dearer"  # type: ignore[arg-type]
    return "not shown"
