"""The verb ``sweep``: run what is missing of a sweep file; then the table of each method's best, the report, what next."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from raybench.cli import shared
from raybench.cli.shared import Screen, count, leaving, note, results_of
from raybench.core.terminal import terminal

if TYPE_CHECKING:
    from raybench.execution.checks import Why

MANY = 20_000  # cells, from which on a sweep is closed by a process that has nothing else in its memory


def sweep(
    context: typer.Context,
    file: shared.File,
    out: shared.Out = None,
    sets: shared.Sets = None,
    plugin: shared.Plugins = None,
    inline: Annotated[bool, typer.Option("--inline", help="In this process, without Ray.")] = False,
    address: Annotated[
        str | None, typer.Option(metavar="A", help="A running Ray cluster. [default: a local Ray]")
    ] = None,
    fresh: shared.Fresh = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run the cells that failed again.")
    ] = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop when the first cell fails.")
    ] = False,
    callback: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Tell mlflow, tensorboard, wandb or FILE.py:CLASS of every cell. Repeat.",
        ),
    ] = None,
) -> None:
    """Run a sweep: the cells of FILE that its results folder lacks.

    Ends with a table of each method's best K and step, and a report. Interrupted or extended, the
    same command goes on. Exit code 1 if cells failed, or all were skipped.
    """
    shared.check_file(file)
    from raybench.analysis import BestSteps
    from raybench.core.process import give_back
    from raybench.execution.checks import counted
    from raybench.runtime.driver import drive

    planned = shared.read(file, sets, plugin)
    folder = results_of(planned, out)
    note(*planned.notes)
    outcome = drive(
        planned,
        folder,
        inline=inline,
        address=address,
        fresh=fresh,
        retry_failed=retry_failed,
        fail_fast=fail_fast,
        best=BestSteps(folder),
        callbacks=callback or (),
    )
    note(*outcome.plan.notes[len(planned.notes) :], *outcome.repairs)
    if outcome.interrupted:
        left = outcome.counts.get("missing", 0)
        how = "stopped by SIGTERM" if outcome.terminated else "interrupted"
        note(f"{how}, {count(left, 'cell')} left: the same command goes on")
        note(f"raybench table {folder} shows what is there")
        raise typer.Exit(outcome.exit_code)
    plan = outcome.plan
    ending = Ending(
        planned.name,
        folder,
        outcome.counts,
        counted(plan.skipped),
        outcome.exit_code,
        before=len(plan.done),
        run=plan.missing,
        seconds=outcome.seconds,
    )
    if context.obj and ending.before + ending.run > MANY:
        hand_over(ending, file)
    del planned, plan, outcome  # with all cells that were planned, before all that ended are read
    give_back()
    close(ending, file)
    raise typer.Exit(ending.exit_code)


@dataclass(frozen=True)
class Ending:
    """How a sweep ended. counts: planned cells by status; before: cells that were there, run: those that ran."""

    name: str
    folder: str
    counts: Mapping[str, int]
    skipped: Mapping[Why, int]
    exit_code: int
    before: int
    run: int = 0
    seconds: float = 0.0


def hand_over(ending: Ending, file: str) -> NoReturn:
    """Become a new process that closes the sweep, with neither torch nor Ray nor the plan in its memory.

    What it has to know reaches it through a file without a name, whose descriptor it inherits.
    """
    said = dataclasses.asdict(ending)
    said["skipped"] = [[*why, cells] for why, cells in ending.skipped.items()]
    with tempfile.TemporaryFile("w+") as handed:
        json.dump({"ending": said, "file": file}, handed)
        handed.flush()
        handed.seek(0)
        os.set_inheritable(handed.fileno(), True)
        sys.stdout.flush()
        sys.stderr.flush()
        go_on = "import sys; from raybench.cli.sweep import take_over; take_over(int(sys.argv[1]))"
        os.execv(sys.executable, [sys.executable, "-c", go_on, str(handed.fileno())])


def take_over(descriptor: int) -> None:
    """Close a sweep that another process has run (``hand_over``), and leave with its exit code."""
    with terminal(), leaving():
        with open(descriptor) as handed:
            said = json.load(handed)
        skipped = {(code, text, fix): n for code, text, fix, n in said["ending"].pop("skipped")}
        ending = Ending(**said["ending"], skipped=skipped)
        close(ending, said["file"])
        sys.exit(ending.exit_code)


def close(ending: Ending, file: str) -> None:
    """Print what came out of a sweep, and write its report."""
    from rich.text import Text

    from raybench import report
    from raybench.analysis import frames, keep_targets
    from raybench.report.rankings import firmness

    counts, folder = ending.counts, ending.folder
    out = shared.console()
    if not counts.get("ok"):
        said = ", ".join(f"{n:,} {status}" for status, n in counts.items() if n)
        out.print(f"no cell ended ok: {said or 'nothing ran'}")
        _why(out, ending)
        return
    results = frames(folder)
    if not counts.get("missing"):
        results = keep_targets(results)
    head = Text(ending.name, style="bold")
    said = "  nothing was missing"
    if ending.run:
        from raybench.core.clock import duration

        said = f"  {shared.count(ending.run, 'cell')} run in {duration(ending.seconds)}"
    head.append(said, style="not bold")
    before = f", {ending.before:,} were there already" if ending.before else ""
    head.append(before, style="not bold")
    out.print(head)
    out.print(report.table(results))
    _why(out, ending)
    said = firmness(results)
    rows: list[tuple[str, object]] = [
        *([("order", said)] if said else []),
        ("report", str(report.html(results))),
        ("tables", f"{folder}/cells, {folder}/curves  (Parquet)"),
    ]
    if counts.get("missing"):
        rows.append(("next", Text(f"raybench sweep {file}", style="bold")))
    elif counts.get("failed"):
        rows.append(("next", Text(f"raybench sweep {file} --retry-failed", style="bold")))
    else:
        rows.append(("next", Text(f"raybench plot {folder}", style="bold")))
    out.print(shared.pairs(rows, indent=0))


def _why(out: Screen, ending: Ending) -> None:
    """Print why cells were skipped or failed, the commonest reasons first."""
    rows = shared.reasons(ending.skipped)
    if ending.counts.get("failed"):
        from raybench import store

        cells = store.cells(ending.folder)
        errors = cells.loc[cells["status"] == "failed", "error"].fillna("").str.strip()
        said = Counter((text.splitlines() or ["?"])[-1] for text in errors)
        rows += [
            ("failed", f"{shared.count(n, 'cell')}: {text}") for text, n in said.most_common(3)
        ]
    if rows:
        out.print(shared.pairs(rows, indent=0))
