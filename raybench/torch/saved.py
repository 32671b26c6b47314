"""What ranks save of a method, and how another number of ranks goes on from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from raybench.core.cells import joined
from raybench.core.errors import InputError

ALL_PARTS = "the parts of all ranks, in rank order: raybench.torch.whole([...])"


def whole(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one state_dict of those that all ranks have saved, in rank order; any number of ranks loads it.

    The optimizer's own state is that of rank 0, except after local steps, where ranks that also saved go on
    with their own. Raises InputError where a rank is missing.
    """
    first = parts[0] if parts else {}
    if "raybench" not in first:
        raise InputError.of("state_dict", "these are no parts saved by raybench.torch", ALL_PARTS)
    held = [part["raybench"]["parts"] for part in parts]
    ranks = [rank_state[0]["exchanges"][0]["rank"] for rank_state in held]
    n = held[0][0]["exchanges"][0]["n"]
    if ranks != list(range(n)):
        raise InputError.of("state_dict", f"parts of ranks {ranks} of {n}", ALL_PARTS)
    return {
        **first,
        "raybench": {**first["raybench"], "parts": [rank_state[0] for rank_state in held]},
        "own": [part["optimizer"] for part in parts if "optimizer" in part],
    }


def of_rank(
    parts: Sequence[Mapping[str, Any]], rank: int, n: int, errors: Sequence[str]
) -> Mapping[str, Any]:
    """Return the state of one of n ranks from the parts that ranks have saved.

    A part alone belongs to its rank among as many as saved. From all parts any number of ranks goes on: see
    ``resized``. Raises InputError where parts are missing.
    """
    before = parts[0]["n"]
    if len(parts) == 1 and before > 1:
        if before != n:
            what = f"saved by {before} ranks, loaded by {n}"
            raise InputError.of("state_dict", what, ALL_PARTS)
        if parts[0]["rank"] != rank:
            what = f"the part of rank {parts[0]['rank']} is loaded by rank {rank}"
            raise InputError.of("state_dict", what, "a file per rank, or " + ALL_PARTS)
        return parts[0]
    if before == n:
        return parts[rank]
    stacked = {name: joined([p["c"][name] for p in parts]) for name in parts[0]["c"]}
    c = {name: _resized(x, n, rank, name in errors) for name, x in stacked.items()}
    return {**parts[0], "n": n, "rank": rank, "c": c}


def _resized(x: Any, n: int, rank: int, error: bool) -> Any:
    if isinstance(x, list):
        return [_resized(element, n, rank, error) for element in x]
    return resized(x, n, error)[:, rank : rank + 1] if isinstance(x, Tensor) else x


def resized(x: Tensor, n: int, error: bool) -> Tensor:
    """Return client state (1, n, ..) of n clients from that of another number, with the same mean.

    error: what is not sent yet. x - mean e must not move, so those who stay have e_j <- (n/n_before)
    (e_j + share of what leavers held), newcomers nothing. Other state is about a client's gradient, such as g_i with
    g = mean g_i or a momentum: newcomers start at the mean, and those who stay share what leavers take along.
    """
    before = x.shape[1]
    if n == before or not x.is_floating_point():
        filled = x[:, :1].expand(-1, max(0, n - before), *x.shape[2:])
        return torch.cat((x[:, :n], filled), 1)
    stay = x[:, : min(n, before)]
    if error:
        values = (stay + x[:, n:].sum(1, keepdim=True) / stay.shape[1]) * (n / before)
        return torch.cat(
            (values, torch.zeros_like(x[:, :1]).expand(-1, n - stay.shape[1], *x.shape[2:])), 1
        )
    mean = x.mean(1, keepdim=True)
    values = stay + (mean - stay.mean(1, keepdim=True)) if n < before else stay
    return torch.cat((values, mean.expand(-1, n - values.shape[1], *x.shape[2:])), 1)


def on(value: Any, device: torch.device) -> Any:
    """Return a value with its tensors on a device, with memory of their own."""
    if isinstance(value, Tensor):
        return value.detach().to(device, copy=True)
    return [on(v, device) for v in value] if isinstance(value, list) else value


def parts_of(state: Mapping[str, Any], algorithm: str) -> list[Mapping[str, Any]]:
    """Return the parts of a method that a ``state_dict`` holds. Raises InputError where it is another's."""
    about = state.get("raybench") if isinstance(state, Mapping) else None
    if not isinstance(about, Mapping):
        what = "this was not saved by raybench.torch"
        raise InputError.of("state_dict", what, "load an optimizer's own before wrapping it")
    if about["algorithm"] != algorithm:
        what = f"it is of {about['algorithm']}, this of {algorithm}"
        raise InputError.of("state_dict", what, "the same method")
    return list(about["parts"])


def optimizer_of(state: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    """Return the optimizer's state for a rank of what one rank, or all of them, have saved."""
    inner = state.get("own")
    if inner is None:
        return state["optimizer"]
    return inner[rank] if rank < len(inner) else _mean(inner)


def _mean(states: Sequence[Any]) -> Any:
    """Return what a newcomer's optimizer remembers: the mean of what the others' do."""
    first = states[0]
    if isinstance(first, Tensor):
        if not first.is_floating_point():
            return first
        return torch.stack([s.to(first) for s in states]).mean(0)
    if isinstance(first, Mapping):
        return {key: _mean([s[key] for s in states]) for key in first}
    return first
