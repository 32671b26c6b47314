"""A cluster file, what Ray's launcher reads and under ``metadata`` what only raybench does; and the price of a launch."""

from __future__ import annotations

import datetime
import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raybench.cluster.states import NodeEnding, ending, money
from raybench.core.errors import InputError, nearest
from raybench.execution.costs import check_memory_and_disk, estimate
from raybench.execution.plan import Plan, as_booked, make_plan
from raybench.execution.run import Options
from raybench.execution.search import Best
from raybench.spec import Sweep
from raybench.spec.grid import problems_meant
from raybench.spec.keys import closed
from raybench.spec.model import Resources
from raybench.store import Store
from raybench.store.files import check_reachable

OWN = "metadata"  # Ray reads nothing there
STORES = {"s3": "s3fs", "gs": "gcsfs"}  # what nodes need to write results there
# Where nodes of a provider say what they may do: Ray gives it to the head alone.
ROLES = {"aws": ("s3", "IamInstanceProfile"), "gcp": ("gs", "serviceAccounts")}
LEGACY = ("min_workers", "initial_workers", "head_node", "worker_nodes")
IMAGES = ("image", "head_image", "worker_image")
THERE = "raybench-launch"  # the folder of what travels, in the home of the user who runs Ray
# Where a provider says where its machines are, and nodes which machine they are and whether it may be taken away.
CLOUDS: Mapping[str, tuple[str, str, str]] = {
    "aws": ("region", "InstanceType", "InstanceMarketOptions.MarketType"),
    "gcp": ("region", "machineType", "scheduling.provisioningModel"),
    "azure": ("location", "azure_arm_parameters.vmSize", "azure_arm_parameters.priority"),
}
# The JSON schema of what raybench reads. What is wrong is answered with the description of what should stand there.
BY = "by region and machine: {us-west-2: {m7i.large: {list: 0.1, spot: 0.04}}}"
AMOUNT = {"type": "number", "minimum": 0, "exclusiveMaximum": 1e9, "description": "an amount"}
SIZES = {"type": "object", "additionalProperties": AMOUNT, "description": "by machine: {m7i: 2}"}
MACHINE = {**closed({"list": AMOUNT, "spot": AMOUNT}), "description": BY}
REGION = {"type": "object", "additionalProperties": MACHINE, "description": BY}
REGIONS = {"type": "object", "additionalProperties": REGION, "description": BY}
AS_OF = {"type": "string", "format": "date", "description": "the day of the prices: 2026-11-01"}
PRICES = closed({"as_of": AS_OF, "currency": {"type": "string"}, "per_hour": REGIONS}, ["as_of"])
METADATA = closed({"prices": PRICES, "cpus": SIZES, "gpus": SIZES, "idle_minutes": AMOUNT})
FILE = {
    "type": "object",
    "required": ["provider"],
    "properties": {
        "provider": {"type": "object"},
        OWN: {**METADATA, "type": ["object", "null"]},
        "docker": {
            "not": {"anyOf": [{"required": [key]} for key in IMAGES]},
            "description": "no image: what ends a host, its lease, is out of reach in a container",
        },
        **{key: {"not": {}, "description": "say it under available_node_types"} for key in LEGACY},
    },
    "if": {"properties": {"provider": {"properties": {"type": {"const": "local"}}}}},
    "then": {"properties": {"provider": {"required": ["type", "head_ip", "worker_ips"]}}},
}


@dataclass(frozen=True)
class NodeType:
    """Nodes of one kind: how many there are at most and at least, which machine each is, its CPUs and GPUs.

    price: per hour, usually. listed: at most. These and cpus are infinite where the file does not say. machine: the kind's
    name where it does not.
    """

    name: str
    most: int
    cpus: float
    gpus: float
    price: float
    listed: float
    machine: str = ""
    spot: bool = False
    fewest: int = 0

    def __str__(self) -> str:  # up to 4 worker (c7i.4xlarge, spot) of 16 CPUs
        sizes = [(self.cpus, "CPU"), (self.gpus, "GPU")]
        numbers = [f"{n:g} {word}{'s' * (n != 1)}" for n, word in sizes if 0 < n < math.inf]
        kind = ", ".join([self.machine] * (self.machine != self.name) + ["spot"] * self.spot)
        text = f"{'' if self.most == 1 else 'up to '}{self.most} {self.name}"
        return text + f" ({kind})" * bool(kind) + f" of {' and '.join(numbers)}" * bool(numbers)


