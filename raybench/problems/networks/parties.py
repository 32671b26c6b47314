"""A party: a client that holds one view of all samples, an encoder phi of it, and a linear head W.

It contributes W phi(a) to the scores of a sample a; the scores are the sum over all parties.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.data import Examples
from raybench.problems.networks.build import trainable
from raybench.problems.networks.encoders import KEY, Encoded, plain_name
from raybench.problems.networks.passes import Passes, Work
from raybench.problems.networks.tasks import Task


class Party(Protocol):
    """What a party does at its own variable x (B, w). rows: (B, b) samples of each cell; None: all."""

    layout: Layout

    def start(self) -> Tensor:
        """Return the variable at the start, (w,)."""

    def outputs(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return its contributions to the scores, (B, b, classes)."""

    def tested(self, x: Tensor) -> Tensor:
        """Return its contributions to those of the test part, (B, N_test, classes)."""

    def pullback(self, x: Tensor, r: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the gradient (B, w) in x of <r, outputs(x, rows)>, r (B, b, classes)."""

    def to(self, device: torch.device) -> Party:
        """Return the same on ``device``."""

    def apart(self) -> Party:
        """Return the same for another thread, with the same tensors."""


class LinearParty:
    """A party whose features phi (N, p) do not change: its variable is W (classes, p)."""

    def __init__(self, name: str, phi: Tensor, test: Tensor | None, classes: int) -> None:
        self.phi, self.test = phi, test
        self.layout = Layout(((f"{name}.head.weight", (classes, phi.shape[1])),))

    def start(self) -> Tensor:
        """Return zeros: at the start all classes are as likely."""
        return self.phi.new_zeros(self.layout.dim)

    def outputs(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return phi W', (B, b, classes)."""
        return (self.phi if rows is None else self.phi[rows]) @ self.layout.views(x)[0].mT

    def tested(self, x: Tensor) -> Tensor:
        """Return phi W' of the test part, (B, N_test, classes)."""
        assert self.test is not None
        return self.test @ self.layout.views(x)[0].mT

    def pullback(self, x: Tensor, r: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return r' phi, (B, w)."""
        return (r.mT @ (self.phi if rows is None else self.phi[rows])).flatten(1)

    def to(self, device: torch.device) -> Self:
        """Return the same on ``device``."""
        moved = copy.copy(self)
        moved.phi = self.phi.to(device)
        moved.test = None if self.test is None else self.test.to(device)
        return moved

    def apart(self) -> Self:
        """Return itself: nothing of it is ever written to."""
        return self


@dataclass(frozen=True)
class Inputs:
    """What an encoder takes, sample by sample: (value - shift) factor of features and of pictures in [0, 1]."""

    train: np.ndarray
    test: np.ndarray | None
    shift: Tensor | None
    factor: Tensor | None
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, made: Encoded, dtype: torch.dtype) -> Inputs:
        """Return the inputs of an encoder, in the type that it computes in."""
        shift, factor = (
            None if v is None else torch.from_numpy(np.asarray(v)).to(dtype)
            for v in (made.shift, made.factor)
        )
        test = None if made.test is None else made.test.inputs
        return cls(made.train.inputs, test, shift, factor, dtype, torch.device("cpu"))

    def at(self, rows: Tensor, test: bool = False) -> Tensor:
        """Return the inputs (*rows, ..) of rows of the training or of the test part; tokens stay integers."""
        source = self.test if test else self.train
        assert source is not None
        values = torch.from_numpy(source[rows.flatten().cpu().numpy()]).to(self.device)
        if values.dtype != torch.int64:
            full = 255.0 if values.dtype == torch.uint8 else 1.0
            values = values.to(self.dtype) / full
            if self.shift is not None and self.factor is not None:
                values = (values - self.shift.to(values)) * self.factor.to(values)
        return values.unflatten(0, tuple(rows.shape))


class DeepParty:
    """A party that trains its encoder, or a part of it; samples are taken in passes of ``chunk``.

    Dropout is off and BatchNorm normalises by the statistics that it starts with, so that the contribution of a
    sample depends on x alone.
    """

    def __init__(
        self, name: str, passes: Passes, inputs: Inputs, start: Tensor, chunk: int
    ) -> None:
        self.passes, self.inputs, self.chunk = passes, inputs, chunk
        self._start = start
        self.layout = Layout(tuple((f"{name}.{own}", shape) for own, shape in passes.layout))

    def start(self) -> Tensor:
        """Return the encoder's initial weights, and zeros for the head."""
        return self._start

    def outputs(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the contributions, (B, b, classes)."""
        return self._forward(x, self._parts(x, rows))

    def tested(self, x: Tensor) -> Tensor:
        """Return the contributions of the test part, (B, N_test, classes)."""
        assert self.inputs.test is not None
        return self._forward(x, self._whole(x, len(self.inputs.test), test=True))

    def _forward(self, x: Tensor, parts: Iterator[Tensor]) -> Tensor:
        found = [
            torch.stack([self.passes.outputs(at, own) for at, own in zip(x, part, strict=True)])
            for part in parts
        ]
        return torch.cat(found, 1)

    def pullback(self, x: Tensor, r: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the gradient (B, w), by automatic differentiation."""
        out = torch.zeros_like(x, memory_format=torch.contiguous_format)
        for part, own in zip(self._parts(x, rows), r.split(self.chunk, 1), strict=True):
            self.passes.gradients(x, Work(part, own, x.new_ones(own.shape[:2])), out)
        return out

    def _parts(self, x: Tensor, rows: Tensor | None) -> Iterator[Tensor]:
        """Yield the inputs (B, c, ..) of rows in passes."""
        if rows is None:
            yield from self._whole(x, len(self.inputs.train))
        else:
            yield from (self.inputs.at(part) for part in rows.split(self.chunk, 1))

    def _whole(self, x: Tensor, count: int, test: bool = False) -> Iterator[Tensor]:
        for part in torch.arange(count).split(self.chunk):
            inputs = self.inputs.at(part, test)
            yield inputs.expand(len(x), *inputs.shape)

    def to(self, device: torch.device) -> Self:
        """Return the same on ``device``."""
        moved = copy.copy(self)
        moved.passes, moved._start = self.passes.to(device), self._start.to(device)
        moved.inputs = Inputs(**{**vars(self.inputs), "device": device})
        return moved

    def apart(self) -> Self:
        """Return the same with a module of its own, for another thread."""
        one = copy.copy(self)
        one.passes = self.passes.apart()
        return one


def parties_of(
    made: Mapping[str, Encoded],
    classes: int,
    freeze: Sequence[str],
    dtype: torch.dtype,
    chunk: int,
) -> list[Party]:
    """Return a party for every view: one whose encoder is frozen, or has no parameters, is linear.

    freeze: patterns of the parameters that stay, such as ``image.encoder.*``. Raises InputError for an
    encoder that does not take its inputs or gives no vector of features, a pattern that names no
    parameter, and for a head that is frozen.
    """
    nets: dict[str, nn.Module] = {}
    for view, one in made.items():
        inputs = Inputs.of(one, dtype)
        encoder = nn.Flatten() if one.module is None else one.module
        encoder = encoder.to(dtype).eval()
        width = _features(view, encoder, inputs.at(torch.arange(min(2, len(one.train))))).shape[1]
        head = nn.Linear(width, classes, bias=False, dtype=dtype)
        nn.init.zeros_(head.weight)
        nets[plain_name(view)] = nn.Sequential(OrderedDict(encoder=encoder, head=head))
    own = trainable(nn.ModuleDict(nets), tuple(freeze))
    parties: list[Party] = []
    for (name, net), one in zip(nets.items(), made.values(), strict=True):
        mine = {n.removeprefix(f"{name}."): p for n, p in own.items() if n.startswith(f"{name}.")}
        if "head.weight" not in mine:
            what = f"{name}.head.weight is frozen"
            raise InputError.of("problem.freeze", what, f"a pattern such as {name}.encoder.*")
        inputs = Inputs.of(one, dtype)
        if len(mine) == 1:
            encoder = net.get_submodule("encoder")
            parties.append(_frozen(name, encoder, inputs, len(one.train), one.test, classes, chunk))
            continue
        layout = Layout(tuple((n, tuple(p.shape)) for n, p in mine.items()))
        start = layout.concat([p.detach() for p in mine.values()])
        passes = Passes(net.requires_grad_(False), layout, Task(_along), frozen=True)
        some = inputs.at(torch.arange(min(2, len(one.train))))
        passes.fit(start, some, start.new_zeros(len(some), classes))
        parties.append(DeepParty(name, passes, inputs, start, chunk))
    return parties


def _along(outputs: Tensor, r: Tensor) -> Tensor:
    """Return <outputs, r> of every sample, (b,), whose gradient is the pullback of r."""
    return (outputs * r).sum(-1)


def _frozen(
    name: str,
    encoder: nn.Module,
    inputs: Inputs,
    count: int,
    test: Examples | None,
    classes: int,
    chunk: int,
) -> LinearParty:
    """Return a party whose features are computed here, once."""

    def phi(rows: int, test: bool) -> Tensor:
        parts = torch.arange(rows).split(chunk)
        return torch.cat([_features(name, encoder, inputs.at(part, test)) for part in parts])

    tested = None if test is None else phi(len(test), True)
    return LinearParty(name, phi(count, False), tested, classes)


@torch.no_grad()
def _features(view: str, encoder: nn.Module, inputs: Tensor) -> Tensor:
    """Return phi of inputs, (b, p); raises InputError where the encoder does not take them."""
    try:
        out = encoder(inputs)
    except Exception as error:  # whatever a network raises on inputs that it was not made for
        said = (str(error) or type(error).__name__).splitlines()[0]
        what = f"the encoder of {view} does not take inputs of shape {tuple(inputs.shape[1:])}"
        raise InputError.of(KEY, f"{what}: {said}"[:300], "another encoder, or size") from error
    if out.ndim != 2 or out.shape[0] != len(inputs):
        what = f"the encoder of {view} gives {tuple(out.shape[1:])} for a sample"
        raise InputError.of(KEY, what, "a vector of features")
    return out
