"""EC-LSVRG: error compensation on variance-reduced gradients."""

from raybench.algorithms.base import Contractive, Integer, Number, algorithm, theory, where
from raybench.algorithms.ef14 import EF14


def refresh(k: theory.Setting) -> float:
    """Return p = 1/m, m the samples of a client."""
    return 1 / k.m


@algorithm(
    "ec_lsvrg",
    up=Contractive,
    broadcast=Contractive,
    robust=True,
    theory=None,
    stochastic=True,
    auto={"p": refresh},
    p=Number("auto", low=0, high=1, open_low=True, words=("auto",), per_cell=True),
    batch=Integer(1, low=1, help="samples per client and round"),
)
class ECLSVRG(EF14):
    """EF14 on g_i = grad f_i(x; J) - grad f_i(w_i; J) + grad f_i(w_i); w_i <- x with probability p.

    Own coin per client; p = auto is 1/m. The gradient noise vanishes, the floor of heterogeneity
    stays. Gradients per round and client: 2 b, and m with probability p. Up: one message. Down: d
    values. Source: Gorbunov et al. 2020, EC-LSVRG.
    """

    def start(a, net, s, c):
        super().start(net, s, c)
        c.full = net.grad(s.x)
        c.w = s.x[:, None].expand_as(c.full)

    def source(a, net, s, c):
        J, coin = net.sample("batch", a.batch), net.coins("refresh", a.p)
        g = net.grad(s.x, J) - net.grad(c.w, J) + c.full
        c.full = where(coin[..., None], net.grad(s.x, clients=coin), c.full)
        c.w = where(coin[..., None], s.x[:, None], c.w)
        return g
