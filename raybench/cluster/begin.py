"""The begin of a launch: the plan, the price, what is to be done, all before anything is started."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raybench.cluster import kuberay, stage
from raybench.cluster.file import ClusterFile
from raybench.cluster.price import Price, price
from raybench.cluster.render import results_there
from raybench.cluster.states import Launch
from raybench.execution.costs import admit, estimate
from raybench.execution.plan import Plan, as_booked, make_plan
from raybench.execution.run import Options
from raybench.execution.search import Best
from raybench.spec import Sweep
from raybench.store import Store
from raybench.store.files import check_reachable


@dataclass(frozen=True)
class Offer:
    """What is to be launched: the plan, the seconds of its work on one slot of this machine, the price."""

    plan: Plan
    seconds: float
    price: Price


def offer(
    sweep: Sweep,
    cluster: ClusterFile,
    results: Path,
    remote: str,
    max_hours: float,
    max_cost: float | None,
    retry_failed: bool = False,
    best: Best | None = None,
) -> Offer:
    """Return the plan of what a results folder lacks, and its price on a cluster.

    remote: the folder's URL where it is not on this machine. best: judges the steps of a sweep that searches.

    The work is estimated from the first rounds of each method, here; that of a search is what it takes at most.
    Raises InputError as planning and ``price`` do.
    """
    check_reachable(remote or results, processes=True)
    store = Store(remote or results)
    store.claim(sweep.text, write=False)
    plan = make_plan(as_booked(sweep, store.folder), store.done(), retry_failed, best)
    admit(plan, store.folder)
    seconds = 0.0
    if plan.batches:
        options = Options(sweep.record, sweep.accounting, sweep.evaluate, sweep.prune)
        known = estimate(plan.batches, options)
        work = {batch.name: plan.work(batch) for batch in plan.batches}
        tried = sum(work[name] for name in known)
        seconds = sum(e.seconds for e in known.values()) * sum(work.values()) / max(tried, 1e-30)
        seconds *= plan.ahead
    asked = plan.sweep.resources
    cost = price(
        cluster,
        seconds,
        len(plan.batches),
        asked.cpus_per_worker * asked.workers,
        asked.gpus_per_worker * asked.workers,
        max_hours,
        max_cost,
    )
    return Offer(plan, seconds, cost)


def order(
    launch: Launch,
    sweep: Sweep,
    cluster: ClusterFile,
    made: Offer,
    flags: Sequence[str],
    remote_out: str,
    keep: bool,
    python: str,
) -> None:
    """Write down what a launch is to do, and gather what travels. A cluster that is kept takes the next job."""
    again = launch.order() is not None and launch.state != "down"
    if again:
        launch.leave("submitted", "running", "fetched")
        launch.amend(number=int(launch.ordered()["number"]) + 1)
    else:
        launch.begin({"number": 1})
    said = launch.ordered()
    name = re.sub(r"[^A-Za-z0-9-]+", "-", sweep.name).strip("-")[
        :40
    ]  # a slash would break the Jobs API
    job = f"raybench-{name}-{said['id']}-{said['number']}"
    launch.amend(
        job=job, name=sweep.name, keep=keep, remote_out=remote_out, python=python,
        max_hours=made.price.most_hours,
        cost=made.price.cost, currency=cluster.currency, flags=list(flags),
    )  # fmt: skip
    if not again and cluster.kind == "ray":
        launch.place("given.yaml").write_bytes(cluster.path.read_bytes())
    if cluster.kind == "existing":
        launch.amend(address=cluster.address)
    out = remote_out or f"{kuberay.RESULTS}/{sweep.name}"
    if cluster.kind == "ray" and not remote_out:
        out = results_there(cluster, said["id"], sweep.name)
    stage.gather(
        launch.place("stage"),
        sweep,
        job,
        flags,
        out,
        python,
        _switched(launch, cluster, made.price, python),
    )
    Store(launch.results).claim(sweep.text)


def _switched(launch: Launch, cluster: ClusterFile, cost: Price, python: str) -> dict[str, Any]:
    """Return the settings of the switch that ends the cluster when nobody else does."""
    up = launch.reached("up")
    began = up["at"] if up else time.time()
    return {
        "deadline": began + cost.most_hours * 3600,
        "idle": cluster.idle_minutes * 60,
        "own_machines": cluster.own_machines,
        "holds_results": not (cluster.own_machines or launch.ordered()["remote_out"]),
        "workers": list(cluster.hosts[1:]),
        "user": str((cluster.config.get("auth") or {}).get("ssh_user", "root")),
        "stop": f"{python} -m ray.scripts.scripts stop --force",
    }
