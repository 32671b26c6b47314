"""The two trivial operators: everything and nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from raybench.compressors.base import Compressor
from raybench.core.registry import compressor
from raybench.core.streams import Stream
from raybench.wire import Dense, Message, SparseMessage


@compressor("identity")
@dataclass(frozen=True)
class Identity(Compressor):
    """C(x) = x: omega = 0, alpha = 1, all d values; turns every method into its uncompressed form."""

    deterministic = True
    selection = True
    additive = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        return Dense(x)

    def omega(self, d: int) -> float:
        return 0.0

    def alpha(self, d: int) -> float:
        return 1.0


@compressor("aggregate")
@dataclass(frozen=True)
class Aggregate(Identity):
    """For the downlink: the server passes on the sum of what it receives, as sparse as it is.

    Every client then steps itself. Charged by the union of the clients' supports: values and indices
    of at most n K coordinates (no indices where they come from seeds), d values at most. As an
    uplink operator it is the identity.
    """

    relay = True


@compressor("zero")
@dataclass(frozen=True)
class Zero(Compressor):
    """C(x) = 0 and no bits: neither unbiased nor contractive; only where full synchronisations exist."""

    deterministic = True

    def encode(self, x: Tensor, stream: Stream) -> Message:
        empty = x.new_zeros(*x.shape[:-1], 0)
        return SparseMessage(x.shape[-1], x.dtype, empty.to(torch.int64), empty)
