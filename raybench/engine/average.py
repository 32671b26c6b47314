"""Averages of the iterates: the points that many rates are about."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Average:
    """A running mean of points (B, d): sum_t w_t x^t / sum_t w_t.

    decay (B,): w_t = (1 - decay)^-t, so later points weigh more; 0 is the plain average. The weights
    are kept relative to the last one, so nothing overflows.
    """

    def __init__(self, decay: Tensor) -> None:
        self.keep = (1 - decay)[:, None]
        self.total = torch.zeros_like(self.keep)
        self.value: Tensor | None = None

    def add(self, x: Tensor) -> Tensor:
        """Take in x (B, d) and return the mean so far."""
        self.total = self.keep * self.total + 1
        if self.value is None:
            self.value = x.clone()
        else:
            self.value = torch.lerp(self.value, x, 1 / self.total)
        return self.value

    def select(self, cells: Tensor) -> Average:
        """Return the averages of some cells."""
        kept = Average(torch.zeros(0))
        kept.keep, kept.total = self.keep[cells], self.total[cells]
        kept.value = None if self.value is None else self.value[cells]
        return kept

    def state(self) -> dict[str, Tensor | None]:
        """Return what the average remembers."""
        value = None if self.value is None else self.value.clone()
        return {"total": self.total.clone(), "value": value}

    def load(self, saved: Mapping[str, Tensor | None]) -> None:
        """Go on from what ``state`` returned."""
        assert saved["total"] is not None
        self.total, self.value = saved["total"], saved["value"]
