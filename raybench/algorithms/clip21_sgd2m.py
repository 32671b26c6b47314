"""Clip21-SGD2M: error feedback whose compressor clips, with momentum on both sides, for privacy."""

import torch

from raybench.algorithms.base import Dense, Estimator, Integer, Number, algorithm


@algorithm(
    "clip21_sgd2m",
    title="Clip21-SGD2M",
    up=None,
    theory=None,
    tau=Number(
        1.0, low=0, open_low=True, words=("off",), help="norm to which a message is clipped"
    ),
    beta=Number(0.1, low=0, high=1, open_low=True, per_cell=True, help="weight of new gradients"),
    beta_server=Number(
        0.5, low=0, high=1, open_low=True, per_cell=True, help="weight of a message in g_i and g"
    ),
    sigma=Number(
        0.0, low=0, per_cell=True, help="deviation of each coordinate's noise, for privacy"
    ),
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class Clip21SGD2M(Estimator):
    """v_i <- (1-b) v_i + b grad f_i(x); m_i = clip(v_i - g_i); x <- x - gamma g, g <- g + b' mean (m_i + noise_i).

    g_i <- g_i + b' m_i, b and b' being ``beta`` and ``beta_server``; clip(u) = min{1, tau/||u||} u, noise_i of
    Gaussians N(0, sigma^2) in every coordinate. All begin at 0. Without noise g = mean g_i. The noise of all rounds
    stays in g: b' damps it. tau = off, b = b' = 1: gradient descent; tau = off, b' = 1: momentum. The
    accounting of privacy is not done here, and the theorem's step, which rests on bounds of the first gradients, is
    not given. Up: d values. Down: d values. Source: Islamov, Horvath, Lucchi, Richtarik, Gorbunov 2025, Double Momentum
    and Error Feedback for Clipping (the updates as public descriptions of it have them; there the first step, from
    g = 0, comes before the first message: the same sequence a round later).
    """

    opens = True

    def setup(a, wire, s, c):
        c.v, c.g, s.g = wire.zeros(), wire.zeros(), wire.zero()

    def estimate(a, wire, s, c, grad):
        c.v = (1 - a.beta) * c.v + a.beta * grad
        with wire.compressing():
            m = a.clip(c.v - c.g)
            c.g = c.g + a.beta_server * m
            if bool((a.sigma.values > 0).any()):
                m = m + a.sigma * wire.stream("noise").normal(m.shape[-1]).to(m)
        return s.g + a.beta_server * wire.up(Dense(m)).mean()

    def clip(a, u):
        """Return u (B, n_here, d), every row scaled down to the norm tau where it is above."""
        if a.tau == "off":
            return u
        size = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
        return u * (a.tau / size.clamp(min=a.tau))
