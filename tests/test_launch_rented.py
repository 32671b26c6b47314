"""Launches onto rented hosts, as far as this machine plays a cloud: results come home, and nothing outlives its launch.

The cloud of cloud_kit starts a host when Ray's launcher or its autoscaler asks; each test ends with none left.
"""

from __future__ import annotations

import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import cloud_kit
import cluster_kit
import far_kit
import psutil
import pytest
from cloud_kit import Cloud
from cluster_kit import wait_for
from far_kit import all_there, called, results_here

from raybench import store
from raybench.cluster.machines import LEASE
from raybench.cluster.states import Launch

WHY_NOT = cluster_kit.missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(WHY_NOT), reason=f"hosts: {WHY_NOT}"),
    pytest.mark.timeout(3000),
]
CLUSTER = """\
cluster_name: bench
provider: {type: external, module: cloud_provider.Provider, url: "URL"}
auth: {ssh_user: ubuntu, ssh_private_key: KEY}
max_workers: WORKERS
idle_timeout_minutes: 5
# what Ray has no defaults of, where the provider is not one of its own
upscaling_speed: 1.0
docker: {}
file_mounts: {/home/ubuntu/raybench-launch/: dist/}
cluster_synced_files: []
file_mounts_sync_continuously: false
rsync_exclude: []
rsync_filter: []
initialization_commands: []
head_setup_commands: []
worker_setup_commands: []
head_node_type: head
available_node_types:
  head: {resources: {CPU: 0}, node_config: {}}
  worker: {min_workers: WORKERS, max_workers: WORKERS, resources: {CPU: 1}, node_config: {}}
metadata:
  idle_minutes: 15
  prices: {as_of: "2026-11-25", currency: USD, per_hour: {"": {head: {list: 1}, worker: {list: 2}}}}
SETUP  - grep -qs venv/bin ~/.bashrc || echo 'export PATH=$HOME/venv/bin:$PATH' >>~/.bashrc
head_start_ray_commands:
  - ~/venv/bin/ray stop
  - export RAY_health_check_period_ms=1000 RAY_health_check_timeout_ms=9000 RAY_health_check_failure_threshold=2;
    ~/venv/bin/ray start --head --port=6379 --dashboard-host=127.0.0.1 --disable-usage-stats
    --object-store-memory=200000000 --autoscaling-config=~/ray_bootstrap_config.yaml
worker_start_ray_commands:
  - ~/venv/bin/ray stop
  - ~/venv/bin/ray start --address=$RAY_HEAD_IP:6379 --disable-usage-stats --object-store-memory=200000000
"""
HOURS = 0.6  # about the least that a launch takes
# Ten batches, which take as long on a busy machine: on the cloud's hosts a batch is idle for a second at each record.
SWEEP = """\
name: far
problem: {name: logistic, dataset: data.libsvm, clients: 4, lambda: 0.1}
algorithm: [ef21, diana]
compressor: [{name: top_k, k: [1, 2]}, {name: rand_k, k: [1, 2, 3, 4]}]
step_size: {theory: 1}
seed: 0..1
rounds: 40
record: {every: 10}
plugins: [idle.py]
evaluate: {metrics: [idle]}
"""
IDLE = """\
import socket
import time

from raybench.plugins import metric


@metric("idle")
def idle(problem, x):
    if socket.gethostname().startswith("rb-rent"):
        time.sleep(1)
    return x[:, 0]
"""
GROUP = """\
name: far
problem: {name: logistic, dataset: data.libsvm, clients: 4, lambda: 0.1}
algorithm: ef21
compressor: {name: top_k, k: [1, 2]}
step_size: {theory: 1}
seed: 3
rounds: 300
record: {every: 100}
resources: {mode: train, workers: 2}
"""
LONG = ("rounds: 40", "rounds: 200")


