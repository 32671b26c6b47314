"""Results as frames: what analyses start from, the targets that a folder keeps, and the table that a sweep ends with.

A target that is computed anew from whatever a folder holds moves when a seed or a step is added, and with it the bits
of methods of which nothing has run. So the command that ends a sweep writes ``plan/target.json``, and every verb that
reads the folder takes its targets from there. A problem is known by its settings, not by the name that tables give it,
since that depends on what else the folder holds.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from raybench.analysis.clocked import CLOCK, with_clock
from raybench.analysis.curves import (
    NUMBERS,
    CurvesSource,
    InFolder,
    InMemory,
    first_crossing,
    growth,
)
from raybench.analysis.methods import ATTACKERS, annotate, describe
from raybench.analysis.simulated import SECONDS, simulated, unmeasured
from raybench.analysis.tuned import (
    METRICS,
    SQUARED_ROUNDING,
    candidates,
    default_target,
    main_metric,
    set_apart,
    tuned,
    with_final,
)
from raybench.clock.links import LinkNetwork, parse_network
from raybench.core.errors import InputError, nearest
from raybench.store import reader
from raybench.store.accounting import parse_accounting, rebook
from raybench.store.files import Files, open_folder
from raybench.store.log import TARGETS, written
from raybench.store.reader import How
from raybench.store.schema import config_of

MOST_METHODS_TOLD = 6  # in a note
OF_A_PROBLEM = ("problem", "x0")
OF_A_FACET = ("clock", ATTACKERS)
"""What sets facets apart besides the problem; most cells have neither."""


@dataclass(frozen=True)
class Kept:
    """A target that was fixed. metric: the column that is to fall to ``value``; since: when, as ISO 8601."""

    metric: str
    value: float
    since: str


@dataclass(frozen=True)
class Frames:
    """A results folder: annotated curves, in memory or read as they are asked for; described cells; how bits were booked.

    metric: the column methods are judged by. link: the network that ``seconds_simulated`` is for; then that, not bits,
    is what a target costs. Of the cells of a folder the column config may lack seed and step number. left_out: how many
    cells of the folder are of no sweep that is shown.
    """

    curves_source: CurvesSource
    cells: pd.DataFrame
    metric: str
    sweep: dict[str, Any] = field(default_factory=dict)
    accounting: str = ""
    folder: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)  # of the sweeps that ran, by file
    link: LinkNetwork | None = None
    link_text: str = ""  # as the user wrote it
    cost_column: str | None = None  # what a target is paid in, where it is not the usual one
    asked: float | str | None = None  # a target, or ``auto``, in place of those that are kept
    kept: Mapping[str, Kept] = field(default_factory=dict)  # targets by facet
    tuning_seeds: tuple[int, ...] = ()  # on which steps are chosen; none: all
    grid: Mapping[str, int] = field(default_factory=dict)  # cells by group, where few are tried
    left_out: int = 0
    missing: int = 0  # cells of the sweep that have not ended
    _tuned: dict[tuple[Any, ...], pd.DataFrame] = field(default_factory=dict, repr=False)

    @property
    def curves(self) -> pd.DataFrame:
        """All curves with all columns; of a large folder more than memory may hold."""
        return self.curves_source.all()

    def rows(self, cells: Collection[str], names: Sequence[str]) -> pd.DataFrame:
        """Return the curves of some cells: these columns of numbers, and what tells the cells apart."""
        return self.curves_source.of(cells, names)

    def tuned(self, by: str, target: float | None = None, cost: str = "") -> pd.DataFrame:
        """Return ``tuned`` of these frames by their metric and ``cost`` (their own); computed once."""
        cost, seeds = cost or self.cost, self.tuning_seeds
        key = (by, self.asked if target is None else target, cost)
        if key not in self._tuned:
            curves = self.curves_source.columns([cost, self.metric])
            goal = self.goals if target is None else target
            self._tuned[key] = tuned(curves, self.cells, goal, by, self.metric, cost, seeds or None)
        return self._tuned[key].copy()

    def reporting(self, by: str = "method") -> pd.Series:
        """Which cells' results are those of a chosen step: of seeds that have not chosen it, where a method has such."""
        apart = set_apart(self.cells, by, self.tuning_seeds or None)
        others = apart.groupby([self.cells["facet"], self.cells[by]]).transform("any")
        return apart | ~others

    @property
    def chosen_on(self) -> list[str]:
        """On which seeds steps were chosen, and on which they are reported, where these differ."""
        text = f"K and steps: chosen on seeds {', '.join(map(str, self.tuning_seeds))}"
        more = "results: of the other seeds, where a method has some"
        return [f"{text}; {more}"] if self.tuning_seeds else []

    @property
    def goals(self) -> float | Mapping[str, float]:
        """The target that was asked for, or those that are kept and, of other facets, ``own_targets``."""
        if isinstance(self.asked, float):
            return self.asked
        targets = {} if self.asked == "auto" else {f: goal.value for f, goal in self.kept.items()}
        return {**self.own_targets, **targets}

    @cached_property
    def own_targets(self) -> Mapping[str, float]:
        """The ``default_target`` of each facet, from what the folder holds now."""
        # as ``tuned`` asks for them: read once
        rows = self.curves_source.columns([self.cost, self.metric])
        parts = self.cells.groupby("facet", sort=False)
        return {str(f): default_target(rows, part, self.metric) for f, part in parts}

    @cached_property
    def growth(self) -> pd.Series:
        """How f grew in each cell that ended ok: see ``analysis.growth``."""
        return growth(self.cells, self.curves_source)

    @property
    def to_come(self) -> list[str]:
        """A line on the cells of the sweep that have not ended, none where all have."""
        every = self.missing + len(self.cells)
        text = f"{self.missing:,} of {every:,} cells of this sweep have not ended: what is said here is of the others"
        return [text] if self.missing else []

    @property
    def absent(self) -> list[str]:
        """Lines on the cells that are not shown: yet to end, or left out; none where there are no such cells."""
        lone = self.left_out == 1
        cells, are = ("cell", "is") if lone else ("cells", "are")
        them = "it as a row of its own" if lone else "them as rows of their own"
        text = f"{cells} of earlier versions of this sweep {are} left out; --all shows {them}"
        return [*self.to_come, *([f"{self.left_out:,} {text}"] if self.left_out else [])]

    @property
    def tuning(self) -> list[str]:
        """How steps were tuned, where that was not by running the whole grid."""
        search, cells, lines = self.sweep.get("search"), self.cells, []
        if self.grid and isinstance(search, Mapping) and search.get("step_size") == "refine":
            tries = cells[cells["status"] != "skipped"].groupby("method")["group"]
            every = cells.drop_duplicates("group").groupby("method")["group"]
            of = every.apply(lambda groups: sum(self.grid.get(g, 0) for g in groups))
            lines.append(f"steps: refined around the best, tried {_shares(tries.count(), of)}")
        pruned = cells.groupby("method")["status"].apply(lambda s: int((s == "pruned").sum()))
        if pruned.sum():
            ran = cells[cells["status"] != "skipped"].groupby("method")["status"].count()
            lines.append(f"halving: pruned {_shares(pruned, ran)}")
        return lines

    @property
    def notes(self) -> list[str]:
        """What a reader should know besides the accounting: of simulated seconds, and of cells that are left out."""
        if self.link is None:
            return self.absent
        lines = unmeasured(self.curves)
        timed = int(self.cells["on_clock"].sum())
        if timed:
            head = f"{timed:,} of {len(self.cells):,} cells ran on a clock"
            lines.append(
                f"{head}: here their rounds count as synchronous; --cost clock has their time"
            )
        return [*lines, *self.absent]

    @property
    def cost(self) -> str:
        """The column that a target is paid in."""
        return self.cost_column or ("bits_up" if self.link is None else SECONDS)

    @property
    def cost_name(self) -> str:
        """How columns of ``closing_table`` name what a target costs: ``bits``, ``seconds``, or another column."""
        short = {"bits_up": "bits", CLOCK: "seconds", SECONDS: "seconds"}
        return short.get(self.cost, self.cost)


