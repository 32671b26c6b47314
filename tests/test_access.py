"""Clusters that are there, real heads: joined with and without a token from homes with and without one; a job."""

import importlib.util
import secrets
import sys
import urllib.request
from pathlib import Path

import pytest
from cli_kit import call
from cluster_kit import free_port, head, without_token, write_token

from raybench import store

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(300)]
JOIN = """
import sys
import raybench
one = {"name": "x", "problem": {"name": "quadratic", "dim": 4, "clients": 2}, "algorithm": "gd",
       "step_size": {"value": 0.1}, "rounds": 3}
try:
    print(raybench.sweep(one, out=sys.argv[2], address=sys.argv[1]).counts)
except raybench.InputError as error:
    print("refused:", error)
"""


def join(address: str, home: Path, out: Path, **more: str) -> str:
    """Run a sweep on a cluster from a home; return what it printed last."""
    env = without_token(HOME=str(home), **more)
    done = call(sys.executable, "-c", JOIN, address, out, env=env, timeout=200, check=True)
    return done.stdout.strip()


@pytest.fixture
def homes(tmp_path: Path) -> tuple[Path, Path]:
    """A home without a token, and one with one."""
    bare, owner = tmp_path / "bare", tmp_path / "owner"
    bare.mkdir()
    write_token(owner / ".ray" / "auth_token")
    return bare, owner


CLOSED = "--include-dashboard=false"


def test_an_open_cluster_is_joined_with_and_without_a_token_at_home(tmp_path, homes):
    with head(CLOSED, HOME=str(homes[0]), RAY_AUTH_MODE="disabled") as port:
        for name, home in zip("ab", homes, strict=True):
            assert join(f"127.0.0.1:{port}", home, tmp_path / name) == "{'ok': 1, 'skipped': 0}"


def test_a_cluster_that_asks_for_a_token_says_what_is_missing(tmp_path, homes):
    bare, owner = homes
    with head(CLOSED, HOME=str(owner), RAY_AUTH_MODE="token") as port:
        address = f"127.0.0.1:{port}"
        said = join(address, bare, tmp_path / "a")
        assert said.startswith(f"refused: --address: the cluster at {address} asks for a token")
        assert "RAY_AUTH_MODE=token" in said
        said = join(address, bare, tmp_path / "a", RAY_AUTH_MODE="token")
        assert "this user has no token" in said
        wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        said = join(address, bare, tmp_path / "a", **wrong)
        assert f"the cluster at {address} refuses the token of RAY_AUTH_TOKEN" in said
        assert not (tmp_path / "a" / "cells").exists()
        said = join(address, owner, tmp_path / "b", RAY_AUTH_MODE="token")
        assert said == "{'ok': 1, 'skipped': 0}"


def test_where_nobody_listens_it_is_said_at_once(tmp_path):
    said = join("127.0.0.1:1", tmp_path, tmp_path / "a")
    assert said.startswith("refused: --address: no Ray cluster answers at 127.0.0.1:1")


# A job of a cluster that is there ---------------------------------------------------------------

SWEEP = """\
name: near
problem: {name: quadratic, dim: 12, clients: 4}
algorithm: [gd, ef21]
compressor: {name: top_k, k: 2}
step_size: {theory: [1, 2]}
rounds: 30
"""


@pytest.mark.timeout(600)
@pytest.mark.skipif(
    importlib.util.find_spec("aiohttp_cors") is None, reason="needs raybench[cluster]"
)
def test_a_job_of_a_cluster_that_is_there(tmp_path: Path) -> None:
    """The sweep runs there, its results lie in the shared folder, and the cluster stays."""
    token, port = write_token(tmp_path / "token"), free_port()
    shown = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    flags = [
        f"--dashboard-port={port}",
        "--dashboard-host=127.0.0.1",
        "--node-ip-address=127.0.0.1",
    ]
    with head(*flags, **shown):
        check_jobs(f"http://127.0.0.1:{port}", shown, tmp_path)


def check_jobs(url: str, shown: dict[str, str], tmp_path: Path) -> None:
    """Call Ray's own command, as docs/cluster.md has it."""
    folder, out = tmp_path / "folder", tmp_path / "shared"
    folder.mkdir()
    (folder / "near.yaml").write_text(SWEEP)
    sweep = f"python -m raybench sweep near.yaml --address auto --out file://{out}"
    ray = (sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--address", url)
    command = (
        *ray,
        "--working-dir",
        folder,
        "--",
        *sweep.replace("python", sys.executable).split(),
    )
    done = call(*command, env=without_token(**shown), timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    cells = store.cells(str(out))
    assert set(cells["status"]) == {"ok"}
    assert len(cells) == 4
    urllib.request.urlopen(f"{url}/api/gcs_healthz", timeout=5)  # it is there still
