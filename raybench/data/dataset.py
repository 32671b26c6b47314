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
from raybench.data.files import DATASET_KEY, data_error, path_of, renamed
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

    A name is embedded (breast_cancer, digits) or a LIBSVM set, searched as
    ``<data folder>/libsvm/<name>[.bz2|.gz|.xz]`` and else downloaded there. A path is a table (.csv,
    .tsv, .parquet; see ``raybench.data.tables``), an ``.npz`` with ``X`` and ``y``, or a LIBSVM file; text may
    be compressed (.gz, .bz2, .xz). Labels are numbers or text.

    rows: the first so many rows only. scale: ``rows`` divides each row by its 2-norm; ``columns``
    divides each column by its largest absolute value, so values lie in [-1, 1] and zeros stay
    zeros (rows and columns of zeros are left alone). intercept: append a column of ones, after
    scaling. positive: labels that count as +1 in ``Dataset.binary``. label, client: the column of labels,
    and the column that tells which client has a row (no feature then), of a table or an ``.npz``. features: how many a
    LIBSVM file has that may lack the last ones.

    Raises InputError for an unknown name, a missing, empty or corrupt file, one that would take
    more than a quarter of the memory, more rows than there are, and a single class.
    """
    data = _read(os.fspath(name_or_path), label, client, features)
    if rows is not None:
        if not 1 <= rows <= len(data.labels):
            fix = f"{data.name} has {len(data.labels):,} rows"
            raise data_error(f"cannot take the first {rows} rows", fix, "problem.rows")
        clients = None if data.clients is None else data.clients[:rows]
        first, labels = data.features[:rows], data.labels[:rows]
        classes = np.unique(labels)
        data = replace(data, features=first, labels=labels, clients=clients, classes=classes)
    classes = data.classes
    if len(classes) < 2:
        fix = "take more rows" if rows is not None else "the labels must differ"
        what = f"{data.name} has a single class ({shown(classes[:1])})"
        raise data_error(what, fix, DATASET_KEY if rows is None else "problem.rows")
    sizes = _sizes(data.features, scale)
    prepared = _prepared(data.features, scale, intercept, sizes)
    chosen = None if positive is None else tuple(positive)
    return replace(data, features=prepared, positive=chosen, sizes=sizes)


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
    their names, in any order, and it may lack values of categories. Raises InputError as ``load``, for features that
    training lacks or has and the test set does not, and for labels that training lacks; all name ``problem.test_set``.
    """
    with renamed(DATASET_KEY, TEST_KEY):
        data = _read(os.fspath(name_or_path), label, client, optional=True)
    features, d = data.features, like.features.shape[1] - intercept
    if like.names is not None and data.names is not None:
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
    new = [value for value in np.unique(data.labels) if value not in set(like.classes.tolist())]
    if new:
        what = f"{data.name} has the label {shown(new[:1])}, which {like.name} lacks"
        raise data_error(what, f"the labels are {shown(like.classes)}", TEST_KEY)
    return _prepared(features, scale, intercept, like.sizes), data.labels


def _ordered(data: Dataset, like: Dataset) -> np.ndarray:
    """Return the features of a table in the order of those of ``like``; of a category that has no row here, zeros."""
    assert data.names is not None
    assert like.names is not None
    places = {name: i for i, name in enumerate(data.names)}
    both = set(data.categories) & set(like.categories)
    absent = {n for n in like.names if n not in places and any(n.startswith(f"{c}=") for c in both)}
    odd = sorted((set(like.names) ^ set(data.names)) - absent)
    if odd:
        what = f"column {odd[0]!r} is in one of {like.name} and {data.name} only"
        raise data_error(what, "give the test set the same columns", TEST_KEY)
    out: np.ndarray = np.zeros((len(data.features), len(like.names)))
    for i, name in enumerate(like.names):
        if name in places:
            out[:, i] = data.features[:, places[name]]
    return out


def _prepared(
    features: Features, scale: str, intercept: bool, sizes: np.ndarray | None
) -> Features:
    """Return features divided by the norms of rows or by ``sizes`` of columns, and a column of ones where asked."""
    sparse = scipy.sparse.issparse(features)
    if scale == "rows":
        norm = scipy.sparse.linalg.norm if sparse else np.linalg.norm
        sizes = norm(features, axis=1)[:, None]
    if sizes is not None:
        factor = np.divide(1.0, sizes, out=np.ones_like(sizes), where=sizes > 0)
        features = (
            scipy.sparse.csr_array(features.multiply(factor)) if sparse else features * factor
        )
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
    name: str,
    label: str | None,
    client: str | None,
    features: int | None = None,
    optional: bool = False,
) -> Dataset:
    """Return the data set of a name or path; ``optional``: it may lack the column of clients."""
    path = None if name in EMBEDDED else path_of(name)
    if path is None:
        data = _embedded(name) if name in EMBEDDED else _named(name)
        tables.without_columns(data.name, label, None if optional else client)
        if features not in (None, data.shape[1]):
            fix = f"it has {data.shape[1]:,} features: leave the key out"
            raise data_error(f"{name} is a set that raybench knows", fix, "problem.features")
        return data
    if not path.is_file():
        what = f"{name} is a folder" if path.is_dir() else f"no file {name}"
        fix = "give a known name, or the path of a CSV, Parquet, .npz or LIBSVM file"
        raise data_error(what, fix)
    files = (path.absolute(),)
    try:
        return tables.read(files, path.name, label, client, features)
    except InputError as error:
        if not optional or client is None or error.complaints[0].where != CLIENT_KEY:
            raise
    return tables.read(files, path.name, label, None, features)


def _named(name: str) -> Dataset:
    listed = LIBSVM_SETS.get(name)
    file = find("libsvm", name)
    if file is None:
        if listed is None:
            fix = nearest(name, [*LIBSVM_SETS, *EMBEDDED])
            fix += f"; or give a path, or put the file into {folder() / 'libsvm'}"
            raise data_error(f"unknown data set {name!r}", fix)
        file = fetch(name)
    data = tables.read((file,), name, None, None, listed.d if listed else None)
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