@dataclass
class Rented:
    """A launch onto the cloud: the folder of its files, and its process."""

    cloud: Cloud
    folder: Path
    run: subprocess.Popen[str]

    def __post_init__(self) -> None:
        self.cloud.clients.append(self)

    @property
    def record(self) -> Launch:
        """What is kept of it."""
        return Launch(self.folder / "results/far")

    @property
    def id(self) -> str:
        """Its id."""
        return str(self.record.order()["id"])

    def hosts(self, kind: str = "", up: bool = True) -> list[str]:
        """The hosts that were rented for it."""
        return self.cloud.of(self.id, kind, up) if self.record.order() else []

    def head(self, command: str, check: bool = False) -> str:
        """Run a command on its head, as root; nothing where there is none."""
        heads = self.hosts("head")
        return self.cloud.on(heads[0], command, check=check) if heads else ""

    def again(self, verb: str, *more: str) -> None:
        """Start another process on it."""
        variables = {"PYTHONPATH": str(self.cloud.provider)}
        self.run = called(self.folder, verb, "results/far", *more, **variables)

    def killed(self) -> None:
        """Kill its process, and see that what that had started ends with it."""
        children = psutil.Process(self.run.pid).children(recursive=True)
        self.run.send_signal(signal.SIGKILL)
        self.run.communicate()
        assert not psutil.wait_procs(children, timeout=30)[1]

    def until(self, true: Callable[[], object], seconds: float = 900) -> None:
        """Wait until a thing is true while its process runs."""
        wait_for(true, self.run, seconds)

    def ended(self, code: int = 0) -> str:
        """Wait for its process, see that it ended so and that no host is left, and return what it said."""
        said, _ = self.run.communicate(timeout=900)
        assert self.run.returncode == code, said
        assert "the provider knows no node of this cluster" in said
        assert self.hosts() == []
        assert self.record.state == "down"
        return said

    def limited(self, seconds: int) -> float:
        """Let its hours end in so many seconds, as a shorter deadline is pushed to a head; return when that is."""
        end = time.time() + seconds
        self.record.amend(deadline=end)
        self.as_user(f"{LEASE} limit {seconds}")
        return end

    def as_user(self, command: str) -> str:
        """Run a command on its head as the user who has the lease, whoever may log in."""
        return self.head(f"su ubuntu -c '{command}'", check=True)

    def shards(self) -> set[str]:
        """The shards of cells on its head."""
        there = self.head(f"ls {self.record.order()['out']}/cells 2>/dev/null").split()
        return set(there) - {"skipped.parquet"}

    @property
    def home(self) -> set[str]:
        """The shards of cells that are home."""
        there = (self.record.results / "cells").glob("*")
        return {path.name for path in there} - {"skipped.parquet"}

    @property
    def job(self) -> str:
        """The folder on its head of what its job tells."""
        order = self.record.order()
        return f"{order['kept']}/{order['job']}"


def files(folder: Path, cluster: str, sweep: str) -> None:
    """Write the files that a user would have; the data have so many features that a message is small beside a point."""
    far_kit.written(folder, cluster, sweep)
    (folder / "idle.py").write_text(IDLE)
    rows = (f"{1 if i % 3 else -1} 1:{i % 11} {100 + 33 * i}:1 2100:{i % 4}" for i in range(60))
    (folder / "data.libsvm").write_text("\n".join(rows) + "\n")


def rented(cloud: Cloud, folder: Path, *more: str, workers: int = 1, sweep: str = SWEEP) -> Rented:
    """Launch a sweep from a folder that has the files that a user would have."""
    text = CLUSTER.replace("SETUP", far_kit.setup(cloud.provider)).replace("URL", cloud.url)
    text = text.replace("KEY", str(cloud.key)).replace("WORKERS", str(workers))
    files(folder, text, sweep)
    words = ("launch", "far.yaml", "--cluster", "cluster.yaml", "--yes", "--max-hours", str(HOURS))
    return Rented(cloud, folder, called(folder, *words, *more, PYTHONPATH=str(cloud.provider)))


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """One cloud for all tests."""
    with cloud_kit.cloud(tmp_path_factory.mktemp("cloud") / "hosts") as running:
        yield running
        for one in running.clients:  # of a test that has failed
            one.run.kill()


