"""Do the tests notice a fault? Puts each fault of benchmarks/faults/ into a copy of the package and runs its test.

    python benchmarks/mutants.py [--jobs 2]   every fault of the list, with the tests of `make test` alone
    python benchmarks/mutants.py --changed    only faults whose file or test changed since they were killed
    python benchmarks/mutants.py --all        the tests of `make test-all` too
    python benchmarks/mutants.py --match TEXT only faults whose name or file holds TEXT

A file of benchmarks/faults/ lists the faults of one part of the package. In `file`, `old`, which stands there once,
becomes `new`; then `test` must fail: the name of a test function, wherever in tests/ it stands.

A fault is *killed* when its test fails, and *survives* when the test passes or is not among those that
run. First the tests run without a fault, because one that fails anyway would kill everything. The
checkout is never changed, but for .ci/killed.json: for each fault that was killed, a digest of what it was killed
in. Each job works on a copy of its own, in a fork of this process, which has loaded what all tests import. The exit
status is 1 if a fault survives or no longer applies.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAULTS = ROOT / "benchmarks" / "faults"
KILLED = ROOT / ".ci" / "killed.json"
FOLDERS = ("raybench", "tests", "sweeps", "docs", "examples", "benchmarks")
COPIED = (*FOLDERS, "cluster", "cluster.yaml", "pyproject.toml", "README.md")
LONGEST = 900.0  # seconds for the test of one fault; a fault that hangs is noticed as well
SLOW_IMPORTS = (
    "torch",
    "numba",
    "scipy.stats",
    "sklearn",
    "pandas",
    "pyarrow.parquet",
    "hypothesis",
    "pytest",
)


@dataclass(frozen=True)
class Mutant:
    """A fault: ``old``, which stands once in ``file``, becomes ``new``, and ``test`` must fail."""

    name: str
    file: str
    old: str
    new: str
    test: str

    def stale(self) -> str:
        """Return why the fault no longer applies, and where its text or its test is now; empty if it does."""
        path = ROOT / self.file
        count = path.read_text().count(self.old) if path.is_file() else 0
        if count != 1:
            files = sorted((ROOT / "raybench").rglob("*.py"))
            places = [f.relative_to(ROOT).as_posix() for f in files if self.old in f.read_text()]
            return f"{self.name}: {self.file} holds {count} times {self.old!r}; it is in {places}"
        if not files_of(self.test):
            return f"{self.name}: no file of tests/ has {self.test}"
        return ""

    def digest(self) -> str:
        """Return a digest of the fault, the file it stands in and the text of its test."""
        texts = (ROOT / self.file).read_text(), texts_of(self.test)
        return hashlib.sha256(repr((self, texts)).encode()).hexdigest()[:16]


def mutants(match: str = "") -> list[Mutant]:
    """Return the faults of the list."""
    files = sorted(FAULTS.glob("*.toml"))
    entries = [entry for file in files for entry in tomllib.loads(file.read_text())["mutant"]]
    return [m for m in (Mutant(**entry) for entry in entries) if match in m.name + m.file]


@cache
def tests() -> dict[str, dict[str, str]]:
    """Return {test function: {file of tests/ that defines it: its text}}."""
    result: dict[str, dict[str, str]] = {}
    for file in sorted((ROOT / "tests").glob("test_*.py")):
        for text in re.split(r"^(?=@|def )", file.read_text(), flags=re.MULTILINE):
            if match := re.match(r"def (\w+)", text):
                result.setdefault(match[1], {})[file.relative_to(ROOT).as_posix()] = text
    return result


def texts_of(test: str) -> dict[str, str]:
    """Return {file of tests/, from the root: text} of a test function; ``test`` may name one case of it."""
    return tests().get(test.partition("[")[0], {})


def files_of(test: str) -> list[str]:
    """Return the files of tests/ that define a test function, from the root."""
    return list(texts_of(test))


def copy(folder: Path) -> Path:
    """Copy the checkout, with the times of its files, so that kernels compiled before are found again."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name)
        else:
            shutil.copy2(ROOT / name, folder / name)
    return folder


