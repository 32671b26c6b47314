"""The verbs that look things up and check them: ``show``, ``ls``, ``cp``, ``schema``; ``check`` plug-ins, ``doctor``."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from raybench.cli import shared
from raybench.cli.shared import Screen, check_word, grid, listing, prose
from raybench.core.errors import InputError, count, nearest

if TYPE_CHECKING:
    from rich.table import Table

    from raybench.core.registry import Entry

LISTED = ("algorithms", "compressors", "problems", "metrics", "datasets", "sweeps")
ON_A_PROBLEM = ("algorithm", "metric")  # the kinds that ``check`` tries on a problem


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

    page(name, d, problem, dataset, clients, compressor, downlink)


def ls(
    kind: Annotated[
        str | None, Argument(metavar="KIND", help=f"{', '.join(LISTED)}. [default: all]")
    ] = None,
    plugin: shared.Plugins = None,
) -> None:
    """List plug-ins by kind, data sets and shipped sweeps."""
    out = Screen()
    for plural in LISTED if kind is None else [f"{kind.removesuffix('s')}s"]:
        check_word("ls", plural, LISTED, "kind")
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

    def where(name: str, absent: str) -> str:
        files = catalogue.files_of(name)
        return str(files[0] if len(files) == 1 else files[0].parent) if files else absent

    comes, fetched = "comes with scikit-learn", "downloaded when first used"
    rows = [("breast_cancer", "569", "30", comes), ("digits", "1,797", "64", comes)]
    for name, images in catalogue.IMAGE_SETS.items():
        if name not in catalogue.EMBEDDED:
            absent = fetched if images.url else f"put {images.files[0]} into the data folder"
            shape = "x".join(map(str, images.shape))
            rows.append((name, f"{images.train:,}", shape, where(name, absent)))
    texts = {name: f"put text/{name}.txt into the data folder" for name in catalogue.TEXTS}
    rows += [(name, "", "text", where(name, absent)) for name, absent in texts.items()]
    for name, views in catalogue.VIEW_SETS.items():
        absent = f"put {catalogue.VIEW_FILES[0]} into the data folder"
        articles = f"{catalogue.ARTICLES:,}"
        rows.append((name, articles, ", ".join(views), where(name, absent)))
    sets = catalogue.LIBSVM_SETS
    shown = [name for name in sets if every or catalogue.files_of(name)]
    rows += [(n, f"{sets[n].rows:,}", f"{sets[n].d:,}", where(n, fetched)) for n in shown]
    if hidden := len(sets) - len(shown):
        rows.append((f"and {hidden} more", "", "", "raybench ls datasets"))
    heads = ("datasets", "rows", "features", "where")
    return listing(heads, rows, right=heads[1:3], fold="where")


def shipped_sweeps() -> list[tuple[str, str]]:
    """Return the shipped sweeps with the first line of each head comment: the question it answers."""
    texts = {name: file.read_text(encoding="utf-8") for name, file in shared.sweeps().items()}
    return [(name, text.strip().partition("\n")[0].lstrip("# ")) for name, text in texts.items()]


def cp(
    name: Annotated[str, Argument(help="A shipped sweep; raybench ls sweeps lists them.")],
    goal: Annotated[
        str | None, Argument(metavar="FILE|DIR/", help="Where to. [default: ./NAME.yaml]")
    ] = None,
) -> None:
    """Copy a shipped sweep to edit, with its Python file if any."""
    shipped, name = shared.sweeps(), name.removesuffix(".yaml")
    check_word("cp", name, shipped, "sweep")
    place = Path(goal or f"{name}.yaml").expanduser()
    if str(goal).endswith("/"):
        place.mkdir(exist_ok=True)
    place = place / f"{name}.yaml" if place.is_dir() else place
    code = shipped[name].with_suffix(".py")
    copies = {place: shipped[name]} | ({place.with_name(code.name): code} if code.exists() else {})
    for file in copies:
        if file.exists():
            raise InputError.of("cp", f"{file} exists", "give another name")
    for file, original in copies.items():
        file.write_bytes(original.read_bytes())
        print(file)
    print(f"next: raybench plan {place}")


def schema(plugin: shared.Plugins = None) -> None:
    """Print the JSON schema of sweep files, with all defaults.

    For editors: save it and point their YAML support to it.
    """
    import json

    from raybench import spec

    print(json.dumps(spec.json_schema(), indent=2))


# check ---------------------------------------------------------------------------------------


def check(
    file: Annotated[str, Argument(metavar="PLUGIN.py", help="A file with plug-ins.")],
    sets: Annotated[
        list[str] | None,
        Option(
            "--set", metavar="KEY=VALUE", help="A parameter of the plug-in, for all checks. Repeat."
        ),
    ] = None,
    problem: Annotated[
        str | None,
        Option(
            metavar="NAME[:KEY=VALUE,...]",
            help="What methods and metrics are tried on. [default: a small one]",
        ),
    ] = None,
    verbose: Annotated[bool, Option("--verbose", help="A line for every check.")] = False,
) -> None:
    """Check plug-ins as raybench's own are checked.

    Prints a line for each set of parameters, with what fails. Exit code 1 if a check fails.
    """
    from itertools import groupby

    from raybench.core import registry
    from raybench.testing import Finding, summary, tried

    entries = registry.load_plugin(file)
    options = [*_options(entries, sets or (), problem)]
    every: list[Finding] = []
    for entry, more in zip(entries, options, strict=True):
        print(f"{entry.kind} {entry.name}", flush=True)
        told: set[str] = set()
        for about, group in groupby(tried(entry, **more), lambda finding: finding.about):
            findings = list(group)
            lines = map(str, findings) if verbose else summary(about, findings, told)
            for line in lines:
                print(f"  {line}", flush=True)
            every += findings
    failed = sum(not finding.ok for finding in every)
    unclaimed = sum(not finding.claimed for finding in every)
    checks = count(len(every) - unclaimed, "check")
    beside = f", {unclaimed} of nothing that is claimed" if unclaimed else ""
    print(f"{checks}, {failed} failed" if failed else f"{checks} passed{beside}")
    raise typer.Exit(1 if failed else 0)


def _options(
    entries: Sequence[Entry[Any]], sets: Sequence[str], problem: str | None
) -> Iterator[dict[str, Any]]:
    """Yield what the kit is told of each plug-in beside its defaults.

    Raises InputError for a key that none of them has, a value that does not fit, and a problem that none needs.
    """
    from raybench.spec import sections

    values = sections.parse_short_form(f"set:{','.join(sets)}", "--set")
    del values["name"]
    names = {name for entry in entries for name in entry.params}
    for key in sorted(values.keys() - names):
        raise InputError.of(f"--set {key}", "no plug-in of the file has it", nearest(key, names))
    tried: dict[str, Any] = {}
    if problem is not None:
        if not any(entry.kind in ON_A_PROBLEM for entry in entries):
            what = "only methods and metrics are tried on one"
            raise InputError.of("--problem", what, "leave it out")
        section = sections.section("problem", problem, where="--problem")
        tried["problem"] = {"name": section.name, **section.params}
    for entry in entries:
        fitting = {key: values[key] for key in values if key in entry.params}
        params = {key: entry.params[key] for key in fitting}
        typed = {"given": sections.mapping(params, fitting, "--set")} if fitting else {}
        yield typed | (tried if entry.kind in ON_A_PROBLEM else {})


# doctor --------------------------------------------------------------------------------------

PACKAGES = ("torch", "ray", "numba", "numpy", "pandas", "pyarrow")
LEAST_DISK = 1 << 30

Look = tuple[str, str, str]
"""What was looked at, what was seen, and the fix where it is a problem, else empty."""


def doctor() -> None:
    """Look at this machine: versions, data, results, kernels.

    Exit code 1 if something is in the way; each problem comes with its fix.
    """
    from rich.text import Text

    rows: list[tuple[str | Text, str, str | Text]] = []
    looks = list(findings())
    for what, state, fix in looks:
        rows.append((Text("problem", "red") if fix else Text("ok", "green"), what, state))
        if fix:
            rows.append(("", "", Text(fix, "bold")))
    Screen().print(grid(rows, gap=2))
    raise typer.Exit(int(any(fix for *_, fix in looks)))


def findings() -> Iterator[Look]:
    """Yield what there is, in the order a user would ask."""
    yield "python", f"{platform.python_version()} ({sys.executable})", ""
    for name in PACKAGES:
        yield _package(name)
    yield "cuda", _cuda(), ""
    yield _data()
    yield _results()
    yield _kernels()


def _package(name: str) -> Look:
    from importlib import import_module
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version(name)
        if name != "ray":  # importing ray takes a second, and where the others work it does too
            import_module(name)
    except PackageNotFoundError:
        return name, "not installed", "install raybench anew: it requires this package"
    except (ImportError, OSError) as error:
        return name, f"does not import: {error}", f"install {name} anew"
    return name, installed, ""


def _cuda() -> str:
    try:
        import torch
    except (ImportError, OSError):
        return "not looked for: torch does not import"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    none = "none: everything runs on the processor"
    return f"{torch.version.cuda}: {', '.join(names)}" if names else none


def _data() -> Look:
    from raybench.data import catalogue

    folder, is_set = catalogue.folder(), bool(os.environ.get("RAYBENCH_DATA"))
    shown = f"{folder} ({'' if is_set else 'default; '}RAYBENCH_DATA{'' if is_set else ' sets it'})"
    if not folder.is_dir():
        fix = "make it, or correct RAYBENCH_DATA" if is_set else ""
        return "data", f"no folder {shown}: sets are downloaded when first used", fix
    there = (name for name in catalogue.LIBSVM_SETS if catalogue.find("libsvm", name))
    have = ", ".join(there) or "no LIBSVM set yet"
    if not os.access(folder, os.W_OK):
        have += " (cannot be written: nothing can be downloaded)"
    return "data", f"{shown}: {have}", ""


def _results() -> Look:
    from raybench.core.limits import disk_free, size

    folder = shared.RESULTS_FOLDER.resolve()
    if not os.access(folder if folder.is_dir() else Path(), os.W_OK):
        fix = "work in a folder that you may write, or give --out"
        return "results", f"{folder}: cannot be written", fix
    free = disk_free(folder)
    fix = "" if free >= LEAST_DISK else "less than 1 GiB free: give --out on another disk"
    return "results", f"{folder}, {size(free)} free", fix


def _kernels() -> Look:
    from time import perf_counter

    began, anew = perf_counter(), "install numba and torch anew"
    try:
        import torch

        from raybench import api
        from raybench.core.streams import stream

        x = torch.arange(1.0, 31.0, dtype=torch.float64)
        top = api.compressor("top_k", k=3).compress(x).decode().nonzero().flatten().tolist()
        drawn = api.compressor("rand_k", k=30).compress(x, stream(0)).decode()
        if top != [27, 28, 29] or not bool(torch.equal(drawn, x)):
            raise ArithmeticError("they compute wrong results")
    except Exception as error:  # whatever is broken here, the user must see it as one line
        return "kernels", f"{type(error).__name__}: {error}", anew
    return "kernels", f"compile and compute ({perf_counter() - began:.1f} s)", ""
