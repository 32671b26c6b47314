"""Which method is best, and how sure that is: over problems and seeds, after few trials, against another folder.

``rank`` and ``profile`` compare methods on instances, a problem with a seed each; ``trials`` after a few draws from each
method's grid; ``compare`` two results folders. All of them choose K and step as ``tuned`` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import pandas as pd

from raybench.analysis.frames import Frames, Source, Where, axis, frames_of, keys, targets_of
from raybench.analysis.statistics import (
    CostComparison,
    clopper_pearson,
    critical,
    friedman,
    holm,
    interval,
    paired,
    unpaired,
)
from raybench.analysis.to_target import costs_of, instances
from raybench.analysis.tuned import candidates, set_apart
from raybench.core.errors import InputError, nearest
from raybench.store.reader import How, flatten, shared

# Over problems and seeds -------------------------------------------------------------------------------


def _ratios(costs: np.ndarray) -> np.ndarray:
    """Return costs (instances, methods) over the least of their instance, inf where they miss the target."""
    least = costs.min(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(costs == least, 1.0, costs / least)
    return np.where(np.isfinite(costs), ratios, np.inf)


def rank(
    source: Source,
    target: float | None = None,
    *,
    by: str = "method",
    x: str | None = None,
    where: Where | None = None,
    accounting: How = None,
) -> pd.DataFrame:
    """Return methods by their mean rank over instances, which are the pairs of a problem and a seed.

    On each instance the method with the least cost has rank 1; equal ones, such as all that miss the target, share the
    mean of their ranks. Methods are at their best K (``by="method"``) or at each K (``by="series"``), with the step
    that ``tuned`` chooses for the problem. Two mean ranks of m methods over N instances differ by more than luck, with
    all pairs taken together, if they are ``critical`` apart (Nemenyi):

        critical = q sqrt(m (m + 1) / (6 N)),   q: quantile of the studentized range of m at 95 %, over sqrt(2).

    That holds for instances that are drawn independently; seeds of one problem tell about this problem alone. Columns:
    ``by``, rank (mean), wins (instances where no method is cheaper), reached, instances, ratio (the geometric mean over
    instances of its cost over the least, inf where it misses one that another one reaches), critical, p_value (of all
    methods being equal: Friedman's test, the same in each row), tied (not distinguishable from the first). Methods in
    order of rank. Source: Demsar 2006, Statistical comparisons of classifiers over multiple data sets.

    >>> from raybench.analysis.examples import example
    >>> table = rank(example(("a", "b"), seeds=4), 1e-3)
    >>> table[["method", "rank", "wins", "instances", "ratio", "tied"]].round(2)
              method  rank  wins  instances  ratio   tied
    0     EF21 Top-K   1.0     8          8   1.00   True
    1  MARINA Rand-K   2.0     0          8   1.54   True
    2             GD   3.0     0          8   3.76  False
    """
    table = instances(frames_of(source, where, accounting), target, by, x)
    heads = [by, "rank", "wins", "reached", "instances", "ratio", "critical", "p_value", "tied"]
    if table.empty:
        return pd.DataFrame(columns=heads)
    costs = table.to_numpy()
    ranks = table.rank(axis=1, method="average").to_numpy()
    count, methods = costs.shape
    least = costs.min(axis=1)
    solved = np.isfinite(least)  # an instance that no method solves tells nothing about ratios
    apart = critical(methods, count)
    logs = np.log(_ratios(costs[solved]))
    rows = pd.DataFrame(
        {
            by: table.columns.to_numpy(),
            "rank": ranks.mean(axis=0),
            "wins": (costs[solved] == least[solved, None]).sum(axis=0),
            "reached": np.isfinite(costs).sum(axis=0),
            "instances": count,
            "ratio": np.exp(logs.mean(axis=0)) if solved.any() else math.nan,
            "critical": apart,
            "p_value": friedman(ranks),
        }
    )
    rows = rows.sort_values(["rank", "ratio"], kind="stable", ignore_index=True)
    rows["tied"] = (rows["rank"] - rows["rank"].min() < apart) | (methods == 1)
    return rows[heads]


def profile(
    source: Source,
    target: float | None = None,
    *,
    by: str = "method",
    x: str | None = None,
    where: Where | None = None,
    accounting: How = None,
) -> pd.DataFrame:
    """Return the performance profile of each method over instances, which are the pairs of a problem and a seed.

        rho_s(tau) = share of instances p with t_ps <= tau min_s' t_ps',

    t_ps what the target costs method s on instance p, infinite where it misses it: rho_s(1) is how often s is the
    cheapest, rho_s(inf) how often it arrives at all. Methods are at the step (and K, ``by="method"``) that ``tuned``
    chooses for the problem. low, high: the interval of Clopper and Pearson for the probability that an instance, drawn
    as these were, is within tau. An instance that no method solves counts as missed by all.

    Columns: ``by``, tau (each ratio that occurs, from 1; every method has the same), share, low, high, instances.
    Source: Dolan and More 2002, Benchmarking optimization software with performance profiles.

    >>> from raybench.analysis.examples import example
    >>> table = profile(example(("a", "b"), seeds=4), 1e-3)
    >>> table[table["tau"] <= 1.55].groupby("method")[["share", "low", "high"]].last().round(3)
                   share    low   high
    method
    EF21 Top-K       1.0  0.631  1.000
    GD               0.0  0.000  0.369
    MARINA Rand-K    0.5  0.157  0.843
    """
    table = instances(frames_of(source, where, accounting), target, by, x)
    heads = [by, "tau", "share", "low", "high", "instances"]
    if table.empty:
        return pd.DataFrame(columns=heads)
    ratios = _ratios(table.to_numpy())
    taus = np.unique(np.append(ratios[np.isfinite(ratios)], 1.0))
    pieces = []
    for name, ratio in zip(table.columns, ratios.T, strict=True):
        within, count = np.searchsorted(np.sort(ratio), taus, side="right"), len(ratio)
        low, high = clopper_pearson(within, count)
        piece = {by: name, "tau": taus, "share": within / count, "low": low, "high": high}
        pieces.append(pd.DataFrame({**piece, "instances": count}))
    return pd.concat(pieces, ignore_index=True)[heads]


# After a few trials of a method's own grid ---------------------------------------------------------------
#
# A method with a large grid has had more tries to be lucky than one with a small grid, and a method that works at one
# step in nine is shown at that one. Let a method's N candidates stand in the order in which ``tuned`` would choose them,
# and let m of them be drawn without replacement, all sets of m alike. The one that is chosen is the first of those drawn:
#
#     P(the j-th is chosen) = C(N - j, m - 1) / C(N, m),    j = 1 .. N - m + 1:
#
# it is drawn, and the other m - 1 are among the N - j after it. So means and quantiles over all C(N, m) draws are sums
# of N terms, exact, and no draw is made. They are means over subsets of what was run (U-statistics), hence unbiased;
# drawing with replacement, as Dodge et al. 2019 do, is not (Tang et al. 2020).

DRAWS = 0.8
"""Share of draws (and seeds) that lie between ``draws_low`` and ``draws_high``."""
AFTER = [
    *("reach", "cost", "cost_low", "cost_high", "coverage"),
    *("draws_low", "draws_high", "expected"),
]
ROUNDING = 1e-9  # of sums of probabilities, so that a half is a half


def trials(
    source: Source,
    target: float | None = None,
    *,
    by: str = "method",
    x: str | None = None,
    where: Where | None = None,
    accounting: How = None,
    tuning_seeds: Collection[int] | None = None,
) -> pd.DataFrame:
    """Return what the target costs after m = 1, 2, .. random trials of each method's grid, on each problem.

    A trial is a cell of the grid with all of its seeds: a step, with ``by="method"`` a K and a step, with
    ``by="algorithm"`` a compressor, K, step and whatever else was varied. m of a method's ``grid`` trials are drawn
    without replacement, and of those the one is kept that ``tuned`` prefers; after the whole grid that is the one of
    its table. A trial costs infinitely much with a seed that does not reach the target or did not end ok, and with
    every seed where one of them diverged or was pruned, as no such step is chosen while there is another. With
    ``tuning_seeds`` the choice is made on these and the cost is that of the others.

    Columns: facet, ``by``, trials (m), grid (N), seeds, target; reach, the share of draws and seeds that reach the
    target; cost, the median over draws, of which the median over seeds (inf where half of the draws or more miss the
    target), and cost_low, cost_high, coverage, the ``interval`` over seeds; draws_low and draws_high, between which 80
    % of draws and seeds are; expected, the mean over draws, of which the median over seeds. One draw that misses makes
    a mean infinite, however rare it is: leaving it out would favour methods that fail more. Raises InputError for
    unknown columns.

    Sources: Dodge, Gururangan, Card, Schwartz, Smith 2019, Show your work: improved reporting of experimental results;
    Tang et al. 2020, Showing your work doesn't always work; Sivaprasad, Mai, Vogels, Jaggi, Fleuret 2020, Optimizer
    benchmarking needs to account for hyperparameter tuning.

    >>> from raybench.analysis.examples import example
    >>> table = trials(example(), 1e-3, where={"algorithm": "ef21"})
    >>> table[["trials", "grid", "reach", "cost", "draws_low", "draws_high", "expected"]].round(1)
       trials  grid  reach    cost  draws_low  draws_high  expected
    0       1     4    1.0  8925.0     4970.0     15820.0    9660.0
    1       2     4    1.0  6475.0     4620.0      9870.0    6790.0
    2       3     4    1.0  4970.0     4620.0      7980.0    5722.5
    3       4     4    1.0  4970.0     4620.0      5250.0    4970.0
    """
    results = frames_of(source, where, accounting)
    x, by = axis(x or results.cost, results, "x"), keys(by, results.cells)[0]
    tuning = tuning_seeds if tuning_seeds is not None else results.tuning_seeds or None
    heads = list(dict.fromkeys(["facet", by, "trials", "grid", "seeds", "target"]))
    pieces = []
    for facet, goal in targets_of(results, target):
        for name, costs in _grids(results, facet, goal, by, x, tuning):
            count, seeds = costs.shape
            facts = {"facet": facet, by: name, "trials": np.arange(1, count + 1), "grid": count}
            pieces.append(pd.DataFrame({**facts, "seeds": seeds, "target": goal, **after(costs)}))
    empty = pd.DataFrame(columns=[*heads, *AFTER])
    return pd.concat(pieces, ignore_index=True)[[*empty]] if pieces else empty


def _grids(
    results: Frames, facet: str, goal: float, by: str, x: str, tuning: Collection[int] | None
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield methods with their costs (candidates in the order of choice, seeds), of one problem."""
    cells = results.cells[
        (results.cells["facet"] == facet) & (results.cells["status"] != "skipped")
    ]
    apart = set_apart(cells, by, tuning)
    rows = results.curves_source.columns([x, results.metric])
    ranked = candidates(rows, cells[~apart], goal, by, results.metric, x)
    if ranked.empty:
        return
    every = costs_of(results, cells.assign(apart=apart), [(facet, goal)], x, results.metric)
    costs = dict(list(every.groupby(by, sort=False)))
    for name, order in ranked.groupby(by, sort=False):
        paid = costs[name]
        table = paid.pivot_table(
            index=["series", "step"], columns="seed", values="cost", aggfunc="median", dropna=False
        )
        table = table.reindex(pd.MultiIndex.from_frame(order[["series", "step"]]))
        seeds = paid.loc[paid["apart"], "seed"] if paid["apart"].any() else paid["seed"]
        part = table[sorted(seeds.unique())]
        # a candidate that ran with fewer seeds than others has on the rest its median
        for usual in (part.median(axis=1), table.median(axis=1)):
            part = part.apply(lambda seed, usual=usual: seed.fillna(usual))
        part = part.fillna(np.inf).to_numpy(float)
        yield str(name), np.where(order["eligible"].to_numpy(bool)[:, None], part, np.inf)


def after(costs: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns of ``trials`` after 1 .. N trials, from costs (N candidates in the order of choice, seeds)."""
    count, seeds = costs.shape
    weights = first_of_drawn(count)
    finite = np.isfinite(costs)
    sums = weights @ np.where(finite, costs, 0.0)
    sums[(weights @ ~finite) > 0] = np.inf  # 0 times infinity is none
    middle = np.stack([_median(weights, column) for column in costs.T], axis=1)
    spread = np.array([interval(row) for row in middle], float).reshape(count, 4).T
    shares, tail = np.repeat(weights, seeds, axis=1) / seeds, (1 - DRAWS) / 2
    ends = [_quantile(shares, costs.ravel(), share) for share in (tail, 1 - tail)]
    columns = [(weights @ finite).mean(axis=1), *spread, *ends, np.median(sums, axis=1)]
    return dict(zip(AFTER, columns, strict=True))


def first_of_drawn(count: int) -> np.ndarray:
    """Return how probably the j-th of N is the first of m that are drawn: an array (m, j), both from 1.

    By C(N - j, m - 1) / C(N - j + 1, m - 1) = (N - j - m + 2) / (N - j + 1), from m / N for j = 1.
    """
    m, j = np.arange(1, count + 1)[:, None], np.arange(2, count + 1)
    ratios = np.maximum(count - j - m + 2, 0) / (count - j + 1)
    results: np.ndarray = np.cumprod(np.hstack([m / count, ratios]), axis=1)
    return results


def _quantile(weights: np.ndarray, values: np.ndarray, share: float) -> np.ndarray:
    """Return for each row of weights the least value that at least this share lies at or below."""
    order = np.argsort(values, kind="stable")
    below = weights[:, order].cumsum(axis=1)
    place = (below < share - ROUNDING).sum(axis=1)
    results: np.ndarray = values[order][np.minimum(place, len(values) - 1)]
    return results


def _median(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return for each row of weights the median: between two values, if a half lies below, their mean."""
    low = _quantile(weights, values, 0.5)
    high = _quantile(weights, values, 0.5 + 2 * ROUNDING)
    return np.where(low == high, low, (low + high) / 2)


# Two folders -----------------------------------------------------------------------------------------

WAYS = ("step", "series", "method")
ENOUGH = 0.05
"""Below this adjusted p-value a difference is called one."""
COMPARED = [
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

    Groups belong together if they asked for the same, but for what all cells of a and b differ in (``differences``),
    such as lambda where b was run with another one. Where several groups of a folder do, each has a row with each of
    the other's that is not in both. ``by="series"`` compares the best step of a with that of b at each K,
    ``by="method"`` the best K and step. target: None for those of a's table. Seeds that both have are compared in pairs
    (``statistics.paired``), of those that have not tuned, where frames have seeds that do; where there are none, as two
    samples (``statistics.unpaired``).

    Columns: facet, method, k, step_a, step_b, target, cells_a, cells_b, pairs, identical (pairs that agree in cost and
    in final value to the last bit), reached_a, reached_b, cost_a, cost_b (medians), ratio (the median of b over a,
    below 1 where b is cheaper; of a pair 0 or inf where only b or only a reaches the target, of samples that of their
    medians), effect (from -1, all of b cheaper, to 1), p_value,
    p_adjusted (Holm, over all rows) and verdict: ``cheaper`` or ``dearer`` where p_adjusted is below 5 %, ``same``
    where all pairs are identical, ``not shown``, or ``only a``, ``only b`` for what the other folder lacks; apart: what
    the two sides of the row differ in, where it is not the same in all rows. Three pairs have no p-value below 25 %,
    six none below 3 %. Rows in order of a's cost. Raises InputError for unknown columns and where the folders have
    nothing in common.

    >>> from raybench.analysis.examples import example
    >>> before, after = example(seeds=8), example(seeds=8, slower=0.5)
    >>> table = compare(before, after, 1e-3, by="series")
    >>> table[["method", "k", "cost_a", "cost_b", "ratio", "p_adjusted", "verdict"]].round(3)
              method    k   cost_a  cost_b  ratio  p_adjusted  verdict
    0     EF21 Top-K  1.0   4165.0  2100.0  0.503       0.031  cheaper
    1     EF21 Top-K  2.0   6720.0  3360.0  0.504       0.031  cheaper
    2  MARINA Rand-K  1.0   6912.0  3456.0  0.502       0.031  cheaper
    3             GD  NaN  13440.0  6720.0  0.500       0.031  cheaper
    """
    if by not in WAYS:
        raise InputError.of("by", f"unknown {by!r}", nearest(by, WAYS) or f"one of {WAYS}")
    first, second = frames_of(a, where, accounting), frames_of(b, where, accounting)
    if by == "step" and (first.tuning_seeds or second.tuning_seeds):
        raise InputError.of(
            "--tuning-seeds", "every step is compared, and none chosen", "--by series"
        )
    x, y = axis(x or first.cost, first, "x"), first.metric
    left, right = _keyed(first, second, by)
    if set(left["key"]).isdisjoint(right["key"]):
        raise InputError.of("compare", "the folders have no method on a problem in common")
    left, right = _paired([left, right])
    right = _renamed(right, left, by)
    goals = targets_of(first, target)
    left, right = _tuned(first, left, by, goals, x), _tuned(second, right, by, goals, x)
    costs = [costs_of(f, c, goals, x, y) for f, c in ((first, left), (second, right))]
    rows = list(_rows(costs[0], costs[1], y))
    table = pd.DataFrame(rows, columns=COMPARED)
    table["p_adjusted"] = holm(table["p_value"].to_numpy(float))
    table["verdict"] = [_verdict(row) for row in table.to_dict("records")]
    order = ["facet", "cost_a", "cost_b"]
    return table.sort_values(order, kind="stable", na_position="last", ignore_index=True)


def differences(a: Source, b: Source) -> dict[str, tuple[str, str]]:
    """Return what all cells of two sources differ in: {key of the sweep file: (values in a, values in b)}."""
    first, second = (_asked(frames_of(source).cells)[0] for source in (a, b))
    return {name: (_values(first, name), _values(second, name)) for name in _apart(first, second)}


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


def _apart(first: pd.DataFrame, second: pd.DataFrame) -> list[str]:
    names = sorted({*first, *second})
    values = [{n: set(part[n]) if n in part else {""} for n in names} for part in (first, second)]
    return [n for n in names if not values[0][n] & values[1][n]]


def _keyed(first: Frames, second: Frames, by: str) -> list[pd.DataFrame]:
    """Return the cells of both sides that ran, with columns key, unit and side: texts.

    key: what cells have in common that are compared; unit: the groups of a side that are one; side: what such a
    side has of the keys in which the sides differ, where it has several.
    """
    requests = [_asked(source.cells) for source in (first, second)]
    apart = _apart(requests[0][0], requests[1][0])
    shared_names = sorted({*requests[0][0], *requests[1][0]} - set(apart))
    shared_names = [n for n in shared_names if by != "method" or n != "compressor.k"]
    several = [n for n in apart if any(n in few and few[n].nunique() > 1 for few, _ in requests)]
    heads = [name.rpartition(".")[2] + " " if len(several) > 1 else "" for name in several]

    def texts(
        few: pd.DataFrame, names: list[str], joined: Callable[[list[str]], str]
    ) -> np.ndarray:
        rows = few.reindex(columns=names, fill_value="").to_numpy(object).tolist()
        return np.array([*map(joined, rows), ""], object)

    def side(row: list[str]) -> str:
        return ", ".join(h + (v.strip("'") or "-") for h, v in zip(heads, row, strict=True))

    sides = []
    for source, (few, place) in zip((first, second), requests, strict=True):
        cells = source.cells
        step = cells["step_multiple"].map("x{:.12g}".format)
        step = step.where(cells["step_multiple"].notna(), cells["step_size"].map("{:.12g}".format))
        key = cells["problem"].fillna("") + "\n" + cells["algorithm"].fillna("") + "\n"
        key = key + texts(few, shared_names, "\n".join)[place]
        unit = cells["facet"] + "\n" + cells["method"]
        unit = unit if by == "method" else cells["group"].fillna(cells["facet"] + cells["series"])
        cells = cells.assign(
            key=key + "\n" + step if by == "step" else key,
            unit=unit,
            side=texts(few, several, side)[place],
        )
        sides.append(cells[cells["status"] != "skipped"].reset_index(drop=True))
    return sides


def _paired(sides: list[pd.DataFrame]) -> list[pd.DataFrame]:
    """Return cells with a key for each pair of units, one of each side: a unit that is in both is a pair by itself."""
    units = [side[["key", "unit"]].drop_duplicates() for side in sides]
    if not any(part["key"].duplicated().any() for part in units):
        return sides
    pairs = units[0].merge(units[1], "outer", on="key", suffixes=("_a", "_b"))
    in_both = pairs["unit_a"].isin(units[1]["unit"]) | pairs["unit_b"].isin(units[0]["unit"])
    pairs = pairs[(pairs["unit_a"] == pairs["unit_b"]) | ~in_both]
    pairs["pair"] = pairs.fillna("").agg("\n".join, axis=1)
    keyed = []
    for side, name in zip(sides, ("unit_a", "unit_b"), strict=True):
        part = pairs[["key", name, "pair"]].dropna().rename(columns={name: "unit"})
        cells = side.merge(part, on=["key", "unit"])
        keyed.append(cells.assign(key=cells["pair"]).drop(columns="pair"))
    return keyed


def _renamed(right: pd.DataFrame, left: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return cells with the names that the other side has for what they share."""
    names = left.drop_duplicates("key").set_index("key")
    # by method a key has several series
    for column in ("facet", "method", *["series"] * (by != "method")):
        other = right["key"].map(names[column])
        right = right.assign(**{column: other.where(other.notna(), right[column])})
    return right


def _tuned(
    results: Frames, cells: pd.DataFrame, by: str, goals: list[tuple[str, float]], x: str
) -> pd.DataFrame:
    """Return the cells of each key's best step, or best K and step; all where steps are compared."""
    if by == "step":
        return cells
    pieces = [cells.iloc[:0]]
    rows = results.curves_source.columns([x, results.metric])
    several = cells.groupby("cell").cumcount()  # a cell may stand in several pairs
    for facet, goal in goals:
        for _, part in cells[cells["facet"] == facet].groupby(several, sort=False):
            apart = set_apart(part, "key", results.tuning_seeds or None)
            ranked = candidates(rows, part[~apart], goal, "key", results.metric, x)
            if len(ranked):
                best = ranked.drop_duplicates("key")[["key", "series", "step"]]
                others = apart | ~apart.groupby(part["key"]).transform("any")
                pieces.append(part[others].merge(best, on=["key", "series", "step"]))
    return pd.concat(pieces, ignore_index=True)


def _rows(a: pd.DataFrame, b: pd.DataFrame, y: str) -> Iterator[dict[str, Any]]:
    """Yield a row of ``compare`` for each key of either side, without what all rows decide together."""
    parts = [dict(list(side.groupby("key", sort=False))) for side in (a, b)]
    for key in dict.fromkeys([*parts[0], *parts[1]]):
        sides = [part.get(key, a.iloc[:0]) for part in parts]
        ran = [side for side in sides if len(side)]
        row: dict[str, Any] = dict(ran[0].iloc[0][["facet", "method", "k", "target"]])
        for name, side in zip("ab", sides, strict=True):
            row[f"step_{name}"] = side["step"].iloc[0] if len(side) else ""
            row |= {f"cells_{name}": len(side), f"cost_{name}": side["cost"].median()}
            row[f"reached_{name}"] = int(np.isfinite(side["cost"]).sum())
        row["apart"] = " → ".join(dict.fromkeys(str(side["side"].iloc[0]) for side in ran))
        nothing = CostComparison(math.nan, math.nan, math.nan)
        row |= {"pairs": 0, "identical": 0, **nothing._asdict()}
        if len(ran) == 2:
            first, second = sides
            few = [side.drop_duplicates("seed")[["seed", "cost", y]] for side in sides]
            pairs = few[0].merge(few[1], on="seed")
            same = (pairs["cost_x"] == pairs["cost_y"]) & (pairs[f"{y}_x"] == pairs[f"{y}_y"])
            row |= {"pairs": len(pairs), "identical": int(same.sum())}
            if len(pairs):
                verdict = paired(pairs["cost_x"].to_numpy(), pairs["cost_y"].to_numpy())
            else:
                verdict = unpaired(first["cost"].to_numpy(), second["cost"].to_numpy())
            row |= verdict._asdict()
        yield row


def _verdict(row: dict[str, Any]) -> str:
    if not row["cells_a"] or not row["cells_b"]:
        return "only a" if row["cells_a"] else "only b"
    if row["pairs"] and row["identical"] == row["pairs"]:
        return "same"
    if row["p_adjusted"] < ENOUGH:
        return "cheaper" if row["effect"] < 0 else "dearer"
    return "not shown"