def start(folder: Path, names: Iterable[str], every: bool) -> int:
    """Run tests by name on the package in ``folder`` in a fork of this process; return its number."""
    nodes = sorted({f"{file}::{test}" for test in names for file in files_of(test)})
    tier = "" if every else "not thorough"
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0"]
    shutil.rmtree(folder / ".hypothesis", ignore_errors=True)
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.chdir(folder)
        output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        # Bytecode knows its source by seconds and size, and two faults may share both.
        os.environ |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        sys.path[:] = [str(folder), *(p for p in sys.path if not p.startswith(str(ROOT / "b")))]
        sys.modules.pop("mutants", None)
        status = int(import_module("pytest").main([*options, "-m", tier, *nodes]))
    finally:
        os._exit(status)


def ended(running: dict[int, tuple[Path, float]]) -> tuple[int, str]:
    """Wait for one of the forks, {number: (folder, begin)}; return it, and ``passed``, ``failed``, ``none`` or ``hung``."""
    while True:
        for child, (_, begin) in running.items():
            number, status = os.waitpid(child, os.WNOHANG)
            if number:
                code = os.waitstatus_to_exitcode(status)
                return child, {0: "passed", 5: "none"}.get(code, "failed")
            if time.monotonic() - begin > LONGEST:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return child, "hung"
        time.sleep(0.05)


def killed_before() -> dict[str, str]:
    """Return {name of a fault: digest of what it was last killed in}."""
    return json.loads(KILLED.read_text()) if KILLED.exists() else {}


def record(killed: Iterable[Mutant]) -> None:
    """Keep the digests of the faults that were killed, and forget faults that are no longer on the list."""
    digests = {**killed_before(), **{m.name: m.digest() for m in killed}}
    kept = {m.name: digests[m.name] for m in mutants() if m.name in digests}
    KILLED.parent.mkdir(exist_ok=True)
    KILLED.write_text(json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--all", action="store_true", help="tests of make test-all too")
    parser.add_argument(
        "--changed", action="store_true", help="only faults whose file or test changed since"
    )
    parser.add_argument("--match", default="", help="only faults whose name or file holds this")
    parser.add_argument("--jobs", type=int, default=1, help="how many run at once")
    arguments = parser.parse_args()
    stale = [m for m in mutants(arguments.match) if m.stale()]
    for mutant in stale:
        print(f"does not apply: {mutant.stale()}")
    tried = [m for m in mutants(arguments.match) if m not in stale]
    if arguments.changed:
        before = killed_before()
        tried = [m for m in tried if before.get(m.name) != m.digest()]
    if not tried:
        print(f"no fault to try, {len(stale)} do not apply")
        return int(bool(stale))
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    for module in SLOW_IMPORTS:
        import_module(module)
    alive, waiting = [], tried[::-1]
    running: dict[int, tuple[Path, float]] = {}
    faults: dict[int, tuple[Mutant, str]] = {}  # what a fork tries, and the sound text of its file
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        sound = copy(Path(temporary) / "sound")
        running[start(sound, {m.test for m in tried}, arguments.all)] = sound, time.monotonic()
        child, result = ended(running)
        running.pop(child)
        if result not in ("passed", "none"):
            print((sound / "output").read_text()[-3000:])
            return 1
        free = [sound, *(copy(Path(temporary) / str(job)) for job in range(1, arguments.jobs))]
        while waiting or running:
            if waiting and free:
                mutant, folder = waiting.pop(), free.pop()
                file = folder / mutant.file
                source = file.read_text()
                for cached in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
                    cached.unlink()
                file.write_text(source.replace(mutant.old, mutant.new))
                child = start(folder, [mutant.test], arguments.all)
                running[child], faults[child] = (folder, time.monotonic()), (mutant, source)
                continue
            child, result = ended(running)
            (folder, _), (mutant, source) = running.pop(child), faults.pop(child)
            (folder / mutant.file).write_text(source)
            free.append(folder)
            word = "killed" if result in ("failed", "hung") else "SURVIVED"
            print(f"{word}: {mutant.name} ({mutant.test})", flush=True)
            if word == "SURVIVED":
                alive.append(mutant)
            else:  # at once: a run that is stopped need not be repeated
                record([mutant])
    print(f"{len(tried) - len(alive)} of {len(tried)} killed, {len(stale)} do not apply")
    return int(bool(alive or stale))


if __name__ == "__main__":
    sys.exit(main())
