"""The store: results as Parquet folders that any reader can open at every moment.

Light on import: ``Accounting`` needs neither pyarrow nor pandas, the rest is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raybench.core import fetching

if TYPE_CHECKING:
    from raybench.store.accounting import Accounting, rebook
    from raybench.store.combine import compact, merge
    from raybench.store.reader import cells, load, sweep
    from raybench.store.schema import CELLS, CURVES, SCHEMA_VERSION
    from raybench.store.table import encode, to_table
    from raybench.store.writer import Store, shard_name

_WHERE = {
    **dict.fromkeys(("Accounting", "rebook"), "accounting"),
    **dict.fromkeys(("CELLS", "CURVES", "SCHEMA_VERSION"), "schema"),
    **dict.fromkeys(("encode", "to_table"), "table"),
    **dict.fromkeys(("Store", "shard_name"), "writer"),
    **dict.fromkeys(("cells", "load", "sweep"), "reader"),
    **dict.fromkeys(("compact", "merge"), "combine"),
}
__all__ = [
    "CELLS",
    "CURVES",
    "SCHEMA_VERSION",
    "Accounting",
    "Store",
    "cells",
    "compact",
    "encode",
    "load",
    "merge",
    "rebook",
    "shard_name",
    "sweep",
    "to_table",
]

__getattr__ = fetching(__name__, _WHERE)
