"""Ray's Jobs API, as a program: ``python -m raybench.cluster.jobs ACTION URL ID JSON`` prints one JSON line.

A program of its own, because Ray reads how it authenticates when it is loaded: by then the launch's token must be named
in the environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from raybench.cluster.hosts import last_line
from raybench.core.errors import InputError

PATIENCE = 90.0


class JobFailed(RuntimeError):
    """The Jobs API refused or did not answer."""


def ask(env: Mapping[str, str], action: str, url: str, job: str, **more: Any) -> dict[str, Any]:
    """Return what the Jobs API at ``url`` says of a job. Raises JobFailed, with what it said.

    submit: starts ``entrypoint`` unless a job of that id is there. look: ``{status, message, logs}``. stop: asks it to
    end.
    """
    done = subprocess.run(
        [sys.executable, "-m", "raybench.cluster.jobs", action, url, job, json.dumps(more)],
        capture_output=True, text=True, env={**os.environ, **env}, timeout=180, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise JobFailed(last_line(done.stderr) or f"the Jobs API at {url} gave no answer")
    answer: dict[str, Any] = json.loads(lines[-1])
    if "error" in answer:
        raise JobFailed(answer["error"])
    return answer


def check_installed() -> None:
    """Raise InputError unless what the Jobs API's client needs is installed."""
    if find_spec("aiohttp") is None or find_spec("aiohttp_cors") is None:
        what = "launching needs Ray's job client"
        raise InputError.of("launch", what, 'pip install "raybench[cluster]"')


def _main(action: str, url: str, job: str, more: dict[str, Any]) -> dict[str, Any]:
    from ray.job_submission import JobSubmissionClient

    until = time.monotonic() + PATIENCE
    while True:
        try:
            client = JobSubmissionClient(url)
            break
        except ConnectionError:  # the dashboard of a head that was just started comes up last
            if time.monotonic() > until:
                raise
            time.sleep(1)
    if action == "submit":
        try:
            client.submit_job(submission_id=job, **more)
        except RuntimeError as error:
            if "already exists" not in str(error):  # submitted twice is one job
                raise
        return {"job": job}
    if action == "stop":
        return {"stopped": client.stop_job(job)}
    info = client.get_job_info(job)
    said = {"status": str(info.status.value), "message": info.message or ""}
    return {**said, "over": info.status.is_terminal(), "logs": client.get_job_logs(job)}


if __name__ == "__main__":
    try:
        answer = _main(sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))
    except Exception as problem:  # told to whoever called this program, in one line
        answer = {"error": f"{type(problem).__name__}: {last_line(str(problem))}"}
    print(json.dumps(answer))
