"""What the servers of methods that do not wait do with what arrives, from the papers; and rounds given by speed.

A coroutine is sent (client, gradient, delay) and yields u of x <- x - gamma u, None where the server does not step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import brentq


def immediate(n, adaptive=False):
    u = None
    while True:
        _, g, late = yield u
        u = n / max(n, late) * g if adaptive else g


def collecting(n, collect, damped=False):
    u = None
    while True:
        gradients: list[Any] = []
        while len(gradients) < collect:
            _, g, late = yield u
            u = None
            gradients.append(g / np.sqrt(1 + late) if damped else g)
        u = np.mean(gradients, 0)


def malenia(n, collect):
    u = None
    while True:
        gradients: list[Any] = [[] for _ in range(n)]
        while not all(gradients) or n / sum(1 / len(g) for g in gradients) < collect / n - 1e-9:
            i, g, _ = yield u
            u = None
            gradients[i].append(g)
        u = np.mean([np.mean(g, 0) for g in gradients], 0)


def iaasgd(n):
    table: dict[int, Any] = {}
    u = None
    while True:
        i, change, _ = yield u
        table[i] = table.get(i, 0.0) + change
        u = sum(table.values()) / n if len(table) == n else None


def ringleader(n):
    table: list[Any] = [[] for _ in range(n)]
    u = None
    while True:
        while not all(table):  # phase 1
            i, g, _ = yield u
            u = None
            table[i].append(g)
        later: list[Any] = [[] for _ in range(n)]
        updated = {i}
        u = np.mean([np.mean(g, 0) for g in table], 0)
        while len(updated) < n:  # phase 2
            i, g, _ = yield u
            (later if i in updated else table)[i].append(g)
            u = None if i in updated else np.mean([np.mean(g, 0) for g in table], 0)
            updated.add(i)
        table = later


def late_momentum(n, every, momentum):
    """Algorithm 3 of Liu et al. with c = 0: the momentum moves as each N-th arrives."""
    m, u = 0.0, None
    while True:
        gradients: list[Any] = []
        while len(gradients) < every:
            _, g, _ = yield u
            gradients.append(g)
            u = g / every
        m = momentum * m + np.mean(gradients, 0)
        u = u + momentum * m


def lmo(n, momentum, steepest):
    _, m, _ = yield None
    while True:
        _, g, _ = yield steepest(m)
        m = (1 - momentum) * m + momentum * g


# Rounds -------------------------------------------------------------------------------------------------


def equilibrium(h, tau, omega, ratio):
    """t*: the least over j of max{s_j, max(h, tau) of the j-th}, by the formula of the paper."""
    order = np.argsort(np.maximum(h, tau), kind="stable")
    h, tau = h[order], tau[order]

    def excess(s, j):
        each = 2 * tau[:j] * omega + 4 * tau[:j] * omega * h[:j] * ratio / s + 2 * h[:j] * ratio
        return s * (1 / each).sum() - 1

    free = ratio == 0 and (omega == 0 or tau.min() == 0)  # some client sends all it knows at once
    each = [
        0.0 if free else brentq(excess, 1e-9, 1e9, (j,), xtol=1e-14) for j in range(1, len(h) + 1)
    ]
    return min(np.maximum(each, np.maximum(h, tau)))


def by_speed(h, tau, omega, ratio):
    """Return Shadowheart's b, m and w: gradients, messages, and what one of these weighs."""
    t = equilibrium(h, tau, omega, ratio) * (1 + 1e-9)
    b = np.floor(t / h) if ratio else np.minimum(np.floor(t / h), 1)  # one is exact without noise
    m = np.floor(t / tau) if tau.all() else np.ones(len(h))
    used = (b > 0) & (m > 0)
    w = used / np.where(used, b * omega + omega * ratio + m * ratio, 1)
    return b.astype(int), m.astype(int), w / (w * m * b).sum()
