"""The best step size (and K) of every method, and how the final value depends on the step."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import pandas as pd

from raybench.analysis.curves import Block, Ordered, every, first_crossing, known, ordered
from raybench.analysis.methods import describe
from raybench.analysis.statistics import interval

SQUARED_ROUNDING = 1e-24  # targets below it are reached by rounding errors, if at all
"""Smallest ||grad f||^2 a default target asks for: below it float64 curves are rounding."""


STATUSES = ("ok", "diverged", "pruned", "failed")
SAME = (
    *("facet", "method", "group", "algorithm", "compressor", "baseline", "k"),
    *("step_size", "step_multiple"),
)
"""Columns of candidates that no seed changes."""
METRICS = ("grad_norm_sq", "loss", "test_loss")


def main_metric(curves: pd.DataFrame | Ordered) -> str:
    """Return the column methods are judged by: the first of ``METRICS`` that is known, else ``loss``."""
    there = METRICS if isinstance(curves, Ordered) else [n for n in METRICS if n in curves]
    rows = ordered(curves, there)
    if not any(len(block["cell"]) for block in rows.blocks):
        return METRICS[0]
    return next((name for name in METRICS if rows.known(name)), "loss")


def with_final(cells: pd.DataFrame, curves: pd.DataFrame | Ordered, y: str) -> pd.DataFrame:
    """Return the cells with a column ``y``: the last known value of their curves, where there is none yet."""
    if y in cells:
        return cells
    last = ordered(curves, [y]).last(y, known(y))
    return cells.assign(**{y: cells["cell"].map(last).astype(float)})


def default_target(
    curves: pd.DataFrame | Ordered, cells: pd.DataFrame, y: str = "grad_norm_sq"
) -> float:
    """Return the target of one problem's table: a value that gd and half of the methods reach.

    Each method (with its K) has a best value: over steps of which no seed diverged or was pruned, the median over seeds
    of the last ``y`` of its curve, of an even number the larger one of the middle two; a seed that failed comes down to
    nothing. The target is the median of these (the larger of two) or gd's, whichever is larger, rounded up to 1, 2 or 5
    times a power of ten (a loss: to three digits); without gd's if that is no progress. NaN where no cell ended ok or
    none came below its start.
    """
    cells = _described(cells)
    rows = ordered(curves, [y])
    last = rows.last(y, known(y))
    good = cells[cells["status"] == "ok"]
    start = good["cell"].map(rows.first(y, known(y))).max()
    names = ["algorithm", "series", "step"]
    barred = cells["status"].isin(["diverged", "pruned"])
    barred = barred.groupby([cells[n] for n in names], dropna=False)
    ended = cells[cells["status"].isin(["ok", "failed"]) & ~barred.transform("any")]
    value = ended["cell"].map(last).astype(float).where(ended["status"] == "ok", np.inf)
    seeds = value.dropna().groupby([ended[n] for n in names])
    middle = seeds.quantile(0.5, interpolation="higher").replace(np.inf, np.nan)
    best = middle.groupby(names[:2]).min().dropna().sort_values()
    ranks = best.to_numpy()[: len(best) // 2 + 1][::-1].tolist()
    if ranks and "gd" in best.index.get_level_values("algorithm"):
        ranks.insert(0, max(ranks[0], float(best.loc["gd"].iloc[0])))
    for result in ranks:
        target = _round_up(float(result), y)
        if target < start:
            return target
    return math.nan


def _round_up(value: float, y: str) -> float:
    """Round up to 1, 2 or 5 times a power of ten; a loss, which has an offset, to three digits."""
    if y == "grad_norm_sq":
        value = max(value, SQUARED_ROUNDING)
        power = math.floor(math.log10(value))
        grid = [float(f"{m}e{power + e}") for e in (0, 1) for m in (1, 2, 5)]
        return next(g for g in grid if g >= value * (1 - 1e-9))
    if value <= 0:
        return value
    digits = 2 - math.floor(math.log10(value))
    return math.ceil(value * 10.0**digits) / 10.0**digits


def candidates(
    curves: pd.DataFrame | Ordered,
    cells: pd.DataFrame,
    target: float = math.nan,
    by: str = "label",
    y: str = "grad_norm_sq",
    x: str = "bits_up",
) -> pd.DataFrame:
    """Return every (facet, ``by``, series, step) with its seeds' results, the best of its kind first.

    This order is the one rule by which K and step are chosen, wherever they are: tier 0, settings of which every seed
    reaches ``target`` and stays there to the end, by their median cost in ``x``; tier 1, those of which the median seed
    does, likewise; tier 2, the others: of each series (a K) by the median of ``y`` at the largest budget of ``x`` that
    all of its steps spent, then the series' firsts, seconds, ... by that at the largest budget that all of them spent.
    So a setting that fails a seed is chosen only where each does, and a series has the same order among others as
    alone. A setting with a diverged or pruned seed comes last and is not ``eligible``. Columns: facet, by, method,
    series, step, group, algorithm, compressor, baseline, k, step_size, step_multiple, seeds (those that ended ok or
    failed), ok, diverged, pruned, failed, eligible, arrived (how many seeds reach the target), reached (whether the median seed does), tier,
    cost (the median over seeds, inf for one that misses the target or failed), cost_low, cost_high and coverage (its
    ``interval``), the budgets at which tier 2 is compared, within a series and over all (budget, common_budget), y there
    (at_budget, at_common_budget), and medians over seeds that ended ok of the final y, loss, accuracy, x, seconds, rounds.
    """
    cells = with_final(with_final(_described(cells), curves, y), curves, x)
    cells = cells[cells["status"] != "skipped"].reset_index(drop=True)
    if cells.empty:
        return pd.DataFrame()
    rows = ordered(curves, [x, y])
    keys = list(dict.fromkeys(["facet", by, "series", "step"]))
    number = cells.groupby(keys, sort=False, dropna=False).ngroup().to_numpy()
    heads = [*keys, "method", "group", "algorithm", "compressor", "baseline", "k", "step_multiple"]
    table = cells.loc[np.unique(number, return_index=True)[1], list(dict.fromkeys(heads))]
    table = table.reset_index(drop=True)
    ok = (cells["status"] == "ok").to_numpy()
    counts = {s: np.bincount(number[cells["status"] == s], minlength=len(table)) for s in STATUSES}
    good, places = cells[ok], number[ok]
    cost = good["cell"].map(first_crossing(rows, target, x, y, settled=True))
    end = good["cell"].map(rows.last(x, every))
    finals = list(dict.fromkeys([y, "loss", "accuracy", x, "bits_up", "seconds", "rounds"]))
    paid = cost.astype(float).fillna(np.inf).to_numpy()
    # a cell that failed has not come down to the target
    failures = np.repeat(np.arange(len(table)), counts["failed"])
    every_cost = np.concatenate([paid, np.full(len(failures), np.inf)])
    costs = _intervals(every_cost, np.concatenate([places, failures]), len(table))
    table = table.assign(
        step_size=cells["step_size"].groupby(number).mean(),
        seeds=counts["ok"] + counts["failed"],
        **counts,
        eligible=(counts["ok"] > 0) & (counts["diverged"] == 0) & (counts["pruned"] == 0),
        arrived=np.bincount(places[np.isfinite(paid)], minlength=len(table)),
        reached=np.isfinite(costs["cost"]),
        **costs,
        **good[finals].astype(float).groupby(places).median().reindex(table.index),
    )
    every_seed = table["arrived"] == table["seeds"]
    table["tier"] = np.where(table["reached"], np.where(every_seed, 0, 1), 2)
    ends = end.astype(float).groupby(places).median().reindex(table.index)
    kinds = ["facet", by]
    ladders = list(dict.fromkeys([*kinds, "series"]))

    def at_budget(kind: list[str]) -> tuple[np.ndarray, pd.Series]:
        """Return what all settings of a kind have spent, and ``y`` there."""
        part = table.groupby(kind, sort=False, dropna=False).ngroup()
        budget = ends.where(table["eligible"]).groupby(part).min().reindex(part).to_numpy()
        budgets = pd.Series(budget[places], index=good["cell"].to_numpy())
        values = pd.Series(_at_budget(rows, budgets, y, x))
        unknown = values.isna().groupby(places).any()
        return budget, values.groupby(places).median().mask(unknown).reindex(table.index)

    table["budget"], table["at_budget"] = at_budget(ladders)
    table["common_budget"], table["at_common_budget"] = table["budget"], table["at_budget"]
    if table.groupby(kinds, sort=False, dropna=False)["series"].nunique().max() > 1:
        table["common_budget"], table["at_common_budget"] = at_budget(kinds)
    order = table.assign(
        part=table.groupby(kinds, sort=False, dropna=False).ngroup(),
        last=~table["eligible"],
        first=table["cost"].where(table["reached"], np.inf),
    )
    rank = ["last", "tier", "first"]
    alone = order.sort_values([*ladders, *rank, "at_budget", y], kind="stable")
    order["place"] = alone.groupby([*ladders, *rank], sort=False, dropna=False).cumcount()
    order = order.sort_values(["part", *rank, "place", "at_common_budget", y], kind="stable")
    return table.loc[order.index].reset_index(drop=True)


def first_reached(table: pd.DataFrame, by: list[str]) -> pd.Series:
    """Return which settings are the best of those that have ``by`` in common, none where none reaches the target.

    table: settings with the columns eligible, tier and cost of ``candidates``.
    """
    there = table[table["eligible"] & np.isfinite(table["cost"].astype(float))]
    best = there.sort_values(["tier", "cost"], kind="stable").drop_duplicates(by)
    return pd.Series(table.index.isin(best.index), index=table.index)


def _intervals(costs: np.ndarray, number: np.ndarray, count: int) -> dict[str, np.ndarray]:
    """Return the median of each group's costs and its interval, as columns of ``candidates``."""
    order = np.argsort(number, kind="stable")
    ends = np.cumsum(np.bincount(number, minlength=count))
    result = [interval(part) for part in np.split(costs[order], ends[:-1])]
    columns = np.array(result, float).reshape(count, 4).T
    return dict(zip(("cost", "cost_low", "cost_high", "coverage"), columns, strict=True))


