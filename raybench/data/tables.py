"""Rows with labels: CSV, Parquet, frames and arrays become one Arrow table, in which one function finds label, client and features.

Types are kept: an integer of 64 bits, a category and a text are never turned into something else on the way. What
cannot be read as its owner must have meant it is refused, with the row or column that is wrong.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from raybench.core.errors import InputError, nearest
from raybench.core.limits import OPENERS, check_fits, decompressed
from raybench.core.safe_files import BoundedParquet
from raybench.data.files import (
    COLUMN,
    DATASET_KEY,
    NPZ_FIX,
    Archive,
    as_text,
    cached,
    data_error,
    input_errors,
    open_archive,
)
from raybench.data.libsvm import libsvm

LABEL_KEY, CLIENT_KEY = "problem.label", "problem.split.column"
SEPARATORS = {".csv": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")
LABELS = ("label", "target", "y")  # columns that are the label where nobody says which is
OTHER_FORMATS = {
    **dict.fromkeys((".xlsx", ".xls"), "an Excel workbook"),
    **dict.fromkeys((".json", ".jsonl"), "JSON"),
    **dict.fromkeys((".feather", ".arrow"), "an Arrow file"),
    **{".zip": "a zip archive", ".npy": "a single array of numpy", ".h5": "HDF5"},
    **{".mat": "a file of Matlab", ".arff": "a file of Weka"},
    ".pkl": "a pickle, which runs code when it is read",
}
"""Endings that no reader here takes: such a file is never LIBSVM text."""
WORDS = "real numbers or text"
Features: TypeAlias = Any  # ndarray or scipy.sparse.csr_array, (rows, d) in float64
NPZ_FEATURES, NPZ_LABELS = ("X", "features", "images"), ("y", "labels")
CATEGORIES = "__categories__"  # the array of an .npz that names those columns that are categories
INTEGER = re.compile(r"[+-]?(0|[1-9]\d*)")
NUMBER = re.compile(r"[+-]?(0|[1-9]\d*)(\.\d*)?([eE][+-]?\d+)?")  # not 007: that is a name
MOST_CLASSES = 100  # of labels that are numbers, above which they are told as numbers
MOST_NAMED = 8  # features, classes and so on that are named when a table is described
EXACT = 2**53  # the integers up to it are floats of 64 bits
NO_ROW_NAMES = "write it without: row.names=FALSE in R, index=False in pandas"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Features (N, d) as CSR or ndarray in float64, and the labels (N,): numbers in float64, or text as objects."""

    name: str
    features: Features
    labels: np.ndarray
    clients: np.ndarray | None = None  # what the column that tells the client says of each row
    names: tuple[str, ...] = ()  # of the features, where they have any
    categories: tuple[str, ...] = ()  # columns that became a 0 or 1 for each of their values
    label: str | None = None  # the column of labels
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

    @property
    def labels_are_text(self) -> bool:
        """Return whether labels are text, not numbers."""
        return self.labels.dtype.kind in "OU"

    def about(self) -> list[tuple[str, str]]:
        """Return what was read, in words: rows, features, the label with its classes, clients that a column tells."""
        rows, width = self.shape
        features = f"{width:,}" + (f": {shown(self.names, MOST_NAMED)}" if self.names else "")
        if self.categories:
            features += "; a column of 0 and 1 for each value of "
            features += shown(self.categories, MOST_NAMED)
        values, counts = np.unique(self.labels, return_counts=True)
        label = f"{self.label}, " if self.label else ""
        if len(values) > MOST_CLASSES and not self.labels_are_text:
            label += f"{len(values):,} numbers from {shown(values[:1])} to {shown(values[-1:])}"
        else:
            each = [f"{shown([value])} ({count:,})" for value, count in zip(values, counts)]
            label += f"{len(values):,} classes (rows): {shown(each, MOST_NAMED)}"
        lines = [("rows", f"{rows:,}"), ("features", features), ("label", label)]
        if self.clients is not None:
            names, counts = np.unique(self.clients, return_counts=True)
            which = (counts.argmin(), counts.argmax())
            ends = [f"{counts[i]:,} ({shown([names[i]])})" for i in which]
            lines.append(("clients", f"{len(names):,}, with {' to '.join(ends)} rows"))
        return lines

    def binary(self) -> np.ndarray:
        """Return labels as -1.0 and +1.0: the smaller of two (in sorted order) is -1, or ``positive`` are +1.

        Raises InputError where there are not two classes and ``positive`` does not make two of them.
        """
        key, classes = "problem.positive", self.classes
        positives = classes[1:].tolist() if self.positive is None else list(self.positive)
        if self.labels_are_text:
            positives = [*map(str, positives)]
        alien = [label for label in positives if label not in classes.tolist()]
        fix = f"the labels are {shown(classes)}"
        if self.positive is None and len(classes) != 2:
            what = f"two classes are needed, not {len(classes)} ({shown(classes)})"
            fix = f"say which count as +1, for example positive: [{shown(classes[-1:])}]"
            fix += "; or take problem softmax, for any number of classes"
            raise data_error(what, fix, key)
        if alien or not positives:
            what = f"no label {shown(alien[:1])}" if alien else "the list is empty"
            raise data_error(what, fix, key)
        if set(classes.tolist()) <= set(positives):
            raise data_error("every row would be +1", fix, key)
        return np.where(np.isin(self.labels, np.asarray(positives, classes.dtype)), 1.0, -1.0)


