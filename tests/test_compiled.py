"""Machine code kept on disk: processes that compile at the same time never get each other's."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import subprocess
import sys
import time

import numpy as np
import pytest
from cli_kit import call, cli

from raybench.core.compiled import _meaning, compiled
from raybench.core.errors import InputError
from raybench.core.process import kernel_folder
from raybench.problems.kernels import LOGISTIC, margin_kernel, minibatch_kernel

KINDS = ("int32", "int64", "float32", "float64")
FUNCTIONS = 6
# a set has another order in every process, and the kernel is the same
OPTIONS = "fastmath={'contract', 'reassoc', 'nsz', 'arcp'}"
MODULE = "from raybench.core.compiled import compiled\n" + "".join(
    f"\n@compiled({OPTIONS})\ndef f{j}(a):\n    a[0] += {j}\n    return a\n"
    for j in range(FUNCTIONS)
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


@pytest.mark.thorough
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


HELPED = """
import numba
from numba.extending import intrinsic
from raybench.core.compiled import compiled

@intrinsic
def nothing(typing):
    return numba.types.void(), lambda context, builder, sig, args: context.get_dummy_value()

@numba.njit(inline="always")
def plus(a):
    nothing()
    return a + 1

@compiled
def f(a):
    return plus(a) * 2
"""


def test_a_kernel_is_named_by_what_it_calls_and_not_by_where_that_lies_in_memory():
    """Another process has to find it again, and nobody the machine code of helpers that were changed since."""

    def meaning(text):
        module = {"__name__": "module"}
        exec(compile(text, "module.py", "exec"), module)
        return _meaning(module["f"])

    assert meaning(HELPED) == meaning(HELPED)
    texts = [HELPED, HELPED.replace("a + 1", "a + 3"), HELPED.replace("types.void", "types.none")]
    texts += [HELPED.replace('inline="always"', "")]
    assert len({repr(meaning(text)) for text in texts}) == 4
    for kernel in (margin_kernel(8, True, LOGISTIC), minibatch_kernel(True, LOGISTIC)):
        assert not re.search(" at 0x[0-9a-f]{6}", repr(_meaning(kernel)))


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
        done = call(sys.executable, "-c", ONE, env=environment, timeout=240)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert run() == ["1.0", "0", "1"]
    return run, folder


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_without_a_folder_kernels_are_compiled_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert kernel_folder() is None

    @compiled
    def thrice(a):
        return 3 * a

    assert thrice(1.0) == 3.0
