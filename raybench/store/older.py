"""Cells of an older version of the schema, in today's columns: the one place that takes facts from a configuration."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from raybench.core.counts import GATHER, MIX
from raybench.store.schema import CELLS

OLDEST = 3
"""The first version that is read: a folder that is written to has today's alone."""
SINCE_4 = ("value_bits", "exchange", "on_clock", "baseline")
WIDTHS = {"float32": 32, "float16": 16, "bfloat16": 16}


def filled(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return cells of schema 3, ``config`` among their columns, with columns that schema 4 has added."""
    facts = [_facts(json.loads(text or "{}")) for text in table["config"].to_pylist()]
    for name in names:
        values = pa.array([row[name] for row in facts], CELLS.field(name).type)
        table = table.append_column(name, values)
    return table


def _facts(config: dict[str, Any]) -> dict[str, Any]:
    method, operator, problem = (
        config.get(part) or {} for part in ("algorithm", "compressor", "problem")
    )
    plain = operator.get("name") in (None, "identity")
    asked = operator.get("params", {}).get("collective", GATHER)
    return {
        "value_bits": WIDTHS.get(str(problem.get("params", {}).get("dtype")), 64),
        "exchange": MIX if config.get("graph") else asked,
        "on_clock": config.get("clock") is not None,
        "baseline": plain and method.get("name") in ("gd", "sgd", "dcgd"),
    }
