"""Reading the Parquet folders: listing, versions, upgrades. Shared by reader and writer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from raybench.core.errors import InputError
from raybench.store.files import Files
from raybench.store.schema import SCHEMA_VERSION, version_of
from raybench.store.upgrades import upgrade

STATUS_RANK = ("ok", "diverged", "pruned", "failed", "skipped")
"""Which row counts where a cell has several: the one that ended best."""


def best_status(table: pa.Table) -> dict[str, str]:
    """Return {cell: status}, the best one where a cell stands in several shards."""
    found: dict[str, str] = {}
    for cell, status in zip(table["cell"].to_pylist(), table["status"].to_pylist(), strict=True):
        if cell not in found or STATUS_RANK.index(status) < STATUS_RANK.index(found[cell]):
            found[cell] = status
    return found


def read_folder(
    files: Files, folder: str, schema: pa.Schema, columns: Sequence[str] | None = None
) -> pa.Table:
    """Return all rows of ``curves`` or ``cells`` in today's schema (or some of its columns).

    Raises InputError for a file that is not Parquet or was written by a newer raybench.
    """
    for attempt in range(
        5
    ):  # a file that was just listed may be replaced by a retry or removed by --fresh
        names = [n for n in files.names(folder) if n.endswith(".parquet")]
        try:
            return _read([files.path(f"{folder}/{n}") for n in names], files, schema, columns)
        except (OSError, pa.ArrowInvalid, InputError):
            if attempt == 4:
                raise
            time.sleep(0.02 * attempt)
    raise AssertionError("unreachable")


def read_shard(files: Files, rel: str, schema: pa.Schema) -> pa.Table | None:
    """Return one shard's rows in today's schema, None where there is no such file."""
    return _read([files.path(rel)], files, schema, None) if files.exists(rel) else None


def _read(
    paths: list[str], files: Files, schema: pa.Schema, columns: Sequence[str] | None
) -> pa.Table:
    names = list(columns or schema.names)
    wanted = pa.schema([schema.field(n) for n in names])
    by_version: dict[int, list[str]] = {}
    with ThreadPoolExecutor(
        16
    ) as pool:  # on an object store many small reads take long one after the other
        versions = list(pool.map(lambda path: _version(path, files), paths))
    for path, version in zip(paths, versions, strict=True):
        by_version.setdefault(version, []).append(path)
    tables = [wanted.empty_table()]
    for version, group in sorted(by_version.items()):
        if version > SCHEMA_VERSION:
            what = f"{group[0]} has schema version {version}, this raybench reads {SCHEMA_VERSION}"
            raise InputError.of("results", what, "install a newer raybench")
        if version == SCHEMA_VERSION:
            data = ds.dataset(group, schema=schema, format="parquet", filesystem=files.filesystem)
            tables.append(data.to_table(columns=names))
            continue
        for path in group:  # files of older schemas have other columns, and are upgraded whole
            old = pq.read_table(path, filesystem=files.filesystem)
            tables.append(upgrade(old, version, schema).select(names))
    return pa.concat_tables([t.replace_schema_metadata(None) for t in tables])


def _version(path: str, files: Files) -> int:
    try:
        return version_of(pq.read_schema(path, filesystem=files.filesystem))
    except pa.ArrowInvalid as error:
        fix = "remove it (raybench then runs its cells again) or restore it from a copy"
        raise InputError.of("results", f"{path} is not a readable Parquet file", fix) from error
