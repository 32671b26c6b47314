"""An operator under test and the sizes it is tried at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from raybench.compressors import Compressor
from raybench.core.errors import InputError
from raybench.core.streams import Stream
from raybench.testing.claims import draws_wanted, measured
from raybench.testing.moments import SEED, Moments
from raybench.testing.vectors import cells_and_clients, families, gaussian

DTYPES = (torch.float64, torch.float32)
MOST_SAMPLES = 1 << 18  # of one vector, where a claim is in doubt
MORE_SAMPLES = 1 << 19  # of all such vectors together
CLIENTS = 4  # operators that split their work over the clients are fitted for so many


@dataclass(frozen=True)
class Subject:
    """An operator and the sizes it is tried at.

    make(d) returns the operator for dimension d, then fitted for 4 clients; sizes at which its
    parameters do not fit (InputError) are left out, but it must fit the main dimension d. big = 0
    leaves out the large one. samples: draws of each vector, and more where a claim could be 5% too good. seed: of
    these draws.
    """

    make: Callable[[int], Compressor]
    d: int = 24
    dims: tuple[int, ...] = (1, 2, 7, 8, 33)
    samples: int = 60_000
    big: int = 1_000_000
    seed: int = SEED

    def at(self, d: int) -> Compressor | None:
        """Return the operator for dimension d, None where its parameters do not fit."""
        try:
            op = self._fitted(d)
            op.compress(gaussian(d))
        except InputError:
            if d == self.d:
                raise
            return None
        return op

    @property
    def op(self) -> Compressor:
        """The operator for the main dimension."""
        return self._fitted(self.d)

    def _fitted(self, d: int) -> Compressor:
        op = self.make(d)
        return op.bind(d, CLIENTS).operator if isinstance(op, Compressor) else op

    @cached_property
    def moments(self) -> dict[str, Moments]:
        """The sample moments of the operator on every family of vectors."""
        op, vectors = self.op, families(self.d)
        count = 1 if op.deterministic else self.samples
        found = {name: measured(op, x, count, self.seed) for name, x in vectors.items()}
        wanted = {name: draws_wanted(op, self.d, m) for name, m in found.items()}
        left = MORE_SAMPLES
        for name in sorted((n for n in wanted if wanted[n] > count), key=wanted.__getitem__):
            more = min(wanted[name], MOST_SAMPLES)
            if more <= left:
                left -= more
                found[name] = measured(op, vectors[name], more, self.seed)
        return found

    def everywhere(self) -> Iterator[tuple[Compressor, int]]:
        """Yield the operator and the dimension, for all dimensions that fit."""
        for d in (self.d, *self.dims):
            op = self.at(d)
            if op is not None:
                yield op, d

    def batch(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Stream]:
        """Return x of 3 cells and 4 clients and streams for it."""
        return gaussian(3, 4, self.d, seed=seed, dtype=dtype), cells_and_clients(3, 4, seed)
