"""The lease as a state machine (docs/cluster.md): hosts, a provider, Ray and clients, driven at random under a fake clock.

``lease.sh``, ``job.sh``, what a machine runs at its first boot, the commands that ``render`` writes, and ``LaunchSteps`` are
the real ones; of a host its clock, ``shutdown``, ``systemctl`` and processes are played.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from raybench import spec
from raybench.cluster import file, machines, states, steps
from raybench.cluster.machines import ENDED, LOOK, Host, Unreachable
from raybench.cluster.states import Launch
from raybench.cluster.steps import LaunchSteps

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]

SWEEP = "name: far\nproblem: {name: quadratic, clients: 2, dim: 4}\nalgorithm: gd\nstep_size: {theory: 1}\nrounds: 5\n"
CLUSTER = {
    "cluster_name": "c",
    "provider": {"type": "aws", "region": "us-west-2"},
    "auth": {"ssh_user": "ubuntu"},
    "head_node_type": "head",
    "available_node_types": {
        "head": {"resources": {"CPU": 0}, "node_config": {}},
        "worker": {"resources": {"CPU": 1}, "node_config": {}, "min_workers": 1, "max_workers": 1},
    },
    "head_start_ray_commands": ["true"],
    "worker_start_ray_commands": ["true"],
}
CLOSED = 300  # seconds before a shutdown from which systemd lets nobody in but root
TOOLS = {  # of a host; its files are in $CTL, which no full disk touches
    "date": 'cat "$CTL/now"',
    "sudo": 'shift; exec "$@"',
    "shutdown": 'for w; do case $w in +*) n=${w#+};; esac; done; at=$(($(cat "$CTL/now") + 60 * n))\n'
    'echo "USEC=${at}000000" >"$CTL/new.$$"; mv "$CTL/new.$$" "$CTL/scheduled"',
    "systemctl": 'for w; do case $w in /*) cp "$w" "$CTL/unit";; esac; done',
    "pgrep": 'for w; do p=$w; done; case $p in raylet/raylet) f=ray;; .) f=*;; *) exit 1;; esac\n'
    'c=1; for p in $(cat "$CTL"/pids/$f 2>/dev/null); do ! kill -0 $p 2>/dev/null || { echo $p; c=0; }; done; exit $c',
    "pkill": 'echo 130 >"$CTL/over"; /bin/sleep 0.2',
    "sleep": 'case $1 in 0.5) exec /bin/sleep 0.05;; 10|2) exec /bin/sleep 9999;; *) exec /bin/sleep 0.1;; esac',
    "ray": 'touch "$CTL/teardown"',
}  # fmt: skip


class Killed(BaseException):
    """The client is killed, as by ``kill -9``."""


class Node:
    """A machine: a folder, a clock that is wrong by ``skew`` seconds, and when it shuts down, in seconds of the world."""

    def __init__(self, world: World, name: str, kind: str, skew: int) -> None:
        self.world, self.name, self.kind, self.skew = world, name, kind, skew
        self.up, self.cut, self.taken = True, False, False
        self.made, self.alone = world.now, 0.0
        self.boots: float = world.now + 20
        self.due: float | None = None
        self.ran: dict[str, subprocess.Popen[bytes]] = {}
        self.ctl, self.home = world.folder / name / "ctl", world.folder / name / "home"
        for folder in (self.ctl / "bin", self.ctl / "pids", self.home):
            folder.mkdir(parents=True)
        for tool, text in TOOLS.items():
            (self.ctl / "bin" / tool).write_text(f"#!/bin/sh\n{text}\n")
            (self.ctl / "bin" / tool).chmod(0o755)
        if kind == "head" and os.geteuid() == 0:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", self.home], check=True)
        path = f"{self.ctl}/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        self.env = {"HOME": str(self.home), "PATH": path, "CTL": str(self.ctl)}
        (self.home / ".bash_profile").write_text(f"PATH={path}\n")

    def shell(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command, and see what it did to the schedule of the shutdown."""
        assert self.up
        (self.ctl / "new").write_text(str(int(self.world.now + self.skew)))
        (self.ctl / "new").rename(self.ctl / "now")
        command = command.replace("/home/ubuntu", str(self.home))
        command = command.replace("/run/systemd/shutdown", str(self.ctl))
        done = subprocess.run(
            ["sh", "-c", command], env=self.env, text=True, capture_output=True, timeout=60, check=False
        )  # fmt: skip
        if (self.ctl / "scheduled").exists():
            self.due = int((self.ctl / "scheduled").read_text()[5:-7]) - self.skew
        return done

    def start(self, name: str, *words: str) -> None:
        """Start a process of the launch."""
        env = {**self.env, "RAY_AUTH_TOKEN_PATH": f"{self.home}/raybench-launch/token"}
        self.ran[name] = subprocess.Popen(
            words, env=env, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )  # fmt: skip
        (self.ctl / "pids" / name).write_text(f"{self.ran[name].pid}\n")

    def runs(self, name: str) -> bool:
        """Whether a process of the launch runs."""
        return self.up and name in self.ran and self.ran[name].poll() is None

    def kill(self) -> None:
        """End all processes."""
        for process in self.ran.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with suppress(OSError, ValueError):
            os.killpg(int((self.home / ".raybench-lease/keeper").read_text()), signal.SIGKILL)

    def off(self, how: str) -> None:
        """End, and check that nothing is lost that somebody waits for."""
        self.kill()
        self.up = False
        if self.kind == "head":
            self.world.over = min(self.world.over, self.world.now)
        self.world.log(f"{self.name} {how}")
        self.world.lost(self, how)

    def open(self) -> bool:
        """Whether somebody can log in."""
        left = CLOSED if self.due is None else self.due - self.world.now
        return self.up and not self.cut and self.world.now >= self.boots and left >= CLOSED

    def reboot(self) -> None:
        """Lose all processes and the schedule, and run what is run at every boot."""
        self.kill()
        self.due, self.boots = None, self.world.now + 30
        (self.ctl / "scheduled").unlink(missing_ok=True)