def _shares(part: pd.Series, whole: pd.Series) -> str:
    """Return ``14 of 40 cells`` in all, and by method where there are several, but few."""
    each = [f"{method} {part.get(method, 0):,} of {n:,}" for method, n in whole.items()]
    text = f"{part.sum():,} of {whole.sum():,} cells"
    return f"{text} ({', '.join(each)})" if 1 < len(each) <= MOST_METHODS_TOLD else text


Source = str | os.PathLike[str] | Frames | tuple[pd.DataFrame, pd.DataFrame]
"""A results folder; its ``frames``; or (curves, cells) as ``raybench.load`` and ``raybench.store.cells`` return them."""
Where = Mapping[str, object]
"""Which cells are meant: columns of cells (or facet, method, series, step), each with a value or a list of values."""


# From a source to frames -----------------------------------------------------------------------------


def frames(
    folder: str | os.PathLike[str],
    accounting: How = None,
    link: str | None = None,
    target: float | str | None = None,
    tuning_seeds: Sequence[int] = (),
    every: bool = False,
    clock: Mapping[str, Any] | None = None,
) -> Frames:
    """Return the frames of a results folder, its bits booked anew under ``accounting`` if given.

    Without accounting and link only those columns and rows of the curves are read that are asked for. Raises InputError
    if there are no results in the folder, the accounting or the link is unknown, or the seeds are not some of those
    there are.

    Args:
        folder: a results folder, or its URL.
        accounting: under which bits are counted anew; by default as the folder's sweep says.
        link: a network as ``links.parse_network`` reads it, such as ``1Gbit,ring``: curves and cells get seconds simulated for
            it.
        target: in place of those that the folder keeps (``keep_targets``); ``auto``: from what it holds now.
        tuning_seeds: on which K and steps are chosen, by all that is made of the frames; results are then those of the
            other seeds.
        every: all cells, not those alone of the sweep that ran last in the folder.
        clock: typed; curves that have none get its ``clock_seconds``, in which targets are then paid.
    """
    network = None if link is None else parse_network(link)
    files = reader.open_results(folder)
    sweep = reader.sweep(files)
    if isinstance(target, str) and target != "auto":
        raise InputError.of("target", f"unknown {target!r}", "a number > 0, or auto")
    more: dict[str, Any] = {"sweep": sweep, "folder": os.fspath(folder)}
    more["asked"] = target if target is None or target == "auto" else float(target)
    more |= {"texts": reader.sweep_texts(files), "grid": reader.grid(files)}
    only = None if every else reader.planned(files)
    rule = parse_accounting(accounting if accounting is not None else sweep.get("accounting"))
    if accounting is None and link is None and clock is None:
        stored = reader.Results(files, only)
        more["left_out"] = stored.left_out
        cells = describe(stored.cells)
        stored_curves = InFolder(stored, cells)
        more["missing"] = len(reader.missing(files, cells["cell"]))
        metric = METRICS[0]
        if not cells[metric].notna().any():
            metric = main_metric(stored_curves.columns(METRICS))
        if metric not in cells:
            cells = with_final(cells, stored_curves.columns([metric]), metric)
        targets = _kept(files, cells, metric)
        results = Frames(stored_curves, cells, metric, accounting=str(rule), kept=targets, **more)
        return choosing_on(results, tuning_seeds)
    curves, cells = reader.frames(files, accounting)
    more["missing"] = len(reader.missing(files, cells["cell"]))
    if only is not None and not cells["cell"].isin(only).all():
        more["left_out"] = int((~cells["cell"].isin(only)).sum())
        curves, cells = (part[part["cell"].isin(only)] for part in (curves, cells))
    if clock is not None:
        curves, more["cost_column"] = with_clock(curves, cells, clock), CLOCK
    results = framed(
        curves, cells, accounting=str(rule), link=network, link_text=link or "", **more
    )
    results = replace(results, kept=_kept(files, results.cells, results.metric))
    return choosing_on(results, tuning_seeds)


