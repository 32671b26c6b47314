"""Rows dealt out to clients, regularisers, and problems on a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from raybench import data
from raybench.core.errors import InputError
from raybench.core.layout import Layout
from raybench.core.limits import check_fits
from raybench.core.registry import Choice, Flag, Integer, List, Number, Text
from raybench.data.dataset import Features
from raybench.problems.base import DTYPES, Fact, Problem
from raybench.problems.kernels import nonconvex_kernel
from raybench.problems.minimum import dense


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of consecutive clients: client i holds rows ends[i] to ends[i+1]."""

    features: Features
    labels: np.ndarray
    ends: np.ndarray  # (clients + 1,): client i has the rows ends[i] to ends[i + 1]

    @classmethod
    def of(cls, features: Features, labels: np.ndarray, parts: Sequence[np.ndarray]) -> Rows:
        """Return the rows ``parts[i]`` of each client i, stacked."""
        order = np.concatenate(parts)
        return cls(features[order], labels[order], np.cumsum([0, *map(len, parts)]))

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the number of rows of each client."""
        return tuple(int(c) for c in np.diff(self.ends))

    def __getitem__(self, clients: slice) -> Rows:
        ends = self.ends[clients.start : clients.stop + 1]
        first, last = ends[0], ends[-1]
        return Rows(self.features[first:last], self.labels[first:last], ends - first)

    def parts(self) -> list[tuple[Features, np.ndarray]]:
        """Return (features, labels) of each client."""
        spans = zip(self.ends[:-1], self.ends[1:])
        return [(self.features[a:b], self.labels[a:b]) for a, b in spans]

    def dense(self) -> np.ndarray:
        """Return the features as an ndarray. Raises InputError where that takes too much memory."""
        if not scipy.sparse.issparse(self.features):
            return self.features
        rows, d = self.features.shape
        what = f"a dense matrix of {rows:,} rows and {d:,} features"
        check_fits(
            "problem.dataset", what, 8 * rows * d, "take fewer rows (rows), or another problem"
        )
        return self.features.toarray()

    def padded(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Return features (n, N, p), labels (n, N, ..) and weights 1/N_i (n, N), with zeros up to the largest client."""
        counts, shape = self.counts, (len(self.counts), max(self.counts))
        features, labels = torch.from_numpy(self.dense()), torch.from_numpy(self.labels)
        kind = dtype if labels.is_floating_point() else labels.dtype
        A = torch.zeros(*shape, features.shape[1], dtype=dtype, device=device)
        Y = torch.zeros(*shape, *labels.shape[1:], dtype=kind, device=device)
        weights = torch.zeros(shape, dtype=dtype, device=device)
        for i, (count, start) in enumerate(zip(counts, self.ends)):
            A[i, :count] = features[start : start + count]
            Y[i, :count] = labels[start : start + count]
            weights[i, :count] = 1 / count
        return A, Y, weights

    def weights(self) -> np.ndarray:
        """Return each row's weight in f, (N,): 1 / (n N_i)."""
        counts = np.asarray(self.counts)
        return np.repeat(1 / (len(counts) * counts), counts)


