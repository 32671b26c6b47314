"""The two trivial operators: everything and nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.compressors.messages import Dense, Message, SparseMessage
from raybench.registry import compressor
from raybench.streams import Stream


@compressor("identity")
@dataclass(frozen=True)
class Identity(Compressor):
    """C(x) = x: omega = 0, alpha = 1, all d values; turns every method into its uncompressed form."""

    deterministic = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        return Dense(x)

    def omega(self, d: int) -> float:
        return 0.0

    def alpha(self, d: int) -> float:
        return 1.0


@compressor("zero")
@dataclass(frozen=True)
class Zero(Compressor):
    """C(x) = 0 and no bits: neither unbiased nor contractive; only where full synchronisations exist."""

    deterministic = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        empty = x.new_zeros(*x.shape[:-1], 0)
        return SparseMessage(x.shape[-1], x.dtype, empty.to(torch.int64), empty)
