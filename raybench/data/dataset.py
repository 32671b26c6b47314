"""A data set in memory: features, raw labels, and what was done to them."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from raybench.core.errors import InputError, nearest
from raybench.data import catalogue, tables
from raybench.data.catalogue import EMBEDDED, LIBSVM_SETS, fetch, find, folder
from raybench.data.files import DATASET_KEY, data_error, file_of, renamed
from raybench.data.tables import CLIENT_KEY, Dataset, Features, shown

TEST_KEY = "problem.test_set"
SCALES = ("none", "rows", "columns")


def load(
    name_or_path: str | os.PathLike[str],
    *,
    rows: int | None = None,
    scale: str = "none",
    intercept: bool = False,
    positive: Sequence[float | str] | None = None,
    label: str | None = None,
    client: str | None = None,
    features: int | None = None,
) -> Dataset:
    """Return the data set of that name or path.

    A name is embedded (breast_cancer, digits) or a LIBSVM set, searched as ``<data folder>/libsvm/<name>[.bz2|.gz|.xz]``
    and else downloaded there. A path is a table (see ``raybench.data.tables``), an ``.npz`` with ``X`` and ``y``, or a
    LIBSVM file; text may be compressed (.gz, .bz2, .xz). Labels are numbers or text.

    rows: the first so many rows only. scale: ``rows`` divides each row by its 2-norm; ``columns`` divides each column
    by its largest absolute value (rows and columns of zeros are left alone). intercept: append a column of ones, after
    scaling. positive: labels that count as +1 in ``Dataset.binary``. label, client: the column of labels, and the column
    that tells which client has a row (no feature then), of a table or an ``.npz``. features: how many a LIBSVM file has
    that may lack the last ones.

    Raises InputError for an unknown name, a missing, empty or corrupt file, one that would take more than a quarter of
    the memory, more rows than there are, and a single class.
    """
    data = _read(os.fspath(name_or_path), label, client, features)
    if rows is not None:
        if not 1 <= rows <= len(data.labels):
            what = f"cannot take the first {rows} rows"
            raise data_error(what, f"{data.name} has {len(data.labels):,} rows", "problem.rows")
        clients = None if data.clients is None else data.clients[:rows]
        first = {"features": data.features[:rows], "labels": data.labels[:rows], "clients": clients}
        data = replace(data, **first, classes=np.unique(data.labels[:rows]))
    if len(data.classes) < 2:
        fix = "take more rows" if rows is not None else "the labels must differ"
        what = f"{data.name} has a single class ({shown(data.classes[:1])})"
        raise data_error(what, fix, DATASET_KEY if rows is None else "problem.rows")
    sizes = _sizes(data.features, scale)
    prepared = _prepared(data.features, scale, intercept, sizes)
    plus = None if positive is None else tuple(positive)
    return replace(data, features=prepared, positive=plus, sizes=sizes)


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
    their names, in any order, and it may lack values of categories. Raises InputError, which names
    ``problem.test_set``, as ``load``, for other features than training has, and for labels that it lacks.
    """
    with renamed(DATASET_KEY, TEST_KEY):
        data = _read(os.fspath(name_or_path), label, client, optional=True)
    features, d = data.features, like.features.shape[1] - intercept
    if like.names and data.names:
        features = _ordered(data, like)
    if scipy.sparse.issparse(features) and features.shape[1] < d:
        features = features.copy()
        features.resize(features.shape[0], d)
    if features.shape[1] != d:
        what = f"{data.name} has {features.shape[1]:,} features, and {like.name} {d:,}"
        more = f"; of LIBSVM files that lack the last ones say features: {features.shape[1]}"
        raise data_error(what, f"a test set has the features of the training set{more}", TEST_KEY)
    if scipy.sparse.issparse(like.features):
        features = scipy.sparse.csr_array(features)
    elif scipy.sparse.issparse(features):
        features = features.toarray()
    if new := sorted(set(data.labels.tolist()) - set(like.classes.tolist())):
        what = f"{data.name} has the label {shown(new[:1])}, which {like.name} lacks"
        raise data_error(what, f"the labels are {shown(like.classes)}", TEST_KEY)
    return _prepared(features, scale, intercept, like.sizes), data.labels


