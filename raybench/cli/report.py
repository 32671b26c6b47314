"""raybench report: one HTML file about a results folder."""

from __future__ import annotations

from typing import Annotated

import typer

from raybench.cli.shared import Accounting, All, Folder, Link, Target, TuningSeeds, goal, seeds_of


def report(
    folder: Folder,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where to. [default: DIR/report.html]")
    ] = None,
    accounting: Accounting = None,
    link: Link = None,
    target: Target = None,
    tuning_seeds: TuningSeeds = None,
    every: All = False,
) -> None:
    """Write the report, one HTML file that needs no network."""
    from raybench.report import html
    from raybench.report.content import open_frames

    found = open_frames(folder, accounting, link, goal(target), seeds_of(tuning_seeds), every)
    print(html(found, out))
