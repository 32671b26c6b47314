"""The store: results as Parquet folders that any reader can open at every moment.

Light on import: ``Accounting`` needs neither pyarrow nor pandas, the rest is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "Accounting": "accounting",
    "rebook": "accounting",
    "CELLS": "schema",
    "CURVES": "schema",
    "SCHEMA_VERSION": "schema",
    "UPGRADES": "schema",
    "Store": "writer",
    "encode": "table",
    "shard_name": "writer",
    "to_table": "table",
    "cells": "reader",
    "load": "reader",
    "sweep": "reader",
    "compact": "merge",
    "merge": "merge",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    module = "raybench.store"
    if name not in _WHERE:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    if name == "merge":  # also the name of its module, which importing binds here
        from raybench.store.merge import merge

        return merge
    return getattr(importlib.import_module(f"{module}.{_WHERE[name]}"), name)
