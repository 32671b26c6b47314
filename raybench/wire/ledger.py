"""The ledger: what was sent, in counts per cell; an accounting makes bits of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from raybench.core.counts import Counts
from raybench.wire import CasesMessage, Message

COLUMNS = Counts._fields


class Ledger:
    """Cumulative counts of B cells: ``up`` means per client, ``down`` the broadcast counted once.

    Arrays have shape (counts, B), rows as in ``Counts``.
    """

    def __init__(self, cells: int) -> None:
        self.up = np.zeros((len(COLUMNS), cells))
        self.down = np.zeros((len(COLUMNS), cells))

    def book_up(self, message: Message, weight: Any = 1.0) -> None:
        """Book the messages (B, n) of all clients; weight (n,): how often each is sent."""
        self._book(self.up, message, weight, slice(None))

    def book_down(self, message: Message) -> None:
        """Book the server's broadcast (B,)."""
        self._book(self.down, message, None, slice(None))

    def book_union(self, message: Message) -> None:
        """Book the broadcast (B,) of the sum of all clients' messages (B, n), as sparse as it is."""
        counts = [_plain(x) for x in message.union()]
        width = self.down.shape[1]
        self.down += np.stack([np.broadcast_to(r, width) for r in counts])

    def charge(self, bits: float, down: bool = False) -> None:
        """Book raw bits per client (or of the broadcast), packed to whole bytes."""
        side = self.down if down else self.up
        side[COLUMNS.index("raw")] += bits
        side[COLUMNS.index("bytes")] += -(-bits // 8)
        side[COLUMNS.index("messages")] += 1

    def select(self, cells: np.ndarray) -> Ledger:
        """Return the ledger of some cells."""
        kept = Ledger(0)
        kept.up, kept.down = self.up[:, cells], self.down[:, cells]
        return kept

    def state(self) -> dict[str, torch.Tensor]:
        """Return the counts, copied."""
        return {"up": torch.from_numpy(self.up.copy()), "down": torch.from_numpy(self.down.copy())}

    def load(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Go on from what ``state`` returned."""
        self.up, self.down = saved["up"].numpy().copy(), saved["down"].numpy().copy()

    def _book(self, side: np.ndarray, message: Message, weight: Any, cells: Any) -> None:
        if isinstance(message, CasesMessage):
            for own, part in zip(message.cells, message.parts, strict=True):
                self._book(side, part, weight, own.cpu().numpy())
            return
        counts = message.cost
        if weight is None:  # a broadcast: lead is (B,)
            rows = [_plain(x) for x in counts]
        elif any(isinstance(x, torch.Tensor) for x in counts):
            rows = [_mean(x, weight) for x in counts]
        else:
            mean = weight if isinstance(weight, float) else float(weight.mean())
            rows = [x * mean for x in counts]
        if all(np.ndim(r) == 0 for r in rows):
            side[:, cells] += np.array(rows, float)[:, None]
        else:
            width = side[0, cells].shape[0]
            side[:, cells] += np.stack([np.broadcast_to(r, width) for r in rows])


def _plain(x: Any) -> Any:
    return x.double().cpu().numpy() if isinstance(x, torch.Tensor) else x


def _mean(x: Any, weight: Any) -> Any:
    """Return the mean over clients of counts (B, n) (or a number), each weighted."""
    if isinstance(x, torch.Tensor):
        x = x.double() if isinstance(weight, float) else x.double() * weight.to(x.device)
        return (x * weight if isinstance(weight, float) else x).mean(-1).cpu().numpy()
    return x * (weight if isinstance(weight, float) else float(weight.mean()))
