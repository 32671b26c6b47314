"""Machine code kept on disk: processes that compile at the same time never get each other's."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np

from raybench.core.compiled import compiled

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
print(*(sum(sum(getattr(f.stats, n).values()) for f in functions) for n in ("cache_hits", "cache_misses")))
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
