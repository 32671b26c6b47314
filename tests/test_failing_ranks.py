"""Errors on ranks of a real gloo group: on all of them the run goes on, on one it stops, never mixes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from gloo_kit import run
from torch.distributed import get_rank as rank

from raybench import spec
from raybench.algorithms.gd import GD
from raybench.core import registry
from raybench.execution.execute import execute
from raybench.execution.plan import make_plan
from raybench.execution.run import Options
from raybench.wire import transport

pytestmark = pytest.mark.thorough

SWEEP = """
name: ranks
problem: {name: quadratic, dim: 6, clients: 5}
algorithm: gd_that_breaks
step_size: {value: [0.01, 0.02, 0.03, 4]}
rounds: 30
"""


def executed(who: list[int]) -> tuple[str, dict[str, Any]]:
    """Return how a sweep ends on this rank, and what it commits, where long steps break a method on some ranks."""

    @registry.algorithm("gd_that_breaks", up=None)
    class Breaks(GD):
        def round(a, net, s, c):
            if rank() in who and bool((a.gamma.values > 1).any()):
                raise RuntimeError("the step is too long for me")
            super().round(net, s, c)

    rows = {}

    def commit(shard: Any, curves: Any, cells: Any, files: Any) -> None:
        for row in cells.to_pylist():
            rows[row["step_size"]] = [row["status"], row["error"]]

    transport.FAILURE_WAIT = 3
    batches = make_plan(spec.load(SWEEP)).batches
    group = dist.new_group([0, 1], timeout=timedelta(seconds=8))
    try:
        for _ in execute(batches, Options(), commit, transport=transport.Distributed(group)):
            pass
    except Exception as error:
        return f"{type(error).__name__}: {error}", rows
    return "done", rows


def test_an_error_on_every_rank_is_one_failed_cell():
    (first, rows), (second, none) = run(2, executed, who=[0, 1])
    assert first == second == "done"
    ended = {step: status for step, (status, _) in rows.items()}
    assert ended == {0.01: "ok", 0.02: "ok", 0.03: "ok", 4.0: "failed"}
    assert "too long for me" in rows[4.0][1]
    assert none == {}  # rank 0 commits


def test_an_error_on_one_rank_stops_the_group():
    (first, rows), (second, _) = run(2, executed, who=[1])
    assert "too long for me" in second
    assert first != "done"  # its peer is gone: it must not go on alone
    assert rows == {}
