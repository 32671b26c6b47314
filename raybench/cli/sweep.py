"""raybench sweep: run what is missing of a sweep file, then say what came out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from raybench.cli import shared
from raybench.cli.shared import console, count, note, pairs, results_of

if TYPE_CHECKING:
    from raybench.cli.shared import Screen
    from raybench.runtime.driver import Outcome


def sweep(
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
) -> None:
    """Run a sweep: the cells of FILE that its results folder lacks.

    Ends with a table of each method's best K and step, and a report. Interrupted or extended, the
    same command goes on. Exit code 1 if cells failed, or all were skipped.
    """
    from raybench.runtime.driver import drive

    found = shared.read(file, sets, plugin)
    folder = results_of(found, out)
    note(*found.notes)
    outcome = drive(
        found,
        folder,
        inline=inline,
        address=address,
        fresh=fresh,
        retry_failed=retry_failed,
        fail_fast=fail_fast,
    )
    note(*outcome.plan.notes[len(found.notes) :], *outcome.repairs)
    if outcome.interrupted:
        left = outcome.counts.get("missing", 0)
        how = "stopped by SIGTERM" if outcome.terminated else "interrupted"
        note(f"{how}, {count(left, 'cell')} left: the same command goes on")
        note(f"raybench table {folder} shows what is there")
        raise typer.Exit(outcome.exit_code)
    _close(outcome, folder, file)
    raise typer.Exit(outcome.exit_code)


def _close(outcome: Outcome, folder: str, file: str) -> None:
    from rich.text import Text

    from raybench import report
    from raybench.analysis import frames
    from raybench.runtime.progress import clock

    counts = outcome.counts
    out = console()
    if not counts.get("ok"):
        said = ", ".join(f"{n:,} {status}" for status, n in counts.items() if n)
        out.print(f"no cell ended ok: {said or 'nothing ran'}")
        _why(out, outcome, folder)
        return
    results = frames(folder)
    before = len(outcome.plan.done)
    head = Text(outcome.plan.sweep.name, style="bold")
    said = f"  {count(outcome.plan.missing, 'cell')} run in {clock(outcome.seconds)}"
    head.append(said if outcome.plan.batches else "  nothing was missing", style="not bold")
    head.append(f", {before:,} were there already" if before else "", style="not bold")
    out.print(head)
    out.print(report.table(results))
    _why(out, outcome, folder)
    rows: list[tuple[str, object]] = [
        ("report", str(report.html(results))),
        ("tables", f"{folder}/cells, {folder}/curves  (Parquet)"),
    ]
    if counts.get("missing"):
        rows.append(("next", Text(f"raybench sweep {file}", style="bold")))
    elif counts.get("failed"):
        rows.append(("next", Text(f"raybench sweep {file} --retry-failed", style="bold")))
    else:
        rows.append(("next", Text(f"raybench plot {folder}", style="bold")))
    out.print(pairs(rows, indent=0))


def _why(out: Screen, outcome: Outcome, folder: str) -> None:
    """Print why cells were skipped or failed, the commonest reasons first."""
    from collections import Counter

    rows = shared.reasons(outcome.plan.skipped)
    if outcome.counts.get("failed"):
        from raybench import store

        cells = store.cells(folder)
        errors = cells.loc[cells["status"] == "failed", "error"].fillna("").str.strip()
        said = Counter((text.splitlines() or ["?"])[-1] for text in errors)
        rows += [("failed", f"{count(n, 'cell')}: {text}") for text, n in said.most_common(3)]
    if rows:
        out.print(pairs(rows, indent=0))