def choosing_on(results: Frames, tuning_seeds: Sequence[int]) -> Frames:
    """Return frames whose steps are chosen on some seeds and reported on the others; of no seeds, the frames.

    Raises InputError unless some of the seeds choose and others are left.
    """
    if not tuning_seeds:
        return results
    there = sorted({int(s) for s in results.cells["seed"].dropna()})
    seeds = tuple(seed for seed in there if seed in tuning_seeds)
    if not seeds or len(seeds) == len(there):
        what = f"{', '.join(map(str, tuning_seeds))} are {'all' if seeds else 'none'} of the seeds there are"
        raise InputError.of("--tuning-seeds", what, f"some of {', '.join(map(str, there))}")
    return replace(results, tuning_seeds=seeds, _tuned={})


def framed(curves: pd.DataFrame, cells: pd.DataFrame, **more: Any) -> Frames:
    """Return the frames of (curves, cells) of ``load`` and ``cells``; ``more`` as in ``Frames``."""
    cells = describe(cells)
    curves = annotate(curves, cells)
    network = more.get("link")
    if network is not None:
        curves = simulated(curves, network)
        cells = with_final(cells, curves, SECONDS)
    metric = main_metric(curves)
    return Frames(InMemory(curves), with_final(cells, curves, metric), metric, **more)


