"""What Top-k leaves behind on random vectors: order statistics.

For i.i.d. entries the expected residual E||x - C(x)||^2 / E||x||^2 tends to the share of E x^2 below
the (1 - k/d)-quantile of |x|. Rand-k leaves 1 - k/d of any vector.
"""

from __future__ import annotations

import math
from statistics import NormalDist


def uniform(d: int, k: int) -> float:
    """Return the residual for entries uniform on (0, 1), exactly for every d:
    (1 - k/d)(1 - k/(d+1))(1 - k/(d+2)), as E u_(j)^2 = j(j+1)/((d+1)(d+2)) for the j-th smallest."""
    return (1 - k / d) * (1 - k / (d + 1)) * (1 - k / (d + 2))


def laplace(d: int, k: int) -> float:
    """Return the limit for Laplace or exponential entries: 1 - q (1 + t + t^2/2), q = k/d = e^-t."""
    q = k / d
    t = -math.log(q)
    return 1 - q * (1 + t + t * t / 2)


def gaussian(d: int, k: int) -> float:
    """Return the limit for Gaussian entries: 1 - q - 2 t phi(t), where P(|x| > t) = q = k/d."""
    if k == d:
        return 0.0
    normal = NormalDist()
    t = normal.inv_cdf(1 - k / d / 2)
    return 1 - k / d - 2 * t * normal.pdf(t)


def top_1_uniform(d: int) -> float:
    """Return d E max^2 / E||x||^2 for entries uniform on (0, 1): 3d/(d + 2), so 3 in high dimension."""
    return 3 * d / (d + 2)


def top_1_exponential(d: int) -> float:
    """Return d E max^2 / E||x||^2 for exponential (or Laplace) entries: (H_d^2 + H_d^(2))/2.

    The maximum has mean H_d = 1 + 1/2 + .. + 1/d and variance H_d^(2) = 1 + 1/4 + .. + 1/d^2: it
    grows like (log d)^2 / 2.
    """
    first = math.fsum(1 / j for j in range(1, d + 1))
    second = math.fsum(1 / j**2 for j in range(1, d + 1))
    return (first**2 + second) / 2


KNOWN = {"uniform": uniform, "laplace": laplace, "exponential": laplace, "gaussian": gaussian}
"""The formula of each family of vectors that has one."""

TOP_1 = {"uniform": top_1_uniform, "laplace": top_1_exponential, "exponential": top_1_exponential}
"""What Top-1 keeps over what Rand-1 keeps, by family."""