@dataclass(frozen=True)
class Regularizer:
    """lam * r(x), with r one of

    nonconvex: sum_l x_l^2 / (1 + x_l^2), whose r'' lies in [-1/2, 2]; l2: ||x||^2 / 2;
    l1: ||x||_1 (nonsmooth: no part of f_i, see ``prox`` and ``penalty``); none: 0.
    """

    kind: str
    lam: float

    @property
    def smooth(self) -> bool:
        """Return whether something is added to f_i."""
        return self.kind in ("nonconvex", "l2") and self.lam > 0

    @property
    def nonsmooth(self) -> bool:
        """Return whether there is a proximal step."""
        return self.kind == "l1" and self.lam > 0

    @property
    def convex(self) -> bool:
        """Return whether it is convex."""
        return self.kind != "nonconvex" or self.lam == 0

    @property
    def L(self) -> float:
        """Return the smoothness constant of the smooth part."""
        return {"nonconvex": 2.0, "l2": 1.0}.get(self.kind, 0.0) * self.lam

    @property
    def mu(self) -> float:
        """Return the strong convexity constant of the smooth part (0 if it has none)."""
        return self.lam if self.kind == "l2" else 0.0

    def value(self, x: Tensor) -> Tensor:
        """Return the smooth part at x (..., d) as (...)."""
        if self.kind == "l2":
            return (0.5 * self.lam) * (x * x).sum(-1)
        square = x * x  # overflows to infinity at huge x, where the term's limit is 1
        terms = torch.where(square.isinf(), 1.0, square / (1 + square))
        return self.lam * terms.sum(-1)

    def grad(self, x: Tensor) -> Tensor:
        """Return the gradient of the smooth part at x (..., d)."""
        if self.kind == "l2":
            return self.lam * x
        root = 1 + x * x
        return (2 * self.lam) * x / root / root

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (grad, value) at x (..., d): in one pass on the CPU, where small calls cost most."""
        if self.kind != "nonconvex" or x.device.type != "cpu":
            return self.grad(x), self.value(x)
        at = x.detach().contiguous()
        grads, values = torch.empty_like(at), at.new_empty(at.shape[:-1])
        d = at.shape[-1]
        nonconvex_kernel(
            self.lam, at.view(-1, d).numpy(), grads.view(-1, d).numpy(), values.view(-1).numpy()
        )
        return grads, values

    def penalty(self, x: Tensor) -> Tensor:
        """Return the nonsmooth part at x (..., d) as (...)."""
        return self.lam * x.abs().sum(-1) if self.nonsmooth else x.new_zeros(x.shape[:-1])

    def prox(self, v: Tensor, gamma: Tensor | float) -> Tensor:
        """Return the soft threshold of v at gamma lam (l1), else v."""
        return v.sign() * (v.abs() - gamma * self.lam).clamp(min=0) if self.nonsmooth else v


class DataProblem(Problem):
    """A problem whose f_i is a mean over client i's rows of a data set, plus a regulariser.

    dataset, rows, scale, intercept, positive, label, features: see ``raybench.data.load``. test_size: share of the rows held out
    (for ``evaluate``), before the split; test_set: a data set of its own instead. clients, split, remainder: see
    ``raybench.data.split``; with {column: NAME} clients may be None, one per value. lambda: the regulariser's factor,
    or {times_L: c} for c times the smoothness constant of the mean loss without it. seed drives test part and split.
    """

    per_client: ClassVar[tuple[str, ...]] = ("rows",)
    rows: Rows

    def __init__(
        self,
        dataset: str = Text(help="a known name, or a path to a CSV, Parquet, .npz or LIBSVM file"),
        clients: int | None = Integer(
            None, low=1, help="number of clients n; of split: {column: NAME} it may be left out"
        ),
        *,
        split: str | Mapping[str, Any] = Choice(
            *data.SPLITS,
            tags={**data.SPLIT_TAGS, "column": Text(help="the column that tells the client")},
            help="which rows each client holds",
        ),
        remainder: str = Choice("drop", "last", help="rows left over by equal chunks"),
        regularizer: str = Choice(
            "nonconvex", "l2", "l1", "none", help="what is added to the loss"
        ),
        lambda_: float | Mapping[str, float] = Number(
            0.1, low=0, tags={"times_L": Number(low=0)}, help="its factor"
        ),
        dtype: str = Choice("float64", "float32", help="floating-point type"),
        seed: int = Integer(0, low=0, help="drives the split and the test part"),
        rows: int | None = Integer(None, low=1, help="only the first so many rows"),
        intercept: bool = Flag(help="append a feature that is always 1"),
        scale: str = Choice("none", "rows", "columns", help="unit rows, or columns within [-1, 1]"),
        test_size: float = Number(0.0, low=0, high=0.99, help="share of the rows held out"),
        positive: Sequence[float | str] | None = List(None, help="labels that count as +1"),
        label: str | None = Text(None, help="the column of labels of a table of one's own"),
        test_set: str | None = Text(None, help="the test part: a known name or a path, as dataset"),
        features: int | None = Integer(
            None, low=1, help="features of a LIBSVM file of one's own that may lack the last ones"
        ),
    ) -> None:
        column = str(split["column"]) if isinstance(split, Mapping) and "column" in split else None
        if clients is None and column is None:
            fix = "an integer >= 1; only with split: {column: NAME} may it be left out"
            raise InputError.of("problem.clients", "required", fix)
        reading: dict[str, Any] = {"scale": scale, "intercept": intercept, "label": label}
        reading["client"] = column
        self.data = data.load(dataset, rows=rows, positive=positive, features=features, **reading)
        targets = self.targets(self.data)
        train, test = data.hold_out(len(targets), test_size, seed)
        if column is not None and self.data.clients is not None:
            parts = data.by_column(self.data.clients, train, clients, column)
        else:
            assert clients is not None, "of a column that is not there reading complains"
            raw = self.data.labels[train]
            parts = data.split(raw, clients, split, remainder=remainder, seed=seed)
        self.rows = Rows.of(self.data.features, targets, [train[part] for part in parts])
        self.test = Rows.of(self.data.features, targets, [test]) if len(test) else None
        if test_set is not None:
            if self.test is not None:
                fix = "give test_set or test_size"
                raise InputError.of("problem.test_set", "there is a test_size as well", fix)
            features, labels = data.load_test(test_set, self.data, **reading)
            signs = self.targets(replace(self.data, labels=labels))
            self.test = Rows.of(features, signs, [np.arange(len(labels))])
        super().__init__(len(parts), self.shape(), dtype=DTYPES[dtype], samples=self.rows.counts)
        if regularizer == "none":
            lambda_ = 0.0
        elif isinstance(lambda_, Mapping):
            lambda_ = lambda_["times_L"] * self.loss_L()
        self.regularizer = Regularizer(regularizer, float(lambda_))
        self.has_prox = self.regularizer.nonsmooth

    def about(self) -> list[tuple[str, str]]:
        """Return what was read of the data set, and how many rows the smallest and the largest client have."""
        lines = self.data.about()
        if self.data.clients is None:
            least, most = min(self.rows.counts), max(self.rows.counts)
            each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
            lines.append(("clients", f"{self.n:,}, with {each} rows"))
        return lines

    def targets(self, dataset: data.Dataset) -> np.ndarray:
        """Return what the loss compares with, one entry (or row) per row: signs, by default."""
        return dataset.binary()

    def shape(self) -> Layout:
        """Return the variable's layout: one coordinate per feature, by default."""
        return Layout.vector(self.rows.features.shape[1])

    def loss_L(self) -> float:
        """Return the smoothness constant of the mean loss without regulariser."""
        raise NotImplementedError

    def facts_where(self, convex: bool, strongly_convex: bool) -> frozenset[Fact]:
        """Return what may be said of f: whether the loss is convex in every sample is given, and whether f is
        strongly convex. Losses and regularisers are at least 0, so every f_i is bounded below.
        """
        result = {Fact.BOUNDED_CLIENTS}
        if convex and self.regularizer.convex:
            result |= {Fact.CONVEX_CLIENTS, Fact.CONVEX_SAMPLES}
        if strongly_convex:
            result.add(Fact.STRONGLY_CONVEX)
        if self.regularizer.nonsmooth:
            result.add(Fact.CONVEX_PENALTY)
        return frozenset(result)

    def prox(self, v: Tensor, gamma: Tensor | float) -> Tensor:
        """Return the regulariser's proximal step (soft threshold for l1)."""
        return self.regularizer.prox(v, gamma)

    def penalty(self, x: Tensor) -> Tensor:
        """Return the regulariser's nonsmooth part."""
        return self.regularizer.penalty(x)

    def regularized(
        self, x: Tensor, grads: Tensor, losses: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return gradients (B, n, d) and losses (B, n) with the smooth part at x (B, d) or (B, n, d) added, in place."""
        if self.regularizer.smooth:
            shift, value = self.regularizer.both(x)
            grads += shift if x.ndim == 3 else shift[:, None]
            if losses is not None:
                losses += value if x.ndim == 3 else value[:, None]
        return grads, losses

    @property
    def outputs(self) -> int:
        """Return the columns of the variable: one, or one per class."""
        return self.dim // self.rows.features.shape[1]

    def inputs(self, rows: Tensor) -> Tensor:
        """Return the features (B, b, p) of rows (B, b), which count through all clients' rows."""
        whole = self.whole
        features = whole.rows.features[rows.flatten().cpu().numpy()]
        values = torch.from_numpy(dense(features)).to(self.dtype).to(self.device)
        return values.unflatten(0, tuple(rows.shape))

    def link(self, scores: Tensor) -> Tensor:
        """Return the predictions that scores a'x stand for: themselves, unless a loss says otherwise."""
        return scores

    def predict(self, x: Tensor, rows: Tensor) -> Tensor:
        """Return link(a_j'x), (B, n_here, b, outputs)."""
        return self._predicted(x, self.inputs(rows))

    def distill(self, x: Tensor, rows: Tensor, teacher: Tensor) -> Tensor:
        """Return mean_b a_b (p_b - t_b)': link and D belong together, as sigma and cross-entropy do."""
        A = self.inputs(rows)
        off = self._predicted(x, A) - teacher  # (B, n, b, c)
        n, b, c = off.shape[1:]
        together = off.permute(0, 2, 1, 3).reshape(len(A), b, n * c)
        wide = A.mT @ together  # one matrix product serves all clients
        return wide.unflatten(-1, (n, c)).permute(0, 2, 1, 3).flatten(-2) / b

    def _predicted(self, x: Tensor, A: Tensor) -> Tensor:
        """Return link(a'x), (B, n_here, b, outputs), of inputs A (B, b, p)."""
        p, n = A.shape[-1], x.shape[1]
        X = x.unflatten(-1, (p, -1)).permute(0, 2, 1, 3).flatten(-2)  # (B, p, n c)
        return self.link((A @ X).unflatten(-1, (n, -1)).permute(0, 2, 1, 3))