@dataclass(frozen=True)
class ClusterFile:
    """A cluster file as read: Ray's part with Ray's defaults, and what raybench knows of the nodes, the head first.

    hosts: the addresses of the user's own machines, which are there before and after, and cost nothing (provider
    ``local``); empty where machines are rented. priced: the day of the prices, None without.
    """

    path: Path
    config: Mapping[str, Any]
    nodes: tuple[NodeType, ...] = ()
    hosts: tuple[str, ...] = ()
    region: str = ""
    idle_minutes: float = 60.0
    currency: str = "USD"
    priced: datetime.date | None = None

    @property
    def unpriced(self) -> list[str]:
        """The machines whose list price nobody has written down."""
        return list(dict.fromkeys(n.machine for n in self.nodes if math.isinf(n.listed)))

    @property
    def ending(self) -> NodeEnding:
        """What ends a node if everything else is dead."""
        return ending(self.config["provider"]["type"])

    @property
    def lease(self) -> int:
        """Seconds after which a host ends that nobody pushes; Ray on a rented one ends seven minutes before."""
        return max(20 if self.hosts else 900, math.ceil(60 * self.idle_minutes))

    @property
    def there(self) -> str:
        """The folder on hosts of what travels, as ``file_mounts`` names it; absolute: the head expands no ``~``."""
        mounts = [to for to in self.config.get("file_mounts", ()) if Path(to).name == THERE]
        user = str(self.config.get("auth", {}).get("ssh_user", "root"))
        home = "/root" if user == "root" else f"/home/{user}"
        return str(Path(next((to for to in mounts if to.startswith("/")), f"{home}/{THERE}")))

    @property
    def python(self) -> str:
        """The interpreter on the hosts: the one beside the ``ray`` that the head is started with."""
        commands = "\n".join(self.config.get("head_start_ray_commands", ()))
        beside = re.search(r"([^\s;&|]*/)ray\s+start\b", commands)
        home = str(Path(self.there).parent)
        return f"{beside[1]}python".replace("~", home) if beside else "python3"


