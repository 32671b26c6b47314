"""Clusters that are there, real heads: joined with and without a token from homes with and without one."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import pytest
from cli_kit import call
from cluster_kit import head, without_token, write_token

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]
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
    done = call(sys.executable, "-c", JOIN, address, out, env=env, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
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
