"""A sweep launched onto two hosts of this machine: it works there, comes home, and nothing is left, whoever dies."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import cluster_kit
import far_kit
import pytest
from cluster_kit import Hosts, wait_for
from far_kit import RAY, SWEEP, all_there, called, results_here, setup

from raybench import store
from raybench.cluster.states import Launch

WHY_NOT = cluster_kit.missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(WHY_NOT), reason=f"hosts: {WHY_NOT}"),
    pytest.mark.timeout(900),
]
MOMENTS = int(os.environ.get("RAYBENCH_MOMENTS", "1"))  # at which the laptop is killed for good
CLUSTER = f"""\
cluster_name: bench
provider: {{type: local, head_ip: HEAD, worker_ips: [WORKER]}}
auth: {{ssh_user: root, ssh_private_key: KEY}}
idle_timeout_minutes: 60
metadata: {{cpus: {{head: 1, worker: 1}}, idle_minutes: 2}}
{setup()}head_start_ray_commands:
  - ~/venv/bin/ray stop
  - export RAY_health_check_period_ms=1000 RAY_health_check_timeout_ms=3000 RAY_health_check_failure_threshold=5;
    ~/venv/bin/ray start --head --port=6379 --num-cpus=1 --dashboard-host=127.0.0.1 --disable-usage-stats
    --object-store-memory=300000000 --autoscaling-config=~/ray_bootstrap_config.yaml
worker_start_ray_commands:
  - ~/venv/bin/ray stop
  - export RAY_gcs_rpc_server_reconnect_timeout_s=5;
    ~/venv/bin/ray start --address=$RAY_HEAD_IP:6379 --num-cpus=1 --disable-usage-stats
    --object-store-memory=300000000
"""
LONG = 10_000  # rounds of the sweep during which the second host joins, or is lost


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two hosts, that each test leaves free: what was set up there is there for the next one. The last one loses one."""
    with cluster_kit.hosts(2, tmp_path_factory.mktemp("bench") / "hosts") as running:
        yield running


