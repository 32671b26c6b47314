"""Tridiagonal quadratics with a tunable Hessian variance (PermK-MARINA's and 3PC's test problem)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from scipy.linalg import solveh_banded

from raybench.core.limits import need_memory
from raybench.core.registry import Choice, Integer, Number, Param, problem
from raybench.problems.base import DTYPES, Constants, Fact, Problem


@problem("tridiagonal", x0="problem")
class Tridiagonal(Problem):
    """Tridiagonal quadratics: f_i(x) = x'A_i x / 2 - b_i'x, matrix-free, constants in closed form.

    A_i = (nu_i / 4) tridiag(-1, 2, -1) + c I and b_i = (nu_i / 4) (eta_i - 1) e_1 with
    nu_i = 1 + s N(0,1), eta_i = s N(0,1) and c such that lambda is the smallest eigenvalue of the
    mean. Starts at sqrt(d) e_1. Szlendak, Tyurin, Richtarik 2021, generator of Richtarik et al.
    2022 (3PC).
    """

    __params__: ClassVar[Mapping[str, Param]] = {
        "dim": Integer(1000, low=1, help="number of coordinates d"),
        "clients": Integer(10, low=1, help="number of clients n"),
        "noise": Number(0.05, low=0, help="s: spread of the clients' scales"),
        "lambda": Number(1e-6, low=0, open_low=True, help="smallest eigenvalue of the mean"),
        "dtype": Choice("float64", "float32", help="floating-point type"),
        "seed": Integer(0, low=0, help="drives scales and right-hand sides"),
    }
    per_client = ("scale", "first")

    def __init__(
        self,
        dim: int = 1000,
        clients: int = 10,
        noise: float = 0.05,
        lambda_: float = 1e-6,
        dtype: str = "float64",
        seed: int = 0,
    ) -> None:
        need_memory(
            8 * (4 * dim + 2 * clients),
            f"the spectrum of {dim:,} coordinates and the scales of {clients:,} clients",
            "a smaller problem.dim, or fewer problem.clients",
        )
        super().__init__(clients, dim, dtype=DTYPES[dtype])
        random = np.random.default_rng([seed, *b"tridiagonal"])
        self.nu = 1 + noise * random.standard_normal(clients)
        self.b_first = self.nu / 4 * (noise * random.standard_normal(clients) - 1)
        angle = math.pi / (2 * (dim + 1))
        self.ends = math.sin(angle) ** 2, math.cos(angle) ** 2  # extreme eigenvalues at nu = 1
        mean = float(self.nu.mean())
        self.lam = lambda_
        self.shift = lambda_ - min(mean * e for e in self.ends)
        self.scale = torch.from_numpy(self.nu / 4).to(self.dtype)
        self.first = torch.from_numpy(self.b_first).to(self.dtype)

    def oracle(
        self, x: torch.Tensor, loss: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return A_i x - b_i (B, n_here, d) and f_i(x) (B, n_here), in O(B n d)."""
        at = x if x.ndim == 3 else x[:, None]
        pulled = 2 * at
        pulled[..., 1:] -= at[..., :-1]
        pulled[..., :-1] -= at[..., 1:]
        Ax = self.scale[:, None] * pulled + self.shift * at
        losses = 0.5 * (at * Ax).sum(-1) - self.first * at[..., 0] if loss else None
        Ax[..., 0] -= self.first
        return Ax, losses

    def find_constants(self) -> Constants:
        """Closed forms: all A_i share eigenvectors, with eigenvalues nu_i sin^2(theta_k) + c.

        theta_k = k pi / (2 (d + 1)). Each constant is a convex function of sin^2(theta_k), so it is
        reached at k = 1 or k = d.
        """
        d, c, (low, high) = self.dim, self.shift, self.ends
        mean = float(self.nu.mean())
        L_plus = math.sqrt(max(float(((self.nu * e + c) ** 2).mean()) for e in self.ends))
        k = np.arange(1, d + 1)
        # lambda_k = nubar (sin^2 theta_k - sin^2 theta_1 or _d) + lambda, without cancellation
        theta = k * math.pi / (2 * (d + 1))
        base = theta[0] if mean >= 0 else theta[-1]
        values = mean * np.sin(theta - base) * np.sin(theta + base) + self.lam
        weights = 2 / (d + 1) * np.sin(2 * theta) ** 2  # squared first entries of eigenvectors
        f_star = -0.5 * float(self.b_first.mean()) ** 2 * float((weights / values).sum())
        ends = np.outer(self.nu, self.ends) + c  # the extreme eigenvalues of each A_i
        each = tuple(np.abs(ends).max(1).tolist())
        facts = {Fact.QUADRATIC, Fact.STRONGLY_CONVEX}
        if ends.min() >= 0:
            facts |= {Fact.CONVEX_CLIENTS, Fact.CONVEX_SAMPLES}
        if ends.min() > 0:
            facts.add(Fact.BOUNDED_CLIENTS)
        return Constants(
            L=abs(mean) * (high - low) + self.lam,
            L_i=each,
            L_plus=L_plus,
            L_pm=float(self.nu.std()) * high,
            mu=self.lam,
            mu_i=tuple(ends.min(1).tolist()) if ends.min() > 0 else (),
            f_inf=f_star,
            f_star=f_star,
            L_samples=L_plus,
            L_sample_i=each,
            sample_variance=0.0,
            facts=frozenset(facts),
        )

    def minimizer(self) -> torch.Tensor | None:
        """Return the solution of the mean of the systems; None where that mean is not positive."""
        mean = float(self.nu.mean())
        if mean <= 0:
            return None
        band = np.zeros((2, self.dim))
        band[0, 1:], band[1] = -mean / 4, mean / 2 + self.shift
        right = np.zeros(self.dim)
        right[0] = float(self.b_first.mean())
        return torch.from_numpy(solveh_banded(band, right)).to(self.dtype).to(self.device)

    def start(self) -> torch.Tensor:
        """Return sqrt(d) e_1."""
        x = super().start()
        x[0] = math.sqrt(self.dim)
        return x
