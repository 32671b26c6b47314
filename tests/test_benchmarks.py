"""Scripts of benchmarks/ that no other test runs still run: each once, at its smallest size. What they measure is not judged."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cli_kit import call

pytestmark = [pytest.mark.thorough, pytest.mark.slow]

ROOT = Path(__file__).parent.parent
SMALLEST = {
    "clients.py --methods ef21 --clients 20 40 --rounds 2": "ef21 | 40",
    "clients.py --events breast_cancer --rounds 1": "ratio",
    "planning.py --cells 100 --rounds 3 --through inline --skip resume": "cells",
    "fewer_cells.py sweeps/quickstart.yaml --set seed=0 --set rounds=30": "halving",
    "batches.py --shards 1": "compact",
    "batches.py --nodes 1 --workers 1 --batches 1": "nodes",
    "cells.py --filter network": "network",
    "gpu.py --small --out OUT": "written: ",
    "ddp.py --model resnet20 --rounds 1": "of DDP",
    "ddp.py --hooks --rounds 1": "raybench power_sgd",
}


@pytest.mark.parametrize(("line", "said"), SMALLEST.items(), ids=SMALLEST)
def test_a_benchmark_runs(line, said, tmp_path):
    script, *words = line.replace("OUT", str(tmp_path)).split()
    command = [sys.executable, ROOT / "benchmarks" / script, *words]
    done = call(*command, cwd=ROOT, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    assert said in done.stdout
