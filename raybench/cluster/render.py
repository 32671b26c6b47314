"""From a cluster file to what Ray's launcher takes for one launch: its name, what it mounts, how Ray is started."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from raybench.cluster.file import ClusterFile
from raybench.cluster.stage import THERE, TOKEN


def folder_there(cluster: ClusterFile) -> str:
    """Return where the stage lies on every host. Absolute: the head hands the path on, and expands no ``~``."""
    return f"{cluster.home}/{THERE}"


def results_there(cluster: ClusterFile, launch: str, sweep: str) -> str:
    """Return where the results of one launch lie on the head: two launches never share a folder."""
    return f"{folder_there(cluster)}-results/{launch}/{sweep}"


def access(cluster: ClusterFile) -> dict[str, str]:
    """Return the variables by which programs on the hosts show the launch's token."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": f"{folder_there(cluster)}/{TOKEN}"}


def rendered(cluster: ClusterFile, name: str, stage: Path, python: str) -> dict[str, Any]:
    """Return the configuration of one launch, whose cluster is called ``name``.

    Every start of Ray asks for the token: without its file it fails, instead of making an open cluster. The last of the
    head's commands starts the switch that ends the cluster.
    """
    config = deepcopy(dict(cluster.config))
    config["cluster_name"] = name
    there = folder_there(cluster)
    mounts: Mapping[str, str] = config.get("file_mounts") or {}
    kept = {to: source for to, source in mounts.items() if Path(to).name != THERE}
    config["file_mounts"] = {**kept, there: str(stage)}
    for kind in ("head", "worker"):
        key = f"{kind}_start_ray_commands"
        given = config.get(key) or _plain_start(kind, python)
        config[key] = [f"{_exports(access(cluster))}; {command}" for command in given]
    log = f"{there}/switch.log"
    config["head_start_ray_commands"].append(
        f"{_exports(access(cluster))}; touch {there}/lease; "
        f"setsid nohup {python} {there}/switch.py >>{log} 2>&1 </dev/null &"
    )
    return config


def _plain_start(kind: str, python: str) -> list[str]:
    """Return how Ray is started where the cluster file does not say."""
    ray = f"{python} -m ray.scripts.scripts"
    if kind == "head":
        start = f"{ray} start --head --port=6379 --dashboard-host=127.0.0.1 --disable-usage-stats"
        start += " --autoscaling-config=~/ray_bootstrap_config.yaml"
    else:
        start = f"{ray} start --address=$RAY_HEAD_IP:6379 --disable-usage-stats"
    return [f"{ray} stop", start]


def _exports(variables: Mapping[str, str]) -> str:
    return "export " + " ".join(f"{name}={value}" for name, value in variables.items())


def python_of(cluster: ClusterFile) -> str:
    """Return the interpreter on the hosts: the one beside the ``ray`` that the head is started with."""
    for command in cluster.config.get("head_start_ray_commands") or ():
        found = re.search(r"([^\s;&|]*/)?ray\s+start\b", str(command))
        if found:
            return f"{found[1]}python" if found[1] else "python3"
    return "python3"
