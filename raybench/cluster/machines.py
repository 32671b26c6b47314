"""The machines of a launch: what travels there, Ray's launcher, which starts and ends them, and the way to them by ssh.

Ray's launcher runs in a program of its own, because Ray reads its settings when it is loaded, changes signal handlers,
and prints much. Files go there, and what a sweep tells and its results come home, by rsync.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Container, Mapping, Sequence
from contextlib import closing, suppress
from copy import deepcopy
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

from raybench.cluster.file import STORES, THERE, ClusterFile
from raybench.core.errors import InputError
from raybench.execution import bundle
from raybench.spec import Sweep

CONFIG, STAGE, SAID = "cluster.yaml", "stage", "launcher.log"  # in the folder of a launch
TOKEN, PROGRESS, ENDED, PID, LOG = "token", "progress.json", "ended", "driver.pid", "job.log"
LEASE = 'sh "$HOME/.raybench-lease/lease.sh"'
HOUR = 9999999999  # stands for that at which the head ends, which it writes into what starts its workers
BOOT_MINUTES = 15  # that a cloud's machine has until it takes its lease
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_UP_enable_autoscaler_v2": "0",  # with it, a local provider starts no workers
    "PYTHONWARNINGS": "ignore",
}
PROGRAM = """
import json, sys, yaml
from ray.autoscaler import sdk
from ray.autoscaler._private.providers import _get_node_provider
verb, path = sys.argv[1:]
if verb == "up":
    config = sdk.create_or_update_cluster(path, no_config_cache=True)
    facts = {"address": sdk.get_head_node_ip(path), "auth": config["auth"]}
else:
    if verb == "down": sdk.teardown_cluster(path)
    config = sdk.bootstrap_config(yaml.safe_load(open(path)), no_config_cache=True)
    provider, name = _get_node_provider(config["provider"], config["cluster_name"]), config["cluster_name"]
    nodes = set(provider.non_terminated_nodes({"ray-node-type": "head"} if verb == "list head" else {}))
    if verb != "list head":  # Ray does not list what is stopped, which costs on
        stopped = {
            "aws": lambda: [n.id for n in provider.ec2.instances.filter(Filters=[
                {"Name": "tag:ray-cluster-name", "Values": [name]},
                {"Name": "instance-state-name", "Values": ["stopping", "stopped"]}])],
            "gcp": lambda: [n["name"] for r in provider.resources.values() for n in r.list_instances(is_terminated=True)],
            "azure": lambda: list(provider._get_filtered_nodes({})),
        }.get(config["provider"]["type"], list)()
        nodes.update(stopped)
        if verb == "down": provider.terminate_nodes(stopped)
    facts = [str(node) for node in nodes]
