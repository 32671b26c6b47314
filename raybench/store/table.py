"""Arrays of a batch -> a table in the pinned schema -> Parquet bytes, and tables -> pandas frames; no loop over rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pandas.api.extensions import ExtensionArray

from raybench.core.errors import InputError, nearest
from raybench.core.limits import check_fits
from raybench.store.schema import CURVES, EXTRA_COUNTS, stamped


def to_table(
    columns: Mapping[str, Any], schema: pa.Schema, where: np.ndarray | None = None
) -> pa.Table:
    """Return the table of ``columns`` in ``schema``; missing columns are null.

    A column is a scalar, a list, a numpy array, a CPU torch tensor or a pyarrow array. Shapes
    broadcast as in numpy and are read in C order: cells (B, 1), rounds (T,) and curves (B, T) make
    B*T rows. ``where`` (same shape, bool) keeps the rows that were recorded. None and masked
    entries are null, NaN stays NaN. ``extra`` is a mapping name -> column; there NaN means absent,
    as does zero for the counts of ``schema.EXTRA_COUNTS``.
    Raises InputError for a column the schema lacks.
    """
    if name := next((name for name in columns if name not in schema.names), ""):
        raise InputError.of("results", f"unknown column {name!r}", nearest(name, schema.names))
    extra = columns.get("extra") or {}
    parts = {name: _part(value) for name, value in columns.items() if name != "extra"}
    others = {name: _part(value) for name, value in extra.items()}
    shapes = [np.shape(value) for value in (*parts.values(), *others.values())]
    shape = np.broadcast_shapes(*shapes, np.shape(where) if where is not None else ())
    keep = None if where is None else np.flatnonzero(np.broadcast_to(where, shape))
    rows = int(np.prod(shape, dtype=int)) if keep is None else len(keep)
    arrays = []
    for field in schema:
        if field.name == "extra":
            arrays.append(_map(others, shape, keep, rows, field.type))
        elif field.name in parts:
            arrays.append(_column(parts[field.name], shape, keep, field))
        else:
            arrays.append(pa.nulls(rows, field.type))
    return pa.Table.from_arrays(arrays, schema=stamped(schema))


def _part(value: object) -> np.ndarray:
    if isinstance(value, pa.Array | pa.ChunkedArray):
        value = value.to_numpy(zero_copy_only=False)
    return np.asanyarray(value, dtype=object if isinstance(value, list | tuple) else None)


def _full(part: np.ndarray, shape: tuple[int, ...], keep: np.ndarray | None) -> np.ndarray:
    flat = np.broadcast_to(part, shape, subok=True).reshape(-1)
    return flat if keep is None else flat[keep]


def _column(
    part: np.ndarray, shape: tuple[int, ...], keep: np.ndarray | None, field: pa.Field
) -> pa.Array:
    if part.dtype.kind in "fiub" and not isinstance(part, np.ma.MaskedArray):
        whole = _full(part, shape, keep)
        # NaN is a value of a real column; in an integer column it can only mean unknown.
        unknown = pa.types.is_integer(field.type)
        return pa.array(np.ascontiguousarray(whole), from_pandas=unknown).cast(field.type)
    # Text and lists with None: convert the few distinct entries once, then repeat them in arrow.
    mask = np.ma.getmaskarray(part).reshape(-1) if np.ma.isMaskedArray(part) else None
    flat = np.ma.getdata(part).reshape(-1)
    # pandas writes a missing text as NaN and a missing time as NaT
    gaps = not pa.types.is_floating(field.type)
    entries = flat.tolist() if flat.dtype.kind in "OU" else flat
    few = pa.array(entries, field.type, mask=mask, from_pandas=gaps)
    if part.shape == shape and keep is None:
        return few
    index = np.arange(part.size).reshape(part.shape)
    return few.take(pa.array(_full(index, shape, keep)))


def _map(
    parts: Mapping[str, np.ndarray],
    shape: tuple[int, ...],
    keep: np.ndarray | None,
    rows: int,
    kind: pa.MapType,
) -> pa.Array:
    if not parts:
        return pa.nulls(rows, kind)
    names = list(parts)
    values = np.empty((rows, len(names)))
    for j, name in enumerate(names):
        whole = _full(parts[name], shape, keep)
        if whole.dtype.kind == "O":
            whole = np.array([np.nan if v is None else float(v) for v in whole])
        values[:, j] = np.ma.filled(np.ma.asarray(whole).astype(float), np.nan)
        if name in EXTRA_COUNTS:
            values[values[:, j] == 0, j] = np.nan
    present = ~np.isnan(values)
    offsets = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int32)
    keys = pa.array(names).take(pa.array(np.nonzero(present)[1]))
    return pa.MapArray.from_arrays(offsets, keys, values[present], type=kind)


def encode(table: pa.Table, facts: Mapping[str, str] | None = None) -> bytes:
    """Return the Parquet file of ``table``: zstd, with a checksum for every page.

    The file bears today's schema version and raybench's version, so the table must be in today's
    schema. facts: more of its metadata, which stands in the file once.
    """
    sink = pa.BufferOutputStream()
    schema = stamped(table.schema)
    text = [f.name for f in schema if pa.types.is_string(f.type)]
    numbers = [f.name for f in schema if pa.types.is_floating(f.type)]
    with (
        pq.ParquetWriter(
            sink,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=text,  # a dictionary of floats, which hardly repeat, costs time and saves nothing
            write_statistics=[n for n in schema.names if n not in numbers],
            write_page_checksum=True,
        ) as writer
    ):
        writer.write_table(table.replace_schema_metadata(schema.metadata))
        if facts:
            writer.add_key_value_metadata(dict(facts))
    return sink.getvalue().to_pybytes()


def expand_extra(table: pa.Table) -> pa.Table:
    """Return ``table`` with the ``extra`` map, if any, as float columns ``extra.<name>``, null where absent."""
    if "extra" not in table.column_names:
        return table
    maps = table["extra"]
    table = table.drop_columns(["extra"])
    pairs = maps.cast(pa.list_(maps.type.field(0).type))
    row = pc.list_parent_indices(pairs).to_numpy()
    keys, items = (pc.struct_field(pc.list_flatten(pairs), part) for part in (0, 1))
    items = items.to_numpy()
    for name in sorted(pc.unique(keys).to_pylist()):
        hit = pc.equal(keys, name).to_numpy()
        values, absent = np.zeros(len(maps)), np.ones(len(maps), bool)
        values[row[hit]], absent[row[hit]] = items[hit], False
        table = table.append_column(f"extra.{name}", pa.array(values, mask=absent))
    return table


# Frames, in which each distinct text is held once: a curve repeats the texts of its cell in every row ---


def cells_frame(rows: pa.Table) -> pd.DataFrame:
    """Return rows of cells as a frame."""
    # configs differ from cell to cell
    texts = [f.name for f in rows.schema if _is_text(f.type) and f.name != "config"]
    others = rows.drop_columns(texts).to_pandas()
    columns = {n: _texts(rows[n]) if n in texts else others[n] for n in rows.column_names}
    return pd.DataFrame(columns, copy=False)


def curves_frame(tables: Iterable[pa.Table], cells: pd.Series) -> pd.DataFrame:
    """Return the rows of some cells in order of cell and round, each once, ``extra`` as columns of its own.

    Where nobody else holds the tables, each of their columns is let go when it stands in the frame.
    """
    parts = [expand_extra(table) for table in tables] or [expand_extra(CURVES.empty_table())]
    table = pa.concat_tables(parts, promote_options="default")
    del tables, parts
    count = 8 * table.num_rows * table.num_columns
    check_fits("results", "the table of all curves", count, "read some with raybench.analysis")
    fixed = [name for name in CURVES.names if name in table.column_names]
    names = fixed + sorted(set(table.column_names) - set(fixed))
    place = {cell: j for j, cell in enumerate(sorted(cells))}
    codes, texts = coded(table["cell"])
    numbers = np.array([*(place.get(text, -1) for text in texts), -1], np.int32)[codes]
    order = in_order(numbers, table["round"].to_numpy())
    arrays = {name: table[name] for name in names}
    del table
    columns: dict[str, object] = {}
    for name in names:
        values = arrays.pop(name)
        is_text = _is_text(values.type)
        columns[name] = _texts(values, order) if is_text else values.to_numpy()[order]
    return pd.DataFrame(columns, copy=False)


def in_order(cell: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return the places of rows in order of cell and round, each once, without those of no cell (-1)."""
    places = np.flatnonzero(cell >= 0)
    cell, at = cell[places], at[places]
    step = np.diff(cell)
    if not ((step > 0) | ((step == 0) & (np.diff(at) > 0))).all():
        order = np.lexsort((at, cell))
        same = (np.diff(cell[order]) == 0) & (np.diff(at[order]) == 0)
        # a cell that stands in two shards is read once
        places = places[order][np.append(True, ~same)]
    return places


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_dictionary(kind)


def coded(values: pa.ChunkedArray) -> tuple[np.ndarray, list[str]]:
    """Return a column of texts as places in a list of its distinct texts, -1 for null."""
    values = values.dictionary_encode().unify_dictionaries()
    if not values.num_chunks:
        return np.empty(0, np.int32), []
    codes = [c.indices.fill_null(-1).to_numpy(zero_copy_only=False) for c in values.chunks]
    return np.concatenate(codes), values.chunk(0).dictionary.to_pylist()


def _texts(values: pa.ChunkedArray, order: np.ndarray | None = None) -> ExtensionArray:
    """Return texts, in an order, as pandas holds them; rows with the same text point to the same object."""
    codes, texts = coded(values)
    kind = pd.Series(["a"]).dtype  # object before pandas 3
    if isinstance(kind, pd.StringDtype):
        kind = pd.StringDtype("python", na_value=kind.na_value)
    return pd.array([*texts, None], dtype=kind).take(codes if order is None else codes[order])
