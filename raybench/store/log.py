"""The log: which shards of a folder count, and what is wrong with the files that do not.

The cells files are the log. A shard counts if its cells file is sound, was written into this folder under
this name, and its curves file is the one that it names. What else lies there is found, named, never counted.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pyarrow as pa

from raybench.core.errors import Complaint, InputError
from raybench.store import seal
from raybench.store.files import Files, Mark, sizes_of
from raybench.store.schema import CELLS, CURVES
from raybench.store.seal import Damaged, Foreign, OtherVersion, Seal

T = TypeVar("T")

STATUS_RANK = ("ok", "diverged", "pruned", "failed", "skipped")
"""Which row counts where a cell has several: the one that ended best."""
OWNER = "plan/owner.json"
TARGETS = "plan/target.json"  # of each problem, fixed when a sweep first ended
PLANNED = (
    "plan/cells.json"  # the ids of all cells of the sweep that ran last, skipped ones included
)
SWEEPS = "plan/sweeps"  # the sweeps that ran in a folder before the one of its sweep.yaml
LOOKS = 8  # at a pair of files that do not fit together, since it may be being replaced
SHOWN = 6

DAMAGED = "damaged"
FOREIGN = "foreign"
OTHER_VERSION = "other version"
UNCOMMITTED = "uncommitted"
STRAY = "stray"
DOUBLE = "double"
NO_SWEEP = "no sweep"
FIXES = {
    DAMAGED: "the sweep's own command sets it aside and runs its cells again",
    FOREIGN: "it does not count here; move it away, since other readers see it (raybench merge joins folders)",
    OTHER_VERSION: "read it with the raybench that wrote it, or run its sweep again in a new folder",
    UNCOMMITTED: "left by a sweep that was stopped; the sweep's own command removes it",
    STRAY: "it does not count here; move it away, since other readers may stumble over it",
    DOUBLE: "the sweep's own command keeps the row that ended best",
    NO_SWEEP: "restore it from a copy: without it the results can be read, but not extended",
}
"""What to do about each kind of finding."""


@dataclass(frozen=True)
class Finding:
    """A file that does not count as it is: its path in the folder, the kind of fault, what is wrong."""

    rel: str
    kind: str
    what: str

    @property
    def fix(self) -> str:
        """What to do about it."""
        return FIXES[self.kind]

    def complaint(self, folder: str) -> Complaint:
        """Return it as a complaint about a folder."""
        return Complaint("results", f"{folder}/{self.rel}: {self.what}", self.fix)


@dataclass(frozen=True)
class Shard:
    """A shard that counts: its name, its seal, its rows."""

    name: str
    seal: Seal
    cells: pa.Table
    curves: pa.Table | None = None


@dataclass(frozen=True)
class Log:
    """The shards of a folder that count, by name, and what was found beside them.

    no_cells: the table of cells of a folder without shards.
    """

    shards: tuple[Shard, ...]
    findings: tuple[Finding, ...] = ()
    no_cells: pa.Table = field(default_factory=CELLS.empty_table)

    def of(self, *kinds: str) -> list[Finding]:
        """Return the findings of some kinds."""
        return [f for f in self.findings if f.kind in kinds]

    def cells(self) -> pa.Table:
        """Return the rows of all shards' cells."""
        return pa.concat_tables([s.cells for s in self.shards] or [self.no_cells])

    def statuses(self) -> dict[str, str]:
        """Return {cell: status}, the best one where a cell stands in several shards."""
        parts = [s.cells for s in self.shards] or [self.no_cells]
        rows = pa.concat_tables([part.select(["cell", "status"]) for part in parts])
        cells, statuses = rows["cell"].to_pylist(), rows["status"].to_pylist()
        found = dict(zip(cells, map(sys.intern, statuses), strict=True))
        if len(found) < len(cells):  # some stand in several shards
            for cell, status in zip(cells, statuses, strict=True):
                if rank(status) < rank(found[cell]):
                    found[cell] = status
        return found


def rank(status: str) -> int:
    """Return the place of a status among those that a cell may end with, 0 for the best."""
    return STATUS_RANK.index(status)


def owner_of(files: Files) -> Mapping[str, str]:
    """Return the ids of the folder and of the driver at work in it, empty where there are none."""
    try:
        found = json.loads(files.read(OWNER) or b"{}")
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {k: found[k] for k in ("folder", "driver") if isinstance(found.get(k), str)}


