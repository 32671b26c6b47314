"""How files of older versions of the schema are brought up to date when they are read."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from raybench.store.schema import SCHEMA_VERSION

UPGRADES: dict[int, Callable[[pa.Table], pa.Table]] = {}
"""{version: table of that version -> table of the next}; a curves table has a column ``round``.

Version 3 is the first that is read.
"""


def readable(version: int) -> bool:
    """Return whether files of a version can be read: they are of today's, or upgrades lead there."""
    return version <= SCHEMA_VERSION and all(v in UPGRADES for v in range(version, SCHEMA_VERSION))


def upgrade(table: pa.Table, version: int, schema: pa.Schema) -> pa.Table:
    """Return ``table`` of a ``readable`` version in today's ``schema``; columns it lacks are null.

    Raises ArrowException or ValueError if it is no table of that version.
    """
    for step in range(version, SCHEMA_VERSION):
        table = UPGRADES[step](table)
    for field in schema:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table.select(schema.names).cast(schema)
