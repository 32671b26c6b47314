"""The Ray runtime, for real: worker processes, kills, interrupts and readers at work during a sweep."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
from process_kit import python

from raybench import spec
from raybench.runtime.driver import drive

pytestmark = [pytest.mark.ray, pytest.mark.timeout(280)]

SWEEP = """
name: runtime
problem: {name: logistic, dataset: breast_cancer, clients: 5, regularizer: nonconvex, lambda: 0.1, scale: columns}
algorithm:
  - ef21
  - {name: ef21_pp, p: 0.5}
  - {name: marina, compressor: [{name: rand_k, k: 3}, natural]}
compressor: {name: top_k, k: 3}
step_size: {theory: [1, 4]}
seed: 0..1
rounds: 30
"""
LONG = """
name: long
problem: {name: logistic, dataset: breast_cancer, clients: 20, regularizer: nonconvex, lambda: 0.1, scale: columns}
algorithm: {name: ef21}
compressor: {name: top_k, k: 1..6}
step_size: {theory: [1, 4]}
rounds: 1000
"""
DRIVER = """
import sys
from raybench import spec
from raybench.runtime.driver import drive
if __name__ == "__main__":
    print("done", drive(spec.load(sys.argv[1]), sys.argv[2]).exit_code, flush=True)
"""
COORDINATES = """
import torch
from raybench.core.registry import metric

for j in range(30):
    metric(f"x_{j}")(lambda problem, x, j=j: x[:, j])
"""
RAISES = """
from raybench.algorithms.base import algorithm, Integer
from raybench.algorithms.gd import GD

@algorithm("gd_that_breaks", up=None)
class Breaks(GD):
    def round(a, net, s, c):
        super().round(net, s, c)
        if (a.gamma.values > 1).any():
            raise RuntimeError("the step is too long for me")
"""


def curves(folder: Path) -> pd.DataFrame:
    frame = pd.read_parquet(folder / "curves")
    return frame.sort_values(["cell", "round"]).reset_index(drop=True)


def untimed(folder: Path) -> pd.DataFrame:
    frame = curves(folder)
    return frame.drop(columns=[name for name in frame if name.startswith("seconds")])


def cells(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "cells").sort_values("cell").reset_index(drop=True)


def coordinates(frame: pd.DataFrame) -> np.ndarray:
    rows = [dict(extra) for extra in frame["extra"] if extra is not None]
    return np.array([[row[f"x_{j}"] for j in range(30)] for row in rows if "x_0" in row])


def start(tmp_path: Path, text: str, out: Path) -> subprocess.Popen[str]:
    """Start a sweep in a driver process of its own."""
    (tmp_path / "driver.py").write_text(DRIVER)
    (tmp_path / "sweep.yaml").write_text(text)
    return python(tmp_path / "driver.py", tmp_path / "sweep.yaml", out)


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)


def committed(out: Path) -> dict[str, tuple[int, bytes]]:
    """Return the committed shards with time and content."""
    names = sorted(p for part in ("cells", "curves") for p in (out / part).glob("*.parquet"))
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in names}


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the reference run, in this process, with every coordinate of x recorded."""
    folder = tmp_path_factory.mktemp("inline")
    (folder / "coordinates.py").write_text(COORDINATES)
    sweep = with_coordinates(folder)
    assert drive(sweep, folder / "out", inline=True).exit_code == 0
    return folder


def with_coordinates(folder: Path, *sets: str) -> spec.Sweep:
    metrics = ", ".join(f"x_{j}" for j in range(30))
    plugin = str(folder / "coordinates.py")
    own = [f"evaluate.metrics=[{metrics}]", *sets]
    return spec.load(SWEEP, sets=own, plugins=[plugin])


def agree(first: Path, second: Path, tolerance: float) -> None:
    one, two = curves(first), curves(second)
    one = one[one.cell.isin(two.cell)]
    assert list(one.cell) == list(two.cell)
    a, b = coordinates(one), coordinates(two)
    assert a.shape[1] == 30
    assert np.abs(a).max() > 0.1
    np.testing.assert_allclose(a, b, atol=tolerance, rtol=0)
    for name in ("bits_up", "bits_down", "bytes_up", "bytes_down", "values_up", "grad_evals"):
        np.testing.assert_array_equal(one[name], two[name])


def test_tune_trials_give_what_one_process_gives(inline: Path, tmp_path: Path) -> None:
    outcome = drive(with_coordinates(inline), tmp_path / "out")
    assert outcome.counts["ok"] == len(cells(inline / "out")) == 16
    agree(inline / "out", tmp_path / "out", 1e-12)
    assert set(cells(tmp_path / "out")["mode"]) == {"simulate"}
    before = committed(tmp_path / "out")
    # all is done: Ray is not even started
    again = drive(with_coordinates(inline), tmp_path / "out")
    assert again.counts == outcome.counts
    assert committed(tmp_path / "out") == before


def test_two_train_workers_give_what_one_process_gives(inline: Path, tmp_path: Path) -> None:
    two = "algorithm=[ef21, {name: marina, compressor: natural}]"  # each starts a group of workers
    sweep = with_coordinates(inline, "resources.workers=2", two)  # 5 clients: 3 and 2
    assert drive(sweep, tmp_path / "out").counts["ok"] == 8
    agree(inline / "out", tmp_path / "out", 1e-10)
    frame = cells(tmp_path / "out")
    assert set(frame["mode"]) == {"train"}
    assert set(frame["workers"]) == {2}


