"""What ranks save of a method, and how another number of ranks goes on from it.

A method remembers something different on every rank, such as what that rank has not sent yet. What a rank saves has
therefore a name of its own, ``rank 3``: torch.distributed.checkpoint keeps those of all ranks side by side, where it
would take values of equal names for copies of one another. It stands in a tuple, into which such a checkpoint does not
look: else it would load only what a method remembers before its first step.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from raybench.core.cells import joined, mapped
from raybench.core.errors import InputError
from raybench.torch.replicas import Replica, rank_here

ALL_PARTS = "the parts of all ranks: raybench.torch.whole([...])"
RANK_ZERO = {  # frameworks that write the optimizers' states of rank 0 alone, and what keeps those of all ranks
    "accelerate": "raybench.torch.accelerate(accelerator, model, ..)",
    "lightning": "callbacks=[raybench.torch.LightningCallback(..)]",
    "pytorch_lightning": "callbacks=[raybench.torch.LightningCallback(..)]",
    "transformers": "trainer.add_callback(raybench.torch.TrainerCallback(trainer, ..))",
}


def packed(
    algorithm: str, exchanges: Sequence[Any], replica: Replica, **more: Any
) -> dict[str, Any]:
    """Return the ``state_dict`` of this rank: what its exchanges remember, and ``more``.

    Where ranks remember the same, the part of any of them will do. Else InputError is raised where a framework asks that
    is known to write the answer of rank 0 alone, and the next exchange raises RuntimeError where not all ranks have
    asked.
    """
    transport = replica.transport
    alike = "local" not in more and all(exchange.alike for exchange in exchanges)
    if not alike and transport.size > 1:
        asking = sys._getframe(2)  # who has called the state_dict() that called this
        framework = str(asking.f_globals.get("__name__", "")).partition(".")[0]
        # __init__: Accelerate moves what it wraps to its device, and saves nothing
        if framework in RANK_ZERO and asking.f_code.co_name != "__init__":
            what = f"{framework} saves that of rank 0 alone, and each rank remembers something else"
            raise InputError.of("state_dict", what, RANK_ZERO[framework])
        replica.saves += 1
    part = {"algorithm": algorithm, "rank": transport.rank, "n": transport.size, "alike": alike}
    part |= {"exchanges": [exchange.state() for exchange in exchanges], **more}
    return {"raybench": {_name(): (part,)}}


def _name() -> str:
    """Return what this rank's part is called: ranks of several groups may save into one checkpoint."""
    return f"rank {rank_here()}"