def frames_of(source: Source, where: Where | None = None, accounting: How = None) -> Frames:
    """Return the frames of a source, with the cells that are meant alone.

    Of a folder only files with such cells are read, and of these only the columns that an analysis asks for. Names of
    methods are those of the whole source. Raises InputError for results that cannot be read and for an unknown column.
    """
    if isinstance(source, Frames) and accounting is None:
        results = source
    elif isinstance(source, Frames | tuple):
        tables = source if isinstance(source, tuple) else (source.curves, source.cells)
        if accounting is not None:
            tables = rebook(*tables, parse_accounting(accounting))
        results = framed(*tables)
    else:
        results = frames(source, accounting)
    return results if not where else frames_where(results, where)


def frames_where(results: Frames, where: Where) -> Frames:
    """Return frames with those cells alone whose columns have one of the values given."""
    cells = having(results.cells, where, "where").reset_index(drop=True)
    return replace(results, cells=cells, curves_source=results.curves_source.part(cells), _tuned={})


def having(cells: pd.DataFrame, where: Where, place: str) -> pd.DataFrame:
    """Return the cells whose columns have one of the values given. Raises InputError, as ``check_column`` does."""
    for name, values in where.items():
        check_column(name, cells, place)
        several = isinstance(values, Collection) and not isinstance(values, str)
        cells = cells[cells[name].isin(list(values) if several else [values])]  # type: ignore[call-overload]
    return cells


def check_column(name: str, frame: pd.DataFrame, place: str) -> None:
    """Raise InputError, which names ``place``, where a frame has no such column."""
    if name not in frame:
        raise InputError.of(place, f"unknown column {name!r}", nearest(name, map(str, frame)))


def axis(name: str, results: Frames, key: str) -> str:
    """Return a column of curves. Raises InputError, which names ``key``, where it is none that holds numbers."""
    name = CLOCK if name == "clock" else name
    there = [*NUMBERS, *[SECONDS] * (results.link is not None)]
    if name not in there:
        raise InputError.of(key, f"no column of numbers: {name!r}", nearest(name, there))
    return name


