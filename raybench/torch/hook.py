"""raybench's methods attached to a parallel model: the hook of DistributedDataParallel, or across replicas of FSDP2."""

# No postponed annotations here: DistributedDataParallel compares those of a hook with types.
import sys
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, count
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from raybench.algorithms.build import check_loop
from raybench.compressors.base import Made
from raybench.core.counts import GATHER
from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.torch.exchange import GradientExchange, LoopSettings, loop_settings
from raybench.torch.flat import Flat, finite
from raybench.torch.replicas import Replica, group_apart
from raybench.torch.report import Report
from raybench.torch.saved import Compression
from raybench.wire.transport import Distributed, Transport

BUCKET_SIZE = 25 << 20
"""Bytes of gradients that are exchanged together: the size of torch's own buckets."""
IDLE = (
    "the optimizer steps along gradients that were never exchanged, so the ranks would drift apart: the backward "
    "pass before it ran under no_sync(), or there was none. Run the last one of a step outside no_sync()."
)

ABSENT = (
    "the backward pass gave no gradient of {name}, for which those of others wait: it is not part of the loss, or was "
    "frozen after DistributedDataParallel(..), which then needs find_unused_parameters=True."
)


ATTACHED: weakref.WeakValueDictionary[int, "Attached"] = weakref.WeakValueDictionary()
"""What looks at each step of an optimizer, in the order in which it was attached, which is that of every rank."""
_numbers = count()


