"""Networks on workers of Ray Train, of which one is killed in mid-run: the run goes on where it was saved."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import network_cases
import pandas as pd
import pytest
import yaml
from process_kit import python, wait_until

import raybench
from raybench.runtime.checkpoints import FOLDER
from raybench.runtime.session import ray_session

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]
ROUNDS, WORKERS = 60, 3
SLOW = """
import os, signal, time
from pathlib import Path
from raybench.core.registry import metric

OWN = Path(OWN_FOLDER)
SEEN = []


@metric("slow")
def slow(problem, x):
    '''Take a while, tell what was evaluated here, and kill this worker if that is asked for.'''
    SEEN.append(1)
    first = problem.clients.start
    with open(OWN / f"evaluated-{first}-{os.getpid()}", "a") as log:
        log.write(".")
    time.sleep(0.03)
    last = problem.clients.stop == problem.n  # of several workers the second
    asked = OWN / "kill"
    if asked.exists() and last and len(SEEN) > 35:
        saved = [p.name for p in OWN.glob("out/checkpoints/*/*") if len(list(p.glob("part-*"))) == 2]
        if saved:
            asked.unlink()
            (OWN / "killed").write_text(str(max(int(name.rpartition("-")[2]) for name in saved)))
            os.kill(os.getpid(), signal.SIGKILL)
    return (x * x).sum(-1)
"""


def sweep_of(folder: Path, name: str, **more: Any) -> dict[str, Any]:
    """Return the sweep of a case, saved every half second, whose evaluations take a while."""
    folder.mkdir(exist_ok=True)
    plugin = folder / "slow.py"
    plugin.write_text(SLOW.replace("OWN_FOLDER", repr(str(folder))))
    entry = {"name": name, **network_cases.CASES[name]}
    return {
        "name": "recovery",
        "problem": network_cases.problem_of(name, folder.parent),
        "algorithm": entry,
        "rounds": ROUNDS,
        "record": {"every": 1},
        "evaluate": {"every": 1, "metrics": ["slow"]},
        "resources": {"mode": "train", "workers": 2},
        "checkpoint": {"every": 0.5},
        "plugins": [str(plugin)],
        **more,
    }


@pytest.fixture(scope="module")
def one_ray() -> Iterator[None]:
    """A Ray that all sweeps of this process share: starting one takes longer than they do."""
    with ray_session(None, WORKERS):
        yield


def ended(folder: Path, sweep: dict[str, Any], **how: Any) -> pd.DataFrame:
    """Run a sweep in its folder and return its curve, all columns but those of seconds."""
    assert raybench.sweep(sweep, folder / "out", **how).counts == {"ok": 1, "skipped": 0}
    assert not (folder / "out" / FOLDER).exists()
    return curve(folder)


def curve(folder: Path) -> pd.DataFrame:
    frame = pd.read_parquet(folder / "out" / "curves").sort_values("round").reset_index(drop=True)
    assert list(frame["round"]) == list(range(ROUNDS + 1))
    frame["extra"] = [sorted(pairs) for pairs in frame["extra"]]
    return frame.drop(columns=[c for c in frame if c.startswith("seconds")])


def evaluations(folder: Path) -> list[int]:
    """Return how many rounds each process that hosted client 0 evaluated, in the order they began."""
    logs = sorted(folder.glob("evaluated-0-*"), key=lambda log: log.stat().st_mtime)
    return [len(log.read_text()) for log in logs]


@pytest.mark.usefixtures("one_ray")
def test_a_killed_worker_s_run_goes_on_from_its_checkpoint(tmp_path):
    """Bit for bit, with memories of messages and running statistics."""
    name = "ef21"
    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"
    want = ended(calm, sweep_of(calm, name))
    sweep = sweep_of(disturbed, name)
    (disturbed / "kill").touch()
    result = ended(disturbed, sweep)
    saved = int((disturbed / "killed").read_text())
    assert saved > 0
    before, after = evaluations(disturbed)
    # a newer checkpoint may have come between the look and the kill
    assert after <= ROUNDS - saved < ROUNDS
    assert before + after < 2 * ROUNDS
    pd.testing.assert_frame_equal(result, want, check_exact=True)
    assert evaluations(calm) == [ROUNDS + 1]


@pytest.mark.usefixtures("one_ray")
def test_a_killed_sweep_goes_on_with_other_workers(tmp_path):
    """The driver is killed, and the same command goes on with three workers in place of two."""
    name = "diloco"
    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"
    # one process, without Ray, never saved
    want = ended(calm, sweep_of(calm, name, resources={}, checkpoint={}), inline=True)
    sweep = sweep_of(disturbed, name)
    file = disturbed / "sweep.yaml"
    file.write_text(yaml.safe_dump(sweep))
    out = disturbed / "out"
    nowhere = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    with python("-m", "raybench", "sweep", file, "--out", out, **nowhere) as driver:
        wait_until(
            lambda: len(list(out.glob(f"{FOLDER}/*/*/part-*"))) > 1 or driver.poll() is not None,
            "nothing was saved",
        )
        assert driver.poll() is None, "it ended before it saved anything"
        driver.kill()
    assert not list((out / "cells").glob("*.parquet"))
    result = ended(disturbed, {**sweep, "resources": {"mode": "train", "workers": WORKERS}})
    before, after = evaluations(disturbed)
    assert before >= 1
    assert after < ROUNDS  # it went on from a checkpoint: from its start it would do ROUNDS + 1
    pair = (frame.drop(columns="extra") for frame in (result, want))
    pd.testing.assert_frame_equal(*pair, rtol=1e-9, atol=1e-12)
