"""A user's process: importing raybench, compressing and running change nothing in it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from raybench.core import process
from raybench.runtime.session import environment

UNTOUCHED = """
import ctypes, os, sys

class Spied(ctypes.CDLL):  # counts who asks a library for mallopt
    asked = 0
    def __getattr__(self, name):
        Spied.asked += name == "mallopt"
        return super().__getattr__(name)

ctypes.CDLL = Spied
before = dict(os.environ)
import torch
loaded = dict(os.environ)  # torch's own doing is not ours
threads, between = torch.get_num_threads(), torch.get_num_interop_threads()
import raybench
raybench.compressor("top_k:k=1%").compress(torch.ones(2**21)).decode()
raybench.run({
    "problem": {"name": "quadratic", "dim": 10, "clients": 2},
    "algorithm": "ef21",
    "compressor": {"name": "top_k", "k": 1},
    "rounds": 3,
})
assert os.environ == loaded, set(os.environ.items()) ^ set(loaded.items())
assert (torch.get_num_threads(), torch.get_num_interop_threads()) == (threads, between)
assert Spied.asked == 0, "mallopt"
if "--tuned" in sys.argv:  # the spy sees what it is to see
    from raybench.core.process import tune_process
    tune_process()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    assert Spied.asked == 1
print("untouched")
"""
LIGHT = """
import sys
import raybench.compressors
heavy = {"pydantic", "numba", "tensorly", "scipy", "pandas", "ray", "yaml"}
print(sorted(heavy & set(sys.modules)))
"""


def python(code: str, *args: str) -> str:
    """Return what a process of its own prints."""
    tuned = {*process.ENVIRONMENT, "OMP_NUM_THREADS"}
    env = {name: value for name, value in os.environ.items() if name not in tuned}
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.thorough
def test_import_compress_and_run_leave_the_process_as_it_is():
    assert python(UNTOUCHED, "--tuned") == "untouched"


@pytest.mark.thorough
def test_importing_the_operators_loads_nothing_heavy_but_torch():
    assert python(LIGHT) == "[]"


def test_a_variable_that_the_user_set_stays(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    monkeypatch.setattr(process, "keep_freed", lambda: True)
    process.tune_process()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


def test_the_environment_of_a_session_ends_with_it(monkeypatch):
    monkeypatch.setenv("RAYBENCH_SET", "mine")
    monkeypatch.delenv("RAYBENCH_UNSET", raising=False)
    with environment({"RAYBENCH_SET": "ours", "RAYBENCH_UNSET": "ours"}):
        assert os.environ["RAYBENCH_SET"] == "mine"
        assert os.environ["RAYBENCH_UNSET"] == "ours"
    assert os.environ["RAYBENCH_SET"] == "mine"
    assert "RAYBENCH_UNSET" not in os.environ


@pytest.mark.parametrize(
    ("verb", "tuned"),
    [(["sweep", "none.yaml"], True), (["show", "nothing"], True), (["ls"], False)],
)
def test_verbs_that_compute_tune_the_process(verb, tuned, monkeypatch):
    from raybench import cli

    seen = []
    monkeypatch.setattr(cli, "tune_process", lambda: seen.append(True))
    with pytest.raises(SystemExit):
        cli.main(verb)
    assert bool(seen) == tuned


@pytest.mark.ray
def test_sessions_start_whoever_loaded_ray_first():
    """Ray remembers how it authenticates from when it was loaded; two sessions, one after the other."""
    code = (
        "import ray\n"
        "from raybench.runtime.session import ray_session\n"
        "for _ in range(2):\n"
        "    with ray_session('local') as ray:\n"
        "        print(ray.get(ray.put(7)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout.split() == ["7", "7"], done.stderr[-2000:]