def spelling(value: Any) -> str:
    """Return a label or category in words; numbers in as few digits as tell them apart."""
    whole = not isinstance(value, str) and float(value).is_integer() and abs(value) <= EXACT
    return str(int(value)) if whole else str(value)


def shown(labels: Sequence[Any] | np.ndarray, most: int = 10) -> str:
    """Return labels in words, the first ten of many."""
    return ", ".join(map(spelling, labels[:most])) + (", ..." if len(labels) > most else "")


@cached(4)
def read_table(
    files: tuple[Path], name: str, label: str | None, client: str | None, d: int | None = None
) -> Dataset:
    """Return the data set that a file holds, by its ending; LIBSVM without one.

    label: the column of labels, else the first of ``LABELS`` that is there. client: the column that tells which client
    has a row, or None. All other columns are features: see ``dataset_of``. d: the number of features of a LIBSVM set.

    Raises InputError, naming file and column, for what is no such file, is empty, lacks a column, or has values that
    are missing, not finite, or text where a number should be.
    """
    (path,) = files
    kind = (Path(path.stem) if path.suffix in OPENERS else path).suffix.lower()
    if kind in OTHER_FORMATS:
        fix = "give CSV, Parquet, .npz or LIBSVM text, or a frame in Python: raybench.sweep(config, data={...})"
        raise data_error(f"{name} is {OTHER_FORMATS[kind]} by its ending", fix)
    if d is not None and kind in (*PARQUET, *SEPARATORS, ".npz"):
        fix = "leave it out: a table and an .npz hold all of their features"
        raise data_error(f"{name} is no LIBSVM file", fix, "problem.features")
    if path.suffix == ".npz":
        return arrays(path, name, label, client)
    content = b"".join(decompressed(path, DATASET_KEY))
    if kind in PARQUET:
        return dataset_of(_parquet(content, name), label, client)
    if kind in SEPARATORS:
        table = _csv(content, name, SEPARATORS[kind], label, client)
        return dataset_of(table, label, client)
    without_columns(name, label, client)
    return Dataset(name, *libsvm(content, name, d))


def without_columns(name: str, label: str | None, client: str | None) -> None:
    """Raise InputError where a set whose columns have no names is asked for one."""
    for key, column in ((LABEL_KEY, label), (CLIENT_KEY, client)):
        if column is not None:
            fix = "columns have names in CSV and Parquet, arrays in .npz"
            raise data_error(f"{name} has no column {column!r}", fix, key)


