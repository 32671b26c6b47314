"""One method at work on the gradients of a training loop: this rank's gradient in, the direction out."""

from __future__ import annotations

import glob
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from raybench.algorithms.build import method, named_method, part
from raybench.algorithms.parts import late
from raybench.compressors.base import TimedCompressor, build
from raybench.compressors.per_tensor import PerPart, PerTensor
from raybench.core import registry
from raybench.core.cells import PerCell, State, copied, mapped
from raybench.core.counts import ALL_TO_ALL, COLLECTIVES, GATHER, Clock, Counts
from raybench.core.errors import InputError, nearest
from raybench.core.facts import AlgorithmFacts
from raybench.core.layout import Layout
from raybench.core.parts import BUCKET_OF_LOOPS
from raybench.core.streams import Stream, stream
from raybench.torch.replicas import RankStatus, Replica
from raybench.torch.report import bits, row
from raybench.wire import Message
from raybench.wire.wire import BookedWire, Vectors

GRAINS = ("global", "tensor", "bucket")
SAVING = 2  # a tensor whose message is not smaller by this factor is sent as it is


@dataclass(frozen=True)
class LoopSettings:
    """What is done with gradients, as a user has asked for it: settings are those of ``CompressedOptimizer``.

    params: the method's parameters, as given; in ``algorithm`` stands its text.
    """

    algorithm: str = "ef21"
    compressor: Any = None
    granularity: str = "global"
    collective: str = GATHER
    downlink: Any = None
    groups: tuple[tuple[str, Any], ...] = ()
    min_numel: int | None = None
    start_after: int = 0
    seed: int = 0
    delay: Mapping[str, Any] | None = None
    watch: int = 50
    check_every: int = 0
    params: Mapping[str, Any] = field(default_factory=dict)
    allow_unproven: bool = False

    @cached_property
    def method(self) -> tuple[registry.Entry[AlgorithmFacts], dict[str, Any]]:
        """The method's entry and its typed parameters. Raises InputError for a wrong name or parameter."""
        return named_method(self.algorithm, self.params)

    def of_part(self, layout: Layout) -> LoopSettings:
        """Return the plan with the groups that have tensors in this layout."""
        names = [name for name, _ in layout]
        groups = [(p, op) for p, op in self.groups if any(fnmatchcase(name, p) for name in names)]
        return replace(self, groups=tuple(groups))

    def check(self, names: Sequence[str]) -> None:
        """Raise InputError where a setting is none: after ranks have compared theirs, so that all of them do.

        names: of the tensors that are trained.
        """
        for name, allowed in (("granularity", GRAINS), ("collective", COLLECTIVES)):
            given = getattr(self, name)
            if given not in allowed:
                raise InputError.of(name, f"unknown {given!r}", nearest(str(given), allowed))
        leasts = {"start_after": 0, "watch": 1, "min_numel": 0, "check_every": 0}
        for name, least in leasts.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                raise InputError.of(name, f"{value!r}", f"an integer >= {least}")
        if self.groups and self.granularity != "tensor":
            raise InputError.of("groups", "they are of tensors", "granularity='tensor'")
        for pattern, _ in self.groups:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise InputError.of(
                    "groups", f"{pattern!r} names no tensor", nearest(pattern, names)
                )

    def compressor_for(self, layout: Layout, dtype: torch.dtype) -> Any:
        """Return the compressor for vectors of a layout, None where none was asked for."""
        if self.compressor is None:
            return None
        compressor = build(self.compressor)
        if self.granularity != "global":
            bucket = BUCKET_OF_LOOPS if self.granularity == "bucket" else None
            groups = self.groups
            if self.granularity == "tensor":
                small = self._small(compressor, layout, dtype)
                groups = (*groups, *((glob.escape(name), "identity") for name in small))
            compressor = PerTensor(compressor, bucket=bucket, groups=groups)
        return PerPart(compressor) if self.collective == ALL_TO_ALL else compressor

    def _small(self, compressor: Any, layout: Layout, dtype: torch.dtype) -> list[str]:
        """Return the names of the tensors that are sent dense."""

        @cache
        def small(shape: tuple[int, ...], size: int) -> bool:
            if self.min_numel is not None:
                return size < self.min_numel
            fitted = compressor.fit(size, 1, Layout((("", shape),)))
            cost = fitted.compress(stream(0).normal(size).to(dtype)).nbytes
            return SAVING * float(torch.as_tensor(cost).max()) > size * dtype.itemsize

        tensors = zip(layout, layout.sizes, strict=True)
        return [name for (name, shape), size in tensors if small(shape, size)]


