"""Regularisers: what is added to each f_i, or handled by its proximal step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from raybench.problems.kernels import nonconvex_kernel

KINDS = ("nonconvex", "l2", "l1", "none")


@dataclass(frozen=True)
class Regularizer:
    """lam * r(x), with r one of

    nonconvex: sum_l x_l^2 / (1 + x_l^2), whose r'' lies in [-1/2, 2]; l2: ||x||^2 / 2;
    l1: ||x||_1 (nonsmooth: no part of f_i, see ``prox`` and ``penalty``); none: 0.
    """

    kind: str
    lam: float

    @property
    def smooth(self) -> bool:
        """Return whether something is added to f_i."""
        return self.kind in ("nonconvex", "l2") and self.lam > 0

    @property
    def nonsmooth(self) -> bool:
        """Return whether there is a proximal step."""
        return self.kind == "l1" and self.lam > 0

    @property
    def convex(self) -> bool:
        """Return whether it is convex."""
        return self.kind != "nonconvex" or self.lam == 0

    @property
    def L(self) -> float:
        """Return the smoothness constant of the smooth part."""
        return {"nonconvex": 2.0, "l2": 1.0}.get(self.kind, 0.0) * self.lam

    @property
    def mu(self) -> float:
        """Return the strong convexity constant of the smooth part (0 if it has none)."""
        return self.lam if self.kind == "l2" else 0.0

    def value(self, x: torch.Tensor) -> torch.Tensor:
        """Return the smooth part at x (..., d) as (...)."""
        if self.kind == "l2":
            return (0.5 * self.lam) * (x * x).sum(-1)
        square = x * x  # overflows to infinity at huge x, where the term's limit is 1
        terms = torch.where(square.isinf(), 1.0, square / (1 + square))
        return self.lam * terms.sum(-1)

    def grad(self, x: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the smooth part at x (..., d)."""
        if self.kind == "l2":
            return self.lam * x
        root = 1 + x * x
        return (2 * self.lam) * x / root / root

    def both(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (grad, value) at x (..., d): in one pass on the CPU, where small calls cost most."""
        if self.kind != "nonconvex" or x.device.type != "cpu":
            return self.grad(x), self.value(x)
        at = x.detach().contiguous()
        grads, values = torch.empty_like(at), at.new_empty(at.shape[:-1])
        d = at.shape[-1]
        nonconvex_kernel(
            self.lam, at.view(-1, d).numpy(), grads.view(-1, d).numpy(), values.view(-1).numpy()
        )
        return grads, values

    def penalty(self, x: torch.Tensor) -> torch.Tensor:
        """Return the nonsmooth part at x (..., d) as (...)."""
        return self.lam * x.abs().sum(-1) if self.nonsmooth else x.new_zeros(x.shape[:-1])

    def prox(self, v: torch.Tensor, gamma: torch.Tensor | float) -> torch.Tensor:
        """Return the soft threshold of v at gamma lam (l1), else v."""
        return v.sign() * (v.abs() - gamma * self.lam).clamp(min=0) if self.nonsmooth else v
