"""Dense messages: all d values, full width."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from raybench.core.counts import Counts
from raybench.core.streams import Stream
from raybench.wire import bitpack
from raybench.wire.additive import Additive
from raybench.wire.base import DTYPES, Header


@dataclass(eq=False)
class DenseMessage(Additive):
    """All coordinates: ``values`` (*lead, d)."""

    values: Tensor
    kind = "dense"
    tensors = ("values",)

    @property
    def lead(self) -> torch.Size:
        return self.values.shape[:-1]

    def _write(self, out: Tensor) -> None:
        if self.scale == 1.0:
            out.copy_(self.values)
        else:
            torch.mul(self.values, self.scale, out=out)

    def _add(self, target: Tensor) -> Tensor:
        if self.present is not None:
            return super()._add(target)
        return target.add_(self.values, alpha=self.scale)

    def _sum(self) -> Tensor:
        if self.present is not None or self.scale != 1.0:
            return super()._sum()
        return self.values.sum(-2)

    def summands(self) -> Tensor:
        return self.values

    def of_summands(self, values: Tensor) -> DenseMessage:
        return DenseMessage(self.d, self.dtype, values, scale=self.scale)

    def _cost(self) -> Counts:
        return Counts(values=self.d)

    def _payload(self) -> Tensor:
        return bitpack.to_bytes(self.values)

    @classmethod
    def read(cls, known: Header, payload: Tensor, stream: Stream | None) -> DenseMessage:
        dtype = DTYPES[known["dtype"]]
        values = bitpack.from_bytes(payload, dtype)
        return cls(known["d"], dtype, values, scale=known["scale"])

    @classmethod
    def demand(cls, known: Header, width: int) -> int:
        return 2 * width  # the payload and a copy


def Dense(values: Tensor) -> DenseMessage:
    """Return the message that sends values (..., d) as they are; 32 or 64 d bits by their dtype."""
    return DenseMessage(values.shape[-1], values.dtype, values.clone())
