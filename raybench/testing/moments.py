"""Monte Carlo moments of an operator: many cells, one client each, in one tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from raybench.compressors import Compressor
from raybench.testing.vectors import cells_and_clients

SIGMAS = 5.0


def draws(op: Compressor, x: Tensor, count: int, seed: int = 11) -> Tensor:
    """Return ``count`` independent draws of C(x), (count, d), for x (d,)."""
    return op.compress(x.expand(count, 1, -1), cells_and_clients(count, 1, seed)).decode()[:, 0]


@dataclass(frozen=True)
class Moments:
    """Sample moments of C(x) at one x (d,), each a mean with its standard error.

    mean: of C(x), (d,); along: of <C(x), x>/||x||; error, shrunk: of ||c C(x) - x||^2 / ||x||^2 for
    c = 1 and for the factor of the contractive role. size: of ||C(x)||^2 / ||x||^2. excess: of
    (||C(x)||^2 - b <C(x), x>) / ||x||^2 by b. largest: the largest value seen.
    """

    x: Tensor
    count: int
    mean: tuple[Tensor, Tensor]
    along: tuple[Tensor, Tensor]
    error: tuple[float, float]
    shrunk: tuple[float, float]
    size: tuple[float, float]
    excess: dict[float, tuple[float, float]]
    largest: float


def moments(
    op: Compressor, x: Tensor, count: int, factor: float = 1.0, betas: Iterable[float] = ()
) -> Moments:
    """Return the moments of ``count`` draws of C(x), x of shape (d,); betas: for ``excess``."""
    sample, size = draws(op, x, count), x.square().sum()
    squares, along = sample.square().sum(-1) / size, sample @ x / size

    def squared(c: float) -> tuple[float, float]:
        return _number((c * sample - x).square().sum(-1) / size)

    return Moments(
        x,
        count,
        _mean(sample),
        _mean((sample @ x / x.norm())[:, None]),
        squared(1.0),
        squared(factor),
        _number(squares),
        {b: _number(squares - b * along) for b in betas},
        float(torch.maximum(sample.abs().max(), x.abs().max())),
    )


def assert_unbiased(m: Moments, name: str) -> None:
    """Assert that the mean of C(x) is x, by coordinate and along x.

    Allowed: 5 standard errors, and 50/count of the largest value drawn, so that levels too rare to
    have been drawn are no fault (empirical Bernstein inequality).
    """
    rare = (50 / m.count if m.count > 1 else 0.0) * m.largest + 1e-12 * m.largest
    wanted = {"C(x)": (m.mean, m.x), "<C(x), x>/||x||": (m.along, m.x.norm()[None])}
    for what, ((mean, error), want) in wanted.items():
        off = (mean - want).abs()
        worst = int((off - SIGMAS * error).argmax())
        assert (off <= SIGMAS * error + rare).all(), (
            f"mean of {what} is {float(mean[worst]):.6g}, not {float(want[worst]):.6g} "
            f"(standard error {float(error[worst]):.2g}, {name})"
        )


def assert_at_most(found: tuple[float, float], bound: float, what: str) -> None:
    """Assert that a mean is at most ``bound``, with 3% slack and 5 standard errors."""
    mean, error = found
    assert mean <= 1.03 * bound + SIGMAS * error + 1e-12, (
        f"{mean:.4g} > {bound:.4g} (standard error {error:.2g}): {what}"
    )


def _number(values: Tensor) -> tuple[float, float]:
    mean, error = _mean(values)
    return float(mean), float(error)


def _mean(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean over axis 0 and its standard error."""
    mean = values.mean(0)
    spread = values.std(0) if len(values) > 1 else torch.zeros_like(mean)
    return mean, spread / math.sqrt(len(values))
