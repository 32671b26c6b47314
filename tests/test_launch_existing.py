"""A sweep as a job of a cluster that is there: a real head on this machine, which asks for a token."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from heads_kit import free_port, head, without_token, write_token

from raybench import store
from raybench.cluster.states import Launch

pytest.importorskip("aiohttp_cors", reason="pip install 'raybench[cluster]'")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SWEEP = """\
name: near
problem: {name: quadratic, dim: 12, clients: 4}
algorithm: [gd, ef21]
compressor: {name: top_k, k: 2}
step_size: {theory: [1, 2]}
rounds: 30
"""


def raybench(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Call the command line in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "raybench", *args],
        cwd=folder, env=without_token(**env), capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip


def test_a_job_of_a_cluster_that_is_there(tmp_path: Path) -> None:
    """The sweep runs there, its results lie in the shared folder, and the cluster stays."""
    token, port = write_token(tmp_path / "token"), free_port()
    shown = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    flags = (
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={port}",
        "--node-ip-address=127.0.0.1",
    )
    with head(*flags, **shown):
        check_jobs(f"http://127.0.0.1:{port}", shown, tmp_path)


def check_jobs(url: str, shown: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "near.yaml").write_text(SWEEP)
    out = tmp_path / "shared"
    args = ("launch", "near.yaml", "--address", url, "--out", f"file://{out}", "--yes")

    refused = raybench(tmp_path, *args, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)
    assert refused.returncode == 2, refused.stderr
    assert "--address" in refused.stderr
    assert "RAY_AUTH" in refused.stderr
    assert "Traceback" not in refused.stderr

    done = raybench(tmp_path, *args, **shown)
    assert done.returncode == 0, done.stderr
    cells = store.cells(str(out))
    assert set(cells["status"]) == {"ok"}
    assert len(cells) == 4
    assert Launch(tmp_path / "results/near").state == "down"
    urllib.request.urlopen(f"{url}/api/gcs_healthz", timeout=5)  # it is there still

    again = raybench(tmp_path, *args, **shown)
    assert again.returncode == 0, again.stderr
    assert "nothing is missing" in again.stderr
