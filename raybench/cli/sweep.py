"""The verb ``sweep``: run what is missing of a sweep file; then the table of each method's best, the report, what next."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from raybench.cli import shared
from raybench.cli.shared import Screen, count, note, results_of

if TYPE_CHECKING:
    from raybench.runtime.driver import Outcome


def sweep(
    file: shared.File,
    out: shared.Out = None,
    sets: shared.Sets = None,
    plugin: shared.Plugins = None,
    inline: shared.Inline = False,
    address: shared.Address = None,
    fresh: shared.Fresh = False,
    retry_failed: shared.RetryFailed = False,
    fail_fast: shared.FailFast = False,
    callback: Annotated[
        list[str] | None,
        Option(
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
    close(outcome, file)
    raise typer.Exit(outcome.exit_code)


def close(outcome: Outcome, file: str) -> None:
    """Print what came out of a sweep, and write its report."""
    from rich.text import Text

    from raybench import report
    from raybench.analysis import frames, keep_targets
    from raybench.core.clock import duration
    from raybench.report.rankings import firmness

    plan, counts, folder = outcome.plan, outcome.counts, outcome.folder
    out = shared.Screen()
    if not counts.get("ok"):
        said = ", ".join(f"{n:,} {status}" for status, n in counts.items() if n)
        out.print(f"no cell ended ok: {said or 'nothing ran'}")
        _why(out, outcome)
        return
    results = frames(folder)
    if not counts.get("missing"):
        results = keep_targets(results)
    said = "  nothing was missing"
    if plan.missing:
        said = f"  {count(plan.missing, 'cell')} run in {duration(outcome.seconds)}"
    said += f", {len(plan.done):,} were there already" if plan.done else ""
    out.head(plan.sweep.name, said)
    out.print(report.table(results))
    _why(out, outcome)
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


def _why(out: Screen, outcome: Outcome) -> None:
    """Print why cells were skipped or failed, the commonest reasons first."""
    from raybench.execution.checks import counted

    rows = shared.reasons(counted(outcome.plan.skipped))
    if outcome.counts.get("failed"):
        from raybench import store

        cells = store.cells(outcome.folder)
        errors = cells.loc[cells["status"] == "failed", "error"].fillna("").str.strip()
        said = Counter((text.splitlines() or ["?"])[-1] for text in errors)
        rows += [
            ("failed", f"{shared.count(n, 'cell')}: {text}") for text, n in said.most_common(3)
        ]
    if rows:
        out.print(shared.pairs(rows, indent=0))
