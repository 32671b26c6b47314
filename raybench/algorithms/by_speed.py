"""Rounds that give every client work by its speed: Shadowheart SGD and MindFlayer SGD."""

import numpy as np
import torch

from raybench.algorithms.base import Algorithm, Dense, Integer, Number, theory
from raybench.algorithms.events import length, on_clock
from raybench.clock.clients import mean


def half(k: theory.Setting) -> float:
    """1/(2 L): half of gradient descent's step, however fast the clients are."""
    return 1 / (2 * k.need("L"))


AIMED = theory.Assumption(
    "noise is sigma^2/epsilon or more, for the epsilon aimed at",
    "minibatches are noisy and noise is 0",
    lambda k: k.noise == 0 or k.number("noise") > 0,
)
SHADOWHEART = theory.StepSizes(
    nonconvex=theory.Theorem(
        half,
        "E||grad f||^2 <= epsilon within O(L Delta/epsilon) steps of 2 t* seconds each",
        (theory.SMOOTH, theory.BOUNDED_NOISE, AIMED, theory.SAME_CLIENTS),
        "Tyurin, Pozzi, Ilin, Richtarik 2024, arXiv 2402.04785",
        recalled=True,
    )
)


def equilibrium(h, tau, omega, ratio):
    """Return t*, the equilibrium time of clients with h_i seconds a gradient and tau_i a message, (n,) each.

    ratio: sigma^2/epsilon. The least over j of max{s_j, the j-th of max(h, tau)}, clients sorted by it; s_j solves
    s = 1/sum_{i <= j} 1/(2 tau_i omega + 4 tau_i omega h_i ratio/s + 2 h_i ratio).
    """
    order = np.argsort(np.maximum(h, tau), kind="stable")
    h, tau = h[order], tau[order]
    worst, best = np.maximum(h, tau), np.inf
    for j in range(1, len(h) + 1):
        if worst[j - 1] >= best:
            break
        fixed, cross = 2 * tau[:j] * omega + 2 * h[:j] * ratio, 4 * tau[:j] * omega * h[:j] * ratio
        if not (fixed > 0).all():
            s = 0.0
        else:
            low, high = 0.0, float((fixed + np.sqrt(cross)).min()) + 1e-300
            for _ in range(200):  # the right side falls short of s above the solution
                s = (low + high) / 2
                low, high = (s, high) if 1 / (1 / (fixed + cross / s)).sum() > s else (low, s)
        best = min(best, max(s, worst[j - 1]))
    return float(best)


@on_clock(
    "shadowheart_sgd",
    title="Shadowheart SGD",
    theory=SHADOWHEART,
    noise=Number(0.0, low=0, help="sigma^2/epsilon: how noisy a gradient is, against the target"),
)
class ShadowheartSGD(Algorithm):
    """x <- x - gamma sum_i w_i sum_{j <= m_i} Q_ij(sum of b_i gradients of client i)/sum_i w_i m_i b_i.

    b_i = floor(t*/h_i) gradients at x and m_i = floor(t*/tau_i) independent messages of their sum, t* the equilibrium
    time (``equilibrium``); w_i = 1/(b_i omega + omega r + m_i r), r = sigma^2/epsilon, and 1 where that is 1/0; clients
    with b_i or m_i of 0 are left out. Without noise one gradient is as good as many: b_i <= 1; where a message takes no
    time, m_i = 1. Up: m_i messages. Source: Tyurin, Pozzi, Ilin, Richtarik 2024, Shadowheart SGD, arXiv 2402.04785.
    """

    def setup(a, net, s, c):
        clients = net.timing.clients
        size = length(a, net)
        samples = a.batch if isinstance(a.batch, int) else clients.samples
        h = clients.tau[0] * (samples if clients.per_sample else 1.0)
        h = h + mean(clients.clock["jitter"])
        tau, omega = clients.up(np.full(net.n, size)), float(a.Q.bound.omega or 0.0)
        # the equilibrium time t*, a hair later, so that what ends at t* itself counts
        t = equilibrium(h, tau, omega, a.noise) * (1 + 1e-12)
        # b_i = floor(t*/h_i) gradients and m_i = floor(t*/tau_i) messages fit into it
        b = np.floor(t / h)
        m = np.floor(t / tau) if (tau > 0).all() else np.ones(net.n)
        if a.noise == 0 or not isinstance(a.batch, int):
            b = np.minimum(b, 1)
        if omega == 0:
            m = np.minimum(m, 1)
        used = (b > 0) & (m > 0)
        # w_i = 1/(b_i omega + omega r + m_i r), and 1 where that is 1/0
        price = b * omega + omega * a.noise + m * a.noise
        w = np.where(used, 1 / np.where(price > 0, price, 1.0), 0.0)
        a.b, a.m = b * used, m * used
        a.w = w / (w * a.m * a.b).sum()  # divided by sum_i w_i m_i b_i

    def round(a, net, s, c):
        many, total = torch.as_tensor(a.b), net.zeros()
        for b in sorted({int(b) for b in a.b} - {0}):
            # the sum of b minibatches is b times the mean of all their samples
            who = (many == b).expand(len(s.x), -1)
            sample = net.sample(f"batch {b}", b * a.batch) if isinstance(a.batch, int) else None
            net.timing.repeat = b
            total = total + b * who[..., None] * net.grad(s.x, sample, clients=who)
        net.timing.repeat = 1
        copies, w, g = torch.as_tensor(a.m), torch.as_tensor(a.w, dtype=s.x.dtype), net.zero()
        for j in range(int(a.m.max())):  # g = sum_i w_i sum_{j <= m_i} Q_ij(total_i)
            message = a.Q(total, net.stream(f"copy {j}")).masked((copies > j).expand(len(s.x), -1))
            g = g + net.up(message).weighted(w.expand(len(s.x), -1))
        a.step(net, s, g)


@on_clock(
    "mindflayer_sgd",
    title="MindFlayer SGD",
    up=None,
    dense=False,
    trials=Integer(1, low=1, help="B_i: gradients that each client tries in a round"),
    patience=Number(
        0.9,
        low=0,
        high=1,
        open_low=True,
        help="p_i: trials that take longer than all but this share are cut",
    ),
)
class MindFlayerSGD(Algorithm):
    """x <- x - gamma sum of the gradients that arrive/sum_i p_i B_i: trials that take longer than t_i are cut.

    t_i: the time within which a gradient of client i is done with probability p_i = ``patience``, by the jitter or the
    trace of the clock; without either it is always done, and p_i is less by what clients vanish. Up: the sum of a
    client's gradients, d values. Source: Maranjyan, Shaikh Omar, Richtarik 2024, MindFlayer SGD, arXiv 2410.04285.
    """

    def round(a, net, s, c):
        clock, total = net.timing, net.zeros()
        size = a.batch if isinstance(a.batch, int) else clock.clients.samples
        most, p = clock.clients.within(a.patience, size)
        for j in range(a.trials):
            done = torch.as_tensor(clock.cut(most, size))
            sample = net.sample(f"batch {j}", a.batch) if isinstance(a.batch, int) else None
            grads = net.grad(s.x, sample, clients=torch.ones_like(done))
            total = total + done[..., None] * grads
        clock.cut(None, size)
        a.step(net, s, net.up(Dense(total)).sum() / (a.trials * float(p.sum())))