def method_given(algorithm: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the text and the further parameters of a method given as text or as a mapping."""
    if isinstance(algorithm, str):
        return algorithm, {}
    if not isinstance(algorithm, Mapping) or not isinstance(algorithm.get("name"), str):
        what = f"{algorithm!r} is no method"
        raise InputError.of("algorithm", what, "'ef21', or {'name': 'diana', 'alpha': 0.1}")
    return algorithm["name"], {k: v for k, v in algorithm.items() if k != "name"}


def loop_settings(
    asked: Mapping[str, Any], replica: Replica, loop: Mapping[str, Any]
) -> LoopSettings:
    """Return the plan of a user's settings.

    asked: what the user's call was given, by name; those of a plan's settings are taken. loop: settings that the plan
    does not hold. Raises InputError for wrong settings; where what ranks say differs, on all of them.
    """
    name, params = method_given(asked["algorithm"])
    settings = {part.name: asked[part.name] for part in fields(LoopSettings) if part.name in asked}
    method = {"algorithm": name, "params": params, "groups": tuple(asked["groups"])}
    plan = LoopSettings(**{**settings, **method})
    shared = {name: value for name, value in vars(plan).items() if name != "watch"}
    replica.compare({**shared, **loop})
    plan.check([name for name, asks in zip(replica.names, replica.asked, strict=True) if asks])
    return plan


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


@dataclass(frozen=True)
class MeasuredCompressor(TimedCompressor):
    """A compressor that measures its messages for an exchange, when that watches, of the tensors that take part."""

    exchange: GradientExchange

    def __call__(self, x: Tensor, source: Stream) -> Message:
        if self.exchange.mask is not None:
            x = torch.where(self.exchange.mask, x, 0.0)
        message = super().__call__(x, source)
        if self.exchange.watching:
            size = x.square().sum()
            left = (message.decode() - x).square().sum()
            self.exchange.error = float(left / size) if size > 0 else 0.0
        return message


class GradientExchange:
    """The method of one vector of gradients, on every rank of a group, each of which is one client.

    like: a tensor of the type and device of the vectors. Call it once a step with this rank's gradient
    (d,): it returns what every rank steps along, x <- x - gamma u. local: the loop takes local steps and moves
    the shared point along u itself; what a preset says of either is in ``presets``, and u is left to it. met: what
    ranks told each other at the last call. Raises InputError where the method, its parameters and compressors do not
    fit each other or a loop.
    """

    def __init__(
        self,
        plan: LoopSettings,
        layout: Layout,
        like: Tensor,
        replica: Replica,
        local: bool = False,
    ) -> None:
        self.plan, self.layout, self.local, self.replica = plan, layout, local, replica
        entry, params = plan.method
        self.delay = None if plan.delay is None else part("delay", plan.delay)
        transport = replica.transport
        n, rank = transport.size, transport.rank
        self.status = RankStatus([], math.nan)
        self.clock = Clock()
        self.watching = False  # whether norms are measured in this step, which costs a pass
        self.mask: Tensor | None = None  # of the coordinates that take part, where some do not
        self.error = math.nan  # how far its message is from what it stands for
        self.rows: list[dict[str, float]] = []  # of all exchanges, for ``report``
        vectors = Vectors(n, range(rank, rank + 1), layout, layout.dim, like.dtype, like.device)
        roots = stream([plan.seed], like.device)
        if plan.collective != GATHER and not entry.facts.averaged:
            what = f"{entry.name} takes more of its messages than their mean"
            raise InputError.of("collective", what, GATHER)
        self.wire = BookedWire(
            vectors, roots, transport, clock=self.clock, collective=plan.collective
        )
        compressors = plan.compressor_for(layout, like.dtype), plan.downlink
        free = plan.allow_unproven
        self.a = a = method(entry, params, compressors, n, layout, self.clock, like, free)
        if entry.facts.up is not None or entry.facts.own is not None:
            a.C = a.Q = MeasuredCompressor(a.C.bound, a.C.clock, a.C.declared, n, self)
        self.steps = 0  # all of them, dense ones too
        self.s, self.c = State(), State()
        self._like = like
        self._before: tuple[State, State] | None = None  # the last call, where it may be undone
        self._wary = False  # whether gradients were so large that memories may be
        self._ever = [False] * len(layout)  # which tensors any rank has used so far
        self._begin()

    def _begin(self) -> None:
        """Make the state anew: what ``outer_step`` may read of x is 0, since decay is left to the loop."""
        self.s, self.c = State(), State()
        self.a.setup(self.wire, self.s, self.c)
        self.presets = self.a.local, self.a.outer
        if self.local:  # each time anew: a preset says them in ``setup``
            self.a.local = self.a.outer = None
        self.s.x = self.wire.zero()[:, :1].expand(-1, self.layout.dim)

    @torch.no_grad()
    def __call__(
        self,
        grad: Tensor,
        gamma: float = 1.0,
        loss: float = math.nan,
        undoable: bool = False,
        used: Sequence[bool] | None = None,
    ) -> Tensor | None:
        """Return the direction (d,) of this rank's gradient (d,); every rank gets the same.

        None, with nothing remembered, where any rank's gradient or the direction is not finite. gamma: the step size, for
        methods whose messages hold it. loss: of this rank, for ``met``. undoable: ``undo`` may follow; that costs a
        copy of the memories. The direction is not to be written to, nor is the gradient where the method ``keeps`` it.
        used: which tensors of the layout this rank has used, where that varies: those that no rank has are left out.
        What is remembered of them stays, and the direction has there what the gradient has.
        """
        began, parts = perf_counter(), self.clock.parts
        self.status = self.replica.share_status(grad, self.steps, loss, used)
        if self.status.bad:
            self.skip()
            return None
        anyone = self.status.used or [True]
        if not any(anyone):
            self.rows.append(row(len(self.rows), began=began))
            return grad
        partial = not all(anyone) and self._partable(anyone)
        self._ever = [
            a or b for a, b in zip(self._ever, self.status.used or self._ever, strict=True)
        ]
        keeps = undoable or bool(self.status.large)
        self._before = (copied(self._shared()), copied(self.c)) if keeps else None
        ledger = self.wire.ledger
        before = ledger.up[:, 0].copy(), ledger.down[:, 0].copy()
        self.watching, self.error = self.steps % self.plan.watch == 0, math.nan
        dense = self.steps < self.plan.start_after
        if dense:
            self.wire.begin(self.steps)
            u = self.wire.mean(grad[None, None])[0]
        elif partial:
            u = self._partial(grad, gamma, anyone)
        else:
            u = self._direction(grad, gamma)
        self.steps += 1
        up = Counts(*(ledger.up[:, 0] - before[0]))
        down = Counts(*(ledger.down[:, 0] - before[1]))
        _, encode, send = (now - then for now, then in zip(self.clock.parts, parts, strict=True))
        residual = self._residual() if self.watching and not dense else None
        seconds = perf_counter() - began
        cost = row(
            len(self.rows),
            dense=float(dense),
            bits_up=bits(up, self._like.dtype),
            bytes_up=float(up.bytes),
            bits_down=bits(down, self._like.dtype),
            bytes_down=float(down.bytes),
            messages_up=float(up.messages),
            seconds_encode=encode,
            seconds_send=send,
            seconds_decode=max(0.0, seconds - encode - send),
            began=began,
            seconds_exchanged=seconds,
            seconds_exposed=seconds,
            residual_norm=math.nan if residual is None else residual,
            compression_error=self.error,
        )
        self.rows.append(cost)
        self._wary |= bool(self.status.large)
        if self._wary and not torch.isfinite(u).all():  # the same on all ranks
            self._overflown()
            return None
        return u

    def wait(self, job: Future[Tensor | None]) -> Tensor | None:
        """Return what the last exchange gives, which another thread does, and note how long the loop waits for it."""
        began = perf_counter()
        u = job.result()
        waited = perf_counter() - began
        self.rows[-1]["seconds_exposed"] = min(waited, self.rows[-1]["seconds_exchanged"])
        return u

    def _overflown(self) -> None:
        """Skip a step whose direction is not finite; begin anew where memories are to blame, not its gradients."""
        if self.status.large:
            self.undo()
        else:
            self._begin()
            self.steps, self._wary = 0, False
            self.rows[-1]["skipped"] = 1.0
        blamed = self.status.large or range(self.replica.transport.size)
        self.status = self.status._replace(bad=[*blamed])

    def skip(self) -> None:
        """Count a step in which nothing was sent."""
        self.rows.append(row(len(self.rows), skipped=1.0))

    def undo(self) -> None:
        """Be as before the last call, which was ``undoable``; what it has sent stays counted."""
        assert self._before is not None
        before, self.c = self._before
        before.x = self.s.x
        self.s, self._before = before, None
        self.steps -= 1
        self.rows[-1]["skipped"] = 1.0

    def _shared(self) -> State:
        """Return what all ranks remember alike; x is always 0."""
        return State.of({name: value for name, value in self.s if name != "x"})

    def _direction(self, grad: Tensor, gamma: float) -> Tensor:
        a, s, g = self.a, self.s, grad[None, None]
        call = self.steps - self.plan.start_after
        self.wire.begin(call if a.opens else call + 1)
        a.gamma = PerCell(torch.tensor([gamma], dtype=grad.dtype, device=grad.device))
        estimate = a.open if a.opens and call == 0 else a.estimate
        u = estimate(self.wire, s, self.c, g)
        if a.opens:
            s.g = u
        if self.delay is not None:
            u = late(self.delay, s, u)
        return a.outer_step(s, u)[0]

    def _partial(self, grad: Tensor, gamma: float, used: Sequence[bool]) -> Tensor:
        """Return the direction of the tensors that are used; what is remembered of the others stays as it was."""
        sizes = torch.tensor(self.layout.sizes)
        mask = torch.tensor(used).repeat_interleave(sizes).to(grad.device)
        before = copied(self._shared()), copied(self.c)
        self.mask = mask
        u = self._direction(torch.where(mask, grad, 0.0), gamma)
        self.mask = None
        for then, now in zip(before, (self.s, self.c), strict=True):
            for name, value in then:
                vars(now)[name] = self._mixed(value, vars(now)[name], mask, used)
        return torch.where(mask, u, grad)

    def _mixed(self, then: Any, now: Any, mask: Tensor, used: Sequence[bool]) -> Any:
        """Return a part of the state: ``now`` of the tensors that are used, ``then`` of the others."""
        if isinstance(now, list | tuple):  # a value for each tensor
            pairs = zip(then, now, used, strict=True)
            return type(now)(new if of_used else old for old, new, of_used in pairs)
        if isinstance(now, Tensor) and now.shape[-1:] == mask.shape:
            return torch.where(mask, now, then)
        return now

    def _partable(self, used: Sequence[bool]) -> bool:
        """Return whether tensors can be left out: all that is remembered is of coordinates, of tensors, or a number.

        Raises InputError where they cannot, and one that is not used now was used before; one that never was has
        nothing to lose.
        """
        d, count, values = self.layout.dim, len(self.layout), [*vars(self.s).values()]
        values += vars(self.c).values()
        lists = [value for value in values if isinstance(value, list | tuple)]
        tensors = [value for value in values if isinstance(value, Tensor) and value.numel() > 1]
        apart = all(len(value) == count for value in lists)
        if self.delay is None and apart and all(value.shape[-1] == d for value in tensors):
            return True
        each = zip(self.layout, self._ever, used, strict=True)
        if left := [name for (name, _), before, now in each if before and not now]:
            what = f"{self.plan.algorithm} cannot leave out {left[0]}, which this backward pass does not use"
            raise InputError.of("algorithm", what, "attach each network by itself")
        return False

    def keeps(self, grad: Tensor) -> bool:
        """Return whether the method remembers this very tensor, and not a copy of it."""
        held = grad.untyped_storage().data_ptr()
        every = _tensors([*vars(self.s).values(), *vars(self.c).values()])
        return any(x.untyped_storage().data_ptr() == held for x in every)

    def _residual(self) -> float | None:
        """Return the norm of what this rank has not sent yet, None for methods that keep no such thing."""
        errors = [vars(self.c)[name] for name in self.a.unsent_state if name in vars(self.c)]
        return float(sum(e.double().square().sum() for e in errors) ** 0.5) if errors else None

    # Going on elsewhere -----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what this rank remembers; tensors have the same shapes on every rank."""
        return {"steps": self.steps, "s": self._shared().state(), "c": self.c.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a ``state`` of this rank. Raises InputError where it is of another model."""
        self._begin()
        for target, values in ((self.s, state["s"]), (self.c, state["c"])):
            tensors = vars(target)
            for name, value in values.items():
                old = tensors.get(name)
                if isinstance(old, Tensor) and old.shape != value.shape:
                    what = f"{name} has shape {tuple(value.shape)}, here {tuple(old.shape)}"
                    raise InputError.of("state_dict", what, "the same model, in the same order")
                tensors[name] = on(value, self._like.device)
        self.steps = state["steps"]


def on(value: Any, device: torch.device) -> Any:
    """Return a value with its tensors on a device, with memory of their own."""
    return mapped(value, lambda x: x.detach().to(device, copy=True))
