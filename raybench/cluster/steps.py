"""From state to state: each step finds out what is there already, so that any of them may be taken twice."""

from __future__ import annotations

import getpass
import math
import shutil
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from raybench.cluster import file, machines
from raybench.cluster.file import Price
from raybench.cluster.machines import ENDED, LEASE, LOG, PID, STAGE, Host, Unreachable, fetch, send
from raybench.cluster.states import NAME, Launch, clock
from raybench.core.errors import InputError
from raybench.execution import bundle
from raybench.execution.execute import Progress
from raybench.runtime.progress import View
from raybench.spec import Sweep
from raybench.spec.grid import problems_meant
from raybench.store import Store

GIVEN = "given.yaml"  # in the folder of a launch: the cluster file, as it was when the launch began
SUBMIT = "-m ray.scripts.scripts job submit --address http://127.0.0.1:8265 --no-wait"
DASHBOARD_SECONDS = 120.0
LOOK_EVERY = 10.0  # seconds between two looks at the head, which bring home what is new
ASK_PROVIDER = 60.0  # seconds of silence after which the provider is asked whether it has nodes
PATIENCE = 900.0  # seconds of silence after which a head that the provider has is given up
LAST_SECONDS = 120.0  # before Ray on the head ends, for what comes home then
NOBODY_IN = 300.0  # seconds before its shutdown from which a rented host lets nobody log in
GONE_SECONDS = 90.0  # that a provider may take to forget a node


def order(
    launch: Launch,
    sweep: Sweep,
    cluster: file.ClusterFile,
    cost: Price,
    flags: Sequence[str],
    remote_out: str,
    keep: bool,
    notify: str = "",
) -> None:
    """Write down what a launch is to do, and gather what travels. A cluster that is kept takes the next job."""
    facts = launch.order()
    deadline = time.time() + cost.most_hours * 3600
    if launch.state == "down":
        facts = launch.begin()
        facts["owner"] = f"{getpass.getuser()}@{socket.gethostname()}, for {sweep.name}"
        (launch.folder / GIVEN).write_bytes(cluster.path.read_bytes())
    remote = f"{cluster.there}-results/{facts['id']}"  # on the head; no two launches share it
    job = f"raybench-{facts['id']}-{int(time.time())}"
    out = remote_out or f"{remote}/results"
    lease = "push" if cluster.hosts or remote_out else "hold"
    command = f"{cluster.python} -m raybench sweep sweep.yaml --address auto --out".split()
    words = [f"{remote}/{job}", lease, *command, out, *flags]
    try:
        machines.gather(launch.folder / STAGE, sweep, words)
        bundle.check_bundle(launch.folder / STAGE)
    except InputError:
        if not launch.order():  # there is no launch yet
            shutil.rmtree(launch.folder)
            (launch.results / NAME).unlink()
        raise
    Store(launch.results).claim(sweep.text, meaning=problems_meant)
    facts |= {"keep": keep, "notify": notify, "remote_out": remote_out, "lease": lease}
    facts |= {"name": sweep.name, "job": job, "kept": remote, "out": "" if remote_out else out}
    facts |= {"per_hour": cost.per_hour, "currency": cluster.currency}
    facts["provider"] = cluster.config["provider"]["type"]
    facts["deadline"] = min(deadline, facts.get("deadline", math.inf))
    facts["reached"] = {state: at for state, at in facts["reached"].items() if state == "up"}
    launch.amend(**facts)  # last: there is a launch now