@dataclass(frozen=True)
class Kept:
    """A shard as it was read once: the marks of its two files then, and whether its curves were compared."""

    shard: Shard
    marks: tuple[Mark, Mark]
    deep: bool


@dataclass
class Memory:
    """The shards of a folder that were read before, by name, so that only what has changed is read again.

    owner: whose the folder was. columns: those of the cells that are held.
    """

    columns: tuple[str, ...] = ("cell", "status")
    owner: str = ""
    kept: dict[str, Kept] = field(default_factory=dict)

    def known(self, name: str, marks: tuple[Mark, Mark]) -> Kept | None:
        """Return what is known of a shard whose files have these marks, None where it has to be read."""
        kept = self.kept.get(name)
        return kept if kept is not None and kept.marks == marks else None


def look(
    files: Files,
    *,
    deep: bool = False,
    columns: Sequence[str] | None = None,
    curves: Sequence[str] | None = None,
    coded: Sequence[str] = (),
    memory: Memory | None = None,
    reduce: Callable[[pa.Table], pa.Table] | None = None,
) -> Log:
    """Return the log of a folder.

    deep: read every curves file and compare its digest; else its size only. columns: those of the cells
    that are wanted. curves: the columns of curves to read as well, which is deep; coded: those of them that
    are to be places in a list of distinct texts. memory: of earlier looks with its columns and without
    curves, whose unchanged shards are taken as they were. reduce: what is kept of the rows of a cells file.
    """
    own = owner_of(files).get("folder", "")
    if memory is not None:
        columns = memory.columns
        if memory.owner != own:
            memory.owner, memory.kept = own, {}
    marks, listed = files.marks("curves"), files.marks("cells")
    pairs = {n: (listed[n], marks.get(n, ())) for n in listed if _counts(n)}
    known = {n: memory.known(n, pairs[n]) for n in pairs} if memory is not None else {}
    sizes = sizes_of(marks)

    def check(name: str) -> Shard | Finding | None:
        kept = known.get(name)
        if kept is not None and (kept.deep or not deep or _compared(files, kept.shard)):
            return kept.shard
        found = _shard(files, own, sizes, deep, columns, curves, name, coded)
        if reduce is None or not isinstance(found, Shard):
            return found
        return replace(found, cells=reduce(found.cells))

    shards, findings = [], []
    for name, found in zip(pairs, _each(files, check, pairs), strict=True):
        if isinstance(found, Finding):
            findings.append(found)
        elif found is not None:
            shards.append(found)
            # bytes alone do not tell one content from the next
            if memory is not None and all(len(mark) != 1 for mark in pairs[name]):
                kept = known.get(name)
                compared = deep or (kept is not None and kept.shard is found and kept.deep)
                memory.kept[name] = Kept(found, pairs[name], compared)
    return Log(tuple(shards), tuple(findings), CELLS.empty_table().select(columns or CELLS.names))


def each_curves(
    files: Files,
    found: Log,
    columns: Sequence[str],
    reduce: Callable[[pa.Table], T],
    only: Container[str] | None = None,
) -> Iterator[T]:
    """Yield ``reduce`` of the curves of each shard of a log, whose tables are never held all at once.

    columns: those that are read. only: names of shards. Raises InputError for a file that is damaged.
    """
    seals = {s.name: s.seal for s in found.shards if only is None or s.name in only}
    own = owner_of(files).get("folder", "")

    def read(name: str) -> T | Finding | None:
        if not seals[name].curves:
            return None
        held = files.read(f"curves/{name}.parquet")
        if held is not None and seals[name].fits(held):
            return reduce(seal.rows(seal.parquet(held), CURVES, columns))
        # replaced since the log was read
        again = _shard(files, own, {}, True, ["cell", "status"], columns, f"{name}.parquet")
        if isinstance(again, Finding):
            return again
        return None if again is None or again.curves is None else reduce(again.curves)

    for one in _each(files, read, seals):
        if isinstance(one, Finding):
            refuse(Log((), (one,)), files.name, one.kind)
        elif one is not None:
            yield one


def _compared(files: Files, shard: Shard) -> bool:
    """Return whether a shard's curves have the digest of its seal."""
    held = files.read(f"curves/{shard.name}.parquet") if shard.seal.curves else None
    return shard.seal.fits(held)


