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
in. Each job works on a copy of its own. The exit status is 1 if a fault survives or no longer applies.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
FAULTS = ROOT / "benchmarks" / "faults"
KILLED = ROOT / ".ci" / "killed.json"
FOLDERS = ("raybench", "tests", "sweeps", "docs", "examples", "benchmarks")
COPIED = (*FOLDERS, "pyproject.toml", "README.md")
LONGEST = 900.0  # seconds for the test of one fault; a fault that hangs is noticed as well


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
        """Return a digest of the fault, the file it stands in and the files of its test."""
        texts = [(ROOT / file).read_text() for file in (self.file, *files_of(self.test))]
        return hashlib.sha256(repr((self, texts)).encode()).hexdigest()[:16]


def mutants(match: str = "") -> list[Mutant]:
    """Return the faults of the list."""
    files = sorted(FAULTS.glob("*.toml"))
    entries = [entry for file in files for entry in tomllib.loads(file.read_text())["mutant"]]
    return [m for m in (Mutant(**entry) for entry in entries) if match in m.name + m.file]


def files_of(test: str) -> list[str]:
    """Return the files of tests/ that define a test function, from the root; ``test`` may name one case of it."""
    definition = re.compile(rf"^def {test.partition('[')[0]}\(", re.MULTILINE)
    files = sorted((ROOT / "tests").glob("test_*.py"))
    return [f.relative_to(ROOT).as_posix() for f in files if definition.search(f.read_text())]


def copy(folder: Path) -> Path:
    """Copy the checkout, with the times of its files, so that kernels compiled before are found again."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name)
        else:
            shutil.copy2(ROOT / name, folder / name)
    return folder


def pytest(folder: Path, tests: Iterable[str], every: bool) -> str:
    """Run tests by name on the package in ``folder``; return ``passed``, ``failed``, ``none`` or ``hung``."""
    nodes = sorted({f"{file}::{test}" for test in tests for file in files_of(test)})
    tier = "" if every else "not thorough"
    options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-m", tier]
    # Bytecode knows its source by seconds and size, and two faults may share both.
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    shutil.rmtree(folder / ".hypothesis", ignore_errors=True)
    with (folder / "output").open("w") as output:
        command = [sys.executable, "-m", "pytest", *options, *nodes]
        try:
            done = subprocess.run(
                command, cwd=folder, env=env, stdout=output, stderr=output, timeout=LONGEST
            )
        except subprocess.TimeoutExpired:
            return "hung"
    return {0: "passed", 5: "none"}.get(done.returncode, "failed")


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
    alive = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        free: SimpleQueue[Path] = SimpleQueue()
        for job in range(arguments.jobs):
            free.put(copy(Path(temporary) / str(job)))

        def run(mutant: Mutant) -> str:
            folder = free.get()
            file = folder / mutant.file
            source = file.read_text()
            for cached in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
                cached.unlink()
            try:
                file.write_text(source.replace(mutant.old, mutant.new))
                return pytest(folder, [mutant.test], arguments.all)
            finally:
                file.write_text(source)
                free.put(folder)

        without = pytest(copy(Path(temporary) / "sound"), {m.test for m in tried}, arguments.all)
        if without not in ("passed", "none"):
            print((Path(temporary) / "sound" / "output").read_text()[-3000:])
            return 1
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for mutant, result in zip(tried, pool.map(run, tried)):
                word = "killed" if result in ("failed", "hung") else "SURVIVED"
                print(f"{word}: {mutant.name} ({mutant.test})", flush=True)
                alive += [mutant] if word == "SURVIVED" else []
    record(m for m in tried if m not in alive)
    print(f"{len(tried) - len(alive)} of {len(tried)} killed, {len(stale)} do not apply")
    return int(bool(alive or stale))


if __name__ == "__main__":
    sys.exit(main())