def _ordered(data: Dataset, like: Dataset) -> np.ndarray:
    """Return the features of a table in the order of those of ``like``; of a category that has no row here, zeros."""
    import pandas as pd

    either = tuple(f"{name}=" for name in set(data.categories) & set(like.categories))
    here = set(data.names).union(name for name in like.names if name.startswith(either))
    if odd := sorted(here ^ set(like.names)):
        what = f"column {odd[0]!r} is in one of {like.name} and {data.name} only"
        raise data_error(what, "give the test set the same columns", TEST_KEY)
    frame = pd.DataFrame(data.features, columns=data.names)
    return frame.reindex(columns=like.names, fill_value=0.0).to_numpy()


def _prepared(
    features: Features, scale: str, intercept: bool, sizes: np.ndarray | None
) -> Features:
    """Return features divided by the norms of rows or by ``sizes`` of columns, and a column of ones where asked."""
    sparse = scipy.sparse.issparse(features)
    if scale == "rows":
        norm = scipy.sparse.linalg.norm if sparse else np.linalg.norm
        sizes = norm(features, axis=1)[:, None]
    if sizes is not None:
        factor = 1 / np.where(sizes > 0, sizes, 1.0)
        features = features.multiply(factor).tocsr() if sparse else features * factor
    if not intercept:
        return features
    ones = np.ones((features.shape[0], 1))
    if sparse:
        return scipy.sparse.csr_array(scipy.sparse.hstack([features, ones], format="csr"))
    return np.hstack([features, ones])


def _sizes(features: Features, scale: str) -> np.ndarray | None:
    """Return the largest absolute value of each column (d,) where columns are scaled by it."""
    if scale not in SCALES:
        raise data_error(f"unknown scale {scale!r}", nearest(scale, SCALES), "problem.scale")
    if scale != "columns":
        return None
    top = abs(features).max(axis=0)
    return top.toarray().ravel() if scipy.sparse.issparse(top) else np.asarray(top)


def _read(
    name: str, label: str | None, client: str | None, d: int | None = None, optional: bool = False
) -> Dataset:
    """Return the data set of a name or path; ``optional``: it may lack the column of clients."""
    fix = "give a known name, or the path of a CSV, Parquet, .npz or LIBSVM file"
    path = None if name in EMBEDDED else file_of(name, fix)
    if path is None:
        data = _embedded(name) if name in EMBEDDED else _named(name)
        tables.without_columns(data.name, label, None if optional else client)
        if d not in (None, data.shape[1]):
            fix = f"it has {data.shape[1]:,} features: leave the key out"
            raise data_error(f"{name} is a set that raybench knows", fix, "problem.features")
        return data
    try:
        return tables.read_table((path,), path.name, label, client, d)
    except InputError as error:
        if not optional or client is None or error.complaints[0].where != CLIENT_KEY:
            raise
    return tables.read_table((path,), path.name, label, None, d)


def _named(name: str) -> Dataset:
    listed = LIBSVM_SETS.get(name)
    file = find("libsvm", name)
    if file is None:
        if listed is None:
            fix = nearest(name, [*LIBSVM_SETS, *EMBEDDED])
            fix += f"; or give a path, or put the file into {folder() / 'libsvm'}"
            raise data_error(f"unknown data set {name!r}", fix)
        file = fetch(name)
    data = tables.read_table((file,), name, None, None, listed.d if listed else None)
    if listed and data.shape != (listed.rows, listed.d):
        has, want = (f"{r:,} x {d:,}" for r, d in (data.shape, (listed.rows, listed.d)))
        what = f"{file} has {has} rows x features, {name} has {want}"
        raise data_error(what, f"fetch {file.name} again from {listed.url}")
    return data


@functools.cache
def _embedded(name: str) -> Dataset:
    table = catalogue.embedded(name)
    features, labels = np.ascontiguousarray(table[:, :-1]), np.ascontiguousarray(table[:, -1])
    return Dataset(name, features, labels)
