"""Vectors on which selecting the largest could go wrong."""

import math

import torch

from raybench.testing.vectors import gaussian

NAN, INF = math.nan, math.inf
DTYPES = [torch.float32, torch.float64]


def hard_vectors(d, dtype):
    """Rows (d,) on which a guess from a sample, ties or odd numbers could go wrong."""
    normal = gaussian(d, seed=1, dtype=torch.float64)
    at = torch.arange(d)
    tiny = 2.0 ** (-1074 if dtype == torch.float64 else -149)
    spread = torch.exp(8 * normal)
    rows = {
        "gaussian": normal,
        "zero": 0 * normal,
        "flat": 0.7 * (1 - 2.0 * (at % 2)),
        "one-hot": -3.0 * (at == d // 2),
        "few values": (2 * normal).round(),
        "two values": 1.0 + (at % 10 == 3),
        "ascending": normal.abs().sort().values,
        "descending": normal.abs().sort(descending=True).values,
        "largest together": torch.where(at > 0.97 * d, 10 + normal, 0.01 * normal),
        "wide": spread,
        "denormal": (50 * normal).round() * tiny,
        "negative zeros": -0.0 * normal.abs(),
        "some NaN": torch.where(at % 97 == 5, NAN, normal),
        "some infinite": torch.where(at % 89 == 5, -INF, normal),
        "NaN and infinite": torch.where(at % 89 == 5, INF, torch.where(at % 97 == 5, NAN, normal)),
        "all NaN": torch.full((d,), NAN, dtype=torch.float64),
    }
    return {name: x.to(dtype) for name, x in rows.items()}


def same(a, b):
    return torch.equal(torch.nan_to_num(a, 7.5), torch.nan_to_num(b, 7.5))


def by_sorting(x, k):
    """Return the indices of the k largest magnitudes, ascending; of ties the first; NaN as infinity."""
    size = torch.where(x.isnan(), INF, x.abs())
    return size.argsort(dim=-1, descending=True, stable=True)[..., :k].sort(dim=-1).values
