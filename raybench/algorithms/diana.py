"""DIANA: compressed differences to learned shifts."""

from raybench.algorithms.base import (
    Algorithm,
    Contractive,
    Number,
    Unbiased,
    algorithm,
    theory,
    zeros_like,
)


@algorithm(
    "diana",
    up=Unbiased,
    broadcast=Contractive,
    proximal=True,
    theory=theory.diana,
    auto={"alpha": theory.shift_rate},
    alpha=Number("auto", low=0, high=1, words=("auto",), per_cell=True, help="shift rate"),
)
class Diana(Algorithm):
    """m_i = Q(grad f_i(x) - h_i); x <- x - gamma (h + mean m_i); h_i <- h_i + alpha m_i.

    The server's h equals mean h_i; alpha = auto is 1/(1 + omega); alpha = 0 is DCGD. Nonconvex
    gamma = 1/(L + 2 L_tilde (1 + omega) sqrt(omega/n)). Up: one message. Down: d values.
    Source: Mishchenko et al. 2019, algorithm 1.
    """

    def start(a, net, s, c):
        c.h, s.h = net.zeros(), zeros_like(s.x)

    def estimate(a, net, s, c):
        """Return g_i, unbiased for grad f_i(x), (B, n_here, d)."""
        return a.gradient(net, s.x)

    def round(a, net, s, c):
        m = a.Q(a.estimate(net, s, c) - c.h, net.stream("up"))
        q = net.up(m).mean()
        a.step(net, s, s.h + q)
        c.h += a.alpha * m.decode()
        s.h += a.alpha * q
