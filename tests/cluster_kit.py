"""Clusters on this machine for tests: heads of Ray with or without a token, and hosts in network namespaces.

A host has processes, files and an sshd of its own; it needs root, and the programs of openssh-server, openssh-client,
rsync, iproute2 and util-linux. It sees this machine's system folders, but homes, temporary files, shared memory and
process ids of its own; no way leads out of the bridge that joins the hosts with this machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import cli_kit
import yaml
from cli_kit import call

from raybench.cluster import file
from raybench.cluster.machines import Host, Unreachable

PROGRAMS = ("sshd", "ssh", "ssh-keygen", "rsync", "ip", "unshare", "mount")
INIT = Path(__file__).with_name("host.sh")


CLOUD = yaml.safe_load("""
cluster_name: c
provider: {type: aws, region: us-west-2}
auth: {ssh_user: ubuntu}
max_workers: 4
head_node_type: head
available_node_types:
  head: {resources: {CPU: 0}, node_config: {InstanceType: small}}
  worker: {resources: {}, node_config: {InstanceType: large, InstanceMarketOptions: {MarketType: spot}}, max_workers: 4}
  gpu: {resources: {}, node_config: {InstanceType: gpus}, max_workers: 2}
metadata:
  prices:
    currency: USD
    as_of: "2026-11-01"
    per_hour: {us-west-2: {small: {list: 0.1}, large: {list: 1.0, spot: 0.4}, gpus: {list: 2}}}
  cpus: {large: 16, gpus: 4}
  gpus: {gpus: 1}
""")
SWEEP = "name: far\nproblem: {name: quadratic, clients: 2, dim: 4}\nalgorithm: gd\nstep_size: {theory: 1}\nrounds: 5\n"


def cli(*args: object, cwd: Path) -> cli_kit.Said:
    """Call the command line in a folder."""
    with contextlib.chdir(cwd):
        return cli_kit.cli(*args)


def cluster(folder: Path, **changes: object) -> file.ClusterFile:
    """Return a cloud's cluster file with some keys changed."""
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump({**CLOUD, **changes}))
    return file.read_cluster_file(str(path))


def refused(folder: Path, cluster_file: str, *args: str) -> str:
    """Assert that a launch is refused in a few lines and nothing is written; return what was said."""
    (folder / "c.yaml").write_text(cluster_file)
    (folder / "s.yaml").write_text(SWEEP)
    done = cli("launch", "s.yaml", *args, cwd=folder)
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    assert not (folder / "results/far/cells").exists()
    return done.err


def free_port() -> int:
    """Return a port of the loopback that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def without_token(**more: str) -> dict[str, str]:
    """Return this environment without what it says of tokens, and more variables."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}
    return {**kept, "RAY_USAGE_STATS_ENABLED": "0", **more}


def write_token(file: Path) -> Path:
    """Write a new token that its user alone can read."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(secrets.token_hex(32))
    file.chmod(0o600)
    return file


def wait_for(
    true: Callable[[], object],
    process: subprocess.Popen[Any] | None = None,
    seconds: float = 400,
    log: Path | None = None,
) -> None:
    """Wait until a thing is true, and fail where the process that should make it so has ended: with what it said."""
    until = time.monotonic() + seconds
    while not true():
        if process is not None and process.poll() is not None:
            raise AssertionError(log.read_text()[-3000:] if log else process.communicate()[0])
        assert time.monotonic() < until, log.read_text()[-3000:] if log else "in vain"
        time.sleep(0.1)


@contextmanager
def head(*flags: str, **variables: str) -> Iterator[int]:
    """Yield the port of a running head; all its processes end with it, and no other Ray of this machine."""
    with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as short:  # sockets have long names
        port, log = free_port(), Path(short) / "head.log"
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
        command += [f"--port={port}", "--num-cpus=2", "--object-store-memory=200000000"]
        with log.open("w") as stream:
            streams = {"stdout": stream, "stderr": stream, "start_new_session": True}
            command += [f"--temp-dir={short}/r", *flags]
            process = subprocess.Popen(command, env=without_token(**variables), **streams)
        try:
            wait_for(lambda: "Ray runtime started" in log.read_text(), process, 120, log)
            yield port
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


# Hosts ---------------------------------------------------------------------------------------


def missing() -> str:
    """Return why there can be no such hosts here, empty where there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux"
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    absent = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if absent:
        return f"needs {', '.join(absent)}"
    if importlib.util.find_spec("aiohttp_cors") is None:
        return "needs Ray's job client: pip install 'raybench[cluster]'"
    name = f"rb-{os.getpid()}"
    for add, end in (
        (f"netns add {name}", "netns del"),
        (f"link add {name} type bridge", "link del"),
    ):
        made = call("ip", *add.split())
        if made.returncode:  # a kernel can have namespaces and no bridges
            return f"ip {add}: {made.stderr.strip()}"
        call("ip", *end.split(), name, check=True)
    return ""


