"""DIANA: compressed differences to learned shifts."""

from raybench.algorithms.base import (
    Contractive,
    Estimator,
    Number,
    Unbiased,
    algorithm,
    theory,
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
class Diana(Estimator):
    """m_i = Q(grad f_i(x) - h_i); x <- x - gamma (h + mean m_i); h_i <- h_i + alpha m_i.

    The server's h equals mean h_i; alpha = auto is 1/(1 + omega); alpha = 0 is DCGD. Nonconvex
    gamma = 1/(L + 2 L_tilde (1 + omega) sqrt(omega/n)). Up: one message. Down: d values.
    Source: Mishchenko et al. 2019, algorithm 1.
    """

    def setup(a, wire, s, c):
        c.h, s.h = wire.zeros(), wire.zero()

    def estimate(a, wire, s, c, grad):
        m = a.Q(grad - c.h, wire.stream("up"))
        q = wire.up(m).mean()
        g = s.h + q
        c.h += a.alpha * m.decode()
        s.h += a.alpha * q
        return g