def keys(by: str | Sequence[str], cells: pd.DataFrame) -> list[str]:
    """Return columns to group cells by. Raises InputError for an unknown one."""
    names = [by] if isinstance(by, str) else list(by)
    for name in names:
        check_column(name, cells, "by")
    return names


def targets_of(results: Frames, target: float | Sequence[float] | None) -> list[tuple[str, float]]:
    """Return (facet, target) pairs: the targets given, for every facet, else the own one of each facet."""
    facets = list(dict.fromkeys(results.cells["facet"]))
    if target is None and not facets:
        return []
    if target is None:
        best = results.tuned("method").drop_duplicates("facet")
        return list(zip(best["facet"], best["target"].astype(float), strict=True))
    values = [target] if isinstance(target, int | float) else list(target)
    for value in values:
        if not 0 < value < float("inf"):
            raise InputError.of("target", f"{value:g} is out of range", "a number > 0")
    return [(facet, float(value)) for facet in facets for value in values]


def inside(folder: str, name: str) -> Path:
    """Return the path of what is written into a local results folder for people to open: a file, or a folder of files.

    Raises InputError where a link, or something else that is no file, lies there.
    """
    files = open_folder(folder)
    files.names(name)
    return Path(files.path(name))


# Targets that are kept -------------------------------------------------------------------------------


def problems_of(cells: pd.DataFrame) -> dict[str, str]:
    """Return a key of each facet's problem, from its settings. cells: with ``facet`` (``describe``) and ``config``."""
    heads, keys = cells.drop_duplicates("facet"), {}
    for facet, config in zip(heads["facet"], heads["config"], strict=True):
        settings = config_of(config) or {"problem": facet}
        problem = {key: settings.get(key) for key in OF_A_PROBLEM}
        flat = {**reader.flatten(config), **settings}
        problem |= {key: flat[key] for key in OF_A_FACET if flat.get(key) is not None}
        text = json.dumps(problem, sort_keys=True, separators=(",", ":"))
        keys[facet] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return keys


def read_targets(files: Files) -> dict[tuple[str, str], Kept]:
    """Return the targets that a folder keeps, by the problem's key and the metric.

    Raises InputError where the file is not what ``keep_targets`` writes.
    """
    data = written(files, TARGETS, dict)
    if data is None:
        return {}
    targets: dict[tuple[str, str], Kept] = {}
    where, fix = f"{files.name}/{TARGETS}", "remove it: targets are then fixed anew"
    try:
        for row in data["targets"]:
            target = Kept(str(row["metric"]), float(row["value"]), str(row["since"]))
            targets[str(row["problem"]), target.metric] = target
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise InputError.of(where, "is not as it was written", fix) from error
    if not all(math.isfinite(target.value) for target in targets.values()):
        raise InputError.of(where, "holds a target that is no number", fix)
    return targets


def _kept(files: Files, cells: pd.DataFrame, metric: str) -> dict[str, Kept]:
    """Return the targets that a folder keeps, by facet."""
    targets = read_targets(files)
    keys = problems_of(cells) if targets else {}
    return {f: targets[key, metric] for f, key in keys.items() if (key, metric) in targets}


def keep_targets(results: Frames) -> Frames:
    """Fix the targets of problems that have none yet in the folder of these frames; return the frames with them."""
    if set(results.cells["facet"]) <= set(results.kept):
        return results
    files, metric = reader.open_results(results.folder), results.metric
    targets, keys = read_targets(files), problems_of(results.cells)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    fresh = {
        (keys[facet], metric): Kept(metric, goal, now)
        for facet, goal in results.own_targets.items()
        if (keys[facet], metric) not in targets and math.isfinite(goal)
    }
    if fresh:
        rows = [{"problem": key, **vars(row)} for (key, _), row in {**targets, **fresh}.items()]
        files.write(TARGETS, json.dumps({"targets": rows}, indent=1).encode())
    return replace(results, kept=_kept(files, results.cells, metric), _tuned={})