def _at_budget(rows: Ordered, budgets: pd.Series, y: str, x: str) -> np.ndarray:
    """Return the last known ``y`` of cells within their budgets (by cell), in that order.

    Where there is no budget, NaN, it is the last of all.
    """
    budget = budgets.reindex(rows.cells).to_numpy(float)

    def within(block: Block) -> np.ndarray:
        limit = budget[block["cell"]]
        return ((block[x] <= limit) & ~np.isnan(block[y])) | np.isnan(limit)

    result: np.ndarray = rows.last(y, within).reindex(budgets.index).to_numpy(float)
    return result


def tuned(
    curves: pd.DataFrame | Ordered,
    cells: pd.DataFrame,
    target: float | Mapping[str, float] | None = None,
    by: str = "label",
    y: str = "grad_norm_sq",
    x: str = "bits_up",
    tuning_seeds: Collection[int] | None = None,
) -> pd.DataFrame:
    """Return the best candidate of every (facet, ``by``), as ``candidates`` orders them.

    ``by="label"``: the best step of every method at every K; ``by="method"``: the best K and step. target: for all
    facets, or by facet; each that has none has its ``default_target``. Adds columns target and edge: ``low`` or
    ``high`` where the best step is the smallest or largest of its grid, ``only`` where the grid has one step, else
    empty. Methods without an eligible candidate keep a row without a step.

    With ``tuning_seeds`` the step is chosen on these seeds and all results are those of the others, on which it has not
    been chosen: the best of many steps looks better on the seeds that chose it than it is. Column held_out says whether
    that was so: a method without tuning seeds or without others, such as one that is run once, is chosen and reported
    on all of its seeds.

    >>> from raybench.analysis.examples import example
    >>> table = tuned(*example(), target=1e-3, by="method")
    >>> table[["method", "k", "step", "cost", "seeds", "failed", "edge"]]
              method    k step     cost  seeds  failed  edge
    0             GD  NaN   x2  17920.0      3       0  high
    1     EF21 Top-K  1.0   x2   4970.0      3       0  high
    2  MARINA Rand-K  1.0   x2   7488.0      3       0  high
    """
    rows, pieces = ordered(curves, [x, y]), []
    every = candidates_by_facet(rows, cells, target, by, y, x, tuning_seeds)
    for facet, goal, table, others in every:
        best = table.drop_duplicates(by).copy()
        best["edge"] = [
            _edge(table[table["series"] == row["series"]], row) for _, row in best.iterrows()
        ]
        if tuning_seeds is not None:
            best = _held_out(best, candidates(rows, others, goal, by, y, x), by)
        blank = ~best["eligible"].to_numpy(bool)
        numbers = ["cost", "loss", *({y, x} - {"loss"})]
        best.loc[blank, numbers] = np.nan  # a column named twice here would be doubled
        if tuning_seeds is not None:  # a step that was chosen and then failed stays to be seen
            blank &= ~best["held_out"].to_numpy(bool)
        best.loc[blank, ["k", "step_size", "step_multiple"]] = np.nan
        best.loc[blank, ["step", "edge"]] = ""
        pieces.append(best.assign(facet=facet, target=goal))
    return pd.concat(pieces, ignore_index=True) if pieces else pd.DataFrame()


