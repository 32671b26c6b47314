"""The cluster files satisfy Ray, KubeRay, SkyPilot and the clouds, and are closed; slurm.sh and sky.yaml run."""

from __future__ import annotations

import datetime
import importlib.util
import json
import math
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from cli_kit import call
from cluster_kit import free_port, wait_for

from raybench.cluster import file
from raybench.cluster.states import ending
from raybench.runtime.session import HEAD_ENVIRONMENT

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent
UP = ["cluster.yaml", "cluster/gcp.yaml", "cluster/azure.yaml", "cluster/local.yaml"]  # `ray up`
CLOUDS = UP[:3]
OTHERS = ["cluster/kuberay.yaml", "cluster/slurm.sh", "cluster/sky.yaml"]
SCRIPTS = ["cluster/slurm.sh", "raybench/cluster/lease.sh", "raybench/cluster/job.sh"]
SPOT = {"head": False, "worker": True, "gpu": True}
HEALTH = HEAD_ENVIRONMENT  # worst case: threshold * (period + timeout)


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


def kuberay(kind: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((ROOT / "cluster/kuberay.yaml").read_text())
    return next(document for document in documents if document["kind"] == kind)


def health(text: str) -> dict[str, str]:
    """Return the settings by which a head gives up a silent node."""
    return dict(re.findall(r"(RAY_health_check_\w+)=(\d+)", text))


def test_every_file_is_tested_and_described() -> None:
    there = {file.relative_to(ROOT).as_posix() for file in (ROOT / "cluster").iterdir()}
    assert there == {*UP[1:], *OTHERS}
    page = (ROOT / "docs" / "cluster.md").read_text()
    missing = [name for name in [*UP, *OTHERS] if f"](../{name})" not in page]
    assert not missing, f"docs/cluster.md has no walk-through of {missing}"
    assert len(page.split()) <= 1500, (
        "one page that a person can follow, and half a page on the lease"
    )
    for name in UP:  # in the words of the offer and of `launch ls`
        one = ending(read(name)["provider"]["type"])
        assert re.search(
            rf"`{name}`[^|]* \| {re.escape(one.by)} \| {re.escape(one.limit)} \|", page
        )


@pytest.mark.parametrize("name", CLOUDS)
def test_the_dashboard_is_for_the_head_alone_where_a_file_leaves_the_start_to_ray(
    name: str, tmp_path: Path
) -> None:
    given = {k: v for k, v in read(name).items() if not k.endswith("start_ray_commands")}
    (tmp_path / "bare.yaml").write_text(yaml.safe_dump(given))
    start = "\n".join(
        file.read_cluster_file(str(tmp_path / "bare.yaml")).config["head_start_ray_commands"]
    )
    assert "--dashboard-host=127.0.0.1" in start
    assert "0.0.0.0" not in start


@pytest.mark.parametrize("name", UP)
def test_ray_and_the_launcher_take_the_file(name: str) -> None:
    """A wheel and the token are mounted, never the checkout; every start asks for the token and opens no port."""
    given, launched = read(name), file.read_cluster_file(str(ROOT / name))
    types = launched.config["available_node_types"]
    assert all(node["min_workers"] <= node["max_workers"] for node in types.values())
    assert launched.nodes[0].name == "head"
    assert len(launched.nodes) > 1
    assert all(math.isfinite(node.cpus) for node in launched.nodes)
    assert not launched.unpriced
    there = f"/home/{given['auth']['ssh_user']}/raybench-launch/"
    assert given["file_mounts"] == {there: "dist/"}
    assert list(launched.config["file_mounts"]) == [there]
    (start,) = (c for c in given["head_start_ray_commands"] if " start " in c)
    (join,) = (c for c in given["worker_start_ray_commands"] if " start " in c)
    for command in (start, join):
        token = "RAY_AUTH_TOKEN_PATH=$HOME/raybench-launch/token"
        assert command.startswith(f"export RAY_AUTH_MODE=token {token}")
        assert re.search(r"(~/\S+)/bin/ray start ", command), "with a path: `ray` may be off PATH"
    assert "--dashboard-host=127.0.0.1" in start
    assert "--autoscaling-config=~/ray_bootstrap_config.yaml" in start
    assert not re.search(r"0\.0\.0\.0|--ray-client-server-port|RAY_AUTH_TOKEN=", str(given))
    assert health(start) == HEALTH
    if name == "cluster/local.yaml":
        (node,) = types.values()
        assert node["min_workers"] == len(given["provider"]["worker_ips"]), "all are started"


@pytest.mark.parametrize("name", CLOUDS)
def test_a_head_on_demand_and_spot_workers_with_bounds_and_dated_prices(name: str) -> None:
    given = read(name)
    types, prices = given["available_node_types"], given["metadata"]["prices"]
    assert given["head_node_type"] == "head"
    assert types["head"]["resources"] == {"CPU": 0}
    assert types["gpu"]["min_workers"] == 0, "a GPU costs nothing until a sweep asks for one"
    assert 0 < given["idle_timeout_minutes"] <= 10
    assert given["max_workers"] >= max(types[t]["max_workers"] for t in ("worker", "gpu"))
    assert given["provider"]["cache_stopped_nodes"] is False, "stopped nodes cost disk"
    assert set(prices) == {"currency", "as_of", "per_hour"}
    assert prices["currency"] == "USD"
    assert datetime.date.fromisoformat(prices["as_of"]) <= datetime.datetime.now().date()
    launched = file.read_cluster_file(str(ROOT / name))
    assert list(prices["per_hour"]) == [launched.region]
    assert set(prices["per_hour"][launched.region]) == {node.machine for node in launched.nodes}
    assert {node.name: node.spot for node in launched.nodes} == SPOT
    for node in launched.nodes:
        assert 0 < node.price < node.listed < 1e3 or not node.spot


def test_a_silent_node_is_given_up_after_twenty_seconds_everywhere() -> None:
    period, timeout, threshold = (int(HEALTH[key]) for key in HEALTH)
    assert threshold * (period + timeout) == 20_000
    assert health((ROOT / "cluster/slurm.sh").read_text()) == HEALTH
    assert health(read("cluster/sky.yaml")["run"]) == HEALTH
    head = kuberay("RayJob")["spec"]["rayClusterSpec"]["headGroupSpec"]
    (container,) = head["template"]["spec"]["containers"]
    assert {setting["name"]: setting["value"] for setting in container["env"]} == HEALTH


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("name", UP)
def test_set_up_closes_the_token_and_installs_the_newest_wheel(
    name: str, gpu: bool, tmp_path: Path
) -> None:
    """The commands themselves, run by bash in a home of their own; only pip is a stand-in.

    A node without a GPU gets the build of torch for CPUs.
    """
    given = read(name)
    venv = re.search(r"~/(\S+)/bin/ray start", given["head_start_ray_commands"][1])[1]
    for folder in (f"{venv}/bin", "raybench-launch", "tools"):
        (tmp_path / folder).mkdir(parents=True)
    token = tmp_path / "raybench-launch" / "token"
    token.write_text("secret")
    token.chmod(0o644)
    for number, version in enumerate(["0.2.0", "0.1.0"]):
        file = tmp_path / "raybench-launch" / f"raybench-{version}-py3-none-any.whl"
        file.touch()
        os.utime(file, (1000 - number, 1000 - number))
    for tool in (f"{venv}/bin/python", f"{venv}/bin/pip", *["tools/nvidia-smi"] * gpu):
        stand_in = tmp_path / tool
        stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@" >> ~/called\n')
        stand_in.chmod(0o755)
    home = {"HOME": str(tmp_path), "PATH": f"{tmp_path}/tools:/usr/bin:/bin"}
    home["TORCH_CPU"] = "--extra-index-url URL"
    if not gpu and call("bash", "-c", "command -v nvidia-smi", env=home).returncode == 0:
        pytest.skip("this machine has a GPU")
    for _ in range(2):  # a second `ray up` runs them again
        for command in given["setup_commands"]:
            call("bash", "-c", command, env=home, check=True)
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert (tmp_path / ".bashrc").read_text() == f"export PATH=$HOME/{venv}/bin:$PATH\n"
    there = f"{tmp_path}/raybench-launch"
    words = ["install", "--quiet", "--constraint", f"{there}/constraints.txt"]
    words += [] if gpu else ["--extra-index-url", "URL"]
    words += [f"{there}/raybench-0.2.0-py3-none-any.whl[cluster]"]
    assert (tmp_path / "called").read_text().split() == 2 * words


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Refuse unknown fields, as the description of a type leaves them out."""
    is_type = isinstance(schema.get("properties"), dict)
    return {"additionalProperties": False, **schema} if is_type else schema


def test_kuberay_takes_the_job() -> None:
    text = (Path(__file__).parent / "rayjob_schema.json").read_text()
    check = jsonschema.Draft7Validator(json.loads(text, object_hook=closed))
    misspelt = kuberay("RayJob")
    check.validate(misspelt)
    assert "KubeRay operator 1.6 or newer" in (ROOT / "cluster/kuberay.yaml").read_text()
    misspelt["spec"]["rayClusterSpec"]["authOption"] = {"mode": "token"}
    with pytest.raises(jsonschema.ValidationError):
        check.validate(misspelt)


def test_the_job_on_kubernetes_ends_asks_for_the_token_and_is_fenced_in() -> None:
    spec = kuberay("RayJob")["spec"]
    cluster = spec["rayClusterSpec"]
    assert spec["shutdownAfterJobFinishes"] is True
    assert 0 < spec["ttlSecondsAfterFinished"] <= 3600
    assert 0 < spec["activeDeadlineSeconds"] <= 86_400
    assert cluster["authOptions"] == {"mode": "token", "secretName": "raybench-token"}
    constraints = (ROOT / "constraints.txt").read_text()
    assert f"ray=={cluster['rayVersion']}\n" in constraints, "the version of the pinned Ray"
    assert cluster["enableInTreeAutoscaling"] is True
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        (container,) = group["template"]["spec"]["containers"]
        assert container["image"].startswith(f"rayproject/ray:{cluster['rayVersion']}-")
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert container["command"][0].endswith("|| exit 1"), "or Ray starts all the same"
    policy = kuberay("NetworkPolicy")["spec"]
    fenced = policy["podSelector"]["matchLabels"]
    assert all(fenced == group["template"]["metadata"]["labels"] for group in groups)
    assert policy["policyTypes"] == ["Ingress"]
    for rule in policy["ingress"]:
        same = [{"podSelector": {"matchLabels": fenced}}]
        assert rule["from"] == same or rule["ports"] == [{"protocol": "TCP", "port": 8265}]


def test_skypilot_takes_the_task() -> None:
    task = read("cluster/sky.yaml")
    keys = "name num_nodes resources envs secrets file_mounts setup run"
    assert set(task) == set(keys.split())
    assert task["num_nodes"] >= 2
    assert task["resources"]["autostop"]["down"] is True
    assert "ports" not in task["resources"], "SkyPilot would open them to the world"
    assert task["secrets"] == {"RAY_AUTH_TOKEN": None}, "given at launch, never written down"
    for script in (task["setup"], task["run"]):
        call("bash", "-n", input=script, check=True)
        assert "ray stop" not in script, "it would end SkyPilot's own Ray"
    assert not re.search(r"\b(6380|8266)\b", task["run"]), "those are the ports of SkyPilot's Ray"
    assert "--dashboard-host=127.0.0.1" in task["run"]


@pytest.mark.parametrize("name", [*SCRIPTS, ".ci/run"])
def test_shell_scripts_are_clean(name: str) -> None:
    done = call(Path(sys.executable).with_name("shellcheck"), ROOT / name)
    assert done.returncode == 0, done.stdout


def test_the_batch_script_is_sound() -> None:
    script = ROOT / "cluster" / "slurm.sh"
    assert os.access(script, os.X_OK)
    lines = script.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    last = max(i for i, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert last < first, "sbatch reads settings up to the first command only"
    assert "#SBATCH --signal=B:TERM@120" in lines
    assert "ray stop" not in script.read_text(), "it would end another job's Ray on a shared node"


# What the clouds say of their interfaces, and an emulated EC2 ------------------------------------


def test_azure_parameters_are_those_of_rays_template() -> None:
    import ray.autoscaler._private as private

    template = Path(private.__path__[0]) / "_azure" / "azure-vm-template.json"
    declared = json.loads(template.read_text())["parameters"]
    python = {"string": str, "int": int, "object": dict, "bool": bool}
    for kind, node in read("cluster/azure.yaml")["available_node_types"].items():
        given = dict(node["node_config"]["azure_arm_parameters"])
        assert given.pop("availability_zone") in ("auto", "none")  # Ray's own, beside the template
        for name, value in given.items():
            assert name in declared, f"{kind}: {name}"
            assert isinstance(value, python[declared[name]["type"]]), f"{kind}: {name}"


def test_google_deletes_every_machine_after_hours_and_on_preemption() -> None:
    given = read("cluster/gcp.yaml")
    region = given["provider"]["region"]
    for node in given["available_node_types"].values():
        scheduling = node["node_config"]["scheduling"]
        assert scheduling["instanceTerminationAction"] == "DELETE"
        assert 0 < int(scheduling["maxRunDuration"]["seconds"]) <= 86_400
        assert node["node_config"]["tags"] == {"items": ["raybench"]}, "what the firewall goes by"
        (interface,) = node["node_config"]["networkInterfaces"]
        assert interface["subnetwork"].endswith(f"regions/{region}/subnetworks/raybench")
    assert given["provider"]["availability_zone"].startswith(f"{region}-")


def test_ec2_takes_the_nodes() -> None:
    """Every field against Amazon's own description of RunInstances, where its client is installed."""
    session = pytest.importorskip("botocore.session").get_session()
    validator = pytest.importorskip("botocore.validate").ParamValidator()
    shape = session.get_service_model("ec2").operation_model("RunInstances").input_shape
    for kind, node in read("cluster.yaml")["available_node_types"].items():
        given = {**node["node_config"], "MinCount": 1, "MaxCount": 1}
        report = validator.validate(given, shape)
        assert not report.has_errors(), f"{kind}: {report.generate_report()}"
        assert given["MetadataOptions"] == {"HttpTokens": "required"}
        assert given["InstanceInitiatedShutdownBehavior"] == "terminate"


# slurm.sh and sky.yaml run for real ---------------------------------------------------------------


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
def test_a_job_whose_time_is_up_keeps_what_has_ended(slurm: dict[str, str], tmp_path: Path) -> None:
    """That the same command goes on from there ``tests/test_runtime.py`` shows."""
    out, log = tmp_path / "out", tmp_path / "log"
    command = [SCRIPT, sweep_file(tmp_path, 20_000), "--out", out]
    with log.open("w") as stream:
        work = subprocess.Popen(command, env=slurm, stdout=stream, stderr=stream)
        wait_for(lambda: list(out.glob("cells/*.parquet")), work, 240, log)
        work.send_signal(signal.SIGTERM)  # Slurm's, two minutes before the end
        assert work.wait(timeout=100) in (130, 143), log.read_text()[-3000:]
    assert "2 nodes, 2 CPUs" in log.read_text()
    assert 0 < counts(out)["ok"] < 16
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


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_a_task_of_skypilot(short: Path, tmp_path: Path) -> None:
    """That it leaves SkyPilot's own Ray alone its ports show, and that nothing calls ``ray stop``."""
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
    vanish(str(short / "r"))
