"""Unbiased estimates whose variance f itself bounds: DCGD, and SGD on samples.

Let E g = grad f(x) and E||g - grad f(x)||^2 <= 2 A (f(x) - f_low), f_low <= f (Khaled, Richtarik 2020).

Nonconvex. E f(x+) - f_low <= (1 + L A gamma^2)(f(x) - f_low) - gamma (1 - L gamma/2) ||grad f(x)||^2. Weigh
round t by (1 + L A gamma^2)^-(t+1), which is at least 1/e while L A gamma^2 T <= 1, and add up.

Strongly convex f, nonsmooth part allowed; E||g - grad f(x*)||^2 <= 2 (L + 2A) D + 2 S, D = f(x) - f(x*) -
<grad f(x*), x - x*>, as where the parts of g are convex: then with gamma <= 1/(L + 2A)
E||x+ - x*||^2 <= (1 - gamma mu)||x - x*||^2 + 2 gamma^2 S, as the prox draws no points apart and
<grad f(x) - grad f(x*), x - x*> >= D + mu/2 ||x - x*||^2.
"""

from __future__ import annotations

import math

from raybench.theory.setting import Setting

NONCONVEX = "(1/T) sum_{t<T} E||grad f(x^t)||^2 <= 2 e (f(x^0) - f_low)/(gamma T)"
STRONG = "E||x^t - x*||^2 <= (1 - gamma mu)^t ||x^0 - x*||^2 + 2 gamma S/mu"


def nonconvex(k: Setting, A: float) -> float:
    """Return min{1/L, 1/sqrt(L A T)}, T the rounds."""
    L = k.need("L")
    return min(1 / L, 1 / math.sqrt(L * A * k.rounds)) if A > 0 else 1 / L


def strongly_convex(k: Setting, A: float) -> float:
    """Return 1/(L + 2 A)."""
    return 1 / (k.need("L") + 2 * A)
