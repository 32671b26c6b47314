"""A sweep that is launched onto hosts of this machine, by the command line, and what must come home of it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import cluster_kit

from raybench import store

LIB = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
SWEEP = textwrap.dedent("""\
    name: far
    problem: {name: logistic, dataset: data.libsvm, clients: 4, lambda: 0.1}
    algorithm: [gd, ef21, diana]
    compressor: [{name: top_k, k: 1}, {name: rand_k, k: [1, 2, 3]}]
    step_size: {theory: [0.5, 1, 2]}
    seed: 0..2
    rounds: ROUNDS
    record: {every: 100}
    """)
# What runs of a launch or of Ray on a host.
RAY = r"ps -eo args | grep -E '[r]aylet/raylet|[g]cs_server|^ray::|[r]aybench-launch|[r]aybench-lease|[d]ashboard' || true"


def setup(*more: Path) -> str:
    """Return the commands that make the environment of a host, which has no way out: it leans on this one for all but
    raybench, which comes by the wheel."""
    sites = "\\n".join([*map(str, more), *cluster_kit.packages()])
    return f"""\
setup_commands:
  - test -x ~/venv/bin/python || {sys.prefix}/bin/python -m venv --without-pip ~/venv
  - printf '{sites}\\n' > ~/venv/{LIB}/leaning.pth
  - {sys.prefix}/bin/python -m pip --python ~/venv/bin/python install -q --no-deps --no-index --force-reinstall
    ~/raybench-launch/raybench-*.whl
  - echo "#!$HOME/venv/bin/python" > ~/venv/bin/ray; chmod +x ~/venv/bin/ray
  - echo "from ray.scripts.scripts import main; main()" >> ~/venv/bin/ray
"""


def written(folder: Path, cluster: str, sweep: str) -> None:
    """Write the files that a user would have: a cluster file, a sweep, its data."""
    folder.mkdir(exist_ok=True)
    (folder / "cluster.yaml").write_text(cluster)
    (folder / "far.yaml").write_text(sweep)
    rows = [
        f"{1 if i % 3 else -1} 1:{(i * 7) % 11} 2:{(i * 5) % 13} 3:{i % 4} 4:{i % 7}"
        for i in range(60)
    ]
    (folder / "data.libsvm").write_text("\n".join(rows) + "\n")


def called(folder: Path, *args: str, **variables: str) -> subprocess.Popen[str]:
    """Start the command line in a folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "raybench", *args], cwd=folder, env={**os.environ, **variables}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def results_here(folder: Path) -> Path:
    """Run the sweep of a folder in one process of this machine, and return where its results are."""
    subprocess.run(
        [sys.executable, "-m", "raybench", "sweep", "far.yaml", "--inline", "--out", "here"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return folder / "here"


def all_there(folder: Path, same: Path | None = None, others: bool = False) -> None:
    """Check that every cell has ended once, and equals what a run here gives; and unless ``others`` no other cell is there."""
    same = same or results_here(folder)
    far, here = store.load(str(folder / "results/far")), store.load(str(same))
    far = far[far["cell"].isin(here["cell"])] if others else far
    columns = ["cell", "round", "bits_up", "bytes_up", "loss", "grad_norm_sq"]
    far, here = (f[columns].sort_values(["cell", "round"], ignore_index=True) for f in (far, here))
    assert len(far) == len(here) > 0
    assert (far[columns[:4]] == here[columns[:4]]).all(axis=None)
    assert abs(far["loss"] / here["loss"] - 1).max() < 1e-9
    cells = store.cells(str(folder / "results/far"))
    assert cells["cell"].is_unique
    assert set(cells["status"]) <= {"ok", "skipped"}
