"""States of runs on several ranks: put together, and dealt out to another number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from raybench.execution.batch import Batch

Part: TypeAlias = Callable[[], dict[str, Any]]  # reads the state that one rank has saved


class Keeper(Protocol):
    """Keeps states of batches at work, so that another process can go on; all ranks call it together.

    every: seconds of a batch between saves.
    """

    every: float

    def find(self, batch: Batch) -> Sequence[Part]:
        """Return what reads the newest state of a batch, rank by rank as it was saved; empty for none."""

    def save(self, batch: Batch, t: int, state: Mapping[str, Any]) -> None:
        """Keep a batch's state after round t, in place of an earlier one."""


def of_rank(parts: Sequence[Part], rank: int, size: int, clients: range) -> dict[str, object]:
    """Return the state of one of ``size`` ranks, which hosts these clients, from what any number saved."""
    if len(parts) == size:
        return parts[rank]()
    return share(whole([read() for read in parts]), clients)


def whole(parts: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return the state of all clients from those of the ranks, in rank order (``Run.state``)."""
    return _with_clients(parts[0], lambda get: joined([get(part) for part in parts]))


def share(state: Mapping[str, object], clients: range) -> dict[str, object]:
    """Return the part of a whole state that belongs to some consecutive clients."""
    return _with_clients(state, lambda get: part_of(get(state), clients))


def _with_clients(
    state: Mapping[str, Any], made: Callable[[Callable[[Mapping[str, Any]], Any]], Any]
) -> dict[str, object]:
    """Return the state with the values that belong to clients replaced by what is ``made`` of them."""
    return {
        **state,
        "c": made(lambda part: part["c"]),
        "oracle": {**state["oracle"], "buffers": made(lambda part: part["oracle"]["buffers"])},
    }


def joined(values: Sequence[Any]) -> Any:
    """Return a value of the clients' state from those of consecutive stretches of clients."""
    first = values[0]
    if isinstance(first, Tensor):
        return torch.cat(list(values), 1)
    if isinstance(first, list):
        return [joined(group) for group in zip(*values, strict=True)]
    if isinstance(first, dict):
        return {name: joined([v[name] for v in values]) for name in first}
    return first


def part_of(value: object, clients: range) -> Any:
    """Return the part of a value of the clients' state that belongs to some of them, by place."""
    if isinstance(value, Tensor):
        return value[:, clients.start : clients.stop].clone()
    if isinstance(value, list):
        return [part_of(v, clients) for v in value]
    if isinstance(value, dict):
        return {name: part_of(v, clients) for name, v in value.items()}
    return value


def on(value: object, device: torch.device) -> Any:
    """Return a part of a state with its tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, list):
        return [on(v, device) for v in value]
    if isinstance(value, dict):
        return {name: on(v, device) for name, v in value.items()}
    return value
