"""What ranks save of a method, and how another number of ranks goes on from it.

A method remembers something different on every rank, such as what that rank has not sent yet. What a rank saves has
therefore a name of its own, ``rank 3``: torch.distributed.checkpoint keeps those of all ranks side by side, where it
would take values of equal names for copies of one another. It stands in a tuple, into which such a checkpoint does not
look: else it would load only what a method remembers before its first step.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from raybench.core.cells import joined, mapped
from raybench.core.errors import InputError
from raybench.torch.exchange import GradientExchange, LoopSettings
from raybench.torch.replicas import Replica, rank_here
from raybench.torch.report import Report, report

ALL_PARTS = "the parts of all ranks: raybench.torch.whole([...])"
RANK_ZERO = {  # frameworks that write the optimizers' states of rank 0 alone, and what keeps those of all ranks
    "accelerate": "raybench.torch.accelerate(accelerator, model, ..)",
    "lightning": "callbacks=[raybench.torch.LightningCallback(..)]",
    "pytorch_lightning": "callbacks=[raybench.torch.LightningCallback(..)]",
    "transformers": "trainer.add_callback(raybench.torch.TrainerCallback(trainer, ..))",
}


class Compression:
    """Base of what exchanges a loop's gradients: what it has in common that counts, reports and saves.

    exchanges: those of the parts of the model, in a fixed order. rounds: how often gradients were exchanged, or
    skipped. skipped: of these. dense: bytes that all gradients so far are as they are. place: of the shard that this
    rank holds of its replica.
    """

    place = 0

    def __init__(self, plan: LoopSettings, replica: Replica) -> None:
        self.plan, self.replica = plan, replica
        self.exchanges: list[GradientExchange] = []
        self.rounds = self.skipped = self.dense = 0
        self._checked = 0  # the rounds at the last comparison of parameters

    def compare(self) -> None:
        """Compare the parameters of ranks, where it is time. Raises RuntimeError where they are not alike."""
        if self.replica.every and self.rounds - self._checked >= self.replica.every:
            self._checked = self.rounds
            self.replica.check(self.rounds)

    def report(self) -> Report:
        """Return what the messages of this rank cost and did so far; ``print`` gives a line.

        Of a node in DistributedDataParallel the first rank exchanges for the others; of one sharded by FSDP2 each
        exchanges its shard. A hook that is detached reports what there was until then.
        """
        logs, ranks = [exchange.rows for exchange in self.exchanges], self.replica.transport.size
        compressor = self.plan.compressor
        names = self.plan.algorithm, "" if compressor is None else str(compressor)
        return report(logs, ranks, names, self.rounds, self.skipped, self.dense)

    def more(self) -> dict[str, Any]:
        """Return what else than its exchanges this rank remembers."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank remembers: the method's state, and of a wrapped optimizer its own.

        Every rank saves its own, by torch.save or torch.distributed.checkpoint, and loads it again.
        ``raybench.torch.whole`` puts those of all ranks together, for another number of ranks. Where ranks remember the
        same, that of any of them will do. Else InputError is raised where a framework asks that is known to write the
        answer of rank 0 alone, and the next exchange raises RuntimeError where not all ranks have asked.
        """
        more, transport = self.more(), self.replica.transport
        alike = "local" not in more and not any(vars(e.c) for e in self.exchanges)
        if not alike and transport.size > 1:
            asking = sys._getframe(1)
            framework = str(asking.f_globals.get("__name__", "")).partition(".")[0]
            # __init__: Accelerate moves what it wraps to its device, and saves nothing
            if framework in RANK_ZERO and asking.f_code.co_name != "__init__":
                what = f"{framework} saves that of rank 0 alone, and each rank remembers something else"
                raise InputError.of("state_dict", what, RANK_ZERO[framework])
            self.replica.saves += 1
        about = {"rank": transport.rank, "n": transport.size, "alike": alike}
        states = [exchange.state() for exchange in self.exchanges]
        part = {"algorithm": self.plan.algorithm, **about, "exchanges": states, **more}
        # among all ranks: those of several groups may save into one checkpoint
        return {"raybench": {f"rank {rank_here()}": (part,)}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a rank's own ``state_dict``, or from the whole of any number of ranks.

        With another number of ranks means over the ranks stay as they were: that of what has not been sent, x
        - mean e being kept, and that of all else. Raises InputError where it does not fit.
        """
        self.resume(state_dict)

    def resume(self, state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Let exchanges go on from a ``state_dict``; return its ``parts_of`` this rank."""
        rank, n = self.replica.transport.rank, self.replica.transport.size
        parts = parts_of(state, self.plan.algorithm, rank, n, self.place)
        counts = {len(part["exchanges"]) for part in parts}
        if counts != {len(self.exchanges)}:
            what = f"it has {max(counts)} parts of a model, here are {len(self.exchanges)}"
            fix = "the same model and as many fragments; with FSDP after its first backward pass"
            raise InputError.of("state_dict", what, fix)
        for i, exchange in enumerate(self.exchanges):
            states = [part["exchanges"][i] for part in parts]
            c = [state["c"] for state in states]
            mine = c[0] if parts[0]["n"] == n else share_of(c, rank, n, exchange.a.unsent_state)
            exchange.load({**states[0], "c": mine})
        return parts


def parts_of_ranks(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
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
    every = {name: part for state in parts for name, part in parts_of_ranks(state).items()}
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
    parts = parts_of_ranks(state)
    mine = parts.get(f"rank {rank_here()}")
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
    if first["n"] != n or not (
        first["alike"] or first["rank"] == rank
    ):  # of a group it has another name
        what = f"saved by {first['n']} ranks, loaded by {n}: the part of rank {first['rank']} on rank {rank}"
        raise InputError.of("state_dict", what, f"a file per rank, or {ALL_PARTS}")
    return [first]


def share_of(
    states: Sequence[Mapping[str, Any]], rank: int, n: int, errors: Sequence[str]
) -> dict[str, Any]:
    """Return the client state of one of n ranks from those of another number, in rank order: see ``resized``."""

    def share(x: Tensor, error: bool) -> Tensor:
        return resized(x, n, error)[:, rank : rank + 1]

    stacked = {name: joined([state[name] for state in states]) for name in states[0]}
    return {name: mapped(x, partial(share, error=name in errors)) for name, x in stacked.items()}


def resized(x: Tensor, n: int, error: bool) -> Tensor:
    """Return client state (1, n, ..) of n clients from that of another number, with the same mean.

    error: what is not sent yet. x - mean e must not move, so those who stay have e_j <- (n/n_before)
    (e_j + share of what leavers held), newcomers nothing. Other state is about a client's gradient, such as g_i with
    g = mean g_i or a momentum: newcomers start at the mean, and those who stay share what leavers take along.
    """
    before = x.shape[1]
    stay, new = x[:, : min(n, before)], x[:, :1]
    if n != before and x.is_floating_point():
        new = x.mean(1, keepdim=True)
        if error:
            tail = x[:, n:].sum(1, keepdim=True)
            stay, new = (stay + tail / stay.shape[1]) * (n / before), torch.zeros_like(new)
        elif n < before:
            stay = stay + (new - stay.mean(1, keepdim=True))
    return torch.cat((stay, new.expand(-1, n - stay.shape[1], *x.shape[2:])), 1)


def mean_of(states: Sequence[Any]) -> Any:
    """Return what a newcomer's optimizer remembers: the mean of what the others' do."""
    first = states[0]
    if isinstance(first, Tensor):
        if not first.is_floating_point():
            return first
        return torch.stack([s.to(first) for s in states]).mean(0)
    if isinstance(first, Mapping):
        return {key: mean_of([s[key] for s in states]) for key in first}
    return first
