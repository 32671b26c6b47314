"""One operator applied to n parts of a vector, a part for each client: ``collective: all_to_all``."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.compose import Composed, Made
from raybench.core.layout import Layout
from raybench.core.streams import Stream
from raybench.wire import Message
from raybench.wire.parts import PartsMessage


@dataclass(frozen=True)
class PerPart(Composed):
    """C(x_1), .., C(x_n), of which message j goes to client j; ``of`` compresses their means again.

    The parts are of ceil(d/n) coordinates, the last ones padded with zeros. Constants are those of ``of``
    in that dimension, and of the first compression alone. The result of both is, for ``of`` unbiased with
    omega and independent between clients, unbiased, and with a = mean x_i its variance is at most
    omega ||a||^2 + (1 + omega) (omega/n) mean ||x_i||^2. clients: n, once it is fitted to a problem.
    """

    of: Made
    clients: int = 1
    made_of = ("of",)

    def fit(self, d: int, n: int, layout: Layout | None = None) -> Compressor:
        part = replace(self, clients=n)
        return replace(part, of=self.part("of").fit(part.width(d), n))

    def width(self, d: int) -> int:
        """Return the coordinates of a part of a vector of length d."""
        return -(-d // self.clients)

    def encode(self, x: Tensor, stream: Stream) -> Message:
        d, n, w = x.shape[-1], self.clients, self.width(x.shape[-1])
        if stream.ids is None:  # a vector of no client: it is the first one's
            x, stream = x[..., None, :], stream.each([0])
        padded = x if d == n * w else torch.nn.functional.pad(x, (0, n * w - d))
        parts = padded.unflatten(-1, (n, w)).transpose(-3, -2).contiguous()
        # clients come last, so that what they share is shared part by part
        roots = stream.shared().fold("part").each(range(n)).keys
        op = self.part("of")
        inner = op.encode(parts, Stream(roots, (), stream.ids))
        return PartsMessage(d, x.dtype, inner, stream, op.encode)

    def omega(self, d: int) -> float | None:
        return self.part("of").omega(self.width(d))

    def alpha(self, d: int) -> float | None:
        return self.part("of").alpha(self.width(d))

    def b1(self, d: int) -> tuple[float, float] | None:
        return self.part("of").b1(self.width(d))

    def b2(self, d: int) -> tuple[float, float] | None:
        return self.part("of").b2(self.width(d))
