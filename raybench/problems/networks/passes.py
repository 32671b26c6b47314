"""Gradients of a network at many points: row by row, or of all rows at once where the network allows it.

A row is a cell and a client: its point x (d,), its minibatch, its random numbers, its buffers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from raybench.core.layout import Layout
from raybench.core.streams import Stream
from raybench.problems.networks.drawn import StreamDropout, drawing
from raybench.problems.networks.tasks import Task

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
STATISTICS = ("running_mean", "running_var")
MOST_STACKED = 50_000
"""Parameters up to which rows are stacked: above, one row keeps the cores busy (benchmarks/networks.py)."""


@dataclass
class Work:
    """What one pass evaluates. inputs (R, b, ..), targets (R, b, ..), weights (R, b), which sum to a row's share.

    streams: of every row (R,), None without dropout. buffers: (R, ..) by name, changed in place.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor
    streams: Stream | None = None
    buffers: Mapping[str, Tensor] | None = None


class Passes:
    """A network as a function of a flat vector.

    layout: the trainable tensors. statistics: names of BatchNorm's running statistics, which travel with
    the rows unless ``frozen``.
    """

    def __init__(self, model: nn.Module, layout: Layout, task: Task, frozen: bool) -> None:
        self.model, self.layout, self.task, self.frozen = model, layout, task, frozen
        self.norms = [m for m in model.modules() if isinstance(m, NORMS)]
        for norm in self.norms:
            norm.num_batches_tracked = None
        travel = bool(self.norms) and not frozen
        self.statistics = tuple(
            name
            for name, _ in model.named_buffers()
            if travel and name.rpartition(".")[2] in STATISTICS
        )
        self.draws = any(isinstance(m, StreamDropout) and m.p for m in model.modules())
        self.train(False)

    def apart(self) -> Passes:
        """Return the same with a module of its own that shares all tensors, for another thread.

        While a module is called with parameters from outside, its own are exchanged for them.
        """
        tensors = [*self.model.parameters(), *self.model.buffers()]
        model = copy.deepcopy(self.model, {id(t): t for t in tensors})
        return Passes(model, self.layout, self.task, self.frozen)

    def train(self, on: bool) -> None:
        """Let BatchNorm normalise by the minibatch (on), or by its running statistics."""
        self.model.eval()
        for norm in self.norms:
            norm.train(on and bool(self.statistics))

    @property
    def stacks(self) -> bool:
        """Whether rows are evaluated together: small networks without dropout and running statistics."""
        small = self.layout.dim <= MOST_STACKED
        return small and not self.draws and not self.statistics and self._vectorises

    @property
    def _vectorises(self) -> bool:
        return not any(isinstance(m, nn.RNNBase) for m in self.model.modules())

    def gradients(self, x: Tensor, work: Work, out: Tensor) -> Tensor:
        """Add the gradients at x (R, d) to out (R, d); return the weighted losses (R,)."""
        if self.stacks:
            return self._stacked(x, work, out)
        self.train(True)
        try:
            found = [self._row(j, x[j], work, out[j]) for j in range(len(x))]
        finally:
            self.train(False)
        return torch.stack(found)

    def _stacked(self, x: Tensor, work: Work, out: Tensor) -> Tensor:
        names = [name for name, _ in self.layout]

        def loss(params: dict[str, Tensor], inputs: Tensor, targets: Tensor, w: Tensor) -> Tensor:
            outputs = functional_call(self.model, params, (inputs,))
            return (self.task.losses(outputs, targets) * w).sum()

        params = dict(zip(names, self.layout.views(x), strict=True))
        grads, losses = vmap(grad_and_value(loss))(params, work.inputs, work.targets, work.weights)
        for view, name in zip(self.layout.views(out), names, strict=True):
            view.add_(grads[name])
        return losses

    def _row(self, j: int, x: Tensor, work: Work, out: Tensor) -> Tensor:
        some = work.weights[j] != 0
        every = bool(some.all())
        if not every and not some.any():
            return x.new_zeros(())
        inputs, targets, w = (
            t[j] if every else t[j][some] for t in (work.inputs, work.targets, work.weights)
        )
        views = [v.detach().requires_grad_() for v in self.layout.views(x)]
        with torch.enable_grad(), drawing(None if work.streams is None else _at(work.streams, j)):
            outputs = self._call(views, inputs, work.buffers, j)
            loss = (self.task.losses(outputs, targets) * w).sum()
            grads = torch.autograd.grad(loss, views, allow_unused=True)
        for view, grad in zip(self.layout.views(out), grads, strict=True):
            if grad is not None:
                view.add_(grad)
        return loss.detach()

    def _call(
        self, views: Sequence[Tensor], inputs: Tensor, buffers: Mapping[str, Tensor] | None, j: int
    ) -> Tensor:
        given = {name: view for (name, _), view in zip(self.layout, views, strict=True)}
        if buffers:
            given |= {name: buffer[j] for name, buffer in buffers.items()}
        return functional_call(self.model, given, (inputs,))

    @torch.no_grad()
    def outputs(
        self, x: Tensor, inputs: Tensor, buffers: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Return the outputs (b, ..) at one point x (d,) without dropout; buffers (1, ..) by name."""
        return self._call(self.layout.views(x), inputs, buffers, 0)


def _at(streams: Stream, j: int) -> Stream:
    return Stream(streams.keys[j])


def shifted_and_flipped(images: Tensor, stream: Stream, padding: int = 4) -> Tensor:
    """Return images (b, C, H, W) each shifted by up to ``padding`` pixels and mirrored or not, by a stream ()."""
    b, _, height, width = images.shape
    wide = torch.nn.functional.pad(images, (padding,) * 4)
    down, right = stream.fold("shift").integers(2 * b, 2 * padding + 1).view(2, b)
    flip = stream.fold("flip").uniform(b) < 0.5
    rows = down[:, None] + torch.arange(height)
    columns = right[:, None] + torch.arange(width)
    columns = torch.where(flip[:, None], columns.flip(1), columns)
    which = torch.arange(b)[:, None, None]
    return wide[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
