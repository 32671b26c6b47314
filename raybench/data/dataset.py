"""A data set in memory: features, raw labels, and what was done to them."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from raybench.core.errors import InputError, nearest
from raybench.data import catalogue, tables
from raybench.data.catalogue import EMBEDDED, LIBSVM_SETS, fetch, find, folder
from raybench.data.files import DATASET_KEY, cached, data_error
from raybench.data.tables import CLIENT_KEY

TEST_KEY = "problem.test_set"
SCALES = ("none", "rows", "columns")
Features: TypeAlias = Any  # ndarray or scipy.sparse.csr_array, (rows, d) in float64


@dataclass(frozen=True, eq=False)
class Dataset:
    """Features (rows, d) as CSR or ndarray in float64, and the labels as they were stored."""

    name: str
    features: Features
    labels: np.ndarray
    classes: np.ndarray
    positive: tuple[float | str, ...] | None = None
    clients: np.ndarray | None = None  # what the column that tells the client says of each row
    names: tuple[str, ...] | None = None  # of the features, where they have any
    sizes: np.ndarray | None = None  # what columns were divided by, for a test set

    @property
    def shape(self) -> tuple[int, int]:
        """Return (rows, features)."""
        return self.features.shape

    def binary(self) -> np.ndarray:
        """Return the labels as -1.0 and +1.0 (see ``binary_labels``)."""
        return binary_labels(self.labels, self.positive, self.classes)


def load(
    name_or_path: str | os.PathLike[str],
    *,
    rows: int | None = None,
    scale: str = "none",
    intercept: bool = False,
    positive: Sequence[float | str] | None = None,
    label: str | None = None,
    client: str | None = None,
) -> Dataset:
    """Return the data set of that name or path.

    A name is embedded (breast_cancer, digits) or a LIBSVM set, searched as
    ``<data folder>/libsvm/<name>[.bz2|.gz|.xz]`` and else downloaded there. A path is a table (.csv,
    .tsv, .parquet; see ``raybench.data.tables``), an ``.npz`` with ``X`` and ``y``, or a LIBSVM file; text may
    be compressed (.gz, .bz2, .xz). Labels are numbers or text.

    rows: the first so many rows only. scale: ``rows`` divides each row by its 2-norm; ``columns``
    divides each column by its largest absolute value, so values lie in [-1, 1] and zeros stay
    zeros (rows and columns of zeros are left alone). intercept: append a column of ones, after
    scaling. positive: labels that count as +1 in ``Dataset.binary``. label, client: the column of labels,
    and the column that tells which client has a row (no feature then), of a table or an ``.npz``.

    Raises InputError for an unknown name, a missing, empty or corrupt file, one that would take
    more than a quarter of the memory, more rows than there are, and a single class.
    """
    data = _read(os.fspath(name_or_path), label, client, optional=False)
    if rows is not None:
        if not 1 <= rows <= len(data.labels):
            fix = f"{data.name} has {len(data.labels):,} rows"
            raise data_error(f"cannot take the first {rows} rows", fix, "problem.rows")
        clients = None if data.clients is None else data.clients[:rows]
        features, labels = data.features[:rows], data.labels[:rows]
        data = replace(data, features=features, labels=labels, clients=clients)
    classes = np.unique(data.labels)
    if len(classes) < 2:
        fix = "take more rows" if rows is not None else "the labels must differ"
        what = f"{data.name} has a single class ({shown(classes[:1])})"
        raise data_error(what, fix, DATASET_KEY if rows is None else "problem.rows")
    sizes = _sizes(data.features, scale)
    features = _prepared(data.features, scale, intercept, sizes)
    chosen = None if positive is None else tuple(positive)
    return replace(data, features=features, classes=classes, positive=chosen, sizes=sizes)


def load_test(
    name_or_path: str | os.PathLike[str],
    like: Dataset,
    *,
    scale: str = "none",
    intercept: bool = False,
    label: str | None = None,
    client: str | None = None,
) -> tuple[Features, np.ndarray]:
    """Return features and labels of a test set for the training set ``like``, which was loaded in the same way.

    Columns are scaled as the training set's were. A LIBSVM file may lack the last features; those of a table go by
    their names, in any order. Raises InputError as ``load``, for features that training lacks or has and
    the test set does not, and for labels that training lacks; all name ``problem.test_set``.
    """
    try:
        data = _read(os.fspath(name_or_path), label, client, optional=True)
    except InputError as error:
        keys = {DATASET_KEY: TEST_KEY}
        moved = [replace(c, where=keys.get(c.where, c.where)) for c in error.complaints]
        raise InputError(moved) from error
    features, d = data.features, like.features.shape[1] - intercept
    if like.names is not None and data.names is not None:
        odd = sorted(set(like.names) ^ set(data.names))
        if odd:
            what = f"column {odd[0]!r} is in one of {like.name} and {data.name} only"
            raise data_error(what, "give the test set the same columns", TEST_KEY)
        features = features[:, [data.names.index(name) for name in like.names]]
    if scipy.sparse.issparse(features) and features.shape[1] < d:
        features = features.copy()
        features.resize(features.shape[0], d)
    if features.shape[1] != d:
        what = f"{data.name} has {features.shape[1]:,} features, and {like.name} {d:,}"
        raise data_error(what, "a test set has the features of the training set", TEST_KEY)
    if scipy.sparse.issparse(like.features):
        features = scipy.sparse.csr_array(features)
    elif scipy.sparse.issparse(features):
        features = features.toarray()
    new = [value for value in np.unique(data.labels) if value not in set(like.classes.tolist())]
    if new:
        what = f"{data.name} has the label {shown(new[:1])}, which {like.name} lacks"
        raise data_error(what, f"the labels are {shown(like.classes)}", TEST_KEY)
    return _prepared(features, scale, intercept, like.sizes), data.labels


def _prepared(
    features: Features, scale: str, intercept: bool, sizes: np.ndarray | None
) -> Features:
    """Return features scaled, and with a column of ones where asked."""
    features = _scaled(features, scale, sizes)
    if not intercept:
        return features
    ones = np.ones((features.shape[0], 1))
    if scipy.sparse.issparse(features):
        return scipy.sparse.csr_array(scipy.sparse.hstack([features, ones], format="csr"))
    return np.hstack([features, ones])


def shown(labels: Sequence[Any] | np.ndarray) -> str:
    """Return labels in words, the first ten of many."""
    words = [str(c) if isinstance(c, str) else f"{c:g}" for c in labels[:10]]
    return ", ".join(words) + (", ..." if len(labels) > 10 else "")


def binary_labels(
    labels: np.ndarray,
    positive: Sequence[float | str] | None = None,
    classes: np.ndarray | None = None,
) -> np.ndarray:
    """Return labels mapped to -1.0 and +1.0: the smaller of two (in sorted order) to -1, or ``positive`` to +1.

    classes: all labels that there are, sorted, where some rows only are given. Raises InputError where there are not two classes and ``positive`` does not make two of them.
    """
    key = "problem.positive"
    classes = np.unique(labels) if classes is None else classes
    if positive is None:
        if len(classes) != 2:
            fix = f"say which count as +1, for example positive: [{shown(classes[-1:])}]"
            fix += "; or take problem softmax, for any number of classes"
            what = f"two classes are needed, not {len(classes)} ({shown(classes)})"
            raise data_error(what, fix, key)
        return np.where(labels == classes[0], -1.0, 1.0)
    values = {(str(c) if isinstance(c, str) else float(c)) for c in classes.tolist()}
    words = labels.dtype.kind == "U"
    wanted = [str(p) if words else p for p in positive]
    unknown = [p for p in wanted if p not in values]
    if unknown or not wanted:
        what = f"no label {shown(unknown[:1])}" if unknown else "the list is empty"
        raise data_error(what, f"the labels are {shown(classes)}", key)
    chosen = np.asarray(wanted, str if words else float)
    if np.isin(classes, chosen).all():
        raise data_error("every row would be +1", f"the labels are {shown(classes)}", key)
    return np.where(np.isin(labels, chosen), 1.0, -1.0)


def _sizes(features: Features, scale: str) -> np.ndarray | None:
    """Return the largest absolute value of each column (d,) where columns are scaled by it."""
    if scale not in SCALES:
        raise data_error(f"unknown scale {scale!r}", nearest(scale, SCALES), "problem.scale")
    if scale != "columns":
        return None
    top = abs(features).max(axis=0)
    return top.toarray().ravel() if scipy.sparse.issparse(top) else np.asarray(top)


def _scaled(features: Features, scale: str, sizes: np.ndarray | None) -> Features:
    if scale == "none":
        return features
    if scale == "rows":
        norm = scipy.sparse.linalg.norm if scipy.sparse.issparse(features) else np.linalg.norm
        sizes = norm(features, axis=1)[:, None]
    assert sizes is not None
    factor = np.divide(1.0, sizes, out=np.ones_like(sizes), where=sizes > 0)
    if scipy.sparse.issparse(features):
        return scipy.sparse.csr_array(features.multiply(factor))
    return features * factor


def _read(given: str, label: str | None, client: str | None, optional: bool) -> Dataset:
    """Return the data set of a name or path; ``optional``: it may lack the column of clients."""
    path = Path(given).expanduser()
    named = "/" not in given and os.sep not in given and not path.is_file()
    if given in EMBEDDED or named:
        data = _embedded(given) if given in EMBEDDED else _named(given)
        tables.without_columns(data.name, label, None if optional else client)
        return data
    if not path.is_file():
        what = f"{given} is a folder" if path.is_dir() else f"no file {given}"
        fix = "give a known name, or the path of a CSV, Parquet, .npz or LIBSVM file"
        raise data_error(what, fix)
    files = (path.absolute(),)
    try:
        return _file(files, path.name, None, label, client)
    except InputError as error:
        if not optional or client is None or error.complaints[0].where != CLIENT_KEY:
            raise
    return _file(files, path.name, None, label, None)


def _named(name: str) -> Dataset:
    listed = LIBSVM_SETS.get(name)
    file = find("libsvm", name)
    if file is None:
        if listed is None:
            fix = nearest(name, [*LIBSVM_SETS, *EMBEDDED])
            fix += f"; or give a path, or put the file into {folder() / 'libsvm'}"
            raise data_error(f"unknown data set {name!r}", fix)
        file = fetch(name)
    data = _file((file.absolute(),), name, listed.d if listed else None, None, None)
    if listed and data.shape != (listed.rows, listed.d):
        has, want = (f"{r:,} x {d:,}" for r, d in (data.shape, (listed.rows, listed.d)))
        what = f"{file} has {has} rows x features, {name} has {want}"
        raise data_error(what, f"fetch {file.name} again from {listed.url}")
    return data


@cached(4)
def _file(
    files: tuple[Path], name: str, d: int | None, label: str | None, client: str | None
) -> Dataset:
    (path,) = files
    table = tables.read(path, label, client, d)
    classes = np.unique(table.labels)
    return Dataset(
        name, table.features, table.labels, classes, clients=table.clients, names=table.names
    )


@functools.cache
def _embedded(name: str) -> Dataset:
    table = catalogue.embedded(name)
    features, labels = np.ascontiguousarray(table[:, :-1]), np.ascontiguousarray(table[:, -1])
    return Dataset(name, features, labels, np.unique(labels))
