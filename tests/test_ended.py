"""A sweep that has ended: how it is closed, and that the same command shows it again."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_kit import SWEEP, cli

from raybench.core import registry
from raybench.store import cells


@pytest.fixture(scope="module")
def one_that_ran(tmp_path_factory):
    """Return the folder that holds a small sweep's file and its results."""
    folder = tmp_path_factory.mktemp("ran")
    (folder / "small.yaml").write_text(SWEEP)
    assert cli("sweep", folder / "small.yaml", "--out", folder / "out", "--inline").code == 0
    return folder


@pytest.fixture
def ended(one_that_ran, tmp_path):
    """Return the file and the results folder of a small sweep that has run."""
    shutil.copytree(one_that_ran, tmp_path / "copy")
    return tmp_path / "copy" / "small.yaml", tmp_path / "copy" / "out"


def test_a_sweep_that_has_ended_is_shown_again(ended, reads):
    file, out = ended
    first = cli("sweep", file, "--out", out, "--inline", "--retry-failed")
    reads.clear()
    again = cli("sweep", file, "--out", out)
    assert (again.code, again.out, again.err) == (0, first.out, first.err)
    assert "nothing was missing, 28 were there already" in again.out
    assert max(reads.of("curves").values()) <= 6  # digest, table, figures, their K, own metrics
    written = {rel.removeprefix("write ") for rel in reads if rel.startswith("write ")}
    assert written <= {"plan/owner.json", "plan/lock"}


TWO = ("--set", "seed=0..1")
LARGE = """
import os, sys
from raybench.cli import main

sys.modules["raybench.cli.sweep"].MANY, become = int(sys.argv.pop(1)), os.execv

def execv(path, words):
    print("becomes another", flush=True)
    close = words[2].partition("; ")[2]
    look = "import sys\\ntry:\\n    " + close + "\\nfinally:\\n    print('torch' in sys.modules)"
    become(path, [*words[:2], look, *words[3:]])

os.execv = execv
main(*(["sweep", *sys.argv[2:]] for _ in range(sys.argv[1] == "called")))
"""


def large(folder: Path, many: int, *words: str) -> tuple[int, list[str]]:
    """Run a command where so many cells are a large sweep: its exit code and what it prints, but for times."""
    (folder / "large.py").write_text(LARGE)
    words = (sys.executable, "large.py", str(many), *words, "--inline")
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    text = re.sub(r"run in .*s", "run", done.stdout)
    lines = [line for line in text.splitlines() if line]
    return done.returncode, lines if done.returncode < 2 else done.stderr.splitlines()


def test_a_large_sweep_is_closed_by_a_process_without_its_plan(tmp_path):
    (tmp_path / "s.yaml").write_text(SWEEP)
    code, lines = large(tmp_path, 10, "sweep", "s.yaml", *TWO, "--out", "far")
    assert code == 0, lines
    first, *said, torch = lines
    assert first == "becomes another"
    assert torch == "False", "the process that closes has loaded torch"
    assert any("28 cells run" in line for line in said)
    plain = large(tmp_path, 100, "sweep", "s.yaml", *TWO, "--out", "near")
    assert (0, said) == (plain[0], [line.replace("near", "far") for line in plain[1]])
    again = large(tmp_path, 10, "sweep", "s.yaml", *TWO, "--out", "far")[1]
    assert any("nothing was missing, 28 were there already" in line for line in again)
    assert "becomes another" in again


def test_a_program_that_calls_the_command_line_stays_itself(tmp_path):
    (tmp_path / "s.yaml").write_text(SWEEP)
    code, lines = large(tmp_path, 10, "called", "s.yaml", *TWO, "--out", "far")
    assert code == 0, lines
    assert "becomes another" not in lines
    assert any("28 cells run" in line for line in lines)


def test_a_large_sweep_that_was_stopped_is_closed_and_does_not_go_on(tmp_path):
    """The process that closes runs no cells, though some are missing, and leaves with their exit code."""
    (tmp_path / "own.py").write_text(FAILS)
    (tmp_path / "s.yaml").write_text(
        "name: a\nproblem: {name: quadratic, dim: 4, clients: 2}\nalgorithm: [breaks, gd, diana]\nrounds: 3\n"
        "compressor: {name: rand_k, k: 1}\nstep_size: 0.1\nplugins: own.py\n"
    )
    code, lines = large(tmp_path, 1, "sweep", "s.yaml", "--out", "far", "--fail-fast")
    assert code == 1, lines
    assert lines[0] == "becomes another"
    assert "RuntimeError: as it does" in "".join(lines)
    assert any("2 missing" in line for line in lines)
    assert len(cells(tmp_path / "far")) == 1


FAILS = """
from raybench.plugins import algorithm, Estimator

@algorithm("breaks")
class Breaks(Estimator):
    '''Breaks.'''

    def setup(a, wire, s, c):
        raise RuntimeError("as it does")

    def estimate(a, wire, s, c, grad):
        return s.x
"""


def test_no_file_beside_the_shards_tells_of_cells_that_have_ended(ended):
    """A second copy could differ from the cells: a changed cell is found, and runs again."""
    file, out = ended
    kept = cells(out)
    names = {p.name for p in (out / "plan").iterdir()}
    assert names == {
        "attempts.json",
        "batches.json",
        "cells.json",
        "lock",
        "owner.json",
        "target.json",
    }
    shutil.rmtree(out / "plan")
    assert cells(out).equals(kept)
    shard = next((out / "cells").glob("[0-9a-f]*.parquet"))
    data = shard.read_bytes()
    at = len(data) // 2
    shard.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert cli("verify", out).code == 1
    assert cli("sweep", file, "--out", out, "--inline").code == 0
    assert cells(out)["cell"].tolist() == kept["cell"].tolist()
    assert cli("verify", out).code == 0


def test_failed_cells_keep_their_exit_code(tmp_path):
    plugin, file, out = tmp_path / "own.py", tmp_path / "a.yaml", tmp_path / "out"
    plugin.write_text(FAILS)
    file.write_text(
        "name: a\nproblem: {name: quadratic, dim: 4, clients: 2}\nalgorithm: [gd, breaks]\nrounds: 3\n"
        f"step_size: 0.1\nplugins: {plugin}\n"
    )
    before = dict(registry._entries)
    first = cli("sweep", file, "--out", out, "--inline")
    assert first.code == 1, first.err
    again = cli("sweep", file, "--out", out, "--inline")
    assert again.code == 1
    assert "RuntimeError: as it does" in again.out
    assert "--retry-failed" in again.out
    registry._entries.clear()
    registry._entries.update(before)