def candidates_by_facet(
    curves: pd.DataFrame | Ordered,
    cells: pd.DataFrame,
    target: float | Mapping[str, float] | None,
    by: str,
    y: str,
    x: str,
    tuning_seeds: Collection[int] | None,
) -> Iterator[tuple[str, float, pd.DataFrame, pd.DataFrame]]:
    """Yield of every facet its target, its ``candidates``, and the cells of seeds that have no part in choosing.

    Arguments as those of ``tuned``, which takes the first candidate of each ``by``.
    """
    rows = ordered(curves, [x, y])
    for facet, part in _described(cells).groupby("facet", sort=False):
        goal = target.get(facet) if isinstance(target, Mapping) else target
        goal = default_target(rows, part, y) if goal is None else goal
        apart = set_apart(part, by, tuning_seeds)
        table = candidates(rows, part[~apart], goal, by, y, x)
        if not table.empty:  # else every cell of this problem was skipped
            yield facet, goal, table, part[apart]


def set_apart(cells: pd.DataFrame, by: str, seeds: Collection[int] | None) -> pd.Series:
    """Return which cells have no part in choosing a step: those of other seeds, of methods that have both kinds.

    seeds: on which steps are chosen; None for all. by: the column that tells methods apart.
    """
    if seeds is None:
        return pd.Series(False, index=cells.index)
    ran = cells["status"] != "skipped"
    chooses = cells["seed"].isin(list(seeds))
    both = (chooses & ran).groupby([cells["facet"], cells[by]]).transform("any")
    return ~chooses & both


