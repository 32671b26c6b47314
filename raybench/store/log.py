"""The log of a results folder: its commits, each with its hashes, and what is wrong with other files.

The cells file of a shard is its commit record. Beside its rows it holds a *seal*: the shard's name, the results
folder it was written into, size and SHA-256 of its curves file, and a SHA-256 of its own bytes, computed with
zeros in the place of that digest. All pages bear checksums as well, for readers that look at them.

A shard counts if its cells file is sound, was written into this folder under this name, and its curves file is
the one that it names. What else lies there is named, never counted.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybench.core import yaml
from raybench.core.errors import Complaint, InputError
from raybench.core.safe_files import BoundedParquet
from raybench.store import identity
from raybench.store.files import Files
from raybench.store.schema import (
    CELLS,
    CURVES,
    OLDEST,
    SCHEMA_VERSION,
    SINCE_4,
    config_of,
    version_of,
    with_later_columns,
)
from raybench.store.table import encode

T = TypeVar("T")

STATUS_RANK = ("ok", "diverged", "pruned", "failed", "skipped")
"""Which row counts where a cell has several: the one that ended best."""
OWNER = "plan/owner.json"
TARGETS = "plan/target.json"  # of each problem, fixed when a sweep first ended
BATCHES = "plan/batches.json"
ATTEMPTS = "plan/attempts.json"  # how often cells were tried that have not ended
PLANNED = "plan/cells.json"  # the ids of all cells of the last sweep, skipped ones included
SWEEPS = "plan/sweeps"  # the sweeps that ran in a folder before the one of its sweep.yaml
SEAL, DIGEST = "raybench_seal", "raybench_digest"
BLANK = b"0" * 64
LOOKS = 8  # at a pair of files that do not fit together, since it may be being replaced
SHOWN = 6
NEVER_NULL = ("cell", "status", "round")

DAMAGED = "damaged"
FOREIGN = "foreign"
OTHER_VERSION = "other version"
TOO_LARGE = "too large"
UNCOMMITTED = "uncommitted"
STRAY = "stray"
DOUBLE = "double"
NO_SWEEP = "no sweep"
FIXES = {
    DAMAGED: "the sweep's own command sets it aside and runs its cells again",
    FOREIGN: "it does not count here; move it away, since other readers see it (raybench merge joins folders)",
    OTHER_VERSION: "read it with the raybench that wrote it, or run its sweep again in a new folder",
    TOO_LARGE: "nothing was unpacked; if a sweep wrote it, read it on a larger machine, else move it away",
    UNCOMMITTED: "left by a sweep that was stopped; the sweep's own command removes it",
    STRAY: "it does not count here; move it away, since other readers may stumble over it",
    DOUBLE: "the sweep's own command keeps the row that ended best",
    NO_SWEEP: "restore it from a copy: without it the results can be read, but not extended",
}
"""What to do about each kind of finding."""
UNREADABLE = (OTHER_VERSION, TOO_LARGE)
HARMLESS = (UNCOMMITTED,)
"""Kinds of findings that take nothing from the results."""


# Seals ---------------------------------------------------------------------------------------------


class Unsound(Exception):
    """A file does not count: its kind is DAMAGED, FOREIGN, OTHER_VERSION or TOO_LARGE."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind = kind


@dataclass(frozen=True)
class Seal:
    """What a cells file says: its shard, the folder's id (empty: any), its curves file's digest (empty: none) and size."""

    shard: str
    folder: str = ""
    curves: str = ""
    size: int = 0

    def fits(self, data: bytes | None) -> bool:
        """Return whether these are the bytes of its curves file."""
        if not self.curves:
            return True
        return data is not None and len(data) == self.size and digest(data) == self.curves


def digest(data: bytes) -> str:
    """Return the SHA-256 of some bytes, 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def sealed(cells: pa.Table, shard: str, folder: str = "", curves: bytes | None = None) -> bytes:
    """Return the file of a shard's cells with its seal; curves are the bytes of its curves file."""
    facts = () if curves is None else (digest(curves), len(curves))
    seal = Seal(shard, folder, *facts)
    data = encode(cells, {SEAL: json.dumps(dataclasses.asdict(seal)), DIGEST: BLANK.decode()})
    at = data.rindex(BLANK)
    return data[:at] + digest(data).encode() + data[at + len(BLANK) :]


