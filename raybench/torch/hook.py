"""raybench's methods as the communication hook of DistributedDataParallel, or across replicas of FSDP."""

# No postponed annotations here: DistributedDataParallel compares those of a hook with types.
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from raybench.algorithms.build import check_loop, named_method
from raybench.compressors.base import Made
from raybench.core.errors import InputError, nearest
from raybench.torch.attached import Attached
from raybench.torch.exchange import Exchange, Plan
from raybench.torch.flat import Flat
from raybench.torch.optimizer import method_given
from raybench.torch.replicas import Replica, compare
from raybench.torch.sharded import ShardedHook, shard_transports
from raybench.wire.collectives import GATHER
from raybench.wire.transport import Distributed, Transport

PART = 25 << 20  # bytes of gradients that are exchanged together, the size of torch's own buckets


class Part:
    """Parameters whose gradients are exchanged together. arrived: how many are there in this backward pass."""

    def __init__(self, named: list[tuple[str, Tensor]], plan: Plan, replica: Replica) -> None:
        self.flat = Flat(named)
        self.exchange = Exchange(plan, self.flat.layout, self.flat.vector, replica)
        self.arrived, self.done = 0, False
        self.u: list[Tensor] = []

    def take(self, u: Tensor | None, scale: float) -> None:
        """Take over the direction of the gradients that are in the vector, infinite where there is none."""
        if u is None:
            self.u = [torch.full_like(view, torch.inf) for view in self.flat.views]
        else:
            self.u = self.flat.layout.views(u if scale == 1.0 else u * scale)
        if self.exchange.keeps(self.flat.vector):
            self.flat.renew()
        self.done = True


class Waiting:
    """A bucket of DistributedDataParallel whose gradients are being exchanged."""

    def __init__(self, buffer: Tensor, grads: list[Tensor], places: list[tuple[Part, int]]) -> None:
        self.buffer, self.grads, self.places = buffer, grads, places
        devices: Any = [buffer.device] if buffer.is_cuda else None
        self.future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)

    def finish(self) -> None:
        """Hand the directions to DistributedDataParallel."""
        torch._foreach_copy_(self.grads, [part.u[i] for part, i in self.places])
        self.future.set_result(self.buffer)


