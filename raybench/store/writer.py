"""The atomic writer: what a sweep does to its folder.

    sweep.yaml                 the resolved sweep
    plan/                      batch list, attempts, lock: the driver's own
    curves/<shard>.parquet     then cells/<shard>.parquet, the commit record
    tmp/                       files being written; never read

A shard is a batch, its name a hash of its sorted cell ids, so a retry overwrites itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from raybench.core.errors import InputError
from raybench.store import identity
from raybench.store.files import Local, open_folder
from raybench.store.scan import best_status, read_folder, read_shard
from raybench.store.schema import CELLS, CURVES
from raybench.store.table import encode

SKIPPED_SHARD = "skipped"


def shard_name(ids: Iterable[str]) -> str:
    """Return a batch's shard name: a lone cell's id, else a hash (16 hex) of the sorted ids."""
    ids = sorted(ids)
    if len(ids) == 1:
        return ids[0]
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()[:16]


class Store:
    """The results folder of one sweep; ``folder`` is a local path or an fsspec URL.

    Creating a Store touches nothing. ``commit`` may be called by any number of processes at once;
    ``claim``, ``clean``, ``drop`` and ``skip`` are the driver's, under ``lock``.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.files = open_folder(folder)

    @property
    def folder(self) -> str:
        """The folder as given, without a trailing slash."""
        return self.files.name

    # -- the sweep ---------------------------------------------------------------------------

    def claim(self, sweep: str | Mapping[str, object], write: bool = True) -> None:
        """Make the folder this sweep's and save ``sweep.yaml`` (text, or a mapping).

        Raises InputError, with nothing written, if the folder holds another sweep: one whose
        ``name`` or ``problem`` differs. Values added to an axis extend a sweep.
        """
        before = self.files.read("sweep.yaml")
        if before is not None:
            identity.check(before.decode(), sweep, self.folder)
        elif self.files.names("cells"):
            what = f"{self.folder} holds results but no sweep.yaml"
            raise InputError.of("out", what, "give another --out folder")
        text = sweep if isinstance(sweep, str) else identity.dump(sweep)
        if write and (before is None or before.decode() != text):
            self.files.write("sweep.yaml", text.encode())

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder as its only driver; the system releases it even after ``kill -9``.

        For an object store the lock excludes only drivers on the same host.
        Raises InputError if another driver holds it.
        """
        path = self._lock_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                who = file.read().strip() or "unknown"
                raise InputError.of(
                    "out",
                    f"another sweep is running in {self.folder} ({who})",
                    "wait for it, stop it, or give another --out folder",
                ) from None
            file.truncate(0)
            file.write(f"pid {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)  # closing the file releases the lock

    def _lock_path(self) -> Path:
        if isinstance(self.files, Local):
            return self.files.root / "plan" / "lock"
        name = hashlib.sha256(self.folder.encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"raybench-{os.getuid()}" / f"{name}.lock"

    def write(self, rel: str, data: bytes | str) -> None:
        """Write a whole file (``plan/batches.json``) atomically."""
        self.files.write(rel, data.encode() if isinstance(data, str) else data)

    def read(self, rel: str) -> bytes | None:
        """Return a whole file's content, None where there is no such file."""
        return self.files.read(rel)

    # -- shards ------------------------------------------------------------------------------

    def commit(self, shard: str, curves: pa.Table | bytes | None, cells: pa.Table | bytes) -> None:
        """Write one batch: its curves, then its cells, which makes it count.

        Tables of ``to_table`` or the bytes of ``encode``; ``curves`` is None where no cell has any.
        """
        data = None if curves is None else _bytes(curves)
        if data is not None:
            self.files.write(f"curves/{shard}.parquet", data)
        self.files.write(f"cells/{shard}.parquet", _bytes(cells))
        if data is not None and not self.files.exists(f"curves/{shard}.parquet"):
            self.files.write(
                f"curves/{shard}.parquet", data
            )  # another driver's clean() removed the curves in between

    def skip(self, rows: pa.Table) -> None:
        """Write the rows of all skipped cells, replacing those written before."""
        data, rel = encode(rows), f"cells/{SKIPPED_SHARD}.parquet"
        if len(rows) == 0:
            self.files.remove(rel)
        elif self.files.read(rel) != data:
            self.files.write(rel, data)

    def done(self) -> dict[str, str]:
        """Return {cell id: status} of every committed cell, reading two columns of ``cells/``."""
        table = read_folder(self.files, "cells", CELLS, ["cell", "status"])
        return best_status(table)

    def clean(self) -> list[str]:
        """Remove curves that were never committed and stale temporary files; return the shards.

        A writer orphaned by a killed driver may commit at this very moment: curves are moved aside
        first and moved back if their cells have appeared, and ``commit`` looks again at its end.
        """
        for name in self.files.names("tmp"):
            self.files.remove(f"tmp/{name}")
        committed = set(self.files.names("cells"))
        removed = []
        for name in self.files.names("curves"):
            if name in committed:
                continue
            self.files.move(f"curves/{name}", f"tmp/{name}")
            if self.files.exists(f"cells/{name}"):
                self.files.move(f"tmp/{name}", f"curves/{name}")
            else:
                self.files.remove(f"tmp/{name}")
                removed.append(name.removesuffix(".parquet"))
        return removed

    def drop(self, cells: Iterable[str] | None = None) -> None:
        """Forget cells, so that they run again: all of them (``--fresh``), or those given.

        A reader at work may find a file gone. Failed cells are single-cell shards, so
        ``--retry-failed`` need not drop them: running each as its own batch overwrites it.
        """
        gone = None if cells is None else pa.array(sorted(set(cells)), pa.string())
        for name in self.files.names("cells"):
            table = None if gone is None else read_shard(self.files, f"cells/{name}", CELLS)
            if table is None:
                self._remove(name)
                continue
            keep = pc.invert(pc.is_in(table["cell"], gone))
            if not pc.any(keep).as_py():
                self._remove(name)
            elif not pc.all(keep).as_py():
                self.files.write(f"cells/{name}", encode(table.filter(keep)))
                curves = read_shard(self.files, f"curves/{name}", CURVES)
                if curves is not None:
                    kept = curves.filter(pc.invert(pc.is_in(curves["cell"], gone)))
                    self.files.write(f"curves/{name}", encode(kept))

    def _remove(self, name: str) -> None:
        self.files.remove(
            f"cells/{name}"
        )  # cells go first, so that no reader sees a cell without curves
        self.files.remove(f"curves/{name}")


def _bytes(table: pa.Table | bytes) -> bytes:
    return table if isinstance(table, bytes) else encode(table)
