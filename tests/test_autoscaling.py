"""Ray's autoscaler with nodes that are processes: they come when a sweep asks for them, and go when it has ended."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cluster_kit
import pytest

WHY_NOT = cluster_kit.missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(WHY_NOT), reason=f"hosts: {WHY_NOT}"),
    pytest.mark.timeout(600),
]
ROOT = Path(__file__).parent.parent
# What Ray's wheel lacks, and ``AutoscalingCluster`` reads.
EXAMPLE = """
cluster_name: fake
max_workers: 8
idle_timeout_minutes: 0.3
upscaling_speed: 1.0
provider: {type: fake_multinode, launch_multiple: true}
head_node_type: ray.head.default
auth: {}
docker: {}
file_mounts: {}
file_mounts_sync_continuously: false
cluster_synced_files: []
initialization_commands: []
setup_commands: []
head_setup_commands: []
worker_setup_commands: []
head_start_ray_commands: []
worker_start_ray_commands: []
rsync_exclude: []
rsync_filter: []
"""
SCRIPT = """
import json, os, sys, threading, time
from pathlib import Path
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import ray
from ray.cluster_utils import AutoscalingCluster
from raybench import spec
from raybench.runtime.driver import drive

SWEEP = '''
name: nodes
problem: {name: quadratic, dim: 50, clients: 10}
algorithm: ef21
compressor: {name: top_k, k: 1..12}
step_size: {theory: [1, 4]}
rounds: 60000
record: {every: 1000}
'''
node = {"resources": {"CPU": 1, "object_store_memory": 10**8}, "node_config": {}, "min_workers": 0, "max_workers": 3}
cluster = AutoscalingCluster({"CPU": 0}, {"small": node}, autoscaler_v2=True)
cluster.start()
counts, began = [], time.monotonic()

def count():
    return sum(n["Alive"] for n in ray.nodes()) - 1

def watch():
    while True:
        counts.append((round(time.monotonic() - began), count()))
        time.sleep(1)

ray.init(address="auto", log_to_driver=False)
threading.Thread(target=watch, daemon=True).start()
outcome = drive(spec.load(SWEEP), Path("out"), address="auto")
until = time.monotonic() + 150
while count() and time.monotonic() < until:
    time.sleep(1)
said = {"counts": outcome.counts, "most": max(n for _, n in counts), "first": counts[0][1], "last": count()}
print("said " + json.dumps(said), flush=True)
print(counts)
ray.shutdown()
cluster.shutdown()
"""


def test_nodes_come_with_a_sweep_and_go_after_it(tmp_path: Path) -> None:
    """From none to three and back to none. On a host of its own, for ``AutoscalingCluster`` stops every Ray there is."""
    with cluster_kit.hosts(1, tmp_path / "hosts", ROOT) as bench:
        for name, text in {"example.yaml": EXAMPLE, "script.py": SCRIPT}.items():
            assert "'EOF'" not in text
            bench.run(1, f"cat >{name} <<'EOF'\n{text}\nEOF")
        sites = ":".join([str(ROOT), *cluster_kit.packages()])
        fake = "$(python3 -c 'import os, ray; print(os.path.dirname(ray.__file__))')/autoscaler/_private/fake_multi_node"
        prepared = f"""
        export PATH={sys.prefix}/bin:$PATH PYTHONPATH={sites}; mkdir -p bin upper work
        printf '#!{sys.prefix}/bin/python\\nfrom ray.scripts.scripts import main; main()\\n' >bin/ray; chmod +x bin/ray
        export PATH=$HOME/bin:$PATH; cd $HOME; fake={fake}
        mount -t overlay -o lowerdir=$fake,upperdir=$HOME/upper,workdir=$HOME/work none $fake
        cp example.yaml $fake/; python3 script.py 2>&1
        """
        done = bench.run(1, prepared, check=False, timeout=500)
    said = [line for line in done.stdout.splitlines() if line.startswith("said ")]
    assert said, done.stdout[-3000:] + done.stderr[-2000:]
    facts = json.loads(said[0].removeprefix("said "))
    assert facts == {"counts": {"ok": 24, "skipped": 0}, "most": 3, "first": 0, "last": 0}, (
        done.stdout[-2000:]
    )
