"""The verbs that check: ``check`` plug-ins by the conformance kit, ``doctor`` this machine."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from raybench.cli.shared import RESULTS_FOLDER, Screen, count, grid
from raybench.core.errors import InputError, nearest

if TYPE_CHECKING:
    from raybench.core.registry import Entry
    from raybench.testing import Finding

ON_A_PROBLEM = ("algorithm", "metric")  # the kinds that are tried on a problem


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

    entries = registry.load_plugin(file)
    options = _options(entries, sets or (), problem)
    failed = claimed = unclaimed = 0
    for entry, more in zip(entries, options, strict=True):
        print(f"{entry.kind} {entry.name}", flush=True)
        told: set[str] = set()
        for about, group in groupby(_tried(entry, more), lambda finding: finding.about):
            findings = list(group)
            lines = map(str, findings) if verbose else _summary(about, findings, told)
            for line in lines:
                print(f"  {line}", flush=True)
            failed += sum(not finding.ok for finding in findings)
            unclaimed += sum(not finding.claimed for finding in findings)
            claimed += sum(finding.claimed for finding in findings)
    checks = count(claimed, "check")
    beside = f", {unclaimed} of nothing that is claimed" if unclaimed else ""
    print(f"{checks}, {failed} failed" if failed else f"{checks} passed{beside}")
    raise typer.Exit(1 if failed else 0)


def _tried(entry: Entry[Any], options: dict[str, Any]) -> Iterator[Finding]:
    """Yield what the kit finds of a plug-in; an error of the user's own code, before a check began, is a finding."""
    from importlib import import_module

    from raybench.testing import Finding

    try:
        yield from import_module(f"raybench.testing.{entry.kind}s").check_entry(entry, **options)
    except InputError:
        raise
    except Exception as error:
        yield Finding("can be made", entry.name, f"{type(error).__name__}: {error}")


def _summary(about: str, findings: Sequence[Finding], told: set[str]) -> Iterable[str]:
    """Yield what is said of one set of parameters; told: checks whose failure has been printed, each once."""
    failures = [finding for finding in findings if not finding.ok]
    again: list[str] = []
    for finding in failures:
        if finding.check in told:
            again.append(finding.check)
        else:
            told.add(finding.check)
            yield str(finding)
    if again:
        yield f"FAIL  {about}, too: {', '.join(dict.fromkeys(again))}"
    if not failures:
        unclaimed = ", ".join(finding.check for finding in findings if not finding.claimed)
        checks = count(sum(finding.claimed for finding in findings), "check")
        yield f"ok    {about}: {checks}{f'; not claimed: {unclaimed}' if unclaimed else ''}"


def _options(
    entries: Sequence[Entry[Any]], sets: Sequence[str], problem: str | None
) -> list[dict[str, Any]]:
    """Return what the kit is told of each plug-in beside its defaults.

    Raises InputError for a key that none of them has, a value that does not fit, and a problem that none needs.
    """
    from raybench.spec import sections

    settings = [sections.parse(f"set:{text}", "--set") for text in sets]
    values = {key: value for parsed in settings for key, value in parsed.items() if key != "name"}
    names = sorted({name for entry in entries for name in entry.params})
    for key in values:
        if key not in names:
            fix = nearest(key, names) if names else "the file's plug-ins have no parameters"
            raise InputError.of(f"--set {key}", "no plug-in of the file has it", fix)
    if problem is not None and not any(entry.kind in ON_A_PROBLEM for entry in entries):
        what = "only methods and metrics are tried on one"
        raise InputError.of("--problem", what, "leave it out")
    options: list[dict[str, Any]] = []
    for entry in entries:
        fitting = {key: value for key, value in values.items() if key in entry.params}
        more: dict[str, Any] = {}
        if fitting:
            more["given"] = sections.mapping(
                {k: entry.params[k] for k in fitting}, fitting, "--set"
            )
        if problem is not None and entry.kind in ON_A_PROBLEM:
            section = sections.section("problem", problem, where="--problem")
            more["problem"] = {"name": section.name, **section.params}
        options.append(more)
    return options


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

    out, problems = Screen(), 0
    rows: list[tuple[str | Text, str, str | Text]] = []
    for what, state, fix in findings():
        rows.append((Text("ok", style="green"), what, state))
        if fix:
            rows[-1:] = [(Text("problem", style="red"), what, state), ("", "", Text(fix, "bold"))]
            problems += 1
    out.print(grid(rows, gap=2))
    if problems:
        out.print(f"{problems} in the way")
    raise typer.Exit(1 if problems else 0)


def findings() -> Iterator[Look]:
    """Yield what there is, in the order a user would ask."""
    fix = "" if sys.version_info >= (3, 11) else "raybench needs Python 3.11 or newer"
    yield "python", f"{platform.python_version()} ({sys.executable})", fix
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
    if not torch.cuda.is_available():
        return "none: everything runs on the processor"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"{torch.version.cuda}: {', '.join(names)}"


def _data() -> Look:
    from raybench.data import catalogue

    folder, is_set = catalogue.folder(), bool(os.environ.get("RAYBENCH_DATA"))
    shown = f"{folder} ({'' if is_set else 'default; '}RAYBENCH_DATA{'' if is_set else ' sets it'})"
    if not folder.is_dir():
        if is_set:
            return "data", f"no folder {folder}", "make it, or correct RAYBENCH_DATA"
        return "data", f"{shown}, empty: sets are downloaded when first used", ""
    there = (name for name in catalogue.LIBSVM_SETS if catalogue.find("libsvm", name))
    have = ", ".join(there) or "no LIBSVM set yet"
    if not os.access(folder, os.W_OK):
        have += " (cannot be written: nothing can be downloaded)"
    return "data", f"{shown}: {have}", ""


def _results() -> Look:
    folder = RESULTS_FOLDER if RESULTS_FOLDER.is_dir() else Path()
    shown = str(RESULTS_FOLDER.resolve())
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        fix = "work in a folder that you may write, or give --out"
        return "results", f"{shown}: {error.strerror}", fix
    free = shutil.disk_usage(folder).free
    fix = "" if free >= LEAST_DISK else "less than 1 GiB free: give --out on another disk"
    return "results", f"{shown}, {free / 2**30:.0f} GiB free", fix


def _kernels() -> Look:
    from time import perf_counter

    began = perf_counter()
    anew = "install numba and torch anew"
    try:
        import torch

        from raybench import api
        from raybench.core.streams import stream

        x = torch.arange(1.0, 31.0, dtype=torch.float64)
        top = api.compressor("top_k", k=3).compress(x).decode().nonzero().flatten().tolist()
        drawn = api.compressor("rand_k", k=30).compress(x, stream(0)).decode()
        works = top == [27, 28, 29] and bool(torch.equal(drawn, x))
    except Exception as error:  # whatever is broken here, the user must see it as one line
        return "kernels", f"{type(error).__name__}: {error}", anew
    text = "compile and compute" if works else "wrong results"
    fix = "" if works else f"{anew}: they compute wrong results"
    return "kernels", f"{text} ({perf_counter() - began:.1f} s)", fix
