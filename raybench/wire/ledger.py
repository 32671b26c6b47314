"""The ledger: what was sent, in counts per cell; an accounting makes bits of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from raybench.core.counts import EXCHANGES, Counts
from raybench.wire.base import Message
from raybench.wire.compound import CasesMessage

COLUMNS = Counts._fields
BYTES = COLUMNS.index("bytes")
"""What the rows of a ledger's arrays count."""

Cells = slice | np.ndarray
Count = float | np.ndarray


class Ledger:
    """Cumulative counts of B cells: ``up`` means per client, ``down`` the broadcast counted once,
    or, where the server sends each client a message of its own, their mean.

    Arrays have shape (counts, B), rows as in ``Counts``. What one rank books is what all book:
    each sees the messages of all clients.
    """

    def __init__(self, cells: int) -> None:
        self.up = np.zeros((len(COLUMNS), cells))
        self.down = np.zeros((len(COLUMNS), cells))
        self.exchange = np.full(cells, -1)  # the place in ``EXCHANGES`` of what became of messages
        self._largest = np.zeros(cells)  # the largest client's bytes of earlier rounds, summed
        # Bytes of the present round, of which most methods need only the first array.
        self._alike = np.zeros(cells)  # what every client has sent
        self._own: np.ndarray | None = (
            None  # what each client has sent besides, (cells or 1, clients)
        )

    @property
    def bytes_up_max(self) -> np.ndarray:
        """The largest client's bytes of each round, summed over the rounds so far: (B,).

        A client's bytes of a round are those of all its messages between two calls of ``begin``. It
        is the time, in bytes, of a server that waits for the slowest of equal links.
        """
        largest = 0.0 if self._own is None else self._own.max(1, initial=0.0)
        return self._largest + self._alike + largest

    def bytes_of_round(self, clients: int) -> np.ndarray:
        """Return the bytes that each client has sent in the present round, (B, clients)."""
        alike = np.broadcast_to(self._alike[:, None], (len(self._alike), clients))
        return alike if self._own is None else alike + self._own

    def begin(self) -> None:
        """Begin a round: the client that sends most may be another one than in the last."""
        self._largest = self.bytes_up_max
        self._alike[:] = 0
        self._own = None

    def exchanged(self, how: str) -> None:
        """Note what became of messages, one of ``EXCHANGES``."""
        np.maximum(self.exchange, EXCHANGES.index(how), out=self.exchange)

    def book_up(self, message: Message, how: str, weight: Tensor | None = None) -> None:
        """Book the messages (B, n) of all clients, and how they travel; weight (n,): how often each is sent, else once."""
        self.exchanged(how)
        times = None if weight is None else weight.double().cpu().numpy()
        for cells, part in _by_cells(message):
            cost = part.cost
            if times is None and not cost.varies:
                self._add(self.up, cells, cost)
                self._alike[cells] += cost.bytes
                continue
            self._add(self.up, cells, [_mean(_plain(count), times) for count in cost])
            size = _plain(cost.bytes)
            if self._own is None:
                self._own = np.zeros((self.up.shape[1], part.lead[-1]))
            self._own[cells] += size if times is None else size * times

    def book_one(self, message: Message, i: int, clients: int) -> None:
        """Book a message (B, 1) of client i alone, of so many clients."""
        if self._own is None:
            self._own = np.zeros((self.up.shape[1], clients))
        for cells, part in _by_cells(message):
            counts = [_mean(_plain(count), None) for count in part.cost]
            self._add(self.up, cells, [count / clients for count in counts])
            self._own[cells, i] += counts[BYTES]

    def book_fixed(self, counts: np.ndarray, i: int, clients: int) -> None:
        """Book a message of client i alone, whose counts, as means over so many clients, are the same for all cells."""
        if self._own is None:
            self._own = np.zeros((1, clients))  # by no cell: it is the same for all
        self.up += counts[:, None]
        self._own[:, i] += counts[BYTES] * clients

    def book_down(self, message: Message) -> None:
        """Book the server's broadcast (B,)."""
        for cells, part in _by_cells(message):
            self._add(self.down, cells, [_plain(count) for count in part.cost])

    def book_each(self, message: Message, times: int = 1) -> None:
        """Book messages (B, n) of the server's, one for each client: what a client is sent, their mean."""
        for cells, part in _by_cells(message):
            self._add(self.down, cells, [_mean(_plain(count), None) * times for count in part.cost])

    def book_union(self, message: Message) -> None:
        """Book the broadcast (B,) of the sum of all clients' messages (B, n), as sparse as it is."""
        self._add(self.down, slice(None), [_plain(count) for count in message.union()])

    def book_all(self, message: Message) -> None:
        """Book a broadcast (B,) of the messages (B, n) of all clients, one after the other."""
        self.book_each(message, message.lead[-1])

    def charge(self, bits: float, down: bool = False) -> None:
        """Book a message of so many raw bits, packed to whole bytes: of each client, or the broadcast.

        Raises ValueError unless bits is a finite number of 0 or more: what was sent is never taken back.
        """
        if not 0 <= bits < math.inf:
            raise ValueError(f"charge takes a finite number of bits, 0 or more, and not {bits}")
        size = -(-bits // 8)
        cost = Counts(raw=bits, bytes=size, messages=1)
        self._add(self.down if down else self.up, slice(None), list(cost))
        if not down:
            self._alike += size

    def select(self, cells: np.ndarray) -> Ledger:
        """Return the ledger of some cells."""
        ledger = Ledger(0)
        ledger.up, ledger.down = self.up[:, cells], self.down[:, cells]
        ledger.exchange = self.exchange[cells]
        ledger._largest, ledger._alike = self._largest[cells], self._alike[cells]
        sizes = self._own
        ledger._own = sizes if sizes is None or len(sizes) < self.up.shape[1] else sizes[cells]
        return ledger

    def state(self) -> dict[str, Tensor]:
        """Return the counts of the rounds so far, and what became of messages, copied."""
        names = ("up", "down", "bytes_up_max", "exchange")
        arrays = {name: getattr(self, name) for name in names}
        return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Go on from what ``state`` returned after a round."""
        self.up, self.down = saved["up"].numpy().copy(), saved["down"].numpy().copy()
        self.exchange = saved["exchange"].numpy().copy()
        self._largest = saved["bytes_up_max"].numpy()  # replaced, never written to
        self._alike, self._own = np.zeros_like(self._largest), None

    def _add(self, side: np.ndarray, cells: Cells, rows: Sequence[Count | Tensor]) -> None:
        """Add counts, a number or an array over the cells each, to those cells of one side."""
        arrays = [i for i, row in enumerate(rows) if isinstance(row, np.ndarray)]
        for i in arrays:
            side[i, cells] += rows[i]
        plain = [0.0 if i in arrays else row for i, row in enumerate(rows)] if arrays else rows
        side[:, cells] += np.array(plain, float)[:, None]


def _by_cells(message: Message, cells: Cells = slice(None)) -> Iterator[tuple[Cells, Message]]:
    """Yield the cells that send the same kind of message, and that message."""
    if not isinstance(message, CasesMessage):
        yield cells, message
        return
    for ids, part in zip(message.cells, message.parts, strict=True):
        at = ids.cpu().numpy()
        yield from _by_cells(part, at if isinstance(cells, slice) else cells[at])


def _plain(count: float | Tensor) -> Count:
    """Return a count as a number, or as a float64 array where it is a tensor."""
    return count.double().cpu().numpy() if isinstance(count, Tensor) else count


def _mean(count: Count, times: np.ndarray | None) -> Count:
    """Return the mean over clients of a count (B, n), or a number for all, each ``times`` over."""
    if not isinstance(count, np.ndarray):
        return count if times is None else count * float(times.mean())
    return (count if times is None else count * times).mean(-1)
