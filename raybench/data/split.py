"""Which rows each client holds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from raybench.core.errors import InputError, nearest
from raybench.core.params import Number, Param

SPLITS = ("contiguous", "shuffled", "sorted_by_label")
SPLIT_TAGS: Mapping[str, Param] = {
    "dirichlet": Number(low=0, open_low=True),
    "holdout_mix": Number(low=0, high=1),
}
MOST_DIRICHLET_DRAWS = 1000


def hold_out(rows: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (training, test) row indices: a random ``share`` of the rows is the test part.

    Training rows keep the file's order. Raises InputError if either part would be empty.
    """
    size = round(rows * share)
    if share and not 0 < size < rows:
        what = f"a test part of {share:g} of {rows} rows leaves a part empty"
        raise InputError.of("problem.test_size", what, "use a share such as 0.25")
    order = _generator(seed, "test").permutation(rows)
    return np.sort(order[size:]), np.sort(order[:size])


def split(
    labels: np.ndarray,
    clients: int,
    how: str | Mapping[str, float] = "contiguous",
    *,
    remainder: str = "drop",
    seed: int = 0,
) -> list[np.ndarray]:
    """Return the row indices of each client.

    contiguous, shuffled, sorted_by_label (stable): floor(N / n) consecutive rows each of the file, of a random order,
    of the rows sorted by label; ``remainder`` drops the rest or gives it to the last client. {dirichlet: a}: each class
    is dealt out in shares drawn from Dir(a, ..., a), drawn again until no client is empty; no row is left over.
    {holdout_mix: p}: floor(N / (n+1)) random rows each and one such chunk held out; every row of a client is replaced
    with probability p by the held-out row of the same position (p = 1: all clients alike; 0: disjoint).

    Raises InputError if a client would be empty, and for an unknown split.
    """
    rows = len(labels)
    kind, number = (how, None) if isinstance(how, str) else next(iter(how.items()))
    if kind not in (SPLITS if number is None else SPLIT_TAGS):
        near = nearest(kind, [*SPLITS, *SPLIT_TAGS])
        fix = f"write {{{kind}: NUMBER}}" if kind in SPLIT_TAGS else near
        raise InputError.of("problem.split", f"unknown split {how!r}", fix)
    most = rows - 1 if kind == "holdout_mix" else rows
    if not 1 <= clients <= most:
        fix = f"at most {most:,} clients can have a row" if clients > 0 else "at least 1"
        raise InputError.of("problem.clients", f"{clients} clients on {rows:,} rows", fix)
    random = _generator(seed, kind)
    if number is not None:
        deal = _dirichlet if kind == "dirichlet" else _holdout_mix
        return deal(labels, clients, number, random)
    order = np.arange(rows)
    if kind == "shuffled":
        order = random.permutation(rows)
    elif kind == "sorted_by_label":
        order = np.argsort(labels, kind="stable")
    size = rows // clients
    end = rows if remainder == "last" else size * clients
    return np.split(order[:end], size * np.arange(1, clients))


def by_column(
    values: np.ndarray, train: np.ndarray, clients: int | None, column: str
) -> list[np.ndarray]:
    """Return each client's positions in ``train``: client i has the rows of the i-th value, in sorted order.

    values: (N,) numbers or text of all rows. train: which of them are for training. clients: None for as many as there
    are values. Raises InputError where there are not as many values as clients, or a client has no row for training.
    """
    names, which = np.unique(values, return_inverse=True)
    if clients is not None and len(names) != clients:
        what = f"{clients} clients, and column {column!r} tells {len(names):,} apart"
        fix = f"write clients: {len(names)}, or leave it out"
        raise InputError.of("problem.clients", what, fix)
    parts = [np.flatnonzero(which[train] == i) for i in range(len(names))]
    for name, part in zip(names, parts):
        if not len(part):
            what = f"client {name} of column {column!r} has no row left for training"
            fix = "hold out a smaller share, or give a test_set"
            raise InputError.of("problem.test_size", what, fix)
    return parts


def _dirichlet(
    labels: np.ndarray, clients: int, alpha: float, random: np.random.Generator
) -> list[np.ndarray]:
    classes = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    for _ in range(MOST_DIRICHLET_DRAWS):
        pieces = []  # of each class, one for each client
        for members in classes:
            shares = random.dirichlet(np.full(clients, alpha))
            cuts = np.rint(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
            pieces.append(np.split(random.permutation(members), cuts))
        dealt = [np.sort(np.concatenate(part)) for part in zip(*pieces)]
        if all(len(part) for part in dealt):
            return dealt
    what = f"dirichlet({alpha:g}) left a client of {clients} empty {MOST_DIRICHLET_DRAWS} times"
    raise InputError.of("problem.split", what, "use fewer clients, or a larger parameter")


def _holdout_mix(
    labels: np.ndarray, clients: int, p: float, random: np.random.Generator
) -> list[np.ndarray]:
    size = len(labels) // (clients + 1)
    order = random.permutation(len(labels))
    common = order[:size]
    parts = (order[size * (i + 1) : size * (i + 2)] for i in range(clients))
    return [np.where(random.random(size) < p, common, part) for part in parts]


def _generator(seed: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng([seed, *purpose.encode()])
