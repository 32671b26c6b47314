"""A cluster file: what Ray's launcher reads, and under ``metadata`` what only raybench does."""

from __future__ import annotations

import datetime
import logging
import math
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raybench.core.errors import InputError, nearest

OWN = "metadata"  # Ray reads nothing there
OWN_KEYS = ("prices", "cpus", "gpus", "home", "idle_minutes")
PRICE_KEYS, KINDS = ("as_of", "currency", "per_hour"), ("list", "spot")
BY = "by region and machine: {us-west-2: {m7i.large: {list: 0.1, spot: 0.04}}}"
OLD_DAYS = 90  # of prices, which are then said to be old
# Where a provider says where its machines are, and nodes which machine they are and whether it may be taken away.
CLOUDS: Mapping[str, tuple[str, str, str]] = {
    "aws": ("region", "InstanceType", "InstanceMarketOptions.MarketType"),
    "gcp": ("region", "machineType", "scheduling.provisioningModel"),
    "azure": ("location", "azure_arm_parameters.vmSize", "azure_arm_parameters.priority"),
}


@dataclass(frozen=True)
class NodeType:
    """Nodes of one kind: how many there are at most and at least, which machine each is, its CPUs and GPUs.

    price: per hour, what it usually is, the spot price of spot nodes. listed: what it is at most. Infinite where the file
    does not say. cpus: None where it does not.
    """

    name: str
    most: int
    cpus: float | None
    gpus: float
    price: float
    listed: float
    machine: str = ""
    spot: bool = False
    fewest: int = 0


@dataclass(frozen=True)
class ClusterFile:
    """A cluster file as read: Ray's part as it stands, and what raybench knows of the nodes, the head first.

    hosts: the addresses of the user's own machines, which are there before and after, and cost nothing (provider
    ``local``); empty where machines are rented. priced: the day of the prices, None without.
    """

    path: Path
    config: Mapping[str, Any]
    nodes: tuple[NodeType, ...] = ()
    hosts: tuple[str, ...] = ()
    region: str = ""
    home: str = ""
    idle_minutes: float = 60.0
    currency: str = "USD"
    priced: datetime.date | None = None

    @property
    def own_machines(self) -> bool:
        """Whether the machines are the user's own."""
        return bool(self.hosts)

    @property
    def unpriced(self) -> list[NodeType]:
        """The nodes whose list price nobody has written down."""
        return [node for node in self.nodes if math.isinf(node.listed)]

    @property
    def max_workers(self) -> int:
        """How many nodes there are at most, over all types, the head not counted."""
        return len(self.hosts) - 1 if self.hosts else int(self.config.get("max_workers", 2))

    @property
    def ends_by_itself(self) -> bool:
        """Whether a machine that shuts itself down costs nothing any more; Azure bills it until it is deleted."""
        return bool(self.hosts) or self.config.get("provider", {}).get("type") in ("aws", "gcp")

    @property
    def lease(self) -> int:
        """Seconds after which a host ends that nobody pushes; a rented one lets nobody in for the last five minutes."""
        return max(20 if self.hosts else 600, math.ceil(60 * self.idle_minutes))

    @property
    def old(self) -> int:
        """Days since the prices were asked for, 0 as long as they count as new."""
        days = (datetime.datetime.now().date() - self.priced).days if self.priced else 0
        return days if days > OLD_DAYS else 0


def read(path: str) -> ClusterFile:
    """Return the cluster file at ``path``.

    Raises InputError, which names the key, for a file that Ray's launcher would not take, and for keys under
    ``metadata`` that there are not.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise InputError.of("--cluster", f"no file {path}", "docs/cluster.md lists those shipped")
    config = _parsed(file)
    own = config.get(OWN) or {}
    _allowed(OWN, own, OWN_KEYS)
    _valid(path, config)
    prices = own.get("prices") or {}
    _allowed(f"{OWN}.prices", prices, PRICE_KEYS)
    user = str((config.get("auth") or {}).get("ssh_user", "root"))
    provider: Mapping[str, Any] = config["provider"]
    hosts = tuple(map(str, (provider.get("head_ip", ""), *(provider.get("worker_ips") or ()))))
    local = provider["type"] == "local"
    if local and not hosts[0]:
        raise InputError.of("provider", "no head_ip", "name the machines: head_ip and worker_ips")
    return ClusterFile(
        file,
        config,
        _own_machines(own, hosts) if local else _rented(config, own, prices.get("per_hour") or {}),
        hosts if local else (),
        str(provider.get(CLOUDS.get(provider["type"], ("",))[0], "")),
        str(own.get("home") or ("/root" if user == "root" else f"/home/{user}")),
        _number(f"{OWN}.idle_minutes", own.get("idle_minutes", 60.0)),
        str(prices.get("currency", "USD")),
        _day(prices.get("as_of")) if prices else None,
    )


def _parsed(file: Path) -> dict[str, Any]:
    """Return the keys of a file for Ray's launcher."""
    import yaml  # the one that Ray reads it with, which knows merge keys

    try:
        parts = [part for part in yaml.safe_load_all(file.read_text()) if part]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError.of("--cluster", f"{file} is no YAML", str(error)) from error
    except RecursionError as error:
        raise InputError.of("--cluster", f"{file} is nested too deeply", "look at it") from error
    config = parts[0] if len(parts) == 1 else None
    provider = config.get("provider") if isinstance(config, dict) else None
    if not isinstance(config, dict) or not isinstance(provider, dict) or "type" not in provider:
        fix = "a file for `ray up`, such as cluster.yaml; docs/cluster.md tells how others are used"
        raise InputError.of("--cluster", f"{file} has no provider.type", fix)
    return config


