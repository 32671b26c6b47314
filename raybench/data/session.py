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
from raybench.core.safe_files import replacement
from raybench.data.catalogue import EMBEDDED, LIBSVM_SETS
from raybench.data.files import DATASET_KEY, NUMBERS, input_errors, renamed
from raybench.data.tables import CATEGORIES, EXACT, Table, frame_of, is_text, values_of

FORMS = "(X, y), (X, y, client), a mapping of arrays by name, or a pandas or Polars frame"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
WHEN = (1980, 1, 1, 0, 0, 0)  # of every entry, so that equal data make equal files


def packed(name: str, source: Any) -> bytes:
    """Return the ``.npz`` of a data set: equal arrays have equal bytes, at any time and by any version of numpy.

    source: one of ``FORMS``; client: which client has each row, for ``split: {column: client}``. Raises InputError,
    naming ``data.NAME``, for another form, and for arrays of what is neither number nor text.
    """
    where = f"data.{name}"
    if not NAME.fullmatch(name) or name in LIBSVM_SETS or name in EMBEDDED:
        what = "is no name for data, or the name of a data set that raybench knows"
        raise InputError.of(where, what, "take another name, of letters, digits, - and _")
    arrays = {key: _plain(value, f"{where}.{key}") for key, value in _arrays(source, where).items()}
    rows = {key: len(value) if value.ndim else 0 for key, value in arrays.items()}
    rows.pop(CATEGORIES, None)
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
        files[name] = path = folder / hashlib.sha256(archive).hexdigest()[:12] / f"{name}.npz"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacement(path) as fresh:
                fresh.write_bytes(archive)
            new.append(path)
    return files, new


def _arrays(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, tuple) and 2 <= len(value) <= 3:
        return dict(zip(("X", "y", "client"), value))
    if isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value):
        return dict(value)
    if hasattr(value, "columns") or hasattr(value, "__arrow_c_stream__"):
        return _columns(frame_of(value, where))
    raise InputError.of(where, f"{type(value).__name__} is no data set", f"give {FORMS}")


def _columns(table: Table) -> dict[str, Any]:
    """Return the columns of a frame in memory as arrays, and the names of those that are categories."""
    import pyarrow.types as kinds

    arrow, columns = table.arrow, {}
    for name, kind in zip(arrow.column_names, arrow.schema.types):
        if arrow[name].null_count:
            what = f"lacks a value in row {arrow[name].is_null().index(True)}"
            raise InputError.of(f"{table.where}.{name}", what, "fill it, or leave it out")
        plain = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind)
        plain |= is_text(kind)  # and stays text, also where it spells numbers
        with renamed(DATASET_KEY, table.where):
            columns[name] = arrow[name].to_numpy() if plain else values_of(arrow[name], name)
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
    form = "numbers, or text for labels and clients"
    with input_errors(where, where, f"{form}; of a tensor t.detach()"):
        array = np.asarray(value)
    kind = array.dtype.kind
    if kind in NUMBERS:
        rounded = kind in "iu" and array.size and max(array.max(), -int(array.min())) > EXACT
        return np.ascontiguousarray(array, dtype=f"<{kind}8" if rounded else "<f8")
    odd = [value for value in array.flat if not isinstance(value, str)]
    if odd or kind not in "UO":
        such = f", such as {odd[0]!r}"[:60] if kind == "O" else ""
        raise InputError.of(where, f"holds {array.dtype}{such}", form)
    longest = max(map(len, array.flat), default=1)  # equal texts make equal files
    check_fits(where, f"text of {longest:,} letters", 4 * longest * array.size, "shorten the names")
    return np.ascontiguousarray(array.astype(str)).astype(f"<U{max(1, longest)}")
