"""Multinomial logistic regression: any number of classes, one column of the variable for each."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from raybench import data
from raybench.core.layout import Layout
from raybench.core.registry import problem
from raybench.problems.minimum import softmax_minimum
from raybench.problems.scores import ScoreProblem


@problem("softmax")
class Softmax(ScoreProblem):
    """Multinomial logistic regression: f_i(X) = mean_j (log sum_k exp(a_j'X_k) - a_j'X_(y_j)) + lambda r(X).

    X has a column X_k per class, (features, classes); labels may be numbers or text, two classes or
    more, numbered in sorted order. r: nonconvex, l2, l1 or none, as of ``logistic``.

    L_i = lmax(A_i'A_i) / (2 N_i) plus 2 lambda (nonconvex) or lambda (l2), and alike for L. For the
    Hessian of log-sum-exp is H = diag(p) - p p', p the probabilities, and H <= I/2: for any v, v'Hv
    is the variance of a random variable that takes the value v_k with probability p_k, at most
    (max v - min v)^2 / 4 (Popoviciu), and (v_a - v_b)^2 <= 2 (v_a^2 + v_b^2) <= 2 ||v||^2. So the
    Hessian of f_i without r, mean_j H_j (x) a_j a_j', is at most I/2 (x) A_i'A_i / N_i. It is attained where
    two classes have probability 1/2 each, so with two classes at X = 0. The gradient of one
    row's loss in its scores, p - e_y, has a norm of at most sqrt(2). (Boehning 1992.)

    Raises InputError for bad input (see ``DataProblem``).
    """

    slope = math.sqrt(2)
    curvature = 0.5
    convex = True

    def targets(self, dataset: data.Dataset) -> np.ndarray:
        """Return each row's class as an integer from 0, in the order of the sorted labels."""
        return np.searchsorted(dataset.classes, dataset.labels)

    def turned(self, labels: np.ndarray) -> np.ndarray:
        """Return wrong labels: of c classes c - 1 - k in place of k."""
        return len(self.data.classes) - 1 - labels

    def shape(self) -> Layout:
        """Return a (features, classes) matrix."""
        return Layout((("x", (self.rows.features.shape[1], len(self.data.classes))),))

    def link(self, scores: Tensor) -> Tensor:
        """Return the probabilities of the classes."""
        return torch.softmax(scores, -1)

    def least(self, mu: float) -> tuple[float, np.ndarray] | None:
        """Return (min f, x*) with mu ||X||^2/2, by Newton's method; None where d or N is large."""
        rows, classes = self.rows, len(self.data.classes)
        return softmax_minimum(rows.features, rows.labels, rows.weights(), classes, mu)

    def terms(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return p - e_y and log sum_k exp(z_k) - z_y.

        p_y - 1 is taken as minus the sum of the others, since 1 less a number close to it has no digits left.
        Written out, because torch.softmax over so short an axis takes several times as long.
        """
        place = labels[..., None]
        top = scores.amax(-1, keepdim=True)
        p = (scores - top).exp_()
        total = p.sum(-1, keepdim=True)
        losses = (total.log() - (scores.gather(-1, place) - top))[..., 0]
        p /= total
        p.scatter_(-1, place, 0.0)
        return p.scatter_(-1, place, -p.sum(-1, keepdim=True)), losses