@pytest.fixture(scope="module")
def here(bench: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the long sweep in one process of this machine."""
    folder = tmp_path_factory.mktemp("long") / "files"
    written(folder, bench, LONG)
    return results_here(folder)


def written(folder: Path, bench: Hosts, rounds: int, more: str = "") -> None:
    """Write the files that a user would have, for these hosts."""
    text = re.sub(r"\bHEAD\b", bench.address(1), CLUSTER).replace("WORKER", bench.address(2))
    sweep = SWEEP.replace("ROUNDS", str(rounds)) + more
    far_kit.written(folder, text.replace("KEY", str(bench.key)), sweep)


def launch(folder: Path, *more: str) -> subprocess.Popen[str]:
    """Start a launch of the sweep in a folder."""
    return called(folder, "launch", "far.yaml", "--cluster", "cluster.yaml", "--yes", *more)


def free(bench: Hosts, *which: int, results: bool = False) -> None:
    """Check that hosts run nothing of the launch, and hold no secret of it and no results."""
    for k in which:
        assert bench.run(k, RAY) == ""
        there = set(bench.run(k, "ls -A ~").split())
        assert not there & {"raybench-launch", ".raybench-lease", "ray_bootstrap_key.pem"}
        if not results:
            assert bench.run(k, "ls -A ~/raybench-launch-results; true") == ""


def test_a_sweep_without_results_ends_its_cluster(bench: Hosts, tmp_path: Path) -> None:
    """The sweep cannot be read on the head: exit code 2, its words are shown, and nothing stays up."""
    plugin = (Path(__file__).parent.parent / "examples/rand_block.py").read_text()
    plugin += "\nimport socket\nif socket.gethostname()[:7] == 'rb-host':\n    raise OSError('not here')\n"
    (tmp_path / "only_here.py").write_text(plugin)
    written(tmp_path, bench, 100, "plugins: [only_here.py]\n")
    run = launch(tmp_path)
    said, _ = run.communicate(timeout=400)
    assert run.returncode == 2, said
    assert "not here" in said
    assert "no cell has ended well" in said
    free(bench, 1, 2)
    assert Launch(tmp_path / "results/far").state == "down"


@pytest.mark.timeout(1500)
def test_two_launches_after_each_other_share_nothing(
    bench: Hosts, here: Path, tmp_path: Path
) -> None:
    """Both hosts work, a second launch meanwhile is refused, and all comes home; the next one gets its own cells alone.

    The next one has a worker group of both hosts, larger than any: its messages cross the link between them.
    """
    first, second = tmp_path / "first", tmp_path / "second"
    written(first, bench, LONG)
    written(second, bench, 60, "resources: {mode: train, workers: 2}\n")
    text = (second / "far.yaml").read_text().replace("seed: 0..2", "seed: 3")
    (second / "far.yaml").write_text(text.replace("[gd, ef21, diana]", "[gd, ef21]"))
    run = launch(first, "--notify", "cat >said")
    record = Launch(first / "results/far")
    wait_for(lambda: record.order() and (record.folder / "cluster.yaml").exists(), run)
    other = launch(second)  # which plans while the first one starts its cluster
    said, _ = other.communicate(timeout=300)
    assert other.returncode == 2, said
    assert re.search(r"is taken by \S+@\S+, for far", said), said
    said, _ = run.communicate(timeout=800)
    assert run.returncode == 0, said
    assert re.match(r"far: exit code 0, cost nothing, results in \S+", (first / "said").read_text())
    all_there(first, here)
    hosts = set(store.cells(str(first / "results/far"))["host"].dropna())
    assert hosts == {"rb-host-1", "rb-host-2"}
    free(bench, 1, 2)
    assert record.state == "down"
    assert not (record.folder / "stage/token").exists()
    run = launch(second)
    # a rank on each host: whatever they agree on crosses the link
    ranks = "ps -eo args | grep '[R]ayTrainWorker'; true"
    wait_for(lambda: all(bench.run(k, ranks) for k in (1, 2)), run)
    said, _ = run.communicate(timeout=800)
    assert run.returncode == 0, said
    all_there(second)
    cells = store.cells(str(second / "results/far"))
    assert set(cells["seed"].dropna()) == {3}
    free(bench, 1, 2)


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_nobody_comes_back(bench: Hosts, tmp_path: Path, moment: int) -> None:
    """The laptop is killed for good at any moment from the first second of ``ray up`` on.

    When the lease has run out nothing of the launch runs on either host; what ``attach`` brings home later is whole.
    """
    written(tmp_path, bench, 300)
    run = launch(tmp_path)
    record = Launch(tmp_path / "results/far")
    wait_for(lambda: record.order() and (record.folder / "cluster.yaml").exists(), run)
    # of the first 40 s: hosts are set up, Ray is started, the sweep runs, it has ended
    seconds = random.Random(moment).uniform(moment, moment + 1) * 40 / MOMENTS
    time.sleep(seconds)
    run.send_signal(signal.SIGKILL)
    run.wait()
    print(f"killed {seconds:.1f} s after ray up began, in the state {record.state}")
    leased = "test -e ~/.raybench-lease && echo yes; true"
    assert "yes" in bench.run(1, leased) or record.state == "fetched"
    asked = (leased, RAY)
    wait_for(lambda: not any(bench.run(k, a) for k in (1, 2) for a in asked), None, 420)
    free(bench, 1, 2, results=True)
    again = called(tmp_path, "attach", "results/far")
    said, _ = again.communicate(timeout=400)
    assert again.returncode in (0, 137), said
    if again.returncode == 0:
        all_there(tmp_path)
    else:  # it was ended by its lease: what is here is whole, and the same command goes on
        assert not store.Store(tmp_path / "results/far").repair()
    free(bench, 1, 2)


def test_a_killed_launcher_and_a_killed_host(bench: Hosts, here: Path, tmp_path: Path) -> None:
    """The launching process is killed, a worker host vanishes, and attach brings everything home."""
    written(tmp_path, bench, LONG)
    first = launch(tmp_path)
    record = Launch(tmp_path / "results/far")
    wait_for(lambda: record.reached("running") is not None, first)
    out = record.order()["out"]
    wait_for(lambda: bench.run(1, f"ls {out}/cells/ 2>/dev/null; true"), first)
    first.send_signal(signal.SIGKILL)
    first.wait()
    bench.lose(2)
    again = called(tmp_path, "attach", "far")
    said, _ = again.communicate(timeout=800)
    # the sweep itself is whole; of the host that vanished nobody can say what runs there
    all_there(tmp_path, here)
    assert "NOT DOWN" in said
    assert bench.address(2) in said
    assert again.returncode == 1
    free(bench, 1)
    attempts = store.cells(str(tmp_path / "results/far"))["attempts"]
    assert attempts.max() <= 2
