"""Vectors cut into parts, one for each client: what the two stages of an all-to-all exchange send."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from raybench.core.counts import Counts
from raybench.core.streams import Stream
from raybench.wire.base import Message

Compress = Callable[[Tensor, Stream], Message]


@dataclass(eq=False)
class PartsMessage(Message):
    """The first stage: a client's vector in n parts, of which part j goes to client j, its owner.

    inner: messages (*cells, n, n_here) of w = ceil(d/n) coordinates each, the last ones zero beyond d.
    A client keeps its own part, so n - 1 messages are sent and booked. source: the clients' streams.
    again: compresses the mean of a part, for the second stage. It never stands alone as bytes: every
    part is packed for its owner.
    """

    inner: Message
    source: Stream
    again: Compress

    @property
    def lead(self) -> torch.Size:
        return torch.Size((*self.inner.lead[:-2], self.inner.lead[-1]))

    @property
    def device(self) -> torch.device:
        return self.inner.device

    def _write(self, out: Tensor) -> None:
        out.copy_(self.inner.decode().transpose(-3, -2).flatten(-2)[..., : self.d])

    def _sum(self) -> Tensor:
        return self.inner.sum_clients().flatten(-2)[..., : self.d]

    @property
    def cost(self) -> Counts:
        n, cost = self.inner.lead[-2], self.inner.cost
        if not any(isinstance(count, Tensor) for count in cost):
            return cost.times(n - 1)
        owners = torch.arange(n, device=self.device)
        sent = owners[:, None].ne(torch.as_tensor(self.source.ids)).double()
        return Counts(
            *((torch.as_tensor(count, device=self.device) * sent).sum(-2) for count in cost)
        )

    @property
    def nbytes(self) -> int | Tensor:
        size = self.cost.bytes
        return size.long() if isinstance(size, Tensor) else size

    def to(self, dtype: torch.dtype) -> Message:
        return replace(self, dtype=dtype, inner=self.inner.to(dtype))

    def scaled(self, factor: float) -> Message:
        return replace(self, inner=self.inner.scaled(factor))

    def masked(self, present: Tensor) -> Message:
        return replace(self, inner=self.inner.masked(present[..., None, :].expand(self.inner.lead)))

    def select(self, cells: Tensor) -> Message:
        return replace(self, inner=self.inner.select(cells), source=self.source[cells])

    def map(self, of_tensor: Callable[[Tensor], Tensor]) -> Message:
        raise TypeError("the parts of a vector are messages of their own: use inner or select")


@dataclass(eq=False)
class MeansMessage(Message):
    """The second stage: the means of all parts, ``inner`` (*cells, n), as every client gets them.

    The owner of a part has it, so a client is sent n - 1 of the n messages: booked is the mean over clients.
    """

    inner: Message

    @property
    def lead(self) -> torch.Size:
        return self.inner.lead[:-1]

    @property
    def device(self) -> torch.device:
        return self.inner.device

    def _write(self, out: Tensor) -> None:
        out.copy_(self.inner.decode().flatten(-2)[..., : self.d])

    @property
    def cost(self) -> Counts:
        n, cost = self.inner.lead[-1], self.inner.cost
        if any(isinstance(count, Tensor) for count in cost):
            lead, device = self.inner.lead, self.device
            every = (torch.as_tensor(c, device=device).double().expand(lead) for c in cost)
            return Counts(*(count.sum(-1) * ((n - 1) / n) for count in every))
        return cost.times(n - 1)
