"""A user's process: nothing in it changes, kernels warm up before the clock, machine code is kept on disk."""

import hashlib
import os
import stat
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import torch
from cli_kit import call, cli
from toys import registered

from raybench.algorithms.base import Algorithm, Dense
from raybench.core import process
from raybench.core.compiled import compiled
from raybench.core.errors import InputError
from raybench.core.process import kernel_folder
from raybench.execution import execute as warm
from raybench.execution import run as engine_run
from raybench.execution.execute import execute
from raybench.execution.run import Options
from raybench.runtime.session import environment
from raybench.spec.model import Evaluate, Record
from raybench.testing.trial import Method
from raybench.wire.transport import Transport, on_virtual_ranks

pytestmark = pytest.mark.thorough

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
heavy = {"pydantic", "numba", "tensorly", "scipy", "pandas", "ray", "constriction", "yaml"}
print(sorted(heavy & set(sys.modules)))
"""


def python(code: str, *args: str) -> str:
    """Return what a process of its own prints."""
    tuned = {*process.ENVIRONMENT, "OMP_NUM_THREADS"}
    env = {name: value for name, value in os.environ.items() if name not in tuned}
    done = call(sys.executable, "-c", code, *args, env=env, check=True)
    return done.stdout.strip()


def test_import_compress_and_run_leave_the_process_as_it_is():
    assert python(UNTOUCHED, "--tuned") == "untouched"


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
@pytest.mark.parametrize("loaded_before", [True, False])
def test_sessions_start_whoever_loaded_ray_first(loaded_before):
    """Ray remembers how it authenticates from when it was loaded; two sessions, one after the other."""
    code = "import ray\n" if loaded_before else ""
    code += (
        "from raybench.runtime.session import ray_session\n"
        "for _ in range(2):\n"
        "    with ray_session('local') as ray:\n"
        "        print(ray.get(ray.put(7)))\n"
    )
    done = call(sys.executable, "-c", code, timeout=200)
    assert done.stdout.split() == ["7", "7"], done.stderr[-2000:]


# Warming up ---------------------------------------------------------------------------------------

P = {"name": "quadratic", "dim": 12, "clients": 4, "mu": 0.2}


class Late(Algorithm):
    """Gradient descent whose first rounds in a process take 100 s each, by the test's own clock."""

    now, left = 0.0, 2

    def start(a, net, s, c):
        s.t = torch.zeros(len(s.x))

    def round(a, net, s, c):
        Late.now += 100.0 if Late.left > 0 else 1.0
        Late.left -= 1
        s.x = net.down(Dense(s.x - a.gamma * net.up(Dense(net.grad(s.x))).mean()))


@pytest.fixture
def cold(monkeypatch):
    """Let nothing be warm, and the rounds take what ``Late`` says."""
    monkeypatch.setattr(warm, "_warm", set())
    monkeypatch.setattr(engine_run, "perf_counter", lambda: Late.now)
    monkeypatch.setattr(Late, "left", 2)


def curves_of(transport=None, rounds=10, **evaluate):
    result = []
    batch = Method(
        "late", {}, None, P, step=0.125, rounds=rounds, more={"x0": {"normal": 1.0}}
    ).batch()
    options = Options(record=Record(every=1), evaluate=Evaluate(**evaluate))
    commit = lambda name, curves, cells, files: result.append((curves, cells))  # noqa: E731
    for _ in execute([batch], options, commit, transport=transport):
        pass
    return result


def test_the_first_rounds_of_a_process_are_not_on_the_clock(cold):
    with registered("algorithm", late=Late):
        ((curves, cells),) = curves_of()
    assert curves["seconds"].to_pylist() == pytest.approx(list(range(11)), abs=0.5)
    assert curves["round"].to_pylist() == list(range(11))
    assert cells["rounds"].to_pylist() == [10]


def test_a_kind_is_warmed_up_once(cold):
    with registered("algorithm", late=Late):
        curves_of()
        before = Late.left
        curves_of()
    assert before - Late.left == 10, "as many rounds as there are, and no more"


def test_a_run_is_the_same_as_without(cold, monkeypatch):
    with registered("algorithm", late=Late):
        ((warmed, _),) = curves_of()
        monkeypatch.setattr("raybench.execution.execute.warm_up", lambda *_: None)
        ((plain, _),) = curves_of()
    drop = ["seconds", "seconds_gradient", "seconds_compress", "seconds_communicate"]
    pd.testing.assert_frame_equal(warmed.drop(drop).to_pandas(), plain.drop(drop).to_pandas())


def test_no_metric_is_taken_of_rounds_that_count_for_nothing(cold):
    taken = []

    def metric(problem, x):
        """Count how often it is asked."""
        taken.append(1)
        return x.norm(dim=-1)

    with registered("algorithm", late=Late), registered("metric", counted=metric):
        curves_of(metrics=("counted",))
    assert len(taken) == 11


def test_what_raises_in_the_first_rounds_is_a_failed_cell(cold, monkeypatch):
    def fails(a, net, s, c):
        raise ArithmeticError("at once")

    monkeypatch.setattr(Late, "round", fails)
    with registered("algorithm", late=Late):
        ((curves, cells),) = curves_of()
    assert curves is None
    assert "ArithmeticError: at once" in cells["error"].to_pylist()[0]


