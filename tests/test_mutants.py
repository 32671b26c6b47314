"""The list of faults that tests must notice applies to today's sources, and checks that passed are known by their files.

No fault is run here: benchmarks/mutants.py.
"""

from __future__ import annotations

import ast
import shutil
import sys
from pathlib import Path

import mutants
import pytest
from cli_kit import call

ROOT = Path(__file__).parent.parent


def test_every_fault_applies():
    every = mutants.mutants()
    assert len(every) >= 400
    assert len({m.name for m in every}) == len(every)
    stale = [m.stale() for m in every if m.stale()]
    assert not stale, "\n".join(stale)


@pytest.mark.thorough
def test_every_fault_is_another_program():
    for mutant in mutants.mutants():
        source = (ROOT / mutant.file).read_text()
        changed = source.replace(mutant.old, mutant.new)
        if mutant.file.endswith(".py"):  # of a shell's script a comment would do
            changed, source = (ast.dump(ast.parse(text)) for text in (changed, source))
        assert changed != source, mutant.name


def test_what_no_longer_applies_is_told_with_its_new_place():
    (gone,) = mutants.mutants("the checksum has no seed")
    moved = mutants.Mutant(gone.name, "raybench/core/yaml.py", gone.old, gone.new, gone.test)
    assert f"it is in ['{gone.file}']" in moved.stale()
    renamed = mutants.Mutant(gone.name, gone.file, gone.old, gone.new, "test_of_nothing")
    assert "no file of tests/ has test_of_nothing" in renamed.stale()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("new", "status", "said"), [("1 + 1", 1, "SURVIVED: sum"), ("1 + 2", 0, "killed: sum")]
)
def test_a_fault_is_killed_by_its_test_or_survives(tmp_path, new, status, said):
    """A checkout of one function and one test, whose constant becomes 3, or stays 2."""
    for name in mutants.COPIED:
        (tmp_path / name).mkdir() if "." not in name else (tmp_path / name).write_text("")
    (tmp_path / "raybench" / "__init__.py").touch()
    (tmp_path / "raybench" / "code.py").write_text("two = 1 * 2\n")
    (tmp_path / "tests" / "test_two.py").write_text(
        "from raybench.code import two\ndef test_two():\n    assert two == 2\n"
    )
    entry = {"name": "sum", "file": "raybench/code.py", "old": "1 * 2", "new": new}
    lines = [f'{key} = "{value}"' for key, value in {**entry, "test": "test_two"}.items()]
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\nmarkers = ["thorough: x"]\n'
    )
    script = Path(mutants.__file__)
    (tmp_path / "benchmarks" / "mutants.py").write_text(script.read_text())
    (tmp_path / "benchmarks" / "faults").mkdir()
    (tmp_path / "benchmarks" / "faults" / "a.toml").write_text("\n".join(["[[mutant]]", *lines]))
    done = call(sys.executable, tmp_path / "benchmarks" / "mutants.py", "--changed")
    assert done.returncode == status, done.stdout + done.stderr
    assert said in done.stdout
    if status == 0:  # what is killed is tried again only where the file or the test has changed
        again = [sys.executable, tmp_path / "benchmarks" / "mutants.py", "--changed"]
        assert "no fault to try" in call(*again).stdout
        (tmp_path / "raybench" / "code.py").write_text("two = 1 * 2  # still\n")
        assert said in call(*again).stdout


def test_a_stamp_fits_until_a_file_changes(tmp_path):
    for name in ("Makefile", "constraints.txt", "pyproject.toml", ".ci/stamp", "tests/conftest.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    for part in ("store", "runtime", "execution"):
        (tmp_path / "raybench" / part / "__pycache__").mkdir(parents=True)
        (tmp_path / "raybench" / part / "code.py").write_text("1")
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "chaos.py").write_text("1")

    def stamp(verb):
        return call(sys.executable, tmp_path / ".ci" / "stamp", verb, "chaos").returncode

    assert [stamp("fits"), stamp("write"), stamp("fits")] == [1, 0, 0]
    (tmp_path / "raybench" / "store" / "__pycache__" / "code.pyc").write_text("compiled")
    assert stamp("fits") == 0
    (tmp_path / "raybench" / "store" / "code.py").write_text("2")
    assert stamp("fits") == 1
