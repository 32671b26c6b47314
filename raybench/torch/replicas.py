"""Whether the ranks train replicas of one model: their settings and parameters at the start, and as it goes on."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from xxhash import xxh3_64_intdigest

from raybench.core.errors import InputError
from raybench.wire.transport import Transport


def rank_here() -> int:
    """Return the rank of this process among all, 0 without torch.distributed."""
    return dist.get_rank() if dist.is_initialized() else 0


def group_apart(group: dist.ProcessGroup | None, device: torch.device) -> dist.ProcessGroup:
    """Return a new group of the same ranks, with the same backend and timeout; all of them have to call this.

    What a thread sends must not get between messages of the main thread, so it needs a group of its own.
    """
    old = dist.distributed_c10d._get_default_group() if group is None else group
    ranks = dist.get_process_group_ranks(old)
    new = dist.new_group(
        ranks,
        timeout=timeout_of(old, device),
        backend=dist.get_backend(old),
        use_local_synchronization=len(ranks) > 1,
    )
    assert isinstance(new, dist.ProcessGroup)
    # one that is gone again before others have reached it would leave them waiting
    dist.all_reduce(torch.zeros(1, device=device), group=new)
    return new


def timeout_of(group: dist.ProcessGroup, device: torch.device) -> timedelta:
    """Return how long a group waits for a rank: torch has no public way to ask."""
    timeout: timedelta = group._get_backend(device).options._timeout
    return timeout


SMALL = 1e-4  # gradients below this share of the square root of the largest number, over all of them, do not overflow


class RankStatus(NamedTuple):
    """What ranks tell each other at an exchange.

    bad: ranks whose vectors are not finite. large: those whose squares may not be. loss: the mean. used: of each tensor whether any rank has used it.
    """

    bad: list[int]
    loss: float
    large: Sequence[int] = ()
    used: list[bool] | None = None


class Replica:
    """This rank's replica of a model. named: all its parameters. others: ranks with other parts of the same one.

    every: steps between two comparisons of parameters, 0 for none. Methods that communicate are called on all ranks,
    and what they raise is raised on all of them.
    """

    def __init__(
        self,
        transport: Transport,
        named: Iterable[tuple[str, Tensor]],
        others: Sequence[Transport] = (),
        every: int = 0,
    ) -> None:
        self.transport, self.others, self.every = transport, others, every
        pairs = list(named)
        self.names, self.params = [name for name, _ in pairs], [p for _, p in pairs]
        self.device = self.params[0].device  # where numbers that are shared have to be
        self.asked = [p.requires_grad for p in self.params]
        # those that may neither be frozen nor unfrozen, and whether they ask for a gradient
        self.fixed = list(zip(self.names, self.asked, self.params, strict=True))
        self.saves = 0  # how often this rank was asked for what it alone remembers
        self._warned = False

    def compare(self, settings: Mapping[str, Any]) -> None:
        """Raise InputError, on all ranks, where their settings or parameters are not alike; it names what differs.

        settings: by the names that users know. Digests alone travel unless something differs.
        """
        about = {key: str(value) for key, value in settings.items()}
        for i, (name, p) in enumerate(zip(self.names, self.params, strict=True)):
            frozen = "" if p.requires_grad else ", requires_grad=False"
            about[f"parameter {i}"] = f"{name} {tuple(p.shape)} {p.dtype}{frozen}"
        if self._alike(about):
            return
        every = self.transport.everyone(about)
        for key in dict.fromkeys(chain.from_iterable(every)):
            values = [replica.get(key, "nothing") for replica in every]
            if (other := next((v for v in values if v != values[0]), None)) is not None:
                ranks = _ranks([r for r, v in enumerate(values) if v == other])
                what = f"rank 0 has {values[0]}, {ranks} {other}"
                fix = "the same on every rank: else their replicas drift apart"
                raise InputError.of(key, what, fix)
        raise InputError.of("group", "ranks that hold other shards differ", "see what those say")

    def share_status(
        self,
        vector: Tensor,
        steps: int,
        loss: float = math.nan,
        used: Sequence[bool] | None = None,
    ) -> RankStatus:
        """Tell the others whether this rank's vector (d,) is finite, how many exchanges it has done, and its loss.

        used: which of the tensors that the vector is made of this rank has used, where that varies.

        Raises InputError where parameters have begun or ceased to ask for a gradient, RuntimeError where ranks have
        done different numbers of exchanges.
        """
        # the norm is no smaller than the largest entry, and quicker to compute
        largest = float(torch.dot(vector, vector)) ** 0.5
        # with room for what a memory has added up: what methods multiply may then overflow
        room = SMALL * math.sqrt(torch.finfo(vector.dtype).max / max(len(vector), 1))
        if not largest < room:
            largest = float(torch.linalg.vector_norm(vector, math.inf))
        large, finite = not largest < room, math.isfinite(largest)
        if self.transport.size == 1:
            self._refuse_changes()
            return RankStatus(
                [] if finite else [0], loss, [0] * large, None if used is None else [*used]
            )
        changed = any(asked != p.requires_grad for _, asked, p in self.fixed)
        # the very same gradients on all ranks are looked for once: numbers are exact up to 2^53
        bits = xxh3_64_intdigest(_bytes(vector)) >> 11 if steps == 0 else 0
        numbers = [large + (not finite), changed, steps, self.saves, bits, loss, *(used or ())]
        rows = torch.zeros(self.transport.size, len(numbers), dtype=torch.float64)
        # everyone adds zeros to the rows of others
        rows[self.transport.rank] = torch.tensor(numbers, dtype=torch.float64)
        rows = self.transport.all_reduce([rows.to(vector.device)])[0].cpu()
        bad, changes, counts, saves, hashes, losses = rows[:, :6].T.tolist()
        if any(changes):
            self._refuse_changes()
        if len(set(counts)) > 1:
            listing = ", ".join(f"rank {r} {int(count)}" for r, count in enumerate(counts))
            raise RuntimeError(
                f"the ranks have done different numbers of exchanges: {listing}. Each has to load what it saved, "
                "all of it at the same step."
            )
        if len(set(saves)) > 1:
            listing = ", ".join(f"rank {r} {int(count)}" for r, count in enumerate(saves))
            raise RuntimeError(
                f"the ranks have called state_dict() a different number of times: {listing}. Each remembers what no other "
                "does, so that a checkpoint of some of them goes on wrongly: call it on every rank, and let each save its "
                "own, to a file per rank or by torch.distributed.checkpoint."
            )
        ranks = [r for r, flag in enumerate(bad) if flag > 1]
        same = steps == 0 and not ranks and len(set(hashes)) == 1 and bool(vector.any())
        if same and self.transport.rank == 0:
            warnings.warn(
                f"all {self.transport.size} ranks have the very same gradients. Either the model is in "
                "DistributedDataParallel, which has averaged them already (take it out, or raybench.torch.attach for "
                "CompressedOptimizer), or every rank trains on the same data.",
                stacklevel=2,
            )
        anyone = None if used is None else rows[:, 6:].any(0).tolist()
        doubtful = [r for r, flag in enumerate(bad) if flag]
        return RankStatus(ranks, sum(losses) / len(losses), doubtful, anyone)

    def _refuse_changes(self) -> None:
        """Raise InputError on all ranks where parameters of any have begun or ceased to ask for a gradient."""
        mine = [
            (name, p.requires_grad) for name, asked, p in self.fixed if asked != p.requires_grad
        ]
        for rank, changes in enumerate(self.transport.everyone(mine)):
            for name, asks in changes:
                what = f"that of {name} has become {asks} on rank {rank}"
                fix = "memories are of the parameters of the start: set it first, then wrap or attach anew"
                raise InputError.of("requires_grad", what, fix)

    def say_skipped(self, step: int, ranks: Sequence[int], alone: bool = False) -> None:
        """Warn of the first step that is skipped: on rank 0, and on the ranks that are to blame.

        alone: this rank leaves out a local step, of which others do not know.
        """
        if self._warned:
            return
        self._warned = True
        rank, n = self.transport.rank, self.transport.size
        who = "This rank leaves the local step out" if alone else "All ranks skip the step"
        if rank == 0 or rank in ranks:
            warnings.warn(
                f"step {step}: NaN or infinity in the gradients of {len(ranks)} of {n} ranks ({_ranks(ranks)}), or in "
                "what the method makes of them. "
                f"{who}, and what the method remembers stays as it was; report().skipped counts such steps from now on "
                "without a word. To find the cause, look at the loss and the data of these ranks, and at "
                "torch.autograd.set_detect_anomaly(True).",
                stacklevel=2,
            )

    def anywhere(self, flag: bool) -> bool:
        """Return whether a flag is raised on any rank that holds another part of this replica."""
        for transport in self.others:
            [raised] = transport.all_reduce([torch.tensor([float(flag)], device=self.device)])
            flag = bool(raised > 0)
        return flag

    def _alike(self, value: object) -> bool:
        """Return whether all ranks have the same value, those with other parts of the replica as well."""
        number = xxh3_64_intdigest(json.dumps(value).encode()) >> 1  # 63 bits: tensors have signs
        mine = torch.tensor([[number]], device=self.device)
        every = self.transport.gather_rows(mine, self.transport.size)
        return not self.anywhere(not bool((every == every[:, :1]).all()))

    def digests(self) -> list[int]:
        """Return a number for the bits of each parameter, of this rank's part."""
        return [xxh3_64_intdigest(_bytes(p)) for p in self.params]

    def check(self, step: int) -> None:
        """Raise RuntimeError where the parameters of ranks are not the same bits; it names the first."""
        digests = self.digests()
        if self._alike(digests):
            return
        every = self.transport.everyone(digests)
        for name, values in zip(self.names, zip(*every, strict=True), strict=True):
            if ranks := [r for r, value in enumerate(values) if value != values[0]]:
                where = f"{name} of {_ranks(ranks)} is not that of rank 0"
                break
        else:
            where = "those of ranks that hold another shard"
        raise RuntimeError(
            f"step {step}: the replicas have drifted apart: {where}. Everything that changes parameters has to be the "
            "same on all ranks."
        )


def local(x: Tensor) -> Tensor:
    """Return this rank's part of a tensor that is sharded, others as they are."""
    return x.to_local() if isinstance(x, DTensor) else x


def _bytes(x: Tensor) -> Any:
    return local(x).detach().cpu().contiguous().flatten().view(torch.uint8).numpy()


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
