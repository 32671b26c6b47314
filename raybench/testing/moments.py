"""Monte Carlo moments of an operator: many cells, one client each, in one tensor.

What is measured is here; whether it agrees with what an operator claims is judged in ``claims`` alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from raybench.compressors import Compressor
from raybench.testing.vectors import cells_and_clients

SIGMAS = 5.0
SEED = 11


def draws(op: Compressor, x: Tensor, count: int, seed: int = SEED) -> Tensor:
    """Return ``count`` independent draws of C(x), (count, d), for x (d,)."""
    return op.compress(x.expand(count, 1, -1), cells_and_clients(count, 1, seed)).decode()[:, 0]


def relative_error(value: Tensor, x: Tensor) -> Tensor:
    """Return ||value - x||^2 / ||x||^2 over the last axis."""
    return (value - x).square().sum(-1) / x.square().sum(-1)


@dataclass(frozen=True)
class Moments:
    """Sample moments of C(x) at one x (d,), each a mean with its standard error.

    mean: of C(x), (d,); along: of <C(x), x>/||x||; error, shrunk: of ||c C(x) - x||^2 / ||x||^2 for
    c = 1 and for the factor of the contractive role. size: of ||C(x)||^2 / ||x||^2, and ``most`` the largest one.
    excess: of (||C(x)||^2 - b <C(x), x>) / ||x||^2 by b. largest: the largest value seen.
    """

    x: Tensor
    count: int
    mean: tuple[Tensor, Tensor]
    along: tuple[Tensor, Tensor]
    error: tuple[float, float]
    shrunk: tuple[float, float]
    size: tuple[float, float]
    most: float
    excess: dict[float, tuple[float, float]]
    largest: float


def moments(
    op: Compressor,
    x: Tensor,
    count: int,
    factor: float = 1.0,
    betas: Iterable[float] = (),
    seed: int = SEED,
) -> Moments:
    """Return the moments of ``count`` draws of C(x), x of shape (d,); betas: for ``excess``."""
    sample, size = draws(op, x, count, seed), x.square().sum()
    squares, along = sample.square().sum(-1) / size, sample @ x / size

    return Moments(
        x,
        count,
        _mean(sample),
        _mean((sample @ x / x.norm())[:, None]),
        _number(relative_error(sample, x)),
        _number(relative_error(factor * sample, x)),
        _number(squares),
        float(squares.max()),
        {b: _number(squares - b * along) for b in betas},
        float(torch.maximum(sample.abs().max(), x.abs().max())),
    )


def _number(values: Tensor) -> tuple[float, float]:
    mean, error = _mean(values)
    return float(mean), float(error)


def _mean(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean over axis 0 and its standard error."""
    mean = values.mean(0)
    spread = values.std(0) if len(values) > 1 else torch.zeros_like(mean)
    return mean, spread / math.sqrt(len(values))
