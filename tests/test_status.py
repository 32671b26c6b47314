"""How a sweep stands by its folder alone; cells of several versions: those of its sweep.yaml, unless told."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pandas as pd
import psutil
import pytest
from cli_kit import SWEEP, cli, own_plugins, ran, tidy, tree
from fake_runs import make
from process_kit import python, wait_until

import raybench
from raybench import spec, store
from raybench.analysis import closing_table, describe, frames
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
    assert f"folder{folder}problem" in "".join(said.out.split())
    assert shown["problem"] == "quadratic, 4 clients"
    assert shown["running"] == "nobody, and nothing is missing"
    counts = cells["status"].value_counts()
    assert shown["cells"].split(", ")[0] == f"{counts['ok']} ok"
    shown = json.loads(cli("status", folder, "--json").out)
    assert (shown["exit_code"], shown["missing"], shown["holder"]) == (0, 0, None)
    assert shown["counts"]["skipped"] == 8
    assert tree(tmp_path) == before


def test_a_launch_is_told(tmp_path: Path) -> None:
    """Its states and what to do next, before anything was fetched and afterwards; nothing once it is down."""
    launch = Launch(tmp_path)
    assert cli("status", tmp_path).code == 2
    launch.amend(**launch.begin())
    said = ran("status", tmp_path)
    assert fields(said.out)["launch"] == "ordered, not up yet"
    launch.reach("up", head="10.0.0.1")
    launch.reach("submitted")
    drive(spec.load(SWEEP), tmp_path, inline=True)
    shown = cli("status", tmp_path).out
    assert re.fullmatch(r"up \d+ s ago, submitted \d+ s ago", fields(shown)["launch"])
    assert f"raybenchdown{tmp_path}endsit" in "".join(shown.split())  # on lines of any length
    for state in STATES[2:]:
        launch.reach(state)
    shown = cli("status", tmp_path).out
    assert re.search(r"down \d+ s ago", fields(shown)["launch"])
    assert "raybench down" not in shown
    (tmp_path / "launch").write_text("00000000")  # what it holds beside is shown all the same
    said = ran("status", tmp_path)
    words = " ".join(said.out.split())  # the folder's name may break the line anywhere
    assert "launched from another machine" in words


@pytest.mark.thorough
def test_while_a_driver_works_and_after_its_death(tmp_path: Path) -> None:
    """The driver is another process, stopped in mid-run so that what it holds can be looked at, then killed."""
    (tmp_path / "s.yaml").write_text(LONG)
    folder = tmp_path / "r"
    nowhere = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    words = ("-m", "raybench", "sweep", "s.yaml", "--inline", "--out", folder)
    driver = python(*words, cwd=tmp_path, **nowhere)
    try:
        wait_until(lambda: len(open_folder(folder).names("cells")) >= 3, "nothing is committed")
        driver.send_signal(signal.SIGSTOP)
        stopped = psutil.Process(driver.pid).status
        wait_until(lambda: stopped() == psutil.STATUS_STOPPED, "it does not stop")
        said = ran("status", folder)
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


def test_the_rate_is_of_the_last_minutes(tmp_path: Path) -> None:
    drive(spec.load(SWEEP), tmp_path, inline=True)
    files = open_folder(tmp_path)
    names = [n for n in files.names("cells") if n != "skipped.parquet"]
    cells, now = {n.removesuffix(".parquet"): 10 for n in names}, time.time()
    for first, rate in ((now, pytest.approx(10.0, rel=0.05)), (now - 3600, None)):
        for i, name in enumerate(names):  # the newest first, each other a minute earlier
            os.utime(files.path(f"cells/{name}"), (first - 60 * i, first - 60 * i))
        assert status._rate(files, cells) == (pytest.approx(first), rate)


# A folder that holds cells of several versions of a sweep -----------------------------------------


PLUGIN = """
from raybench.plugins import Dense, Estimator, algorithm