def test_ranks_warm_up_together(cold):
    """Each rank's exchanges of the warm-up meet those of the others, and the curve is that of one rank."""

    def both(transport: Transport):
        with_own = curves_of(transport)
        return with_own[0][0] if with_own else None

    with registered("algorithm", late=Late):
        ((alone, _),) = curves_of()
        warm._warm.clear()
        result = [c for c in on_virtual_ranks(2, both) if c is not None]
    assert len(warm._warm) == 2
    (curves,) = result
    for name in ("loss", "bits_up"):
        assert curves[name].to_pylist() == pytest.approx(alone[name].to_pylist(), rel=1e-9)


# Machine code on disk -----------------------------------------------------------------------------

KINDS = ("int32", "int64", "float32", "float64")
FUNCTIONS = 6
MODULE = "from raybench.core.compiled import compiled\n" + "".join(
    f"\n@compiled\ndef f{j}(a):\n    a[0] += {j}\n    return a\n" for j in range(FUNCTIONS)
)
USE = """
import sys, time
import numpy as np
from pathlib import Path
import module

go, kinds = Path(sys.argv[1]), sys.argv[2:]
go.with_suffix("." + kinds[0]).touch()
while not go.exists():
    time.sleep(0.001)
functions = [f for name, f in vars(module).items() if name.startswith("f")]
for j, f in enumerate(functions):
    for kind in kinds:
        got = f(np.ones(2, kind))
        assert got.dtype == kind and got.tolist() == [1 + j, 1], (got, j)
print(*(sum(sum(getattr(f.dispatcher.stats, n).values()) for f in functions) for n in ("cache_hits", "cache_misses")))
"""


def test_processes_that_compile_together_keep_all_they_compiled(tmp_path):
    (tmp_path / "module.py").write_text(MODULE)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])

    def start(go, *kinds):
        command = [sys.executable, "-c", USE, str(go), *kinds]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    go = tmp_path / "go"
    together = [start(go, kind) for kind in KINDS]
    while len(list(tmp_path.glob("go.*"))) < len(KINDS):
        assert all(process.poll() is None for process in together)
        time.sleep(0.01)
    go.touch()
    said = [process.communicate(timeout=240)[0].split() for process in together]
    assert said == [["0", str(FUNCTIONS)]] * len(KINDS)

    late = start(go, *KINDS)  # finds all of it, each under its own signature
    assert late.communicate(timeout=240)[0].split() == [str(FUNCTIONS * len(KINDS)), "0"]
    assert late.returncode == 0


def test_options_reach_the_compiler_and_the_interpreted_function_stays_at_hand():
    @compiled(error_model="numpy")
    def inverse(a):
        return 1.0 / a

    assert inverse(0.0) == np.inf  # Python's own division raises
    assert inverse.py_func(4.0) == 0.25


# The files ------------------------------------------------------------------------------------------

ONE = """
import numpy as np
import module
print(module.f0(np.ones(2))[0], *(sum(getattr(module.f0.dispatcher.stats, n).values()) for n in ("cache_hits", "cache_misses")))
"""


@pytest.fixture
def kept(tmp_path):
    """Return what runs a kernel in a process of its own, and the folder with its one file."""
    (tmp_path / "module.py").write_text(MODULE)
    folder = tmp_path / "cache"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])

    def run():
        done = call(sys.executable, "-c", ONE, env=environment, timeout=240, check=True)
        return done.stdout.split()

    assert run() == ["1.0", "0", "1"]
    return run, folder


def test_a_kernel_that_cannot_be_read_is_compiled_anew_and_replaced(kept):
    run, folder = kept
    (file,) = folder.iterdir()
    sound = file.read_bytes()
    assert run() == ["1.0", "1", "0"]
    middle = len(sound) // 2
    flipped = sound[:middle] + bytes([sound[middle] ^ 1]) + sound[middle + 1 :]
    pickled = b"cno_such_module\nname\n."  # its digest fits, but Python cannot read it
    for torn in (b"", sound[:40], flipped, hashlib.sha256(pickled).digest() + pickled):
        file.write_bytes(torn)
        assert run() == ["1.0", "0", "1"]
        assert run() == ["1.0", "1", "0"], "the file was not replaced"
        assert [p.name for p in folder.iterdir()] == [file.name]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
def test_a_file_that_others_can_write_is_not_read(kept):
    run, folder = kept
    (file,) = folder.iterdir()
    file.chmod(0o666)
    assert run() == ["1.0", "0", "1"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run() == ["1.0", "1", "0"]


def test_the_folder_is_made_for_its_user_alone_and_away_from_the_sources(tmp_path, monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    folder = kernel_folder()
    assert folder.parent.name == "raybench"
    if sys.platform == "linux":
        assert tmp_path in folder.parents
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path, monkeypatch, mode):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(shared))

    @compiled
    def twice(a):
        return 2 * a

    with pytest.raises(InputError, match=r"NUMBA_CACHE_DIR: others can write to .*\n.*chmod go-w"):
        twice(1.0)
    assert cli("show", "top_k").code == 2
    shared.chmod(0o755)
    assert twice(1.0) == 2.0


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    own = os.geteuid()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with pytest.raises(InputError, match=r"belongs to another user(.*\n)+.*folder of your own"):
        kernel_folder()


def test_without_a_folder_kernels_are_compiled_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert kernel_folder() is None

    @compiled
    def thrice(a):
        return 3 * a

    assert thrice(1.0) == 3.0
