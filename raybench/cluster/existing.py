"""A sweep as a job of a Ray cluster that is there already: nothing is started, and nothing is ended."""

from __future__ import annotations

import re
import shutil
import time

from raybench.cluster import jobs
from raybench.cluster.stage import LOG, TOKEN
from raybench.cluster.steps import HeadLost, Steps
from raybench.core.errors import InputError

POLLED, FAILURES = 2.0, 150  # seconds between two looks at a job, and how many may fail in a row
STAYS = "the cluster is not ours and stays"


class OnExisting(Steps):
    """The steps of a launch on somebody's cluster, reached by the address of its Jobs API (``http://HOST:8265``).

    Whether it asks for a token is its own affair: this process's ``RAY_AUTH_MODE`` and token are shown to it. Results
    go where the cluster and this machine both see them.
    """

    @property
    def env(self) -> dict[str, str]:
        """Nothing but the user's own environment."""
        return {}

    @property
    def _url(self) -> str:
        return str(self.order["address"])

    def up(self) -> None:
        """Nothing is to be started."""
        if self.launch.reached("up") is None:
            self.launch.reach("up", address=self._url)

    def submit(self) -> None:
        """Submit the sweep with what it needs: Ray carries the folder to wherever the job runs."""
        if self.launch.reached("submitted") is not None:
            return
        stage, job = self.stage, self.order["job"]
        (stage / TOKEN).unlink(missing_ok=True)  # that of a cluster of our own
        wheel = next(stage.glob("raybench-*.whl"))
        carried = {"working_dir": str(stage), "py_modules": [str(wheel)]}
        script = "bash job.sh"
        try:
            jobs.ask(self.env, "submit", self._url, job, entrypoint=script, runtime_env=carried)
        except jobs.JobFailed as error:
            fix = "where it asks for a token: RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or ~/.ray/auth_token"
            raise InputError.of("--address", str(error), fix) from error
        self.launch.reach("submitted", job=job)
        self.say(f"submitted as {job}")

    def follow(self) -> int:
        """Tell what the job prints until it ends; return the sweep's exit code. Raises HeadLost."""
        over = self.launch.reached("fetched")
        if over is not None:
            return int(over["code"])
        told = failures = 0
        while True:
            try:
                said = jobs.ask(self.env, "look", self._url, self.order["job"])
            except jobs.JobFailed as error:
                failures += 1
                if failures > FAILURES:
                    raise HeadLost(f"the Jobs API at {self._url} was lost: {error}") from error
                time.sleep(POLLED)
                continue
            failures, log = 0, str(said["logs"])
            if self.launch.reached("running") is None:
                self.launch.reach("running")
            for line in log[told:].splitlines():
                if line.startswith(f"{self.order['name']}: "):  # of the driver's progress
                    self.say(line)
            told = len(log)
            if said["over"]:
                break
            time.sleep(POLLED)
        self.launch.place(LOG).write_text(log)
        exited = re.search(r"exit code (\d+)", said["message"])
        code = 0 if said["status"] == "SUCCEEDED" else int(exited[1]) if exited else 1
        self.launch.reach("fetched", code=code)
        return code

    def log(self) -> str:
        """Return the job's log."""
        try:
            return str(jobs.ask(self.env, "look", self._url, self.order["job"])["logs"])
        except jobs.JobFailed:
            path = self.launch.place(LOG)
            return path.read_text() if path.exists() else ""

    def down(self, fetching: bool = True, lost: bool = False) -> list[str]:
        """Ask the job to stop if it runs still; the cluster is not ours to end."""
        if self.launch.reached("down") is None:
            submitted = self.launch.reached("submitted") is not None
            if submitted and self.launch.reached("fetched") is None:
                jobs.ask(self.env, "stop", self._url, self.order["job"])
            shutil.rmtree(self.stage, ignore_errors=True)
            self.launch.reach("down", sure=[STAYS])
        return [STAYS]