print("raybench:" + json.dumps(facts))
"""
BOOT = f"""#!/bin/sh
cp "$0" /var/lib/cloud/scripts/per-boot/raybench-lease 2>/dev/null
m=$((({HOUR} - $(date +%s)) / 60)); [ $m -le {BOOT_MINUTES} ] || m={BOOT_MINUTES}
shutdown --no-wall -h +$((m > 0 ? m : 0))
"""


def gather(folder: Path, sweep: Sweep, words: Sequence[str]) -> None:
    """Fill ``folder`` with all that a host needs; words: with which its job calls ``job.sh``, one beside this file.

    A token that is there stays, else one is made.
    """
    token = (folder / TOKEN).read_text() if (folder / TOKEN).exists() else secrets.token_hex(32)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    (folder / TOKEN).write_text(token)
    (folder / TOKEN).chmod(0o600)  # which it has on the hosts as well
    bundle.write(folder, sweep)
    script = Path(__file__).with_name("job.sh").read_text()
    (folder / "job.sh").write_text(f"set -- {shlex.join(words)}\n{script}")


def token(cluster: ClusterFile) -> str:
    """Return the command by which what follows shows the launch's token, and is known as the launch's."""
    # SPT_NOENV: the titles that Ray's processes give themselves cover no variables, which say whose they are
    return f"export SPT_NOENV=1 RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={cluster.there}/{TOKEN}"


def taking(cluster: ClusterFile, launch: str, deadline: float, owner: str) -> str:
    """Return the command by which a host takes its lease; it holds the script, for nothing was copied there yet.

    The host counts what is left until the deadline: this machine's clock may be wrong.
    """
    script = base64.b64encode(Path(__file__).with_name("lease.sh").read_bytes()).decode()
    kind, left = "own" if cluster.hosts else "rented", int(deadline - time.time())
    words = shlex.join([launch, str(cluster.lease), str(left), str(HOUR), kind, owner])
    take = f"sh $f take {words}; c=$?; rm -f $f; (exit $c)"
    return f"f=$(mktemp) && echo {script} | base64 -d >$f && {take}"


def render(
    cluster: ClusterFile, folder: Path, name: str, take: str, deadline: float, remote_out: str = ""
) -> None:
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
    tell = f"sed -i s/{HOUR}/$({LEASE} hour)/g ~/ray_bootstrap_config.yaml"
    config["head_start_ray_commands"].insert(0, tell)
    config["worker_start_ray_commands"].append(f"{LEASE} serve")
    if package := STORES.get(remote_out.split("://")[0]):
        install = f"{cluster.python} -m pip install -q -c {cluster.there}/constraints.txt {package}"
        for key in ("head_setup_commands", "worker_setup_commands"):
            config[key] = [*config[key], install]
    if not cluster.hosts:  # what is stopped costs on
        config["provider"]["cache_stopped_nodes"] = False
    for node in config["available_node_types"].values():
        _tell_provider(cluster, node["node_config"], deadline)
    (folder / CONFIG).write_text(json.dumps(config, indent=1, ensure_ascii=False))  # YAML, too


def _tell_provider(cluster: ClusterFile, node: dict[str, Any], deadline: float) -> None:
    """Let a cloud's machine end before anybody has reached it, as far as its provider can be told. Raises InputError."""
    provider = cluster.config["provider"]
    if provider["type"] == "aws":
        node["InstanceInitiatedShutdownBehavior"] = "terminate"
        node.setdefault("UserData", BOOT)
        # by its id: the head, which starts workers, may not ask
        _, named, parameter = str(node.get("ImageId", "")).partition("resolve:ssm:")
        if named:
            try:
                import boto3

                client = boto3.client("ssm", region_name=cluster.region)
                answer = client.get_parameter(Name=parameter)
                node["ImageId"] = str(answer["Parameter"]["Value"])
            except Exception as error:  # no client, or whatever it raises, of many classes
                fix = "is boto3 here, does `aws sts get-caller-identity` work? or name an ami-..."
                raise InputError.of("ImageId", f"{parameter}: {error}", fix) from error
    if provider["type"] == "gcp" and "machineType" in node:
        # without a way out ``ray up`` will fail
        google = HTTPSConnection("compute.googleapis.com", timeout=10)
        with suppress(OSError, TypeError), closing(google):
            google.request("HEAD", "/")
            hour = parsedate_to_datetime(google.getresponse().headers["Date"]).timestamp()
            if abs(time.time() - hour) > 120:
                what = f"this machine's clock is {time.time() - hour:+.0f} s off Google's, which deletes"
                raise InputError.of("--max-hours", f"{what} machines at an hour", "set the clock")
        # the same hour for all that start later, and the same text for a second ``ray up``
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(deadline))
        usual = {k: v for k, v in (node.get("scheduling") or {}).items() if k != "maxRunDuration"}
        more = {"terminationTime": when, "instanceTerminationAction": "DELETE"}
        node["scheduling"] = usual | more


