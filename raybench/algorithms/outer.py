"""The outer optimizer: how x moves along the estimate g, at once or some rounds late."""

from __future__ import annotations

import torch
from torch import Tensor

from raybench.core.cells import PerCell, State
from raybench.core.parts import Delay, Outer


def step(outer: Outer, s: State, g: Tensor, gamma: PerCell | float) -> Tensor:
    """Return u (B, d) of g (B, d), or gamma u where ``outer.in_steps``; gamma is 1 if g holds it.

    sgd: u = g. momentum: v <- mu v + g, u = v. nesterov: u = g + mu v. adam: as Adam. Remembers ``s.outer``.
    """
    if outer.optimizer == "sgd":
        return g
    if outer.optimizer == "adam":
        zeros = torch.zeros_like(g)
        m, v, t = vars(s).get("outer") or [zeros, zeros, g.new_zeros(len(g), 1)]
        m = outer.momentum * m + (1 - outer.momentum) * g
        v = outer.beta2 * v + (1 - outer.beta2) * g.square()
        t = t + 1
        s.outer = [m, v, t]
        scale = (v / (1 - outer.beta2**t)).sqrt() + outer.epsilon
        return m / (1 - outer.momentum**t) / scale
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
