"""DASHA-MVR: trackers by momentum over minibatches."""

from raybench.algorithms.base import Contractive, Integer, Number, Unbiased, algorithm
from raybench.algorithms.dasha import Dasha, follow_rate
from raybench.algorithms.dasha_page import tracked
from raybench.theory import Rate, Setting


def mvr(k: Setting) -> Rate:
    """DASHA-MVR: 1/(L + sqrt(F (2 L_tilde^2 + 3 v)) + sqrt(v/(q (2-q) n))), v = 2 (1-q)^2 Lcal^2/b; to a floor.

    F is DASHA's, 2 omega (2 omega + 1)/n for alpha = 1/(2 omega + 1).
    """
    q, b = float(k.numbers["momentum"]), float(k.numbers["batch"])
    v = 2 * (1 - q) ** 2 * k.need("L_samples") ** 2 / b
    return tracked(k, 2 * k.need("L_tilde") ** 2 + 3 * v, v / (q * (2 - q) * k.n))


@algorithm(
    "dasha_mvr",
    up=Unbiased,
    broadcast=Contractive,
    proximal=True,
    theory=mvr,
    stochastic=True,
    auto={"alpha": follow_rate},
    momentum=Number(0.1, low=0, high=1, open_low=True, per_cell=True, help="q, weight of the new"),
    batch=Integer(1, low=1, help="samples per client and round"),
)
class DashaMVR(Dasha):
    """DASHA with h_i+ = grad f_i(x; J) + (1 - q)(h_i - grad f_i(x_old; J)), q the momentum.

    Samples enter with weight q: a floor that falls with q. gamma is derived here (``mvr``). Gradients
    per round and client: 2 b, full ones at the start only. Up: one message. Down: d values. Source:
    Tyurin, Richtarik 2022, DASHA-MVR.
    """

    def source(a, net, s, c):
        if net.t == 0:
            return net.grad(s.x)
        J = net.sample("batch", a.batch)
        return net.grad(s.x, J) + (1 - a.momentum) * (c.h - net.grad(s.old, J))

    def follow(a, net, s, u):
        s.old = s.x
        super().follow(net, s, u)
