"""raybench rank: which method is best over all problems and seeds of a results folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raybench.cli.shared import (
    Accounting,
    All,
    Folder,
    Format,
    Link,
    Target,
    TuningSeeds,
    goal,
    seeds_of,
    show,
)

WAYS = ("method", "series")


def rank(
    folder: Folder,
    accounting: Accounting = None,
    link: Link = None,
    target: Target = None,
    tuning_seeds: TuningSeeds = None,
    every: All = False,
    by: Annotated[
        str,
        typer.Option(
            metavar="method|series",
            help="The best K of each method, or every K; with --trials also algorithm.",
        ),
    ] = "method",
    x: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="What is paid: round, say. [default: bits]")
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            metavar="M",
            help="What the target costs after M random trials of each method's own grid.",
        ),
    ] = None,
    format: Format = "terminal",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it to a file.")] = None,
) -> None:
    """Rank methods over problems and seeds by what the target costs."""
    from raybench.core.errors import InputError, nearest

    ways = WAYS if trials is None else (*WAYS, "algorithm")
    if by not in ways:
        raise InputError.of("--by", f"unknown {by!r}", nearest(by, ways) or " or ".join(ways))
    value = goal(target)
    from raybench.report.content import open_frames
    from raybench.report.formats import check
    from raybench.report.rankings import after_trials, ranking

    form = check(format)
    found = open_frames(folder, accounting, link, value, seeds_of(tuning_seeds), every)
    if trials is None:
        sheet = ranking(found, by=by, x=x)
    else:
        sheet = after_trials(found, trials, by=by, x=x)
    show(sheet, form, out)
