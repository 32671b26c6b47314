"""The verbs that look things up: ``show``, ``ls``, ``cp`` and ``schema``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from raybench.cli import shared
from raybench.cli.shared import Screen, check_word, listing, load_plugins, prose

if TYPE_CHECKING:
    from rich.table import Table

LISTED = ("algorithms", "compressors", "problems", "metrics", "datasets", "sweeps")


def show(
    name: Annotated[str, Argument(metavar="NAME[:KEY=VALUE,...]", help="A plug-in; raybench ls.")],
    d: Annotated[
        int | None,
        Option("--d", metavar="D", min=1, help="The dimension a compressor is shown for."),
    ] = None,
    problem: shared.ProblemFlag = None,
    dataset: shared.DatasetFlag = None,
    clients: shared.ClientsFlag = None,
    compressor: shared.CompressorFlag = None,
    downlink: shared.DownlinkFlag = None,
    plugin: shared.Plugins = None,
) -> None:
    """Show what a plug-in does, its parameters and constants.

    A compressor with --d: its constants, its bits, and what some draws show of both. An algorithm with a problem and a
    compressor: the problem's constants, the theorems behind its steps, and which of their assumptions hold. A problem
    with --dataset: its constants.
    """
    from raybench.cli.show import page

    load_plugins(plugin)
    page(name, d, problem, dataset, clients, compressor, downlink)


def ls(
    kind: Annotated[
        str | None, Argument(metavar="KIND", help=f"{', '.join(LISTED)}. [default: all]")
    ] = None,
    plugin: shared.Plugins = None,
) -> None:
    """List plug-ins by kind, data sets and shipped sweeps."""
    load_plugins(plugin)
    if kind is not None and f"{kind}s" not in LISTED:
        check_word("ls", kind, LISTED, "kind")
    out = Screen()
    for plural in LISTED if kind is None else (kind if kind in LISTED else f"{kind}s",):
        if plural == "datasets":
            out.print(_datasets(every=kind is not None))
        else:
            rows = shipped_sweeps() if plural == "sweeps" else _plugins(plural.removesuffix("s"))
            out.print(listing((plural, ""), rows, fold=""))


def _plugins(kind: str) -> list[tuple[str, str]]:
    from raybench.core import registry

    names = registry.names(kind)
    return [(name, prose(registry.lookup(kind, name).summary)) for name in names]


def _datasets(every: bool) -> Table:
    from raybench.data import catalogue

    comes = "comes with scikit-learn"
    rows = [("breast_cancer", "569", "30", comes), ("digits", "1,797", "64", comes)]
    for name, images in catalogue.IMAGE_SETS.items():
        if name == "digits":
            continue
        place = catalogue.present(images.files[0]) if images.files else None
        where = str(place.parent) if place else "downloaded when first used"
        if not place and not images.url and not name.endswith("mnist"):
            where = f"put {images.files[0]} into the data folder"
        rows.append((name, f"{images.train:,}", "x".join(map(str, images.shape)), where))
    texts = {
        name: catalogue.find("text", name) or f"put text/{name}.txt there"
        for name in catalogue.TEXTS
    }
    rows += [(name, "", "text", str(where)) for name, where in texts.items()]
    for name, views in catalogue.VIEW_SETS.items():
        file = catalogue.folder() / catalogue.VIEW_FILES[0]
        where = str(file) if file.exists() else f"put it at {file}"
        rows.append((name, f"{catalogue.ARTICLES:,}", ", ".join(views), where))
    hidden = 0
    for name, dataset in catalogue.LIBSVM_SETS.items():
        path = catalogue.find("libsvm", name)
        if every or path:
            where = str(path or "downloaded when first used")
            rows.append((name, f"{dataset.rows:,}", f"{dataset.d:,}", where))
        else:
            hidden += 1
    if hidden:
        rows.append((f"and {hidden} more", "", "", "raybench ls datasets"))
    heads = ("datasets", "rows", "features", "where")
    return listing(heads, rows, right=heads[1:3], fold="where")


def shipped_sweeps() -> list[tuple[str, str]]:
    """Return the shipped sweeps with the first line of each head comment: the question it answers."""
    rows = []
    for name, text in shared.sweeps().items():
        first = next((line for line in text.splitlines() if line.strip()), "")
        rows.append((name, first.lstrip("# ").strip() if first.startswith("#") else ""))
    return rows


def cp(
    name: Annotated[str, Argument(help="A shipped sweep; raybench ls sweeps lists them.")],
    goal: Annotated[
        str | None, Argument(metavar="FILE|DIR/", help="Where to. [default: ./NAME.yaml]")
    ] = None,
) -> None:
    """Copy a shipped sweep to edit, with its Python file if any."""

    shipped, beside = shared.sweeps(), shared.sweeps(".py")
    name = name.removesuffix(".yaml")
    check_word("cp", name, shipped, "sweep")
    place = Path(goal or f"{name}.yaml")
    if str(goal).endswith("/") and not place.is_dir():
        shared.new_file("cp", place).expanduser().mkdir()
    place = place / f"{name}.yaml" if place.expanduser().is_dir() else place
    texts = {place: shipped[name]}
    if name in beside:
        texts[place.with_name(f"{name}.py")] = beside[name]
    for file, text in [(shared.new_file("cp", file), text) for file, text in texts.items()]:
        file.write_text(text, encoding="utf-8")
        print(file)
    print(f"next: raybench plan {place}")


def schema(plugin: shared.Plugins = None) -> None:
    """Print the JSON schema of sweep files, with all defaults.

    For editors: save it and point their YAML support to it.
    """
    import json

    from raybench import spec

    load_plugins(plugin)
    print(json.dumps(spec.json_schema(), indent=2))
