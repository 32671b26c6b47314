"""What a run costs: counts of messages, from a message through the ledger to the table, and seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from torch import Size, Tensor, device

Amount: TypeAlias = Any  # a number, a torch tensor or a numpy array

GATHER, REDUCE, ALL_TO_ALL, MIX, SERVER = "gather", "reduce", "all_to_all", "mix", "server"
COLLECTIVES = (GATHER, REDUCE, ALL_TO_ALL)
"""What a user may ask for."""
EXCHANGES = (REDUCE, ALL_TO_ALL, GATHER, MIX, SERVER)
"""What becomes of the clients' messages: they are averaged on the way, whole or part by part; all of them are gathered;
they go to neighbours; or to a server, whenever a client has one. A method that does several counts as the last of them.
"""


class Counts(NamedTuple):
    """Counts from which any accounting makes bits; numbers, tensors or arrays of one shape.

    values: numbers of full width. index_*: bits of the support under each code, ``index_auto`` being
    the code that is packed, ``index_list_or_bitmask`` the shorter of list and bitmask. raw: bits that
    no accounting changes (levels, signs, flags, lengths). bytes: what is packed. messages: how many.
    """

    values: Amount = 0
    index_explicit: Amount = 0
    index_auto: Amount = 0
    index_list_or_bitmask: Amount = 0
    index_bitmask: Amount = 0
    index_entropy: Amount = 0
    raw: Amount = 0
    bytes: Amount = 0
    messages: Amount = 0

    def plus(self, other: Counts) -> Counts:
        """Return the sum of two counts."""
        pairs = zip(self, other, strict=True)
        return Counts(*(b if _is_zero(a) else a if _is_zero(b) else a + b for a, b in pairs))

    @classmethod
    def total(cls, every: Iterable[Counts]) -> Counts:
        """Return the sum of counts."""
        return reduce(cls.plus, every, cls())

    @property
    def varies(self) -> bool:
        """Whether any count is a tensor, which differs from row to row, and not a number."""
        return any(hasattr(count, "shape") for count in self)

    def stacked(self, lead: Size, device: device | str) -> Tensor:
        """Return numbers and tensors that broadcast to ``lead`` as one tensor, float64 (*lead, counts)."""
        import torch

        columns = (torch.as_tensor(c, dtype=torch.float64, device=device) for c in self)
        return torch.stack([column.expand(lead) for column in columns], -1)

    def times(self, factor: Amount) -> Counts:
        """Return the counts multiplied by a number or a tensor of their shape."""
        return Counts(*(0 if _is_zero(a) else a * factor for a in self))


def _is_zero(count: Amount) -> bool:
    """Return whether a count is the number 0: most are, and need no arithmetic over all clients."""
    return isinstance(count, int) and count == 0


@dataclass
class Clock:
    """Seconds spent so far, each counted once.

    gradient: on gradients. compress: on compressors. communicate: on exchanging messages, booking them,
    and adding up what came.
    """

    gradient: float = 0.0
    compress: float = 0.0
    communicate: float = 0.0

    @property
    def parts(self) -> tuple[float, float, float]:
        """Return the three, in the order of the columns ``seconds_*``."""
        return self.gradient, self.compress, self.communicate

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Count the time of a block for one part, but for what within it is counted for another."""
        began, before = perf_counter(), sum(self.parts)
        try:
            yield
        finally:
            counted = sum(self.parts) - before
            setattr(self, part, getattr(self, part) + perf_counter() - began - counted)