# What the columns of a table are ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Table:
    """An Arrow table: of columns of a dictionary type the values are categories, unless the name is in ``text``.

    first: the number of the first row in messages. text: columns of text that are kept as a dictionary, which takes less
    memory. index: columns that are the names of the rows, and are left out.
    """

    arrow: Any
    where: str
    first: int = 0
    text: frozenset[str] = frozenset()
    index: tuple[str, ...] = ()

    def of(self, name: str) -> str:
        """Return what messages call a column."""
        return f"column {name!r} of {self.where}"


def dataset_of(table: Table, label: str | None, client: str | None) -> Dataset:
    """Return the data set of a table: which column is the label, which tells the client, and all others are features.

    Numbers and truth values are features as they are; a category becomes a feature of 0 and 1 for each of its values
    that occur, in sorted order. Labels and clients are numbers, or text; text that spells numbers in all rows
    (``007`` does not) are these numbers.

    Raises InputError for a column that is not there, has a missing value, or holds what it may not.
    """
    import pandas as pd
    import pyarrow.types as kinds

    arrow, where = table.arrow, table.where
    names = arrow.column_names
    for name, count in Counter(names).items():
        if count > 1:
            raise data_error(f"{where} has two columns {name!r}", "give each a name of its own")
        if not name.strip():
            fix = f"name it; if it holds the names of rows, {NO_ROW_NAMES}"
            raise data_error(f"column {names.index(name) + 1} of {where} has no name", fix)
    if not arrow.num_rows:
        raise data_error(f"{where} has columns and no rows", "give it rows")
    target = _label(table, label)
    if client is not None and _there(table, client, CLIENT_KEY) == target:
        what = f"{table.of(target)} is the label, and cannot tell the client as well"
        raise data_error(what, "name another with label", CLIENT_KEY)
    heads = [name for name in names if name not in (target, client)]
    if not heads:
        raise data_error(f"{where} has no column of features", "a row is a label and numbers")
    for name in names:
        _complete(table, name)
    categories = {
        name: pd.factorize(values_of(arrow[name], table.of(name)), sort=True)
        for name in heads
        if kinds.is_dictionary(arrow[name].type) and name not in table.text
    }
    width = len(heads) + sum(len(values) - 1 for _, values in categories.values())
    what = f"{where}: {arrow.num_rows:,} rows and {width:,} features in float64"
    check_fits(DATASET_KEY, what, 8 * arrow.num_rows * width, "take fewer rows")
    features: np.ndarray = np.empty((arrow.num_rows, width))
    spelled: list[str] = []
    for name in heads:
        if name in categories:
            codes, values = categories[name]
            at = slice(len(spelled), len(spelled) + len(values))
            features[:, at] = codes[:, None] == np.arange(len(values))
            spelled += [f"{name}={spelling(value)}" for value in values]
        else:
            features[:, len(spelled)] = _numbers(table, name)
            spelled.append(name)
    labels = _labels(values_of(arrow[target], table.of(target)), table.of(target))
    clients = None if client is None else values_of(arrow[client], table.of(client))
    return Dataset(where, features, labels, clients, tuple(spelled), tuple(categories), target)


def _label(table: Table, label: str | None) -> str:
    if label is not None:
        return _there(table, label, LABEL_KEY)
    names = table.arrow.column_names
    usual = next((name for name in LABELS if name in names), None)
    if usual is None:
        what = f"{table.where} has no column {', '.join(LABELS[:-1])} or {LABELS[-1]}"
        fix = f"say which is the label, label: NAME; {nearest('', names)}"
        if all(map(NUMBER.fullmatch, names)):
            fix = "its first line holds numbers: write the names of columns there"
        elif len(names) == 1 and (mark := re.search(r"[;\t|,]", names[0])):
            fix = f"its columns are separated by {mark[0]!r}: separate them by commas, or tabs in a .tsv"
        raise data_error(what, fix, LABEL_KEY)
    return usual