def read_cluster_file(path: str) -> ClusterFile:
    """Return the cluster file at ``path``. Raises InputError, which names the key, for what Ray would not take."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise InputError.of("--cluster", f"no file {path}", "docs/cluster.md lists those shipped")
    config = _checked(file)
    provider, metadata = config["provider"], config[OWN]
    local = provider["type"] == "local"
    hosts = tuple(map(str, (provider["head_ip"], *provider["worker_ips"]) if local else ()))
    region = str(provider.get(CLOUDS.get(provider["type"], ("",))[0], ""))
    idle, prices = metadata.get("idle_minutes", 60.0), metadata.get("prices", {})
    currency = prices.get("currency", "USD")
    day = datetime.date.fromisoformat(prices["as_of"]) if prices else None
    nodes = _nodes(config, region, hosts)
    return ClusterFile(file, config, nodes, hosts, region, idle, currency, day)


def _checked(file: Path) -> dict[str, Any]:
    """Return the keys of a file with Ray's defaults beside them, where our schema and Ray's own take them."""
    import jsonschema
    import yaml  # the one that Ray reads it with, which knows merge keys
    from ray.autoscaler._private.util import prepare_config, validate_config

    logging.getLogger("ray.autoscaler").setLevel(logging.WARNING)  # what it fills in is no news
    try:
        # as JSON, where a day is a text, and so is .nan, which the schema would let pass
        text = json.dumps(yaml.safe_load(file.read_text()), default=str)
        document: Any = json.loads(text, parse_constant=str)
        jsonschema.validate(document, FILE, format_checker=jsonschema.FormatChecker())
        if document["provider"]["type"] == "aws":  # which tells Ray what its machines have
            for node in document.get("available_node_types", {}).values():
                node.setdefault("resources", {})
        config: dict[str, Any] = prepare_config(document)
        validate_config(config)
    except jsonschema.ValidationError as error:
        at = ".".join(map(str, error.absolute_path)) or "the file"
        usual = "a file for `ray up`, such as cluster.yaml; docs/cluster.md tells of others"
        fix = error.schema.get("description", usual)
        if error.validator == "additionalProperties" and "properties" in error.schema:
            names = error.schema["properties"]
            fix = nearest(next(str(key) for key in error.instance if key not in names), names)
        what = "cannot be launched" if error.validator == "not" else error.message
        raise InputError.of("--cluster", f"{file}: {at}: {what}", fix) from error
    except Exception as error:  # of YAML, and whatever Ray raises, of many classes
        what = f"{file} is not what `ray up` takes"
        raise InputError.of("--cluster", what, " ".join(str(error).split())) from error
    if "head_start_ray_commands" not in document:
        # Ray's own show its dashboard to everybody, but jobs are submitted on the head itself
        lines = config["head_start_ray_commands"]
        config["head_start_ray_commands"] = [line.replace("0.0.0.0", "127.0.0.1") for line in lines]
    # they stand among those of head and workers now, where Ray would put them once more
    return {**config, "setup_commands": [], OWN: config.get(OWN) or {}}


def _nodes(config: Mapping[str, Any], region: str, hosts: Sequence[str]) -> tuple[NodeType, ...]:
    """Return the types of nodes that there may be, the head first."""
    head, types = config["head_node_type"], config["available_node_types"]
    _, machine_at, spot_at = CLOUDS.get(config["provider"]["type"], ("", "", ""))
    metadata = config[OWN]
    costs = metadata.get("prices", {}).get("per_hour", {})
    here = costs.get(region, {})
    if hosts:  # which are all of one type to Ray, and cost nothing
        count = len(hosts) - 1
        workers = {"resources": {}, "min_workers": count, "max_workers": count}
        head, types = "head", {"head": workers, "worker": workers}
        here = {name: {"list": 0.0} for name in types}
    cpus, gpus = metadata.get("cpus", {}), metadata.get("gpus", {})

    def kind(name: str) -> NodeType:
        node_type = types[name]
        machine = str(_at(node_type, f"node_config.{machine_at}") or name)
        size, price = node_type["resources"], here.get(machine, {})
        spot = str(_at(node_type, f"node_config.{spot_at}")).lower() == "spot"
        listed = price.get("list", math.inf)
        usual = price.get("spot", listed) if spot else listed
        most = 1 if name == head else min(config["max_workers"], node_type["max_workers"])
        fewest = 1 if name == head else min(most, node_type["min_workers"])
        cpu = size.get("CPU", cpus.get(machine, math.inf))
        gpu = size.get("GPU", gpus.get(machine, 0.0))
        return NodeType(name, most, cpu, gpu, usual, listed, machine, spot, fewest)

    nodes = [kind(name) for name in sorted(types, key=lambda name: name != head)]
    names = {node.machine for node in nodes}.union(*costs.values())
    for key, sizes in (("cpus", cpus), ("gpus", gpus)):
        for name in sizes.keys() - names:
            raise InputError.of(f"{OWN}.{key}.{name}", "unknown key", nearest(name, names))
    return tuple(node for node in nodes if node.most)


def _at(value: Any, path: str) -> Any:
    """Return what stands at ``a.b`` of a document, empty where there is nothing."""
    for key in path.split("."):
        value = value.get(key, "") if isinstance(value, Mapping) else ""
    return value


# Seconds before a rented host's end from which Ray there has ended and results are home.
CLOSING = 420.0
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

    results: the folder, or its URL. best: judges the steps of a sweep that searches, whose work is what it takes at most.
    Raises InputError as planning and ``price`` do.
    """
    scheme, key = ROLES.get(cluster.config["provider"]["type"], ("", ""))
    types = cluster.config["available_node_types"] if results.startswith(f"{scheme}://") else {}
    bare = [
        n.name for n in cluster.nodes[1:] if types and not types[n.name]["node_config"].get(key)
    ]
    if bare:
        what = f"workers write to {scheme}://, but Ray lets the head alone: {', '.join(bare)}"
        raise InputError.of("--out", what, f"give their node_config {key}, or leave --out out")
    check_reachable(results, processes=True)
    store = Store(results)
    store.claim(sweep.text, write=False, meaning=problems_meant)
    plan = make_plan(as_booked(sweep, store.folder), store.done(), retry_failed, best)
    check_memory_and_disk(plan, store.folder)
    options = Options(sweep.record, sweep.accounting, sweep.evaluate, sweep.prune)
    costs = estimate(plan.batches, options)
    work = {batch.name: plan.work(batch) for batch in plan.batches}
    more = sum(work.values()) / max(sum(work[name] for name in costs), 1e-30) * plan.ahead
    low, high = (more * sum(e.seconds * e.spread[i] for e in costs.values()) for i in (0, 1))
    request = plan.sweep.resources
    return plan, price(cluster, (low, high), len(plan.batches), request, max_hours, max_cost)


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
    for option, limit in {"--max-cost": max_cost, "--max-hours": max_hours}.items():
        if limit is not None and not 0 <= limit < math.inf:
            raise InputError.of(option, f"{limit:g} limits nothing", "give a number")
    cpus, gpus = asked.cpus_per_worker, asked.gpus_per_worker
    holds: dict[NodeType, float] = {}  # how many workers
    for node in cluster.nodes:
        fit = min(node.cpus / cpus, node.gpus / gpus if gpus else math.inf)
        holds[node] = fit if math.isinf(fit) else math.floor(fit + 1e-9)
    # Ray prefers nodes without GPUs for work without them, so time and cost are expected of those
    fits = {node: 0 if node.gpus and not gpus else fit for node, fit in holds.items()}
    fits = fits if any(fits.values()) else holds
    places = sum(fit * node.most for node, fit in fits.items())
    if places < asked.workers:
        each = f"{asked.workers} workers of {cpus:g} CPUs" + f" and {gpus:g} GPUs" * (gpus > 0)
        what = f"all nodes of {cluster.path.name} hold {places:g} of {each}"
        raise InputError.of("resources", what, "ask for less, or name larger nodes, or more")
    slots = None if math.isinf(places) else int(places // asked.workers)
    # what is started whether it is of use or not costs as much
    counts = {node: node.most if fit else node.fewest for node, fit in fits.items()}
    usual = sum(node.price * count for node, count in counts.items() if count)
    listed = _dearest(cluster, holds)
    start = 0.02 if cluster.hosts else START_HOURS
    at_once = 3600 * max(1, min(slots or 1, batches))
    hours = (seconds[0] / at_once + start, seconds[1] / at_once + start)
    cost = (usual * hours[0], usual * hours[1])
    if max_cost is not None:
        if not cluster.ending.bounded:
            what = f"a node has {cluster.ending.limit}: it ends by {cluster.ending.by}"
            raise InputError.of("--max-cost", what, "--max-hours alone, and see that it ends")
        if cluster.unpriced:
            place = f"{cluster.region or 'REGION'}: {{{cluster.unpriced[0]}: {{list: 1.23}}}}"
            what = f"no price is known of {', '.join(cluster.unpriced)} in {cluster.region}"
            fix = f"{OWN}.prices of {cluster.path.name}: as_of: the day, per_hour: {{{place}}}"
            raise InputError.of("--max-cost", what, fix)
        if cost[1] > max_cost:
            what = f"up to {money(cost[1], cluster.currency)} are expected, {max_cost:g} allowed"
            raise InputError.of("--max-cost", what, "fewer cells: see raybench plan")
        if listed:
            max_hours = min(max_hours, max_cost / listed)
    late = hours[1] + (0 if cluster.hosts else 2 * CLOSING / 3600)
    if late > max_hours:
        what = f"up to {late:.3g} hours are expected, {max_hours:.3g} allowed"
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