def strays(files: Files, log: Log) -> Iterator[Finding]:
    """Yield what else lies in the folders of results: curves that nothing commits, files of others."""
    committed = {f"{s.name}.parquet" for s in log.shards if s.seal.curves}
    known = {f.rel for f in log.findings}
    for folder in ("cells", "curves"):
        for name in files.names(folder):
            if not _counts(name):
                yield Finding(f"{folder}/{name}", STRAY, "it is not a shard")
            elif folder == "curves" and not {f"{f}/{name}" for f in ("cells", "curves")} & known:
                if name in committed:
                    continue
                yield Finding(f"curves/{name}", UNCOMMITTED, "no cells file commits it")


def doubles(log: Log) -> dict[str, list[str]]:
    """Return {shard: its cells that another shard holds, ended as well or better}.

    Of equal ones that of the larger shard stays, then that of the smaller name.
    """
    best: dict[str, tuple[int, int, str]] = {}
    places = [
        (cell, (rank(status), -len(shard.cells), shard.name))
        for shard in log.shards
        for cell, status in zip(
            shard.cells["cell"].to_pylist(), shard.cells["status"].to_pylist(), strict=True
        )
    ]
    for cell, place in places:
        best[cell] = min(place, best.get(cell, place))
    found: dict[str, list[str]] = {}
    for cell, place in places:
        if place != best[cell]:
            found.setdefault(place[2], []).append(cell)
    return found


def refuse(log: Log, folder: str, *kinds: str) -> None:
    """Raise InputError if there are findings of these kinds."""
    found = log.of(*kinds)
    if found:
        more = f"{len(found) - SHOWN} more files: raybench verify {folder} lists all"
        said = [f.complaint(folder) for f in found[:SHOWN]]
        raise InputError(said + ([Complaint("results", more)] if len(found) > SHOWN else []))


def _counts(name: str) -> bool:
    return name.endswith(".parquet") and not name.startswith((".", "_"))


def _each(files: Files, check: Callable[[str], T], names: Iterable[str]) -> Iterator[T]:
    with ThreadPoolExecutor(files.readers) as pool:
        yield from pool.map(check, names)


def _shard(
    files: Files,
    own: str,
    sizes: Mapping[str, int],
    deep: bool,
    columns: Sequence[str] | None,
    wanted: Sequence[str] | None,
    name: str,
    coded: Sequence[str] = (),
) -> Shard | Finding | None:
    """Return a shard that counts, or what is wrong with it; None where it has gone meanwhile.

    A writer replaces the curves before the cells, so a pair that does not fit is looked at again.
    """
    rel, stem = f"cells/{name}", name.removesuffix(".parquet")
    what = ""
    for attempt in range(LOOKS):
        if attempt:
            time.sleep(0.01 * attempt)
        data = files.read(rel)
        if data is None:
            return None
        try:
            said, file = seal.opened(data)
            if said.shard != stem:
                raise Foreign(f"a copy of {said.shard}.parquet")
            if own and said.folder not in ("", own):
                raise Foreign("it was written into another results folder")
            cells = seal.rows(file, CELLS, columns)
            strange = set(cells["status"].to_pylist()) - set(STATUS_RANK)
            if strange or cells["cell"].null_count:
                raise Damaged("it holds rows without an id or with an unknown status")
            if wanted is None and not deep:
                size = sizes.get(name) if attempt == 0 else files.sizes("curves").get(name)
                what = _pair(said, size is not None, size == said.size)
                if not what:
                    return Shard(stem, said, cells)
                continue
            held = files.read(f"curves/{name}") if said.curves else None
            what = _pair(said, held is not None, said.fits(held))
            if what:
                continue
            table = None
            if held is not None and wanted is not None:
                try:
                    table = seal.rows(seal.parquet(held, coded), CURVES, wanted)
                except (Damaged, Foreign, OtherVersion) as error:
                    return Finding(f"curves/{name}", DAMAGED, str(error))
            return Shard(stem, said, cells, table)
        except OtherVersion as error:
            return Finding(rel, OTHER_VERSION, str(error))
        except Foreign as error:
            return Finding(rel, FOREIGN, str(error))
        except Damaged as error:
            return Finding(rel, DAMAGED, str(error))
    return Finding(f"curves/{name}", DAMAGED, what)


def _pair(said: Seal, there: bool, fits: bool) -> str:
    """Return what is wrong between a seal and the curves file, empty if they belong together."""
    if not said.curves:
        return ""
    if not there:
        return "it is missing"
    return "" if fits else "it is not the file that its cells were committed with"