def _there(table: Table, name: str, key: str) -> str:
    """Return the name of a column that is asked for; raises InputError where there is none."""
    if name in table.index:
        fix = "make it a column: frame.reset_index().to_parquet(file)"
        raise data_error(f"{table.of(name)} holds the names of the rows (its index)", fix, key)
    names = table.arrow.column_names
    if name not in names:
        raise data_error(f"{table.where} has no column {name!r}", nearest(name, names), key)
    return name


def _complete(table: Table, name: str) -> None:
    """Raise InputError where a column lacks a value."""
    import pyarrow.compute as pc

    missing = pc.is_null(table.arrow[name], nan_is_null=True)
    count = pc.sum(missing).as_py()
    if count:
        more = f" ({count:,} rows in all)" if count > 1 else ""
        row = pc.index(missing, True).as_py() + table.first
        fix = "fill it, or leave the row or the column out"
        raise data_error(f"{table.of(name)} lacks a value in row {row}{more}", fix)


def _numbers(table: Table, name: str) -> np.ndarray:
    """Return a column of features in float64, (N,)."""
    import pyarrow as pa
    import pyarrow.types as kinds

    column, kind = table.arrow[name], table.arrow[name].type
    numeric = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind)
    if not numeric and not kinds.is_decimal(kind):
        text = name in table.text or is_text(kind)
        # the first entry that spells no number
        row = next((i for i, e in enumerate(column) if text and not NUMBER.fullmatch(e.as_py())), 0)
        entry = str(column[row].as_py())[:30]
        what = f"{table.of(name)} holds {'text' if text else kind}, {entry!r} in row {row + table.first}"
        dummies = f"pandas.get_dummies(frame, columns=[{name!r}], dtype=float)"
        fix = f"label: {name} if it is the label, split: {{column: {name}}} if it tells the client; else"
        fix += f" a column of 0 and 1 for each text, {dummies}, or leave it out"
        raise data_error(what, fix)
    if kinds.is_boolean(kind):
        column = column.cast(pa.uint8())
    values = column.cast(pa.float64(), safe=False).to_numpy()
    for at in np.flatnonzero(~np.isfinite(values)) + table.first:
        raise data_error(f"{table.of(name)} is not finite in row {at}", "clean it first")
    return values


def values_of(column: Any, what: str) -> np.ndarray:
    """Return a column of labels or clients (N,) in int64, uint64 or float64, or text as objects.

    Raises InputError, which calls the column ``what``, for what is neither number, truth value, date nor text.
    """
    import pyarrow as pa
    import pyarrow.types as kinds

    if kinds.is_temporal(column.type):
        column = column.cast(pa.string())
    kind = column.type
    if is_text(kind) or kinds.is_dictionary(kind):
        coded = column.dictionary_encode().unify_dictionaries().combine_chunks()
        values = coded.dictionary
        text = is_text(values.type)
        each = numbers_or_text(values.to_pylist()) if text else values_of(values, what)
        return each[coded.indices.to_numpy(zero_copy_only=False)]
    if kinds.is_boolean(kind):
        return np.asarray(column.cast(pa.uint8()), np.uint64)
    if kinds.is_integer(kind):
        return np.asarray(column, np.uint64 if kinds.is_unsigned_integer(kind) else np.int64)
    if kinds.is_floating(kind) or kinds.is_decimal(kind):
        return np.asarray(column.cast(pa.float64(), safe=False))
    raise data_error(f"{what} holds {kind}", "labels and clients are numbers or text")


def is_text(kind: Any) -> bool:
    """Return whether values of an Arrow type are text."""
    import pyarrow.types as kinds

    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def numbers_or_text(words: list[str]) -> np.ndarray:
    """Return the numbers that words spell, in int64, uint64 or float64; where one spells none, all as text."""
    if words and all(NUMBER.fullmatch(word) for word in words):
        whole = [int(word) for word in words if INTEGER.fullmatch(word)]
        if len(whole) == len(words) and (numbers := np.array(whole)).dtype.kind in "iu":
            return numbers
        if len(whole) < len(words) and all(abs(n) <= EXACT for n in whole):
            return np.array(words, float)
    out: np.ndarray = np.empty(len(words), object)
    out[:] = words
    return out


