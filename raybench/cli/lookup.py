"""The verbs that look things up: ``ls``, ``cp`` and ``schema``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raybench.cli.shared import (
    Plugins,
    check_word,
    console,
    listing,
    load_plugins,
    prose,
    sweeps,
)

if TYPE_CHECKING:
    from rich.table import Table

PLUGINS = ("algorithms", "compressors", "problems", "metrics")
KINDS = (*PLUGINS, "datasets", "sweeps")


def ls(
    kind: Annotated[
        str | None, typer.Argument(metavar="KIND", help=f"{', '.join(KINDS)}. [default: all]")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """List plug-ins by kind, data sets and shipped sweeps."""
    load_plugins(plugin)
    if kind is not None and f"{kind}s" not in KINDS:
        check_word("ls", kind, KINDS, "kind")
    out = console()
    for plural in KINDS if kind is None else (kind if kind in KINDS else f"{kind}s",):
        if plural == "datasets":
            out.print(_datasets(every=kind is not None))
        else:
            out.print(_sweeps() if plural == "sweeps" else _plugins(plural))


def _plugins(kind: str) -> Table:
    from raybench.core import registry

    single = kind.removesuffix("s")
    table = listing(kind, "", fold="")
    for name in registry.names(single):
        table.add_row(name, prose(registry.lookup(single, name).summary))
    return table


def _datasets(every: bool) -> Table:
    from raybench.data import catalogue

    table = listing(
        "datasets", "rows", "features", "where", right=("rows", "features"), fold="where"
    )
    for name, (rows, d) in {"breast_cancer": (569, 30), "digits": (1797, 64)}.items():
        table.add_row(name, f"{rows:,}", f"{d:,}", "comes with scikit-learn")
    for name, images in catalogue.IMAGE_SETS.items():
        if name == "digits":
            continue
        place = catalogue.present(images.files[0]) if images.files else None
        where = str(place.parent) if place else "downloaded when first used"
        if not place and not images.url and not name.endswith("mnist"):
            where = f"put {images.files[0]} into the data folder"
        size = "x".join(map(str, images.shape))
        table.add_row(name, f"{images.train:,}", size, where)
    for name in catalogue.TEXTS:
        file = catalogue.find_text(name)
        table.add_row(name, "", "text", str(file) if file else f"put text/{name}.txt there")
    for name, views in catalogue.VIEW_SETS.items():
        file = catalogue.folder() / catalogue.VIEW_FILES[0]
        where = str(file) if file.exists() else f"put it at {file}"
        table.add_row(name, f"{catalogue.ARTICLES:,}", ", ".join(views), where)
    files = {name: catalogue.find(name) for name in catalogue.LIBSVM_SETS}
    shown = {
        name: dataset for name, dataset in catalogue.LIBSVM_SETS.items() if every or files[name]
    }
    for name, dataset in shown.items():
        file = files[name]
        where = str(file) if file else "downloaded when first used"
        table.add_row(name, f"{dataset.rows:,}", f"{dataset.d:,}", where)
    if more := len(catalogue.LIBSVM_SETS) - len(shown):
        table.add_row(f"and {more} more", "", "", "raybench ls datasets")
    return table


def _sweeps() -> Table:
    table = listing("sweeps", "", fold="")
    for name, text in sweeps().items():
        table.add_row(name, summary(text))
    return table


def cp(
    name: Annotated[str, typer.Argument(help="A shipped sweep; raybench ls sweeps lists them.")],
    goal: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Where to. [default: ./NAME.yaml]")
    ] = None,
) -> None:
    """Copy a shipped sweep file to edit."""
    from raybench.core.errors import InputError, nearest

    shipped = sweeps()
    name = name.removesuffix(".yaml")
    if name not in shipped:
        raise InputError.of("cp", f"no shipped sweep {name!r}", nearest(name, shipped))
    goal = goal or Path(f"{name}.yaml")
    goal = goal / f"{name}.yaml" if goal.is_dir() else goal
    if not goal.parent.is_dir():
        raise InputError.of("cp", f"no folder {goal.parent}", "make it first")
    try:
        with goal.open("x", encoding="utf-8") as file:
            file.write(shipped[name])
    except FileExistsError:
        raise InputError.of("cp", f"{goal} exists", "give another name") from None
    print(f"{goal}\nnext: raybench plan {goal}")


def schema(plugin: Plugins = None) -> None:
    """Print the JSON schema of sweep files, with all defaults.

    For editors: save it and point their YAML support to it.
    """
    import json

    from raybench import spec

    load_plugins(plugin)
    print(json.dumps(spec.json_schema(), indent=2))


def summary(text: str) -> str:
    """Return the first line of a sweep's head comment: the question it answers."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return first.lstrip("# ").strip() if first.startswith("#") else ""
