"""raybench's methods across the replicas of a model that FSDP2 shards within each of them."""

from __future__ import annotations

import weakref
from functools import partial

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.torch.attached import Attached
from raybench.torch.exchange import Exchange, Plan
from raybench.wire.transport import Distributed

# What is attached to a model, which holds it itself: from here it must not keep the model alive.
_hooks: weakref.WeakKeyDictionary[nn.Module, weakref.ref[ShardedHook]] = weakref.WeakKeyDictionary()


class ShardedHook(Attached):
    """What ``attach`` returns for a model of FSDP2: an exchange for every module that it shards.

    A rank's shard of a module's gradients, reduced within its replica, is one vector, whose clients are the ranks
    of ``group`` that hold the same shard. Exchanges are made at the first backward pass.
    """

    def __init__(self, model: FSDPModule, plan: Plan, group: dist.ProcessGroup | None) -> None:
        assert isinstance(model, nn.Module)
        if group is None:
            what = "the ranks that hold the same shard are not known"
            raise InputError.of("group", what, "mesh['replicate'].get_group()")
        if plan.granularity == "tensor":
            what = "a shard is one vector, without the model's tensors"
            raise InputError.of("granularity", what, "bucket")
        before = _hooks[model]() if model in _hooks else None
        if before is not None and before.on:
            raise InputError.of("model", "a method is attached to it", "detach() that one first")
        super().__init__(plan, model)
        self.transport = Distributed(group)
        self.modules = [m for m in model.modules() if isinstance(m, FSDPModule)]
        self._made: dict[int, Exchange] = {}
        for i, module in enumerate(self.modules):
            module.set_all_reduce_hook(partial(self._reduce, i))
        _hooks[model] = weakref.ref(self)

    def _reduce(self, number: int, gradient: Tensor) -> None:
        """Exchange one module's shard of gradients (d,), in place."""
        if not self.on:
            gradient.div_(self.transport.size)
            dist.all_reduce(gradient, group=self.transport.group)
            return
        exchange = self._made.get(number)
        flat = gradient.flatten()
        wide = flat if flat.dtype.itemsize >= 4 else flat.float()
        if exchange is None:
            exchange = Exchange(self.plan, Layout.vector(len(flat)), wide, self.transport.group)
            self._made[number] = exchange
            self.exchanges = [self._made[i] for i in sorted(self._made)]
            if exchange.in_steps:
                what = f"{self.plan.algorithm} needs the step size, which a hook does not know"
                fix = "algorithm={'name': .., 'memory': 'gradient'}"
                raise InputError.of("algorithm", what, fix)
        # a copy: FSDP goes on with its own memory, which a method may want to keep
        gradient.copy_(exchange(wide.clone()).view_as(gradient))
        self.rounds = max(self.rounds, exchange.steps)
