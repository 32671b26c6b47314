"""How many requests a sweep makes to an object store, by what it is at: on an S3 server on loopback.

    python benchmarks/store_requests.py --shards 10 100

Needs ``pip install 'moto[s3]' flask flask-cors s3fs``. Counts are exact and do not hang on the machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from s3_kit import CREDENTIALS, FaultyProxy, make_bucket, moto

SWEEP = """
name: requests
problem: {name: quadratic, dim: %d, clients: 2}
algorithm: ef21
compressor: {name: top_k, k: 1..%d}
rounds: 2
"""  # each K is a batch, so a shard, of its own
KINDS = ("GET", "LIST", "PUT", "HEAD", "DELETE")


def kind(method: str, path: str) -> str:
    """Return what a request is: a listing, or its method."""
    return "LIST" if method == "GET" and "list-type" in path else method


def main() -> None:
    """Count the requests of sweeps of several sizes and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shards", type=int, nargs="+", default=[10, 100])
    asked = parser.parse_args()
    with moto() as address, tempfile.TemporaryDirectory() as here:
        os.chdir(here)
        make_bucket(address, "bucket")
        proxy = FaultyProxy(address)
        os.environ.update({**CREDENTIALS, "AWS_ENDPOINT_URL": proxy.address})
        import raybench
        from raybench import spec
        from raybench.runtime.driver import drive
        from raybench.store import compact
        from raybench.store.status import status_of

        heads = " ".join(f"{name:>6}" for name in KINDS)
        print(f"{'shards':>6}  {'what':<14} {heads}  a shard")
        for shards in asked.shards:
            url = f"s3://bucket/{shards}"
            sweep = spec.load(SWEEP % (shards, shards))
            steps: dict[str, Callable[[], object]] = {
                "sweep": lambda s=sweep, u=url: drive(s, u, inline=True),
                "the same again": lambda s=sweep, u=url: drive(s, u, inline=True),
                "status": lambda u=url: status_of(u),
                "load": lambda u=url: raybench.load(u),
                "compact": lambda u=url: compact(u, f"{u}-compact"),
            }
            for what, step in steps.items():
                proxy.asked.clear()
                step()
                counts: Counter[str] = Counter()
                for (method, path), n in proxy.asked.items():
                    counts[kind(method, path)] += n
                each = sum(counts.values()) / shards
                said = " ".join(f"{counts[name]:>6}" for name in KINDS)
                print(f"{shards:>6}  {what:<14} {said}  {each:.1f}", flush=True)
        proxy.close()


if __name__ == "__main__":
    main()
