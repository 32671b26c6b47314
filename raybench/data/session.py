"""Arrays and frames of a Python session as files, so that every worker has them and ids name their content."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from raybench.core.errors import InputError
from raybench.core.limits import check_fits
from raybench.data.catalogue import EMBEDDED, LIBSVM_SETS
from raybench.data.files import DATASET_KEY, input_errors, renamed
from raybench.data.tables import CATEGORIES, EXACT, Table, frame_of, values_of

FORMS = "(X, y), (X, y, client), a mapping of arrays by name, or a pandas or Polars frame"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
TUPLE = ("X", "y", "client")
WHEN = (1980, 1, 1, 0, 0, 0)  # of every entry, so that equal data make equal files


def packed(name: str, source: Any) -> bytes:
    """Return the ``.npz`` of a data set: equal arrays have equal bytes, at any time and by any version of numpy.

    source: one of ``FORMS``; client: which client has each row, for ``split: {column: client}``. Raises
    InputError, naming ``data.NAME``, for another form, and for arrays of what is neither number nor text.
    """
    where = f"data.{name}"
    if not NAME.fullmatch(name):
        raise InputError.of(where, "is no name for data", "letters, digits, - and _")
    if name in LIBSVM_SETS or name in EMBEDDED:
        raise InputError.of(where, "is a data set that raybench knows", "take another name")
    arrays = {key: _plain(value, f"{where}.{key}") for key, value in _arrays(source, where).items()}
    lengths = {key: len(value) if value.ndim else 0 for key, value in arrays.items()}
    rows = {key: length for key, length in lengths.items() if key != CATEGORIES}
    if len(set(rows.values())) > 1:
        some = ", ".join(f"{key} {count:,}" for key, count in list(rows.items())[:6])
        raise InputError.of(where, f"arrays of different lengths: {some}", "one entry per row")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for key, value in arrays.items():
            entry = io.BytesIO()
            np.lib.format.write_array(entry, value, version=(1, 0), allow_pickle=False)
            file.writestr(zipfile.ZipInfo(f"{key}.npy", WHEN), entry.getvalue())
    return out.getvalue()


def save(data: Mapping[str, Any], folder: Path) -> tuple[dict[str, Path], list[Path]]:
    """Write data sets below a folder and return their files by name, and those of them that were not there.

    A file is ``<folder>/<hash of its content>/<name>.npz``. Raises InputError (see ``packed``) with nothing written.
    """
    content = {name: packed(name, value) for name, value in data.items()}
    files, new = {}, []
    for name, archive in content.items():
        path = folder / hashlib.sha256(archive).hexdigest()[:12] / f"{name}.npz"
        files[name] = path
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".new")
            part.write_bytes(archive)
            part.replace(path)
            new.append(path)
    return files, new


def _arrays(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, tuple) and 2 <= len(value) <= 3:
        return dict(zip(TUPLE, value))
    if isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value):
        return dict(value)
    if hasattr(value, "columns") or hasattr(value, "__arrow_c_stream__"):
        return _columns(frame_of(value, where))
    what = f"{type(value).__name__} is no data set"
    raise InputError.of(where, what, f"give {FORMS}")


def _columns(table: Table) -> dict[str, Any]:
    """Return the columns of a frame in memory as arrays, and the names of those that are categories."""
    import pyarrow.types as kinds

    arrow, columns = table.arrow, {}
    for name, kind in zip(arrow.column_names, arrow.schema.types):
        if arrow[name].null_count:
            row = arrow[name].is_null().to_pylist().index(True)
            what = f"lacks a value in row {row}"
            raise InputError.of(f"{table.where}.{name}", what, "fill it, or leave it out")
        plain = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind)
        text = kinds.is_string(kind) or kinds.is_large_string(
            kind
        )  # stays text, also where it spells numbers
        with renamed(DATASET_KEY, table.where):
            keep = plain or text
            columns[name] = arrow[name].to_numpy() if keep else values_of(arrow[name], name)
    coded = [n for n, t in zip(arrow.column_names, arrow.schema.types) if kinds.is_dictionary(t)]
    return columns | ({CATEGORIES: np.array(sorted(coded))} if coded else {})


def _plain(value: Any, where: str) -> np.ndarray:
    """Return an array of numbers in float64, of integers in 64 bits where that would round them, or of text."""
    if hasattr(value, "tocsr"):
        fix = "give X.toarray(), or write a LIBSVM file (sklearn.datasets.dump_svmlight_file)"
        raise InputError.of(where, "is a sparse matrix", fix)
    if hasattr(value, "isna") and value.isna().any():
        row = int(np.flatnonzero(np.asarray(value.isna()).reshape(len(value), -1).any(1))[0])
        raise InputError.of(where, f"lacks a value in row {row}", "fill it, or leave it out")
    with input_errors(
        where, where, "numbers, or text for labels and clients; of a tensor t.detach()"
    ):
        array = np.asarray(value)
    if array.dtype.kind in "biuf":
        rounded = (
            array.dtype.kind in "iu" and array.size and max(array.max(), -int(array.min())) > EXACT
        )
        return np.ascontiguousarray(array, dtype=f"<{array.dtype.kind}8" if rounded else "<f8")
    odd = [value for value in array.flat if not isinstance(value, str)]
    if odd or array.dtype.kind not in "UO":
        such = f", such as {odd[0]!r}"[:60] if array.dtype.kind == "O" else ""
        what = f"holds {array.dtype}{such}"
        raise InputError.of(where, what, "numbers, or text for labels and clients")
    longest = max(map(len, array.flat), default=1)  # equal texts make equal files
    check_fits(where, f"text of {longest:,} letters", 4 * longest * array.size, "shorten the names")
    return np.ascontiguousarray(array.astype(str)).astype(f"<U{max(1, longest)}")