class Hook(Attached):
    """What ``attach`` returns for a DistributedDataParallel model.

    The model's buckets come and go (they are rebuilt after the first step): gradients are copied into
    parts that this hook makes once, in the order in which backward passes usually reach them, and what a
    method remembers belongs to those. On a CPU a thread exchanges a part while the backward pass goes on.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        plan: Plan,
        size: int,
        overlap: bool,
        scaler: torch.amp.GradScaler | None,
        check_every: int,
    ) -> None:
        ranks = dist.get_process_group_ranks(model.process_group)
        every = list(model.module.named_parameters())
        named = [(n, p) for n, p in every if p.requires_grad]
        # a group of its own: what the thread sends must not get between messages of the model's
        group: Any = dist.new_group(
            ranks,
            timeout=_timeout(model.process_group, named[0][1].device),
            backend=dist.get_backend(model.process_group),
            use_local_synchronization=len(ranks) > 1,
        )
        self._give_back = weakref.finalize(self, _destroy, weakref.ref(group))
        self._give_back.atexit = False
        replica = Replica(Distributed(group), every, every=check_every)
        super().__init__(plan, model, replica, scaler)
        self.model_group = weakref.ref(model.process_group)
        whole = plan.granularity == "global"
        check_patterns(plan.groups, [name for name, _ in named])
        self.parts = [
            Part(own, _of_part(plan, own), replica)
            for own in _parted(named, None if whole else size)
        ]
        self.exchanges = [one.exchange for one in self.parts]
        if any(exchange.in_steps for exchange in self.exchanges):
            what = f"{plan.algorithm} needs the step size, which a hook does not know"
            fix = "algorithm={'name': .., 'memory': 'gradient'}, or CompressedOptimizer"
            raise InputError.of("algorithm", what, fix)
        self.where = {id(p): (one, i) for one in self.parts for i, p in enumerate(one.flat.params)}
        on_cpu = next(iter(self.parts[0].flat.params)).device.type == "cpu"
        self.thread = (
            ThreadPoolExecutor(1, thread_name_prefix="raybench-exchange")
            if overlap and on_cpu and scaler is None and not whole
            else None
        )
        self.waiting: list[Waiting] = []
        self.jobs: list[Any] = []  # of the thread, in this backward pass

    def detach(self) -> None:
        super().detach()
        if self.thread is not None:
            self.thread.shutdown()
        self.parts = []
        self._give_back()

    def run(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Take one bucket of gradients; its future is what every rank steps along."""
        if not self.on:
            return _averaged(bucket.buffer(), self.model_group())
        if bucket.index() == 0:  # all that was handed over in the pass before has been waited for
            self.begin()
            self.waiting = []
            for one in self.parts:
                one.done = False
                self.dense += one.flat.nbytes
        grads, params = bucket.gradients(), bucket.parameters()
        places = [self.where[id(p)] for p in params]
        views = [one.flat.views[i] for one, i in places]
        torch._foreach_copy_(views, grads)
        held = Waiting(bucket.buffer(), grads, places)
        self.waiting.append(held)
        for one, _ in places:
            one.arrived += 1
            if one.arrived == len(one.flat.params):
                one.arrived = 0
                if self.scaler is None:
                    self._start([one])
        if bucket.is_last():
            if self.scaler is not None:
                self._start(self.parts)
            jobs, self.jobs = (
                self.jobs,
                [],
            )  # an error holds the model, which must not be held from here
            for job in jobs:
                job.result()  # an error reaches the backward pass from here as it is, not by a future
        return held.future

    def _start(self, parts: list[Part]) -> None:
        if self.thread is None:
            self._work(parts)
        else:
            self.jobs.append(self.thread.submit(self._work, parts))

    def _work(self, parts: list[Part]) -> None:
        """Exchange the gradients of parts, without the scaler's factor, and hand on what is finished.

        In a pass that is skipped no direction of these parts is handed on.
        """
        scale = 1.0 if self.scaler is None else float(self.scaler.get_scale())
        for one in parts:
            grad = one.flat.vector
            if scale != 1.0:
                grad.div_(scale)
            last = len(self.done) + 1 == len(self.parts)
            one.take(self.exchange(one.exchange, grad, undoable=not last), scale)
        if self.skipped_at == self.rounds:
            for one in parts:
                one.take(None, scale)
        for held in [w for w in self.waiting if all(one.done for one, _ in w.places)]:
            self.waiting.remove(held)
            held.finish()


def _parted(named: list[tuple[str, Tensor]], size: int | None) -> list[list[tuple[str, Tensor]]]:
    """Return the parameters in groups of about so many bytes, the last ones first; in one for None."""
    if size is None:
        return [named]
    out: list[list[tuple[str, Tensor]]] = [[]]
    held = 0
    for name, p in reversed(named):
        more = p.numel() * p.element_size()
        if out[-1] and held + more > size:
            out.append([])
            held = 0
        out[-1].append((name, p))
        held += more
    return [group[::-1] for group in out]


def check_patterns(groups: Sequence[tuple[str, Any]], names: list[str]) -> None:
    """Raise InputError where a pattern names no tensor of the model."""
    for pattern, _ in groups:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InputError.of("groups", f"{pattern!r} names no tensor", nearest(pattern, names))


def _of_part(plan: Plan, named: list[tuple[str, Tensor]]) -> Plan:
    """Return the plan with the groups that have tensors in a part."""
    own = [(p, op) for p, op in plan.groups if any(fnmatchcase(name, p) for name, _ in named)]
    return replace(plan, groups=tuple(own))


def _timeout(group: dist.ProcessGroup, device: torch.device) -> timedelta:
    """Return how long a group waits for a rank: torch has no public way to ask."""
    return group._get_backend(device).options._timeout


def _destroy(held: weakref.ref[dist.ProcessGroup]) -> None:
    """Destroy a group that torch still has."""
    group = held()
    if group is not None and dist.is_initialized():
        dist.destroy_process_group(group)


def _averaged(buffer: Tensor, group: dist.ProcessGroup | None) -> torch.futures.Future[Tensor]:
    assert group is not None  # the model has it
    work = dist.all_reduce(buffer.div_(group.size()), group=group, async_op=True)
    assert work is not None
    future: torch.futures.Future[Tensor] = work.get_future().then(lambda f: f.value()[0])
    return future


