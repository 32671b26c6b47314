"""The machines of a launch: what travels there, Ray's launcher, which starts and ends them, and the way to them by ssh.

Ray's launcher runs in a program of its own, because Ray reads its settings when it is loaded, changes signal handlers,
and prints much. Files go there, and what a sweep tells and its results come home, by rsync.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import json
import math
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from raybench.cluster.file import THERE, ClusterFile
from raybench.core import yaml
from raybench.core.errors import InputError
from raybench.data import catalogue
from raybench.spec import Sweep
from raybench.spec.values import parted

CONFIG, STAGE, SAID = "cluster.yaml", "stage", "launcher.log"  # in the folder of a launch
TOKEN, PROGRESS, ENDED, PID, LOG = "token", "progress.json", "ended", "driver.pid", "job.log"
LEASE = 'sh "$HOME/.raybench-lease/lease.sh"'
WHEEL = "Wheel-Version: 1.0\nGenerator: raybench\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
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
BOOT = """#!/bin/sh
m=$((({deadline} - $(date +%s)) / 60))
[ $m -le {most} ] || m={most}
shutdown --no-wall -h +$((m > 1 ? m : 1))
"""


# What travels --------------------------------------------------------------------------------------


def gather(folder: Path, sweep: Sweep, words: Sequence[str]) -> None:
    """Fill ``folder`` with all that a host needs; words: with which its job calls ``job.sh``, one beside this file.

    A token that is there stays, else one is made.
    """
    token = (folder / TOKEN).read_text() if (folder / TOKEN).exists() else secrets.token_hex(32)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    (folder / TOKEN).write_text(token)
    (folder / TOKEN).chmod(0o600)  # which it has on the hosts as well
    wheel(folder)
    # drivers and workers must agree on versions; a local part such as +cpu is the machine's
    versions = {one.name: one.version.split("+")[0] for one in metadata.distributions()}
    lines = (f"{name}=={versions[name]}\n" for name in sorted(versions.keys() - {"raybench"}))
    (folder / "constraints.txt").write_text("".join(lines))
    files: dict[Path, str] = {}  # by their paths here, those there
    document = _moved(yaml.parse(sweep.text, "the sweep"), files)
    (folder / "sweep.yaml").write_text(yaml.dump(document))
    (folder / "data").mkdir()
    problems, here = [cell.problem.params for cell in sweep.cells], catalogue.folder().absolute()
    for name in {params.get(key) for params in problems for key in ("dataset", "test_set")}:
        for file in catalogue.files_of(name) if isinstance(name, str) else ():
            files[file] = f"data/{file.absolute().relative_to(here)}"
    for path, place in files.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if path.is_dir() else shutil.copy2)(path, folder / place)
    script = Path(__file__).with_name("job.sh").read_text()
    (folder / "job.sh").write_text(f"set -- {shlex.join(words)}\n{script}")


def _moved(value: Any, files: dict[Path, str]) -> Any:
    """Return a document with every path of this machine in it replaced by one beside it, which ``files`` gets to know.

    ``Sweep.text`` has absolute paths wherever a key names a file that exists, so a text that begins with
    a slash and exists is such a path; ``own.py:function`` is one with a function behind it.
    """
    if isinstance(value, Mapping):
        return {key: _moved(part, files) for key, part in value.items()}
    if isinstance(value, list):
        return [_moved(part, files) for part in value]
    if not isinstance(value, str) or not value.startswith("/"):
        return value
    file, behind = parted(value)
    path = Path(file)
    if not path.exists():
        return value
    files[path] = f"files/{hashlib.sha256(file.encode()).hexdigest()[:8]}/{path.name}"
    return files[path] + behind


def wheel(folder: Path) -> Path:
    """Write a wheel of the raybench that is imported here, installed or a checkout, and return its path.

    It holds the package's files and the metadata of its installation; nothing is built and nothing fetched.
    """
    there = metadata.distribution("raybench")
    package = Path(__file__).parents[1]
    stem = f"raybench-{there.version}"
    info = f"{stem}.dist-info"
    files = {
        f"raybench/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    # beside a checkout lies what its build wrote, where the metadata have their old name
    about = there.read_text("METADATA") or there.read_text("PKG-INFO")
    assert about, "raybench is imported from a folder that no installation knows"
    files[f"{info}/METADATA"] = about.encode()
    files[f"{info}/entry_points.txt"] = (there.read_text("entry_points.txt") or "").encode()
    files[f"{info}/WHEEL"] = WHEEL.encode()
    record = f"{info}/RECORD,,\n"
    target = folder / f"{stem}-py3-none-any.whl"
    # their date is always the same, so that the same files make the same wheel
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(data)}\n"
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), record)
    return target


# What Ray's launcher is given ----------------------------------------------------------------------


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
    take = f"sh $f take {shlex.join(words)}"
    return f"f=$(mktemp) && echo {script} | base64 -d >$f && {take}; c=$?; rm -f $f; (exit $c)"


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
        _tell_provider(cluster, node["node_config"], deadline)
    (folder / CONFIG).write_text(json.dumps(config, indent=1, ensure_ascii=False))  # YAML, too


def _tell_provider(cluster: ClusterFile, node: dict[str, Any], deadline: float) -> None:
    """Let a cloud's machine end before anybody has reached it, as far as its provider can be told so.

    An image of Amazon's that is named by a parameter is named by its id: the head, which starts workers, may not ask.
    Raises InputError.
    """
    provider = cluster.config["provider"]
    if provider["type"] == "aws":
        node["InstanceInitiatedShutdownBehavior"] = "terminate"
        node.setdefault("UserData", BOOT.format(deadline=int(deadline), most=cluster.lease // 60))
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
    limit = (node.get("scheduling") or {}).get("maxRunDuration")
    if provider["type"] == "gcp" and limit:
        seconds = max(600, math.ceil(deadline - time.time()))
        node["scheduling"]["maxRunDuration"] = {"seconds": str(seconds)}


# Ray's launcher -------------------------------------------------------------------------------------


def ray(verb: str, folder: Path) -> Any:
    """Let Ray's launcher work on the cluster of a launch's folder, and return what it knows then.

    ``up`` starts or repairs the cluster, and returns the head's address and how it is reached. ``down`` asks to end it:
    that Ray says so proves nothing. ``list nodes`` returns those that the provider says are there. Raises
    RuntimeError, whose text is what it said last, and where the rest stands.
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


