"""DoubleSqueeze: error feedback in both directions."""

from raybench.algorithms.base import Contractive, Estimator, Integer, algorithm


@algorithm(
    "double_squeeze",
    title="DoubleSqueeze",
    up=Contractive,
    down=Contractive,
    theory=None,
    batch=Integer("full", low=1, words=("full",), help="samples per client and round"),
)
class DoubleSqueeze(Estimator):
    """c_i = C(g_i + e_i), e_i <- g_i + e_i - c_i; q = D(mean c_i + E), E <- mean c_i + E - q; x <- x - gamma q.

    x - gamma (E + mean e_i) follows uncompressed steps for constant gamma. The model is never sent:
    every client steps itself. Floor as EF14. Up: one message of C. Down: one of D. Source: Tang et
    al. 2019, algorithm 1.
    """

    broadcasts_model = False
    errors = ("e",)

    def setup(a, wire, s, c):
        c.e, s.E = wire.zeros(), wire.zero()

    def estimate(a, wire, s, c, grad):
        v = grad + c.e
        m = a.C(v, wire.stream("up"))
        c.e = v.sub_(m.decode())  # messages share no memory with what they are made of
        u = wire.up(m).mean() + s.E
        q = a.broadcast(wire, u)
        s.E = u - q
        return q
