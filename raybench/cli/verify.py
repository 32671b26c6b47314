"""raybench verify: every file of a results folder against what was written."""

from __future__ import annotations

from typing import Annotated

import typer

from raybench.cli.shared import console, count


def verify(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A results folder.")],
) -> None:
    """Compare every file of a results folder with its digest, and say what to do.

    Changes nothing. Exit code 1 if a file is damaged, missing, or not this folder's.
    """
    from rich.table import Table
    from rich.text import Text

    from raybench.store import reader
    from raybench.store.log import HARMLESS, verified

    files = reader.open_results(folder)
    found = verified(files)
    out = console()
    shards, cells = len(found.log.shards), len(found.log.statuses())
    said = f"{count(shards, 'shard')} with {count(cells, 'cell')} as they were written"
    head = Text(files.name, style="bold")
    out.print(head.append(f"  {said}", style="not bold"))
    for kind, own in found.by_kind().items():
        out.print()
        table = Table.grid(padding=(0, 2, 0, 0))
        for finding in own:
            table.add_row(
                Text(kind, style="dim" if kind in HARMLESS else "red"), finding.rel, finding.what
            )
        out.print(table)
        out.print(Text(own[0].fix, style="bold"))
    raise typer.Exit(1 if found.harm else 0)
