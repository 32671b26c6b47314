"""A torch optimizer whose gradients, or local steps, are exchanged by one of raybench's methods."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from raybench.algorithms.build import check_loop
from raybench.compressors.base import Made
from raybench.core.counts import GATHER
from raybench.core.errors import InputError
from raybench.torch.exchange import GradientExchange, loop_settings
from raybench.torch.flat import Flat, finite, named
from raybench.torch.local_steps import LocalSteps, Node, fragments_of, local_steps
from raybench.torch.replicas import Replica
from raybench.torch.saved import Compression, mean_of
from raybench.wire.transport import Distributed, Transport


class CompressedOptimizer(Compression, torch.optim.Optimizer):
    """``optimizer`` around which the ranks of torch.distributed exchange compressed messages.

    Every rank is a client with data of its own and a model that is the same everywhere; ``step`` takes the place of the
    all-reduce of gradients, so the model must not be wrapped in DistributedDataParallel as well (for that see
    ``attach``). Without torch.distributed there is one client. At construction all take over rank 0's parameters.

    Methods whose messages hold the step size (``ef14``) need plain SGD, or ``memory: gradient``. A parameter without a
    gradient counts as having a gradient of zeros. Raises InputError where parts do not fit; where what ranks say
    differs, on all of them.

    Args:
        optimizer: of torch, over the parameters to train.
        compressor: such as ``top_k:k=1%``; None for methods that need none.
        algorithm: an estimator such as ``ef21``, ``ef14``, ``diana``, ``dgc`` or ``power_sgd:rank=4``, as text or as a
            mapping with ``name`` and parameters.
        granularity: one message of the whole gradient (``global``), of every ``tensor``, or of tensors together
            (``bucket``).
        collective: ``gather``, ``reduce`` or ``all_to_all``.
        downlink: a compressor for what the server of ``ef21_bc`` or ``double_squeeze`` sends back.
        groups: (pattern, compressor) pairs, with ``granularity="tensor"``.
        min_numel: smaller tensors are sent as they are, 0 for none; by default those whose messages would not be half
            as long, where tensors have messages of their own.
        start_after: steps at first that average gradients as they are.
        local: ``{"steps": H}``: ``optimizer`` does H steps on every rank by itself, and what they sum up to is
            exchanged; ``fragments``, ``late`` and ``mix`` beside it are those of ``streaming_diloco``.
        outer: how the shared point then moves: ``{"optimizer": "nesterov", "momentum": 0.9, "step_size": 0.7}``; by
            default by 1 along it.
        delay: ``{"rounds": r}``, the direction of r exchanges before, which with local steps goes on beside the next
            ones on a CPU.
        node: the ranks of this rank's node, whose model is in DistributedDataParallel(process_group=node) or sharded
            over them by FSDP2: local steps are those of nodes, and only nodes exchange.
        offload: keep the shared point, what method and outer optimizer remember, and messages on the CPU, for which
            ``group`` needs gloo.
        seed: of random compressors.
        watch: steps between two measurements of norms.
        check_every: steps between two comparisons of the ranks' parameters, 0 for none.
        allow_unproven: take compressors that no theory of the method covers, too.
        group: the ranks, by default all.
        named_parameters: names for ``groups`` where the optimizer knows none.
    """

    # GradScaler then calls ``step`` on every rank, and says what it found: one rank alone must not skip it.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        compressor: Made | None = None,
        algorithm: str | Mapping[str, Any] = "ef21",
        granularity: str = "global",
        *,
        collective: str = GATHER,
        downlink: Made | None = None,
        groups: Sequence[tuple[str, Made]] = (),
        min_numel: int | None = None,
        start_after: int = 0,
        local: Mapping[str, Any] | None = None,
        outer: Mapping[str, Any] | None = None,
        delay: Mapping[str, Any] | None = None,
        node: dist.ProcessGroup | None = None,
        offload: bool = False,
        seed: int = 0,
        watch: int = 50,
        check_every: int = 0,
        allow_unproven: bool = False,
        group: dist.ProcessGroup | None = None,
        named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    ) -> None:
        arguments = dict(locals())  # by the names that a plan has, too
        self.optimizer = optimizer
        params = named(optimizer, named_parameters)
        tensors = [p for _, p in params]
        self._node = None if node is None else Node(node, tensors, offload)
        loop = {"local": local, "outer": outer, "delay": delay, "offload": offload}
        others = [] if self._node is None else [self._node.within]
        if self._node is None:
            transport = Distributed(group) if dist.is_initialized() else Transport()
            if any(isinstance(p, DTensor) for p in tensors):
                what = "parameters are sharded"
                fix = "node=the ranks of a shard group, with local steps, or attach(model, ..)"
                raise InputError.of("optimizer", what, fix)
        else:
            transport = self._node.between
            if group is not None:
                raise InputError.of("group", "node says who exchanges", "one of both")
            Replica(self._node.within, params).compare(loop)
        replica = Replica(transport, params, others, every=check_every)
        plan = loop_settings(arguments, replica, loop)
        entry, numbers = plan.method
        is_local = local is not None or "local" in getattr(entry.target, "presets", ())
        check_loop(entry, numbers, is_local)
        if not is_local:
            for key, value in (("outer", outer), ("node", node), ("offload", offload)):
                if value:
                    what = "without local steps there is no point that moves after some of them"
                    raise InputError.of(key, what, "local={'steps': H}, or leave it out")
            # with them each rank may step in its own way
            replica.compare(_numbers(optimizer))
        fragments = fragments_of(params, (local or {}).get("fragments", 1), self._node)
        self._flat = flat = Flat(params)
        super().__init__(plan, replica)
        if self._node is not None and self._node.sharded:
            self.place = self._node.within.rank
        if transport.size > 1:  # all begin where rank 0 does
            x = flat.point() if transport.rank == 0 else torch.zeros_like(flat.vector)
            flat.move(transport.all_reduce([x])[0])
        self._local: list[LocalSteps] = []
        if is_local:
            self._local = local_steps(plan, loop, fragments, flat, self.replica, self._node, group)
            self.exchanges = [fragment.exchange for fragment in self._local]
            if check_every and (len(self._local) > 1 or self._local[0].schedule.late):
                what = "with fragments or late steps no step leaves the same parameters everywhere"
                raise InputError.of("check_every", what, "0")
        else:
            self.exchanges = [GradientExchange(plan, flat.layout, flat.vector, self.replica)]
            plain = type(optimizer) is torch.optim.SGD and not any(
                group["momentum"] or group["weight_decay"] for group in self.param_groups
            )
            if self._exchange.a.in_steps and not plain:
                what = f"{plan.algorithm} keeps its memory in units of the step: plain SGD only"
                fix = "algorithm={'name': .., 'memory': 'gradient'}, or another method"
                raise InputError.of("algorithm", what, fix)

    @property
    def _exchange(self) -> GradientExchange:
        """The exchange of all gradients, of the first fragment with local steps."""
        return self.exchanges[0]

    # What an optimizer is -----------------------------------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of the optimizer within: schedulers change their step sizes."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of the optimizer within. Raises InputError where torch's ``get_state_dict`` asks for it."""
        asking = sys._getframe(1).f_globals.get("__name__")
        if asking == "torch.distributed.checkpoint.state_dict":  # before it steps along zeros
            what = "get_state_dict has no place for what each rank remembers"
            raise InputError.of("state_dict", what, "optimizer.state_dict(), beside the model's")
        return self.optimizer.state

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        plan = self.plan
        return f"CompressedOptimizer({plan.algorithm}, {plan.compressor}, {self.optimizer!r})"

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: memories are of the parameters that were there at construction."""
        what = "memories are made for the parameters of the start"
        raise InputError.of("add_param_group", what, "add it first, then wrap the optimizer")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Exchange what the ranks' gradients say and let the optimizer step along it; return the closure's loss.

        Every rank must call it. closure: computes gradients anew and returns the loss. An optimizer that calls it
        several times, such as LBFGS, is given the ranks' mean loss and what they have exchanged each time, so that all
        decide alike. Where any rank's gradient is not finite, or its GradScaler's were not, all ranks skip the step,
        and memories stay.
        """
        start = None if closure is None else self._flat.point()
        losses: list[Any] = []

        def evaluate() -> Any:
            if closure is not None:
                with torch.enable_grad():
                    losses.append(closure())
            return self._evaluated(losses[-1] if losses else None)

        self.rounds += 1
        try:
            if closure is None:
                evaluate()
                self.optimizer.step()
            else:
                self.optimizer.step(evaluate)
        except SkippedStep as skip:
            self.skipped += 1
            if vars(self).get("found_inf") is None:  # a GradScaler looks for infinities on purpose
                self.replica.say_skipped(self.rounds - 1, skip.ranks, bool(self._local))
            elif not self._local:
                self._tell_scaler()
            if start is not None and len(losses) > 1:  # in the middle of a line search
                self._flat.move(start)
                self.optimizer.state.clear()
        for fragment in self._local:
            if not fragment.after_step():
                self.skipped += 1
                self.replica.say_skipped(self.rounds - 1, fragment.exchange.status.bad)
        if self.replica.every and all(fragment.count == 0 for fragment in self._local):
            for fragment in self._local:
                fragment.settle()  # what another thread sends must not get between
            self.compare()
        return losses[0] if losses else None

    @torch.no_grad()
    def _evaluated(self, loss: Any) -> Any:
        """Put the exchanged direction in the place of the gradients; return the mean loss. Raises Skip."""
        self.dense += self._flat.nbytes
        self._unscale()
        if self._local:
            bad = not finite(self._flat.params)
            if self._node is not None and self._node.sharded:
                bad = self.replica.anywhere(bad)
            if bad:
                raise SkippedStep([self.replica.transport.rank])
            return loss
        gamma, grad = self._step_size(), self._flat.gradients()
        number = loss.detach() if isinstance(loss, Tensor) else loss
        is_number = isinstance(number, int | float | Tensor)
        u = self._exchange(grad, gamma, float(number) if is_number else math.nan)
        if u is None:
            raise SkippedStep(self._exchange.status.bad)
        dense = self._exchange.steps <= self.plan.start_after  # as they are, without the step size
        direction = u / gamma if self._exchange.a.in_steps and not dense else u
        # that one takes no others; the rest steps along dense ones
        sparse = isinstance(self.optimizer, torch.optim.SparseAdam)
        self._flat.set_gradients(direction, sparse)
        if self._exchange.keeps(grad):
            self._flat.renew()
        return self._exchange.status.loss if is_number else loss

    def _tell_scaler(self) -> None:
        """Let the GradScaler that asks for this step know of infinities on other ranks: scales stay the same on all.

        It adds up what it has seen before it calls, and says only the sum, so that it is looked for among the callers.
        """
        frame: Any = sys._getframe(1)
        while frame is not None and not isinstance(
            frame.f_locals.get("self"), torch.amp.GradScaler
        ):
            frame = frame.f_back
        if frame is not None:
            states = frame.f_locals["self"]._per_optimizer_states
            for seen in states[id(self)]["found_inf_per_device"].values():
                seen.fill_(1.0)

    def _step_size(self) -> float:
        rates = {float(group["lr"]) for group in self.param_groups}
        gamma = rates.pop()
        if self._exchange.a.in_steps and (rates or gamma <= 0):
            what = "messages hold the step size: one that is above 0 for all parameters is needed"
            raise InputError.of("lr", what, "algorithm={'name': .., 'memory': 'gradient'}")
        return gamma

    def _unscale(self) -> None:
        scale = vars(self).get("grad_scale")
        if scale is not None:
            grads = [p.grad for p in self._flat.params if p.grad is not None]
            torch._foreach_mul_(grads, 1.0 / scale.to(self._flat.vector.device).item())

    @contextmanager
    def shared_point(self) -> Iterator[None]:
        """Put the model of every rank at the shared point within a ``with``: to measure, or to save what was trained.

        Every rank must call it. Without local steps, and just after an exchange, the model is there anyway.
        """
        points = [fragment.flat.point() for fragment in self._local]
        for fragment in self._local:
            fragment.to_shared()
        try:
            yield
        finally:
            for fragment, y in zip(self._local, points, strict=True):
                fragment.flat.move(y)

    # What it did, and going on elsewhere ------------------------------------------------------------

    def more(self) -> dict[str, Any]:
        more: dict[str, Any] = {"optimizer": self.optimizer.state_dict()}
        if self._node is not None:
            more["place"] = self._node.within.rank
        if self._local:
            more["local"] = [fragment.state() for fragment in self._local]
        return more

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        rank, n = self.replica.transport.rank, self.replica.transport.size
        parts = self.resume(state_dict)
        states, mine = [part["optimizer"] for part in parts], parts[min(rank, len(parts) - 1)]
        self.optimizer.load_state_dict(states[rank] if rank < len(states) else mean_of(states))
        for i, fragment in enumerate(self._local):
            fragment.load(mine["local"][i], resized=mine["n"] != n)


class SkippedStep(Exception):
    """Gradients are not finite on these ranks: the step is left out."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = ranks


def _numbers(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return how an optimizer steps: its kind, and the numbers of its groups."""
    about: dict[str, Any] = {"optimizer": type(optimizer).__name__}
    for i, group in enumerate(optimizer.param_groups):
        plain = {k: v for k, v in group.items() if isinstance(v, int | float | str | tuple)}
        about |= {f"param_groups[{i}].{key}": value for key, value in plain.items()}
    return about