# Hosts by ssh ---------------------------------------------------------------------------------------


class Unreachable(RuntimeError):
    """A host does not answer, or refuses; what ssh said is the text."""


@dataclass(frozen=True)
class Host:
    """A host: its address, and how it is reached from here, as a cluster file says under ``auth``.

    A command runs in a plain shell of the host, which reads no profile. The first key that a host shows is written into
    known_hosts and must not change while the launch lasts: hosts of a cloud are new every time, and their keys are known
    to nobody beforehand.
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
        lines = f"{done.stdout}\n{done.stderr}".splitlines()
        answer = [line.strip() for line in lines if line.strip()]
        # what rsync says last is that it ends
        answer = [line for line in answer if not line.startswith("rsync")] or answer
        text = f"{self.address}: {answer[-1] if answer else f'exit code {done.returncode}'}"
        # of ssh and of rsync where the connection broke or never was; below 0: ssh itself was killed
        silent = done.returncode in {12, 30, 35, 255} or done.returncode < 0
        raise (Unreachable if silent else RuntimeError)(text)


# What a sweep on the head tells, and its results ---------------------------------------------------

OURS = (  # what a launch has sent to has the mark beside it
    "{{ [ ! -e {out}/sweep.yaml ] || [ -e {out}/../launch ] || "
    "{{ echo '{out} holds the sweep.yaml of another launch' >&2; exit 7; }}; }}"
)
# What the head runs before it sends: it pushes the lease, and notes the end of a job that was killed.
LOOK = """\
{lease} push >/dev/null 2>&1
if [ ! -e {job}/{ended} ] && [ -e {job}/{pid} ] && ! kill -0 "$(cat {job}/{pid})" 2>/dev/null; then
  sleep 1; [ -e {job}/{ended} ] || echo 137 >{job}/{ended}
fi
{ours} && rsync"""
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

    That is the progress, and the exit code, None while it runs. out: the folder there, empty where results go
    elsewhere. Files travel into a folder that nobody reads, and appear by a rename, cells last. rsync looks for the end
    of the job first, so that all is there when it is told, and for cells before curves: those of each cell were written
    before it. Raises Unreachable, RuntimeError and OSError.
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
    answers = {}
    for name in (PROGRESS, ENDED):
        with suppress(OSError, ValueError):
            answers[name] = json.loads((spare / name).read_text())
    for part in ORDER if out else ():
        for file in sorted(spare.glob(f"{part}/*")):
            if file.is_file():
                (results / part).mkdir(exist_ok=True)
                file.replace(results / part / file.name)
    shutil.rmtree(spare, ignore_errors=True)
    return answers.get(PROGRESS, {}), answers.get(ENDED)
