"""Low-rank messages: two factors of a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raybench.compressors.messages import bitpack
from raybench.compressors.messages.base import DTYPES, Cost, Message
from raybench.streams import Stream


@dataclass(eq=False)
class FactorsMessage(Message):
    """A rank-r matrix left right': ``left`` (*lead, a, r), ``right`` (*lead, b, r), d = a b."""

    left: Tensor
    right: Tensor
    kind = "factors"
    tensors = ("left", "right")

    @property
    def lead(self) -> torch.Size:
        return self.left.shape[:-2]

    def _decode(self) -> Tensor:
        return (self.left @ self.right.mT).reshape(*self.lead, self.d)

    def _cost(self) -> Cost:
        (a, r), b = self.left.shape[-2:], self.right.shape[-2]
        return Cost(values=r * (a + b))

    def _size(self) -> int:
        return int(self._cost().values) * self.dtype.itemsize

    def _payload(self) -> Tensor:
        flat = torch.cat((self.left.flatten(-2), self.right.flatten(-2)), -1)
        return bitpack.to_bytes(flat)

    def known(self) -> dict[str, Any]:
        return {**super().known(), "a": self.left.shape[-2], "b": self.right.shape[-2]}

    @classmethod
    def read(cls, known: dict[str, Any], payload: Tensor, stream: Stream | None) -> FactorsMessage:
        dtype = DTYPES[known["dtype"]]
        a, b = known["a"], known["b"]
        values = bitpack.from_bytes(payload, dtype)
        r = values.shape[-1] // (a + b)
        left = values[..., : a * r].unflatten(-1, (a, r))
        right = values[..., a * r :].unflatten(-1, (b, r))
        return cls(known["d"], dtype, left, right, scale=known["scale"])