class LaunchSteps:
    """The steps of one launch, which say on standard error what happens."""

    def __init__(self, launch: Launch) -> None:
        self.launch, self.order, self.folder = launch, launch.order(), launch.folder
        self.lost = False  # whether the head was given up
        self.job = f"{self.order['kept']}/{self.order['job']}"  # on the head: what the job tells

    @cached_property
    def cluster(self) -> file.ClusterFile:
        """The cluster file, as it was when the launch began."""
        return file.read_cluster_file(str(self.folder / GIVEN))

    def head(self) -> Host:
        """Return the head of a cluster that was up."""
        return Host(**self.launch.order()["reached"]["up"]["head"])

    def up(self) -> None:
        """Start the cluster, unless its head answers. Raises InputError where a machine of one's own is taken."""
        if self.launch.reached("submitted"):
            return  # whoever follows finds out
        if self.launch.reached("up"):
            with suppress(RuntimeError):
                self.head().run(f"{LEASE} limit {int(self.left())}", timeout=30)
                return
        number, deadline = self.order["id"], float(self.order["deadline"])
        if self.left() < (0 if self.cluster.hosts else 60 * machines.BOOT_MINUTES):
            raise RuntimeError("the hours of this launch are over")
        name = f"{self.cluster.config['cluster_name']}-{number}"
        take = machines.taking(self.cluster, number, deadline, self.order["owner"])
        machines.render(self.cluster, self.folder, name, take, deadline, self.order["remote_out"])
        try:
            for address in self.cluster.hosts:
                Host(address, self.cluster.config["auth"]).run(take)
        except RuntimeError as error:  # one is taken, or Ray runs there: all machines or none
            with suppress(RuntimeError):
                self._machines_free(home=True)
            self.launch.reach("down", sure=["nothing was started"])
            fix = "wait, or give other machines; each is reached by ssh without a password"
            raise InputError.of("--cluster", str(error), fix) from error
        tell(f"starting {name} (ray up)")
        place = str((self.folder / "known_hosts").resolve())
        head = Host(**machines.ray("up", self.folder), known_hosts=place)
        # counted from here on: what was rendered came some minutes later to the host
        head.run(f"{LEASE} limit {int(self.left() - 60)}", timeout=60)
        self.launch.reach("up", head=vars(head))
        tell(f"the head is up: {head.login}")

    def submit(self) -> None:
        """Submit the sweep as a job with an id of our own, so that submitting twice is one job."""
        if self.launch.reached("submitted"):
            return
        head, job, there = self.head(), self.order["job"], self.cluster.there
        # the mounts of ``ray up``, where they are older
        head.rsync("-a", f"{self.folder / STAGE}/", f"{head.login}:{there}/")
        if self.order["out"]:
            send(head, self.launch.results, self.order["out"])
        ask = f"{LEASE} push; {machines.token(self.cluster)}; {self.cluster.python} {SUBMIT} "
        ask += f"--submission-id {job} -- bash {there}/job.sh 2>&1; echo rc=$?"
        until, text = time.monotonic() + DASHBOARD_SECONDS, ""
        while not text.endswith("rc=0") and "already exists" not in text:  # which is the same job
            if time.monotonic() > until:  # the dashboard of a new head comes up last
                raise RuntimeError(f"the sweep could not be submitted: {text[-300:]}")
            text = head.run(ask, timeout=180).strip()
        self.launch.reach("submitted")
        tell(f"submitted as {job}")

    def follow(self) -> int:
        """Show the sweep's progress, and fetch its shards, until it ends or its hours do; return its exit code.

        Raises RuntimeError where nothing is heard of the head for so long that it is given up.
        """
        if over := self.launch.reached("fetched"):
            return int(over["code"])
        head = self.head()
        last = min(LAST_SECONDS, 0.1 * (float(self.order["deadline"]) - float(self.order["began"])))
        last = time.monotonic() + self.left(asking=True) - last
        last -= 0 if self.cluster.hosts else file.CLOSING
        facts: dict[str, Any] = {}
        code: int | None = None
        answer_at = time.monotonic()
        with View(self.order["name"], 0, math.inf) as view:  # until the head says how much there is
            while code is None and time.monotonic() < last:
                remark = ""
                try:
                    facts, code = fetch(head, self.launch.results, self.job, self.order["out"])
                    answer_at = time.monotonic()
                except Unreachable:
                    silence = time.monotonic() - answer_at
                    if silence > 10:
                        remark = f"the head is silent for {silence:.0f} s"
                    if silence > ASK_PROVIDER:
                        self._see(head, silence)
                except (RuntimeError, OSError) as error:
                    remark = str(error)  # a full disk here does not end the sweep there
                    with suppress(Unreachable, ValueError):  # of a sweep that has not ended
                        code = int(head.run(f"cat {self.job}/{ENDED}", timeout=30, check=False))
                if facts and not self.launch.reached("running"):
                    self.launch.reach("running")
                if facts:
                    view.cells, view.rounds = facts["cells"], facts["rounds"]
                    view.began = time.monotonic() - facts["seconds"]  # when the driver did
                    view.update(Progress(**facts["now"]), remark or facts["stage"], facts["silent"])
                if code is None:
                    time.sleep(LOOK_EVERY)
        if code is None:
            tell("the hours of this launch are over")
            code = 1
        self._come_home(head)
        self.launch.reach("fetched", code=code)
        return code

    def left(self, asking: bool = False) -> float:
        """Seconds until the deadline, by the clock of this machine, or asking the head, if it says so."""
        with suppress(RuntimeError, ValueError):
            if asking:
                return float(self.head().run(f"{LEASE} left", timeout=30))
        return float(self.order["deadline"]) - time.time()

    def _see(self, head: Host, silence: float) -> None:
        """Give up a head that has gone, or has said nothing for so long that nobody should wait: raise RuntimeError."""
        if not self.cluster.hosts:
            try:
                self.lost = not machines.ray("list head", self.folder)
            except RuntimeError:  # it is this machine that has no way out
                return
            if self.lost:
                raise RuntimeError(f"{head.address} is gone: the provider knows no such head")
        if silence > PATIENCE:
            try:
                head.run("true", timeout=30)
            except Unreachable as error:
                self.lost = True
                raise RuntimeError(f"no answer for {silence:.0f} s: {error}") from error

    def _come_home(self, head: Host) -> None:
        """Let the sweep end as by Ctrl-C, fetch all results, and let the head go. Raises RuntimeError, OSError."""
        with suppress(RuntimeError):
            head.run(
                f"cd {self.job} && ! grep -q '[0-9]' ended && pkill -TERM -P $(cat {PID}) -f 'raybench sweep' && "
                "for i in $(seq 40); do grep -q '[0-9]' ended && break; sleep 0.5; done; true"
            )
        for attempt in range(4):
            try:
                if self.order["out"]:
                    fetch(head, self.launch.results, self.job, self.order["out"])
                    tell(f"all results are in {self.launch.results}")
                (self.folder / LOG).write_text(head.run(f"tail -c 1000000 {self.job}/{LOG}; true"))
                head.run(f"{LEASE} release", check=False)
                return
            except Unreachable:
                if attempt == 3:
                    raise
                time.sleep(5 * attempt)

    def log(self) -> str:
        """Return the job's log: as it is on the head, or as it was when it was fetched."""
        if self.launch.reached("up") and not self.launch.reached("down"):
            with suppress(RuntimeError):
                return self.head().run(f"cat {self.job}/{LOG}")
        path = self.folder / LOG
        return path.read_text() if path.exists() else ""

    def down(self, fetching: bool = True) -> list[str]:
        """Fetch what there is, end the cluster, and return how it is known that nothing is left.

        Raises RuntimeError, which names what may be left, and where a head holds results that cannot be fetched now.
        """
        if ended := self.launch.reached("down"):
            return list(ended["sure"])
        home = bool(self.launch.reached("fetched") or not self.launch.reached("submitted"))
        if fetching and not home:
            try:
                self._come_home(self.head())
                home = True
            except (RuntimeError, OSError) as error:
                if self.order["lease"] == "hold" and not self._nobody_can(error):
                    raise RuntimeError(
                        f"the head holds results that could not be fetched: {error}\n    it ends by itself at "
                        f"{clock(self.order['deadline'])}; --no-fetch ends it now, and they are lost"
                    ) from error
                tell(f"not all results could be fetched: {error}")
        if not (self.folder / machines.CONFIG).exists():
            sure = ["nothing was started"]
        else:
            sure = self._machines_free(home) if self.cluster.hosts else self._nodes_gone()
        shutil.rmtree(self.folder / STAGE, ignore_errors=True)  # the token and the data among it
        self.launch.reach("down", sure=sure)
        return sure

    def _nobody_can(self, error: Exception) -> bool:
        """Whether nobody can fetch what could not be fetched now: the head is gone, or lets nobody in any more."""
        if not self.lost and isinstance(error, Unreachable):
            with suppress(RuntimeError):
                gone = not self.cluster.hosts and not machines.ray("list head", self.folder)
                self.lost = gone or self.left() < NOBODY_IN
        return self.lost

    def _machines_free(self, home: bool) -> list[str]:
        """End the launch on each machine, and remove what was put there; its results only where they are home."""
        sure, left = [], []
        # without its lease a machine was freed by itself, and may be somebody else's by now
        mine = f'[ "$(cat ~/.raybench-lease/launch 2>/dev/null)" = {self.order["id"]} ]'
        results = f"rm -rf {self.order['kept']}" if home else "true"
        for address in self.cluster.hosts:
            host = Host(address, self.cluster.config["auth"])
            try:
                if still := host.run(f"{results}; ! {mine} || {LEASE} end").split():
                    left.append(f"{address}: processes {', '.join(still)}")
                sure.append(f"{address}: no process of this launch, token and key removed")
            except RuntimeError as error:
                left.append(f"{error} (what runs there ends by itself when its lease runs out)")
        if left:
            raise RuntimeError("\n    ".join(left))
        return sure

    def _nodes_gone(self) -> list[str]:
        """End the nodes, Ray on the head first, since it starts workers; ask the provider until it knows none."""
        tell("ending the cluster (ray down)")
        trouble, until = "ray down did not", time.monotonic() + GONE_SECONDS
        with suppress(Unreachable):
            if self.launch.reached("up"):
                self.head().run(f"{LEASE} end", check=False)
        try:
            machines.ray("down", self.folder)
        except RuntimeError as error:  # whether something is left is seen below
            trouble = str(error)
        while left := machines.ray("list nodes", self.folder):
            if time.monotonic() > until:
                end = f"the provider still has {', '.join(left)}: end them in its console"
                raise RuntimeError(f"{end}; {trouble}")
            time.sleep(5)
        return ["the provider knows no node of this cluster"]


def tell(text: str) -> None:
    """Say on standard error what happens."""
    print(text, file=sys.stderr, flush=True)
