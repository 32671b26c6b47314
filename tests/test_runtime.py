"""The Ray runtime, for real: worker processes, a killed one among them, an interruption, cells that raise."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
from process_kit import gone, python, wait_until

from raybench import spec
from raybench.runtime.driver import drive

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

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
rounds: 12
"""
# Records every coordinate of x. The first worker that evaluates while a file asks for it, once a batch is
# committed, is killed in the midst of its own.
COORDINATES = """
import os, signal
from contextlib import suppress
from pathlib import Path
import torch
from raybench.core.registry import metric

HERE = Path(FOLDER)

for j in range(30):
    metric(f"x_{j}")(lambda problem, x, j=j: x[:, j])

@metric("disturbed")
def disturbed(problem, x):
    if any(HERE.glob("disturbed/cells/*.parquet")) and (x != 0).any():
        with suppress(FileNotFoundError):
            (HERE / "kill").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
    return x[:, 0]
"""
# Holds every batch but the first, until its process is ended.
HELD = """
import time
from pathlib import Path
from raybench.core.registry import metric

HERE = Path(FOLDER)

@metric("held")
def held(problem, x):
    while any(HERE.glob("out/cells/*.parquet")) and not (HERE / "go on").exists():
        (HERE / "held").touch()
        time.sleep(0.05)
    return x[:, 0]
"""
BREAKS = """
import os
from raybench.algorithms.base import algorithm
from raybench.algorithms.gd import GD

@algorithm("gd_that_breaks", up=None)
class Breaks(GD):
    def round(a, net, s, c):
        super().round(net, s, c)
        if (a.gamma.values > 1).any():
            raise RuntimeError("the step is too long for me")

@algorithm("gd_that_dies", up=None)
class Dies(GD):
    def round(a, net, s, c):
        os._exit(1)
"""


def curves(folder: Path) -> pd.DataFrame:
    frame = pd.read_parquet(folder / "curves").sort_values(["cell", "round"])
    frame = frame.drop(columns=[name for name in frame if name.startswith("seconds")])
    return frame.reset_index(drop=True)


def cells(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "cells").sort_values("cell").reset_index(drop=True)


def coordinates(frame: pd.DataFrame) -> np.ndarray:
    """Return x of every recorded round, as columns."""
    return np.array([[dict(extra)[f"x_{j}"] for j in range(30)] for extra in frame["extra"]])


