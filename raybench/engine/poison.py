"""Clients that take their gradients on wrong labels, as by ``robust: {attack: label_flip}``."""

from __future__ import annotations

import torch
from torch import Tensor

from raybench.core.draws import Sample
from raybench.problems.abilities import Labelled
from raybench.problems.base import Problem
from raybench.wire.wire import Cells


class Poisoned:
    """The last ``count`` of n clients see the labels of ``problem`` turned around; what f is stays as it is."""

    def __init__(self, problem: Problem, count: int) -> None:
        here = problem.clients
        bad = range(max(here.start, problem.n - count), here.stop)
        self.honest = len(here) - len(bad)
        self.problem: Problem | None = None
        if len(bad):
            part = problem.part(bad)
            assert isinstance(part, Labelled)
            self.problem = part.flipped()

    def replaced(
        self, grads: Tensor, x: Tensor, sample: Sample | None, cells: Cells | None
    ) -> Tensor:
        """Return the gradients (B, n_here, d) at x with those of these clients on wrong labels."""
        if self.problem is None:
            return grads
        some = slice(None) if cells is None else cells
        at = x[some] if x.ndim == 2 else x[some][:, self.honest :]
        own = None if sample is None else sample[some].of(slice(self.honest, None))
        return torch.cat((grads[:, : self.honest], self.problem.grad(at, own)), 1)
