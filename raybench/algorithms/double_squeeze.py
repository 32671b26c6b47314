"""DoubleSqueeze: error feedback in both directions."""

from raybench.algorithms.base import Algorithm, Contractive, Integer, algorithm, zeros_like


@algorithm(
    "double_squeeze",
    up=Contractive,
    down=Contractive,
    theory=None,
    stochastic=True,
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class DoubleSqueeze(Algorithm):
    """c_i = C(g_i + e_i), e_i <- g_i + e_i - c_i; q = D(mean c_i + E), E <- mean c_i + E - q; x <- x - gamma q.

    x - gamma (E + mean e_i) follows uncompressed steps for constant gamma. The model is never sent:
    every client steps itself. Floor as EF14. Up: one message of C. Down: one of D. Source: Tang et
    al. 2019, algorithm 1.
    """

    def start(a, net, s, c):
        c.e, s.E = net.zeros(), zeros_like(s.x)

    def round(a, net, s, c):
        v = a.gradient(net, s.x) + c.e
        m = a.C(v, net.stream("up"))
        c.e = v - m.decode()
        u = net.up(m).mean() + s.E
        q = net.down(a.D(u, net.server_stream("down")))
        s.E = u - q
        s.x = s.x - a.gamma * q
