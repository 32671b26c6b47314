"""A cluster file: what Ray's launcher reads, and under ``metadata`` what only raybench does."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raybench.core.errors import InputError, nearest

OWN = "metadata"  # Ray reads nothing there
OWN_KEYS = ("prices", "cpus", "gpus", "home", "idle_minutes")
PRICE_KEYS = ("as_of", "currency", "per_hour")
KINDS = ("list", "spot")
IDLE_MINUTES = 60.0


@dataclass(frozen=True)
class NodeType:
    """Nodes of one kind: how many there may be, CPUs and GPUs of each, and its price per hour.

    price: what it usually is, the spot price where there is one. listed: what it is at most. None where the file
    does not say; so with cpus.
    """

    name: str
    most: int
    cpus: float | None
    gpus: float
    price: float | None
    listed: float | None


@dataclass(frozen=True)
class ClusterFile:
    """A cluster file as read: Ray's part as it stands, and what raybench knows of the nodes.

    kind: ``ray`` for Ray's launcher, ``rayjob`` for a RayJob of KubeRay, ``existing`` for a cluster that is there,
    at ``address``. own_machines: the hosts are there
    before and after, and cost nothing (provider ``local``). priced: the day of the prices, None without.
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

    @property
    def nodes(self) -> tuple[NodeType, ...]:
        """The head and all types of workers."""
        return (*((self.head,) if self.head else ()), *self.workers)


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
    _known(OWN, own, OWN_KEYS)
    _valid(path, config)
    prices = own.get("prices") or {}
    _known(f"{OWN}.prices", prices, PRICE_KEYS)
    user = str((config.get("auth") or {}).get("ssh_user", "root"))
    home = str(own.get("home") or ("/root" if user == "root" else f"/home/{user}"))
    idle = _number(f"{OWN}.idle_minutes", own.get("idle_minutes", IDLE_MINUTES))
    common = {
        "currency": str(prices.get("currency", "USD")),
        "priced": _day(prices.get("as_of")) if prices else None,
        "idle_minutes": idle,
        "home": home,
    }
    if provider["type"] == "local":
        return _own_machines(file, config, provider, own, common)
    return _rented(file, config, own, prices, common)


def _own_machines(
    file: Path,
    config: Mapping[str, Any],
    provider: Mapping[str, Any],
    own: Mapping[str, Any],
    common: Mapping[str, Any],
) -> ClusterFile:
    """Return the file of machines that are there anyway: one head, and the workers by address."""
    if "head_ip" not in provider:
        fix = "name the machines: head_ip and worker_ips"
        raise InputError.of("provider", "no head_ip", fix)
    workers = tuple(str(ip) for ip in provider.get("worker_ips") or ())
    cpus, gpus = own.get("cpus") or {}, own.get("gpus") or {}
    _known(f"{OWN}.cpus", cpus, ("head", "worker"))
    _known(f"{OWN}.gpus", gpus, ("head", "worker"))

    def kind(name: str, most: int) -> NodeType:
        size = cpus.get(name)
        each = None if size is None else _number(f"{OWN}.cpus.{name}", size)
        return NodeType(
            name, most, each, _number(f"{OWN}.gpus.{name}", gpus.get(name, 0)), 0.0, 0.0
        )

    return ClusterFile(
        file,
        "ray",
        config,
        kind("head", 1),
        (kind("worker", len(workers)),) if workers else (),
        own_machines=True,
        hosts=(str(provider["head_ip"]), *workers),
        **common,
    )


def _rented(
    file: Path,
    config: Mapping[str, Any],
    own: Mapping[str, Any],
    prices: Mapping[str, Any],
    common: Mapping[str, Any],
) -> ClusterFile:
    """Return the file of a cloud's machines, by their types."""
    types: Mapping[str, Any] = config.get("available_node_types") or {}
    head = str(config.get("head_node_type", ""))
    if head not in types:
        what = f"head_node_type {head!r} is none of available_node_types"
        raise InputError.of("head_node_type", what, nearest(head, types))
    costs, cpus, gpus = (
        d or {} for d in (prices.get("per_hour"), own.get("cpus"), own.get("gpus"))
    )
    for where, part in (("prices.per_hour", costs), ("cpus", cpus), ("gpus", gpus)):
        _known(f"{OWN}.{where}", part, tuple(types))
    bound = int(config.get("max_workers", 2))

    def kind(name: str) -> NodeType:
        said = types[name]
        given = said.get("resources") or {}
        size = given.get("CPU", cpus.get(name))
        most = 1 if name == head else min(bound, int(said.get("max_workers", bound)))
        where, cost = f"{OWN}.prices.per_hour.{name}", costs.get(name)
        listed = spot = None
        if cost is not None:
            _known(where, cost, KINDS)
            given_prices = {k: _number(f"{where}.{k}", v) for k, v in cost.items()}
            listed, spot = given_prices.get("list"), given_prices.get("spot")
        return NodeType(
            name,
            most,
            None if size is None else _number(f"{OWN}.cpus.{name}", size),
            _number(f"{OWN}.gpus.{name}", given.get("GPU", gpus.get(name, 0))),
            listed if spot is None else spot,
            listed,
        )

    workers = tuple(kind(name) for name in types if name != head)
    return ClusterFile(file, "ray", config, kind(head), workers, **common)


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


def _known(where: str, part: object, names: tuple[str, ...]) -> None:
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
        what = f"{value!r} is no day"
        raise InputError.of(
            f"{OWN}.prices.as_of", what, "the day of the prices: 2026-11-01"
        ) from None
    return day.isoformat()[:10]
