"""A crowd: so many clients that only a cohort of them, drawn anew, takes part in a round.

Nothing here grows with the number of clients: client i has rows i r, .., i r + r - 1 of a pool of N rows, which
are counted through over and over, and its gradient is that of a sample of the pool.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Self

import torch
from torch import Tensor

from raybench.core.draws import Sample
from raybench.core.errors import InputError
from raybench.core.parts import Train
from raybench.core.streams import Stream
from raybench.problems.abilities import Buffered, Trained
from raybench.problems.base import Constants, Measured, Problem


class Crowd(Problem):
    """f(x) = (1/N) sum_j f_j(x) over the N rows of a pool, of which each of n clients holds ``each``, r.

    pool: the same problem with one client that has all rows, in the order in which they are dealt out.
    Where n r is a multiple of N, f is the mean over the clients; else some rows are dealt out once more than
    others, and f differs from that mean by at most N/(n r) of the spread of the f_j.

    ``cohort`` returns the problem of a round: its clients are those m that take part, whoever they are.
    Methods that remember something of a client cannot do with that, and no constants are known.

    Raises InputError where rows would be left out, and for BatchNorm statistics that belong to clients.
    """

    def __init__(self, pool: Problem, clients: int, each: int) -> None:
        super().__init__(clients, pool.layout, dtype=pool.dtype, samples=(each,))
        self._take_after(pool)
        self.everyone, self.each, self.count = clients, each, pool.samples[0]
        if clients * each < self.count:
            what = f"{clients:,} clients with {each:,} rows each leave out rows of {self.count:,}"
            fix = f"{-(-self.count // clients):,} rows each, or a split without a number"
            raise InputError.of("problem.split", what, fix)
        if isinstance(pool, Buffered) and pool.buffers(1):
            what = "BatchNorm's statistics would belong to clients that may never come again"
            raise InputError.of("problem.batchnorm", what, "frozen")

    def _take_after(self, pool: Problem) -> None:
        self.pool, self.device = pool, pool.device
        self.has_prox, self.costly = pool.has_prox, pool.costly
        self.batch, self.clip, self.weight_decay = pool.batch, pool.clip, pool.weight_decay

    def cohort(self, size: int) -> Self:
        """Return the problem of rounds in which ``size`` of the clients take part.

        Raises InputError unless there are so many.
        """
        if size > self.everyone:
            what = f"{size:,} of {self.everyone:,} clients"
            raise InputError.of("cohort", what, f"at most {self.everyone:,}")
        made = copy.copy(self)
        made._whole, made._kept = None, {}
        made.n, made.clients, made.samples = size, range(size), (self.each,) * size
        made.turnout = size / self.everyone
        return made

    def rows_of(self, ids: Tensor, sample: Sample) -> Tensor:
        """Return the rows of the pool, (B, n_here, b), of a sample of the clients ``ids`` (B, n_here)."""
        return (ids[..., None] * self.each + sample.indices) % self.count

    def grad_of(self, ids: Tensor, x: Tensor, sample: Sample) -> Tensor:
        """Return the gradients (B, n_here, d) of a sample of the clients ``ids`` (B, n_here).

        x: (B, d), or (B, n_here, d). sample: within the clients' own rows.
        """
        lead = ids.shape
        at = (x if x.ndim == 3 else x[:, None].expand(*lead, -1)).flatten(0, 1)
        rows = self.rows_of(ids, sample).flatten(0, 1)[:, None]
        streams = Stream(sample.stream.keys.reshape(-1, 1))
        return self.pool.grad(at.contiguous(), Sample(rows, streams)).view(*lead, -1)

    def oracle(self, x: Tensor, loss: bool = True) -> tuple[Tensor, Tensor | None]:
        """Return grad f(x) (B, 1, d) and f(x) (B, 1), over all rows of the pool."""
        return self.pool.oracle(x, loss)

    def measure(
        self, x: Tensor, what: frozenset[str], full: Callable[[], tuple[Tensor, Tensor]]
    ) -> Measured:
        """Return what the pool measures at x (B, d)."""
        return self.pool.measure(x, what, full)

    def find_constants(self) -> Constants:
        """Return none: no theorem here is about clients that are drawn."""
        return Constants()

    # As the pool ----------------------------------------------------------------------------------

    def start(self) -> Tensor:
        """Return the pool's starting point (d,)."""
        return self.pool.start()

    def prox(self, v: Tensor, gamma: Tensor | float) -> Tensor:
        """Return the pool's proximal step."""
        return self.pool.prox(v, gamma)

    def penalty(self, x: Tensor) -> Tensor:
        """Return the pool's nonsmooth part."""
        return self.pool.penalty(x)

    def evaluate(self, x: Tensor) -> dict[str, Tensor]:
        """Return the pool's metrics at x (B, d)."""
        return self.pool.evaluate(x)

    def trained(self, train: Train) -> Self:
        """Return the crowd of a network with these settings of training."""
        assert isinstance(self.pool, Trained)
        made = copy.copy(self)
        made._whole, made._kept = None, {}
        made._take_after(self.pool.trained(train))
        return made

    def weights(self, x: Tensor, buffers: Mapping[str, Tensor]) -> bytes:
        """Return the file of the network at x (d,)."""
        assert isinstance(self.pool, Trained)
        return self.pool.weights(x, buffers)

    def host(self, clients: range) -> Self:
        """Return the problem of these places of a cohort, with a pool of its own."""
        part = super().host(clients)
        part.pool = self.pool.host(range(1))
        return part

    def to(self, device: torch.device | str) -> Self:
        """Return the problem with its pool on ``device``."""
        moved = super().to(device)
        if moved is not self:
            moved.pool = self.pool.to(device)
        return moved
