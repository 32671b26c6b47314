"""A sweep as a job of a Ray cluster that is there already: nothing is started, and nothing is ended."""

from __future__ import annotations

import re
import shutil
from typing import Any

from raybench.cluster import jobs
from raybench.cluster.stage import TOKEN
from raybench.cluster.steps import Steps
from raybench.core.errors import InputError


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
        """See whether the cluster answers."""
        if self.launch.reached("up") is None:
            self.launch.reach("up", address=self._url)

    def submit(self) -> None:
        """Submit the sweep with what it needs: Ray carries the folder to wherever the job runs."""
        if self.launch.reached("submitted") is not None:
            return
        stage = self.stage
        (stage / TOKEN).unlink(missing_ok=True)  # that of a cluster of our own
        wheel = next(stage.glob("raybench-*.whl"))
        carried = {"working_dir": str(stage), "py_modules": [str(wheel)]}
        job = self.order["job"]
        try:
            jobs.ask(
                self.env, "submit", self._url, job, entrypoint="bash job.sh", runtime_env=carried
            )
        except jobs.JobFailed as error:
            fix = "where it asks for a token: RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or ~/.ray/auth_token"
            raise InputError.of("--address", str(error), fix) from error
        self.launch.reach("submitted", job=job)
        self.say(f"submitted as {job}")

    def follow(self) -> int:
        """Tell what the job prints until it ends; return the sweep's exit code."""
        over = self.launch.reached("fetched")
        if over is not None:
            return int(over["code"])

        def tell(text: str) -> None:
            if self.launch.reached("running") is None:
                self.launch.reach("running")
            for line in text.splitlines():
                if line.startswith(f"{self.order['name']}: "):  # of the driver's progress
                    self.say(line)

        said = jobs.followed(self.env, self._url, self.order["job"], tell)
        code = _code(said)
        self.launch.reach("fetched", code=code)
        return code

    def log(self, lines: int = 12) -> str:
        """Return the last lines of the job's log."""
        try:
            said = str(jobs.ask(self.env, "logs", self._url, self.order["job"])["logs"])
        except jobs.JobFailed:
            return ""
        return "\n".join(said.rstrip().splitlines()[-lines:])

    def down(self, fetching: bool = True) -> list[str]:
        """Ask the job to stop if it runs still; the cluster is not ours to end."""
        if self.launch.reached("down") is None:
            if (
                self.launch.reached("submitted") is not None
                and self.launch.reached("fetched") is None
            ):
                jobs.ask(self.env, "stop", self._url, self.order["job"])
            shutil.rmtree(self.stage, ignore_errors=True)
            self.launch.reach("down", sure=["the cluster is not ours and stays"])
        return ["the cluster is not ours and stays"]


def _code(said: dict[str, Any]) -> int:
    """Return the exit code that a job's last status tells."""
    if said["status"] == "SUCCEEDED":
        return 0
    found = re.search(r"exit code (\d+)", said["message"])
    return int(found[1]) if found else 1
