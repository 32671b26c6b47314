"""From state to state: each step finds out what is there already, so that any of them may be taken twice."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from raybench.cluster import file, launcher
from raybench.cluster.file import ClusterFile
from raybench.cluster.follow import Line, fetch, forwarded, send
from raybench.cluster.hosts import Host, Unreachable
from raybench.cluster.stage import LEASE, LOG, PID, TOKEN
from raybench.cluster.states import LOG as LAUNCHER_LOG
from raybench.cluster.states import Launch
from raybench.core.errors import InputError

JOBS_PORT = 8265
FETCH_EVERY = 15.0  # seconds, at least, between two looks at what is new
ASK_PROVIDER = 60.0  # seconds of silence after which the provider is asked whether it has nodes
PATIENCE = 900.0  # seconds of silence after which a head that the provider has is given up
LAST_SECONDS = 120.0  # before the deadline, for what comes home then
GONE_SECONDS = 90.0  # that a provider may take to forget a node
OVER = 1  # exit code of a sweep whose hours are over

Say = Callable[[str], None]
Show = Callable[[dict[str, Any], str], None]


class HeadLost(RuntimeError):
    """The head does not answer, for so long that it is given up."""


class NotDown(RuntimeError):
    """Something of the cluster is still there; the text names it and says what to do."""


@dataclass
class Steps:
    """The steps of one launch. say: told what happens; show: given the sweep's progress and a remark."""

    launch: Launch
    say: Say = print
    show: Show = field(default=lambda progress, remark: None)

    @cached_property
    def order(self) -> dict[str, Any]:
        """What this launch is to do."""
        return self.launch.ordered()

    @cached_property
    def cluster(self) -> ClusterFile:
        """The cluster file, as it was when the launch began."""
        return file.read(str(self.launch.place("given.yaml")))

    @property
    def env(self) -> dict[str, str]:
        """Variables that show this launch's token to the cluster."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.stage / TOKEN)}

    @property
    def stage(self) -> Path:
        """The folder of what travels, here."""
        return self.launch.place("stage")

    @property
    def config(self) -> Path:
        """What Ray's launcher is given."""
        return self.launch.place("cluster.yaml")

    def reached(self, state: str) -> bool:
        """Whether a state was reached."""
        return self.launch.reached(state) is not None

    def head(self) -> Host:
        """Return the head. Raises HeadLost where the cluster was never up."""
        up = self.launch.reached("up")
        if up is None:
            raise HeadLost("the cluster is not up yet")
        return Host(**up["head"])

    # -- up ----------------------------------------------------------------------------------

    def up(self) -> None:
        """Start the cluster, unless it is up already: its head answers, and its lease has not run out."""
        if self.reached("submitted"):
            return  # whoever follows finds out
        if self.reached("up"):
            with suppress(Unreachable, RuntimeError):
                self.head().run(f"{LEASE} push", timeout=30)
                return
        name = f"{self.cluster.config.get('cluster_name', 'raybench')}-{self.order['id']}"
        deadline = float(self.order["deadline"])
        take = launcher.taking(self.cluster, self.order["id"], deadline, self.order["owner"])
        python = str(self.order["python"])
        config = launcher.rendered(self.cluster, name, self.stage, python, take, deadline)
        self.config.write_text(yaml.safe_dump(config, sort_keys=False))
        self._take_hosts(take)
        self.say(f"starting {name} (ray up)")
        launcher.up(self.config, self.launch.place(LAUNCHER_LOG), self.env)
        known = str(self.launch.place("known_hosts").resolve())
        head = launcher.head(self.config, self.env, known)
        head.run(f"{LEASE} push", timeout=60)
        self.launch.reach("up", head=vars(head))
        self.say(f"the head is up: {head.login}")

    def _take_hosts(self, take: str) -> None:
        """Lease the user's own machines, all or none. Raises InputError where one is taken, or Ray runs there."""
        taken: list[Host] = []
        for host in self._machines():
            try:
                host.run(take)
            except (Unreachable, RuntimeError) as error:
                for one in taken:
                    with suppress(Unreachable):
                        one.run(f"{LEASE} end", check=False)
                self.launch.reach("down", sure=["nothing was started"])
                fix = "wait for its end, or give other machines; each must be reached by ssh without a password"
                raise InputError.of("--cluster", str(error), fix) from error
            taken.append(host)

    def _machines(self) -> list[Host]:
        auth = self.cluster.config.get("auth") or {}
        return [launcher.reached(address, auth) for address in self.cluster.hosts]

    # -- submitted ---------------------------------------------------------------------------

    def submit(self) -> None:
        """Submit the sweep as a job with an id of our own, so that submitting twice is one job."""
        if self.reached("submitted"):
            return
        job, kept, head = self.order["job"], self.order["kept"], self.head()
        head.push(
            self.stage, launcher.folder_there(self.cluster)
        )  # the mounts of ``ray up``, where they are older
        if self.order["out"]:
            send(head, self.launch.results, self.order["out"])
        head.run(f"mkdir -p {kept}/{job} && {LEASE} push")
        tunnel, port = forwarded(head, JOBS_PORT)
        try:
            script, log = (
                f"bash {launcher.folder_there(self.cluster)}/job.sh",
                self.launch.place(LAUNCHER_LOG),
            )
            launcher.submit(f"http://127.0.0.1:{port}", job, script, log, self.env)
        finally:
            tunnel.kill()
            tunnel.wait()
        self.launch.reach("submitted", job=job)
        self.say(f"submitted as {job}")

    # -- running, fetched --------------------------------------------------------------------

    def follow(self) -> int:
        """Show the sweep's progress, and fetch its shards, until it ends or its hours do; return its exit code.

        Raises HeadLost where nothing is heard of the head for long.
        """
        over = self.launch.reached("fetched")
        if over is not None:
            return int(over["code"])
        head, deadline = self.head(), float(self.order["deadline"])
        last = deadline - min(LAST_SECONDS, 0.1 * (deadline - float(self.order["began"])))
        shards, fetched, asked = 0, time.monotonic(), 0.0
        with Line(head, self.order["kept"], self.order["job"], self.order["out"]) as line:
            while line.told.code is None and time.time() < last:
                if line.ask():
                    asked = 0.0
                    if line.told.progress and not self.reached("running"):
                        self.launch.reach("running")
                    self.show(line.told.progress, "")
                    due = time.monotonic() - fetched > FETCH_EVERY
                    if due and line.told.shards != shards:
                        with suppress(Unreachable, RuntimeError):  # the next time will do
                            self._fetch(head)
                            shards = line.told.shards
                        fetched = time.monotonic()
                elif line.silence > 10:
                    self.show(line.told.progress, f"the head is silent for {line.silence:.0f} s")
                    if line.silence - asked > ASK_PROVIDER:
                        asked = line.silence
                        self._see(head, line)
            code = line.told.code
        if code is None:
            self.say("the hours of this launch are over")
            self._stop_job(head)
            code = OVER
        self._come_home(head)
        self.launch.reach("fetched", code=code)
        return code

    def _see(self, head: Host, line: Line) -> None:
        """Raise HeadLost where the head has gone, or has said nothing for so long that nobody should wait for it."""
        if not self.cluster.own_machines:
            try:
                nodes = launcher.alive(self.config, self.env)
            except launcher.LaunchFailed:  # it is this machine that has no way out
                return
            if not nodes:
                raise HeadLost(
                    f"{head.address} is gone: the provider knows no node of this cluster"
                )
        if line.silence > PATIENCE:
            try:
                head.run("true", timeout=30)
            except Unreachable as error:
                raise HeadLost(f"no answer for {line.silence:.0f} s: {error}") from error

    def _fetch(self, head: Host) -> int:
        listing = self.launch.place("listing")
        return fetch(head, self.launch.results, self.order["out"], listing)

    def _come_home(self, head: Host) -> None:
        """Fetch all results, and let the head go. Raises Unreachable after some attempts, RuntimeError, OSError."""
        for attempt in range(4):
            try:
                if self.order["out"]:
                    count = self._fetch(head)
                    self.say(f"{count:,} shards are in {self.launch.results}")
                log = head.run(
                    f"tail -c 1000000 {self.order['kept']}/{self.order['job']}/{LOG}; true"
                )
                self.launch.place(LOG).write_text(log)
                head.run(f"{LEASE} release", check=False)
            except Unreachable:
                if attempt == 3:
                    raise
                time.sleep(5 * attempt)
            else:
                return

    def log(self) -> str:
        """Return the job's log: as it is on the head, or as it was when it was fetched."""
        with suppress(Unreachable, RuntimeError):
            if not self.reached("down"):
                return self.head().run(f"cat {self.order['kept']}/{self.order['job']}/{LOG}")
        path = self.launch.place(LOG)
        return path.read_text() if path.exists() else ""

    # -- down --------------------------------------------------------------------------------

    def down(self, fetching: bool = True, lost: bool = False) -> list[str]:
        """Fetch what there is, end the cluster, and return how it is known that nothing is left.

        lost: the head was given up. Raises NotDown where something is, or may be, left, and where a rented head holds
        results that cannot be fetched now.
        """
        ended = self.launch.reached("down")
        if ended is not None:
            return list(ended["sure"])
        head: Host | None = None
        with suppress(HeadLost):
            head = self.head()
        submitted = self.reached("submitted")
        home = self.reached("fetched") or not submitted
        if head is not None and fetching and not home:
            self._stop_job(head)
            try:
                self._come_home(head)
                home = True
            except (Unreachable, RuntimeError, OSError) as error:
                if self.order["lease"] == "hold" and not lost:
                    raise NotDown(self._stays(error)) from error
                self.say(f"not all results could be fetched: {error}")
        sure = []
        if self.cluster.own_machines:
            sure = self._machines_free(home)
        elif self.config.exists():
            self.say("ending the cluster (ray down)")
            sure = self._nodes_gone(head)
        shutil.rmtree(self.stage, ignore_errors=True)  # the token and the data among it
        self.launch.reach("down", sure=sure)
        return sure

    def _stays(self, error: Exception) -> str:
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(self.order["deadline"])))
        return (
            f"the head holds results that could not be fetched: {error}\n"
            f"    it ends by itself at {until}; with --no-fetch it ends now, and they are lost"
        )

    def _stop_job(self, head: Host) -> None:
        """Ask a sweep that is still running to end as by Ctrl-C: what is committed then is whole."""
        with suppress(Unreachable, RuntimeError):
            head.run(
                f"cd {self.order['kept']}/{self.order['job']} && [ ! -f ended ] && "
                f"pkill -TERM -P $(cat {PID}) -f 'raybench sweep' && "
                "for i in $(seq 40); do [ -f ended ] && break; sleep 0.5; done; true"
            )

    def _machines_free(self, home: bool) -> list[str]:
        """End the launch on each machine, and remove what was put there; its results only where they are home."""
        sure, left = [], []
        for host in self._machines():
            mine = f'[ "$(cat ~/.raybench-lease/launch 2>/dev/null)" = {self.order["id"]} ]'
            try:
                # without its lease the machine was freed by itself, and may be somebody else's by now
                still = host.run(f"! {mine} || {LEASE} end").split()
                if still:
                    left.append(f"{host.address}: processes {', '.join(still)}")
                    continue
                if home:
                    host.run(f"rm -rf {self.order['kept']}")
                sure.append(f"{host.address}: no process of this launch, token and key removed")
            except (Unreachable, RuntimeError) as error:
                left.append(f"{error} (what runs there ends by itself when its lease runs out)")
        if left:
            raise NotDown("\n    ".join(left))
        return sure

    def _nodes_gone(self, head: Host | None) -> list[str]:
        """End the nodes, and ask the provider until it knows none of this cluster.

        Ray on the head ends first: its autoscaler would start workers while they are ended.
        """
        trouble = ""
        if head is not None:
            with suppress(Unreachable):
                head.run(f"{LEASE} end", check=False)
        try:
            launcher.down(self.config, self.launch.place(LAUNCHER_LOG), self.env)
        except launcher.LaunchFailed as error:  # whether something is left is seen below
            trouble = str(error)
        until = time.monotonic() + GONE_SECONDS
        while True:
            try:
                left = launcher.alive(self.config, self.env)
            except launcher.LaunchFailed as error:
                what = f"the provider does not say what is left: {trouble or error}"
                raise NotDown(what) from error
            if not left:
                return ["the provider knows no node of this cluster"]
            if time.monotonic() > until:
                what = f"the provider still has {', '.join(left)}"
                raise NotDown(
                    f"{what}\n    end them in its console; {trouble or 'ray down did not'}"
                )
            time.sleep(5)
