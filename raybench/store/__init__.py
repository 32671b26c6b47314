"""The store: results as Parquet folders that any reader can open at every moment.

Light on import: ``Accounting`` needs neither pyarrow nor pandas, the rest is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "Accounting": "accounting",
    "rebook": "booking",
    "CELLS": "schema",
    "CURVES": "schema",
    "SCHEMA_VERSION": "schema",
    "UPGRADES": "upgrades",
    "Store": "writer",
    "encode": "table",
    "shard_name": "writer",
    "to_table": "table",
    "cells": "reader",
    "load": "reader",
    "sweep": "reader",
    "compact": "combine",
    "merge": "combine",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'raybench.store' has no attribute {name!r}")
    return getattr(importlib.import_module(f"raybench.store.{_WHERE[name]}"), name)
