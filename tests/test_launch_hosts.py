"""A sweep launched onto two hosts of this machine: it works there, comes home, and nothing is left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import cluster_kit
import pytest
from cluster_kit import Hosts

from raybench import store
from raybench.cluster.states import Launch

WHY_NOT = cluster_kit.missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(WHY_NOT), reason=f"hosts: {WHY_NOT}"),
    pytest.mark.timeout(900),
]
SITE = f"{sys.prefix}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
# The hosts have no way out, so their environments lean on this one for all but raybench, which comes by the wheel.
CLUSTER = f"""\
cluster_name: bench
provider: {{type: local, head_ip: HEAD, worker_ips: [WORKER]}}
auth: {{ssh_user: root, ssh_private_key: KEY}}
idle_timeout_minutes: 60
metadata: {{cpus: {{head: 1, worker: 1}}, idle_minutes: IDLE}}
setup_commands:
  - test -x ~/venv/bin/python || {sys.prefix}/bin/python -m venv --without-pip ~/venv
  - echo {SITE} > ~/venv/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages/leaning.pth
  - {sys.prefix}/bin/python -m pip --python ~/venv/bin/python install -q --no-deps --no-index --force-reinstall
    ~/raybench-launch/raybench-*.whl
  - sed "1c \\#!$HOME/venv/bin/python" {sys.prefix}/bin/ray > ~/venv/bin/ray; chmod +x ~/venv/bin/ray
head_start_ray_commands:
  - ~/venv/bin/ray stop
  - export RAY_health_check_period_ms=1000 RAY_health_check_timeout_ms=3000 RAY_health_check_failure_threshold=5;
    ~/venv/bin/ray start --head --port=6379 --num-cpus=1 --dashboard-host=127.0.0.1 --disable-usage-stats
    --object-store-memory=300000000 --autoscaling-config=~/ray_bootstrap_config.yaml
worker_start_ray_commands:
  - ~/venv/bin/ray stop
  - ~/venv/bin/ray start --address=$RAY_HEAD_IP:6379 --num-cpus=1 --disable-usage-stats
    --object-store-memory=300000000
