"""What ``plan`` prints: what a sweep amounts to, before it runs."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from time import perf_counter

from rich.table import Table
from rich.text import Text

from raybench import store
from raybench.analysis import BestSteps
from raybench.cli import shared
from raybench.cli.shared import Screen, listing, note, pairs, span
from raybench.core import registry
from raybench.core.errors import count
from raybench.core.limits import disk_free, duration, memory_here, size
from raybench.execution.batch import Resolved
from raybench.execution.costs import Estimate, Need, check_memory_and_disk, estimate
from raybench.execution.execute import smoke as smoked
from raybench.execution.plan import Plan, as_booked, make_plan
from raybench.execution.resolve import label_of, problem_of
from raybench.execution.run import Options
from raybench.execution.search import foreseen, ladders
from raybench.report import words
from raybench.runtime.resources import crowded
from raybench.spec import Section, Sweep
from raybench.spec.grid import problems_meant
from raybench.spec.model import canonical
from raybench.store.files import check_reachable

SECONDS_TO_START_RAY = 6.0
MOST_PROBLEMS = 12  # that are told one by one
SHAPING = ("regularizer", "lambda", "scale")
"""Settings of problems that shape f, and that are told at their defaults too."""
MOST_EVALUATION = 0.25  # of the time, above which a plan warns
LESS = "a larger evaluate.every, fewer problem.test_rows, no evaluate.gradient and no evaluate.loss"
Cost = tuple[float, float | None]  # bits up per client at the end, seconds on one core


def preview(sweep: Sweep, file: str, folder: str, retry_failed: bool, measure: bool) -> None:
    """Print the cells, bits and time of a sweep. Raises InputError with every error at once."""
    check_reachable(folder)
    results = store.Store(folder)
    results.claim(sweep.text, write=False, meaning=problems_meant)
    plan = make_plan(as_booked(sweep, folder), results.done(), retry_failed, BestSteps(folder))
    sweep, need, screen = plan.sweep, check_memory_and_disk(plan, folder), Screen()
    estimates: dict[str, Estimate] = {}
    if measure and plan.batches:
        options = Options(sweep.record, sweep.accounting, sweep.evaluate, sweep.prune)
        estimates = estimate(plan.batches, options)
    costs = _costs(plan, estimates)
    if plan.done:
        ended = store.cells(folder).set_index("cell")["bits_up"].dropna()
        costs |= {i: (float(bits), None) for i, bits in ended.items() if i in plan.done}
    planned = len(plan.grid) + len(plan.skipped)
    first = " in the next stage" if plan.stage and plan.batches else ""
    done = Counter(plan.done[c.id] for c in plan.cells if c.id in plan.done)
    ends = {**done, "skipped": len(plan.skipped), "excluded": sweep.excluded}
    counts = [f"{n:,} {status}" for status, n in ends.items() if n]
    said = f"  {count(planned, 'cell')}: {plan.missing:,} to run{first}"
    screen.head(sweep.name, ", ".join([said, *counts]))
    screen.print(pairs(_problems(plan)))
    if plan.cells:
        screen.print(_methods(plan, costs))
    rows = shared.reasons(plan.skipped)
    rows += [("code", f"this file runs code from: {', '.join(sweep.code)}")] if sweep.code else []
    errors = Counter(e.error for e in estimates.values() if e.error)
    rows += [("raises", Text(f"{error}", style="red")) for error in errors]
    rows += _fewer(plan)
    if plan.batches:
        rows.append(("batches", f"{len(plan.batches):,}"))
        rows += _needs(need, folder)
    if estimates:
        rows.append(("time", _time(plan, estimates)))
        looks = sum(e.evaluation for e in estimates.values())
        share = looks / (sum(e.seconds for e in estimates.values()) or 1)
        if looks:
            rows.append(("evaluation", f"{share:.0%} of the time"))
        if share > MOST_EVALUATION:
            note(f"evaluation takes {share:.0%} of the time: {LESS}")
        rows.append(("bits up", "per client at the end, extrapolated from the first rounds"))
    rows += [("results", folder), ("accounting", str(sweep.accounting))]
    command = f"raybench sweep {file}" if plan.missing else f"raybench table {folder}"
    rows.append(("next", Text(command, "bold")))
    screen.print(pairs(rows))
    note(*plan.notes, *dict.fromkeys(e.warning for e in estimates.values() if e.warning))
    note(*crowded(sweep.resources))


def smoke(sweep: Sweep) -> int:
    """Run two rounds of each kind of cells and print how they went; return 1 if one raised, or all are skipped.

    Raises InputError with every error at once, as ``preview`` does.
    """
    began, screen, plan = perf_counter(), Screen(), make_plan(sweep)
    options = Options(sweep.record, sweep.accounting, sweep.evaluate, sweep.prune)
    tried = failed = 0
    for kind in smoked(plan.batches, options):
        tried, failed = tried + 1, failed + bool(kind.error)
        said = f"raises\n{kind.error}" if kind.error else f"{kind.seconds:.1f} s"
        screen.print(Text(f"{kind.label}  {said}", style="red" if kind.error else ""))
    screen.print(pairs(shared.reasons(plan.skipped), indent=0))
    went = f"{failed} of them raised" if failed else "none raised"
    kinds = count(tried, "kind of cells", "kinds of cells")
    screen.head(sweep.name, f"  two rounds of {kinds} in {_clock(perf_counter() - began)}: {went}")
    return 1 if failed or not tried else 0


def _fewer(plan: Plan) -> list[tuple[str, str]]:
    """Return lines on how a sweep does with less than its grid: by a search over steps, by pruning."""
    rows, grid = [], f"{len(plan.grid):,} cells"
    if plan.stage is not None:
        tried = len(plan.stage.tried)
        if plan.batches:
            about, upto = foreseen(ladders(plan.grid), plan.sweep.search.start)
            said = f"refined: {tried:,} of {grid} by the end of stage {plan.stage.number}; in all about "
            said += f"{max(tried, about):,}, up to {max(tried, upto):,} if curves over the steps have one minimum"
        else:
            said = f"refined: {tried:,} of {grid} were enough"
        rows.append(("steps", said))
    if plan.sweep.prune.halves and plan.batches:
        whole = sum(c.cell.rounds for b in plan.batches for c in b.cells)
        share = f"at most {plan.rounds / whole:.0%} of {whole:,} cell-rounds"
        rows.append(("pruning", f"halving, {share}"))
    return rows


def _needs(need: Need, folder: str) -> list[tuple[str, str]]:
    """Return lines on memory and disk: what the missing cells need, and what there is."""
    until = "" if need.sure else ", if no stop rule ends cells before"
    apart = f"{size(need.server)} of a batch are n d values a cell that a robust server keeps of its clients"
    server = [("", apart)] if need.server else []
    free = disk_free(folder)
    there = f"; {size(free)} are free" if free < float("inf") else ""
    most = f"{size(need.memory)} at least for the largest batch{until}"
    return [
        ("memory", f"{most}, of {size(memory_here())}"),
        *server,
        ("disk", f"{size(need.disk)} at least{until}{there}"),
    ]


def _problems(plan: Plan) -> list[tuple[str, str]]:
    """Return a line per problem: what it is, and its constants."""
    rows: list[tuple[str, str]] = []
    sections = list(dict.fromkeys(c.cell.problem for c in plan.cells))
    for section in sections[:MOST_PROBLEMS]:
        facts = plan.facts[canonical(section.config())]
        constants = {**facts, **json.loads(facts["constants"])}
        rows.append(("" if rows else "problem", _spelled(section)))
        said = [f"n = {facts['clients']}", f"d = {facts['d']:,}"]
        said += [
            f"{name} = {words.number(constants[key])}"
            for key, name in (("L", "L"), ("L_tilde", "L̃"), ("L_pm", "L±"), ("mu", "μ"))
            if constants.get(key) is not None
        ]
        rows.append(("", ", ".join(said)))
        told = problem_of(section).about() if "dataset" in section.params else []
        rows += [("", f"{noun}: {text}") for noun, text in told]
    if len(sections) > MOST_PROBLEMS:
        rows.append(("", f"and {len(sections) - MOST_PROBLEMS} problems more"))
    return rows


def _spelled(section: Section) -> str:
    """Return a problem with every setting that shapes f, defaults included."""
    entry = registry.lookup("problem", section.name)
    shaping = {
        name: section.params.get(name, param.default)
        for name, param in entry.params.items()
        if name in SHAPING or name in section.params
    }
    said = (f"{name}={value}" for name, value in shaping.items() if value is not None)
    return f"{section.name}({', '.join(said)})"


def _methods(plan: Plan, costs: dict[str, Cost]) -> Table:
    """Return the table of methods: K, steps, seeds, cells, done, bits, time."""
    several = len({c.cell.problem for c in plan.cells}) > 1
    groups: dict[tuple[str, str], list[Resolved]] = {}
    tried = {c.id for c in plan.cells}
    for cell in plan.grid:
        problem = cell.cell.problem
        data = str(problem.params.get("dataset") or problem.name).rsplit("/", 1)[-1]
        groups.setdefault((data if several else "", _method(cell)), []).append(cell)
    rows: list[list[str]] = []
    last = ""
    for (data, method), cells in groups.items():
        count_tried, whole = sum(c.id in tried for c in cells), f"{len(cells):,}"
        mine = [costs[c.id] for c in cells if c.id in costs]
        bits = [bits for bits, _ in mine]
        times = [seconds for _, seconds in mine if seconds is not None]
        steps = [c.cell.step for c in cells]
        theory = sorted({step.number for step in steps if step.kind == "theory"})
        values = sorted({step.number for step in steps if step.kind == "value"})
        row = [
            data if data != last else "",
            method,
            span(sorted({c.k for c in cells if c.k is not None})),
            ", ".join([f"{span(theory)} ×"] * bool(theory) + [span(values)] * bool(values)),
            span(sorted({c.cell.seed for c in cells})),
            whole if count_tried == len(cells) else f"{count_tried:,} of {whole}",
            f"{sum(c.id in plan.done for c in cells):,}",
            _between(min(bits), max(bits)) if bits else "–",
            _clock(sum(times)) if times else "–",
        ]
        rows.append(row if several else row[1:])
        last = data
    heads = ["Problem", "Method", "K", "Step", "Seeds", "Cells", "Done", "Bits up", "Time"]
    return listing(heads if several else heads[1:], rows, right=heads[5:], fold="Method")


def _between(low: float, high: float) -> str:
    """Return two amounts of bits in one unit: ``13.9–41.6 kbit``."""
    size, _ = words.unit_of(high)
    least, most = f"{low / size:.3g}", words.bits(high)
    return most if most.startswith(f"{least} ") else f"{least}–{most}"


def _method(cell: Resolved) -> str:
    """Return how tables name the method, but for the K of its compressor, which has a column of its own."""
    up = cell.cell.compressor
    bare = up and Section(up.name, {key: value for key, value in up.params.items() if key != "k"})
    return label_of(replace(cell.cell, compressor=bare))


def _costs(plan: Plan, estimates: dict[str, Estimate]) -> dict[str, Cost]:
    """Return (bits up, seconds) of every cell yet to run that has an estimate."""
    return {
        cell.id: (estimates[batch.name].bits_up, estimates[batch.name].seconds / len(batch.cells))
        for batch in plan.batches
        if batch.name in estimates and not estimates[batch.name].error
        for cell in batch.cells
    }


def _time(plan: Plan, estimates: dict[str, Estimate]) -> str:
    """Return the estimated time of all that is missing, on this machine."""
    work = {batch.name: plan.work(batch) for batch in plan.batches}
    tried = sum(work[name] for name in estimates)
    total = sum(e.seconds for e in estimates.values()) * sum(work.values()) / tried
    slots = max(1, int((os.cpu_count() or 1) // plan.sweep.resources.cpus_per_worker))
    slots = min(slots, len(plan.batches))
    through = SECONDS_TO_START_RAY + total / slots
    what = " for this stage" if plan.stage is not None else ""
    on = f"{slots} at a time on {count(os.cpu_count() or 1, 'core')}"
    quicker = ", which is quicker" if total < through else ""
    return (
        f"about {_clock(through)} through Ray, {on}; {_clock(total)} with --inline{quicker}{what}"
    )


def _clock(seconds: float) -> str:
    return duration(seconds) if seconds >= 1 else "< 1 s"
