"""The begin of a launch: the plan, the price, what is to be done, all before anything is started."""

from __future__ import annotations

import getpass
import re
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from raybench.cluster import launcher, stage
from raybench.cluster.file import ClusterFile
from raybench.cluster.price import Price, price
from raybench.cluster.states import Launch
from raybench.execution.costs import admit, estimate
from raybench.execution.plan import Plan, as_booked, make_plan
from raybench.execution.run import Options
from raybench.execution.search import Best
from raybench.spec import Sweep
from raybench.store import Store
from raybench.store.files import check_reachable


def offer(
    sweep: Sweep,
    cluster: ClusterFile,
    results: Path,
    remote: str,
    max_hours: float,
    max_cost: float | None,
    retry_failed: bool = False,
    best: Best | None = None,
) -> tuple[Plan, Price]:
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
    low = high = 0.0
    if plan.batches:
        options = Options(sweep.record, sweep.accounting, sweep.evaluate, sweep.prune)
        tried = estimate(plan.batches, options)
        work = {batch.name: plan.work(batch) for batch in plan.batches}
        more = sum(work.values()) / max(sum(work[name] for name in tried), 1e-30) * plan.ahead
        low = more * sum(e.seconds * e.spread[0] for e in tried.values())
        high = more * sum(e.seconds * e.spread[1] for e in tried.values())
    asked = plan.sweep.resources
    cost = price(cluster, (low, high), len(plan.batches), asked, max_hours, max_cost)
    return plan, cost


def order(
    launch: Launch,
    sweep: Sweep,
    cluster: ClusterFile,
    cost: Price,
    flags: Sequence[str],
    remote_out: str,
    keep: bool,
    notify: str = "",
) -> None:
    """Write down what a launch is to do, and gather what travels. A cluster that is kept takes the next job.

    It ends at the hour that was said when it was started.
    """
    again = launch.order() is not None and launch.state != "down"
    if again:
        launch.leave("submitted", "running", "fetched")
        launch.amend(number=int(launch.ordered()["number"]) + 1)
    else:
        owner = f"{getpass.getuser()}@{socket.gethostname()}, for {sweep.name}"
        deadline = time.time() + cost.most_hours * 3600
        launch.begin({"number": 1, "owner": owner, "deadline": deadline})
    said, python = launch.ordered(), launcher.python_of(cluster)
    # a slash would break the Jobs API
    name = re.sub(r"[^A-Za-z0-9-]+", "-", sweep.name).strip("-")[:40]
    job = f"raybench-{name}-{said['id']}-{said['number']}"
    kept = launcher.kept_there(cluster, said["id"])
    out = remote_out or f"{kept}/{name}"
    lease = "push" if cluster.own_machines or remote_out else "hold"
    if not again:
        launch.place("given.yaml").write_bytes(cluster.path.read_bytes())
    launch.amend(
        job=job, name=sweep.name, keep=keep, notify=notify, remote_out=remote_out, python=python, kept=kept,
        out="" if remote_out else out, lease=lease, per_hour=cost.per_hour, currency=cluster.currency,
    )  # fmt: skip
    stage.gather(
        launch.place("stage"), sweep, stage.job(f"{kept}/{job}", out, flags, python, lease)
    )
    Store(launch.results).claim(sweep.text)
