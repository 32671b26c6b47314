"""The atomic writer: what a sweep does to its folder.

    sweep.yaml                 the resolved sweep that ran last
    plan/sweeps/001.yaml       those that ran before it, where they differ
    plan/cells.json            the ids of all its cells: what the folder shows unless told
    plan/target.json           the target of each problem, fixed when a sweep first ended
    plan/                      batch list, attempts, owner, lock: the driver's own
    plan/damaged/              shards that were set aside, since they are not what was written
    curves/<shard>.parquet     then cells/<shard>.parquet, the commit record
    weights/<cell>.pt          of networks whose cells say `train: {save: weights}`
    tmp/                       files being written; never read

A shard is a batch, its name a hash of its sorted cell ids, so a retry overwrites itself. Other readers
of Parquet see at most one row per cell at every moment.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc

from raybench.core.errors import FolderLost, InputError
from raybench.store import identity, lock, log
from raybench.store.files import open_folder
from raybench.store.log import (
    ATTEMPTS,
    DAMAGED,
    OWNER,
    PLANNED,
    SWEEPS,
    TARGETS,
    UNREADABLE,
    FolderFinding,
)
from raybench.store.schema import CELLS, CURVES, SCHEMA_VERSION
from raybench.store.table import encode

SKIPPED_SHARD = "skipped"
SET_ASIDE = "plan/damaged"


def shard_name(ids: Iterable[str]) -> str:
    """Return a batch's shard name: a lone cell's id, else a hash (16 hex) of the sorted ids."""
    ids = sorted(ids)
    if len(ids) == 1:
        return ids[0]
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Owner:
    """Whose a folder is: its own id, which its shards bear, and the id of the driver at work in it."""

    folder: str
    driver: str


class Store:
    """The results folder of one sweep; ``folder`` is a local path or an fsspec URL.

    Creating a Store touches nothing. ``commit`` may be called by any number of processes at once; given
    the ``owner`` that the driver's ``own`` returned, it refuses to write into a folder that is no longer
    that driver's. retried: cells that had failed, which stand in shards of their own and stay there. The
    other methods that write are the driver's, under ``held``.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        owner: Owner | None = None,
        retried: Iterable[str] = (),
    ) -> None:
        self.files = open_folder(folder)
        self.owner = owner
        self.retried = frozenset(retried)

    @property
    def folder(self) -> str:
        """The folder as given, without a trailing slash."""
        return self.files.name

    # -- the sweep ---------------------------------------------------------------------------

    def claim(
        self,
        sweep: str | Mapping[str, object],
        write: bool = True,
        meaning: identity.Meaning = identity.as_written,
    ) -> None:
        """Make the folder this sweep's and save ``sweep.yaml`` (text, or a mapping); a sweep before it is kept.

        meaning: which problems a section stands for, so that two spellings of one are one sweep.

        Raises InputError, with nothing written, if the folder holds another sweep: one whose
        ``name`` or ``problem`` differs. Values added to an axis extend a sweep.
        """
        before = self.files.read("sweep.yaml")
        if before is not None:
            identity.check_same_sweep(
                identity.decoded(before, self.folder), sweep, self.folder, meaning
            )
        elif self.files.names("cells"):
            what = f"{self.folder} holds results but no sweep.yaml"
            raise InputError.of("out", what, "give another --out folder")
        data = (sweep if isinstance(sweep, str) else identity.dump(sweep)).encode()
        if write and before != data:
            self.files.prepare()
            if before is not None:
                self.keep_sweep(before)
            self.files.write("sweep.yaml", data)

    def keep_sweep(self, text: bytes) -> None:
        """Keep a sweep whose cells are in the folder beside that of ``sweep.yaml``."""
        names = self.files.names(SWEEPS)
        if all(self.files.read(f"{SWEEPS}/{name}") != text for name in names):
            self.files.write(f"{SWEEPS}/{len(names) + 1:03d}.yaml", text)

    def plan(self, cells: Iterable[str]) -> None:
        """Note which cells the sweep of ``sweep.yaml`` has: those that are shown unless all are asked for."""
        data = json.dumps(sorted(cells), indent=0).encode()
        if self.files.read(PLANNED) != data:
            self.files.write(PLANNED, data)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder as its only driver. Raises InputError if another driver holds it, FolderLost where it vanishes."""
        with lock.held(self.files):
            try:
                yield
            except OSError:
                self.check_owner()  # what failed may have failed because the folder is gone
                raise

    def own(self, fresh: bool = False) -> Owner:
        """Note in the folder that this driver is at work in it, and return whose it is now.

        Writers of a driver that was killed find another driver's id and write no more. A folder keeps
        its id; where it has none it takes the one that most of its shards bear. fresh: a new id.
        """
        folder, driver = (uuid.uuid4().hex[:16] for _ in range(2))
        if not fresh:
            noted = log.owner_of(self.files).get("folder")
            ids = Counter() if noted else Counter(s.seal.folder for s in self.look().shards)
            del ids[""]
            folder = noted or next((name for name, _ in ids.most_common(1)), folder)
        self.owner = Owner(folder, driver)
        self.files.prepare()
        self.files.write(OWNER, json.dumps(vars(self.owner)).encode())
        return self.owner

    def write(self, rel: str, data: bytes | str) -> None:
        """Write a whole file (``plan/batches.json``) atomically."""
        self.files.write(rel, data.encode() if isinstance(data, str) else data)

    def attempts(self) -> dict[str, int]:
        """Return how often cells were tried that have not ended, by id."""
        return log.attempts_of(self.files)

    def save_attempts(self, counts: Mapping[str, int]) -> None:
        """Keep how often cells were tried, so that it outlasts a killed driver."""
        self.write(ATTEMPTS, json.dumps(dict(counts)))

    # -- shards ------------------------------------------------------------------------------

    def commit(
        self,
        shard: str,
        curves: pa.Table | None,
        cells: pa.Table,
        files: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        """Write one batch: ``files`` by their place, its curves, then its cells, which makes it count.

        Tables in today's schema; ``curves`` is None where no cell has any. A batch that holds cells which
        stand apart is committed cell by cell, each in place of its own failed row, so that no reader
        ever sees two rows of it. Raises FolderLost if the folder is no longer the owner's.
        """
        if files:
            self.check_owner()
        for rel, content in files.items():
            self.files.write(rel, content)
        ids = cells["cell"].to_pylist()
        if len(ids) > 1 and self.retried.intersection(ids):
            for cell in ids:
                rows = None if curves is None else curves.filter(pc.equal(curves["cell"], cell))
                self.commit(cell, rows or None, cells.filter(pc.equal(cells["cell"], cell)))
            return
        data = None if curves is None else encode(curves)
        self.put(shard, data, self.seal(shard, data, cells))

    def seal(self, shard: str, curves: bytes | None, cells: pa.Table) -> bytes:
        """Return the file of a shard's cells, given the bytes of its curves file."""
        return log.sealed(cells, shard, self.owner.folder if self.owner else "", curves)

    def put(self, shard: str, curves: bytes | None, cells: bytes) -> None:
        """Write the files of one batch, as ``encode`` and ``seal`` made them; raises as ``commit``."""
        self.check_owner()
        try:
            if self.owner is None:
                self.files.prepare()
            if curves is not None:
                self.files.write(f"curves/{shard}.parquet", curves)
            self.files.write(f"cells/{shard}.parquet", cells)
            if curves is not None and not self.files.exists(f"curves/{shard}.parquet"):
                # another driver, which found them without cells, took the curves away in between
                self.files.write(f"curves/{shard}.parquet", curves)
        except OSError:
            self.check_owner()  # as in ``held``
            raise

    def check_owner(self) -> None:
        """Raise FolderLost unless the folder is still the owner's."""
        if self.owner is None:
            return
        owner = log.owner_of(self.files)
        if not owner:
            raise FolderLost(f"{self.folder} was removed or renamed while the sweep was running")
        if owner != vars(self.owner):
            raise FolderLost(f"another sweep has taken over {self.folder}")

    def skip(self, rows: pa.Table) -> None:
        """Write the rows of all skipped cells, replacing those written before."""
        rel = f"cells/{SKIPPED_SHARD}.parquet"
        data = self.seal(SKIPPED_SHARD, None, rows)
        if len(rows) == 0:
            self.files.remove(rel)
        elif self.files.read(rel) != data:
            self.files.write(rel, data)

    def done(self) -> dict[str, str]:
        """Return {cell id: status} of every committed cell; raises as ``look``."""
        return self.look().statuses()

    def look(self, deep: bool = False) -> log.Log:
        """Return the shards that count, with ids and statuses; deep: as ``log.look`` takes it.

        Raises InputError for a file of another version of the schema: what is read may not be what is written to.
        """
        commits = log.look(self.files, deep=deep, columns=("cell", "status"))
        log.refuse(commits, self.folder, *UNREADABLE)
        if any(shard.version < SCHEMA_VERSION for shard in commits.shards):
            what = f"{self.folder} has files of an older schema: this raybench reads them, and writes {SCHEMA_VERSION}"
            raise InputError.of("out", what, "raybench.store.compact(folder, new) makes it anew")
        return commits

    def repair(self, commits: log.Log | None = None) -> list[FolderFinding]:
        """Remove what was never committed and set aside what is damaged; return what was set aside.

        commits: what a deep look has seen just now. Damaged shards, and those that hold a cell which stands in
        a better shard, move to ``plan/damaged``: their cells run again. Shards of others stay where they are.
        """
        for name in self.files.names("tmp"):
            self.files.remove(f"tmp/{name}")
        commits = self.look(deep=True) if commits is None else commits
        aside = [*commits.of(DAMAGED), *log.doubles(commits)]
        for finding in aside:
            name = finding.rel.rsplit("/", 1)[1]
            for folder in ("cells", "curves"):
                if self.files.exists(f"{folder}/{name}"):
                    self.files.move(f"{folder}/{name}", f"{SET_ASIDE}/{folder}-{name}")
        committed = set(self.files.names("cells"))
        for name in self.files.names("curves"):
            if name not in committed and name.endswith(".parquet"):
                self._collect(name)
        return aside

    def drop(self) -> None:
        """Forget every cell (``--fresh``). A reader at work may find a file gone."""
        for name in self.files.names("cells"):
            # cells go first, so that no reader sees a cell without curves
            self.files.remove(f"cells/{name}")
            self.files.remove(f"curves/{name}")
        weights = (f"weights/{name}" for name in self.files.names("weights"))
        self.files.clear(SWEEPS)
        for rel in (*weights, TARGETS, PLANNED, "sweep.yaml"):
            self.files.remove(rel)

    def forget(self, cells: Collection[str]) -> None:
        """Take cells out of the shards they stand in, so that they may run again; the others stay."""
        if not cells:
            return
        ids = pa.array(sorted(cells), pa.string())
        for shard in self.look().shards:
            if not pc.any(pc.is_in(shard.cells["cell"], ids)).as_py():
                continue
            places = {"cells": CELLS, "curves": CURVES}
            left: dict[str, pa.Table] = {}
            for folder, schema in places.items():
                data = self.files.read(f"{folder}/{shard.name}.parquet")
                if data is not None:
                    table = log.rows(log.parquet(data), schema)
                    left[folder] = table.filter(pc.invert(pc.is_in(table["cell"], ids)))
            if left["cells"]:
                curves = encode(left["curves"]) if left.get("curves") else None
                self.put(shard.name, curves, self.seal(shard.name, curves, left["cells"]))
            for folder in places:  # cells go first, so that no reader sees a cell without curves
                if not left.get(folder):
                    self.files.remove(f"{folder}/{shard.name}.parquet")

    def _collect(self, name: str) -> None:
        """Remove curves that no cells file commits.

        A writer orphaned by a killed driver may commit at this very moment: curves are moved aside
        first and moved back if their cells have appeared, and ``put`` looks again at its end.
        """
        self.files.move(f"curves/{name}", f"tmp/{name}")
        if self.files.exists(f"cells/{name}"):
            self.files.move(f"tmp/{name}", f"curves/{name}")
        else:
            self.files.remove(f"tmp/{name}")
