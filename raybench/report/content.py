"""What a report shows: which series, which figures, and the rows behind each."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from xxhash import xxh3_64

from raybench.analysis import SECONDS, Frames, How, LinkNetwork, bands, final_vs_step, frames
from raybench.analysis.clocked import CLOCK
from raybench.analysis.frames import axis, choosing_on, frames_where, inside
from raybench.analysis.methods import k_order, k_words
from raybench.core.errors import InputError, count, nearest
from raybench.report import words

MOST_SERIES = 8
METRICS = ("grad_norm_sq", "loss", "suboptimality", "test_loss", "accuracy")
SHOWN = ("bits_up", "seconds", CLOCK, *METRICS)
LOWEST_SHOWN = 1e-32  # a logarithmic axis has no place for 0: lower values are drawn here
"""Smallest value a log axis shows: below it is rounding, and zero has no logarithm."""
BELOW_TARGET = 1e-3  # of the lowest target: so far an axis goes on below it
# Okabe and Ito: told apart under the common colour deficiencies. gd, the baseline, is grey.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#332288")
BASELINE_COLOUR = "#6E6E6E"
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


NOT_REPORTED = ("report.html", "lock", "owner.json")
"""Files of a results folder that say nothing of its results."""


@dataclass(frozen=True)
class Look:
    """Colour, dash (plotly's names) and legend text of one series."""

    colour: str
    dash: str
    label: str


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure: panels of lines with bands, and the rows it is drawn from.

    data: columns panel, series, x, y, low, high, coverage (and for a step figure cells, diverged).
    band: what lines and bands are, empty where no series has several seeds.
    """

    name: str
    x: str
    y: str
    title: str
    x_label: str
    y_label: str
    data: pd.DataFrame
    looks: dict[str, Look]
    panels: list[str]
    band: str = ""
    x_unit: float = 1.0
    y_unit: float = 1.0
    x_kind: str = ""  # bit or s: every tick bears a unit of its own
    log_x: bool = False
    x_from: float = 1.0
    log_y: bool = True
    y_to: float = 0.0  # where set the axis of y ends there, and bands that go on to infinity too
    steps: bool = False
    stairs: bool = False
    marked: str = ""  # the column of rows to be drawn with a dot
    goals: Mapping[str, float] = field(default_factory=dict)  # the target of y in each panel
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Leave out what has no place on the axis: strange folders hold infinite steps, and costs."""
        there = np.isfinite(self.data["x"].to_numpy(float))
        if not there.all():
            object.__setattr__(self, "data", self.data[there])
        if not math.isfinite(self.x_from):
            object.__setattr__(self, "x_from", 1.0)

    def up_to_the_end(self, high: pd.Series) -> pd.Series:
        """Return the upper ends of bands, infinite ones at the end of the axis: they are beyond it, and not unknown."""
        return high.clip(upper=self.y_to) if self.y_to else high

    @property
    def lowest(self) -> float:
        """The lowest y a logarithmic axis shows: what is far below every target is not what the figure is about."""
        goals = [goal for goal in self.goals.values() if goal > 0]
        if goals:
            return max(LOWEST_SHOWN, BELOW_TARGET * min(goals))
        # a start of exactly 0, as that of a consensus error, is no reason for empty decades
        later = self.data[self.data.duplicated(["panel", "series"])][["y", "low"]].min(axis=1)
        return max(LOWEST_SHOWN, later[later > LOWEST_SHOWN].min()) if len(later) else LOWEST_SHOWN


def open_frames(
    source: str | os.PathLike[str] | Frames,
    accounting: How = None,
    link: str | None = None,
    target: float | str | None = None,
    tuning_seeds: Sequence[int] = (),
    every: bool = False,
    clock: Mapping[str, Any] | None = None,
    cost: str | None = None,
    methods: Sequence[str] = (),
) -> Frames:
    """Return the frames of a results folder, or those given, with another target, seeds that tune, or cost if given.

    cost: the column that targets are paid in, ``clock`` for that of the simulated clock. methods: of these alone.
    """
    if not isinstance(source, Frames):
        source = frames(source, accounting, link, target, tuning_seeds, every, clock)
    results = source if target is None else replace(source, asked=target)
    if cost is not None:
        results = replace(results, cost_column=axis(cost, results, "cost"), _tuned={})
    if methods:
        results = frames_where(results, {"cell": list(of_methods(results.cells, methods)["cell"])})
    return choosing_on(results, tuning_seeds)


def of_methods(cells: pd.DataFrame, asked: Sequence[str], where: str = "--methods") -> pd.DataFrame:
    """Return the cells of some methods, by the algorithm's name or as tables write the method; of none, all."""
    if not asked:
        return cells
    names = sorted({*cells["algorithm"], *cells["method"], *cells["series"]})
    for name in asked:
        if name not in names:
            raise InputError.of(where, f"no method {name!r} in these results", nearest(name, names))
    return cells[cells[["algorithm", "method", "series"]].isin(list(asked)).any(axis=1)]


def with_targets(figure: Figure, results: Frames) -> Figure:
    """Return a figure of tuned methods with the targets of its y, that says on which seeds they were tuned, if not on all."""
    goals = {}
    if figure.y == results.metric:
        best = results.tuned("method").drop_duplicates("facet")
        goals = {
            panel: float(target)  # the name of a panel is that of its facet, or ends in it
            for panel in figure.panels
            for facet, target in zip(best["facet"], best["target"])
            if words.known(target) and (panel == facet or panel.endswith(f", {facet}") or not facet)
        }
    # in a figure of steps nothing is tuned
    lines = [] if figure.steps else results.chosen_on
    return replace(figure, band="; ".join(filter(None, [figure.band, *lines])), goals=goals)


def place_of(folder: str, name: str, out: str | os.PathLike[str] | None = None) -> Path:
    """Return where a report of ``folder`` goes: to ``out``, else inside it, or here for an object store."""
    if out is not None:
        return Path(out)
    if "://" not in folder:
        return inside(folder, name)
    return Path(f"{folder.rstrip('/').rsplit('/', 1)[-1]}-report") / name


def state_of(folder: str) -> str:
    """Return a digest of what a report is made from: names, sizes and times of the folder's files, and the version.

    Empty for an object store.
    """
    if "://" in folder:
        return ""
    digest = xxh3_64(version("raybench").encode())
    for path in sorted(Path(folder).rglob("[!.]*")):
        if path.is_file() and path.name not in NOT_REPORTED:
            about = path.stat()
            digest.update(
                f"{path.relative_to(folder)} {about.st_size} {about.st_mtime_ns}\n".encode()
            )
    return digest.hexdigest()


def current_report(folder: str) -> Path | None:
    """Return a folder's report if it was made from what is there now."""
    page, state = place_of(folder, "report.html"), state_of(folder)
    if not state or not page.is_file():
        return None
    with page.open(encoding="utf-8", errors="replace") as lines:
        return page if f'"{state}"' in lines.read(400) else None


def drawn_series(results: Frames) -> tuple[pd.DataFrame, list[str]]:
    """Return the tuned series that are drawn, and notes on those that are not.

    All K of all methods where these are at most eight series per problem, else the best K of each
    method; the eight best of those. Columns as ``analysis.tuned``.
    """
    every = results.tuned("series")
    notes: list[str] = []
    if every.empty:
        return every, notes
    if every[every["eligible"]].groupby("facet")["series"].nunique().max() > MOST_SERIES:
        every = results.tuned("method")
        notes.append("each method at its best K")
    good = every[every["eligible"]]
    # the cheapest of which all seeds arrive, then of those of which most do, then those that end lowest; and the baseline
    rank = good.assign(
        cost=good["cost"].fillna(np.inf), last=(good["algorithm"] != "gd").astype(int)
    ).sort_values(["facet", "last", "tier", "cost", results.metric], kind="stable")
    keep = rank.groupby("facet").head(MOST_SERIES)
    left = sorted(set(good["series"]) - set(keep["series"]))
    if left:
        notes.append(f"{count(len(left), 'method')} not drawn: {', '.join(left)}")
    return every.loc[keep.index.union(every.index[~every["eligible"]])], notes


def all_methods(results: Frames) -> list[str]:
    """Return the methods of results, but for the baseline, in the order in which they get their colours.

    By name where there are colours for all, else those first that reach the target with least.
    """
    best = results.tuned("method")
    if best.empty:
        return []
    best = best[best["algorithm"] != "gd"]
    least = best.groupby("method")["cost"].min().sort_values(kind="stable")
    names = [str(name) for name in least.index]
    return sorted(names) if len(names) <= len(PALETTE) else names


def looks(best: pd.DataFrame, every: Sequence[str] = ()) -> dict[str, Look]:
    """Return a look per series: a colour per method, a dash per K within it.

    every: ``all_methods`` of the results, so that one has the same colour whichever others are drawn.
    """
    heads = best.drop_duplicates("series").sort_values(["method", "k"], kind="stable")
    methods = list(dict.fromkeys(heads["method"]))
    lone = len(methods) == 1
    baseline = set(heads.loc[heads["algorithm"] == "gd", "method"])
    plain = list(dict.fromkeys([*every, *(m for m in methods if m not in baseline)]))
    results = {}
    for method, part in heads.groupby("method", sort=False):
        several = len(part) > 1
        for j, row in enumerate(part.itertuples()):
            i = plain.index(method) if method in plain else -1
            at = j if lone else i
            colour = PALETTE[at % len(PALETTE)] if at >= 0 else BASELINE_COLOUR
            dash = DASHES[(j if several or lone else max(i, 0)) % len(DASHES)]
            results[str(row.series)] = Look(colour, dash, words.spoken(str(row.series)))
    steps = {name: _lone_step(best[best["series"] == name]) for name in results}
    if all(steps.values()):  # a legend has the steps of all lines or of none
        return {n: replace(look, label=f"{look.label}, {steps[n]}") for n, look in results.items()}
    return results


def _lone_step(best: pd.DataFrame) -> str:
    """Return the step of a series for the legend, empty where it has another one on another problem."""
    steps = best[["step_multiple", "step_size", "step"]].drop_duplicates()
    if steps["step_multiple"].notna().all():
        steps = steps.drop_duplicates("step")
    return step_word(*steps.iloc[0]) if len(steps) == 1 else ""


def looks_of_methods(
    cells: pd.DataFrame, methods: Collection[str], every: Sequence[str]
) -> dict[str, Look]:
    """Return a look per method, whatever its K and step, of cells or settings. every: as for ``looks``."""
    heads = cells[cells["method"].isin(methods)].drop_duplicates("method")
    heads = heads.assign(series=heads["method"], k=np.nan)
    return {
        name: replace(look, label=words.spoken(name)) for name, look in looks(heads, every).items()
    }


def step_word(multiple: float, size: float, step: str = "") -> str:
    """Return a step for a legend: ``8× theory``, ``1× theory (paper)``, ``1× rule of thumb`` or ``step 0.1``.

    step: its place in the grid, as the column ``step`` has it.
    """
    if not words.known(multiple):
        return f"step {size:.3g}"
    rest = step.partition(" ")[2]
    if rest == "rule of thumb":
        return f"{words.times(multiple)}× {rest}"
    return f"{words.times(multiple)}× theory" + (f" ({rest})" if rest else "")


def cells_of(results: Frames, best: pd.DataFrame) -> list[str]:
    """Return the ids of the cells that ended ok behind the tuned series, eligible ones only."""
    keys = pd.MultiIndex.from_frame(best.loc[best["eligible"], ["facet", "series", "step"]])
    cells = results.cells[results.reporting("series") & (results.cells["status"] == "ok")]
    behind = pd.MultiIndex.from_frame(cells[["facet", "series", "step"]]).isin(keys)
    return cells.loc[behind, "cell"].tolist()


def rows_of(results: Frames, best: pd.DataFrame, names: Sequence[str] = SHOWN) -> pd.DataFrame:
    """Return the curves of the tuned series, eligible ones only; names: their columns of numbers."""
    names = names if results.link is None else [*names, SECONDS]
    return results.rows(cells_of(results, best), names)


def build(results: Frames, extras: bool = False) -> list[Figure]:
    """Return the figures of a report; those whose columns are unknown are left out.

    extras: metrics of the user's own are drawn too.
    """
    best, notes = drawn_series(results)
    facets = sorted(results.cells["facet"].unique())
    if best.empty:
        return []
    more = results.curves_source.extras(cells_of(results, best)) if extras else []
    rows = rows_of(results, best, [*SHOWN, *more])
    style = looks(best[best["eligible"]], all_methods(results))
    figures: list[Figure | None] = []
    ys = [y for y in (*METRICS, *more) if rows[y].notna().any()]
    clocks = [CLOCK, "seconds"] if results.link is None else [CLOCK, SECONDS]
    clock = next((x for x in clocks if x in rows and rows[x].notna().any()), "seconds")
    xs = [x for x in ("bits_up", "round", clock) if rows[x].notna().any()] or ["bits_up"]
    pairs = [(x, y) for y in ys or [results.metric] for x in xs]
    figures += [curve(rows, style, facets, x, y, notes, results.link) for x, y in pairs]
    figures.append(final_by_step(results, best, style, facets, results.metric, notes))
    every = results.tuned("series")
    every = every[every["eligible"]]
    several = every.groupby("method")["series"].nunique()
    if (several > 1).any() and len(every["series"].unique()) > MOST_SERIES:
        figures.append(_by_k(results, every[every["method"].map(several) > 1]))
    return [f for f in figures if f is not None]


def curve(
    rows: pd.DataFrame,
    style: dict[str, Look],
    panels: list[str],
    x: str,
    y: str,
    notes: list[str],
    link: LinkNetwork | None,
) -> Figure:
    """Return the figure of y against x of the rows of tuned curves (``rows_of``), a panel per facet of ``panels``."""
    by = ["facet", "method", "series", "k", "step", "group"]
    data = bands(rows, x, y, by)
    sizes = rows.groupby(["facet", "series"])["step_size"].mean().reset_index()
    data = data.merge(sizes, how="left") if len(data) else data.assign(step_size=[])
    data = data.rename(columns={"facet": "panel", x: "x", y: "y"})
    name, unit, wide, start = scale(data, x)
    log_y = falls(y) or (y.endswith("loss") and spans(data["y"]))
    return Figure(
        name=f"{y}_vs_{x}",
        x=x,
        y=y,
        title=f"{words.column(y)} against {words.column(x)}",
        x_label=words.axis(x, name),
        y_label=words.axis(y),
        data=_placed(data, wide),
        looks=style,
        panels=panels,
        band=_band(data) if x != SECONDS else simulated_for(link, _band(data)),
        x_unit=unit,
        x_kind=KINDS.get(x, "") if wide else "",
        log_x=wide,
        x_from=start,
        log_y=log_y,
        notes=notes,
    )


def simulated_for(link: LinkNetwork | None, band: str) -> str:
    """Return what a figure of simulated seconds says below: for which network, and what its bands are."""
    text = f"simulated for {link}, each client on a machine of its own"
    return f"{text}; {band}" if band else text


def _band(data: pd.DataFrame) -> str:
    """Return what lines and bands of curves are, by the seeds that each series has in a panel."""
    return words.band(int(n) for n in data.groupby(["panel", "series"])["cells"].max())


def scale(data: pd.DataFrame, x: str) -> tuple[str, float, bool, float]:
    """Return unit name, its size, whether x reads best on a log axis, and where that starts.

    A log axis spans units, from kbit to Gbit say: it has none, size 1, and each of its ticks has its own.
    """
    if x not in KINDS or data.empty:
        return "", 1.0, False, 1.0
    ends = data.groupby(["panel", "series"])["x"].max()
    ends = ends[ends > 0]
    if ends.empty:
        return "s" if KINDS[x] == "s" else "bit", 1.0, False, 1.0
    positive = data.loc[data["x"] > 0, "x"].min()
    start = float(max(positive, min(ends.min() / 30, positive * 1e3)))
    if ends.max() > 5 * ends.min():
        return "", 1.0, True, start
    size, name = (words.time_unit_of if KINDS[x] == "s" else words.unit_of)(float(ends.max()))
    return name, size, False, start


KINDS = {"bits_up": "bit", "bits_down": "bit", SECONDS: "s", CLOCK: "s"}
"""Columns whose axes have units, and which."""


def _placed(data: pd.DataFrame, log_x: bool) -> pd.DataFrame:
    """Return the rows that the axis of x has a place for: on a logarithmic one, from beyond 0."""
    return data[data["x"] > 0] if log_x else data


def falls(y: str) -> bool:
    """Return whether a column goes down to 0, so that a logarithmic axis always shows it best."""
    return y.endswith(("_sq", "suboptimality", "_error"))


def spans(values: pd.Series) -> bool:
    """Return whether positive values span so much that a logarithmic axis shows them best."""
    return bool(len(values) and values.min() > 0 and values.max() / values.min() > 20)


def _by_k(results: Frames, best: pd.DataFrame) -> Figure:
    """Return the figure of the metric against bits with a panel per problem and method, a line per K."""
    y = results.metric
    rows = rows_of(results, best, ["bits_up", y])
    counts = results.cells.set_index("cell")[[]].assign(k=k_words(results.cells).to_numpy())["k"]
    ks = rows["cell"].map(counts)
    panel = [f"{m}, {f}" if f else m for m, f in zip(rows["method"], rows["facet"], strict=True)]
    rows = rows.assign(facet=panel, series="K = " + ks)
    style = {
        f"K = {k}": Look(PALETTE[i % len(PALETTE)], DASHES[i % len(DASHES)], f"$K$ = {k}")
        for i, k in enumerate(sorted(ks.unique(), key=k_order))
    }
    plot = curve(rows, style, sorted(set(panel)), "bits_up", y, [], None)
    return replace(plot, name=f"{plot.name}_by_k", title=f"{plot.title}, by K")


def final_by_step(
    results: Frames,
    best: pd.DataFrame,
    style: dict[str, Look],
    panels: list[str],
    y: str,
    notes: Sequence[str] = (),
) -> Figure | None:
    """Return the figure of the final y against the step, of the series of ``best``; None where none has two steps."""
    data = final_vs_step(results.cells[results.cells["series"].isin(set(best["series"]))], y)
    if data.groupby(["facet", "series"]).size().max() < 2 or data.empty:
        return None
    axis = "step_multiple" if (data["axis"] == "step_multiple").any() else "step_size"
    data = data[data["axis"] == axis].rename(
        columns={"facet": "panel", "at": "x", y: "y", f"{y}_low": "low", f"{y}_high": "high"}
    )
    plain = {name: Look(s.colour, s.dash, words.spoken(name)) for name, s in style.items()}
    spare = [c for c in PALETTE if c not in {s.colour for s in plain.values()}] or [BASELINE_COLOUR]
    for i, name in enumerate(n for n in dict.fromkeys(data["series"]) if n not in plain):
        plain[name] = Look(spare[i % len(spare)], DASHES[i % 6], words.spoken(name))
    pruned = results.cells["series"].isin(set(data["series"])) & (
        results.cells["status"] == "pruned"
    )
    cut = f"{count(int(pruned.sum()), 'pruned cell')} not drawn" if pruned.any() else ""
    label = "Step size / theoretical step size"
    return Figure(
        name=f"{y}_vs_step",
        x=axis,
        y=y,
        title=f"Final {words.column(y)} against the step",
        x_label=label if axis == "step_multiple" else "Step size",
        y_label=words.axis(y).replace("x^t", "x^T"),
        data=data,
        looks=plain,
        panels=panels,
        band="; ".join(filter(None, [words.band(int(n) for n in data["seeds"]), cut])),
        log_x=True,
        log_y=y.endswith("_sq") or spans(data["y"]),
        steps=True,
        notes=[*notes],
    )


def alone(y: np.ndarray) -> np.ndarray:
    """Return which values of a line have no finite neighbour, so that only a marker shows them."""
    finite = np.isfinite(np.concatenate([[math.nan], y, [math.nan]]))
    lone: np.ndarray = finite[1:-1] & ~finite[:-2] & ~finite[2:]
    return lone


def shown(values: pd.Series, log: bool) -> np.ndarray:
    """Return values as an axis can show them: a log axis has none below ``LOWEST_SHOWN``."""
    results = values.to_numpy(float)
    return (
        np.where(np.isfinite(results), np.maximum(results, LOWEST_SHOWN), math.nan)
        if log
        else results
    )
