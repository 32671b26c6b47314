"""The lazy gate: all of a vector, or nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.sparsification.bernoulli import probability
from raybench.core.registry import Number, compressor
from raybench.core.streams import Stream
from raybench.wire import DenseMessage, FlaggedMessage, Message
from raybench.wire.base import zero_rows
from raybench.wire.compound import FlagMessage


@compressor("lazy")
class Lazy(Compressor):
    """C(x) = x / p with probability p, else 0: the Bernoulli gate, unbiased, omega = 1/p - 1, exactly.

    One bit says whether the vector follows, full width; it is sent and booked either way.
    Source: the lazy communication of Condat & Richtarik 2022 (MURANA).
    """

    p: float = Number(0.5, low=0, high=1, open_low=True, help="probability of sending the vector")

    def __post_init__(self) -> None:
        probability(self.p)

    def encode(self, x: Tensor, stream: Stream) -> Message:
        sent = stream.uniform(1)[..., 0] < self.p
        flag = FlagMessage(1, x.dtype, sent.to(torch.uint8)[..., None])
        held = zero_rows(x.clone(), ~sent)
        whole = DenseMessage(x.shape[-1], x.dtype, held, scale=1 / self.p, present=sent)
        return FlaggedMessage(x.shape[-1], x.dtype, [flag, whole])

    def omega(self, d: int) -> float:
        return 1 / self.p - 1

    def alpha(self, d: int) -> float | None:
        return 1.0 if self.p == 1 else None
