"""The two pinned Parquet schemas and their version, and cells of an older version in today's columns."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from raybench.core import yaml
from raybench.core.counts import GATHER, MIX, Counts
from raybench.core.errors import InputError

SCHEMA_VERSION = 4
VERSION_KEY = b"raybench_schema"
SIDES = ("up", "down")

_text, _whole, _real, _flag = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_SOFTWARE = ("raybench", "ray", "torch", "python")
_COLUMNS: dict[str, tuple[pa.DataType, str, str]] = {
    "cell": (_text, "", "id of the cell, a hash of what was requested"),
    "group": (_text, "", "id without seed and step: cells to average and tune over"),
    "label": (_text, "", "the method: algorithm, compressor, the parameters that matter"),
    "status": (_text, "", "ok, diverged, failed, skipped or pruned"),
    "error": (_text, "", "of a failed cell: the end of the traceback"),
    "reason": (_text, "", "of a skipped or pruned cell: why"),
    "problem": (_text, "", "name of the problem"),
    "dataset": (_text, "", "name of the data, null for synthetic problems"),
    "clients": (_whole, "1", "n"),
    "split": (_text, "", "of the data over clients: a name, or a mapping as JSON"),
    "algorithm": (_text, "", "name of the algorithm"),
    "compressor": (_text, "", "name of the uplink compressor, null without one"),
    "compressor_params": (_text, "", "its parameters as JSON"),
    "downlink": (_text, "", "name of the downlink compressor"),
    "k": (_whole, "coordinates", "K, a share resolved to a number"),
    "step_size": (_real, "", "gamma"),
    "step_multiple": (_real, "1", "gamma over the theoretical step"),
    "theory_step": (_real, "", "the theoretical step, null without one"),
    "seed": (_whole, "", "of the algorithm and x0"),
    "round": (_whole, "rounds", "t; row 0 is x^0 with the initial messages booked"),
    "rounds": (_whole, "rounds", "rounds done"),
    "epoch": (_real, "passes", "grad_evals over a mean client's samples"),
    "grad_evals": (_real, "samples", "gradients of single samples, mean per client"),
    "bits_up": (_real, "bits", "sent under the sweep's accounting, mean per client"),
    "bits_down": (_real, "bits", "broadcast under the sweep's accounting"),
    "bytes_up": (_real, "bytes", "of packed messages sent, mean per client"),
    "bytes_down": (_real, "bytes", "of packed messages broadcast"),
    "bytes_up_max": (_real, "bytes", "each round's largest client, summed"),
    "messages_up": (_real, "messages", "sent, mean per client"),
    "messages_down": (_real, "messages", "broadcast, or mean sent to a client"),
    "values_up": (_real, "values", "of full width sent, mean per client"),
    "index_explicit_up": (_real, "bits", "indices sent, as lists"),
    "index_auto_up": (_real, "bits", "indices sent, as packed"),
    "raw_bits_up": (_real, "bits", "sent that no accounting changes"),
    "values_down": (_real, "values", "of full width broadcast"),
    "index_explicit_down": (_real, "bits", "indices broadcast, as lists"),
    "index_auto_down": (_real, "bits", "indices broadcast, as packed"),
    "raw_bits_down": (_real, "bits", "broadcast that no accounting changes"),
    "loss": (_real, "", "f(x^t)"),
    "grad_norm_sq": (_real, "", "||grad f(x^t)||^2"),
    "best_grad_norm_sq": (_real, "", "smallest ||grad f(x^t)||^2 recorded"),
    "suboptimality": (_real, "", "f(x^t) - f*"),
    "mean_client_grad_norm_sq": (_real, "", "mean_i ||grad f_i(x^t)||^2"),
    "consensus_error": (_real, "", "mean_i ||x_i - mean x||^2"),
    "estimator_error_sq": (_real, "", "||g^t - grad f(x^t)||^2"),
    "accuracy": (_real, "1", "share of rows classified rightly"),
    "test_loss": (_real, "", "mean loss on the test part"),
    "clock_seconds": (_real, "s", "simulated time at which the row was reached"),
    "seconds": (_real, "s", "wall time, over the active cells of the batch"),
    "seconds_gradient": (_real, "s", "of it: gradients"),
    "seconds_compress": (_real, "s", "of it: compression"),
    "seconds_communicate": (_real, "s", "of it: communication"),
    "extra": (pa.map_(_text, _real), "", "metrics of one's own, further counts"),
    "d": (_whole, "coordinates", "length of the iterate"),
    "L": (_real, "", "smoothness of f"),
    "L_tilde": (_real, "", "sqrt(mean_i L_i^2)"),
    "L_pm": (_real, "", "L_+-, the Hessian variance's root"),
    "mu": (_real, "", "strong convexity or PL constant"),
    "f_star": (_real, "", "minimum of f, known or given"),
    "heterogeneity": (_real, "", "mean_i ||grad f_i(x*)||^2"),
    "constants": (_text, "", "all constants as JSON"),
    "omega": (_real, "1", "variance of the uplink compressor as used"),
    "alpha": (_real, "1", "contraction of the uplink compressor as used"),
    "workers": (_whole, "1", "processes that hosted the clients"),
    "mode": (_text, "", "simulate or train"),
    "device": (_text, "", "cpu or cuda"),
    "value_bits": (_whole, "bits", "width of a value"),
    "exchange": (_text, "", "what became of messages: gather, reduce, all_to_all, mix or server"),
    "on_clock": (_flag, "", "whether clients were simulated on a clock"),
    "baseline": (_flag, "", "whether the method is the uncompressed one to compare with"),
    "batch": (_text, "", "name of the batch it ran in"),
    "batch_cells": (_whole, "1", "cells of that batch"),
    "peak_memory": (_whole, "bytes", "of the process"),
    "config": (_text, "", "the resolved cell as JSON"),
    "attempts": (_whole, "1", "how often its batch was tried"),
    "started": (pa.timestamp("us", tz="UTC"), "", "when it began"),
    "host": (_text, "", "where it ran"),
    "git_commit": (_text, "", "of raybench's repository"),
    **{f"{name}_version": (_text, "", "what it ran with") for name in _SOFTWARE},
}
"""{column: (type, unit, description)}; the unit is 1 for counts and ratios, empty where there is none to name."""


def _schema(names: str) -> pa.Schema:
    columns = [(name, *_COLUMNS[name]) for name in names.split()]
    return pa.schema(
        pa.field(name, kind, metadata={"description": description, "unit": unit})
        for name, kind, unit, description in columns
    )


CURVES = _schema("""
    cell group label problem dataset clients split algorithm compressor k step_size step_multiple seed
    round epoch grad_evals bits_up bits_down bytes_up bytes_down bytes_up_max messages_up messages_down
    values_up index_explicit_up index_auto_up raw_bits_up
    values_down index_explicit_down index_auto_down raw_bits_down
    loss grad_norm_sq suboptimality mean_client_grad_norm_sq consensus_error estimator_error_sq
    accuracy test_loss clock_seconds seconds seconds_gradient seconds_compress seconds_communicate extra
