"""raybench compare: two results folders, method by method."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raybench.cli.shared import (
    Accounting,
    All,
    Format,
    Link,
    Target,
    TuningSeeds,
    goal,
    seeds_of,
    show,
)

WAYS = ("step", "series", "method")


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A results folder.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The results folder to compare it with.")],
    accounting: Accounting = None,
    link: Link = None,
    target: Target = None,
    tuning_seeds: TuningSeeds = None,
    every: All = False,
    by: Annotated[
        str,
        typer.Option(
            metavar="step|series|method",
            help="Every step of every method and K, the best step, or the best K and step.",
        ),
    ] = "series",
    format: Format = "terminal",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it to a file.")] = None,
) -> None:
    """Compare what the target costs in two results folders: ratios, and which are more than luck."""
    from raybench.core.errors import InputError, nearest

    if by not in WAYS:
        raise InputError.of("--by", f"unknown {by!r}", nearest(by, WAYS) or f"one of {WAYS}")
    value, seeds = goal(target), seeds_of(tuning_seeds)
    from raybench.report.content import open_frames
    from raybench.report.formats import check
    from raybench.report.rankings import comparison

    form = check(format)
    one, two = (open_frames(f, accounting, link, value, seeds, every) for f in (a, b))
    show(comparison(one, two, by=by), form, out)
