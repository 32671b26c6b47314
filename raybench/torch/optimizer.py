"""A torch optimizer whose gradients, or local steps, are exchanged by one of raybench's methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from raybench.algorithms.build import check_loop, part
from raybench.algorithms.parts import outer_step
from raybench.compressors.base import Made
from raybench.core import registry
from raybench.core.cells import PerCell, State
from raybench.core.errors import InputError
from raybench.core.facts import AlgorithmFacts
from raybench.torch import saved
from raybench.torch.exchange import Exchange, planned
from raybench.torch.flat import Flat, named
from raybench.torch.replicas import Replica, compare, transport_of
from raybench.torch.report import Report, report
from raybench.torch.saved import optimizer_of, packed, parts_of
from raybench.wire.collectives import GATHER

YOURS = {"inner_step", "weight_decay"}  # of presets: how the inner optimizer steps


class LocalSteps:
    """H steps of the user's optimizer between exchanges of v = x - y, x the shared point, y this rank's.

    x <- x - step_size u, u being the outer optimizer's of the estimate of mean v; then y = x. Presets such
    as ``diloco`` say H and the outer optimizer where the user does not.
    """

    def __init__(
        self,
        entry: registry.Entry[AlgorithmFacts],
        numbers: Mapping[str, Any],
        local: Mapping[str, Any] | None,
        outer: Mapping[str, Any] | None,
        exchange: Exchange,
        flat: Flat,
    ) -> None:
        for name in YOURS & numbers.keys():
            if numbers[name] != entry.params[name].default:
                what = f"{entry.name} leaves {name} to your optimizer, which does the local steps"
                raise InputError.of(f"algorithm.{name}", what, "set it there")
        preset, own_outer = exchange.presets
        if local is not None:
            preset = part("local", local)
        assert preset is not None
        if local is not None and set(local) - {"steps"}:
            extra = sorted(set(local) - {"steps"})
            what = f"{', '.join(extra)}: your optimizer does the local steps"
            raise InputError.of("local", what, "local={'steps': H}")
        self.each = preset.steps
        settings = dict(outer or {})
        step = settings.pop("step_size", 1.0)
        if not isinstance(step, int | float) or isinstance(step, bool) or not step > 0:
            raise InputError.of("outer.step_size", f"{step!r}", "a number above 0")
        self.step_size = float(step)
        self.outer = part("outer", settings) if settings else own_outer
        if self.outer is not None and isinstance(self.outer.momentum, PerCell):
            self.outer = replace(self.outer, momentum=float(self.outer.momentum.values))
        self.exchange, self.flat = exchange, flat
        self.x, self.count, self.s = flat.point(), 0, State()

    def after_step(self) -> bool:
        """Count a local step; after H of them exchange, and move to the new shared point.

        False where that was skipped: all ranks are back at the shared point of before.
        """
        self.count += 1
        if self.count < self.each:
            return True
        self.count = 0
        direction = self.exchange(self.x - self.flat.point(), 1.0)
        if direction is not None:
            u = direction[None]
            if self.outer is not None:
                u = outer_step(self.outer, self.s, u, self.step_size)
                if self.outer.weight_decay:
                    u = u + self.outer.weight_decay * self.x
            in_steps = self.outer is not None and self.outer.in_steps
            self.x = self.x - (u[0] if in_steps else self.step_size * u[0])
        self.flat.move(self.x)
        return direction is not None

    def state(self) -> dict[str, Any]:
        """Return the shared point, the outer optimizer's memory, how many steps were done since, and where they led.

        Between exchanges models differ, and many checkpoints hold that of rank 0 alone: each rank keeps its own.
        """
        y = self.flat.point() if self.count else None
        return {"x": self.x.clone(), "count": self.count, "s": self.s.state(), "y": y}

    def load(self, state: Mapping[str, Any], resized: bool) -> None:
        """Go on from what ``state`` returned; with another number of ranks from the shared point."""
        device = self.x.device
        self.x = saved.on(state["x"], device)
        self.s = State.of({name: saved.on(value, device) for name, value in state["s"].items()})
        self.count = 0 if resized else state["count"]
        if resized:
            self.flat.move(self.x)
        elif state["y"] is not None:
            self.flat.move(saved.on(state["y"], device))


class CompressedOptimizer(torch.optim.Optimizer):
    """``optimizer`` around which the ranks of torch.distributed exchange compressed messages.

    Every rank is a client with data of its own and a model that is the same everywhere; ``step`` takes the
    place of the all-reduce of gradients, so the model must not be wrapped in DistributedDataParallel as well (for that see
    ``attach``). Without torch.distributed there is one client. At construction all take over
    rank 0's parameters.

    compressor: a compressor such as ``top_k:k=1%``. algorithm: an estimator such as ``ef21``, ``ef14``, ``diana``,
    ``dgc``, ``power_sgd:rank=4``, as text or as a mapping with ``name`` and parameters. granularity: messages of
    the whole gradient (``global``), of every ``tensor``, or of tensors together (``bucket``).
    collective: ``gather``, ``reduce`` or ``all_to_all``. groups: (pattern, compressor) pairs, with
    ``granularity="tensor"``. min_numel: smaller tensors are sent as they are; by default those whose messages
    would not be half as long, where tensors have messages of their own; 0 for none. start_after: steps at first that
    average gradients as they are. local: ``{"steps": H}``: ``optimizer`` does H steps on every rank by itself, and
    what they sum up to is exchanged. outer: how the shared point then moves: ``{"optimizer": "nesterov",
    "momentum": 0.9, "step_size": 0.7}``, by default by 1 along it. delay: ``{"rounds": r}``, the
    direction of r exchanges before. group: the ranks, by default all. named_parameters: names for ``groups`` where
    the optimizer knows none. watch: steps between two measurements of norms. check_every: steps between two
    comparisons of the ranks' parameters, 0 for none. seed: of random compressors. allow_unproven: compressors that no
    theory of the method covers, too.

    Methods whose messages hold the step size (``ef14``) need plain SGD, or ``memory: gradient``. A parameter without a
    gradient counts as having a gradient of zeros. Raises InputError where parts do not fit; where what ranks say
    differs, on all of them.
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
        seed: int = 0,
        watch: int = 50,
        check_every: int = 0,
        allow_unproven: bool = False,
        group: dist.ProcessGroup | None = None,
        named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    ) -> None:
        self.optimizer = optimizer
        transport, params = transport_of(group), named(optimizer, named_parameters)
        self._plan, entry, numbers = planned(
            algorithm,
            transport,
            params,
            {"local": local, "outer": outer, "check_every": check_every},
            compressor=compressor,
            granularity=granularity,
            collective=collective,
            downlink=downlink,
            groups=tuple(groups),
            min_numel=min_numel,
            start_after=start_after,
            seed=seed,
            delay=delay,
            watch=watch,
            allow_unproven=allow_unproven,
        )
        plan = self._plan
        is_local = local is not None or "local" in getattr(entry.target, "presets", ())
        check_loop(entry, numbers, is_local)
        if outer is not None and not is_local:
            what = "without local steps your optimizer is the outer one"
            raise InputError.of("outer", what, "local={'steps': H}, or leave it out")
        if not is_local:  # else each rank may step in its own way
            compare(transport, _numbers(optimizer), params)
        self._flat = Flat(params)
        self._replica = Replica(transport, params, every=check_every)
        flat = self._flat
        self._exchange = Exchange(plan, flat.layout, flat.vector, self._replica, is_local)
        self._steps = self._checked = self._skipped = self._evaluations = 0
        self._agree_on_start()
        steps = (entry, numbers, local, outer, self._exchange, self._flat)
        self._local = LocalSteps(*steps) if is_local else None
        self._check_step_size()

    def _agree_on_start(self) -> None:
        """Give every rank rank 0's parameters."""
        transport, x = self._replica.transport, self._flat.point()
        if transport.size > 1:
            mine = x if transport.rank == 0 else torch.zeros_like(x)
            self._flat.move(transport.all_reduce([mine])[0])

    def _check_step_size(self) -> None:
        if not self._exchange.in_steps or self._local is not None:
            return
        if type(self.optimizer) is not torch.optim.SGD or any(
            group["momentum"] or group["weight_decay"] for group in self.param_groups
        ):
            what = f"{self._plan.algorithm} keeps its memory in units of the step: plain SGD only"
            fix = "algorithm={'name': .., 'memory': 'gradient'}, or another method"
            raise InputError.of("algorithm", what, fix)

    # What an optimizer is -----------------------------------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of the optimizer within: schedulers change their step sizes."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of the optimizer within."""
        return self.optimizer.state

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        plan = self._plan
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

        Every rank must call it. closure: computes gradients anew and returns the loss. An optimizer that calls it several
        times, such as LBFGS, is given the ranks' mean loss and what they have exchanged each time, so that all decide
        alike. Where any rank's gradient is not finite, or its GradScaler's were not, all ranks skip the step, and
        memories stay.
        """
        start = None if closure is None else self._flat.point()
        losses: list[Any] = []

        def evaluate() -> Any:
            if closure is not None:
                with torch.enable_grad():
                    losses.append(closure())
            return self._evaluated(losses[-1] if losses else None)

        self._steps += 1
        try:
            if closure is None:
                evaluate()
                self.optimizer.step()
            else:
                self.optimizer.step(evaluate)
        except Skip as skip:
            self._skipped += 1
            if vars(self).get("found_inf") is None:  # a GradScaler looks for infinities on purpose
                self._replica.say_skipped(self._steps - 1, skip.ranks, self._local is not None)
            if start is not None and len(losses) > 1:  # in the middle of a line search
                self._flat.move(start)
                self.optimizer.state.clear()
        if self._local is not None and not self._local.after_step():
            self._skipped += 1
            self._replica.say_skipped(self._steps - 1, self._exchange.met.bad)
        every, together = self._replica.every, self._local is None or self._local.count == 0
        if every and together and self._steps - self._checked >= every:
            self._checked = self._steps
            self._replica.check(self._steps)
        return losses[0] if losses else None

    @torch.no_grad()
    def _evaluated(self, loss: Any) -> Any:
        """Put the exchanged direction in the place of the gradients; return the mean loss. Raises Skip."""
        self._evaluations += 1
        self._unscale()
        if self._local is not None:
            if not self._flat.finite():
                raise Skip([self._replica.transport.rank])
            return loss
        gamma, grad = self._step_size(), self._flat.gradients()
        number = loss.detach() if isinstance(loss, Tensor) else loss
        is_number = isinstance(number, int | float | Tensor)
        u = self._exchange(grad, gamma, float(number) if is_number else math.nan)
        if u is None:
            raise Skip(self._exchange.met.bad)
        self._flat.set_gradients(u / gamma if self._exchange.in_steps and not self._dense else u)
        if self._exchange.keeps(grad):
            self._flat.renew()
        return self._exchange.met.loss if is_number else loss

    @property
    def _dense(self) -> bool:
        """Whether the step just exchanged was one of the first, dense ones."""
        return self._exchange.steps <= self._plan.start_after

    def _step_size(self) -> float:
        rates = {float(group["lr"]) for group in self.param_groups}
        gamma = rates.pop()
        if self._exchange.in_steps and (rates or gamma <= 0):
            what = "messages hold the step size: one that is above 0 for all parameters is needed"
            raise InputError.of("lr", what, "algorithm={'name': .., 'memory': 'gradient'}")
        return gamma

    def _unscale(self) -> None:
        scale = vars(self).get("grad_scale")
        if scale is not None:
            grads = [p.grad for p in self._flat.params if p.grad is not None]
            torch._foreach_mul_(grads, 1.0 / scale.to(self._flat.vector.device).item())

    # What it did, and going on elsewhere ------------------------------------------------------------

    def report(self) -> Report:
        """Return what the messages cost and did so far; ``print`` gives a line."""
        exchange, dense = self._exchange, self._evaluations * self._flat.nbytes
        rows, names = [exchange.rows], self._plan.names
        return report(rows, exchange.n, names, self._steps, self._skipped, dense)

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank remembers: the optimizer's state, and the method's.

        Every rank saves its own, by torch.save or torch.distributed.checkpoint, and loads it again.
        ``raybench.torch.whole`` puts those of all ranks together, for another number of ranks. Raises InputError where a
        framework asks that would write rank 0's alone.
        """
        part: dict[str, Any] = {
            "algorithm": self._plan.algorithm,
            "rank": self._exchange.rank,
            "n": self._exchange.n,
            "exchanges": [self._exchange.state()],
            "optimizer": self.optimizer.state_dict(),
        }
        if self._local is not None:
            part["local"] = self._local.state()
        return packed(part, self._replica, self._exchange.alike and self._local is None)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a rank's own ``state_dict``, or from the whole of any number of ranks.

        With another number of ranks means over the ranks stay as they were: that of what has not been sent, x
        - mean e being kept, and that of all else. Raises InputError where it does not fit.
        """
        rank, n = self._exchange.rank, self._exchange.n
        parts = parts_of(state_dict, self._plan.algorithm, rank, n)
        self._exchange.load([part["exchanges"][0] for part in parts])
        self.optimizer.load_state_dict(dict(optimizer_of(parts, rank)))
        if self._local is not None:
            mine = parts[min(rank, len(parts) - 1)]
            self._local.load(mine["local"], resized=mine["n"] != n)


class Skip(Exception):
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
