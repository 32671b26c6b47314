"""The parts of a round that a sweep or a preset may exchange: local work, the outer optimizer, delay.

Local work is what a client does between two messages, and the direction that it sums up to: H steps of an inner
optimizer from y = x. The direction is v = x - y, or (x - y)/gamma where the method's own step size is that of the
clients. What the inner optimizer remembers, ``c.inner``, stays with the client. Any estimator takes the v in place of
gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from raybench.algorithms.protocols import Net
from raybench.core.cells import PerCell, State
from raybench.core.layout import Layout
from raybench.core.parts import MOMENTA, Delay, Local, Outer
from raybench.core.streams import Sample

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


def directions(
    local: Local,
    net: Net,
    s: State,
    c: State,
    batch: int | str | None,
    gamma: PerCell,
    clients: Tensor | None = None,
    change: Callable[[Tensor, Tensor], Tensor] = lambda g, y: g,
    begin: Tensor | None = None,
    purpose: str = "batch",
) -> Tensor:
    """Return v (B, n_here, d) of the clients, starting at s.x; gamma is the method's step size.

    batch: samples of a local step; all of them where it is no number. clients: those who work. change:
    what is done to a gradient at y. begin: points (B, n_here, d) to start at in place of s.x. purpose: of
    the samples, another one for other steps of the same round.
    """
    samples: list[Sample] | list[None] = [None] * local.steps
    if isinstance(batch, int):
        samples = net.sample(purpose, local.steps * batch).split(batch)
    x = s.x[:, None] if begin is None else begin
    # With steps of the method's own size v is counted in them: the sum of what y moves along.
    unit, eta = (gamma.like(x), 1.0) if local.step_size is None else (1.0, local.step_size)
    at, y, v = s.x if begin is None else begin, x, torch.zeros_like(x)
    for sample in samples:
        g = change(net.grad(at, sample, clients=clients), y)
        v = v + _step(local, g, eta, net.layout, c)
        if local.weight_decay:
            v = v + eta * local.weight_decay * y
        at = y = x - unit * v
    return v


def _step(local: Local, g: Tensor, eta: float, layout: Layout, c: State) -> Tensor:
    """Return what y moves back by, given its gradient g (B, n_here, d)."""
    mu = local.mu
    if local.optimizer == "sgd":
        return eta * g
    if local.optimizer == "momentum":
        before = vars(c).get("inner")
        c.inner = g if before is None else mu * before + g
        return eta * (g + mu * c.inner if local.nesterov else c.inner)
    zeros = torch.zeros_like(g)
    m, v, count = vars(c).get("inner") or [zeros, zeros, g.new_zeros(*g.shape[:2], 1)]
    if local.optimizer == "adamw":
        c.inner, step = _adam(local, mu, g, m, v, count)
        return eta * step
    rest = eta if local.rest_step_size is None else local.rest_step_size
    c.inner, step = _adam(local, MOMENTA["adamw"], g, m, v, count)
    step = rest * step
    heavy = mu * m + g
    along = g + mu * heavy if local.nesterov else heavy
    at = 0
    for (name, shape), size in zip(layout, layout.sizes, strict=True):
        part, at = slice(at, at + size), at + size
        if len(shape) < 2 or any(fnmatchcase(name, pattern) for pattern in local.rest):
            continue
        M = along[..., part].unflatten(-1, (shape[0], -1))
        scale = max(1.0, M.shape[-2] / M.shape[-1]) ** 0.5
        step[..., part] = eta * scale * orthogonalised(M).flatten(-2)
        c.inner[0][..., part] = heavy[..., part]
    return step


def _adam(
    of: Local | Outer, beta1: Any, g: Tensor, m: Tensor, v: Tensor, count: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Return Adam's memory after the gradient g, and its step without eta."""
    m, v = beta1 * m + (1 - beta1) * g, of.beta2 * v + (1 - of.beta2) * g.square()
    t = count + 1
    scale = (v / (1 - of.beta2**t)).sqrt() + of.epsilon
    return [m, v, t], m / (1 - beta1**t) / scale


def orthogonalised(M: Tensor) -> Tensor:
    """Return about U V' of M = U S V' (.., a, b), by Newton-Schulz: X <- a X + (b A + c A A) X, A = X X'.

    Singular values end between 0.7 and 1.2. Source: Jordan et al. 2024 (Muon).
    """
    a, b, c = NEWTON_SCHULZ
    tall = M.shape[-2] > M.shape[-1]
    X = M.mT if tall else M
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        A = X @ X.mT
        X = a * X + (b * A + c * A @ A) @ X
    return X.mT if tall else X


def steepest(G: Tensor, norm: str) -> Tensor:
    """Return -LMO(G) of one tensor G (B, ..), the steepest step of norm 1: ``spectral``, ``sign`` or ``euclidean``.

    U V' of a matrix G = U S V' times sqrt(max(1, a/b)), sign(G), or G/||G||; vectors move by signs unless euclidean.
    Source: Gruntkowska et al. 2025 (EF21-Muon).
    """
    if norm == "euclidean":
        flat = G.flatten(1)
        size = flat.norm(dim=1, keepdim=True).clamp(min=torch.finfo(G.dtype).tiny)
        return (flat / size).view(G.shape)
    if norm == "sign" or G.ndim < 3:
        return torch.sign(G)
    M = G.flatten(2)
    scale = max(1.0, M.shape[-2] / M.shape[-1]) ** 0.5
    return scale * orthogonalised(M).view(G.shape)


def outer_step(outer: Outer, s: State, g: Tensor, gamma: PerCell | float) -> Tensor:
    """Return u (B, d) of g (B, d), or gamma u where ``outer.in_steps``; gamma is 1 if g holds it.

    sgd: u = g. momentum: v <- mu v + g, u = v. nesterov: u = g + mu v. adam: as Adam. Remembers ``s.outer``.
    """
    if outer.optimizer == "sgd":
        return g
    if outer.optimizer == "adam":
        zeros = torch.zeros_like(g)
        before = vars(s).get("outer") or [zeros, zeros, g.new_zeros(len(g), 1)]
        s.outer, step = _adam(outer, outer.momentum, g, *before)
        return step
    if outer.in_steps:
        g = gamma * g
    before = vars(s).get("outer")
    s.outer = g if before is None else outer.momentum * before + g
    return g + outer.momentum * s.outer if outer.optimizer == "nesterov" else s.outer


def late(delay: Delay, s: State, g: Tensor) -> Tensor:
    """Return the g of ``delay.rounds`` rounds before, zeros in the first of them; ``s.waiting`` holds them."""
    waiting = [*vars(s).get("waiting", []), g]
    if len(waiting) <= delay.rounds:
        s.waiting = waiting
        return torch.zeros_like(g)
    s.waiting = waiting[1:]
    return waiting[0]
