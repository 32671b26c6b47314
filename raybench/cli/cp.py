"""raybench cp: a shipped sweep to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def cp(
    name: Annotated[str, typer.Argument(help="A shipped sweep; raybench ls sweeps lists them.")],
    goal: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Where to. [default: ./NAME.yaml]")
    ] = None,
) -> None:
    """Copy a shipped sweep file to edit."""
    from raybench.cli.shipped import sweeps
    from raybench.core.errors import InputError, nearest

    known = sweeps()
    name = name.removesuffix(".yaml")
    if name not in known:
        raise InputError.of("cp", f"no shipped sweep {name!r}", nearest(name, known))
    goal = goal or Path(f"{name}.yaml")
    goal = goal / f"{name}.yaml" if goal.is_dir() else goal
    if not goal.parent.is_dir():
        raise InputError.of("cp", f"no folder {goal.parent}", "make it first")
    try:
        with goal.open("x", encoding="utf-8") as file:
            file.write(known[name])
    except FileExistsError:
        raise InputError.of("cp", f"{goal} exists", "give another name") from None
    print(f"{goal}\nnext: raybench plan {goal}")