@cache
def _watch_optimizers() -> None:
    """Let torch call the hooks that are alive before each step of an optimizer.

    One call that stays: torch may be going through its calls when the garbage collector finds a hook of old, and must
    not lose one meanwhile.
    """

    def watch(optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        for hook in list(ATTACHED.values()):
            args, kwargs = hook.watch(optimizer, args, kwargs)
        return args, kwargs

    register_optimizer_step_pre_hook(watch)


class Attached(Compression):
    """Base of what ``attach`` returns. scaler: the loop's.

    An optimizer that steps along gradients of the model that were not exchanged raises RuntimeError. After a
    backward pass in which any rank's gradients were not finite those that all ranks get are infinite, so that a
    GradScaler sees it, and an optimizer that steps all the same finds none. As a context it is detached at the end.
    """

    def __init__(
        self,
        plan: LoopSettings,
        model: torch.nn.Module,
        replica: Replica,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        super().__init__(plan, replica)
        self.scaler = scaler
        self.on = False  # until ``attach`` has made all of it
        self.skipped_at = 0  # the newest round that was skipped
        self.done: list[GradientExchange] = []  # in this backward pass
        self._last: Report | None = None  # of a hook that is detached
        self._own = self._served = {id(p) for p in model.parameters()}
        self._seen: dict[int, int] = {}  # by optimizer: the rounds at its last step
        self._stepped: set[int] = set()  # parameters, since this backward pass
        self._lost: set[int] = (
            set()
        )  # parameters along whose direction no step was taken, but others were
        _watch_optimizers()
        ATTACHED[next(_numbers)] = self

    def watch(self, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Look at gradients before an optimizer steps: now, or after its closure has made them."""
        parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        if not self.on or not any(id(p) in self._own for p in parameters) or _nested(optimizer):
            return args, kwargs
        target, *rest = args
        closure = rest[0] if rest else kwargs.get("closure")
        if closure is None:
            self._before_step(optimizer)
            return args, kwargs
        if isinstance(optimizer, torch.optim.LBFGS):
            what = "LBFGS searches along a line, on each rank by its own loss"
            raise InputError.of(
                "optimizer", what, "CompressedOptimizer(LBFGS(..)), without DistributedDataParallel"
            )

        def evaluate() -> Any:
            loss = closure()
            self._before_step(optimizer)
            return loss

        return (target, evaluate, *rest[1:]), {k: v for k, v in kwargs.items() if k != "closure"}

    def _before_step(self, optimizer: Any) -> None:
        groups = optimizer.param_groups
        self.settle()
        parameters = [p for group in groups for p in group["params"] if id(p) in self._own]
        before, self._seen[id(optimizer)] = self._seen.get(id(optimizer), 0), self.rounds
        if before == self.rounds:
            if any(p.grad is not None for p in parameters if id(p) in self._served):
                raise RuntimeError(IDLE)
            return
        self._refuse_lost(parameters)
        self._stepped.update(id(p) for p in parameters)
        skipped = self.skipped_at == self.rounds
        if not skipped and self.skipped_at > before:
            # they may still hold those of a pass that was skipped, to which others were added since
            skipped = self.replica.anywhere(not finite(parameters))
        for p in parameters if skipped else ():
            p.grad = None
        self.compare()

    def _refuse_lost(self, parameters: Sequence[Tensor]) -> None:
        """Raise InputError where a message has said of parameters what no step of an optimizer has heard."""
        lost = next((p for p in parameters if id(p) in self._lost), None) if self._lost else None
        if lost is not None and any(exchange.a.unsent_state for exchange in self.exchanges):
            name = next(n for n, p in zip(self.replica.names, self.replica.params) if p is lost)
            what = f"{name} was exchanged in a backward pass whose step left it out, so that memories lack a part of it"
            fix = "attach each network by itself, or requires_grad_(False) in the passes of the others"
            raise InputError.of("optimizer", what, fix)

    def sent(self) -> set[int]:
        """Return the parameters that were exchanged in the last backward pass, where that is known."""
        return set()

    def new(self, plan: LoopSettings, layout: Layout, like: Tensor) -> GradientExchange:
        """Return an exchange of a part of the model. Raises InputError where its messages hold the step size."""
        exchange = GradientExchange(plan, layout, like, self.replica)
        if exchange.a.in_steps:
            what = f"{plan.algorithm} needs the step size, which a hook does not know"
            fix = "algorithm={'name': .., 'memory': 'gradient'}, or CompressedOptimizer"
            raise InputError.of("algorithm", what, fix)
        return exchange

    def begin(self) -> None:
        """Begin a backward pass."""
        if self._stepped and self.done and self._served - self._stepped:
            self._lost |= self.sent() - self._stepped
        self._stepped.clear()
        self.rounds += 1
        self.done = []

    def settle(self) -> None:
        """End a backward pass, where more is to be done than the exchanges."""

    def exchange(
        self,
        exchange: GradientExchange,
        grad: Tensor,
        undoable: bool,
        used: Sequence[bool] | None = None,
    ) -> Tensor | None:
        """Return the direction of one part of this backward pass's gradients, None where the pass is skipped.

        The memories of all parts are then as they were before the pass.
        """
        if self.skipped_at == self.rounds:
            exchange.skip()
            return None
        u = exchange(grad, undoable=undoable, used=used)
        if u is None:
            self.skip(exchange.status.bad)
        elif u is not grad:
            self.done.append(exchange)
        return u

    def skip(self, ranks: Sequence[int]) -> None:
        """Skip this backward pass, for gradients of these ranks; undo what was exchanged in it."""
        for exchange in self.done:
            exchange.undo()
        self.done, self.skipped_at = [], self.rounds
        self.skipped += 1
        if ranks and self.scaler is None:  # a scaler looks for infinities on purpose
            self.replica.say_skipped(self.rounds - 1, ranks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def detach(self) -> None:
        """Go back to averaging gradients as they are; memories are forgotten, and groups of its own given back."""
        self._last = self.report()
        self.on, self.exchanges = False, []

    def report(self) -> Report:
        return super().report() if self._last is None else self._last


class Bucket:
    """Parameters whose gradients are exchanged together. arrived: how many are there in this backward pass."""

    def __init__(self, named: list[tuple[str, Tensor]], hook: Attached) -> None:
        self.flat = Flat(named, frozen=True)
        plan = hook.plan.of_part(self.flat.layout)
        self.exchange = hook.new(plan, self.flat.layout, self.flat.vector)
        self.arrived = 0
        self.u: list[Tensor] = []  # the directions, none until they were exchanged

    def take(self, u: Tensor | None, scale: float) -> None:
        """Take over the direction of the gradients that are in the vector, infinite where there is none."""
        if u is None:
            self.u = [torch.full_like(view, torch.inf) for view in self.flat.views]
        else:
            self.u = self.flat.layout.views(u if scale == 1.0 else u * scale)
        if self.exchange.keeps(self.flat.vector):
            self.flat.renew()


@dataclass(eq=False)
class PendingBucket:
    """A bucket of DistributedDataParallel whose gradients are being exchanged."""

    buffer: Tensor
    grads: list[Tensor]
    places: list[tuple[Bucket, int]]
    future: torch.futures.Future[Tensor]


class DdpHook(Attached):
    """What ``attach`` returns for a DistributedDataParallel model.

    The model's own buckets come and go (they are rebuilt after the first step): gradients are copied into
    buckets that this hook makes once, in the order in which backward passes usually reach them, and what a
    method remembers belongs to those. On a CPU a thread exchanges a bucket while the backward pass goes on.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        named: list[tuple[str, Tensor]],
        plan: LoopSettings,
        replica: Replica,
        size: int,
        overlap: bool,
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        group = group_apart(model.process_group, named[0][1].device)
        self._give_back = weakref.finalize(self, _destroy, weakref.ref(group))
        self._give_back.atexit = False
        replica.transport = Distributed(group)
        super().__init__(plan, model, replica, scaler)
        self._served = {id(p) for _, p in named}
        self.model_group = weakref.ref(model.process_group)
        whole = plan.granularity == "global"
        self.buckets = [Bucket(group, self) for group in _parted(named, None if whole else size)]
        self.exchanges = [bucket.exchange for bucket in self.buckets]
        self.where = {
            id(p): (bucket, i) for bucket in self.buckets for i, p in enumerate(bucket.flat.params)
        }
        on_cpu = next(iter(self.buckets[0].flat.params)).device.type == "cpu"
        self.thread = (
            ThreadPoolExecutor(1, thread_name_prefix="raybench-exchange")
            if overlap and on_cpu and not whole
            else None
        )
        self.waiting: list[PendingBucket] = []
        # parameters of the buckets of this pass so far, whose numbers torch does not always tell; None before the first
        self.arrivals: set[int] | None = None
        self.jobs: list[tuple[Any, Bucket]] = []  # of the thread, in this backward pass
        # which parameters have got a gradient since the pass before, where not all of them need to
        self.used: set[int] | None = None
        self.watching: list[Any] = []
        if _partial(model):
            self.used = used = set()
            for _, p in named:
                asks = p.requires_grad
                p.requires_grad_(True)  # hooks are of those that ask, or will
                self.watching.append(
                    p.register_post_accumulate_grad_hook(lambda p: used.add(id(p)))
                )
                p.requires_grad_(asks)

    def detach(self) -> None:
        super().detach()
        if self.thread is not None:
            self.thread.shutdown()
        for handle in self.watching:
            handle.remove()
        self.buckets = []
        self._give_back()

    def sent(self) -> set[int]:
        out: set[int] = set()
        for bucket in self.buckets:
            used = bucket.exchange.status.used or [True] * len(bucket.flat.params)
            out |= {id(p) for p, flag in zip(bucket.flat.params, used, strict=True) if flag}
        return out

    def run(self, torch_bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Take one bucket of gradients; its future is what every rank steps along."""
        if not self.on:
            group = self.model_group()
            assert group is not None  # the model has it
            return allreduce_hook(group, torch_bucket)
        here = {id(p) for p in torch_bucket.parameters()}
        # a pass that failed half-way has no last bucket
        if self.arrivals is None or here & self.arrivals:
            self.begin()
            self.waiting, self.arrivals = [], set()
            for bucket in self.buckets:
                bucket.u, bucket.arrived = [], 0
                self.dense += bucket.flat.nbytes
        self.arrivals |= here
        buffer = torch_bucket.buffer()
        grads = [buffer.to_dense()] if buffer.is_sparse else torch_bucket.gradients()
        # those without elements are in torch's buckets, but in none of ours
        pairs = [(g, p) for g, p in zip(grads, torch_bucket.parameters(), strict=True) if p.numel()]
        grads, places = [g for g, _ in pairs], [self.where[id(p)] for _, p in pairs]
        devices: Any = [buffer.device] if buffer.is_cuda else None
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        if places:
            torch._foreach_copy_([bucket.flat.views[i] for bucket, i in places], grads)
            self.waiting.append(PendingBucket(buffer, grads, places, future))
        else:
            future.set_result(buffer)
        for bucket, _ in places:
            bucket.arrived += 1
            if bucket.arrived == len(bucket.flat.params):
                bucket.arrived = 0
                if self.thread is None:
                    self._work(bucket)
                else:
                    self.jobs.append((self.thread.submit(self._work, bucket), bucket))
        if torch_bucket.is_last():
            # an error holds the model, which must not be held from here; it reaches the backward pass as it is
            jobs, self.jobs = self.jobs, []
            for job, bucket in jobs:
                bucket.exchange.wait(job)
            self.arrivals = None
            self.settle()
            if self.used is not None:
                self.used.clear()
        return future

    def settle(self) -> None:
        """Raise RuntimeError, which names the first, where gradients did not come for which others still wait."""
        if not self.waiting:
            return
        there = {(id(bucket), i) for held in self.waiting for bucket, i in held.places}
        self.waiting = []
        absent = [
            (p.requires_grad, p.grad is not None, name)
            for bucket in self.buckets
            for i, ((name, _), p) in enumerate(
                zip(bucket.flat.layout, bucket.flat.params, strict=True)
            )
            if not bucket.u and (id(bucket), i) not in there
        ]
        raise RuntimeError(ABSENT.format(name=min(absent)[-1]))

    def _work(self, bucket: Bucket) -> None:
        """Exchange the gradients of a bucket, without the scaler's factor, and hand on what is finished."""
        scale = 1.0 if self.scaler is None else float(self.scaler.get_scale())
        grad = bucket.flat.vector
        if scale != 1.0:
            grad.div_(scale)
        undoable = len(self.done) + 1 < len(self.buckets)
        params, used = bucket.flat.params, self.used
        mine = None if used is None else [id(p) in used for p in params]
        bucket.take(self.exchange(bucket.exchange, grad, undoable, mine), scale)
        for pending in [w for w in self.waiting if all(bucket.u for bucket, _ in w.places)]:
            self.waiting.remove(pending)
            torch._foreach_copy_(pending.grads, [bucket.u[i] for bucket, i in pending.places])
            result = pending.buffer
            if result.is_sparse:
                result = pending.grads[0].to_sparse(result.sparse_dim())
            pending.future.set_result(result)


def _nested(optimizer: Any) -> bool:
    """Return whether a step is part of another one: torch calls hooks for a subclass's and for the one within."""
    hooked = sys._getframe(3)  # torch's, which calls the hooks
    frame = hooked.f_back
    while frame is not None:
        if frame.f_code is hooked.f_code and frame.f_locals.get("self") is optimizer:
            return True
        frame = frame.f_back
    return False


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


def _partial(model: nn.Module) -> bool:
    """Return whether backward passes may leave out parameters."""
    return bool(getattr(model, "find_unused_parameters", False)) or bool(
        getattr(model, "static_graph", False)
    )


def _reduced(model: DistributedDataParallel) -> set[int]:
    """Return which parameters the model's buckets bring, whatever asks for a gradient now."""
    reducer = getattr(model, "reducer", None)  # none where all of them are reduced by another hook
    if reducer is None:
        return set()
    try:
        buckets = reducer._get_zeros_like_grad_buckets()
        return {id(p) for bucket in buckets for p in bucket.parameters()}
    except RuntimeError:  # torch makes none for a model with sparse gradients
        asking, _ = model._build_params_for_reducer()
        if len(asking) != len(reducer.get_backward_stats()):
            what = "a parameter was frozen or unfrozen after DistributedDataParallel(..)"
            fix = "requires_grad_(..) before that, where gradients are sparse"
            raise InputError.of("requires_grad", what, fix) from None
        return {id(p) for p in asking}


def _destroy(held: weakref.ref[dist.ProcessGroup]) -> None:
    """Destroy a group that torch still has."""
    group = held()
    if group is not None and dist.is_initialized():
        dist.destroy_process_group(group)


_attached: weakref.WeakKeyDictionary[nn.Module, Attached] = weakref.WeakKeyDictionary()
"""The newest hook of each model; none of them holds its model."""


def _run(model: weakref.ref[nn.Module], bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Hand a bucket to the hook that is attached now: a DistributedDataParallel model takes one function in its life."""
    parallel = model()
    hook = None if parallel is None else _attached[parallel]
    assert isinstance(hook, DdpHook)
    return hook.run(bucket)


class FsdpHook(Attached):
    """What ``attach`` returns for a model of FSDP2: an exchange for every module that it shards.

    A rank's shard of a module's gradients, reduced within its replica, is one vector, whose clients are the ranks
    of ``group`` that hold the same shard. Exchanges are made at the first backward pass. It is skipped for the whole
    model or not at all: see ``settle``.
    """

    def __init__(self, model: FSDPModule, plan: LoopSettings, replica: Replica) -> None:
        assert isinstance(model, nn.Module)
        if plan.granularity == "tensor":
            what = "a shard is one vector, without the model's tensors"
            raise InputError.of("granularity", what, "bucket")
        super().__init__(plan, model, replica)
        self._made: dict[int, GradientExchange] = {}
        self.partial_sums: dict[int, Tensor] = {}  # gradients of passes that ask for no all-reduce
        self._reduced: set[int] = set()  # modules of this backward pass
        self._open = False  # whether one is going on
        sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
        for i, module in enumerate(sharded):
            module.set_all_reduce_hook(partial(self._reduce, i, weakref.ref(module)))

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

    def _reduce(self, number: int, module: weakref.ref[FSDPModule], gradient: Tensor) -> None:
        """Exchange one module's shard of gradients (d,), in place, and what was kept of passes before."""
        sharded, transport = module(), self.replica.transport
        assert sharded is not None  # it is in a backward pass
        if number in self.partial_sums:
            gradient += self.partial_sums.pop(number)
        # torch has no public way to ask what set_requires_all_reduce(..) was given
        if not all(
            group.all_reduce_grads for group in sharded._get_fsdp_state()._fsdp_param_groups
        ):
            self.partial_sums[number] = gradient.clone()
            gradient.zero_()
            return
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
            exchange = self._made[number] = self.new(self.plan, Layout.vector(len(flat)), wide)
            self.exchanges = [self._made[i] for i in sorted(self._made)]
        # a copy: FSDP goes on with its own memory, which a method may want to keep
        u = self.exchange(exchange, wide.clone(), undoable=True)
        if u is None:
            gradient.fill_(torch.inf)
        else:
            gradient.copy_(u.view_as(gradient))


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
    size: int = BUCKET_SIZE,
    scaler: torch.amp.GradScaler | None = None,
) -> Attached:
    """Exchange a parallel model's gradients by an estimator; ``detach()`` of what is returned ends it.

    A backward pass in which any rank's gradients are not finite is skipped by all. The arguments that are not listed
    are those of ``CompressedOptimizer``. Raises InputError where parts do not fit; where what ranks say differs, on all
    of them.

    Args:
        model: a DistributedDataParallel model; or one of FSDP2 whose gradients are reduced within a node.
        granularity: one message of all gradients (``global``), of every ``tensor``, or of those exchanged together
            (``bucket``).
        group: of FSDP2, the ranks that hold the same shard: the method works across those, after each reduce-scatter.
        overlap: whether the backward pass goes on while gradients are exchanged.
        size: how many bytes of gradients are exchanged together, the last ones first.
        scaler: a GradScaler whose factor gradients bear: a method remembers them without.
    """
    arguments = dict(locals())  # by the names that a plan has, too
    others: list[Transport] = []
    if isinstance(model, FSDPModule):
        if group is None:
            what = "the ranks that hold the same shard are not known"
            raise InputError.of("group", what, "mesh['replicate'].get_group()")
        meshes = [p.device_mesh for p in model.parameters() if isinstance(p, DTensor)]
        shards = {id(g): g for mesh in meshes for g in mesh.get_all_groups()}
        transport, others = Distributed(group), [Distributed(g) for g in shards.values()]
    elif isinstance(model, DistributedDataParallel):
        transport = Distributed(model.process_group)
    else:
        what = f"a {type(model).__name__} has no hook"
        fix = "DistributedDataParallel(model), fully_shard(model, ..), or CompressedOptimizer"
        raise InputError.of("model", what, fix)
    before = _attached.get(model)
    if before is not None and before.on:
        raise InputError.of("model", "a method is attached to it", "detach() that one first")
    named: list[tuple[str, Tensor]] = [*model.named_parameters()]
    if isinstance(model, DistributedDataParallel):
        if before is None and model._comm_hooks:
            what = "it has a hook of torch already, and takes one in its life"
            raise InputError.of("model", what, "DistributedDataParallel(module) anew")
        reduced, ignored = _reduced(model), model.parameters_to_ignore
        named = [
            (name, p)
            for name, p in model.module.named_parameters()
            if id(p) in reduced or name not in ignored
        ]
    loop = {"size": size, "scaler": type(scaler).__name__, "unused": _partial(model)}
    replica = Replica(transport, named, others, check_every)
    plan = loop_settings(arguments, replica, loop)
    entry, numbers = plan.method
    if "local" in getattr(entry.target, "presets", ()):
        what = f"{entry.name} takes local steps, and a hook sees every gradient"
        raise InputError.of("algorithm", what, "CompressedOptimizer(local={'steps': H})")
    check_loop(entry, numbers, local=False)
    hook: Attached
    if isinstance(model, FSDPModule):
        if scaler is not None:
            what = "gradients of FSDP are exchanged module by module, before all are known to be finite"
            raise InputError.of("scaler", what, "bfloat16, which needs none")
        hook = FsdpHook(model, plan, replica)
    else:
        assert isinstance(model, DistributedDataParallel)
        replica.fixed = [kept for kept in replica.fixed if id(kept[2]) not in reduced]
        for name, asks, _ in replica.fixed:
            if asks:
                what = f"{name} was frozen at DistributedDataParallel(..), which does not reduce it"
                raise InputError.of("requires_grad", what, "unfreeze it before that")
        filled = [(name, p) for name, p in named if id(p) in reduced and p.numel()]
        if not filled:
            what = "DistributedDataParallel reduces none of its parameters by a hook"
            raise InputError.of("model", what, "CompressedOptimizer")
        hook = DdpHook(model, filled, plan, replica, size, overlap, scaler)
        if before is None:
            model.register_comm_hook(weakref.ref(model), _run)
    _attached[model] = hook
    hook.on = True
    return hook
