"""Gradients of a network at many points: row by row, or of all rows at once where the network allows it.

A row is a cell and a client: its point x (d,), its minibatch, its random numbers, its buffers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd

from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.core.streams import Stream
from raybench.problems.base import right

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
STATISTICS = ("running_mean", "running_var")
MOST_STACKED = 200_000
"""Parameters up to which rows are stacked: above, one row keeps the cores busy (benchmarks/cells.py)."""
AT_ONCE = 2**26
"""Numbers that rows which are evaluated together may take: parameters, gradients, what layers keep."""


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

    def __getitem__(self, rows: slice) -> Work:
        """Return the work of some rows that have neither streams nor buffers."""
        return Work(self.inputs[rows], self.targets[rows], self.weights[rows])


class Passes:
    """A network as a function of a flat vector.

    layout: the trainable tensors. statistics: names of BatchNorm's running statistics, which travel with the rows
    unless ``frozen``. lower: what layers compute in, as torch.autocast chooses. stacks: whether rows are evaluated
    together: known after ``fit``.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        task: Task,
        frozen: bool,
        lower: torch.dtype | None = None,
    ) -> None:
        self.model, self.layout, self.task, self.frozen = model, layout, task, frozen
        self.lower = lower
        self.norms = [m for m in model.modules() if isinstance(m, NORMS)]
        for norm in self.norms:
            norm.num_batches_tracked = None
        travel = bool(self.norms) and not frozen
        self.statistics = tuple(
            name
            for name, _ in model.named_buffers()
            if travel and name.rpartition(".")[2] in STATISTICS
        )
        self.stacks, self._kept = False, 0
        self.draws = any(isinstance(m, StreamDropout) and m.p for m in model.modules())
        self.train(False)

    def apart(self) -> Passes:
        """Return the same with a module of its own that shares all tensors, for another thread.

        While a module is called with parameters from outside, its own are exchanged for them.
        """
        tensors = [*self.model.parameters(), *self.model.buffers()]
        return self._with(copy.deepcopy(self.model, {id(t): t for t in tensors}))

    def to(self, device: torch.device) -> Passes:
        """Return the same on ``device``, with a module of its own."""
        return self._with(copy.deepcopy(self.model).to(device))

    def _with(self, model: nn.Module) -> Passes:
        out = Passes(model, self.layout, self.task, self.frozen, self.lower)
        out.stacks, out._kept = self.stacks, self._kept
        return out

    def train(self, on: bool) -> None:
        """Let BatchNorm normalise by the minibatch (on), or by its running statistics."""
        self.model.eval()
        for norm in self.norms:
            norm.train(on and bool(self.statistics))

    def fit(self, x: Tensor, inputs: Tensor, targets: Tensor) -> None:
        """Find out whether rows can be evaluated together, and how many: tried on two rows at x (d,).

        Small networks can, without dropout and running statistics, if all that they do can be vectorised.
        """
        if self.layout.dim > MOST_STACKED or self.draws or self.statistics:
            return
        of_one, of_two = (self._saved(x, inputs[:b]) for b in (1, 2))
        self._kept = max(1, of_two - of_one if len(inputs) > 1 else of_one)
        a, b, w = (t.expand(2, *t.shape) for t in (inputs, targets, x.new_ones(len(inputs))))
        try:
            self._stacked(x.expand(2, -1), Work(a, b, w), x.new_zeros(2, len(x)))
        except Exception:  # torch raises a dozen kinds where a network cannot be vectorised
            return
        self.stacks = True

    def _saved(self, x: Tensor, inputs: Tensor) -> int:
        """Return how many numbers layers keep for the gradient."""
        total = 0

        def keep(tensor: Tensor) -> Tensor:
            nonlocal total
            total += tensor.numel()
            return tensor

        views = {n: view.detach().requires_grad_() for n, view in self.layout.named(x).items()}
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            self._call(views, inputs)
        return total

    def gradients(self, x: Tensor, work: Work, out: Tensor) -> Tensor:
        """Add the gradients at x (R, d) to out (R, d); return the weighted losses (R,)."""
        if self.stacks:
            groups = self._groups(len(x), work.weights.shape[1])
            return torch.cat([self._stacked(x[g], work[g], out[g]) for g in groups])
        self.train(True)
        try:
            result = [self._row(j, x[j], work, out[j]) for j in range(len(x))]
        finally:
            self.train(False)
        return torch.stack(result)

    def _groups(self, rows: int, samples: int) -> list[slice]:
        """Return which rows of so many samples are evaluated together."""
        some = max(1, AT_ONCE // (samples * self._kept + 3 * self.layout.dim))
        return [slice(j, j + some) for j in range(0, rows, some)]

    def _stacked(self, x: Tensor, work: Work, out: Tensor) -> Tensor:
        def loss(params: dict[str, Tensor], inputs: Tensor, targets: Tensor, w: Tensor) -> Tensor:
            outputs = self._outputs(params, inputs)
            return (self.task.losses(outputs, targets) * w).sum()

        params = self.layout.named(x)
        grads, losses = vmap(grad_and_value(loss))(params, work.inputs, work.targets, work.weights)
        for name, view in self.layout.named(out).items():
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
        views = {n: view.detach().requires_grad_() for n, view in self.layout.named(x).items()}
        with (
            torch.enable_grad(),
            drawing(None if work.streams is None else Stream(work.streams.keys[j])),
        ):
            outputs = self._call(views, inputs, work.buffers, j)
            loss = (self.task.losses(outputs, targets) * w).sum()
            grads = torch.autograd.grad(loss, [*views.values()], allow_unused=True)
        for view, grad in zip(self.layout.views(out), grads, strict=True):
            if grad is not None:
                view.add_(grad)
        return loss.detach()

    def _call(
        self,
        views: Mapping[str, Tensor],
        inputs: Tensor,
        buffers: Mapping[str, Tensor] | None = None,
        j: int = 0,
    ) -> Tensor:
        of_row = {name: buffer[j] for name, buffer in (buffers or {}).items()}
        return self._outputs({**views, **of_row}, inputs)

    def _outputs(self, tensors: dict[str, Tensor], inputs: Tensor) -> Tensor:
        if self.lower is None:
            return functional_call(self.model, tensors, (inputs,))
        with torch.autocast(inputs.device.type, self.lower):
            return functional_call(self.model, tensors, (inputs,)).float()

    @torch.no_grad()
    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        """Return the outputs (b, ..) at one point x (d,) without dropout."""
        return self._call(self.layout.named(x), inputs)

    @torch.no_grad()
    def measured(
        self,
        measure: Callable[[Tensor], Mapping[str, Tensor]],
        x: Tensor,
        inputs: Tensor,
        buffers: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Return sums over the samples, (B,) by name, at points x (B, d), of the same inputs (b, ..).

        measure: outputs (b, ..) -> values of every sample, (b,) by name. Without dropout; buffers
        (B, ..) by name.
        """

        def sums(outputs: Tensor) -> dict[str, Tensor]:
            return {name: v.double().sum() for name, v in measure(outputs).items()}

        if self.stacks:
            result = []
            for g in self._groups(len(x), len(inputs)):
                params = self.layout.named(x[g])
                result += [sums(out) for out in vmap(self._outputs, (0, None))(params, inputs)]
        else:
            rows = range(len(x))
            result = [sums(self._call(self.layout.named(x[j]), inputs, buffers, j)) for j in rows]
        return {name: torch.stack([values[name] for values in result]) for name in result[0]}


def shifted_and_flipped(images: Tensor, stream: Stream, padding: int = 4) -> Tensor:
    """Return images (b, C, H, W) each shifted by up to ``padding`` pixels and mirrored or not, by a stream ()."""
    b, _, height, width = images.shape
    wide = F.pad(images, (padding,) * 4)
    down, right = stream.fold("shift").integers(2 * b, 2 * padding + 1).view(2, b)
    flip = stream.fold("flip").uniform(b) < 0.5
    at = images.device
    rows = down[:, None] + torch.arange(height, device=at)
    columns = right[:, None] + torch.arange(width, device=at)
    columns = torch.where(flip[:, None], columns.flip(1), columns)
    which = torch.arange(b, device=at)[:, None, None]
    return wide[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


# What a network is trained for: losses and measures of every sample -------------------------------


@dataclass(frozen=True)
class Task:
    """losses: outputs (b, ..), targets (b, ..) -> (b,), one per sample, whose mean is minimised.

    metrics: outputs, targets -> values by name, (b,) each, whose means are measured on the test part.
    on_inputs: the targets are the inputs themselves.
    """

    losses: Callable[[Tensor, Tensor], Tensor]
    metrics: Callable[[Tensor, Tensor], Mapping[str, Tensor]] | None = None
    on_inputs: bool = False


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return -log p(target), (b,), of scores (b, classes); of sequences (b, T, classes) the mean over T."""
    each = F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
    return each.view(targets.shape).flatten(1).mean(1) if targets.ndim > 1 else each


def accuracy(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Return the share of right answers of every sample, (b,); classes that share the largest score count in part.

    A single score is that of class 1, where class 0 has the score 0.
    """
    if outputs.shape[-1] == 1 or outputs.ndim == targets.ndim == 1:
        scores = outputs.flatten()
        outputs, targets = torch.stack([torch.zeros_like(scores), scores], -1), targets.flatten()
    result = right(outputs, targets.long()).to(outputs.dtype)
    return {"accuracy": result.flatten(1).mean(1) if result.ndim > 1 else result}


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error over the entries, (b,)."""
    a, b = _alike(outputs, targets)
    return (a - b).square().mean(1)


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean absolute error over the entries, (b,)."""
    a, b = _alike(outputs, targets)
    return (a - b).abs().mean(1)


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over the entries of -log p(target), (b,), of scores whose sigmoids are p, and targets in [0, 1]."""
    a, b = _alike(outputs, targets)
    return F.binary_cross_entropy_with_logits(a, b, reduction="none").mean(1)


def _alike(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return both as (b, entries). Raises InputError for unequal numbers of entries, which torch would broadcast."""
    a, b = outputs.reshape(len(outputs), -1), targets.reshape(len(targets), -1)
    if a.shape != b.shape:
        what = f"a sample has {a.shape[1]} outputs and {b.shape[1]} targets"
        raise InputError.of("problem.loss", what, "a model with an output for each")
    return a, b.to(a.dtype)


LOSSES = {
    f.__name__: f for f in (cross_entropy, squared_error, absolute_error, binary_cross_entropy)
}


# Dropout from a stream: the same wherever the same sample is taken --------------------------------


# one stream for each layer that draws, in the order in which they do
_streams: ContextVar[Iterator[Stream] | None] = ContextVar("streams", default=None)


@contextmanager
def drawing(stream: Stream | None) -> Iterator[None]:
    """Let dropout layers draw from a stream of shape (), layer after layer; None switches them off."""
    before = _streams.set(None if stream is None else map(stream.fold, count(1)))
    try:
        yield
    finally:
        _streams.reset(before)


class StreamDropout(nn.Module):
    """Dropout whose mask is a function of the sample's stream and of the layer's turn."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Return x with each entry dropped with probability p, the others divided by 1 - p."""
        streams = _streams.get()
        if streams is None or self.p == 0:
            return x
        mask = next(streams).uniform(x.numel()) >= self.p
        return x * mask.view(x.shape).to(x) / (1 - self.p)


def with_streams(model: nn.Module) -> nn.Module:
    """Return the model with every ``Dropout`` exchanged for one that draws from the sample's stream.

    Raises InputError for a layer of torch that draws random numbers in another way.
    """
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Dropout):
            parent, _, leaf = name.rpartition(".")
            if not name:
                return StreamDropout(layer.p)
            setattr(model.get_submodule(parent), leaf, StreamDropout(layer.p))
        elif isinstance(layer, _DropoutNd | nn.RReLU) or vars(layer).get("dropout", 0.0):
            what = f"its layer {name} ({type(layer).__name__}) draws torch's random numbers"
            raise InputError.of("problem.model", what, "nn.Dropout is the one that may draw")
    return model


def check_repeatable(model: nn.Module, inputs: Tensor) -> None:
    """Raise InputError where the model gives two outputs for one input, or none that is a tensor."""
    state = torch.random.get_rng_state()
    try:
        with torch.no_grad():
            outputs = [model(inputs) for _ in range(2)]
        drew = not torch.equal(torch.random.get_rng_state(), state)
    finally:
        torch.random.set_rng_state(state)
    if not all(isinstance(output, Tensor) for output in outputs):
        what = f"its forward returns {type(outputs[0]).__name__}"
        raise InputError.of("problem.model", what, "a tensor: wrap it, and return the scores alone")
    if drew or not torch.equal(*outputs):
        what = "its forward draws random numbers or counts calls: a sample is not the same twice"
        raise InputError.of("problem.model", what, "use nn.Dropout layers, which draw from streams")
