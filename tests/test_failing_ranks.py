"""Errors on ranks of a real gloo group: on all of them the run goes on, on one it stops, never mixes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = """
import datetime, json, sys
import torch.distributed as dist
from raybench import spec
from raybench.core import registry
from raybench.algorithms.gd import GD
from raybench.wire import transport
from raybench.execution.execute import execute
from raybench.execution.plan import make_plan
from raybench.execution.run import Options

rank, store, who, out = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
transport.FAILURE_WAIT = 3

@registry.algorithm("gd_that_breaks", up=None)
class Breaks(GD):
    def round(a, net, s, c):
        if bool((a.gamma.values > 1).any()) and (who == "all" or net.clients.start > 0):
            raise RuntimeError("the step is too long for me")
        super().round(net, s, c)

sweep = spec.load('''
name: ranks
problem: {name: quadratic, dim: 6, clients: 5}
algorithm: gd_that_breaks
step_size: {value: [0.01, 0.02, 0.03, 4]}
rounds: 30
''')
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2,
                        timeout=datetime.timedelta(seconds=20))
rows = {}
def commit(shard, curves, cells, files):
    for row in cells.to_pylist():
        rows[row["step_size"]] = [row["status"], row["error"]]
try:
    for _ in execute(make_plan(sweep).batches, Options(), commit, transport=transport.Distributed()):
        pass
    ended = "done"
except Exception as error:
    ended = f"{type(error).__name__}: {error}"
json.dump({"ended": ended, "rows": rows}, open(out, "w"))
import os
os._exit(0)  # a broken group would wait for its peer at exit
"""


def run(folder: Path, who: str) -> list[dict]:
    script = folder / "rank.py"
    script.write_text(SCRIPT)
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(r), folder / "store", who, folder / f"{r}.json"], env=env
        )
        for r in range(2)
    ]
    for process in ranks:
        assert process.wait(timeout=200) == 0
    return [json.loads((folder / f"{r}.json").read_text()) for r in range(2)]


@pytest.mark.timeout(250)
def test_an_error_on_every_rank_is_one_failed_cell(tmp_path):
    first, second = run(tmp_path, "all")
    assert first["ended"] == second["ended"] == "done"
    assert {step: row[0] for step, row in first["rows"].items()} == {
        "0.01": "ok",
        "0.02": "ok",
        "0.03": "ok",
        "4.0": "failed",
    }
    assert "too long for me" in first["rows"]["4.0"][1]
    assert second["rows"] == {}  # rank 0 commits


@pytest.mark.timeout(250)
def test_an_error_on_one_rank_stops_the_group(tmp_path):
    first, second = run(tmp_path, "one")
    assert "too long for me" in second["ended"]
    assert first["ended"] != "done"  # its peer is gone: it must not go on alone
    assert first["rows"] == {}
