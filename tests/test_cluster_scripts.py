"""slurm.sh and sky.yaml run for real: two Ray nodes on loopback, a sweep on them, nothing left of either.

Slurm is played by two small scripts, SkyPilot by the variables that it sets.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cli_kit import call
from cluster_kit import free_port, head, wait_for

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "cluster" / "slurm.sh"
VENV = Path(sys.executable).parent.parent
KERNELS = os.environ.get("NUMBA_CACHE_DIR", str(Path.home() / ".cache" / "raybench" / "kernels"))
# Runs a command once a task, as srun does on each node, ends them when it is told to, and keeps a diary.
SRUN = """#!/usr/bin/env bash
tasks=1 line="$*"
while [[ "$1" == --* ]]; do
  case "$1" in --ntasks=*) tasks=${1#*=} ;; esac
  shift
done
echo "$(stat -c %a "$RAY_AUTH_TOKEN_PATH") mode=$RAY_AUTH_MODE cpus=$SRUN_CPUS_PER_TASK $line" >>"$DIARY"
[ "$1" != "${REFUSE:-}" ] || exit 1
pids=()
trap 'kill -TERM "${pids[@]}" 2>/dev/null' TERM
for ((i = 0; i < tasks; i++)); do "$@" & pids+=($!); done
status=0
for pid in "${pids[@]}"; do
  while kill -0 "$pid" 2>/dev/null; do wait "$pid" && status=0 || status=$?; done
done
exit "$status"
"""
SWEEP = """
name: tiny
problem: {name: quadratic, dim: 10, clients: 4}
algorithm: {name: ef21, compressor: {name: top_k, k: [1, 2, 3, 4]}}
step_size: {theory: [1, 2]}
seed: 0..1
rounds: ROUNDS
record: {points: 20}
"""


def mentioning(word: str) -> list[str]:
    """Return the other processes with a word in their command line or environment: Ray's change their titles."""
    result = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            told = word in command or word.encode() in (folder / "environ").read_bytes()
        except OSError:
            continue
        if told and command and int(folder.name) != os.getpid():
            result.append(f"{folder.name} {command[:200]}")
    return result


def vanish(word: str) -> None:
    wait_for(lambda: not mentioning(word), seconds=150)


def at_home(home: Path) -> dict[str, str]:
    """Return this environment with another home, this checkout, and nothing of Ray's or Slurm's."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "SLURM_"))}
    return {**kept, "HOME": str(home), "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": KERNELS}


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a batch script on the first of two nodes."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "srun").write_text(SRUN)
    (tools / "scontrol").write_text('#!/bin/sh\nprintf "node1\\nnode2\\n"\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    number = str(os.getpid())  # a job id that no other run of this test on this machine has
    yield {
        **at_home(tmp_path),
        "PATH": f"{tools}:{os.environ['PATH']}",
        "DIARY": str(tmp_path / "diary"),
        "RAYBENCH_VENV": str(VENV),
        "RAYBENCH_HEAD_IP": "127.0.0.1",
        "SLURM_JOB_ID": number,
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_CPUS_PER_TASK": "1",
    }
    assert not list((tmp_path / ".raybench").glob("*")), "the token is still there"
    assert not Path(f"/tmp/raybench-{number}").exists()
    vanish(str(tmp_path / "diary"))


def sweep_file(folder: Path, rounds: int) -> Path:
    file = folder / "tiny.yaml"
    file.write_text(SWEEP.replace("ROUNDS", str(rounds)))
    return file


def counts(folder: Path) -> dict[str, int]:
    import raybench

    return dict(raybench.load(folder).groupby("status").cell.nunique())


def test_the_batch_script_tells_how_it_is_used(slurm: dict[str, str], tmp_path: Path) -> None:
    done = call(SCRIPT, env=slurm)
    usage = "usage: sbatch cluster/slurm.sh SWEEP.yaml [options of raybench sweep]\n"
    assert (done.returncode, done.stderr) == (2, usage)
    done = call(SCRIPT, "x.yaml", env={**slurm, "RAYBENCH_VENV": str(tmp_path)})
    said = f"no raybench in {tmp_path}: set RAYBENCH_VENV\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_a_head_that_does_not_start_ends_the_job(slurm: dict[str, str]) -> None:
    done = call(SCRIPT, "x.yaml", env={**slurm, "REFUSE": "ray"})
    assert done.returncode == 1
    assert "the head did not start on node1" in done.stderr


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_a_job_whose_time_is_up_can_be_submitted_again(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    command = [SCRIPT, sweep_file(tmp_path, 20_000), "--out", out]
    with log.open("w") as stream:
        work = subprocess.Popen(command, env=slurm, stdout=stream, stderr=stream)
        wait_for(lambda: list(out.glob("cells/*.parquet")), work, 240, log)
        work.send_signal(signal.SIGTERM)  # Slurm's, two minutes before the end
        assert work.wait(timeout=100) in (130, 143), log.read_text()[-3000:]
    assert not list((tmp_path / ".raybench").glob("*"))
    Path(slurm["DIARY"]).unlink()
    done = call(*command, env=slurm)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "2 nodes, 2 CPUs" in done.stdout
    assert counts(out) == {"ok": 16}
    _, first, worker, tidy = Path(slurm["DIARY"]).read_text().splitlines()
    start = "600 mode=token cpus=1 --nodes=1 --ntasks=1 "
    assert first.startswith(start + "--nodelist=node1 ray start --head --block ")
    assert worker.startswith(start + "--ntasks-per-node=1 --exclude=node1 ray start --address=")
    assert tidy.endswith(f"rm -rf /tmp/raybench-{slurm['SLURM_JOB_ID']}")


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path, as Ray puts sockets into it."""
    folder = Path(tempfile.mkdtemp(prefix="rb", dir="/tmp"))
    yield folder
    vanish(str(folder))
    shutil.rmtree(folder)


@pytest.fixture
def neighbour(short: Path) -> Iterator[int]:
    """The port of a Ray on this machine that is not ours, as SkyPilot runs one on each node."""
    flags = ("--include-dashboard=false", "--dashboard-agent-listen-port=0")
    with head(*flags, RAY_AUTH_MODE="disabled", RAY_TMPDIR=str(short)) as port:
        yield port


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_a_task_of_skypilot_beside_its_own_ray(neighbour: int, short: Path, tmp_path: Path) -> None:
    script = yaml.safe_load((ROOT / "cluster" / "sky.yaml").read_text())["run"]
    for port in ("6379", "10011", "8265"):  # those of the file may be taken on this machine
        assert port in script
        script = script.replace(port, str(free_port()))
    if importlib.util.find_spec("grpc") is None:  # else Ray refuses the port of its client
        script = re.sub(r"--ray-client-server-port=\d+", "", script)
    script, ranges = re.subn(r"(--dashboard-agent-listen-port)=\d+ .*\"", r'\1=0"', script)
    assert ranges == 1  # two nodes share one machine here
    (tmp_path / "raybench-venv").symlink_to(VENV)
    (tmp_path / "raybench-launch").mkdir()
    sweep_file(tmp_path / "raybench-launch", 50)
    env = {
        **at_home(tmp_path),
        "SWEEP": "tiny.yaml",
        "RAY_AUTH_TOKEN": "a" * 64,
        "RAY_TMPDIR": str(short / "r"),
        "RAY_gcs_rpc_server_reconnect_timeout_s": "5",  # else a worker waits a minute for its head
        "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1",
        "SKYPILOT_NUM_NODES": "2",
    }
    logs = [tmp_path / "log0", tmp_path / "log1"]
    nodes = []
    try:
        for rank, log in enumerate(logs):
            ranked = {**env, "SKYPILOT_NODE_RANK": str(rank)}
            with log.open("w") as stream:
                streams = {"stdout": stream, "stderr": stream, "start_new_session": True}
                nodes.append(subprocess.Popen(["bash", "-c", script], env=ranked, **streams))
        ends = [node.wait(timeout=250) for node in nodes]
    finally:
        for node in nodes:
            if node.poll() is None:
                os.killpg(node.pid, signal.SIGTERM)
    said = "\n".join(log.read_text()[-3000:] for log in logs)
    assert ends == [0, 0], said
    assert "2 nodes" in logs[0].read_text(), said
    assert counts(tmp_path / "results" / "tiny") == {"ok": 16}
    socket.create_connection(("127.0.0.1", neighbour), timeout=5).close()  # it is there still
    vanish(str(short / "r"))