@pytest.fixture(scope="module")
def here(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the sweep in one process of this machine."""
    folder = tmp_path_factory.mktemp("here")
    files(folder, "", SWEEP)
    return results_here(folder)


@dataclass
class Fleet:
    """Four launches, two of them at once, and what happens to each when some of its cells are home.

    deserted: its client is killed for good; end: when its hours end. full: the disk of its head is full. limited: its
    client was killed, and attach comes back ten minutes before its hours end; there: the cells on its head. closed: its
    client was killed, and its hours end in less than five minutes.
    """

    deserted: Rented
    full: Rented
    limited: Rented
    closed: Rented
    end: float = 0.0
    there: set[str] = field(default_factory=set)

    def watch(self) -> None:
        """Note the cells on the head of ``limited`` until it has gone."""
        while self.limited.hosts("head"):
            self.there |= self.limited.shards()
            time.sleep(0.3)


@pytest.fixture(scope="module")
def fleet(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """See Fleet."""
    sweep, folder = SWEEP.replace(*LONG), tmp_path_factory.mktemp("fleet")
    begin = partial(rented, cloud, sweep=sweep)
    deserted, full = begin(folder / "deserted"), begin(folder / "full")
    full.until(lambda: full.home)
    full.head("cat /dev/zero >/home/ubuntu/fill; true")
    deserted.until(lambda: deserted.home)
    deserted.killed()
    end = deserted.limited(480)
    closed, limited = begin(folder / "closed"), begin(folder / "limited")
    limited.until(lambda: limited.home)
    limited.killed()
    limited.limited(600)
    limited.again("attach")
    closed.until(lambda: closed.home)
    closed.killed()
    closed.limited(290)
    fleet = Fleet(deserted, full, limited, closed, end)
    threading.Thread(target=fleet.watch).start()
    return fleet


def test_a_module_beside_a_plug_in_is_missed_before_anything_is_rented(
    cloud: Cloud, tmp_path: Path
) -> None:
    """It does not travel, so that the sweep could not be read on the head."""
    (tmp_path / "beside.py").write_text("SCALE = 1.0\n")
    (tmp_path / "mine.py").write_text(f"import beside\n{IDLE}")
    before = len(cloud.nodes)
    one = rented(cloud, tmp_path, sweep=SWEEP.replace("idle.py", "mine.py"))
    said, _ = one.run.communicate(timeout=200)
    assert one.run.returncode == 2, said
    assert "No module named 'beside'" in said
    assert len(cloud.nodes) == before
    assert one.record.state == "down", "there is no launch"


def test_all_is_home_before_logins_close(fleet: Fleet) -> None:
    """The follower stops the sweep nine minutes before the hours are over, and what had ended by then comes home."""
    one = fleet.limited
    said = one.ended(1)
    assert "the hours of this launch are over" in said
    assert fleet.there
    assert fleet.there == one.home
    assert time.time() < one.record.order()["deadline"] - 420 + 60, "before any shutdown"


def test_a_full_disk_on_the_head_ends_the_launch(fleet: Fleet) -> None:
    """What had ended before comes home."""
    one = fleet.full
    said, _ = one.run.communicate(timeout=900)
    assert one.run.returncode not in (0, None), said
    assert "the provider knows no node of this cluster" in said
    assert one.hosts() == []
    assert one.home
    assert not store.Store(one.record.results).repair()


def test_down_ends_a_head_that_lets_nobody_in(fleet: Fleet) -> None:
    """In the last five minutes nobody can log in: what was not fetched before is lost, and the provider ends the hosts."""
    one = fleet.closed
    assert "yes" in one.head("test -e /run/nologin && echo yes; true")
    one.again("down")
    said = one.ended()
    assert "not all results could be fetched" in said
    assert one.home
    assert not store.Store(one.record.results).repair()


def test_a_kept_cluster_takes_a_second_launch_as_it_is(
    cloud: Cloud, here: Path, tmp_path: Path
) -> None:
    """Results are home while it stays; the second launch is offered its prices and hours, and its shorter ones are kept.

    The second sweep has a worker group of both workers: its messages cross the link between them, packed.
    """
    one = rented(cloud, tmp_path, "--keep", workers=2)
    said, _ = one.run.communicate(timeout=900)
    assert one.run.returncode == 0, said
    assert "the cluster stays up until" in said
    all_there(tmp_path, here)
    workers = one.hosts("worker")
    assert len(one.hosts()) == 3
    hosts = set(store.cells(str(one.record.results))["host"].dropna())
    assert hosts == {f"rb-rent-{cloud.nodes[name].k}" for name in workers}
    # what it says of hours and prices is not of the cluster that is up
    text = (tmp_path / "cluster.yaml").read_text()
    (tmp_path / "cluster.yaml").write_text(text.replace("list: 1}", "list: 0.01}"))
    (tmp_path / "far.yaml").write_text(GROUP)
    words = ("launch", "far.yaml", "--cluster", "cluster.yaml", "--yes", "--max-hours")
    left = float(one.as_user(f"{LEASE} left"))
    variables = {"PYTHONPATH": str(cloud.provider)}
    dry = called(tmp_path, *words, "12", "--dry-run", **variables)
    said, _ = dry.communicate(timeout=200)
    hours = float(re.search(r"for (\S+) hours", said)[1])
    assert left / 3600 - 0.02 < hours < HOURS
    assert f"after {hours:.3g} hours" in said
    one.run = called(tmp_path, *words, f"{hours - 0.01:.3f}", **variables)
    ranks = "ps -eo args | grep '[R]ayTrainWorker'; true"
    one.until(lambda: all(cloud.on(name, ranks) for name in workers))
    before = [cloud.crossed(name) for name in workers]
    assert float(one.as_user(f"{LEASE} left")) < left
    one.until(lambda: one.record.reached("fetched"))
    sent = [cloud.crossed(name) - b for name, b in zip(workers, before)]
    print("bytes sent by each worker", sent)
    # unpacked it were 17 kB a client and round: 20 MB
    assert 0.1e6 < min(sent) <= max(sent) < 10e6
    one.ended()
    all_there(tmp_path, others=True)


def test_two_launches_at_once(cloud: Cloud, here: Path, tmp_path: Path) -> None:
    """One is killed at ten moments; the other loses a worker for good, and its head the link for a minute.

    Each has a cluster of its own, brings its own cells home, and ends its cluster alone.
    """
    with ThreadPoolExecutor() as pool:
        both = [
            pool.submit(at_ten_moments, cloud, tmp_path / "killed", here),
            pool.submit(a_worker_and_a_link, cloud, tmp_path / "lost", here),
        ]
    ids = [one.result() for one in both]
    assert ids[0] != ids[1]


def at_ten_moments(cloud: Cloud, folder: Path, here: Path) -> str:
    """Each time the next process goes on from there, with the same head and one job; the last one brings all home."""
    one = rented(cloud, folder)
    chance = random.Random(0)
    done: dict[str, float] = {}
    began = time.monotonic()

    def at(moment: str, true: Callable[[], object], later: float = 0.0) -> None:
        if done:
            one.again("attach")
        one.until(true)
        time.sleep(later)
        one.killed()
        done[moment] = round(time.monotonic() - began)

    at("ordered", lambda: one.record.order() and (one.record.folder / "cluster.yaml").exists())
    at("a head is made", lambda: one.hosts("head"))
    at("it is set up", lambda: one.head("ls /home/ubuntu/.raybench-lease 2>/dev/null"), 3)
    at("Ray starts", lambda: one.head("pgrep -f gcs_server"))
    at("the head is up", lambda: one.record.reached("up"))
    at("the job is there", lambda: one.head(f"cat {one.job}/driver.pid 2>/dev/null"))
    at("it is at work", lambda: one.record.reached("running"))
    at("cells come home", lambda: one.home)
    at("while it follows", lambda: True, chance.uniform(5, 15))
    at("all is home", lambda: one.record.reached("fetched"))
    print(done)
    assert len(done) == 10
    one.again("attach")
    one.ended()
    all_there(folder, here)
    assert len(one.hosts("head", up=False)) == 1
    assert store.cells(str(one.record.results))["attempts"].max() == 1
    return one.id


def a_worker_and_a_link(cloud: Cloud, folder: Path, here: Path) -> str:
    """Another worker is rented in its place; a minute without a link to the head costs nobody anything."""
    one = rented(cloud, folder)
    one.until(lambda: one.home)
    (worker,) = one.hosts("worker")
    cloud.end(worker, "lost")
    began = time.monotonic()
    one.until(lambda: [name for name in one.hosts("worker") if name != worker])
    count = len(one.home)
    one.until(lambda: len(one.home) > count)
    print(f"at work again {time.monotonic() - began:.0f} s after a worker was lost")
    assert one.record.state == "running"
    cloud.cut(one.hosts("head")[0], 60)
    one.ended()
    print(f"at its end {time.monotonic() - began:.0f} s after")
    all_there(folder, here)
    print({n: (cloud.nodes[n].kind, cloud.nodes[n].how) for n in one.hosts(up=False)})
    assert len(one.hosts("head", up=False)) == 1
    return one.id


@pytest.mark.parametrize("moment", [0, 1])
def test_down_ends_what_a_killed_start_has_made(cloud: Cloud, tmp_path: Path, moment: int) -> None:
    """Of a cluster whose ``ray up`` was killed there is no head that is known."""
    one = rented(cloud, tmp_path)
    one.until(lambda: one.hosts("head"))
    time.sleep(random.Random(moment).uniform(8 * moment, 8 * moment + 8))
    one.killed()
    assert not one.record.reached("up")
    one.again("down")
    one.ended()


def test_nothing_outlives_the_hours_of_a_launch(cloud: Cloud, fleet: Fleet) -> None:
    """Nobody came back: Ray on the head ended first, no worker was started in place of another, and all hosts have gone."""
    one = fleet.deserted
    wait_for(lambda: not one.hosts(), None, 600)
    nodes = [cloud.nodes[name] for name in one.hosts(up=False)]
    print([(node.kind, node.how, round(node.ended - fleet.end)) for node in nodes])
    assert len(nodes) == 2
    assert max(node.ended for node in nodes) <= fleet.end + 1
    one.again("attach")
    said, _ = one.run.communicate(timeout=200)
    assert "the provider knows no node of this cluster" in said