def committed(out: Path) -> dict[str, tuple[int, bytes]]:
    """Return the committed shards with time and content."""
    names = sorted(p for part in ("cells", "curves") for p in (out / part).glob("*.parquet"))
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in names}


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the reference run, in this process, with every coordinate of x recorded."""
    folder = tmp_path_factory.mktemp("inline")
    (folder / "coordinates.py").write_text(COORDINATES.replace("FOLDER", repr(str(folder))))
    assert drive(with_coordinates(folder), folder / "out", inline=True).exit_code == 0
    return folder


def with_coordinates(folder: Path, *sets: str) -> spec.Sweep:
    metrics = ", ".join(["disturbed", *(f"x_{j}" for j in range(30))])
    recorded = f"evaluate={{every: 1, metrics: [{metrics}]}}"
    return spec.load(SWEEP, sets=[recorded, *sets], plugins=[str(folder / "coordinates.py")])


def test_tune_trials_give_what_one_process_gives_though_one_is_killed(
    inline: Path, one_ray: str
) -> None:
    """No message is applied twice: the curves are those of one undisturbed process, bit for bit."""
    (inline / "kill").touch()
    out, sweep = inline / "disturbed", with_coordinates(inline)
    outcome = drive(sweep, out, address=one_ray)
    assert not (inline / "kill").exists(), "no worker was killed"
    frame = cells(out)
    assert outcome.counts["ok"] == len(frame) == len(cells(inline / "out")) == 16
    assert set(frame["mode"]) == {"simulate"}
    assert set(frame["attempts"]) == {1, 2}
    assert frame[frame["attempts"] == 2]["batch"].nunique() == 1, "other batches count a try"
    both = curves(out), curves(inline / "out")
    for one in both:
        one["extra"] = [sorted(pairs) for pairs in one["extra"]]
    pd.testing.assert_frame_equal(*both, check_exact=True)
    before = committed(out)
    # all is done: no Ray is even looked for
    again = drive(sweep, out, address="127.0.0.1:1")
    assert again.counts == outcome.counts
    assert committed(out) == before


def test_two_train_workers_give_what_one_process_gives(
    inline: Path, tmp_path: Path, one_ray: str
) -> None:
    """One group of workers serves batch after batch."""
    # of 5 clients one worker has 3 and the other 2
    group = ("resources.workers=2", "resources.timing=exclusive", "seed=0")
    sweep = with_coordinates(
        inline, *group, "algorithm=[ef21, {name: marina, compressor: natural}]"
    )
    outcome = drive(sweep, tmp_path / "out", address=one_ray)
    frame, trained = cells(tmp_path / "out"), curves(tmp_path / "out")
    assert outcome.counts["ok"] == len(frame) == 4
    assert set(frame["mode"]) == {"train"}
    assert set(frame["workers"]) == {2}
    alone = curves(inline / "out")
    alone = alone[alone.cell.isin(trained.cell)].reset_index(drop=True)
    a, b = coordinates(trained), coordinates(alone)
    assert np.abs(a).max() > 0.1
    np.testing.assert_allclose(a, b, atol=1e-10, rtol=0)
    counts = ["bits_up", "bits_down", "bytes_up", "bytes_down", "values_up", "grad_evals"]
    same = ["cell", "round", *counts]
    pd.testing.assert_frame_equal(trained[same], alone[same], check_exact=True)


def test_ctrl_c_leaves_a_valid_store(tmp_path: Path) -> None:
    """Of a sweep that has started a Ray of its own, by the command line; the same command goes on."""
    out, file = tmp_path / "out", tmp_path / "s.yaml"
    (tmp_path / "held.py").write_text(HELD.replace("FOLDER", repr(str(tmp_path))))
    held = "plugins: held.py\nevaluate: {metrics: [held]}\nresources: {timing: exclusive}\n"
    file.write_text(SWEEP.replace("seed: 0..1", held))
    driver = python("-m", "raybench", "sweep", file, "--out", out, cwd=tmp_path)
    family = []
    try:
        begun = tmp_path / "held"
        wait_until(lambda: begun.exists() or driver.poll() is not None, "no second batch is begun")
        assert begun.exists(), driver.communicate()
        family = psutil.Process(driver.pid).children(recursive=True)
        driver.send_signal(signal.SIGINT)
        _, errors = driver.communicate(timeout=600)
        assert driver.returncode == 130, errors
        assert "interrupted, 7 cells left: the same command goes on" in errors
        assert "Traceback" not in errors
        wait_until(lambda: all(map(gone, family)), "Ray was left running")
        before = committed(out)
        assert len(before) == 2
        (status,) = cells(out).status
        assert status == "ok"
        (tmp_path / "go on").touch()
        outcome = drive(spec.load(file), out, inline=True)
        assert outcome.counts == {"ok": 8, "skipped": 0}
        assert outcome.plan.missing == 7
        assert before.items() <= committed(out).items(), "what had ended was written again"
    finally:
        for process in family:
            if process.is_running():
                process.kill()


def test_cells_that_raise_and_cells_whose_worker_dies_are_failed_rows(
    tmp_path: Path, one_ray: str, capfd: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "breaks.py"
    plugin.write_text(BREAKS)
    text = SWEEP.replace(
        "  - ef21\n",
        "  - {name: gd_that_breaks, step_size: {value: [0.1, 0.2, 3]}}\n"
        "  - {name: gd_that_dies, step_size: {value: 3}}\n",
    )
    sweep = spec.load(text, sets=["attempts=1"], plugins=[str(plugin)])
    outcome = drive(sweep, tmp_path / "out", address=one_ray)
    frame = cells(tmp_path / "out")
    failed = frame[frame.status == "failed"]
    assert outcome.exit_code == 1
    assert outcome.counts == {"ok": len(frame) - 4, "failed": 4, "skipped": 0}
    assert "Traceback" not in capfd.readouterr().err
    raised = failed[failed.algorithm == "gd_that_breaks"]
    assert list(raised.step_size) == [3.0, 3.0]  # one a seed
    assert raised.error.str.contains("too long for me").all()
    died = failed[failed.algorithm == "gd_that_dies"]
    assert died.error.str.startswith("its worker ended 1 time: ").all()
    assert "died" in died.error.iloc[0]
    kept = committed(tmp_path / "out")
    again = drive(sweep, tmp_path / "out", address="127.0.0.1:1")  # not tried again unasked
    assert again.counts == outcome.counts
    assert committed(tmp_path / "out") == kept
