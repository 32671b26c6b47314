"""Nodes that come and go in mid-sweep: killed, silent as behind a cut link, added. Real node processes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
import pytest
from cluster_kit import write_token

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]
SWEEP = """
name: nodes
problem: {name: logistic, dataset: breast_cancer, clients: 20, regularizer: nonconvex, lambda: 0.1, scale: columns}
algorithm: ef21
compressor: {name: top_k, k: 1..12}
step_size: {theory: [1, 4]}
"""
START = """
import json, os, sys, threading, time
from collections import Counter
from contextlib import suppress
from pathlib import Path
import psutil
from raybench.runtime.session import HEAD_ENVIRONMENT, RAY_ENVIRONMENT
for name, value in {**RAY_ENVIRONMENT, **HEAD_ENVIRONMENT}.items():
    os.environ.setdefault(name, value)
import ray
from ray.cluster_utils import AutoscalingCluster, Cluster
from raybench import spec
from raybench.runtime import progress, ray_backend
from raybench.runtime.driver import drive
sweep, out, how = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
"""
# A head with few CPUs or none, where the driver and the queue are, and nodes with a worker each.
CLUSTER = """
frozen, queues = [], []
shown = ray_backend._progress_shown
ray_backend._progress_shown = lambda ray, queue, *rest: queues.append(queue) or shown(ray, queue, *rest)

def say(text):  # not on sys.stdout, which the driver silences while Tune runs
    print(text, file=sys.__stdout__, flush=True)

def wait(condition):
    while not condition():
        time.sleep(0.05)

def children(node, *titles):
    # The processes of a node's raylet, all of them or those with a title.
    for process in psutil.Process(node.all_processes["raylet"][0].process.pid).children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            if not titles or process.cmdline()[:1] == list(titles):
                yield process

def held():
    return ray.get(queues[0].__ray_call__.remote(lambda queue: len(queue.assignments)))

def freeze(node):
    # The whole node stands still at a moment at which its worker and the other one hold a batch. A worker that is there
    # before the other has started waits for it, frozen: on a busy machine it would have done all the work by then.
    wait(lambda: queues)
    while True:
        workers = [p for each in nodes for p in children(each, "ray::ResourceTrainable.train")]
        if held() == 2:
            frozen[:] = [psutil.Process(node.all_processes["raylet"][0].process.pid), *children(node)]
            for process in frozen:
                process.suspend()
            if held() == 2:  # still: neither has ended in between
                break
            for process in frozen:
                process.resume()
        elif len(workers) == 1 and held() == 1:
            workers[0].suspend()
        time.sleep(0.05)
    for process in workers:
        if process not in frozen:
            process.resume()

def killed(cluster, node):
    freeze(node)
    for process in frozen:
        process.kill()
    cluster.remove_node(node, allow_graceful=False)

def cut_off(cluster, node):
    freeze(node)
    began = time.monotonic()
    wait(lambda: sum(n["Alive"] for n in ray.nodes()) < 3)
    say(f"node given up after {time.monotonic() - began:.1f} s")

def asked():
    groups = ray.util.placement_group_table().values() if ray.is_initialized() else ()
    return [len(g["bundles"]) for g in groups if g["state"] == "PENDING"]

def added(cluster, node):
    wait(lambda: len(asked()) >= int(sys.argv[5]))
    say("asked for " + json.dumps(dict(Counter(asked()))))
    ray._private.utils.set_sigterm_handler = lambda handler: None  # for main threads only
    cluster.add_node(num_cpus=2)
    time.sleep(1000)  # the node's processes end with the thread that has started them

if __name__ == "__main__":
    progress.LINE_EVERY = 0.5
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": int(sys.argv[4])})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(0 if how == "added" else 2)]
    event = globals()[how]
    threading.Thread(target=event, args=(cluster, nodes and nodes[1]), daemon=True).start()
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        outcome = drive(spec.load(sweep), out, address=cluster.address)
        print("done", outcome.exit_code, json.dumps(outcome.counts), flush=True)
        time.sleep(1)
        left = [g for g in ray.util.placement_group_table().values() if g["state"] != "REMOVED"]
        print("still asked for", len(left), flush=True)
    finally:
        for process in frozen:
            process.kill()
        ray.shutdown()
        cluster.shutdown()
"""


# Nodes that Ray's autoscaler starts when a sweep asks for them, and ends when they are idle: processes of this machine
# in the place of rented ones. Ray's test cluster ends all of Ray that it sees when it starts and when it ends: it is run
# where it sees no other process. Its own configuration is not in the wheel, so it stands here.
AUTOSCALED = """
COMMANDS = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")

