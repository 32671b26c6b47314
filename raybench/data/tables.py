"""Rows with labels from a file: CSV, Parquet, ``.npz`` and LIBSVM, with the row or column that is wrong."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse

from raybench.core.errors import InputError, cut, nearest
from raybench.core.limits import OPENERS, check_fits, decompressed
from raybench.data.files import (
    DATASET_KEY,
    NPZ_FIX,
    Archive,
    cached,
    data_error,
    input_errors,
    opened,
)

LABEL_KEY, CLIENT_KEY = "problem.label", "problem.split.column"
SEPARATORS = {".csv": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")
INDEX = re.compile(r"__index_level_\d+__")  # how pandas saves the names of rows: no feature
LABELS = ("label", "target", "y")  # columns that are the label where nobody says which is
NOT_TEXT = {
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"PK\x03\x04": "a zip archive, as .npz and .xlsx are",
}
Features: TypeAlias = Any  # ndarray or scipy.sparse.csr_array, (rows, d) in float64
NPZ_FEATURES, NPZ_LABELS = ("X", "features", "images"), ("y", "labels")
VECTORS = 8  # of d numbers that the smallest run holds: iterate, gradients, memory, messages
NO_LIBSVM = (b"PAR1", b"ARROW1", b"SQLite format 3")  # how files begin that people have tables in
LIBSVM_FIX = "give a LIBSVM file: label index:value ..."
MOST_SEARCHED = 1 << 24  # bytes of a file that are looked through for the line that is wrong


@dataclass(frozen=True, eq=False)
class Dataset:
    """Features (N, d) as CSR or ndarray in float64, and the labels (N,) as they were stored, numbers or text."""

    name: str
    features: Features
    labels: np.ndarray
    clients: np.ndarray | None = None  # what the column that tells the client says of each row
    names: tuple[str, ...] | None = None  # of the features, where they have any
    positive: tuple[float | str, ...] | None = None  # labels that count as +1
    sizes: np.ndarray | None = None  # what columns were divided by, for a test set
    classes: np.ndarray = field(default=None)  # type: ignore[arg-type]  # all labels, sorted; by default those here

    def __post_init__(self) -> None:
        if self.classes is None:
            object.__setattr__(self, "classes", np.unique(self.labels))

    @property
    def shape(self) -> tuple[int, int]:
        """Return (rows, features)."""
        return self.features.shape

    def binary(self) -> np.ndarray:
        """Return labels as -1.0 and +1.0: the smaller of two (in sorted order) is -1, or ``positive`` are +1.

        Raises InputError where there are not two classes and ``positive`` does not make two of them.
        """
        key, classes = "problem.positive", self.classes
        if self.positive is None:
            if len(classes) != 2:
                fix = f"say which count as +1, for example positive: [{shown(classes[-1:])}]"
                fix += "; or take problem softmax, for any number of classes"
                what = f"two classes are needed, not {len(classes)} ({shown(classes)})"
                raise data_error(what, fix, key)
            return np.where(self.labels == classes[0], -1.0, 1.0)
        kind: type = str if self.labels.dtype.kind == "U" else float
        positives = [str(p) if kind is str else p for p in self.positive]
        unknown = [p for p in positives if p not in classes.tolist()]
        if unknown or not positives:
            what = f"no label {shown(unknown[:1])}" if unknown else "the list is empty"
            raise data_error(what, f"the labels are {shown(classes)}", key)
        chosen: np.ndarray = np.asarray(positives, kind)
        if np.isin(classes, chosen).all():
            raise data_error("every row would be +1", f"the labels are {shown(classes)}", key)
        return np.where(np.isin(self.labels, chosen), 1.0, -1.0)


def shown(labels: Sequence[Any] | np.ndarray) -> str:
    """Return labels in words, the first ten of many."""
    words = [str(c) if isinstance(c, str) else f"{c:g}" for c in labels[:10]]
    return ", ".join(words) + (", ..." if len(labels) > 10 else "")


@cached(4)
def read(
    files: tuple[Path], name: str, label: str | None, client: str | None, d: int | None = None
) -> Dataset:
    """Return the data set that a file holds, by its ending; LIBSVM without one.

    label: the column of labels, else the first of ``LABELS`` that is there. client: the column that tells
    which client has a row, or None. All other columns are features: numbers and truth values as they
    are, categories (of Parquet) as a column of 0 and 1 each. d: the number of features of a LIBSVM set.

    Raises InputError, naming file and column, for what is no such file, is empty, lacks a column, or has
    values that are missing, not finite, or text where a number should be.
    """
    (path,) = files
    kind = (Path(path.stem) if path.suffix in OPENERS else path).suffix.lower()
    if path.suffix == ".npz":
        return arrays(path, name, label, client)
    content = b"".join(decompressed(path, DATASET_KEY))
    if kind in PARQUET:
        return of_frame(_parquet(content, name), name, label, client)
    if kind in SEPARATORS:
        return of_frame(_text(content, name, SEPARATORS[kind]), name, label, client, first=2)
    without_columns(name, label, client)
    return Dataset(name, *libsvm(content, name, d))


def without_columns(name: str, label: str | None, client: str | None) -> None:
    """Raise InputError where a set whose columns have no names is asked for one."""
    for key, column in ((LABEL_KEY, label), (CLIENT_KEY, client)):
        if column is not None:
            fix = "columns have names in CSV and Parquet, arrays in .npz"
            raise data_error(f"{name} has no column {column!r}", fix, key)


def of_frame(
    frame: Any, where: str, label: str | None, client: str | None, *, first: int = 0
) -> Dataset:
    """Return the data set of a pandas frame; ``first`` is the number of its first row in messages."""
    import pandas as pd

    frame.columns = [str(name) for name in frame.columns]
    names = list(frame.columns)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise data_error(f"{where} has two columns {twice!r}", "give each a name of its own")
    if not len(frame):
        raise data_error(f"{where} has columns and no rows", "give it rows")
    target = _label(names, where, label)
    if client is not None and _there(names, client, where, CLIENT_KEY) == target:
        what = f"column {target!r} of {where} is the label, and cannot tell the client as well"
        raise data_error(what, "name another with label", CLIENT_KEY)
    frame = frame.reset_index(drop=True)
    for name in names:
        missing = np.flatnonzero(frame[name].isna().to_numpy())
        if len(missing):
            what = f"column {name!r} of {where} lacks a value in row {missing[0] + first}"
            more = f" ({len(missing):,} rows in all)" if len(missing) > 1 else ""
            raise data_error(what + more, "fill it, or leave the row or the column out")
    values = {name: frame[name] for name in names if name not in (target, client)}
    if not values:
        raise data_error(f"{where} has no column of features", "a row is a label and numbers")
    wide = sum(len(v.cat.categories) if v.dtype == "category" else 1 for v in values.values())
    what = f"{where}: {len(frame):,} rows and {wide:,} features in float64"
    check_fits(DATASET_KEY, what, 8 * len(frame) * wide, "take fewer rows")
    parts, heads = [], []
    for name, column in values.items():
        if column.dtype == "category":
            dummies = pd.get_dummies(column, dtype=float)
            heads += [f"{name}={category}" for category in dummies.columns]
            parts.append(dummies.to_numpy())
        else:
            heads.append(name)
            parts.append(_numbers(column, name, where, first)[:, None])
    labels = _plain(frame[target])
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise data_error(
            f"column {target!r} of {where} holds a label that is not finite", "clean it first"
        )
    clients = None if client is None else _plain(frame[client])
    return Dataset(where, np.hstack(parts), labels, clients, tuple(heads))


def _label(names: list[str], where: str, label: str | None) -> str:
    if label is not None:
        return _there(names, label, where, LABEL_KEY)
    usual = next((name for name in LABELS if name in names), None)
    if usual is None:
        what = f"{where} has no column {', '.join(LABELS[:-1])} or {LABELS[-1]}"
        fix = f"say which is the label, label: NAME; {nearest('', names)}"
        raise data_error(what, fix, LABEL_KEY)
    return usual


def _there(names: list[str], name: str, where: str, key: str) -> str:
    """Return the name of a column that is asked for; raises InputError where there is none."""
    if name not in names:
        raise data_error(f"{where} has no column {name!r}", nearest(name, names), key)
    return name


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
        entry = str(column.iloc[row])[:30]
        what = f"column {name!r} of {where} holds {kind}, {entry!r} in row {row + first}"
        fix = (
            f"label: {name} if it is the label, split: {{column: {name}}} if it tells the client; "
        )
        dummies = f"pandas.get_dummies(frame, columns=[{name!r}], dtype=float)"
        raise data_error(
            what, f"{fix}else a column of 0 and 1 for each text, {dummies}, or leave it out"
        )
    values = column.to_numpy(dtype=float)
    odd = np.flatnonzero(~np.isfinite(values))
    if len(odd):
        what = f"column {name!r} of {where} is not finite in row {odd[0] + first}"
        raise data_error(what, "clean it first")
    return values


def _plain(column: Any) -> np.ndarray:
    """Return a column of labels or clients: float64 where it is of numbers, else text."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column):
        return column.to_numpy(dtype=float)
    return np.array([str(value) for value in column])


