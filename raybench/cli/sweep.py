"""raybench sweep: run what is missing of a sweep file, then say what came out."""

from __future__ import annotations

from typing import Annotated

import typer

from raybench.cli import closing, shared
from raybench.cli.closing import Ending
from raybench.cli.shared import count, note, results_of

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
        best=BestSteps(folder),
        callbacks=callback or (),
    )
    note(*outcome.plan.notes[len(found.notes) :], *outcome.repairs)
    if outcome.interrupted:
        left = outcome.counts.get("missing", 0)
        how = "stopped by SIGTERM" if outcome.terminated else "interrupted"
        note(f"{how}, {count(left, 'cell')} left: the same command goes on")
        note(f"raybench table {folder} shows what is there")
        raise typer.Exit(outcome.exit_code)
    plan = outcome.plan
    ending = Ending(
        found.name,
        folder,
        outcome.counts,
        counted(plan.skipped),
        outcome.exit_code,
        before=len(plan.done),
        run=plan.missing,
        seconds=outcome.seconds,
    )
    if context.obj and ending.before + ending.run > MANY:
        closing.hand_over(ending, file)
    del found, plan, outcome  # with all cells that were planned, before all that ended are read
    give_back()
    closing.close(ending, file)
    raise typer.Exit(ending.exit_code)