# The table that a sweep ends with --------------------------------------------------------------------


PAID = ("bits_to_target", "bits_low", "bits_high")
COLUMNS = [
    *("facet", "method", "algorithm", "compressor", "k", "step_multiple", "step_size", "edge"),
    *("target", *PAID, "coverage", "ratio_to_gd", "seeds", "arrived", "grad_norm_sq", "loss"),
    *("test_loss", "accuracy", "bits_up", "rounds", "seconds"),
    *("ok", "diverged", "failed", "skipped", "pruned", "baseline"),
]
"""Columns of ``closing_table``."""


def _baselines(table: pd.DataFrame) -> pd.Series:
    """Return which rows are of the uncompressed baseline of their problem: of several the first by name.

    Methods without a compressor come before those with the identity: gd, else sgd, else dcgd. table: with facet,
    algorithm, compressor and baseline.
    """
    name = table["compressor"].notna().map({False: "", True: "with "}) + table["algorithm"]
    name = name.where(table["baseline"].astype(bool))
    return name.notna() & (name == name.groupby(table["facet"]).transform("min"))


def closing_table(
    source: Source, accounting: How = None, target: float | None = None, by: str = "method"
) -> pd.DataFrame:
    """Return per facet and method its best K and step and what the target costs, best first.

    source: a results folder, its ``frames``, or (curves, cells) of ``load`` and ``cells``. bits are uplink bits per
    client; bits_to_target is the median over seeds, inf where the median seed does not reach the target; bits_low and
    bits_high are its ``interval`` (NaN for one seed), which holds the median of all seeds with the probability
    ``coverage``. ratio_to_gd is bits_to_target over that of the uncompressed ``baseline``: gd, where it
    ran. arrived is how many of the seeds reach the target. ok, diverged, ... count all cells of the method.
    grad_norm_sq, loss, ... are final medians over seeds. ``by="series"`` keeps every K, and so does ``by="k"``, which
    sorts by K first. Of frames with a link the cost is in seconds simulated for it, seconds_to_target, seconds_low and
    seconds_high, and K and step are the best ones by that; of frames that pay in another column it is in that,
    round_to_target, round_low and round_high.

    >>> from raybench.analysis.examples import example
    >>> table = closing_table(example(), target=1e-3)
    >>> table[["method", "k", "step_multiple", "edge", "bits_to_target", "ratio_to_gd"]].round(3)
              method    k  step_multiple  edge  bits_to_target  ratio_to_gd
    0     EF21 Top-K  1.0            2.0  high          4970.0        0.277
    1  MARINA Rand-K  1.0            2.0  high          7488.0        0.418
    2             GD  NaN            2.0  high         17920.0        1.000
    """
    results = frames_of(source, accounting=accounting)
    kind = "series" if by == "k" else by
    best = results.tuned(kind, target)
    unit = results.cost_name
    names = dict(zip(PAID, (f"{unit}_to_target", f"{unit}_low", f"{unit}_high"), strict=True))
    heads = [names.get(name, name) for name in COLUMNS]
    if best.empty:
        return pd.DataFrame(columns=heads)
    paid, low, high = names.values()
    best = best.rename(columns={"cost": paid, "cost_low": low, "cost_high": high})
    best.loc[~best["eligible"], [paid, low, high]] = math.nan
    best["baseline"] = _baselines(best)
    base = best.loc[best["baseline"]].sort_values(paid, kind="stable").drop_duplicates("facet")
    cost = best["facet"].map(base.set_index("facet")[paid]).replace(np.inf, np.nan)
    best["ratio_to_gd"] = best[paid] / cost
    counts = results.cells.groupby(["facet", kind])["status"].value_counts().unstack(fill_value=0)
    index = pd.MultiIndex.from_frame(best[["facet", kind]])
    for status in ("ok", "diverged", "failed", "skipped", "pruned"):
        column = counts[status] if status in counts else counts.sum(axis=1) * 0
        best[status] = column.reindex(index).to_numpy()
    for name in {"grad_norm_sq", "test_loss", "bits_up"} - set(best):
        best[name] = math.nan  # methods are judged by another column
    if by != "k":
        best["method"] = best[by]
    times = clock_to_target(results, best, kind)
    if times is not None:
        best["clock_to_target"] = times
        heads = [*heads, "clock_to_target"]
    order = ["facet", *["k"] * (by == "k"), paid, results.metric]
    best = best.sort_values(order, kind="stable", na_position="last", ignore_index=True)
    return best[heads]