class Hosts:
    """Hosts 1, 2 .. with the addresses ``address(k)``; ``key`` is the private key that leads into them.

    space: what names of hosts and links begin with; net: the first three numbers of their addresses. rented: root and
    a user ubuntu log in through PAM, which is told of a shutdown; disk: the size of that user's home.
    """

    space, net, rented, disk = "rb-host", "10.213.7", False, "1g"

    def __init__(self, folder: Path, seen: list[Path]) -> None:
        self.folder = folder
        self.key = folder / "key"
        self.seen = [str(path) for path in seen]
        self.bridge = f"{self.space}-br"
        self._inits: dict[int, subprocess.Popen[bytes]] = {}
        self._turn = os.open(f"/tmp/{self.space}.lock", os.O_RDWR | os.O_CREAT)

    def address(self, k: int) -> str:
        """Return the address of host k."""
        return f"{self.net}.{10 + k}"

    def link(self, k: int) -> str:
        """Return the name of this machine's end of the link of host k."""
        return f"{self.space}-v{k}"

    def open(self) -> None:
        """Make what the hosts hang on, and remove what a killed run has left of its own; one run at a time."""
        self.folder.mkdir(parents=True)
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        for space in re.findall(rf"^{self.space}-\S+", call("ip", "netns").stdout, re.M):
            for pid in call("ip", "netns", "pids", space).stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            ip(f"netns del {space}")
        for link in re.findall(rf"^\d+: ({self.space}-[^@:\s]+)", call("ip", "link").stdout, re.M):
            ip(f"link del {link}", check=False)  # of a pair, the first takes the other along
        call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key, check=True)
        ip(f"link add {self.bridge} type bridge")
        ip(f"addr add {self.net}.1/24 dev {self.bridge}")
        ip(f"link set {self.bridge} up")

    def start(self, k: int) -> None:
        """Start host k."""
        space, root = f"{self.space}-{k}", self.folder / str(k)
        shutil.rmtree(root, ignore_errors=True)  # of one that was lost
        root.mkdir()
        shutil.copy(f"{self.key}.pub", root / "key.pub")
        ip(f"netns add {space}")
        ip(f"link add {self.link(k)} type veth peer name eth0 netns {space}")
        ip(f"link set {self.link(k)} master {self.bridge} up")
        inside = ("link set lo up", f"addr add {self.address(k)}/24 dev eth0", "link set eth0 up")
        # Ray finds its own address by the route to 8.8.8.8
        for words in (*inside, "route add default dev eth0"):
            ip(f"-n {space} {words}")
        clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
        pam = "yes" if self.rented else "no"
        with (self.folder / f"{k}.log").open("wb") as log:
            self._inits[k] = subprocess.Popen(
                ["ip", "netns", "exec", space, "unshare", "--pid", "--fork", "--mount", "--uts", "--ipc",
                 "--kill-child", "bash", str(INIT), str(root), space, pam, self.disk, *self.seen],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean, start_new_session=True,
            )  # fmt: skip

    def wait(self, k: int) -> None:
        """Wait until host k answers."""
        answers = partial(self.run, k, "true; echo yes", check=False)
        wait_for(answers, self._inits[k], 60, self.folder / f"{k}.log")

    def run(self, k: int, command: str, check: bool = True, timeout: float = 60) -> str:
        """Run a command on host k by ssh, and return what it printed; nothing where it fails and need not succeed."""
        host = Host(self.address(k), {"ssh_user": "root", "ssh_private_key": str(self.key)})
        with contextlib.suppress(*[] if check else [Unreachable]):
            return host.run(command, check=check, timeout=timeout)
        return ""

    def lose(self, k: int) -> None:
        """Let host k vanish without notice: its link first, so that no process says good-bye; then all processes."""
        ip(f"link del {self.link(k)}", check=False)
        init = self._inits.pop(k, None)
        if init is not None:
            with contextlib.suppress(ProcessLookupError):  # unshare, which takes its child along
                os.killpg(init.pid, signal.SIGKILL)
            init.wait()
            ip(f"netns del {self.space}-{k}", check=False)

    def stop(self) -> None:
        """End all hosts and remove what they were made of."""
        for k in list(self._inits):
            self.lose(k)
        ip(f"link del {self.bridge}", check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._turn)


def packages() -> list[str]:
    """Return the folders from which this Python has its packages."""
    return [path for path in sys.path if path.endswith("site-packages")]


def seen(*more: Path) -> list[Path]:
    """Return the folders that hosts see: this Python, its packages, and more."""
    places = {Path(sys.prefix), Path(sys.base_prefix)} - {Path("/usr"), Path("/")}
    places |= {
        p for p in (*map(Path, packages()), *more) if not any(p.is_relative_to(s) for s in places)
    }
    return sorted(places)


@contextmanager
def hosts(count: int, folder: Path, *more: Path) -> Iterator[Hosts]:
    """Yield running hosts that see this Python and its packages, and more folders."""
    made = Hosts(folder, seen(*more))
    try:
        made.open()
        for k in range(1, count + 1):
            made.start(k)
        for k in range(1, count + 1):
            made.wait(k)
        yield made
    finally:
        made.stop()


def ip(words: str, check: bool = True) -> None:
    made = call("ip", *words.split())
    assert made.returncode == 0 or not check, f"ip {words}: {made.stderr.strip()}"
