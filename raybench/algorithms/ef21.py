"""EF21: error feedback by compressed differences."""

from raybench.algorithms.base import (
    Algorithm,
    Choice,
    Contractive,
    Dense,
    algorithm,
    theory,
    zeros_like,
)


@algorithm(
    "ef21",
    up=Contractive,
    broadcast=Contractive,
    proximal=True,
    theory=theory.ef21,
    init=Choice("compressed", "full", "zero", help="first message: C(grad), grad, or none"),
)
class EF21(Algorithm):
    """x <- x - gamma g; c_i = C(grad f_i(x) - g_i); g_i <- g_i + c_i; g <- g + mean c_i.

    gamma = 1/(L + L_tilde sqrt(beta/theta)), theta = 1 - sqrt(1 - alpha), beta = (1 - alpha)/theta.
    The server's g equals mean g_i. Up: one message. Down: d values. Source: Richtarik, Sokolov,
    Fatkhullin 2021, algorithm 2.
    """

    def start(a, net, s, c):
        grad = a.gradient(net, s.x)
        c.g, s.g = zeros_like(grad), zeros_like(s.x)
        if a.init != "zero":
            m = a.C(grad, net.stream("up")) if a.init == "compressed" else Dense(grad)
            m.add_to(c.g)
            s.g += net.up(m).mean()

    def round(a, net, s, c):
        a.step(net, s, s.g)
        m = a.C(a.gradient(net, s.x) - c.g, net.stream("up"))
        m.add_to(c.g)
        s.g += net.up(m).mean()
