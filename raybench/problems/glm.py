"""Losses l(y a'x) of a margin: what logistic regression and its nonconvex sister share."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import scipy.sparse
import torch

from raybench.core.draws import Sample
from raybench.data.dataset import Features
from raybench.problems.base import Constants
from raybench.problems.clients import DataProblem
from raybench.problems.dense import DenseMargins
from raybench.problems.minimum import logistic_minimum
from raybench.problems.sparse import SparseMargins
from raybench.problems.spectra import lmax_gram, row_norms_sq

MOST_ENTRIES_BY_KERNEL = (
    40_000  # up to so many stored entries the sparse kernel beats dense matrix products
)


class MarginProblem(DataProblem):
    """f_i(x) = mean_j l(y_j a_j'x) + regulariser, y_j = -1 or +1 (smaller label: -1).

    ``loss`` names l >= 0 among the kernels; ``slope`` is sup |l'|, ``curvature`` sup |l''|, and
    ``convex`` says whether l is convex.
    """

    loss: ClassVar[str]
    slope: ClassVar[float]
    curvature: ClassVar[float]
    convex: ClassVar[bool] = False

    def margins(self, batch: int | None = None) -> DenseMargins | SparseMargins:
        """Return what computes losses and gradients of so many cells here, made on first use.

        On the CPU the compiled kernels over compressed rows, but dense torch for one cell on data
        that is large and mostly not zero (measured two to four times faster there); elsewhere
        dense torch.
        """
        if "full" not in self._kept:
            stored = _stored(self.rows.features)
            self._kept["full"] = stored > max(
                MOST_ENTRIES_BY_KERNEL, 0.5 * math.prod(self.rows.features.shape)
            )
        if self.device.type != "cpu" or (batch == 1 and self._kept["full"]):
            if "dense" not in self._kept:
                made = DenseMargins(self.rows, self.loss, self.dtype, self.device)
                self._kept["dense"] = made
            return self._kept["dense"]
        if "sparse" not in self._kept:
            self._kept["sparse"] = SparseMargins(self.rows, self.loss, self.dtype)
        return self._kept["sparse"]

    def oracle(
        self, x: torch.Tensor, loss: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the clients' gradients (B, n_here, d) and losses (B, n_here)."""
        smooth = self.regularizer.smooth
        shift, value = self.regularizer.both(x) if smooth else (None, None)
        grads, losses = self.margins(len(x)).oracle(x, shift, loss)
        if losses is not None and value is not None:
            losses += value if value.ndim == 2 else value[:, None]
        return grads, losses

    def grad(self, x: torch.Tensor, sample: Sample | None = None) -> torch.Tensor:
        """Return the clients' gradients, or those of a sample."""
        if sample is None:
            return self.oracle(x, loss=False)[0]
        shift = self.regularizer.both(x)[0] if self.regularizer.smooth else None
        return self.margins().minibatch(x, sample.indices, shift)

    def link(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the probability of the label +1."""
        return torch.sigmoid(scores)

    def loss_L(self) -> float:
        """Return curvature * lmax(mean_i A_i'A_i / N_i)."""
        return self.curvature * lmax_gram(self.rows.features, self._weights())

    def find_constants(self) -> Constants:
        """L_i = curvature * lmax(A_i'A_i) / N_i + L of the regulariser, and alike for L.

        f* where a strongly convex f is quickly minimised. L_plus is bounded by L_tilde. L_samples is the root mean square over clients of
        curvature * sqrt(lmax(mean_j ||a_j||^2 a_j a_j')) + L of the regulariser (Minkowski). A single
        sample has the constant curvature ||a_j||^2 + L of the regulariser, and its gradient is at
        most slope ||a_j|| away from the regulariser's: hence sample_variance.
        """
        reg, c = self.regularizer, self.curvature
        each, samples, single, squares = [], [], [], []
        for features, labels in self.rows.parts():
            count = len(labels)
            each.append(c * lmax_gram(features) / count + reg.L)
            norms = row_norms_sq(features)
            samples.append(c * math.sqrt(lmax_gram(features, norms / count)) + reg.L)
            single.append(c * float(norms.max()) + reg.L)
            squares.append(float(norms.mean()))
        found = Constants(L_i=tuple(each))
        least = self._minimum()
        return Constants(
            L=self.loss_L() + reg.L,
            L_i=tuple(each),
            L_plus=found.L_tilde,
            L_pm=0.0 if self.n == 1 else None,
            mu=self.strong_convexity(),
            f_inf=least[0] if least else 0.0,
            f_star=least[0] if least else None,
            L_samples=math.sqrt(float(np.mean(np.square(samples)))),
            L_sample_i=tuple(single),
            sample_variance=self.slope**2 * float(np.mean(squares)),
            facts=self.facts_where(
                convex=self.convex, strongly_convex=bool(self.strong_convexity())
            ),
        )

    def minimizer(self) -> torch.Tensor | None:
        """Return the minimiser of a strongly convex f, by Newton's method; None where d or N is large."""
        whole = self.whole
        assert isinstance(whole, MarginProblem)
        least = whole._minimum()
        if least is None:
            return None
        return torch.from_numpy(least[1]).to(self.dtype).to(self.device)

    def _minimum(self) -> tuple[float, np.ndarray] | None:
        mu = self.strong_convexity()
        if self.loss != "logistic" or not mu:
            return None
        if "minimum" not in self._kept:
            found = logistic_minimum(self.rows.features, self.rows.labels, self._weights(), mu)
            self._kept["minimum"] = found
        return self._kept["minimum"]

    def _weights(self) -> np.ndarray:
        counts = np.asarray(self.rows.counts)
        return np.repeat(1 / (len(counts) * counts), counts)

    def strong_convexity(self) -> float | None:
        """Return mu where the loss is convex and the regulariser gives one."""
        return None

    def evaluate(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return accuracy on the test part (else on all clients' rows), and the mean test loss.

        The test loss has no regulariser; margins of 0 count as wrong.
        """
        whole = self.whole
        assert isinstance(whole, MarginProblem)
        rows = whole.test or whole.rows
        margins = torch.from_numpy(rows.labels[:, None] * (rows.features @ _numpy(x).T))
        found = {"accuracy": (margins > 0).double().mean(0)}
        if whole.test is not None:
            found["test_loss"] = DenseMargins.losses[self.loss](margins)[0].mean(0)
        return {k: v.to(x.device) for k, v in found.items()}


def _stored(features: Features) -> int:
    return features.nnz if scipy.sparse.issparse(features) else features.size


def _numpy(x: torch.Tensor) -> np.ndarray:
    return x.detach().cpu().double().numpy()
