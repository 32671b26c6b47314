"""A worker killed in mid-run and replaced: no message is applied twice, curves are bit for bit the same."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from raybench import spec
from raybench.runtime.driver import drive

pytestmark = [pytest.mark.ray, pytest.mark.timeout(280)]

SWEEP = """
name: lost
problem: {name: logistic, dataset: breast_cancer, clients: 5, regularizer: l2, lambda: 0.1, scale: columns}
algorithm:
  - {name: ef21_pp, p: 0.5, compressor: {name: top_k, k: 3}}
  - {name: pp_marina, clients: 2, compressor: {name: rand_k, k: 3}}
  - {name: scaffold, p: 0.6, tau: 2, step_size: {value: [0.1, 0.2]}}
step_size: {theory: [1, 4]}
seed: 0..1
rounds: 60
evaluate: {metrics: [deadly]}
"""
DEADLY = """
import os, signal
from pathlib import Path
from raybench.core.registry import metric

SEEN = []

@metric("deadly")
def deadly(problem, x):
    SEEN.append(1)
    last = problem.clients.stop == problem.n  # of several workers the second
    marker = Path(MARKER) / f"killed-{problem.clients.start}"
    if last and len(SEEN) == 25 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return (x * x).sum(-1)
"""


def run(folder: Path, name: str, killed: bool, **how: object) -> pd.DataFrame:
    """Return the curves of the sweep, of which a worker is killed in its 25th round, or none."""
    own = folder / name
    own.mkdir()
    if not killed:
        for first in range(5):
            (own / f"killed-{first}").touch()
    plugin = own / "deadly.py"
    plugin.write_text(DEADLY.replace("MARKER", repr(str(own))))
    sets = [f"resources.workers={how.pop('workers')}"] if "workers" in how else []
    sweep = spec.load(SWEEP, plugins=[str(plugin)], sets=sets)
    assert drive(sweep, own / "out", **how).counts == {"ok": 12, "skipped": 0}  # type: ignore[arg-type]
    assert not killed or list(own.glob("killed-*")), "nobody was killed"
    frame = pd.read_parquet(own / "out" / "curves").sort_values(["cell", "round"])
    assert (frame.groupby("cell").size() == 61).all()
    cells = pd.read_parquet(own / "out" / "cells")
    assert cells.cell.is_unique
    assert set(cells.algorithm) == {"ef21_pp", "pp_marina", "scaffold"}
    times = [column for column in frame if column.startswith("seconds")]
    return frame.drop(columns=times).reset_index(drop=True)


@pytest.mark.slow
def test_a_killed_trial_is_done_anew_from_its_start(tmp_path: Path) -> None:
    undisturbed = run(tmp_path, "undisturbed", False, inline=True)
    pd.testing.assert_frame_equal(run(tmp_path, "killed", True), undisturbed, check_exact=True)


@pytest.mark.slow
def test_a_killed_worker_of_two_takes_its_group_along(tmp_path: Path) -> None:
    undisturbed = run(tmp_path, "undisturbed", False, workers=2)
    killed = run(tmp_path, "killed", True, workers=2)
    pd.testing.assert_frame_equal(killed, undisturbed, check_exact=True)