def _own_machines(own: Mapping[str, Any], hosts: tuple[str, ...]) -> tuple[NodeType, ...]:
    cpus, gpus = (_sizes(own, key, ("head", "worker")) for key in ("cpus", "gpus"))
    counts = {"head": 1, "worker": len(hosts) - 1}
    return tuple(
        NodeType(name, n, cpus.get(name), gpus.get(name, 0.0), 0.0, 0.0, fewest=n)
        for name, n in counts.items()
        if n
    )


def _rented(
    config: Mapping[str, Any], own: Mapping[str, Any], costs: Mapping[str, Any]
) -> tuple[NodeType, ...]:
    """Return the types of a cloud's machines, the head first."""
    types: Mapping[str, Any] = config.get("available_node_types") or {}
    head = str(config.get("head_node_type", ""))
    if head not in types:
        what = f"head_node_type {head!r} is none of available_node_types"
        raise InputError.of("head_node_type", what, nearest(head, types))
    place, machine_at, spot_at = CLOUDS.get(str(config["provider"]["type"]), ("", "", ""))
    prices = {
        region: _by_machine(f"{OWN}.prices.per_hour.{region}", of) for region, of in costs.items()
    }
    here = prices.get(str(config["provider"].get(place, "")), {})
    machines = {name: str(_at(said.get("node_config"), machine_at)) for name, said in types.items()}
    names = {*machines.values(), *(machine for of in prices.values() for machine in of)}
    cpus, gpus = (_sizes(own, key, names) for key in ("cpus", "gpus"))
    bound = int(config.get("max_workers", 2))

    def kind(name: str) -> NodeType:
        said, machine = types[name], machines[name]
        size, price = said.get("resources") or {}, here.get(machine, {})
        spot = str(_at(said.get("node_config"), spot_at)).lower() == "spot"
        listed = price.get("list", math.inf)
        usual = price.get("spot", listed) if spot else listed
        most = 1 if name == head else min(bound, int(said.get("max_workers", bound)))
        fewest = 1 if name == head else min(most, int(said.get("min_workers", 0)))
        cpu, gpu = size.get("CPU", cpus.get(machine)), size.get("GPU", gpus.get(machine, 0.0))
        return NodeType(name, most, cpu, gpu, usual, listed, machine, spot, fewest)

    return tuple(kind(name) for name in sorted(types, key=lambda name: name != head))


def _sizes(own: Mapping[str, Any], key: str, names: Iterable[str]) -> dict[str, float]:
    """Return CPUs or GPUs by machine, or by head and worker where they are the user's own."""
    return _numbers(f"{OWN}.{key}", own.get(key) or {}, tuple(sorted(names)))


def _at(value: Any, path: str) -> Any:
    """Return what stands at ``a.b`` of a document, empty where there is nothing."""
    for key in path.split("."):
        value = value.get(key, "") if isinstance(value, Mapping) else ""
    return value


def _valid(path: str, config: Mapping[str, Any]) -> None:
    """Raise InputError where Ray's own schema refuses the file."""
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


def _by_machine(where: str, machines: object) -> dict[str, dict[str, float]]:
    """Return the prices of a region's machines."""
    if not isinstance(machines, Mapping) or not all(
        isinstance(m, Mapping) for m in machines.values()
    ):
        raise InputError.of(where, f"{machines!r} has no machines", f"prices go {BY}")
    return {str(name): _numbers(f"{where}.{name}", m, KINDS) for name, m in machines.items()}


def _allowed(where: str, part: object, names: tuple[str, ...]) -> None:
    if not isinstance(part, Mapping):
        raise InputError.of(where, f"{part!r} has no keys", f"allowed: {', '.join(names)}")
    for key in part:
        if key not in names:
            raise InputError.of(f"{where}.{key}", "unknown key", nearest(str(key), names))


def _numbers(where: str, part: Mapping[str, object], names: tuple[str, ...]) -> dict[str, float]:
    _allowed(where, part, names)
    return {name: _number(f"{where}.{name}", value) for name, value in part.items()}


def _number(where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise InputError.of(where, f"{value!r} is no amount", "a number, 0 or more")
    return float(value)


def _day(value: object) -> datetime.date:
    """Return the day of the prices: without one nobody knows what they are worth."""
    try:
        return datetime.date.fromisoformat(str(value)[:10])
    except ValueError:
        what, fix = f"{value!r} is no day", "the day of the prices: 2026-11-01"
        raise InputError.of(f"{OWN}.prices.as_of", what, fix) from None
