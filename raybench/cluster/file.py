"""A cluster file: what Ray's launcher reads, and under ``metadata`` what only raybench does."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raybench.core.errors import InputError, nearest

OWN = "metadata"  # Ray reads nothing there
OWN_KEYS = ("prices", "cpus", "gpus", "home", "idle_minutes")
PRICE_KEYS = ("as_of", "currency", "per_hour")
KINDS = ("list", "spot")
IDLE_MINUTES = 60.0
OLD_DAYS = 90  # of prices, which are then said to be old
# Where each cloud's nodes say which machine they are and whether it may be taken away, and its provider where.
CLOUDS: Mapping[str, tuple[str, str, str]] = {
    "aws": ("region", "InstanceType", "InstanceMarketOptions.MarketType"),
    "gcp": ("region", "machineType", "scheduling.provisioningModel"),
    "azure": ("location", "azure_arm_parameters.vmSize", "azure_arm_parameters.priority"),
}


@dataclass(frozen=True)
class NodeType:
    """Nodes of one kind: which machine each is, how many there are at most and at least, CPUs and GPUs of each.

    price: per hour, what it usually is, the spot price of spot nodes. listed: what it is at most. None where the file
    does not say; so with cpus.
    """

    name: str
    most: int
    cpus: float | None
    gpus: float
    price: float | None
    listed: float | None
    machine: str = ""
    spot: bool = False
    fewest: int = 0


@dataclass(frozen=True)
class ClusterFile:
    """A cluster file as read: Ray's part as it stands, and what raybench knows of the nodes.

    kind: ``ray`` for Ray's launcher, ``rayjob`` for a RayJob of KubeRay, ``existing`` for a cluster that is there,
    at ``address``. own_machines: the hosts are there before and after, and cost nothing (provider ``local``). priced:
    the day of the prices, None without. region: where the machines are.
    """

    path: Path
    kind: str
    config: Mapping[str, Any]
    head: NodeType | None = None
    workers: tuple[NodeType, ...] = ()
    currency: str = "USD"
    priced: str | None = None
    idle_minutes: float = IDLE_MINUTES
    home: str = ""
    own_machines: bool = False
    hosts: tuple[str, ...] = ()
    address: str = ""
    region: str = ""

    @property
    def nodes(self) -> tuple[NodeType, ...]:
        """The head and all types of workers."""
        return (*((self.head,) if self.head else ()), *self.workers)

    @property
    def lease_minutes(self) -> int:
        """Whole minutes after which a host ends that nobody pushes; a rented one lets nobody in for the last five."""
        return max(1 if self.own_machines else 10, -int(-self.idle_minutes // 1))

    def days_old(self) -> int:
        """Return how many days old the prices are."""
        day = datetime.date.fromisoformat(self.priced or "1970-01-01")
        return (datetime.datetime.now().date() - day).days


def read(path: str) -> ClusterFile:
    """Return the cluster file at ``path``.

    Raises InputError, which names the key, for a file that neither Ray's launcher nor KubeRay would take, and for
    keys under ``metadata`` that there are not.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise InputError.of("--cluster", f"no file {path}", "docs/cluster.md lists those shipped")
    import yaml  # the one that Ray reads it with, which knows merge keys

    try:
        parts = [part for part in yaml.safe_load_all(file.read_text()) if part]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError.of("--cluster", f"{path} is no YAML", str(error)) from error
    except RecursionError as error:
        raise InputError.of("--cluster", f"{path} is nested too deeply", "look at it") from error
    jobs = [part for part in parts if isinstance(part, dict) and part.get("kind") == "RayJob"]
    if jobs:
        return ClusterFile(file, "rayjob", jobs[0])
    config = parts[0] if len(parts) == 1 else None
    if not isinstance(config, dict):
        raise InputError.of("--cluster", f"{path} holds no keys", "give a cluster file")
    provider = config.get("provider")
    if not isinstance(provider, dict) or "type" not in provider:
        fix = "give a file for `ray up`, such as cluster.yaml, or a RayJob of KubeRay"
        raise InputError.of("--cluster", f"{path} has no provider.type", fix)
    own = config.get("metadata") or {}
    _allowed(OWN, own, OWN_KEYS)
    _valid(path, config)
    prices = own.get("prices") or {}
    _allowed(f"{OWN}.prices", prices, PRICE_KEYS)
    user = str((config.get("auth") or {}).get("ssh_user", "root"))
    common: dict[str, Any] = {
        "currency": str(prices.get("currency", "USD")),
        "priced": _day(prices.get("as_of")) if prices else None,
        "idle_minutes": _number(f"{OWN}.idle_minutes", own.get("idle_minutes", IDLE_MINUTES)),
        "home": str(own.get("home") or ("/root" if user == "root" else f"/home/{user}")),
    }
    if provider["type"] == "local":
        return _own_machines(file, config, own, common)
    return _rented(file, config, own, prices.get("per_hour") or {}, common)


def _own_machines(
    file: Path, config: Mapping[str, Any], own: Mapping[str, Any], common: Mapping[str, Any]
) -> ClusterFile:
    """Return the file of machines that are there anyway: one head, and the workers by address."""
    provider = config["provider"]
    if "head_ip" not in provider:
        raise InputError.of("provider", "no head_ip", "name the machines: head_ip and worker_ips")
    workers = tuple(str(ip) for ip in provider.get("worker_ips") or ())
    cpus, gpus = (_sizes(own, key, ("head", "worker")) for key in ("cpus", "gpus"))

    def kind(name: str, most: int) -> NodeType:
        return NodeType(name, most, cpus.get(name), gpus.get(name, 0.0), 0.0, 0.0, fewest=most)

    joined = (kind("worker", len(workers)),) if workers else ()
    hosts = (str(provider["head_ip"]), *workers)
    return ClusterFile(
        file, "ray", config, kind("head", 1), joined, own_machines=True, hosts=hosts, **common
    )


