"""A launch onto Amazon's machines as far as moto plays Amazon: all that ``ray up`` makes there, and that ``down`` ends it.

Nothing is sent to the addresses that moto invents: ssh, rsync and scp are programs of the test's own, which fail.
"""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from cluster_kit import SWEEP, free_port, wait_for

from raybench.cluster import file, machines
from raybench.core.errors import InputError

boto3 = pytest.importorskip("boto3")
pytest.importorskip("moto.server")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).parent.parent
REGION = "us-west-2"
KNOWN = "/aws/service/ami-amazon-linux-latest/amzn2-ami-hvm-x86_64-gp2"  # to moto
UP = ("pending", "running", "stopping", "stopped")  # states of machines that are not gone


@dataclass
class Amazon:
    """Amazon as moto plays it. env: variables that lead there; calls: what was called of ssh and its like."""

    env: dict[str, str]
    folder: Path

    @property
    def calls(self) -> list[str]:
        """The programs that were called in place of ssh, rsync and scp."""
        log = self.folder / "calls"
        return log.read_text().split() if log.exists() else []

    def client(self, name: str) -> Any:
        """Return a client of one of its services."""
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": REGION}
        return boto3.client(name, endpoint_url=self.env["AWS_ENDPOINT_URL"], **keys)

    def nodes(self, *states: str) -> list[dict[str, Any]]:
        """Return the machines in some states."""
        said = self.client("ec2").describe_instances()["Reservations"]
        return [n for r in said for n in r["Instances"] if n["State"]["Name"] in states]

    def raybench(self, *args: str) -> subprocess.Popen[str]:
        """Start the command line."""
        return subprocess.Popen(
            [sys.executable, "-m", "raybench", *args], cwd=self.folder, env=self.env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    @property
    def asked(self) -> int:
        """How many requests it has had."""
        return (self.folder / "asked").read_text().count(" HTTP/1.1")

    def killed(self, run: subprocess.Popen[str], moment: str) -> None:
        """Kill a command at a moment, and see that what it had started ends with it, a ``ray up`` above all."""
        wait_for(lambda: MOMENTS[moment](self), run, 200)
        children = psutil.Process(run.pid).children(recursive=True)
        run.send_signal(signal.SIGKILL)
        run.wait()
        assert not psutil.wait_procs(children, timeout=30)[1]


MOMENTS: dict[str, Callable[[Amazon], object]] = {
    "made": lambda amazon: amazon.nodes("pending", "running"),
    "trying ssh": lambda amazon: amazon.calls.count("ssh") >= 3,
    "ending": lambda amazon: amazon.nodes("shutting-down", "terminated"),
}


@pytest.fixture
def amazon(tmp_path: Path) -> Iterator[Amazon]:
    """A server of moto's, programs in place of ssh, a home of the test's own, and the shipped file with a known image."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("ssh", "rsync", "scp"):
        (tools / name).write_text(f"#!/bin/sh\necho {name} >>{tmp_path}/calls\nexit 255\n")
        (tools / name).chmod(0o755)
    port = free_port()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "RAY_"))}
    env |= {
        "PATH": f"{tools}:{env['PATH']}", "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"),
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "MOTO_IAM_LOAD_MANAGED_POLICIES": "true",
    }  # fmt: skip
    config = yaml.safe_load((ROOT / "cluster.yaml").read_text())
    for node in config["available_node_types"].values():
        node["node_config"]["ImageId"] = f"resolve:ssm:{KNOWN}"
    # so that a spot node is started without a head that does it
    head = config["available_node_types"]["head"]["node_config"]
    head["InstanceMarketOptions"] = {"MarketType": "spot"}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "far.yaml").write_text(SWEEP)
    with (tmp_path / "asked").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            env=env, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_for(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, server, 60)
        yield Amazon(env, tmp_path)
    finally:
        server.kill()
        server.wait()


def closed_and_ending_by_itself(amazon: Amazon) -> None:
    """Check the head: it is closed by key and group, says whose it is, and ends by itself from its first second on."""
    (head,) = amazon.nodes("pending", "running")
    ec2, node = amazon.client("ec2"), head["InstanceId"]
    tags = {tag["Key"]: tag["Value"] for tag in head["Tags"]}
    assert tags["ray-cluster-name"].startswith("raybench-")
    assert tags["ray-node-type"] == "head"
    assert head["InstanceType"] == "m7i.large"
    assert head["ImageId"].startswith("ami-"), "resolved before ray up: the head may not ask"
    assert head["InstanceLifecycle"] == "spot"
    assert head["IamInstanceProfile"]["Arn"].endswith("ray-autoscaler-v1")
    assert (amazon.folder / f".ssh/{head['KeyName']}.pem").exists()

    def attribute(name: str) -> Any:
        return ec2.describe_instance_attribute(InstanceId=node, Attribute=name)

    behaviour = attribute("instanceInitiatedShutdownBehavior")["InstanceInitiatedShutdownBehavior"]
    assert behaviour["Value"] == "terminate", "shut down is gone, not stopped"
    boot = base64.b64decode(attribute("userData")["UserData"]["Value"]).decode()
    assert "m=15\nshutdown --no-wall -h" in boot.replace("[ $m -le 15 ] || ", ""), (
        "before anybody has reached it"
    )
    groups = ec2.describe_security_groups(GroupIds=[g["GroupId"] for g in head["SecurityGroups"]])
    for rule in groups["SecurityGroups"][0]["IpPermissions"]:
        world = [r["CidrIp"] for r in rule["IpRanges"]]
        assert not world or (rule["FromPort"], rule["ToPort"]) == (22, 22), "no port but ssh"


@pytest.mark.parametrize("moment", ["made", "ending"])
def test_killed_at_any_moment(amazon: Amazon, moment: str) -> None:
    """Whatever was started by then is found by its tags and ended; nothing that was killed goes on in its children."""
    run = amazon.raybench("launch", "far.yaml", "--cluster", "c.yaml", "--yes", "--max-cost", "20")
    if moment == "ending":
        amazon.killed(run, "trying ssh")
        closed_and_ending_by_itself(amazon)
        listed, _ = amazon.raybench("launch", "ls").communicate(timeout=100)
        assert re.search("far +ordered +at most .* USD", listed)
        run = amazon.raybench("down", "results/far")
    amazon.killed(run, moment)
    assert len(amazon.nodes(*UP)) == (moment == "made")
    assert bool(amazon.calls) == (moment == "ending")
    end = amazon.raybench("down", "far")
    said, _ = end.communicate(timeout=600)
    assert end.returncode == 0, said
    assert "the provider knows no node of this cluster" in said
    assert amazon.nodes(*UP) == []
    assert set(amazon.calls) <= {"ssh", "rsync", "scp"}


@pytest.mark.parametrize("requests", [4, 12, 20])
def test_killed_after_any_request(amazon: Amazon, requests: int) -> None:
    """``ray up`` makes a role, a key, a group and a machine one after another: the next ``down`` leaves no machine."""
    run = amazon.raybench("launch", "far.yaml", "--cluster", "c.yaml", "--yes", "--max-cost", "20")
    wait_for(lambda: amazon.asked >= requests, run, 200)
    run.send_signal(signal.SIGKILL)
    run.wait()
    print(f"after {amazon.asked} requests there were", len(amazon.nodes(*UP)))
    end = amazon.raybench("down", "far")
    said, _ = end.communicate(timeout=600)
    assert end.returncode == 0, said
    assert "the provider knows no node of this cluster" in said
    assert amazon.nodes(*UP) == []


def test_what_is_stopped_is_ended(amazon: Amazon) -> None:
    """By hand, or as Ray keeps nodes for the next cluster: Ray lists it no more, and its disk costs."""
    run = amazon.raybench("launch", "far.yaml", "--cluster", "c.yaml", "--yes", "--max-cost", "20")
    amazon.killed(run, "made")
    ids = [node["InstanceId"] for node in amazon.nodes("pending", "running")]
    amazon.client("ec2").stop_instances(InstanceIds=ids)
    assert amazon.nodes("stopped")
    end = amazon.raybench("down", "far")
    said, _ = end.communicate(timeout=600)
    assert end.returncode == 0, said
    assert amazon.nodes(*UP) == []


def test_images_are_looked_up_before_anything_is_started(
    amazon: Amazon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the store of parameters says stands in what Ray is given; a name that it does not know is an error."""
    for name, value in amazon.env.items():
        monkeypatch.setenv(name, value)
    known = amazon.client("ssm").get_parameter(Name=KNOWN)["Parameter"]["Value"]
    cluster = file.read_cluster_file(str(tmp_path / "c.yaml"))
    machines.render(cluster, tmp_path, "c", "true", time.time() + 3600)
    made = yaml.safe_load((tmp_path / "cluster.yaml").read_text())
    nodes = made["available_node_types"].values()
    assert {node["node_config"]["ImageId"] for node in nodes} == {known}
    (tmp_path / "c.yaml").write_text((tmp_path / "c.yaml").read_text().replace(KNOWN, "/aws/no"))
    with pytest.raises(InputError, match="ParameterNotFound"):
        machines.render(
            file.read_cluster_file(str(tmp_path / "c.yaml")), tmp_path, "c", "true", time.time()
        )
