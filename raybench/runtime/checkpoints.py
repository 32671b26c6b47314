"""Checkpoints: states of batches that run long, kept in the results folder until every cell has ended.

    checkpoints/<run>/<key>-<round>/part-<rank>-of-<ranks>-<digest>.pt

A run is one worker group or one trial, the key is of the batch and of how it records, and every rank
saves the part of its clients. A checkpoint whose parts are not all there, or not as they were written, is
none, so a kill while one is being saved costs no more than what was done since the one before it.
"""

from __future__ import annotations

import io
import re
import uuid
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

import torch
import xxhash

from raybench.core.safe_files import load_tensors
from raybench.execution.batch import Batch
from raybench.execution.run import Options, Part
from raybench.store import Store
from raybench.store.schema import raybench_version
from raybench.wire.transport import Transport

FOLDER = "checkpoints"
PART = re.compile(r"part-(\d+)-of-(\d+)-([0-9a-f]{16})\.pt")


class Checkpoints:
    """The checkpoints of a results folder, as a process of a run in it saves and finds them.

    every: seconds between saves. run: name of a folder that only this run writes to. What another version
    of raybench saved, or a sweep that records otherwise, is not found.
    """

    def __init__(
        self,
        store: Store,
        options: Options,
        every: float,
        run: str,
        transport: Transport | None = None,
    ) -> None:
        self.store, self.files = store, store.files
        self.options, self.every, self.run = options, every, run
        self.transport = transport or Transport()
        self._saved: list[str] = []  # folders of the batch at work, as they were saved here

    def find(self, batch: Batch) -> list[Part]:
        """Return what reads the parts of a batch's newest checkpoint, in rank order; none if there is none."""
        key = self._key(batch)
        first = self.transport.rank == 0 and (batch.attempts or self._any)
        at = self.transport.agree(self._newest(key) if first else None)
        return [partial(self._read, rel) for rel in at or ()]

    @cached_property
    def _any(self) -> bool:
        """Whether earlier drivers left any, one of which a batch that was not tried yet may have."""
        return bool(self.files.folders(FOLDER))

    def save(self, batch: Batch, t: int, state: Mapping[str, Any]) -> None:
        """Save the state after round t; of several ranks all do so, each its own.

        Raises FolderLost if the results folder is lost.
        """
        rank, size = self.transport.rank, self.transport.size
        if rank == 0:
            self.store.check_owner()
        file = io.BytesIO()
        torch.save(state, file)
        data = file.getvalue()
        name = f"part-{rank}-of-{size}-{xxhash.xxh3_64_hexdigest(data)}.pt"
        key = self._key(batch)
        folder = f"{key}-{t}"
        self.files.write(f"{FOLDER}/{self.run}/{folder}/{name}", data)
        whole = 1 if size == 1 else 2  # other ranks may still be writing the last one
        self._saved = [*(f for f in self._saved if f.startswith(key)), folder][-whole:]
        if rank == 0 and len(self._saved) == whole:
            newest = [f"{FOLDER}/{self.run}/{name}" for name in self._saved]
            for _, rel in self._all(key):
                if rel not in newest:
                    self.files.clear(rel)

    def _key(self, batch: Batch) -> str:
        key = f"{batch.name} {raybench_version()} {self.options!r}"
        return xxhash.xxh3_64_hexdigest(key.encode())

    def _all(self, key: str) -> list[tuple[int, str]]:
        """Return the round and the folder of every checkpoint of a batch, complete or not."""
        runs = [f"{FOLDER}/{run}" for run in self.files.folders(FOLDER)]
        folders = [(run, name) for run in runs for name in self.files.folders(run)]
        rounds = [re.fullmatch(rf"{key}-(\d+)", name) for _, name in folders]
        pairs = zip(folders, rounds, strict=True)
        return [(int(t[1]), f"{run}/{name}") for (run, name), t in pairs if t]

    def _newest(self, key: str) -> list[str] | None:
        """Return the parts of the newest checkpoint that is whole, in rank order."""
        for _, rel in sorted(self._all(key), reverse=True):
            matches = [m for m in map(PART.fullmatch, self.files.names(rel)) if m]
            parts = {int(m[1]): m for m in matches}
            if not parts or sorted(parts) != list(range(int(matches[0][2]))):
                continue
            names = [f"{rel}/{parts[rank][0]}" for rank in sorted(parts)]
            contents = [(self.files.read(f"{rel}/{m[0]}"), m[3]) for m in matches]
            if all(data and xxhash.xxh3_64_hexdigest(data) == said for data, said in contents):
                return names
        return None

    def _read(self, rel: str) -> dict[str, Any]:
        data = self.files.read(rel)
        if data is None:
            raise FileNotFoundError(rel)
        fix = "remove it: the cell begins anew"
        state: dict[str, Any] = load_tensors(io.BytesIO(data), "checkpoint", rel, fix)
        return state


def run_name(kind: str) -> str:
    """Return a name for a run that no other has."""
    return f"{kind}-{uuid.uuid4().hex[:12]}"
