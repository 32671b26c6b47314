"""Losses of linear scores a'X, one or several per row: the constants that all of them have in closed form."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np
import scipy.sparse
import torch

from raybench.data.dataset import Features
from raybench.problems.base import Constants
from raybench.problems.clients import DataProblem
from raybench.problems.spectra import lmax_gram, row_norms_sq


class ScoreProblem(DataProblem):
    """f_i(X) = mean_j l_j(X'a_j) + regulariser, where l_j >= 0 is the loss of row j at its scores.

    ``slope`` is sup ||grad l_j||, ``curvature`` sup ||Hessian of l_j||, and ``convex`` says whether l_j is
    convex. Every constant follows from these and from the rows: the Hessian of the mean loss is
    mean_j (Hessian of l_j) (x) a_j a_j', which is at most curvature I (x) mean_j a_j a_j'.
    """

    slope: ClassVar[float]
    curvature: ClassVar[float]
    convex: ClassVar[bool] = False
    labelled: ClassVar[bool] = True

    def loss_L(self) -> float:
        """Return curvature * lmax(mean_i A_i'A_i / N_i)."""
        return self.curvature * lmax_gram(self.rows.features, self.weights())

    def find_constants(self) -> Constants:
        """L_i = curvature * lmax(A_i'A_i) / N_i + L of the regulariser, and alike for L.

        f* where a strongly convex f is quickly minimised. L_plus is bounded by L_tilde. L_samples is
        the root mean square over clients of curvature * sqrt(lmax(mean_j ||a_j||^2 a_j a_j')) + L of
        the regulariser (Minkowski). A single sample has the constant curvature ||a_j||^2 + L of the
        regulariser, and its gradient is at most slope ||a_j|| away from the regulariser's: hence
        sample_variance.
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
        least, mu = self._minimum(), self.strong_convexity()
        return Constants(
            L=self.loss_L() + reg.L,
            L_i=tuple(each),
            L_plus=found.L_tilde,
            L_pm=0.0 if self.n == 1 else None,
            mu=mu,
            mu_i=(mu,) * self.n if mu else (),
            f_inf=least[0] if least else 0.0,
            f_star=least[0] if least else None,
            L_samples=math.sqrt(float(np.mean(np.square(samples)))),
            L_sample_i=tuple(single),
            sample_variance=self.slope**2 * float(np.mean(squares)),
            facts=self.facts_where(convex=self.convex, strongly_convex=bool(mu)),
        )

    def strong_convexity(self) -> float | None:
        """Return lambda of l2 where the loss is convex: mu, None where there is none."""
        return (self.regularizer.mu or None) if self.convex else None

    def minimizer(self) -> torch.Tensor | None:
        """Return the minimiser of a strongly convex f, by Newton's method; None where d or N is large."""
        whole = self.whole
        assert isinstance(whole, ScoreProblem)
        found = whole._minimum()
        if found is None:
            return None
        return torch.from_numpy(found[1]).to(self.dtype).to(self.device)

    def least(self, mu: float) -> tuple[float, np.ndarray] | None:
        """Return (min f, x* (d,)) with the regulariser mu ||x||^2/2, mu > 0, in float64; None where unknown."""
        return None

    def _minimum(self) -> tuple[float, np.ndarray] | None:
        mu = self.strong_convexity()
        if not mu:
            return None
        if "minimum" not in self._kept:
            self._kept["minimum"] = self.least(mu)
        return self._kept["minimum"]

    def flipped(self) -> Self:
        """Return the same problem with wrong labels, see ``turned``; its constants are those of the right ones."""
        other = copy.copy(self)
        other._whole, other._kept = self.whole, {}
        other.rows = replace(self.rows, labels=self.turned(self.rows.labels))
        return other

    def turned(self, labels: np.ndarray) -> np.ndarray:
        """Return wrong labels: signs are turned around, by default."""
        return -labels

    def weights(self) -> np.ndarray:
        """Return each row's weight in f, (N,): 1 / (n N_i)."""
        counts = np.asarray(self.rows.counts)
        return np.repeat(1 / (len(counts) * counts), counts)


def stored_entries(features: Features) -> int:
    """Return how many entries of a matrix are stored: all of a dense one."""
    return features.nnz if scipy.sparse.issparse(features) else features.size