""")
"""One row per recorded round of a cell: counts are cumulative means per client, unknown is null."""

CELLS = _schema("""
    cell group label status error reason problem dataset clients split algorithm compressor compressor_params
    downlink k step_size step_multiple theory_step seed rounds loss grad_norm_sq best_grad_norm_sq accuracy
    bits_up bits_down bytes_up bytes_down seconds d L L_tilde L_pm mu f_star heterogeneity constants
    omega alpha workers mode device value_bits exchange on_clock baseline batch batch_cells peak_memory config attempts started host
    raybench_version git_commit ray_version torch_version python_version
""")
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


@functools.cache
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
    """Return the schema version that a file bears, 0 where it bears none."""
    version = (schema.metadata or {}).get(VERSION_KEY, b"")
    return int(version) if version.isdigit() else 0


# Configurations, and cells of an older version: the one place that takes facts from them ---------------

OLDEST = 3
"""The first version that is read: a folder that is written to has today's alone."""
SINCE_4 = ("value_bits", "exchange", "on_clock", "baseline")
WIDTHS = {"float32": 32, "float16": 16, "bfloat16": 16}


def config_of(text: object) -> dict[str, Any]:
    """Return a cell's config (JSON), empty where it has none: the one reader. Raises InputError where it is none of a cell."""
    if not (isinstance(text, str) and text):
        return {}
    where, fix = "config of a cell", "raybench verify DIR names the file"
    try:
        config = yaml.from_json(text, where, fix, dict)
        parts = (config.get(p) or {} for p in ("problem", "algorithm", "compressor", "downlink"))
        are_sections = all(isinstance((part.get("params") or {}), dict) for part in parts)
        plugins = config.get("plugins", [])
        facts = ("version", "source", "title")  # an older raybench wrote more
        words = [w for p in plugins for w in (p["kind"], p["name"], *map(p.get, facts))]
        if not (are_sections and all(isinstance(word, str | None) for word in words)):
            raise TypeError(config)
    except (InputError, AttributeError, TypeError, KeyError) as error:
        raise InputError.of(where, "is not as it was written", fix) from error
    return config


def with_later_columns(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return cells of schema 3, ``config`` among their columns, with columns that schema 4 has added."""
    facts = [_facts(config_of(text)) for text in table["config"].to_pylist()]
    for name in names:
        values = pa.array([row[name] for row in facts], CELLS.field(name).type)
        table = table.append_column(name, values)
    return table


def _facts(config: dict[str, Any]) -> dict[str, Any]:
    method, compressor, problem = (
        config.get(part) or {} for part in ("algorithm", "compressor", "problem")
    )
    plain = compressor.get("name") in (None, "identity")
    asked = compressor.get("params", {}).get("collective", GATHER)
    return {
        "value_bits": WIDTHS.get(str(problem.get("params", {}).get("dtype")), 64),
        "exchange": MIX if config.get("graph") else asked,
        "on_clock": config.get("clock") is not None,
        "baseline": plain and method.get("name") in ("gd", "sgd", "dcgd"),
    }
