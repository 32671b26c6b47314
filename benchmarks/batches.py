"""What each batch of a sweep costs what serves all of them: a cluster's head, or an object store.

    python benchmarks/batches.py --nodes 1 2 4 8 --workers 2 --batches 8     # the head, on one machine
    python benchmarks/batches.py --shards 10 100                             # requests of a store

First sweeps of tiny batches run on clusters of several sizes (Ray's test cluster): every node is real processes of Ray (a
raylet and its workers), but all of them share this machine's cores, so only the processor time of the head's own processes
says what more nodes would cost elsewhere: the driver with Tune, the queue, the writer, Ray's control store (gcs_server).
Then the two actors that everything goes through are asked as fast as they answer: how many words of workers the queue
hears in a second, and how many shards the writer writes.

With ``--shards`` sweeps of so many batches go to an S3 server on loopback, and its requests are counted by what the sweep is
at; needs ``pip install 'moto[s3]' flask flask-cors s3fs``. Counts are exact and do not hang on the machine. The floor is a
request for each shard.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import raybench
from raybench import spec
from raybench.core.process import tune_process
from raybench.runtime.session import HEAD_ENVIRONMENT, RAY_ENVIRONMENT

SWEEP = """
name: batches
problem: {name: quadratic, dim: %d, clients: 2}
algorithm: ef21
compressor: {name: top_k, k: 1..%d}
rounds: 3
resources: {cpus_per_worker: 1}
"""  # each K is a batch, so a shard, of its own
TOLD = {"driver": "", "queue": "ray::Queue", "writer": "ray::Store", "gcs": "gcs_server"}
SECONDS_ASKED = 4.0
KINDS = ("GET", "LIST", "PUT", "HEAD", "DELETE")


def spent(names: dict[str, str]) -> dict[str, tuple[float, float]]:
    """Return the processor seconds and peak MiB so far of this process and of those that are called so."""
    import psutil

    result = {}
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            mine = process.pid == os.getpid()
            for name, mark in names.items():
                if (mine and not mark) or (mark and words and mark in words[0]):
                    used = process.cpu_times()
                    result[name] = used.user + used.system, process.memory_info().rss / 2**20
        except psutil.Error:
            continue
    return result


def measured(nodes: int, workers: int, batches: int, folder: Path) -> None:
    """Print a line for a sweep of ``batches`` batches per worker on so many nodes."""
    from ray.cluster_utils import Cluster

    from raybench.runtime.driver import drive

    count = nodes * workers * batches
    sweep = spec.load(SWEEP % (count, count))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(nodes):
        cluster.add_node(num_cpus=workers)
    last: dict[str, tuple[float, float]] = {}
    try:
        before = spent(TOLD)
        began = time.perf_counter()
        with open(os.devnull, "w") as quiet, redirect_stderr(quiet), watching(last):
            drive(sweep, folder / str(nodes), address=cluster.address)
        seconds = time.perf_counter() - began
    finally:
        cluster.shutdown()
    ours = {n: last[n][0] - before.get(n, (0.0, 0.0))[0] for n in TOLD if n in last}
    memory = " ".join(f"{last[n][1]:6.0f}" if n in last else "     -" for n in TOLD)
    each = " ".join(f"{1e3 * ours[n] / count:6.1f}" if n in ours else "     -" for n in TOLD)
    print(f"{nodes:5} {nodes * workers:7} {count:7} {seconds:8.1f}   {each}   {memory}", flush=True)


@contextmanager
def watching(last: dict[str, tuple[float, float]]) -> Iterator[None]:
    """Keep looking what the head's processes have spent, since some end before the sweep does."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.5):
            last.update(spent(TOLD))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        last.update(spent({"driver": "", "gcs": "gcs_server"}))