"""
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


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Hosts]:
    """Two hosts, a cluster file of them, and a sweep with data of its own, in the working directory."""
    with cluster_kit.hosts(2, tmp_path / "hosts") as running:
        yield running


def written(folder: Path, bench: Hosts, rounds: int, idle: float = 30.0) -> None:
    """Write the files that a user would have."""
    text = CLUSTER.replace("HEAD", bench.address(1)).replace("WORKER", bench.address(2))
    text = text.replace("RAY_" + bench.address(1), "RAY_HEAD").replace("KEY", str(bench.key))
    (folder / "cluster.yaml").write_text(text.replace("IDLE", str(idle)))
    (folder / "far.yaml").write_text(SWEEP.replace("ROUNDS", str(rounds)))
    rows = [
        f"{1 if i % 3 else -1} 1:{(i * 7) % 11} 2:{(i * 5) % 13} 3:{i % 4} 4:{i % 7}"
        for i in range(60)
    ]
    (folder / "data.libsvm").write_text("\n".join(rows) + "\n")


def launched(folder: Path, *args: str) -> subprocess.Popen[str]:
    """Start the command line in a folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "raybench", *args],
        cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def all_there(folder: Path) -> None:
    """Check that every cell has ended once, and equals what a run here gives."""
    subprocess.run(
        [sys.executable, "-m", "raybench", "sweep", "far.yaml", "--inline", "--out", "here"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    far, here = store.load(str(folder / "results/far")), store.load(str(folder / "here"))
    columns = ["cell", "round", "bits_up", "bytes_up", "loss", "grad_norm_sq"]
    far, here = (f[columns].sort_values(["cell", "round"], ignore_index=True) for f in (far, here))
    assert len(far) == len(here) > 0
    assert (far[columns[:4]] == here[columns[:4]]).all(axis=None)
    assert abs(far["loss"] / here["loss"] - 1).max() < 1e-9
    cells = store.cells(str(folder / "results/far"))
    assert cells["cell"].is_unique
    assert set(cells["status"]) <= {"ok", "skipped"}


def free(bench: Hosts, *which: int) -> None:
    """Check that hosts run nothing of Ray's, and that nothing secret lies there."""
    for k in which:
        said = bench.run(
            k, "ps -eo args | grep -E 'raylet|gcs_server|ray::' | grep -v grep; ls -a ~; true"
        ).stdout
        assert "raylet" not in said
        assert "gcs_server" not in said
        assert "bootstrap_key" not in said
        assert "raybench-launch" not in said.split()


def test_both_hosts_work_and_nothing_is_left(bench: Hosts, tmp_path: Path) -> None:
    """Launch: both hosts work, the results come home, both are down."""
    written(tmp_path, bench, 12000)  # long enough for the second host to join
    run = launched(tmp_path, "launch", "far.yaml", "--cluster", "cluster.yaml", "--yes")
    said, _ = run.communicate(timeout=800)
    assert run.returncode == 0, said
    all_there(tmp_path)
    hosts = set(store.cells(str(tmp_path / "results/far"))["host"].dropna())
    assert hosts == {"rb-host-1", "rb-host-2"}
    free(bench, 1, 2)
    launch = Launch(tmp_path / "results/far")
    assert launch.state == "down"
    assert not (launch.place("stage") / "token").exists()


def test_a_killed_launcher_and_a_killed_host(bench: Hosts, tmp_path: Path) -> None:
    """The launching process is killed, a worker host vanishes, and attach brings everything home."""
    written(tmp_path, bench, 20000)
    first = launched(tmp_path, "launch", "far.yaml", "--cluster", "cluster.yaml", "--yes")
    launch = Launch(tmp_path / "results/far")
    wait_for(lambda: launch.reached("running") is not None, first)
    wait_for(lambda: '"ok": 0' not in progress(bench, launch), first)
    first.send_signal(signal.SIGKILL)
    first.wait()
    bench.lose(2)
    again = launched(tmp_path, "attach", "results/far")
    said, _ = again.communicate(timeout=800)
    # the sweep itself is whole; of the host that vanished nobody can say what runs there
    all_there(tmp_path)
    assert "NOT DOWN" in said
    assert bench.address(2) in said
    assert again.returncode == 1
    free(bench, 1)
    attempts = store.cells(str(tmp_path / "results/far"))["attempts"]
    assert attempts.max() <= 2


def test_the_switch_ends_what_nobody_looks_after(bench: Hosts, tmp_path: Path) -> None:
    """The launcher is killed and never comes back: when the sweep has ended, the cluster ends by itself."""
    written(tmp_path, bench, 300, idle=0.5)
    run = launched(tmp_path, "launch", "far.yaml", "--cluster", "cluster.yaml", "--yes")
    launch = Launch(tmp_path / "results/far")
    wait_for(lambda: launch.reached("submitted") is not None, run)
    run.send_signal(signal.SIGKILL)
    run.wait()
    # the launcher's connection ends with it, when it is next told something: nobody reads that
    until = time.monotonic() + 400
    while time.monotonic() < until:
        busy = bench.run(1, "pgrep -f '[r]aylet/raylet|[g]cs_server'; true").stdout.split()
        busy += bench.run(2, "pgrep -f '[r]aylet/raylet'; true").stdout.split()
        # Ray goes first, token and key a moment later: over it is when the switch itself has ended.
        busy += bench.run(1, "pgrep -f '[s]witch.py'; true").stdout.split()
        if not busy:
            break
        time.sleep(3)
    assert not busy
    left = bench.run(1, "cat raybench-launch/switch.log; ls -a ~ raybench-launch").stdout
    assert "ending the cluster" in left
    assert "token" not in left.split()
    assert "ray_bootstrap_key.pem" not in left.split()


def progress(bench: Hosts, launch: Launch) -> str:
    """Return what the sweep on the head tells of its progress."""
    job = json.loads(launch.place("order.json").read_text())["job"]
    return bench.run(
        1, f"cat raybench-launch/{job}/progress.json 2>/dev/null || echo '\"ok\": 0'"
    ).stdout


def wait_for(true: object, process: subprocess.Popen[str], seconds: float = 500) -> None:
    """Wait until a thing is true, and fail where the process that should make it so has ended."""
    until = time.monotonic() + seconds
    while not true():  # type: ignore[compressor]
        if process.poll() is not None:
            raise AssertionError(process.communicate()[0])
        assert time.monotonic() < until, "in vain"
        time.sleep(0.3)