# Reading -------------------------------------------------------------------------------------------


def _text(content: bytes, where: str, separator: str) -> Any:
    import pandas as pd

    start = next((kind for magic, kind in NOT_TEXT.items() if content.startswith(magic)), None)
    if start or b"\0" in content[:4096]:
        what = f"{where} is no text" + (f", but {start}" if start else "")
        raise data_error(what, "name the file by what it is: .csv, .tsv, .parquet or .npz")
    if not content.strip():
        raise data_error(f"{where} is empty", "give a line of column names, and a line per row")
    try:
        frame = pd.read_csv(
            io.BytesIO(content), sep=separator, encoding="utf-8-sig", index_col=False
        )
    except UnicodeDecodeError as error:
        raise data_error(f"{where} is not UTF-8 text", "save it in UTF-8") from error
    except (ValueError, OverflowError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        words = re.sub(r"\s+", " ", str(error)).removeprefix("Error tokenizing data. C error: ")
        fix = "every line has as many entries as the line of names"
        raise data_error(f"{where}: {words[:150]}", fix) from error
    blank = next((i for i, n in enumerate(frame, 1) if str(n).startswith("Unnamed: ")), None)
    if blank is not None:
        what = f"column {blank} of {where} has no name"
        raise data_error(
            what, "name it; if it numbers the rows leave it out: to_csv(file, index=False)"
        )
    if len(frame.columns) > 1 and not any(math.isnan(_number(name)) for name in frame.columns):
        what = f"{where} starts with a line of numbers, not of column names"
        raise data_error(what, "write the names into its first line, the label's as label")
    return frame


def _parquet(content: bytes, where: str) -> Any:
    import pyarrow.parquet as pq

    if not content.startswith(b"PAR1"):
        raise data_error(
            f"{where} is not Parquet", "write it with to_parquet, or name it .csv if it is text"
        )
    with input_errors(DATASET_KEY, f"cannot read {where}", "write it again"):
        file = pq.ParquetFile(io.BytesIO(content))
        about = file.metadata
        unpacked = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        most = max(unpacked, 8 * about.num_rows * about.num_columns)
        check_fits(DATASET_KEY, f"{where} unpacked", most, "take fewer rows")
        frame = file.read().to_pandas(ignore_metadata=True)
        return frame.loc[:, [name for name in frame if not INDEX.fullmatch(str(name))]]


# Arrays of an .npz ----------------------------------------------------------------------------------


def arrays(path: Path, where: str, label: str | None, client: str | None) -> Dataset:
    """Return the data set of an ``.npz``: ``X`` (or ``features``, ``images``) and ``y`` (or ``labels``).

    An ``.npz`` of neither is a table: every array is a column (see ``of_frame``).

    label, client: names of other arrays of one entry per row, for the label and for the client. Labels
    and clients are real numbers or text. Raises InputError where an array is missing, is not of real
    finite numbers, does not fit the others, or takes more memory than a data set may.
    """
    with opened(path, NPZ_FIX) as archive:
        if not archive.names & {*NPZ_FEATURES, "labels"}:
            return _columns_of(archive, label, client)
        key = _first(archive, NPZ_FEATURES)
        order = NPZ_LABELS if key == "X" else NPZ_LABELS[::-1]
        target = _first(archive, order)
        if label is not None:
            target = _there(archive.order, label, where, LABEL_KEY)
        raw, labels = archive.numbers(key), _text_or_numbers(archive, target)
        clients = None
        if client is not None:
            _there(archive.order, client, where, CLIENT_KEY)
            clients = _text_or_numbers(archive, client)
        features = raw.reshape(len(raw), -1) if raw.ndim else raw.reshape(0, 0)
    for name, word, column in ((target, "label", labels), (client, "client", clients)):
        if column is not None and (column.shape != (len(features),) or features.size == 0):
            what = f"{where} has {len(features)} rows and {name} of shape {column.shape}"
            raise data_error(what, f"give one {word} per row")
    for name, values in ((key, features), (target, labels), (client, clients)):
        if values is not None and values.dtype.kind == "f" and not np.isfinite(values).all():
            what = f"{where} holds values that are not finite, in {name}"
            raise data_error(what, "clean them first")
    return Dataset(where, features, labels, clients)


def _columns_of(archive: Archive, label: str | None, client: str | None) -> Dataset:
    """Return the data set of an archive whose arrays are columns."""
    import pandas as pd

    columns, rows = {}, None
    for name in archive.order:
        column = _text_or_numbers(archive, name)
        rows = column.shape if rows is None else rows
        if column.ndim != 1 or column.shape != rows:
            lacks = f"{archive.name} lacks the arrays X and y"
            raise data_error(
                f"{lacks}, and {name} of shape {column.shape} is no column", archive.fix
            )
        columns[name] = column
    if not columns:
        raise data_error(f"{archive.name} lacks the arrays X and y", archive.fix)
    return of_frame(pd.DataFrame(columns), archive.name, label, client)


def _first(archive: Archive, names: tuple[str, ...]) -> str:
    """Return the first of some names that an archive has, else the first."""
    return next((name for name in names if name in archive.names), names[0])


def _text_or_numbers(archive: Archive, name: str) -> np.ndarray:
    """Return labels or clients of an archive: text as it is, numbers in float64."""
    array = archive.read(name)
    return array if array.dtype.kind == "U" else archive.numbers(name)


# LIBSVM ---------------------------------------------------------------------------------------------


def libsvm(
    text: bytes, where: str, d: int | None = None
) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    """Return (features, labels) of LIBSVM text: ``label index:value ...``, indices from 1.

    Rows without features are kept. ``d`` is the number of features where it is known: a file may
    lack the last ones. Raises InputError that names the first corrupt line.
    """
    from sklearn.datasets import load_svmlight_file

    if text.startswith(NO_LIBSVM):
        what = f"{where} is no text" + (", but Parquet" if text.startswith(b"PAR1") else "")
        fix = "a LIBSVM file is text, label index:value ...; others by their ending: .parquet, .csv, .npz"
        raise data_error(what, fix)
    if not text.strip():
        raise data_error(f"{where} is empty", LIBSVM_FIX)
    try:
        features, labels = load_svmlight_file(io.BytesIO(text), n_features=d, zero_based=False)
    except (ValueError, OverflowError) as error:
        raise _complaint(text, where, d, error) from error
    if len(labels) == 0:
        raise data_error(f"{where} has no rows", LIBSVM_FIX)
    if not (np.isfinite(labels).all() and np.isfinite(features.data).all()):
        raise _complaint(text, where, d, ValueError("a value is not finite"))
    what = f"{where} has {features.shape[1]:,} features: the {VECTORS} vectors of a run"
    fix = "is the last index right? Else number the features from 1 without gaps"
    check_fits(DATASET_KEY, what, 8 * VECTORS * features.shape[1], fix)
    return scipy.sparse.csr_array(features), labels


def _complaint(text: bytes, where: str, d: int | None, error: Exception) -> InputError:
    for number, raw in enumerate(text[:MOST_SEARCHED].split(b"\n"), 1):
        line = raw.decode("utf-8", "replace").split("#")[0].strip()
        what = _wrong(line, d)
        if what:
            excerpt = cut(line, 80)
            fix = "a line is: label index:value index:value ... (indices rise from 1)"
            return data_error(f"{where}, line {number}: {what}: {excerpt!r}", fix)
    return data_error(f"{where}: {error}", LIBSVM_FIX)


def _wrong(line: str, d: int | None) -> str:
    if not line:
        return ""
    label, *pairs = line.split()
    if not math.isfinite(_number(label)):
        return f"the label {cut(label, 40)!r} is not a finite number"
    last = 0
    for pair in pairs:
        match = re.fullmatch(r"(\d{1,20}):(\S+)", pair)
        if match is None or not math.isfinite(_number(match[2])):
            return f"{cut(pair, 40)!r} is not index:value"
        index = int(match[1])
        if index <= last:
            return "indices start at 1" if index == 0 else "indices do not rise"
        if index > 2**31 - 1:
            return f"index {index} is too large"
        if d is not None and index > d:
            return f"index {index} exceeds the {d} features of this data set"
        last = index
    return ""


def _number(text: str) -> float:
    """Return the number that a text is, not a number where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
