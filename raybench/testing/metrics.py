"""What every metric must hold: a function (problem, x) -> one number per cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raybench.core.registry import Entry
from raybench.problems import Problem, build
from raybench.testing import Checks, Finding, findings
from raybench.testing.vectors import gaussian

CHECKS = Checks()


@dataclass(frozen=True)
class MetricTrial:
    """A metric and the problem it is tried on."""

    metric: Callable[[Problem, Tensor], Tensor]
    problem: Problem

    @property
    def x(self) -> Tensor:
        """Points (3, d)."""
        return gaussian(3, self.problem.dim, dtype=self.problem.dtype)


def conformance(
    metric: Callable[[Problem, Tensor], Tensor], problem: Problem, about: str = "metric"
) -> list[Finding]:
    """Return the findings of all checks on a metric."""
    return findings(CHECKS, MetricTrial(metric, problem), about)


def check_entry(entry: Entry, problem: Mapping[str, Any] | None = None) -> list[Finding]:
    """Return the findings of all checks on a registered metric; problem: as in a sweep file, a small quadratic if None."""
    params = dict(problem or {"name": "quadratic", "dim": 6, "clients": 3})
    return conformance(entry.target, build(params.pop("name"), params), entry.name)


@CHECKS
def gives_a_number_per_cell(s: MetricTrial) -> None:
    """The result is a tensor of shape (B,) of numbers, for any B."""
    for cells in (1, 3):
        value = s.metric(s.problem, s.x[:cells])
        assert isinstance(value, Tensor), f"returned {type(value).__name__}, not a tensor"
        assert value.shape == (cells,), f"returned shape {tuple(value.shape)} for {cells} cells"
        assert not value.is_complex(), f"returned {value.dtype}"


@CHECKS
def cells_do_not_depend_on_each_other(s: MetricTrial) -> None:
    """A cell alone gives what it gives in a batch."""
    whole = s.metric(s.problem, s.x).double()
    for b in range(len(s.x)):
        alone = s.metric(s.problem, s.x[b : b + 1]).double()
        torch.testing.assert_close(
            alone[0], whole[b], equal_nan=True, msg=lambda text: f"a cell alone: {text}"
        )


@CHECKS
def x_is_left_alone(s: MetricTrial) -> None:
    """x is not changed, and the same x gives the same number."""
    x, before = s.x, s.x.clone()
    first = s.metric(s.problem, x).clone()
    assert torch.equal(x, before), "the metric changed x"
    assert torch.equal(s.metric(s.problem, x).nan_to_num(), first.nan_to_num()), "two calls differ"
