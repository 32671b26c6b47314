"""EF21-SGDM: EF21 on minibatches, with momentum at the clients."""

from raybench.algorithms.base import Contractive, Flag, Number, algorithm
from raybench.algorithms.ef21_sgd import EF21SGD, STEPS


@algorithm(
    "ef21_sgdm",
    up=Contractive,
    broadcast=Contractive,
    proximal=True,
    robust=True,
    theory=STEPS,
    stochastic=True,
    eta=Number(0.1, low=0, high=1, open_low=True, per_cell=True, help="weight of new gradients"),
    double=Flag(help="average twice (SGD2M)"),
)
class EF21SGDM(EF21SGD):
    """v_i <- (1-eta) v_i + eta grad f_i(x; J); c_i = C(v_i - g_i); g_i <- g_i + c_i; x <- x - gamma g.

    eta = 1 is EF21-SGD. ``double``: u_i <- (1-eta) u_i + eta v_i is sent in place of v_i. v_i and u_i
    begin as the first minibatch gradient. Up: one message. Down: d values. Source: Fatkhullin,
    Tyurin, Richtarik 2023, Momentum Provably Improves Error Feedback, algorithms 1 and 4.
    """

    def open(a, wire, s, c, grad):
        c.v = grad
        if a.double:
            c.u = grad
        return super().open(wire, s, c, grad)

    def estimate(a, wire, s, c, grad):
        c.v = (1 - a.eta) * c.v + a.eta * grad
        if a.double:
            c.u = (1 - a.eta) * c.u + a.eta * c.v
        return super().estimate(wire, s, c, c.u if a.double else c.v)