def _rented(
    file: Path,
    config: Mapping[str, Any],
    own: Mapping[str, Any],
    costs: Mapping[str, Any],
    common: Mapping[str, Any],
) -> ClusterFile:
    """Return the file of a cloud's machines, by their types."""
    types: Mapping[str, Any] = config.get("available_node_types") or {}
    head = str(config.get("head_node_type", ""))
    if head not in types:
        what = f"head_node_type {head!r} is none of available_node_types"
        raise InputError.of("head_node_type", what, nearest(head, types))
    place, machine_at, spot_at = CLOUDS.get(str(config["provider"]["type"]), ("", "", ""))
    region = str(config["provider"].get(place, ""))
    listed = {where: _prices(f"{OWN}.prices.per_hour.{where}", of) for where, of in costs.items()}
    machines = {name: str(_at(said.get("node_config"), machine_at)) for name, said in types.items()}
    priced_machines = {m for of in listed.values() for m in of}
    cpus, gpus = (
        _sizes(own, key, {*machines.values(), *priced_machines}) for key in ("cpus", "gpus")
    )
    bound = int(config.get("max_workers", 2))

    def kind(name: str) -> NodeType:
        said, machine = types[name], machines[name]
        size = said.get("resources") or {}
        spot = str(_at(said.get("node_config"), spot_at)).lower() == "spot"
        price = listed.get(region, {}).get(machine, {})
        most = 1 if name == head else min(bound, int(said.get("max_workers", bound)))
        return NodeType(
            name,
            most,
            size.get("CPU", cpus.get(machine)),
            size.get("GPU", gpus.get(machine, 0.0)),
            price.get("spot", price.get("list")) if spot else price.get("list"),
            price.get("list"),
            machine,
            spot,
            1 if name == head else min(most, int(said.get("min_workers", 0))),
        )

    workers = tuple(kind(name) for name in types if name != head)
    return ClusterFile(file, "ray", config, kind(head), workers, region=region, **common)


def _prices(where: str, machines: object) -> dict[str, dict[str, float]]:
    """Return the prices of a region's machines: ``{m7i.large: {list: 0.1, spot: 0.04}}``."""
    fix = "prices go by region and machine: {us-west-2: {m7i.large: {list: 0.1, spot: 0.04}}}"
    if not isinstance(machines, Mapping):
        raise InputError.of(where, f"{machines!r} has no machines", fix)
    for name, cost in machines.items():
        if not isinstance(cost, Mapping):
            raise InputError.of(f"{where}.{name}", f"{cost!r} has no keys", fix)
        _allowed(f"{where}.{name}", cost, KINDS)
    return {
        str(name): {k: _number(f"{where}.{name}.{k}", v) for k, v in cost.items()}
        for name, cost in machines.items()
    }


def _sizes(own: Mapping[str, Any], key: str, names: Iterable[str]) -> dict[str, float]:
    """Return CPUs or GPUs by machine, or by head and worker where they are the user's own."""
    given = own.get(key) or {}
    _allowed(f"{OWN}.{key}", given, tuple(sorted(names)))
    return {name: _number(f"{OWN}.{key}.{name}", value) for name, value in given.items()}


def _at(value: Any, path: str) -> Any:
    """Return what stands at ``a.b`` of a document, empty where there is nothing."""
    for key in path.split("."):
        value = value.get(key, "") if isinstance(value, Mapping) else ""
    return value


def _valid(path: str, config: Mapping[str, Any]) -> None:
    """Raise InputError where Ray's own schema refuses the file."""
    from copy import deepcopy

    import jsonschema
    from ray.autoscaler._private.util import prepare_config, validate_config

    logging.getLogger("ray.autoscaler").setLevel(logging.WARNING)  # what it fills in is no news
    try:
        validate_config(prepare_config(deepcopy(dict(config))))
    except jsonschema.ValidationError as error:
        at = ".".join(str(part) for part in error.absolute_path) or "the file"
        raise InputError.of("--cluster", f"{path}: {at}: {error.message}", "") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{path} is not what `ray up` takes"
        raise InputError.of("--cluster", what, str(error).split("\n")[0]) from error


def _allowed(where: str, part: object, names: tuple[str, ...]) -> None:
    if not isinstance(part, Mapping):
        raise InputError.of(where, f"{part!r} has no keys", f"allowed: {', '.join(names)}")
    for key in part:
        if key not in names:
            raise InputError.of(f"{where}.{key}", "unknown key", nearest(str(key), names))


def _number(where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise InputError.of(where, f"{value!r} is no amount", "a number, 0 or more")
    return float(value)


def _day(value: object) -> str:
    """Return the day of the prices: without one nobody knows what they are worth."""
    try:
        day = value if isinstance(value, datetime.date) else datetime.date.fromisoformat(str(value))
    except ValueError:
        what, fix = f"{value!r} is no day", "the day of the prices: 2026-11-01"
        raise InputError.of(f"{OWN}.prices.as_of", what, fix) from None
    return day.isoformat()[:10]
