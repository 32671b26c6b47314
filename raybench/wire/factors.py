"""Low-rank messages: two factors of a matrix, and the product that decodes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raybench.core.counts import Counts
from raybench.core.streams import Stream
from raybench.wire import bitpack
from raybench.wire.base import DTYPES, Message


@dataclass(eq=False)
class FactorsMessage(Message):
    """A rank-r matrix left right': ``left`` (*lead, a, r), ``right`` (*lead, b, r).

    a b >= d; what the last row has beyond d is left out. Sent: r (a + b) values. Raises ValueError when
    decoded where a b < d.
    """

    left: Tensor
    right: Tensor
    kind = "factors"
    tensors = ("left", "right")

    @property
    def lead(self) -> torch.Size:
        return self.left.shape[:-2]

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the first d entries, row by row, of left (.., a, r) times right (.., b, r) transposed."""
        a, b = left.shape[-2], right.shape[-2]
        if a * b < self.d:
            raise ValueError(f"{a} x {b} entries for {self.d} coordinates")
        left = left if self.scale == 1.0 else left * self.scale
        return (left @ right.mT).flatten(-2)[..., : self.d]

    def _write(self, out: Tensor) -> None:
        out.copy_(self._product(self.left, self.right))

    def _sum(self) -> Tensor:
        """Return the sum over clients: one product of all their factors side by side."""
        if self.present is not None or self.lead.numel() == 0:
            return super()._sum()
        side_by_side = (
            x.movedim(-3, -2).flatten(-2) for x in (self.left, self.right)
        )  # (.., a, n r)
        return self._product(*side_by_side)

    def _cost(self) -> Counts:
        (a, r), b = self.left.shape[-2:], self.right.shape[-2]
        return Counts(values=r * (a + b))

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
