"""The follower: a thread of the driver that reads what is committed and tells the callbacks of it."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa

from raybench.core.errors import Notice
from raybench.runtime.callbacks import Callback
from raybench.store import log
from raybench.store.files import Files
from raybench.store.remote import Mark
from raybench.store.schema import CELLS, CURVES
from raybench.store.table import expand_extra

if TYPE_CHECKING:
    from raybench.execution.plan import Plan

EVERY = 2.0  # seconds between two looks at the folder, and ten times as long as a look takes
READING = "reading results for callbacks"
PATIENCE = 10  # last looks for shards whose files do not fit together, before these are left out


class Follower:
    """Tells callbacks of the cells of a sweep as they are committed: a context around the run, then ``end``.

    A sweep that searches plans more as it goes; the plan is the first one.

    Without callbacks, or with nothing to run, it does nothing. What a callback raises is told once.
    """

    def __init__(self, callbacks: Sequence[tuple[str, Callback]], plan: Plan, files: Files) -> None:
        self.callbacks = callbacks if plan.batches else ()
        self.plan, self.files = plan, files
        self._told: set[str] = set()
        self._failed: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._seen: dict[str, Mark] = {}

    def __enter__(self) -> Follower:
        if self.callbacks:
            self._seen = self.files.marks("cells")
            self._tell("begin", self.plan, self.files.name)
            self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self.callbacks:
            return
        self._over.set()
        self._thread.join()
        if error is not None and not isinstance(error, KeyboardInterrupt):
            self._tell("end", None)

    def end(self, outcome: Any) -> None:
        """Tell, after the context, of the cells that are left to tell of, and how the sweep ended."""
        if not self.callbacks:
            return
        for _ in range(PATIENCE):
            if self._guarded(READING, READING, self._look):
                break
            time.sleep(0.05)
        self._tell("end", outcome)

    def _follow(self) -> None:
        pause = EVERY
        while not self._over.wait(pause):
            began = time.monotonic()
            self._guarded(READING, READING, self._look)
            pause = max(EVERY, 10 * (time.monotonic() - began))

    def _look(self) -> bool:
        """Tell of all shards written since the last look; return whether none is left for later."""
        whole = True
        for name, mark in self.files.marks("cells").items():
            if self._seen.get(name) == mark or not name.endswith(".parquet"):
                continue
            pair = self._read(name)
            if pair is None:
                whole = False  # it is being replaced; the next look finds it whole
                continue
            self._seen[name] = mark
            self._pass_on(name.removesuffix(".parquet"), *pair)
        return whole

    def _read(self, name: str) -> tuple[pa.Table, pa.Table] | None:
        """Return the rows of a shard and of its curves, None where its files do not fit together."""
        data = self.files.read(f"cells/{name}")
        if data is None:
            return None
        try:
            said, file = log.opened(data)
            cells = log.rows(file, CELLS)
            if not said.curves:
                return cells, CURVES.empty_table()
            held = self.files.read(f"curves/{name}")
            if held is None or not said.fits(held):
                return None
            return cells, log.rows(log.parquet(held), CURVES)
        except log.Unsound:
            return None

    def _pass_on(self, shard: str, cells: pa.Table, curves: pa.Table) -> None:
        frame = expand_extra(curves).to_pandas().sort_values("round", kind="stable")
        parts = {cell: part.reset_index(drop=True) for cell, part in frame.groupby("cell")}
        told = []
        for row in cells.to_pylist():
            if row["status"] != "skipped" and row["cell"] not in self._told:
                self._told.add(row["cell"])
                told.append(row["cell"])
                self._tell("cell", row, parts.get(row["cell"], pd.DataFrame(columns=frame.columns)))
        if told:
            self._tell("batch", shard, told)

    def _tell(self, what: str, *said: Any) -> None:
        for name, callback in self.callbacks:
            self._guarded(f"callback {name}, in {what}", name, getattr(callback, what), *said)

    def _guarded(self, where: str, once: str, call: Callable[..., Any], *said: Any) -> Any:
        """Return what a call returns; what it raises is told the first time, and the sweep goes on."""
        try:
            return call(*said)
        except (Exception, SystemExit) as error:
            if once not in self._failed:
                self._failed.add(once)
                text = f"{where}: {type(error).__name__}: {error}; the sweep goes on, told once"
                warnings.warn(text, Notice, stacklevel=2)
            return None