def _held_out(best: pd.DataFrame, held: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return the chosen candidates with the results of other seeds, where there are any."""
    keys = list(dict.fromkeys([by, "series", "step"]))
    if held.empty:
        return best.assign(held_out=False)
    others = held.set_index(keys)
    there = pd.MultiIndex.from_frame(best[keys]).isin(others.index)
    results = [name for name in held if name not in {*keys, *SAME}]
    values = others.loc[list(best.loc[there, keys].itertuples(index=False, name=None)), results]
    best = best.assign(held_out=there).astype(dict.fromkeys(results, object))
    best.loc[there, results] = values.to_numpy(object)
    return best.astype(held[results].dtypes.to_dict())


def _edge(grid: pd.DataFrame, best: pd.Series) -> str:
    """Return where the best step lies on its grid: ``low``, ``high``, ``only`` or inside (empty)."""
    column = "step_size" if pd.isna(best["step_multiple"]) else "step_multiple"
    steps, chosen = grid[column].dropna(), best[column]
    if len(steps) <= 1:
        return "only"
    return "high" if chosen >= steps.max() else "low" if chosen <= steps.min() else ""


def final_vs_step(cells: pd.DataFrame, y: str = "grad_norm_sq") -> pd.DataFrame:
    """Return the final ``y`` against the step, per facet and series.

    Columns: facet, method, series, k, axis (``step_multiple``, or ``step_size`` where the series has no multiples), at
    (the step on that axis), cells, diverged, and over the cells that ended ok: seeds (how many), y (median), y_low,
    y_high, coverage (its ``interval``; of one cell its value, with coverage 0); NaN where none did. Where a series has
    multiples of several theories those of the commonest are shown: the others have no place on its axis.
    """
    cells = _described(cells)
    cells = cells[cells["status"].isin(["ok", "diverged"])]
    for _, part in cells.groupby(["facet", "series"], sort=False):
        theory = part["step"].str.partition(" ")[2]
        cells = cells.drop(part.index[theory != theory.mode().iloc[0]])
    rows = []
    for (facet, series, _), part in cells.groupby(["facet", "series", "step"], sort=False):
        multiple, head = part["step_multiple"].iloc[0], part.iloc[0]
        whole = multiple == multiple
        axis, at = ("step_multiple", multiple) if whole else ("step_size", part["step_size"].mean())
        good = part.loc[part["status"] == "ok", y].dropna()
        middle, low, high, coverage = interval(good.to_numpy(float))
        ends = (middle, low, high) if len(good) > 1 else (middle, middle, middle)
        counts = (len(part), int((part["status"] == "diverged").sum()), len(good))
        where = (facet, head["method"], series, head["k"], axis, at)
        rows.append((*where, *counts, *ends, coverage))
    names = ["facet", "method", "series", "k", "axis", "at", "cells", "diverged", "seeds"]
    table = pd.DataFrame(rows, columns=[*names, y, f"{y}_low", f"{y}_high", "coverage"])
    return table.sort_values(["facet", "series", "at"], kind="stable", ignore_index=True)


def _described(cells: pd.DataFrame) -> pd.DataFrame:
    return cells if "series" in cells else describe(cells)