def rate(ask: Callable[[int], object]) -> float:
    """Return how many answers a second there are to questions of which hundreds are under way."""
    import ray

    began, answered, under_way = time.perf_counter(), 0, []
    while time.perf_counter() - began < SECONDS_ASKED:
        under_way += [ask(j) for j in range(200)]
        if len(under_way) > 400:
            ray.get(under_way[:200])
            answered, under_way = answered + 200, under_way[200:]
    ray.get(under_way)
    return (answered + len(under_way)) / (time.perf_counter() - began)


def asked(folder: Path) -> None:
    """Print what the queue and the writer answer in a second."""
    import ray

    from raybench.execution.execute import Progress, execute
    from raybench.execution.plan import make_plan
    from raybench.execution.run import Options
    from raybench.runtime.queue import Queue
    from raybench.store import Store

    plan = make_plan(spec.load((SWEEP % (64, 1)) + "seed: 0..63\nrecord: {every: 1}\n"))
    kept: list[tuple[object, ...]] = []
    for _ in execute(plan.batches, Options(), lambda *shard: kept.append(shard)):
        pass
    store = Store(folder / "asked")
    with store.held():
        store.own(False)
        ray.init(num_cpus=2, log_to_driver=False)
        try:
            queue = ray.remote(num_cpus=0)(Queue).remote(plan.batches, [1.0], 2, False, {})
            ray.get(queue.take.remote("me", None))
            word = Progress()
            heard = rate(lambda j: queue.post.remote("me", 0, 1, word))
            print(f"the queue hears {heard:,.0f} words a second; each worker says one")
            assert store.owner is not None
            writer = ray.remote(num_cpus=0)(Store).remote(
                str(folder / "asked"), store.owner, frozenset()
            )
            shard = ray.put(kept[0][1]), ray.put(kept[0][2])
            ends = (f"{number:016x}" for number in range(10**9))
            written = rate(lambda j: writer.commit.remote(next(ends), *shard, {}))
            print(f"the writer writes {written:,.0f} shards of 64 cells a second")
        finally:
            ray.shutdown()


def requested(sizes: list[int]) -> None:
    """Print how many requests sweeps of several sizes make to a store, and what reads them."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from s3_kit import CREDENTIALS, FaultyProxy, make_bucket, moto

    from raybench.runtime.driver import drive
    from raybench.store import compact
    from raybench.store.status import status_of

    heads = " ".join(f"{name:>6}" for name in KINDS)
    print(f"{'shards':>6}  {'what':<14} {heads}  a shard")
    with moto() as address, tempfile.TemporaryDirectory() as here:
        os.chdir(here)
        make_bucket(address, "bucket")
        proxy = FaultyProxy(address)
        os.environ.update({**CREDENTIALS, "AWS_ENDPOINT_URL": proxy.address})
        for shards in sizes:
            url, sweep = f"s3://bucket/{shards}", spec.load(SWEEP % (shards, shards))
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
                    counts["LIST" if method == "GET" and "list-type" in path else method] += n
                row = " ".join(f"{counts[name]:>6}" for name in KINDS)
                print(f"{shards:>6}  {what:<14} {row}  {counts.total() / shards:.1f}", flush=True)
        proxy.close()


def main() -> None:
    """Read the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--workers", type=int, default=2, help="of each node")
    parser.add_argument("--batches", type=int, default=8, help="of each worker")
    parser.add_argument("--shards", nargs="+", type=int, help="count requests of a store, no nodes")
    arguments = parser.parse_args()
    if arguments.shards:
        requested(arguments.shards)
        return
    for name, value in {**RAY_ENVIRONMENT, **HEAD_ENVIRONMENT}.items():
        os.environ.setdefault(name, value)
    tune_process()
    heads = " ".join(f"{name:>6}" for name in TOLD)
    print(f"{'':31}   {'processor ms a batch':<27}   {'MiB at the end':<27}")
    print(f"nodes workers batches  seconds   {heads}   {heads}")
    with tempfile.TemporaryDirectory() as folder:
        for nodes in arguments.nodes:
            measured(nodes, arguments.workers, arguments.batches, Path(folder))
        asked(Path(folder))


if __name__ == "__main__":
    main()
