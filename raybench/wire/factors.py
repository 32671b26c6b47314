"""Low-rank messages: two factors of a matrix, and the product that decodes them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from raybench.core.counts import Counts
from raybench.core.streams import Stream
from raybench.wire import bitpack
from raybench.wire.base import DTYPES, Header, Message


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

    def _product(self, left: Tensor, right: Tensor, out: Tensor) -> Tensor:
        """Write the first d entries, row by row, of left (.., a, r) times right (.., b, r) transposed to out."""
        a, b = left.shape[-2], right.shape[-2]
        if a * b < self.d:
            raise ValueError(f"{a} x {b} entries for {self.d} coordinates")
        left, whole = left if self.scale == 1.0 else left * self.scale, self.d // b
        # whole rows are written where they belong: a product that is copied takes four times as long
        torch.matmul(
            left[..., :whole, :], right.mT, out=out[..., : whole * b].unflatten(-1, (whole, b))
        )
        if whole * b < self.d:
            last = left[..., whole : whole + 1, :] @ right.mT
            out[..., whole * b :] = last[..., 0, : self.d - whole * b]
        return out

    def _write(self, out: Tensor) -> None:
        self._product(self.left, self.right, out)

    def _sum(self) -> Tensor:
        """Return the sum over clients: one product of all their factors side by side."""
        if self.present is not None or self.lead.numel() == 0:
            return super()._sum()
        left, right = (
            x.movedim(-3, -2).flatten(-2) for x in (self.left, self.right)
        )  # (.., a, n r)
        out = torch.empty(*self.lead[:-1], self.d, dtype=self.dtype, device=self.device)
        return self._product(left, right, out)

    def _cost(self) -> Counts:
        (a, r), b = self.left.shape[-2:], self.right.shape[-2]
        return Counts(values=r * (a + b))

    def _payload(self) -> Tensor:
        flat = torch.cat((self.left.flatten(-2), self.right.flatten(-2)), -1)
        return bitpack.to_bytes(flat)

    def known(self) -> Header:
        return {**super().known(), "a": self.left.shape[-2], "b": self.right.shape[-2]}

    @classmethod
    def read(cls, known: Header, payload: Tensor, stream: Stream | None) -> FactorsMessage:
        dtype = DTYPES[known["dtype"]]
        a, b = known["a"], known["b"]
        values = bitpack.from_bytes(payload, dtype)
        r = values.shape[-1] // (a + b)
        left = values[..., : a * r].unflatten(-1, (a, r))
        right = values[..., a * r :].unflatten(-1, (b, r))
        return cls(known["d"], dtype, left, right, scale=known["scale"])