def _labels(values: np.ndarray, what: str) -> np.ndarray:
    """Return labels in float64, or as text; raises InputError for numbers that are not finite or take more digits."""
    if values.dtype == object:
        return values
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise data_error(f"{what} holds a label that is not finite", "clean it first")
        return values
    for large in values[(values > EXACT) | (values < (0 if values.dtype.kind == "u" else -EXACT))]:
        fix = "a label has at most 15 digits; is it the column that tells the client?"
        raise data_error(f"{what} holds the label {large}", fix, LABEL_KEY)
    return values.astype(float)


# Reading files ---------------------------------------------------------------------------------------


def _csv(
    content: bytes, where: str, separator: str, label: str | None, client: str | None
) -> Table:
    """Return the table of a CSV file; its columns of labels and of clients are read as they are spelled."""
    import pandas as pd
    import pyarrow as pa
    from pyarrow import csv

    content = as_text(content, where, "give a line of column names, and a line per row")
    whole = csv.ReadOptions(block_size=min(len(content) + 1, 2**31 - 1))  # types by all rows
    parsing = csv.ParseOptions(delimiter=separator, newlines_in_values=True)
    try:
        first_line = io.BytesIO(content.partition(b"\n")[0] + b"\n")
        heads = csv.read_csv(first_line, parse_options=parsing).column_names
        usual = next((name for name in LABELS if name in heads), None)
        spelled = {name: pa.string() for name in (label or usual, client) if name is not None}
        converting = csv.ConvertOptions(column_types=spelled)
        arrow = csv.read_csv(io.BytesIO(content), whole, parsing, converting)
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        words = re.sub(r"\s+", " ", str(error)).removeprefix("CSV parse error: ")
        if "utf" in words.lower():
            raise data_error(f"{where} is not UTF-8 text", "save it in UTF-8") from error
        fix = "every line has as many entries as the line of names; if the first is the row's name"
        raise data_error(f"{where}: {words[:150]}", f"{fix}, {NO_ROW_NAMES}") from error
    for i, name in enumerate(arrow.column_names):
        if arrow[i].type == pa.string():
            words = arrow[i].to_pandas()
            blank, empty = words.isin(converting.null_values), words == ""
            numbers = pd.to_numeric(words.where(~blank), errors="coerce")
            numeric = bool((numbers.notna() | blank).all())
            if name in spelled:  # among numbers NA is a missing value, among names it is one
                names = words[~blank].map(NUMBER.fullmatch).isna().any()
                words = words.where(~(empty if names else blank))
                arrow = arrow.set_column(i, name, pa.array(words, pa.string()))
            elif numeric:  # spelled +1, say
                arrow = arrow.set_column(i, name, pa.array(numbers, from_pandas=True))
    return Table(arrow, where, first=2)


def _parquet(content: bytes, where: str) -> Table:
    """Return the table of a Parquet file, bounded before it is decoded; names of rows that pandas wrote are left out."""
    import pyarrow.types as kinds

    if not content.startswith(b"PAR1"):
        fix = "write it with to_parquet, or name it .csv if it is text"
        raise data_error(f"{where} is not Parquet", fix)
    with input_errors(DATASET_KEY, f"cannot read {where}", "write it again"):
        file = BoundedParquet(content, DATASET_KEY, where)
        schema = file.schema
        saved = schema.pandas_metadata or {}
        index = tuple(name for name in saved.get("index_columns", ()) if isinstance(name, str))
        words = [field.name for field in schema if is_text(field.type)]
        typed = {c.get("field_name", c["name"]): c["pandas_type"] for c in saved.get("columns", ())}
        coded = {name for name, kind in typed.items() if kind == "categorical"}
        arrow = file.read([name for name in schema.names if name not in index], coded=True)
        for i, name in enumerate(arrow.column_names):  # Parquet keeps categories of text alone
            if name in coded and not kinds.is_dictionary(arrow[i].type):
                arrow = arrow.set_column(i, name, arrow[i].dictionary_encode())
        return Table(arrow, where, text=frozenset(words) - coded, index=index)