def test_ctrl_c_leaves_a_valid_store(tmp_path: Path) -> None:
    out = tmp_path / "out"
    driver = start(tmp_path, LONG, out)
    family = []
    try:
        wait_for(lambda: len(list((out / "cells").glob("*.parquet"))) >= 1)
        family = psutil.Process(driver.pid).children(recursive=True)
        driver.send_signal(signal.SIGINT)
        said, errors = driver.communicate(timeout=60)
        assert "done 130" in said, errors
        assert "Traceback" not in errors
        done = cells(out)
        assert 1 <= len(done) < 12
        assert set(done.status) == {"ok"}
        assert set(done.cell) <= set(curves(out).cell)
        _, alive = psutil.wait_procs(family, timeout=30)
        assert not alive, "Ray was left running"
        before = committed(out)
        outcome = drive(spec.load(LONG), out, inline=True)
        assert outcome.counts == {"ok": 12, "skipped": 0}
        assert outcome.plan.missing == 12 - len(done)
        finished = {n: f for n, f in before.items() if n.replace("/curves/", "/cells/") in before}
        assert finished.items() <= committed(out).items(), "what had ended was written again"
    finally:
        for process in family:
            if process.is_running():
                process.kill()


def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    driver = start(tmp_path, LONG, out)
    try:
        wait_for(lambda: len(list((out / "cells").glob("*.parquet"))) >= 1)
        family = psutil.Process(driver.pid).children(recursive=True)
        named = {p: " ".join(p.cmdline()) for p in family if p.is_running()}
        workers = [p for p, words in named.items() if "Trainable.train" in words]
        assert workers, "no trial at work"
        os.kill(workers[0].pid, signal.SIGKILL)
        said, errors = driver.communicate(timeout=200)
        assert "done 0" in said, errors
        assert len(cells(out)) == 12
        assert set(cells(out).status) == {"ok"}
        # no message was applied twice: the curves are bit for bit those of one undisturbed process
        assert drive(spec.load(LONG), tmp_path / "whole", inline=True).exit_code == 0
        pd.testing.assert_frame_equal(untimed(out), untimed(tmp_path / "whole"), check_exact=True)
    finally:
        if driver.poll() is None:
            driver.kill()


def test_a_raising_cell_is_one_failed_row(tmp_path: Path) -> None:
    plugin = tmp_path / "breaks.py"
    plugin.write_text(RAISES)
    text = SWEEP.replace(
        "  - ef21\n", "  - {name: gd_that_breaks, step_size: {value: [0.1, 0.2, 3]}}\n"
    )
    sweep = spec.load(text, plugins=[str(plugin)])
    outcome = drive(sweep, tmp_path / "out")
    assert outcome.exit_code == 1
    frame = cells(tmp_path / "out")
    failed = frame[frame.status == "failed"]
    assert set(failed.step_size) == {3.0}
    assert len(failed) == 2  # one a seed
    assert failed.error.str.contains("too long for me").all()
    assert (frame.status == "ok").sum() == len(frame) - 2
    kept = committed(tmp_path / "out")
    assert drive(sweep, tmp_path / "out").counts["failed"] == 2  # not tried again unasked
    assert committed(tmp_path / "out") == kept

    plugin.write_text(textwrap.dedent(RAISES))
    retried = drive(spec.load(text, plugins=[str(plugin)]), tmp_path / "out", retry_failed=True)
    assert retried.plan.missing == 2


def test_fail_fast_stops_and_says_so(tmp_path: Path) -> None:
    plugin = tmp_path / "breaks.py"
    plugin.write_text(RAISES)
    text = LONG.replace("{name: ef21}", "[{name: gd_that_breaks, step_size: {value: 2..9}}, ef21]")
    sweep = spec.load(text, plugins=[str(plugin)])
    outcome = drive(sweep, tmp_path / "out", inline=True, fail_fast=True)
    assert outcome.exit_code == 1
    assert outcome.counts["failed"] == 1
    assert outcome.counts["missing"] >= 7


DIES = RAISES.replace(
    'raise RuntimeError("the step is too long for me")', "__import__('os')._exit(1)"
)


def test_cells_whose_worker_always_dies_end_as_failed_rows(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "dies.py"
    plugin.write_text(DIES)
    text = SWEEP.replace("  - ef21\n", "  - {name: gd_that_breaks, step_size: {value: 3}}\n")
    sweep = spec.load(text, plugins=[str(plugin)], sets=["attempts=1", "seed=0"])
    outcome = drive(sweep, tmp_path / "out")
    frame = cells(tmp_path / "out")
    assert outcome.exit_code == 1
    assert "missing" not in outcome.counts
    failed = frame[frame.status == "failed"]
    assert "gd_that_breaks" in set(failed.algorithm)
    assert failed.error.str.startswith("its worker ended 1 time: ").all()
    assert "died" in failed.error.iloc[0]
    assert "Traceback" not in capfd.readouterr().err
