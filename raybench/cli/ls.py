"""raybench ls: what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from raybench.cli.shared import Plugins, console, listing, prose

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
    from raybench.core import registry
    from raybench.core.errors import InputError, nearest

    for file in plugin or ():
        registry.load_plugin(file)
    if kind is None:
        chosen: tuple[str, ...] = KINDS
    else:
        plural = kind if kind in KINDS else f"{kind}s"
        if plural not in KINDS:
            raise InputError.of("ls", f"unknown kind {kind!r}", nearest(kind, KINDS))
        chosen = (plural,)
    out = console()
    for one in chosen:
        if one == "datasets":
            out.print(_datasets(every=kind is not None))
        else:
            out.print(_sweeps() if one == "sweeps" else _plugins(one))


def _plugins(kind: str) -> Table:
    from raybench.core import registry

    single = kind.removesuffix("s")
    table = listing(kind, "", fold="")
    for name in registry.names(single):
        table.add_row(name, prose(registry.lookup(single, name).summary))
    return table


def _datasets(every: bool) -> Table:
    from raybench.data import known

    table = listing(
        "datasets", "rows", "features", "where", right=("rows", "features"), fold="where"
    )
    for name, (rows, d) in {"breast_cancer": (569, 30), "digits": (1797, 64)}.items():
        table.add_row(name, f"{rows:,}", f"{d:,}", "comes with scikit-learn")
    for name, images in known.KNOWN_IMAGES.items():
        if name == "digits":
            continue
        place = known.there(images.files[0]) if images.files else None
        where = str(place.parent) if place else "downloaded when first used"
        if not place and not images.url and not name.endswith("mnist"):
            where = f"put {images.files[0]} into the data folder"
        size = "x".join(map(str, images.shape))
        table.add_row(name, f"{images.train:,}", size, where)
    for name in known.KNOWN_TEXTS:
        file = known.find_text(name)
        table.add_row(name, "", "text", str(file) if file else f"put text/{name}.txt there")
    for name, held in known.KNOWN_VIEWS.items():
        where = str(held.file) if held.file.exists() else f"put it at {held.file}"
        table.add_row(name, f"{held.train:,}", "image, text", where)
    files = {name: known.find(name) for name in known.KNOWN}
    shown = {name: one for name, one in known.KNOWN.items() if every or files[name]}
    for name, one in shown.items():
        file = files[name]
        where = str(file) if file else "downloaded when first used"
        table.add_row(name, f"{one.rows:,}", f"{one.d:,}", where)
    if more := len(known.KNOWN) - len(shown):
        table.add_row(f"and {more} more", "", "", "raybench ls datasets")
    return table


def _sweeps() -> Table:
    from raybench.cli.shipped import summary, sweeps

    table = listing("sweeps", "", fold="")
    for name, text in sweeps().items():
        table.add_row(name, summary(text))
    return table