def open_cells(data: bytes) -> tuple[Seal, BoundedParquet]:
    """Return the seal of a cells file and its reader. Raises Unsound."""
    file = parquet(data)
    facts = file.metadata
    hexdigest = facts.get(DIGEST.encode(), b"")
    at = data.rfind(hexdigest)
    blanked = data[:at] + BLANK + data[at + len(hexdigest) :]
    if len(hexdigest) != len(BLANK) or digest(blanked) != hexdigest.decode():
        raise Unsound(DAMAGED, "its bytes are not those that were written")
    try:
        seal = Seal(**json.loads(facts[SEAL.encode()]))
        if [type(value) for value in vars(seal).values()] != [str, str, str, int]:
            raise TypeError(seal)
    except (KeyError, TypeError, ValueError) as error:
        raise Unsound(DAMAGED, "its seal cannot be read") from error
    return seal, file


@contextmanager
def _sound(what: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        if isinstance(error, InputError) and error.complaints[0].where == TOO_LARGE:
            raise Unsound(TOO_LARGE, error.complaints[0].what) from error
        raise Unsound(DAMAGED, what) from error


def parquet(data: bytes) -> BoundedParquet:
    """Return the reader of a file of raybench's. Raises Unsound."""
    with _sound("it is not a readable Parquet file"):
        file = BoundedParquet(data, TOO_LARGE, "it")
    version = version_of(file.schema)
    if not version or "cell" not in file.schema.names:
        raise Unsound(FOREIGN, "raybench did not write it")
    if not OLDEST <= version <= SCHEMA_VERSION:
        what = f"it has schema version {version}, this raybench reads {SCHEMA_VERSION}"
        raise Unsound(OTHER_VERSION, what)
    return file


def rows(
    file: BoundedParquet,
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    coded: bool = False,
) -> pa.Table:
    """Return the rows of a file in today's schema, or some of its columns; coded: texts as dictionaries. Raises Unsound."""
    names = list(columns or schema.names)
    later = [n for n in names if version_of(file.schema) < 4 and n in SINCE_4]
    there = [n for n in names if n not in later]
    with _sound("its pages cannot be read"):
        table = file.read([*there, *["config"] * bool(later)], coded)
        table = with_later_columns(table, later) if later else table
        table = table.select(names).replace_schema_metadata(None)
    for name, kind in zip(names, table.schema.types, strict=True):
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        if plain != schema.field(name).type:
            raise Unsound(DAMAGED, f"its column {name} is of type {plain}")
        if name in NEVER_NULL and table[name].null_count:
            raise Unsound(DAMAGED, f"it holds rows without {name}")
    return table


# The log -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FolderFinding:
    """A file that does not count as it is: its path in the folder, the kind of fault, what is wrong."""

    rel: str
    kind: str
    what: str

    @property
    def fix(self) -> str:
        """What to do about it."""
        return FIXES[self.kind]


@dataclass(frozen=True)
class Shard:
    """A shard that counts: its name, its seal, its rows, the version of the schema that its file has."""

    name: str
    seal: Seal
    cells: pa.Table
    version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Log:
    """The shards of a folder that count, by name, and what was found beside them."""

    shards: tuple[Shard, ...]
    findings: tuple[FolderFinding, ...] = ()

    @property
    def harm(self) -> bool:
        """Whether anything was found that is not harmless."""
        return any(finding.kind not in HARMLESS for finding in self.findings)

    def of(self, *kinds: str) -> list[FolderFinding]:
        """Return the findings of some kinds."""
        return [f for f in self.findings if f.kind in kinds]

    def cells(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of all shards' cells, of a cell that stands in several the first that ended best."""
        tables = [s.cells for s in self.shards] or [CELLS.empty_table()]
        return best(pa.concat_tables(t.select(columns or t.column_names) for t in tables))

    def statuses(self) -> dict[str, str]:
        """Return {cell: status}."""
        table = self.cells(["cell", "status"])
        return dict(zip(table["cell"].to_pylist(), table["status"].to_pylist(), strict=True))


def rank(status: str) -> int:
    """Return the place of a status among those that a cell may end with, 0 for the best."""
    return STATUS_RANK.index(status)


def best(cells: pa.Table) -> pa.Table:
    """Return rows of cells in their order, each cell once: the first row of it that ended best."""
    if pc.count_distinct(cells["cell"]).as_py() == len(cells):
        return cells
    place = pc.index_in(cells["status"], pa.array(STATUS_RANK)).to_numpy()
    order = np.argsort(place, kind="stable")
    first = np.unique(cells["cell"].to_numpy()[order], return_index=True)[1]
    return cells.take(pa.array(np.sort(order[first])))


def noted(files: Files, rel: str) -> dict[str, Any]:
    """Return the JSON object that a file of a folder holds, empty where there is none or it is damaged."""
    with suppress(InputError):
        return written(files, rel, dict) or {}
    return {}


def written(files: Files, rel: str, kind: type[T]) -> T | None:
    """Return the JSON list or object that a file of a folder holds, None where there is none. Raises InputError if damaged."""
    data, fix = files.read(rel), "remove it: the sweep's own command writes it anew"
    return None if data is None else yaml.from_json(data, f"{files.name}/{rel}", fix, kind)


def owner_of(files: Files) -> Mapping[str, str]:
    """Return the ids of the folder and of the driver at work in it, empty where there are none."""
    ids = noted(files, OWNER)
    return {key: ids[key] for key in ("folder", "driver") if isinstance(ids.get(key), str)}


def attempts_of(files: Files) -> dict[str, int]:
    """Return how often cells were tried that have not ended; damaged counts are none."""
    return {cell: n for cell, n in noted(files, ATTEMPTS).items() if isinstance(n, int)}


def look(files: Files, deep: bool = False, columns: Sequence[str] | None = None) -> Log:
    """Return the log of a folder.

    deep: read every curves file and compare its digest; else its size only. columns: those of the cells
    that are wanted.
    """
    folder, sizes = owner_of(files).get("folder", ""), files.sizes("curves")

    def read(name: str) -> Shard | FolderFinding | None:
        item = _pair(files, folder, name, columns, None if deep else sizes)
        return item[0] if isinstance(item, tuple) else item

    items = list(_each(files, read, filter(_is_shard, files.names("cells"))))
    shards = tuple(item for item in items if isinstance(item, Shard))
    findings = tuple(item for item in items if isinstance(item, FolderFinding))
    return Log(shards, findings)


def each_curves(
    files: Files,
    log: Log,
    columns: Sequence[str],
    reduce: Callable[[pa.Table], T],
    only: Container[str] | None = None,
    lenient: bool = False,
) -> Iterator[T]:
    """Yield ``reduce`` of the curves of each shard of a log, whose tables are never held all at once.

    columns: those that are read; texts are coded. only: names of shards. lenient: leave out what is damaged.
    Raises InputError in the end, unless lenient, for all files that are damaged.
    """
    folder = owner_of(files).get("folder", "")

    def read(shard: Shard) -> T | FolderFinding | None:
        name, seal = f"{shard.name}.parquet", shard.seal
        data = files.read(f"curves/{name}") if seal.curves else None
        if not seal.fits(data):  # replaced since the log was read
            pair = _pair(files, folder, name, ["cell", "status"])
            if not isinstance(pair, tuple):
                return pair
            data = pair[1]
        if data is None:
            return None
        try:
            return reduce(rows(parquet(data), CURVES, columns, coded=True))
        except Unsound as error:
            return FolderFinding(f"curves/{name}", error.kind, str(error))

    findings = []
    for item in _each(files, read, [s for s in log.shards if only is None or s.name in only]):
        if isinstance(item, FolderFinding):
            findings.append(item)
        elif item is not None:
            yield item
    if not lenient:
        refuse(Log((), tuple(findings)), files.name, *FIXES)


def refuse(log: Log, folder: str, *kinds: str) -> None:
    """Raise InputError if there are findings of these kinds."""
    findings = log.of(*kinds)
    complaints = [Complaint("results", f"{folder}/{f.rel}: {f.what}", f.fix) for f in findings]
    if len(findings) > SHOWN:
        more = f"{len(findings) - SHOWN} more files: raybench verify {folder} lists all"
        complaints[SHOWN:] = [Complaint("results", more)]
    if complaints:
        raise InputError(complaints)


def _is_shard(name: str) -> bool:
    return name.endswith(".parquet") and not name.startswith((".", "_"))


def _each(files: Files, read: Callable[[Any], T], items: Iterable[Any]) -> Iterator[T]:
    with ThreadPoolExecutor(files.readers) as pool:
        yield from pool.map(read, items)


def _pair(
    files: Files,
    folder: str,
    name: str,
    columns: Sequence[str] | None,
    sizes: Mapping[str, int] | None = None,
) -> tuple[Shard, bytes | None] | FolderFinding | None:
    """Return a shard that counts with its curves, or what is wrong with it; None where it has gone meanwhile.

    A writer replaces the curves before the cells, so a pair that does not fit is looked at again. folder: the
    id that shards bear here. sizes: of all curves files at the first look; given them no curves are read.
    """
    for attempt in range(LOOKS):
        time.sleep(0.01 * attempt)
        data = files.read(f"cells/{name}")
        if data is None:
            return None
        try:
            shard = _opened(data, name.removesuffix(".parquet"), folder, columns)
        except Unsound as error:
            return FolderFinding(f"cells/{name}", error.kind, str(error))
        content, seal = None, shard.seal
        if sizes is None:
            content = files.read(f"curves/{name}") if seal.curves else None
            is_there, fits = content is not None, seal.fits(content)
        else:
            size = (files.sizes("curves") if attempt else sizes).get(name)
            is_there, fits = size is not None, size == seal.size
        if fits or not seal.curves:
            return shard, content
    is_another = "it is not the file that its cells were committed with"
    return FolderFinding(f"curves/{name}", DAMAGED, is_another if is_there else "it is missing")


def _opened(data: bytes, stem: str, folder: str, columns: Sequence[str] | None) -> Shard:
    """Return the shard of a cells file. Raises Unsound where it is not sound, or not of this folder and name."""
    seal, file = open_cells(data)
    if seal.shard != stem:
        raise Unsound(FOREIGN, f"a copy of {seal.shard}.parquet")
    if folder and seal.folder not in ("", folder):
        raise Unsound(FOREIGN, "it was written into another results folder")
    cells = rows(file, CELLS, columns)
    if set(cells["status"].to_pylist()) - set(STATUS_RANK):
        raise Unsound(DAMAGED, "it holds rows with an unknown status")
    return Shard(stem, seal, cells, version_of(file.schema))


# Verifying -----------------------------------------------------------------------------------------


def verified(files: Files) -> Log:
    """Return the log of a folder, with all that is found in it when every file is read."""
    files.check()
    log = look(files, deep=True)
    findings = [*log.findings, *_strays(files, log), *doubles(log)]
    for shard in log.shards:
        try:
            for text in shard.cells["config"].to_pylist():
                config_of(text)
        except InputError as error:
            what = error.complaints[0].what
            findings.append(FolderFinding(f"cells/{shard.name}.parquet", DAMAGED, what))
    text = files.read("sweep.yaml")
    if text is None:
        findings.append(FolderFinding("sweep.yaml", NO_SWEEP, "it is missing"))
    try:
        identity.parse_saved_sweep(identity.decoded(text or b"{}", files.name))
    except InputError as error:
        findings.append(FolderFinding("sweep.yaml", NO_SWEEP, error.complaints[0].what))
    return replace(log, findings=tuple(findings))


def doubles(log: Log) -> list[FolderFinding]:
    """Return the shards with cells that another shard holds, ended as well or better.

    Of equal ones that of the larger shard stays, then that of the smaller name.
    """
    places: dict[str, list[tuple[int, int, str]]] = {}
    for shard in log.shards:
        for row in shard.cells.select(["cell", "status"]).to_pylist():
            place = (rank(row["status"]), -len(shard.cells), shard.name)
            places.setdefault(row["cell"], []).append(place)
    worse = Counter(name for several in places.values() for *_, name in sorted(set(several))[1:])
    what = "of its cells stand in another shard"
    return [
        FolderFinding(f"cells/{name}.parquet", DOUBLE, f"{n} {what}") for name, n in worse.items()
    ]


def _strays(files: Files, log: Log) -> Iterator[FolderFinding]:
    """Yield what else lies in the folders of results: curves that nothing commits, files of others."""
    committed = {f"{s.name}.parquet" for s in log.shards if s.seal.curves}
    places = {f.rel.replace("curves/", "cells/") for f in log.findings}
    for folder in ("cells", "curves"):
        for name in files.names(folder):
            if not _is_shard(name):
                yield FolderFinding(f"{folder}/{name}", STRAY, "it is not a shard")
            elif folder == "curves" and name not in committed and f"cells/{name}" not in places:
                yield FolderFinding(f"curves/{name}", UNCOMMITTED, "no cells file commits it")