def ray(verb: str, folder: Path) -> Any:
    """Let Ray's launcher work on the cluster of a launch's folder, and return what it knows then.

    ``up`` starts or repairs the cluster, and returns the head's address and how it is reached. ``down`` asks to end it,
    which proves nothing: ``list nodes`` and ``list head`` return those that the provider says are there, stopped ones too.
    Raises RuntimeError with what it said last.
    """
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / STAGE / TOKEN)}
    # it dies with this process (PR_SET_PDEATHSIG): an orphaned ``ray up`` would meet the next one
    die = partial(ctypes.CDLL(None).prctl, 1, signal.SIGKILL) if sys.platform == "linux" else None
    with (folder / SAID).open("ab") as out:
        began = out.tell()
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, verb, str(folder / CONFIG)],
            stdout=out, stderr=out, stdin=subprocess.DEVNULL, env={**os.environ, **QUIET, **token}, check=False,
            preexec_fn=die,
        )  # fmt: skip
    text = (folder / SAID).read_bytes()[began:].decode(errors="replace")
    if done.returncode:
        raise RuntimeError(f"ray {verb}: {told(text)}\n    all of it: {folder / SAID}")
    return json.loads(text.rsplit("raybench:", 1)[1].splitlines()[0])


def told(log: str) -> str:
    """Return what went wrong on a host, out of a log of Ray's launcher: the last words before its first error."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in log.splitlines()]
    first = next((i for i, line in enumerate(lines) if re.search(r"\bERR\b", line)), len(lines))
    noise = re.compile(r"\d{4}-\d\d-\d\d |Shared connection|sent |total size|.*\.bashrc|[<>*+ ]*$")
    words = [line for line in lines[:first] if not noise.match(line)]
    last = [line for line in lines if line]
    return " / ".join(words[-2:] or last[-2:] or ["it said nothing"])


class Unreachable(RuntimeError):
    """A host does not answer, or refuses; what ssh said is the text."""


@dataclass(frozen=True)
class Host:
    """A host: its address, and how it is reached from here, as a cluster file says under ``auth``.

    A command runs in a plain shell of the host, which reads no profile. The first key that a host shows, known to nobody
    beforehand, is written into known_hosts and must not change while the launch lasts.
    """

    address: str
    auth: Mapping[str, Any]
    known_hosts: str = "/dev/null"

    @property
    def login(self) -> str:
        """``user@address``."""
        return f"{self.auth.get('ssh_user', 'root')}@{self.address}"

    def ssh(self) -> list[str]:
        """Return the command line of ssh up to the login."""
        words = ["BatchMode=yes", "ConnectTimeout=10", "LogLevel=ERROR"]
        words += ["ServerAliveInterval=5", "ServerAliveCountMax=4"]
        words += ["StrictHostKeyChecking=accept-new", f"UserKnownHostsFile={self.known_hosts}"]
        if proxy := self.auth.get("ssh_proxy_command"):
            words.append(f"ProxyCommand={proxy}")
        key = os.path.expanduser(self.auth.get("ssh_private_key", ""))
        identity = ["-i", key, "-o", "IdentitiesOnly=yes"] if key else []
        return ["ssh", *identity, *(f"-o{word}" for word in words)]

    def run(self, command: str, *, timeout: float = 120, check: bool = True) -> str:
        """Run a command on the host and return what it printed.

        Raises Unreachable where ssh fails, and RuntimeError where ``check`` and the command does.
        """
        well = {0} if check else range(255)
        return self._call([*self.ssh(), self.login, command], well, timeout)

    def rsync(self, *words: str) -> None:
        """Call rsync with ssh as for this host. Raises Unreachable and RuntimeError as ``run`` does."""
        # paths on the host are for rsync alone, so that no shell of the host reads them
        call = ["rsync", "--protect-args", "--timeout=60", "-e", shlex.join(self.ssh()), *words]
        self._call(call, {0, 24})  # 24: a file went away meanwhile

    def _call(self, words: list[str], well: Container[int], timeout: float | None = None) -> str:
        """Call a program that reaches the host; well: its exit codes where it went well."""
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise Unreachable(f"{self.address}: no answer within {error.timeout:g} s") from error
        if done.returncode in well:
            return done.stdout
        answer = list(filter(None, map(str.strip, f"{done.stdout}\n{done.stderr}".splitlines())))
        # what rsync says last is that it ends
        answer = [line for line in answer if not line.startswith("rsync")] or answer
        text = f"{self.address}: {answer[-1] if answer else f'exit code {done.returncode}'}"
        # of ssh and of rsync where the connection broke or never was; below 0: ssh itself was killed
        silent = done.returncode in {12, 30, 35, 255} or done.returncode < 0
        raise (Unreachable if silent else RuntimeError)(text)


OURS = (  # what a launch has sent to has the mark beside it
    "{{ [ ! -e {out}/sweep.yaml ] || [ -e {out}/../launch ] || "
    "{{ echo '{out} holds the sweep.yaml of another launch' >&2; exit 7; }}; }}"
)
OVER = "grep -qs '[0-9]' {job}/{ended}"
# What the head runs before it sends: it pushes the lease, and notes the end of a job that was killed.
LOOK = f"""\
{{lease}} push >/dev/null 2>&1
if ! {OVER} && [ -e {{job}}/{{pid}} ] && ! kill -0 "$(cat {{job}}/{{pid}})" 2>/dev/null; then
  sleep 1; {OVER} || printf '%-4s\\n' 137 1<>{{job}}/{{ended}}
