"""Training programs as plain data, which real ranks run by plain DistributedDataParallel and by ``attach``."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from gloo_kit import everyone
from loop_kit import spread, vector
from torch import Tensor, nn
from torch.distributed import get_rank as rank
from torch.nn.parallel import DistributedDataParallel

import raybench.torch as rt

WIDE = 4


@dataclass(frozen=True)
class Program:
    """A model's layers, those frozen at first, the optimizer of each layer, and what happens, event by event.

    turns: whether optimizers step in turn, each in a pass that its layers alone are used in. foreign: whether a group
    of parameters that are not the model's comes first. clips: the norm of the gradient, if any. adam: the optimizers.
    """

    layers: tuple[str, ...]
    frozen: tuple[bool, ...]
    owners: tuple[int, ...]
    events: tuple[tuple[str, int], ...]
    turns: bool
    foreign: bool
    clips: bool
    adam: bool
    views: bool
    cap: int
    size: int


class Layer(nn.Module):
    """A layer of a kind, from rows of WIDE numbers to such rows."""

    def __init__(self, kind: str, first: Layer | None) -> None:
        super().__init__()
        self.kind = kind
        if kind in ("linear", "unused"):
            self.within: Any = nn.Linear(WIDE, WIDE)
        elif kind == "convolution":
            self.within = nn.Conv1d(1, 1, 3, padding=1)
        elif kind in ("embedding", "sparse"):
            self.within = nn.Embedding(7, WIDE, sparse=kind == "sparse")
        elif kind == "norm":
            self.within = nn.LayerNorm(WIDE)
        elif kind == "tied":
            self.within = nn.Linear(WIDE, WIDE)
            if first is not None:
                self.within.weight = first.within.weight
        else:
            self.within = nn.Module()
            shape = (0, WIDE) if kind == "empty" else ()
            self.within.weight = nn.Parameter(torch.ones(shape))

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        if self.kind == "unused":
            return x
        if self.kind == "scalar":
            return x * self.within.weight
        if self.kind == "empty":
            return x + self.within.weight.sum()
        if self.kind == "convolution":
            return torch.tanh(self.within(x[:, None]))[:, 0]
        if self.kind in ("embedding", "sparse"):
            # The factor gives sparse gradients memory of their own: torch's all-reduce divides it in place,
            # where the gradient of the sum is that of x, too.
            return x + 0.5 * self.within(words)
        return torch.tanh(self.within(x))


class Model(nn.Module):
    """The layers one after another; those that a pass does not use are left out of it."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList()
        for kind in program.layers:
            first = next((layer for layer in self.layers if layer.kind in ("linear", "tied")), None)
            self.layers.append(Layer(kind, first))
        self.head = nn.Linear(WIDE, 1)
        self.double()

    def forward(self, x: Tensor, words: Tensor, used: list[int]) -> Tensor:
        for i in used:
            x = self.layers[i](x, words)
        return self.head(x)


class Refused(Exception):
    """A way to train refuses a program: with a message, and not by hanging."""


