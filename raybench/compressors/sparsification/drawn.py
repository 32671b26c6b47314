"""Values at places that both ends draw from a shared seed, in rows of different length."""

from __future__ import annotations

import torch
from torch import Tensor

from raybench.core.counts import Counts
from raybench.core.streams import Stream
from raybench.wire import bitpack
from raybench.wire.base import Message, zero_absent

Places = tuple[Tensor, Tensor]  # coordinates (*lead, m), zero beyond a row's own; counts (*lead)


class DrawnMessage(Message):
    """Base: only values travel, the first counts (*lead) of ``values`` (*lead, m), zeros beyond.

    ``source`` is the stream that the places come from; ``held`` are the places, once they are drawn.
    """

    values: Tensor
    source: Stream
    held: Places | None

    def _draw(self) -> Places:
        """Return the places that the stream stands for."""
        raise NotImplementedError

    def places(self) -> Places:
        """Return the coordinates, int64 (*lead, m), zeros beyond a row's own, and counts (*lead)."""
        if self.held is None:
            self.held = self._draw()
        return self.held

    @property
    def lead(self) -> torch.Size:
        return self.values.shape[:-1]

    @property
    def stream(self) -> Stream:
        return self.source

    def _weighted(self) -> tuple[Tensor, Tensor]:
        where, _ = self.places()
        value = self.values[..., : where.shape[-1]]
        value = value if self.scale == 1.0 else value * self.scale
        return where, value if self.present is None else zero_absent(value, self.present)

    def _write(self, out: Tensor) -> None:
        self.add_to(out.zero_())

    def _add(self, target: Tensor) -> Tensor:
        return target.scatter_add_(-1, *self._weighted())

    def _sum(self) -> Tensor:
        where, value = self._weighted()
        out = torch.zeros(*where.shape[:-2], self.d, dtype=self.dtype, device=self.device)
        return out.scatter_add_(-1, where.flatten(-2), value.flatten(-2))

    def _cost(self) -> Counts:
        return Counts(values=self.places()[1].double())

    def check(self) -> None:
        where, _ = self.places()
        if self.values.shape[-1] < where.shape[-1]:
            raise ValueError(f"{self.values.shape[-1]} values at {where.shape[-1]} places")

    def _payload(self) -> Tensor:
        return bitpack.to_bytes(self.values[..., : self.places()[0].shape[-1]])


def kept(x: Tensor, where: Tensor, counts: Tensor) -> Tensor:
    """Return x (*lead, d) at the first counts (*lead) of where (*lead, m), and zeros beyond."""
    values = x.gather(-1, where)
    if not counts.numel() or int(counts.min()) == where.shape[-1]:
        return values
    beyond = torch.arange(where.shape[-1], device=x.device) >= counts[..., None]
    return values.masked_fill_(beyond, 0)