class World:
    """The provider with its nodes, Ray on the head, a sweep of a cell a minute, and a client with a clock of its own.

    began, bound: of the launch. home: how many cells are home.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 1.8e9
        self.nodes: list[Node] = []
        self.laptop, self.skews, self.boot_script = 0, [0], True
        self.bound, self.work = 0.0, 1e9
        self.home, self.began, self.over, self.die = 0, 0.0, 1e18, 1e18
        self.hurt = False
        self.story: list[str] = []

    def log(self, text: str) -> None:
        """Note what happened, for a failure."""
        self.story.append(f"{(self.now - self.bound) / 60:.1f} min: {text}")

    @property
    def head(self) -> Node | None:
        """The head, if it is up."""
        return next((n for n in self.nodes if n.kind == "head" and n.up), None)

    def open(self) -> bool:
        """Whether somebody can log in to the head."""
        return self.head is not None and self.head.open()

    def alive(self) -> list[str]:
        """What the provider lists."""
        return [node.name for node in self.nodes if node.up]

    def cells(self) -> int:
        """How many cells have ended on the head."""
        return int((min(self.now, self.over) - self.began) // 60) if self.began else 0

    def make(self, kind: str) -> Node:
        """Start a machine."""
        skew = self.skews[len(self.nodes) % len(self.skews)]
        node = Node(self, f"i-{len(self.nodes)}-{kind}", kind, skew)
        self.nodes.append(node)
        self.log(f"{node.name} made")
        return node

    # -- time

    def pass_time(self, seconds: float) -> None:
        """Let time pass in ticks, shorter ones where something is due."""
        until = self.now + seconds
        while self.now < until:
            soon = [n.due for n in self.nodes if n.up and n.due] + [self.bound]
            near = min(abs(t - self.now) for t in soon) < 500
            self.now = min(
                until, self.now + (30 if near else 200), *(t for t in soon if t > self.now)
            )
            self.tick()
            if self.now >= self.die:
                raise Killed

    def tick(self) -> None:
        """Let every machine do what it does by itself."""
        for node in [n for n in self.nodes if n.up]:
            if node.due is not None and self.now >= node.due:
                node.off("shut down")
            elif node.boots and self.now >= node.boots:
                node.boots = 0.0
                self.boot(node)
        head = self.head
        for node in [n for n in self.nodes if n.up and not n.boots]:
            there = head is not None and head.runs("ray") and not (head.cut or node.cut)
            if not node.up:  # ended meanwhile by another
                continue
            node.alone = 0.0 if there else node.alone or self.now
            if (
                node.kind == "worker"
                and node.runs("ray")
                and not there
                and self.now - node.alone > 60
            ):
                node.ran["ray"].kill()
            if (node.ctl / "unit").exists():
                self.keep(node)
        if head is not None and head.runs("job"):
            head.shell(f"{machines.LEASE} push")  # job.sh does
            if self.now >= self.began + self.work:
                self.finish(head)
        if head is not None and self.began and not head.runs("job"):
            self.over = min(self.over, self.now)
        if head is not None and head.runs("ray") and head.up:
            self.autoscale(head)

    def keep(self, node: Node) -> None:
        """Do what the lease does by itself."""
        node.shell(f"{machines.LEASE} tick")
        if (node.ctl / "teardown").exists():
            (node.ctl / "teardown").unlink()
            for one in self.nodes:
                if one.kind == "worker" and one.up and not node.cut:
                    one.off("ended by the head")

    def boot(self, node: Node) -> None:
        """Run what a machine runs at its first boot, or at every one."""
        if self.boot_script:
            types = self.config()["available_node_types"]
            node.shell(types[node.kind]["node_config"]["UserData"])

    def config(self) -> Any:
        """What the head starts workers by, or the launcher the head."""
        here = [self.head.home / "ray_bootstrap_config.yaml"] if self.head else []
        text = next(
            (p for p in here if p.exists()), self.launch.folder / "cluster.yaml"
        ).read_text()
        return yaml.safe_load(text)

    def autoscale(self, head: Node) -> None:
        """Start a worker where there is none, and bring up one that is new."""
        workers = [n for n in self.nodes if n.kind == "worker" and n.up]
        if not workers:
            self.make("worker")
        for node in workers:
            if node.taken or self.now < node.made + 60 or head.cut:
                continue
            if not node.open() or not self.bring_up(node):
                node.off("given up by the autoscaler")

    def bring_up(self, node: Node) -> bool:
        """Do as Ray's updater: the first commands, then those that start Ray; return whether all went well."""
        config = self.config()
        kind = config["available_node_types"][node.kind]
        first = kind.get("initialization_commands") or config["initialization_commands"]
        for command in (*first, *config[f"{node.kind}_start_ray_commands"]):
            done = node.shell(command)
            if done.returncode:
                self.log(f"{node.name} refused: {done.stderr.strip()[-80:]}")
                return False
        node.taken = True
        node.start("ray", "/bin/sleep", "9999")
        return True

    def finish(self, head: Node) -> None:
        """Let the sweep end."""
        (head.ctl / "over").write_text("0")
        with suppress(subprocess.TimeoutExpired):
            head.ran["job"].wait(5)
        self.log("the sweep has ended")

    def lost(self, node: Node, how: str) -> None:
        """Check what a head that ends takes along."""
        if node.kind != "head" or how == "lost":
            return
        gone, early = self.cells() - self.home, self.bound - self.now
        assert how != "shut down" or not gone or early < 300, self.tell(
            f"held results went {early} s early"
        )

    def tell(self, what: str) -> str:
        """What went wrong, and the story."""
        return "\n  ".join([what, *self.story])

    # -- what the client does to it

    def ray(self, verb: str, _: Path) -> Any:
        """Stand in for Ray's launcher."""
        if verb == "up":
            head = self.head or self.make("head")
            self.pass_time(60)
            text = (self.launch.folder / "cluster.yaml").read_text()
            if head.open():
                (head.home / "ray_bootstrap_config.yaml").write_text(text)
            if not head.open() or not self.bring_up(head):
                raise RuntimeError("ray up failed")
            return {"address": head.name, "auth": {"ssh_user": "ubuntu"}}
        if verb == "down":
            for node in [n for n in self.nodes if n.up]:
                node.off("ended by down")
        return [name for name in self.alive() if verb != "list head" or "head" in name]

    def run(self, host: Host, command: str, *, check: bool = True, **_: Any) -> str:
        """Stand in for ssh."""
        node = next(n for n in self.nodes if n.name == host.address)
        if not node.open():
            raise Unreachable(f"{host.address}: no answer")
        if " job submit " in command:
            self.submit(node)
            return "rc=0"
        done = node.shell(command)
        if check and done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout

    def submit(self, node: Node) -> None:
        """Start the job."""
        order = self.launch.order()
        run = [
            "sh",
            "-c",
            'while [ ! -e "$CTL/over" ]; do /bin/sleep 0.05; done; exit "$(cat "$CTL/over")"',
        ]
        words = [f"{order['kept']}/{order['job']}", order["lease"], *run]
        there = node.home / "raybench-launch"
        there.mkdir(exist_ok=True)
        text = (
            f"set -- {shlex.join(words)}\n{Path(machines.__file__).with_name('job.sh').read_text()}"
        )
        (there / "job.sh").write_text(text.replace("/home/ubuntu", str(node.home)))
        node.start("job", "bash", str(there / "job.sh"))
        for _ in range(100):
            if (self.job(node) / "driver.pid").exists():
                break
            node.shell("/bin/sleep 0.02")
        self.began = self.now
        node.shell(f"{machines.LEASE} {order['lease']}")

    def job(self, node: Node) -> Path:
        """The folder of what the job tells."""
        order = self.launch.order()
        return Path(f"{order['kept']}/{order['job']}".replace("/home/ubuntu", str(node.home)))

    def fetch(self, host: Host, results: Path, job: str, out: str) -> Any:
        """Stand in for rsync, with the real look at the job."""
        look = LOOK.format(
            lease=machines.LEASE, job=job, ended=ENDED, pid="driver.pid", ours="true"
        )
        self.run(host, look.replace("&& rsync", "&& true"), check=False)
        node = next(n for n in self.nodes if n.name == host.address)
        self.home = self.cells()
        return {}, machines.ended(self.job(node))


