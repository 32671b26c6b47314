"""The two pinned Parquet schemas and their version."""

from __future__ import annotations

import importlib.metadata

import pyarrow as pa

from raybench.core.counts import Counts

SCHEMA_VERSION = 2
VERSION_KEY = b"raybench_schema"
SIDES = ("up", "down")


def _fields(names: str, kind: pa.DataType) -> list[pa.Field]:
    return [pa.field(name, kind) for name in names.split()]


_text, _whole, _real = pa.string(), pa.int64(), pa.float64()

CURVES = pa.schema(
    _fields("cell label problem dataset", _text)
    + _fields("clients", _whole)
    + _fields("algorithm compressor", _text)
    + _fields("k", _whole)
    + _fields("step_size step_multiple", _real)
    + _fields("seed round", _whole)
    + _fields("epoch grad_evals bits_up bits_down bytes_up bytes_down", _real)
    + _fields("bytes_up_max messages_up messages_down", _real)
    + _fields("values_up index_explicit_up index_auto_up raw_bits_up", _real)
    + _fields("values_down index_explicit_down index_auto_down raw_bits_down", _real)
    + _fields("loss grad_norm_sq suboptimality mean_client_grad_norm_sq", _real)
    + _fields("consensus_error estimator_error_sq accuracy test_loss", _real)
    + _fields("seconds seconds_gradient seconds_compress seconds_communicate", _real)
    + [pa.field("extra", pa.map_(_text, _real))]
)
"""One row per recorded round of a cell: counts are cumulative means per client, unknown is null."""

CELLS = pa.schema(
    _fields("cell group label status error reason problem dataset", _text)
    + _fields("clients", _whole)
    + _fields("split algorithm compressor compressor_params downlink", _text)
    + _fields("k", _whole)
    + _fields("step_size step_multiple theory_step", _real)
    + _fields("seed rounds", _whole)
    + _fields("loss grad_norm_sq best_grad_norm_sq accuracy", _real)
    + _fields("bits_up bits_down bytes_up bytes_down seconds", _real)
    + _fields("d", _whole)
    + _fields("L L_tilde L_pm mu f_star heterogeneity", _real)
    + _fields("constants", _text)
    + _fields("omega alpha", _real)
    + _fields("workers", _whole)
    + _fields("mode device batch", _text)
    + _fields("batch_cells peak_memory", _whole)
    + _fields("config", _text)
    + _fields("attempts", _whole)
    + [pa.field("started", pa.timestamp("us", tz="UTC"))]
    + _fields("host raybench_version git_commit ray_version torch_version python_version", _text)
)
"""One row per planned cell: how it ended, its last values, its problem's constants, its config."""


def column(count: str, side: str) -> str:
    """Return the column of a count of ``Counts`` on a side (up, down), or its key in ``extra``."""
    return f"{'raw_bits' if count == 'raw' else count}_{side}"


EXTRA_COUNTS = tuple(
    name
    for side in SIDES
    for count in Counts._fields
    if (name := column(count, side)) not in CURVES.names
)
"""Counts without a column of their own: keys of the map ``extra``, absent where zero."""

STATUSES = ("ok", "diverged", "failed", "skipped", "pruned")


def raybench_version() -> str:
    """Return the installed version of raybench, ``unknown`` where it runs uninstalled."""
    try:
        return importlib.metadata.version("raybench")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def stamped(schema: pa.Schema) -> pa.Schema:
    """Return ``schema`` with schema version and raybench version as file metadata."""
    return schema.with_metadata(
        {VERSION_KEY: str(SCHEMA_VERSION), b"raybench_version": raybench_version()}
    )


def version_of(schema: pa.Schema) -> int:
    """Return the schema version a file bears; 1 for a file written without one."""
    said = (schema.metadata or {}).get(VERSION_KEY, b"1")
    return int(said) if said.isdigit() else 1
