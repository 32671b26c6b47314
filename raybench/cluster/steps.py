"""From state to state: each step finds out what is there already, so that any of them may be taken twice."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from raybench.cluster import file, launcher
from raybench.cluster.file import ClusterFile
from raybench.cluster.follow import Told, fetch, send
from raybench.cluster.hosts import Host, Unreachable
from raybench.cluster.stage import ENDED, LEASE, LOG, PID, TOKEN
from raybench.cluster.states import LOG as LAUNCHER_LOG
from raybench.cluster.states import Launch
from raybench.core.errors import InputError
from raybench.execution.execute import Progress
from raybench.runtime.progress import View

DASHBOARD_SECONDS = 120.0
PUSH_EVERY = 10.0
LOOK_EVERY, FETCH_EVERY = 5.0, 15.0  # seconds between two looks at the progress, and at results
ASK_PROVIDER = 60.0  # seconds of silence after which the provider is asked whether it has nodes
PATIENCE = 900.0  # seconds of silence after which a head that the provider has is given up
LAST_SECONDS = 120.0  # before the deadline, for what comes home then
GONE_SECONDS = 90.0  # that a provider may take to forget a node
OVER = 1  # exit code of a sweep whose hours are over


class HeadLost(RuntimeError):
    """The head does not answer, for so long that it is given up."""


class NotDown(RuntimeError):
    """Something of the cluster is still there; the text names it and says what to do."""


@dataclass
class Steps:
    """The steps of one launch. say: told what happens; show: given the sweep's progress and a remark."""

    launch: Launch
    say: Callable[[str], None] = print
    show: Callable[[dict[str, Any], str], None] = field(default=lambda progress, remark: None)

    @cached_property
    def order(self) -> dict[str, Any]:
        """What this launch is to do."""
        return self.launch.ordered()

    @cached_property
    def cluster(self) -> ClusterFile:
        """The cluster file, as it was when the launch began."""
        return file.read(str(self.launch.place("given.yaml")))

    @property
    def stage(self) -> Path:
        """The folder of what travels, here."""
        return self.launch.place("stage")

    @property
    def config(self) -> Path:
        """What Ray's launcher is given."""
        return self.launch.place("cluster.yaml")

    @property
    def env(self) -> dict[str, str]:
        """Variables that show this launch's token to the cluster."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.stage / TOKEN)}

    @property
    def job(self) -> str:
        """The folder on the head of what the job tells."""
        return f"{self.order['kept']}/{self.order['job']}"

    def reached(self, state: str) -> bool:
        """Whether a state was reached."""
        return self.launch.reached(state) is not None

    def head(self) -> Host:
        """Return the head. Raises HeadLost where the cluster was never up."""
        up = self.launch.reached("up")
        if up is None:
            raise HeadLost("the cluster is not up yet")
        return Host(**up["head"])

    # -- up, submitted -----------------------------------------------------------------------

    def up(self) -> None:
        """Start the cluster, unless it is up already: its head answers, and its lease has not run out."""
        if self.reached("submitted"):
            return  # whoever follows finds out
        if self.reached("up"):
            with suppress(Unreachable, RuntimeError):
                self.head().run(f"{LEASE} push", timeout=30)
                return
        order, deadline = self.order, float(self.order["deadline"])
        name = f"{self.cluster.config.get('cluster_name', 'raybench')}-{order['id']}"
        take = launcher.taking(self.cluster, order["id"], deadline, order["owner"])
        given = (name, self.stage, str(order["python"]), take, deadline)
        config = launcher.rendered(self.cluster, *given)
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
                taken.append(host)
            except (Unreachable, RuntimeError) as error:
                for one in taken:
                    with suppress(Unreachable):
                        one.run(f"{LEASE} end", check=False)
                self.launch.reach("down", sure=["nothing was started"])
                fix = "wait, or give other machines; each is reached by ssh without a password"
                raise InputError.of("--cluster", str(error), fix) from error

    @contextmanager
    def pushing(self) -> Iterator[None]:
        """Push the leases of the user's own machines meanwhile: to set one up may take longer than a lease lasts."""
        over = threading.Event()

        def push() -> None:
            while not over.wait(PUSH_EVERY):
                for host in self._machines():
                    with suppress(Unreachable):
                        host.run(f"{LEASE} push", timeout=30, check=False)

        threading.Thread(target=push, daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _machines(self) -> list[Host]:
        auth = self.cluster.config.get("auth") or {}
        return [launcher.reached(address, auth) for address in self.cluster.hosts]

    def submit(self) -> None:
        """Submit the sweep as a job with an id of our own, so that submitting twice is one job."""
        if self.reached("submitted"):
            return
        head, job, there = self.head(), self.order["job"], launcher.folder_there(self.cluster)
        head.push(self.stage, there)  # the mounts of ``ray up``, where they are older
        if self.order["out"]:
            send(head, self.launch.results, self.order["out"])
        head.run(f"mkdir -p {self.job} && {LEASE} push")
        python = f"{launcher.token(self.cluster)}; {self.order['python']}"
        ask = f"{python} {launcher.SUBMIT} --submission-id {job} -- bash {there}/job.sh"
        until = time.monotonic() + DASHBOARD_SECONDS
        while True:
            said = head.run(f"{ask} 2>&1; echo rc=$?", timeout=180).strip()
            if said.endswith("rc=0") or "already exists" in said:
                break  # an id that is there already is the same job
            if time.monotonic() > until:  # the dashboard of a new head comes up last
                raise launcher.LaunchFailed(f"the sweep could not be submitted: {said[-300:]}")
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
        told, heard, asked, fetched = Told(), time.monotonic(), 0.0, -FETCH_EVERY
        while told.code is None and time.time() < last:
            remark, due = "", time.monotonic() - fetched >= FETCH_EVERY
            try:
                told = fetch(head, self.launch.results, self.job, self.order["out"] if due else "")
                heard, asked = time.monotonic(), 0.0
                fetched = heard if due else fetched
                if told.progress and not self.reached("running"):
                    self.launch.reach("running")
            except Unreachable:
                silence = time.monotonic() - heard
                if silence > 10:
                    remark = f"the head is silent for {silence:.0f} s"
                if silence - asked > ASK_PROVIDER:
                    asked = silence
                    self._see(head, silence)
            except (RuntimeError, OSError) as error:
                remark = str(error)  # a full disk here does not end the sweep there
                with suppress(Unreachable):
                    end = head.run(f"cat {self.job}/{ENDED} 2>/dev/null; true", timeout=30).strip()
                    told = replace(told, code=int(end) if end.isdecimal() else None)
            self.show(told.progress, remark)
            if told.code is None:
                time.sleep(LOOK_EVERY)
        code = told.code
        if code is None:
            self.say("the hours of this launch are over")
            self._stop_job(head)
            code = OVER
        self._come_home(head)
        self.launch.reach("fetched", code=code)
        return code

    def _see(self, head: Host, silence: float) -> None:
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
        if silence > PATIENCE:
            try:
                head.run("true", timeout=30)
            except Unreachable as error:
                raise HeadLost(f"no answer for {silence:.0f} s: {error}") from error

    def _come_home(self, head: Host) -> None:
        """Fetch all results, and let the head go. Raises Unreachable after some attempts, RuntimeError, OSError."""
        for attempt in range(4):
            try:
                if self.order["out"]:
                    told = fetch(head, self.launch.results, self.job, self.order["out"])
                    self.say(f"{told.shards:,} shards are in {self.launch.results}")
                self.launch.place(LOG).write_text(
                    head.run(f"tail -c 1000000 {self.job}/{LOG}; true")
                )
                head.run(f"{LEASE} release", check=False)
                return
            except Unreachable:
                if attempt == 3:
                    raise
                time.sleep(5 * attempt)

    def log(self) -> str:
        """Return the job's log: as it is on the head, or as it was when it was fetched."""
        with suppress(Unreachable, RuntimeError):
            if not self.reached("down"):
                return self.head().run(f"cat {self.job}/{LOG}")
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
        head = self.head() if self.reached("up") else None
        home = self.reached("fetched") or not self.reached("submitted")
        if head is not None and fetching and not home:
            self._stop_job(head)
            try:
                self._come_home(head)
                home = True
            except (Unreachable, RuntimeError, OSError) as error:
                if self.order["lease"] == "hold" and not lost:
                    ends = time.localtime(float(self.order["deadline"]))
                    raise NotDown(
                        f"the head holds results that could not be fetched: {error}\n    it ends by itself at "
                        f"{time.strftime('%H:%M on %Y-%m-%d', ends)}; --no-fetch ends it now, and they are lost"
                    ) from error
                self.say(f"not all results could be fetched: {error}")
        if not self.config.exists():
            sure = ["nothing was started"]
        else:
            sure = (
                self._machines_free(home) if self.cluster.own_machines else self._nodes_gone(head)
            )
        shutil.rmtree(self.stage, ignore_errors=True)  # the token and the data among it
        self.launch.reach("down", sure=sure)
        return sure

    def _stop_job(self, head: Host) -> None:
        """Ask a sweep that is still running to end as by Ctrl-C: what is committed then is whole."""
        with suppress(Unreachable, RuntimeError):
            head.run(
                f"cd {self.job} && [ ! -f ended ] && pkill -TERM -P $(cat {PID}) -f 'raybench sweep' && "
                "for i in $(seq 40); do [ -f ended ] && break; sleep 0.5; done; true"
            )

    def _machines_free(self, home: bool) -> list[str]:
        """End the launch on each machine, and remove what was put there; its results only where they are home."""
        sure, left = [], []
        # without its lease a machine was freed by itself, and may be somebody else's by now
        mine = f'[ "$(cat ~/.raybench-lease/launch 2>/dev/null)" = {self.order["id"]} ]'
        results = f"rm -rf {self.order['kept']}" if home else "true"
        for host in self._machines():
            try:
                still = host.run(f"{results}; ! {mine} || {LEASE} end").split()
            except (Unreachable, RuntimeError) as error:
                left.append(f"{error} (what runs there ends by itself when its lease runs out)")
                continue
            if still:
                left.append(f"{host.address}: processes {', '.join(still)}")
            sure.append(f"{host.address}: no process of this launch, token and key removed")
        if left:
            raise NotDown("\n    ".join(left))
        return sure

    def _nodes_gone(self, head: Host | None) -> list[str]:
        """End the nodes, and ask the provider until it knows none of this cluster.

        Ray on the head ends first: its autoscaler would start workers while they are ended.
        """
        self.say("ending the cluster (ray down)")
        trouble, until = "ray down did not", time.monotonic() + GONE_SECONDS
        with suppress(Unreachable):
            if head is not None:
                head.run(f"{LEASE} end", check=False)
        try:
            launcher.down(self.config, self.launch.place(LAUNCHER_LOG), self.env)
        except launcher.LaunchFailed as error:  # whether something is left is seen below
            trouble = str(error)
        while True:
            try:
                left = launcher.alive(self.config, self.env)
            except launcher.LaunchFailed as error:
                raise NotDown(f"the provider does not say what is left: {error}") from error
            if not left:
                return ["the provider knows no node of this cluster"]
            if time.monotonic() > until:
                end = f"the provider still has {', '.join(left)}: end them in its console"
                raise NotDown(f"{end}; {trouble}")
            time.sleep(5)


@contextmanager
def progress(steps: Steps) -> Iterator[None]:
    """Show the progress of the sweep there in the same block as one that runs here."""
    views: list[View] = []

    def show(said: dict[str, Any], remark: str) -> None:
        if said and not views:
            views.append(View(said["name"], said["cells"], said["rounds"], said["before"]))
            views[0].__enter__()
        for view in views if said else ():
            view.began = time.monotonic() - said["seconds"]  # when the driver did, not this process
            now = Progress(**said["now"])
            view.update(now, remark or said["stage"], said.get("silent", ()))

    steps.show = show
    try:
        yield
    finally:
        for view in views:
            view.__exit__(None, None, None)
