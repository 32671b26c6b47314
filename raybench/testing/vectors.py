"""The vectors that operators are tried on."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from raybench.core.streams import Stream, stream


def families(d: int) -> dict[str, Tensor]:
    """Return one vector (d,) float64 of each family on which operators behave differently."""
    at = torch.arange(1, d + 1, dtype=torch.float64)
    signs = 1 - 2.0 * (at % 2)
    normal = stream(1).normal(d)
    chi2 = stream(2).normal(d).square() + stream(3).normal(d).square()
    critical = torch.full((d,), 1 / (1 + math.sqrt(d)), dtype=torch.float64)
    critical[0] = 1.0
    return {
        "gaussian": normal,
        "student t2": stream(4).normal(d) / (chi2 / 2).sqrt(),
        "one-hot": -3.0 * (at == d // 2 + 1).double(),
        "flat": 2 / 3 * signs,  # powers of two are farthest from 2/3
        "zipf": signs / at,
        "terngrad-critical": critical,
        "tiny": 1e-6 * normal,
    }


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return standard Gaussians of a shape."""
    return stream(seed).fold("gaussian").normal(math.prod(shape)).view(shape).to(dtype)


def cells_and_clients(cells: int, clients: int, seed: int = 0) -> Stream:
    """Return streams of shape (cells, clients), as the engine hands them to operators."""
    return stream(seed).each(torch.arange(cells)).each(torch.arange(clients))
