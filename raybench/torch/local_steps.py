"""Local steps of a training loop: what ranks, or the nodes that ranks make up, exchange after H steps of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from raybench.algorithms.build import part
from raybench.algorithms.parts import Outer, outer_step
from raybench.core.cells import PerCell, State
from raybench.core.errors import InputError
from raybench.torch.exchange import GradientExchange, LoopSettings, on
from raybench.torch.flat import Flat
from raybench.torch.replicas import Replica, group_apart, local, timeout_of
from raybench.wire.transport import Distributed


class Node:
    """The ranks of one node, whose model is one replica: in DistributedDataParallel, or sharded over them by FSDP2.

    group: these ranks; all nodes have as many. Ranks with the same place in their nodes reach each other through
    ``between``. With DistributedDataParallel only the first rank of a node exchanges, and the others follow it; with
    FSDP2 each exchanges its own shard. Every rank has to make it. Raises InputError where nodes are of different sizes,
    or parameters are sharded over other ranks.
    """

    def __init__(self, group: dist.ProcessGroup, params: Sequence[Tensor], offload: bool) -> None:
        self.within = Distributed(group)
        mine = tuple(dist.get_process_group_ranks(group))
        nodes = sorted(set(Distributed().everyone(mine)))
        sizes = {len(node) for node in nodes}
        if len(sizes) > 1:
            what = f"nodes have {' and '.join(map(str, sorted(sizes)))} ranks"
            raise InputError.of("node", what, "as many ranks in each node")
        meshes = [p.device_mesh for p in params if isinstance(p, DTensor)]
        self.sharded = bool(meshes)
        if any(set(mesh.mesh.flatten().tolist()) != set(mine) for mesh in meshes):
            what = "parameters are sharded over other ranks than those of the node"
            raise InputError.of("node", what, "fully_shard(model, mesh=mesh['rank'])")
        more: dict[str, Any] = {"timeout": timeout_of(group, params[0].device)}
        if offload and torch.cuda.is_available():
            more["backend"] = "cpu:gloo,cuda:nccl"
        places = [list(place) for place in zip(*nodes, strict=True)]
        between, _ = dist.new_subgroups_by_enumeration(places, **more)
        assert isinstance(between, dist.ProcessGroup)
        self.between = Distributed(between)

    def everywhere(self, params: Sequence[Tensor]) -> list[bool]:
        """Return which parameters each rank of the node holds a part of. Raises InputError where it is none."""
        parts = [float(local(p).numel() > 0) for p in params]
        counts = self.within.all_reduce([torch.tensor(parts, device=params[0].device)])[0]
        held = (counts == self.within.size).tolist()
        if not any(held):
            what = "no parameter has a part on every rank"
            raise InputError.of("node", what, "fewer ranks, or DistributedDataParallel")
        return held

    @property
    def leads(self) -> bool:
        """Whether this rank exchanges anything."""
        return self.sharded or self.within.rank == 0

    def follow(self, flat: Flat, move: Callable[[], bool]) -> bool:
        """Let the first rank of the node ``move`` its model, and take over where it stands; return what it returned."""
        # -1: it failed, unless it says otherwise
        status = torch.full((1,), -1.0, device=flat.vector.device)
        try:
            if self.leads:
                status.fill_(float(move()))
        finally:
            dist.broadcast(status, group=self.within.group, group_src=0)
        if status < 0:
            raise RuntimeError("the first rank of this node could not exchange: see its message")
        x = flat.point()
        dist.broadcast(x, group=self.within.group, group_src=0)
        flat.move(x)
        return bool(status)


@dataclass(frozen=True)
class Schedule:
    """When and how the shared point moves: after ``steps`` local steps by x <- x - step_size u, u of ``outer``.

    late: how many local steps after its exchange u is taken; local steps go on from y, which is not put back to x, and
    then y <- mix y + (1 - mix) x, as in Streaming DiLoCo (Douillard et al., 2025). rounds: how many exchanges after its
    own u is taken, zeros coming first.
    """

    steps: int
    step_size: float
    outer: Outer | None
    late: int
    mix: float
    rounds: int

    @classmethod
    def of(cls, loop: Mapping[str, Any], presets: tuple[Any, Any]) -> Self:
        """Return that of a loop's ``local``, ``outer`` and ``delay``, and a preset's where they say nothing.

        Raises InputError where they do not fit a loop.
        """
        preset, preset_outer = presets
        local = dict(loop["local"] or {})
        late, mix, _ = local.pop("late", 0), local.pop("mix", 0.5), local.pop("fragments", 1)
        if local:
            preset = part("local", local)
            if extra := sorted(set(local) - {"steps"}):
                what = f"{', '.join(extra)}: your optimizer does the local steps"
                raise InputError.of("local", what, "local={'steps': H}")
        if preset is None:
            raise InputError.of("local.steps", "is missing", "local={'steps': H}")
        if type(late) is not int or not 0 <= late <= preset.steps:
            raise InputError.of("local.late", f"{late!r}", f"an integer from 0 to {preset.steps}")
        if type(mix) not in (int, float) or not 0 <= mix <= 1:
            raise InputError.of("local.mix", f"{mix!r}", "a number from 0 to 1")
        settings = dict(loop["outer"] or {})
        step = settings.pop("step_size", 1.0)
        if not isinstance(step, int | float) or isinstance(step, bool) or not step > 0:
            raise InputError.of("outer.step_size", f"{step!r}", "a number above 0")
        outer_part = part("outer", settings) if settings else preset_outer
        if outer_part is not None and isinstance(outer_part.momentum, PerCell):
            outer_part = replace(outer_part, momentum=float(outer_part.momentum.values))
        rounds = 0 if loop["delay"] is None else part("delay", loop["delay"]).rounds
        return cls(preset.steps, float(step), outer_part, late, mix, rounds)


class LocalSteps:
    """H steps of the user's optimizer between exchanges of v = x - y, x the shared point, y this rank's.

    x <- x - step_size u, u being the outer optimizer's of the estimate of mean v; then y = x. flat: the parameters,
    all or a fragment of them. count: local steps so far, of a fragment not 0 at the start. thread: does the exchanges
    whose u is not needed at once. device: where x and the outer optimizer's memory are.
    """

    def __init__(
        self,
        schedule: Schedule,
        exchange: GradientExchange,
        flat: Flat,
        device: torch.device,
        count: int,
        node: Node | None,
        thread: ThreadPoolExecutor | None,
    ) -> None:
        self.schedule, self.exchange, self.flat = schedule, exchange, flat
        self.node, self.thread, self.device = node, thread, device
        self.sharded = node is not None and node.sharded
        self.count = self.start = count
        self.x, self.s = flat.point().to(device), State()
        self.sent = False  # anything so far, by this node
        self.job: Future[Tensor | None] | None = None  # the exchange that is going on
        self.late: list[Tensor | None] = []  # directions of exchanges before, to be taken later

    def after_step(self) -> bool:
        """Count a local step; after H of them exchange, and move to the new shared point.

        False where that was skipped: all ranks are back at the shared point of before.
        """
        self.count += 1
        moved = True
        if self.count == self.schedule.late and self.sent:
            moved = self._together(self._mix)
        if self.count >= self.schedule.steps:
            self.count = 0
            if self.schedule.late:
                self._send()
            else:
                moved = self._together(self._move)
        return moved

    def _together(self, move: Callable[[], bool]) -> bool:
        """Move, or in DistributedDataParallel let the first rank of the node move for the others."""
        if self.node is None or self.sharded:
            return move()
        moved = self.node.follow(self.flat, move)
        if not self.node.leads:
            self.x = self.flat.point().to(self.device)
        return moved

    def _send(self) -> None:
        """Begin the exchange of x - y."""
        self.sent = True
        if self.node is not None and not self.node.leads:
            return
        v = self.x - self.flat.point().to(self.device)
        self.settle()
        exchange = partial(self.exchange, v, undoable=self.sharded)
        if self.thread is None:
            self._take(exchange())
        else:
            self.job = self.thread.submit(exchange)

    def _move(self) -> bool:
        """Exchange, and move both points along the direction that is due."""
        self._send()
        if self.schedule.rounds == 0:
            self.settle()
        early = len(self.late) + (self.job is not None) <= self.schedule.rounds
        moved = self._step(torch.zeros_like(self.x) if early else self.late.pop(0))
        self.flat.move(self.x)
        return moved

    def _mix(self) -> bool:
        """Move x along the direction of the last exchange, and y <- mix y + (1 - mix) x."""
        self.settle()
        moved = self._step(self.late.pop(0))
        self.flat.move(torch.lerp(self.x, self.flat.point().to(self.device), self.schedule.mix))
        return moved

    def to_shared(self) -> None:
        """Put the model at the shared point."""

        def move() -> bool:
            self.flat.move(self.x)
            return True

        self._together(move)

    def _step(self, direction: Tensor | None) -> bool:
        """Move x along a direction, where there is one."""
        if direction is None:
            return False
        u, outer = direction[None], self.schedule.outer
        if outer is not None:
            u = outer_step(outer, self.s, u, self.schedule.step_size)
            if outer.weight_decay:
                u = u + outer.weight_decay * self.x
        in_steps = outer is not None and outer.in_steps
        self.x = self.x - (u[0] if in_steps else self.schedule.step_size * u[0])
        return True

    def settle(self) -> None:
        """Wait for the exchange that is going on."""
        if self.job is None:
            return
        job, self.job = self.job, None
        self._take(self.exchange.wait(job))

    def _take(self, direction: Tensor | None) -> None:
        if self.sharded:
            # only now is it known whether other shards were skipped
            skipped = self.exchange.replica.anywhere(direction is None)
            if skipped and direction is not None:
                self.exchange.undo()
                direction = None
        self.late.append(direction)

    def state(self) -> dict[str, Any]:
        """Return the shared point, the outer optimizer's memory, how many steps were done since, and where they led.

        Between exchanges models differ, and many checkpoints hold that of rank 0 alone: each rank keeps its own.
        """
        self.settle()
        return {
            "x": self.x.clone(),
            "count": self.count,
            "s": self.s.state(),
            "y": self.flat.point() if self.count or self.schedule.late else None,
            "late": list(self.late),
            "sent": self.sent,
        }

    def load(self, state: Mapping[str, Any], resized: bool) -> None:
        """Go on from what ``state`` returned; with another number of ranks from the shared point."""
        self.x = on(state["x"], self.device)
        values = {name: on(value, self.device) for name, value in state["s"].items()}
        self.s, self.job = State.of(values), None
        self.late = [on(direction, self.device) for direction in state["late"]]
        self.count = self.start if resized else state["count"]
        self.sent = state["sent"]
        self.flat.move(self.x if resized or state["y"] is None else state["y"])


def fragments_of(
    named: Iterable[tuple[str, Tensor]], count: int, node: Node | None
) -> list[list[tuple[str, Tensor]]]:
    """Return the parameters to train in ``count`` groups of about equal size, in order, the same ones on all ranks.

    Each has a parameter of which every rank of a node holds a part. Raises InputError where there are fewer of those.
    """
    trained = [(name, p) for name, p in named if p.requires_grad]
    held = [True] * len(trained)
    if node is not None and trained:
        held = node.everywhere([p for _, p in trained])
    remainder = sum(held)
    if type(count) is not int or not 1 <= count <= max(remainder, 1):
        what = f"{count!r} of {remainder} parameters"
        raise InputError.of("local.fragments", what, f"an integer from 1 to {remainder}")
    total, before, filled = sum(p.numel() for _, p in trained), 0, False
    out: list[list[tuple[str, Tensor]]] = [[]]
    for (name, p), here in zip(trained, held, strict=True):
        # each of the groups that are to come needs a parameter
        full = before * count >= total * len(out) or remainder == count - len(out)
        if filled and full and len(out) < count:
            out.append([])
            filled = False
        out[-1].append((name, p))
        before, remainder, filled = before + p.numel(), remainder - here, filled or here
    return out


def local_steps(
    plan: LoopSettings,
    loop: Mapping[str, Any],
    fragments: Sequence[Sequence[tuple[str, Tensor]]],
    whole: Flat,
    replica: Replica,
    node: Node | None,
    group: dist.ProcessGroup | None,
) -> list[LocalSteps]:
    """Return the local steps of every fragment of the parameters, which every rank has to make.

    loop: ``local``, ``outer``, ``delay`` and ``offload``. group: the ranks that exchange, where there is no node.
    Raises InputError where they do not fit.
    """
    device = torch.device("cpu") if loop["offload"] else whole.vector.device
    late = bool(loop["delay"] or (loop["local"] or {}).get("late"))
    thread = None
    if late and device.type == "cpu":
        thread = ThreadPoolExecutor(1, thread_name_prefix="raybench-exchange")
        if node is None and dist.is_initialized():
            # it is never given back: other ranks may still be reading what this one has sent
            replica.transport = Distributed(group_apart(group, device))
    flats = [whole if len(fragments) == 1 else Flat(fragment) for fragment in fragments]
    plain = replace(plan, delay=None)
    exchanges = [
        GradientExchange(
            plain.of_part(flat.layout), flat.layout, flat.vector.to(device), replica, local=True
        )
        for flat in flats
    ]
    schedule = Schedule.of(loop, exchanges[0].presets)
    return [
        LocalSteps(
            schedule, exchange, flat, device, i * schedule.steps // len(fragments), node, thread
        )
        for i, (exchange, flat) in enumerate(zip(exchanges, flats, strict=True))
    ]