class Slot:
    """What a DistributedDataParallel model calls: a model takes one hook in its life, so this one holds ours."""

    def __init__(self, model: DistributedDataParallel, hook: Hook) -> None:
        self.hook = hook
        model.register_comm_hook(self, Slot.run)

    def run(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Hand a bucket to the hook that is attached now."""
        return self.hook.run(bucket)


_slots: weakref.WeakKeyDictionary[DistributedDataParallel, Slot] = weakref.WeakKeyDictionary()


def attach(
    model: nn.Module,
    algorithm: str | Mapping[str, Any] = "ef21",
    compressor: Made | None = None,
    granularity: str = "bucket",
    *,
    collective: str = GATHER,
    downlink: Made | None = None,
    groups: Sequence[tuple[str, Made]] = (),
    min_numel: int | None = None,
    start_after: int = 0,
    delay: Mapping[str, Any] | None = None,
    seed: int = 0,
    watch: int = 50,
    check_every: int = 0,
    allow_unproven: bool = False,
    group: dist.ProcessGroup | None = None,
    overlap: bool = True,
    size: int = PART,
    scaler: torch.amp.GradScaler | None = None,
) -> Attached:
    """Exchange a parallel model's gradients by an estimator; ``detach()`` of what is returned ends it.

    model: a DistributedDataParallel model; or one of FSDP2 whose gradients are reduced within a node, with
    ``group`` the ranks that hold the same shard: the method works across those, after each reduce-scatter.
    granularity: one message of all gradients (``global``), of every ``tensor``, or of those exchanged together
    (``bucket``). size: how many bytes of gradients are exchanged together, the last ones first, while the
    backward pass goes on; overlap: whether it goes on. scaler: a GradScaler whose factor gradients bear: a method
    remembers them without. check_every: steps between two comparisons of the ranks' parameters, 0 for none. The others
    as ``CompressedOptimizer`` has them. A backward pass in which any rank's gradients are not finite is skipped by all.
    Raises InputError where parts do not fit; where what ranks say differs, on all of them.
    """
    name, params = method_given(algorithm)
    plan = Plan(
        name,
        compressor,
        granularity,
        collective,
        downlink,
        tuple(groups),
        min_numel,
        start_after,
        seed,
        delay,
        watch,
        params,
        allow_unproven,
    )
    others: list[Transport] = []
    if isinstance(model, FSDPModule):
        if group is None:
            what = "the ranks that hold the same shard are not known"
            raise InputError.of("group", what, "mesh['replicate'].get_group()")
        transport, others = Distributed(group), shard_transports(model)
    elif isinstance(model, DistributedDataParallel):
        transport = Distributed(model.process_group)
    else:
        what = f"a {type(model).__name__} has no hook"
        fix = "DistributedDataParallel(model), fully_shard(model, ..), or CompressedOptimizer"
        raise InputError.of("model", what, fix)
    loop = {"check_every": check_every, "size": size, "scaler": type(scaler).__name__}
    compare(transport, plan.settings | loop, model.named_parameters(), others)
    plan.check()
    entry, numbers = named_method(name, params)
    if "local" in getattr(entry.target, "presets", ()):
        what = f"{entry.name} takes local steps, and a hook sees every gradient"
        raise InputError.of("algorithm", what, "CompressedOptimizer(local={'steps': H})")
    check_loop(entry, numbers, local=False)
    if isinstance(model, FSDPModule):
        if scaler is not None:
            what = "gradients of FSDP are exchanged module by module, before all are known to be finite"
            raise InputError.of("scaler", what, "bfloat16, which needs none")
        return ShardedHook(
            model, plan, Replica(transport, model.named_parameters(), others, check_every)
        )
    assert isinstance(model, DistributedDataParallel)
    if model in _slots and _slots[model].hook.on:
        raise InputError.of("model", "a method is attached to it", "detach() that one first")
    hook = Hook(model, plan, size, overlap, scaler, check_every)
    if model in _slots:
        _slots[model].hook = hook
    else:
        _slots[model] = Slot(model, hook)
    return hook
