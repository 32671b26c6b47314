"""Scripts of benchmarks/ still run, each once at its smallest size, and chaos.py sees what it is there to see.

What they measure is not judged; ``make chaos`` does the kills.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import chaos
import pytest
from chaos import FaultyDisk
from cli_kit import call

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent
SMALLEST = {
    "clients.py --methods ef21 --clients 20 40 --rounds 2": "ef21 | 40",
    "clients.py --events breast_cancer --rounds 1": "ratio",
    "planning.py --cells 100 --rounds 3 --through inline --skip resume": "cells",
    "fewer_cells.py sweeps/quickstart.yaml --set seed=0 --set rounds=30": "halving",
    "batches.py --shards 1": "compact",
    "cells.py --filter network": "network",
    "ddp.py --model resnet20 --rounds 1": "of DDP",
    "ddp.py --hooks --rounds 1": "raybench power_sgd",
}


@pytest.mark.slow
@pytest.mark.parametrize(("line", "said"), SMALLEST.items(), ids=SMALLEST)
def test_a_benchmark_runs(line, said):
    script, *words = line.split()
    command = [sys.executable, ROOT / "benchmarks" / script, *words]
    done = call(*command, cwd=ROOT, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    assert said in done.stdout


@pytest.mark.slow
def test_every_part_of_gpu_has_figures_on_a_cpu_too(tmp_path):
    command = [sys.executable, ROOT / "benchmarks" / "gpu.py", "--small", "--out", tmp_path]
    done = call(*command, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    parts = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    names = ("operations", "methods", "codecs", "collectives", "training", "tests")
    assert {name: part["error"] for name, part in parts.items()} == dict.fromkeys(names, "")
    assert all(part["rows"] for part in parts.values())
    assert all(row.get("equal", True) for name in names[:2] for row in parts[name]["rows"])


# Disks that fail -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def faultless():
    with chaos.undisturbed() as story:
        yield story


@pytest.mark.parametrize("kind", chaos.KINDS)
def test_nothing_is_lost(faultless, tmp_path, kind):
    whole, steps = faultless
    drawn = [at for at, own in chaos.faults(3 * steps, steps, seed=1) if own == kind]
    for j, at in enumerate(drawn[:10]):
        ended = chaos.try_fault(tmp_path / str(j), FaultyDisk(at, kind, j), whole)
        assert ended != "went on"  # every operation counts, so its failure is noticed


class Forgetful(FaultyDisk):
    """A disk whose folders are never synced."""

    def sync(self, folder):
        self._next(False)


def test_a_missing_sync_is_seen(faultless, tmp_path):
    whole, steps = faultless

    def six_times():
        for j in range(6):
            chaos.try_fault(tmp_path / str(j), Forgetful(steps - 1, "crash", seed=j), whole)

    with pytest.raises(AssertionError, match="committed and lost"):
        six_times()
