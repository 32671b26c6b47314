"""States of runs on several ranks: put together, and dealt out to another number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from raybench.core.cells import joined
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
    """Return the part of a whole state (``Run.state``) that belongs to some consecutive clients."""

    def part(tensor: Tensor) -> Tensor:
        return tensor[:, clients.start : clients.stop].clone()

    return _with_clients(state, lambda get: mapped(get(state), part))


def _with_clients(
    state: Mapping[str, Any], made: Callable[[Callable[[Mapping[str, Any]], Any]], Any]
) -> dict[str, object]:
    """Return the state with the values that belong to clients replaced by what is ``made`` of them."""
    return {
        **state,
        "c": made(lambda part: part["c"]),
        "oracle": {**state["oracle"], "buffers": made(lambda part: part["oracle"]["buffers"])},
    }


def mapped(value: object, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a part of a state with each of its tensors changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list):
        return [mapped(v, change) for v in value]
    if isinstance(value, dict):
        return {name: mapped(v, change) for name, v in value.items()}
    return value
