"""The recorder: rows of a batch's curves, and when to make one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from raybench.core.counts import Counts
from raybench.store import CURVES, to_table
from raybench.store.accounting import Accounting
from raybench.store.schema import EXTRA_COUNTS, SIDES, column
from raybench.wire.ledger import Ledger

COLUMNS_OF_MEASURES = (
    "loss",
    "grad_norm_sq",
    "suboptimality",
    "mean_client_grad_norm_sq",
    "consensus_error",
    "estimator_error_sq",
    "accuracy",
    "test_loss",
    "grad_evals",
    "seconds",
    "seconds_gradient",
    "seconds_compress",
    "seconds_communicate",
)
COLUMNS_OF_COUNTS = (
    *(column(count, side) for side in SIDES for count in Counts._fields),
    "bytes_up_max",
)


class Recorder:
    """Curves of B cells: at each recorded round a column of numbers per cell that is still running."""

    def __init__(self, cells: int, rows: int) -> None:
        self.cells = cells
        self.names: list[str] = [*COLUMNS_OF_MEASURES, *COLUMNS_OF_COUNTS]
        self._data = np.full((min(rows, 256), len(self.names), cells), np.nan)
        self._live = np.zeros((min(rows, 256), cells), bool)
        self.rounds: list[int] = []

    def add(
        self, t: int, index: np.ndarray, live: np.ndarray, values: Mapping[str, np.ndarray]
    ) -> None:
        """Record round t of the cells ``index[live]``; values: arrays over ``index`` by column."""
        at = len(self.rounds)
        if at == len(self._data):  # full: make twice the room
            more = max(1, at)
            room = np.full((more, *self._data.shape[1:]), np.nan)
            self._data = np.concatenate((self._data, room))
            self._live = np.concatenate((self._live, np.zeros((more, self.cells), bool)))
        self.rounds.append(t)
        self._live[at, index[live]] = True
        for name, value in values.items():
            if name not in self.names:
                self._widen(name)
            self._data[at, self.names.index(name), index] = value

    def add_counts(self, ledger: Ledger, index: np.ndarray) -> None:
        """Add the counts of a ledger of the cells ``index`` to the row just recorded."""
        booked = np.vstack((ledger.up, ledger.down, ledger.bytes_up_max))
        first = len(COLUMNS_OF_MEASURES)
        self._data[len(self.rounds) - 1, first : first + len(COLUMNS_OF_COUNTS), index] = booked.T

    def state(self) -> dict[str, object]:
        """Return the rows recorded so far, copied."""
        rows = len(self.rounds)
        return {
            "rounds": list(self.rounds),
            "names": list(self.names),
            "data": torch.from_numpy(self._data[:rows].copy()),
            "live": torch.from_numpy(self._live[:rows].copy()),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from what ``state`` returned."""
        self.rounds, self.names = list(saved["rounds"]), list(saved["names"])
        self._data, self._live = saved["data"].numpy().copy(), saved["live"].numpy().copy()

    def _widen(self, name: str) -> None:
        self.names.append(name)
        more = np.full((len(self._data), 1, self.cells), np.nan)
        self._data = np.concatenate((self._data, more), axis=1)

    def column(self, name: str) -> np.ndarray:
        """Return one column, (B, T)."""
        return self._data[: len(self.rounds), self.names.index(name)].T

    @property
    def live(self) -> np.ndarray:
        """Return which rows exist, bool (B, T)."""
        return self._live[: len(self.rounds)].T

    def bits(self, side: str, accounting: Accounting, dtype_bits: int) -> np.ndarray:
        """Return cumulative bits (B, T) of ``up`` or ``down`` under an accounting."""
        counts = np.stack([self.column(column(name, side)) for name in Counts._fields])
        if not accounting.count_init:
            counts = counts - counts[..., :1]
        return accounting.bits(Counts(*counts), dtype_bits)

    def last(self, name: str) -> np.ndarray:
        """Return each cell's last recorded value, (B,)."""
        return self.column(name)[np.arange(self.cells), self.last_row()]

    def newest(self, name: str) -> np.ndarray:
        """Return each cell's newest known value of a column that few rows have, NaN for none."""
        known = self.live & ~np.isnan(self.column(name))
        at = known.shape[1] - 1 - known[:, ::-1].argmax(1)
        return np.where(known.any(1), self.column(name)[np.arange(self.cells), at], np.nan)

    def last_row(self) -> np.ndarray:
        """Return the row number of each cell's last record, (B,)."""
        live = self.live
        return live.shape[1] - 1 - live[:, ::-1].argmax(1)

    def table(
        self,
        facts: Mapping[str, np.ndarray],
        accounting: Accounting,
        dtype_bits: int,
        samples: float,
    ) -> pa.Table:
        """Return the curves; ``facts`` are columns per cell (B, 1), samples those of a mean client."""
        columns = dict(facts)
        columns["round"] = np.array(self.rounds)[None]
        for name in COLUMNS_OF_MEASURES:
            value = self.column(name)
            if not np.isnan(value[self.live]).all():
                columns[name] = value
        columns["epoch"] = self.column("grad_evals") / samples
        for side in SIDES:
            columns[f"bits_{side}"] = self.bits(side, accounting, dtype_bits)
        columns.update({n: self.column(n) for n in COLUMNS_OF_COUNTS if n not in EXTRA_COUNTS})
        own = [n for n in self.names if n not in COLUMNS_OF_MEASURES and n not in COLUMNS_OF_COUNTS]
        extra = {n: self.column(n) for n in (*EXTRA_COUNTS, *own)}
        used = {n: v for n, v in extra.items() if n in own or np.any(v[self.live] > 0)}
        return to_table({**columns, "extra": used}, CURVES, self.live)