@algorithm("mine", up=None, theory=None)
class Mine(Estimator):
    def estimate(a, wire, s, c, grad):
        return {factor} * wire.up(Dense(grad)).mean()
"""
VERSION = """
name: small
plugins: [mine.py]
problem: {name: quadratic, dim: 12, clients: 4}
algorithm:
  - {name: mine, step_size: {value: [0.02, 0.1]}}
  - {name: ef21, compressor: {name: top_k, k: [1, 3]}, step_size: {theory: [1, 2]}}
seed: 0..2
x0: {normal: 1.0}
rounds: 20
"""
MINE, EF21 = 6, 12  # cells of a version
LINE = (
    "{} cells of earlier versions of this sweep are left out; --all shows them as rows of their own"
)


def sweep(folder: Path, *sets: str) -> str:
    """Run a version of the sweep into ``folder/out``; return what the command printed."""
    more = [part for one in sets for part in ("--set", one)]
    with own_plugins():
        said = cli("sweep", folder / "s.yaml", "--out", folder / "out", "--inline", *more)
    assert said.code == 0, said.err
    return said.out


@pytest.fixture(scope="module")
def versions(tmp_path_factory) -> Path:
    """A sweep that ran, ran again with a plug-in edited, then with more rounds, then with a threshold."""
    folder = tmp_path_factory.mktemp("versions")
    (folder / "s.yaml").write_text(VERSION)
    for factor, sets in ((1, ()), (0.5, ()), (0.5, ("rounds=30",))):
        (folder / "mine.py").write_text(PLUGIN.format(factor=factor))
        with own_plugins():
            raybench.sweep(folder / "s.yaml", folder / "out", inline=True, sets=sets)
    said = sweep(folder, "rounds=30", "stop.grad_norm_sq=1e-9")
    assert LINE.format(2 * (MINE + EF21) + MINE) in " ".join(said.split())
    return folder


def series(folder: Path, *more: str) -> pd.DataFrame:
    """Return what ``raybench table`` prints of each series."""
    said = cli("table", folder / "out", "--format", "csv", "--by", "series", *more)
    return pd.read_csv(io.StringIO(said.out))


@pytest.mark.thorough
def test_every_verb_says_what_is_left_out(versions, tmp_path):
    left = LINE.format(2 * (MINE + EF21) + MINE)
    out = versions / "out"
    for verb in (
        ("table",), ("rank",), ("rank", "--trials", 2), ("audit", "--out", tmp_path),
        ("table", "--link", "1Gbit,ring"), ("plot", "--out", tmp_path, "--format", "csv"),
    ):  # fmt: skip
        said = ran(verb[0], out, *verb[1:])
        assert left in " ".join((said.out + said.err).split()), verb
    every = cli("table", out, "--all")
    assert "left out" not in every.out + every.err
    said = cli("compare", out, out)
    assert f"A: {left}" in said.out
    assert f"B: {left}" in said.out
    assert cli("report", out, "--out", tmp_path / "r.html").code == 0
    assert left in (tmp_path / "r.html").read_text()


def test_how_a_sweep_stands_counts_its_own_cells(versions):
    standing = json.loads(cli("status", versions / "out", "--json").out)
    assert standing["counts"] == {"ok": MINE + EF21}
    assert standing["earlier"] == 2 * (MINE + EF21) + MINE
    said = cli("status", versions / "out").out
    assert f"{MINE + EF21} of {MINE + EF21} cells ended" in said
    assert f"{standing['earlier']} cells of earlier versions" in said


def test_all_shows_every_version_as_a_row_of_its_own(versions):
    table = series(versions, "--all")
    assert len(table) == 4 + 2 * 3
    assert (table["seeds"] == 3).all()
    assert table["ok"].sum() == 3 * (MINE + EF21) + MINE
    names = set(table["method"])
    assert "EF21 Top-3 (rounds=20, no stop.grad_norm_sq)" in names
    assert "EF21 Top-3 (rounds=30, stop.grad_norm_sq=1e-09)" in names
    cells = store.cells(versions / "out")
    configs = cells[cells["algorithm"] == "mine"]["config"]
    sources = {json.loads(config)["plugins"][0]["source"][:6] for config in configs}
    assert len(sources) == 2
    assert {f"MINE (rounds=20, no stop.grad_norm_sq, mine {s})" for s in sources} <= names


@pytest.mark.thorough
def test_what_an_exclusion_takes_out_is_left_out_and_an_extension_is_not(versions, tmp_path):
    shutil.copytree(versions, tmp_path / "w")
    sweep(tmp_path / "w", "rounds=30", "seed=0..3", "exclude=[{algorithm: ef21, k: 1}]")
    table = closing_table(tmp_path / "w" / "out", by="series")
    assert sorted(zip(table["method"], table["seeds"])) == [("EF21 Top-3", 4), ("MINE", 4)]


@pytest.mark.thorough
def test_merged_folders_show_what_both_sweeps_plan(versions, tmp_path):
    shutil.copytree(versions, tmp_path / "w")
    sweep(tmp_path / "w", "rounds=25", "algorithm=gd", "step_size={theory: 1}")
    assert len(frames(tmp_path / "w" / "out").cells) == 3
    both = tmp_path / "both"
    assert cli("merge", versions / "out", tmp_path / "w" / "out", "--out", both).code == 0
    result = frames(both)
    assert len(result.cells) == MINE + EF21 + 3
    assert result.left_out == 2 * (MINE + EF21) + MINE
    store.compact(both, tmp_path / "few")
    assert frames(tmp_path / "few").left_out == result.left_out


def test_while_nothing_of_the_new_version_has_ended_the_old_one_is_not_shown(versions, tmp_path):
    shutil.copytree(versions / "out", tmp_path / "w")
    (tmp_path / "w" / "plan" / "cells.json").write_text('["0123456789abcdef"]')
    said = cli("table", tmp_path / "w")
    assert "Traceback" not in said.err
    assert "60 cells of earlier versions" in said.out + said.err
    (tmp_path / "w" / "plan" / "cells.json").write_text('["0123')
    said = cli("table", tmp_path / "w")
    assert (said.code, said.complaints) == (2, 1)
    assert "plan/cells.json" in said.err


def test_runs_show_every_group_and_no_group_twice(tmp_path):
    how = ("run", "--problem", "quadratic:dim=12,clients=3", "--compressor", "top_k:k=3")
    for rounds, seed in ((20, 0), (30, 0), (30, 1)):
        ran(*how, "--rounds", rounds, "--seed", seed, "--out", tmp_path / "r")
    table = closing_table(tmp_path / "r", by="series")
    assert sorted(zip(table["method"], table["seeds"])) == [
        ("EF21 Top-3 (rounds=20)", 1),
        ("EF21 Top-3 (rounds=30)", 2),
    ]
    assert "left out" not in cli("table", tmp_path / "r").out


def test_groups_that_nothing_tells_apart_are_numbered():
    """Such as those of a data file that has changed: only the id knows."""
    runs = [{"g": [1, 0.5, 0.05], "seed": s, "multiple": m} for m in (1.0, 2.0) for s in range(3)]
    old, new = make(runs), make(runs)
    for part in new:
        part["cell"] = part["cell"] + " new"
    old[1]["group"], new[1]["group"] = "b", "a"
    old[1]["started"], new[1]["started"] = (pd.Timestamp(f"2026-01-0{day}") for day in (1, 2))
    cells = describe(pd.concat([new[1], old[1]], ignore_index=True))
    assert set(zip(cells["group"], cells["series"])) == {
        ("b", "EF21 Top-1 (version 1)"),
        ("a", "EF21 Top-1 (version 2)"),
    }
