"""Low-rank messages: two factors of a matrix, and the product that decodes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raybench.core.compiled import compiled
from raybench.core.counts import Counts
from raybench.core.parallel import run_shared
from raybench.core.streams import Stream
from raybench.wire import bitpack
from raybench.wire.base import DTYPES, Message

KERNEL_DTYPES = (torch.float32, torch.float64)
COLUMNS = 4096  # a tile of a row stays in the nearest cache while the terms are added


@compiled(fastmath={"contract"})
def _times(left, right, out, b, add, lo, hi):  # left (R, a, r), right (R, r, b), out (R, d)
    a, r = left.shape[1], left.shape[2]
    d = out.shape[1]
    for q in range(lo, hi):
        t, i = q // a, q % a
        p = left[t, i]
        start = 0
        while start < b:
            end = min(start + COLUMNS, b)
            o = out[t, min(i * b + start, d) : min(i * b + end, d)]
            k = 0
            if not add:
                if r >= 4:
                    q0, q1 = right[t, 0, start:end], right[t, 1, start:end]
                    q2, q3 = right[t, 2, start:end], right[t, 3, start:end]
                    for j in range(o.shape[0]):
                        o[j] = p[0] * q0[j] + p[1] * q1[j] + p[2] * q2[j] + p[3] * q3[j]
                    k = 4
                elif r >= 2:
                    q0, q1 = right[t, 0, start:end], right[t, 1, start:end]
                    for j in range(o.shape[0]):
                        o[j] = p[0] * q0[j] + p[1] * q1[j]
                    k = 2
                else:
                    q0 = right[t, 0, start:end]
                    for j in range(o.shape[0]):
                        o[j] = p[0] * q0[j]
                    k = 1
            while k + 4 <= r:
                p0, p1, p2, p3 = p[k], p[k + 1], p[k + 2], p[k + 3]
                q0, q1 = right[t, k, start:end], right[t, k + 1, start:end]
                q2, q3 = right[t, k + 2, start:end], right[t, k + 3, start:end]
                for j in range(o.shape[0]):
                    o[j] += p0 * q0[j] + p1 * q1[j] + p2 * q2[j] + p3 * q3[j]
                k += 4
            while k < r:
                p0, q0 = p[k], right[t, k, start:end]
                for j in range(o.shape[0]):
                    o[j] += p0 * q0[j]
                k += 1
            start = end


def times_torch(left: Tensor, right: Tensor, out: Tensor, add: bool = False) -> None:
    """Write left right, or add it, into out; shapes as ``times`` (the reference; any device)."""
    value = (left @ right).flatten(1)[:, : out.shape[1]]
    if add:
        out.add_(value)
    else:
        out.copy_(value)


def times(left: Tensor, right: Tensor, out: Tensor, add: bool = False) -> None:
    """Write the first d entries of the matrices left right into out (R, d), or add them to it.

    left (R, a, r), right (R, r, b), r >= 1, a b >= d; out contiguous, all of one dtype. Matrices are
    independent of each other, bit for bit. Raises ValueError for a b < d.
    """
    (R, a, r), b = left.shape, right.shape[2]
    if a * b < out.shape[1]:
        raise ValueError(f"{a} x {b} entries for {out.shape[1]} coordinates")
    if out.device.type != "cpu" or out.dtype not in KERNEL_DTYPES:
        return times_torch(left, right, out, add)
    arrays = [t.contiguous().numpy() for t in (left, right)]
    raw = out.numpy()
    run_shared(lambda lo, hi: _times(*arrays, raw, b, add, lo, hi), R * a, float(R * a * b * r))
    return None


@dataclass(eq=False)
class ProductMessage(Message):
    """Base of kinds that decode to the first d entries, row by row, of a product of two matrices."""

    def pair(self) -> tuple[Tensor, Tensor]:
        """Return the matrices (*lead, a, r) and (*lead, r, b)."""
        raise NotImplementedError

    def _matrices(self) -> tuple[Tensor, Tensor]:
        left, right = self.pair()
        left = left if self.scale == 1.0 else left * self.scale
        return left.reshape(-1, *left.shape[-2:]), right.reshape(-1, *right.shape[-2:])

    def _write(self, out: Tensor) -> None:
        times(*self._matrices(), out.view(-1, self.d))

    def _add(self, target: Tensor) -> Tensor:
        alike = target.dtype == self.dtype and target.shape == (*self.lead, self.d)
        if self.present is not None or not alike or not target.is_contiguous():
            return super()._add(target)
        times(*self._matrices(), target.view(-1, self.d), add=True)
        return target

    def _sum(self) -> Tensor:
        """Return the sum over clients: one product of all their factors side by side."""
        if self.present is not None or self.lead.numel() == 0:
            return super()._sum()
        left, right = self.pair()
        left = (left * self.scale).movedim(-3, -2).flatten(-2)  # (.., a, n r)
        right = right.flatten(-3, -2)
        out = torch.empty(*self.lead[:-1], self.d, dtype=self.dtype, device=self.device)
        flat = (left.reshape(-1, *left.shape[-2:]), right.reshape(-1, *right.shape[-2:]))
        times(*flat, out.view(-1, self.d))
        return out


@dataclass(eq=False)
class FactorsMessage(ProductMessage):
    """A rank-r matrix left right': ``left`` (*lead, a, r), ``right`` (*lead, b, r).

    a b >= d; what the last row has beyond d is left out. Sent: r (a + b) values.
    """

    left: Tensor
    right: Tensor
    kind = "factors"
    tensors = ("left", "right")

    @property
    def lead(self) -> torch.Size:
        return self.left.shape[:-2]

    def pair(self) -> tuple[Tensor, Tensor]:
        return self.left, self.right.mT

    def _cost(self) -> Counts:
        (a, r), b = self.left.shape[-2:], self.right.shape[-2]
        return Counts(values=r * (a + b))

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