class Lease(RuleBasedStateMachine):
    """In every run every node ends by the bound, what a follower waits for comes home, and "nothing is left" is true."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="lease"))
        self.world = World(self.folder)
        self.patch = pytest.MonkeyPatch()
        world = self.world
        clock = SimpleNamespace(
            time=lambda: world.now + world.laptop,
            monotonic=lambda: world.now,
            sleep=world.pass_time,
        )
        for module in (steps, machines, states):
            self.patch.setattr(
                module, "time", SimpleNamespace(**{**vars(__import__("time")), **vars(clock)})
            )
        self.patch.setattr(states, "launches", lambda: self.folder / "launches")
        self.patch.setattr(
            machines, "gather", lambda folder, *a: folder.mkdir(parents=True, exist_ok=True)
        )
        self.patch.setattr(machines, "ray", world.ray)
        self.patch.setattr(steps, "fetch", world.fetch)
        self.patch.setattr(steps.bundle, "check_bundle", lambda folder: None)
        self.patch.setattr(steps, "send", lambda *a: None)
        self.patch.setattr(steps, "tell", lambda text: world.log(text))
        self.patch.setattr(steps, "LOOK_EVERY", 120.0)
        self.patch.setattr(
            Host, "run", lambda host, command, **more: world.run(host, command, **more)
        )
        self.patch.setattr(Host, "rsync", lambda *a: None)

    @initialize(
        hours=st.sampled_from([1.0, 1.5]),
        idle=st.sampled_from([15, 30]),
        work=st.sampled_from([600, 3000, 10**6]),
        skews=st.lists(st.integers(-50, 50), min_size=1, max_size=3),
        laptop=st.sampled_from([0, -10800, 10800]),
        boot_script=st.booleans(),
    )
    def order(
        self, hours: float, idle: int, work: int, skews: list[int], laptop: int, boot_script: bool
    ) -> None:
        world = self.world
        world.laptop, world.skews, world.work, world.boot_script = laptop, skews, work, boot_script
        (self.folder / "c.yaml").write_text(
            yaml.safe_dump({**CLUSTER, "metadata": {"idle_minutes": idle}})
        )
        cost = file.Price((1, 1), 1, (0.1, 0.1), (0, 0), hours, 0)
        world.launch = Launch(self.folder / "results")
        cluster = file.read_cluster_file(str(self.folder / "c.yaml"))
        steps.order(world.launch, spec.load(SWEEP), cluster, cost, [], "", False)
        world.bound = world.now + hours * 3600
        self.attach(3)

    @rule(minutes=st.sampled_from([3, 10, 1000]))
    def attach(self, minutes: int) -> None:
        """Follow for so many minutes, then be killed; or to the end."""
        self.client(minutes, down=True)

    @rule(minutes=st.sampled_from([1000]))
    def down(self, minutes: int) -> None:
        """End the cluster."""
        self.client(minutes, follow=False, down=True)

    def client(self, minutes: float, follow: bool = True, down: bool = True) -> None:
        world, launch = self.world, self.world.launch
        came, world.die = world.now, world.now + 60 * minutes
        try:
            one = LaunchSteps(launch)
            try:
                if follow:
                    one.up()
                    one.submit()
                    one.follow()
            except (RuntimeError, OSError) as error:
                world.log(f"the client: {error}")
            try:
                one.down()
                assert not world.alive(), world.tell(
                    f"said that nothing is left, but {world.alive()}"
                )
            except (RuntimeError, OSError) as error:
                world.log(f"the client: {error}")
            late, gone, head = (
                world.now - max(came, world.over),
                world.cells() - world.home,
                world.head,
            )
            assert late < 1300 or (head and head.cut), world.tell(
                f"followed for {late} s a sweep that was over"
            )
            if came < world.bound - 900 and gone > 1 and not world.hurt:  # one may end meanwhile
                assert world.open(), world.tell(f"{gone} cells lost to a follower")
        except Killed:
            world.log("the client was killed")
        finally:
            world.die = 1e18

    @rule(minutes=st.sampled_from([1, 5, 20]))
    def wait(self, minutes: int) -> None:
        self.world.pass_time(60 * minutes)

    @rule(minutes=st.sampled_from([15, 9, 6, 4, 1]))
    def wait_for_the_end(self, minutes: int) -> None:
        """Wait until so many minutes before the bound."""
        self.world.pass_time(max(0, self.world.bound - self.world.now - 60 * minutes))

    @rule(how=st.sampled_from(["reboots", "has a full disk", "is cut off", "is there again"]))
    def head(self, how: str) -> None:
        """Something happens to the head."""
        head = self.world.head
        if head is None:
            return
        self.world.log(f"the head {how}")
        self.world.hurt = True
        if how == "reboots":
            head.reboot()
        elif how == "has a full disk" and os.geteuid() == 0:  # a file system of its own
            head.shell("cat /dev/zero >~/fill")
        head.cut = how == "is cut off"

    @rule(which=st.integers(0, 9), how=st.sampled_from(["node", "job", "ray"]))
    def lose(self, which: int, how: str) -> None:
        """A machine is taken away, or a process is killed."""
        nodes = [n for n in self.world.nodes if n.up]
        if nodes:
            node = nodes[which % len(nodes)]
            self.world.log(f"{node.name} loses {how}")
            self.world.hurt |= node.kind == "head" and how == "node"
            if how == "node":
                node.off("lost")
            elif node.runs(how):
                os.killpg(node.ran[how].pid, signal.SIGKILL)
                node.ran[how].wait()

    @invariant()
    def bounded(self) -> None:
        world = self.world
        left = [n.name for n in world.nodes if n.up and not self.unleased(n)]
        assert world.now < world.bound or not left, world.tell(f"left after the bound: {left}")

    def unleased(self, node: Node) -> bool:
        """Whether a machine got no command at all, since its head was taken away before: only ``down`` ends that one.

        A boot script would: docs/cluster.md, state "made".
        """
        return not (node.taken or self.world.boot_script or self.world.head)

    def teardown(self) -> None:
        world = self.world
        try:
            if world.bound:
                world.pass_time(max(0, world.bound - world.now))
                self.bounded()
                if world.alive():
                    self.down(1000)
                    assert not world.alive(), world.tell(f"down did not end {world.alive()}")
        finally:
            self.patch.undo()
            for node in world.nodes:
                node.kill()
                subprocess.run(["umount", "-l", node.home], check=False, capture_output=True)
            shutil.rmtree(self.folder, ignore_errors=True)


FIRST = {
    "hours": 1.0, "idle": 15, "work": 600, "skews": [33, -38], "laptop": 0, "boot_script": True,
}  # fmt: skip
SEEN: dict[str, tuple[dict[str, Any], list[tuple[Any, ...]]]] = {
    "no worker is started at the deadline": ({}, [("wait_for_the_end", 1)]),
    "no machine without a boot script outlives it": (
        {"boot_script": False, "work": 10**6},
        [("wait_for_the_end", 9), ("lose", 1, "node"), ("wait_for_the_end", 1)],
    ),
    "a reboot": ({}, [("wait", 20), ("head", "reboots"), ("wait_for_the_end", 1)]),
    "a full disk": ({}, [("head", "has a full disk"), ("attach", 1000)]),
    "a full disk and a killed driver": (
        {"work": 10**6},
        [("head", "has a full disk"), ("lose", 0, "job"), ("attach", 1000)],
    ),
    "logins that close": ({"work": 10**6}, [("attach", 1000)]),
    "a head that is lost before its worker has a lease": (
        {"boot_script": False},
        [("lose", 0, "node"), ("wait", 20)],
    ),
    "a laptop that is ahead": ({"laptop": 10800}, [("wait_for_the_end", 1)]),
}


@pytest.mark.parametrize(("first", "then"), SEEN.values(), ids=SEEN)
def test_what_was_seen_on_rented_hosts(first: Any, then: Any) -> None:
    machine = Lease()
    try:
        machine.order(**{**FIRST, **first})
        for name, *words in then:
            getattr(machine, name)(*words)
            machine.bounded()
    finally:
        machine.teardown()


def test_a_follower_ends_the_sweep_before_the_hosts_do() -> None:
    """Nine minutes before the deadline: Ray on the head ends at seven, and logins close at five."""
    machine = Lease()
    try:
        machine.order(**{**FIRST, "work": 10**6})
        machine.attach(1000)
        assert 480 < machine.world.bound - machine.world.over < 700, machine.world.tell("ended")
    finally:
        machine.teardown()


def test_every_node_ends_by_the_bound_and_nothing_that_somebody_waits_for_is_lost() -> None:
    more = os.environ.get("RAYBENCH_LEASES")  # others than the twelve of each time
    run_state_machine_as_test(
        Lease,
        settings=settings(
            max_examples=int(more or 12), derandomize=more is None, stateful_step_count=8,
            deadline=None, print_blob=False, suppress_health_check=list(HealthCheck), report_multiple_bugs=True,
        ),
    )  # fmt: skip


def test_a_lease_that_runs_out_leaves_the_command_alone_that_ends_the_launch(
    tmp_path: Path,
) -> None:
    """Both end the launch's processes at once, and that of ``raybench down`` speaks of its folder as well."""
    folder = "rm -rf /nowhere/raybench-launch"
    down, work = (
        subprocess.Popen(["bash", "-c", f"sleep 60; {folder}; {last}"], start_new_session=True)
        for last in (f"{machines.LEASE} end", "true")
    )
    (tmp_path / "pgrep").write_text(
        f"#!/bin/sh\nkill -0 {work.pid} && echo {work.pid}\necho {down.pid}\n"
    )
    (tmp_path / "pgrep").chmod(0o755)
    try:
        lease = Path(machines.__file__).with_name("lease.sh")
        env = {**os.environ, "HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        end = subprocess.Popen(["sh", str(lease), "end"], env=env)
        assert work.wait(30) == -signal.SIGTERM
        assert end.wait(30) == 0
        assert down.poll() is None
    finally:
        for process in (down, work):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_worker_of_the_users_own_stays_as_long_as_its_raylet_and_no_longer_than_the_hours(
    tmp_path: Path,
) -> None:
    """Its lease is for seconds, and a sweep takes hours: it pushes it itself."""
    lease, own = Path(machines.__file__).with_name("lease.sh"), tmp_path / ".raybench-lease"
    own.mkdir()
    facts = {
        "launch": "L",
        "seconds": 120,
        "deadline": 1000,
        "kind": "own",
        "held": 0,
        "role": "worker",
        "until": 120,
    }
    for name, value in facts.items():
        (own / name).write_text(f"{value}\n")
    tools = {
        "date": f"cat {tmp_path}/now",
        "pgrep": f"case $* in *raylet*) test -e {tmp_path}/raylet;; *) false;; esac",
    }
    for name, text in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    def until(now: int) -> int | None:
        """Return when the lease runs out after a tick, None where the host is free."""
        (tmp_path / "now").write_text(str(now))
        env = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin"}
        subprocess.run(["sh", str(lease), "tick"], env=env, check=False)
        return int((own / "until").read_text()) if own.exists() else None

    assert until(50) == 120, "Ray has not begun"
    (tmp_path / "raylet").touch()
    assert [until(now) for now in (60, 150, 250, 350)] == [180, 270, 370, 470]
    assert [until(now) for now in range(400, 1000, 100)] == [520, 620, 720, 820, 920, 1000]
    assert until(1001) is None
    own.mkdir()
    for name, value in facts.items():
        (own / name).write_text(f"{value}\n")
    (tmp_path / "raylet").unlink()
    assert [until(100), until(121)] == [120, None], "its raylet has gone"
