"""raybench merge: two results folders into one."""

from __future__ import annotations

from typing import Annotated

import typer


def merge(
    first: Annotated[str, typer.Argument(metavar="A", help="A results folder.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another of the same problem.")],
    out: Annotated[str, typer.Option("--out", metavar="C", help="A new folder for both.")],
) -> None:
    """Merge two results folders into a new one.

    A cell in both is taken from where it ended better.
    """
    from raybench import store

    store.merge(first, second, out)
    print(f"{out}\nnext: raybench table {out}")