class Run:
    """A program at work on this rank: by plain DistributedDataParallel, or with a method attached.

    applied: minus the sum of the directions that were stepped along with step size 1, in all optimizers. sums: of the
    mean gradients of the passes that a step followed.
    """

    def __init__(self, program: Program, method: tuple[str, str | None] | None) -> None:
        self.program, self.model, self.hook = program, Model(program), None
        for layer, frozen in zip(self.model.layers, program.frozen, strict=True):
            layer.requires_grad_(not frozen)
        more = {"gradient_as_bucket_view": program.views, "bucket_cap_mb": program.cap / (1 << 20)}
        self.parallel = DistributedDataParallel(self.model, find_unused_parameters=True, **more)
        self.method = method
        if method is not None:
            self.hook = rt.attach(self.parallel, *method, size=program.size)
        self.optimizers: list[torch.optim.Optimizer] = []
        self.groups: list[list[nn.Parameter]] = []
        taken: set[int] = set()
        for owner in sorted({*program.owners, 0}):
            mine = [
                p
                for layer, o in zip(self.model.layers, program.owners, strict=True)
                if o == owner
                for p in layer.parameters()
            ]
            mine += [*self.model.head.parameters()] if owner == 0 else []
            mine = [p for p in mine if id(p) not in taken and not taken.add(id(p))]  # type: ignore[func-returns-value]
            if mine:
                self.groups.append(mine)
                self.optimizers.append(self._optimizer(mine))
        self.t = 0

    def _optimizer(self, params: list[nn.Parameter]) -> torch.optim.Optimizer:
        groups: list[dict[str, Any]] = [{"params": params}]
        if self.program.foreign:
            groups.insert(0, {"params": [nn.Parameter(torch.ones(()))]})
        sparse = "sparse" in self.program.layers
        if self.program.adam and not sparse:
            return torch.optim.AdamW(groups, lr=0.01)
        return torch.optim.SGD(groups, lr=0.1)

    def play(self, event: str, number: int) -> None:
        """Do what an event says, alike on all ranks."""
        layer = self.model.layers[number % len(self.model.layers)]
        if event in ("freeze", "thaw"):
            # what was frozen at DistributedDataParallel(..) it does not reduce; sparse ones must have a gradient
            if not self.program.frozen[number % len(self.model.layers)] and layer.kind != "sparse":
                layer.requires_grad_(event == "thaw")
        elif event == "save":
            self._save()
        else:
            which = number % len(self.optimizers)
            turn = [self.optimizers[which]] if self.program.turns else self.optimizers
            used = self._used(which)
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            if event == "accumulate":
                with self.parallel.no_sync():
                    self._backward(used)
            if event == "closure" and len(turn) == 1:
                turn[0].step(lambda: self._backward(used))
            else:
                self._backward(used, torch.nan if event == "nan" and rank() else 1.0)
                if event == "nan" and self.hook is None:
                    return  # as the hook's skip is
                if self.program.clips:
                    nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
                for optimizer in turn:
                    optimizer.step()

    def _used(self, which: int) -> list[int]:
        """Return the layers that a pass uses: with turns those of one optimizer, and what needs a gradient always."""
        every = range(len(self.program.layers))
        if not self.program.turns:
            return [*every]
        mine = {id(p) for p in self.groups[which]}
        return [
            i
            for i in every
            if self.program.layers[i] == "sparse"
            or any(id(p) in mine for p in self.model.layers[i].parameters())
        ]

    def _backward(self, used: list[int], factor: float = 1.0) -> Tensor:
        self.t += 1
        source = torch.Generator().manual_seed(100 * self.t + rank())
        x = torch.randn(3, WIDE, generator=source, dtype=torch.float64)
        words = torch.randint(0, 7, (3,), generator=source)
        loss = self.parallel(x, words, used).square().mean() * factor
        loss.backward()
        return loss

    def _save(self) -> None:
        """Go on in a new hook, from what the one before has saved."""
        if self.hook is not None and self.method is not None:
            state = self.hook.state_dict()
            self.hook.detach()
            self.hook = rt.attach(self.parallel, *self.method, size=self.program.size)
            self.hook.load_state_dict(state)

    def close(self) -> None:
        if self.hook is not None:
            self.hook.detach()


def compare(program: Program) -> str:
    """Run a program in both ways on this rank; return what is wrong, an empty text where nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, ours = Run(program, None), None
        try:
            ours = Run(program, ("gd", None))
            for event, number in program.events:
                refusals = []
                for run in (plain, ours):
                    try:
                        run.play(event, number)
                        refusals.append("")
                    except (RuntimeError, ValueError) as error:
                        refusals.append(f"{type(error).__name__}: {error}")
                apart = float((vector(plain.model) - vector(ours.model)).abs().max())
                for theirs, ours_, distance in everyone((*refusals, apart)):
                    if theirs and not ours_:
                        return f"plain DistributedDataParallel alone refuses {event} {number}: {theirs}"
                    if ours_ and not theirs:
                        return f"attach alone refuses {event} {number}: {ours_}"
                    if not theirs and not distance < 1e-6:
                        return f"{distance} apart after {event} {number}"
                if any(refusals):
                    return ""
                if (width := spread(ours.model)) != 0:
                    return f"replicas {width} apart after {event} {number}"
        finally:
            if ours is not None:
                ours.close()
    return ""


def compare_all(drawn: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong with each of some programs, on this rank."""
    return [compare(Program(**program)) for program in drawn]
