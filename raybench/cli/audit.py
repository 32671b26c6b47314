"""raybench audit: how much of a ranking is bookkeeping."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raybench.cli.shared import All, Folder, Target, goal


def audit(
    folder: Folder,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where to. [default: DIR/figures]")
    ] = None,
    target: Target = None,
    every: All = False,
) -> None:
    """Say which orders of methods depend on how bits are booked and steps are chosen.

    Reads DIR under every accounting of values, indices and first messages, with and without the downlink, at tuned and
    theoretical steps; prints what turns the order of two methods round, and draws how often a method has which rank.
    """
    from raybench.analysis import frames
    from raybench.analysis.rankings import audit as audited
    from raybench.report.charts import audit_figure
    from raybench.report.content import default_out
    from raybench.report.formats import separated
    from raybench.report.plots import save, styled
    from raybench.report.rankings import audit_lines

    read = frames(folder, target=goal(target), every=every)
    found = audited(read)
    for line in audit_lines(found):
        print(line)
    for line in read.earlier:
        print(f"\n{line}")
    place = Path(out) if out is not None else default_out(folder, "figures")
    place.mkdir(parents=True, exist_ok=True)
    with styled(None):
        paths = save(place / "audit", audit_figure(found), found.readings, ("png", "pdf", "csv"))
    pairs = place / "audit_pairs.csv"
    pairs.write_text(separated(found.pairs), encoding="utf-8")
    print()
    print(f"{paths[0].with_suffix('')}.{{png,pdf,csv}}\n{pairs}")
