"""raybench status: how a sweep stands by its folder alone, with a driver at work, after its end, after its death."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_kit import SWEEP, cli, tidy, tree

import raybench
from raybench import spec
from raybench.cluster.states import STATES, Launch
from raybench.runtime.driver import drive
from raybench.store import lock, status
from raybench.store.files import open_folder

LONG = (
    "name: long\nproblem: quadratic\nalgorithm: ef21\ncompressor: {name: top_k, k: 1..40}\nrounds: 2000\n"
    "record: {every: 100}\n"
)


def fields(text: str) -> dict[str, str]:
    """Return the named lines of the view."""
    pairs = (line.strip().split("   ", 1) for line in text.splitlines() if line.startswith("  "))
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def test_a_finished_sweep(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    drive(spec.load(SWEEP), folder, inline=True)
    before = tree(tmp_path)
    said = cli("status", folder)
    assert (said.code, said.err) == (0, "")
    tidy(said.out)
    cells = raybench.store.cells(str(folder))
    assert said.out.splitlines()[0] == f"small  {len(cells)} of {len(cells)} cells ended"
    shown = fields(said.out)
    assert shown["folder"] == str(folder)
    assert shown["problem"] == "quadratic, 4 clients"
    assert shown["running"] == "nobody, and nothing is missing"
    counts = cells["status"].value_counts()
    assert shown["cells"].split(", ")[0] == f"{counts['ok']} ok"
    best = cells.groupby("label")["best_grad_norm_sq"].min()
    result = status.status_of(folder)
    assert {b.label: b.value for b in result.best} == best.dropna().to_dict()
    assert {type(b.k) for b in result.best} <= {int, type(None)}
    for b in result.best:
        rows = cells[(cells.label == b.label) & (cells.best_grad_norm_sq == b.value)]
        assert b.step_size in rows.step_size.tolist()
    shown = json.loads(cli("status", folder, "--json").out)
    assert (shown["exit_code"], shown["missing"], shown["holder"]) == (0, 0, None)
    assert shown["counts"]["skipped"] == 8
    assert tree(tmp_path) == before


def test_a_launch_is_told(tmp_path: Path) -> None:
    """Its states and what to do next, before anything was fetched and afterwards; nothing once it is down."""
    launch = Launch(tmp_path)
    assert cli("status", tmp_path).code == 2
    launch.amend(**launch.begin())
    said = cli("status", tmp_path)
    assert said.code == 0
    assert fields(said.out)["launch"] == "ordered, not up yet"
    launch.reach("up", head="10.0.0.1")
    launch.reach("submitted")
    drive(spec.load(SWEEP), tmp_path, inline=True)
    shown = cli("status", tmp_path).out
    assert re.fullmatch(r"up \d+ s ago, submitted \d+ s ago", fields(shown)["launch"])
    assert f"raybench down {tmp_path} ends it" in " ".join(shown.split())
    for state in STATES[2:]:
        launch.reach(state)
    shown = cli("status", tmp_path).out
    assert "down 0 s ago" in fields(shown)["launch"]
    assert "raybench down" not in shown
    (tmp_path / "launch").write_text("00000000")  # what it holds beside is shown all the same
    said = cli("status", tmp_path)
    assert said.code == 0
    words = " ".join(said.out.split())  # the folder's name may break the line anywhere
    assert "launched from another machine" in words


@pytest.mark.thorough
def test_while_a_driver_works_and_after_its_death(tmp_path: Path) -> None:
    """The driver is another process, stopped in mid-run so that what it holds can be looked at, then killed."""
    (tmp_path / "s.yaml").write_text(LONG)
    folder = tmp_path / "r"
    command = [sys.executable, "-m", "raybench", "sweep", "s.yaml", "--inline", "--out", folder]
    nowhere = subprocess.DEVNULL
    driver = subprocess.Popen(command, cwd=tmp_path, stdout=nowhere, stderr=nowhere)
    try:
        until = time.monotonic() + 120
        while len(open_folder(folder).names("cells")) < 3 and time.monotonic() < until:
            time.sleep(0.02)
        driver.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        said = cli("status", folder)
        assert said.code == 0, said.err
        done = len(raybench.store.cells(str(folder)))
        assert 3 <= done < 40
        assert said.out.startswith(f"long  {done} of 40 cells ended")
        shown = fields(said.out)
        assert shown["running"].startswith(f"pid {driver.pid} on {os.uname().nodename}, since ")
        # it may have been stopped just between two batches
        assert shown["cells"].removesuffix(" (1 begun)") == f"{done} ok, {40 - done} missing"
        again = cli("sweep", tmp_path / "s.yaml", "--inline", "--out", folder)
        assert again.code == 2
        assert f"(pid {driver.pid} on " in again.err
    finally:
        driver.kill()
        driver.wait()
    said = cli("status", folder)
    assert said.code == 1
    assert fields(said.out)["running"] == "nobody: the sweep's own command goes on"
    assert status.status_of(folder).missing == 40 - done
    # what a driver is killed at is damage that reading must survive
    (folder / "plan" / "batches.json").write_text("[1")
    assert cli("status", folder).code == 0


def test_a_look_does_not_keep_a_driver_out(tmp_path: Path) -> None:
    files = open_folder(tmp_path)
    with lock.held(files):
        assert lock.holder(files) is not None
    assert lock.holder(files) is None
    for _ in range(20):
        assert lock.holder(files) is None
        with lock.held(files):
            pass


def test_failed_cells_and_their_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = tmp_path / "bad.py"
    plugin.write_text(
        "from raybench.plugins import compressor, Compressor\n"
        "@compressor('bad_one')\n"
        "class Bad(Compressor):\n"
        "    def encode(self, x, stream):\n"
        "        raise RuntimeError('no luck today')\n"
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(
        "problem: quadratic\nalgorithm: dcgd\ncompressor: [{name: top_k, k: 1}, bad_one]\nrounds: 3\n"
        "step_size: {value: 0.1}\nallow_unproven: true\n"
    )
    assert cli("sweep", "s.yaml", "--inline", "--plugin", "bad.py", "--out", "r").code == 1
    said = cli("status", "r")
    assert said.code == 1
    assert fields(said.out)["cells"] == "1 ok, 1 failed"
    assert "1 cell: RuntimeError: no luck today" in said.out


def test_the_rate_is_of_the_last_minutes(tmp_path: Path) -> None:
    drive(spec.load(SWEEP), tmp_path, inline=True)
    files = open_folder(tmp_path)
    names = [n for n in files.names("cells") if n != "skipped.parquet"]
    cells, now = {n.removesuffix(".parquet"): 10 for n in names}, time.time()
    for first, rate in ((now, pytest.approx(10.0, rel=0.05)), (now - 3600, None)):
        for i, name in enumerate(names):  # the newest first, each other a minute earlier
            os.utime(files.path(f"cells/{name}"), (first - 60 * i, first - 60 * i))
        assert status._rate(files, cells) == (pytest.approx(first), rate)
