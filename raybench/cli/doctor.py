"""raybench doctor: what this machine has, and what stands in the way."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from raybench.cli.shared import RESULTS_FOLDER, console

PACKAGES = ("torch", "ray", "numba", "numpy", "pandas", "pyarrow")
LEAST_DISK = 1 << 30
LEAST_SHM = 1 << 28


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, what was found, and the fix where it is a problem."""

    what: str
    found: str
    fix: str = ""


def doctor() -> None:
    """Look at this machine: versions, data, results, kernels.

    Exit code 1 if something is in the way; each problem comes with its fix.
    """
    from rich.table import Table
    from rich.text import Text

    out = console()
    problems = 0
    table = Table.grid(padding=(0, 2, 0, 0))
    for one in findings():
        bad = bool(one.fix)
        problems += bad
        mark = Text("problem", style="red") if bad else Text("ok", style="green")
        table.add_row(mark, one.what, one.found)
        if bad:
            table.add_row("", "", Text(one.fix, style="bold"))
    out.print(table)
    if problems:
        out.print(f"{problems} in the way")
    raise typer.Exit(1 if problems else 0)


def findings() -> Iterator[Finding]:
    """Yield what is found, in the order a user would ask."""
    wanted = sys.version_info >= (3, 11)
    fix = "" if wanted else "raybench needs Python 3.11 or newer"
    yield Finding("python", f"{platform.python_version()} ({sys.executable})", fix)
    for name in PACKAGES:
        yield _package(name)
    yield _cores()
    yield _cuda()
    yield _shared_memory()
    yield _data()
    yield _results()
    yield _kernels()


def _package(name: str) -> Finding:
    from importlib import import_module
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version(name)
        if name != "ray":  # importing ray takes a second, and where the others work it does too
            import_module(name)
    except PackageNotFoundError:
        return Finding(name, "not installed", "install raybench anew: it requires this package")
    except (ImportError, OSError) as error:
        return Finding(name, f"does not import: {error}", f"install {name} anew")
    return Finding(name, found)


def _cores() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    text = f"{os.cpu_count()} cores"
    if usable != os.cpu_count():
        text += f", {usable} of them usable"
    if hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        text += f", {memory / 2**30:.1f} GiB of memory"
    return Finding("machine", text)


def _cuda() -> Finding:
    try:
        import torch
    except (ImportError, OSError):
        return Finding("cuda", "not looked for: torch does not import")
    if not torch.cuda.is_available():
        return Finding("cuda", "none: everything runs on the processor")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Finding("cuda", f"{torch.version.cuda}: {', '.join(names)}")


def _shared_memory() -> Finding:
    place = Path("/dev/shm")
    if not place.is_dir():
        return Finding("shared memory", "no /dev/shm: Ray uses the disk")
    free = shutil.disk_usage(place).free
    text = f"{free / 2**30:.1f} GiB free in {place}"
    fix = "" if free >= LEAST_SHM else "Ray keeps objects there: give it 256 MiB or use --inline"
    return Finding("shared memory", text, fix)


def _data() -> Finding:
    from raybench.data import known

    folder = known.folder()
    source = (
        "RAYBENCH_DATA" if os.environ.get("RAYBENCH_DATA") else "default; RAYBENCH_DATA sets it"
    )
    if not folder.is_dir():
        if os.environ.get("RAYBENCH_DATA"):
            return Finding("data", f"no folder {folder}", "make it, or correct RAYBENCH_DATA")
        return Finding("data", f"{folder} ({source}), empty: sets are downloaded when first used")
    have = [name for name in known.KNOWN if known.find(name)]
    shown = ", ".join(have) if have else "no LIBSVM set yet"
    fix = ""
    if not os.access(folder, os.W_OK):
        shown += " (cannot be written: nothing can be downloaded)"
    return Finding("data", f"{folder} ({source}): {shown}", fix)


def _results() -> Finding:
    folder = RESULTS_FOLDER if RESULTS_FOLDER.is_dir() else Path()
    shown = str(RESULTS_FOLDER.resolve())
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        fix = "work in a folder that you may write, or give --out"
        return Finding("results", f"{shown}: {error.strerror}", fix)
    free = shutil.disk_usage(folder).free
    fix = "" if free >= LEAST_DISK else "less than 1 GiB free: give --out on another disk"
    return Finding("results", f"{shown}, {free / 2**30:.0f} GiB free", fix)


def _kernels() -> Finding:
    from time import perf_counter

    began = perf_counter()
    try:
        import torch

        from raybench import api
        from raybench.core.streams import stream

        x = torch.arange(1.0, 31.0, dtype=torch.float64)
        kept = api.compressor("top_k", k=3).compress(x).decode().nonzero().flatten().tolist()
        drawn = api.compressor("rand_k", k=30).compress(x, stream(0)).decode()
        works = kept == [27, 28, 29] and bool(torch.equal(drawn, x))
    except Exception as error:  # whatever is broken here, the user must see it as one line
        return Finding(
            "kernels", f"{type(error).__name__}: {error}", "install numba and torch anew"
        )
    fix = "" if works else "install numba and torch anew: they compute wrong results"
    text = "compile and compute" if works else "wrong results"
    return Finding("kernels", f"{text} ({perf_counter() - began:.1f} s)", fix)
