"""How much more of a random vector does Top-k keep than Rand-k?

The entries are independent, uniform on (0, 1) or exponential. Rand-k keeps k/d of any vector, and Top-k the saving
times as much: to keep that share Rand-k would send so many times more coordinates. The source computes both laws
from order statistics: on uniform entries Top-k leaves (1 - k/d)(1 - k/(d+1))(1 - k/(d+2)) and saves 3 times at
k = 1; on exponential ones the saving at k = 1 grows like (log d)^2.

Measured: 2.96 to 3.00 times on uniform entries for d of 100 to 100,000; 14.6, 30.7, 49.8 and 72.1 times on exponential
ones, which is ((1 + .. + 1/d)^2 + (1 + .. + 1/d^2))/2 to within 7 %, the noise of few draws. That is half of (log d)^2 in the
limit, 0.54 of it at d = 100,000. What Top-k leaves agrees with order statistics to 0.3 %.

Source: Beznosikov, Horvath, Richtarik, Safaryan, On Biased Compression for Distributed Learning. Takes 3 s on 2 cores.
"""

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from raybench.measure import study


def top_1_uniform(d: int) -> float:
    """d E max^2 / E||x||^2 of d entries uniform on (0, 1)."""
    return 3 * d / (d + 2)


def top_1_exponential(d: int) -> float:
    """The same of exponential entries: the largest has mean H_d = 1 + .. + 1/d and variance 1 + .. + 1/d^2."""
    n = np.arange(1, d + 1, dtype=float)
    return float(((1 / n).sum() ** 2 + (1 / n**2).sum()) / 2)


def residual_uniform(d: int, k: int) -> float:
    """Return E||x - C(x)||^2 / E||x||^2 of Top-k: the j-th smallest of d has E u^2 = j(j+1)/((d+1)(d+2))."""
    return (1 - k / d) * (1 - k / (d + 1)) * (1 - k / (d + 2))


def residual_exponential(d: int, k: int) -> float:
    """Return the limit of the same: the share of E x^2 below the (1 - q)-quantile t, q = k/d = e^-t."""
    t = -math.log(k / d)
    return 1 - k / d * (1 + t + t * t / 2)


LAWS = {"uniform": top_1_uniform, "exponential": top_1_exponential}
RESIDUALS = {"uniform": residual_uniform, "exponential": residual_exponential}
DIMS = (100, 1_000, 10_000, 100_000)


def top_1_savings(draws: int) -> Iterator[dict[str, object]]:
    """Yield a row per law and d: how much more Top-1 keeps than Rand-1, d max^2/||x||^2, beside its formula."""
    for d in DIMS:
        vectors = study.drawn(d, max(8, min(draws, 2_000_000 // d)))
        for law, formula in LAWS.items():
            squares = vectors[law].double().square()
            saving = float((d * squares.amax(-1) / squares.sum(-1)).mean())
            row = {"kind": "saving", "law": law, "d": d, "k": 1, "saving": saving}
            yield row | {"expected": formula(d)}


def measure(full: bool) -> pd.DataFrame:
    """Return a row per law, d and k; full: with ten times as many draws.

    Columns: kind ("saving" of Top-1 in growing dimension, or "residual" of Top-k at d = 10,000), law, d, k, share (k/d);
    saving, what Top-k keeps over what Rand-k keeps; left, the share of ||x||^2 that Top-k leaves; expected, the
    formula of the one that the row is about; per_log_squared, the saving over (log d)^2.
    """
    more = 10 if full else 1
    rows = list(top_1_savings(200 * more))
    d = 10_000
    vectors = study.drawn(d, 20 * more)
    kept = study.measure({law: vectors[law] for law in LAWS}, {"Top-k": study.GRIDS["Top-k"]})
    for law, count, left in zip(kept["family"], kept["values"], kept["error"], strict=True):
        k = round(count)  # of which Rand-k keeps k/d
        row = {"kind": "residual", "law": law, "d": d, "k": k, "saving": (1 - left) * d / k}
        rows.append({**row, "left": left, "expected": RESIDUALS[law](d, k)})
    table = pd.DataFrame(rows)
    table["share"] = table["k"] / table["d"]
    table["per_log_squared"] = table["saving"] / table["d"].map(lambda d: math.log(d) ** 2)
    return table
