"""What is random in a round: streams, coins, participants, minibatches; a function of seed and round."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from raybench.core.cells import PerCell
from raybench.core.streams import Stream, stream


@dataclass(frozen=True)
class Sample:
    """A minibatch of every client here: which samples, and where what else is random comes from.

    indices: int64 (B, n_here, b), counted from 0 within a client. stream: of shape (B, n_here), for
    augmentation and dropout. The same sample at two points is the same minibatch with the same
    augmentation and dropout, as variance reduction needs.
    """

    indices: Tensor
    stream: Stream

    @classmethod
    def at(cls, indices: Tensor) -> Sample:
        """Return the sample of given indices (B, n_here, b), for problems that draw nothing else."""
        return cls(indices, stream(0, indices.device).spread(tuple(indices.shape[:-1])))

    @classmethod
    def drawn(cls, source: Stream, size: int, samples: Tensor) -> Sample:
        """Return so many samples of every client, drawn with replacement from its own (n_here,)."""
        return cls(source.integers(size, samples), source.fold("sample"))

    @property
    def size(self) -> int:
        """Return b, the samples of a client."""
        return self.indices.shape[-1]

    def split(self, size: int) -> list[Sample]:
        """Return the consecutive parts of so many samples each, with streams of their own."""
        parts = self.indices.split(size, -1)
        return [Sample(indices, self.stream.fold(j)) for j, indices in enumerate(parts)]

    def __getitem__(self, cells: Tensor | slice) -> Sample:
        return Sample(self.indices[cells], self.stream[cells])

    def of(self, clients: slice) -> Sample:
        """Return the minibatches of some of the clients."""
        ids = self.stream.ids
        assert ids is not None, "a sample has a stream per client"
        return Sample(self.indices[:, clients], self.stream.at(ids[clients]))


class Draws:
    """The random numbers of B cells in round t, for the clients hosted here.

    roots: a stream per cell (B,), from the cell's seed. clients: those hosted here, of n in all.
    """

    def __init__(self, roots: Stream, clients: range, n: int) -> None:
        self.roots, self.clients, self.n = roots, clients, n
        self._ids = torch.arange(clients.start, clients.stop, device=roots.device)
        self.begin(0)

    @property
    def B(self) -> int:
        """Return the number of cells."""
        return len(self.roots.root)

    @property
    def n_here(self) -> int:
        """Return how many clients are hosted here."""
        return len(self.clients)

    def begin(self, t: int) -> None:
        """Start round t: streams are derived from it."""
        self.t = t
        self._round = self.roots.fold("round").fold(t)

    def stream(self, purpose: str) -> Stream:
        """Return this round's streams of the clients here, (B, n_here), independent of each other."""
        return self._round.fold(purpose).each(self._ids)

    def shared_stream(self, purpose: str) -> Stream:
        """Return this round's stream that everyone shares, (B,)."""
        return self._round.fold(purpose)

    def server_stream(self, purpose: str) -> Stream:
        """Return this round's stream of the server (client -1), (B,)."""
        return self._round.fold(purpose).fold(-1)

    def coin(self, purpose: str, p: PerCell) -> Tensor:
        """Return one coin per cell, bool (B,), the same for all clients: true with probability p."""
        return self.shared_stream(purpose).uniform(1)[:, 0] < p.values

    def coins(self, purpose: str, p: PerCell) -> Tensor:
        """Return each client's own coin, bool (B, n_here): true with probability p."""
        draws = self.stream(purpose).uniform(1)[..., 0]
        return draws < p.like(draws)

    def participants(self, p: PerCell) -> Tensor:
        """Return who takes part, bool (B, n_here): each client independently with probability p."""
        return self.coins("participants", p)

    def here(self, per_client: Tensor) -> Tensor:
        """Return the part of a tensor (B, n, ..) that belongs to the clients here, (B, n_here, ..)."""
        return per_client[:, self.clients.start : self.clients.stop]

    def select(self, cells: Tensor) -> None:
        """Keep some cells only."""
        self.roots, self._round = self.roots[cells], self._round[cells]
