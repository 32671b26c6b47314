"""raybench table: the closing table of a results folder."""

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

WAYS = ("method", "series", "k")


def table(
    folder: Folder,
    accounting: Accounting = None,
    link: Link = None,
    target: Target = None,
    by: Annotated[
        str,
        typer.Option(
            metavar="method|series|k",
            help="The best K of each method, every K of each, or the methods at each K.",
        ),
    ] = "method",
    format: Format = "terminal",
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME",
            help="Which columns, in this order: step, and those of --format csv.",
        ),
    ] = None,
    tuning_seeds: TuningSeeds = None,
    every: All = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it to a file.")] = None,
) -> None:
    """Print per method the best K and step, and what the target costs."""
    from raybench.core.errors import InputError, nearest

    if by not in WAYS:
        raise InputError.of("--by", f"unknown {by!r}", nearest(by, WAYS) or f"one of {WAYS}")
    value = goal(target)
    from raybench.report.content import open_frames
    from raybench.report.formats import check
    from raybench.report.tables import closing

    form, names = check(format), None if columns is None else columns.split(",")
    found = open_frames(folder, accounting, link, value, seeds_of(tuning_seeds), every)
    show(closing(found, by=by, names=names), form, out)
