"""How tests call the command line: in this process, with what it printed and its exit code."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import unittest.mock
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from raybench.cli import main
from raybench.core import registry

WIDE = 120
SWEEP = """
name: small
problem: {name: quadratic, dim: 12, clients: 4}
algorithm: [gd, ef21, {name: marina, step_size: {theory: [1, 8]}}]
compressor: [{name: top_k, k: [1, 25%]}, {name: rand_k, k: 3}]
step_size: {theory: 2^0..2^2}
seed: 0..1
rounds: 20
"""  # 18 gd merged to 6, ef21 3 x 3 x 2, marina 2 x 2 with rand_k; marina with top_k twice skipped


@dataclass(frozen=True)
class Said:
    """What a call printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def complaints(self) -> int:
        """How many lines begin with ``error:``."""
        return sum(line.startswith("error: ") for line in self.err.splitlines())


def cli(*args: object, firm: bool = False) -> Said:
    """Return what ``raybench ARGS`` prints and its exit code.

    firm: ``sweep`` says in which share of its readings the first method is first, which takes longer than the sweep.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        # whatever the test's runner has
        stack.enter_context(unittest.mock.patch.dict(os.environ, COLUMNS="120"))
        if args[:1] == ("sweep",) and not firm:
            stack.enter_context(unittest.mock.patch("raybench.report.rankings.MOST_ROWS", -1))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        try:
            main([str(arg) for arg in args])
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    return Said(code, out.getvalue(), err.getvalue())


def ran(*args: object, firm: bool = False) -> Said:
    """Return what a call prints that must end well."""
    said = cli(*args, firm=firm)
    assert said.code == 0, said.out + said.err
    return said


def call(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and return what it printed; options are those of ``subprocess.run``."""
    options = {"capture_output": True, "text": True, **options}
    return subprocess.run([str(word) for word in command], **options)


@contextlib.contextmanager
def own_plugins() -> Iterator[None]:
    """Forget at the end what plug-in files have registered meanwhile."""
    for kind in registry.BUILTIN_PACKAGES:
        registry.names(kind)
    before = dict(registry._entries)
    try:
        yield
    finally:
        registry._entries.clear()
        registry._entries.update(before)
        for name in [n for n in sys.modules if n.startswith("raybench_plugin_")]:
            del sys.modules[name]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder; plug-ins of a test are forgotten."""
    monkeypatch.chdir(tmp_path)
    with own_plugins():
        yield tmp_path


def tree(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder."""
    files = (p for p in sorted(folder.rglob("*")) if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def refused(*args: object, says: Iterable[str] = (), longest: int = 12) -> str:
    """Return what a call prints, after asserting that it is refused as all that users get wrong should be.

    It says so in at most ``longest`` lines, among them all of ``says``, ends with code 2, and writes nothing
    into the working folder, which is the test's own.
    """
    before = tree(Path.cwd())
    said = cli(*args)
    assert said.code == 2, said.out + said.err
    assert "Traceback" not in said.err
    assert said.err.replace("\n", "").isprintable()
    assert 0 < len(said.err.splitlines()) <= longest
    assert said.out == ""
    for text in says:
        assert text in said.err
    assert tree(Path.cwd()) == before
    return said.err


def tidy(text: str) -> None:
    """Assert that text fits a page: plain, no lines too wide or with blanks at their end."""
    assert "\x1b" not in text
    for line in text.splitlines():
        assert len(line) <= WIDE
        assert line == line.rstrip()