def opened(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the parts that a ``state_dict`` holds, by the names of their ranks. Raises InputError where it has none."""
    parts = state.get("raybench") if isinstance(state, Mapping) else None
    if not isinstance(parts, Mapping) or not parts:
        what = "this was not saved by raybench.torch"
        raise InputError.of("state_dict", what, "load an optimizer's own before wrapping it")
    return {name: part for name, (part,) in parts.items()}


def whole(parts: Sequence[Mapping[str, Any]] | str | os.PathLike[str]) -> dict[str, Any]:
    """Return one state_dict of those that all ranks have saved; any number of ranks loads it.

    parts: one of every rank, or the folder of a torch.distributed.checkpoint that holds them. Raises InputError where
    a rank is missing.
    """
    if isinstance(parts, str | os.PathLike):
        parts = [_of_checkpoint(parts)]
    every = {name: part for state in parts for name, part in opened(state).items()}
    for place in {part.get("place", 0) for part in every.values()}:
        _complete([*every.values()], place)
    return {"raybench": {name: (part,) for name, part in every.items()}}


def _of_checkpoint(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return all parts in a folder written by torch.distributed.checkpoint, whatever the ranks are now."""
    from torch.distributed import checkpoint

    reader = checkpoint.FileSystemReader(folder)
    about = reader.read_metadata().state_dict_metadata
    names = [name for name in about if ".raybench.rank " in f".{name}"]
    if len({name.rpartition("raybench.")[0] for name in names}) > 1:
        what = f"{folder} holds several methods: {', '.join(names)}"
        raise InputError.of("state_dict", what, "a checkpoint for each of them")
    values: dict[str, Any] = dict.fromkeys(names, "")
    checkpoint.load(values, storage_reader=reader, no_dist=True)
    return {"raybench": {name.rpartition(".")[2]: value for name, value in values.items()}}


def _complete(parts: Sequence[Mapping[str, Any]], place: int) -> list[Mapping[str, Any]]:
    """Return the parts of all ranks with a place in their nodes, in rank order.

    Raises InputError where one is missing, or there are two of it.
    """
    there = (part for part in parts if part.get("place", 0) == place)
    by_rank = sorted(there, key=lambda part: part["rank"])
    if not by_rank:
        raise InputError.of("state_dict", f"no part of shard {place}", "nodes of as many ranks")
    ranks, n = [part["rank"] for part in by_rank], by_rank[0]["n"]
    if ranks != list(range(n)):
        raise InputError.of("state_dict", f"parts of ranks {ranks} of {n}", ALL_PARTS)
    return by_rank


def parts_of(
    state: Mapping[str, Any], algorithm: str, rank: int, n: int, place: int = 0
) -> list[Mapping[str, Any]]:
    """Return the parts from which rank ``rank`` of n goes on: its own alone where as many have saved, else all of them.

    place: of those whose place within their node is this, where nodes exchange.

    Raises InputError where they are another method's, or not there.
    """
    parts = opened(state)
    mine = parts.get(_name())
    for part in parts.values():
        if part["algorithm"] != algorithm:
            what = f"it is of {part['algorithm']}, this of {algorithm}"
            raise InputError.of("state_dict", what, "the same method")
    if mine is not None and (mine["rank"], mine["n"]) == (rank, n):
        return [mine]
    first = next(iter(parts.values()))
    if len(parts) > 1 or first["n"] == 1:
        every = _complete([*parts.values()], place)
        return [every[rank]] if len(every) == n else every
    if first["n"] != n:
        what = f"saved by {first['n']} ranks, loaded by {n}"
        raise InputError.of("state_dict", what, ALL_PARTS)
    if first["rank"] != rank and not first["alike"]:
        what = f"the part of rank {first['rank']} is loaded by rank {rank}"
        raise InputError.of("state_dict", what, "a file per rank, or " + ALL_PARTS)
    return [first]


def resume(
    state: Mapping[str, Any],
    algorithm: str,
    exchanges: Sequence[Any],
    replica: Replica,
    place: int = 0,
) -> list[Mapping[str, Any]]:
    """Let exchanges go on from a ``state_dict``; return its ``parts_of`` this rank. Raises InputError where it does not fit."""
    parts = parts_of(state, algorithm, replica.transport.rank, replica.transport.size, place)
    counts = {len(part["exchanges"]) for part in parts}
    if counts != {len(exchanges)}:
        what = f"it has {max(counts)} parts of a model, here are {len(exchanges)}"
        fix = "the same model and as many fragments; with FSDP after its first backward pass"
        raise InputError.of("state_dict", what, fix)
    for i, exchange in enumerate(exchanges):
        exchange.load([part["exchanges"][i] for part in parts])
    return parts


def of_rank(
    parts: Sequence[Mapping[str, Any]], rank: int, n: int, errors: Sequence[str]
) -> Mapping[str, Any]:
    """Return the state of one of n ranks from the parts of ``parts_of``: for another number of ranks see ``resized``."""
    if parts[0]["n"] == n:
        return parts[0]
    stacked = {name: joined([p["c"][name] for p in parts]) for name in parts[0]["c"]}

    def share(x: Tensor, error: bool) -> Tensor:
        return resized(x, n, error)[:, rank : rank + 1]

    c = {name: mapped(x, partial(share, error=name in errors)) for name, x in stacked.items()}
    return {**parts[0], "n": n, "rank": rank, "c": c}


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
    return mapped(value, lambda x: x.detach().to(device, copy=True))


def optimizer_of(parts: Sequence[Mapping[str, Any]], rank: int) -> Mapping[str, Any]:
    """Return the optimizer's state for a rank: the one it has saved, for a newcomer the mean of the others'."""
    states = [part["optimizer"] for part in parts]
    return dict(states[rank] if rank < len(states) else _mean(states))


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


def placed(path: Path, write: Callable[[Any], object]) -> None:
    """Write a file beside its place and move it there whole."""
    beside = path.with_suffix(".new")
    with beside.open("wb") as file:
        write(file)
    os.replace(beside, path)
