"""Metrics: functions (problem, x) -> one number per cell, stored in ``extra``."""

from __future__ import annotations

import torch
from torch import Tensor

from raybench.core.registry import metric
from raybench.problems.base import Problem


@metric("iterate_norm")
def iterate_norm(problem: Problem, x: Tensor) -> Tensor:
    """||x||_2, by which a run that drifts away shows."""
    return torch.linalg.vector_norm(x, dim=-1)


@metric("sparsity")
def sparsity(problem: Problem, x: Tensor) -> Tensor:
    """The share of coordinates of x that are exactly zero, for l1-regularised problems."""
    return (x == 0).double().mean(-1)
