"""Random parts of a network from a stream: dropout that is the same wherever the same sample is taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from raybench.core.errors import InputError
from raybench.core.streams import Stream


class _Source:
    """A stream, and how many layers have drawn from it."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.calls = stream, 0


_source: ContextVar[_Source | None] = ContextVar("source", default=None)


@contextmanager
def drawing(stream: Stream | None) -> Iterator[None]:
    """Let dropout layers draw from a stream of shape (), layer after layer; None switches them off."""
    before = _source.set(None if stream is None else _Source(stream))
    try:
        yield
    finally:
        _source.reset(before)


class StreamDropout(nn.Module):
    """Dropout whose mask is a function of the sample's stream and of the layer's turn."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Return x with each entry dropped with probability p, the others divided by 1 - p."""
        source = _source.get()
        if source is None or self.p == 0:
            return x
        source.calls += 1
        kept = source.stream.fold(source.calls).uniform(x.numel()) >= self.p
        return x * kept.view(x.shape).to(x) / (1 - self.p)


def with_streams(model: nn.Module) -> nn.Module:
    """Return the model with every ``Dropout`` exchanged for one that draws from the sample's stream.

    Raises InputError for a layer of torch that draws random numbers in another way.
    """
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Dropout):
            parent, _, own = name.rpartition(".")
            if not name:
                return StreamDropout(layer.p)
            setattr(model.get_submodule(parent), own, StreamDropout(layer.p))
        elif isinstance(layer, _DropoutNd | nn.RReLU) or vars(layer).get("dropout", 0.0):
            what = f"its layer {name} ({type(layer).__name__}) draws torch's random numbers"
            raise InputError.of("problem.model", what, "nn.Dropout is the one that may draw")
    return model


def check_repeatable(model: nn.Module, inputs: Tensor) -> None:
    """Raise InputError where the model gives two outputs for one input: it draws numbers of its own."""
    state = torch.random.get_rng_state()
    try:
        with torch.no_grad():
            outputs = [model(inputs) for _ in range(2)]
        drew = not torch.equal(torch.random.get_rng_state(), state)
    finally:
        torch.random.set_rng_state(state)
    if drew or not torch.equal(*outputs):
        what = "its forward draws random numbers, so that a sample is not the same twice"
        raise InputError.of("problem.model", what, "use nn.Dropout layers, which draw from streams")