# Frames in memory, and arrays of an .npz --------------------------------------------------------------


def frame_of(frame: Any, where: str) -> Table:
    """Return the table of a frame of pandas, Polars or whatever else hands over Arrow columns; a pandas index is left out.

    Raises InputError, naming ``where``, for what Arrow cannot hold.
    """
    import pandas as pd
    import pyarrow as pa

    try:
        if isinstance(frame, pd.DataFrame):
            named = frame.set_axis([str(name) for name in frame.columns], axis=1)
            for name in named.columns[named.columns.duplicated()]:
                raise data_error(f"has two columns {name!r}", "give each a name of its own", where)
            return Table(pa.Table.from_pandas(named, preserve_index=False), where)
        # Polars keeps text as views by itself, which Arrow cannot compute with, and not in what it converts
        return Table(frame.to_arrow() if hasattr(frame, "to_arrow") else pa.table(frame), where)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        words = re.sub(r"\s+", " ", str(error))[:200]
        fix = "a column holds numbers, truth values, text or categories, and one of them alone"
        raise InputError.of(where, words, fix) from error


def arrays(path: Path, where: str, label: str | None, client: str | None) -> Dataset:
    """Return the data set of an ``.npz``: ``X`` (or ``features``, ``images``) and ``y`` (or ``labels``); else a table.

    label, client: names of other arrays of one entry per row, real numbers or text. Raises InputError where an array is
    missing, is not of real finite numbers, does not fit the others, or takes more memory than a data set may.
    """
    import pyarrow as pa

    with open_archive(path, NPZ_FIX) as archive:
        if not archive.names & {*NPZ_FEATURES, "labels"}:
            return dataset_of(_columns_of(archive), label, client)
        key = next((name for name in NPZ_FEATURES if name in archive.names), "X")
        usual = NPZ_LABELS if key == "X" else NPZ_LABELS[::-1]
        target = label or next((name for name in usual if name in archive.names), usual[0])
        for name, asked in ((label, LABEL_KEY), (client, CLIENT_KEY)):
            if name is not None and name not in archive.names:
                fix = nearest(name, archive.names)
                raise data_error(f"{where} has no column {name!r}", fix, asked)
        raw = archive.numbers(key)
        features = raw.reshape(len(raw), -1) if raw.ndim else raw.reshape(0, 0)
        columns: dict[str, np.ndarray] = {}
        for name in filter(None, (target, client)):
            column = archive.read(name, COLUMN, WORDS)
            if column.shape != (len(features),) or features.size == 0:
                what = f"{where} has {len(features)} rows and {name} of shape {column.shape}"
                raise data_error(what, "give one entry per row")
            columns[name] = values_of(pa.chunked_array([column]), f"{where}: {name}")
    for name, values in ((key, features), *columns.items()):
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            what = f"{where} holds values that are not finite, in {name}"
            raise data_error(what, "clean them first")
    labels = _labels(columns[target], f"{where}: {target}")
    return Dataset(where, features, labels, columns.get(client or ""), label=target)


def _columns_of(archive: Archive) -> Table:
    """Return the table of an archive whose arrays are columns."""
    import pyarrow as pa

    columns: dict[str, Any] = {}
    lacks = f"{archive.name} lacks the arrays X and y"
    order = [name for name in archive.order if name != CATEGORIES]
    coded = archive.read(CATEGORIES).tolist() if CATEGORIES in archive.names else []
    for name in order:
        column = archive.read(name, COLUMN, WORDS)
        if column.ndim != 1 or len(column) != len(columns.get(order[0], column)):
            what = f"{lacks}, and {name} of shape {column.shape} is no column"
            raise data_error(what, archive.fix)
        columns[name] = pa.chunked_array([column])
        if name in coded:
            columns[name] = columns[name].dictionary_encode()
    if not columns:
        raise data_error(lacks, archive.fix)
    return Table(pa.table(columns), archive.name)
