"""Rankings spelled for reading: over problems and seeds, after some trials, of two folders, and what an audit found."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from raybench.analysis import (
    SECONDS,
    Frames,
    audit,
    closing_table,
    compare,
    differences,
    rank,
    trials,
)
from raybench.analysis.clocked import CLOCK
from raybench.analysis.rankings import DRAWS, ENOUGH
from raybench.analysis.readings import FACTORS, Audit
from raybench.core.errors import InputError, count
from raybench.report import words
from raybench.report.sheet import Row, Sheet, SheetColumn, column

MOST_SENTENCES = 6  # of a headline: of so many problems
SHOWN = 6  # keys that two folders differ in
LEAST = {"bits_up": "with the fewest bits"}
LEAST |= dict.fromkeys((CLOCK, SECONDS), "in the least simulated time")
MOST_FLIPS_TOLD, MOST_TERMS_TOLD = 12, 4
MOST_ROWS = 100_000  # of curves, whose readings take some seconds


# Over problems and seeds -------------------------------------------------------------------------------


def ranking(results: Frames, by: str = "method") -> Sheet:
    """Return ``analysis.rank`` spelled for reading. Raises InputError as it does."""
    x = results.cost
    table = rank(results, by=by, x=x)
    rows = table.to_dict("records")
    for place, row in enumerate(rows):
        row["behind"] = "–" if not place else "not shown" if row["tied"] else "yes"

    def ratio(row: Row) -> str:
        return words.number(row["ratio"], 3) + "×" * (row["ratio"] < math.inf)

    def mean(row: Row) -> str:
        return f"{row['rank']:.2f}"

    fields = [
        column(rows, by, "Method", left=True),
        column(rows, "rank", "Mean rank", mean, behind=["rank"], better="low"),
        column(rows, "wins", "Wins"),
        column(rows, "reached", "Reach", lambda row: f"{row['reached']}/{row['instances']}"),
        column(rows, "ratio", "Cost ÷ least", ratio),
        column(rows, "tied", "Worse than first", lambda row: str(row["behind"])),
    ]
    notes = _rank_notes(results, table, by, x)
    return Sheet(fields=fields, sections=[0] * len(rows), data=table, notes=notes)


def _rank_notes(results: Frames, table: pd.DataFrame, by: str, x: str) -> list[str]:
    if table.empty:
        return ["nothing to rank: no cell ran", *results.absent]
    cost = words.COLUMNS.get(x, x.replace("_", " "))
    cost += "" if results.link is None else f" for {results.link}"
    goals = results.tuned(by, cost=x).drop_duplicates("facet")
    first, problems = table.iloc[0], len(goals)
    goal = words.targets(zip(goals["facet"], goals["target"]))
    notes = [
        f"Cost: {cost} to {words.COLUMNS[results.metric]} ≤ {goal}, each method at its best "
        + ("K and step" if by == "method" else "step"),
        f"Over {count(int(first['instances']), 'instance')}: seeds of {count(problems, 'problem')}",
    ]
    if words.known(first["critical"]):
        p, apart = words.number(first["p_value"], 2), words.number(first["critical"], 3)
        notes.append(
            f"All methods alike: p = {p} (Friedman); mean ranks less than {apart} apart may be luck (Nemenyi, 95 %)"
        )
    if problems == 1:
        notes.append("Seeds of one problem tell about this problem alone")
    elif first["instances"] > problems:
        notes.append(
            "Seeds of a problem count as instances of their own: p tells about these problems alone"
        )
    notes += filled(results, by)
    if results.accounting:
        notes.append(f"Accounting: {results.accounting}")
    return [*notes, *results.chosen_on, *(words.sentence(note) for note in results.notes)]


def filled(results: Frames, by: str) -> list[str]:
    """Return which methods have instances on which they did not run, and what stands for their costs there."""
    ran = results.cells[results.reporting(by) & (results.cells["status"] != "skipped")]
    seeds = ran.groupby(["facet", by])["seed"].nunique().unstack(fill_value=0)
    absent = seeds.columns[(seeds == 0).any()]
    few = seeds.columns[((seeds > 0) & seeds.lt(seeds.max(axis=1), axis=0)).any()]
    lines = []
    if len(absent):
        lines.append(f"Not run on every problem, and there behind all: {_listed(absent)}")
    if len(few):
        lines.append(f"Run with fewer seeds, its median standing for the others: {_listed(few)}")
    return lines


# After some trials of each method's grid ----------------------------------------------------------------


def after_trials(results: Frames, number: int, by: str = "method") -> Sheet:
    """Return ``analysis.trials`` after so many trials, cheapest first, spelled for reading.

    A method whose grid is smaller is shown after its whole grid. Raises InputError as ``trials`` does, and for a number
    below 1.
    """
    if number < 1:
        raise InputError.of("--trials", f"{number} is out of range", "a whole number from 1")
    x = results.cost
    table = trials(results, by=by, x=x)
    reached = table[table["trials"] == np.minimum(number, table["grid"])]
    order = ["facet", "cost", "reach"]
    reached = reached.sort_values(
        order, ascending=[True, True, False], kind="stable", ignore_index=True
    )
    whole = table[table["trials"] == table["grid"]].set_index(["facet", by])["cost"]
    reached["whole_grid"] = whole.reindex(
        pd.MultiIndex.from_frame(reached[["facet", by]])
    ).to_numpy()
    rows = reached.to_dict("records")
    sections = reached.groupby("facet", sort=False).ngroup().tolist()
    fields = _trial_fields(rows, by, x, number)
    if reached["facet"].nunique() > 1:
        fields.insert(0, column(rows, "facet", "Problem", left=True))
    notes = _trial_notes(results, reached, by, x, number)
    return Sheet(fields=fields, sections=sections, data=reached, notes=notes)


def _trial_fields(rows: Sequence[Row], by: str, x: str, number: int) -> list[SheetColumn]:
    spell, spelled, unit = words.spelling(x)
    head = f"{words.sentence(words.COLUMNS.get(x, x.replace('_', ' ')))} after {count(number, 'trial')}"
    ends = ["cost", "cost_low", "cost_high"]

    def cost(row: Row) -> str:
        return spelled(*(row[end] for end in ends))

    def end(value: float) -> str:
        return "∞" if np.isinf(value) else spell(value)

    def draws(row: Row) -> str:
        low, high = row["draws_low"], row["draws_high"]
        return f"{end(low)} to {end(high)}" if low < high else end(low)

    least: dict[str, Any] = {"unit": unit, "better": "low"}
    after = "After the whole grid"
    return [
        column(rows, by, "Method", left=True),
        column(rows, "grid", "Grid"),
        column(rows, "cost", head, cost, behind=ends, **least),
        column(rows, "draws", f"{words.percent(DRAWS)} of draws", draws),
        column(rows, "reach", "Reach", lambda row: _share(row["reach"]), behind=["reach"]),
        column(rows, "expected", "Mean", lambda row: end(row["expected"])),
        column(
            rows,
            "whole_grid",
            after,
            partial(_spelled, spell, "whole_grid"),
            behind=["whole_grid"],
            **least,
        ),
    ]


def _share(value: float) -> str:
    """Return a share in percent, never rounded to all or none where it is neither."""
    if 0.999 <= value < 1 - 1e-9:
        return "> 99.9 %"
    return "< 0.1 %" if 1e-9 < value < 0.001 else words.percent(value)


def _trial_notes(results: Frames, shown: pd.DataFrame, by: str, x: str, number: int) -> list[str]:
    if shown.empty:
        return ["nothing to rank: no cell ran", *results.absent]
    what = {"method": "a K and a step", "series": "a step", "algorithm": "a cell, seeds apart"}[by]
    paid = words.COLUMNS.get(x, x) + (f" for {results.link}" if results.link is not None else "")
    sure = words.intervals(int(n) for n in shown["seeds"])
    interval = f", in brackets an interval that holds the true median with probability {sure}"
    interval, goal = interval if sure else "", words.targets(zip(shown["facet"], shown["target"]))
    notes = [
        f"Cost: {paid} to {words.COLUMNS[results.metric]} ≤ {goal}, of the best of "
        f"{count(number, 'random trial')} ({what}) of the method's own grid, drawn without replacement",
        f"Median over draws, exact, and over seeds{interval}; mean: over draws, infinite if one of them misses; "
        "reach: share of draws and seeds that get there",
    ]
    small = shown[shown["grid"] < number]
    if len(small):
        named = ", ".join(f"{row[by]} ({row['grid']})" for row in small.to_dict("records"))
        notes.append(f"After their whole grid, which is smaller: {named}")
    if shown["facet"].nunique() > 1:
        place = shown["cost"].groupby(shown["facet"]).rank(method="average")
        mean = place.groupby(shown[by]).mean().sort_values()
        text = ", ".join(f"{name} {value:.3g}" for name, value in mean.items())
        notes.append(f"Mean place over {count(shown['facet'].nunique(), 'problem')}: {text}")
    notes += [words.sentence(note) for note in results.tuning]
    if results.tuning:
        notes.append(
            "Steps that were not tried, or ended early, were not drawn from a grid: do not trust this table"
        )
    if results.accounting and x.startswith("bits"):
        notes.append(f"Accounting: {results.accounting}")
    return [*notes, *results.chosen_on, *(words.sentence(note) for note in results.notes)]


# Two folders -----------------------------------------------------------------------------------------


def comparison(first: Frames, second: Frames, by: str = "series") -> Sheet:
    """Return ``analysis.compare`` of two results folders, spelled for reading. Raises InputError as it does."""
    table = compare(first, second, by=by)
    rows = table.to_dict("records")
    paid = words.column_of(first.cost_name)
    spell, _, unit = words.spelling(first.cost)
    fields = [
        *[column(rows, "facet", "Problem", left=True)] * (table["facet"].nunique() > 1),
        column(rows, "method", "Method", left=True),
        column(rows, "k", "K", lambda row: f"{row['k']:.0f}" if words.known(row["k"]) else "–"),
        *[column(rows, "apart", "A → B", left=True)] * bool(table["apart"].any()),
        column(rows, "step", "Step", _steps),
    ]
    for side in ("cost_a", "cost_b"):
        head, cost = f"{paid} in {side[-1].upper()}", partial(_spelled, spell, side)
        fields.append(column(rows, side, head, cost, behind=[side], unit=unit))
    fields += [
        column(rows, "ratio", "B ÷ A", _ratio),
        column(rows, "pairs", "Pairs"),
        column(rows, "p_adjusted", "p", lambda row: words.number(row["p_adjusted"], 2)),
        column(rows, "verdict", "Difference", lambda row: _verdict(row["verdict"])),
    ]
    sections = table.groupby("facet", sort=False).ngroup().tolist()
    return Sheet(fields=fields, sections=sections, data=table, notes=_notes(first, second, table))


def _spelled(spell: Callable[[float], str], name: str, row: Row) -> str:
    return spell(row[name])


def _steps(row: Row) -> str:
    a, b = words.grid_step(row["step_a"]), words.grid_step(row["step_b"])
    return a or b if a == b or not (a and b) else f"{a} → {b}"


def _ratio(row: Row) -> str:
    if not words.known(row["ratio"]) or not (row["reached_a"] or row["reached_b"]):
        return "–"
    misses = [math.isinf(row[cost]) for cost in ("cost_a", "cost_b")]
    if misses[0] != misses[1]:
        return "B alone" if misses[0] else "A alone"  # reaches the target, by the medians beside it
    return f"{words.number(row['ratio'], 3)}×"


def _verdict(said: str) -> str:
    return {"same": "identical", "only a": "only in A", "only b": "only in B"}.get(said, said)


def _notes(first: Frames, second: Frames, table: pd.DataFrame) -> list[str]:
    notes = [
        f"{name}: {frames.folder}"
        for name, frames in (("A", first), ("B", second))
        if frames.folder
    ]
    apart = differences(first, second)
    lines = [f"{key} {a} → {b}" for key, (a, b) in list(apart.items())[:SHOWN]]
    more = f", and {len(apart) - SHOWN} more keys" if len(apart) > SHOWN else ""
    if lines:
        notes.append(f"They differ in {'; '.join(lines)}{more}")
    goal = words.targets(zip(table["facet"], table["target"]))
    notes.append(f"Cost: median over seeds, to {words.COLUMNS[first.metric]} ≤ {goal}")
    counts = [f"{n} {_verdict(verdict)}" for verdict, n in table["verdict"].value_counts().items()]
    notes.append(f"{count(len(table), 'row')}: {', '.join(counts)}")
    pairs = int(table["pairs"].max())
    over = "pairs of equal seeds (Wilcoxon)"
    over = over if pairs else "seeds, none of which are in both (Mann and Whitney)"
    notes.append(f"p: of no difference, over {over}, corrected for all rows (Holm)")
    tests = int(table["p_value"].notna().sum())
    # the least p-value of n pairs is 2 / 2^n, and the least of m is multiplied by m (Holm)
    needed = next(n for n in itertools.count(1) if tests * 2.0 ** (1 - n) < ENOUGH)
    if 0 < pairs < needed:
        few = f"{count(pairs, 'pair')} cannot show a difference at {words.percent(ENOUGH)}"
        among = f" in {count(tests, 'row')}"
        notes.append(f"{few}{among}: it takes {needed} seeds at least")
    notes += first.chosen_on
    notes += [f"A: {line}" for line in first.absent] + [f"B: {line}" for line in second.absent]
    if first.accounting:
        other = f"; B: {second.accounting}" if first.accounting != second.accounting else ""
        notes.append(f"Accounting: {first.accounting}{other}")
    return notes


# One folder, read in every way --------------------------------------------------------------------------


def audit_lines(results: Audit) -> list[str]:
    """Return what an audit found as lines, the orders that readings turn round first."""
    total = len(results.readings.drop_duplicates([*FACTORS]))
    lines = [f"{total} readings: {_what(results.readings)}"]
    for facet, pairs in results.pairs.groupby("facet", sort=False):
        lines += ["", *([f"{facet}:"] if facet else [])]
        moved = pairs[pairs["flipped"] > 0].sort_values("flipped", kind="stable")
        for row in moved.head(MOST_FLIPS_TOLD).itertuples():
            better, worse = words.bits(row.cost_better), words.bits(row.cost_worse)
            text = (
                f"{row.better} ({better}) beats {row.worse} ({worse}) unless {_short(row.unless)}"
            )
            lines.append(f"{text} ({row.flipped} of {row.decided} readings{_others(row)})")
        if (more := len(moved) - MOST_FLIPS_TOLD) > 0:
            lines.append(f"{more} more orders that some readings turn round: see the CSV")
        firm = pairs[pairs["flipped"] == 0]
        for better, part in firm.groupby("better", sort=False):
            worse = _listed(part["worse"])
            lines.append(f"{better} beats {worse} in every reading that tells them apart")
        if (pairs["decided"] < total).any():
            lines.append(
                "a reading does not tell two methods apart where one of them has no such step, neither arrives, or both need the same"
            )
    if results.pairs.empty:
        text = "none reaches the target, or there is one method alone"
        lines += ["", f"no method is cheaper than another: {text}"]
    return lines


def _short(rule: str) -> str:
    """Return a rule with its first terms alone where it has many."""
    terms = rule.split(", or ")
    if len(terms) <= MOST_TERMS_TOLD:
        return rule
    more = f"in {len(terms) - MOST_TERMS_TOLD} cases more, see audit_pairs.csv"
    return ", or ".join([*terms[:MOST_TERMS_TOLD], more])


def _others(row: Any) -> str:
    """Return why the other readings do not tell two methods apart."""
    counts = {
        "one has no such step": row.absent,
        "neither arrives": row.missed,
        "both are equal": row.equal,
    }
    return "".join(f"; in {n} more {what}" for what, n in counts.items() if n)


def headline(results: Frames) -> list[str]:
    """Return the result in a sentence per problem: which method reaches the target with least, and what is unsure of it."""
    table, spell = closing_table(results), words.spelling(results.cost)[0]
    each = " per client" if results.cost == "bits_up" else ""
    least = LEAST.get(results.cost, f"with the least of {words.column(results.cost)}")
    sentences = []
    for facet, part in table.groupby("facet", sort=False):
        first = part.iloc[0]
        where = f"{facet}: " if facet else ""
        goal = f"{words.COLUMNS.get(results.metric, results.metric)} ≤ {first['target']:g}"
        cost = first[f"{results.cost_name}_to_target"]
        if not words.known(first["target"]) or not math.isfinite(cost):
            sentences.append(f"{where}no method reaches its target.")
            continue
        share, plain = first["ratio_to_gd"], part.loc[part["baseline"], "method"]
        beside = f", {words.percent(share)} of what {plain.iloc[0]} needs" if share < 1 else ""
        head = f"{where}{first['method']} reaches {goal} {least}"
        doubt = unsure(part, results.cost_name)
        sentences.append(f"{head}: {spell(cost)}{each}{beside}{doubt and f'; but {doubt}'}.")
    so_far = [f"{words.sentence(line)}." for line in results.to_come]
    return [*sentences[:MOST_SENTENCES], *so_far]


def unsure(part: pd.DataFrame, paid: str) -> str:
    """Return why seeds do not show that the cheapest method is cheapest, empty where they do.

    part: rows of ``closing_table`` of one facet, best first. paid: ``Frames.cost_name``.
    """
    first, others = part.iloc[0], part.iloc[1:]
    missed, seeds = int(first["seeds"] - first["arrived"]), int(first["seeds"])
    # of one seed there are no ends: its value stands for both
    ends = part[[f"{paid}_low", f"{paid}_high"]]
    low, high = (ends[end].fillna(part[f"{paid}_to_target"]) for end in ends)
    close = others[low.iloc[1:] <= high.iloc[0]]
    doubts = [f"{missed} of its {seeds} seeds {'misses' if missed == 1 else 'miss'} it"] * (
        missed > 0
    )
    if seeds == 1:
        doubts.append("that is of one seed")
    if len(close):
        over = "" if seeds == 1 else f" over {seeds} seeds"
        what = "it lies in the interval" if seeds == 1 else f"its interval{over} overlaps with that"
        doubts.append(f"{what} of {_listed(close['method'])}")
    return " and ".join(doubts)


def doubted(results: Frames, firm: str) -> str:
    """Return what ``firmness`` says, of one problem, with what is unsure of its first place."""
    doubt = unsure(closing_table(results), results.cost_name)
    return f"{firm}, but {doubt}" if doubt else firm


def firmness(results: Frames) -> str:
    """Return in which share of its readings the method comes first that a folder's own reading puts first.

    Empty where that is not told: of one method, of several problems, of simulated seconds, of frames whose bits are
    not told, and of more than ``MOST_ROWS`` rows of curves, which take long.
    """
    alone = results.cells["facet"].nunique() == 1 and results.link is None
    methods = results.cells[results.cells["status"] == "ok"]["method"].nunique()
    if not (alone and methods > 1 and results.accounting) or len(results.curves) > MOST_ROWS:
        return ""
    readings = audit(results).readings
    winners = readings[readings["own"] & (readings["rank"] == 1)]["method"]
    if winners.empty or readings["method"].nunique() < 2:  # no other is eligible
        return ""
    total = len(readings.drop_duplicates([*FACTORS]))
    first = ((readings["method"] == winners.iloc[0]) & (readings["rank"] == 1)).sum()
    return f"{winners.iloc[0]} is first in {first / total:.0%} of {total} readings"


def _what(readings: pd.DataFrame) -> str:
    return "; ".join(f"{name}: {', '.join(dict.fromkeys(readings[name]))}" for name in FACTORS)


def _listed(names: pd.Series | pd.Index) -> str:
    *rest, last = names
    return f"{', '.join(rest)} and {last}" if rest else str(last)
