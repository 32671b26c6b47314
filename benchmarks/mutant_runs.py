"""Running mutants: copies of the checkout with one fault at a time, and tests in processes of their own.

A process is forked from a server that has imported torch, numba and pandas already, but nothing of
raybench, which saves the seconds that these imports take.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

from mutations import Change

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("raybench", "tests", "sweeps", "docs", "examples", "pyproject.toml", "README.md")
PRELOADED = (
    *("torch", "numpy", "numba", "pandas", "pyarrow.dataset", "scipy.optimize", "sklearn.datasets"),
    *("hypothesis", "pytest", "ruamel.yaml", "matplotlib.pyplot", "xxhash", "fsspec", "duckdb"),
)
LONGEST = 3600.0  # seconds for all tests without a fault


@dataclass(frozen=True)
class Mutant:
    """A fault with the tests that should notice it."""

    target: str
    tests: tuple[str, ...]
    change: Change
    what: str  # in words

    @property
    def path(self) -> str:
        """The file with the fault, from the root."""
        return self.change.path

    @property
    def text(self) -> str:
        """The whole file with the fault in it."""
        return self.change.applied((ROOT / self.path).read_text())


@dataclass
class Outcome:
    """What became of a mutant: ``killed`` (by which test), ``survived`` or ``timed out``."""

    mutant: Mutant
    status: str
    by: str
    seconds: float


class Copy:
    """A copy of the checkout in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():  # with the times of the files, so that compiled kernels are found
                shutil.copytree(source, folder / name)
            else:
                shutil.copy2(source, folder / name)

    def run(self, mutant: Mutant, limit: float) -> Outcome:
        """Run a mutant's tests; the copy is as before afterwards."""
        file = self.folder / mutant.path
        for cached in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
            cached.unlink()  # it knows its source by seconds and size: two faults may share both
        shutil.rmtree(self.folder / ".hypothesis", ignore_errors=True)
        file.write_text(mutant.text)
        began = time.monotonic()
        try:
            status, by, _ = self.tests(mutant.tests, limit)
        finally:
            shutil.copy2(ROOT / mutant.path, file)
        return Outcome(mutant, status, by, time.monotonic() - began)

    def tests(self, names: Iterable[str], limit: float) -> tuple[str, str, dict[str, float]]:
        """Return (status, the test that failed, seconds of each file) of a run of test files."""
        context = get_context("forkserver")
        ours, theirs = context.Pipe()
        child = context.Process(target=_in_child, args=(str(self.folder), [*names], theirs))
        child.start()
        theirs.close()
        try:
            if not ours.poll(limit):
                return "timed out", "", {}
            code, by, seconds = ours.recv()
        except EOFError:  # the fault ended the process
            return "killed", "the process ended", {}
        finally:
            if child.pid is not None:
                _end(child.pid)
            child.join()
        if code == 0:
            return "survived", "", seconds
        if code in (1, 2):  # a test failed, or a test file could not be imported
            return "killed", by, seconds
        raise RuntimeError(f"pytest ended with {code}; see {self.folder}/output")


def _end(pid: int) -> None:
    """End a child with all that it has started: it leads a group of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _in_child(folder: str, names: list[str], result: Connection) -> None:
    """Run test files in a process of their own, on the package in ``folder``."""
    os.setsid()
    os.chdir(folder)
    out = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = folder
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    import pytest

    watch = _Watch(folder)
    options = ["-x", "-q", "-m", "not ray", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    files = [f"tests/test_{name}.py" for name in names]
    code = int(pytest.main([*options, *files], plugins=[watch]))
    result.send((code, watch.failed, watch.seconds))
    result.close()


class _Watch:
    """A plugin of pytest: which test failed first, how long each file took, and which package is tested."""

    def __init__(self, folder: str) -> None:
        self.folder, self.failed, self.seconds = folder, "", dict[str, float]()

    def pytest_runtest_logreport(self, report: object) -> None:
        name = str(report.nodeid)  # type: ignore[attr-defined]
        file = name.partition("::")[0]
        self.seconds[file] = self.seconds.get(file, 0.0) + report.duration  # type: ignore[attr-defined]
        if report.failed and not self.failed:  # type: ignore[attr-defined]
            self.failed = name

    def pytest_collectreport(self, report: object) -> None:
        if report.failed and not self.failed:  # type: ignore[attr-defined]
            self.failed = f"{report.nodeid} cannot be imported"  # type: ignore[attr-defined]

    def pytest_collection_finish(self) -> None:
        import raybench

        at = str(Path(raybench.__file__).parent.parent.resolve())
        if at != str(Path(self.folder).resolve()):
            raise RuntimeError(f"the tests import {at}")


def tried(mutants: list[Mutant], jobs: int, limit: float | None = None) -> Iterator[Outcome]:
    """Yield what becomes of each mutant, as soon as it is known. Raises RuntimeError if tests fail anyway.

    limit: seconds for a mutant; None measures what the tests take without a fault and allows five times
    as long, and a minute.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED])
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for j in range(jobs):
            copies.put(Copy(Path(folder, str(j))))
        took = {} if limit else _without_a_fault(mutants, copies, jobs)

        def one(mutant: Mutant) -> Outcome:
            own = copies.get()
            try:
                usual = sum(took.get(name, 0.0) for name in mutant.tests)
                return own.run(mutant, limit or 60 + 5 * usual)
            finally:
                copies.put(own)

        with ThreadPoolExecutor(jobs) as pool:
            for done in as_completed([pool.submit(one, mutant) for mutant in mutants]):
                yield done.result()


def _without_a_fault(
    mutants: list[Mutant], copies: SimpleQueue[Copy], jobs: int
) -> dict[str, float]:
    """Run the tests of all mutants on the unchanged package; return the seconds of each file."""
    names = list(dict.fromkeys(name for mutant in mutants for name in mutant.tests))

    def one(part: list[str]) -> dict[str, float]:
        own = copies.get()
        try:
            status, by, seconds = own.tests(part, LONGEST)
            if status == "survived":
                return {name: seconds.get(f"tests/test_{name}.py", 0.0) for name in part}
            output = (own.folder / "output").read_text()[-3000:]
            raise RuntimeError(f"without a fault: {status} {by}\n{output}")
        finally:
            copies.put(own)

    with ThreadPoolExecutor(jobs) as pool:
        parts = [part for j in range(jobs) if (part := names[j::jobs])]
        took = {name: s for found in pool.map(one, parts) for name, s in found.items()}
    print(f"without a fault {len(names)} files take {sum(took.values()):.0f} s", flush=True)
    return took