fi
{{ours}} && rsync"""
# What stays here: the sweep's text has paths of each machine, and the locks are each machine's own.
APART = ("/sweep.yaml", "/plan/lock*", "/launch", "/tmp")
ORDER = ("plan", "weights", "curves", "cells")  # of commits: cells are what makes a shard count


def send(host: Host, results: Path, out: str) -> None:
    """Copy what the folder here holds already to the head, whose driver then goes on from it.

    Raises RuntimeError where the head's folder holds a sweep of somebody else.
    """
    host.run(f"{OURS.format(out=out)} && mkdir -p {out} && touch {out}/../launch")
    left_out = (f"--exclude={name}" for name in APART)
    host.rsync("-a", *left_out, f"{results}/", f"{host.login}:{out}/")


def fetch(host: Host, results: Path, job: str, out: str) -> tuple[dict[str, Any], int | None]:
    """Copy what is new on the head into the folder here, and return what a job's folder there tells of it.

    That is the progress, and the exit code, None while it runs. out: the folder there, empty where results go elsewhere.
    Files travel into a folder that nobody reads, and appear by a rename, cells last. rsync looks for the end of the job
    first, and for cells before curves: what is told is there. Raises Unreachable, RuntimeError and OSError.
    """
    spare = results / "tmp"
    shutil.rmtree(spare, ignore_errors=True)
    spare.mkdir(parents=True)
    ours = OURS.format(out=out) if out else "true"
    look = LOOK.format(lease=LEASE, job=job, ended=ENDED, pid=PID, ours=ours)
    there = [f"{job}/{ENDED}", f"{job}/{PROGRESS}"]
    there += [f"{out}/{part}" for part in reversed(ORDER) if out]
    host.rsync(
        "-rt", "--ignore-missing-args", "--no-inc-recursive", "--modify-window=-1",
        f"--compare-dest={results.absolute()}", "--exclude=.*", "--exclude=lock*", f"--rsync-path={look}",
        *(f"{host.login}:{path}" for path in there), f"{spare}/",
    )  # fmt: skip
    progress, code = {}, ended(spare)
    with suppress(OSError, ValueError):
        progress = json.loads((spare / PROGRESS).read_text())
    for part in ORDER if out else ():
        for file in sorted(spare.glob(f"{part}/*")):
            if file.is_file():
                (results / part).mkdir(exist_ok=True)
                file.replace(results / part / file.name)
    shutil.rmtree(spare, ignore_errors=True)
    return progress, code


def ended(folder: Path) -> int | None:
    """Return the exit code of a job that tells of itself in this folder, None while it runs; a full disk is an end."""
    with suppress(OSError):
        text = (folder / ENDED).read_text().strip()
        return None if text == "null" else int(text) if text.isdecimal() else 137
    return None
