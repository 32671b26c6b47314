"""Results folders as raybench wrote them in version 1 of the schema."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from raybench.store import Store
from raybench.store.table import expand_extra, extra_map

COLUMNS = [
    "cell",
    "label",
    "problem",
    "dataset",
    "clients",
    "algorithm",
    "compressor",
    "k",
    "step_size",
    "step_multiple",
    "seed",
    "round",
    "epoch",
    "grad_evals",
    "bits_up",
    "bits_down",
    "bytes_up",
    "bytes_down",
    "values_up",
    "index_explicit_up",
    "index_auto_up",
    "raw_bits_up",
    "values_down",
    "index_explicit_down",
    "index_auto_down",
    "raw_bits_down",
    "loss",
    "grad_norm_sq",
    "suboptimality",
    "mean_client_grad_norm_sq",
    "consensus_error",
    "estimator_error_sq",
    "accuracy",
    "test_loss",
    "seconds",
    "seconds_gradient",
    "seconds_compress",
    "seconds_communicate",
    "extra",
]
"""The columns of ``curves`` in version 1, where ``index_auto_*`` was the shorter of list and bitmask."""


def as_version_one(folder) -> None:
    """Rewrite a folder, whose bits are booked by ``list_or_bitmask``, as version 1 would have it."""
    files = Store(folder).files
    for name in files.names("curves"):
        table = expand_extra(pq.read_table(files.path(f"curves/{name}")))
        for side in ("up", "down"):
            old, counted = f"index_auto_{side}", f"extra.index_list_or_bitmask_{side}"
            bits = pa.array([0.0] * len(table))
            if counted in table.column_names:
                bits = table[counted].fill_null(0.0)
                table = table.drop_columns([counted])
            table = table.set_column(table.column_names.index(old), old, bits)
        others = [n for n in table.column_names if n.startswith("extra.")]
        extra = extra_map({n.removeprefix("extra."): table[n] for n in others}, len(table))
        _write(table.append_column("extra", extra).select(COLUMNS), files.path(f"curves/{name}"))
    for name in files.names("cells"):
        _write(pq.read_table(files.path(f"cells/{name}")), files.path(f"cells/{name}"))
    text = files.read("sweep.yaml")
    if text is not None:  # version 1 called this code auto
        files.write("sweep.yaml", text.replace(b"list_or_bitmask", b"auto"))


def _write(table: pa.Table, path: str) -> None:
    pq.write_table(table.replace_schema_metadata({"raybench_schema": "1"}), path)