def clock_to_target(results: Frames, best: pd.DataFrame, by: str) -> np.ndarray | None:
    """Return the median seconds of the clock at which the cells behind rows reach the target; None without a clock.

    best: as the closing table has it by ``by``, paid in something else.
    """
    cells = results.cells
    if results.cost == CLOCK or not cells["on_clock"].any():
        return None
    rows = results.curves_source.columns([CLOCK, results.metric])
    arrivals = {
        target: first_crossing(rows, target, CLOCK, results.metric, settled=True)
        for target in best["target"].dropna().unique()
    }
    measured = cells[results.reporting(by) & cells["status"].isin(["ok", "failed"])]
    behind = measured.groupby(["facet", "series", "step"])["cell"].apply(list).to_dict()
    keys = zip(best["facet"], best["series"], best["step"], strict=True)
    mine = zip(keys, best["target"], best["eligible"], strict=True)
    return np.array(
        [
            arrivals[t].reindex(behind[k]).fillna(np.inf).median()
            if fit and t in arrivals and k in behind  # without progress there is no target
            else np.nan
            for k, t, fit in mine
        ]
    )


# What a search over steps goes on around: the steps that the closing table rests on --------------------

READ = ("cell", "round", "bits_up", *METRICS)


class BestSteps:
    """Judges the steps that were tried, from a results folder: ``judge({cell: status})``.

    What it says follows from these cells alone, whatever else the folder holds.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = folder
        self._read = pd.DataFrame(), pd.DataFrame({"cell": [], "status": []})

    def __call__(self, cells: Mapping[str, str]) -> dict[str, tuple[float, ...]]:
        """Return per group (without those of which no cell ended ok) the step sizes to go on around."""
        statuses = self._read[1].set_index("cell")["status"].to_dict()
        if not cells.items() <= statuses.items():  # cells that ended once do not change
            self._read = reader.part(self.folder, READ)
        curves, table = (part[part["cell"].isin(cells)] for part in self._read)
        return best_steps(curves, table)


def best_steps(curves: pd.DataFrame, cells: pd.DataFrame) -> dict[str, tuple[float, ...]]:
    """Return the step sizes, one or two per group, that the closing table of these cells rests on.

    The first is the method's best step at this K, as ``candidates`` orders them under the
    ``default_target``. The second has the lowest median final value, from which the target follows.
    """
    results = framed(curves, cells)
    y = results.metric
    rows = results.curves_source.columns([results.cost, y])
    out: dict[str, tuple[float, ...]] = {}
    for _, part in results.cells.groupby("facet", sort=False):
        table = candidates(rows, part, default_target(rows, part, y), "method", y)
        if table.empty:
            continue
        groups = part.groupby("series")["group"].unique()
        for series, mine in table[table["ok"] > 0].groupby("series", sort=False):
            ends = mine[y].clip(lower=SQUARED_ROUNDING) if y == METRICS[0] else mine[y]
            best = mine[mine["eligible"]].head(1)
            sizes = list(best["step_size"])
            # where the best step ends as low as any, another one would not change the target
            if best.empty or not (ends[best.index] <= ends.min()).all():
                sizes += list(mine.loc[ends == ends.min(), "step_size"].head(1))
            out |= dict.fromkeys(groups[series], tuple(sizes))
    return out
