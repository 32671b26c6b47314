"""Scripts of benchmarks/ that no other test runs still run: each once, at its smallest size. What they measure is not judged."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cli_kit import call

pytestmark = [pytest.mark.thorough, pytest.mark.slow]

ROOT = Path(__file__).parent.parent
SMALLEST = {
    "clients": ("--methods ef21 --clients 20 40 --rounds 2", "each more"),
    "events": ("--dataset breast_cancer --runs 1", "ratio"),
    "planning": ("--cells 100 --rounds 3 --through inline --skip resume", "cells"),
    "fewer_cells": ("sweeps/quickstart.yaml --set seed=0 --set rounds=30", "halving"),
    "store_requests": ("--shards 1", "compact"),
    "cells": ("--filter network", "network"),
    "nodes": ("--nodes 1 --workers 1 --batches 1", "nodes"),
}


@pytest.mark.parametrize("name", SMALLEST)
def test_a_benchmark_runs(name):
    words, said = SMALLEST[name]
    command = [sys.executable, ROOT / "benchmarks" / f"{name}.py", *words.split()]
    done = call(*command, cwd=ROOT, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    assert said in done.stdout
