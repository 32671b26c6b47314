"""Dense messages: all d values, or the two factors of a matrix, at full width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from raybench.core.compiled import compiled
from raybench.core.parallel import run_shared
from raybench.wire.base import Additive, Message
from raybench.wire.fields import Field, Header, Numbers, dtype_of, natural


@dataclass(eq=False)
class DenseMessage(Additive):
    """All coordinates: ``values`` (*lead, d)."""

    values: Tensor
    kind = "dense"
    tensors = ("values",)

    @classmethod
    def fields(cls, head: Header, width: int) -> Sequence[Field]:
        return [Field("values", Numbers(dtype_of(head)), (natural(head, "d"),))]

    def _write(self, out: Tensor) -> None:
        torch.mul(self.values, self.scale, out=out)

    def _add(self, target: Tensor) -> Tensor:
        if self.present is not None:
            return super()._add(target)
        return target.add_(self.values, alpha=self.scale)

    def _sum(self) -> Tensor:
        if self.present is not None or self.scale != 1.0:
            return super()._sum()
        return self.values.sum(-2)

    def of_summands(self, values: Tensor) -> DenseMessage:
        return DenseMessage(self.d, self.dtype, values, scale=self.scale)


def Dense(values: Tensor) -> DenseMessage:
    """Return the message that sends values (..., d) as they are; 32 or 64 d bits by their dtype."""
    return DenseMessage(values.shape[-1], values.dtype, values.clone())


# Low rank -----------------------------------------------------------------------------------------


MOST_PADDED = 1024  # entries of a product beyond 2 d, in a message that is unpacked
MOST_THIN_RANK = 8
"""Up to this rank a product is bound by the memory that it writes, and BLAS takes five times as long."""


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
    shaped = ("a", "b")

    @classmethod
    def fields(cls, head: Header, width: int) -> Sequence[Field]:
        full, d = Numbers(dtype_of(head)), natural(head, "d")
        a, b = natural(head, "a", 1), natural(head, "b", 1)
        if a * b > 2 * d + MOST_PADDED:  # decoded in many parts it is made as a whole
            raise ValueError(f"{a} x {b} entries for {d} coordinates")
        r = width // full.dtype.itemsize // (a + b)
        return [Field("left", full, (a, r)), Field("right", full, (b, r))]

    @property
    def a(self) -> int:
        """Rows of the matrix."""
        return self.left.shape[-2]

    @property
    def b(self) -> int:
        """Columns of the matrix."""
        return self.right.shape[-2]

    @property
    def lead(self) -> torch.Size:
        return self.left.shape[:-2]

    def _write(self, out: Tensor) -> None:
        left, right = self._factors()
        if self.device.type != "cpu" or left.shape[-1] > MOST_THIN_RANK or not out.numel():
            out.copy_((left @ right).flatten(-2)[..., : self.d])
            return
        shapes = left.shape[-2:], right.shape[-2:], out.shape[-1:]
        operands = zip((left, right, out), shapes, strict=True)
        arrays = [x.reshape(-1, *shape).contiguous().numpy() for x, shape in operands]
        rows = left.shape[:-1].numel()
        run_shared(lambda a, b: _thin_product(*arrays, a, b), rows, 2.0 * out.numel())

    def _sum(self) -> Tensor:
        """Return the sum over clients: one product of all their factors side by side."""
        if self.present is not None or self.lead.numel() == 0:
            return super()._sum()
        left, right = self._factors()
        # (.., a, n r), (.., n r, b)
        left, right = left.movedim(-3, -2).flatten(-2), right.flatten(-3, -2)
        return (left @ right).flatten(-2)[..., : self.d]

    def _factors(self) -> tuple[Tensor, Tensor]:
        """Return left (.., a, r) times the scale, and right transposed (.., r, b)."""
        if self.a * self.b < self.d:
            raise ValueError(f"{self.a} x {self.b} entries for {self.d} coordinates")
        return self.left if self.scale == 1.0 else self.left * self.scale, self.right.mT

    def check(self) -> None:
        self._factors()


@compiled
def _thin_product(left, right, out, r0, r1):
    """Write rows r0..r1 of all products left (R, a, r) times right (R, r, b) to out (R, d)."""
    (_, a, rank), b, d = left.shape, right.shape[2], out.shape[1]
    for i in range(r0, r1):
        t, row = i // a, i % a
        o = out[t, min(row * b, d) : min((row + 1) * b, d)]
        o[:] = 0
        for k in range(rank):
            factor, line = left[t, row, k], right[t, k]
            for j in range(o.shape[0]):
                o[j] += factor * line[j]
