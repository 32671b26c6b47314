"""Tables of a user's own, CSV or Parquet: which column is the label, which tells the client, which are features."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raybench.core.errors import InputError, nearest
from raybench.core.limits import check_fits

DATASET_KEY, LABEL_KEY, CLIENT_KEY = "problem.dataset", "problem.label", "problem.split.column"
SEPARATORS = {".csv": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")
KINDS = (*SEPARATORS, *PARQUET)
INDEX = re.compile(
    r"__index_level_\d+__"
)  # how pandas saves the names of rows, which are no feature
LABELS = ("label", "target", "y")  # columns that are the label where nobody says which is
NOT_TEXT = {
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"PK\x03\x04": "a zip archive, as .npz and .xlsx are",
}


@dataclass(frozen=True, eq=False)
class Table:
    """Features (N, d) in float64, labels (N,) as numbers or text, the client of each row (N,), names of features.

    clients: None where no column was asked for. names: None where features have none.
    """

    features: Any
    labels: np.ndarray
    clients: np.ndarray | None = None
    names: tuple[str, ...] | None = None


def kind_of(path: Path) -> str:
    """Return the ending that says what a file holds: ``.csv`` of ``a.csv.gz``."""
    packed = path.suffix in (".gz", ".bz2", ".xz")
    return (Path(path.stem).suffix if packed else path.suffix).lower()


def parse(content: bytes, path: Path, label: str | None, client: str | None) -> Table:
    """Return the table that a file's decompressed content holds.

    label: the column of labels, else the first of ``LABELS`` that is there. client: the column that tells
    which client has a row, or None. All other columns are features: numbers and truth values as they
    are, categories (of Parquet) as a column of 0 and 1 each.

    Raises InputError, naming file and column, for what is no such file, is empty, lacks a column, or has
    values that are missing, not finite, or text where a number should be.
    """
    kind = kind_of(path)
    frame = _parquet(content, path) if kind in PARQUET else _text(content, path, SEPARATORS[kind])
    return of_frame(frame, path.name, label, client, first=0 if kind in PARQUET else 2)


def of_frame(
    frame: Any, where: str, label: str | None, client: str | None, *, first: int = 0
) -> Table:
    """Return the table of a pandas frame; ``first`` is the number of its first row in messages."""
    import pandas as pd

    frame.columns = [str(name) for name in frame.columns]
    names = list(frame.columns)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        fail(f"{where} has two columns {twice!r}", "give each a name of its own")
    if not len(frame):
        fail(f"{where} has columns and no rows", "give it rows")
    asked = _label(names, where, label)
    if client is not None and client not in names:
        fail(f"{where} has no column {client!r}", _columns(client, names), CLIENT_KEY)
    if client == asked:
        what = f"column {asked!r} of {where} is the label, and cannot tell the client as well"
        fail(what, "name another with label", CLIENT_KEY)
    frame = frame.reset_index(drop=True)
    for name in names:
        missing = np.flatnonzero(frame[name].isna().to_numpy())
        if len(missing):
            what = f"column {name!r} of {where} lacks a value in row {missing[0] + first}"
            more = f" ({len(missing):,} rows in all)" if len(missing) > 1 else ""
            fail(what + more, "fill it, or leave the row or the column out")
    values = {name: frame[name] for name in names if name not in (asked, client)}
    if not values:
        fail(f"{where} has no column of features", "a row is a label and numbers")
    wide = sum(len(v.cat.categories) if _categorical(v) else 1 for v in values.values())
    what = f"{where}: {len(frame):,} rows and {wide:,} features in float64"
    check_fits(DATASET_KEY, what, 8 * len(frame) * wide, "take fewer rows")
    parts, heads = [], []
    for name, column in values.items():
        if _categorical(column):
            shown = pd.get_dummies(column, dtype=float)
            heads += [f"{name}={category}" for category in shown.columns]
            parts.append(shown.to_numpy())
        else:
            heads.append(name)
            parts.append(_numbers(column, name, where, first)[:, None])
    labels = _plain(frame[asked])
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        fail(f"column {asked!r} of {where} holds a label that is not finite", "clean it first")
    clients = None if client is None else _plain(frame[client])
    return Table(np.hstack(parts), labels, clients, tuple(heads))


def fail(what: str, fix: str, key: str = DATASET_KEY) -> None:
    """Raise InputError."""
    raise InputError.of(key, what, fix)


def _label(names: list[str], where: str, label: str | None) -> str:
    if label is not None:
        if label not in names:
            fail(f"{where} has no column {label!r}", _columns(label, names), LABEL_KEY)
        return label
    found = next((name for name in LABELS if name in names), None)
    if found is None:
        what = f"{where} has no column {', '.join(LABELS[:-1])} or {LABELS[-1]}"
        fail(what, f"say which is the label, label: NAME; {_columns('', names)}", LABEL_KEY)
    assert found is not None
    return found


def _columns(asked: str, names: list[str]) -> str:
    near = nearest(asked, names) if asked else ""
    if near.startswith("did you mean"):
        return near
    return "its columns are " + ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")


def _categorical(column: Any) -> bool:
    import pandas as pd

    return isinstance(column.dtype, pd.CategoricalDtype)


def _numbers(column: Any, name: str, where: str, first: int) -> np.ndarray:
    """Return a column of features in float64, (N,)."""
    import pandas as pd

    plain = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column)
    if not plain:
        numbers = (
            pd.to_numeric(column, errors="coerce") if pd.api.types.is_string_dtype(column) else None
        )
        row = 0 if numbers is None else int(np.flatnonzero(numbers.isna().to_numpy())[:1].sum())
        kind = "text" if isinstance(column.iloc[row], str) else f"{column.dtype}"
        shown = str(column.iloc[row])[:30]
        what = f"column {name!r} of {where} holds {kind}, {shown!r} in row {row + first}"
        fix = (
            f"label: {name} if it is the label, split: {{column: {name}}} if it tells the client; "
        )
        dummies = f"pandas.get_dummies(frame, columns=[{name!r}], dtype=float)"
        fail(what, f"{fix}else a column of 0 and 1 for each text, {dummies}, or leave it out")
    values = column.to_numpy(dtype=float)
    odd = np.flatnonzero(~np.isfinite(values))
    if len(odd):
        what = f"column {name!r} of {where} is not finite in row {odd[0] + first}"
        fail(what, "clean it first")
    return values


def _plain(column: Any) -> np.ndarray:
    """Return a column of labels or clients: float64 where it is of numbers, else text."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column):
        return column.to_numpy(dtype=float)
    return np.array([str(value) for value in column])


