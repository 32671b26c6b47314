"""raybench's methods across the replicas of a model that FSDP2 shards within each of them."""

from __future__ import annotations

import weakref
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.torch.attached import Attached
from raybench.torch.exchange import Exchange, Plan
from raybench.torch.replicas import Replica
from raybench.wire.transport import Distributed, Transport

# What is attached to a model, which holds it itself: from here it must not keep the model alive.
_hooks: weakref.WeakKeyDictionary[nn.Module, weakref.ref[ShardedHook]] = weakref.WeakKeyDictionary()


class ShardedHook(Attached):
    """What ``attach`` returns for a model of FSDP2: an exchange for every module that it shards.

    A rank's shard of a module's gradients, reduced within its replica, is one vector, whose clients are the ranks
    of ``group`` that hold the same shard. Exchanges are made at the first backward pass. It is skipped for the whole
    model or not at all: see ``settle``.
    """

    def __init__(self, model: FSDPModule, plan: Plan, replica: Replica) -> None:
        assert isinstance(model, nn.Module)
        if plan.granularity == "tensor":
            what = "a shard is one vector, without the model's tensors"
            raise InputError.of("granularity", what, "bucket")
        before = _hooks[model]() if model in _hooks else None
        if before is not None and before.on:
            raise InputError.of("model", "a method is attached to it", "detach() that one first")
        super().__init__(plan, model, replica)
        self.modules = [m for m in model.modules() if isinstance(m, FSDPModule)]
        self._made: dict[int, Exchange] = {}
        self._reduced: set[int] = set()  # modules of this backward pass
        self._open = False  # whether one is going on
        for i, module in enumerate(self.modules):
            module.set_all_reduce_hook(partial(self._reduce, i))
        _hooks[model] = weakref.ref(self)

    def begin(self) -> None:
        self.settle()
        super().begin()
        self._reduced, self._open = set(), True

    def settle(self) -> None:
        """End a backward pass: it is skipped where other shards were, whose ranks were not asked until now."""
        if self._open:
            self._open = False
            skipped = self.skipped_at == self.rounds
            if self.replica.anywhere(skipped) and not skipped:
                self.skip([])

    def _reduce(self, number: int, gradient: Tensor) -> None:
        """Exchange one module's shard of gradients (d,), in place."""
        transport = self.replica.transport
        if not self.on:
            gradient.copy_(transport.all_reduce([gradient / transport.size])[0])
            return
        if not self._open or number in self._reduced:
            self.begin()
        self._reduced.add(number)
        self.dense += gradient.nbytes
        exchange = self._made.get(number)
        flat = gradient.flatten()
        wide = flat if flat.dtype.itemsize >= 4 else flat.float()
        if exchange is None:
            exchange = Exchange(self.plan, Layout.vector(len(flat)), wide, self.replica)
            self._made[number] = exchange
            self.exchanges = [self._made[i] for i in sorted(self._made)]
            if exchange.in_steps:
                what = f"{self.plan.algorithm} needs the step size, which a hook does not know"
                fix = "algorithm={'name': .., 'memory': 'gradient'}"
                raise InputError.of("algorithm", what, fix)
        # a copy: FSDP goes on with its own memory, which a method may want to keep
        u = self.exchange(exchange, wide.clone(), undoable=True)
        if u is None:
            gradient.fill_(torch.inf)
        else:
            gradient.copy_(u.view_as(gradient))


def shard_transports(model: nn.Module) -> list[Transport]:
    """Return, for every axis of the meshes over which a model is sharded, the ranks along it."""
    meshes = [p.device_mesh for p in model.parameters() if isinstance(p, DTensor)]
    groups = {id(g): g for mesh in meshes for g in mesh.get_all_groups()}
    return [Distributed(group) for group in groups.values()]