class Fake(AutoscalingCluster):
    def _generate_config(self, head, workers, autoscaler_v2=False, **more):
        kinds = {**workers, "ray.head.default": {"resources": dict(head), "node_config": {}, "max_workers": 0}}
        # nodes start within a look of the autoscaler: beside it, a slow machine's next look counts those on their way as missing
        provider = (
            "use_node_id_as_ip", "disable_node_updaters", "disable_launch_config_check", "launch_multiple",
            "foreground_node_launch",
        )
        return {
            **{f"{when}_commands": [] for when in COMMANDS}, **{key: {} for key in ("auth", "docker", "file_mounts")},
            **{key: [] for key in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
            "cluster_name": "fake", "max_workers": 8, "idle_timeout_minutes": 0.5, "upscaling_speed": 1.0,
            "file_mounts_sync_continuously": False,
            "provider": {"type": "fake_multinode", **dict.fromkeys(provider, True)},
            "head_node_type": "ray.head.default", "available_node_types": kinds,
        }

def nodes():
    alive = [n["Resources"] for n in ray.nodes() if n["Alive"] and "CPU" in n["Resources"]]
    gpus = sum("GPU" in n for n in alive)
    return len(alive) - gpus, gpus

def watch(until):
    while not until():
        seen.append(nodes())
        time.sleep(0.5)

def running():
    every = [p for p in psutil.process_iter(["status", "name"]) if p.pid not in (1, os.getpid())]
    return [p.info["name"] for p in every if p.info["status"] != psutil.STATUS_ZOMBIE]

if __name__ == "__main__":
    seen, over = [], threading.Event()
    store = {"object_store_memory": 100_000_000}
    kind = {"node_config": {}, "min_workers": 0}
    cluster = Fake({"CPU": 0, **store}, {
        "worker": {**kind, "resources": {"CPU": 1, **store}, "max_workers": 3},
        "gpu": {**kind, "resources": {"CPU": 1, "GPU": 1, **store}, "max_workers": 1},
    })
    cluster.start()
    ray.init(address="auto", log_to_driver=False)
    assert nodes() == (0, 0)
    thread = threading.Thread(target=watch, args=(over.is_set,))
    thread.start()
    outcome = drive(spec.load(sweep), out, address="auto")
    print("done", outcome.exit_code, json.dumps(outcome.counts), flush=True)
    over.set()
    thread.join()
    until = time.monotonic() + 180
    watch(lambda: nodes() == (0, 0) or time.monotonic() > until)
    left = [g for g in ray.util.placement_group_table().values() if g["state"] != "REMOVED"]
    print("still asked for", len(left), flush=True)
    print("nodes", *map(max, zip(*seen)), "and then", *nodes(), flush=True)
    ray.shutdown()
    cluster.shutdown()
    until = time.monotonic() + 20
    while running() and time.monotonic() < until:
        time.sleep(0.2)
    print("processes", running())
"""


def run(
    tmp_path: Path,
    how: str,
    rounds: int,
    more: str = "",
    head: int = 0,
    asked: int = 1,
    **env: str,
) -> tuple[pd.DataFrame, str, str]:
    """Run the sweep while something happens; return its cells and what was said."""
    (tmp_path / "cluster.py").write_text(START + (AUTOSCALED if how == "autoscaled" else CLUSTER))
    (tmp_path / "sweep.yaml").write_text(f"{SWEEP}rounds: {rounds}\n{more}")
    call = [sys.executable, "cluster.py", "sweep.yaml", "out", how, str(head), str(asked)]
    if how == "autoscaled":
        apart = ("unshare", "--pid", "--fork", "--mount-proc", "--net", "--kill-child")
        call = [*apart, "sh", "-c", f"ip link set lo up && {shlex.join(call)}; exit $?"]
    done = subprocess.run(
        call, cwd=tmp_path, capture_output=True, text=True, timeout=560, env={**os.environ, **env}
    )
    assert 'done 0 {"ok": 24' in done.stdout, done.stdout + done.stderr
    frame = pd.read_parquet(tmp_path / "out" / "cells")
    assert frame.cell.is_unique
    sizes = pd.read_parquet(tmp_path / "out" / "curves").groupby("cell").size()
    assert len(sizes) == len(frame) == 24
    assert (sizes == rounds + 1).all()
    assert "still asked for 0" in done.stdout
    return frame, done.stdout, done.stderr


@pytest.mark.parametrize("how", ["killed", "cut_off"])
def test_a_lost_node_costs_the_batch_it_was_at(tmp_path: Path, how: str) -> None:
    # where another node is busy with something else it is not to be given up as well
    patience = {"RAY_health_check_failure_threshold": "60" if how == "killed" else "4"}
    frame, said, told = run(tmp_path, how, 2000, **patience)
    tried = frame[frame.attempts > 1]
    assert set(frame.attempts) == {1, 2}
    assert tried.batch.nunique() == 1, "other batches count a try"
    assert len(tried) == tried.batch_cells.iloc[0] == 2
    if how == "cut_off":
        assert "node given up after" in said
        assert "1 worker silent for 1" in told


@pytest.mark.parametrize("mode", ["simulate", "train"])
def test_what_waits_is_asked_for_and_nodes_that_come_are_used(tmp_path: Path, mode: str) -> None:
    """On too small a cluster an autoscaler sees a request for each batch, or for two groups of workers."""
    if mode == "train":
        train = "resources: {mode: train, workers: 2}\n"
        frame, said, _ = run(tmp_path, "added", 100, train, head=1)
    else:
        frame, said, _ = run(tmp_path, "added", 100, asked=12)
    (line,) = [line for line in said.splitlines() if line.startswith("asked for")]
    result = json.loads(line.removeprefix("asked for "))
    if mode == "train":  # one group more than fits, once the second one's process has started
        assert result in ({"2": 1}, {"2": 2})
    else:
        assert result == {"1": 12}
    assert set(frame.attempts) == {1}


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="needs root for processes of its own"
)
def test_an_autoscaler_starts_nodes_for_a_sweep_and_ends_them_after_it(tmp_path: Path) -> None:
    """From none to as many as there may be and back to none; all cells are there.

    The node with a GPU, that no cell asks for, is started as well once the others are at their most: what ``launch`` says
    of the cost counts it.
    """
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as short:  # sockets have long names
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(write_token(Path(short) / "t"))}
        env |= {"TMPDIR": short, "RAY_TMPDIR": short, "PATH": path}
        env["AUTOSCALER_HEARTBEAT_TIMEOUT_S"] = "300"  # a busy machine starts a node in minutes
        _, said, _ = run(tmp_path, "autoscaled", 2000, **env)
    assert "nodes 3 1 and then 0 0" in said
    assert "processes []" in said