# Reading -------------------------------------------------------------------------------------------


def _text(content: bytes, path: Path, separator: str) -> Any:
    import pandas as pd

    where = path.name
    start = next((kind for magic, kind in NOT_TEXT.items() if content.startswith(magic)), None)
    if start or b"\0" in content[:4096]:
        what = f"{where} is no text" + (f", but {start}" if start else "")
        fail(what, "name the file by what it is: .csv, .tsv, .parquet or .npz")
    if not content.strip():
        fail(f"{where} is empty", "give a line of column names, and a line per row")
    try:
        frame = pd.read_csv(
            io.BytesIO(content), sep=separator, encoding="utf-8-sig", index_col=False
        )
    except UnicodeDecodeError:
        fail(f"{where} is not UTF-8 text", "save it in UTF-8")
    except (ValueError, OverflowError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        said = re.sub(r"\s+", " ", str(error)).removeprefix("Error tokenizing data. C error: ")
        fail(f"{where}: {said[:150]}", "every line has as many entries as the line of names")
    blank = next((i for i, n in enumerate(frame, 1) if str(n).startswith("Unnamed: ")), None)
    if blank is not None:
        what = f"column {blank} of {where} has no name"
        fail(what, "name it; if it numbers the rows leave it out: to_csv(file, index=False)")
    if len(frame.columns) > 1 and all(_numeric(name) for name in frame.columns):
        what = f"{where} starts with a line of numbers, not of column names"
        fail(what, "write the names into its first line, the label's as label")
    return frame


def _numeric(name: object) -> bool:
    try:
        float(str(name))
    except ValueError:
        return False
    return True


def _parquet(content: bytes, path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    where = path.name
    if not content.startswith(b"PAR1"):
        fail(f"{where} is not Parquet", "write it with to_parquet, or name it .csv if it is text")
    try:
        file = pq.ParquetFile(io.BytesIO(content))
        told = file.metadata
        unpacked = sum(told.row_group(i).total_byte_size for i in range(told.num_row_groups))
        most = max(unpacked, 8 * told.num_rows * told.num_columns)
        check_fits(DATASET_KEY, f"{where} unpacked", most, "take fewer rows")
        frame = file.read().to_pandas(ignore_metadata=True)
        return frame.loc[:, [name for name in frame if not INDEX.fullmatch(str(name))]]
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        if isinstance(error, InputError):
            raise
        said = re.sub(r"\s+", " ", str(error))
        raise InputError.of(
            DATASET_KEY, f"cannot read {where}: {said[:150]}", "write it again"
        ) from error
