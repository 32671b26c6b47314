"""What a launch would take: cells, hours, and what the cluster's nodes cost meanwhile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from raybench.cluster.file import OWN, ClusterFile, NodeType
from raybench.cluster.states import money
from raybench.core.errors import InputError
from raybench.execution.costs import admit, estimate
from raybench.execution.plan import Plan, as_booked, make_plan
from raybench.execution.run import Options
from raybench.execution.search import Best
from raybench.spec import Sweep
from raybench.spec.model import Resources
from raybench.store import Store
from raybench.store.files import check_reachable

START_HOURS = 0.15  # until workers of a cloud are up and have installed torch; paid for, too


@dataclass(frozen=True)
class Price:
    """What is expected of a launch, and the most that it can come to.

    seconds: of work on one slot of this machine, from and to. slots: how many trials run at once on the whole cluster,
    None where the file does not say how many CPUs nodes have. hours: expected, from and to. cost: in these hours.
    most_hours: after which the cluster ends by itself, whatever happens. per_hour: of the dearest cluster, at list
    prices. Without prices cost and per_hour are infinite.
    """

    seconds: tuple[float, float]
    slots: int | None
    hours: tuple[float, float]
    cost: tuple[float, float]
    most_hours: float
    per_hour: float

    @property
    def most(self) -> float:
        """What the dearest cluster costs until it ends by itself."""
        return self.per_hour * self.most_hours


def offer(
    sweep: Sweep,
    cluster: ClusterFile,
    results: str,
    max_hours: float,
    max_cost: float | None,
    retry_failed: bool = False,
    best: Best | None = None,
) -> tuple[Plan, Price]:
    """Return the plan of what a results folder lacks, and its price on a cluster.

    results: the folder, or its URL. best: judges the steps of a sweep that searches.

    The work is estimated from the first rounds of each method, here; that of a search is what it takes at most.
    Raises InputError as planning and ``price`` do.
    """
    check_reachable(results, processes=True)
    store = Store(results)
    store.claim(sweep.text, write=False)
    plan = make_plan(as_booked(sweep, store.folder), store.done(), retry_failed, best)
    admit(plan, store.folder)
    low = high = 0.0
    if plan.batches:
        options = Options(sweep.record, sweep.accounting, sweep.evaluate, sweep.prune)
        tried = estimate(plan.batches, options)
        work = {batch.name: plan.work(batch) for batch in plan.batches}
        more = sum(work.values()) / max(sum(work[name] for name in tried), 1e-30) * plan.ahead
        low, high = (more * sum(e.seconds * e.spread[i] for e in tried.values()) for i in (0, 1))
    asked = plan.sweep.resources
    cost = price(cluster, (low, high), len(plan.batches), asked, max_hours, max_cost)
    return plan, cost


def price(
    cluster: ClusterFile,
    seconds: tuple[float, float],
    batches: int,
    asked: Resources,
    max_hours: float,
    max_cost: float | None,
) -> Price:
    """Return the price of so many seconds of work (from, to), on one slot of this machine, that fall into batches.

    A slot is a trial: one worker, or a group of them, which may lie on several nodes. max_cost shortens ``max_hours`` to
    what it pays for. Raises InputError where the expected cost or time is above what is allowed, the cluster can never
    hold a slot, or ``max_cost`` is given and a node has no price.
    """
    cpus, gpus = asked.cpus_per_worker, asked.gpus_per_worker
    holds = {node: _places(node, cpus, gpus) for node in cluster.nodes}
    # Ray prefers nodes without GPUs for work without them, so time and cost are expected of those
    fits = {node: 0 if node.gpus and not gpus else held for node, held in holds.items()}
    places = sum(held * node.most for node, held in fits.items())
    if places < asked.workers:
        each = f"{cpus:g} CPUs" + f" and {gpus:g} GPUs" * (gpus > 0)
        what = f"no node of {cluster.path.name} has {each}"
        if places:
            what = f"{asked.workers} workers of {each}: all nodes of {cluster.path.name} hold {places:g}"
        raise InputError.of("resources", what, "ask for less, or name larger nodes, or more")
    slots = None if math.isinf(places) else int(places // asked.workers)
    # what is started whether it is of use or not costs as much
    counts = {node: node.most if held else node.fewest for node, held in fits.items()}
    usual = sum(node.price * count for node, count in counts.items() if count)
    listed = _dearest(cluster, holds)
    start = 0.02 if cluster.hosts else START_HOURS
    at_once = 3600 * max(1, min(slots or 1, batches))
    hours = (seconds[0] / at_once + start, seconds[1] / at_once + start)
    cost = (usual * hours[0], usual * hours[1])
    if max_cost is not None:
        if not cluster.ends_by_itself:
            what = "a machine of this provider that shuts itself down costs on until it is deleted"
            raise InputError.of("--max-cost", what, "--max-hours alone, and see that it ends")
        if cluster.unpriced:
            place = f"{cluster.region or 'REGION'}: {{{cluster.unpriced[0]}: {{list: 1.23}}}}"
            what = f"no price is known of {', '.join(cluster.unpriced)} in {cluster.region}"
            fix = f"{OWN}.prices of {cluster.path.name}: as_of: the day, per_hour: {{{place}}}"
            raise InputError.of("--max-cost", what, fix)
        if cost[1] > max_cost:
            what = f"up to {money(cost[1], cluster.currency)} are expected, {max_cost:g} allowed"
            fix = "fewer cells (raybench plan shows which cost most)"
            raise InputError.of("--max-cost", what, fix)
        if listed:
            max_hours = min(max_hours, max_cost / listed)
    if hours[1] > max_hours:
        what = f"up to {hours[1]:.3g} hours are expected, {max_hours:.3g} allowed"
        raise InputError.of("--max-hours", what, "more nodes, more hours, or fewer cells")
    return Price(seconds, slots, hours, cost, max_hours, listed)


def _dearest(cluster: ClusterFile, holds: Mapping[NodeType, float]) -> float:
    """Return the list price of an hour of the dearest nodes that may run, infinite where one has none.

    Ray starts any node that holds a worker once those that it prefers are at their most, one with GPUs too, and at most
    ``max_workers`` besides the head.
    """
    left = cluster.config["max_workers"] - sum(node.fewest for node in cluster.nodes[1:])
    counts = {node: node.fewest for node in cluster.nodes}
    for node in sorted(cluster.nodes, key=lambda node: -node.listed):
        if holds[node]:
            counts[node] += min(node.most - node.fewest, left)
            left -= counts[node] - node.fewest
    return sum(node.listed * count for node, count in counts.items() if count)


def _places(node: NodeType, cpus: float, gpus: float) -> float:
    """Return how many workers a node holds; infinitely many where nobody knows."""
    if gpus and node.gpus < gpus:
        return 0
    if node.cpus is None:
        return math.inf
    return math.floor(min(node.cpus / cpus, node.gpus / gpus if gpus else math.inf) + 1e-9)
