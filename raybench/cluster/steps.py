"""From state to state: each step finds out what is there already, so that any of them may be taken twice."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from raybench.cluster import end, fetch, file, jobs, provider, render
from raybench.cluster.file import ClusterFile
from raybench.cluster.follow import Listener, forwarded
from raybench.cluster.hosts import Host, Unreachable
from raybench.cluster.stage import ENDED, PID, TOKEN
from raybench.cluster.states import LOG, Launch
from raybench.core.errors import InputError

JOBS_PORT = 8265
FETCH_EVERY = 30.0
PATIENCE = 900.0  # seconds without a word from the head, until the follower gives up; the sweep goes on there
RUNNING = ("PENDING", "RUNNING")

Say = Callable[[str], None]
Show = Callable[[dict[str, Any], str], None]


class HeadLost(RuntimeError):
    """The head does not answer; the text says since when, and what can be done."""


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
    def python(self) -> str:
        """The interpreter on the hosts that raybench is installed for."""
        return str(self.order["python"])

    @property
    def there(self) -> str:
        """The folder of this launch on the hosts."""
        return render.folder_there(self.cluster)

    @property
    def results_there(self) -> str:
        """The results' folder on the head; empty where they go to an object store."""
        if self.order.get("remote_out"):
            return ""
        return render.results_there(self.cluster, self.order["id"], self.order["name"])

    @property
    def env(self) -> dict[str, str]:
        """Variables that show this launch's token to the cluster."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.stage / TOKEN)}

    @property
    def stage(self) -> Path:
        return self.launch.place("stage")

    @property
    def _config(self) -> Path:
        return self.launch.place("cluster.yaml")

    def head(self) -> Host:
        """Return the head. Raises HeadLost where the cluster was never up."""
        up = self.launch.reached("up")
        if up is None:
            raise HeadLost("the cluster is not up yet")
        return Host(**up["head"])

    # -- up ----------------------------------------------------------------------------------

    def up(self) -> None:
        """Start the cluster, unless it is up already and its head answers."""
        if self.launch.reached("up") is not None:
            with suppress(Unreachable):
                self.head().run("true", timeout=30)
                return
        self._free()
        config = render.rendered(
            self.cluster, f"{self.cluster.config.get('cluster_name', 'raybench')}-{self.order['id']}",
            self.stage, self.python,
        )  # fmt: skip
        self._config.write_text(yaml.safe_dump(config, sort_keys=False))
        self.say(f"starting {config['cluster_name']} (ray up)")
        provider.up(self._config, self.launch.place(LOG), self.env)
        known = str(self.launch.place("known_hosts").resolve())
        head = provider.head(self._config, self.env, known)
        head.run("true", timeout=60)
        self.launch.reach("up", head=vars(head))
        self.say(f"the head is up: {head.login}")

    def _free(self) -> None:
        """Raise InputError where a Ray runs already on a machine of the user's: ``ray up`` would end it."""
        for address in self.cluster.hosts:
            host = end.reached(self.cluster, address, None)
            try:
                busy = end.processes(host, patience=0.0)
            except (Unreachable, RuntimeError) as error:
                fix = "every machine of the file must be reached by ssh without a password"
                raise InputError.of("--cluster", str(error), fix) from error
            if busy:
                what = f"Ray runs on {address} already (processes {', '.join(busy[:4])})"
                raise InputError.of(
                    "--cluster", what, "end it there, or join it: --address HOST:8265"
                )

    # -- submitted ---------------------------------------------------------------------------

    def submit(self) -> None:
        """Submit the sweep as a job with an id of our own, so that submitting twice is one job."""
        if self.launch.reached("submitted") is not None:
            return
        job = self.order["job"]
        head = self.head()
        head.push(self.stage, self.there)  # the mounts of ``ray up``, where they are older
        if self.results_there:
            fetch.send(self.launch, head, self.results_there)
        with self._jobs(head) as url:
            jobs.ask(self.env, "submit", url, job, entrypoint=f"bash {self.there}/job.sh")
        self.launch.reach("submitted", job=job)
        self.say(f"submitted as {job}")

    @contextmanager
    def _jobs(self, head: Host) -> Iterator[str]:
        """Yield the address of the head's Jobs API, through a tunnel."""
        tunnel, port = forwarded(head, JOBS_PORT)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            tunnel.kill()
            tunnel.wait()

    # -- running, fetched --------------------------------------------------------------------

    def follow(self) -> int:
        """Show the sweep's progress, and fetch its shards, until it ends; return its exit code.

        Raises HeadLost where nothing is heard of the head for long.
        """
        over = self.launch.reached("fetched")
        if over is not None:
            return int(over["code"])
        head = self.head()
        fetched = time.monotonic()
        with Listener(head, self.there, self.order["job"]) as listener:
            told = listener.told
            while told.code is None:
                if told.progress and self.launch.reached("running") is None:
                    self.launch.reach("running")
                remark = ""
                if told.silence > 10:
                    remark = f"the head is silent for {told.silence:.0f} s"
                    self._heard_of(head, told.silence)
                self.show(told.progress, remark)
                if self.results_there and time.monotonic() - fetched > FETCH_EVERY:
                    with suppress(Unreachable, RuntimeError):  # the next time will do
                        fetch.fetch(self.launch, head, self.results_there)
                    fetched = time.monotonic()
                time.sleep(0.5)
            self.show(told.progress, "")
            code = told.code
        self._fetch_all(head)
        self.launch.reach("fetched", code=code)
        return code

    def _heard_of(self, head: Host, silence: float) -> None:
        """Raise HeadLost where nothing was heard for long."""
        if silence > PATIENCE:
            raise HeadLost(
                f"{head.address} has not answered for {silence:.0f} s. The sweep may go on there:\n"
                f"    raybench attach {self.launch.results}, or raybench down {self.launch.results}"
            )

    def _fetch_all(self, head: Host) -> None:
        if not self.results_there:
            return
        for attempt in range(3):
            try:
                count = fetch.fetch(self.launch, head, self.results_there)
            except Unreachable:
                if attempt == 2:
                    raise
                time.sleep(5)
            else:
                self.say(f"{count:,} shards are in {self.launch.results}")
                return

    def log(self, lines: int = 12) -> str:
        """Return the last lines of the job's log, empty where it cannot be had."""
        with (
            suppress(Unreachable, OSError, jobs.JobFailed, HeadLost),
            self._jobs(self.head()) as url,
        ):
            said = str(jobs.ask(self.env, "logs", url, self.order["job"])["logs"])
            return "\n".join(said.rstrip().splitlines()[-lines:])
        return ""

    # -- down --------------------------------------------------------------------------------

    def down(self, fetching: bool = True) -> list[str]:
        """Fetch what there is, end the cluster, and return how it is known that nothing is left.

        Raises NotDown where something is, or may be.
        """
        ended = self.launch.reached("down")
        if ended is not None:
            return list(ended["sure"])
        head: Host | None = None
        fetched = self.launch.reached("fetched") is not None
        with suppress(HeadLost):
            head = self.head()
        if head is not None and fetching and self.launch.reached("submitted") is not None:
            self._stop_job(head)
            if self.launch.reached("fetched") is None:
                try:
                    self._fetch_all(head)
                    fetched = True
                except (Unreachable, RuntimeError) as error:
                    self.say(f"not all results could be fetched: {error}")
        sure = []
        if self._config.exists():
            self.say("ending the cluster (ray down)")
            if head is not None and fetched and self.results_there:
                with suppress(Unreachable):
                    head.run(f"rm -rf {Path(self.results_there).parent}", check=False)
            sure = end.take_down(
                self.cluster, self._config, self.launch.place(LOG), self.env, head, self.there,
                self.python,
            )  # fmt: skip
        for name in ("stage", "incoming"):  # the token and the data among it
            shutil.rmtree(self.launch.place(name), ignore_errors=True)
        self.launch.reach("down", sure=sure)
        return sure

    def _stop_job(self, head: Host) -> None:
        """Ask a sweep that is still running to end as by Ctrl-C: what is committed then is whole."""
        with suppress(Unreachable, RuntimeError):
            head.run(
                f"cd {self.there}/{self.order['job']} && [ ! -f {ENDED} ] && pkill -TERM -P $(cat {PID}) && "
                f"for i in $(seq 40); do [ -f {ENDED} ] && break; sleep 0.5; done; true"
            )
