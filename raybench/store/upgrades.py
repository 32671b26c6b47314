"""How files of older versions of the schema are brought up to date when they are read."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from raybench.store.schema import CURVES, SCHEMA_VERSION, SIDES, column
from raybench.store.table import expand_extra, extra_map


def _as_packed_is_unknown(table: pa.Table) -> pa.Table:
    """Return a table of version 1 as one of version 2.

    In version 1 ``index_auto_*`` counted the shorter of a list and a bitmask. That is the count
    ``index_list_or_bitmask_*`` in ``extra`` now, and how many bits were packed is not known.
    """
    if "round" not in table.column_names:  # a table of cells, which has no counts
        return table
    moved = {column("index_auto", s): column("index_list_or_bitmask", s) for s in SIDES}
    if "extra" in table.column_names:
        at, field = table.column_names.index("extra"), CURVES.field("extra")
        table = expand_extra(table.set_column(at, field, table["extra"].cast(field.type)))
    table = table.rename_columns(
        [f"extra.{moved[name]}" if name in moved else name for name in table.column_names]
    )
    names = [name for name in table.column_names if name.startswith("extra.")]
    extra = extra_map({n.removeprefix("extra."): table[n] for n in names}, len(table))
    return table.drop_columns(names).append_column("extra", extra)


UPGRADES: dict[int, Callable[[pa.Table], pa.Table]] = {1: _as_packed_is_unknown}
"""{version: table of that version -> table of the next}; a curves table has a column ``round``."""


def upgrade(table: pa.Table, version: int, schema: pa.Schema) -> pa.Table:
    """Return ``table`` of an older ``version`` in today's ``schema``; columns it lacks are null.

    Raises ArrowException or ValueError if it is no table of that version.
    """
    for step in range(version, SCHEMA_VERSION):
        table = UPGRADES[step](table)
    for field in schema:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table.select(schema.names).cast(schema)
