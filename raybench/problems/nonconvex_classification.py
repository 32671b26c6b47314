"""Nonconvex binary classification: the loss of MARINA's and DASHA's experiments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from raybench.core.registry import Choice, Number, Param, problem
from raybench.problems.clients import DataProblem
from raybench.problems.glm import MarginProblem


def _steepest() -> float:
    # with s = sigma(-z): l'' = s^2 (1-s) (4-6s), largest where 12 s^2 - 15 s + 4 = 0
    s = (15 - math.sqrt(33)) / 24
    return s * s * (1 - s) * (4 - 6 * s)


@problem("nonconvex_classification")
class NonconvexClassification(MarginProblem):
    """Squared sigmoid loss: f_i(x) = mean_j (1 - sigma(y_j a_j'x))^2 + lambda r(x).

    r: l2 (||x||^2 / 2, with lambda = 1e-6 L by default), nonconvex, l1 or none, as in logistic
    regression. L_i = 0.15406 lmax(A_i'A_i) / N_i + lambda (l2). Loss of Zhao et al. 2010, setting
    of Gorbunov et al. 2021 (MARINA). Raises InputError for bad input (see ``DataProblem``).
    """

    __params__: ClassVar[Mapping[str, Param]] = {
        **DataProblem.__params__,
        "regularizer": Choice("l2", "nonconvex", "l1", "none", help="what is added to the loss"),
        "lambda": Number(
            {"times_L": 1e-6}, low=0, tags={"times_L": Number(low=0)}, help="its factor"
        ),
    }
    loss = "sigmoid_sq"
    slope = 8 / 27  # |l'| = 2 s^2 (1-s) with s = sigma(-z), largest at s = 2/3
    curvature = _steepest()

    def __init__(
        self,
        dataset: str,
        clients: int,
        *,
        regularizer: str = "l2",
        lambda_: float | Mapping[str, float] | None = None,
        **rest: Any,
    ) -> None:
        factor = {"times_L": 1e-6} if lambda_ is None else lambda_
        super().__init__(dataset, clients, regularizer=regularizer, lambda_=factor, **rest)
