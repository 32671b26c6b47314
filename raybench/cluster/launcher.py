"""Ray's launcher: what it is given for one launch, and ``ray up``, ``ray down`` and its provider as one program.

A program of its own, because Ray reads its settings when it is loaded, changes signal handlers, and prints much.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from raybench.cluster.file import THERE, ClusterFile
from raybench.cluster.stage import LEASE, TOKEN
from raybench.core.errors import InputError

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_UP_enable_autoscaler_v2": "0",  # with it, a local provider starts no workers
    "PYTHONWARNINGS": "ignore",
}
PROGRAM = """
import json, sys, yaml
from ray.autoscaler import sdk
from ray.autoscaler._private.providers import _get_node_provider
verb, path, facts = *sys.argv[1:], None
if verb == "up":
    config = sdk.create_or_update_cluster(path, no_config_cache=True)
    facts = {"address": sdk.get_head_node_ip(path), "auth": config["auth"]}
elif verb == "down":
    sdk.teardown_cluster(path)
else:
    config = sdk.bootstrap_config(yaml.safe_load(open(path)), no_config_cache=True)
    provider = _get_node_provider(config["provider"], config["cluster_name"])
    facts = [str(node) for node in provider.non_terminated_nodes({})]
print("raybench:" + json.dumps(facts))
"""
CONFIG, STAGE, LOG = "cluster.yaml", "stage", "launcher.log"  # in the folder of a launch
SUBMIT = "-m ray.scripts.scripts job submit --address http://127.0.0.1:8265 --no-wait"
BOOT = """#!/bin/sh
m=$((({deadline} - $(date +%s)) / 60))
[ $m -le {most} ] || m={most}
shutdown --no-wall -h +$((m > 1 ? m : 1))
"""
SSM = "resolve:ssm:"  # in place of an image's id: a name that Amazon's parameter store knows


class LaunchFailed(RuntimeError):
    """Ray's launcher failed; the text is what it said last, and where the rest stands."""


# What it is given ----------------------------------------------------------------------------


def token(cluster: ClusterFile) -> str:
    """Return the command by which what follows shows the launch's token, and is known as the launch's.

    Ray's processes give themselves titles: with SPT_NOENV these do not cover the variables that say whose they are.
    """
    path = f"{cluster.there}/{TOKEN}"
    return f"export SPT_NOENV=1 RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={path}"


def taking(cluster: ClusterFile, launch: str, deadline: float, owner: str) -> str:
    """Return the command by which a host takes its lease; it holds the script, for nothing was copied there yet."""
    script = base64.b64encode(Path(__file__).with_name("lease.sh").read_bytes()).decode()
    kind = "own" if cluster.hosts else "rented"
    words = [launch, str(cluster.lease), str(int(deadline)), kind, owner]
    return (
        f"f=$(mktemp) && echo {script} | base64 -d >$f && sh $f take {shlex.join(words)}; c=$?; rm -f $f; "
        '[ "$c" = 0 ] || exit "$c"'
    )


def render(cluster: ClusterFile, folder: Path, name: str, take: str, deadline: float) -> None:
    """Write the configuration of one launch, whose cluster is called ``name``, into the launch's folder.

    The first command of every node takes its lease, and a machine of Amazon's has one from its first second on. Every
    start of Ray pushes the lease, and asks for the token: without its file it fails, instead of making an open cluster.
    """
    config = deepcopy(dict(cluster.config))
    config["cluster_name"] = name
    mounts = {to: source for to, source in config["file_mounts"].items() if Path(to).name != THERE}
    config["file_mounts"] = {**mounts, cluster.there: str(folder / STAGE)}
    for node in (config, *config["available_node_types"].values()):
        if node is config or node.get("initialization_commands"):
            node["initialization_commands"] = [take, *node["initialization_commands"]]
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        config[key] = [f"{LEASE} push || exit 1; {token(cluster)}; {line}" for line in config[key]]
    serve = f"setsid nohup {LEASE} serve >/dev/null 2>&1 </dev/null & sleep 0.1"
    config["worker_start_ray_commands"].append(serve)
    for node in config["available_node_types"].values():
        _ending_by_itself(cluster, node["node_config"], deadline)
    (folder / CONFIG).write_text(yaml.safe_dump(config, sort_keys=False))


def _ending_by_itself(cluster: ClusterFile, node: dict[str, Any], deadline: float) -> None:
    """Let a cloud's machine end before anybody has reached it, as far as its provider can be told so."""
    provider = cluster.config["provider"]
    if provider["type"] == "aws":
        node["InstanceInitiatedShutdownBehavior"] = "terminate"
        node.setdefault("UserData", BOOT.format(deadline=int(deadline), most=cluster.lease // 60))
        image = str(node.get("ImageId", ""))
        if image.startswith(SSM):
            node["ImageId"] = image_id(image.removeprefix(SSM), cluster.region)
    limit = (node.get("scheduling") or {}).get("maxRunDuration")
    if provider["type"] == "gcp" and limit:
        seconds = max(600, math.ceil(deadline - time.time()))
        node["scheduling"]["maxRunDuration"] = {"seconds": str(seconds)}


def image_id(parameter: str, region: str) -> str:
    """Return the id of the image that a public parameter of Amazon's names: the head, which starts workers, may not ask.

    Raises InputError.
    """
    try:
        import boto3

        client = boto3.client("ssm", region_name=region)
        return str(client.get_parameter(Name=parameter)["Parameter"]["Value"])
    except ImportError as error:
        raise InputError.of("launch", "AWS needs boto3", "pip install boto3") from error
    except Exception as error:  # whatever Amazon's client raises, of many classes
        fix = "name an image: ImageId: ami-..., or see whether `aws sts get-caller-identity` works"
        raise InputError.of("ImageId", f"{parameter}: {error}", fix) from error


# The program ---------------------------------------------------------------------------------


def ray(verb: str, folder: Path) -> Any:
    """Let Ray's launcher work on the cluster of a launch's folder, and return what it knows then.

    ``up`` starts or repairs the cluster, and returns the head's address and how it is reached. ``down`` asks to end it:
    that Ray says so proves nothing. ``alive`` returns the nodes that the provider says are there. Raises LaunchFailed.
    """
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / STAGE / TOKEN)}
    with (folder / LOG).open("ab") as out:
        began = out.tell()
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, verb, str(folder / CONFIG)],
            stdout=out, stderr=out, stdin=subprocess.DEVNULL, env={**os.environ, **QUIET, **token}, check=False,
            preexec_fn=_die_with_parent,
        )  # fmt: skip
    said = (folder / LOG).read_bytes()[began:].decode(errors="replace")
    if done.returncode:
        raise LaunchFailed(f"ray {verb}: {told(said)}\n    all of it: {folder / LOG}")
    return json.loads(said.rsplit("raybench:", 1)[1].splitlines()[0])


def _die_with_parent() -> None:
    """Let this process be killed when its parent is (Linux): an orphaned ``ray up`` would meet the next one."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def told(log: str) -> str:
    """Return what went wrong on a host, out of a log of Ray's launcher: the last words before its first error."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in log.splitlines()]
    first = next((i for i, line in enumerate(lines) if re.search(r"\bERR\b", line)), len(lines))
    noise = re.compile(r"\d{4}-\d\d-\d\d |Shared connection|sent |total size|.*\.bashrc|[<>*+ ]*$")
    words = [line for line in lines[:first] if not noise.match(line)]
    last = [line for line in lines if line]
    return " / ".join(words[-2:] or last[-2:] or ["it said nothing"])
